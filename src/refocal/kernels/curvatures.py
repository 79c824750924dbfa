"""Gradient and curvature of the focal loss as machine code, some rows at a time, nothing kept.

Plain functions of arrays, compiled by Numba on first use and kept on disk. They compute in float64, for
linear models need it, and write in whatever precision the results have. Powers, exponentials and logarithms
are polynomials, so that all loops over rows are vectorised; each loop has few arrays, since those of many
are not. `refocal.sklearn._gradients` has the formulas and the same in NumPy.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from refocal.kernels.entries import entry, wide
from refocal.kernels.real import SHIFT, exponent, mantissa, two_to_the

SMALLEST_MISS = 1e-12
"""1 - q and -log q count as no less in the curvature: at large gammas powers of them would underflow."""

SOME = 256
"""Rows worked on at a time: all their numbers stay in the cache."""

TOO_SMALL = -708.0
"""The exponential of anything below counts as 0: it is not a normal number."""

LOG_2 = 0.693145751953125, 1.4286068203094173e-06
"""log 2 in two parts: the product of a whole number with the first one is exact."""

OF_EXP = tuple(1 / math.factorial(n) for n in range(12, 0, -1))
"""(e^r - 1) / r for |r| <= log(2) / 2, 2e-16 off at most."""

OF_LOG1P = tuple(2 / (2 * n + 1) for n in range(15, -1, -1))
"""log(1 + x) = s times this polynomial of s^2, s = x / (2 + x), 2e-17 off at most for x in [0, 1]."""

loop = njit(error_model="numpy", fastmath={"contract"})
whole = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})


@entry
def _exp(x):
    """Return e^x for x <= 0."""
    shifted = x * 1.4426950408889634 + SHIFT
    n = shifted - SHIFT
    r = (x - n * LOG_2[0]) - n * LOG_2[1]
    p = OF_EXP[0]
    for c in OF_EXP[1:]:
        p = p * r + c
    y = (p * r + 1.0) * two_to_the(shifted)
    return 0.0 if x < TOO_SMALL else y


@entry
def _log1p(x):
    """Return log(1 + x) for x in [0, 1]."""
    s = x / (2.0 + x)
    square = s * s
    p = OF_LOG1P[0]
    for c in OF_LOG1P[1:]:
        p = p * square + c
    return p * s


@entry
def _log(x):
    """Return log x for a normal x > 0, right to 1e-16 of 1 or of the result, whichever is larger."""
    n = exponent(x)
    return n * LOG_2[0] + (n * LOG_2[1] + _log1p(mantissa(x) - 1.0))


@njit(error_model="numpy", fastmath={"contract", "reassoc"})
def _sum(x):
    """Return a sum, in whatever order is fast."""
    result = 0.0
    for i in range(x.size):
        result += x[i]
    return result


@loop
def _times_weights(result, factor, sample_weight):
    """Multiply by the rows' weights and a factor; an empty array is no weights."""
    if sample_weight.size:
        for i in range(result.size):
            result[i] *= factor * np.float64(sample_weight[i])
    else:
        for i in range(result.size):
            result[i] *= factor


@loop
def _put(x, result):
    for i in range(result.size):
        result[i] = x[i]


# Two classes


@loop
def _binary_pulls(z, y, gamma, of_one, of_zero, bound, work):
    """Fill work: gradients, from SOME on curvatures, from 2 SOME on losses."""
    wide()
    for i in range(z.size):
        x = min(abs(np.float64(z[i])), 100.0)
        up = z[i] >= 0
        odds = _exp(-x)
        large = 1.0 / (1.0 + odds)
        small = odds * large
        near = _log1p(odds)  # -log of the larger score
        far = near + x
        p = large if up else small
        miss = small if up else large
        log_p = near if up else far
        log_miss = far if up else near
        a = miss + gamma * p * log_p
        b = p + gamma * miss * log_miss
        power_miss, power_p = of_one * _exp(-gamma * log_miss), of_zero * _exp(-gamma * log_p)
        pull_up, pull_down = power_miss * a, power_p * b
        slope = gamma - p * miss * ((gamma * log_p - gamma - 1) / a + (gamma * log_miss - gamma - 1) / b)
        mean = slope * (pull_up * pull_down / (pull_up + pull_down))
        one = y[i] > 0.5
        pull = pull_up if one else pull_down
        work[i] = -pull if one else pull
        work[i + SOME] = max(mean, bound * pull)
        work[i + 2 * SOME] = power_miss * log_p if one else power_p * log_miss


