"""What the interval of a calibration error is made of: residuals in bins, their noise, and its inversion."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from refocal._rows import Booleans, Floats, Rows, Target, checked_target
from refocal.metrics.binning import equal_mass_edges, make_bins
from refocal.metrics.measures import Average, bisect, folded_normal

DRAWS = 32
"""How many resamples are weighted at once: enough for a fast product, few enough to be small."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The residuals of the rows, hit minus confidence, summed over bins.

    A residual is divided by the number of them, so that gaps are sums. Those of a row that share a bin, as
    independent labels may, are one: rows were drawn independently, entries were not. With many classes nearly
    all probabilities are in the first bin of their class. These are kept as a matrix, the few others one by
    one.

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
        noise = self.weighted(resample(len(self.first), n_resamples, seed), n_resamples)
        noise -= self.gaps
        # A stream of its own: the resampled rows must not depend on the metric.
        noise += np.random.default_rng([seed, 1]).normal(size=noise.shape) * np.sqrt(self.spare)
        return noise

    def weighted(self, draws: Iterator[Floats], n_draws: int) -> Floats:
        """Return the gaps of rows with weights, for each draw of weights: shape (n_draws, bins)."""
        size = len(self.gaps)
        found = np.zeros((n_draws, size))
        for start in range(0, n_draws, DRAWS):
            weights = np.stack(list(itertools.islice(draws, min(DRAWS, n_draws - start))))
            part = found[start : start + DRAWS]
            part[:, self.at] = weights @ self.first
            for gaps, weight in zip(part, weights, strict=True):
                gaps += np.bincount(self.bin, self.residual * weight[self.row], size)
        return found


def cells_of(metric: str, rows: Rows, n_bins: int, target: Target | None, average: Average) -> Cells:
    """Return the residuals of a calibration error in its bins.

    Independent labels have bins in common where they are pooled, and else each its own.
    """
    if metric == "classwise_ece" and rows.task != "multilabel":
        classes = np.arange(rows.n_classes)
        columns = ((part, block, rows.labels[part, None] == classes) for part, block in rows.blocks())
        return _column_cells(columns, rows.n_rows, rows.n_classes, n_bins, None)
    shape = rows.n_rows, rows.n_labels
    confidence, hit = (x.reshape(shape) for x in rows.confidence(checked_target(target, rows)))
    pooled = average == "pooled"
    edges = None
    if metric == "adaptive_ece":
        edges = [equal_mass_edges(c, n_bins) for c in ([confidence.reshape(-1)] if pooled else confidence.T)]
    if pooled and rows.n_labels > 1:
        return _pooled_cells(confidence, hit, n_bins, edges)
    return _column_cells([(slice(0, shape[0]), confidence, hit)], *shape, n_bins, edges)


def _column_cells(
    blocks: Iterable[tuple[slice, Floats, Booleans]], n: int, m: int, n_bins: int, edges: list[Floats] | None
) -> Cells:
    """Return the residuals of m columns, each with bins of its own."""
    first, others = np.empty((n, m)), []
    # Rows, residuals, their squares, and confidences in every bin; bins of different columns have
    # different numbers. Those of the first bins, which are most, are sums of columns: no index is needed.
    sums = np.zeros((4, m * n_bins))
    edge = _first_edges(n_bins, edges)
    for part, block, hit in blocks:
        values = block.astype(np.float64)
        outside = values > edge
        row, column = np.nonzero(outside)
        inside = np.where(outside, 0, (hit - values) / (n * m))
        first[part] = inside
        confidence = np.where(outside, 0, values)
        counts = len(values) - np.count_nonzero(outside, axis=0)
        squares = np.einsum("nm,nm->m", inside, inside)
        sums[:, ::n_bins] += counts, inside.sum(axis=0), squares, confidence.sum(axis=0)
        values = values[row, column]
        residual = (hit[row, column] - values) / (n * m)
        cell = column * n_bins + _bins_of(values, column, n_bins, edges)
        for total, weight in zip(sums, (None, residual, residual**2, values), strict=True):
            total += np.bincount(cell, weight, m * n_bins)
        others.append((row + part.start, cell, residual))
    row, cell, rest = (np.concatenate(parts) for parts in zip(*others, strict=True))
    return _finished(first, (row, cell, rest), sums, sums[0], 1 / (n * m))


