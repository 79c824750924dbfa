"""Every numbered result of the paper, as a property; the names carry the paper's numbers.

Nothing here compares a formula with a copy of itself. The truth comes from three sources:

* `minimise`: scipy's constrained optimiser on the paper's problem, which knows the loss and no psi;
* `posterior_of`: the Lagrange condition with numerical derivatives of the loss, at 30 digits;
* the risk itself, compared between points.
"""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize

import refocal
from refocal import Confidence

few = settings(max_examples=40, deadline=None, derandomize=True)
many = settings(max_examples=120, deadline=None, derandomize=True)

DIGITS = 30
FLOOR = 1e-9
"""Lowest score that the optimiser may try: log 0 is no number."""

gammas = st.floats(0.05, 5.0)
unit = st.floats(0.0, 1.0)


@st.composite
def rows(draw, least=2, most=6, spread=5.0):
    """Positive probability vectors of ``least`` to ``most`` classes, with ties now and then."""
    k = draw(st.integers(least, most))
    x = np.exp(draw(st.lists(st.floats(-spread, 0.0), min_size=k, max_size=k)))
    return x / x.sum()


@st.composite
def pairs(draw):
    """Two rows of the same number of classes."""
    k = draw(st.integers(2, 6))
    return draw(rows(k, k)), draw(rows(k, k))


@st.composite
def rests(draw, size):
    """Shapes for `row_with_top`: one number in [0, 1] for every class but the top."""
    n = draw(size)
    return draw(st.lists(unit, min_size=n, max_size=n))


def row_with_top(top, rest):
    """Return a row with largest score ``top``, first, and others like ``rest`` as far as top allows."""
    k = len(rest)
    share = np.asarray(rest) + 1e-3
    share = share / share.sum()
    room = top / (1 - top) - 1 / k
    excess = share.max() - 1 / k
    share = 1 / k + (share - 1 / k) * (min(1.0, room / excess) if excess > 0 else 1.0)
    return np.append(top, np.minimum((1 - top) * share, top))


def is_in_s(q, margin=1e-6):
    """Whether a row is in the paper's S^K, or so close that float64 sees no difference."""
    return float(np.sum(q * (q.max() - q))) < margin


def risk(q, eta, gamma):
    return -np.sum(eta * (1 - q) ** gamma * np.log(q))


def risk_gradient(q, eta, gamma):
    return eta * (gamma * (1 - q) ** (gamma - 1) * np.log(q) - (1 - q) ** gamma / q)


def minimise(eta, gamma):
    """Return scipy's minimiser of the focal risk over the simplex; it is good to about 1e-8.

    SLSQP starts again where it stopped, with a fresh Hessian, until it stays there.
    """
    k = len(eta)
    q = np.full(k, 1 / k)
    for _ in range(20):
        found = minimize(
            risk,
            q,
            args=(eta, gamma),
            jac=risk_gradient,
            method="SLSQP",
            bounds=[(FLOOR, 1 - FLOOR)] * k,
            constraints={"type": "eq", "fun": lambda q: q.sum() - 1, "jac": np.ones_like},
            options={"ftol": 1e-16, "maxiter": 200},
        )
        if np.abs(found.x - q).max() < 1e-9:
            return q
        q = np.clip(found.x, FLOOR, 1 - FLOOR)
    raise AssertionError(f"the optimiser does not settle: {found.message}")


def loss_slope(v, gamma, order=1):
    """Return a numerical derivative of the loss -(1-v)^gamma log v."""
    return mp.diff(lambda u: -((1 - u) ** gamma) * mp.log(u), v, order, relative=True)


def posterior_of(q, gamma):
    """Return the eta whose focal risk is stationary at q, and q as it was used (sum 1 to 30 digits).

    On the simplex that is: eta_i times the loss's derivative at q_i is the same for all classes.
    """
    with mp.workdps(DIGITS):
        total = mp.fsum(q)
        q = [mp.mpf(v) / total for v in q]
        weights = {v: 1 / loss_slope(v, gamma) if v else mp.mpf(0) for v in set(q)}
        total = mp.fsum(weights[v] for v in q)
        return [weights[v] / total for v in q], q


def true_sign(q, gamma):
    """Return +1 where max q is above the largest posterior (eta-overconfident), -1 below, 0 equal."""
    eta, q = posterior_of(q, gamma)
    gap = max(q) - max(eta)
    return 0 if abs(gap) < mp.mpf(10) ** (10 - DIGITS) else int(mp.sign(gap))


