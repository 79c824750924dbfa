"""Derivatives by PyTorch and JAX of every function that takes an array, inside and at the edges."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import torch

import refocal
from refocal import (
    Asymmetric,
    AsymmetricSingleLabel,
    Focal,
    GeneralizedCrossEntropy,
    OneVsRest,
    Poly1Focal,
    SigmoidFocal,
)

WEIGHTS = np.array([0.3, -1.1, 0.7])
"""Of the entries of a result, so that sums over the classes do not cancel."""


def by_torch(f, x):
    t = torch.tensor(x, requires_grad=True)
    y = f(t)
    y = torch.where(torch.isfinite(y), y, 0.0)
    return torch.autograd.grad((y * torch.tensor(WEIGHTS)).sum(), t)[0].numpy()


def by_jax(f, x):
    def total(a):
        y = f(a)
        return (jnp.where(jnp.isfinite(y), y, 0.0) * WEIGHTS).sum()

    return np.asarray(jax.grad(total)(jnp.asarray(x)))


def by_differences(f, x, step=1e-6):
    """Return central differences of the weighted sum of each row, of NumPy's values."""

    def total(a):
        y = np.asarray(f(a))
        return (np.where(np.isfinite(y), y, 0) * WEIGHTS).sum(axis=-1)

    columns = []
    for column in np.eye(3) * step:
        columns.append((total(x + column) - total(x - column)) / (2 * step))
    return np.stack(columns, axis=-1)


INSIDE = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [1 / 3, 1 / 3, 1 / 3], [0.9, 0.06, 0.04]])
LOGITS = np.array([[1.0, -0.5, 0.2], [0.0, 0.0, 0.0], [3.0, 3.0, -1.0], [-2.0, 5.0, 1.0]])
LABELS = np.array([0, 1, 2, 1])

OBJECTIVES = [
    Focal(0.0),
    Focal(0.5),
    Focal(50.0),
    Focal([0.0, 0.5, 3.0], [1.0, 2.0, 3.0]),
    Focal(2.0, label_smoothing=0.1),
    SigmoidFocal(0.0, 0.25),
    SigmoidFocal([0.0, 0.5, 2.0], [0.1, 0.5, 0.9]),
    SigmoidFocal(50.0),
    Asymmetric(0.0, 4.0, 0.03),
    Asymmetric(1.0, 4.0, 0.0),
    Poly1Focal(2.0, 1.0),
    Poly1Focal(0.0, -1.0),
    GeneralizedCrossEntropy(0.999),
    AsymmetricSingleLabel(1.0, 4.0, 0.1),
    OneVsRest(SigmoidFocal()),
]


def functions():
    """Yield every function of an array, with the points at which it is differentiated."""
    for gamma in (0.0, 0.5, 2.0, 50.0):
        for f in (refocal.phi, refocal.psi, refocal.focal_minimizer):
            yield f"{f.__name__}, gamma {gamma}", functools.partial(f, gamma=gamma, check=False), INSIDE
        yield f"log_psi, gamma {gamma}", functools.partial(refocal.log_psi, gamma=gamma), LOGITS
    yield "h, gamma 2", functools.partial(refocal.h, gamma=2.0), INSIDE
    for objective in OBJECTIVES:
        yield f"{objective}.log_posterior", objective.log_posterior, LOGITS
        from_probs = functools.partial(objective.posterior_from_probs, check=False)
        yield f"{objective}.posterior_from_probs", from_probs, INSIDE
        yield f"{objective}.logits", functools.partial(objective.logits, check=False), INSIDE


FUNCTIONS = list(functions())


@pytest.mark.parametrize("name, f, x", FUNCTIONS, ids=[name for name, _, _ in FUNCTIONS])
def test_inside_by_torch(name, f, x):
    expected = by_differences(f, x)
    np.testing.assert_allclose(by_torch(f, x), expected, rtol=1e-5, atol=2e-6 * (1 + np.abs(expected).max()))


