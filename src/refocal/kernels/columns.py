"""The softmax focal loss of few classes as machine code: class by class, many rows at a time, in float32.

A row of ten numbers fills no vector of a processor, and pixels have their classes far apart. So a tile of
rows is held with the rows of a class side by side, all steps run along them, and only the way in and out
depends on where the numbers are. The gradient can come with the loss: then there is one pass in all.
Long rows have the kernels of `refocal.kernels.softmax`.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from refocal.kernels.entries import (
    ONE,
    SOME,
    ZERO,
    F,
    entry,
    exactly,
    exp,
    in_any_order,
    larger,
    neg_log_miss,
    wide,
)
from refocal.kernels.machine import BAD, INT, RESULTS, doubles, floats, integers, kernel, next_part, stack
from refocal.kernels.softmax import (
    ENDLESS,
    GAMMA_AND_WEIGHTS,
    INFINITE,
    LOGITS,
    LOWEST,
    OF_ROWS,
    TARGETS,
    gamma_of,
    numbers_of,
)

LOSSES, GRADIENT, BOTH = 0, 1, 2
"""What is wanted: the field ``gradient``. With both, the gradient is that of the sum of the losses."""

MOST = 256
"""Rows of a tile at most."""

TOGETHER = 16
"""So many classes are added up before their sum goes to the other sums: errors do not add up."""

HIGHEST = -LOWEST

U = np.uint64
"""For indices that are never negative: a loop that has to look is not vectorised."""

WHOLE = {"whole": INT, "odd": INT, "two": INT}
"""gamma as odd + two if it is ``whole``."""


@entry
def _rows_of_tile(c):
    return max(1, min(MOST, SOME // c // 16 * 16))


@entry
def _place(memory, i, m):
    """Return one of the places for a number of each of m rows."""
    return memory[i * MOST : i * MOST + m]


# In and out


@exactly
def _copy(x, result):
    for r in range(result.size):
        result[r] = x[r]


@exactly
def _gather(x, hop, result):
    for r in range(U(result.size)):
        result[r] = x[r * hop]


@exactly
def _put(result, x):
    for r in range(x.size):
        result[r] = x[r]


@exactly
def _scatter(result, hop, x):
    for r in range(U(x.size)):
        result[r * hop] = x[r]


def _mover(adjacent, spread):
    """Return what moves rows between where they are and a tile, by a loop over rows side by side and another."""

    @exactly
    def move(x, outer, cls, inner, step, c, start, stop, tile):
        m = stop - start
        n, s, r = start // inner, start % inner, 0
        while r < m:
            some = min(inner - s, m - r) if inner > 1 else m
            hop = step if inner > 1 else outer
            for k in range(c):
                at = n * outer + s * step + k * cls
                run = tile[k * m + r : k * m + r + some]
                if hop == 1:
                    adjacent(x[at : at + some], run)
                else:
                    spread(x[at : at + hop * some], U(hop), run)
            r, s, n = r + some, 0, n + 1

    return move


_load = _mover(_copy, _gather)
"""Fill a tile with the rows from start to stop."""

_store = _mover(_put, _scatter)
"""Put the rows of a tile where they belong."""


# What both kinds of targets share


@exactly
def _raise_tops(tops, x):
    wide()
    for r in range(tops.size):
        tops[r] = larger(tops[r], x[r])


@exactly
def _find_tops(x, tops):
    m = tops.size
    _copy(x, tops)
    for at in range(m, x.size, m):
        _raise_tops(tops, x[at : at + m])


@exactly
def _exponentials(x, tops, part, ties):
    wide()
    for r in range(x.size):
        e = exp(x[r] - tops[r])
        x[r] = e
        part[r] += e if e != ONE else ZERO
        ties[r] += ZERO if e != ONE else ONE


@exactly
def _add(x, y):
    for r in range(x.size):
        x[r] += y[r]


@exactly
def _to_exponentials(x, tops, part, ties, rest):
    """Turn x into exponentials of x - tops; fill rest with their sums without one of the largest: small ones
    lose no digits."""
    m = tops.size
    rest[:] = ZERO
    ties[:] = -ONE
    for start in range(0, x.size, TOGETHER * m):
        part[:] = ZERO
        for at in range(start, min(start + TOGETHER * m, x.size), m):
            _exponentials(x[at : at + m], tops, part, ties)
        _add(rest, part)
    _add(rest, ties)


@entry
def _whole_power(x, odd, two):
    """Return x^(odd + two) with odd in {0, 1} and two in {0, 2}."""
    return (x if odd else ONE) * (x * x if two else ONE)


@entry
def _log_sum(miss, share):
    """Return -log of a share from that and 1 - share; NaN stays NaN."""
    return neg_log_miss(miss, share) if share == share else share


@in_any_order
def _sum_of(x):
    result = 0.0
    for r in range(x.size):
        result += np.float64(x[r])
    return result


# Integer targets


@exactly
def _look_up(x, tops, c, y, ignore, weighted, weights, at, weight, gap):
    """Fill for each row where in the tile its target is (-1 to ignore it), its weight, its logit - top.

    Return the first row with a bad label + 1, or 0.
    """
    m = tops.size
    for r in range(m):
        k = y[r]
        if k == ignore:
            at[r], weight[r], gap[r] = -ONE, ZERO, ZERO
            continue
        if k < 0 or k >= c:
            return r + 1
        at[r] = F(k * m + r)
        weight[r] = weights[k] if weighted else ONE
        gap[r] = x[k * m + r] - tops[r]
    return 0


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
        neg_log_p = _log_sum(rest[r] * share, share) - gap[r]
        p = e[r] * share
        miss = rest[r] * share if e[r] == ONE else ONE - p
        hit = p * neg_log_p if e[r] > ZERO else ZERO
        power = _whole_power(miss, odd, two)
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
def _scale(by, scale):
    for r in range(by.size):
        by[r] *= scale


@exactly
def _scale_each(by, each):
    for r in range(by.size):
        by[r] *= each[r]


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
    step = _rows_of_tile(c)
    part, first, last = next_part(record, parts, count)
    while part < parts:
        total, number, bad = 0.0, 0.0, 0
        for start in range(first, last, step):
            stop = min(start + step, last)
            m = stop - start
            x, tops, ties, rest = tile[: m * c], _place(some, 0, m), _place(some, 1, m), _place(some, 2, m)
            at, weight, gap, e = _place(some, 3, m), _place(some, 4, m), _place(some, 5, m), _place(some, 6, m)
            loss, factor, at_target = _place(some, 7, m), _place(some, 8, m), _place(some, 9, m)
            _load(z, a.z_outer, a.z_class, a.z_inner, a.z_step, c, start, stop, x)
            _find_tops(x, tops)
            bad = _look_up(x, tops, c, y[start:stop], a.ignore, a.weighted, weights, at, weight, gap)
            if bad:
                bad += start
                break
            _to_exponentials(x, tops, loss, ties, rest)
            _of_targets(x, at, e)
            if a.whole:
                _whole_numbers(gap, e, rest, F(a.gamma), a.odd, a.two, loss, factor, at_target)
            else:
                _any_numbers(gap, e, rest, at, start, a.gamma, a.kind, gammas, loss, factor, at_target)
            if wanted != GRADIENT:
                _weigh(loss, weight, at)
                if a.each:
                    _copy(loss, each[start:stop])
                total += _sum_of(loss)
                number += _sum_of(weight)
            if wanted != LOSSES:
                if wanted == GRADIENT:
                    _scale(weight, F(a.scale))
                    if a.each:
                        _scale_each(weight, each[start:stop])
                _to_gradient(x, at, weight, factor, at_target)
                _store(
                    result, a.result_outer, a.result_class, a.result_inner, a.result_step, c, start, stop, x
                )
        sums[part, 0], sums[part, 1], sums[part, BAD] = total, number, bad
        part, first, last = next_part(record, parts, count)


# Distributions, and smoothed integer targets


@exactly
def _fill_gammas(tile, c, start, gamma, kind, gammas):
    m = tile.size // c
    for k in range(c):
        for r in range(m):
            tile[k * m + r] = F(gamma_of(gamma, kind, gammas, start + r, k))


@exactly
def _mix(v, weight, share, even):
    """Turn the targets of a class into weight (share v + even)."""
    for r in range(v.size):
        v[r] = weight * (share * v[r] + even)


@exactly
def _one_hot(v, at):
    v[:] = ZERO
    for r in range(at.size):
        if at[r] >= ZERO:
            v[U(at[r])] = ONE


@exactly
def _shares(rest, share, log_sum):
    """Turn the sums of exponentials without the largest into its 1 - q; fill its q and -log q."""
    wide()
    for r in range(rest.size):
        q = ONE / (ONE + rest[r])
        miss = rest[r] * q
        share[r], rest[r], log_sum[r] = q, miss, _log_sum(miss, q)


@entry
def _by_products(miss, q, gamma, odd, two):
    return _whole_power(miss, odd, two)


@entry
def _by_exponential(miss, q, gamma, odd, two):
    return exp(-gamma * neg_log_miss(q, miss))


def _loop(power):
    """Return the loop for a kind of power: with a choice inside, a loop would not be vectorised."""

    @exactly
    def slopes(z, tops, e, v, gamma, odd, two, share, miss_of_top, log_sum, loss, total):
        """Replace z of a class by v phi(q), which is -d loss / d log q; add that, and the loss, to sums."""
        wide()
        for r in range(z.size):
            q = e[r] * share[r]
            miss = miss_of_top[r] if e[r] == ONE else ONE - q
            neg_log = log_sum[r] - (z[r] - tops[r])
            neg_log = HIGHEST if neg_log > HIGHEST else neg_log  # so that 0 log 0 is 0
            factor = v[r] * power(miss, q, gamma[r], odd, two)
            loss[r] += INFINITE if neg_log >= HIGHEST and v[r] > ZERO else factor * neg_log
            ratio = neg_log / (miss if miss > ZERO else ONE)
            ratio = ratio if miss > ZERO else ONE
            slope = factor * (ONE + gamma[r] * q * ratio)
            z[r] = slope
            total[r] += slope

    return slopes


_slopes, _whole_slopes = _loop(_by_exponential), _loop(_by_products)


@exactly
def _by_logits(slopes, e, share, miss_of_top, total, by):
    """Turn the slopes by log q of a class into those by z: d log q_j / d z_k = [j = k] - q_k."""
    wide()
    for r in range(slopes.size):
        q = e[r] * share[r]
        miss = miss_of_top[r] if e[r] == ONE else ONE - q
        # Not q total - slope, which cancels where q is next to 1.
        slopes[r] = by[r] * (q * (total[r] - slopes[r]) - slopes[r] * miss)


@exactly
def _drop_ignored(x, at):
    for r in range(at.size):
        x[r] = x[r] if at[r] >= ZERO else ZERO


@kernel(**LOGITS, **TARGETS, **GAMMA_AND_WEIGHTS, **RESULTS)
def soft_columns(record):
    """The losses for distributions or smoothed labels, their gradient, or both, see `hard_columns`.

    With distributions every row counts 1.
    """
    a = carray(record, 1)[0]
    c, wanted, parts, count, smoothing = a.c, a.gradient, a.parts, a.count, a.smoothing
    z, v, y = carray(floats(a.z), ENDLESS), carray(floats(a.v), ENDLESS), carray(integers(a.y), count)
    each, result = carray(floats(a.each_at), count), carray(floats(a.result), ENDLESS)
    gammas, weights = carray(doubles(a.gammas), ENDLESS), carray(floats(a.weights), c)
    sums = carray(doubles(a.sums), (parts, 3))
    tile, exponentials, some = carray(stack(), SOME), carray(stack(), SOME), carray(stack(), SOME)
    targets, gamma_tile = carray(stack(), SOME), carray(stack(), SOME)
    step, filled = _rows_of_tile(c), 0
    part, first, last = next_part(record, parts, count)
    while part < parts:
        total, number, bad = 0.0, 0.0, 0
        for start in range(first, last, step):
            stop = min(start + step, last)
            m = stop - start
            x, e, t, g = tile[: m * c], exponentials[: m * c], targets[: m * c], gamma_tile[: m * c]
            tops, ties, rest = _place(some, 0, m), _place(some, 1, m), _place(some, 2, m)
            at, weight, share = _place(some, 3, m), _place(some, 4, m), _place(some, 5, m)
            log_sum, loss, slope = _place(some, 6, m), _place(some, 7, m), _place(some, 8, m)
            more_loss, more_slope = _place(some, 9, m), _place(some, 10, m)
            if a.kind == OF_ROWS or m != filled:
                _fill_gammas(g, c, start, a.gamma, a.kind, gammas)
                filled = m
            _load(z, a.z_outer, a.z_class, a.z_inner, a.z_step, c, start, stop, x)
            _find_tops(x, tops)
            if a.hard:
                bad = _look_up(x, tops, c, y[start:stop], a.ignore, a.weighted, weights, at, weight, loss)
                if bad:
                    bad += start
                    break
                _one_hot(t, at)
            else:
                _load(v, a.v_outer, a.v_class, a.v_inner, a.v_step, c, start, stop, t)
                weight[:] = ONE
            if a.weighted or smoothing:
                for k in range(c):
                    by = weights[k] if a.weighted else ONE
                    _mix(t[k * m : k * m + m], by, F(1 - smoothing), F(smoothing / c))
            _copy(x, e)
            _to_exponentials(e, tops, loss, ties, rest)
            _shares(rest, share, log_sum)
            loss[:], slope[:], more_loss[:], more_slope[:] = ZERO, ZERO, ZERO, ZERO
            for k in range(c):
                i, j = k * m, k * m + m
                x_k, e_k, t_k, g_k = x[i:j], e[i:j], t[i:j], g[i:j]
                if a.whole:
                    _whole_slopes(
                        x_k, tops, e_k, t_k, g_k, a.odd, a.two, share, rest, log_sum, more_loss, more_slope
                    )
                else:
                    _slopes(
                        x_k, tops, e_k, t_k, g_k, a.odd, a.two, share, rest, log_sum, more_loss, more_slope
                    )
                if (k + 1) % TOGETHER == 0 or k == c - 1:
                    _add(loss, more_loss)
                    _add(slope, more_slope)
                    more_loss[:], more_slope[:] = ZERO, ZERO
            if wanted != GRADIENT:
                if a.hard:
                    _drop_ignored(loss, at)
                if a.each:
                    _copy(loss, each[start:stop])
                total += _sum_of(loss)
                number += _sum_of(weight)
            if wanted != LOSSES:
                weight[:] = ONE
                if wanted == GRADIENT:
                    _scale(weight, F(a.scale))
                    if a.each:
                        _scale_each(weight, each[start:stop])
                for i in range(0, m * c, m):
                    _by_logits(x[i : i + m], e[i : i + m], share, rest, slope, weight)
                    if a.hard:
                        _drop_ignored(x[i : i + m], at)
                _store(
                    result, a.result_outer, a.result_class, a.result_inner, a.result_step, c, start, stop, x
                )
        sums[part, 0], sums[part, 1], sums[part, BAD] = total, number, bad
        part, first, last = next_part(record, parts, count)