def codes(q, gamma):
    """Return what refocal says: by all scores, by the largest alone."""
    return refocal.eta_confidence(q, gamma), refocal.confidence_region(q, gamma)


# The minimiser


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
@given(eta=rows())
@few
def test_minimizer_is_that_of_a_constrained_optimiser(eta, gamma):
    np.testing.assert_allclose(refocal.focal_minimizer(eta, gamma), minimise(eta, gamma), rtol=0, atol=1e-6)


@given(pair=pairs(), gamma=st.floats(0.0, 10.0), step=st.sampled_from([1e-3, 0.1, 1.0]))
@many
def test_minimizer_has_the_least_risk(pair, gamma, step):
    eta, other = pair
    q = refocal.focal_minimizer(eta, gamma)
    least, elsewhere = refocal.conditional_risk(
        np.stack([q, q + step * (other - q)]), np.stack([eta, eta]), gamma
    )
    assert least == pytest.approx(risk(q, eta, gamma), rel=1e-12)
    assert least <= elsewhere + 1e-15


# Theorem 3: classification calibration


@given(eta=rows(), gamma=st.floats(0.0, 5.0))
@few
def test_theorem_3_classification_calibrated(eta, gamma):
    """Definition 2: the decision of the risk minimiser has the Bayes-optimal zero-one risk."""
    for q in (minimise(eta, gamma), refocal.focal_minimizer(eta, gamma)):
        assert 1 - eta[np.argmax(q)] <= 1 - eta.max() + 1e-6


@given(eta=rows(most=30), gamma=st.floats(0.0, 10.0))
@many
def test_theorem_3_strict_order_is_kept(eta, gamma):
    eta = np.sort(eta)
    gaps = np.diff(refocal.focal_minimizer(eta, gamma))
    assert (gaps[np.diff(eta) > 1e-9] > 0).all()
    assert (np.abs(gaps[np.diff(eta) == 0]) <= 1e-15).all()


@given(pair=pairs(), gamma=st.floats(0.0, 10.0))
@many
def test_theorem_3_a_row_in_the_wrong_order_is_no_minimiser(pair, gamma):
    """Sorting the scores like the posterior lowers the risk, whatever the scores are."""
    eta, q = map(np.sort, pair)
    assume(eta[-1] - eta[0] > 1e-3 and q[-1] - q[0] > 1e-3)
    right, wrong = refocal.conditional_risk(np.stack([q, q[::-1]]), np.stack([eta, eta]), gamma)
    assert right < wrong


# Theorem 5: not strictly proper, unless gamma is 0


@given(top=st.floats(0.55, 0.95), rest=rests(st.integers(1, 5)), gamma=gammas)
@few
def test_theorem_5_not_strictly_proper(top, rest, gamma):
    eta = row_with_top(top, rest)
    q = minimise(eta, gamma)
    assert np.abs(q - eta).max() > 1e-4
    ours, scipys, at_the_truth = refocal.conditional_risk(
        np.stack([refocal.focal_minimizer(eta, gamma), q, eta]), np.stack([eta] * 3), gamma
    )
    assert ours <= scipys + 1e-12
    assert scipys < at_the_truth


@given(pair=pairs())
@many
def test_theorem_5_strictly_proper_at_gamma_0(pair):
    """Cross entropy exceeds its least value by the divergence, at least half the squared distance."""
    eta, q = pair
    truth, other = refocal.conditional_risk(np.stack([eta, q]), np.stack([eta, eta]), 0.0)
    assert other - truth >= 0.5 * np.abs(q - eta).sum() ** 2 - 1e-14
    np.testing.assert_allclose(refocal.focal_minimizer(eta, 0.0), eta, rtol=1e-13)
    np.testing.assert_allclose(refocal.psi(q, 0.0), q, rtol=1e-13)


# Proposition 6: the set S^K, where scores and posterior agree


@given(support=st.integers(1, 8), zeros=st.integers(0, 4), gamma=gammas, seed=st.integers(0, 99))
@few
def test_proposition_6_subset_uniform_rows_are_posteriors(support, zeros, gamma, seed):
    assume(support + zeros >= 2)
    q = np.random.default_rng(seed).permutation([1 / support] * support + [0.0] * zeros)
    np.testing.assert_allclose(refocal.psi(q, gamma), q, rtol=0, atol=1e-15)
    np.testing.assert_allclose(refocal.focal_minimizer(q, gamma), q, rtol=0, atol=1e-15)
    assert codes(q, gamma) == (Confidence.EQUAL, Confidence.EQUAL)
    if support > 1:
        np.testing.assert_allclose(minimise(q, gamma), q, rtol=0, atol=1e-6)
    else:
        assert refocal.conditional_risk(q, q, gamma) == 0  # and no risk is negative


