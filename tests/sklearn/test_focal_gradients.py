"""Gradient and curvature of the focal loss, beside autograd of the public losses."""

import numpy as np
import pytest
import torch

import refocal
from refocal.sklearn._gradients import in_numpy, kernels

NOTHING = np.empty(0)


@pytest.fixture(params=["numpy", "compiled"])
def way(request):
    if request.param == "numpy":
        return in_numpy
    pytest.importorskip("numba")
    return kernels()


def test_numba_is_used_where_it_is():
    pytest.importorskip("numba")
    assert kernels().__name__ == "refocal.kernels.curvatures"


def binary(
    way, z, y, gamma, of_one=1.0, of_zero=1.0, sample_weight=NOTHING, factor=1.0, bound=0.0, dtype=np.float64
):
    grad, hess = np.empty(len(z), dtype), np.empty(len(z), dtype)
    loss = way.binary(z, y, sample_weight, gamma, of_one, of_zero, factor, bound, grad, hess)
    return loss, grad, hess


def softmax(
    way, z, y, gamma, weight, sample_weight=NOTHING, factor=1.0, damping=1.0, bound=0.0, dtype=np.float64
):
    grad, hess = np.empty(z.shape, dtype), np.empty(z.shape, dtype)
    loss = way.softmax(z, y, sample_weight, gamma, weight, factor, damping, bound, grad, hess)
    return loss, grad, hess


def second_derivatives(losses, z):
    """Return the second derivative of each row's loss by each of its scores, by autograd."""
    (slopes,) = torch.autograd.grad(losses.sum(), z, create_graph=True)
    columns = slopes.reshape(len(z), -1).unbind(dim=1)
    rows = [torch.autograd.grad(column.sum(), z, retain_graph=True)[0] for column in columns]
    return torch.stack([row.reshape(len(z), -1)[:, i] for i, row in enumerate(rows)], dim=1)


