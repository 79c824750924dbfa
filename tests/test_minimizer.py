"""focal_minimizer: the inverse of psi, on every library, and its derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import refocal
from refocal import minimizer

GAMMAS = [0.0, 0.001, 0.03, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0]


def posteriors(n_classes: int, seed: int = 0) -> np.ndarray:
    """Rows from nearly uniform to nearly sure, with ties, zeros, entries of 1e-300 and one-hot rows."""
    rng = np.random.default_rng(seed)
    rows = [rng.normal(size=(12, n_classes)) * scale for scale in (0.01, 1, 5, 30, 200)]
    eta = np.exp(np.concatenate(rows) - np.max(np.concatenate(rows), axis=1, keepdims=True))
    eta[::7, : n_classes // 2] = 0
    eta[3::7, -1] = 1e-300
    eta[5::7, 0] = eta[5::7, 1]
    eta[0] = np.eye(n_classes)[0]
    eta[1] = 1
    return eta / eta.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("n_classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_psi_gives_the_posterior_back(n_classes, gamma):
    eta = posteriors(n_classes)
    for x in (eta, torch.from_numpy(eta)):
        q = refocal.focal_minimizer(x, gamma)
        back = np.asarray(refocal.psi(q, gamma))
        assert np.abs(back - eta).max() <= 1e-12
        normal = eta > 1e-290
        np.testing.assert_allclose(back[normal], eta[normal], rtol=2e-12)
        assert (np.asarray(q)[eta == 0] == 0).all()
        np.testing.assert_array_equal(np.asarray(q)[0], eta[0])


def test_on_every_library(backend):
    eta = backend.array([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.999, 0.001, 0.0]])
    for gamma in (2.0, backend.array([2.0, 0.5, 5.0, 0.0])):
        q = refocal.focal_minimizer(eta, gamma)
        back = refocal.psi(q, gamma)
        tolerance = 1e-6 if backend.dtype == "float32" else 1e-14
        np.testing.assert_allclose(backend.check(back, eta), np.asarray(eta), atol=tolerance)
    assert backend.check(q, eta)[3].tolist() == pytest.approx([0.999, 0.001, 0])


def test_large_gamma_and_many_classes():
    for n_classes, gamma in [(2, 1000.0), (3, 1000.0), (10, 100.0), (40, 100.0), (1000, 30.0)]:
        eta = posteriors(n_classes, seed=1)
        q = refocal.focal_minimizer(eta, gamma)
        assert np.abs(refocal.psi(q, gamma) - eta).max() <= 1e-16 * 10 * (1 + gamma)


def test_the_risk_cannot_be_lowered():
    rng = np.random.default_rng(2)
    eta = rng.dirichlet(np.ones(4), size=20)
    q = refocal.focal_minimizer(eta, 2.0)
    best = refocal.conditional_risk(q, eta, 2.0)
    for size in (1e-3, 1e-1, 1.0):
        other = q * np.exp(size * rng.normal(size=q.shape))
        other /= other.sum(axis=1, keepdims=True)
        assert (refocal.conditional_risk(other, eta, 2.0) >= best).all()


def test_needs_few_steps(monkeypatch):
    """The loop ends by its test, not by its limit."""
    steps = 0
    step = minimizer._newton_step

    def counted(*args):
        nonlocal steps
        steps += 1
        return step(*args)

    monkeypatch.setattr(minimizer, "_newton_step", counted)
    eta = posteriors(10)
    for gamma in GAMMAS:
        steps = 0
        by_rows = refocal.focal_minimizer(eta, np.full(len(eta), gamma))
        assert 1 <= steps <= 8
        np.testing.assert_allclose(by_rows, refocal.focal_minimizer(eta, gamma), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 5.0])
def test_derivatives_are_those_of_the_implicit_function(gamma):
    rng = np.random.default_rng(3)
    # The rows need not sum to 1: the function is that of the normalised row.
    eta = np.concatenate([rng.dirichlet(np.ones(3), size=3), [[0.98, 0.015, 0.005], [0.25, 0.25, 0.5]]])

    def f(x):
        return refocal.focal_minimizer(x, gamma)

    step = 1e-6
    for row in eta:
        expected = np.stack(
            [(f(row + step * e) - f(row - step * e)) / (2 * step) for e in np.eye(3)], axis=-1
        )
        np.testing.assert_allclose(
            torch.func.jacrev(f)(torch.from_numpy(row)), expected, rtol=1e-6, atol=1e-8
        )
        np.testing.assert_allclose(jax_jacobian(jnp.asarray(row), gamma), expected, rtol=1e-6, atol=1e-8)
    t = torch.from_numpy(eta).requires_grad_()
    assert torch.autograd.gradcheck(f, t)
    assert torch.autograd.gradgradcheck(f, t)


jax_jacobian = jax.jit(jax.jacrev(refocal.focal_minimizer))


def test_derivative_by_gamma():
    eta = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    gamma = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    got = torch.autograd.grad(refocal.focal_minimizer(eta, gamma)[0], gamma)[0].item()
    expected = (refocal.focal_minimizer(eta, 2 + 1e-6) - refocal.focal_minimizer(eta, 2 - 1e-6))[
        0
    ].item() / 2e-6
    assert got == pytest.approx(expected, rel=1e-7)


def test_gradients_are_finite_at_zeros():
    t = torch.tensor([[0.7, 0.3, 0.0], [1.0, 0.0, 0.0]], requires_grad=True)
    refocal.focal_minimizer(t, 2.0)[:, 0].sum().backward()
    assert torch.isfinite(t.grad).all()


def test_nan_stays_in_its_row_and_no_rows_work():
    eta = np.array([[np.nan, 0.5, 0.5], [0.7, 0.2, 0.1]])
    q = refocal.focal_minimizer(eta, 2.0)
    assert np.isnan(q[0]).all()
    np.testing.assert_allclose(refocal.psi(q[1], 2.0), eta[1])
    assert refocal.focal_minimizer(np.zeros((0, 3)), 2.0).shape == (0, 3)
    assert refocal.focal_minimizer(torch.zeros(0, 3), 2.0).shape == (0, 3)


def test_equals_stay_equal():
    eta = np.array([5, 5, 0, 1, 2, 3]) / 16
    for x in (eta, torch.from_numpy(eta).requires_grad_(), jnp.asarray(eta)):
        q = refocal.focal_minimizer(x, 2.0)
        assert q[0] == q[1]


def test_axis_and_vmap():
    eta = np.random.default_rng(4).dirichlet(np.ones(3), size=(2, 5))
    expected = refocal.focal_minimizer(eta, 2.0)
    moved = refocal.focal_minimizer(np.moveaxis(eta, -1, 0), 2.0, axis=0)
    np.testing.assert_allclose(np.moveaxis(moved, 0, -1), expected, rtol=1e-14)
    by_vmap = torch.func.vmap(lambda x: refocal.focal_minimizer(x, 2.0))(torch.from_numpy(eta))
    np.testing.assert_allclose(by_vmap, expected, rtol=1e-12)
