"""The focal loss of rows, and its expectation at a point.

In the docstrings q is a vector of softmax scores, eta the true class posterior and K the number of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from refocal._arrays import (
    Array,
    ArrayT,
    Numbers,
    NumPyArray,
    as_array,
    is_integer,
    log_complement,
    namespace,
    neg_log,
    one_hot,
    quiet,
    shares,
    stop_gradient,
    working_dtype,
)
from refocal._checks import (
    check_gamma,
    check_labels,
    check_probs,
    check_same_shape,
    check_scores,
    check_targets,
)
from refocal.focal import Gamma


@overload
def focal_loss(logits: ArrayT, labels: Any, gamma: Numbers, *, axis: int = -1) -> ArrayT: ...
@overload
def focal_loss(logits: Sequence[Any], labels: Any, gamma: Numbers, *, axis: int = -1) -> NumPyArray: ...
def focal_loss(logits: Any, labels: Any, gamma: Numbers, *, axis: int = -1) -> Any:
    r"""Return the focal loss of every row, not reduced.

    .. math:: \ell(q, v) = \sum_i v_i (1-q_i)^\gamma (-\log q_i), \quad q = \mathrm{softmax}(z)

    with v the one-hot vector of an integer label, or a distribution over the classes.
    `refocal.torch.FocalLoss` is the one to train with.

    Args:
        logits: Scores before the softmax, K >= 2 of them along ``axis``.
        labels: Integers 0..K-1, of logits' shape without the class axis; or distributions, floating
            point, of logits' shape.
        gamma: A number >= 0, or an array that broadcasts over the rows.
        axis: The class axis.

    Returns:
        An array of logits' shape without the class axis. Outside NumPy, where values are not looked
        at, a label out of range gives NaN.

    Example:
        >>> focal_loss(np.array([[2.0, 0.0], [0.0, 0.0]]), np.array([0, 1]), gamma=2.0).round(4)
        array([0.0018, 0.1733])
    """
    logits, axis = check_scores("logits", logits, axis)
    gamma = check_gamma(gamma, logits, axis)
    labels = as_array(labels, "labels")
    if is_integer(labels):
        check_labels(labels, logits, axis)
    else:
        labels = check_same_shape("labels", labels, "logits", logits)
        check_targets("labels", labels)
    return focal_terms(logits, labels, gamma, axis)


@overload
def conditional_risk(
    probs: ArrayT, posterior: Any, gamma: Numbers, *, axis: int = -1, check: bool = True
) -> ArrayT: ...
@overload
def conditional_risk(
    probs: Sequence[Any], posterior: Any, gamma: Numbers, *, axis: int = -1, check: bool = True
) -> NumPyArray: ...
def conditional_risk(
    probs: Any, posterior: Any, gamma: Numbers, *, axis: int = -1, check: bool = True
) -> Any:
    r"""Return the expected focal loss at a point, the paper's W.

    .. math:: W(q; \eta) = \sum_y \eta_y \, \ell(q, e_y) = -\sum_y \eta_y (1-q_y)^\gamma \log q_y

    A class with eta = 0 adds nothing, even where q = 0, and has no gradient by eta there.

    Args:
        probs: Scores q, K >= 2 of them along ``axis``, in [0, 1] and in each row with sum 1.
        posterior: The class posterior eta, of the same shape and rule.
        gamma: A number >= 0, or an array that broadcasts over the rows.
        axis: The class axis.
        check: Whether to look at the values, where they are at hand (not under tracing, nor on a GPU).

    Example:
        >>> conditional_risk([0.5, 0.5], [0.9, 0.1], gamma=2.0).round(4)
        np.float64(0.1733)
    """
    probs, axis = check_scores("probs", probs, axis)
    posterior = check_same_shape("posterior", posterior, "probs", probs)
    gamma = check_gamma(gamma, probs, axis)
    check_probs("probs", probs, axis, check)
    check_probs("posterior", posterior, axis, check)
    xp = namespace(probs)
    q = xp.astype(probs, working_dtype(probs), copy=False)
    eta = xp.astype(posterior, q.dtype, copy=False)
    with quiet(q):
        # Scores that sum to 1 within rounding may be above 1, and 0^gamma has no derivative.
        below = q < 1
        power = xp.where(below, xp.where(below, 1 - q, 1) ** gamma, xp.zeros_like(q) ** stop_gradient(gamma))
        loss = power * -xp.log(xp.where((eta == 0) & (q == 0), 1, q))
    return xp.astype(xp.sum(eta * loss, axis=axis), probs.dtype, copy=False)


def focal_terms(logits: Array, labels: Array, gamma: Gamma, axis: int, weight: Array | float = 1.0) -> Array:
    """`focal_loss` without its checks, with weights of the classes and gammas of the rows or classes."""
    xp = namespace(logits)
    with quiet(logits):
        s = shares(xp, xp.astype(logits, working_dtype(logits), copy=False), axis)
        nll = neg_log(xp, s)
        terms = weight * xp.exp(gamma * log_complement(xp, s))
    if is_integer(labels):
        hit = one_hot(xp, xp.expand_dims(labels, axis=axis), logits.shape[axis], axis)
        if not isinstance(weight, float):  # a masked target of weight 0 has no loss
            nll = xp.where((terms == 0) & (nll == xp.inf), 0, nll)
        # A class that is not the target may be masked, and must not touch the gradient.
        loss = xp.sum(xp.where(hit, terms * xp.where(hit, nll, 0), 0), axis=axis)
        # A label that is no class: by a product, so that the gradient is NaN too.
        none = xp.where(xp.any(hit, axis=axis), xp.zeros_like(loss), xp.nan)
        loss = loss + none * xp.squeeze(s.neg_log_top, axis=axis)
    else:
        v = xp.astype(labels, nll.dtype, copy=False)
        nll = xp.where((v == 0) & (nll == xp.inf), 0, nll)  # a masked class that is no target
        loss = xp.sum(v * terms * nll, axis=axis)
    return xp.astype(loss, logits.dtype, copy=False)
