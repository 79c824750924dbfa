"""The ways from logits to probabilities: a temperature, a bias, and the link that an objective has."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from refocal._arrays import Array, log_softmax, map_rows, namespace, softplus, working_dtype
from refocal._checks import check_axis, check_floats, check_scores
from refocal._rows import Floats
from refocal.objectives import Asymmetric, Objective, OneVsRest, SigmoidFocal, log_posterior_of
from refocal.objectives.base import ScoreKind, per_class

Numbers: TypeAlias = float | tuple[float, ...]
"""One number, or one for each label."""


class Way(NamedTuple):
    """link(logits / T + bias), and where it has a floor a little of the raw scores of logits / T + bias.

    Attributes:
        temperature: T, one number or one for each label.
        link: The objective whose posterior is taken, or None for the raw scores.
        bias: Of sigmoid scores, one number or one for each label.
        floor: The share of the raw scores, for a link that has probabilities of 0.
    """

    temperature: Numbers = 1.0
    link: Objective | None = None
    bias: Numbers = 0.0
    floor: float = 0.0


def with_floor(link: Objective | None, n: int) -> Way:
    """Return the way by a link that was not fitted, with a floor where the link has probabilities of 0.

    Of n rows none may have shown an outcome of share 1 / n, so a share of 1 / (n + 2) of the raw scores is
    mixed in: it costs log(1 + 1 / (n + 1)) nats at most, keeps the order, and no outcome has probability 0.
    """
    binary = link.binary if isinstance(link, OneVsRest) else link
    ours = binary is None or type(binary).__module__.startswith("refocal.")
    zeros = (isinstance(binary, Asymmetric) and binary.clip > 0) or not ours
    return Way(link=link, floor=1 / (n + 2) if zeros else 0.0)


def probs_of(kind: ScoreKind, logits: Any, way: Way, axis: int, *, log: bool = False) -> Array:
    """Return (log-)probabilities of the shape, dtype and library of logits."""
    if kind == "sigmoid":
        logits = check_floats("logits", logits)
        axis = check_axis("logits", logits, axis) if logits.ndim else 0
    else:
        logits, axis = check_scores("logits", logits, axis)
    xp = namespace(logits)
    y = log_probs_of(kind, logits, way, axis)
    # Cast last: the logarithm in half precision would lose two digits more.
    return xp.astype(y if log else xp.exp(y), logits.dtype, copy=False)


def scaled(logits: Array, way: Way, axis: int) -> Array:
    """Return logits / T + bias in the dtype to compute in."""
    z = namespace(logits).astype(logits, working_dtype(logits), copy=False)
    if way.temperature != 1:
        z = z / per_class("temperature", way.temperature, z, axis)
    return z if way.bias == 0 else z + per_class("bias", way.bias, z, axis)


def log_probs_of(kind: ScoreKind, logits: Array, way: Way, axis: int) -> Array:
    """Return log-probabilities in the dtype to compute in: of each class, or of y = 1 for each entry."""
    z = scaled(logits, way, axis)
    if way.link is None:
        return _raw(kind, z, axis)
    y = log_posterior_of(way.link, z, axis) if z.ndim else way.link.log_posterior(z[None])[0]
    if not way.floor:
        return y
    return namespace(z).logaddexp(math.log1p(-way.floor) + y, math.log(way.floor) + _raw(kind, z, axis))


def log_both(z: Floats, way: Way) -> tuple[Floats, Floats]:
    """Return log P(y = 1) and log P(y = 0) of sigmoid logits (n, L) in float64, both exact."""
    if way.link is None:
        t = scaled(z, way, 1)
        return -np.logaddexp(0, -t), -np.logaddexp(0, t)
    if isinstance(way.link, SigmoidFocal):
        # 1 - p is the score of the mirrored loss, without a difference that can be 0.
        t = scaled(z, way, 1)
        return log_posterior_of(way.link, t, 1), log_posterior_of(_mirrored(way.link), -t, 1)
    with np.errstate(divide="ignore"):
        one = np.minimum(log_probs_of("sigmoid", z, way, 1), 0)
        # log(1 - e^x), by that of its two forms which keeps the digits
        near = one > -math.log(2)
        zero = np.where(near, np.log(-np.expm1(np.where(near, one, -1))), np.log1p(-np.exp(one)))
    return one, zero


def _mirrored(link: SigmoidFocal) -> SigmoidFocal:
    alpha = link.alpha
    if alpha is not None:
        alpha = tuple(1 - a for a in alpha) if isinstance(alpha, tuple) else 1 - alpha
    return dataclasses.replace(link, alpha=alpha)


def _raw(kind: ScoreKind, z: Array, axis: int) -> Array:
    if kind == "sigmoid":
        return -softplus(namespace(z), -z)
    if kind == "one-vs-rest":
        return map_rows(log_softmax, -softplus(namespace(z), -z), axis=axis)
    return map_rows(log_softmax, z, axis=axis)
