"""Thousands of random calls of the losses, beside float64 and beside `F.cross_entropy`.

The reference is written in the odds against a class: with o_k = log(sum of e^z over the other classes) - z_k,

    -log q_k = softplus(o_k),  -log(1 - q_k) = softplus(-o_k),  l(o) = e^(-gamma softplus(-o)) softplus(o),

so that nothing cancels next to q = 0 or q = 1, and derivatives are sums of positive numbers but for one minus
sign. The functions under test never form these odds.

The bar. Machine numbers are eps apart. A difference z_j - max z is rounded to eps / 2 of itself, so e^ of it,
the 1 - q made of such numbers, and its power gamma are off by (1 + gamma) |difference| eps / 2 in the worst
case; where that product exceeds -log of the smallest normal number the result is 0 anyway. Functions and sums
add a few eps for each of 1 + gamma factors. Hence, relative to the sum of the absolute values of its parts, a
result has

    rel = eps (10 (1 + gamma) + min((1 + gamma) span, -log tiny)),  span = the largest finite max z - z_j,

in float32 and at small scales 1.2e-6 (1 + gamma). Less than 1e3 tiny counts as 0. Targets that are
distributions go through PyTorch's log_softmax where there is no kernel: next to q = 1 it is off by a few eps,
absolutely.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from refocal.torch import cpu, dispatch, focal_gradient, focal_loss, sigmoid_focal_loss, which_form

CASES = 100
"""How many cases a block has. With the slow blocks, for three forms, there are 5,400 against float64."""

DTYPES = [torch.float32] * 4 + [torch.float64, torch.float16, torch.bfloat16]
GAMMAS = [0.0, 0.3, 1.0, 2.0, 2.5, 3.0, 5.0]
FORMS = ["kernel", "eager", "formula"]


def blocks(count: int) -> list[Any]:
    return [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, count))]


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    """Every form of the losses in turn, see `refocal.torch.dispatch`; an operator runs the kernel too."""
    if request.param != "kernel":
        monkeypatch.setattr(cpu, "_kernels", {})
    if request.param == "formula":
        monkeypatch.setattr(dispatch, "choose", lambda *args, **options: "formula")
    return request.param


# The reference, and how to compare with it


def of_odds(o, gamma):
    """Return l, l' and the most that -d l / d log q can be, with their limits at infinite odds."""
    with np.errstate(invalid="ignore"):
        neg_log_q, neg_log_miss = np.logaddexp(0, o), np.logaddexp(0, -o)
        power = np.where(gamma == 0, 1.0, np.exp(-gamma * neg_log_miss))
        hit = np.where(np.isposinf(o), 0.0, np.exp(-neg_log_q) * neg_log_q)
    return power * neg_log_q, power * (np.exp(-neg_log_miss) + gamma * hit), power * (1 + gamma)


def times(a, b):
    """Return a product in which 0 times infinity is 0: what has no weight or is no target does not count."""
    with np.errstate(invalid="ignore"):
        return np.where((a == 0) & np.isinf(b), 0.0, a * b)


def softmax_reference(z, v, gamma, of_all):
    """Return losses, d/dz and d/dv of rows x classes, weighted targets v, and sizes of d/dz's parts."""
    broken = np.isnan(z).any(1) | np.isposinf(z).any(1) | np.isneginf(z).all(1)  # they have no softmax
    z = np.where(broken[:, None], 0.0, z)
    terms, by_z, size, most = (np.zeros(z.shape) for _ in range(4))
    for k in np.flatnonzero((v != 0).any(0) | of_all):
        others = z.copy()
        others[:, k] = -np.inf
        top = np.maximum(others.max(1), -1e300)
        parts = np.exp(others - top[:, None])
        total = parts.sum(1)
        with np.errstate(divide="ignore"):
            odds = (top - z[:, k]) + np.log(total)
        terms[:, k], by_odds, most[:, k] = of_odds(odds, gamma[:, k])
        slope = v[:, k] * by_odds
        shared = (slope / np.maximum(total, 1))[:, None] * parts
        by_z, size = by_z + shared, size + shared
        by_z[:, k] -= slope
        size[:, k] += slope
    if (np.count_nonzero(v, 1) > 1).any():  # the sum of -d l / d log q is rounded; of one target it is exact
        q = np.exp(z - z.max(1, keepdims=True))
        size += q / q.sum(1, keepdims=True) * (v * most).sum(1, keepdims=True)
    nan = np.where(broken, np.nan, 0.0)
    return times(v, terms).sum(1) + nan, by_z + nan[:, None], terms + nan[:, None], size


