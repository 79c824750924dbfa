"""The fits of a temperature, and of what may come with it: gamma, a bias, one for each label."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refocal._rows import SUM_TOLERANCE, Floats, Rows, slices
from refocal.calibration._links import Way, log_probs_of
from refocal.calibration._problem import Problem
from refocal.calibration._search import (
    LARGEST_FREE_GAMMA,
    Derivatives,
    Start,
    Surface,
    along_the_ridge,
    by_differences,
    focal_at,
    moments,
    newton,
    nll_at,
    psi_nll_at,
    quasi_newton,
)
from refocal.metrics.binning import bin_rows, make_bins
from refocal.objectives import Objective, SigmoidFocal, losses_of

ECE_RANGE, ECE_STEPS = 2.0, (0.025, 0.001)
"""Where log T is searched for the ECE, around that of the NLL, and the spacing of coarse and fine grids."""

ECE_REFINED = 5
"""Around how many of the best points of the coarse grid there is a fine one."""

FREE_GAMMAS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Where the search for a free gamma starts: the NLL may have two minima, one at an end."""

LARGEST_BIAS = 50.0

FEWEST_OUTCOMES = 20
"""How often a label must be 1, and how often 0, to get a temperature of its own."""


class Fit(NamedTuple):
    """The end of a fit: log b = -log T, gamma (of psi after T) or a bias, and how it got there."""

    log_b: float
    passes: int
    converged: bool
    gamma: float = 0.0
    bias: float = 0.0

    @classmethod
    def of(cls, temperature: float, bias: float, converged: bool) -> Fit:
        """Return a fit that was made elsewhere."""
        return cls(-math.log(temperature), 0, converged, bias=bias)

    @property
    def temperature(self) -> float:
        """T."""
        return math.exp(-self.log_b)

    def warn(self) -> None:
        """Warn the caller of the caller's caller if the fit did not converge."""
        if not self.converged:
            warnings.warn(
                f"the fit did not converge: T = {self.temperature:.6g} after {self.passes} passes",
                RuntimeWarning,
                stacklevel=4,
            )


def fit_temperature(
    problem: Problem,
    objective: str | Objective,
    gamma: float | None = None,
    n_bins: int = 10,
    near: Fit | None = None,
) -> Fit:
    """Return the fit of `TemperatureScaling`; ``near`` is one to begin at, as of most of the same rows."""
    start = _start(problem, near)
    if objective == "nll":
        return Fit(*newton(_nll(problem), start.log_b, start))
    if objective == "ece":
        return _search_ece(problem, n_bins, start)
    if isinstance(objective, Objective):
        gamma = plain_gamma(objective)
        if objective.without_smoothing() is not objective and np.isinf(problem.z).any():
            raise ValueError(
                "the loss is infinite at every T: label smoothing gives weight to a class with logit -inf"
            )
        if gamma is None:
            return _by_differences(problem, _mean_loss(objective), start)
    assert gamma is not None  # "focal" has one
    best = start.log_b
    if near is None:
        best, _, _ = newton(lambda u: focal_at(start.rows, u, gamma), best, start, strict=False)
    return Fit(*newton(lambda u: focal_at(problem.rows, u, gamma), best, start))


def fit_link_temperature(problem: Problem, way: Way, near: Fit | None = None) -> Fit:
    """Return the T at which the NLL of a link after it is smallest."""
    start = _start(problem, near)
    if type(way.link) is SigmoidFocal and problem.kind == "sigmoid" and not way.link.label_smoothing:
        powers, shift = way.link._parameters(problem.z, 1)
        surface = sigmoid_psi(problem.z, problem.one, shift, powers)
        found = quasi_newton(surface, np.array([start.log_b, 0.0]), start, (0.0, 0.0))
        return Fit(float(found.point[0]), found.passes, found.converged)
    gamma = None if way.link is None else way.link.plain_gamma
    if gamma is not None:
        point, bounds = np.array([start.log_b, gamma]), (gamma, gamma)
        if near is None:
            point = quasi_newton(_psi(start.rows), point, start, bounds, strict=False).point
        found = quasi_newton(_psi(problem.rows), point, start, bounds)
        return Fit(float(found.point[0]), found.passes, found.converged, gamma)

    def mean(part: Problem, u: float) -> float:
        return float(part.nll(way._replace(temperature=math.exp(-u))).mean())

    return _by_differences(problem, mean, start)


def fit_focal_temperature(problem: Problem, alpha: Any = None, near: Fit | None = None) -> Fit:
    """Return T and gamma at which the NLL of psi after T is smallest; alpha is that of sigmoid scores."""
    start = _start(problem, near)
    if problem.kind == "sigmoid":
        shift = SigmoidFocal(0.0, alpha)._parameters(problem.z, 1)[1]
        surface = first = sigmoid_psi(problem.z, problem.one, shift)
    else:
        surface, first = _psi(problem.rows), _psi(start.rows)
    best, point = math.inf, np.array([start.log_b, 0.0 if near is None else near.gamma])
    for gamma in FREE_GAMMAS if near is None else ():
        found = quasi_newton(first, np.array([point[0], gamma]), start, (gamma, gamma), strict=False)
        if found.value < best:
            best, point = found.value, found.point
    found = along_the_ridge(surface, point, start, (0.0, LARGEST_FREE_GAMMA))
    return Fit(float(found.point[0]), found.passes, found.converged, float(found.point[1]))


