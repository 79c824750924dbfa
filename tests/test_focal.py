"""psi, log_psi, phi, h, focal_loss and conditional_risk: exact, everywhere, on every array library."""

from __future__ import annotations

import functools

import exact
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import refocal

GAMMAS = [0.0, 0.001, 0.03, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0]
SCALES = [0.1, 3.0, 30.0, 1000.0, 10_000.0]


@functools.cache
def cases(n_classes: int) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """Rows of float32 logits, so that every precision gets the same, with log psi at 80 digits."""
    rng = np.random.default_rng(n_classes)
    result = []
    for gamma in GAMMAS:
        rows = [rng.normal(size=n_classes) * scale / 3 for scale in SCALES]
        ahead = rng.normal(size=n_classes)
        ahead[rng.integers(n_classes)] += 40  # 1 - q is far below the rounding of q
        rows += [ahead, np.zeros(n_classes), np.where(np.arange(n_classes) < 2, 7.5, 0.0)]
        z = np.array(rows, dtype=np.float32)
        result.append((gamma, z, np.array([exact.log_psi(row, gamma) for row in z])))
    return result


def error(y: np.ndarray, truth: np.ndarray) -> float:
    return float(np.max(np.abs(y - truth) / np.maximum(1, np.abs(truth))))


@pytest.mark.parametrize("n_classes", [2, 3, 10, 1000])
def test_log_psi_is_exact(backend, n_classes):
    for gamma, logits, truth in cases(n_classes):
        z = backend.array(logits)
        assert error(backend.check(refocal.log_psi(z, gamma), z), truth) <= backend.tolerance
        # A gamma of every row takes the path of autograd and jit.
        rows = backend.array(np.full(len(logits), gamma))
        assert error(backend.check(refocal.log_psi(z, rows), z), truth) <= backend.tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_classes", [3, 1000])
def test_log_psi_is_exact_under_autograd(dtype, n_classes):
    for gamma, logits, truth in cases(n_classes):
        z = torch.from_numpy(logits).to(dtype).requires_grad_()
        y = refocal.log_psi(z, gamma).detach().numpy()
        assert error(y, truth) <= (2e-6 if dtype == torch.float32 else 1e-14)


def test_log_psi_keeps_the_digits_of_the_largest_class():
    z = np.array([[30.0, 0.0, -3.0], [3.0, 0.0, -3.0]])
    truth = np.array([exact.log_psi(row, 2.0) for row in z])
    np.testing.assert_allclose(refocal.log_psi(z, 2.0), truth, rtol=1e-14)
    assert truth[0, 0] != 0


@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=6),
    st.one_of(st.floats(0, 20), st.floats(20, 1e300)),
)
def test_log_psi_of_finite_logits_is_a_distribution(logits, gamma):
    for dtype in (np.float32, np.float64):
        z = np.array([logits], dtype=dtype)
        for y in (refocal.log_psi(z, gamma), refocal.log_psi(torch.from_numpy(z), gamma).numpy()):
            assert not np.isnan(y).any()
            assert (y <= 0).all()
            assert np.isfinite(y).all()
            assert np.exp(y).sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 3.7])
def test_masked_classes_and_nan_rows(backend, gamma):
    z = [[1.0, -np.inf, 2.0], [1.0, -np.inf, -np.inf], [np.nan, 0.0, 1.0], [0.3, 0.2, 0.1]]
    logits = backend.array(z)
    y = backend.check(refocal.log_psi(logits, gamma), logits)
    two = backend.array([[1.0, 2.0]])
    np.testing.assert_allclose(y[0, [0, 2]], np.asarray(refocal.log_psi(two, gamma))[0], rtol=1e-5)
    assert y[0, 1] == -np.inf
    assert y[1].tolist() == [0, -np.inf, -np.inf]
    assert np.isnan(y[2]).all()
    alone = backend.array([z[3]])
    np.testing.assert_allclose(y[3], np.asarray(refocal.log_psi(alone, gamma))[0], rtol=1e-5)
    labels = backend.integers([0, 0, 0, 1])
    loss = np.asarray(refocal.focal_loss(logits, labels, gamma))
    assert loss[1] == 0
    assert np.isnan(loss).tolist() == [False, False, True, False]
    assert np.asarray(refocal.focal_loss(logits, backend.integers([1, 0, 0, 0]), gamma))[0] == np.inf


