"""The compiled kernels: the same losses and gradients as float64, at every edge."""

from __future__ import annotations

import functools
import subprocess
import sys

import mpmath
import numpy as np
import pytest
import torch
from kernel_problems import problem, value_and_gradient

from refocal.torch import FocalLoss, _fast, focal_loss, sigmoid_focal_loss

entries = pytest.importorskip("refocal.torch._entries")

GAMMAS = [0.0, 0.3, 1.0, 2.0, 2.5, 3.0, 5.0]


def reference(z, v, gamma):
    """Return losses (n,), gradients (n, c) and what cancels in them, in double precision, without refocal."""
    z, v = z.double().numpy(), v.double().numpy()
    # log q_j = -log sum_i exp(z_i - z_j), the sum without i = j by log1p: no digit is lost next to q = 1
    gaps = z[:, None, :] - z[:, :, None]
    others = np.where(np.eye(z.shape[1], dtype=bool), -np.inf, gaps)
    largest = np.maximum(others.max(2, keepdims=True), 0)
    with np.errstate(divide="ignore", under="ignore"):
        rest = np.exp(others - largest).sum(2)
        top = largest[..., 0]
        neg_log = np.where(top == 0, np.log1p(rest), top + np.log(rest + np.exp(-top)))
        q, miss = np.exp(-neg_log), -np.expm1(-neg_log)
        ratio = np.where(miss > 0, neg_log / np.where(miss > 0, miss, 1), 1)
        phi = miss**gamma * (1 + gamma * q * ratio)
    slopes = v * phi  # -d loss / d log q
    # d log q_j / d z_k = [j = k] - q_k: summed so that nothing cancels, since 1 - q_k is known
    plus, minus = q * (slopes.sum(1, keepdims=True) - slopes), slopes * miss
    losses = (v * miss**gamma * neg_log).sum(1)
    return tuple(torch.from_numpy(x) for x in (losses, plus - minus, plus + minus))


def assert_as_in_double(loss, z, v, gamma, tolerance):
    """Compare with `reference`, for every reduction; v are the targets as distributions."""
    losses, gradients, size = reference(z, v, gamma)
    n, size = len(z), size.amax(1, keepdim=True)
    tiny = 1e-36  # single precision ends there
    for reduction, exact, by in (("none", losses, 1), ("sum", losses.sum(), 1), ("mean", losses.mean(), n)):
        value, gradient = value_and_gradient(lambda z, r=reduction: loss(z, reduction=r), z)
        torch.testing.assert_close(value, exact, rtol=tolerance, atol=tiny)
        assert bool(((gradient - gradients / by).abs() <= tolerance * size / by + tiny).all())


def used(monkeypatch):
    """Return a list that grows with the name of each kernel that is used."""
    names = []
    the = _fast._the
    monkeypatch.setattr(_fast, "_the", lambda name: names.append(name) or the(name))
    return names


def miss(x):
    return entries.exp_and_miss(x)[1]


def neg_log(q):
    return entries.neg_log_miss(q, np.float32(1) - q)


@pytest.mark.parametrize(
    "function, exact, points",
    [
        (entries.exp, mpmath.exp, -np.geomspace(1e-30, 87.2, 2000)),
        (miss, lambda x: -mpmath.expm1(x), -np.geomspace(1e-30, 1e9, 2000)),
        (entries.log1p, mpmath.log1p, np.geomspace(1e-37, 1, 2000)),
        # 1 - q is exact in single precision for these
        (neg_log, lambda q: -mpmath.log1p(-q), np.round(np.geomspace(1e-5, 0.9999, 2000) * 2**24) / 2**24),
    ],
    ids=["exp", "miss", "log1p", "neg_log_miss"],
)
def test_entries_against_mpmath(function, exact, points):
    for x in points.astype(np.float32):
        got, true = mpmath.mpf(float(function(x))), exact(mpmath.mpf(float(x)))
        assert abs(got - true) <= 4e-7 * abs(true)


