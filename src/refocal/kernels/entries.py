"""Functions of single numbers and of runs of numbers, as kernels call them: exponentials, logarithms, sums.

The functions can be vectorised. They are polynomials, right to about 2e-7 of the result, made so that nothing
cancels where it matters: 1 - e^x next to x = 0, log(1 + x) next to 0. NaN stays NaN.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

F = np.float32
ONE, ZERO = F(1), F(0)

TOO_SMALL = F(-87.3)
"""The exponential of anything below counts as 0: it is not a normal number."""

SHIFT = F(3 << 22)
"""So large that a sum with it is rounded to a whole number, which then is in its last bits."""

I32, F32 = ir.IntType(32), ir.FloatType()

SOME = 4096
"""Entries worked on at a time: they stay in the cache, and sums of so many may be in single precision."""

_called = functools.partial(njit, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For functions that kernels alone call: without what Python and C would call them by, which takes as long to
compile as the functions."""

exactly = _called(fastmath={"contract"})
"""Rounding as written, but a product may be fused with a sum."""

entry = _called(fastmath={"contract"}, forceinline=True)
"""The same for a function of one entry: a loop that has to call one is not vectorised."""

body = _called(fastmath={"contract"}, inline="always")
"""For the loop of a kernel, written once for both precisions: it is not compiled by itself before."""

in_any_order = _called(fastmath={"contract", "reassoc"})
"""For sums over a row, which are vectorised only if their order is free."""


@intrinsic
def two_to_the(typingctx: Any, shifted: Any) -> Any:
    """Return 2^n for `SHIFT` + n with a whole number n in [-126, 127], by its bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.shl(builder.bitcast(args[0], I32), I32(23))
        return builder.bitcast(builder.add(bits, I32(127 << 23)), F32)

    return types.float32(types.float32), codegen


@intrinsic
def exponent(typingctx: Any, x: Any) -> Any:
    """Return n of x = 2^n m with m in [1, 2), for a normal x > 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.lshr(builder.bitcast(args[0], I32), I32(23))
        return builder.sitofp(builder.sub(bits, I32(127)), F32)

    return types.float32(types.float32), codegen


@intrinsic
def mantissa(typingctx: Any, x: Any) -> Any:
    """Return m of x = 2^n m with m in [1, 2), for a normal x > 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.and_(builder.bitcast(args[0], I32), I32(0x7FFFFF))
        return builder.bitcast(builder.or_(bits, I32(0x3F800000)), F32)

    return types.float32(types.float32), codegen


@intrinsic
def larger(typingctx: Any, x: Any, y: Any) -> Any:
    """Return the larger number, in one instruction; which one next to a NaN is left open."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = args[0].type
        kind = ir.FunctionType(one, [one, one])
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.maxnum.f{x.bitwidth}")
        return builder.call(function, args, fastmath=("nnan", "nsz"))

    return x(x, x), codegen


