"""tau_oc, tau_uc, eta_confidence, confidence_region."""

from __future__ import annotations

import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import torch

import refocal
from refocal import Confidence


def exact_taus(gamma: float) -> tuple[float, float]:
    """Return the maximum of phi and its crossing of 1, by mpmath's own solver on phi itself."""
    with mp.workdps(60):
        g = mp.mpf(gamma)

        def phi(v):
            return (1 - v) ** g - g * (1 - v) ** (g - 1) * v * mp.log(v)

        low = mp.findroot(
            lambda v: mp.diff(phi, v) / g, (mp.mpf(1) / 10 / (1 + g), mp.mpf(1) / (1 + g)), solver="anderson"
        )
        high = mp.findroot(lambda v: (phi(v) - 1) / g, (low, mp.mpf(1) / 2), solver="anderson")
        return float(low), float(high)


@pytest.mark.parametrize("gamma", [1e-6, 1e-3, 0.03, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 31.6, 100.0])
def test_taus_against_mpmath(gamma):
    low, high = exact_taus(gamma)
    assert refocal.tau_oc(gamma) == pytest.approx(low, rel=1e-12, abs=0)
    assert refocal.tau_uc(gamma) == pytest.approx(high, rel=1e-12, abs=0)


def test_taus_of_gamma_one_in_closed_form():
    assert refocal.tau_oc(1) == pytest.approx(np.exp(-2), rel=1e-15)
    assert refocal.tau_uc(1) == pytest.approx(np.exp(-1), rel=1e-15)
    assert isinstance(refocal.tau_oc(1), float)


def test_taus_of_arrays(backend):
    gamma = backend.array([[0.5, 1.0], [2.0, 30.0]])
    tolerance = 1e-6 if backend.dtype == "float32" else 1e-14
    for f in (refocal.tau_oc, refocal.tau_uc):
        expected = [[f(0.5), f(1.0)], [f(2.0), f(30.0)]]
        np.testing.assert_allclose(backend.check(f(gamma), gamma), expected, rtol=tolerance)


def test_eta_confidence_is_the_sign_of_the_difference(backend):
    rng = np.random.default_rng(0)
    q = rng.dirichlet(np.full(50, 5.0), size=200)
    seen = set()
    for gamma in (0.05, 0.5, 20.0):
        codes = np.asarray(refocal.eta_confidence(backend.array(q), gamma))
        expected = np.sign(q.max(axis=1) - refocal.psi(q, gamma).max(axis=1))
        np.testing.assert_array_equal(codes, expected)
        seen |= set(codes.tolist())
    assert seen == {-1, 1}


def test_equal_on_the_paper_s_set(backend):
    q = backend.array(
        [[0.25] * 4, [1, 0, 0, 0], [0.5, 0, 0.5, 0], [1 / 3, 1 / 3, 1 / 3, 0], [0.26, 0.25, 0.25, 0.24]]
    )
    for gamma in (0.03, 2.0, 10.0):
        assert np.asarray(refocal.eta_confidence(q, gamma)).tolist()[:4] == [0, 0, 0, 0]
        assert np.asarray(refocal.confidence_region(q, gamma)).tolist()[:4] == [0, 0, 0, 0]
        assert np.asarray(refocal.eta_confidence(q, gamma))[4] == -1
    assert np.asarray(refocal.eta_confidence(q, 0.0)).tolist() == [0] * 5
    assert np.asarray(refocal.confidence_region(q, 0.0)).tolist() == [0] * 5


def test_regions_and_their_edges(backend):
    gamma = 2.0
    xp = backend
    low, high = refocal.tau_oc(gamma), refocal.tau_uc(gamma)

    def row(largest: float) -> list[float]:
        rest = (1 - largest) / 20
        return [largest, *([rest] * 20)]

    q = xp.array([row(x) for x in (low - 1e-4, low + 1e-4, high - 1e-4, high + 1e-4)])
    expected = [Confidence.OVER, Confidence.AMBIGUOUS, Confidence.AMBIGUOUS, Confidence.UNDER]
    assert np.asarray(refocal.confidence_region(q, gamma)).tolist() == expected
    rows = xp.array([gamma, gamma, 0.0, 20.0])
    expected = [Confidence.OVER, Confidence.AMBIGUOUS, Confidence.EQUAL, Confidence.UNDER]
    assert np.asarray(refocal.confidence_region(q, rows)).tolist() == expected


def test_the_edges_belong_to_the_regions():
    gamma = 2.0
    for tau, code in ((refocal.tau_oc(gamma), Confidence.OVER), (refocal.tau_uc(gamma), Confidence.UNDER)):
        q = np.array([tau, *([(1 - tau) / 20] * 20)])
        assert refocal.confidence_region(q, gamma) == code


def test_regions_agree_with_psi_wherever_they_speak():
    rng = np.random.default_rng(1)
    for gamma in (0.1, 1.0, 4.0):
        q = rng.dirichlet(np.full(30, 2.0), size=500)
        region, truth = refocal.confidence_region(q, gamma), refocal.eta_confidence(q, gamma)
        sure = region != Confidence.AMBIGUOUS
        np.testing.assert_array_equal(region[sure], truth[sure])


def test_axis():
    q = np.random.default_rng(2).dirichlet(np.ones(4), size=3)
    for f in (refocal.eta_confidence, refocal.confidence_region):
        np.testing.assert_array_equal(f(q.T, 2.0, axis=0), f(q, 2.0))
    assert refocal.eta_confidence(torch.from_numpy(q), 2.0).dtype == torch.int8
    assert refocal.confidence_region(jnp.asarray(q), 2.0).dtype == jnp.int8
