"""The inverse of psi as machine code: Newton's method of `refocal.minimizer`, some rows at a time.

x is log q minus that of the top class, which is that of the posterior. A row in which one class is too far
ahead of all others, or that has a NaN, is left to the caller: it is filled with NaN and counted.
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from refocal.kernels import entries as e
from refocal.kernels import real
from refocal.kernels.entries import ONE, SOME, ZERO, F, body, exactly, in_any_order, wide
from refocal.kernels.machine import (
    ENDLESS,
    INT,
    REAL,
    ROWS,
    doubles,
    floats,
    kernel,
    next_part,
    stack,
    stack_of_doubles,
    view,
)
from refocal.kernels.psi import MANY, multiply, set_scores
from refocal.kernels.tiles import gathered, hold, memory, memory_of_doubles, put_back

FLOOR = F(-1e5)
"""In place of log 0: finite, and exp of it is 0 in every precision."""

HALF, TWO = F(0.5), F(2)


# Entries of several rows


@exactly
def _logs(shares, a):
    """Fill a with logarithms."""
    wide()
    for j in range(a.size):
        x = real.log(shares[j])
        a[j] = x if shares[j] > ZERO else FLOOR


@exactly
def _whole_slopes(x, q, neg_log_q, a, gamma, r, g):
    """Fill r with log h - log eta but for the top's part, and g with d log q / d log h; gamma is 1 or 2."""
    wide()
    for j in range(x.size):
        miss = ONE - q[j]
        hit = gamma * (q[j] * neg_log_q[j])
        near = miss + hit
        r[j] = x[j] - a[j] - real.log(near if gamma == ONE else near * miss)
        g[j] = near * miss / (miss * (miss + TWO * gamma * q[j]) + (gamma - ONE) * q[j] * hit)


@exactly
def _any_slopes(x, q, neg_log_q, a, gamma, r, g):
    """The same for any gamma."""
    wide()
    for j in range(x.size):
        miss = ONE - q[j]
        hit = gamma * (q[j] * neg_log_q[j])
        near = miss + hit
        r[j] = x[j] - a[j] - real.log(near) - (gamma - ONE) * real.log(miss)
        g[j] = near * miss / (miss * (miss + TWO * gamma * q[j]) + (gamma - ONE) * q[j] * hit)


# One number of each row


@exactly
def _of_rows(rests, gamma, shares, log_sums, log_phis, slopes):
    """Fill the share of the top, the log of the sum, log phi of the top, and its d log q / d log h."""
    wide()
    for r in range(rests.size):
        rest = rests[r]
        log_sum = real.log1p(rest)
        ratio = log_sum / rest
        log_phis[r] = gamma * (real.log(rest) - log_sum) + real.log1p(gamma * ratio)
        slopes[r] = rest * (1.0 + gamma * ratio) / (rest + gamma * (2.0 + (gamma - 1.0) * ratio))
        shares[r], log_sums[r] = 1.0 / (1.0 + rest), log_sum


# A row


@exactly
def _divide(row, top, tiny, result):
    """Fill result with row / top; return how many are negative or too small for a logarithm, but not 0."""
    odd = 0
    for j in range(row.size):
        x = row[j] / top
        result[j] = x
        odd += 1 if x < tiny and x != ZERO else 0
    return odd


@exactly
def _first(row, value):
    k = 0
    while k < row.size - 1 and row[k] != value:
        k += 1
    return k


@exactly
def _begin(a, lift, slope, x):
    """Fill x by the larger of its two limits, see `refocal.minimizer`."""
    for j in range(a.size):
        far, near = a[j] + lift, a[j] * slope
        y = far if far > near else near
        x[j] = ZERO if y > ZERO else y


@in_any_order
def _weigh(q, g, r, log_phi):
    """Add the top's part to r; return the sums of q g and of q g r."""
    weight, total = ZERO, ZERO
    for j in range(q.size):
        r[j] += log_phi
        w = q[j] * g[j]
        weight += w
        total += w * r[j]
    return weight, total


