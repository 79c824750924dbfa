"""The softmax focal loss and its gradient as machine code, one pass over the logits, in float32.

Integer targets have a kernel of their own, since their gradient is that of cross entropy times one number;
distributions and smoothed targets share another. What is done once for each row is in double precision. What
takes long is done over all entries of several rows at a time, since the end of a short row would not be
vectorised. Rows whose numbers are not side by side are gathered first, tile by tile.
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from refocal.kernels import entries as e
from refocal.kernels.entries import (
    ONE,
    SOME,
    ZERO,
    F,
    entry,
    exactly,
    exp,
    exp_and_miss,
    neg_log_miss,
    whole_power,
    wide,
)
from refocal.kernels.machine import (
    BAD,
    ENDLESS,
    INT,
    REAL,
    RESULTS,
    ROWS,
    doubles,
    floats,
    integers,
    kernel,
    next_part,
    stack,
)
from refocal.kernels.tiles import gathered, hold, memory, put_back

LOWEST, INFINITE = F(np.finfo(F).min / 4), F(np.inf)
"""The first stands for log 0, so that 0 log 0 is 0."""

OF_ALL, OF_ROWS = 0, 1
"""What gamma differs between; otherwise it is classes."""

LOGITS = {"gradient": INT, "c": INT, "z": ROWS}
"""Whether the gradient is wanted or the losses, how many classes, and where the logits are."""

GAMMA_AND_WEIGHTS = {
    "gamma": REAL,
    "kind": INT,
    "gammas": INT,
    "weighted": INT,
    "weights": INT,
    "ignore": INT,
}
"""gamma, or what it differs between and where its values are; weights of the classes; the label to ignore."""


@entry
def gamma_of(gamma, kind, gammas, i, k):
    return gamma if kind == OF_ALL else gammas[i if kind == OF_ROWS else k]


# Integer targets


@exactly
def _power(x, gamma):
    """Return x^gamma: powers by multiplication are the faster ones."""
    if gamma == 0.0:
        return 1.0
    if gamma == 1.0:
        return x
    if gamma == 3.0:
        return x * x * x
    return x**gamma


@entry
def numbers_of(gap, exponential, rest, gamma):
    """Return the loss of a row, and for its gradient phi / sum of exponentials, and phi (1 - p).

    From the target's logit - the largest one, the exponential of that, and the sum of all exponentials
    without one of the largest.
    """
    share = 1.0 / (1.0 + rest)
    # log1p in double precision, but faster, and exact enough for single
    log_sum = math.log(1.0 + rest) if rest > 1e-6 else rest - 0.5 * rest * rest
    neg_log_p = log_sum - gap
    # Next to p = 1 nothing of 1 - p is lost: the sum was taken without this entry.
    miss = rest * share if exponential == ONE else 1.0 - np.float64(exponential) * share
    hit = neg_log_p * (1.0 - miss) if miss < 1.0 else 0.0  # -p log p, also where the logit is -inf
    if gamma == 2.0:
        power = miss * miss
        phi = miss * (miss + 2.0 * hit)
    else:
        power = _power(miss, gamma)
        phi = power * (1.0 + gamma * (hit / miss if miss > 0.0 else 1.0))
    return power * neg_log_p, F(phi * share), F(phi * miss)


@entry
def _numbers(z_k, exponentials, top, k, gamma):
    return numbers_of(np.float64(z_k) - np.float64(top), exponentials[k], e.rest_of(exponentials), gamma)


@kernel(**LOGITS, y=INT, **GAMMA_AND_WEIGHTS, **RESULTS)
def hard(record):
    """The losses for labels y, or their gradient by the logits.

    Three numbers of each row can be kept for the gradient: the largest logit, phi / sum of exponentials, and
    phi (1 - p), the last two times the weight. The sums are that of the losses and that of the weights, of
    the rows whose label is not to be ignored.
    """
    a = carray(record, 1)[0]
    # Into registers: what is written below might change the record, for all that a compiler knows.
    c, keep, gradient, weighted, ignore, wants_each = a.c, a.keep, a.gradient, a.weighted, a.ignore, a.each
    one_gamma, kind, scale, parts, count = a.gamma, a.kind, F(a.scale), a.parts, a.count
    z, y, each = (
        carray(floats(a.z), ENDLESS),
        carray(integers(a.y), a.count),
        carray(floats(a.each_at), a.count),
    )
    result, kept = carray(floats(a.result), ENDLESS), carray(floats(a.kept), (a.count, 3))
    gammas, weights = carray(doubles(a.gammas), ENDLESS), carray(floats(a.weights), c)
    sums = carray(doubles(a.sums), (a.parts, 3))
    heap = np.empty(2 * c if c > SOME else 0, np.float32)
    at = heap.ctypes.data
    run, work, tops = memory(stack(), at, 0, c), memory(stack(), at, 1, c), carray(stack(), SOME)
    in_place = gradient and a.result_inner == 1 and a.result_outer == c and a.result_class == 1
    step = max(1, SOME // c)
    part, first, last = next_part(record, parts, count)
    while part < parts:
        total, number, bad = 0.0, 0.0, 0
        for start in range(first, last, step):
            stop = min(start + step, last)
            x = gathered(z, a.z_outer, a.z_class, a.z_inner, a.z_step, c, start, stop, run)
            out = result[start * c : stop * c] if in_place else work[: x.size]
            for r in range(stop - start):
                row = x[r * c : r * c + c]
                tops[r] = kept[start + r, 0] if gradient and keep else e.largest(row)
                e.subtract(row, tops[r], out[r * c : r * c + c])
            e.exps_in_place(out)
            if gradient:
                for i in range(start, stop):
                    k, r = y[i], i - start
                    row = out[r * c : r * c + c]
                    if k == ignore:
                        row[:] = ZERO
                        continue
                    if k < 0 or k >= c:  # changed since the loss was computed
                        bad = i + 1
                        break
                    by = scale * (each[i] if wants_each else ONE)
                    if keep:
                        factor, at_target = kept[i, 1], kept[i, 2]
                    else:
                        gamma = gamma_of(one_gamma, kind, gammas, i, k)
                        _, factor, at_target = _numbers(x[r * c + k], row, tops[r], k, gamma)
                        by = by * weights[k] if weighted else by
                    e.multiply(row, factor * by)
                    row[k] = -at_target * by
            else:
                for i in range(start, stop):
                    k, r = y[i], i - start
                    if k == ignore:
                        if wants_each:
                            each[i] = ZERO
                        continue
                    if k < 0 or k >= c:
                        bad = i + 1
                        break
                    gamma = gamma_of(one_gamma, kind, gammas, i, k)
                    loss, factor, at_target = _numbers(
                        x[r * c + k], out[r * c : r * c + c], tops[r], k, gamma
                    )
                    if keep:
                        by = weights[k] if weighted else ONE
                        kept[i, 0], kept[i, 1], kept[i, 2] = tops[r], factor * by, at_target * by
                    weight = np.float64(weights[k]) if weighted else 1.0
                    loss = 0.0 if weight == 0.0 and loss == math.inf else weight * loss
                    if wants_each:
                        each[i] = F(loss)
                    total += loss
                    number += weight
            if bad:
                break
            if gradient and not in_place:
                put_back(a, result, c, start, stop, out)
        sums[part, 0], sums[part, 1], sums[part, BAD] = total, number, bad
        part, first, last = next_part(record, parts, count)
    hold(heap)


# Distributions, and smoothed integer targets


@entry
def _whole_power(miss, neg_log, gamma, odd, two):
    """Return miss^(odd + two) with odd in {0, 1} and two in {0, 2}."""
    return whole_power(miss, odd, two)


@entry
def _any_power(miss, neg_log, gamma, odd, two):
    """Return miss^gamma."""
    return exp(-gamma * neg_log)


def _loops(power):
    """Return the loops for a kind of power: with a choice inside, a loop would not be vectorised."""

    @exactly
    def terms(log_q, v, gamma, odd, two, result):
        """Fill result with the terms of the loss."""
        wide()
        for j in range(log_q.size):
            q, miss = exp_and_miss(log_q[j])
            term = -power(miss, neg_log_miss(q, miss), gamma[j], odd, two) * log_q[j] * v[j]
            result[j] = INFINITE if log_q[j] <= LOWEST and v[j] > ZERO else term

    @exactly
    def slopes(log_q, v, gamma, odd, two, result, q):
        """Fill result with v phi(q), which is -d loss / d log q; fill q, and log_q with 1 - q."""
        wide()
        for j in range(log_q.size):
            x = log_q[j]
            this, miss = exp_and_miss(x)
            ratio = x / (miss if miss > ZERO else ONE)
            ratio = ratio if miss > ZERO else -ONE
            factor = power(miss, neg_log_miss(this, miss), gamma[j], odd, two)
            result[j] = v[j] * factor * (ONE - gamma[j] * this * ratio)
            q[j] = this
            log_q[j] = miss

    return terms, slopes


_terms, _slopes = _loops(_any_power)
_whole_terms, _whole_slopes = _loops(_whole_power)


@exactly
def _log_softmax(z, c, log_q, work):
    """Fill log_q of whole rows of z, with a large number for log 0; work is overwritten."""
    for i in range(0, z.size, c):
        e.subtract(z[i : i + c], e.largest(z[i : i + c]), log_q[i : i + c])
    e.exps(log_q[: z.size], work)
    for i in range(0, z.size, c):
        _shift_down(log_q[i : i + c], F(math.log1p(e.rest_of(work[i : i + c]))))


@exactly
def _shift_down(row, log_sum):
    for j in range(row.size):
        x = row[j] - log_sum
        row[j] = LOWEST if x < LOWEST else x  # and not `larger`: a NaN must stay one


@exactly
def _fill_gammas(run, c, start, stop, gamma, kind, gammas):
    for i in range(start, stop):
        for k in range(c):
            run[(i - start) * c + k] = F(gamma_of(gamma, kind, gammas, i, k))


@exactly
def _mix(v, c, weighted, weights, smoothing):
    """Turn targets into weights[k] ((1 - smoothing) v[k] + smoothing / c), in place."""
    even = F(smoothing / c)
    for i in range(0, v.size, c):
        for k in range(c):
            mixed = F(1 - smoothing) * v[i + k] + even
            v[i + k] = weights[k] * mixed if weighted else mixed


@exactly
def _one_hot(run, c, y, ignore, start, stop):
    """Fill rows of a run with ones at the labels; return the first row with a bad label + 1, or 0."""
    run[: (stop - start) * c] = ZERO
    for i in range(start, stop):
        k = y[i]
        if k == ignore:
            continue
        if k < 0 or k >= c:
            return i + 1
        run[(i - start) * c + k] = ONE
    return 0


@entry
def _targets(a, y, v, weights, start, stop, run):
    """Return the targets of rows, mixed and weighted, and a bad label's row + 1 or 0."""
    c, bad = a.c, 0
    if a.hard:
        bad = _one_hot(run, c, y, a.ignore, start, stop)
        targets = run[: (stop - start) * c]
    else:
        targets = gathered(v, a.v_outer, a.v_class, a.v_inner, a.v_step, c, start, stop, run)
        if a.weighted or a.smoothing:
            run[: targets.size] = targets
            targets = run[: targets.size]
    if a.weighted or a.smoothing:
        _mix(targets, c, a.weighted, weights, a.smoothing)
    return targets, bad