def test_entries_at_the_edges():
    inf, nan, zero, one = (np.float32(x) for x in (np.inf, np.nan, 0, 1))
    assert [entries.exp(zero), entries.exp(-inf)] == [1, 0]
    assert [miss(zero), miss(-inf), entries.log1p(zero)] == [0, 1, 0]
    assert np.isnan([entries.exp(nan), miss(nan), entries.log1p(nan)]).all()
    assert entries.neg_log_miss(zero, one) == 0
    assert 87 < entries.neg_log_miss(one, zero) < 88


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("n, c", [(1, 2), (300, 2), (450, 10), (9, 31), (9, 32), (50, 100), (2, 1000)])
def test_integers(n, c, gamma, monkeypatch):
    names = used(monkeypatch)
    for scale in (0.01, 3.0, 30.0, 1e4):
        z, y, _ = problem(n, c, scale)
        y[: n // 2] = z[: n // 2].argmax(1)  # next to p = 1
        # A difference of logits is rounded: by up to 80 * 6e-8 where its exponential still counts.
        tolerance = 1e-6 * (1 + gamma) if scale <= 3 else 6e-6 * (1 + gamma)
        v = torch.nn.functional.one_hot(y, c)
        assert_as_in_double(functools.partial(focal_loss, target=y, gamma=gamma), z, v, gamma, tolerance)
    assert set(names) == {"hard_rows", "hard_gradient"}


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("n, c", [(1, 2), (300, 2), (450, 10), (9, 32), (50, 100), (2, 1000)])
def test_distributions(n, c, gamma, monkeypatch):
    names = used(monkeypatch)
    for scale in (0.01, 3.0, 30.0, 1e4):
        z, y, soft = problem(n, c, scale)
        y[: n // 2] = z[: n // 2].argmax(1)
        tolerance = 2e-6 * (1 + gamma) if scale <= 3 else 1e-5 * (1 + gamma)
        for v in (soft, torch.nn.functional.one_hot(y, c).float()):
            assert_as_in_double(functools.partial(focal_loss, target=v, gamma=gamma), z, v, gamma, tolerance)
    assert set(names) == {"soft_rows", "soft_gradient"}


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("alpha", [None, 0.25])
def test_sigmoid(gamma, alpha, monkeypatch):
    names = used(monkeypatch)
    of_one, of_zero = (1, 1) if alpha is None else (alpha, 1 - alpha)
    for scale in (0.01, 3.0, 30.0, 1e4):
        z, _, v = problem(300, 7, scale)
        for y in (v, (v > 0.2).float()):
            # Two classes with the logits z and 0.
            pairs = torch.stack([z.view(-1), torch.zeros(2100)], 1)
            one, slope_one, _ = reference(pairs, torch.tensor([[1.0, 0.0]]), gamma)
            zero, slope_zero, _ = reference(pairs, torch.tensor([[0.0, 1.0]]), gamma)
            one, slope_one = (of_one * y.double() * x.view(300, 7) for x in (one, slope_one[:, 0]))
            zero, slope_zero = (of_zero * (1 - y.double()) * x.view(300, 7) for x in (zero, slope_zero[:, 0]))
            loss = functools.partial(sigmoid_focal_loss, target=y, gamma=gamma, alpha=alpha)
            value, gradient = value_and_gradient(lambda z, f=loss: f(z, reduction="none"), z)
            tolerance = 2e-6 * (1 + gamma) if scale <= 3 else 1e-5 * (1 + gamma)
            torch.testing.assert_close(value, one + zero, rtol=tolerance, atol=1e-36)
            size = slope_one.abs() + slope_zero.abs()  # they have different signs
            assert bool(((gradient - slope_one - slope_zero).abs() <= tolerance * size + 1e-36).all())
            for reduction, by in (("sum", 1), ("mean", 2100)):
                value, same = value_and_gradient(lambda z, f=loss, r=reduction: f(z, reduction=r), z)
                torch.testing.assert_close(value, (one + zero).sum() / by, rtol=tolerance, atol=1e-36)
                torch.testing.assert_close(same, gradient / by, rtol=1e-6, atol=1e-36)
    assert set(names) == {"binary_rows", "binary_gradient"}


def test_rows_with_nan_and_masked_classes():
    z = torch.tensor([[0.0, 1.0, 2.0], [torch.nan, 0.0, 1.0], [0.0, -torch.inf, 1.0]])
    y = torch.tensor([2, 1, 0])
    for target in (y, torch.nn.functional.one_hot(y, 3).float()):
        loss, gradient = value_and_gradient(lambda z, t=target: focal_loss(z, t, 2.0, reduction="none"), z)
        assert loss.isnan().tolist() == [False, True, False]
        assert gradient.isnan().any(1).tolist() == [False, True, False]
        assert gradient[2, 1] == 0
    everything = torch.full((1, 3), -torch.inf)
    assert focal_loss(everything, y[:1], 2.0).isnan()


@pytest.mark.parametrize("c", [3, 40])
@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0, 2.5])
@pytest.mark.parametrize("low", [-torch.inf, -3e38])
def test_a_masked_target_pushes_with_all_its_weight(c, gamma, low):
    z = torch.zeros(2, c)
    z[0, 1] = low
    z[0, 0] = 3e38 if low > -torch.inf else 0.0
    loss, gradient = value_and_gradient(
        lambda z: focal_loss(z, torch.tensor([1, 0]), gamma, reduction="none"), z
    )
    assert loss[0] == torch.inf
    q = z[0].double().softmax(0)
    q[1] -= 1
    torch.testing.assert_close(gradient[0], q, rtol=1e-6, atol=0)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_infinite_scores(y):
    target = torch.full((2,), y)
    z = torch.tensor([torch.inf, -torch.inf])
    right, wrong = (0, 1) if y else (1, 0)
    loss, gradient = value_and_gradient(lambda z: sigmoid_focal_loss(z, target, 2.0, None, "none"), z)
    assert loss[[right, wrong]].tolist() == [0, torch.inf]
    assert gradient[[right, wrong]].abs().tolist() == [0, 1]


