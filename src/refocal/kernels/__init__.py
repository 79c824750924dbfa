"""Machine code for arrays in the memory of the CPU, by Numba (``pip install 'refocal[fast]'``).

It knows neither PyTorch nor objectives: kernels take addresses, and numbers that say where entries are. The
modules of this package need Numba; the package itself does not.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["SLACK", "rows"]

SLACK = 0.01
"""How far a target of a binary problem may lie outside 0..1: what rounding in half precision does."""


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