@intrinsic
def wide(typingctx: Any) -> Any:
    """Ask for the widest vectors of the processor in the function around, as PyTorch's own code does."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')  # llvmlite has no name for it
        return context.get_dummy_value()

    return types.none(), codegen


@entry
def exp_parts(x):
    """Return e^r - 1 and 2^n with x = n log 2 + r, |r| <= log(2) / 2, for x <= 0."""
    shifted = x * F(1.4426950408889634) + SHIFT
    n = shifted - SHIFT
    r = x - n * F(355 / 512)  # log 2 in two parts: the product with the first one is exact
    r = r - n * F(-2.12194440055e-4)
    p = F(0.0013926183588)  # (e^r - 1 - r) / r^2, 8e-9 of e^r off at most
    p = p * r + F(0.0083631790527)
    p = p * r + F(0.041666554617)
    p = p * r + F(0.1666657699)
    p = p * r + F(0.5)
    return p * (r * r) + r, two_to_the(shifted)


@entry
def exp(x):
    """Return e^x for x <= 0."""
    y, power = exp_parts(x)
    y = y * power + power
    return ZERO if x < TOO_SMALL else y


@entry
def exp_and_miss(x):
    """Return e^x and 1 - e^x for x <= 0."""
    y, power = exp_parts(x)
    result, miss = y * power + power, (ONE - power) - y * power
    result = ZERO if x < TOO_SMALL else result
    miss = ONE if x < TOO_SMALL else miss
    return result, miss


@entry
def log1p(x):
    """Return log(1 + x) for x in [0, 1]: a polynomial times x, 8e-10 of it off at most, before rounding."""
    p = F(0.0019866965936534606)
    p = p * x + F(-0.013187826565578388)
    p = p * x + F(0.041006573693958395)
    p = p * x + F(-0.08188040923582843)
    p = p * x + F(0.12377995867871511)
    p = p * x + F(-0.16087623009295732)
    p = p * x + F(0.19885820285008451)
    p = p * x + F(-0.24986496459409926)
    p = p * x + F(0.3333249754352652)
    p = p * x + F(-0.4999997949139123)
    return (p * x) * x + x


@entry
def neg_log_miss(q, miss):
    """Return -log(1 - q) from q in [0, 1] and 1 - q, as large as single precision allows for q = 1."""
    x = larger(miss, F(np.finfo(F).tiny))
    of_small = exponent(x) * F(-0.6931471805599453) - log1p(mantissa(x) - ONE)
    of_large = log1p((q if q < miss else ZERO) / (miss if q < miss else ONE))
    return of_large if q < miss else of_small


@entry
def whole_power(x, odd, two):
    """Return x^(odd + two) with odd in {0, 1} and two in {0, 2}."""
    return (x if odd else ONE) * (x * x if two else ONE)


# Runs of numbers


@exactly
def largest(x):
    """Return the largest number."""
    result = x[0]
    for j in range(x.size):
        result = larger(result, x[j])
    return result


@exactly
def subtract(x, shift, result):
    """Fill result with x - shift."""
    for j in range(x.size):
        result[j] = x[j] - shift


@exactly
def multiply(x, by):
    """Multiply by a number, in place."""
    for j in range(x.size):
        x[j] *= by


@exactly
def exps(x, result):
    """Fill result, which must be another array: a loop over two that overlap is not vectorised."""
    wide()
    for j in range(x.size):
        result[j] = exp(x[j])


@exactly
def exps_in_place(x):
    """Replace every number by its exponential."""
    wide()
    for j in range(x.size):
        x[j] = exp(x[j])


@in_any_order
def sum_of_some(x):
    """Return a sum in single precision."""
    result = ZERO
    for j in range(x.size):
        result += x[j]
    return result


@exactly
def _sum_of_many(x):
    result = 0.0
    for start in range(0, x.size, SOME):
        result += np.float64(sum_of_some(x[start : start + SOME]))
    return result


@entry
def sum_of(x):
    """Return a sum."""
    return _sum_of_many(x) if x.size > SOME else np.float64(sum_of_some(x))


@in_any_order
def _rest_of_some(exponentials):
    result, ties = ZERO, ZERO
    for j in range(exponentials.size):
        result += exponentials[j] if exponentials[j] != ONE else ZERO
        ties += ZERO if exponentials[j] != ONE else ONE
    return result, ties


@exactly
def _rest_of_many(exponentials):
    result, ties = 0.0, -1.0
    for start in range(0, exponentials.size, SOME):
        some, more = _rest_of_some(exponentials[start : start + SOME])
        result += np.float64(some)
        ties += np.float64(more)
    return result + ties


@entry
def rest_of(exponentials):
    """Return the sum of exp(z - largest) of a row without one of the largest: small ones lose no digits."""
    if exponentials.size > SOME:
        return _rest_of_many(exponentials)
    some, more = _rest_of_some(exponentials)
    return np.float64(some) + (np.float64(more) - 1.0)
