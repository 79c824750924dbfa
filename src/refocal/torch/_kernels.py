"""The focal losses as machine code, one pass over the logits: float32, contiguous, on the CPU.

Numba compiles these functions the first time and keeps the code on disk. They take addresses, know nothing of
PyTorch, and hold no lock of Python, so that several threads can work on parts of a batch, see
`refocal.torch._fast`. Sums and what is done once a row are in double precision.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "binary_gradient",
    "binary_rows",
    "hard_gradient",
    "hard_rows",
    "soft_gradient",
    "soft_rows",
]

F = np.float32
ONE, TWO, HALF, ZERO = F(1), F(2), F(0.5), F(0)
LOWEST = F(np.finfo(F).min / 4)
"""In place of log 0, so that 0 log 0 is 0."""

SOME = 4096
"""Entries worked on at a time: they stay in the cache, and sums of so many may be in single precision.

What is dear is done over all entries of several rows, since the end of a short row would not be vectorised.
"""

SMALLEST = F(np.finfo(F).tiny)

exactly = njit(error_model="numpy", fastmath={"contract"})
"""Rounding as written, but a product may be fused with a sum."""

in_any_order = njit(error_model="numpy", fastmath={"contract", "reassoc"})
"""For sums over a row, which are vectorised only if their order is free."""


SHIFT = F(3 << 22)
"""A number so large that a sum with it is rounded to whole numbers, which are then its last bits."""

I32, F32 = ir.IntType(32), ir.FloatType()


@intrinsic
def _two_to_the(typingctx: Any, shifted: Any) -> Any:
    """Return 2^n for `SHIFT` + n with a whole number n in [-126, 127], by its bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.shl(builder.bitcast(args[0], I32), I32(23))
        return builder.bitcast(builder.add(bits, I32(127 << 23)), F32)

    return types.float32(types.float32), codegen


@intrinsic
def _exponent(typingctx: Any, x: Any) -> Any:
    """Return n of x = 2^n m with m in [1, 2), for a normal x > 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sitofp(
            builder.sub(builder.lshr(builder.bitcast(args[0], I32), I32(23)), I32(127)), F32
        )

    return types.float32(types.float32), codegen


@intrinsic
def _mantissa(typingctx: Any, x: Any) -> Any:
    """Return m of x = 2^n m with m in [1, 2), for a normal x > 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.and_(builder.bitcast(args[0], I32), I32(0x7FFFFF))
        return builder.bitcast(builder.or_(bits, I32(0x3F800000)), F32)

    return types.float32(types.float32), codegen


@intrinsic
def _larger(typingctx: Any, x: Any, y: Any) -> Any:
    """The larger number, as one instruction; which one is returned next to a NaN does not matter here."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(F32, [F32, F32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.maxnum.f32")
        return builder.call(function, args, fastmath=("nnan", "nsz"))

    return types.float32(types.float32, types.float32), codegen


@intrinsic
def _wide(typingctx: Any) -> Any:
    """Ask for the widest vectors of the processor, as PyTorch's own code does, in the function around."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')  # llvmlite has no name for it
        return context.get_dummy_value()

    return types.none(), codegen


@exactly
def _exp_parts(x):
    """Return e^r - 1 and 2^n with x = n log 2 + r, |r| <= log(2) / 2, for x <= 0."""
    shifted = x * F(1.4426950408889634) + SHIFT
    n = shifted - SHIFT
    r = x - n * F(0.693359375)  # log 2 in two parts: the product with the first is exact
    r = r - n * F(-2.12194440e-4)
    p = F(1.9875691500e-4)
    p = p * r + F(1.3981999507e-3)
    p = p * r + F(8.3334519073e-3)
    p = p * r + F(4.1665795894e-2)
    p = p * r + F(1.6666665459e-1)
    p = p * r + F(5.0000001201e-1)
    return p * (r * r) + r, _two_to_the(shifted)


@exactly
def _exp(x):
    """Return e^x for x <= 0; 0 where it is below the smallest normal number; NaN for NaN."""
    y, power = _exp_parts(x)
    y = y * power + power
    return ZERO if x < F(-87.3) else y