@given(gamma=st.floats(0.1, 1.2))
@few
def test_proposition_6_has_no_converse(gamma):
    """Two scores on either side of tau_oc with the same phi: outside S^K, and yet the posterior."""

    def difference(small):
        return float(np.subtract(*refocal.phi(np.array([small, (1 - small) / 3]), gamma)))

    small = brentq(difference, 1e-9, refocal.tau_oc(gamma), xtol=1e-16)
    q = np.array([*3 * [(1 - small) / 3], small])
    assert not is_in_s(q)
    eta, exact = posterior_of(q, gamma)
    assert max(abs(a - b) for a, b in zip(eta, exact, strict=True)) < 1e-14
    np.testing.assert_allclose(refocal.psi(q, gamma), q, rtol=1e-13)
    np.testing.assert_allclose(minimise(q, gamma), q, rtol=0, atol=1e-6)
    assert refocal.confidence_region(q, gamma) == Confidence.AMBIGUOUS


# Theorem 8: the two thresholds and the regions that they bound


@given(log_gamma=st.floats(-6.0, 2.0))
@few
def test_theorem_8_thresholds(log_gamma):
    gamma = 10.0**log_gamma
    oc, uc = refocal.tau_oc(gamma), refocal.tau_uc(gamma)
    assert 0 < oc < uc < 0.5
    with mp.workdps(DIGITS):

        def phi(v):
            return -v * loss_slope(v, mp.mpf(gamma))

        def phi_slope(v):
            return -loss_slope(v, mp.mpf(gamma)) - v * loss_slope(v, mp.mpf(gamma), 2)

        for root, falling in ((oc, phi_slope), (uc, lambda v: phi(v) - 1)):
            assert falling(mp.mpf(root) * (1 - mp.mpf("1e-12"))) > 0
            assert falling(mp.mpf(root) * (1 + mp.mpf("1e-12"))) < 0


@given(gamma=gammas, height=unit, extra=st.integers(1, 6), data=st.data())
@example(gamma=1.0, height=1.0, extra=1, data=None)
@few
def test_theorem_8_eta_overconfident_up_to_tau_oc(gamma, height, extra, data):
    tau = refocal.tau_oc(gamma)
    k = math.floor(1 / tau) + extra
    top = 1 / k + height * (tau - 1 / k)
    rest = [1.0] * (k - 2) + [0.0] if data is None else data.draw(rests(st.just(k - 1)))
    q = row_with_top(top, rest)
    assume(not is_in_s(q))
    assert true_sign(q, gamma) == 1
    assert codes(q, gamma) == (Confidence.OVER, Confidence.OVER)
    assert refocal.psi(q, gamma).max() < q.max()
    eta = np.array([float(x) for x in posterior_of(q, gamma)[0]])
    np.testing.assert_allclose(minimise(eta, gamma), q, rtol=0, atol=1e-6)


@given(gamma=gammas, height=unit, rest=rests(st.integers(1, 12)))
@example(gamma=1.0, height=0.0, rest=[1.0, 1.0, 0.0])
@few
def test_theorem_8_eta_underconfident_from_tau_uc(gamma, height, rest):
    tau = refocal.tau_uc(gamma)
    low = max(tau, 1 / (1 + len(rest)))
    q = row_with_top(low + height * (0.95 - low), rest)
    assume(not is_in_s(q))
    assert true_sign(q, gamma) == -1
    assert codes(q, gamma) == (Confidence.UNDER, Confidence.UNDER)
    assert refocal.psi(q, gamma).max() > q.max()
    eta = np.array([float(x) for x in posterior_of(q, gamma)[0]])
    if eta.min() > 1e-4:  # the optimiser sees less
        np.testing.assert_allclose(minimise(eta, gamma), q, rtol=0, atol=1e-6)