def test_confidently_wrong():
    z = torch.tensor([[80.0, 0.0]], requires_grad=True)
    focal_loss(z, torch.tensor([1]), 2.0).backward()
    assert z.grad.tolist() == [[1.0, -1.0]]


def test_ignored_rows():
    z, y, _ = problem(6, 40, 1.0)
    y[::2] = -100
    z[2] = torch.nan
    loss, gradient = value_and_gradient(lambda z: focal_loss(z, y, 2.0), z)
    kept, kept_gradient = value_and_gradient(lambda z: focal_loss(z, y[1::2], 2.0), z[1::2])
    assert loss == kept
    torch.testing.assert_close(gradient[1::2], kept_gradient, rtol=1e-6, atol=1e-9)
    assert not gradient[::2].any()
    assert focal_loss(z, torch.full((6,), -100), 2.0).isnan()
    assert focal_loss(z, torch.full((6,), -100), 2.0, reduction="sum") == 0


@pytest.mark.parametrize("c", [10, 40])
def test_labels_that_change_after_the_loss(c):
    # Memory that NumPy shares: autograd does not notice.
    labels = np.zeros(6, dtype=np.int64)
    z = torch.randn(6, c, requires_grad=True)
    loss = focal_loss(z, torch.from_numpy(labels), 2.0)
    labels[3] = 10**12
    with pytest.raises(IndexError, match=r"^Target 1000000000000 is out of bounds\.$"):
        loss.backward()


@pytest.mark.parametrize(
    "unpack",
    [
        lambda t: t.t().contiguous().t() if t.ndim == 2 else t,
        lambda t: t.double() if t.is_floating_point() else t.int(),
        lambda t: torch.complex(0 * t, -t).conj().imag if t.is_floating_point() else t,  # the sign is a mark
    ],
    ids=["transposed", "other types", "signs elsewhere"],
)
def test_hooks_may_give_the_same_numbers_in_another_form(unpack):
    z, y, v = problem(5, 40, 1.0)
    for loss in (
        lambda z: focal_loss(z, y, 2.0),
        lambda z: focal_loss(z, v, 2.0),
        lambda z: sigmoid_focal_loss(z, v),
    ):
        x = z.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            value = loss(x)
        (gradient,) = torch.autograd.grad(value, x)
        torch.testing.assert_close(gradient.double(), value_and_gradient(loss, z)[1], rtol=1e-5, atol=1e-7)


