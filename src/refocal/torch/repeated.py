"""Losses of the same kind again and again, as in a training loop: what was found out is not found out anew.

A loss of a hundred rows takes less time than the checks before it. What they look at is the kind of
arguments: shapes, strides, dtypes, numbers. Values are looked at by the kernel, every time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refocal.torch import cpu, dispatch
from refocal.torch.eager import Softmax

MOST = 256
"""So many kinds are remembered."""

_known: dict[object, tuple[Any, str, list[float], int, int] | None] = {}
"""The numbers of a `Softmax`, and what its `Record` is made of: the kernel, its inputs, which of these is the
address of the targets, how many rows. None if the kernel needs copies of logits or targets."""


def kind_of(
    logits: Tensor, target: Tensor, gamma: Any, weight: Any, ignore: Any, smoothing: Any, dim: Any
) -> tuple[Any, ...] | None:
    """Return all that is checked of arguments for a kernel; None for others, and for those with weights.

    Types count: True equals 1.0, and is no gamma.
    """
    numbers = type(gamma) is float and type(ignore) is int and type(smoothing) is float
    # Half precision is copied first: the kernel would not read the memory of the logits.
    if logits.dtype is torch.float32 and weight is None and numbers and (dim is None or type(dim) is int):
        if dispatch.choose(logits, target) == "kernel":
            shapes = logits.shape, logits.stride(), target.shape, target.stride()
            return *shapes, target.dtype, gamma, ignore, smoothing, dim
    return None


def loss_again(kind: object, z: Tensor, target: Tensor, reduction: str) -> Tensor | None:
    """Return the loss of arguments of a kind that was remembered, None if it was not."""
    known = _known.get(kind)
    if known is None or z.is_neg() or target.is_neg():
        return None
    numbers, kernel, inputs, at, n = known
    inputs = inputs.copy()
    inputs[1], inputs[at] = z.data_ptr(), target.data_ptr()
    p = Softmax(z, target, None, None, *numbers)
    return dispatch.apply(p, cpu.Record(kernel, inputs, [target, z], z, n), reduction)


def remember(kind: object, p: Softmax, target: Tensor) -> None:
    """Remember a kind whose arguments were checked, the target as it was given."""
    if kind in _known:
        return
    if len(_known) >= MOST:
        _known.clear()
    r, at = cpu.record_of(p), 8 if not p.hard else 7 if p.smoothing else 6  # the fields of the kernels
    as_given = all(x is p.z or x is target for x in r.owners)
    _known[kind] = (p[4:], r.kernel, r.inputs, at, r.n) if as_given else None
