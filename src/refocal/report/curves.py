"""What a raw score means: probability by score, and the score for a probability that is wanted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from refocal._rows import Floats
from refocal.calibration import Method, Selection
from refocal.objectives import Objective, log_posterior_of
from refocal.report.measure import Sampled
from refocal.report.numbers import Curve, Thresholds

CURVE_POINTS = 101
DRAWN_ROWS = 300
WANTED = (0.1, 0.25, 0.5, 0.75, 0.9)

Way: TypeAlias = Method | Objective
"""A method that was fitted, or the objective whose posterior is taken where none could be."""


def thresholds_of(
    sampled: Sampled, objective: Objective, selection: Selection | None, seed: int
) -> Thresholds:
    """Return what scores mean by the recommended method, and by psi beside it if that is another.

    It is exact for two classes and for sigmoids. With more classes, a largest score s leaves 1 - s to the
    other classes, and what s means depends on how they share it: one rival may have all of it, or all have
    the same.
    """
    ways = _ways(selection, objective.without_smoothing())
    recommended, k = next(iter(ways)), sampled.n_columns
    exact = sampled.task != "multiclass" or k == 2
    shares = [("class 1", 0.0, lambda score: _alone(sampled, score))] if exact else _shares(k)
    curves, scores = [], []
    for name, way in ways.items():
        if _has_numbers_of_each(way) and not (exact and sampled.task == "multiclass"):
            continue  # each class or label has a curve of its own
        for title, low, logits in shares:
            meaning = functools.partial(_meaning, way, logits)
            score = np.linspace(low, 1, CURVE_POINTS)
            curves.append(Curve(title, tuple(score.tolist()), tuple(meaning(score).tolist()), name))
            scores.append(_scores_for(meaning, low))
    has_curve = any(curve.method == recommended for curve in curves)
    points = () if exact and has_curve else _points(sampled.some(DRAWN_ROWS, seed), ways[recommended])
    return Thresholds(exact, tuple(curves), points, WANTED if curves else (), tuple(scores), recommended)


def _ways(selection: Selection | None, link: Objective) -> dict[str, Way]:
    """Return the recommended method, then psi if that is another one that was compared."""
    if selection is None:
        return {"psi": link}
    compared = {m.name: m for m in selection.methods}
    return {name: compared[name] for name in (selection.winner, "psi") if name in compared}


def _has_numbers_of_each(way: Way) -> bool:
    """Return whether classes or labels have numbers of their own."""
    link = way.link if isinstance(way, Method) else way
    own = [] if link is None else list(vars(link).values())
    if isinstance(way, Method):
        own += [way.temperature, way.bias]
    return any(isinstance(value, tuple) for value in own)


def _probs(way: Way, logits: Floats) -> Floats:
    return np.asarray(way.probs(logits) if isinstance(way, Method) else np.exp(log_posterior_of(way, logits)))


def _meaning(way: Way, logits: Callable[[Floats], Floats], score: Floats) -> Floats:
    """Return the probabilities that scores mean: those of the last class or label."""
    p = _probs(way, logits(score))
    return p if p.ndim == 1 else p[:, -1]


def _alone(sampled: Sampled, score: Floats) -> Floats:
    """Return logits for scores of class 1 of two, or of a sigmoid; labels all have the same."""
    with np.errstate(divide="ignore"):  # log 0 is -inf
        miss, hit = np.log1p(-score), np.log(score)
    if sampled.task == "multiclass":
        return np.column_stack([miss, hit])
    z = hit - miss
    return z if sampled.task == "binary" else np.repeat(z[:, None], sampled.n_columns, axis=1)


def _shares(k: int) -> list[tuple[str, float, Callable[[Floats], Floats]]]:
    """Return for each way to share the rest: its name, the lowest score that is the largest, the logits."""
    rival = np.zeros(k - 1)
    rival[0] = 1

    def logits(score: Floats, rest: Floats) -> Floats:
        with np.errstate(divide="ignore"):  # log 0 is -inf, a class without a score
            return np.asarray(np.log(np.column_stack([(1 - score)[:, None] * rest, score])))

    return [
        ("one rival", 0.5, lambda score: logits(score, rival)),
        ("all others alike", 1 / k, lambda score: logits(score, np.full(k - 1, 1 / (k - 1)))),
    ]


def _scores_for(meaning: Callable[[Floats], Floats], lowest: float) -> tuple[float, ...]:
    """Return the scores that mean what is wanted, by bisection; NaN where the lowest one means more."""
    wanted = np.array(WANTED)
    low, high = np.full(len(wanted), lowest), np.ones(len(wanted))
    missing = meaning(low) > wanted + 1e-12
    while True:
        middle = low + (high - low) / 2
        if ((middle <= low) | (middle >= high)).all():
            return tuple(np.where(missing, np.nan, high).tolist())
        below = meaning(middle) < wanted
        low, high = np.where(below, middle, low), np.where(below, high, middle)


def _points(some: Sampled, way: Way) -> tuple[tuple[float, float], ...]:
    q, p = some.probs(), _probs(way, some.logits)
    if some.task == "multiclass":
        top = (np.arange(len(q)), q.argmax(axis=1))
        q, p = q[top], p[top]
    return tuple(zip(q.reshape(-1)[:DRAWN_ROWS].tolist(), p.reshape(-1)[:DRAWN_ROWS].tolist(), strict=True))
