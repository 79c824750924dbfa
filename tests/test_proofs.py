"""The steps inside the paper's proofs, and the slips in them that docs/theory.md lists.

What a proof states as a closed form is compared with a numerical derivative, at 40 digits, of what it is the
derivative of; what it states as an inequality is tried on a grid. The slips are tested both ways: as printed
it is wrong, as corrected it is right.
"""

from __future__ import annotations

import itertools

import mpmath as mp
import numpy as np
import pytest

import refocal
from refocal import Confidence

GAMMAS = (0.01, 0.3, 0.7, 0.99, 1.0, 1.5, 2.0, 5.0, 20.0)
POINTS = (1e-6, 0.01, 0.1, 0.2, 0.25, 0.3, 0.49, 0.5, 0.51, 0.7, 0.9, 0.999)
BELOW, ABOVE = [v for v in POINTS if v < 0.5], [v for v in POINTS if v > 0.5]
SMALL_GAMMAS = [gamma for gamma in GAMMAS if gamma < 1]


@pytest.fixture(autouse=True)
def digits():
    with mp.workdps(40):
        yield


def grid(gammas=GAMMAS, points=POINTS):
    return [(mp.mpf(gamma), mp.mpf(v)) for gamma, v in itertools.product(gammas, points)]


def loss(v, gamma):
    return -((1 - v) ** gamma) * mp.log(v)


def phi(v, gamma):
    """phi as what it is: minus v times the derivative of the loss."""
    return -v * mp.diff(lambda u: loss(u, gamma), v, relative=True)


def paper_phi(v, gamma):
    return (1 - v) ** gamma - gamma * (1 - v) ** (gamma - 1) * v * mp.log(v)


def slope(f, v, order=1):
    return mp.diff(f, v, order, relative=True)


def close(a, b, digits=15):
    return abs(a - b) <= mp.mpf(10) ** -digits * max(abs(a), abs(b), mp.mpf(10) ** -10)


# Lemma 13


def s(v, gamma):
    return 2 * v - 2 - mp.log(v) + gamma * v * mp.log(v)


def test_lemma_13_the_derivative_of_phi_factors_into_t_and_s():
    for gamma, v in grid():
        assert close(paper_phi(v, gamma), phi(v, gamma))
        t = gamma * (1 - v) ** (gamma - 2)
        assert t > 0
        assert close(slope(lambda u, g=gamma: paper_phi(u, g), v), t * s(v, gamma))


def test_lemma_13_s_is_convex_and_has_one_root_below_1():
    for gamma, v in grid():
        assert close(slope(lambda u, g=gamma: s(u, g), v), 2 - 1 / v + gamma * mp.log(v) + gamma)
        assert close(slope(lambda u, g=gamma: s(u, g), v, 2), 1 / v**2 + gamma / v)
    for gamma in map(mp.mpf, GAMMAS):
        assert s(mp.mpf(10) ** -30, gamma) > 60  # towards infinity at 0
        assert s(mp.mpf(1), gamma) == 0
        assert close(slope(lambda u, g=gamma: s(u, g), mp.mpf(1)), 1 + gamma)
        tau = mp.mpf(refocal.tau_oc(float(gamma)))
        assert s(tau * (1 - mp.mpf("1e-12")), gamma) > 0 > s(tau * (1 + mp.mpf("1e-12")), gamma)


def test_lemma_13_phi_at_one_half_falls_with_gamma():
    half = mp.mpf(1) / 2
    for gamma in map(mp.mpf, GAMMAS):
        assert close(mp.diff(lambda g: paper_phi(half, g), gamma), -gamma * half**gamma * mp.log(half) ** 2)
        assert paper_phi(half, gamma) < 1
    assert paper_phi(half, mp.mpf(0)) == 1


