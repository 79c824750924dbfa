r"""Gradient and curvature of every objective in closed form, in NumPy; `_gradients` has the focal ones, fast.

**On a softmax** a loss is f_y(q_y), or with smoothed labels v a sum of v_i f_i(q_i). With phi_i the
derivative of f_i by log q_i, sign changed, the gradient is

.. math:: \sum_i v_i \phi_i (q - e_i), \qquad \phi = w (1-q)^{\gamma-1} A, \quad
    A = 1 - q - \gamma q \log q + \epsilon (\gamma + 1) q (1-q)

for the focal loss (epsilon = 0) and Poly-1, and phi = q^k for the generalised cross entropy; its entries
sum to 0. The mean of the second derivatives over labels from the posterior, which is proportional to
h = q / phi, has the diagonal

.. math:: H_{jj} = \sum_i r_i (q_j - [i = j])^2 \Big/ \sum_i h_i, \qquad r_i = q_i \, d \log h_i / d \log q_i.

It is positive where every h_i rises with q_i, that is where f_i is convex. Smoothing mixes the labels; the
mean is then taken over labels from the posterior of the smoothed ones, which is the same wherever that
posterior can be one of smoothed labels at all.

**On a sigmoid** the two labels pull with a and b, and the mean is kappa a b / (a + b), where kappa is the
derivative of log(b / a) by the score. It is never negative where these log-odds rise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refocal._arrays import namespace
from refocal.objectives import Asymmetric, Focal, GeneralizedCrossEntropy, OneVsRest, Poly1Focal, SigmoidFocal

Floats = NDArray[np.floating[Any]]

SMALLEST_MISS = 1e-12
"""1 - q and -log q count as no less in the curvature of several classes: powers of them would underflow."""

CONVEX = (Focal, Poly1Focal, GeneralizedCrossEntropy)
"""Softmax objectives whose mean curvature is positive at all scores."""


def softmax_gradients(
    objective: Any,
    z: Floats,
    y: Floats,
    sample_weight: Floats,
    factor: float,
    damping: float,
    bound: float,
    grad: Floats,
    hess: Floats,
) -> float:
    """Fill gradient and mean curvature of a loss on a softmax and return the sum of the losses.

    Args:
        objective: One of `CONVEX`.
        z: Scores, a row for each sample and a column for each class.
        y: The label 0..K-1 of each row, as any number.
        sample_weight: A number >= 0 for each row, or an empty array.
        factor: Multiplies everything.
        damping: Multiplies the curvature.
        bound: The curvature is at least this many times the size of the gradient.
        grad: Where the gradient goes.
        hess: Where the curvature goes.
    """
    rows, top = np.arange(len(z)), z.argmax(axis=1)
    x = z.astype(np.float64)
    x -= x[rows, top, None]
    q = np.exp(x)
    q[rows, top] = 0
    others = q.sum(axis=1, keepdims=True)
    q[rows, top] = 1
    q /= 1 + others
    log_q = np.log1p(others) - x  # with the opposite sign
    miss = 1 - q
    miss[rows, top] = (others / (1 + others))[:, 0]

    smoothing = getattr(objective, "label_smoothing", 0.0)
    targets = np.full(z.shape, smoothing / z.shape[1])
    targets[rows, y.astype(np.int64)] += 1 - smoothing
    losses, phi, _, _ = _terms(objective, q, miss, log_q)
    pulls = targets * phi
    slopes = q * (pulls.sum(axis=1, keepdims=True) - pulls) - pulls * miss

    _, _, h, r = _terms(objective, q, *np.maximum((miss, log_q), SMALLEST_MISS))
    sum_h = h.sum(axis=1, keepdims=True)
    top_r = r[rows, top, None]
    r[rows, top] = 0
    sum_r = r.sum(axis=1, keepdims=True)
    rest = sum_r + top_r - r
    rest[rows, top] = sum_r[:, 0]
    r[rows, top] = top_r[:, 0]
    mean = damping * (r * miss**2 + q**2 * rest) / sum_h
    return add_up((targets * losses).sum(axis=1), slopes, mean, sample_weight, factor, bound, grad, hess)


def sigmoid_gradients(
    objective: Any,
    z: Floats,
    y: Floats,
    sample_weight: Floats,
    factor: float,
    bound: float,
    grad: Floats,
    hess: Floats,
) -> float:
    """Fill gradient and mean curvature of losses on sigmoids and return the sum of the losses.

    Args:
        objective: `refocal.Asymmetric` for a score of each row, or `refocal.OneVsRest` for K scores.
        z: Scores.
        y: The label of each row: 0 or 1, or 0..K-1.
        sample_weight: A number >= 0 for each row, or an empty array.
        factor: Multiplies everything.
        bound: The curvature is at least this many times the size of the gradient.
        grad: Where the gradient goes.
        hess: Where the curvature goes.
    """
    many = isinstance(objective, OneVsRest)
    binary: Any = objective.binary if many else objective
    targets = (y[:, None] == np.arange(z.shape[1]) if many else y > 0.5).astype(np.float64)
    if isinstance(binary, SigmoidFocal):
        targets = (1 - binary.label_smoothing) * targets + binary.label_smoothing / 2
        alpha = None if binary.alpha is None else np.asarray(binary.alpha)
        weights = (1.0, 1.0) if alpha is None else (alpha, 1 - alpha)
        parts = sigmoid_parts(z, np.asarray(binary.gamma), *weights)
    else:
        parts = _asymmetric_parts(binary, z.astype(np.float64))
    pull_up, pull_down, slope, loss_up, loss_down = parts
    slopes = (1 - targets) * pull_down - targets * pull_up
    mean = slope * (pull_up * pull_down / (pull_up + pull_down))
    losses = targets * loss_up + (1 - targets) * loss_down
    losses = losses.sum(axis=1) if many else losses
    return add_up(losses, slopes, mean, sample_weight, factor, bound, grad, hess)


def _terms(objective: Any, q: Floats, miss: Floats, log_q: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return f, phi, h and r of every class; log_q has the opposite sign."""
    if isinstance(objective, GeneralizedCrossEntropy):
        k = objective.k
        return -np.expm1(-k * log_q) / k, np.exp(-k * log_q), np.exp((k - 1) * log_q), (1 - k) * q
    gamma, epsilon = np.asarray(objective.gamma), getattr(objective, "epsilon", 0.0)
    weight = getattr(objective, "weight", None)
    w = 1.0 if weight is None else np.asarray(weight)
    # In 1 - q, not in q: at epsilon = -1 nothing else is left next to q = 1.
    steep, sure = epsilon * (gamma + 1), 1 + epsilon * (gamma + 1)
    power = miss**gamma
    ratio = np.divide(power, miss, out=np.zeros_like(power), where=miss > 0)
    phi = w * (power * (sure - steep * miss) + gamma * q * log_q * ratio)
    a = miss * (sure - steep * miss) + gamma * q * log_q
    bend = gamma * log_q - (1 + epsilon) * (gamma + 1) + 2 * steep * miss
    by_miss, by_a, h = (np.divide(q, x, out=np.zeros_like(q), where=x > 0) for x in (miss, a, phi))
    r = q * (1 + (gamma - 1) * by_miss - by_a * bend)
    return w * power * (log_q + epsilon * miss), phi, h, np.maximum(r, 0)


