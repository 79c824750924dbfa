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
import operator
import os
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from refocal._arrays import is_real_tensor
from refocal._checks import LARGEST_GAMMA
from refocal.torch import _team
from refocal.torch._fused import Binary, by_autograd

SOME = 1 << 16
"""From so many entries on PyTorch's threads share the work; a row counts for 16 more, for its logarithms."""

MANY = 1 << 20
"""The same for threads of Python, which gain nothing in a shorter time, see `refocal.torch._team`."""

KEEP = 32
"""From so many classes on three numbers a row are kept for the backward pass: a tenth of the logits."""

LARGEST = torch.finfo(torch.float32).max

Plain = Callable[..., Tensor]
Arguments = tuple[Any, ...]


@functools.cache
def kernels() -> ModuleType | None:
    """Return the module of the kernels, or None where they cannot be had."""
    try:
        import numba

        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            return None
        from refocal.torch import _kernels
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        return None
    except Exception as error:  # whatever a Numba that does not fit the other packages raises
        warnings.warn(f"refocal goes without compiled kernels: {error}", RuntimeWarning, stacklevel=2)
        return None
    return _kernels


def fits(x: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether a kernel can read a tensor: plain, contiguous, on the CPU, with values of its own."""
    return (
        is_real_tensor(x)  # first: `torch.compile` cannot read the rest
        and x.dtype is dtype
        and x.is_cpu
        and type(x) in (Tensor, nn.Parameter)
        and x.layout is torch.strided
        and x.is_contiguous()
        and not x.is_neg()
        and not x._is_zerotensor()
        and x.numel() > 0
        # Nobody may be watching: a tracer would see nothing, and tensors made inside would not be real.
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
        and kernels() is not None
    )


def as_label(ignore_index: object) -> int | None:
    """Return an index as a kernel takes it, or None."""
    try:
        index = operator.index(ignore_index)  # type: ignore[arg-type]
    except TypeError:
        return None
    return index if -(2**63) <= index < 2**63 else None


class HardFocalKernel(Function):
    """The loss for integer targets: logits (n, C), target (n,), gamma a number or (n,); see `_reduced`.

    Rows with the label ``ignore`` do not count; None if every row does.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        gamma: float | Tensor,
        ignore: int | None,
        reduction: str,
        plain: Plain,
    ) -> Tensor:
        (n, c), each, keep = logits.shape, reduction == "none", logits.shape[1] >= KEEP
        loss = logits.new_empty(n if each else 0)
        kept = logits.new_empty(n, 3) if keep else loss
        numbers = _gammas(gamma)
        some, label = (False, 0) if ignore is None else (True, ignore)
        z, y, k, to = logits.data_ptr(), target.data_ptr(), kept.data_ptr(), loss.data_ptr()

        def part(work: int, i: int, j: int, sums: int) -> Arguments:
            return work, z, y, i, j, c, *numbers[:3], some, label, each, to, keep, k, sums

        total, count = _run("hard_rows", part, logits, (target, kept, loss, numbers))
        ctx.save_for_backward(logits, target, kept if keep else None)
        ctx.numbers, ctx.label, ctx.plain = numbers, (some, label), plain
        return _reduced(ctx, reduction, loss, total, count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *by_autograd(ctx, (logits,), grads[0]), None, None, None, None, None
        logits, target = _readable(logits), _readable(target, torch.int64)
        kept = None if kept is None else _readable(kept)
        result = _hard_gradient(logits, target, kept, ctx.numbers, ctx.label, _factor(ctx, grads[0]))
        return result, None, None, None, None, None


def hard_slopes(logits: Tensor, target: Tensor, gamma: Tensor) -> Tensor:
    """Return the gradient of the sum of the losses alone, for who does not look at the losses.

    Logits (n, C), target (n,) and gamma (n,) are what `HardFocalKernel` takes, and `fits` says so.
    """
    return _hard_gradient(logits, target, None, _gammas(gamma), (False, 0), (1.0, False, logits))


def _hard_gradient(
    logits: Tensor,
    target: Tensor,
    kept: Tensor | None,
    numbers: tuple[float, bool, int, Tensor | None],
    label: tuple[bool, int],
    factor: tuple[float, bool, Tensor],
) -> Tensor:
    result, c, (scale, each, grad) = torch.empty_like(logits), logits.shape[1], factor
    keep, k = (False, 0) if kept is None else (True, kept.data_ptr())
    z, y, g, to = logits.data_ptr(), target.data_ptr(), grad.data_ptr(), result.data_ptr()

    def part(work: int, i: int, j: int, _: int) -> Arguments:
        return work, z, y, i, j, c, *numbers[:3], *label, keep, k, scale, each, g, to

    _run("hard_gradient", part, logits, (target, kept, grad, result, numbers))
    return result


class SoftFocalKernel(Function):
    """The loss for distributions: logits, targets (n, C), gamma a number; see `_reduced`."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, gamma: float, reduction: str, plain: Plain
    ) -> Tensor:
        each, c = reduction == "none", logits.shape[1]
        loss = logits.new_empty(len(logits) if each else 0)
        ctx.save_for_backward(logits, targets)
        ctx.powers, ctx.plain = _powers(gamma), plain
        z, v, to, powers = logits.data_ptr(), targets.data_ptr(), loss.data_ptr(), ctx.powers

        def part(work: int, i: int, j: int, sums: int) -> Arguments:
            return work, z, v, i, j, c, *powers, each, to, sums

        total, count = _run("soft_rows", part, logits, (targets, loss))
        return _reduced(ctx, reduction, loss, total, count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets = ctx.saved_tensors
        if torch.is_grad_enabled() or ctx.needs_input_grad[1]:
            return *by_autograd(ctx, (logits, targets), grads[0]), None, None, None
        logits, targets = _readable(logits), _readable(targets)
        result, c = torch.empty_like(logits), logits.shape[1]
        scale, each, grad = _factor(ctx, grads[0])
        z, v, g, to = logits.data_ptr(), targets.data_ptr(), grad.data_ptr(), result.data_ptr()
        powers = ctx.powers

        def part(work: int, i: int, j: int, _: int) -> Arguments:
            return work, z, v, i, j, c, *powers, scale, each, g, to

        _run("soft_gradient", part, logits, (targets, grad, result))
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
        z, y, to, numbers = logits.data_ptr(), targets.data_ptr(), loss.data_ptr(), ctx.numbers

        def part(work: int, i: int, j: int, sums: int) -> Arguments:
            return work, z, y, i, j, *numbers, each, to, sums

        total, count = _run("binary_rows", part, logits.view(-1), (targets, loss))
        return _reduced(ctx, reduction, loss, total, count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets = ctx.saved_tensors
        if torch.is_grad_enabled() or ctx.needs_input_grad[1]:
            return *by_autograd(ctx, (logits, targets), grads[0]), None, None, None
        logits, targets = _readable(logits), _readable(targets)
        result = torch.empty_like(logits)
        scale, each, grad = _factor(ctx, grads[0])
        z, y, g, to = logits.data_ptr(), targets.data_ptr(), grad.data_ptr(), result.data_ptr()
        numbers = ctx.numbers

        def part(work: int, i: int, j: int, _: int) -> Arguments:
            return work, z, y, i, j, *numbers, scale, each, g, to

        _run("binary_gradient", part, logits.view(-1), (targets, grad, result))
        return result, None, None, None, None


def _powers(gamma: float) -> tuple[int, int, float]:
    """Return gamma as 0 or 1, 0 or 2, and a rest: powers by multiplication are the exact ones."""
    gamma = min(gamma, LARGEST_GAMMA)
    whole = min(3, int(gamma))
    return whole & 1, whole & 2, gamma - whole


def _gammas(gamma: float | Tensor) -> tuple[float, bool, int, Tensor | None]:
    """Return gamma as a number, whether each row has its own, their address, and what owns them."""
    if isinstance(gamma, Tensor):
        rows = gamma.to(torch.float64).clamp(max=LARGEST_GAMMA).contiguous()
        return 0.0, True, rows.data_ptr(), rows
    return min(gamma, LARGEST_GAMMA), False, 0, None


def _reduced(ctx: Any, reduction: str, loss: Tensor, total: float, count: float) -> Tensor:
    """Return each loss ("none"), their sum, or their mean (NaN of no rows), and keep how many they are."""
    ctx.count = count if reduction == "mean" else 1.0
    if reduction == "none":
        return loss
    if reduction == "mean":
        total = total / count if count else math.nan
    return loss.new_full((), math.copysign(math.inf, total) if abs(total) > LARGEST else total)


def _readable(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor that a kernel can read: hooks on saved tensors may have given another one back."""
    if x.dtype is dtype and x.is_cpu and x.is_contiguous() and not (x.is_neg() or x._is_zerotensor()):
        return x
    return x.to("cpu", dtype).resolve_neg().clone(memory_format=torch.contiguous_format)


def _factor(ctx: Any, grad: Tensor) -> tuple[float, bool, Tensor]:
    """Return what the gradient is multiplied by: a number, and whether each row has one of its own too."""
    if grad.ndim == 0 and ctx.count != 0:
        return grad.item() / ctx.count, False, grad
    if grad.ndim == 0:
        return 0.0, False, grad
    return 1.0, True, _readable(grad)


def _the(name: str) -> Callable[..., int]:
    code: Callable[..., int] = getattr(kernels(), name)()
    return code


def _run(
    name: str, part: Callable[[int, int, int, int], Arguments], rows: Tensor, others: tuple[Any, ...]
) -> tuple[float, float]:
    """Run a kernel over all rows, in parts where that is faster; return the two sums that it adds up.

    Args:
        name: Of the kernel.
        part: Gives its arguments from an address of memory to work in, the first row, the one after the last,
            and the address of two sums.
        rows: The logits.
        others: What else has memory that the kernel reads or writes; for the kernels that read labels they
            come first.

    Raises:
        IndexError: If a label is none of the classes.
    """
    code, edges = _the(name), _edges(rows)
    if len(edges) == 2:
        pair, scratch = _Pair(), _scratch(rows)  # which have to live until the kernel has ended
        _check((code(*part(scratch.data_ptr(), 0, edges[1], ctypes.addressof(pair))),), others)
        return pair[0], pair[1]
    pairs = [_Pair() for _ in edges[1:]]
    spans = [(i, j, ctypes.addressof(p)) for (i, j), p in zip(itertools.pairwise(edges), pairs, strict=True)]
    if _team.openmp() is None:
        returned = _together(lambda work, *span: code(*part(work, *span)), rows, spans, (others, pairs))
    else:
        scratches = [_scratch(rows) for _ in spans]
        returned = _team.run(
            code, [part(s.data_ptr(), *span) for s, span in zip(scratches, spans, strict=True)]
        )
    _check(returned, others)
    return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)


