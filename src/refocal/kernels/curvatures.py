"""Gradient and curvature of the focal loss as machine code: one pass over the scores, nothing allocated.

Plain functions of arrays, compiled by Numba on first use and kept on disk. They compute in float64 and write
in whatever precision the results have. `refocal.sklearn._gradients` has the formulas and the same in NumPy.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

SMALLEST_MISS = 1e-12
"""1 - q counts as no less in the curvature: at large gammas its powers would underflow."""


@njit(inline="always")
def _power(x, gamma):
    """Return x^gamma; whole and half numbers, the usual gammas, without a logarithm."""
    whole = math.floor(gamma)
    if whole > 8 or gamma - whole not in (0.0, 0.5):
        return x**gamma
    power = 1.0 if gamma == whole else math.sqrt(x)
    for _ in range(whole):
        power *= x
    return power


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def binary(z, y, sample_weight, gamma, of_one, of_zero, factor, bound, grad, hess):
    """Fill grad and hess, times factor, and return the sum of the losses."""
    total = 0.0
    weighted = sample_weight.size > 0
    for i in range(z.size):
        x = min(abs(np.float64(z[i])), 100.0)
        up = z[i] >= 0
        odds = math.exp(-x)
        large = 1.0 / (1.0 + odds)
        small = odds * large
        near = math.log1p(odds)  # -log of the larger score
        far = near + x
        p, miss = (large, small) if up else (small, large)
        log_p, log_miss = (near, far) if up else (far, near)
        a = miss + gamma * p * log_p
        b = p + gamma * miss * log_miss
        power_miss, power_p = _power(miss, gamma), _power(p, gamma)
        pull_up = of_one * power_miss * a
        pull_down = of_zero * power_p * b
        slope = gamma - p * miss * ((gamma * log_p - gamma - 1) / a + (gamma * log_miss - gamma - 1) / b)
        weight = factor * np.float64(sample_weight[i]) if weighted else factor
        if y[i] > 0.5:
            pull = pull_up
            grad[i] = -weight * pull
            total += weight * of_one * power_miss * log_p
        else:
            pull = pull_down
            grad[i] = weight * pull
            total += weight * of_zero * power_p * log_miss
        hess[i] = weight * max(slope * (pull_up * pull_down / (pull_up + pull_down)), bound * pull)
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def softmax(z, y, sample_weight, gamma, class_weight, factor, damping, bound, grad, hess):
    """Fill grad and hess, times factor, and return the sum of the losses."""
    n, k = z.shape
    q, r = np.empty(k), np.empty(k)
    total = 0.0
    weighted = sample_weight.size > 0
    for i in range(n):
        top = 0
        for j in range(k):
            if z[i, j] > z[i, top]:
                top = j
        largest = np.float64(z[i, top])
        others = 0.0
        for j in range(k):
            q[j] = math.exp(np.float64(z[i, j]) - largest)
            if j != top:
                others += q[j]
        log_total = math.log1p(others)
        top_miss = others / (1.0 + others)
        for j in range(k):
            q[j] /= 1.0 + others

        sum_h, sum_r = 0.0, 0.0  # of all classes; of all but the top one
        for j in range(k):
            log_q = log_total - (np.float64(z[i, j]) - largest)
            miss = max(top_miss if j == top else 1.0 - q[j], SMALLEST_MISS)
            a = miss + gamma * q[j] * log_q
            sum_h += q[j] * miss / (class_weight[j] * _power(miss, gamma) * a)
            r[j] = q[j] * (1 + (gamma - 1) * q[j] / miss - q[j] * (gamma * log_q - gamma - 1) / a)
            if j != top:
                sum_r += r[j]

        label = int(y[i])
        weight = factor * np.float64(sample_weight[i]) if weighted else factor
        log_q = log_total - (np.float64(z[i, label]) - largest)
        miss = top_miss if label == top else 1.0 - q[label]
        power = _power(miss, gamma)
        total += weight * class_weight[label] * power * log_q
        phi = power + (gamma * q[label] * log_q * power / miss if miss > 0 else 0.0)
        for j in range(k):
            own = miss if j == label else -q[j]
            slope = class_weight[label] * phi * own
            grad[i, j] = -weight * slope
            miss_j = top_miss if j == top else 1.0 - q[j]
            rest = sum_r if j == top else sum_r + r[top] - r[j]
            mean = damping * (r[j] * miss_j * miss_j + q[j] * q[j] * rest) / sum_h
            hess[i, j] = weight * max(mean, bound * abs(slope))
    return total
