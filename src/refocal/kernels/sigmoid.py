"""The sigmoid focal loss and its gradient as machine code, one pass over the logits, in float32."""

from __future__ import annotations

import numpy as np
from numba import carray

from refocal.kernels import SLACK
from refocal.kernels.entries import (
    ONE,
    SOME,
    ZERO,
    F,
    entry,
    exactly,
    exp,
    in_any_order,
    log1p,
    sum_of_some,
    whole_power,
    wide,
)
from refocal.kernels.machine import BAD, INT, REAL, RESULTS, doubles, floats, kernel, next_part, stack

LOW, HIGH, NAN = F(-SLACK), F(1 + SLACK), F(np.nan)
"""Between the first two a target counts as one."""


@entry
def _parts(z):
    """Return p and 1 - p of p = sigmoid(z), and -log p and -log(1 - p)."""
    e = exp(-abs(z))
    log = log1p(e)
    near = ONE / (ONE + e)
    far = e * near
    p = near if z > ZERO else far
    miss = far if z > ZERO else near
    return p, miss, log + (-z if z < ZERO else ZERO), log + (z if z > ZERO else ZERO)


@entry
def _whole_power(x, neg_log_x, odd, two, rest):
    """Return x^(odd + two) for x in [0, 1], with odd in {0, 1} and two in {0, 2}."""
    return whole_power(x, odd, two)


@entry
def _any_power(x, neg_log_x, odd, two, rest):
    """Return x^(odd + two + rest)."""
    return whole_power(x, odd, two) * exp(-rest * neg_log_x)


@entry
def _is_good(y):
    return (y >= LOW) & (y <= HIGH)


@entry
def _of_all(weight, i):
    return weight


@entry
def _of_entry(weights, i):
    return weights[i]


def _loops(power, at):
    """Return the loops for a kind of power and of weights: with a choice inside, none would be vectorised."""

    @exactly
    def losses(z, y, odd, two, rest, of_one, of_zero, ignore, share, even, loss):
        wide()
        for i in range(z.size):
            p, miss, neg_log_p, neg_log_q = _parts(z[i])
            v = share * y[i] + even
            one = at(of_one, i) * v * power(miss, neg_log_q, odd, two, rest) * neg_log_p
            zero = at(of_zero, i) * (ONE - v) * power(p, neg_log_p, odd, two, rest) * neg_log_q
            # A logit may be infinite: nothing of the target that it excludes may be left.
            one = one if v != ZERO else ZERO
            zero = zero if v != ONE else ZERO
            both = one + zero if _is_good(y[i]) else NAN  # which is looked for in the sum
            loss[i] = both if y[i] != ignore else ZERO

    @exactly
    def slopes(z, y, odd, two, rest, of_one, of_zero, ignore, share, even, scale, result):
        wide()
        gamma = F(odd + two) + rest
        for i in range(z.size):
            p, miss, neg_log_p, neg_log_q = _parts(z[i])
            # p log p is 0 at p = 0, also where the logit is infinite
            hit = p * neg_log_p if p > ZERO else ZERO
            other = miss * neg_log_q if miss > ZERO else ZERO
            v = share * y[i] + even
            one = at(of_one, i) * v * power(miss, neg_log_q, odd, two, rest) * (miss + gamma * hit)
            zero = at(of_zero, i) * (ONE - v) * power(p, neg_log_p, odd, two, rest) * (p + gamma * other)
            one = one if v != ZERO else ZERO
            zero = zero if v != ONE else ZERO
            result[i] = scale * (zero - one) if y[i] != ignore else ZERO

    return losses, slopes


_losses, _slopes = _loops(_any_power, _of_all)
_whole_losses, _whole_slopes = _loops(_whole_power, _of_all)
_class_losses, _class_slopes = _loops(_any_power, _of_entry)
_whole_class_losses, _whole_class_slopes = _loops(_whole_power, _of_entry)

POWER = {"odd": INT, "two": INT, "rest": REAL}
"""gamma as odd + two + rest."""