def test_lemma_13_slip_the_derivative_by_gamma_is_printed_for_one_half_only():
    """Printed with log v and log^2 v, where log(1-v) and log v log(1-v) belong: the same at v = 1/2 alone."""
    for gamma, v in grid((0.3, 2.0)):
        truth = mp.diff(lambda g, u=v: paper_phi(u, g), gamma)
        power = (1 - v) ** (gamma - 1)
        printed = (1 - v) * power * mp.log(v) - power * v * mp.log(v) - gamma * power * v * mp.log(v) ** 2
        mended = power * ((1 - v) * mp.log(1 - v) - v * mp.log(v) - gamma * v * mp.log(v) * mp.log(1 - v))
        assert close(mended, truth)
        assert close(printed, truth) == (v == 0.5)


def test_lemma_13_slip_phi_of_1_is_a_limit_below_gamma_1():
    """As printed, (1-1)^(gamma-1) log 1 is infinity times 0; the product is of the order (1-v)^gamma."""
    for gamma in map(mp.mpf, SMALL_GAMMAS):
        u = mp.mpf(10) ** -30
        assert u ** (gamma - 1) > 1
        assert close(paper_phi(1 - u, gamma), (1 + gamma) * u**gamma, digits=8)
        assert refocal.phi(1.0, float(gamma)) == 0


# Lemma 14


def phi_1(v, gamma):
    a, b, c = (1 - v) ** gamma, (1 - v) ** (gamma - 1), (1 - v) ** (gamma - 2)
    return a + 2 * gamma * v * b - (gamma - 1) * gamma * v**2 * c * mp.log(v)


def phi_2(v, gamma):
    return (1 - v) ** 2 + 2 * gamma * v * (1 - v) + gamma * v**2 * mp.log(v)


def test_lemma_14_the_numerator_of_the_derivative_of_h():
    for gamma, v in grid():
        derivative = slope(lambda u, g=gamma: u / paper_phi(u, g), v)
        assert close(derivative, phi_1(v, gamma) / paper_phi(v, gamma) ** 2)
        assert phi_1(v, gamma) > 0
        if gamma >= 1:  # case 1: no term is negative
            assert -(gamma - 1) * gamma * v**2 * (1 - v) ** (gamma - 2) * mp.log(v) >= 0


def test_lemma_14_case_2_phi_2_falls_from_1_to_0():
    for gamma, v in grid(SMALL_GAMMAS):
        bracket = phi_2(v, gamma) - gamma**2 * v**2 * mp.log(v)
        assert close(phi_1(v, gamma), (1 - v) ** (gamma - 2) * bracket)
        assert bracket >= phi_2(v, gamma) > 0
        first = 2 * v - 2 + 2 * gamma - 3 * gamma * v + 2 * gamma * v * mp.log(v)
        assert close(slope(lambda u, g=gamma: phi_2(u, g), v), first)
        assert close(slope(lambda u, g=gamma: phi_2(u, g), v, 2), 2 - 3 * gamma + 2 * gamma * (1 + mp.log(v)))
        assert close(slope(lambda u, g=gamma: phi_2(u, g), v, 3), 2 * gamma / v)
        assert first < max(-2 + 2 * gamma, -gamma) < 0  # convex, so below its ends
    assert phi_2(mp.mpf(1), mp.mpf("0.3")) == 0


def test_lemma_14_slip_case_2_does_not_hold_at_gamma_0():
    """Headed 0 <= gamma < 1, but at 0 the derivative of phi_2 at v = 1 is 0; the lemma is for gamma > 0."""
    assert slope(lambda u: phi_2(u, mp.mpf(0)), mp.mpf(1)) == 0


# Theorem 11, and what its convexity rests on


def test_theorem_11_slip_convexity_is_lemma_14():
    """The proof calls the problem convex without a reason: loss'' is h' / h^2, so that is Lemma 14."""
    for gamma, v in grid():

        def h(u, g=gamma):
            return u / paper_phi(u, g)

        assert close(slope(lambda u, g=gamma: loss(u, g), v, 2), slope(h, v) / h(v) ** 2, digits=12)
    # It is not evident: below gamma 1 the factor (1-v)^gamma is concave.
    for gamma in map(mp.mpf, SMALL_GAMMAS):
        assert slope(lambda u, g=gamma: (1 - u) ** g, mp.mpf("0.5"), 2) < 0


# Theorems 3, 5 and 8, Proposition 12, Corollary 10: slips of words


