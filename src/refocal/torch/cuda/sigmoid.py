"""The sigmoid focal loss and its gradient by Triton: one read of logits and targets each, sums by blocks.

Entries are taken in the order of memory. A target that is none gives NaN: a look at it would wait.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from refocal._checks import LARGEST_GAMMA
from refocal.kernels import SLACK
from refocal.kernels.cuda.launch import on_device_of
from refocal.kernels.cuda.numbers import log1p_of_share
from refocal.torch.eager import Number, Sigmoid

BLOCK = 1024
"""How many entries a program does."""

LOW, HIGH = tl.constexpr(-SLACK), tl.constexpr(1 + SLACK)
"""Between them a target counts as one."""

LARGEST = tl.constexpr(3.4e38)

NARROW = 1 << 31
"""From so many entries on they are counted in 64 bits."""


@triton.jit
def _parts(z):
    """Return p and 1 - p of p = sigmoid(z), and -log p and -log(1 - p)."""
    e = tl.exp(-tl.abs(z))
    log = log1p_of_share(e)
    near = 1.0 / (1.0 + e)
    far = e * near
    up = z > 0.0
    p, miss = tl.where(up, near, far), tl.where(up, far, near)
    return p, miss, log + tl.where(z < 0.0, -z, 0.0), log + tl.where(up, z, 0.0)


@triton.jit
def _power(x, neg_log_x, rest, WHOLE: tl.constexpr, REST: tl.constexpr):
    """Return x^(WHOLE + rest) for x in [0, 1]: products are exact where x is small."""
    if WHOLE == 0:
        y = tl.where(x == x, 1.0, x)
    elif WHOLE == 1:
        y = x
    elif WHOLE == 2:
        y = x * x
    else:
        y = x * x * x
    if REST:
        y *= tl.exp(-rest * tl.where(neg_log_x > LARGEST, LARGEST, neg_log_x))
    return y


@triton.jit
def _entries(z_at, y_at, i, there, ignore, share, even):
    """Return logits, targets and smoothed targets, NaN for one that is none, and what counts."""
    z = tl.load(z_at + i, mask=there, other=0.0).to(tl.float32)
    y = tl.load(y_at + i, mask=there, other=0).to(tl.float32)
    v = tl.where((y >= LOW) & (y <= HIGH), share * y + even, float("nan"))
    return z, v, there & (y != ignore)


@triton.jit
def _where(n, BLOCK: tl.constexpr, FAR: tl.constexpr):
    program = tl.program_id(0)
    if FAR:
        program = program.to(tl.int64)
    i = program * BLOCK + tl.arange(0, BLOCK)
    return i, i < n


@triton.jit
def _of_class(at, number, i, apart, classes, OWN: tl.constexpr):
    """Return a number, or for each entry that of its class."""
    if OWN:
        number = tl.load(at + (i // apart) % classes)
    return number


@triton.jit
def sigmoid(
    z_at,
    y_at,
    each_at,
    sums_at,
    result_at,
    ones_at,
    zeros_at,
    rests_at,
    n,
    rest,
    of_one,
    of_zero,
    ignore,
    share,
    even,
    apart,
    classes,
    GRADIENT: tl.constexpr,
    WHOLE: tl.constexpr,
    REST: tl.constexpr,
    OWN: tl.constexpr,
    EACH: tl.constexpr,
    FAR: tl.constexpr,
    VEC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The losses of binary problems, or if GRADIENT their gradient by the logits.

    Args:
        z_at: Logits.
        y_at: Targets, of any dtype.
        each_at: Where the losses go, if EACH; what the gradient is multiplied by, one number or if EACH many.
        sums_at: If not, where each program writes their sum, and behind all sums how many entries count.
        result_at: Where the gradient goes.
        ones_at: If OWN, the weight of y = 1 for each class; float32, as the next two.
        zeros_at: If OWN, that of y = 0.
        rests_at: If OWN, what gamma is beyond WHOLE.
        n: How many entries.
        rest: If not OWN, see above, and so on.
        of_one: See above.
        of_zero: See above.
        ignore: The target to ignore, NaN for none.
        share: What is left of a target by label smoothing.
        even: What is added to it.
        apart: How far it is from a class to the next, in entries.
        classes: How many classes.
        GRADIENT: See above.
        WHOLE: The part of gamma for which powers are products.
        REST: Whether there is another part.
        OWN: Whether each class has numbers of its own.
        EACH: Whether each entry has a loss, or a factor, of its own; if not, there is one for all.
        FAR: Whether n needs 64 bits.
        VEC: Divides n: so many are read at once.
        BLOCK: How many entries a program does.
    """
    n = n // VEC * VEC
    i, there = _where(n, BLOCK, FAR)
    z, v, counts = _entries(z_at, y_at, i, there, ignore, share, even)
    p, miss, neg_log_p, neg_log_q = _parts(z)
    rest = _of_class(rests_at, rest, i, apart, classes, OWN)
    one = v * _power(miss, neg_log_q, rest, WHOLE, REST)
    zero = (1.0 - v) * _power(p, neg_log_p, rest, WHOLE, REST)
    if GRADIENT:
        gamma = WHOLE + rest
        # p log p is 0 at p = 0, also where the logit is infinite
        one *= miss + gamma * tl.where(p > 0.0, p * neg_log_p, 0.0)
        zero *= p + gamma * tl.where(miss > 0.0, miss * neg_log_q, 0.0)
    else:
        one *= neg_log_p
        zero *= neg_log_q
    one *= _of_class(ones_at, of_one, i, apart, classes, OWN)
    zero *= _of_class(zeros_at, of_zero, i, apart, classes, OWN)
    # A logit may be infinite: nothing of the target that it excludes may be left.
    one, zero = tl.where(v != 0.0, one, 0.0), tl.where(v != 1.0, zero, 0.0)
    if GRADIENT:
        if EACH:
            by = tl.load(each_at + i, mask=there, other=0.0).to(tl.float32)
        else:
            by = tl.load(each_at).to(tl.float32)
        slope = tl.where(counts, (zero - one) * by, 0.0)
        tl.store(result_at + i, slope.to(result_at.dtype.element_ty), mask=there)
    else:
        loss = tl.where(counts, one + zero, 0.0)
        if EACH:
            tl.store(each_at + i, loss, mask=there)
        else:
            tl.store(sums_at + tl.program_id(0), tl.sum(loss))
            tl.store(sums_at + tl.num_programs(0) + tl.program_id(0), tl.sum(counts.to(tl.float32)))