def test_psi_of_probs(backend):
    q = backend.array([[1, 0, 0], [0.5, 0.5, 0], [0.5, 0.3, 0.2], [1 - 1e-6, 1e-6, 0]])
    for gamma in (0.0, 0.5, 2.0, backend.array([2.0, 2.0, 2.0, 2.0])):
        p = backend.check(refocal.psi(q, gamma), q)
        assert p[0].tolist() == [1, 0, 0]
        np.testing.assert_allclose(p[1], [0.5, 0.5, 0], rtol=4e-7)
        assert p[1, 2] == p[3, 2] == 0
        np.testing.assert_allclose(p.sum(axis=-1), 1, rtol=1e-6)
    with mp.workdps(50):
        h = [exact.h(v, 1 - v, mp.log(v), 2) for v in (mp.mpf(5) / 10, mp.mpf(3) / 10, mp.mpf(2) / 10)]
        truth = [float(x / sum(h)) for x in h]
    np.testing.assert_allclose(p[2], truth, rtol=1e-6 if backend.dtype == "float32" else 1e-14)


def test_psi_of_tiny_entries_and_under_autograd():
    q = np.array([[1.0, 1e-300, 0.0], [0.6, 0.4, 0.0]])
    t = torch.from_numpy(q).requires_grad_()
    p = refocal.psi(t, 2.0)
    np.testing.assert_allclose(p.detach().numpy(), refocal.psi(q, 2.0), rtol=1e-12)
    p[1, 0].backward()
    assert torch.isfinite(t.grad).all()


def test_phi_and_h_against_mpmath():
    v = np.concatenate([np.linspace(0, 1, 41), [1e-300, 1e-20, 1 - 1e-10, 1 - 2**-53]])
    for gamma in GAMMAS:
        with mp.workdps(60):
            truth = []
            for x in v:
                x, g = mp.mpf(float(x)), mp.mpf(gamma)
                inner = g * (1 - x) ** (g - 1) * x * mp.log(x) if 0 < x < 1 else 0
                truth.append(float((1 - x) ** g - inner))
        np.testing.assert_allclose(refocal.phi(v, gamma), truth, rtol=1e-13)
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(refocal.h(v, gamma), v / np.array(truth), rtol=1e-13)
    assert refocal.phi(1.0, 2.0) == 0
    assert refocal.h(1.0, 2.0) == np.inf
    assert refocal.h(0.0, 2.0) == 0
    assert np.isnan(refocal.phi(1.5, 0.5, check=False))


def test_phi_and_h_on_every_library(backend):
    v = backend.array([0.0, 0.1, 0.5, 1.0])
    y = backend.check(refocal.phi(v, 2.0), v)
    np.testing.assert_allclose(y, [1, 1.22446532, 0.59657359, 0], rtol=1e-6)
    y = backend.check(refocal.h(v, backend.array([2.0, 2.0, 2.0, 2.0])), v)
    np.testing.assert_allclose(y, [0, 0.08166830, 0.83811957, np.inf], rtol=1e-6)


def test_focal_loss_is_exact(backend):
    rng = np.random.default_rng(0)
    for gamma in GAMMAS:
        for scale in SCALES:
            z = (rng.normal(size=(4, 5)) * scale / 3).astype(np.float32)
            labels = np.array([z[0].argmax(), z[1].argmin(), 2, 3])
            truth = np.array(
                [exact.focal_loss(row, label, gamma) for row, label in zip(z, labels, strict=True)]
            )
            logits = backend.array(z)
            loss = backend.check(refocal.focal_loss(logits, backend.integers(labels), gamma), logits)
            rtol = 1e-5 if backend.dtype == "float32" else 1e-12
            np.testing.assert_allclose(loss, truth, rtol=rtol, atol=np.finfo(backend.dtype).tiny)
            one_hot = backend.array(np.eye(5)[labels])
            np.testing.assert_array_equal(np.asarray(refocal.focal_loss(logits, one_hot, gamma)), loss)