def test_theorem_5_slip_psi_is_the_identity_if_gamma_is_0():
    """Printed: "not an identity function unless gamma != 0"; meant: unless gamma = 0."""
    q = np.array([0.6, 0.3, 0.1])
    np.testing.assert_allclose(refocal.psi(q, 0.0), q, rtol=1e-14)
    for gamma in GAMMAS:
        assert np.abs(refocal.psi(q, gamma) - q).max() > 1e-4


def test_theorem_3_and_proposition_12_slip_the_denominator_is_a_sum_of_h():
    """Printed as the sum of the scores, which is 1; Psi_i would then be h(q_i), and would not sum to 1."""
    q = np.array([0.6, 0.3, 0.1])
    h = refocal.h(q, 2.0)
    np.testing.assert_allclose(refocal.psi(q, 2.0), h / h.sum(), rtol=1e-14)
    assert h.sum() > 1.5


@pytest.mark.parametrize("gamma", GAMMAS)
def test_theorem_8_slip_the_proof_restates_the_condition_too_weakly(gamma):
    """Its first lines ask for max q != 1/K alone: (1/2, 1/2, 0) has that, and is not eta-underconfident."""
    q = np.array([0.5, 0.5, 0.0])
    assert q.max() >= refocal.tau_uc(gamma)
    assert refocal.eta_confidence(q, gamma) == Confidence.EQUAL


@pytest.mark.parametrize("gamma", GAMMAS)
def test_corollary_10_slip_the_proof_has_eta_where_corollary_9_has_q(gamma):
    """The step is sound: with two classes, max q is in (1/2, 1) where max eta is (Thm. 3, Prop. 6)."""
    for eta in ABOVE:
        q = refocal.focal_minimizer(np.array([eta, 1 - eta]), gamma).max()
        assert 0.5 < q < 1
        assert q < eta


# The alternative proof of Corollary 9


def test_alternative_9_the_inequality_between_phis_is_enough():
    """eta > q exactly if 1 / phi(q) exceeds the mean of 1 / phi(q_l) with weights q_l."""
    rng = np.random.default_rng(0)
    for gamma in map(mp.mpf, GAMMAS):
        for row in rng.dirichlet([0.5] * 4, 20):
            q = [mp.mpf(v) for v in row]
            q = [v / mp.fsum(q) for v in q]
            h = [v / phi(v, gamma) for v in q]
            top = max(q)
            gap = max(h) / mp.fsum(h) - top
            assert (gap > 0) == (1 / phi(top, gamma) > mp.fsum(h))


def test_alternative_9_case_1_phi_falls_from_one_half_on():
    for gamma, a in grid(points=[0.5, *ABOVE]):
        bracket = gamma * a * mp.log(a) + (-mp.log(a) - 2 + 2 * a)
        assert close(slope(lambda u, g=gamma: paper_phi(u, g), a), gamma * (1 - a) ** (gamma - 2) * bracket)
        assert -mp.log(a) - 2 + 2 * a < 0
        assert gamma * a * mp.log(a) < 0
        assert 2 - 1 / a >= 0


def split(a, gamma):
    """The proof's s_1 and s_2, whose product is phi(a) / phi(1/2)."""
    half = mp.mpf(1) / 2
    first = (1 - a) ** gamma * (half + a) ** gamma / half**gamma
    rest = a * mp.log(a) / (1 - a) if a else mp.mpf(0)
    second = (1 - gamma * rest) / ((half + a) ** gamma * (1 - gamma * mp.log(half)))
    return first, second


def g(gamma, a):
    c = mp.mpf(1) / 2 + a
    return c**-gamma - gamma * a * mp.log(a) / ((1 - a) * c**gamma) - (1 - gamma * mp.log(mp.mpf(1) / 2))


def test_alternative_9_case_2_both_factors_exceed_1():
    for gamma, a in grid(points=BELOW):
        first, second = split(a, gamma)
        assert close(first * second, paper_phi(a, gamma) / paper_phi(mp.mpf(1) / 2, gamma))
        assert close(first, (1 + a - 2 * a**2) ** gamma)
        assert first > 1
        assert second > 1
        assert g(gamma, a) > 0
        assert mp.diff(lambda x, u=a: g(x, u), gamma, 2) > 0  # convex in gamma


