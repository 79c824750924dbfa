"""The same for distributions and smoothed integer targets, see `refocal.kernels.columns`."""

from __future__ import annotations

from numba import carray

from refocal.kernels.columns import (
    GRADIENT,
    LOSSES,
    TOGETHER,
    U,
    add,
    copy,
    fill_tile,
    find_tops,
    look_up,
    move,
    neg_log_share,
    place,
    put_back,
    rows_of_tile,
    scale_gradient,
    sum_of,
    to_exponentials,
)
from refocal.kernels.entries import ONE, SOME, ZERO, F, entry, exactly, exp, neg_log_miss, whole_power, wide
from refocal.kernels.machine import (
    BAD,
    ENDLESS,
    RESULTS,
    doubles,
    floats,
    integers,
    kernel,
    next_part,
    stack,
)
from refocal.kernels.softmax import (
    GAMMA_AND_WEIGHTS,
    INFINITE,
    LOGITS,
    LOWEST,
    OF_ROWS,
    TARGETS,
    gamma_of,
)

HIGHEST = -LOWEST


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
        share[r], rest[r], log_sum[r] = q, miss, neg_log_share(miss, q)


@entry
def _by_products(miss, q, gamma, odd, two):
    return whole_power(miss, odd, two)


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
    step, filled = rows_of_tile(c), 0
    part, first, last = next_part(record, parts, count)
    while part < parts:
        total, number, bad = 0.0, 0.0, 0
        for start in range(first, last, step):
            stop = min(start + step, last)
            m = stop - start
            x, e, t, g = tile[: m * c], exponentials[: m * c], targets[: m * c], gamma_tile[: m * c]
            tops, ties, rest = place(some, 0, m), place(some, 1, m), place(some, 2, m)
            at, weight, share = place(some, 3, m), place(some, 4, m), place(some, 5, m)
            log_sum, loss, slope = place(some, 6, m), place(some, 7, m), place(some, 8, m)
            more_loss, more_slope = place(some, 9, m), place(some, 10, m)
            if a.kind == OF_ROWS or m != filled:
                _fill_gammas(g, c, start, a.gamma, a.kind, gammas)
                filled = m
            fill_tile(a, z, c, start, stop, x)
            find_tops(x, tops)
            if a.hard:
                bad = look_up(x, tops, c, y[start:stop], a.ignore, a.weighted, weights, at, weight, loss)
                if bad:
                    bad += start
                    break
                _one_hot(t, at)
            else:
                move(v, a.v_outer, a.v_class, a.v_inner, a.v_step, c, start, stop, t, True)
                weight[:] = ONE
            if a.weighted or smoothing:
                for k in range(c):
                    by = weights[k] if a.weighted else ONE
                    _mix(t[k * m : k * m + m], by, F(1 - smoothing), F(smoothing / c))
            copy(x, e)
            to_exponentials(e, tops, loss, ties, rest)
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
                    add(loss, more_loss)
                    add(slope, more_slope)
                    more_loss[:], more_slope[:] = ZERO, ZERO
            if wanted != GRADIENT:
                if a.hard:
                    _drop_ignored(loss, at)
                if a.each:
                    copy(loss, each[start:stop])
                total += sum_of(loss)
                number += sum_of(weight)
            if wanted != LOSSES:
                weight[:] = ONE
                if wanted == GRADIENT:
                    scale_gradient(a, weight, each, start, stop)
                for i in range(0, m * c, m):
                    _by_logits(x[i : i + m], e[i : i + m], share, rest, slope, weight)
                    if a.hard:
                        _drop_ignored(x[i : i + m], at)
                put_back(a, result, c, start, stop, x)
        sums[part, 0], sums[part, 1], sums[part, BAD] = total, number, bad
        part, first, last = next_part(record, parts, count)
