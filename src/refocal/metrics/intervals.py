"""How sure a metric is: intervals, and a test of calibration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from refocal._checks import LEVEL, check_count, check_level
from refocal._rows import Floats, Rows, Target, checked_rows, checked_target
from refocal.metrics.binning import equal_mass_edges, make_bins
from refocal.metrics.measures import bisect, brier_rows, error_rows, folded_normal, nll_rows

ROW_METRICS = {"nll": nll_rows, "brier": brier_rows, "error_rate": error_rows}
BINNED_METRICS = ("ece", "adaptive_ece", "classwise_ece")

DRAWS = 32
"""How many resamples are weighted at once: enough for a fast product, few enough to be small."""


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class CalibrationTest:
    """Whether calibrated probabilities would show such a calibration error.

    Attributes:
        statistic: The expected calibration error of the rows.
        p_value: How often labels drawn from the probabilities give at least as much.
        n_simulations: How often labels were drawn.

    Example:
        >>> CalibrationTest(0.01, 0.4, 1000).p_value
        0.4
    """

    statistic: float
    p_value: float
    n_simulations: int


def confidence_interval(
    metric: str,
    probs: Any,
    labels: Any,
    *,
    level: float = LEVEL,
    method: Literal["bootstrap", "analytic"] = "bootstrap",
    n_bins: int | None = None,
    from_logits: bool = False,
    target: Target | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Interval:
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

    Args:
        metric: "ece", "adaptive_ece", "classwise_ece", "nll", "brier" or "error_rate". There is none
            for "mce": no interval for a maximum over bins, some nearly empty, keeps its promise.
        probs: As for `refocal.ece`.
        labels: As for `refocal.ece`.
        level: Within (0, 1).
        method: "bootstrap", or "analytic": one pass, no random numbers, not for "classwise_ece", whose
            classes depend on each other.
        n_bins: For calibration errors; None for 10.
        from_logits: Whether probs are logits.
        target: For "ece" and "adaptive_ece" of probs of shape (n,); as for `refocal.ece`.
        n_resamples: Of the bootstrap.
        seed: Of the bootstrap. The same seed resamples the same rows, whatever the metric.

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
    if method == "analytic" and metric == "classwise_ece":
        raise ValueError("method must be 'bootstrap' for classwise_ece, got 'analytic'")
    given = {"n_bins": n_bins, "target": target}
    unused = ["target"] if metric == "classwise_ece" else list(given) if metric in ROW_METRICS else []
    for name in unused:
        if given[name] is not None:
            raise ValueError(f"{name} must be None for {metric}, which has none, got {given[name]!r}")
    check_count("n_resamples", n_resamples, 1)
    check_count("seed", seed, 0)
    rows = checked_rows(probs, labels, from_logits=from_logits)
    if rows.n_rows < 2:
        raise ValueError(f"{rows.name} must have at least 2 rows for an interval, got {rows.n_rows}")
    n_bins = 10 if n_bins is None else n_bins
    return interval_of(metric, rows, check_level(level), method, n_bins, target, n_resamples, seed)


def interval_of(
    metric: str,
    rows: Rows,
    level: float,
    method: Literal["bootstrap", "analytic"],
    n_bins: int = 10,
    target: Target | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Return the `confidence_interval` of rows; the arguments were checked before."""
    tails = ((1 - level) / 2, (1 + level) / 2)
    if metric in BINNED_METRICS:
        cells = _cells(metric, rows, n_bins, target)
        noise = cells.noise(n_resamples, seed) if method == "bootstrap" else None
        ends = _invert(cells.gaps, cells.variance, noise, tails)
        return Interval(float(np.abs(cells.gaps).sum()), *ends, level, method, debiased=True)
    losses = ROW_METRICS[metric](rows)
    n, value = len(losses), float(losses.mean())
    if not np.isfinite(losses).all():
        raise ValueError(f"{metric} must be finite for an interval: a label has probability 0")
    if method == "bootstrap":
        low, high = np.quantile([w @ losses / n for w in resample(n, n_resamples, seed)], tails)
    elif metric == "error_rate":
        low, high = wilson(value, n, level)
    else:
        reach = NormalDist().inv_cdf(tails[1]) * losses.std(ddof=1) / math.sqrt(n)
        low, high = max(value - reach, 0.0), value + reach
    return Interval(value, float(low), float(high), level, method)


