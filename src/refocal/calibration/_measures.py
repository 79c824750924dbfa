"""How good held-out probabilities of a task are: the metrics of the table with intervals, and the bins."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np

from refocal._rows import SUM_TOLERANCE, Floats, Rows
from refocal.calibration._problem import Problem
from refocal.metrics.binning import bin_rows, make_bins
from refocal.metrics.intervals import Interval, _invert, interval_of, resample
from refocal.metrics.measures import brier_rows, error_rows
from refocal.metrics.stats import CalibrationStats, stats_of

RESAMPLED_ENTRIES, FEWEST_RESAMPLES = 5 * 10**7, 100
"""The interval of the classwise ECE, a slow one, gets fewer resamples where there are many entries."""


def measure(
    problem: Problem,
    log_probs: Floats,
    losses: Floats,
    level: float,
    n_bins: int,
    n_resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Return every metric of held-out log-probabilities, (n, K) or of y = 1 for each entry, and the bins."""
    n_resamples = min(n_resamples, max(FEWEST_RESAMPLES, RESAMPLED_ENTRIES // problem.z.size))
    found: dict[str, Any] = {"nll": _mean_interval(losses, level)}
    if problem.kind != "sigmoid":
        held_out = problem.rows.log_probs(log_probs)
        found["stats"] = stats_of(held_out, n_bins)
        for name in ("brier", "ece", "error_rate"):
            found[name] = interval_of(name, held_out, level, "analytic", n_bins)
        name = "classwise_ece"
        found[name] = interval_of(name, held_out, level, "bootstrap", n_bins, None, n_resamples, seed)
        return found
    probs = np.minimum(np.exp(log_probs), 1)
    entries = Rows("probs", probs.reshape(-1), "probs", SUM_TOLERANCE, problem.labels.reshape(-1))
    found["stats"] = CalibrationStats(n_bins, target="positive")
    found["stats"]._set(bin_rows(entries, make_bins(n_bins), "positive"))
    if problem.task == "binary":
        for name in ("brier", "error_rate"):
            found[name] = interval_of(name, entries, level, "analytic")
        found["ece"] = interval_of("ece", entries, level, "analytic", n_bins, "positive")
        found["classwise_ece"] = found["ece"]  # one label, so one mean
        return found
    for name, of_entries in (("brier", brier_rows), ("error_rate", error_rows)):
        found[name] = _mean_interval(of_entries(entries).reshape(probs.shape).mean(axis=1), level)
    for name, macro in (("ece", False), ("classwise_ece", True)):
        found[name] = _label_error(problem, probs, macro, level, n_bins, n_resamples, seed)
    return found


def _mean_interval(losses: Floats, level: float) -> Interval:
    """Return the mean of rows with its normal interval; infinite where one row is."""
    value = float(losses.mean())
    if not math.isfinite(value):
        return Interval(math.inf, math.inf, math.inf, level, "analytic")
    reach = NormalDist().inv_cdf((1 + level) / 2) * float(losses.std(ddof=1)) / math.sqrt(len(losses))
    return Interval(value, max(value - reach, 0.0), value + reach, level, "analytic")


def _label_error(
    problem: Problem, probs: Floats, macro: bool, level: float, n_bins: int, n_resamples: int, seed: int
) -> Interval:
    """Return the ECE of P(y = 1), in bins that all labels share or (macro) in bins of each label.

    The interval is that of `refocal.confidence_interval`, with rows, and so all labels of a row, drawn
    together.
    """
    n, width = probs.shape
    index = make_bins(n_bins).index(probs.reshape(-1)).reshape(n, width)
    index = index + np.arange(width) * n_bins if macro else index
    size = n_bins * width if macro else n_bins
    residual = (problem.one - probs) / (n * width)
    flat = index.reshape(-1)
    counts = np.bincount(flat, minlength=size)
    used = counts > 0
    gaps = np.bincount(flat, residual.reshape(-1), size)
    mean = np.bincount(flat, probs.reshape(-1), size)[used] / counts[used]
    squares = np.bincount(flat, (residual**2).reshape(-1), size)
    spare = counts[used] / n * (mean**2 + (1 - mean) ** 2) / (n * width) ** 2
    variance = np.maximum(squares[used] - gaps[used] ** 2 / n, 0) + spare
    noise = np.stack(
        [
            np.bincount(flat, (residual * weight[:, None]).reshape(-1), size)[used]
            for weight in resample(n, n_resamples, seed)
        ]
    )
    noise += np.random.default_rng([seed, 1]).normal(size=noise.shape) * np.sqrt(spare) - gaps[used]
    ends = _invert(gaps[used], variance, noise, ((1 - level) / 2, (1 + level) / 2))
    return Interval(float(np.abs(gaps).sum()), *ends, level, "bootstrap", debiased=True)
