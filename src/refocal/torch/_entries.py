"""How kernels are compiled, and their functions of single numbers: exponentials and logarithms.

The functions can be vectorised. They are polynomials, right to about 2e-7 of the result, made so that nothing
cancels where it matters: 1 - e^x next to x = 0, log(1 + x) next to 0. NaN stays NaN.

Numba keeps compiled code until the file of the kernel changes: after a change here, touch ``_kernels.py``.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

F = np.float32
ONE, ZERO = F(1), F(0)

TOO_SMALL = F(-87.3)
"""The exponential of anything below counts as 0: it is not a normal number."""

SHIFT = F(3 << 22)
"""So large that a sum with it is rounded to a whole number, which then is in its last bits."""

I32, F32 = ir.IntType(32), ir.FloatType()

exactly = njit(error_model="numpy", fastmath={"contract"})
"""Rounding as written, but a product may be fused with a sum."""

entry = njit(error_model="numpy", fastmath={"contract"}, forceinline=True)
"""The same for a function of one entry: a loop that has to call one is not vectorised."""

in_any_order = njit(error_model="numpy", fastmath={"contract", "reassoc"})
"""For sums over a row, which are vectorised only if their order is free."""


DONE = -1
"""What a kernel returns; otherwise the number of a row + 1, for a bad label."""

LETTERS = {
    "z": (types.CPointer(types.float32), ctypes.c_void_p),
    "y": (types.CPointer(types.int64), ctypes.c_void_p),
    "s": (types.CPointer(types.float64), ctypes.c_void_p),
    "n": (types.int64, ctypes.c_int64),
    "x": (types.float64, ctypes.c_double),
}
"""The kinds of arguments: an address of float32, int64 or float64 numbers, an integer, a float."""

_alive: list[Any] = []
"""What owns the machine code."""


def kernel(letters: str) -> Callable[[Any], Callable[[], Callable[..., int]]]:
    """Decorate a function with the `LETTERS` of its arguments: call it for the machine code."""

    def decorate(function: Any) -> Callable[[], Callable[..., int]]:
        @functools.cache
        def get() -> Callable[..., int]:
            signature = types.int64(*(LETTERS[letter][0] for letter in letters))
            try:
                code = cfunc(signature, error_model="numpy", cache=True)(function)
            except Exception:  # no folder to keep it in, no room, or what is kept is damaged
                code = cfunc(signature, error_model="numpy")(function)
            _alive.append(code)
            kind = ctypes.CFUNCTYPE(ctypes.c_int64, *(LETTERS[letter][1] for letter in letters))
            call: Callable[..., int] = kind(code.address)
            return call

        return get

    return decorate


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
        kind = ir.FunctionType(F32, [F32, F32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.maxnum.f32")
        return builder.call(function, args, fastmath=("nnan", "nsz"))

    return types.float32(types.float32, types.float32), codegen


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
def whole_power(x, neg_log_x, odd, two, rest):
    """Return x^(odd + two) for x in [0, 1], with odd in {0, 1} and two in {0, 2}."""
    return (x if odd else ONE) * (x * x if two else ONE)


@entry
def any_power(x, neg_log_x, odd, two, rest):
    """Return x^(odd + two + rest)."""
    return whole_power(x, neg_log_x, odd, two, rest) * exp(-rest * neg_log_x)