def relative_bar(work, gamma, span):
    return work.eps * (10 * (1 + gamma) + np.minimum((1 + gamma) * span, -math.log(work.tiny)))


def working(dtype):
    return torch.finfo(dtype if dtype.itemsize > 2 else torch.float32)


def check(what, got, want, bar):
    """Hold a tensor against float64 values. It was rounded to its dtype last, and may have overflowed."""
    info = torch.finfo(got.dtype)
    smallest = 1e3 * working(got.dtype).tiny + (info.tiny * info.eps if info.bits < 32 else 0)
    got, want = got.detach().double().numpy(), np.asarray(want)
    assert got.shape == want.shape, what
    with np.errstate(invalid="ignore"):
        bar = np.asarray(bar + (np.abs(want) + bar) * info.eps / 2 + smallest)
        good = np.isfinite(want) & (np.abs(got - want) <= bar)
        good |= (got == want) | (np.isnan(got) & np.isnan(want))
        good |= (got == np.copysign(np.inf, want)) & (np.abs(want) + bar > info.max)
    for at in map(tuple, np.argwhere(~good)[:1].tolist()):
        pytest.fail(f"{what} {at} is {got[at]}, not {want[at]} +- {bar[at]}")


def compare(name, rng, ours, loss, bar, reduction, count, *inputs, axis=None):
    """Compare a loss, and its gradients by those of (input, gradient, bar) that need one."""
    by = count if reduction == "mean" else 1.0
    grad = torch.tensor(rng.normal(size=ours.shape), dtype=ours.dtype)
    inputs = [found for found in inputs if found[0].requires_grad]
    grads = torch.autograd.grad(ours, [x for x, _, _ in inputs], grad)
    if by == 0:
        assert not ours.isfinite(), name
        return
    loss, bar = (loss, bar) if reduction == "none" else (loss.sum() / by, bar.sum() / by)
    check(name, ours, loss, bar)
    factor = grad.double().numpy() / by
    factor = np.expand_dims(factor, axis) if axis is not None and factor.ndim else factor
    for (_, want, bar), got, letter in zip(inputs, grads, "zv", strict=False):
        check(f"by {letter}, {name}", got, factor * want, np.abs(factor) * bar)


# Random arguments


def laid_out(x, rng):
    """Return the same numbers (the first ones again and again if expanded) in another order of memory."""
    layout = rng.choice(["contiguous", "transposed", "channels last", "sliced", "expanded"])
    if layout == "transposed":
        order = list(rng.permutation(x.ndim))
        return x.permute(order).contiguous().permute([order.index(i) for i in range(x.ndim)])
    if layout == "channels last" and x.ndim == 4:
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "sliced" and x.ndim:
        axis = int(rng.integers(x.ndim))
        return x.repeat_interleave(2, axis)[(slice(None),) * axis + (slice(None, None, 2),)]
    return x[:1].expand(x.shape) if layout == "expanded" and x.ndim and len(x) else x


def random_shape(rng):
    c = int(rng.choice([1, 2, 3, 5, 10, 17, 31, 32, 40, 100])) if rng.random() < 0.95 else 300
    c = c if rng.random() < 0.99 else 3000
    n = int(rng.choice([0, 1, 2, 3, 7])) if c < 300 else 1
    return [(c,), (n, c), (n, c), (n, c), (n, c, 3), (n, c, 2, 2)][rng.integers(6)]


def random_logits(rng, shape, dtype):
    z = rng.normal(size=shape) * 10.0 ** rng.uniform(-2, 4)
    z = np.round(z) if rng.random() < 0.1 else z  # with ties
    if rng.random() < 0.3:
        strange = rng.choice([-np.inf] * 4 + [np.inf, np.nan])
        z = np.where(rng.random(shape) < rng.choice([0.3, 0.9]), strange, z)
    return laid_out(torch.tensor(z, dtype=dtype), rng).requires_grad_()