def _pooled_cells(confidence: Floats, hit: Booleans, n_bins: int, edges: list[Floats] | None) -> Cells:
    """Return the residuals of all entries in common bins, those of a row in a bin added up."""
    n, m = confidence.shape
    index = _bins_of(confidence, None, n_bins, edges)
    keys, group = np.unique(index + np.arange(n)[:, None] * n_bins, return_inverse=True)
    row, cell = np.divmod(keys, n_bins)
    residual = np.bincount(group.reshape(-1), ((hit - confidence) / (n * m)).reshape(-1))
    counts, touched = (np.bincount(x.reshape(-1), minlength=n_bins) for x in (index, cell))
    sums = np.stack(
        [
            counts,
            np.bincount(cell, residual, n_bins),
            np.bincount(cell, residual**2, n_bins),
            np.bincount(index.reshape(-1), confidence.reshape(-1), n_bins),
        ]
    )
    first, rest = np.zeros((n, 1)), cell > 0
    first[row[~rest], 0] = residual[~rest]
    return _finished(first, (row[rest], cell[rest], residual[rest]), sums, touched, 1 / (n * m))


def _first_edges(n_bins: int, edges: list[Floats] | None) -> Floats:
    """Return the upper edge of the first bin, for all columns or for each."""
    if edges is None:
        return make_bins(n_bins).above[:1]
    return np.array([e[0] if e.size else math.inf for e in edges])


def _bins_of(
    values: Floats, column: npt.NDArray[np.intp] | None, n_bins: int, edges: list[Floats] | None
) -> npt.NDArray[np.intp]:
    """Return the bin of every value: of equal width, or by inner edges, common ones or its column's."""
    if edges is None:
        return make_bins(n_bins).index(values)
    if len(edges) == 1:
        return edges[0].searchsorted(values)
    index = np.empty(values.shape, dtype=np.intp)
    for j, e in enumerate(edges):
        index[column == j] = e.searchsorted(values[column == j])
    return index


def _finished(
    first: Floats,
    others: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Floats],
    sums: Floats,
    touched: Floats,
    scale: float,
) -> Cells:
    """Return the `Cells` that have rows.

    Args:
        first: Residuals in the first bin of each column.
        others: Row, bin and residual of the others.
        sums: Entries, residuals, their squares, and confidences in every bin.
        touched: How many rows have an entry in the bin.
        scale: By which residuals were multiplied.
    """
    n, n_columns = first.shape
    n_bins = sums.shape[1] // n_columns
    full = sums[0] > 0
    number = np.cumsum(full) - 1  # only bins that have rows
    counts, gaps, squares, mean = sums[:, full]
    mean /= counts
    touched = touched[full]
    # One row that hits and one that misses, with all entries that a row has in the bin.
    spare = touched / n * (mean**2 + (1 - mean) ** 2) * (counts / touched * scale) ** 2
    variance = np.maximum(squares - gaps**2 / n, 0) + spare
    used = full[::n_bins]
    row, cell, rest = others
    first = first if used.all() else first[:, used]
    return Cells(first, number[::n_bins][used], row, number[cell], rest, gaps, variance, spare)


def invert(
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
            return quantile(likeliest(gaps, variance, stretch), p) - observed

        low = -float((np.abs(gaps) / variance).max())  # no gaps at all
        if excess(low) >= 0:
            return 0.0
        high = 1 / float(sd.sum())
        while excess(high) < 0:
            high *= 2
        _, stretch = bisect(lambda stretch: excess(stretch) < 0, low, high, 30)  # nine digits of the bracket
        return float(np.abs(likeliest(gaps, variance, stretch)).sum())

    value = float(np.abs(gaps).sum())
    least = quantile(np.zeros_like(gaps), 2 * tails[0])
    return limit(value, tails[1]), limit(max(value, least), tails[0])


def likeliest(gaps: Floats, variance: Floats, stretch: float) -> Floats:
    """Return the likeliest true gaps among those with a certain sum of |gaps|, which grows with stretch."""
    sign = np.where(gaps < 0, -1.0, 1.0)  # a gap of 0 can grow too
    stretched: Floats = sign * np.maximum(np.abs(gaps) + stretch * variance, 0)
    return stretched


def resample(n: int, n_resamples: int, seed: int) -> Iterator[Floats]:
    """Yield how often each of n rows is drawn in n draws with replacement."""
    rng = np.random.default_rng(seed)
    for _ in range(n_resamples):
        yield np.bincount(rng.integers(n, size=n), minlength=n).astype(np.float64)
