"""Losses by machine code on the CPU: what kernels of `refocal.kernels` are given, and how they are run."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from refocal._checks import LARGEST_GAMMA
from refocal.kernels import load, rows
from refocal.kernels.pages import in_large_pages
from refocal.torch.eager import KEEP, OF_ROWS, Loss, Number, Sigmoid, Softmax, bad_target

FEW, FEW_OF_PIXELS = KEEP - 1, 160
"""Up to so many classes the kernels of `refocal.kernels.columns` are faster."""

NOWHERE = (0, 0, 0, 0, 0)

LARGEST = torch.finfo(torch.float32).max

FOLDER = str(Path(torch.__file__).parent / "lib")
"""Where PyTorch may have its OpenMP library, in whose threads kernels run."""


_kernels: dict[str, ModuleType] | None = None


def kernels() -> dict[str, ModuleType]:
    """Return the modules of machine code, none where they are not wanted or not to be had."""
    global _kernels
    if _kernels is None:
        own = "hard_columns", "soft_columns", "sigmoid", "machine"
        names = {"hard": "softmax", "soft": "softmax"} | {name: name for name in own}
        found = {name: load(module) for name, module in names.items()}
        _kernels = {} if None in found.values() else found
    return _kernels


class Record(NamedTuple):
    """What a kernel is given, see `softmax`, `hard_columns`, `soft_columns` and `sigmoid` of the kernels."""

    kernel: str
    inputs: list[float]
    owners: list[Tensor]
    """Of the memory that the kernel reads; labels, or targets of a sigmoid loss, come first."""
    z: Tensor
    """The logits as the kernel reads them."""
    n: int
    """How many rows."""


def losses(p: Loss, r: Record, reduction: str, ahead: int = 0) -> tuple[Tensor, Tensor | None, float, bool]:
    """Return a loss by machine code, what is kept for the gradient, and what a mean was divided by.

    The last is whether what is kept is the gradient of the sum of the losses. It is for up to ``ahead``
    logits of few classes, if there is something to divide by.
    """
    each, keep = reduction == "none", r.kernel == "hard" and r.inputs[0] >= KEEP
    both = not each and r.z.numel() <= ahead and r.kernel[4:] == "_columns"
    kept, where, loss = None, NOWHERE, r.z
    if each:
        loss = r.z.new_empty(p.rows) if isinstance(p, Softmax) else in_large_pages(torch.empty_like(r.z))
    if keep:
        kept = r.z.new_empty(r.n, 3)
    elif both:
        kept, where = _place_for_gradient(p, r)
    outputs = [each, loss.data_ptr(), keep, kept.data_ptr() if keep and kept is not None else 0, 1.0, *where]
    total, number = _run(r, [2 if both else 0, *r.inputs, *outputs])
    if each:
        return loss, kept, 1.0, False
    if reduction == "mean":
        total = total / number if number else math.nan
    else:
        number = 1.0
    total = math.copysign(math.inf, total) if abs(total) > LARGEST else total
    both = both and bool(number)
    return r.z.new_full((), total), kept if keep or both else None, number, both


def gradient(p: Loss, kept: Tensor | None, grad: Tensor, count: float) -> Tensor:
    """Return the gradient by the logits by machine code; ``count`` is what a mean was divided by."""
    r = record_of(p)
    result, where = _place_for_gradient(p, r)
    keep = (0, 0) if kept is None or r.kernel != "hard" else (1, _address(r.owners, kept, torch.float32))
    if grad.ndim == 0:
        scale, each = grad.item() / count if count else math.nan, (0, 0)
    elif isinstance(p, Softmax):
        scale, each = 1.0, (1, _address(r.owners, grad, torch.float32))
    else:  # in the order of the logits
        r.owners.append(torch.empty_like(r.z).copy_(grad))
        scale, each = 1.0, (1, r.owners[-1].data_ptr())
    _run(r, [1, *r.inputs, *each, *keep, scale, *where])
    return result


def _place_for_gradient(p: Loss, r: Record) -> tuple[Tensor, tuple[int, int, int, int, int]]:
    result = in_large_pages(torch.empty_like(r.z))
    if isinstance(p, Sigmoid):
        return result, (result.data_ptr(), *NOWHERE[1:])
    if result.stride() == r.z.stride():
        return result, (result.data_ptr(), *r.inputs[2:6])
    if _rows(result, p.dim) is None:
        result = in_large_pages(torch.empty_like(r.z, memory_format=torch.contiguous_format))
    return _readable_rows(result, p.dim)


def _run(r: Record, fields: list[float]) -> tuple[float, float]:
    """Run a kernel on memory that the owners hold until it ends; return its sums."""
    modules, threads = kernels(), torch.get_num_threads()
    run, team = getattr(modules[r.kernel], r.kernel), modules["machine"].openmp(FOLDER)
    try:
        sums: tuple[float, float] = run(r.n, r.z.numel(), threads, team, r.owners, *fields)
    except modules["machine"].BadLabel as error:
        (row,) = error.args
        value = r.owners[0].as_strided((r.n,), (1,))[row].item()  # in the order in which the kernel reads
        if r.kernel == "sigmoid":
            raise bad_target(value, None if math.isnan(r.inputs[-2]) else r.inputs[-2]) from None
        raise IndexError(f"Target {value} is out of bounds.") from None
    return sums


def record_of(p: Loss) -> Record:
    """Return what the kernel for a loss is given."""
    if isinstance(p, Sigmoid):
        return _sigmoid_record(p)
    owners: list[Tensor] = []
    labels = _address(owners, p.target, torch.int64) if p.hard else 0
    z, where = _readable_rows(p.z, p.dim)
    owners.append(z)
    c, gamma = z.shape[p.dim], min(p.gamma, LARGEST_GAMMA)
    inputs: list[float] = [c, *where]
    name = ("hard" if p.hard and not p.smoothing else "soft") + ("_columns" if _in_columns(c, *where) else "")
    if name[:4] == "hard":
        inputs += [labels]
    else:
        where = (0, 0, 0, 1, 0)
        if not p.hard:
            v, where = _readable_rows(p.target.to(torch.float32), p.dim)
            owners.append(v)
        inputs += [p.hard, labels, *where, p.smoothing]
    if name != "hard":  # powers by multiplication are faster
        whole = p.gammas is None and gamma in (0.0, 1.0, 2.0, 3.0)
        inputs += [1, int(gamma) & 1, int(gamma) & 2] if whole else [0, 0, 0]
    gammas = 0
    if p.gammas is not None:
        values = p.gammas.to(torch.float64).clamp(max=LARGEST_GAMMA)
        values = values.broadcast_to(p.rows) if p.kind == OF_ROWS else values
        gammas = _address(owners, values, torch.float64)
    inputs += [gamma, p.kind, gammas]
    inputs += [0, 0] if p.weight is None else [1, _address(owners, p.weight, torch.float32)]
    return Record(name, [*inputs, p.ignore], owners, z, z.numel() // c)


def _in_columns(c: int, at: int, outer: int, of_class: int, inner: int, step: int) -> bool:
    """Return whether the kernels for few classes are faster; few are more where rows are adjacent."""
    return c <= (FEW_OF_PIXELS if (step if inner > 1 else outer) == 1 else FEW)


def _sigmoid_record(p: Sigmoid) -> Record:
    z, y = _readable(p.z, torch.float32), p.target
    weights = [x for x in (p.of_one, p.of_zero) if isinstance(x, Tensor)]
    if not z.is_contiguous() and (weights or torch.empty_like(z).stride() != z.stride()):
        z = z.contiguous()  # it has gaps or overlaps, or the order of its entries matters
    if y.dtype is not torch.float32 or y.stride() != z.stride() or y.is_neg():
        y = torch.empty_like(z).copy_(y)
    gamma = min(float(p.gamma), LARGEST_GAMMA)
    whole = min(3, int(gamma))  # powers by multiplication are the exact ones
    numbers: list[float] = [whole & 1, whole & 2, gamma - whole]
    owners = [y, z]
    if weights:
        numbers += [0.0, 0.0, *_periodic(owners, z, max(x.ndim for x in weights), p.of_one, p.of_zero)]
    else:
        numbers += [p.of_one, p.of_zero, 0, 0, 0]  # type: ignore[list-item]
    numbers += [math.nan if p.ignore is None else p.ignore, p.smoothing]
    return Record("sigmoid", [z.data_ptr(), y.data_ptr(), *numbers], owners, z, z.numel())


def _periodic(owners: list[Tensor], z: Tensor, axes: int, *weights: Number) -> list[int]:
    """Return after how many entries weights of the last axes repeat, and where they are for some more."""
    shape = z.shape[z.ndim - axes :]
    period, fields = shape.numel(), []
    for weight in weights:
        of_shape = weight.expand(shape) if isinstance(weight, Tensor) else z.new_full(shape, weight)
        some = kernels()["sigmoid"].SOME
        repeated = of_shape.reshape(-1).repeat(2 + some // period if period else 0)
        fields.append(_address(owners, repeated, torch.float32))
    return [period, *fields]


def _rows(x: Tensor, dim: int) -> tuple[int, int, int, int] | None:
    if dim and x.ndim == 2:
        outer, of_class = x.stride()
        return outer, of_class, 1, 0
    return rows(x.shape, x.stride(), dim)


def _readable_rows(x: Tensor, dim: int) -> tuple[Tensor, tuple[int, int, int, int, int]]:
    """Return a tensor of rows that machine code can read, and the fields that say where they are."""
    x = _readable(x, torch.float32)
    where = _rows(x, dim)
    if where is None:
        x = x.contiguous()
        where = _rows(x, dim)
        assert where is not None
    return x, (x.data_ptr(), *where)


def _address(owners: list[Tensor], x: Tensor, dtype: torch.dtype) -> int:
    """Return where the numbers of a tensor are, one after the other; who has them is added to the owners."""
    x = _readable(x, dtype)
    owners.append(x if x.is_contiguous() else x.contiguous())
    return owners[-1].data_ptr()


def _readable(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor that machine code can read: hooks on saved tensors may have given another one back."""
    if x.dtype is dtype and x.is_cpu and not (x.is_neg() or x._is_zerotensor()):
        return x
    return x.to("cpu", dtype).resolve_neg().clone()
