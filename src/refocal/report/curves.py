"""What a raw score means: probability by score, and the score for a probability that is wanted."""

from __future__ import annotations

import numpy as np

from refocal._rows import Floats
from refocal.objectives import Objective, log_posterior_of, logits_of
from refocal.report.measure import Sampled
from refocal.report.numbers import Curve, Thresholds
from refocal.thresholds import score_posterior, score_threshold

CURVE_POINTS = 101
DRAWN_ROWS = 300
WANTED = (0.1, 0.25, 0.5, 0.75, 0.9)


def thresholds_of(sampled: Sampled, objective: Objective, seed: int) -> Thresholds:
    """Return what scores mean: exact for two classes; for more, for two ways to share the rest.

    A largest score s leaves 1 - s to the other classes. What s means depends on how they share it: one rival
    may have all of it, or all have the same.
    """
    link, k = objective.without_smoothing(), sampled.n_columns
    several = any(isinstance(value, tuple) for value in vars(link).values())
    on_sigmoid = sampled.task != "multiclass"
    if (on_sigmoid and not several) or (not on_sigmoid and k == 2):
        curve, scores = _exact(link)
        return Thresholds(True, (curve,), (), WANTED, (scores,))
    points = _points(sampled.some(DRAWN_ROWS, seed), link)
    if several:
        return Thresholds(False, (), points, (), ())  # each class has a curve of its own
    rival = np.zeros(k - 1)
    rival[0] = 1
    ways = [("one rival", rival, 0.5), ("all others alike", np.full(k - 1, 1 / (k - 1)), 1 / k)]
    found = [_curve(link, *way) for way in ways]
    return Thresholds(
        False, tuple(curve for curve, _ in found), points, WANTED, tuple(scores for _, scores in found)
    )


def _exact(link: Objective) -> tuple[Curve, tuple[float, ...]]:
    """Return what the score of class 1 of two means, and the scores that mean what is wanted."""
    score = np.linspace(0, 1, CURVE_POINTS)
    meaning = np.asarray(score_posterior(link, score))
    try:
        scores = np.asarray(score_threshold(link, np.array(WANTED)))
    except NotImplementedError:  # an objective of somebody's own need not have an inverse
        scores = np.full(len(WANTED), np.nan)
    return Curve("class 1", tuple(score.tolist()), tuple(meaning.tolist())), tuple(scores.tolist())


def _curve(link: Objective, name: str, rest: Floats, low: float) -> tuple[Curve, tuple[float, ...]]:
    """Return the curve for scores from low on, and the scores that mean what is wanted."""
    score = np.linspace(low, 1, CURVE_POINTS)
    with np.errstate(divide="ignore"):  # log 0 is -inf, a class without a score
        meaning = np.exp(log_posterior_of(link, np.log(_rows(score, rest))))[:, -1]
    wanted = np.array(WANTED)
    try:
        z = logits_of(link, _rows(wanted, rest))
    except NotImplementedError:  # as above
        scores = np.full(len(wanted), np.nan)
    else:
        z = np.exp(z - z.max(axis=1, keepdims=True))
        scores = z[:, -1] / z.sum(axis=1)
        scores[scores < low] = np.nan  # then it is not the largest
    return Curve(name, tuple(score.tolist()), tuple(meaning.tolist())), tuple(scores.tolist())


def _rows(last: Floats, rest: Floats) -> Floats:
    """Return rows that end with these numbers, what is left of 1 shared among the other classes."""
    return np.column_stack([(1 - last)[:, None] * rest, last])


def _points(some: Sampled, link: Objective) -> tuple[tuple[float, float], ...]:
    q, p = some.probs(), some.probs(link=link)
    if some.task == "multiclass":
        top = (np.arange(len(q)), q.argmax(axis=1))
        q, p = q[top], p[top]
    return tuple(zip(q.reshape(-1)[:DRAWN_ROWS].tolist(), p.reshape(-1)[:DRAWN_ROWS].tolist(), strict=True))