def test_focal_loss_of_soft_targets_is_linear():
    rng = np.random.default_rng(1)
    z, v = rng.normal(size=(6, 4)) * 3, rng.dirichlet(np.ones(4), size=6)
    hard = np.stack([refocal.focal_loss(z, np.full(6, k), 1.5) for k in range(4)], axis=-1)
    np.testing.assert_allclose(refocal.focal_loss(z, v, 1.5), (v * hard).sum(axis=-1), rtol=1e-13)
    q = np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(refocal.conditional_risk(q, v, 1.5), (v * hard).sum(axis=-1), rtol=1e-12)


def test_focal_loss_with_gamma_zero_is_cross_entropy():
    z = torch.randn(20, 7, generator=torch.Generator().manual_seed(0)) * 5
    labels = torch.arange(20) % 7
    expected = torch.nn.functional.cross_entropy(z, labels, reduction="none")
    torch.testing.assert_close(refocal.focal_loss(z, labels, 0.0), expected)


def test_focal_loss_out_of_range_is_nan_where_values_are_not_looked_at():
    assert torch.isnan(refocal.focal_loss(torch.zeros(2, 3), torch.tensor([3, -1]), 2.0)).all()


def test_conditional_risk_of_zero_entries(backend):
    q, eta = backend.array([[0.0, 1.0], [0.0, 1.0]]), backend.array([[0.0, 1.0], [0.5, 0.5]])
    assert np.asarray(refocal.conditional_risk(q, eta, 2.0)).tolist() == [0, np.inf]


def test_equals_stay_equal():
    """Or rounding would choose between the classes (Prop. 12)."""
    rng = np.random.default_rng(8)
    for n_classes in (3, 6, 10):
        z = rng.normal(size=(50, n_classes))
        z[:, 1] = z[:, 2] = z.max(axis=1)
        q = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        q[:, 2] = q[:, 1]
        q[:, 0] = 0
        for x, f in ((z, refocal.log_psi), (q, functools.partial(refocal.psi, check=False))):
            for y in (
                f(x, 2.0),
                f(x, np.full(50, 2.0)),
                f(torch.from_numpy(x), 2.0).numpy(),
                f(torch.from_numpy(x).requires_grad_(), 2.0).detach().numpy(),
                np.asarray(f(jnp.asarray(x), 2.0)),
            ):
                np.testing.assert_array_equal(y[:, 1], y[:, 2])
                np.testing.assert_array_equal(y.argmax(axis=1), x.argmax(axis=1))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("gamma", [2.0, "rows"])
def test_any_axis_and_leading_shape(axis, gamma):
    rng = np.random.default_rng(2)
    z = rng.normal(size=(3, 4, 5)) * 4
    rows = np.moveaxis(z, axis, -1)
    g = rng.uniform(0, 4, size=rows.shape[:-1]) if gamma == "rows" else gamma
    expected = np.empty_like(rows)
    for i in np.ndindex(rows.shape[:-1]):
        expected[i] = exact.log_psi(rows[i], g[i] if gamma == "rows" else g)
    for x in (z, torch.from_numpy(z), jnp.asarray(z)):
        y = np.moveaxis(np.asarray(refocal.log_psi(x, g, axis=axis)), axis, -1)
        np.testing.assert_allclose(y, expected, rtol=1e-13)
        q = jax.nn.softmax(jnp.asarray(z), axis=axis)
        p = np.moveaxis(np.asarray(refocal.psi(q, g, axis=axis)), axis, -1)
        np.testing.assert_allclose(p, np.exp(expected), rtol=1e-11)