@exactly
def _exp_and_miss(x):
    """Return e^x, see `_exp`, and 1 - e^x without cancellation, for x <= 0."""
    y, power = _exp_parts(x)
    exp, miss = y * power + power, (ONE - power) - y * power
    exp = ZERO if x < F(-87.3) else exp
    miss = ONE if x < F(-87.3) else miss
    return exp, miss


@exactly
def _one_minus_exp(x):
    """Return 1 - e^x for x <= 0 without cancellation."""
    y, power = _exp_parts(x)
    y = (ONE - power) - y * power
    return ONE if x < F(-87.3) else y


@exactly
def _log1p(x):
    """Return log(1 + x) for x in [0, 1], to the last digits also next to 0: a polynomial times x."""
    p = F(0.0019866965936534606)  # of Chebyshev's points on [0, 1], 8e-10 off at most
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


@exactly
def _log(x):
    """Return log x for normal x in (0, 1]."""
    return _log1p(_mantissa(x) - ONE) + _exponent(x) * F(0.6931471805599453)


@exactly
def _whole_power(x, odd, two, rest):
    """Return x^(odd + two) for x in [0, 1], with odd in {0, 1} and two in {0, 2}."""
    return (x if odd else ONE) * (x * x if two else ONE)


@exactly
def _power(x, odd, two, rest):
    """Return x^(odd + two + rest)."""
    return _whole_power(x, odd, two, rest) * _exp(rest * _log(x if x > SMALLEST else SMALLEST))


@exactly
def _largest(z):
    largest = z[0]
    for j in range(z.size):
        largest = _larger(largest, z[j])
    return largest


@exactly
def _subtract(x, shift, result):
    for j in range(x.size):
        result[j] = x[j] - shift


@exactly
def _multiply(x, by):
    for j in range(x.size):
        x[j] *= by


@exactly
def _multiply_each(x, by):
    for j in range(x.size):
        x[j] *= by[j]


@exactly
def _exps(x, result):
    """Fill result, which must be another array: a loop over two that overlap is not vectorised."""
    _wide()
    for j in range(x.size):
        result[j] = _exp(x[j])


@exactly
def _exps_in_place(x):
    _wide()
    for j in range(x.size):
        x[j] = _exp(x[j])


@in_any_order
def _sum(x):
    total = ZERO
    for j in range(x.size):
        total += x[j]
    return total


@in_any_order
def _rest(exps):
    """Return the sum of exp(z - largest) over a row without one of the largest: small ones lose no digits."""
    total, ties = ZERO, ZERO
    for j in range(exps.size):
        total += exps[j] if exps[j] != ONE else ZERO
        ties += ZERO if exps[j] != ONE else ONE
    return float(total) + (float(ties) - 1.0)


LETTERS = {
    "z": (types.CPointer(types.float32), ctypes.c_void_p),
    "y": (types.CPointer(types.int64), ctypes.c_void_p),
    "s": (types.CPointer(types.float64), ctypes.c_void_p),
    "n": (types.int64, ctypes.c_int64),
    "x": (types.float64, ctypes.c_double),
}
"""The kinds of arguments: an address of float32, int64 or float64 numbers, an integer, a float."""


def kernel(letters: str) -> Callable[[Any], Callable[[], Callable[..., int]]]:
    """Decorate a function with the `LETTERS` of its arguments: call it for the machine code."""

    def decorate(function: Any) -> Callable[[], Callable[..., int]]:
        @functools.cache
        def get() -> Callable[..., int]:
            signature = types.int64(*(LETTERS[letter][0] for letter in letters))
            try:
                code = cfunc(signature, error_model="numpy", cache=True)(function)
            except RuntimeError:  # no folder to keep it in: every process compiles it
                code = cfunc(signature, error_model="numpy")(function)
            kind = ctypes.CFUNCTYPE(ctypes.c_int64, *(LETTERS[letter][1] for letter in letters))
            call: Callable[..., int] = kind(code.address)
            _alive.append(code)
            return call

        return get

    return decorate


_alive: list[Any] = []
"""What owns the machine code."""


