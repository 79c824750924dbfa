"""Functions of single numbers for the kernels of this package, of plain arithmetic alone.

Triton's libraries of mathematics differ between devices, and its interpreter has none: what is tested
there is what runs.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def log1p(x):
    """Return log(1 + x) of x > -1/2: what 1 + x loses by rounding is added again."""
    u = 1.0 + x
    return tl.where(x < 1e30, tl.log(u) + (x - (u - 1.0)) / u, tl.log(u))


@triton.jit
def _double_atanh(s):
    """Return 2 atanh(s) of |s| <= 1/3, to the last digit, by its series."""
    t = s * s
    y = 1.0 / 15.0
    y = y * t + 1.0 / 13.0
    y = y * t + 1.0 / 11.0
    y = y * t + 1.0 / 9.0
    y = y * t + 1.0 / 7.0
    y = y * t + 1.0 / 5.0
    y = y * t + 1.0 / 3.0
    return 2.0 * s * (y * t + 1.0)


@triton.jit
def log1p_of_share(x):
    """Return log(1 + x) of 0 <= x <= 1, in half the instructions of `log1p`."""
    return _double_atanh(x / (2.0 + x))


@triton.jit
def log_complement(q):
    """Return log(1 - q) of 0 <= q <= 1/2, exact for small q too."""
    return -_double_atanh(q / (2.0 - q))


@triton.jit
def softplus(x):
    """Return log(1 + e^x)."""
    return log1p_of_share(tl.exp(-tl.abs(x))) + tl.where(x > 0.0, x, 0.0)
