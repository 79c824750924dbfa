"""How sure a metric is: intervals for its value on all data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal, TypeAlias, Unpack, overload

import numpy as np

from refocal._checks import LEVEL, check_count, check_level
from refocal._html import data_frame, html_table
from refocal._rows import Floats, RowOptions, Rows, Target, checked_rows
from refocal.metrics.cells import cells_of, invert
from refocal.metrics.cells import resample as resample
from refocal.metrics.errors import TargetOptions
from refocal.metrics.measures import Average, brier_rows, checked_average, error_rows, nll_rows

ROW_METRICS = {"nll": nll_rows, "brier": brier_rows, "error_rate": error_rows}
BINNED_METRICS = ("ece", "adaptive_ece", "classwise_ece")
LARGEST = {"nll": math.inf, "brier": 2.0}
"""What a metric can be at most; the others 1."""

Method: TypeAlias = Literal["bootstrap", "analytic"]


class IntervalOptions(TargetOptions, total=False):
    """What an interval takes beside metric, scores, labels and average."""

    level: float
    method: Method
    n_bins: int | None
    n_resamples: int
    seed: int


@dataclass(frozen=True, repr=False)
class Interval:
    """A metric with an interval for its value on all data, of which the rows are a sample.

    Attributes:
        value: The metric of the rows.
        low: Lower end.
        high: Upper end.
        level: The share of samples whose interval holds the truth.
        method: "bootstrap" or "analytic".
        debiased: Whether the interval is that of a calibration error without its upward bias. The value
            has that bias, so it may lie above ``high``.

    Example:
        >>> print(Interval(0.1, 0.05, 0.15, 0.9, "analytic"))
        0.1000 [0.0500, 0.1500]
    """

    value: float
    low: float
    high: float
    level: float
    method: str
    debiased: bool = False

    def __str__(self) -> str:
        """Return value and ends with four digits."""
        note = ", debiased" if self.debiased else ""
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]{note}"

    def __repr__(self) -> str:
        return f"Interval({self}, level={self.level:g}, {self.method})"

    def _repr_html_(self) -> str:
        return html_table(list(asdict(self)), [list(asdict(self).values())])

    def to_frame(self) -> Any:
        """Return a frame of pandas with one row.

        Raises:
            ImportError: If pandas is missing; it says how to install it.
        """
        return data_frame({name: [value] for name, value in asdict(self).items()})


@overload
def confidence_interval(
    metric: str, probs: Any, labels: Any, *, average: Literal["none"], **options: Unpack[IntervalOptions]
) -> list[Interval]: ...


@overload
def confidence_interval(
    metric: str,
    probs: Any,
    labels: Any,
    *,
    average: Literal["pooled", "macro"] | None = None,
    **options: Unpack[IntervalOptions],
) -> Interval: ...


def confidence_interval(
    metric: str,
    probs: Any,
    labels: Any,
    *,
    level: float = LEVEL,
    method: Method = "bootstrap",
    n_bins: int | None = None,
    from_logits: bool = False,
    target: Target | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
    average: Average | None = None,
    **options: Unpack[RowOptions],
) -> Interval | list[Interval]:
    r"""Return a metric with a two-sided interval for its value on all data.

    **Means of rows** ("nll", "brier", "error_rate"). Bootstrap: quantiles of the means of resampled rows.
    Analytic: mean :math:`\pm z s / \sqrt n`, and Wilson's interval for the error rate.

    **Calibration errors** ("ece", "adaptive_ece", "classwise_ece"). The truth is
    :math:`\theta = \sum_j |\gamma_j|`, :math:`\gamma_j` being the expectation of hit minus confidence in
    bin j, with the bins held fixed. Noise makes every summand of the plug-in estimate larger, so its own
    quantiles would be far above the truth. Instead, for every possible :math:`\theta` the likeliest gaps
    that have this sum are found: the observed ones shrunk or stretched by
    :math:`\lambda s_j^2`, with :math:`s_j` the standard error of bin j. The interval is made of those
    :math:`\theta` under which the observed error is neither in the upper nor in the lower tail of
    :math:`\sum_j |\gamma_j + \mathrm{noise}_j|`. The noise is that of resampled rows (bootstrap), or
    independent and normal, its sum taken as normal by its two moments (analytic). To the variance of a bin is
    added its share, by rows, of that of one hit and one miss, or hits alone would be without noise. For
    the upper end, an error that all but a share ``1 - level`` of calibrated samples exceed counts as the
    one which they exceed, so that luck does not shrink the interval to 0.

    For a calibrated model the interval holds the truth, 0, in about ``(1 + level) / 2`` of samples: there is
    nothing below it to miss. For a nearly calibrated one, whose gaps are smaller than their noise, it holds
    the truth in more samples than ``level`` says, up to nearly all. Where most bins have a row or two, as
    those of the classwise error of many classes on few rows, noise hides the gaps, and the interval may lie
    below the truth.

    **Independent labels.** Those of a row depend on each other, so rows are resampled, never entries: means
    are those of rows, and what a row has in a bin counts as one residual.

    Ends are within what the metric can be: 0..1, of "brier" 0..2, of "nll" 0 or more.

    Args:
        metric: "ece", "adaptive_ece", "classwise_ece", "nll", "brier" or "error_rate". There is none
            for "mce": no interval for a maximum over bins, some nearly empty, keeps its promise.
        probs: As for `refocal.ece`.
        labels: As for `refocal.ece`.
        level: Within (0, 1).
        method: "bootstrap", or "analytic": one pass, no random numbers, not for "classwise_ece" and
            calibration errors of several independent labels, which depend on each other.
        n_bins: For calibration errors; None for 10.
        from_logits: Whether probs are logits.
        target: For "ece" and "adaptive_ece" of two classes; as for `refocal.ece`.
        n_resamples: Of the bootstrap.
        seed: Of the bootstrap. The same seed resamples the same rows, whatever the metric.
        average: As for `refocal.ece`.
        **options: ``task``, ``axis``, ``ignore_index`` and ``classes``, as for `refocal.ece`.

    Returns:
        An `Interval`; with ``average="none"`` a list of them, one for each independent label.

    Raises:
        TypeError: If probs are not floats or labels not integers.
        ValueError: If an argument is wrong, there are fewer than 2 rows, or the metric is infinite.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> p = rng.uniform(0.5, 1, size=2000)
        >>> y = (rng.random(2000) > p - 0.1).astype(int)  # overconfident by 0.1
        >>> found = confidence_interval("ece", np.stack([p, 1 - p], axis=1), y)
        >>> found.low < 0.1 < found.high
        True
    """
    if metric not in (*BINNED_METRICS, *ROW_METRICS):
        raise ValueError(f"metric must be one of {(*BINNED_METRICS, *ROW_METRICS)}, got {metric!r}")
    if method not in ("bootstrap", "analytic"):
        raise ValueError(f"method must be 'bootstrap' or 'analytic', got {method!r}")
    given = {"n_bins": n_bins, "target": target}
    unused = ["target"] if metric == "classwise_ece" else list(given) if metric in ROW_METRICS else []
    for name in unused:
        if given[name] is not None:
            raise ValueError(f"{name} must be None for {metric}, which has none, got {given[name]!r}")
    check_count("n_resamples", n_resamples, 1)
    check_count("seed", seed, 0)
    rows = checked_rows(probs, labels, from_logits=from_logits, **options)
    if rows.n_rows < 2:
        raise ValueError(f"{rows.name} must have at least 2 rows for an interval, got {rows.n_rows}")
    average = checked_average(average or _usual(metric, rows), rows)
    if metric == "classwise_ece" and average == "pooled" and rows.task == "multilabel":
        raise ValueError("average must be 'macro' or 'none' for classwise_ece, got 'pooled'")
    depend = metric == "classwise_ece" or (metric in BINNED_METRICS and rows.n_labels > 1)
    if method == "analytic" and depend and average != "none":
        of = metric if rows.n_labels == 1 else f"{metric} of several independent labels"
        raise ValueError(f"method must be 'bootstrap' for {of}, got 'analytic'")
    level, n_bins = check_level(level), 10 if n_bins is None else n_bins
    if average != "none":
        return interval_of(metric, rows, level, method, n_bins, target, n_resamples, seed, average)
    metric = "ece" if metric == "classwise_ece" else metric
    return [
        interval_of(metric, rows.label(j), level, method, n_bins, target, n_resamples, seed)
        for j in range(rows.n_labels)
    ]


def _usual(metric: str, rows: Rows) -> Average | None:
    return "macro" if metric == "classwise_ece" and rows.task == "multilabel" else None


def interval_of(
    metric: str,
    rows: Rows,
    level: float,
    method: Method,
    n_bins: int = 10,
    target: Target | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
    average: Average = "pooled",
) -> Interval:
    """Return the `confidence_interval` of rows; the arguments were checked before."""
    tails = ((1 - level) / 2, (1 + level) / 2)
    binned = metric in BINNED_METRICS
    low: Any
    high: Any
    if binned:
        cells = cells_of(metric, rows, n_bins, target, average)
        noise = cells.noise(n_resamples, seed) if method == "bootstrap" else None
        value, (low, high) = float(np.abs(cells.gaps).sum()), invert(cells.gaps, cells.variance, noise, tails)
    else:
        losses = rows.by_row(ROW_METRICS[metric](rows))
        n, value = len(losses), float(losses.mean())
        if not np.isfinite(losses).all():
            raise ValueError(f"{metric} must be finite for an interval: a label has probability 0")
        if method == "bootstrap":
            low, high = np.quantile([w @ losses / n for w in resample(n, n_resamples, seed)], tails)
        elif metric == "error_rate":
            low, high = wilson(value, _effective_n(losses, rows.n_labels), level)
        else:
            reach = NormalDist().inv_cdf(tails[1]) * losses.std(ddof=1) / math.sqrt(n)
            low, high = value - reach, value + reach
    low, high = (float(np.clip(end, 0, LARGEST.get(metric, 1.0))) for end in (low, high))
    return Interval(value, low, high, level, method, debiased=binned)


def _effective_n(shares: Floats, n_labels: int) -> float:
    """Return how many independent errors have the spread of these shares of rows: from n to n L."""
    p, variance = float(shares.mean()), float(shares.var())
    if p in (0, 1):  # nothing shows how they depend on each other
        return len(shares)
    return len(shares) * min(max(p * (1 - p) / variance, 1), n_labels) if variance else len(shares) * n_labels


def wilson(share: Any, n: Any, level: float) -> tuple[Floats, Floats]:
    """Return the ends of Wilson's score interval of a share of n rows, or of many."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = share + z * z / (2 * n)
    reach = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = ((middle + end) / (1 + z * z / n) for end in (-reach, reach))
    return np.clip(low, 0, 1), np.clip(high, 0, 1)
