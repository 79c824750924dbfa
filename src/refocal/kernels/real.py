"""Exponential and logarithm in either precision, for loops that are vectorised.

In single precision they are those of `refocal.kernels.entries`; in double precision polynomials that are
right to a few units of the last digit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from refocal.kernels import entries as e
from refocal.kernels.entries import F, entry, exactly, larger, wide

I64, F64 = ir.IntType(64), ir.DoubleType()

SHIFT = float(3 << 51)
"""So large that a sum with it is rounded to a whole number, which then is in its last bits."""

TOO_SMALL = -708.3
"""The exponential of anything below counts as 0: it is not a normal number."""

TINY, TINY32 = float(np.finfo(np.float64).tiny), F(np.finfo(F).tiny)

LOG2_HIGH, LOG2_LOW = 0.6931471803691238, 1.9082149292705877e-10
"""log 2 in two parts: the product of the first with a number of 20 bits is exact."""

INLINE = {"error_model": "numpy", "fastmath": {"contract"}, "forceinline": True}


@intrinsic
def two_to_the(typingctx: Any, shifted: Any) -> Any:
    """Return 2^n for `SHIFT` + n with a whole number n in [-1022, 1023], by its bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.shl(builder.bitcast(args[0], I64), I64(52))
        return builder.bitcast(builder.add(bits, I64(1023 << 52)), F64)

    return types.float64(types.float64), codegen


@intrinsic
def exponent(typingctx: Any, x: Any) -> Any:
    """Return n of x = 2^n m with m in [1, 2), for a normal x > 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # A whole number below 2^52 as the last bits of 2^52: AVX2 has no conversion of 64 bits.
        bits = builder.lshr(builder.bitcast(args[0], I64), I64(52))
        whole = builder.bitcast(builder.or_(bits, I64(0x4330000000000000)), F64)
        return builder.fsub(whole, F64(float((1 << 52) + 1023)))

    return types.float64(types.float64), codegen


@intrinsic
def mantissa(typingctx: Any, x: Any) -> Any:
    """Return m of x = 2^n m with m in [1, 2), for a normal x > 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.and_(builder.bitcast(args[0], I64), I64((1 << 52) - 1))
        return builder.bitcast(builder.or_(bits, I64(0x3FF0000000000000)), F64)

    return types.float64(types.float64), codegen


@entry
def _exp64(x):
    shifted = x * 1.4426950408889634 + SHIFT
    n = shifted - SHIFT
    r = (x - n * LOG2_HIGH) - n * LOG2_LOW
    p = 1 / 479001600  # the series: its next term is below 2e-16
    p = p * r + 1 / 39916800
    p = p * r + 1 / 3628800
    p = p * r + 1 / 362880
    p = p * r + 1 / 40320
    p = p * r + 1 / 5040
    p = p * r + 1 / 720
    p = p * r + 1 / 120
    p = p * r + 1 / 24
    p = p * r + 1 / 6
    p = p * r + 0.5
    y = p * (r * r) + r
    power = two_to_the(shifted)
    y = y * power + power
    return 0.0 if x < TOO_SMALL else y


@entry
def _log64(x):
    x = larger(x, TINY)
    n, m = exponent(x), mantissa(x)
    high = m > 1.4142135623730951
    n = n + 1.0 if high else n
    m = 0.5 * m if high else m
    f = m - 1.0
    s = f / (2.0 + f)
    w = s * s  # log m = 2 s (1 + w / 3 + w^2 / 5 + ...), w <= 0.03
    p = 1 / 21
    p = p * w + 1 / 19
    p = p * w + 1 / 17
    p = p * w + 1 / 15
    p = p * w + 1 / 13
    p = p * w + 1 / 11
    p = p * w + 1 / 9
    p = p * w + 1 / 7
    p = p * w + 1 / 5
    p = p * w + 1 / 3
    tail = 2.0 * s * (w * p) + n * LOG2_LOW
    return n * LOG2_HIGH + (2.0 * s + tail)


@entry
def log1p(x):
    """Return log(1 + x) for x >= 0 in double precision, also of a small x to the last digits."""
    u = 1.0 + x
    d = u - 1.0
    return _log64(u) * (x / d) if d > 0.0 else x


@entry
def _log32(x):
    x = larger(x, TINY32)
    return e.exponent(x) * F(0.6931471805599453) + e.log1p(e.mantissa(x) - e.ONE)


def exp(x: Any) -> Any:
    """Return e^x for x <= 0."""


def log(x: Any) -> Any:
    """Return log x for a normal x > 0, and that of the smallest normal number for anything below it.

    In single precision next to x = 1 a few units of the last digit of 1 are lost, not of the logarithm.
    """


@overload(exp, jit_options=INLINE)
def _exp(x):
    return (lambda x: e.exp(x)) if x == types.float32 else (lambda x: _exp64(x))


@overload(log, jit_options=INLINE)
def _log(x):
    return (lambda x: _log32(x)) if x == types.float32 else (lambda x: _log64(x))


def log1p_of_share(x: Any) -> Any:
    """Return log(1 + x) for x in [0, 1]."""


@overload(log1p_of_share, jit_options=INLINE)
def _log1p_of_share(x):
    return (lambda x: e.log1p(x)) if x == types.float32 else (lambda x: log1p(x))


@exactly
def exps(x, result):
    """Fill result, which must be another array: a loop over two that overlap is not vectorised."""
    wide()
    for j in range(x.size):
        result[j] = exp(x[j])