def test_a_gradient_with_its_sign_elsewhere():
    z, y, _ = problem(3, 4, 1.0)
    upstream = torch.complex(torch.zeros(3), torch.ones(3)).conj().imag
    assert upstream.is_neg()
    x = z.requires_grad_()
    (gradient,) = torch.autograd.grad(focal_loss(x, y, 2.0, reduction="none"), x, upstream)
    (same,) = torch.autograd.grad(focal_loss(x, y, 2.0, reduction="none"), x, -torch.ones(3))
    assert torch.equal(gradient, same)


def test_one_gamma_a_row_or_a_class(monkeypatch):
    names = used(monkeypatch)
    z, y, _ = problem(40, 5, 2.0)
    rows = torch.rand(40, generator=torch.Generator().manual_seed(1)) * 4
    rows[:4] = torch.arange(4)
    per_class = [0.0, 1.0, 2.0, 3.0, 1.5]
    for gamma, of_row in ((rows, rows), (per_class, torch.tensor(per_class)[y])):
        loss, gradient = value_and_gradient(lambda z, g=gamma: focal_loss(z, y, g, reduction="none"), z)
        for i in range(40):
            v = torch.nn.functional.one_hot(y[i : i + 1], 5)
            exact, exact_gradient, _ = reference(z[i : i + 1], v, float(of_row[i]))
            torch.testing.assert_close(loss[i], exact[0], rtol=1e-5, atol=0)
            torch.testing.assert_close(gradient[i], exact_gradient[0], rtol=1e-5, atol=1e-9)
    assert set(names) == {"hard_rows", "hard_gradient"}


def test_a_sum_beyond_single_precision():
    z = torch.zeros(6, 2)
    z[:, 0] = -torch.inf
    v = torch.tensor([[1.0, 0.0]]).repeat(6, 1)
    assert focal_loss(z, v, 2.0, reduction="sum") == torch.inf


def test_a_long_row_adds_up_in_double():
    c = 1_000_000
    z = torch.zeros(1, c)
    torch.testing.assert_close(
        focal_loss(z, torch.tensor([0]), 0.0).double(), torch.tensor(float(c)).double().log()
    )
    total = sigmoid_focal_loss(z, torch.zeros(1, c), 2.5, None, "sum").double()
    torch.testing.assert_close(total, torch.tensor(c * 0.5**2.5 * np.log(2)), rtol=2e-6, atol=0)


@pytest.mark.parametrize("index", [2**64, 2**64 + 1, 1.0, None, "a", np.int64(1), True, torch.tensor(1)])
def test_strange_indices_to_ignore_are_as_without_kernels(index, monkeypatch):
    def outcome():
        try:
            return float(
                focal_loss(torch.arange(6.0).view(2, 3), torch.tensor([0, 1]), 2.0, ignore_index=index)
            )
        except Exception as error:
            return type(error)

    with_kernels = outcome()
    monkeypatch.setattr(_fast, "kernels", lambda: None)
    without = outcome()
    assert with_kernels == (pytest.approx(without, rel=1e-5) if isinstance(without, float) else without)


def test_tracers_and_transforms_see_the_operations():
    from torch.fx.experimental.proxy_tensor import make_fx

    z, y, v = problem(3, 4, 1.0)
    traced = make_fx(lambda z, v: focal_loss(z, v, 2.0))(z, v)
    torch.testing.assert_close(traced(2 * z, v), focal_loss(2 * z, v, 2.0))
    slope = torch.func.grad(lambda a: focal_loss(z, y, 2.0) * a)(torch.tensor(1.0))
    torch.testing.assert_close(slope, focal_loss(z, y, 2.0))


def test_a_damaged_cache_is_not_used(monkeypatch):
    def fails_with_cache(*args, cache=False, **options):
        if cache:
            raise EOFError("Ran out of input")
        return cfunc(*args, **options)

    cfunc = entries.cfunc
    monkeypatch.setattr(entries, "cfunc", fails_with_cache)

    @entries.kernel("nx")
    def answer(n, x):
        return n + 1

    assert answer()(41, 0.5) == 42


