"""The losses of labelled rows as functions of the temperature, and the search for their minimum.

They are functions of log b, b = 1 / T. With t = b (z - max z), p = softmax(t) and y the label, l = log p_y
has d l / d log b = t_y - E[t] and d^2 l / (d log b)^2 = t_y - E[t] - Var[t], mean and variance under p. So
one pass over the rows, in blocks that stay in the cache, gives a loss and its first two derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from refocal import _compiled as compiled
from refocal._arrays import FEW_CLASSES
from refocal._rows import Floats, Rows, slices

Derivatives: TypeAlias = tuple[float, float, float]
"""A mean loss, and its first and second derivative by log b."""

START_ROWS, START_ENTRIES = 4096, 1 << 19
"""How many rows, spread over all, a start is searched on: its error is then some 2 %."""

SPREAD_ROWS = 512

LIMIT = 14.0
"""How far log b may go from -log of the logits' spread before T counts as driven to 0 or infinity."""

LOWEST = -1e3
"""In place of a t below it: e^t is 0 all the same, and t e^t too, even if t was -inf (a masked class)."""

MASKED = -1e9
"""In place of a t of -inf where t itself counts: finite, and far below all others."""

RUNAWAY = 3.0
"""How far from there a search starts if that on some of the rows ran away. Beyond it is far out."""

FLAT = 1e-8
"""Where slope and curvature are smaller than this share of the loss, only rounding is left of them."""

TOLERANCE = 1e-4
"""A step of Newton's method in log T that is the last one: the error after it goes with its square."""

MAX_STEPS, LONGEST_STEP = 100, 2.0

LARGEST_FREE_GAMMA = 16.0

NO_GAIN = 1e-11
"""A step that promises less than this many nats is the last one: T and gamma can make up for each other."""

ROUGHLY = 1e-6
"""The same for a search on some of the rows, which is only to say where to begin."""

Surface: TypeAlias = Callable[[Floats], tuple[float, Floats, Floats]]
"""A mean loss at (log b, another number), its gradient and its Fisher information."""


def _blocks(rows: Rows) -> Iterator[slice]:
    return slices(*rows.z.shape)


def moments(rows: Rows, b: float, order: int = 2) -> Floats:
    """Return the sums over the classes of e^t, t e^t, t^2 e^t up to an order; float64, (order + 1, n)."""
    z, k = rows.z, rows.z.shape[1]
    found = compiled.moments(z, b)
    if found is not None:
        return np.asarray(found[: order + 1])
    few = k <= FEW_CLASSES  # then NumPy is faster with the classes along the first axis
    ones = np.ones(k, dtype=z.dtype)  # the product with it is the fastest sum
    scratch = np.empty((2, *z[next(_blocks(rows))].shape), dtype=z.dtype)
    sums = np.empty((order + 1, len(z)))
    for block in _blocks(rows):
        part, top = (z[block].T, rows.largest[block].T) if few else (z[block], rows.largest[block])
        t, f = (a.reshape(-1)[: part.size].reshape(part.shape) for a in scratch)
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(part, top, out=t)
            t *= z.dtype.type(b)
            for _ in range(2):
                np.exp(t, out=f)
                for i in range(order + 1):
                    sums[i, block] = ones @ f if few else f @ ones
                    if i < order:
                        f *= t
                if not np.isnan(sums[order, block]).any():
                    break
                np.maximum(t, LOWEST, out=t)  # a masked class has 0 times -inf
    return sums


def _log_label(rows: Rows, u: float) -> tuple[Floats, Floats, Floats]:
    """Return l = log p of the label, and its first and second derivative by u = log b."""
    b = float(rows.z.dtype.type(math.exp(u)))
    total, first, second = moments(rows, b)
    mean = first / total
    t = b * rows.gap
    return t - np.log(total), t - mean, t - mean - (second / total - mean**2)


def nll_at(rows: Rows, u: float) -> Derivatives:
    """Return the mean of -l."""
    l, l1, l2 = _log_label(rows, u)
    return -float(l.mean()), -float(l1.mean()), -float(l2.mean())