def random_labels(rng, rows, c):
    """Return labels and the one to ignore."""
    dtype = [torch.int64, torch.int64, torch.int32, torch.uint8][rng.integers(4)]
    most = min(c, 256) if dtype is torch.uint8 else c
    ignore = int(rng.choice([-100, -100, -1, 255, rng.integers(most)]))
    labels = rng.integers(most, size=rows)
    if ignore >= 0 or dtype is not torch.uint8:
        labels = np.where(rng.random(rows) < rng.choice([0.0, 0.3, 1.0]), ignore, labels)
    return laid_out(torch.as_tensor(labels).to(dtype), rng), ignore


def random_gamma(rng, rows, c):
    """Return gamma as an argument, and for rows x classes."""
    kind = rng.choice(["number", "number", "number", "classes", "rows"])
    if kind == "number":
        gamma = float(rng.choice(GAMMAS))
        return gamma, np.full((math.prod(rows), c), gamma)
    if kind == "classes":
        gammas = rng.choice(GAMMAS, c)
        return gammas.tolist(), np.tile(gammas, (math.prod(rows), 1))
    gamma = torch.as_tensor(rng.choice(GAMMAS, rows[rng.integers(len(rows) + 1) :]))
    return gamma, np.tile(gamma.broadcast_to(rows).reshape(-1, 1).numpy(), c)


# Values and gradients


@pytest.mark.parametrize("block", blocks(15))
def test_softmax_losses_against_float64(block, form):
    for case in range(CASES):
        seed = [FORMS.index(form), block, case]
        softmax_case(f"{form}, seed {seed}:", np.random.default_rng(seed), form)


def softmax_case(name, rng, form):
    shape, dtype = random_shape(rng), DTYPES[rng.integers(len(DTYPES))]
    axis, work, dim = min(1, len(shape) - 1), working(dtype), None
    if rng.random() < 0.2:
        i = int(rng.integers(len(shape)))
        shape = tuple(np.insert(np.delete(shape, axis), i, shape[axis]).tolist())
        axis, dim = i, i - len(shape) * int(rng.integers(2))
    c, rows = shape[axis], shape[:axis] + shape[axis + 1 :]
    z, (gamma, gammas) = random_logits(rng, shape, dtype), random_gamma(rng, rows, c)
    reduction, smoothing = str(rng.choice(["mean", "sum", "none"])), float(rng.choice([0, 0, 0.1, 0.9, 1e-4]))
    weight, of_class = None, np.ones(c)
    if rng.random() < 0.4:
        weight = torch.tensor(rng.random(c) * 3 * (rng.random(c) < rng.choice([0.5, 1.0])))
        weight = weight.to(rng.choice([torch.float32, torch.float64]))
        of_class = weight.double().numpy()

    def rows_first(x):
        return x.detach().double().movedim(axis, -1).reshape(-1, c).numpy()

    def classes_back(x):
        return np.moveaxis(x.reshape(*rows, c), -1, axis)

    hard, ignore, kept, counts = rng.random() < 0.6, -100, np.ones(len(gammas), bool), np.ones(len(gammas))
    if hard:
        target, ignore = random_labels(rng, rows, c)
        y = target.reshape(-1).numpy().astype(int)
        kept = y != ignore
        y = np.where(kept, y, 0)
        v, counts = np.eye(c)[y], np.where(kept, of_class[y], 0.0)
    else:
        v = rng.dirichlet(np.ones(c), rows) if rng.random() < 0.6 else np.eye(c)[rng.integers(c, size=rows)]
        target = torch.tensor(np.moveaxis(v, -1, axis), dtype=rng.choice([dtype, torch.float32]))
        target = laid_out(target, rng)
        target.requires_grad_(bool(z.isfinite().all()) and rng.random() < 0.3)
        v = rows_first(target)
    name += f" {shape} {z.stride()} {dtype} {target.dtype} {gamma=} {weight=}"
    name += f" {ignore=} {smoothing=} {reduction} {dim=}"

    # What it should be, an ignored row 0, and within which bar
    values, v = np.where(kept[:, None], rows_first(z), 0.0), of_class * ((1 - smoothing) * v + smoothing / c)
    loss, by_z, by_v, size = softmax_reference(values, v, gammas, target.requires_grad)
    loss, by_z = np.where(kept, loss, 0.0), np.where(kept[:, None], by_z, 0.0)
    if form == "formula" and not np.isfinite(loss).all():
        return  # its gradients are NaN there
    finite = np.where(np.isfinite(values), values, np.nan)
    span = np.fmax.reduce(finite, 1) - np.fmin.reduce(finite, 1)
    near_one = 4 * work.eps * (1 + gammas.max(1, initial=0.0))
    rel = relative_bar(work, gammas.max(1, initial=0.0), np.nan_to_num(span))
    runs_kernel = form == "kernel" and dtype is not torch.float64
    assert (which_form(z, target) == "kernel") == runs_kernel, name
    rough = near_one * v.sum(1) if (smoothing or not hard) and not runs_kernel else 0 * near_one
    if (smoothing or not hard) and not runs_kernel:
        rel = rel + work.eps * c / 16  # a sum over the classes, in the runs that PyTorch adds up at once
    rel = 4 * rel if form == "formula" else rel  # autograd adds up more parts
    bar, bar_z = rel * np.abs(loss) + rough, rel[:, None] * size + rough[:, None]

    by_v, bar_v = of_class * (1 - smoothing) * by_v, of_class * (rel[:, None] * by_v + near_one[:, None])
    ours = focal_loss(z, target, gamma, weight, ignore, reduction, smoothing, dim)
    compare(
        name,
        rng,
        ours,
        loss.reshape(rows),
        bar.reshape(rows),
        reduction,
        counts.sum(),
        (z, classes_back(by_z), classes_back(bar_z)),
        (target, classes_back(by_v), classes_back(bar_v)),
        axis=axis,
    )
    if form != "formula":
        alone = focal_gradient(z, target, gamma, weight, ignore, smoothing, dim)
        check(f"alone, {name}", alone, classes_back(by_z), classes_back(bar_z))