@given(gamma=st.floats(0.1, 5.0), place=st.floats(0.2, 0.5))
@few
def test_theorem_8_between_the_thresholds_both_happen(gamma, place):
    """Two rows with the same largest score, one eta-overconfident, the other eta-underconfident."""
    oc, uc = refocal.tau_oc(gamma), refocal.tau_uc(gamma)
    top = oc + place * (uc - oc)
    copies = math.floor(1 / top - 1e-3)
    crumbs = 400  # phi of a crumb is close to 1, below phi(top)
    over = np.array([top] * copies + [(1 - copies * top) / crumbs] * crumbs)
    others = round((1 - top) / oc)  # near tau_oc, where phi is above phi(top)
    under = np.array([top] + [(1 - top) / others] * others)
    assume(under[1] < top)
    for q, sign in ((over, Confidence.OVER), (under, Confidence.UNDER)):
        assert true_sign(q, gamma) == sign
        assert codes(q, gamma) == (sign, Confidence.AMBIGUOUS)


@given(eta=rows() | rows(least=6, most=30, spread=1.0), gamma=gammas)
@many
def test_theorem_8_holds_for_the_minimiser_of_any_posterior(eta, gamma):
    """Definition 7 word for word: max q* - max eta, with q* found by the optimiser."""
    q = minimise(eta, gamma)
    gap = q.max() - eta.max()
    assume(abs(gap) > 1e-6)
    assert refocal.eta_confidence(refocal.focal_minimizer(eta, gamma), gamma) == np.sign(gap)
    if q.max() >= refocal.tau_uc(gamma):
        assert gap < 0
    if q.max() <= refocal.tau_oc(gamma):
        assert gap > 0


# Corollaries 9 and 10: always eta-underconfident


@given(gamma=st.floats(0.01, 10.0), top=st.floats(0.501, 0.999), rest=rests(st.integers(1, 20)))
@few
def test_corollary_9_eta_underconfident_above_one_half(gamma, top, rest):
    q = row_with_top(top, rest)
    assert true_sign(q, gamma) == -1
    assert codes(q, gamma) == (Confidence.UNDER, Confidence.UNDER)


@given(gamma=gammas, likely=st.floats(0.501, 0.99))
@few
def test_corollary_10_binary_is_eta_underconfident(gamma, likely):
    eta = np.array([likely, 1 - likely])
    q = minimise(eta, gamma)
    assert 0.5 < q[0] < likely
    ours = refocal.focal_minimizer(eta, gamma)
    assert 0.5 < ours[0] < likely
    assert codes(ours, gamma) == (Confidence.UNDER, Confidence.UNDER)
    for exempt in ([0.5, 0.5], [1.0, 0.0]):
        assert codes(np.array(exempt), gamma) == (Confidence.EQUAL, Confidence.EQUAL)


# Theorem 11: psi recovers the posterior


@given(eta=rows(), gamma=st.floats(0.0, 5.0))
@many
def test_theorem_11_psi_of_the_minimiser_is_the_posterior(eta, gamma):
    q = minimise(eta, gamma)
    np.testing.assert_allclose(refocal.psi(q, gamma), eta, rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.exp(refocal.log_psi(np.log(q), gamma)), eta, rtol=0, atol=1e-6)


@given(eta=rows(), zeros=st.integers(1, 3), gamma=gammas)
@few
def test_theorem_11_with_impossible_classes(eta, zeros, gamma):
    eta = np.append(eta, [0.0] * zeros)
    q = minimise(eta, gamma)
    np.testing.assert_allclose(refocal.psi(q, gamma), eta, rtol=0, atol=1e-6)
    q[-zeros:] = 0
    assert (refocal.psi(q, gamma)[-zeros:] == 0).all()


@given(q=rows(most=30, spread=20.0), gamma=st.floats(0.0, 10.0))
@few
def test_theorem_11_every_row_minimises_the_risk_of_its_psi(q, gamma):
    eta, _ = posterior_of(q, gamma)
    np.testing.assert_allclose(refocal.psi(q, gamma), [float(x) for x in eta], rtol=1e-12)
    np.testing.assert_allclose(refocal.focal_minimizer(refocal.psi(q, gamma), gamma), q, rtol=1e-9)


@given(place=st.integers(0, 4), gamma=st.floats(0.0, 10.0))
@few
def test_theorem_11_one_hot_rows_stay(place, gamma):
    q = np.eye(5)[place]
    np.testing.assert_array_equal(refocal.psi(q, gamma), q)


# Proposition 12: the decision stays