WEIGHTS = {"of_one": REAL, "of_zero": REAL, "period": INT, "ones": INT, "zeros": INT}
"""The weights of y = 1 and of y = 0; or, if they differ between classes, after how many entries they are the
same again, and where they are for so many entries and `SOME` more."""

NUMBERS = {"z": INT, "y": INT, **POWER, **WEIGHTS, "ignore": REAL, "smoothing": REAL}
"""Logits and targets, gamma, weights, the target to ignore (NaN for none: nothing equals it), smoothing."""


@kernel(gradient=INT, **NUMBERS, **RESULTS)
def sigmoid(record):
    """The losses of binary problems, or their gradient by the logits, see `refocal.kernels.softmax.hard`.

    The sums are that of the losses and how many entries were not ignored.
    """
    a = carray(record, 1)[0]
    z, y, each = (
        carray(floats(a.z), a.count),
        carray(floats(a.y), a.count),
        carray(floats(a.each_at), a.count),
    )
    result, sums = carray(floats(a.result), a.count), carray(doubles(a.sums), (a.parts, 3))
    one, zero, odd, two, rest, by = F(a.of_one), F(a.of_zero), a.odd, a.two, F(a.rest), F(a.scale)
    ones, zeros = carray(floats(a.ones), a.period + SOME), carray(floats(a.zeros), a.period + SOME)
    ignore, share, even = F(a.ignore), F(1 - a.smoothing), F(a.smoothing / 2)
    work = carray(stack(), SOME)
    part, first, last = next_part(record, a.parts, a.count)
    while part < a.parts:
        total, number, bad = 0.0, 0.0, 0
        for i in range(first, last, SOME):
            j = min(i + SOME, last)
            x, v = z[i:j], y[i:j]
            k = i % a.period if a.period else 0
            some_ones, some_zeros = ones[k : k + j - i], zeros[k : k + j - i]
            if a.gradient:
                out = result[i:j]
                if a.period and rest:
                    _class_slopes(x, v, odd, two, rest, some_ones, some_zeros, ignore, share, even, by, out)
                elif a.period:
                    _whole_class_slopes(
                        x, v, odd, two, rest, some_ones, some_zeros, ignore, share, even, by, out
                    )
                elif rest:
                    _slopes(x, v, odd, two, rest, one, zero, ignore, share, even, by, out)
                else:
                    _whole_slopes(x, v, odd, two, rest, one, zero, ignore, share, even, by, out)
                if a.each:
                    _multiply_each(out, each[i:j], v, ignore)
            else:
                out = each[i:j] if a.each else work[: j - i]
                if a.period and rest:
                    _class_losses(x, v, odd, two, rest, some_ones, some_zeros, ignore, share, even, out)
                elif a.period:
                    _whole_class_losses(x, v, odd, two, rest, some_ones, some_zeros, ignore, share, even, out)
                elif rest:
                    _losses(x, v, odd, two, rest, one, zero, ignore, share, even, out)
                else:
                    _whole_losses(x, v, odd, two, rest, one, zero, ignore, share, even, out)
                some = np.float64(sum_of_some(out))
                if some != some:
                    k = _first_bad(v, ignore)
                    if k < v.size:
                        bad = i + 1 + k
                        break
                total += some
                number += np.float64(v.size - (_number_of(v, ignore) if ignore == ignore else ZERO))
        sums[part, 0], sums[part, 1], sums[part, BAD] = total, number, bad
        part, first, last = next_part(record, a.parts, a.count)


@in_any_order
def _number_of(y, ignore):
    """Return how many of at most `SOME` targets are to be ignored."""
    number = ZERO
    for j in range(y.size):
        number += ONE if y[j] == ignore else ZERO
    return number


@exactly
def _first_bad(y, ignore):
    """Return where the first target is that is neither good nor ignored; the size if there is none."""
    for j in range(y.size):
        if y[j] != ignore and not _is_good(y[j]):
            return j
    return y.size


@exactly
def _multiply_each(x, by, y, ignore):
    for j in range(x.size):
        x[j] = x[j] * by[j] if y[j] != ignore else ZERO
