"""The softmax focal loss of few classes for integer targets, see `refocal.kernels.columns`."""

from __future__ import annotations

import numpy as np
from numba import carray

from refocal.kernels.columns import (
    GRADIENT,
    LOSSES,
    U,
    copy,
    fill_tile,
    find_tops,
    look_up,
    neg_log_share,
    place,
    put_back,
    rows_of_tile,
    scale_gradient,
    sum_of,
    to_exponentials,
)
from refocal.kernels.entries import ONE, SOME, ZERO, F, exactly, whole_power, wide
from refocal.kernels.machine import (
    BAD,
    ENDLESS,
    INT,
    RESULTS,
    doubles,
    floats,
    integers,
    kernel,
    next_part,
    stack,
)
from refocal.kernels.softmax import GAMMA_AND_WEIGHTS, INFINITE, LOGITS, gamma_of, numbers_of

WHOLE = {"whole": INT, "odd": INT, "two": INT}
"""gamma as odd + two if it is ``whole``."""


@exactly
def _of_targets(x, at, result):
    for r in range(at.size):
        result[r] = x[U(at[r])] if at[r] >= ZERO else ONE


@exactly
def _whole_numbers(gap, e, rest, gamma, odd, two, loss, factor, at_target):
    """Fill the numbers of `refocal.kernels.softmax.numbers_of` for each row, for a whole gamma."""
    wide()
    for r in range(gap.size):
        share = ONE / (ONE + rest[r])
        neg_log_p = neg_log_share(rest[r] * share, share) - gap[r]
        p = e[r] * share
        miss = rest[r] * share if e[r] == ONE else ONE - p
        hit = p * neg_log_p if e[r] > ZERO else ZERO
        power = whole_power(miss, odd, two)
        ratio = hit / (miss if miss > ZERO else ONE)
        phi = power * (ONE + gamma * (ratio if miss > ZERO else ONE))
        loss[r], factor[r], at_target[r] = power * neg_log_p, phi * share, phi * miss


@exactly
def _any_numbers(gap, e, rest, at, start, gamma, kind, gammas, loss, factor, at_target):
    """Fill the same for any gamma, in double precision."""
    m = gap.size
    for r in range(m):
        k = int(at[r]) // m if at[r] >= ZERO else 0
        of_row = gamma_of(gamma, kind, gammas, start + r, k)
        one, two, three = numbers_of(np.float64(gap[r]), e[r], np.float64(rest[r]), of_row)
        loss[r], factor[r], at_target[r] = F(one), two, three


@exactly
def _weigh(loss, weight, at):
    for r in range(loss.size):
        x = ZERO if weight[r] == ZERO and loss[r] == INFINITE else weight[r] * loss[r]
        loss[r] = x if at[r] >= ZERO else ZERO


@exactly
def _scale_kept(factor, by, at):
    for r in range(factor.size):
        factor[r] = factor[r] * by[r] if at[r] >= ZERO else ZERO


@exactly
def _times(x, factor):
    wide()
    for r in range(x.size):
        x[r] = x[r] * factor[r] if factor[r] != ZERO else ZERO  # an ignored row may hold anything


@exactly
def _to_gradient(x, at, by, factor, at_target):
    """Turn exponentials into the gradient."""
    m = at.size
    _scale_kept(factor, by, at)
    for start in range(0, x.size, m):
        _times(x[start : start + m], factor)
    for r in range(m):
        if at[r] >= ZERO:
            x[U(at[r])] = -at_target[r] * by[r]


@kernel(**LOGITS, y=INT, **WHOLE, **GAMMA_AND_WEIGHTS, **RESULTS)
def hard_columns(record):
    """The losses for labels y, their gradient by the logits, or both; see `refocal.kernels.softmax.hard`.

    Nothing is kept.
    """
    a = carray(record, 1)[0]
    c, wanted, parts, count = a.c, a.gradient, a.parts, a.count
    z, y, each = carray(floats(a.z), ENDLESS), carray(integers(a.y), count), carray(floats(a.each_at), count)
    result, weights = carray(floats(a.result), ENDLESS), carray(floats(a.weights), c)
    gammas, sums = carray(doubles(a.gammas), ENDLESS), carray(doubles(a.sums), (parts, 3))
    tile, some = carray(stack(), SOME), carray(stack(), SOME)
    step = rows_of_tile(c)
    part, first, last = next_part(record, parts, count)
    while part < parts:
        total, number, bad = 0.0, 0.0, 0
        for start in range(first, last, step):
            stop = min(start + step, last)
            m = stop - start
            x, tops, ties, rest = tile[: m * c], place(some, 0, m), place(some, 1, m), place(some, 2, m)
            at, weight, gap, e = (
                place(some, 3, m),
                place(some, 4, m),
                place(some, 5, m),
                place(some, 6, m),
            )
            loss, factor, at_target = place(some, 7, m), place(some, 8, m), place(some, 9, m)
            fill_tile(a, z, c, start, stop, x)
            find_tops(x, tops)
            bad = look_up(x, tops, c, y[start:stop], a.ignore, a.weighted, weights, at, weight, gap)
            if bad:
                bad += start
                break
            to_exponentials(x, tops, loss, ties, rest)
            _of_targets(x, at, e)
            if a.whole:
                _whole_numbers(gap, e, rest, F(a.gamma), a.odd, a.two, loss, factor, at_target)
            else:
                _any_numbers(gap, e, rest, at, start, a.gamma, a.kind, gammas, loss, factor, at_target)
            if wanted != GRADIENT:
                _weigh(loss, weight, at)
                if a.each:
                    copy(loss, each[start:stop])
                total += sum_of(loss)
                number += sum_of(weight)
            if wanted != LOSSES:
                if wanted == GRADIENT:
                    scale_gradient(a, weight, each, start, stop)
                _to_gradient(x, at, weight, factor, at_target)
                put_back(a, result, c, start, stop, x)
        sums[part, 0], sums[part, 1], sums[part, BAD] = total, number, bad
        part, first, last = next_part(record, parts, count)