@given(
    weights=st.lists(st.just(0.0) | st.floats(1e-20, 1.0), min_size=2, max_size=50),
    gamma=st.floats(0.0, 10.0),
)
@many
def test_proposition_12_decision_and_order_are_kept(weights, gamma):
    """For any row of the simplex, zeros and ties included, not only for minimisers."""
    assume(sum(weights) > 1e-3)
    v = np.sort(np.array(weights) / sum(weights))
    y = refocal.psi(v, gamma)
    rounding = 1e-14 * y[1:]
    apart, tied = np.diff(v) > 1e-12 * v[1:], np.diff(v) == 0
    assert (np.diff(y)[apart] > 0).all()
    assert (np.abs(np.diff(y)) <= rounding)[tied].all()
    assert y[-1] >= y.max() - rounding[-1]


# Lemma 13: phi rises once, falls once, and crosses 1 once, below one half


@given(gamma=st.floats(1e-3, 30.0), v=st.floats(1e-6, 1 - 1e-6))
@many
def test_lemma_13_phi_is_minus_the_loss_by_log_score(gamma, v):
    with mp.workdps(DIGITS):
        truth = -mp.mpf(v) * loss_slope(mp.mpf(v), mp.mpf(gamma))
        assert float(refocal.phi(v, gamma)) == pytest.approx(float(truth), rel=1e-13)


@given(gamma=st.floats(1e-3, 30.0))
@few
def test_lemma_13_shape_of_phi(gamma):
    v = np.concatenate([np.geomspace(1e-8, 1e-2, 200, endpoint=False), np.linspace(1e-2, 0.999, 800)])
    y = refocal.phi(v, gamma)
    assert refocal.phi(np.array([0.0, 1.0]), gamma).tolist() == [1, 0]  # item 1
    rises = np.diff(y) > 0
    peak = int(np.argmin(rises))
    assert rises[:peak].all()  # item 2
    assert not rises[peak:].any()
    assert v[peak - 1] < refocal.tau_oc(gamma) < v[peak + 1]
    above = y > 1
    crossing = int(np.argmin(above))
    assert above[:crossing].all()  # item 3
    assert not above[crossing:].any()
    assert v[crossing - 1] < 0.5
    assert refocal.phi(0.5, gamma) < 1
    assert v[crossing - 1] < refocal.tau_uc(gamma) <= v[crossing]
    assert v[peak] < refocal.tau_uc(gamma)  # item 4


@given(gamma=st.floats(1e-3, 30.0), v=st.floats(1e-6, 1 - 1e-6))
@many
def test_lemma_13_derivative_changes_sign_at_tau_oc(gamma, v):
    tau = refocal.tau_oc(gamma)
    assume(abs(v - tau) > 1e-9)
    with mp.workdps(DIGITS):
        slope = -loss_slope(mp.mpf(v), gamma) - mp.mpf(v) * loss_slope(mp.mpf(v), gamma, 2)
    assert (slope > 0) == (v < tau)


# Lemma 14: h is strictly increasing


@given(gamma=st.floats(1e-3, 30.0), v=st.floats(1e-6, 1 - 1e-6))
@many
def test_lemma_14_h_is_strictly_increasing(gamma, v):
    """h is -1 / (derivative of the loss), so it grows where the loss is convex."""
    with mp.workdps(DIGITS):
        truth = -1 / loss_slope(mp.mpf(v), mp.mpf(gamma))
        assert loss_slope(mp.mpf(v), mp.mpf(gamma), 2) > 0
    assert float(refocal.h(v, gamma)) == pytest.approx(float(truth), rel=1e-13)


@given(gamma=st.floats(1e-3, 30.0), u=unit, v=unit)
@many
def test_lemma_14_h_orders_like_its_argument(gamma, u, v):
    assume(u < v * (1 - 1e-9))
    y = refocal.h(np.array([0.0, u, v, 1.0]), gamma)
    assert y[0] == 0
    assert y[1] < y[2]
    assert y[3] == np.inf


# The footnote on the number of classes, with and without its condition max q -> 1/K


def near_uniform(k, direction, size=1e-5):
    d = np.array(direction[:k]) - np.mean(direction[:k])
    assume(np.ptp(d) > 0.1)
    return 1 / k + size * d / d.max()


directions = st.lists(st.floats(-1.0, 1.0), min_size=6, max_size=6)


@given(k=st.integers(2, 4), direction=directions, gamma=st.floats(1e-3, 10.0))
@few
def test_footnote_up_to_4_classes_near_uniform_rows_are_eta_underconfident(k, direction, gamma):
    q = near_uniform(k, direction)
    assert true_sign(q, gamma) == -1
    assert refocal.eta_confidence(q, gamma) == Confidence.UNDER


