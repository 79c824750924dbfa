"""The losses through compiled kernels, where Numba is installed (``pip install 'refocal[fast]'``).

A kernel reads the logits once, keeps next to nothing for the backward pass and adds the losses up in double
precision. It takes float32 on the CPU; everything else, and derivatives of higher order, goes the other way.
Numba's own switch NUMBA_DISABLE_JIT turns kernels off.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from refocal._arrays import is_real_tensor
from refocal.torch._fused import Binary, by_autograd

MANY = 1 << 20
"""From so many entries on several threads share the work; a row counts for 16 more, for its logarithms.

The threads of PyTorch stay awake for some milliseconds after their work and hold the cores meanwhile, so that
other threads gain nothing in a shorter time.
"""

KEEP = 32
"""From so many classes on three numbers a row are kept for the backward pass: a tenth of the logits."""

Plain = Callable[..., Tensor]


@functools.cache
def kernels() -> ModuleType | None:
    """Return the module of the kernels, or None where they cannot be had."""
    try:
        import numba

        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            return None
        from refocal.torch import _kernels
    except ImportError as error:
        if error.name != "numba":
            warnings.warn(f"refocal goes without compiled kernels: {error}", RuntimeWarning, stacklevel=2)
        return None
    return _kernels


def fits(x: Tensor, *, labels: bool = False) -> bool:
    """Whether a kernel can read a tensor: plain, contiguous, on the CPU, float32 or int64 labels."""
    return (
        x.dtype is (torch.int64 if labels else torch.float32)
        and x.device.type == "cpu"
        and type(x) in (Tensor, nn.Parameter)
        and x.layout is torch.strided
        and x.is_contiguous()
        and x.numel() > 0
        and is_real_tensor(x)
        and kernels() is not None
    )


class HardFocalKernel(Function):
    """The loss for integer targets: logits (n, C), target (n,), gamma a number; see `_reduced`."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, gamma: float, ignore: int, reduction: str, plain: Plain
    ) -> Tensor:
        (n, c), each = logits.shape, reduction == "none"
        keep = c >= KEEP
        loss = logits.new_empty(n if each else 0)
        kept = logits.new_empty(n, 3) if keep else loss
        z, y, k, to = logits.data_ptr(), target.data_ptr(), kept.data_ptr(), loss.data_ptr()
        code = _the("hard_rows")

        def part(i: int, j: int, sums: int) -> None:
            bad = code(z, y, i, j, c, gamma, ignore, each, to, keep, k, sums)
            if bad:
                raise IndexError(f"Target {int(target[bad - 1])} is out of bounds.")

        total, count = _added(logits, part)
        ctx.save_for_backward(logits, target, kept if keep else None)
        ctx.gamma, ctx.ignore, ctx.plain = gamma, ignore, plain
        return _reduced(ctx, reduction, loss, total, count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *by_autograd(ctx, (logits,), grads[0]), None, None, None, None, None
        result = torch.empty_like(logits)
        scale, each, grad = _factor(ctx, grads[0])
        z, y, g, to = logits.data_ptr(), target.data_ptr(), grad.data_ptr(), result.data_ptr()
        keep, k = (False, 0) if kept is None else (True, kept.data_ptr())
        code, c, gamma, ignore = _the("hard_gradient"), logits.shape[1], ctx.gamma, ctx.ignore
        _in_parts(logits, lambda i, j: code(z, y, i, j, c, gamma, ignore, keep, k, scale, each, g, to))
        return result, None, None, None, None, None


class SoftFocalKernel(Function):
    """The loss for distributions: logits, targets (n, C), gamma a number; see `_reduced`."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, gamma: float, reduction: str, plain: Plain
    ) -> Tensor:
        each = reduction == "none"
        loss = logits.new_empty(len(logits) if each else 0)
        ctx.save_for_backward(logits, targets)
        ctx.powers, ctx.plain = _powers(gamma), plain
        z, v, to = logits.data_ptr(), targets.data_ptr(), loss.data_ptr()
        code, c = _the("soft_rows"), logits.shape[1]
        total, count = _added(logits, lambda i, j, sums: code(z, v, i, j, c, *ctx.powers, each, to, sums))
        return _reduced(ctx, reduction, loss, total, count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets = ctx.saved_tensors
        if torch.is_grad_enabled() or ctx.needs_input_grad[1]:
            return *by_autograd(ctx, (logits, targets), grads[0]), None, None, None
        result = torch.empty_like(logits)
        z, v, to = logits.data_ptr(), targets.data_ptr(), result.data_ptr()
        scale, each, grad = _factor(ctx, grads[0])
        code, c = _the("soft_gradient"), logits.shape[1]
        _in_parts(logits, lambda i, j: code(z, v, i, j, c, *ctx.powers, scale, each, grad.data_ptr(), to))
        return result, None, None, None, None


class BinaryFocalKernel(Function):
    """The loss of binary problems: logits and targets of one shape; see `_reduced`."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, spec: Binary, reduction: str, plain: Plain
    ) -> Tensor:
        each = reduction == "none"
        loss = torch.empty_like(logits) if each else logits.new_empty(0)
        ctx.save_for_backward(logits, targets)
        ctx.numbers, ctx.plain = (*_powers(spec.gamma), spec.of_one, spec.of_zero), plain
        z, y, to = logits.data_ptr(), targets.data_ptr(), loss.data_ptr()
        code = _the("binary_rows")
        total, count = _added(
            logits.view(-1), lambda i, j, sums: code(z, y, i, j, *ctx.numbers, each, to, sums)
        )
        return _reduced(ctx, reduction, loss, total, count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets = ctx.saved_tensors
        if torch.is_grad_enabled() or ctx.needs_input_grad[1]:
            return *by_autograd(ctx, (logits, targets), grads[0]), None, None, None
        result = torch.empty_like(logits)
        z, y, to = logits.data_ptr(), targets.data_ptr(), result.data_ptr()
        scale, each, grad = _factor(ctx, grads[0])
        code = _the("binary_gradient")
        _in_parts(
            logits.view(-1), lambda i, j: code(z, y, i, j, *ctx.numbers, scale, each, grad.data_ptr(), to)
        )
        return result, None, None, None, None


def _powers(gamma: float) -> tuple[int, int, float]:
    """Return gamma as 0 or 1, 0 or 2, and a rest: powers by multiplication are the exact ones."""
    whole = min(3, int(gamma))
    return whole & 1, whole & 2, gamma - whole


def _reduced(ctx: Any, reduction: str, loss: Tensor, total: float, count: float) -> Tensor:
    """Return each loss ("none"), their sum, or their mean (NaN of no rows), and keep how many they are."""
    ctx.count = count if reduction == "mean" else 1.0
    if reduction == "none":
        return loss
    if reduction == "mean":
        total = total / count if count else math.nan
    return loss.new_full((), total)


def _factor(ctx: Any, grad: Tensor) -> tuple[float, bool, Tensor]:
    """Return what the gradient is multiplied by: a number, and whether each row has one of its own too."""
    if grad.ndim == 0:
        return (grad.item() / ctx.count if ctx.count else 0.0), False, grad
    return 1.0, True, grad.contiguous()


def _the(name: str) -> Callable[..., int]:
    code: Callable[..., int] = getattr(kernels(), name)()
    return code


_Pair = ctypes.c_double * 2


def _added(rows: Tensor, work: Callable[[int, int, int], object]) -> tuple[float, float]:
    """Do work in parts, each with an address for two sums of its own; return the sums of all."""
    edges = _edges(rows)
    sums = [_Pair() for _ in edges[1:]]
    if len(sums) == 1:
        work(0, edges[1], ctypes.addressof(sums[0]))
        return sums[0][0], sums[0][1]
    _together(
        work, [(i, j, ctypes.addressof(s)) for i, j, s in zip(edges[:-1], edges[1:], sums, strict=True)]
    )
    return sum(pair[0] for pair in sums), sum(pair[1] for pair in sums)


def _in_parts(rows: Tensor, work: Callable[[int, int], object]) -> None:
    edges = _edges(rows)
    if len(edges) == 2:
        work(0, edges[1])
    else:
        _together(work, list(itertools.pairwise(edges)))


def _edges(rows: Tensor) -> list[int]:
    """Return where the parts of the rows begin and end."""
    n = rows.shape[0]
    if rows.numel() + 16 * n < MANY or n < 2 or (threads := torch.get_num_threads()) == 1:
        return [0, n]
    count = min(8 * threads, n)
    return [n * k // count for k in range(count + 1)]


def _together(work: Callable[..., object], parts: Iterable[tuple[int, ...]]) -> None:
    """Do the parts in several threads, this one among them. Kernels hold no lock, so threads of Python do.

    Each thread takes the next part that is left, since some may be slower than others.
    """
    left = iter(parts)

    def take() -> None:
        for part in left:
            work(*part)

    threads = torch.get_num_threads() - 1
    others = [_pool(threads).submit(take) for _ in range(threads)]
    try:
        take()
    finally:
        wait(others)  # also after Ctrl-C: they write into memory that is freed when this returns
    for other in others:
        other.result()


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="refocal")


if hasattr(os, "register_at_fork"):  # a forked process has none of the threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
