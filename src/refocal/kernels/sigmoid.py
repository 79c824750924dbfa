"""The sigmoid focal loss and its gradient as machine code, one pass over the logits, in float32."""

from __future__ import annotations

import numpy as np
from numba import carray

from refocal.kernels.entries import ONE, SOME, ZERO, F, entry, exactly, exp, log1p, sum_of_some, wide
from refocal.kernels.machine import INT, REAL, RESULTS, doubles, floats, kernel, next_part, stack


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
    return (x if odd else ONE) * (x * x if two else ONE)


@entry
def _any_power(x, neg_log_x, odd, two, rest):
    """Return x^(odd + two + rest)."""
    return _whole_power(x, neg_log_x, odd, two, rest) * exp(-rest * neg_log_x)


def _loops(power):
    """Return the loops for a kind of power: with a choice inside, a loop would not be vectorised."""

    @exactly
    def losses(z, y, odd, two, rest, of_one, of_zero, loss):
        wide()
        for i in range(z.size):
            p, miss, neg_log_p, neg_log_q = _parts(z[i])
            one = of_one * y[i] * power(miss, neg_log_q, odd, two, rest) * neg_log_p
            zero = of_zero * (ONE - y[i]) * power(p, neg_log_p, odd, two, rest) * neg_log_q
            # A logit may be infinite: nothing of the target that it excludes may be left.
            one = one if y[i] != ZERO else ZERO
            zero = zero if y[i] != ONE else ZERO
            loss[i] = one + zero

    @exactly
    def slopes(z, y, odd, two, rest, of_one, of_zero, scale, result):
        wide()
        gamma = F(odd + two) + rest
        for i in range(z.size):
            p, miss, neg_log_p, neg_log_q = _parts(z[i])
            # p log p is 0 at p = 0, also where the logit is infinite
            hit = p * neg_log_p if p > ZERO else ZERO
            other = miss * neg_log_q if miss > ZERO else ZERO
            one = of_one * y[i] * power(miss, neg_log_q, odd, two, rest) * (miss + gamma * hit)
            zero = of_zero * (ONE - y[i]) * power(p, neg_log_p, odd, two, rest) * (p + gamma * other)
            one = one if y[i] != ZERO else ZERO
            zero = zero if y[i] != ONE else ZERO
            result[i] = scale * (zero - one)

    return losses, slopes


_losses, _slopes = _loops(_any_power)
_whole_losses, _whole_slopes = _loops(_whole_power)

NUMBERS = {"z": INT, "y": INT, "odd": INT, "two": INT, "rest": REAL, "of_one": REAL, "of_zero": REAL}
"""Logits and targets, gamma as odd + two + rest, and the weights of y = 1 and of y = 0."""


@kernel(gradient=INT, **NUMBERS, **RESULTS)
def sigmoid(record):
    """The losses of binary problems, or their gradient by the logits, see `refocal.kernels.softmax.hard`."""
    a = carray(record, 1)[0]
    z, y, each = (
        carray(floats(a.z), a.count),
        carray(floats(a.y), a.count),
        carray(floats(a.each_at), a.count),
    )
    result, sums = carray(floats(a.result), a.count), carray(doubles(a.sums), (a.parts, 3))
    one, zero, odd, two, rest, by = F(a.of_one), F(a.of_zero), a.odd, a.two, F(a.rest), F(a.scale)
    work = carray(stack(), SOME)
    part, first, last = next_part(record, a.parts, a.count)
    while part < a.parts:
        total = 0.0
        for i in range(first, last, SOME):
            j = min(i + SOME, last)
            if a.gradient:
                out = result[i:j]
                if rest:
                    _slopes(z[i:j], y[i:j], odd, two, rest, one, zero, by, out)
                else:
                    _whole_slopes(z[i:j], y[i:j], odd, two, rest, one, zero, by, out)
                if a.each:
                    _multiply_each(out, each[i:j])
            else:
                out = each[i:j] if a.each else work[: j - i]
                if rest:
                    _losses(z[i:j], y[i:j], odd, two, rest, one, zero, out)
                else:
                    _whole_losses(z[i:j], y[i:j], odd, two, rest, one, zero, out)
                total += np.float64(sum_of_some(out))
        sums[part, 0], sums[part, 1] = total, last - first
        part, first, last = next_part(record, a.parts, a.count)


@exactly
def _multiply_each(x, by):
    for j in range(x.size):
        x[j] *= by[j]