@exactly
def _by_logits(slopes, q, miss, total, by):
    """Turn the slopes by log q into those by z: d log q_j / d z_k = [j = k] - q_k."""
    for j in range(slopes.size):
        # Not q total - slope, which cancels where q is next to 1.
        slopes[j] = by * (q[j] * (total - slopes[j]) - slopes[j] * miss[j])


TARGETS = {"hard": INT, "y": INT, "v": ROWS, "smoothing": REAL, "whole": INT, "odd": INT, "two": INT}
"""Labels y if ``hard``, else distributions v; and gamma as odd + two if it is ``whole``."""


@kernel(**LOGITS, **TARGETS, **GAMMA_AND_WEIGHTS, **RESULTS)
def soft(record):
    """The losses for distributions or smoothed labels, or their gradient by the logits, see `hard`.

    Nothing is kept. With distributions every row counts 1.
    """
    a = carray(record, 1)[0]
    c, gradient = a.c, a.gradient
    z, v, y = carray(floats(a.z), ENDLESS), carray(floats(a.v), ENDLESS), carray(integers(a.y), a.count)
    each, result = carray(floats(a.each_at), a.count), carray(floats(a.result), ENDLESS)
    gammas, weights = carray(doubles(a.gammas), ENDLESS), carray(floats(a.weights), c)
    sums = carray(doubles(a.sums), (a.parts, 3))
    heap = np.empty(5 * c if c > SOME else 0, np.float32)
    at = heap.ctypes.data
    run, targets_run = memory(stack(), at, 0, c), memory(stack(), at, 1, c)
    gamma_run, log_q, q = memory(stack(), at, 2, c), memory(stack(), at, 3, c), memory(stack(), at, 4, c)
    in_place = gradient and a.result_inner == 1 and a.result_outer == c and a.result_class == 1
    step = max(1, SOME // c)
    _fill_gammas(gamma_run, c, 0, min(step, a.count), a.gamma, a.kind, gammas)
    part, first, last = next_part(record, a.parts, a.count)
    while part < a.parts:
        total, number = 0.0, 0.0
        for start in range(first, last, step):
            stop = min(start + step, last)
            x = gathered(z, a.z_outer, a.z_class, a.z_inner, a.z_step, c, start, stop, run)
            t, bad = _targets(a, y, v, weights, start, stop, targets_run)
            if bad:
                sums[part, BAD] = bad
                break
            if a.kind == OF_ROWS:
                _fill_gammas(gamma_run, c, start, stop, a.gamma, a.kind, gammas)
            _log_softmax(x, c, log_q, q)
            # The logits were read: their copy may be overwritten.
            out = result[start * c : stop * c] if in_place else run[: x.size]
            if gradient and a.whole:
                _whole_slopes(log_q[: x.size], t, gamma_run, a.odd, a.two, out, q)
            elif gradient:
                _slopes(log_q[: x.size], t, gamma_run, a.odd, a.two, out, q)
            elif a.whole:
                _whole_terms(log_q[: x.size], t, gamma_run, a.odd, a.two, q)
            else:
                _terms(log_q[: x.size], t, gamma_run, a.odd, a.two, q)
            for i in range(start, stop):
                low, k = (i - start) * c, y[i] if a.hard else 0
                # Another thread may have changed a label since it was checked.
                ignored = a.hard and (k == a.ignore or k < 0 or k >= c)
                if gradient and ignored:
                    out[low : low + c] = ZERO
                elif gradient:
                    row, by = out[low : low + c], F(a.scale) * (each[i] if a.each else ONE)
                    _by_logits(row, q[low : low + c], log_q[low : low + c], F(e.sum_of(row)), by)
                else:
                    loss = 0.0 if ignored else e.sum_of(q[low : low + c])
                    if a.each:
                        each[i] = F(loss)
                    total += loss
                    if not ignored:
                        number += np.float64(weights[k]) if a.hard and a.weighted else 1.0
            if gradient and not in_place:
                put_back(a, result, c, start, stop, out)
        sums[part, 0], sums[part, 1] = total, number
        part, first, last = next_part(record, a.parts, a.count)
    hold(heap)
