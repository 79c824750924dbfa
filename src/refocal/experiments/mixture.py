"""The data of the numerical illustration: a mixture of three normal densities on a line."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

PRIORS = np.array([0.5, 0.3, 0.2])
MEANS = np.array([-2.0, 0.6, 2.2])
SCALES = np.array([1.1, 1.0, 1.2])
"""Three normal densities: the outer classes are clear far out, the middle one is never above 0.76."""


def mixture_joint(x: Floats) -> Floats:
    r"""Return p(x, y) of the three classes.

    .. math:: p(x, y) = \pi_y \, \mathcal{N}(x; \mu_y, \sigma_y^2)

    Args:
        x: Points, shape (n,).

    Returns:
        Shape (n, 3).

    Example:
        >>> mixture_joint(np.array([-2.0])).round(3)
        array([[0.181, 0.004, 0.   ]])
    """
    z = (x[:, None] - MEANS) / SCALES
    joint: Floats = PRIORS * np.exp(-0.5 * z * z) / (SCALES * np.sqrt(2 * np.pi))
    return joint


def mixture_posterior(x: Floats) -> Floats:
    """Return p(y | x) of the three classes, shape (n, 3)."""
    joint = mixture_joint(x)
    posterior: Floats = joint / joint.sum(axis=1, keepdims=True)
    return posterior


def sample_mixture(n: int, rng: np.random.Generator) -> tuple[Floats, Integers]:
    """Draw n points with their classes from the mixture.

    Example:
        >>> x, y = sample_mixture(5, np.random.default_rng(0))
        >>> x.shape, y.shape
        ((5,), (5,))
    """
    y = rng.choice(len(PRIORS), size=n, p=PRIORS)
    return rng.normal(MEANS[y], SCALES[y]), y
