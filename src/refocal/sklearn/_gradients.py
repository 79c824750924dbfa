r"""Gradient and curvature of the focal loss in closed form, for linear models and boosted trees.

Two classes, one score z, p = sigmoid(z), weights w_1 and w_0. The two labels pull with

.. math::
    a = w_1 (1-p)^\gamma (1 - p - \gamma p \log p), \qquad b = w_0 p^\gamma (p - \gamma (1-p) \log(1-p))

so the gradient is -a for y = 1 and b for y = 0. The second derivative of the loss itself is negative where
the model is confidently wrong. Its mean over labels drawn from the posterior eta = b / (a + b) that belongs
to z is positive, and no sum is needed: it is kappa a b / (a + b), where kappa, the derivative of the
log-odds of eta by z, is

.. math::
    \kappa = \gamma + p (1-p) \left(\frac{1 + \gamma + \gamma \log p}{1 - p - \gamma p \log p}
        + \frac{1 + \gamma + \gamma \log(1-p)}{p - \gamma (1-p) \log(1-p)}\right).

K classes, q = softmax(z), weights w. The gradient is w_y phi(q_y) (q - e_y), whose entries sum to 0. The
diagonal of the same mean curvature is, with r_y = q_y d log h(q_y) / d log q_y,

.. math:: H_{ii} = \sum_y r_y (q_i - [i = y])^2 \Big/ \sum_y h(q_y) / w_y.

At gamma 0 both are p (1-p) times the weights of the classes, mixed.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

SMALLEST_MISS = 1e-12
"""1 - q counts as no less in the curvature of several classes: at large gammas its powers would underflow."""


@functools.cache
def kernels() -> Any:
    """Return the functions `binary` and `softmax`: machine code where Numba can be used, else NumPy."""
    try:
        import numba

        if not numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            from refocal.kernels import curvatures

            return curvatures
    except (ImportError, RuntimeError):  # not installed, or no folder to keep compiled code in
        pass
    return in_numpy


def binary(
    z: Floats,
    y: Floats,
    sample_weight: Floats,
    gamma: float,
    of_one: float,
    of_zero: float,
    factor: float,
    bound: float,
    grad: Floats,
    hess: Floats,
) -> float:
    """Fill gradient and mean curvature of a binary focal loss and return the sum of the losses.

    Args:
        z: A score for each row.
        y: 0 or 1 for each row, as any number.
        sample_weight: A number >= 0 for each row, or an empty array.
        gamma: A number >= 0.
        of_one: The weight of y = 1.
        of_zero: The weight of y = 0.
        factor: Multiplies everything.
        bound: The curvature is at least this many times the size of the gradient.
        grad: Where the gradient goes.
        hess: Where the curvature goes.
    """
    x = np.minimum(np.abs(z, dtype=np.float64), 100.0)
    odds = np.exp(-x)
    large = 1 / (1 + odds)
    small, near = odds * large, np.log1p(odds)
    up, far = z >= 0, near + x
    p, miss = np.where(up, large, small), np.where(up, small, large)
    log_p, log_miss = np.where(up, near, far), np.where(up, far, near)  # with the opposite sign
    a, b = miss + gamma * p * log_p, p + gamma * miss * log_miss
    power_miss, power_p = miss**gamma, p**gamma
    pull_up, pull_down = of_one * power_miss * a, of_zero * power_p * b
    slope = gamma - p * miss * ((gamma * log_p - gamma - 1) / a + (gamma * log_miss - gamma - 1) / b)
    weight = factor * sample_weight if sample_weight.size else factor
    is_one = y > 0.5
    pull = np.where(is_one, -pull_up, pull_down)
    grad[:] = weight * pull
    hess[:] = weight * np.maximum(slope * (pull_up * pull_down / (pull_up + pull_down)), bound * np.abs(pull))
    losses = weight * np.where(is_one, of_one * power_miss * log_p, of_zero * power_p * log_miss)
    return float(losses.sum())


def softmax(
    z: Floats,
    y: Floats,
    sample_weight: Floats,
    gamma: float,
    class_weight: Floats,
    factor: float,
    damping: float,
    bound: float,
    grad: Floats,
    hess: Floats,
) -> float:
    """Fill gradient and mean curvature of a softmax focal loss and return the sum of the losses.

    Args:
        z: Scores, a row for each sample and a column for each class.
        y: The label 0..K-1 of each row, as any number.
        sample_weight: A number >= 0 for each row, or an empty array.
        gamma: A number >= 0.
        class_weight: A number > 0 for each class.
        factor: Multiplies everything.
        damping: Multiplies the curvature.
        bound: The curvature is at least this many times the size of the gradient.
        grad: Where the gradient goes.
        hess: Where the curvature goes.
    """
    rows, label = np.arange(len(z)), y.astype(np.int64)
    top = z.argmax(axis=1)
    x = z.astype(np.float64)
    x -= x[rows, top, None]
    q = np.exp(x)
    q[rows, top] = 0
    others = q.sum(axis=1, keepdims=True)
    q[rows, top] = 1
    q /= 1 + others
    log_q = np.log1p(others) - x  # with the opposite sign
    exact_miss = 1 - q
    exact_miss[rows, top] = (others / (1 + others))[:, 0]
    miss = np.maximum(exact_miss, SMALLEST_MISS)
    a = miss + gamma * q * log_q
    sum_h = (q * miss / (class_weight * miss**gamma * a)).sum(axis=1, keepdims=True)
    r = q * (1 + (gamma - 1) * q / miss - q * (gamma * log_q - gamma - 1) / a)
    top_r = r[rows, top, None]
    r[rows, top] = 0
    sum_r = r.sum(axis=1, keepdims=True)
    rest = sum_r + top_r - r
    rest[rows, top] = sum_r[:, 0]
    r[rows, top] = top_r[:, 0]
    weight = factor * sample_weight if sample_weight.size else np.full(len(z), factor)
    mean = damping * (r * exact_miss**2 + q**2 * rest) / sum_h

    miss_y, q_y, log_q_y = exact_miss[rows, label], q[rows, label], log_q[rows, label]
    power = miss_y**gamma
    ratio = np.divide(power, miss_y, out=np.zeros_like(power), where=miss_y > 0)
    q[rows, label] = -miss_y
    slopes = (class_weight[label] * (power + gamma * q_y * log_q_y * ratio))[:, None] * q
    grad[:] = weight[:, None] * slopes
    hess[:] = weight[:, None] * np.maximum(mean, bound * np.abs(slopes))
    return float((weight * class_weight[label] * power * log_q_y).sum())


in_numpy = SimpleNamespace(binary=binary, softmax=softmax)
