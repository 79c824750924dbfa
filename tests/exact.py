"""The paper's formulas taken verbatim, at 80 digits; 1 - q is the sum over the other classes."""

from __future__ import annotations

import mpmath as mp
import numpy as np


def scores(logits):
    """Return (q, 1 - q, log q) of every class of a row of floats."""
    e = [mp.exp(mp.mpf(float(z)) - mp.mpf(float(max(logits)))) if z > -np.inf else mp.mpf(0) for z in logits]
    total = mp.fsum(e)
    result = []
    for i, x in enumerate(e):
        if x > total / 2:
            u = mp.fsum(e[:i] + e[i + 1 :]) / total
            result.append((x / total, u, mp.log1p(-u)))
        else:
            result.append((x / total, 1 - x / total, mp.log(x / total) if x else mp.ninf))
    return result


def h(q, u, log_q, gamma):
    if q == 0 or u == 0:
        return q
    return q / (u**gamma - gamma * u ** (gamma - 1) * q * log_q)


def log_psi(logits, gamma) -> np.ndarray:
    with mp.workdps(80):
        hs = [h(*s, mp.mpf(float(gamma))) for s in scores(logits)]
        total = mp.fsum(hs)
        result = [mp.log(x) - mp.log(total) if x > 0 else mp.ninf for x in hs]
        top = max(range(len(hs)), key=hs.__getitem__)
        result[top] = mp.log1p(-mp.fsum(hs[:top] + hs[top + 1 :]) / total)  # nothing is lost next to 1
        return np.array([float(x) for x in result])


def focal_loss(logits, label, gamma) -> float:
    with mp.workdps(80):
        _, u, log_q = scores(logits)[label]
        return float(u ** mp.mpf(float(gamma)) * -log_q)


def without_smoothing(eta, spec):
    """Return what is left of a posterior that was smoothed: 1 % of every smoothed probability at least."""
    eps = getattr(spec, "label_smoothing", 0.0)
    binary = spec.scores == "sigmoid"
    both = np.stack([eta, 1 - eta], axis=-1) if binary else np.asarray(eta)
    smoothed = (1 - eps) * both + eps / both.shape[-1]
    left = np.maximum(smoothed - eps / both.shape[-1], 0.01 * smoothed if eps else 0)
    left = left / left.sum(axis=-1, keepdims=True)
    return left[..., 0] if binary else left
