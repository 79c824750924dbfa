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

from refocal.kernels.entries import (
    ONE,
    SOME,
    ZERO,
    F,
    entry,
    exactly,
    exp,
    exp_and_miss,
    exps,
    exps_in_place,
    largest,
    multiply,
    neg_log_miss,
    rest_of,
    subtract,
    sum_of,
    wide,
)
from refocal.kernels.machine import BAD, INT, REAL, ROWS, doubles, floats, integers, kernel, next_part, stack

LOWEST, INFINITE = F(np.finfo(F).min / 4), F(np.inf)
"""The first stands for log 0, so that 0 log 0 is 0."""

ENDLESS = 1 << 60
"""The size of an array of which only the address is known."""

OF_ALL, OF_ROWS, OF_CLASSES = 0, 1, 2
"""What gamma differs between: nothing, rows, classes."""


# Rows in any order of memory


@exactly
def _copy_rows(x, outer, cls, inner, step, c, start, stop, run, into):
    """Gather the rows from start to stop into a run of numbers, or put them back from there."""
    n, s, r = start // inner, start % inner, 0
    while r < stop - start:
        m = min(inner - s, stop - start - r) if inner > 1 else stop - start
        hop = step if inner > 1 else outer
        at = n * outer + s * step
        for i in range(m if cls == 1 else c):
            for j in range(c if cls == 1 else m):
                t, k = (i, j) if cls == 1 else (j, i)
                if into:
                    run[(r + t) * c + k] = x[at + t * hop + k * cls]
                else:
                    x[at + t * hop + k * cls] = run[(r + t) * c + k]
        r, s, n = r + m, 0, n + 1


@entry
def _gathered(x, outer, cls, inner, step, c, start, stop, run):
    """Return rows as a run of numbers: where they are if they lie so, else a copy in ``run``."""
    if inner == 1 and outer == c and cls == 1:
        return x[start * c : stop * c]
    _copy_rows(x, outer, cls, inner, step, c, start, stop, run, True)
    return run[: (stop - start) * c]


@entry
def _memory(on_stack, size):
    """Return memory: on the stack, or for long rows on the heap, which costs little beside them."""
    return carray(on_stack, SOME) if size <= SOME else np.empty(size, np.float32)


@entry
def _gamma_of(gamma, kind, gammas, i, k):
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
def _numbers(z_k, exponentials, top, k, gamma):
    """Return the loss of a row, and for its gradient phi / sum of exponentials, and phi (1 - p)."""
    rest = rest_of(exponentials)
    share = 1.0 / (1.0 + rest)
    # log1p in double precision, but faster, and exact enough for single
    log_sum = math.log(1.0 + rest) if rest > 1e-6 else rest - 0.5 * rest * rest
    neg_log_p = log_sum - (np.float64(z_k) - np.float64(top))
    # Next to p = 1 nothing of 1 - p is lost: the sum was taken without this entry.
    miss = rest * share if exponentials[k] == ONE else 1.0 - np.float64(exponentials[k]) * share
    hit = neg_log_p * (1.0 - miss) if miss < 1.0 else 0.0  # -p log p, also where the logit is -inf
    if gamma == 2.0:
        power = miss * miss
        phi = miss * (miss + 2.0 * hit)
    else:
        power = _power(miss, gamma)
        phi = power * (1.0 + gamma * (hit / miss if miss > 0.0 else 1.0))
    return power * neg_log_p, phi * share, phi * miss