@pytest.mark.parametrize("block", blocks(3))
def test_sigmoid_losses_against_float64(block, form):
    for case in range(CASES):
        seed = [10 + FORMS.index(form), block, case]
        sigmoid_case(f"{form}, seed {seed}:", np.random.default_rng(seed), form)


def sigmoid_case(name, rng, form):
    shape, dtype = random_shape(rng) if rng.random() < 0.95 else (), DTYPES[rng.integers(len(DTYPES))]
    z, work = random_logits(rng, shape, dtype), working(dtype)
    y = rng.random(shape) if rng.random() < 0.4 else rng.integers(2, size=shape)
    kind = rng.choice([dtype, torch.float32, torch.float64, torch.int64, torch.bool])
    target = laid_out(torch.tensor(y if kind.is_floating_point else y > 0.5).to(kind), rng)
    target.requires_grad_(bool(kind.is_floating_point and z.isfinite().all() and rng.random() < 0.3))
    smoothing, reduction = float(rng.choice([0, 0, 0.1, 0.9])), str(rng.choice(["mean", "sum", "none"]))
    gamma, alpha = float(rng.choice(GAMMAS)), rng.choice([None, 0.25, 1e-6, 1 - 1e-6, rng.random()])
    axis = min(1, len(shape) - 1)
    dim, pos_weight = None, None
    if shape and rng.random() < 0.3:
        axis = int(rng.integers(len(shape)))
        dim = axis - len(shape) * int(rng.integers(2))
    if shape and shape[axis] > 1:
        if rng.random() < 0.2:
            gamma = rng.choice(GAMMAS, shape[axis]).tolist()
        if rng.random() < 0.2:
            alpha = rng.uniform(0.01, 0.99, shape[axis]).tolist()
        if rng.random() < 0.2:
            pos_weight = rng.uniform(0.1, 9.0, shape[axis])
            pos_weight = pos_weight.tolist() if rng.random() < 0.5 else torch.tensor(pos_weight)
    if pos_weight is None and rng.random() < 0.2:
        pos_weight = float(rng.uniform(0.1, 9.0))
    ignore = int(rng.choice([-1, -100, 255])) if kind is not torch.bool and rng.random() < 0.3 else None
    if ignore is not None:
        hidden = torch.tensor(rng.random(shape) < rng.choice([0.3, 1.0]))
        with torch.no_grad():
            target = torch.where(hidden, ignore, target).to(kind).requires_grad_(target.requires_grad)
    name += f" {shape} {z.stride()} {dtype} {kind} {gamma=} {alpha=} {smoothing=} {reduction}"
    name += f" {dim=} {pos_weight=} {ignore=}"
    if form == "formula" and not z.isfinite().all():
        return  # its gradients are NaN there

    def of_class(value):
        return np.reshape(np.float64(value), [-1] + [1] * (len(shape) - axis - 1) if np.ndim(value) else ())

    gammas = of_class(gamma)
    of_one = np.float64(1.0) if alpha is None else of_class(alpha)
    of_zero = 1.0 if alpha is None else 1 - of_one
    of_one = of_one if pos_weight is None else of_one * of_class(pos_weight)
    y = target.detach().to(dtype if dtype.itemsize > 2 else torch.float32).double().numpy()
    kept = np.full(shape, True) if ignore is None else y != ignore
    x = np.where(kept, z.detach().double().numpy(), 0.0)
    y = (1 - smoothing) * np.where(kept, y, 0.0) + smoothing / 2
    one, by_one, _ = (of_one * part for part in of_odds(-x, gammas))
    zero, by_zero, _ = (of_zero * part for part in of_odds(x, gammas))
    one, zero, by_one, by_zero = (np.where(kept, part, 0.0) for part in (one, zero, by_one, by_zero))
    loss = times(y, one) + times(1 - y, zero)
    by_z, size = (1 - y) * by_zero - y * by_one, (1 - y) * by_zero + y * by_one
    rel = relative_bar(work, gammas, np.where(np.isfinite(x), np.abs(x), 0.0))

    ours = sigmoid_focal_loss(z, target, gamma, alpha, reduction, smoothing, ignore, pos_weight, dim)
    compare(
        name,
        rng,
        ours,
        loss,
        rel * loss,
        reduction,
        kept.sum(),
        (z, by_z, rel * size),
        (target, (1 - smoothing) * (one - zero), rel * (one + zero)),
    )