@whole
def binary(z, y, sample_weight, gamma, of_one, of_zero, factor, bound, grad, hess):
    """Fill grad and hess, times factor, and return the sum of the losses."""
    work = np.empty(3 * SOME)
    total = 0.0
    for first in range(0, z.size, SOME):
        last = min(first + SOME, z.size)
        weights = sample_weight[first:last] if sample_weight.size else sample_weight
        _binary_pulls(z[first:last], y[first:last], gamma, of_one, of_zero, bound, work)
        for j in range(3):
            _times_weights(work[j * SOME : j * SOME + last - first], factor, weights)
        _put(work[:SOME], grad[first:last])
        _put(work[SOME : 2 * SOME], hess[first:last])
        total += _sum(work[2 * SOME : 2 * SOME + last - first])
    return total


# Several classes. Each class has a run of SOME numbers in x, q and r; what rows have once is in ``rows``,
# each kind of number in a run of its own:

TOP, LARGEST, OTHERS, SHARE, LOG_TOTAL, SUM_H, SUM_R, TOP_R, LABEL, OF_LABEL, Q_Y, MISS_Y, LOG_Q_Y = range(
    0, 13 * SOME, SOME
)
PHI, WEIGHT = Q_Y, OF_LABEL
"""Where these come to stand, over numbers that are no longer needed."""


@loop
def _find_top(x, k, n, rows):
    for i in range(n):
        rows[i + TOP] = 0.0
        rows[i + LARGEST] = x[i]
    for j in range(1, k):
        x_j = x[j * SOME : j * SOME + n]
        for i in range(n):
            more = x_j[i] > rows[i + LARGEST]
            rows[i + TOP] = float(j) if more else rows[i + TOP]
            rows[i + LARGEST] = x_j[i] if more else rows[i + LARGEST]


@loop
def _exponentials(j, x_j, q_j, rows):
    """Make x relative to the top; fill q with exponentials and add them up, but for that of the top."""
    wide()
    for i in range(x_j.size):
        x = x_j[i] - rows[i + LARGEST]
        e = _exp(x)
        x_j[i] = x
        q_j[i] = e
        rows[i + OTHERS] += 0.0 if rows[i + TOP] == float(j) else e


@loop
def _totals(n, rows):
    wide()
    for i in range(n):
        others = rows[i + OTHERS]
        few = others < 1.0
        rows[i + SHARE] = 1.0 / (1.0 + others)
        rows[i + LOG_TOTAL] = _log1p(others if few else 0.0) if few else _log(1.0 + others)


@loop
def _ratios(j, x_j, q_j, r_j, gamma, class_weight, rows):
    """Make q a softmax, fill r, and add up h and r."""
    wide()
    for i in range(x_j.size):
        q = q_j[i] * rows[i + SHARE]
        log_q = max(rows[i + LOG_TOTAL] - x_j[i], SMALLEST_MISS)  # with the opposite sign, as in the formulas
        top = rows[i + TOP] == float(j)
        miss = max(rows[i + OTHERS] * rows[i + SHARE] if top else 1.0 - q, SMALLEST_MISS)
        a = miss + gamma * q * log_q
        r = q * (1 + (gamma - 1) * q / miss - q * (gamma * log_q - gamma - 1) / a)
        rows[i + SUM_H] += q * miss / (class_weight * _exp(gamma * min(_log(miss), 0.0)) * a)
        rows[i + SUM_R] += 0.0 if top else r
        rows[i + TOP_R] = r if top else rows[i + TOP_R]
        q_j[i] = q
        r_j[i] = r