@given(direction=directions)
@few
def test_footnote_5_classes_near_uniform(direction):
    """The turn is where phi has its maximum at 1/5: 2/5 - 2 + log 5 = gamma/5 log 5, at 0.0293."""
    q = near_uniform(5, direction)
    for gamma, sign in ((0.001, 1), (0.029, 1), (0.03, -1), (0.031, -1), (2.0, -1)):
        assert true_sign(q, gamma) == sign
        assert refocal.eta_confidence(q, gamma) == sign
    turn = brentq(lambda gamma: refocal.tau_oc(gamma) - 1 / 5, 1e-3, 1.0, xtol=1e-15)
    assert turn == pytest.approx((2 / 5 - 2 + math.log(5)) / (math.log(5) / 5), rel=1e-9)
    assert turn == pytest.approx(0.0293205, abs=1e-7)


def test_footnote_4_classes_suffice_away_from_uniform():
    q = np.array([0.33, 0.33, 0.33, 0.01])
    eta, _ = posterior_of(q, 0.03)
    assert float(max(eta)) == pytest.approx(0.3299896165852834, rel=1e-15)
    np.testing.assert_allclose(minimise(np.array([float(x) for x in eta]), 0.03), q, rtol=0, atol=1e-6)
    assert true_sign(q, 0.03) == 1
    assert codes(q, 0.03) == (Confidence.OVER, Confidence.AMBIGUOUS)
    assert refocal.psi(q, 0.03).max() < 0.33


def largest_gamma(k):
    """Return the gamma with tau_uc = 1/(k-1): below it phi(1/(k-1)) > 1 = phi(0)."""
    return brentq(lambda gamma: refocal.tau_uc(gamma) - 1 / (k - 1), 1e-3, 100.0, xtol=1e-14)


@pytest.mark.parametrize("k, limit", [(4, 1.428852), (5, 3.070227), (6, 4.850554), (10, 12.798353)])
@given(part=st.floats(0.01, 0.99))
@settings(few, max_examples=10)
def test_footnote_k_minus_1_equal_scores_and_a_crumb(k, limit, part):
    """For every gamma below the limit, a small enough last score makes the row eta-overconfident."""
    assert largest_gamma(k) == pytest.approx(limit, abs=1e-6)
    q = np.array([(1 - 1e-6) / (k - 1)] * (k - 1) + [1e-6])
    assert true_sign(q, part * limit) == 1
    assert refocal.eta_confidence(q, part * limit) == Confidence.OVER


def random_rows(k, n=4000):
    """Rows of all kinds: even and uneven ones, and some equal large scores beside small ones."""
    rng = np.random.default_rng(k)
    parts = [rng.dirichlet([a] * k, n) for a in (0.3, 1, 5, 100)]
    for ties in range(1, k):
        left = rng.uniform(0, 1, n) ** rng.integers(1, 9, n) * (k - ties) / k
        rest = rng.dirichlet([0.5] * (k - ties), n) * left[:, None]
        parts.append(np.column_stack([np.repeat(((1 - left) / ties)[:, None], ties, axis=1), rest]))
    return np.concatenate(parts)


@pytest.mark.parametrize("k", [2, 3, 4, 5, 6])
def test_footnote_no_row_is_eta_overconfident_from_the_limit_on(k):
    """A search, not a proof: 2 and 3 classes never, 4 classes and more not from the limit on."""
    q = random_rows(k)
    start = 1e-3 if k < 4 else largest_gamma(k)
    for gamma in start * np.geomspace(1, 1e4 if k < 4 else 3, 12):
        assert refocal.eta_confidence(q, gamma).max() <= 0
    if k > 3:  # the same rows do find some, just below it
        assert refocal.eta_confidence(q, 0.9 * start).max() == 1


@given(gamma=st.floats(1e-3, 10.0), c=st.floats(1e-6, 0.333))
@many
def test_footnote_3_classes_never(gamma, c):
    """With scores a >= b >= c, only c can pull up: that needs phi(c) < phi(a) <= phi((1-c)/2)."""
    with mp.workdps(DIGITS):
        v = mp.mpf(c)
        low, high = ((-u * loss_slope(u, mp.mpf(gamma))) for u in (v, (1 - v) / 2))
        assert low > high