def focal_at(rows: Rows, u: float, gamma: float) -> Derivatives:
    """Return the mean of f = -(1 - p)^gamma l, which has df/dl = -phi(p) and d^2 f/dl^2 = -p phi'(p)."""
    l, l1, l2 = _log_label(rows, u)
    p = np.exp(l)
    c = np.maximum(-np.expm1(l), np.finfo(rows.z.dtype).eps)  # 1 - p
    ratio = -l / c
    phi = c**gamma * (1 + gamma * p * ratio)
    phi_slope = -gamma * c ** (gamma - 1) * (2 - (1 - gamma * p) * ratio)
    slope, curvature = -phi * l1, -p * phi_slope * l1**2 - phi * l2
    return float((c**gamma * -l).mean()), float(slope.mean()), float(curvature.mean())


def by_differences(mean: Callable[[float], float], u: float, h: float = 1e-3) -> Derivatives:
    """Return the mean loss of any objective or link, and its derivatives by central differences."""
    below, here, above = mean(u - h), mean(u), mean(u + h)
    return here, (above - below) / (2 * h), (above - 2 * here + below) / h**2


def psi_nll_at(rows: Rows, point: Floats) -> tuple[float, Floats, Floats]:
    """Return the mean NLL of psi at (log b, gamma), its gradient, and its Fisher information.

    With a = log h of a class, log psi_y = a_y - log sum e^a, so the gradient of the NLL is E[a'] - a'_y and
    the Fisher information Cov[a'], mean and covariance under psi.
    """
    b, gamma, n = math.exp(point[0]), float(point[1]), len(rows.z)
    found = compiled.psi_nll(rows.z, rows.labels, b, gamma)
    if found is not None:
        value, *slopes_of_all, one, both, two = found / n
        return float(value), np.array(slopes_of_all), np.array([[one, both], [both, two]])
    value, slope, fisher = 0.0, np.zeros(2), np.zeros((2, 2))
    for block in _blocks(rows):
        t = (rows.z[block].astype(np.float64) - rows.largest[block]) * b
        np.maximum(t, MASKED, out=t)  # so that no difference of two is NaN
        each = np.arange(len(t))
        top, label = (each, t.argmax(axis=1)), (each, rows.labels[block])
        t[top] = -np.inf
        second = t.max(axis=1)
        q = np.exp(t - second[:, None])
        t[top] = 0
        share = q.sum(axis=1)
        mean_t = np.einsum("nk,nk->n", q, t) / share  # of the classes below the top
        log_odds = np.log(share) + second
        rest = np.exp(log_odds)  # (1 - q) / q of the top
        log_total = np.log1p(rest)
        q *= np.exp(second - log_total)[:, None]
        odds = q / (1 - q)
        log_rest = np.log(1 - q)
        ratio = odds * (log_total[:, None] - t)  # -q log q / (1 - q)
        log_rest[top] = log_odds - log_total
        ratio[top] = np.where(rest > 0, log_total / np.where(rest > 0, rest, 1), 1)
        bend = 1 + gamma * ratio
        a = t - gamma * log_rest - np.log(bend)
        a -= a[top][:, None]
        psi = np.exp(a)
        total = psi.sum(axis=1)
        psi /= total[:, None]
        by_log_q = (1 + 2 * gamma * odds + gamma * (gamma - 1) * odds * ratio) / bend
        mean_t /= 1 + rest  # times rest, it is the mean of all
        by_b = by_log_q * (t - (rest * mean_t)[:, None])
        by_b[top] = -(rest + gamma * (2 + (gamma - 1) * ratio[top])) / bend[top] * mean_t  # odds are 1 / rest
        slopes = by_b, -log_rest - ratio / bend
        means = [np.einsum("nk,nk->n", psi, d) for d in slopes]
        value += float(np.sum(np.log(total) - a[label]))
        slope += [np.sum(mean - d[label]) for mean, d in zip(means, slopes, strict=True)]
        for i, j in ((0, 0), (0, 1), (1, 1)):
            square = np.einsum("nk,nk->n", psi * slopes[i], slopes[j])
            fisher[i, j] += np.sum(square - means[i] * means[j])
    fisher[1, 0] = fisher[0, 1]
    return value / n, slope / n, fisher / n


