"""What a single raw score means, and which score means a given probability."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from refocal._arrays import Array, ArrayT, Namespace, NumPyArray, log1p, namespace, softplus
from refocal._checks import check_floats, check_number, check_probs
from refocal.objectives import Asymmetric, Objective, OneVsRest, check_objective, log_posterior_of, logits_of
from refocal.objectives.base import n_classes_of


@overload
def score_threshold(objective: Objective, posterior: float = 0.5, *, check: bool = True) -> Any: ...
@overload
def score_threshold(objective: Objective, posterior: ArrayT, *, check: bool = True) -> ArrayT: ...
@overload
def score_threshold(objective: Objective, posterior: Sequence[Any], *, check: bool = True) -> NumPyArray: ...
def score_threshold(objective: Objective, posterior: Any = 0.5, *, check: bool = True) -> Any:
    r"""Return the raw score that means a given probability, for instance to threshold detections at it.

    .. math:: p = \mathrm{sigmoid}(z^*(\eta))

    with z* the ``logits`` of the objective. For a loss on a softmax it is the score of class 1 of two;
    with more classes a score alone has no probability. For `OneVsRest` it is the score of a class's own
    sigmoid, and the probability the one that this sigmoid alone gives: `OneVsRest.posterior` then divides
    by the sum over the classes, which is 1 for the risk minimiser and near it for a good model.

    Args:
        objective: What was trained with, for instance ``SigmoidFocal(gamma=2.0, alpha=0.25)``.
        posterior: A probability in [0, 1], or an array of them. If the parameters of the classes differ, its
            last axis is that of the classes, or has length 1.
        check: Whether to look at the values, where they are at hand (not under tracing, nor on a GPU).

    Returns:
        For a number a float, or an array of a threshold for each class if their parameters differ; for an
        array one of the same shape (with the classes last if they differ), dtype and library.

    Raises:
        ValueError: For a softmax of more than two classes, and for an objective of your own that reads
            sigmoids as a distribution: its rows need not have scores that stand for themselves.

    Example:
        >>> from refocal import SigmoidFocal
        >>> round(score_threshold(SigmoidFocal(gamma=2.0, alpha=0.25), 0.5), 4)
        0.3988
        >>> score_threshold(SigmoidFocal(alpha=[0.1, 0.5, 0.9]), 0.5).round(4)
        array([0.3058, 0.5   , 0.6942])
    """
    return _by_entry(objective, "posterior", posterior, _score_of, check)


@overload
def score_posterior(objective: Objective, score: float, *, check: bool = True) -> Any: ...
@overload
def score_posterior(objective: Objective, score: ArrayT, *, check: bool = True) -> ArrayT: ...
@overload
def score_posterior(objective: Objective, score: Sequence[Any], *, check: bool = True) -> NumPyArray: ...
def score_posterior(objective: Objective, score: Any, *, check: bool = True) -> Any:
    r"""Return the probability that a raw score means: the inverse of `score_threshold`.

    .. math:: \eta = \mathrm{posterior}(\log(p / (1 - p)))

    Args:
        objective: What was trained with.
        score: A sigmoid's score, or that of class 1 of two; a number or an array, as in `score_threshold`.
        check: Whether to look at the values, where they are at hand.

    Returns:
        A float or an array, as in `score_threshold`.

    Example:
        >>> from refocal import SigmoidFocal
        >>> score_posterior(SigmoidFocal(gamma=2.0, alpha=0.25), np.array([0.1, 0.3, 0.5])).round(3)
        array([0.008, 0.236, 0.75 ])
    """
    return _by_entry(objective, "score", score, _posterior_of_score, check)


def _by_entry(
    objective: Objective, name: str, value: Any, function: Callable[..., Array], check: bool
) -> Array | float:
    """Return a function of probabilities, of a number as a float unless it differs between the classes."""
    objective = check_objective(objective)
    if isinstance(objective, OneVsRest):
        objective = objective.binary
    if objective.scores not in ("sigmoid", "softmax"):
        raise ValueError(
            "objective must be a loss on a sigmoid or a softmax, since where a row of sigmoids is read as a "
            f"distribution a score alone has no probability, got {objective!r}"
        )
    on_sigmoid = objective.scores == "sigmoid"
    k = n_classes_of(objective)
    if not on_sigmoid and k not in (None, 2):
        raise ValueError(
            "objective must have two classes, since with more the probability depends on the scores of "
            f"all classes, got {k}"
        )
    is_number = isinstance(value, numbers.Real)
    if is_number:
        value = np.asarray(check_number(name, value, rule="in [0, 1]"))
    x = check_floats(name, value)
    check_probs(name, x, None, check)
    xp = namespace(x)
    if on_sigmoid and k is not None:
        if x.ndim and x.shape[-1] not in (1, k):
            raise ValueError(
                f"{name} must have the {k} classes of the objective along its last axis, or length 1 there, "
                f"got shape {tuple(x.shape)}"
            )
        x = xp.broadcast_to(x, (*x.shape[:-1], k))
    is_single = x.ndim == 0
    y = function(xp, objective, xp.reshape(x, (1,)) if is_single else x, on_sigmoid)
    y = xp.reshape(y, ()) if is_single else y
    return float(y) if is_number and is_single else y


def _score_of(xp: Namespace, objective: Objective, eta: Array, on_sigmoid: bool) -> Array:
    if on_sigmoid:
        return xp.exp(-softplus(xp, -logits_of(objective, eta)))
    return xp.exp(logits_of(objective, xp.stack([1 - eta, eta], axis=-1)))[..., 1]


def _posterior_of_score(xp: Namespace, objective: Objective, p: Array, on_sigmoid: bool) -> Array:
    if isinstance(objective, Asymmetric):  # whose scores next to the clip have no logit of their own
        return objective.posterior_from_probs(p, check=False)
    with np.errstate(divide="ignore"):
        miss, hit = log1p(xp, -p), xp.log(p)
    if on_sigmoid:
        return xp.exp(log_posterior_of(objective, hit - miss))
    return xp.exp(log_posterior_of(objective, xp.stack([miss, hit], axis=-1)))[..., 1]