@pytest.mark.parametrize("shape", [(70_000, 3), (9, 40, 300), (3000, 100)])
def test_blocks_change_nothing(shape):
    """Several blocks, with a rest, in every layout: the same as rows taken alone."""
    rng = np.random.default_rng(3)
    z = rng.normal(size=shape) * 10
    axis = 1 if len(shape) == 3 else -1
    for x in (z, torch.from_numpy(z)):
        whole = np.moveaxis(np.asarray(refocal.log_psi(x, 2.0, axis=axis)), axis, -1).reshape(-1, shape[axis])
        rows = np.moveaxis(z, axis, -1).reshape(-1, shape[axis])
        some = rng.integers(len(rows), size=50)
        np.testing.assert_allclose(whole[some], refocal.log_psi(rows[some], np.full(50, 2.0)), rtol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    z = (torch.randn(50, 6, generator=torch.Generator().manual_seed(1)) * 20).to(dtype)
    y = refocal.log_psi(z, 2.0)
    assert y.dtype == dtype
    assert torch.equal(y, refocal.log_psi(z.float(), 2.0).to(dtype))
    assert torch.equal(
        refocal.psi(z.softmax(-1), 2.0), refocal.psi(z.softmax(-1).float(), 2.0, check=False).to(dtype)
    )
    labels = torch.arange(50) % 6
    assert torch.equal(
        refocal.focal_loss(z, labels, 2.0), refocal.focal_loss(z.float(), labels, 2.0).to(dtype)
    )
    j = jnp.asarray(z.float().numpy()).astype("bfloat16" if dtype == torch.bfloat16 else "float16")
    assert refocal.log_psi(j, 2.0).dtype == j.dtype
    n = np.asarray(j)  # NumPy's float16, or ml_dtypes' bfloat16
    assert refocal.log_psi(n, 2.0).dtype == n.dtype


def test_no_rows():
    for z in (np.zeros((0, 3)), torch.zeros(0, 3), jnp.zeros((0, 3))):
        assert refocal.log_psi(z, 2.0).shape == (0, 3)
        assert refocal.psi(z, 2.0).shape == (0, 3)
        assert refocal.focal_loss(z, z, 2.0).shape == (0,)
    assert refocal.focal_loss(np.zeros((0, 3)), np.zeros(0, dtype=int), 2.0).shape == (0,)


def test_the_input_is_left_alone():
    z = np.random.default_rng(4).normal(size=(100, 7))
    before = z.copy()
    refocal.log_psi(z, 2.0)
    refocal.psi(np.abs(z), 2.0, check=False)
    np.testing.assert_array_equal(z, before)
    t = torch.from_numpy(z)
    refocal.log_psi(t, 2.0)
    np.testing.assert_array_equal(z, before)


EXTREME = np.concatenate(
    [
        np.random.default_rng(5).normal(size=(8, 4)) * np.array([*SCALES, 60.0, 200.0, 10000.0])[:, None],
        np.zeros((1, 4)),
    ]
)


# gamma is traced, so that one compilation serves all of them
jax_psi_jacobian = jax.jit(jax.jacrev(refocal.log_psi))
jax_loss_gradient = jax.jit(jax.grad(lambda z, labels, gamma: refocal.focal_loss(z, labels, gamma).sum()))


def jacobians(z: np.ndarray, labels: np.ndarray, gamma: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return, by torch and by JAX, d log psi / dz of every row and d loss / dz."""
    t = torch.from_numpy(z)
    psi_rows = torch.func.vmap(torch.func.jacrev(lambda x: refocal.log_psi(x, gamma)))(t)
    leaf = t.clone().requires_grad_()
    refocal.focal_loss(leaf, torch.from_numpy(labels), gamma).sum().backward()
    j = np.asarray(jax_psi_jacobian(jnp.asarray(z), jnp.asarray(gamma, z.dtype)))
    rows = np.arange(len(z))
    by_jax = np.asarray(jax_loss_gradient(jnp.asarray(z), jnp.asarray(labels), jnp.asarray(gamma, z.dtype)))
    return [(psi_rows.numpy(), leaf.grad.numpy()), (j[rows, :, rows], by_jax)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_are_finite(dtype):
    z = EXTREME.astype(dtype)
    labels = np.arange(len(z)) % 4
    rtol, atol = (2e-4, 1e-5) if dtype == "float32" else (1e-9, 1e-12)
    for gamma in GAMMAS:
        (psi_torch, loss_torch), (psi_jax, loss_jax) = jacobians(z, labels, gamma)
        for g in (psi_torch, loss_torch, psi_jax, loss_jax):
            assert np.isfinite(g).all(), gamma
        np.testing.assert_allclose(psi_torch, psi_jax, rtol=rtol, atol=atol)
        np.testing.assert_allclose(loss_torch, loss_jax, rtol=rtol, atol=atol)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0, 5.0])
def test_gradients_equal_central_differences(gamma):
    rng = np.random.default_rng(6)
    z = np.concatenate(
        [rng.normal(size=(5, 4)), rng.normal(size=(5, 4)) * 8, np.zeros((1, 4)), [[2.0, 2, 0, 0]]]
    )
    labels = np.arange(len(z)) % 4
    step = 1e-5

    def differences(f):
        return np.stack([(f(z + step * e) - f(z - step * e)) / (2 * step) for e in np.eye(4)], axis=-1)

    expected = (
        differences(lambda x: refocal.log_psi(x, gamma)),
        differences(lambda x: refocal.focal_loss(x, labels, gamma)),
    )
    for got in jacobians(z, labels, gamma):
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(got[1], expected[1], rtol=1e-6, atol=1e-8)


def test_gradient_of_gamma():
    z = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    gamma = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    got = torch.autograd.grad(refocal.log_psi(z, gamma)[:, 0].sum(), gamma)[0].item()
    expected = (refocal.log_psi(z, 1.7 + 1e-6) - refocal.log_psi(z, 1.7 - 1e-6))[:, 0].sum().item() / 2e-6
    assert got == pytest.approx(expected, rel=1e-7)


def test_masked_classes_have_finite_gradients():
    z = torch.tensor([[1.0, -torch.inf, 2.0], [0.0, -torch.inf, -torch.inf]], requires_grad=True)
    y = refocal.log_psi(z, 2.0)
    g = torch.autograd.grad(torch.where(torch.isinf(y), 0, y).sum(), z)[0]
    assert torch.isfinite(g).all()


def test_under_jit_and_vmap():
    z = np.random.default_rng(7).normal(size=(6, 5)) * 3
    expected = refocal.log_psi(z, 2.0)
    j = jnp.asarray(z)
    np.testing.assert_allclose(jax.jit(lambda x: refocal.log_psi(x, 2.0))(j), expected, rtol=1e-11)
    np.testing.assert_allclose(jax.jit(refocal.log_psi)(j, 2.0), expected, rtol=1e-11)
    np.testing.assert_allclose(jax.vmap(lambda x: refocal.log_psi(x, 2.0))(j), expected, rtol=1e-11)
    np.testing.assert_allclose(
        jax.vmap(refocal.psi, (0, None))(jax.nn.softmax(j), 2.0), np.exp(expected), rtol=1e-11
    )
    labels = jnp.arange(6) % 5
    np.testing.assert_allclose(
        jax.jit(jax.vmap(lambda x, y: refocal.focal_loss(x, y, 2.0)))(j, labels),
        refocal.focal_loss(z, np.asarray(labels), 2.0),
        rtol=1e-11,
    )
    t = torch.from_numpy(z)
    np.testing.assert_allclose(torch.func.vmap(lambda x: refocal.log_psi(x, 2.0))(t), expected, rtol=1e-11)
    np.testing.assert_allclose(
        torch.func.vmap(lambda x: refocal.psi(x, 2.0))(t.softmax(-1)), np.exp(expected), rtol=1e-11
    )
    jacobian = torch.func.jacrev(lambda x: refocal.log_psi(x, 2.0))(t[0])
    np.testing.assert_allclose(
        jacobian, jax.jacobian(lambda x: refocal.log_psi(x, 2.0))(j[0]), rtol=1e-9, atol=1e-12
    )
