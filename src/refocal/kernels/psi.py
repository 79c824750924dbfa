"""psi and its logarithm as machine code: one read of the scores, one write, in either precision.

The formulas are those of `refocal.focal`. Sums over a row are in double precision; what takes long is done
over all entries of several rows at a time, since the end of a short row would not be vectorised. A row in
which one class is too far ahead of all others, or that has a NaN, is left to the caller: it is filled with
NaN and counted.
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from refocal.kernels import entries as e
from refocal.kernels import real
from refocal.kernels.entries import ONE, SOME, ZERO, F, body, exactly, wide
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
from refocal.kernels.tiles import gathered, hold, memory, memory_of_doubles, put_back

MINUS_INFINITY = F(-np.inf)


MANY = SOME // 4
"""How many rows are worked on at a time at most: memory for `SOME` numbers is shared by four of each row."""


# Entries of several rows


@exactly
def _whole_phi(q, neg_log_q, gamma, phi):
    """Fill phi for gamma 1 or 2."""
    wide()
    for j in range(q.size):
        miss = ONE - q[j]
        x = miss + gamma * (q[j] * neg_log_q[j] if q[j] > ZERO else ZERO)  # 0 for a masked class
        phi[j] = x if gamma == ONE else x * miss


@exactly
def _any_phi(q, neg_log_q, gamma, phi):
    """Fill phi for a gamma of its own for each entry."""
    wide()
    for j in range(q.size):
        miss = ONE - q[j]
        x = miss + gamma[j] * (q[j] * neg_log_q[j] if q[j] > ZERO else ZERO)
        phi[j] = x * real.exp((gamma[j] - ONE) * real.log(miss))


@exactly
def _subtract_logs(t, phi):
    wide()
    for j in range(t.size):
        t[j] -= real.log(phi[j])


@exactly
def _log_shares(shares, t):
    """Fill t with logarithms, -inf for 0."""
    wide()
    for j in range(t.size):
        x = real.log(shares[j])
        t[j] = x if shares[j] > ZERO else MINUS_INFINITY


# One number of each row


@exactly
def _of_rows(rests, gammas, least, logarithm, shares, log_sums, log_phis):
    """Fill the share of the top, the log of the sum, and log phi of the top, or phi by the share.

    All from what the others have against the top; NaN where that is too small.
    """
    wide()
    for r in range(rests.size):
        fits = rests[r] > least and rests[r] < np.inf
        rest = rests[r] if fits else 1.0
        log_sum = real.log1p(rest)
        gamma = gammas[r]
        log_phi = gamma * (real.log(rest) - log_sum) + real.log1p(gamma * log_sum / rest)
        result = log_phi if logarithm else real.exp(log_phi) * (1.0 + rest)
        shares[r], log_sums[r] = 1.0 / (1.0 + rest), log_sum
        log_phis[r] = result if fits else np.nan


@exactly
def _last_of_rows(rests, logarithm, result):
    """Fill what is subtracted from each row, or what it is multiplied by."""
    wide()
    for r in range(rests.size):
        result[r] = real.log1p(rests[r]) if logarithm else 1.0 / rests[r]


# A row


@exactly
def _divide(row, top, result):
    """Fill result with row / top, exactly 1 at the top; return the smallest."""
    smallest = row[0]
    for j in range(row.size):
        result[j] = row[j] / top
        smallest = min(smallest, row[j])
    return smallest


@exactly
def set_scores(t, share, log_sum, q, neg_log_q):
    """Turn what classes have against the top into their scores; fill -log of these."""
    for j in range(t.size):
        q[j] *= share
        neg_log_q[j] = log_sum - t[j]


@exactly
def _differences(t, q, share, log_phi):
    """Turn log h into its difference to that of the top, which nothing may exceed by rounding."""
    for j in range(t.size):
        x = t[j] + log_phi
        x = ZERO if x > ZERO else x
        t[j] = x if q[j] != share else ZERO


@exactly
def _own_differences(t, log_phi, k, shifts):
    """The same where each class has a gamma or a weight of its own: the top need not stay the largest."""
    for j in range(t.size):
        t[j] += log_phi + shifts[j]
    t[k] = shifts[k]
    largest = e.largest(t)
    for j in range(t.size):
        t[j] -= largest


@exactly
def _ratios(q, phi, share, by, t):
    """Fill t with h against that of the top."""
    for j in range(t.size):
        x = q[j] / phi[j] * by
        x = ONE if x > ONE else x
        t[j] = x if q[j] != share else ONE


@exactly
def _own_ratios(q, phi, by, k, factors, t):
    for j in range(t.size):
        t[j] = q[j] / phi[j] * by * factors[j]
    t[k] = factors[k]


@exactly
def multiply(row, by, result):
    """Fill result with row times a number."""
    for j in range(row.size):
        result[j] = row[j] * by


@body
def _run(record, a, z, result, run, t, q, work, phi, gammas, shifts, numbers, of_rows):
    """Fill the result, part by part."""
    c, parts, count, logarithm, own = a.c, a.parts, a.count, a.logarithm, a.own
    sums, of_class = carray(doubles(a.sums), (parts, 3)), carray(doubles(a.of_class), (2, c))
    in_place = a.result_inner == 1 and a.result_outer == c and a.result_class == 1
    step = max(1, min(MANY, SOME // c))
    shares, log_sums, log_phis = (
        view(numbers, 0, MANY),
        view(numbers, MANY, 2 * MANY),
        view(numbers, 2 * MANY, 3 * MANY),
    )
    rests, gammas_of_top, tops = (
        view(of_rows, 0, MANY),
        view(of_rows, MANY, 2 * MANY),
        view(of_rows, 2 * MANY, 3 * MANY),
    )
    largest = view(of_rows, 3 * MANY, of_rows.size)
    for j in range(min(count, step) * c):
        gammas[j] = of_class[0, j % c] if own else a.gamma
    for j in range(c):
        shift = of_class[1, j] if own else 0.0
        shifts[j] = shift if logarithm else math.exp(shift)
    gammas_of_top[:] = a.gamma
    part, first, last = next_part(record, parts, count)
    while part < parts:
        left, doubtful = 0.0, 0.0
        for start in range(first, last, step):
            stop = min(start + step, last)
            x = gathered(z, a.z_outer, a.z_class, a.z_inner, a.z_step, c, start, stop, run)
            n, m = x.size, stop - start
            # The scores were read: their copy may be overwritten.
            out = view(result, start * c, stop * c) if in_place else view(run, 0, n)
            for r in range(m):
                i = r * c
                row = view(x, i, i + c)
                top = e.largest(row)
                largest[r] = top
                if a.scores and _divide(row, top, view(q, i, i + c)) < ZERO:
                    q[i] = np.nan
                elif not a.scores:
                    e.subtract(row, top, view(t, i, i + c))
            if a.scores:
                _log_shares(view(q, 0, n), view(t, 0, n))
            else:
                real.exps(view(t, 0, n), q)
            for r in range(m):
                rests[r] = e.rest_of(view(q, r * c, r * c + c))
                if a.scores and not abs(largest[r] * (1.0 + rests[r]) - 1.0) <= a.tolerance:
                    doubtful += 1.0
                if own:
                    k = 0
                    while k < c - 1 and q[r * c + k] != ONE:
                        k += 1
                    tops[r], gammas_of_top[r] = k, of_class[0, k]
            _of_rows(view(rests, 0, m), gammas_of_top, a.least, logarithm, shares, log_sums, log_phis)
            for r in range(m):
                i = r * c
                set_scores(view(t, i, i + c), shares[r], log_sums[r], view(q, i, i + c), view(work, i, i + c))
            if not own and (a.gamma == 1.0 or a.gamma == 2.0):
                _whole_phi(view(q, 0, n), work, gammas[0], phi)
            else:
                _any_phi(view(q, 0, n), work, gammas, phi)
            if logarithm:
                _subtract_logs(view(t, 0, n), phi)
            for r in range(m):
                i = r * c
                h, k = view(t, i, i + c), int(tops[r]) if own else 0
                if logarithm and own:
                    _own_differences(h, log_phis[r], k, shifts)
                elif logarithm:
                    _differences(h, view(q, i, i + c), shares[r], log_phis[r])
                elif own:
                    _own_ratios(view(q, i, i + c), view(phi, i, i + c), log_phis[r], k, shifts, h)
                else:
                    _ratios(view(q, i, i + c), view(phi, i, i + c), shares[r], log_phis[r], h)
            if logarithm:
                real.exps(view(t, 0, n), work)
            for r in range(m):
                i = r * c
                rests[r] = e.rest_of(view(work, i, i + c)) if logarithm else e.sum_of(view(t, i, i + c))
            _last_of_rows(view(rests, 0, m), logarithm, shares)
            for r in range(m):
                i = r * c
                if logarithm:
                    e.subtract(view(t, i, i + c), shares[r], view(out, i, i + c))
                else:
                    multiply(view(t, i, i + c), shares[r], view(out, i, i + c))
                if not rests[r] < math.inf:
                    left += 1.0
                    out[i : i + c] = np.nan
            if not in_place:
                put_back(a, result, c, start, stop, out)
        sums[part, 0], sums[part, 1] = left, doubtful
        part, first, last = next_part(record, parts, count)


FIELDS = {
    "c": INT,
    "z": ROWS,
    "scores": INT,
    "tolerance": REAL,
    "least": REAL,
    "gamma": REAL,
    "own": INT,
    "of_class": INT,
    "logarithm": INT,
    "result": ROWS,
}
"""How many classes; logits, or ``scores`` of rows with sum 1, and how far from it the sum may be before a row
is doubtful; the share of the others, against the top, below which a row is left to the caller; gamma, or
whether each class has its ``own``, and where gammas are and, behind them, what is added to log h of each
class; whether the logarithm is wanted, and where it goes."""


@kernel(**FIELDS)
def psi_of_floats(record):
    """Psi in single precision; its sums are the numbers of rows that are left to the caller, and doubtful."""
    a = carray(record, 1)[0]
    heap = np.empty(7 * a.c if a.c > SOME else 0, np.float32)
    at = heap.ctypes.data
    _run(
        record,
        a,
        carray(floats(a.z), ENDLESS),
        carray(floats(a.result), ENDLESS),
        memory(stack(), at, 0, a.c),
        memory(stack(), at, 1, a.c),
        memory(stack(), at, 2, a.c),
        memory(stack(), at, 3, a.c),
        memory(stack(), at, 4, a.c),
        memory(stack(), at, 5, a.c),
        memory(stack(), at, 6, a.c),
        carray(stack(), SOME),
        carray(stack_of_doubles(), SOME),
    )
    hold(heap)


@kernel(**FIELDS)
def psi_of_doubles(record):
    """Psi in double precision."""
    a = carray(record, 1)[0]
    heap = np.empty(7 * a.c if a.c > SOME else 0, np.float64)
    at = heap.ctypes.data
    _run(
        record,
        a,
        carray(doubles(a.z), ENDLESS),
        carray(doubles(a.result), ENDLESS),
        memory_of_doubles(stack_of_doubles(), at, 0, a.c),
        memory_of_doubles(stack_of_doubles(), at, 1, a.c),
        memory_of_doubles(stack_of_doubles(), at, 2, a.c),
        memory_of_doubles(stack_of_doubles(), at, 3, a.c),
        memory_of_doubles(stack_of_doubles(), at, 4, a.c),
        memory_of_doubles(stack_of_doubles(), at, 5, a.c),
        memory_of_doubles(stack_of_doubles(), at, 6, a.c),
        carray(stack_of_doubles(), SOME),
        carray(stack_of_doubles(), SOME),
    )
    hold(heap)