def calibration_test(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    from_logits: bool = False,
    target: Target | None = None,
    n_simulations: int = 1000,
    seed: int = 0,
) -> CalibrationTest:
    r"""Test whether the confidences are calibrated, that is, P(hit | confidence) = confidence.

    If they are, hits are independent draws with the confidences as probabilities. Such hits are drawn
    :math:`R` times, and with :math:`r` of the drawn expected calibration errors at least as large as the
    observed one, the p-value is :math:`(1 + r) / (1 + R)`. It is exact for any number of rows: of
    calibrated models at most a share p has a p-value of p or less.

    A large p-value is no proof of calibration: the rows may be too few, or gaps may cancel within a bin.

    Args:
        probs: As for `refocal.ece`.
        labels: As for `refocal.ece`.
        n_bins: How many bins of equal width.
        from_logits: Whether probs are logits.
        target: As for `refocal.ece`.
        n_simulations: R.
        seed: Of the draws.

    Raises:
        TypeError: If probs are not floats or labels not integers.
        ValueError: If an argument is wrong.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> p = rng.uniform(0.5, 1, size=1000)
        >>> probs, u = np.stack([p, 1 - p], axis=1), rng.random(1000)
        >>> calibration_test(probs, (u > p).astype(int)).p_value > 0.05
        True
        >>> calibration_test(probs, (u > p - 0.1).astype(int)).p_value < 0.01
        True
    """
    bins = make_bins(n_bins)
    check_count("n_simulations", n_simulations, 1)
    check_count("seed", seed, 0)
    rows = checked_rows(probs, labels, from_logits=from_logits)
    confidence, hit = rows.confidence(checked_target(target, rows))
    index = bins.index(confidence)
    expected = np.bincount(index, confidence, bins.n_bins)

    def error(hits: npt.NDArray[np.bool_]) -> float:
        found = np.bincount(index[hits], minlength=bins.n_bins)
        return float(np.abs(found - expected).sum() / len(hits))

    rng = np.random.default_rng(seed)
    statistic = error(hit)
    # Equal up to the rounding of the sums counts as equal.
    reached = sum(error(rng.random(len(hit)) < confidence) >= statistic - 1e-12 for _ in range(n_simulations))
    return CalibrationTest(statistic, (1 + reached) / (1 + n_simulations), n_simulations)


@dataclass(frozen=True, eq=False)
class _Cells:
    """The residuals of the rows, hit minus confidence, summed over bins.

    A residual is divided by n m, so that gaps are sums. With many classes nearly all probabilities are in the
    first bin of their class. These are kept as a matrix, the few others one by one.

    Attributes:
        first: Residuals in the first bin, else 0: shape (n, m), m being the classes whose first bin has rows.
        at: The bins that those columns belong to, shape (m,).
        row: For each of the other residuals, its row,
        bin: its bin,
        residual: and itself.
        gaps: The sum of the residuals of every bin.
        variance: Of these sums.
        spare: The part of it that no resampling shows: a share of one hit and one miss.
    """

    first: Floats
    at: npt.NDArray[np.intp]
    row: npt.NDArray[np.intp]
    bin: npt.NDArray[np.intp]
    residual: Floats
    gaps: Floats
    variance: Floats
    spare: Floats

    def noise(self, n_resamples: int, seed: int) -> Floats:
        """Return how the gaps of resampled rows differ from the gaps, shape (n_resamples, bins)."""
        size = len(self.gaps)
        noise = np.zeros((n_resamples, size))
        draws = resample(len(self.first), n_resamples, seed)
        for start in range(0, n_resamples, DRAWS):
            weights = np.stack(list(itertools.islice(draws, DRAWS)))
            part = noise[start : start + DRAWS]
            part[:, self.at] = weights @ self.first
            for gaps, weight in zip(part, weights, strict=True):
                gaps += np.bincount(self.bin, self.residual * weight[self.row], size)
        noise -= self.gaps
        # A stream of its own: the resampled rows must not depend on the metric.
        noise += np.random.default_rng([seed, 1]).normal(size=noise.shape) * np.sqrt(self.spare)
        return noise


