"""Machine code for arrays in the memory of the CPU, by Numba (``pip install 'refocal[fast]'``).

It knows neither PyTorch nor objectives: kernels take addresses, and numbers that say where entries are. The
modules of this package need Numba; the package itself does not.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from collections.abc import Sequence
from typing import Any

__all__ = ["SLACK", "load", "rows", "wanted"]

SWITCH = {"off": (), "cpu": ("cpu",), "cuda": ("cuda",), "all": ("cpu", "cuda")}
"""What each value of REFOCAL_KERNELS asks for: machine code for the CPU, kernels for other devices."""

SLACK = 0.01
"""How far a target of a binary problem may lie outside 0..1: what rounding in half precision does."""


def load(name: str) -> Any:
    """Return a module of this package, or None where machine code is not wanted or not to be had.

    Raises:
        ValueError: If REFOCAL_KERNELS is none of its values.
    """
    return importlib.import_module(f"refocal.kernels.{name}") if _usable() else None


@functools.cache
def wanted(kind: str) -> bool:
    """Whether REFOCAL_KERNELS asks for kernels of a kind: "cpu" by Numba, or "cuda" by Triton.

    Raises:
        ValueError: If REFOCAL_KERNELS is none of its values.
    """
    switch = os.environ.get("REFOCAL_KERNELS", "all")
    if switch not in SWITCH:
        raise ValueError(f"REFOCAL_KERNELS must be 'off', 'cpu', 'cuda' or 'all', got {switch!r}")
    return kind in SWITCH[switch]


@functools.cache
def _usable() -> bool:
    if not wanted("cpu"):
        return False
    try:
        import numba

        if numba.config.DISABLE_JIT:
            return False
        importlib.import_module("refocal.kernels.machine")
    except Exception as error:  # whatever a Numba that does not fit the other packages raises
        if not (isinstance(error, ModuleNotFoundError) and error.name == "numba"):  # an extra, not asked for
            warnings.warn(f"refocal goes without compiled kernels: {error}", RuntimeWarning, stacklevel=5)
        return False
    return True


def rows(shape: Sequence[int], strides: Sequence[int], axis: int) -> tuple[int, int, int, int] | None:
    """Return where entries of an array with its classes along an axis are; None if that takes more numbers.

    Row r and class k are at ``outer * (r // inner) + step * (r % inner) + class * k``, and the four numbers
    are ``outer, class, inner, step``.
    """
    if 0 in shape:
        return 0, 1, 1, 0
    if min(strides, default=0) < 0:  # kernels count upwards
        return None
    outer = _joined(shape[:axis], strides[:axis])
    inner = _joined(shape[axis + 1 :], strides[axis + 1 :])
    if outer is None or inner is None:
        return None
    if outer[0] == 1 or inner[0] == 1 or outer[1] == inner[0] * inner[1]:
        step = inner[1] if outer[0] == 1 or inner[0] > 1 else outer[1]
        return step, strides[axis], 1, 0
    return outer[1], strides[axis], inner[0], inner[1]


def _joined(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int] | None:
    """Return axes as one, by its length and stride; None if they are not evenly spaced."""
    length, stride = 1, 0
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n == 1:
            continue
        if length > 1 and s != length * stride:
            return None
        length, stride = length * n, stride if length > 1 else s
    return length, stride