_Pair = ctypes.c_double * 2


def _check(returned: Iterable[int], others: tuple[Any, ...]) -> None:
    """Raise for a label that a kernel cannot take."""
    for number in returned:
        if number > 0:
            raise IndexError(f"Target {int(others[0][number - 1])} is out of bounds.")


def _scratch(rows: Tensor) -> Tensor:
    """Return memory for a kernel to work in."""
    size: int = kernels().scratch_size(rows.shape[-1] if rows.ndim == 2 else 1)  # type: ignore[union-attr]
    return rows.new_empty(size)


def _edges(rows: Tensor) -> list[int]:
    """Return where the parts of the rows begin and end."""
    n, entries = rows.shape[0], rows.numel() + 16 * rows.shape[0]
    if entries < SOME or n < 2 or (threads := torch.get_num_threads()) == 1:
        return [0, n]
    if _team.openmp() is not None:
        count = min(threads, n)
    elif entries < MANY:
        return [0, n]
    else:
        count = min(8 * threads, n)  # each thread takes the next one that is left
    return [n * k // count for k in range(count + 1)]


def _together(
    work: Callable[..., int], rows: Tensor, parts: Iterable[tuple[int, ...]], owners: object
) -> list[int]:
    """Do the parts in threads of Python, this one among them; kernels hold no lock. Return what they return.

    Each thread takes the next part that is left, since some may be slower than others. ``owners`` have the
    memory that the kernels write to: every thread holds on to them, whatever becomes of this one.
    """
    left = iter(parts)
    returned: list[int] = []

    def take(owners: object = owners) -> None:
        scratch = _scratch(rows)
        for part in left:
            returned.append(work(scratch.data_ptr(), *part))

    others: list[Future[None]] = []
    try:
        for _ in range(torch.get_num_threads() - 1):
            others.append(_pool(torch.get_num_threads() - 1).submit(take))
    except RuntimeError:  # no thread starts any more when Python ends
        pass
    try:
        take()
    finally:
        for _ in left:  # after an error nobody starts on what is left
            pass
        wait(others)
    for other in others:
        other.result()
    return returned


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="refocal")


if hasattr(os, "register_at_fork"):  # a forked process has none of the threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