def _cells(metric: str, rows: Rows, n_bins: int, target: Target | None) -> _Cells:
    bins = make_bins(n_bins)
    n, m = rows.n_rows, rows.n_classes if metric == "classwise_ece" else 1
    blocks: Iterable[tuple[slice, Floats, Floats]]
    place: Callable[[Floats], npt.NDArray[np.intp]] = bins.index
    if metric == "classwise_ece":
        classes = np.arange(m)
        blocks = ((part, block, rows.labels[part, None] == classes) for part, block in rows.blocks())
    else:
        confidence, hit = rows.confidence(checked_target(target, rows))
        blocks = [(slice(0, n), confidence[:, None], hit[:, None])]
        if metric == "adaptive_ece":
            place = equal_mass_edges(confidence, n_bins).searchsorted
    first, others = np.empty((n, m)), []
    # Rows, residuals, their squares, and confidences in every bin; bins of different classes have
    # different numbers.
    sums = np.zeros((4, m * n_bins))
    for part, block, hit in blocks:
        values = block.astype(np.float64)
        residual = (hit - values) / (n * m)
        index = place(values)
        flat = (index + np.arange(m) * n_bins).reshape(-1)
        for total, weight in zip(sums, (None, residual, residual**2, values), strict=True):
            total += np.bincount(flat, None if weight is None else weight.reshape(-1), m * n_bins)
        row, column = np.nonzero(index)
        others.append((row + part.start, flat.reshape(index.shape)[row, column], residual[row, column]))
        first[part] = np.where(index == 0, residual, 0)
    full = sums[0] > 0
    number = np.cumsum(full) - 1  # only bins that have rows
    counts, gaps, squares, mean = sums[:, full]
    mean /= counts
    spare = counts / n * (mean**2 + (1 - mean) ** 2) / (n * m) ** 2
    variance = np.maximum(squares - gaps**2 / n, 0) + spare
    used = full[::n_bins]
    row, cell, rest = (np.concatenate(parts) for parts in zip(*others, strict=True))
    first = first if used.all() else first[:, used]
    return _Cells(first, number[::n_bins][used], row, number[cell], rest, gaps, variance, spare)


def _invert(
    gaps: Floats, variance: Floats, noise: Floats | None, tails: tuple[float, float]
) -> tuple[float, float]:
    """Return the smallest and the largest sum of |gaps| that the observed one does not contradict."""
    sd = np.sqrt(variance)

    def quantile(true_gaps: Floats, p: float) -> float:
        if noise is not None:
            return float(np.quantile(np.abs(true_gaps + noise).sum(axis=1), p))
        mean, spread = folded_normal(true_gaps, sd)
        return float(mean.sum() + NormalDist().inv_cdf(p) * math.sqrt(spread.sum()))

    def limit(observed: float, p: float) -> float:
        """Return the sum of the true gaps for which a share p of samples is below the observed one."""

        def excess(stretch: float) -> float:
            return quantile(_likeliest(gaps, variance, stretch), p) - observed

        low = -float((np.abs(gaps) / variance).max())  # no gaps at all
        if excess(low) >= 0:
            return 0.0
        high = 1 / float(sd.sum())
        while excess(high) < 0:
            high *= 2
        _, stretch = bisect(lambda stretch: excess(stretch) < 0, low, high, 30)  # nine digits of the bracket
        return float(np.abs(_likeliest(gaps, variance, stretch)).sum())

    value = float(np.abs(gaps).sum())
    least = quantile(np.zeros_like(gaps), 2 * tails[0])
    return limit(value, tails[1]), limit(max(value, least), tails[0])


def _likeliest(gaps: Floats, variance: Floats, stretch: float) -> Floats:
    """Return the likeliest true gaps among those with a certain sum of |gaps|, which grows with stretch."""
    sign = np.where(gaps < 0, -1.0, 1.0)  # a gap of 0 can grow too
    stretched: Floats = sign * np.maximum(np.abs(gaps) + stretch * variance, 0)
    return stretched


def resample(n: int, n_resamples: int, seed: int) -> Iterator[Floats]:
    """Yield how often each of n rows is drawn in n draws with replacement."""
    rng = np.random.default_rng(seed)
    for _ in range(n_resamples):
        yield np.bincount(rng.integers(n, size=n), minlength=n).astype(np.float64)


def wilson(share: Any, n: Any, level: float) -> tuple[Floats, Floats]:
    """Return the ends of Wilson's score interval of a share of n rows, or of many."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = share + z * z / (2 * n)
    reach = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = ((middle + end) / (1 + z * z / n) for end in (-reach, reach))
    return np.clip(low, 0, 1), np.clip(high, 0, 1)
