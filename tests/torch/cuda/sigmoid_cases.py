"""The sigmoid focal loss by Triton's interpreter: what `test_interpreted.py` runs in a process of its own."""

from __future__ import annotations

import functools
import itertools

import mpmath
import pytest
import torch

from refocal.torch import dispatch, sigmoid_focal_loss, which_form

SPECIAL = [0.0, -0.0, 1e-20, 30.0, -30.0, 90.0, -90.0, 1e4, -1e4, float("inf"), float("-inf")]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 16 entries."""
    from refocal.torch.cuda import sigmoid

    monkeypatch.setattr(sigmoid, "BLOCK", 16)


def problem(n=35, seed=0, special=SPECIAL):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, generator=g) * 3
    z[: len(special)] = torch.tensor(special)[:n]
    return z, (torch.rand(n, generator=g) < 0.3).float()


def value_and_gradient(loss, z):
    z = z.detach().clone().requires_grad_()
    value = loss(z)
    (gradient,) = torch.autograd.grad(value.sum(), z)
    return value.detach(), gradient


def assert_as_double(loss, z, gamma=2.0, bar=1e-5):
    """Check a loss and its gradient against double precision, by the bars of the kernels for the CPU."""
    rtol = bar * (1 + gamma)
    for found, expected in zip(
        value_and_gradient(loss, z), value_and_gradient(loss, z.double()), strict=True
    ):
        torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=1e-36, equal_nan=True)


def test_triton_computes_here():
    assert which_form(torch.zeros(2, 3), torch.zeros(2, 3)) == "triton"
    assert which_form(torch.zeros(2, 3).half(), torch.zeros(2, 3)) == "triton"
    assert which_form(torch.zeros(2, 3).double(), torch.zeros(2, 3)) == "eager"


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 3.0, 4.5, 16.0])
def test_gammas(gamma):
    for (z, y), bar in ((problem(), 1e-5), (problem(special=[0.0]), 2e-6)):
        for reduction in ("none", "sum", "mean"):

            def loss(z, y=y, reduction=reduction):
                return sigmoid_focal_loss(z, y.to(z.dtype), gamma, 0.25, reduction)

            assert_as_double(loss, z, gamma, bar)


def test_mpmath():
    z, y = problem(20, seed=1, special=[0.0, 20.0, -20.0])
    found, slope = value_and_gradient(
        functools.partial(sigmoid_focal_loss, target=y, gamma=2.5, reduction="none"), z
    )

    def loss(x, y):
        p = 1 / (1 + mpmath.exp(-x))
        return -(0.25 * (1 - p) ** 2.5 * mpmath.log(p) if y else 0.75 * p**2.5 * mpmath.log1p(-p))

    with mpmath.workdps(60):
        for i in range(z.numel()):
            x = float(z[i])
            if abs(x) < 100:
                assert abs(found[i].item() - loss(x, y[i])) <= 7e-6 * loss(x, y[i]) + 1e-36
                derivative = mpmath.diff(lambda x, i=i: loss(x, y[i]), x)
                assert abs(slope[i].item() - derivative) <= 7e-6 * abs(derivative) + 1e-36


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_options(reduction):
    z, y = problem(36)
    soft = torch.rand(36, generator=torch.Generator().manual_seed(2))
    soft[::5] = -1
    each = torch.linspace(0.1, 2.0, 3).tolist()
    alphas = torch.linspace(0.1, 0.9, 3).tolist()
    settings = [
        dict(alpha=None),
        dict(label_smoothing=0.1),
        dict(ignore_index=-1),
        dict(pos_weight=3.0, ignore_index=-1, label_smoothing=0.2),
        dict(alpha=alphas),
        dict(gamma=each, alpha=alphas, pos_weight=each, ignore_index=-1),
        dict(gamma=2.5, pos_weight=torch.tensor(2.0)),
    ]
    for kwargs, shape in itertools.product(settings, [(12, 3), (2, 3, 2, 3)]):
        target = (soft if "ignore_index" in kwargs else y).reshape(shape)
        layouts = [z.reshape(shape)]
        if len(shape) == 4:
            layouts.append(layouts[0].to(memory_format=torch.channels_last))
        for x in layouts:
            loss = functools.partial(sigmoid_focal_loss, reduction=reduction, **kwargs)
            assert_as_double(lambda z, t=target, f=loss: f(z, t.to(z.dtype)), x)


def test_targets_of_every_dtype_are_read_as_they_are():
    z, y = problem()
    expected = value_and_gradient(lambda z: sigmoid_focal_loss(z, y), z)
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float64, torch.float16):
        found = value_and_gradient(lambda z, d=dtype: sigmoid_focal_loss(z, y.to(d)), z)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype):
    z, y = problem()
    z = z.to(dtype)
    loss = functools.partial(sigmoid_focal_loss, target=y, gamma=2.0, reduction="none")
    found, slope = value_and_gradient(loss, z)
    assert found.dtype == slope.dtype == dtype
    value, expected = value_and_gradient(functools.partial(loss, target=y.double()), z.double())
    assert torch.equal(found, value.to(dtype))
    torch.testing.assert_close(slope.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-7)


def test_layouts_gaps_and_upstream_gradients():
    z, y = problem(64)
    z, y = z.reshape(8, 8), y.reshape(8, 8)
    by = torch.rand(8, 8, generator=torch.Generator().manual_seed(3))
    for x, target in ((z.T, y.T), (z, y.T.contiguous().T), (z[:, ::2], y[:, ::2]), (z[:1].expand(8, 8), y)):
        for grad in (by[:, : x.shape[1]], by.T[:, : x.shape[1]], by[:1, :1].expand(x.shape)):
            results = []
            for dtype in (torch.float32, torch.float64):
                leaf = x.detach().to(dtype).requires_grad_()
                loss = sigmoid_focal_loss(leaf, target.to(dtype), reduction="none")
                results.append(torch.autograd.grad(loss, leaf, grad.to(dtype))[0].double())
            torch.testing.assert_close(*results, rtol=3e-5, atol=1e-36)


def test_a_gradient_with_its_sign_elsewhere():
    z, y = problem(20)
    z = z.clamp(-9, 9).requires_grad_()
    loss = sigmoid_focal_loss(z, y, reduction="none")
    (expected,) = torch.autograd.grad(loss, z, -torch.ones(20), retain_graph=True)
    for upstream in (torch._neg_view(torch.ones(20)), torch._neg_view(torch.ones(1)).expand(20)):
        assert upstream.is_neg()
        (found,) = torch.autograd.grad(loss, z, upstream, retain_graph=True)
        assert torch.equal(found, expected)


def test_a_target_that_is_none_is_nan_and_a_nan_stays_where_it_is():
    z, y = problem(20)
    z[:] = 0.5
    y[3], z[5] = 2.0, float("nan")
    found, slope = value_and_gradient(lambda z: sigmoid_focal_loss(z, y, reduction="none"), z)
    assert found.isnan().nonzero().flatten().tolist() == [3, 5]
    assert slope.isnan().nonzero().flatten().tolist() == [3, 5]
    y[3], y[5] = -1, -1
    found, slope = value_and_gradient(lambda z: sigmoid_focal_loss(z, y, ignore_index=-1), z)
    assert found.isfinite()
    assert slope[[3, 5]].tolist() == [0, 0]


def test_nothing_to_average():
    assert sigmoid_focal_loss(torch.zeros(0), torch.zeros(0)).isnan()
    assert sigmoid_focal_loss(torch.zeros(0), torch.zeros(0), reduction="sum") == 0
    found, slope = value_and_gradient(
        lambda z: sigmoid_focal_loss(z, -torch.ones(3), ignore_index=-1), torch.zeros(3)
    )
    assert found.isnan()
    assert slope.tolist() == [0, 0, 0]


def test_gradient_of_targets_and_second_derivatives():
    z, _ = problem(20)
    z = z.clamp(-5, 5)
    for reduction in ("none", "mean"):
        results = []
        for dtype in (torch.float32, torch.float64):
            a = z.to(dtype).requires_grad_()
            v = torch.linspace(0, 1, 20, dtype=dtype, requires_grad=True)
            loss = sigmoid_focal_loss(a, v, 2.0, reduction=reduction, ignore_index=-1).sum()
            first = torch.autograd.grad(loss, (a, v), create_graph=True)
            again = torch.autograd.grad(first[0].square().sum(), (a, v))
            results.append([x.detach().double() for x in (*first, *again)])
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_hooks_that_give_other_tensors_back(reduction):
    """Triton does not serve these, and the gradient is computed by others: that of a mean stays one."""
    z, y = problem(special=[0.0])
    y[5] = -1  # ignored, so that the mean is not over all

    def loss(z):
        return sigmoid_focal_loss(z, y.to(z.dtype), 2.0, 0.25, reduction, ignore_index=-1)

    z.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.double()):
        (found,) = torch.autograd.grad(loss(z).sum(), z)
    _, expected = value_and_gradient(loss, z.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-36)


def test_torch_compile_calls_the_operator():
    z, y = problem(20)
    z = z.clamp(-9, 9)
    for x in (z, z.bfloat16()):
        compiled = torch.compile(lambda z: sigmoid_focal_loss(z, y, 2.0), fullgraph=True, backend="aot_eager")
        for found, expected in zip(
            value_and_gradient(compiled, x),
            value_and_gradient(lambda z: sigmoid_focal_loss(z, y, 2.0), x),
            strict=True,
        ):
            torch.testing.assert_close(found, expected)


def test_the_operators_keep_what_they_promise():
    from refocal.torch import compiled

    z, y = problem(6)
    z, numbers = z.clamp(-9, 9), (2.0, 0.25, 0.75, None, 0.0)
    torch.library.opcheck(compiled.sigmoid_losses, (z.requires_grad_(), y, *numbers))
    for mean in (True, False):
        torch.library.opcheck(compiled.sigmoid_total, (z, y, *numbers, mean))
    torch.library.opcheck(compiled.sigmoid_gradient, (torch.ones(6), z.detach(), y, *numbers))
    torch.library.opcheck(compiled.sigmoid_losses, (z.detach().half(), y, *numbers))


def test_kernels_ran_in_these_tests(monkeypatch):
    called = []
    real = dispatch.cuda.losses
    monkeypatch.setattr(dispatch.cuda, "losses", lambda p, *rest: called.append(rest) or real(p, *rest))
    sigmoid_focal_loss(torch.zeros(3), torch.zeros(3))
    assert called == [("mean",)]
