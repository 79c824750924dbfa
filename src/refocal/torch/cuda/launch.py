"""From tensors to launches of Triton's kernels: where entries are, and on which device."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from refocal.kernels import rows
from refocal.kernels.cuda.launch import on_device_of


class Rows(NamedTuple):
    """A tensor of rows as kernels read it."""

    tensor: Tensor
    where: tuple[int, int, int, int]
    """The four numbers of `refocal.kernels.rows`, see `entries.base`."""


def as_rows(x: Tensor, dim: int) -> Rows:
    """Return a tensor as rows with their classes along an axis; a copy only where strides cannot say them."""
    x = x.resolve_neg()
    where = rows(x.shape, x.stride(), dim)
    if where is None:
        x = x.contiguous()
        where = rows(x.shape, x.stride(), dim)
        assert where is not None
    return Rows(x, where)


def result_like(z: Tensor, dim: int) -> Rows:
    """Return memory for a result in the layout of z, where it can be written by strides."""
    result = torch.empty_like(z)
    if rows(result.shape, result.stride(), dim) is None:
        result = torch.empty_like(z, memory_format=torch.contiguous_format)
    return as_rows(result, dim)


def in_order(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor of a dtype whose numbers are one after the other."""
    return x.to(dtype).resolve_neg().contiguous()


def of_rows(x: Tensor) -> tuple[Tensor, int]:
    """Return one number for each row in float32, and their stride: 0 if it is the same for all."""
    if all(s == 0 or n == 1 for n, s in zip(x.shape, x.stride(), strict=True)):
        return x.to(torch.float32).resolve_neg(), 0
    return in_order(x, torch.float32), 1


def launch(kernel: Any, rows: int, **args: Any) -> None:
    """Launch a kernel for so many rows, of which each program takes R, on the device of the logits z."""
    if rows:
        with on_device_of(args["z"]):
            kernel[(-(-rows // args["R"]),)](**args)
