"""The softmax loss by Triton's interpreter: what `test_interpreted.py` runs in a process of its own."""

from __future__ import annotations

import itertools

import pytest
import torch
from kernel_problems import problem, reference, value_and_gradient

from refocal.torch import focal_gradient, focal_loss, which_form
from refocal.torch.cuda import softmax
from refocal.torch.losses import _softmax

GAMMAS = [0.0, 0.3, 1.0, 2.0, 2.5, 3.0, 5.0]
SIZES = [(3, 2), (8, 10), (1, 31), (5, 32), (3, 100), (2, 1000)]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Rows of 100 and 1000 cross the borders of blocks, 32 rows of 10 those of programs."""
    monkeypatch.setattr(softmax, "ENTRIES", 256)
    monkeypatch.setattr(softmax, "LONGEST", 64)
    monkeypatch.setattr(softmax, "LONGEST_SOFT", 64)


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """Return the kernels that were launched: every case has to launch one."""
    names, launch = [], softmax.launch

    def spy(kernel, rows, **args):
        names.append(kernel.fn.__name__)
        launch(kernel, rows, **args)

    monkeypatch.setattr(softmax, "launch", spy)
    yield names
    assert names


def problems(n, c):
    """Return logits of four scales, labels (half of them the largest), distributions and tolerances.

    A difference of large logits is rounded: by up to 80 * 6e-8 where its exponential still counts.
    """
    found = [problem(n, c, scale, seed) for seed, scale in enumerate((0.01, 3.0, 30.0, 1e4))]
    for z, y, _ in found:
        y[: n // 2 + 1] = z[: n // 2 + 1].argmax(1)
    z, y, v = (torch.cat(x) for x in zip(*found, strict=True))
    return z, y, v, torch.tensor([1e-6, 1e-6, 6e-6, 6e-6], dtype=torch.float64).repeat_interleave(n)


def assert_exact(z, target, v, exact_gamma, tolerance, **options):
    """Compare with double precision; v are the targets as distributions, times weights."""
    losses, gradients, size = reference(z, v, exact_gamma)
    got, slope = value_and_gradient(lambda z: focal_loss(z, target, reduction="none", **options), z)
    assert ((got - losses).abs() <= tolerance * losses + 1e-36).all()
    most = tolerance[:, None] * size.amax(1, keepdim=True)
    assert ((slope - gradients).abs() <= most + 1e-36).all()


@pytest.mark.parametrize("n, c", SIZES)
def test_integers(n, c, launched):
    z, y, _, tolerance = problems(n, c)
    v = torch.nn.functional.one_hot(y, c)
    for gamma in GAMMAS if c == 10 else [0.3] if c == 1000 else [0.3, 2.0]:
        assert_exact(z, y, v, gamma, tolerance * (1 + gamma), gamma=gamma)
    assert set(launched) == {"hard_losses", "hard_gradient"}


@pytest.mark.parametrize("n, c", SIZES)
def test_distributions(n, c, launched):
    z, y, v, tolerance = problems(n, c)
    v[::3] = torch.nn.functional.one_hot(y[::3], c).float()
    for gamma in GAMMAS if c == 10 else [0.3] if c == 1000 else [0.3, 2.0]:
        assert_exact(z, v, v, gamma, 2 * tolerance * (1 + gamma), gamma=gamma)
    assert set(launched) == {"soft_losses", "soft_gradient"}


@pytest.mark.parametrize("c", [7, 40, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_weights_and_smoothing(c, smoothing):
    z, y, v, tolerance = problems(3, c)
    weight = torch.linspace(0.0, 2.0, c)
    for target, as_v in ((y, torch.nn.functional.one_hot(y, c)), (v, v)):
        mixed = weight * ((1 - smoothing) * as_v + smoothing / c)
        options = {"gamma": 1.5, "weight": weight, "label_smoothing": smoothing}
        assert_exact(z, target, mixed, 1.5, 6 * tolerance, **options)


@pytest.mark.parametrize("c", [5, 70])
def test_one_gamma_for_each_row_or_class(c):
    z, y, v = problem(12, c, 2.0)
    rows = torch.linspace(0.0, 5.0, 12)
    classes = torch.linspace(0.0, 3.0, c)
    tolerance = torch.full((12,), 1e-5, dtype=torch.float64)
    hot = torch.nn.functional.one_hot(y, c)
    for target, as_v in ((y, hot), (v, v)):
        assert_exact(z, target, as_v, rows.double().numpy()[:, None], tolerance, gamma=rows[:, None][:, 0])
        assert_exact(z, target, as_v, classes.double().numpy(), tolerance, gamma=classes.tolist())
    one = torch.tensor(2.0)
    assert torch.equal(focal_loss(z, y, one), focal_loss(z, y, 2.0001 - torch.full((12,), 0.0001)))


def test_a_large_gamma_leaves_what_is_left_of_it():
    z = torch.tensor([[0.0, 20.0], [0.0, 16.0], [20.0, 0.0]])
    y = torch.tensor([0, 0, 0])
    v = torch.nn.functional.one_hot(y, 2)
    for gamma in (1e5, 1e9):
        assert_exact(z, y, v, gamma, torch.full((3,), 1e-3, dtype=torch.float64), gamma=gamma)


@pytest.mark.parametrize("c", [3, 70])
def test_nan_masked_and_infinite(c):
    low, high = -torch.inf, torch.inf
    z = torch.zeros(6, c)
    z[:, 1] = 1.0
    z[1, 2], z[2, 2], z[3, 0], z[4, 1] = torch.nan, low, low, high
    z[5] = low
    y = torch.zeros(6, dtype=torch.int64)
    for target in (y, torch.nn.functional.one_hot(y, c).float()):
        loss, slope = value_and_gradient(lambda z, t=target: focal_loss(z, t, 2.0, reduction="none"), z)
        assert loss.isnan().tolist()[:4] + loss.isnan().tolist()[5:] == [False, True, False, False, True]
        assert loss[3] == torch.inf
        assert slope.isnan().any(1).tolist() == [False, True, False, False, True, True]
        assert slope[2, 2] == 0
        q = z[3].double().softmax(0)
        q[0] -= 1
        torch.testing.assert_close(slope[3], q, rtol=1e-6, atol=0)


@pytest.mark.parametrize("c", [3, 70])
def test_a_masked_class_without_weight_costs_nothing(c):
    z = torch.zeros(1, c)
    z[0, 1] = -torch.inf
    weight = torch.ones(c)
    weight[1] = 0.0
    for smoothing in (0.0, 0.1):
        loss = focal_loss(z, torch.tensor([1]), 2.0, weight, reduction="sum", label_smoothing=smoothing)
        assert loss.isfinite()
    assert focal_loss(z, torch.tensor([0]), 2.0, label_smoothing=0.1) == torch.inf


def test_ties_at_the_top():
    z = torch.tensor([[3.0, 3.0, 3.0, 0.0]]).repeat(2, 1)
    y = torch.tensor([1, 3])
    v = torch.nn.functional.one_hot(y, 4)
    assert_exact(z, y, v, 2.0, torch.full((2,), 1e-6, dtype=torch.float64), gamma=2.0)
    assert_exact(z, v.float(), v, 2.0, torch.full((2,), 1e-6, dtype=torch.float64), gamma=2.0)


@pytest.mark.parametrize("c", [10, 70])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_ignored_rows_and_labels_that_are_no_class(c, smoothing):
    z, y, _ = problem(6, c, 1.0)
    y[::2] = -100
    z[2] = torch.nan
    options = {"gamma": 2.0, "label_smoothing": smoothing}
    loss, slope = value_and_gradient(lambda z: focal_loss(z, y, **options), z)
    kept, kept_slope = value_and_gradient(lambda z: focal_loss(z, y[1::2], **options), z[1::2])
    torch.testing.assert_close(loss, kept)
    torch.testing.assert_close(slope[1::2], kept_slope)
    assert not slope[::2].any()
    assert focal_loss(z, torch.full((6,), -100), **options).isnan()
    assert focal_loss(z, torch.full((6,), -100), reduction="sum", **options) == 0
    for bad in (c, -1):
        y[1] = bad
        loss, slope = value_and_gradient(lambda z: focal_loss(z, y, reduction="none", **options), z)
        assert loss.isnan().tolist() == [False, True, False, False, False, False]
        assert slope.isnan().all(1).tolist() == [False, True, False, False, False, False]
        assert focal_loss(z, torch.full((6,), bad), ignore_index=bad, reduction="sum", **options) == 0
        weight = torch.linspace(0.5, 2.0, c)
        loss, slope = value_and_gradient(lambda z, w=weight: focal_loss(z, y, weight=w, **options), z)
        assert loss.isnan()
        assert slope.isnan().all(1).tolist() == [False, True, False, False, False, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("c", [10, 100])
def test_half_precision_is_read_as_it_is(dtype, c):
    z, y, v = problem(4, c, 3.0)
    z, v = z.to(dtype), v.to(dtype)
    for target, as_v in ((y, torch.nn.functional.one_hot(y, c)), (v, v)):
        p = _softmax(z, target, 2.0, None, -100, 0.0, None)
        rows, _ = softmax.losses(p)
        losses, gradients, _ = reference(z, as_v, 2.0)
        torch.testing.assert_close(rows.double(), losses, rtol=4e-6, atol=0)
        x, saved = z.clone().requires_grad_(), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: saved.append(t.dtype) or t, lambda t: t
        ):
            loss = focal_loss(x, target, 2.0, reduction="sum")
        assert saved.count(dtype) == 1 + (target is v)
        loss.backward()
        assert (loss.dtype, x.grad.dtype) == (dtype, dtype)
        # 1 - q of what half precision can hold: the gradient is rounded once
        step = torch.finfo(dtype).eps
        torch.testing.assert_close(x.grad.double(), gradients, rtol=step, atol=torch.finfo(dtype).tiny)


LAYOUTS = {
    "as it is": lambda x: x,
    "classes last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "every other": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x[:1].expand_as(x),
    "reversed axes": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "no strides": lambda x: x.permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3),
}


@pytest.mark.parametrize("name, c", [*((name, 40) for name in LAYOUTS), ("as it is", 5)])
def test_every_layout(name, c, monkeypatch):
    monkeypatch.setattr(softmax, "IN_IMAGES", 512)  # two programs for 24 rows of 40
    layout, g = LAYOUTS[name], torch.Generator().manual_seed(0)
    z = layout(torch.randn(2, c, 3, 4, generator=g) * 3)
    y = torch.randint(c, (2, 3, 4), generator=g)
    v = layout(torch.rand(2, c, 3, 4, generator=g).mul(4).softmax(1))
    for target in (y, layout(y.unsqueeze(1)).squeeze(1), v):
        as_v = target if target is v else torch.nn.functional.one_hot(target, c).movedim(-1, 1)
        flat = [x.movedim(1, -1).reshape(-1, c) for x in (z, as_v)]
        losses, gradients, _ = reference(*flat, 2.0)
        x = z.detach().requires_grad_()
        rows = focal_loss(x, target, 2.0, reduction="none")
        (slope,) = torch.autograd.grad(rows.sum(), x)
        torch.testing.assert_close(rows.double().view(-1), losses, rtol=1e-5, atol=0)
        torch.testing.assert_close(
            slope.double().movedim(1, -1).reshape(-1, c), gradients, rtol=1e-5, atol=1e-7
        )


@pytest.mark.parametrize("c", [10, 100])
def test_every_reduction_and_upstream_gradient(c):
    z, y, v = problem(5, c, 2.0)
    by = torch.arange(5.0)
    for target in (y, v):
        exact = focal_loss(z.double(), target, 2.0, reduction="none")  # in PyTorch's operations
        for reduction in ("sum", "mean", "none"):
            slopes = []
            for x in (z.clone().requires_grad_(), z.double().requires_grad_()):
                loss = focal_loss(x, target, 2.0, reduction=reduction)
                torch.testing.assert_close(
                    loss.double(), getattr(exact, reduction)() if loss.ndim == 0 else exact
                )
                (slope,) = torch.autograd.grad(loss, x, by.to(x.dtype) if loss.ndim else None)
                slopes.append(slope.double())
            torch.testing.assert_close(*slopes, rtol=1e-5, atol=1e-7)
        ready = focal_gradient(z, target, 2.0)
        torch.testing.assert_close(
            ready.double(), focal_gradient(z.double(), target, 2.0), rtol=1e-5, atol=1e-7
        )


def test_no_rows_and_one_class(launched):
    z = torch.zeros(0, 5, requires_grad=True)
    for target in (torch.zeros(0, dtype=torch.int64), torch.zeros(0, 5)):
        assert focal_loss(z, target, reduction="sum") == 0
        assert focal_loss(z, target).isnan()
    focal_loss(z, torch.zeros(0, dtype=torch.int64), reduction="sum").backward()
    assert z.grad.shape == (0, 5)
    one = focal_loss(torch.ones(3, 1), torch.zeros(3, dtype=torch.int64), 2.0)
    assert one == 0
    single = torch.tensor([0.0, 1.0, 2.0])
    torch.testing.assert_close(
        focal_loss(single, torch.tensor(1)).double(), focal_loss(single.double(), torch.tensor(1))
    )


def test_gradients_by_targets_and_second_derivatives():
    z, y, v = problem(3, 40, 1.0)
    for dtype, rtol in ((torch.float32, 1e-4), (torch.float16, 2e-3)):
        for target in (y, v.to(dtype)):
            found = []
            for x in (z.to(dtype), z.to(dtype).double()):
                x = x.detach().requires_grad_()
                t = target if target is y else target.to(x.dtype).requires_grad_()
                first = torch.autograd.grad(
                    focal_loss(x, t, 2.0, reduction="sum"), (x, t)[: 1 + (t is not y)]
                )
                (slope,) = torch.autograd.grad(focal_loss(x, t, 2.0, reduction="sum"), x, create_graph=True)
                (second,) = torch.autograd.grad(slope.double().square().sum(), x)
                found.append([g.double() for g in (*first, second)])
            for got, exact in zip(*found, strict=True):
                torch.testing.assert_close(got, exact, rtol=rtol, atol=rtol * float(exact.abs().max()))


def test_which_form():
    z, y, v = problem(3, 4, 1.0)
    assert {which_form(x, t) for x, t in itertools.product((z, z.half(), z.bfloat16()), (y, v))} == {"triton"}
    assert which_form(z.double(), y) == "eager"
    assert focal_loss(z, y).isfinite()


@pytest.mark.parametrize("c, dtype", [(6, torch.bfloat16), (70, torch.float32)])
def test_compiled_without_a_break(c, dtype):
    torch.compiler.reset()
    z, y, v = problem(4, c, 2.0)
    weight = torch.linspace(0.5, 2.0, c)
    for target, smoothing in ((y, 0.0), (v.to(dtype), 0.1)):

        def loss(z, target=target, smoothing=smoothing):
            return focal_loss(z, target, 2.0, weight, label_smoothing=smoothing)

        results = []
        for f in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
            x = z.to(dtype).requires_grad_()
            value = f(x)
            value.backward()
            results.append((value.detach(), x.grad))
        torch.testing.assert_close(*results, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("c, hard, half", [(6, True, True), (70, True, False), (70, False, True)])
def test_operators_keep_their_promises(c, hard, half):
    from refocal.torch import compiled

    z, y, v = problem(3, c, 2.0)
    x = z.half() if half else z.t().contiguous().t()
    args = (x.detach().requires_grad_(), y if hard else v, None, None, 2.0, 0, -100, 0.0, 1, hard)
    torch.library.opcheck(compiled.softmax_rows, args, test_utils=CHECKS)
    rows, kept = compiled.softmax_rows(x.detach(), *args[1:])
    by = (torch.ones_like(rows), kept, x.detach(), *args[1:])
    torch.library.opcheck(compiled.softmax_gradient, by, test_utils=CHECKS)


CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
