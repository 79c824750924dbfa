"""The sums of a fit of psi after a temperature as machine code: the NLL, its slopes, the Fisher information.

The formulas are those of `refocal.calibration._search.psi_nll_at`, in double precision; the top class of each
row is added by itself, from what the others have together.
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from refocal.kernels import real
from refocal.kernels.entries import SOME, body, entry, exactly, in_any_order, largest, wide
from refocal.kernels.machine import (
    ENDLESS,
    INT,
    REAL,
    ROWS,
    doubles,
    floats,
    integers,
    kernel,
    next_part,
    stack,
    stack_of_doubles,
    view,
)
from refocal.kernels.tiles import gathered, hold, memory, memory_of_doubles

MASKED = -1e9
"""In place of a t of -inf: finite, and far below all others."""


@exactly
def _top(row):
    """Return the first of the largest."""
    top, k = largest(row), 0
    while k < row.size - 1 and row[k] != top:
        k += 1
    return k


@exactly
def _scaled(row, top, b, t):
    for j in range(row.size):
        x = (np.float64(row[j]) - top) * b
        t[j] = MASKED if x < MASKED else x


@in_any_order
def _shares(t, second, f):
    """Fill f with what the classes have against the second; return their sum, and that of t times it."""
    wide()
    total, of_t = 0.0, 0.0
    for j in range(t.size):
        x = real.exp(t[j] - second)
        f[j] = x
        total += x
        of_t += x * t[j]
    return total, of_t


@entry
def _log_h(t, f, share, log_total, mean_t, gamma):
    """Return log h of a class below the top, and its slopes by log b and gamma."""
    q = f * share
    miss = 1.0 - q
    odds = q / miss
    log_rest = real.log(miss)
    ratio = odds * (log_total - t)
    bend = 1.0 + gamma * ratio
    by = 1.0 / bend
    by_log_q = (1.0 + 2.0 * gamma * odds + gamma * (gamma - 1.0) * odds * ratio) * by
    return t - gamma * log_rest - real.log(bend), by_log_q * (t - mean_t), -log_rest - ratio * by


@in_any_order
def _weigh(t, f, share, log_total, mean_t, gamma, a_top, b_top, g_top):
    """Return the sums of psi, by that of the top, and of psi times the slopes of log h.

    They are slopes against those of the top: so nothing cancels in a variance where it has nearly everything.
    Nothing is written: a loop over so many arrays, which might overlap, would not be vectorised.
    """
    wide()
    s, sb, sg, sbb, sbg, sgg = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(t.size):
        x, b, g = _log_h(t[j], f[j], share, log_total, mean_t, gamma)
        psi, b, g = real.exp(x - a_top), b - b_top, g - g_top
        s += psi
        sb += psi * b
        sg += psi * g
        sbb += psi * b * b
        sbg += psi * b * g
        sgg += psi * g * g
    return s, sb, sg, sbb, sbg, sgg


@body
def _run(record, u, z, run, t, f):
    c, parts, count, gamma = u.c, u.parts, u.count, u.gamma
    labels, out = carray(integers(u.labels), count), carray(doubles(u.out), (parts, 6))
    step = max(1, SOME // c)
    part, first, last = next_part(record, parts, count)
    while part < parts:
        total = out[part]
        for start in range(first, last, step):
            stop = min(start + step, last)
            x = gathered(z, u.z_outer, u.z_class, u.z_inner, u.z_step, c, start, stop, run)
            for r in range(start, stop):
                row, y = view(x, (r - start) * c, (r - start) * c + c), labels[r]
                k = _top(row)
                _scaled(row, np.float64(row[k]), u.b, view(t, 0, c))
                t[k] = -math.inf
                second = largest(view(t, 0, c))
                t[k] = 2.0 * MASKED  # its share is 0, even if all others are masked
                share, of_t = _shares(view(t, 0, c), second, view(f, 0, c))
                log_odds = math.log(share) + second
                rest = math.exp(log_odds)  # (1 - q) / q of the top
                log_total = math.log1p(rest)
                mean_t = of_t / share / (1.0 + rest)  # times rest, it is the mean of all
                log_rest = log_odds - log_total
                ratio = log_total / rest if rest > 0.0 else 1.0
                bend = 1.0 + gamma * ratio
                a_top = -gamma * log_rest - math.log(bend)
                b_top = -(rest + gamma * (2.0 + (gamma - 1.0) * ratio)) / bend * mean_t
                g_top = -log_rest - ratio / bend
                by, mean_t = math.exp(second - log_total), rest * mean_t
                s, sb, sg, sbb, sbg, sgg = _weigh(
                    view(t, 0, c), view(f, 0, c), by, log_total, mean_t, gamma, a_top, b_top, g_top
                )
                s += 1.0
                sb, sg = sb / s, sg / s
                total[0] += math.log(s)
                total[1] += sb
                total[2] += sg
                total[3] += sbb / s - sb * sb
                total[4] += sbg / s - sb * sg
                total[5] += sgg / s - sg * sg
                if y != k:
                    a, b, g = _log_h(t[y], f[y], by, log_total, mean_t, gamma)
                    total[0] -= a - a_top
                    total[1] -= b - b_top
                    total[2] -= g - g_top
        part, first, last = next_part(record, parts, count)


FIELDS = {"c": INT, "z": ROWS, "labels": INT, "b": REAL, "gamma": REAL, "out": INT}
"""How many classes, the logits, a label for each row, b, gamma, and where six sums of each part go: that of
the NLL, of its slopes by log b and gamma, and of the three entries of the Fisher information."""


@kernel(**FIELDS)
def fits_of_floats(record):
    """The sums of logits in single precision."""
    u = carray(record, 1)[0]
    heap = np.empty(3 * u.c if u.c > SOME else 0, np.float64)
    at = heap.ctypes.data
    _run(
        record,
        u,
        carray(floats(u.z), ENDLESS),
        memory(stack(), at, 0, u.c),
        memory_of_doubles(stack_of_doubles(), at, 1, u.c),
        memory_of_doubles(stack_of_doubles(), at, 2, u.c),
    )
    hold(heap)


@kernel(**FIELDS)
def fits_of_doubles(record):
    """The sums of logits in double precision."""
    u = carray(record, 1)[0]
    heap = np.empty(3 * u.c if u.c > SOME else 0, np.float64)
    at = heap.ctypes.data
    _run(
        record,
        u,
        carray(doubles(u.z), ENDLESS),
        memory_of_doubles(stack_of_doubles(), at, 0, u.c),
        memory_of_doubles(stack_of_doubles(), at, 1, u.c),
        memory_of_doubles(stack_of_doubles(), at, 2, u.c),
    )
    hold(heap)