@kernel(
    c=INT, z=ROWS, y=INT, gamma=REAL, kind=INT, gammas=INT, weighted=INT, weights=INT,
    ignore=INT, each=INT, loss=INT, keep=INT, kept=INT,
)  # fmt: skip
def hard_losses(record):
    """Fill ``loss`` if ``each``, and three numbers for each row's gradient if ``keep``.

    The three are the largest logit, phi / sum of exponentials, and phi (1 - p), both times the weight. The
    sums are that of the losses and that of the weights, of the rows whose label is not ``ignore``.
    """
    a = carray(record, 1)[0]
    c, ignore, each, keep, kind, weighted = a.c, a.ignore, a.each, a.keep, a.kind, a.weighted
    z, y, loss = carray(floats(a.z), ENDLESS), carray(integers(a.y), a.count), carray(floats(a.loss), a.count)
    kept, sums = carray(floats(a.kept), (a.count, 3)), carray(doubles(a.sums), (a.parts, 3))
    gammas, weights = carray(doubles(a.gammas), ENDLESS), carray(floats(a.weights), c)
    run, work, tops = _memory(stack(), c), _memory(stack(), c), carray(stack(), SOME)
    rows_at_a_time = max(1, SOME // c)
    part, first, last = next_part(record, a.parts, a.count)
    while part < a.parts:
        total, number = 0.0, 0.0
        for start in range(first, last, rows_at_a_time):
            stop = min(start + rows_at_a_time, last)
            x = _gathered(z, a.z_outer, a.z_class, a.z_inner, a.z_step, c, start, stop, run)
            for r in range(stop - start):
                tops[r] = largest(x[r * c : r * c + c])
                subtract(x[r * c : r * c + c], tops[r], work[r * c : r * c + c])
            exps_in_place(work[: x.size])
            for i in range(start, stop):
                k, r = y[i], i - start
                if k == ignore:
                    if each:
                        loss[i] = ZERO
                    continue
                if k < 0 or k >= c:
                    sums[part, BAD] = i + 1
                    break
                this, factor, at_target = _numbers(
                    x[r * c + k], work[r * c : r * c + c], tops[r], k, _gamma_of(a.gamma, kind, gammas, i, k)
                )
                weight = np.float64(weights[k]) if weighted else 1.0
                if weighted:
                    this = weight * this if weight != 0.0 else 0.0
                    factor, at_target = weight * factor, weight * at_target
                if keep:
                    kept[i, 0], kept[i, 1], kept[i, 2] = tops[r], F(factor), F(at_target)
                if each:
                    loss[i] = F(this)
                total += this
                number += weight
            if sums[part, BAD]:
                break
        sums[part, 0], sums[part, 1] = total, number
        part, first, last = next_part(record, a.parts, a.count)


@kernel(
    c=INT, z=ROWS, y=INT, gamma=REAL, kind=INT, gammas=INT, weighted=INT, weights=INT,
    ignore=INT, keep=INT, kept=INT, scale=REAL, each=INT, grad=INT, result=ROWS,
)  # fmt: skip
def hard_gradient(record):
    """Fill the gradient by the logits, times ``scale``, and times ``grad`` of each row if ``each``."""
    a = carray(record, 1)[0]
    c, ignore, each, keep, kind, weighted = a.c, a.ignore, a.each, a.keep, a.kind, a.weighted
    z, y, result = (
        carray(floats(a.z), ENDLESS),
        carray(integers(a.y), a.count),
        carray(floats(a.result), ENDLESS),
    )
    kept, sums = carray(floats(a.kept), (a.count, 3)), carray(doubles(a.sums), (a.parts, 3))
    gammas, weights = carray(doubles(a.gammas), ENDLESS), carray(floats(a.weights), c)
    grad = carray(floats(a.grad), a.count)
    run, work, tops = _memory(stack(), c), _memory(stack(), c), carray(stack(), SOME)
    in_place = a.result_inner == 1 and a.result_outer == c and a.result_class == 1
    rows_at_a_time = max(1, SOME // c)
    part, first, last = next_part(record, a.parts, a.count)
    while part < a.parts:
        for start in range(first, last, rows_at_a_time):
            stop = min(start + rows_at_a_time, last)
            x = _gathered(z, a.z_outer, a.z_class, a.z_inner, a.z_step, c, start, stop, run)
            out = result[start * c : stop * c] if in_place else work[: x.size]
            for r in range(stop - start):
                tops[r] = kept[start + r, 0] if keep else largest(x[r * c : r * c + c])
                subtract(x[r * c : r * c + c], tops[r], out[r * c : r * c + c])
            exps_in_place(out)
            for i in range(start, stop):
                k, r = y[i], i - start
                row = out[r * c : r * c + c]
                if k == ignore:
                    row[:] = ZERO
                    continue
                if k < 0 or k >= c:  # changed since the loss was computed
                    sums[part, BAD] = i + 1
                    break
                by = F(a.scale) * (grad[i] if each else ONE)
                if keep:
                    multiply(row, kept[i, 1] * by)
                    row[k] = -kept[i, 2] * by
                else:
                    _, factor, at_target = _numbers(
                        x[r * c + k], row, tops[r], k, _gamma_of(a.gamma, kind, gammas, i, k)
                    )
                    weight = np.float64(weights[k]) if weighted else 1.0
                    multiply(row, F(weight * factor) * by)
                    row[k] = -F(weight * at_target) * by
            if sums[part, BAD]:
                break
            if not in_place:
                _copy_rows(
                    result,
                    a.result_outer,
                    a.result_class,
                    a.result_inner,
                    a.result_step,
                    c,
                    start,
                    stop,
                    out,
                    False,
                )
        part, first, last = next_part(record, a.parts, a.count)


# Distributions, and smoothed integer targets


@entry
def _whole_power(miss, neg_log, gamma, odd, two):
    """Return miss^(odd + two) with odd in {0, 1} and two in {0, 2}."""
    return (miss if odd else ONE) * (miss * miss if two else ONE)


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
        subtract(z[i : i + c], largest(z[i : i + c]), log_q[i : i + c])
    exps(log_q[: z.size], work)
    for i in range(0, z.size, c):
        _shift_down(log_q[i : i + c], F(math.log1p(rest_of(work[i : i + c]))))


@exactly
def _shift_down(row, log_sum):
    for j in range(row.size):
        x = row[j] - log_sum
        row[j] = LOWEST if x < LOWEST else x  # and not `larger`: a NaN must stay one


@exactly
def _fill_gammas(run, c, start, stop, gamma, kind, gammas):
    for i in range(start, stop):
        for k in range(c):
            run[(i - start) * c + k] = F(_gamma_of(gamma, kind, gammas, i, k))


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


SOFT = {
    "c": INT, "z": ROWS, "hard": INT, "y": INT, "v": ROWS, "gamma": REAL, "kind": INT, "gammas": INT,
    "whole": INT, "odd": INT, "two": INT, "weighted": INT, "weights": INT, "ignore": INT, "smoothing": REAL,
}  # fmt: skip
"""Targets are labels y if ``hard``, else distributions v; gamma is odd + two if ``whole``."""


@entry
def _targets(a, y, v, weights, start, stop, run):
    """Return the targets of rows, mixed and weighted, and a bad label's row + 1 or 0."""
    c, bad = a.c, 0
    if a.hard:
        bad = _one_hot(run, c, y, a.ignore, start, stop)
        targets = run[: (stop - start) * c]
    else:
        targets = _gathered(v, a.v_outer, a.v_class, a.v_inner, a.v_step, c, start, stop, run)
        if a.weighted or a.smoothing:
            run[: targets.size] = targets
            targets = run[: targets.size]
    if a.weighted or a.smoothing:
        _mix(targets, c, a.weighted, weights, a.smoothing)
    return targets, bad


@kernel(**SOFT, each=INT, loss=INT)
def soft_losses(record):
    """Fill ``loss`` if ``each``; the sums are those of `hard_losses`, and rows count 1 if not ``hard``."""
    a = carray(record, 1)[0]
    c = a.c
    z, v, y = carray(floats(a.z), ENDLESS), carray(floats(a.v), ENDLESS), carray(integers(a.y), a.count)
    gammas, weights = carray(doubles(a.gammas), ENDLESS), carray(floats(a.weights), c)
    losses, sums = carray(floats(a.loss), a.count), carray(doubles(a.sums), (a.parts, 3))
    run, targets_run, gamma_run = _memory(stack(), c), _memory(stack(), c), _memory(stack(), c)
    log_q, terms = _memory(stack(), c), _memory(stack(), c)
    rows_at_a_time = max(1, SOME // c)
    _fill_gammas(gamma_run, c, 0, min(rows_at_a_time, a.count), a.gamma, a.kind, gammas)
    part, first, last = next_part(record, a.parts, a.count)
    while part < a.parts:
        total, number = 0.0, 0.0
        for start in range(first, last, rows_at_a_time):
            stop = min(start + rows_at_a_time, last)
            x = _gathered(z, a.z_outer, a.z_class, a.z_inner, a.z_step, c, start, stop, run)
            t, bad = _targets(a, y, v, weights, start, stop, targets_run)
            if bad:
                sums[part, BAD] = bad
                break
            if a.kind == OF_ROWS:
                _fill_gammas(gamma_run, c, start, stop, a.gamma, a.kind, gammas)
            _log_softmax(x, c, log_q, terms)
            if a.whole:
                _whole_terms(log_q[: x.size], t, gamma_run, a.odd, a.two, terms)
            else:
                _terms(log_q[: x.size], t, gamma_run, a.odd, a.two, terms)
            for i in range(start, stop):
                r = i - start
                loss = sum_of(terms[r * c : r * c + c])
                weight = 1.0
                if a.hard:
                    if y[i] == a.ignore:
                        loss, weight = 0.0, 0.0
                    elif a.weighted:
                        weight = np.float64(weights[y[i]])
                if a.each:
                    losses[i] = F(loss)
                total += loss
                number += weight
        sums[part, 0], sums[part, 1] = total, number
        part, first, last = next_part(record, a.parts, a.count)


@kernel(**SOFT, scale=REAL, each=INT, grad=INT, result=ROWS)
def soft_gradient(record):
    """Fill the gradient by the logits, see `hard_gradient`."""
    a = carray(record, 1)[0]
    c = a.c
    z, v, y = carray(floats(a.z), ENDLESS), carray(floats(a.v), ENDLESS), carray(integers(a.y), a.count)
    gammas, weights = carray(doubles(a.gammas), ENDLESS), carray(floats(a.weights), c)
    grad, result = carray(floats(a.grad), a.count), carray(floats(a.result), ENDLESS)
    sums = carray(doubles(a.sums), (a.parts, 3))
    run, targets_run, gamma_run = _memory(stack(), c), _memory(stack(), c), _memory(stack(), c)
    log_q, q = _memory(stack(), c), _memory(stack(), c)
    in_place = a.result_inner == 1 and a.result_outer == c and a.result_class == 1
    rows_at_a_time = max(1, SOME // c)
    _fill_gammas(gamma_run, c, 0, min(rows_at_a_time, a.count), a.gamma, a.kind, gammas)
    part, first, last = next_part(record, a.parts, a.count)
    while part < a.parts:
        for start in range(first, last, rows_at_a_time):
            stop = min(start + rows_at_a_time, last)
            x = _gathered(z, a.z_outer, a.z_class, a.z_inner, a.z_step, c, start, stop, run)
            t, bad = _targets(a, y, v, weights, start, stop, targets_run)
            if bad:
                sums[part, BAD] = bad
                break
            if a.kind == OF_ROWS:
                _fill_gammas(gamma_run, c, start, stop, a.gamma, a.kind, gammas)
            _log_softmax(x, c, log_q, q)
            slopes = result[start * c : stop * c] if in_place else run[: x.size]  # z was read
            if a.whole:
                _whole_slopes(log_q[: x.size], t, gamma_run, a.odd, a.two, slopes, q)
            else:
                _slopes(log_q[: x.size], t, gamma_run, a.odd, a.two, slopes, q)
            for i in range(start, stop):
                r, row = i - start, slopes[(i - start) * c : (i - start) * c + c]
                if a.hard and y[i] == a.ignore:
                    row[:] = ZERO
                    continue
                by = F(a.scale) * (grad[i] if a.each else ONE)
                _by_logits(row, q[r * c : r * c + c], log_q[r * c : r * c + c], F(sum_of(row)), by)
            if not in_place:
                _copy_rows(
                    result,
                    a.result_outer,
                    a.result_class,
                    a.result_inner,
                    a.result_step,
                    c,
                    start,
                    stop,
                    slopes,
                    False,
                )
        part, first, last = next_part(record, a.parts, a.count)


@exactly
def _by_logits(slopes, q, miss, total, by):
    """Turn the slopes by log q into those by z: d log q_j / d z_k = [j = k] - q_k."""
    for j in range(slopes.size):
        # Not q total - slope, which cancels where q is next to 1.
        slopes[j] = by * (q[j] * (total - slopes[j]) - slopes[j] * miss[j])