def _asymmetric_parts(spec: Asymmetric, z: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Return a, b, kappa, and the losses of y = 1 and of y = 0; at p <= clip b, kappa and L_- are 0."""
    xp = namespace(z)
    z = np.clip(z, -700, 700)
    log_p, log_miss = np.logaddexp(0, -z), np.logaddexp(0, z)  # with the opposite sign
    p, miss = np.exp(-log_p), np.exp(-log_miss)
    active, log_u, log_rest = spec._shifted(xp, z)  # log p_m, and -log(1 - p_m)
    focus, other = miss**spec.gamma_pos, np.where(active, np.exp(spec.gamma_neg * log_u), 0.0)
    in_power = 0.0 if spec.detach_weights else 1.0
    a = focus * (miss + in_power * spec.gamma_pos * p * log_p)
    by_u = np.exp(-log_p - log_miss - log_u)  # p (1-p) / p_m
    b = other * (p * miss * np.exp(log_rest) + in_power * spec.gamma_neg * log_rest * by_u)
    kappa = np.where(active, spec._slope(xp, np.where(active, z, 0.0)), 0.0)
    return a, b, kappa, focus * log_p, other * np.where(active, log_rest, 0.0)


def sigmoid_parts(
    z: Floats, gamma: Any, of_one: Any, of_zero: Any
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Return a, b, kappa, and the losses of y = 1 and of y = 0."""
    x = np.minimum(np.abs(z, dtype=np.float64), 100.0)
    odds = np.exp(-x)
    large = 1 / (1 + odds)
    small, near = odds * large, np.log1p(odds)
    up, far = z >= 0, near + x
    p, miss = np.where(up, large, small), np.where(up, small, large)
    log_p, log_miss = np.where(up, near, far), np.where(up, far, near)  # with the opposite sign
    a, b = miss + gamma * p * log_p, p + gamma * miss * log_miss
    power_miss, power_p = of_one * miss**gamma, of_zero * p**gamma
    slope = gamma - p * miss * ((gamma * log_p - gamma - 1) / a + (gamma * log_miss - gamma - 1) / b)
    return power_miss * a, power_p * b, slope, power_miss * log_p, power_p * log_miss


def add_up(
    losses: Floats,
    slopes: Floats,
    mean: Floats,
    sample_weight: Floats,
    factor: float,
    bound: float,
    grad: Floats,
    hess: Floats,
) -> float:
    """Fill gradient and bounded curvature, times factor and the rows' weights; return the sum of losses."""
    weight = factor * sample_weight.astype(np.float64) if sample_weight.size else np.full(len(losses), factor)
    each = weight if slopes.ndim == 1 else weight[:, None]
    grad[:] = each * slopes
    hess[:] = each * np.maximum(mean, bound * np.abs(slopes))
    return float((weight * losses).sum())