# Manners: at gamma 0, what raises in cross entropy raises here, and what does not has the same value


def good_arguments(rng):
    c, n = int(rng.integers(2, 6)), int(rng.integers(5))
    z = torch.tensor(rng.normal(size=[(c,), (n, c), (n, c, 2)][rng.integers(3)]))
    z = z.to(rng.choice([torch.float32, torch.float64]))
    return {
        "input": z,
        "target": z.argmax(axis_of(z)) if rng.random() < 0.6 else z.softmax(axis_of(z)),
        "weight": torch.linspace(0.2, 1.0, c, dtype=z.dtype) if rng.random() < 0.5 else None,
        "ignore_index": int(rng.choice([-100, -1])),
        "reduction": str(rng.choice(["mean", "sum", "none"])),
        "label_smoothing": float(rng.choice([0, 0.1])),
    }


def axis_of(z):
    return min(1, z.ndim - 1)


def labels(last):
    """Return what makes labels of the logits, of which the last is given."""

    def change(z, target, weight):
        y = z.argmax(axis_of(z)).contiguous()
        y.view(-1)[-1:] = last
        return y

    return change


# Other values of arguments, or how to make them of good logits, target and weight
CHANGES: dict[str, list[Any]] = {
    "input": [
        lambda z, t, w: z.long(),
        lambda z, t, w: z.to(torch.complex64),
        lambda z, t, w: z.tolist(),
        lambda z, t, w: z.sum(),
        lambda z, t, w: z * torch.nan,
        lambda z, t, w: z[None],
        lambda z, t, w: z[:1],
    ],
    "target": [
        *(labels(last) for last in (0, 5, -1, -7, -100)),
        None,
        torch.tensor(0),
        lambda z, t, w: t.bool(),
        lambda z, t, w: t.to(torch.complex64),
        lambda z, t, w: t.double(),
        lambda z, t, w: t.tolist(),
        lambda z, t, w: t[None, None],
        lambda z, t, w: torch.stack([t, t]),
    ],
    "weight": [
        None,
        lambda z, t, w: w[:1],
        lambda z, t, w: w.sum(),
        lambda z, t, w: torch.stack([w, w]),
        lambda z, t, w: w.tolist(),
        lambda z, t, w: -w,
        lambda z, t, w: w.to("meta"),
    ],
    "reduction": ["avg", "", None, 1, "Mean"],
    "ignore_index": [0, 1, -7, 1.5, None, "1", True, torch.tensor(1), torch.tensor(1.5), 2**70],
    "label_smoothing": [0, 0.999, 1.1, None, "", "a", [], False, 1j],
}