GAMMAS = [0.0, 0.5, 1.0, 2.0, 2.3, 3.0, 5.0]


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("alpha", [None, 0.25])
def test_binary_agrees_with_autograd(way, gamma, alpha):
    rng = np.random.default_rng(1)
    z = np.concatenate([4 * rng.normal(size=40), [0.0, 12.0, -12.0]])
    y = rng.integers(2, size=z.size).astype(float)
    sample_weight = rng.random(z.size)
    spec = refocal.SigmoidFocal(gamma, alpha)
    of_one, of_zero = (1.0, 1.0) if alpha is None else (alpha, 1 - alpha)
    loss, grad, hess = binary(way, z, y, gamma, of_one, of_zero, sample_weight, factor=3.0)

    scores = torch.tensor(z, requires_grad=True)
    losses = 3 * torch.tensor(sample_weight) * spec.loss(scores, torch.tensor(y))
    (slopes,) = torch.autograd.grad(losses.sum(), scores)
    assert loss == pytest.approx(losses.sum().item(), rel=1e-12)
    np.testing.assert_allclose(grad, slopes.numpy(), rtol=1e-8, atol=1e-12)

    eta = spec.posterior(torch.tensor(z))
    of_label = [
        second_derivatives(spec.loss(scores, torch.full_like(scores, v)), scores)[:, 0] for v in (0, 1)
    ]
    curved = (1 - eta) * of_label[0] + eta * of_label[1]
    np.testing.assert_allclose(hess, 3 * sample_weight * curved.numpy(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("weight", [(1.0, 1.0, 1.0, 1.0), (0.2, 1.0, 3.0, 0.7)])
def test_several_classes_agree_with_autograd(way, gamma, weight):
    rng = np.random.default_rng(2)
    z = 2 * rng.normal(size=(12, 4))
    z[0], z[1] = [9.0, 0.0, 0.0, 1.0], 0.0
    y = rng.integers(4, size=12)
    y[0] = 1
    sample_weight = rng.random(12)
    spec = refocal.Focal(gamma, weight)
    loss, grad, hess = softmax(way, z, y, gamma, np.array(weight), sample_weight, factor=3.0, damping=2.0)

    scores = torch.tensor(z, requires_grad=True)
    losses = 3 * torch.tensor(sample_weight) * spec.loss(scores, torch.tensor(y))
    (slopes,) = torch.autograd.grad(losses.sum(), scores)
    assert loss == pytest.approx(losses.sum().item(), rel=1e-12)
    np.testing.assert_allclose(grad, slopes.numpy(), rtol=1e-8, atol=1e-12)

    eta = spec.posterior(torch.tensor(z))
    of_label = [second_derivatives(spec.loss(scores, torch.full((12,), k)), scores) for k in range(4)]
    curved = sum(eta[:, k, None] * of_label[k] for k in range(4))
    expected = 6 * sample_weight[:, None] * curved.numpy()
    np.testing.assert_allclose(hess, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_sum_to_zero_and_the_curvature_is_positive(way, gamma, dtype):
    rng = np.random.default_rng(3)
    z = (rng.choice([0.3, 3.0, 15.0], size=(500, 1)) * rng.normal(size=(500, 6))).astype(dtype)
    y = rng.integers(6, size=500)
    _, grad, hess = softmax(way, z, y, gamma, rng.random(6) + 0.1, dtype=dtype)
    size = np.abs(grad).max(axis=1)
    assert (np.abs(grad.sum(axis=1)) <= 4 * np.finfo(dtype).eps * size).all()
    assert (hess >= 0).all()
    assert (hess[np.abs(z).max(axis=1) < 5] > 0).all()
    _, grad, hess = binary(way, z[:, 0], (y > 2).astype(dtype), gamma, dtype=dtype)
    assert np.isfinite(grad).all()
    assert (hess >= 0).all()
    assert (hess[np.abs(z[:, 0]) < 5] > 0).all()


@pytest.mark.parametrize("gamma", [0.5, 2.0, 20.0])
def test_far_scores_are_finite(way, gamma):
    far = np.array([0.0, 1e2, 1e4, 1e30], dtype=np.float32)
    z = np.concatenate([far, -far])
    for label in (0.0, 1.0):
        _, grad, hess = binary(way, z, np.full(8, label), gamma, dtype=np.float32)
        assert np.isfinite(grad).all()
        assert np.isfinite(hess).all()
        # As far away as it gets, a wrong row pulls like cross entropy, a right one not at all.
        wrong = slice(5, 8) if label else slice(1, 4)
        assert np.abs(grad[wrong]) == pytest.approx(1.0)
    scores = np.stack([z, -z, np.zeros_like(z)], axis=1)
    for label in range(3):
        _, grad, hess = softmax(way, scores, np.full(8, label), gamma, np.ones(3), dtype=np.float32)
        assert np.isfinite(grad).all()
        assert np.isfinite(hess).all()
        assert (hess >= 0).all()


def test_two_classes_are_the_binary_problem(way):
    """With damping 2 a diagonal step of two scores moves their difference like the binary Newton step."""
    rng = np.random.default_rng(4)
    z = 2 * rng.normal(size=50)
    y = rng.integers(2, size=50).astype(float)
    loss, grad, hess = binary(way, z, y, 2.0, of_one=3.0, of_zero=0.5)
    both = softmax(way, np.stack([0 * z, z], axis=1), y, 2.0, np.array([0.5, 3.0]), damping=2.0)
    assert both[0] == pytest.approx(loss)
    np.testing.assert_allclose(both[1][:, 1], grad, rtol=1e-10)
    step = both[1][:, 1] / both[2][:, 1] - both[1][:, 0] / both[2][:, 0]
    np.testing.assert_allclose(step, grad / hess, rtol=1e-8)


def test_both_ways_give_the_same_float32(way):
    rng = np.random.default_rng(5)
    z = np.asfortranarray(rng.normal(size=(300, 3)))  # LightGBM's order
    y = rng.integers(3, size=300).astype(np.float32)
    here = softmax(way, z, y, 1.7, np.ones(3), dtype=np.float32)
    there = softmax(in_numpy, z, y, 1.7, np.ones(3), dtype=np.float32)
    for ours, theirs in zip(here, there, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 2.3, 7.0])
def test_polynomials_are_as_exact_as_numpy(gamma):
    """Beside NumPy's exponentials, logarithms and powers, over more rows than are worked on at a time."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(7)
    z = rng.choice([0.01, 1.0, 6.0], size=(1000, 1)) * rng.normal(size=(1000, 7))
    y, weight = rng.integers(7, size=1000).astype(float), rng.random(1000)
    for here, there in (
        (
            softmax(kernels(), z, y, gamma, weight[:7] + 0.1, weight),
            softmax(in_numpy, z, y, gamma, weight[:7] + 0.1, weight),
        ),
        (
            binary(kernels(), z[:, 0], y > 3, gamma, 0.3, 0.7, weight),
            binary(in_numpy, z[:, 0], y > 3, gamma, 0.3, 0.7, weight),
        ),
    ):
        for ours, theirs in zip(here, there, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-13, atol=1e-300)


def test_the_curvature_is_bounded_by_the_gradient(way):
    rng = np.random.default_rng(6)
    z, y = 3 * rng.normal(size=(200, 3)), rng.integers(3, size=200).astype(float)
    weight = rng.random(200)
    for free, bounded in (
        (
            softmax(way, z, y, 2.0, np.ones(3), weight, 3.0),
            softmax(way, z, y, 2.0, np.ones(3), weight, 3.0, bound=0.5),
        ),
        (
            binary(way, z[:, 0], y > 1, 2.0, 1.0, 1.0, weight),
            binary(way, z[:, 0], y > 1, 2.0, 1.0, 1.0, weight, bound=0.5),
        ),
    ):
        np.testing.assert_array_equal(bounded[1], free[1])
        np.testing.assert_allclose(bounded[2], np.maximum(free[2], 0.5 * np.abs(free[1])), rtol=1e-12)
        assert (bounded[2] > free[2]).any()