# From tensors to launches


def losses(p: Sigmoid, reduction: str) -> tuple[Tensor, Tensor | None]:
    """Return a loss in float32, and what a mean was divided by."""
    z, y = _in_memory(p)
    if reduction == "none":
        loss = torch.empty_like(z, dtype=torch.float32)
        _launch(p, z, y, loss, None, None, EACH=True)
        return loss, None
    programs = -(-z.numel() // BLOCK)
    sums = z.new_empty((2, programs), dtype=torch.float32)
    _launch(p, z, y, None, sums, None, EACH=False)
    total, number = sums.sum(1).unbind()
    return (total, None) if reduction == "sum" else (total / number, number)


def gradient(p: Sigmoid, kept: None, grad: Tensor) -> Tensor:
    """Return the gradient by the logits, in their dtype, of losses times grad: a number or one for each."""
    (z, y), grad = _in_memory(p), grad.resolve_neg()
    result = torch.empty_like(z)
    if not z.numel():
        return result
    each = any(s and n > 1 for n, s in zip(grad.shape, grad.stride(), strict=True))
    if each:
        by = grad if grad.stride() == z.stride() else torch.empty_like(z, dtype=grad.dtype).copy_(grad)
    else:  # a number, or one that was expanded
        by = grad.as_strided((), ()).to(torch.float32)
    _launch(p, z, y, by, None, result, EACH=each, GRADIENT=True)
    return result


def _launch(
    p: Sigmoid, z: Tensor, y: Tensor, *places: Tensor | None, EACH: bool, GRADIENT: bool = False
) -> None:
    n, eps = z.numel(), p.smoothing
    if not n:
        return
    tensors = [x for x in (p.gamma, p.of_one, p.of_zero) if isinstance(x, Tensor)]
    whole, rest, one, zero, apart, classes = 0, 0.0, 0.0, 0.0, 1, 1
    tables: list[Tensor | None] = [None] * 3
    if tensors:
        axes = max(x.ndim for x in tensors)
        if axes:
            apart, classes = z.stride(z.ndim - axes), z.shape[z.ndim - axes]
        gamma = p.gamma.clamp(max=LARGEST_GAMMA) if isinstance(p.gamma, Tensor) else 0.0
        tables = [_table(x, z, classes) for x in (p.of_one, p.of_zero, gamma)]
    if not isinstance(p.gamma, Tensor):
        gamma = min(float(p.gamma), LARGEST_GAMMA)
        whole = min(3, int(gamma))
        rest = gamma - whole
        if tensors:
            tables[2] = _table(rest, z, classes)
    if not tensors:
        one, zero = float(p.of_one), float(p.of_zero)
    with on_device_of(z):
        sigmoid[(-(-n // BLOCK),)](
            z,
            y,
            *places,
            *tables,
            n,
            rest,
            one,
            zero,
            math.nan if p.ignore is None else p.ignore,
            1 - eps,
            eps / 2,
            apart,
            classes,
            GRADIENT=GRADIENT,
            WHOLE=whole,
            REST=bool(rest) or isinstance(p.gamma, Tensor),
            OWN=bool(tensors),
            EACH=EACH,
            FAR=n >= NARROW,
            VEC=math.gcd(n, 16),
            BLOCK=BLOCK,
            num_warps=4,
        )


def _in_memory(p: Sigmoid) -> tuple[Tensor, Tensor]:
    """Return logits without gaps, and targets in the same order of memory."""
    z, y = p.z.resolve_neg(), p.target.resolve_neg()
    if torch.empty_like(z, device="meta").stride() != z.stride():  # it has gaps or overlaps
        z = z.contiguous()
    if y.dtype is torch.bool:
        y = y.view(torch.uint8)
    if y.stride() != z.stride():
        y = torch.empty_like(z, dtype=y.dtype).copy_(y)
    return z, y


def _table(value: Number, z: Tensor, classes: int) -> Tensor:
    """Return one number for each class."""
    if not isinstance(value, Tensor):
        return z.new_full((classes,), value, dtype=torch.float32)
    return value.to(torch.float32).reshape(-1).expand(classes).contiguous()