Z, Y, V, W = (
    torch.tensor([[0.5, -1.0, 2.0]]),
    torch.tensor([1]),
    torch.tensor([[0.2, 0.3, 0.5]]),
    torch.ones(3),
)

# Refused there, and no reason to: the meaning is that of the second arguments.
ACCEPTED = [
    ({"target": Y.int()}, {}),
    ({"target": Y.short()}, {}),
    ({"weight": W.double()}, {"weight": W}),
    ({"weight": W.half()}, {"weight": W}),
    ({"weight": W.long()}, {"weight": W}),
]

# Taken there, but not here. Smoothing below 0 or NaN counts as 0 there, and 1 leaves nothing to learn; a
# target of shape (1) for logits of shape (C) is no batch; a gradient of weights would be lost; no class gives
# NaN there.
REFUSED = [
    ({"label_smoothing": 1.0}, "label_smoothing must be in [0, 1), got 1.0"),
    ({"label_smoothing": -0.1}, "label_smoothing must be in [0, 1), got -0.1"),
    ({"label_smoothing": math.nan}, "label_smoothing must be in [0, 1), got nan"),
    ({"input": Z[0]}, "target must have the shape () (class indices), got (1,)"),
    ({"target": V, "weight": W.clone().requires_grad_()}, "weight must not require a gradient, got a tensor"),
    ({"input": Z[:, :0], "target": V[:, :0]}, "logits must have at least 1 class, got shape (1, 0)"),
]


def outcome(loss, arguments):
    try:
        return loss(**arguments)
    except Exception as error:
        return error


def cross_entropy_here(input, target, **options):
    return focal_loss(input, target, 0.0, **options)


@pytest.mark.parametrize("form", ["kernel", "eager"], indirect=True)
def test_manners_of_cross_entropy(form):
    changes = [(name, change) for name, some in CHANGES.items() for change in some]
    for case in range(600):
        rng = np.random.default_rng([20, case])
        good = arguments = good_arguments(rng)
        for i in [case % len(changes), *rng.integers(len(changes), size=rng.integers(2))]:
            name, change = changes[i]
            if callable(change) and not isinstance(change, torch.Tensor):
                z, w = good["input"], good["weight"]
                w = z.new_ones(z.shape[axis_of(z)]) if w is None else w
                change = change(z, good["target"], w)
            arguments = arguments | {name: change}
        there, here = (outcome(loss, arguments) for loss in (F.cross_entropy, cross_entropy_here))
        message = f"case {case}: {here!r}, not {there!r}, for {arguments}"
        assert isinstance(here, Exception) == isinstance(there, Exception), message
        if not isinstance(here, Exception):
            assert torch.allclose(here.double(), there.double(), 1e-5, 1e-6, equal_nan=True), message


@pytest.mark.parametrize("form", ["kernel", "eager"], indirect=True)
def test_deliberate_differences_from_cross_entropy(form):
    good = {"input": Z, "target": Y}
    for changed, same in ACCEPTED:
        assert isinstance(outcome(F.cross_entropy, good | changed), RuntimeError)
        torch.testing.assert_close(cross_entropy_here(**good | changed), F.cross_entropy(**good | same))
    for changed, text in REFUSED:
        F.cross_entropy(**good | changed)
        with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
            cross_entropy_here(**good | changed)
    # 0 times infinity is 0: a masked class that is no target, or has no weight, does not count
    masked, one_hot = torch.tensor([[1.0, -torch.inf, 2.0]]), torch.tensor([[0.0, 0.0, 1.0]])
    assert F.cross_entropy(masked, one_hot).isnan()
    torch.testing.assert_close(focal_loss(masked, one_hot, 0.0), F.cross_entropy(masked, torch.tensor([2])))
    options = {"weight": torch.tensor([1.0, 0.0, 1.0]), "reduction": "sum"}
    assert F.cross_entropy(masked, Y, **options).isnan()
    assert focal_loss(masked, Y, 0.0, **options) == 0