OFTEN = ("psi, gamma 0.5", "log_psi, gamma 2.0", "h, gamma 2", f"{OBJECTIVES[3]}.posterior_from_probs")
JAX_TOO = [case for case in FUNCTIONS if case[0] in OFTEN]


@pytest.mark.parametrize("name, f, x", JAX_TOO, ids=[name for name, _, _ in JAX_TOO])
def test_inside_by_jax(name, f, x):
    np.testing.assert_allclose(by_jax(f, x), by_torch(f, x), rtol=1e-9, atol=1e-11)


def test_the_inverse_by_jax():
    for f in (functools.partial(refocal.focal_minimizer, gamma=2.0), SigmoidFocal(0.5).logits):
        np.testing.assert_allclose(by_jax(f, INSIDE), by_torch(f, INSIDE), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_losses_and_risk(objective):
    """A row's loss has one number, so no weights."""
    labels = np.eye(3)[LABELS] if objective.scores == "sigmoid" else LABELS
    t = torch.tensor(LOGITS, requires_grad=True)
    objective.loss(t, torch.tensor(labels)).sum().backward()

    def total(z):
        y = objective.loss(z, labels)
        return y.sum(axis=-1) if y.ndim > 1 else y

    steps = np.eye(3) * 1e-6
    expected = np.stack([(total(LOGITS + e) - total(LOGITS - e)) / 2e-6 for e in steps], axis=-1)
    np.testing.assert_allclose(t.grad.numpy(), expected, rtol=1e-5, atol=1e-7)
    if objective in OBJECTIVES[3:11:3]:
        by = jax.grad(lambda z: objective.loss(z, jnp.asarray(labels)).sum())(jnp.asarray(LOGITS))
        np.testing.assert_allclose(by, expected, rtol=1e-5, atol=1e-7)


EDGES = np.array([[1.0, 0.0, 0.0], [0.7, 0.3, 0.0], [0.5, 0.5, 0.0]])


@pytest.mark.parametrize("by", [by_torch, by_jax])
@pytest.mark.parametrize(
    "objective",
    [
        Focal(2.0),
        Focal(2.0, [1.0, 2.0, 3.0]),
        Focal(2.0, [1.0, 2.0, 3.0], 0.1),
        Poly1Focal(2.0, 1.0),
        SigmoidFocal(0.0, 0.25),
        SigmoidFocal([0.0, 1.0, 2.0], [0.1, 0.5, 0.9]),
        SigmoidFocal(2.0, 0.25, 0.1),
    ],
    ids=repr,
)
def test_scores_of_zero_and_one_have_their_gradient(objective, by):
    """Against differences into the range, of second order."""
    from_probs = functools.partial(objective.posterior_from_probs, check=False)
    found = by(from_probs, EDGES)
    start, step = (from_probs(EDGES) * WEIGHTS).sum(axis=-1), 1e-5
    for i in range(3):
        into = np.zeros((3, 3))
        into[:, i] = np.where(EDGES[:, i] == 1, -step, step)
        near, far = ((from_probs(EDGES + n * into) * WEIGHTS).sum(axis=-1) for n in (1, 2))
        expected = (4 * near - far - 3 * start) / (2 * into[:, i])
        # Next to an end a power 1 + gamma of the step is left of what is 0 in the limit.
        np.testing.assert_allclose(found[:, i], expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_no_gradient_is_nan_at_the_edges(objective):
    from_probs = functools.partial(objective.posterior_from_probs, check=False)
    assert not np.isnan(by_torch(from_probs, EDGES)).any()
    sure = np.array([[40.0, 0.0, -40.0], [800.0, 0.0, -1.0], [-800.0, 0.0, 0.0]])
    assert not np.isnan(by_torch(objective.posterior, sure)).any()


@pytest.mark.parametrize("objective", [Poly1Focal(), AsymmetricSingleLabel(), Focal(2.0)], ids=repr)
def test_a_masked_class_does_not_touch_the_gradient_of_others(objective):
    t = torch.tensor([[-np.inf, 1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    objective.loss(t, torch.tensor([1])).backward()
    z = np.array([[-np.inf, 1.0, 2.0]])
    step = np.array([0.0, 1e-6, 0.0])
    up, down = (objective.loss(z + s * step, np.array([1]))[0] for s in (1, -1))
    assert t.grad[0].tolist() == pytest.approx([0, (up - down) / 2e-6, (down - up) / 2e-6], rel=1e-6)


@pytest.mark.parametrize("by", [by_torch, by_jax])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 50.0])
def test_phi_and_h_at_the_ends(gamma, by):
    ends = np.array([[0.0, 1.0, 0.5]])
    at_one = {0.0: 0.0, 0.5: -np.inf, 1.0: -2.0}.get(gamma, 0.0)
    found = by(functools.partial(refocal.phi, gamma=gamma), ends)[0] / WEIGHTS
    assert found[0] == 0  # documented: it is infinite there, unless gamma is 0
    assert found[1] == pytest.approx(at_one)
    found = by(functools.partial(refocal.h, gamma=gamma), ends)[0] / WEIGHTS
    assert found[0] == pytest.approx(1)
    assert found[1] == (pytest.approx(1) if gamma == 0 else 0)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_risk_at_sure_scores(gamma):
    q, eta = np.array([[1.0, 0.0, 0.0], [1.0 + 1e-7, 0.0, 0.0]]), np.array([[1.0, 0.0, 0.0]] * 2)
    t = torch.tensor(q, requires_grad=True)
    risk = refocal.conditional_risk(t, torch.tensor(eta), gamma)
    assert risk.detach().numpy() == pytest.approx(0, abs=1e-6)
    risk[0].backward()
    assert t.grad[0].tolist() == [-1.0 if gamma == 0 else 0.0, 0, 0]


def exact_tau(which, gamma):
    def phi(v):
        return (1 - v) ** gamma - gamma * (1 - v) ** (gamma - 1) * v * mp.log(v)

    low = mp.findroot(lambda v: mp.diff(phi, v), (0.2 / (1 + gamma), 1 / (1 + gamma)), solver="anderson")
    if which is refocal.tau_oc:
        return low
    return mp.findroot(lambda v: mp.log(phi(v)) / gamma, (1.2 * low, mp.mpf(1) / 2), solver="anderson")


GAMMAS = [0.1, 0.5, 1.0, 2.0, 5.0, 50.0]


def exact_derivatives(tau, gamma):
    with mp.workdps(40):
        step = mp.mpf(gamma) / 10**6
        low, middle, high = (exact_tau(tau, mp.mpf(gamma) + k * step) for k in (-1, 0, 1))
        return float((high - low) / (2 * step)), float((high - 2 * middle + low) / step**2)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("tau", [refocal.tau_oc, refocal.tau_uc])
def test_taus_against_differences_of_many_digits(tau, gamma):
    first, second = exact_derivatives(tau, gamma)
    t = torch.tensor(gamma, dtype=torch.float64, requires_grad=True)
    (d,) = torch.autograd.grad(tau(t), t, create_graph=True)
    assert d.item() == pytest.approx(first, rel=1e-9)
    assert torch.autograd.grad(d, t)[0].item() == pytest.approx(second, rel=1e-9)


@pytest.mark.parametrize("tau", [refocal.tau_oc, refocal.tau_uc])
def test_taus_under_jit_grad_and_vmap(tau):
    found = jax.jit(jax.vmap(jax.grad(tau)))(jnp.asarray(GAMMAS))
    expected = [exact_derivatives(tau, gamma)[0] for gamma in GAMMAS]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("gamma", [1e-4, 1e-6])
def test_taus_of_a_small_gamma_in_single_precision(gamma):
    t = torch.tensor(gamma, requires_grad=True)
    refocal.tau_uc(t).backward()
    with mp.workdps(40):
        g, step = mp.mpf(t.item()), mp.mpf("1e-12")
        expected = (exact_tau(refocal.tau_uc, g + step) - exact_tau(refocal.tau_uc, g - step)) / (2 * step)
    assert t.grad.item() == pytest.approx(float(expected), rel=1e-4)
