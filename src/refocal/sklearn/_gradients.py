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

from refocal import Focal
from refocal.sklearn._terms import Floats as Floats
from refocal.sklearn._terms import add_up, sigmoid_parts, softmax_gradients


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
    pull_up, pull_down, slope, loss_up, loss_down = sigmoid_parts(z, gamma, of_one, of_zero)
    is_one = y > 0.5
    mean = slope * (pull_up * pull_down / (pull_up + pull_down))
    pull, losses = np.where(is_one, -pull_up, pull_down), np.where(is_one, loss_up, loss_down)
    return add_up(losses, pull, mean, sample_weight, factor, bound, grad, hess)


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
    options = (sample_weight, factor, damping, bound, grad, hess)
    return softmax_gradients(Focal(gamma, class_weight), z, y, *options)


in_numpy = SimpleNamespace(binary=binary, softmax=softmax)