def fit_platt(problem: Problem) -> Fit:
    """Return T and bias at which the NLL of sigmoid(z / T + bias) is smallest."""
    if problem.one.all() or not problem.one.any():
        raise ValueError("labels must hold both outcomes for a bias")
    if problem.z[problem.one].min() >= problem.z[~problem.one].max():
        raise ValueError("labels must not follow from a threshold: the loss falls all the way to T = 0")
    start = _start(problem, perfect=True)
    share = problem.one.mean()
    z, one = problem.z, problem.one

    def surface(point: Floats) -> tuple[float, Floats, Floats]:
        by_b = np.maximum(np.minimum(math.exp(point[0]) * z, 1e9), -1e9)
        return _logistic(by_b + point[1], one, by_b, np.ones_like(by_b))

    point = np.array([start.log_b, 0.0])
    if start.far(start.log_b):
        point = np.array([start.centre, math.log(share) - math.log1p(-share)])
    found = quasi_newton(surface, point, start, (-LARGEST_BIAS, LARGEST_BIAS))
    return Fit(float(found.point[0]), found.passes, found.converged, bias=float(found.point[1]))


def fit_each_label(
    problem: Problem, pooled: Fit, fit: Callable[[Problem, int], Fit]
) -> tuple[list[Fit], tuple[int, ...]]:
    """Return a fit for each label, and which have the pooled one: too few outcomes, or no minimum."""
    fits, shared = [], []
    for j in range(problem.z.shape[1]):
        positive = int(problem.one[:, j].sum())
        found = pooled
        if min(positive, problem.n_rows - positive) >= FEWEST_OUTCOMES:
            try:
                found = fit(problem.label(j), j)
            except ValueError:
                found = pooled
        if found is pooled:
            shared.append(j)
        fits.append(found)
    return fits, tuple(shared)


def plain_gamma(objective: Objective) -> float | None:
    """Return gamma of a focal loss without further options, on a softmax or on a sigmoid; otherwise None."""
    if type(objective) is SigmoidFocal:
        plain = objective.alpha in (None, 0.5) and not objective.label_smoothing
        return objective.gamma if plain and isinstance(objective.gamma, float) else None
    return objective.plain_gamma


def sigmoid_psi(z: Floats, one: Any, shift: Any, powers: Any = None) -> Surface:
    """Return the NLL, and its derivatives, of log h(p) - log h(1 - p) + shift as log-odds, p = sigmoid(b z).

    With t = b z and rho(t) = e^t log(1 + e^-t) these are
    (1 + gamma) t + log(1 + gamma rho(-t)) - log(1 + gamma rho(t)) + shift, and rho' = rho - sigmoid. The
    second number of a point is gamma, unless powers are given: one gamma, or one for each label.
    """

    def surface(point: Floats) -> tuple[float, Floats, Floats]:
        g = point[1] if powers is None else powers
        t = np.clip(math.exp(point[0]) * z, -700.0, 700.0)
        rho, rho_minus = np.logaddexp(0, -t) * np.exp(t), np.logaddexp(0, t) * np.exp(-t)
        p = np.exp(-np.logaddexp(0, -t))
        up, down = 1 + g * rho, 1 + g * rho_minus
        odds = (1 + g) * t + np.log(down) - np.log(up) + shift
        by_t = 1 + g - g * ((rho_minus - (1 - p)) / down + (rho - p) / up)
        return _logistic(odds, one, t * by_t, t + rho_minus / down - rho / up)

    return surface


def _logistic(odds: Floats, one: Any, *slopes: Floats) -> tuple[float, Floats, Floats]:
    """Return the mean NLL of log-odds, its gradient by what they depend on, and its Fisher information."""
    value = np.logaddexp(0, np.where(one, -odds, odds)).mean()
    p = np.exp(-np.logaddexp(0, -odds))
    miss, weight = p - one, p * (1 - p)
    gradient = np.array([(miss * d).mean() for d in slopes])
    fisher = np.array([[(weight * a * b).mean() for a in slopes] for b in slopes])
    return float(value), gradient, fisher