def test_the_defaults_of_torch_do_not_matter():
    z, y, _ = problem(5, 40, 1.0)
    expected = value_and_gradient(lambda z: focal_loss(z, y, 2.0), z)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            loss = focal_loss(z, y, 2.0)
            assert (loss.dtype, loss.device.type) == (torch.float32, "cpu")
            for got, same in zip(
                value_and_gradient(lambda z: focal_loss(z, y, 2.0), z), expected, strict=True
            ):
                assert torch.equal(got, same)
    finally:
        torch.set_default_dtype(torch.float32)


class Wrapped(torch.Tensor):
    pass


def test_what_a_kernel_cannot_read():
    z, y, _ = problem(4, 6, 1.0)
    assert all([_fast.fits(z), _fast.fits(y, torch.int64), _fast.fits(torch.nn.Parameter(z))])
    for x in (z.double(), z.t(), z[:, ::2], z[:0], z.to_sparse(), z.to("meta"), z.as_subclass(Wrapped), y):
        assert not _fast.fits(x)
    assert not _fast.fits(y.int(), torch.int64)
    for logits, target in ((z.t().contiguous().t(), y), (z, y.int()), (z.as_subclass(Wrapped), y)):
        torch.testing.assert_close(focal_loss(logits, target, 2.0), focal_loss(z, y, 2.0))


def test_the_gradient_by_the_targets():
    z, _, v = problem(4, 6, 1.0)
    for loss in (focal_loss, sigmoid_focal_loss):
        (got,) = torch.autograd.grad(loss(z, v.requires_grad_()), v)
        w = v.detach().double().requires_grad_()
        (exact,) = torch.autograd.grad(loss(z.double(), w), w)
        torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-7)


def test_second_derivatives():
    z, y, v = problem(4, 6, 1.0)
    for loss in (
        lambda z: focal_loss(z, y, 2.0),
        lambda z: focal_loss(z, v.to(z.dtype), 2.0, reduction="none").square().sum(),
        lambda z: sigmoid_focal_loss(z, v.to(z.dtype)),
    ):
        hessians = []
        for x in (z, z.double()):
            x = x.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(x), x, create_graph=True)
            (second,) = torch.autograd.grad(gradient.square().sum(), x)
            hessians.append(second.double())
        torch.testing.assert_close(*hessians, rtol=1e-4, atol=1e-7)


def test_what_is_kept():
    for c, most in ((10, 0), (32, 3 / 32), (1000, 3 / 1000)):
        z, y, _ = problem(64, c, 1.0)
        sizes, known = [], {z.data_ptr(), y.data_ptr()}

        def pack(t, known=known, sizes=sizes):
            if t.data_ptr() not in known:
                sizes.append(t.numel())
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            focal_loss(z.requires_grad_(), y, 2.0)
        assert sum(sizes) <= most * z.numel()


WITHOUT = """
import sys
if "broken" in sys.argv: sys.modules["numba"] = None
import torch
from refocal.torch import _fast, focal_loss
z = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
print(_fast.kernels(), round(float(focal_loss(z, torch.tensor([0, 1]))), 4))
"""


@pytest.mark.parametrize("args, variables", [(["broken"], {}), ([], {"NUMBA_DISABLE_JIT": "1"})])
def test_without_numba(args, variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-W", "error", "-c", WITHOUT, *args]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "None 0.0875\n"


def test_training_with_and_without_kernels_is_the_same(monkeypatch):
    def weights(kernels):
        monkeypatch.setattr(_fast, "kernels", kernels)
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        x, y = torch.randn(50, 5), torch.arange(50) % 3
        for _ in range(30):
            optimizer.zero_grad()
            FocalLoss(2.0)(model(x), y).backward()
            optimizer.step()
        return model.weight.detach()

    torch.testing.assert_close(weights(_fast.kernels), weights(lambda: None), rtol=1e-5, atol=1e-6)
