"""The ways from logits to probabilities: a temperature, a bias, and the link that an objective has."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from refocal._arrays import (
    Array,
    Namespace,
    at_most,
    log_softmax,
    map_rows,
    namespace,
    quiet,
    softplus,
    working_dtype,
)
from refocal._checks import check_axis, check_floats, check_scores, warn_if_probs, warn_if_sigmoids
from refocal._rows import Booleans, Floats
from refocal.objectives import Asymmetric, Objective, OneVsRest, SigmoidFocal, log_posterior_of
from refocal.objectives.base import ScoreKind, is_ours, per_class

Numbers: TypeAlias = float | tuple[float, ...]
"""One number, or one for each label."""


FARTHEST = 30
"""How often the search for a threshold doubles the logits at which it starts."""

FAR, NEAR = 20, 3
"""Up to which logits a posterior of 0 is one, and up to which a posterior of 1: beyond, steep formulas round
to them."""


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


def has_zeros(kind: ScoreKind, link: Objective | None, z: Floats) -> bool:
    """Return whether a link gives 0 to outcomes that the raw scores hold possible.

    Of our own links it is known. Those of others are tried, at the logits (n, K or L) of some rows and on a
    grid; a 0 where the raw score is very small counts as underflow, and so does a 1 where it is large.
    """
    binary = _binary(link)
    if binary is None or is_ours(type(binary)):
        return isinstance(binary, Asymmetric) and binary.clip > 0
    width = z.shape[1]
    grid = np.repeat(np.linspace(-FAR, FAR, 8 * FAR + 1)[:, None], width, axis=1)
    if kind == "softmax":  # one class in turn is far from the others
        grid[np.arange(len(grid))[:, None] % width != np.arange(width)] = 0
    return any(_zero_at("sigmoid" if binary is not link else kind, binary, rows) for rows in (z, grid))


def _zero_at(kind: ScoreKind, link: Objective, rows: Floats) -> bool:
    try:
        with np.errstate(all="ignore"):
            y = log_posterior_of(link, rows, 1)
    except ValueError:  # which is how logits are refused: then a method is left out where it is measured
        return False
    zero = (y == -math.inf) & (_raw(kind, rows, 1) > -FAR)
    if link.scores == "sigmoid":
        zero |= (y >= 0) & (rows < NEAR)
    return bool(zero.any())


def _binary(link: Any) -> Any:
    """Return the objective that the entries of a link have."""
    return link.binary if isinstance(link, OneVsRest) else link


def probs_of(
    kind: ScoreKind, logits: Any, way: Way, axis: int, *, columns: int | None = None, log: bool = False
) -> Array:
    """Return (log-)probabilities of the shape, dtype and library of logits.

    Along ``axis`` there must be as many classes or labels as there were in the fit; None for any number.
    """
    if kind == "sigmoid":
        logits = check_floats("logits", logits)
        at = check_axis("logits", logits, axis) if logits.ndim else 0
    else:
        logits, at = check_scores("logits", logits, axis)
    if columns is not None and (logits.ndim == 0 or logits.shape[at] != columns):
        what = "labels" if kind == "sigmoid" else "classes"
        raise ValueError(
            f"logits must have the {columns} {what} of the fit along axis {axis}, "
            f"got shape {tuple(logits.shape)}"
        )
    if kind == "softmax":
        warn_if_probs("logits", logits, at)
    else:
        warn_if_sigmoids("logits", logits)
    xp = namespace(logits)
    y = log_probs_of(kind, logits, way, at)
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
    if not way.floor and is_ours(type(_binary(way.link))):
        return y
    xp, raw = namespace(z), _raw(kind, z, axis)
    if not way.floor:
        return _possible(xp, y, raw, _log_smallest(xp, y))
    if isinstance(way.link, OneVsRest):
        each = way.link.binary.log_posterior(z, axis=axis)
        y = xp.where(xp.all(each == -xp.inf, axis=axis, keepdims=True), raw, y)  # a row that cannot be
    return _mixed(xp, y, raw, way.floor)


def _mixed(xp: Namespace, y: Array, raw: Array, floor: float) -> Array:
    with quiet(y):  # NaN stays NaN
        return xp.logaddexp(math.log1p(-floor) + y, math.log(floor) + raw)


def _possible(xp: Namespace, y: Array, raw: Array, least: float) -> Array:
    """Return log-probabilities with less than the least one for 0, unless the raw score is 0 there too.

    A formula of somebody else may underflow, or have zeros where nobody looked before.
    """
    return xp.where(y == -xp.inf, at_most(xp, raw, least), y)


def _log_smallest(xp: Namespace, y: Array) -> float:
    numbers = xp.finfo(y.dtype)
    return math.log(numbers.smallest_normal) + math.log(numbers.eps)


def log_both(z: Floats, way: Way) -> tuple[Floats, Floats]:
    """Return log P(y = 1) and log P(y = 0) of sigmoid logits (n, L) in float64, both exact.

    Those of an objective that is not ours are as exact as its log P(y = 1) allows. Where that is 0, P(y = 0)
    is less than the distance of 1 to the next number, and not 0.
    """
    t = scaled(z, way, 1)
    raw = -np.logaddexp(0, -t), -np.logaddexp(0, t)
    if way.link is None:
        return raw
    one, zero = _log_both_of(way.link, t)
    if not way.floor and is_ours(type(_binary(way.link))):
        return one, zero
    xp = namespace(t)
    if not way.floor:
        below_one = math.log(np.finfo(np.float64).epsneg)
        return _possible(xp, one, raw[0], _log_smallest(xp, one)), _possible(xp, zero, raw[1], below_one)
    # Each is mixed by itself: 1 - P(y = 1) would be 0 for large logits, whatever the floor.
    return _mixed(xp, one, raw[0], way.floor), _mixed(xp, zero, raw[1], way.floor)


def _log_both_of(link: Objective, t: Floats) -> tuple[Floats, Floats]:
    if type(link) is SigmoidFocal:  # a subclass may have another posterior
        # 1 - p is the score of the mirrored loss, without a difference that can be 0.
        return log_posterior_of(link, t, 1), log_posterior_of(_mirrored(link), -t, 1)
    if type(link) is Asymmetric:
        with quiet(t):
            odds = link._log_odds(namespace(t), t)
        return -np.logaddexp(0, -odds), -np.logaddexp(0, odds)
    with np.errstate(divide="ignore"):
        one = np.minimum(log_posterior_of(link, t, 1), 0)
        # log(1 - e^x), by that of its two forms which keeps the digits
        near = one > -math.log(2)
        zero = np.where(near, np.log(-np.expm1(np.where(near, one, -1))), np.log1p(-np.exp(one)))
    return one, zero


def score_where(kind: ScoreKind, way: Way, posterior: float, width: int) -> Floats:
    """Return for each of some labels the smallest raw score whose probability reaches a posterior, (width,).

    The raw score is that of the sigmoid, or of class 1 of a softmax of two. It is 1 where none reaches it.
    """
    with np.errstate(divide="ignore"):
        goal = float(np.log(posterior) - np.log1p(-posterior))
    inner = way._replace(temperature=1.0, bias=0.0)

    def reaches(t: Floats) -> Booleans:
        if kind == "sigmoid":
            one, zero = log_both(t[None], inner)
        else:
            zero, one = log_probs_of(kind, np.stack([-t / 2, t / 2], axis=1), inner, 1).T
        return np.asarray(one - zero >= goal).reshape(width)

    t = np.full(width, goal) if way.link is None else _smallest(reaches, width)
    z = (t - np.asarray(way.bias)) * np.asarray(way.temperature)
    return np.asarray(np.exp(-np.logaddexp(0, -z)))


def _smallest(holds: Callable[[Floats], Booleans], width: int) -> Floats:
    """Return the smallest numbers at which what holds from some number on does hold; infinite for none."""
    low, high = np.full(width, -1.0), np.full(width, 1.0)
    for _ in range(FARTHEST):
        low, high = np.where(holds(low), 2 * low, low), np.where(holds(high), high, 2 * high)
    always, never = holds(low), ~holds(high)
    while True:
        middle = low + (high - low) / 2
        if ((middle <= low) | (middle >= high)).all():
            return np.where(always, -math.inf, np.where(never, math.inf, high))
        below = holds(middle)
        low, high = np.where(below, low, middle), np.where(below, middle, high)


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