@exactly
def _numbers(z, exps, largest, k, gamma):
    """Return the loss of a row, and for its gradient phi / sum of exponentials, and phi (1 - p)."""
    rest = _rest(exps)
    share = 1.0 / (1.0 + rest)
    # log1p in double precision, but faster, and exact enough for single
    log_sum = math.log(1.0 + rest) if rest > 1e-6 else rest - 0.5 * rest * rest
    neg_log_p = log_sum - (float(z[k]) - float(largest))
    # Next to p = 1 nothing of 1 - p is lost: the sum was taken without this entry.
    miss = rest * share if exps[k] == ONE else 1.0 - float(exps[k]) * share
    if gamma == 2.0:
        power = miss * miss
        phi = miss * (miss + 2.0 * neg_log_p * (1.0 - miss))
    else:
        power = miss**gamma
        # (1 - p)^gamma (1 + gamma (-log p) p / (1 - p)); the ratio (-log p) / (1 - p) is 1 at p = 1
        ratio = neg_log_p / miss if miss > 0.0 else 1.0
        phi = power * (1.0 + gamma * ratio * (1.0 - miss))
    return power * neg_log_p, F(phi * share), F(phi * miss)


@kernel("zynnnxnnznzs")
def hard_rows(z_, y_, first, last, c, gamma, ignore, each, loss_, keep, kept_, sums_):
    """Fill loss if ``each``, three numbers a row for the gradient if ``keep``; return a bad label's row + 1.

    The three are the largest logit, phi / sum of exponentials, and phi (1 - p). ``sums`` has the sum of the
    losses and how many rows are not ignored. Rows are those from first to last.
    """
    z, y, loss = carray(z_, last * c), carray(y_, last), carray(loss_, last)
    kept, sums = carray(kept_, (last, 3)), carray(sums_, 2)
    step = max(1, SOME // c)
    exps, tops = np.empty(step * c, F), np.empty(step, F)
    total, count = 0.0, 0
    for start in range(first, last, step):
        stop = min(start + step, last)
        for i in range(start, stop):
            row, r = z[i * c : i * c + c], i - start
            tops[r] = _largest(row)
            _subtract(row, tops[r], exps[r * c : r * c + c])
        _exps_in_place(exps[: (stop - start) * c])
        for i in range(start, stop):
            k, r = y[i], i - start
            if k == ignore:
                if each:
                    loss[i] = ZERO
                continue
            if k < 0 or k >= c:
                return i + 1
            this, factor, at_target = _numbers(
                z[i * c : i * c + c], exps[r * c : r * c + c], tops[r], k, gamma
            )
            if keep:
                kept[i, 0], kept[i, 1], kept[i, 2] = tops[r], factor, at_target
            if each:
                loss[i] = F(this)
            total += this
            count += 1
    sums[0], sums[1] = total, count
    return 0


@kernel("zynnnxnnzxnzz")
def hard_gradient(z_, y_, first, last, c, gamma, ignore, keep, kept_, scale, each, grad_, result_):
    """Fill the gradient by the logits, times ``scale``, and times ``grad``, one number a row, if ``each``."""
    z, y, kept = carray(z_, last * c), carray(y_, last), carray(kept_, (last, 3))
    grad, result = carray(grad_, last), carray(result_, last * c)
    step = max(1, SOME // c)
    tops = np.empty(step, F)
    for start in range(first, last, step):
        stop = min(start + step, last)
        for i in range(start, stop):
            row, r = z[i * c : i * c + c], i - start
            tops[r] = kept[i, 0] if keep else _largest(row)
            _subtract(row, tops[r], result[i * c : i * c + c])
        _exps_in_place(result[start * c : stop * c])
        for i in range(start, stop):
            k, row = y[i], result[i * c : i * c + c]
            if k == ignore:
                row[:] = ZERO
                continue
            if keep:
                factor, at_target = kept[i, 1], kept[i, 2]
            else:
                _, factor, at_target = _numbers(z[i * c : i * c + c], row, tops[i - start], k, gamma)
            by = F(scale) * (grad[i] if each else ONE)
            _multiply(row, factor * by)
            row[k] = -at_target * by
    return 0


@exactly
def _binary(z):
    """Return p and 1 - p of p = sigmoid(z), and -log p and -log(1 - p)."""
    e = _exp(-abs(z))
    log = _log1p(e)
    near = ONE / (ONE + e)
    far = e * near
    p = near if z > ZERO else far
    miss = far if z > ZERO else near
    return p, miss, log + (-z if z < ZERO else ZERO), log + (z if z > ZERO else ZERO)


def _loops(power):
    """Return the loops over entries with a power: with a choice inside, a loop would not be vectorised."""

    @exactly
    def soft_terms(log_q, v, odd, two, rest, result):
        """Fill result with the terms of the loss."""
        _wide()
        for j in range(log_q.size):
            result[j] = -power(_one_minus_exp(log_q[j]), odd, two, rest) * log_q[j] * v[j]

    @exactly
    def soft_slopes(log_q, v, odd, two, rest, result, q):
        """Fill result with v phi(q), which is -d loss / d log q; fill q, and log_q with 1 - q."""
        _wide()
        gamma = F(odd + two) + rest
        for j in range(log_q.size):
            x = log_q[j]
            exp, miss = _exp_and_miss(x)
            ratio = x / (miss if miss > ZERO else ONE)
            ratio = ratio if miss > ZERO else -ONE
            result[j] = v[j] * power(miss, odd, two, rest) * (ONE - gamma * exp * ratio)
            q[j] = exp
            log_q[j] = miss

    @exactly
    def binary_loss(z, y, odd, two, rest, of_one, of_zero):
        p, miss, neg_log_p, neg_log_miss = _binary(z)
        one = of_one * y * power(miss, odd, two, rest) * neg_log_p
        zero = of_zero * (ONE - y) * power(p, odd, two, rest) * neg_log_miss
        # A logit may be infinite: nothing of the target that it excludes may be left.
        one = one if y != ZERO else ZERO
        zero = zero if y != ONE else ZERO
        return one + zero

    @exactly
    def binary_losses(z, y, odd, two, rest, of_one, of_zero, loss):
        _wide()
        for i in range(z.size):
            loss[i] = binary_loss(z[i], y[i], odd, two, rest, of_one, of_zero)

    @in_any_order
    def binary_sum(z, y, odd, two, rest, of_one, of_zero):
        _wide()
        total = ZERO
        for i in range(z.size):
            total += binary_loss(z[i], y[i], odd, two, rest, of_one, of_zero)
        return total

    @exactly
    def binary_slopes(z, y, odd, two, rest, of_one, of_zero, scale, result):
        _wide()
        gamma = F(odd + two) + rest
        for i in range(z.size):
            p, miss, neg_log_p, neg_log_miss = _binary(z[i])
            # p log p is 0 at p = 0, also where the logit is infinite
            hit = p * neg_log_p if p > ZERO else ZERO
            other = miss * neg_log_miss if miss > ZERO else ZERO
            one = of_one * y[i] * power(miss, odd, two, rest) * (miss + gamma * hit)
            zero = of_zero * (ONE - y[i]) * power(p, odd, two, rest) * (p + gamma * other)
            one = one if y[i] != ZERO else ZERO
            zero = zero if y[i] != ONE else ZERO
            result[i] = scale * (zero - one)

    return soft_terms, soft_slopes, binary_losses, binary_sum, binary_slopes


_soft_terms, _soft_slopes, _binary_losses, _binary_sum, _binary_slopes = _loops(_power)
_whole_soft_terms, _whole_soft_slopes, _whole_binary_losses, _whole_binary_sum, _whole_binary_slopes = _loops(
    _whole_power
)


@exactly
def _log_softmax(z, c, log_q, exps):
    """Fill log_q of whole rows of z, with a large number for log 0; exps is overwritten."""
    for i in range(0, z.size, c):
        _subtract(z[i : i + c], _largest(z[i : i + c]), log_q[i : i + c])
    _exps(log_q[: z.size], exps)
    for i in range(0, z.size, c):
        log_sum = F(math.log1p(_rest(exps[i : i + c])))
        row = log_q[i : i + c]
        for j in range(c):
            x = row[j] - log_sum
            row[j] = LOWEST if x < LOWEST else x  # and not `_larger`: a NaN must stay one


@kernel("zznnnnnxnzs")
def soft_rows(z_, v_, first, last, c, odd, two, rest, each, loss_, sums_):
    """Fill loss if ``each``, for distributions v; gamma = odd + two + rest, see `_power`."""
    z, v, losses, sums = carray(z_, last * c), carray(v_, last * c), carray(loss_, last), carray(sums_, 2)
    step = max(1, SOME // c)
    log_q, terms = np.empty(step * c, F), np.empty(step * c, F)
    total = 0.0
    for start in range(first, last, step):
        stop = min(start + step, last)
        _log_softmax(z[start * c : stop * c], c, log_q, terms)
        x, t = log_q[: (stop - start) * c], v[start * c : stop * c]
        if rest:
            _soft_terms(x, t, odd, two, F(rest), terms)
        else:
            _whole_soft_terms(x, t, odd, two, ZERO, terms)
        for i in range(start, stop):
            r = i - start
            loss = _sum(terms[r * c : r * c + c])
            if each:
                losses[i] = loss
            total += loss
    sums[0], sums[1] = total, last - first
    return 0


@kernel("zznnnnnxxnzz")
def soft_gradient(z_, v_, first, last, c, odd, two, rest, scale, each, grad_, result_):
    """Fill the gradient by the logits, see `hard_gradient`."""
    z, v, grad, result = (
        carray(z_, last * c),
        carray(v_, last * c),
        carray(grad_, last),
        carray(result_, last * c),
    )
    step = max(1, SOME // c)
    log_q, q = np.empty(step * c, F), np.empty(step * c, F)
    for start in range(first, last, step):
        stop = min(start + step, last)
        _log_softmax(z[start * c : stop * c], c, log_q, q)
        x, t, slopes = log_q[: (stop - start) * c], v[start * c : stop * c], result[start * c : stop * c]
        if rest:
            _soft_slopes(x, t, odd, two, F(rest), slopes, q)
        else:
            _whole_soft_slopes(x, t, odd, two, ZERO, slopes, q)
        for i in range(start, stop):
            r, row = i - start, result[i * c : i * c + c]
            by = F(scale) * (grad[i] if each else ONE)
            _soft_row(row, q[r * c : r * c + c], log_q[r * c : r * c + c], _sum(row), by)
    return 0


@exactly
def _soft_row(slopes, q, miss, total, by):
    """Turn the slopes by log q into those by z: d log q_j / d z_k = [j = k] - q_k."""
    for j in range(slopes.size):
        # Not q total - slope, which cancels where q is next to 1.
        slopes[j] = by * (q[j] * (total - slopes[j]) - slopes[j] * miss[j])


@kernel("zznnnnxxxnzs")
def binary_rows(z_, y_, first, last, odd, two, rest, of_one, of_zero, each, loss_, sums_):
    """Fill loss if ``each``, for targets y in [0, 1] with the weights of y = 1 and of y = 0."""
    z, y, loss, sums = carray(z_, last), carray(y_, last), carray(loss_, last), carray(sums_, 2)
    one, zero = F(of_one), F(of_zero)
    total = 0.0
    for i in range(first, last, SOME):
        j = min(i + SOME, last)
        x, t = z[i:j], y[i:j]
        if each and rest:
            _binary_losses(x, t, odd, two, F(rest), one, zero, loss[i:j])
        elif each:
            _whole_binary_losses(x, t, odd, two, ZERO, one, zero, loss[i:j])
        elif rest:
            total += _binary_sum(x, t, odd, two, F(rest), one, zero)
        else:
            total += _whole_binary_sum(x, t, odd, two, ZERO, one, zero)
    sums[0], sums[1] = total, last - first
    return 0


@kernel("zznnnnxxxxnzz")
def binary_gradient(z_, y_, first, last, odd, two, rest, of_one, of_zero, scale, each, grad_, result_):
    """Fill the gradient by the logits, see `hard_gradient`; ``grad`` has one number an entry."""
    z, y, grad, result = carray(z_, last), carray(y_, last), carray(grad_, last), carray(result_, last)
    one, zero, by = F(of_one), F(of_zero), F(scale)
    for i in range(first, last, SOME):
        j = min(i + SOME, last)
        x, t, slopes = z[i:j], y[i:j], result[i:j]
        if rest:
            _binary_slopes(x, t, odd, two, F(rest), one, zero, by, slopes)
        else:
            _whole_binary_slopes(x, t, odd, two, ZERO, one, zero, by, slopes)
        if each:
            _multiply_each(slopes, grad[i:j])
    return 0