def _start(problem: Problem, near: Fit | None = None, *, perfect: bool = False) -> Start:
    if problem.kind == "one-vs-rest":
        spread = np.abs(problem.z.astype(np.float64))
        if not spread.any():
            raise ValueError("logits must not all be 0: they are, and T is arbitrary")
        centre = -math.log(np.median(spread[spread > 0]))
        return Start(problem.rows, centre, centre if near is None else near.log_b)
    if perfect and not problem.rows.gap.any():  # a bias may still be of use
        spread = np.abs(problem.z[np.isfinite(problem.z)])
        centre = -math.log(np.median(spread)) if spread.any() else 0.0
        return Start(problem.rows, centre, centre)
    log_b = None if near is None else near.log_b
    return Start.of(problem.rows, log_b, pairs=problem.kind == "sigmoid")


def _nll(problem: Problem) -> Callable[[float], Derivatives]:
    if problem.kind == "one-vs-rest":
        return lambda u: _one_vs_rest_at(problem, u)
    return lambda u: nll_at(problem.rows, u)


def _one_vs_rest_at(problem: Problem, u: float) -> Derivatives:
    """Return the mean NLL of sigmoids divided by their sum, and its derivatives by u = log b.

    With t = b z and a = log sigmoid(t), l = a_y - log sum e^a has l' = a'_y - E[a'] and
    l'' = a''_y - E[a''] - Var[a'], where a' = t s(-t) and a'' = t s(-t) - t^2 s(t) s(-t), s the sigmoid.
    """
    sums = np.zeros(3)
    each = np.arange(problem.n_rows)
    for block in slices(*problem.z.shape):
        t = math.exp(u) * problem.z[block].astype(np.float64)
        a, rest = -np.logaddexp(0, -t), np.exp(-np.logaddexp(0, t))
        a1 = t * rest
        a2 = a1 - t * a1 * np.exp(a)
        largest = a.max(axis=1, keepdims=True)
        q = np.exp(a - largest)
        total = q.sum(axis=1, keepdims=True)
        q /= total
        label = (each[: len(t)], problem.labels[block])
        mean = (q * a1).sum(axis=1)
        sums[0] += (largest[:, 0] + np.log(total[:, 0]) - a[label]).sum()
        sums[1] += (mean - a1[label]).sum()
        sums[2] += ((q * a2).sum(axis=1) + (q * a1**2).sum(axis=1) - mean**2 - a2[label]).sum()
    value, slope, curvature = sums / problem.n_rows
    return float(value), float(slope), float(curvature)


def _psi(rows: Rows) -> Surface:
    return lambda point: psi_nll_at(rows, point)


def _mean_loss(objective: Objective) -> Callable[[Problem, float], float]:
    def mean(part: Problem, u: float) -> float:
        total, b = 0.0, math.exp(u)
        for block in slices(*part.z.shape):
            t = part.z[block].astype(np.float64)
            if part.kind == "softmax":
                t = t - part.rows.largest[block]
            total += float(losses_of(objective, b * t, part.labels[block], 1).sum())
        return total / part.labels.size

    return mean


def _by_differences(problem: Problem, mean: Callable[[Problem, float], float], start: Start) -> Fit:
    """Return the T at which any mean of a problem is smallest."""
    step = -(-problem.n_rows // max(1, start.rows.n_rows // max(1, problem.rows.n_rows // problem.n_rows)))
    some = problem if step <= 1 else problem.take(np.arange(0, problem.n_rows, step))
    best, _, _ = newton(
        lambda u: by_differences(lambda v: mean(some, v), u), start.log_b, start, strict=False
    )
    return Fit(*newton(lambda u: by_differences(lambda v: mean(problem, v), u), best, start))


def _search_ece(problem: Problem, n_bins: int, start: Start) -> Fit:
    """Return the best log b of the grids around that of the NLL; converged means that it lies inside."""
    centre, passes, _ = newton(_nll(problem), start.log_b, start)
    bins, rows = make_bins(n_bins), problem.rows
    hit = problem.one.reshape(-1) if problem.kind == "sigmoid" else rows.z.argmax(axis=1) == rows.labels

    def confidence(u: float) -> Floats:
        if problem.kind == "softmax":
            return np.asarray(1 / moments(rows, math.exp(u), order=0)[0])
        way = Way(math.exp(-u))
        probs = np.exp(log_probs_of(problem.kind, problem.z.astype(np.float64), way, 1))
        return np.asarray(probs.reshape(-1) if problem.kind == "sigmoid" else probs.max(axis=1))

    def error(u: float) -> float:
        found = Rows("probs", confidence(u), "probs", SUM_TOLERANCE, hit.astype(np.int64))
        return bin_rows(found, bins, "positive").ece()

    coarse, fine = ECE_STEPS
    around = round(ECE_RANGE / coarse)
    found = {u: error(u) for u in centre + coarse * np.arange(-around, around + 1)}
    inner = fine * np.arange(-round(coarse / fine), round(coarse / fine) + 1)
    for middle in sorted(found, key=found.__getitem__)[:ECE_REFINED]:
        found |= {u: error(u) for u in middle + inner if u not in found}
    best = min(found, key=found.__getitem__)
    return Fit(float(best), passes + len(found), bool(abs(best - centre) < ECE_RANGE))