class Start(NamedTuple):
    """Where the searches begin: some of the rows, and what NLL says of them."""

    rows: Rows
    centre: float
    """-log of the logits' spread."""
    log_b: float
    """Where NLL is smallest on those rows."""

    @classmethod
    def of(cls, rows: Rows, log_b: float | None = None, *, pairs: bool = False) -> Start:
        """Search on some of the rows, unless a log b is given, and refuse data for which no T can be found.

        Pairs are two classes with the logits 0 and z, of which the caller knows z alone.
        """
        some = rows.some(min(START_ROWS, START_ENTRIES // rows.z.shape[1]))
        spread = _spread(some.some(SPREAD_ROWS))
        spread = spread if spread.any() else _spread(rows)
        if not spread.any():
            rule = (
                "not all be 0: they are" if pairs else "differ within a row: in every row they are constant"
            )
            raise ValueError(f"logits must {rule}, and T is arbitrary")
        if not rows.gap.any():
            where = "what the sign of the logit says" if pairs else "at the largest logit of their row"
            raise ValueError(
                f"labels must not all be {where}: the loss then falls all the way "
                "to T = 0; fit on rows that the model was not trained on, or on more of them"
            )
        centre = -math.log(np.median(spread[spread > 0]))
        start = cls(some, centre, centre + RUNAWAY if log_b is None else log_b)
        if log_b is not None or not some.gap.any():
            return start
        return start._replace(log_b=newton(lambda u: nll_at(some, u), start.centre, start, strict=False)[0])

    def far(self, log_b: float) -> bool:
        """Whether no T of a useful model is there, unless the loss has a clear minimum."""
        return abs(log_b - self.centre) > RUNAWAY

    def back(self, log_b: float) -> float:
        """Return a place to start again from, in the direction in which a search ran away."""
        return self.centre + math.copysign(RUNAWAY, log_b - self.centre)

    def check(self, log_b: float) -> None:
        """Raise where a search has run away."""
        if abs(log_b - self.centre) > LIMIT:
            self.refuse(log_b)

    def refuse(self, log_b: float, *, flat: bool = False) -> None:
        """Raise for a loss that falls all the way in the direction of log_b, maybe to a flat end."""
        if log_b < self.centre:
            raise ValueError(
                "logits must tell more of the labels than chance: the loss falls all the way to T = infinity"
            )
        if flat:
            raise ValueError(
                "the loss must have a minimum at some T: for these rows it falls all the way to T = 0, and "
                "is flat there, as a bounded loss is where most rows are right; objective='nll' may have one"
            )
        raise ValueError("labels must not follow from the logits: the loss falls all the way to T = 0")


def _spread(rows: Rows) -> Floats:
    """Return, for every row, the largest logit minus the mean of those that are not masked."""
    with np.errstate(over="ignore"):
        gap = rows.largest.astype(np.float64) - rows.z
    return np.asarray(gap.mean(axis=1, where=gap < np.inf))


def newton(
    loss: Callable[[float], Derivatives], u: float, start: Start, *, strict: bool = True
) -> tuple[float, int, bool]:
    """Return the log b at which the loss is smallest, how often it was computed, and whether it converged.

    Newton's method, inside the bracket that the signs of the slope give: it halves the bracket where a
    step would leave it or where steps do not shrink. If not strict, the search may run away, and its end is
    just a place to start from: it is for some of the rows, which need not have a minimum.
    """
    low, high, last = -math.inf, math.inf, math.inf
    for passes in range(1, MAX_STEPS + 1):
        value, slope, curvature = loss(u)
        if start.far(u) and max(abs(slope), abs(curvature)) <= FLAT * abs(value):
            if strict:
                start.refuse(u, flat=True)
            return start.back(u), passes, False
        low, high = (u, high) if slope < 0 else (low, u)
        step = -slope / curvature if curvature > 0 else math.copysign(math.inf, -slope)
        step = min(max(step, -LONGEST_STEP), LONGEST_STEP)
        halve = slope != 0 and high - low < math.inf and (not low < u + step < high or abs(step) > 0.7 * last)
        if halve:
            step = (low + high) / 2 - u
        u, last = u + step, abs(step)
        if last <= (TOLERANCE**2 if halve else TOLERANCE):
            return u, passes, True
        if strict:
            start.check(u)
        elif abs(u - start.centre) > LIMIT:
            return start.back(u), passes, False
    if strict and start.far(u):
        start.refuse(u, flat=True)
    return u, passes, False


class Found(NamedTuple):
    """The end of a search: the loss, the point (log b, gamma), and how it got there."""

    value: float
    point: Floats
    passes: int
    converged: bool


def quasi_newton(
    surface: Surface, point: Floats, start: Start, bounds: tuple[float, float], *, strict: bool = True
) -> Found:
    """Return the point (log b, another number) at which a surface is smallest, the latter within bounds.

    The first step is that of Fisher scoring; BFGS then learns the curvature from the slopes.
    """
    value, slope, matrix = surface(point)
    passes, gain = 1, NO_GAIN if strict else ROUGHLY
    while passes < MAX_STEPS:
        step = _bounded_step(point, slope, matrix, bounds)
        # Far out the gain of a step vanishes with the slope of a loss that falls all the way.
        if np.abs(step).max() <= TOLERANCE / 100 or (-(slope @ step) <= gain and not start.far(point[0])):
            return Found(value, point + step, passes, True)
        if abs(point[0] + step[0] - start.centre) > LIMIT:
            if strict:
                start.check(point[0] + step[0])
            break
        new = surface(point + step)
        passes += 1
        if not new[0] <= value + 1e-12:  # rounding must not stop the last steps
            matrix = 4 * matrix + np.abs(slope).max() * np.eye(2)
            continue
        turn = new[1] - slope
        if turn @ step > 1e-10 * (step @ step):
            bent = matrix @ step
            matrix = matrix - np.outer(bent, bent) / (step @ bent) + np.outer(turn, turn) / (turn @ step)
        else:
            matrix = new[2]
        point, (value, slope, _) = point + step, new
    return Found(value, point, passes, False)


def _bounded_step(point: Floats, slope: Floats, matrix: Floats, bounds: tuple[float, float]) -> Floats:
    """Return the step to the minimum of the quadratic model with the second number within its bounds."""
    low, high = max(-LONGEST_STEP, bounds[0] - point[1]), min(LONGEST_STEP, bounds[1] - point[1])
    move = 0.0
    if low < high:
        move = float(np.linalg.solve(matrix + 1e-12 * np.trace(matrix) * np.eye(2), -slope)[1])
        move = min(max(move, low), high)
    step = -(slope[0] + matrix[0, 1] * move) / max(matrix[0, 0], 1e-12)
    return np.array([min(max(step, -LONGEST_STEP), LONGEST_STEP), move])


def along_the_ridge(surface: Surface, point: Floats, start: Start, bounds: tuple[float, float]) -> Found:
    """Return what `quasi_newton` does for (log b, gamma), found as (log b + w, w) with w = log(1 + gamma).

    Far from 0, psi takes logits times (1 + gamma) b: along its level lines the first number stays, and what
    is left of the loss depends on the second alone. In b and gamma that valley is bent, and steps are short.
    """

    def turned(at: Floats) -> tuple[float, Floats, Floats]:
        value, slope, fisher = surface(np.array([at[0] - at[1], math.expm1(at[1])]))
        turn = np.array([[1.0, -1.0], [0.0, math.exp(at[1])]])
        return value, turn.T @ slope, turn.T @ fisher @ turn

    w = math.log1p(point[1])
    ends = math.log1p(bounds[0]), math.log1p(bounds[1])
    found = quasi_newton(turned, np.array([point[0] + w, w]), start, ends)
    log_b, gamma = found.point[0] - found.point[1], math.expm1(found.point[1])
    return found._replace(point=np.array([log_b, min(max(gamma, bounds[0]), bounds[1])]))