def test_alternative_9_case_2_the_slope_of_g_at_0():
    def f(a):
        return -(1 - a) * mp.log(1 + 2 * a) - a * mp.log(a)

    for a in map(mp.mpf, BELOW):
        assert g(mp.mpf(0), a) == 0
        assert close(mp.diff(lambda x, u=a: g(x, u), mp.mpf(0)), f(a) / (1 - a))
        assert f(a) > 0
        assert close(slope(f, a), mp.log(1 + 2 * a) - 3 / (1 + 2 * a) - mp.log(a))
        assert close(slope(f, a, 2), (4 * a - 1) / (a * (1 + 2 * a) ** 2), digits=12)
    assert float(slope(f, mp.mpf(1) / 4)) == pytest.approx(-0.2082, abs=5e-5)
    assert float(slope(f, mp.mpf(1) / 2)) == pytest.approx(-0.1137, abs=5e-5)
    assert abs(f(mp.mpf(1) / 2)) < mp.mpf(10) ** -38


def test_alternative_9_slip_a_of_0_is_claimed_and_not_shown():
    """Case 2 is stated from 0 on and shown above it: s_1 is 1 at 0. There 2^gamma > 1 + gamma log 2 helps."""
    for gamma in map(mp.mpf, GAMMAS):
        first, second = split(mp.mpf(0), gamma)
        assert first == 1
        assert close(second, 2**gamma / (1 + gamma * mp.log(2)))
        assert second > 1


def test_alternative_9_slip_greater_than_0_stands_for_greater_than_1():
    """ "1+a-2a^2 > 0" is given as the reason for s_1 > 1; it holds beyond a = 1/2 too, where s_1 < 1."""
    a, gamma = mp.mpf("0.7"), mp.mpf(2)
    assert 1 + a - 2 * a**2 > 0
    assert split(a, gamma)[0] < 1


def test_alternative_9_slip_it_rests_on_theorem_3_unsaid():
    """Psi of the largest score is taken for the largest posterior, Theorem 3; Psi > q >= 1/2 says so."""
    for gamma, q in grid(points=[0.5, *ABOVE]):
        for part in map(mp.mpf, ("0.01", "0.3", "0.9")):
            scores = [q, (1 - q) * part, (1 - q) * (1 - part)]
            h = [v / paper_phi(v, gamma) for v in scores]
            assert h[0] / mp.fsum(h) > q >= mp.mpf(1) / 2


@pytest.mark.parametrize("gamma", GAMMAS)
def test_alternative_9_reaches_one_half_itself(gamma):
    """The corollary is stated above 1/2; the alternative proof has 1/2 too, outside S^K."""
    assert refocal.eta_confidence(np.array([0.5, 0.3, 0.2]), gamma) == Confidence.UNDER


# The alternative proof of Corollary 10


def weights(q, gamma):
    """The two brackets of the proof: eta and 1 - eta, but for a common factor."""
    a = q**gamma / (1 - q) - gamma * q ** (gamma - 1) * mp.log(1 - q)
    b = (1 - q) ** gamma / q - gamma * (1 - q) ** (gamma - 1) * mp.log(q)
    return a, b


def recovered(q, gamma):
    a, b = weights(q, gamma)
    return a / (a + b)


def numerator(q, gamma):
    """The left side that the proof shows to be positive."""
    return (
        q**gamma
        - gamma * (1 - q) * q ** (gamma - 1) * mp.log(1 - q)
        - (1 - q) ** gamma
        + gamma * q * (1 - q) ** (gamma - 1) * mp.log(q)
    )


def test_alternative_10_eta_from_q():
    for gamma, q in grid(points=ABOVE):
        a, b = weights(q, gamma)
        rise, fall = (slope(lambda x, y=gamma: loss(x, y), x) for x in (q, 1 - q))
        assert close(a * rise, b * fall)  # the risk is stationary
        assert min(a, b) > 0
        assert recovered(q, gamma) > q
        assert numerator(q, gamma) > 0
        assert close((1 - q) * a - q * b, numerator(q, gamma), digits=12)


