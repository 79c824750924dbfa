"""How good held-out probabilities of a task are: the metrics of the table with intervals, and the bins."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np

from refocal._rows import Floats, Rows
from refocal.metrics.intervals import Interval, interval_of
from refocal.metrics.stats import stats_of

RESAMPLED_ENTRIES, FEWEST_RESAMPLES = 5 * 10**7, 100
"""The interval of the classwise ECE, a slow one, gets fewer resamples where there are many entries."""


def measure(
    held_out: Rows, losses: Floats, level: float, n_bins: int, n_resamples: int, seed: int
) -> dict[str, Any]:
    """Return every metric of held-out probabilities, (n, K) or of y = 1 for each entry, and the bins."""
    n_resamples = min(n_resamples, max(FEWEST_RESAMPLES, RESAMPLED_ENTRIES // held_out.values.size))
    found: dict[str, Any] = {"nll": _mean_interval(losses, level), "stats": stats_of(held_out, n_bins)}
    for name in ("brier", "error_rate"):
        found[name] = interval_of(name, held_out, level, "analytic")
    drawn = n_bins, None, n_resamples, seed
    if held_out.task == "multilabel":
        found["ece"] = interval_of("ece", held_out, level, "bootstrap", *drawn)
        found["classwise_ece"] = interval_of("ece", held_out, level, "bootstrap", *drawn, "macro")
        return found
    found["ece"] = interval_of("ece", held_out, level, "analytic", n_bins)
    if held_out.task == "binary":
        found["classwise_ece"] = found["ece"]  # one label, so one mean
    else:
        found["classwise_ece"] = interval_of("classwise_ece", held_out, level, "bootstrap", *drawn)
    return found


def _mean_interval(losses: Floats, level: float) -> Interval:
    """Return the mean of rows with its normal interval; infinite where one row is."""
    value = float(losses.mean())
    if not math.isfinite(value):
        return Interval(math.inf, math.inf, math.inf, level, "analytic")
    reach = NormalDist().inv_cdf((1 + level) / 2) * float(np.std(losses, ddof=1)) / math.sqrt(len(losses))
    return Interval(value, max(value - reach, 0.0), value + reach, level, "analytic")