@exactly
def _step(x, r, g, c, of_top, tolerance):
    """Go a step, and return how many entries went far."""
    moved = 0
    for j in range(x.size):
        size = abs(x[j])
        step = g[j] * (c - r[j]) - of_top
        low = -ONE - HALF * size
        step = low if step < low else step
        step = ONE if step > ONE else step
        x[j] += step
        moved += 1 if abs(step) > tolerance * (ONE + abs(x[j])) else 0
    return moved


@exactly
def _finish(shares, x):
    """Let nothing be above the top, and its equals be as large."""
    for j in range(x.size):
        y = ZERO if x[j] > ZERO else x[j]
        x[j] = ZERO if shares[j] == ONE else y


@body
def _run(record, u, eta, result, run, shares_of, a, x, q, work, r, g, numbers, of_rows):
    """Fill the result, part by part."""
    c, parts, count, gamma = u.c, u.parts, u.count, u.gamma
    sums = carray(doubles(u.sums), (parts, 3))
    in_place = u.result_inner == 1 and u.result_outer == c and u.result_class == 1
    step = max(1, min(MANY, SOME // c))
    shares, log_sums = view(numbers, 0, MANY), view(numbers, MANY, 2 * MANY)
    log_phis, fixed = view(numbers, 2 * MANY, 3 * MANY), view(numbers, 3 * MANY, 3 * MANY + 4)
    rests, slopes, tops = (
        view(of_rows, 0, MANY),
        view(of_rows, MANY, 2 * MANY),
        view(of_rows, 2 * MANY, 3 * MANY),
    )
    fixed[0], fixed[1] = gamma, u.tolerance
    numbers[3 * MANY + 4] = u.tiny
    # Near the uniform vector log h is linear in log q, with a slope that grows with gamma.
    odds, ratio = 1.0 / (c - 1), math.log(c) / (c - 1)
    slope = (1.0 + 2.0 * gamma * odds + gamma * (gamma - 1.0) * odds * ratio) / (1.0 + gamma * ratio)
    part, first, last = next_part(record, parts, count)
    while part < parts:
        left, doubtful = 0.0, 0.0
        for start in range(first, last, step):
            stop = min(start + step, last)
            p = gathered(eta, u.eta_outer, u.eta_class, u.eta_inner, u.eta_step, c, start, stop, run)
            n, m = p.size, stop - start
            out = view(result, start * c, stop * c) if in_place else view(run, 0, n)
            for i in range(0, n, c):
                top = e.largest(view(p, i, i + c))
                slopes[i // c] = top  # there is no slope yet
                if (
                    _divide(view(p, i, i + c), top, numbers[3 * MANY + 4], view(shares_of, i, i + c))
                    or not top > ZERO
                ):
                    shares_of[i] = np.nan
            _logs(view(shares_of, 0, n), view(a, 0, n))
            for k in range(m):
                i = k * c
                tops[k] = i + _first(view(shares_of, i, i + c), ONE)
                rest = e.rest_of(view(shares_of, i, i + c))
                doubtful += 0.0 if abs(slopes[k] * (1.0 + rest) - 1.0) <= u.sum_tolerance else 1.0
                rests[k] = rest if rest > u.least and rest < math.inf else (0.0 if rest == 0.0 else np.nan)
                # Of a sure label all other classes move up by the same amount.
                lift = (
                    (-gamma * math.log(rest) - math.log1p(gamma)) / (1.0 + gamma) if rest > u.least else 0.0
                )
                fixed[2], fixed[3] = max(lift, 0.0), 1.0 / slope
                _begin(view(a, i, i + c), fixed[2], fixed[3], view(x, i, i + c))
                x[int(tops[k])] = ZERO
            moved = 1
            for _ in range(u.steps):
                if moved == 0:
                    break
                moved = 0
                real.exps(view(x, 0, n), q)
                for k in range(m):
                    if rests[k] > 0.0:  # neither one-hot nor left out
                        rests[k] = max(e.rest_of(view(q, k * c, k * c + c)), u.least)
                _of_rows(view(rests, 0, m), gamma, shares, log_sums, log_phis, slopes)
                for k in range(m):
                    i = k * c
                    set_scores(
                        view(x, i, i + c), shares[k], log_sums[k], view(q, i, i + c), view(work, i, i + c)
                    )
                if gamma == 1.0 or gamma == 2.0:
                    _whole_slopes(view(x, 0, n), q, work, a, fixed[0], r, g)
                else:
                    _any_slopes(view(x, 0, n), q, work, a, fixed[0], r, g)
                for k in range(m):
                    if not rests[k] > 0.0:
                        continue
                    i, top = k * c, int(tops[k])
                    q[top], r[top], g[top] = ZERO, ZERO, ZERO
                    weight, total = _weigh(
                        view(q, i, i + c), view(g, i, i + c), view(r, i, i + c), log_phis[k]
                    )
                    fixed[2] = total / (weight + slopes[k] / (1.0 + rests[k]))
                    fixed[3] = slopes[k] * fixed[2]
                    moved += _step(
                        view(x, i, i + c), view(r, i, i + c), view(g, i, i + c), fixed[2], fixed[3], fixed[1]
                    )
                    x[top] = ZERO
            for i in range(0, n, c):
                _finish(view(shares_of, i, i + c), view(x, i, i + c))
            real.exps(view(x, 0, n), q)
            for k in range(m):
                i = k * c
                shares[k] = 1.0 / e.sum_of(view(q, i, i + c))
                if rests[k] >= 0.0:
                    multiply(view(q, i, i + c), shares[k], view(out, i, i + c))
                    if rests[k] == 0.0:
                        multiply(view(shares_of, i, i + c), shares_of[int(tops[k])], view(out, i, i + c))
                else:
                    left += 1.0
                    out[i : i + c] = np.nan
            if not in_place:
                put_back(u, result, c, start, stop, out)
        sums[part, 0], sums[part, 1] = left, doubtful
        part, first, last = next_part(record, parts, count)


FIELDS = {
    "c": INT,
    "eta": ROWS,
    "sum_tolerance": REAL,
    "least": REAL,
    "gamma": REAL,
    "tolerance": REAL,
    "tiny": REAL,
    "steps": INT,
    "result": ROWS,
}
"""How many classes; the posterior, and how far its sum may be from 1 before a row is doubtful; what all
others must have against the top; gamma; the relative step that is the last one; the smallest normal number;
how many steps there may be; where the scores go."""


@kernel(**FIELDS)
def minimizer_of_floats(record):
    """The minimiser in single precision; it sums up the rows left to the caller, and the doubtful ones."""
    u = carray(record, 1)[0]
    heap = np.empty(8 * u.c if u.c > SOME else 0, np.float32)
    at = heap.ctypes.data
    _run(
        record,
        u,
        carray(floats(u.eta), ENDLESS),
        carray(floats(u.result), ENDLESS),
        memory(stack(), at, 0, u.c),
        memory(stack(), at, 1, u.c),
        memory(stack(), at, 2, u.c),
        memory(stack(), at, 3, u.c),
        memory(stack(), at, 4, u.c),
        memory(stack(), at, 5, u.c),
        memory(stack(), at, 6, u.c),
        memory(stack(), at, 7, u.c),
        carray(stack(), SOME),
        carray(stack_of_doubles(), SOME),
    )
    hold(heap)


@kernel(**FIELDS)
def minimizer_of_doubles(record):
    """The minimiser in double precision."""
    u = carray(record, 1)[0]
    heap = np.empty(8 * u.c if u.c > SOME else 0, np.float64)
    at = heap.ctypes.data
    _run(
        record,
        u,
        carray(doubles(u.eta), ENDLESS),
        carray(doubles(u.result), ENDLESS),
        memory_of_doubles(stack_of_doubles(), at, 0, u.c),
        memory_of_doubles(stack_of_doubles(), at, 1, u.c),
        memory_of_doubles(stack_of_doubles(), at, 2, u.c),
        memory_of_doubles(stack_of_doubles(), at, 3, u.c),
        memory_of_doubles(stack_of_doubles(), at, 4, u.c),
        memory_of_doubles(stack_of_doubles(), at, 5, u.c),
        memory_of_doubles(stack_of_doubles(), at, 6, u.c),
        memory_of_doubles(stack_of_doubles(), at, 7, u.c),
        carray(stack_of_doubles(), SOME),
        carray(stack_of_doubles(), SOME),
    )
    hold(heap)