def test_alternative_10_case_1():
    for gamma, q in grid([gamma for gamma in GAMMAS if gamma >= 1], ABOVE):
        top, bottom = q - gamma * (1 - q) * mp.log(1 - q), (1 - q) - gamma * q * mp.log(q)
        assert (q / (1 - q)) ** (gamma - 1) >= 1
        assert top > bottom > 0
        assert -(1 - q) * mp.log(1 - q) + q * mp.log(q) > 0
    for q in map(mp.mpf, ABOVE[:-1]):  # the series is slow near 1
        terms = [(q ** (i - 1) - (1 - q) ** (i - 1)) / i for i in range(2, 500)]
        assert min(terms) > 0
        assert close(-(1 - q) * mp.log(1 - q) + q * mp.log(q), q * (1 - q) * mp.fsum(terms))


def first_part(q, gamma):
    return q**gamma - (1 - q) ** gamma - gamma * q + gamma * (1 - q)


def second_part(q, gamma):
    a = -(1 - q) * q ** (gamma - 1) * mp.log(1 - q) + q * (1 - q) ** (gamma - 1) * mp.log(q)
    return a + q - (1 - q)


def test_alternative_10_case_2_first_part():
    for gamma, q in grid(SMALL_GAMMAS, ABOVE):
        assert close(first_part(q, gamma) + gamma * second_part(q, gamma), numerator(q, gamma), digits=12)
        assert first_part(q, gamma) > 0
        powers = q ** (gamma - 1) + (1 - q) ** (gamma - 1)
        assert powers > 2
    assert first_part(mp.mpf(1) / 2, mp.mpf("0.3")) == 0


def test_alternative_10_slip_the_derivative_ends_in_2_gamma():
    """Printed: ... - 2 gamma q; true: ... - 2 gamma. The proof's bound, a sum above 2, covers it."""
    for gamma, q in grid(SMALL_GAMMAS, ABOVE):
        truth = slope(lambda x, y=gamma: first_part(x, y), q)
        powers = gamma * q ** (gamma - 1) + gamma * (1 - q) ** (gamma - 1)
        assert close(powers - 2 * gamma, truth, digits=12)
        assert not close(powers - 2 * gamma * q, truth, digits=6)
        assert truth > 0


def test_alternative_10_case_2_second_part_grows_with_gamma():
    for gamma, q in grid(SMALL_GAMMAS, ABOVE):
        derivative = mp.diff(lambda y, x=q: second_part(x, y), gamma)
        stated = -(1 - q) * q ** (gamma - 1) + q * (1 - q) ** (gamma - 1)
        assert close(derivative, mp.log(q) * mp.log(1 - q) * stated)
        assert derivative > 0
        assert second_part(q, gamma) > second_part(q, mp.mpf(0)) > 0
    for q in map(mp.mpf, ABOVE[:-1]):  # the series is slow near 1
        terms = [(q ** (i - 2) - (1 - q) ** (i - 2)) / i for i in range(2, 500)]
        assert terms[0] == 0 < min(terms[1:])
        assert close(second_part(q, mp.mpf(0)), q * (1 - q) * mp.fsum(terms))


def test_alternative_10_slip_it_rests_on_theorem_3_and_on_convexity():
    """Called independent of Thm. 11 and Lemma 14, it uses Thm. 3, which rests on both, and convexity.

    Both can be left out. The formula itself gives eta > q > 1/2, and it needs no convexity: for eta between 0
    and 1 the risk is infinite at both ends, so that a minimiser is a stationary point.
    """
    for gamma, q in grid(points=ABOVE):
        assert recovered(q, gamma) > q > mp.mpf(1) / 2
        for eta in (mp.mpf("0.1"), mp.mpf("0.6")):

            def risk(x, e=eta, y=gamma):
                return e * loss(x, y) + (1 - e) * loss(1 - x, y)

            parts = [slope(lambda u, y=gamma: loss(u, y), x, 2) for x in (q, 1 - q)]
            assert close(slope(risk, q, 2), eta * parts[0] + (1 - eta) * parts[1], digits=10)
            assert min(parts) > 0