@loop
def _read_labels(y, x, q, class_weight, rows):
    for i in range(y.size):
        label = int(y[i])
        rows[i + LABEL] = label
        rows[i + OF_LABEL] = class_weight[label]
        rows[i + Q_Y] = q[label * SOME + i]
        rows[i + LOG_Q_Y] = rows[i + LOG_TOTAL] - x[label * SOME + i]


@loop
def _label_terms(n, gamma, rows, losses):
    """Replace q of the label by phi, and keep what the gradient and the loss need."""
    wide()
    for i in range(n):
        q, log_q, w = rows[i + Q_Y], rows[i + LOG_Q_Y], rows[i + OF_LABEL]
        at_top = rows[i + LABEL] == rows[i + TOP]
        miss = rows[i + OTHERS] * rows[i + SHARE] if at_top else 1.0 - q
        some = miss > 1e-300
        safe = miss if some else 1.0
        power = _exp(gamma * min(_log(safe), 0.0))
        power = power if some else (1.0 if gamma == 0.0 else 0.0)
        rows[i + MISS_Y] = miss
        rows[i + PHI] = w * (power + (gamma * q * log_q * power / safe if some else 0.0))
        losses[i] = w * power * log_q


@loop
def _slopes(j, q_j, r_j, damping, bound, rows):
    """Replace q by gradients and r by curvatures."""
    wide()
    for i in range(q_j.size):
        q, r = q_j[i], r_j[i]
        top = rows[i + TOP] == float(j)
        own = rows[i + MISS_Y] if rows[i + LABEL] == float(j) else -q
        slope = rows[i + PHI] * own
        miss = rows[i + OTHERS] * rows[i + SHARE] if top else 1.0 - q
        rest = rows[i + SUM_R] if top else rows[i + SUM_R] + rows[i + TOP_R] - r
        mean = damping * (r * miss * miss + q * q * rest) / rows[i + SUM_H]
        q_j[i] = -rows[i + WEIGHT] * slope
        r_j[i] = rows[i + WEIGHT] * max(mean, bound * abs(slope))


@whole
def softmax(z, y, sample_weight, gamma, class_weight, factor, damping, bound, grad, hess):
    """Fill grad and hess, times factor, and return the sum of the losses."""
    k = z.shape[1]
    x, q, r = np.empty(k * SOME), np.empty(k * SOME), np.empty(k * SOME)
    rows, losses = np.empty(13 * SOME), np.empty(SOME)
    total = 0.0
    for first in range(0, z.shape[0], SOME):
        last = min(first + SOME, z.shape[0])
        n = last - first
        weights = sample_weight[first:last] if sample_weight.size else sample_weight
        for j in range(k):
            _put(z[first:last, j], x[j * SOME : j * SOME + n])
        _find_top(x, k, n, rows)
        rows[OTHERS : OTHERS + n] = 0.0
        rows[SUM_H : SUM_R + n] = 0.0
        for j in range(k):
            at, to = j * SOME, j * SOME + n
            _exponentials(j, x[at:to], q[at:to], rows)
        _totals(n, rows)
        for j in range(k):
            at, to = j * SOME, j * SOME + n
            _ratios(j, x[at:to], q[at:to], r[at:to], gamma, class_weight[j], rows)
        _read_labels(y[first:last], x, q, class_weight, rows)
        _label_terms(n, gamma, rows, losses)
        rows[WEIGHT : WEIGHT + n] = 1.0
        _times_weights(rows[WEIGHT : WEIGHT + n], factor, weights)
        _times_weights(losses[:n], factor, weights)
        total += _sum(losses[:n])
        for j in range(k):
            at, to = j * SOME, j * SOME + n
            _slopes(j, q[at:to], r[at:to], damping, bound, rows)
            _put(q[at:to], grad[first:last, j])
            _put(r[at:to], hess[first:last, j])
    return total
