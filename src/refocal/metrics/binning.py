"""Bins of confidences: the one place with a rule for their edges, and what is counted in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from refocal import _compiled as compiled
from refocal._checks import check_count
from refocal._rows import HALF_SUM_TOLERANCE, Floats, Integers, Rows, Target, confidence_of

Convention: TypeAlias = Literal["refocal", "torchmetrics", "netcal", "sklearn", "guo"]

AS_THEY_ARE = ("refocal", "sklearn", "guo")
"""Conventions with bins (lo, hi] that take confidences as they are."""

LARGEST_N_BINS = 100_000
"""Far below the number of bins whose edges float32 cannot tell apart."""


@dataclass(frozen=True, eq=False)
class Bins:
    """Equal-width bins over [0, 1] under the rule of a library.

    Attributes:
        convention: Whose rule.
        n_bins: How many bins the user asked for.
        edges: Of the bins that there are, float64.
        below: The lower edge of each bin; of the first, -inf.
        above: The upper edge of each bin; of the last, inf.
    """

    convention: Convention
    n_bins: int
    edges: Floats
    below: Floats
    above: Floats

    def index(self, confidence: Floats) -> npt.NDArray[np.intp]:
        """Return the bin of every confidence (float64)."""
        # A product is at most one bin off, and takes a fifth of the time of a search.
        index = (confidence * self.n_bins).astype(np.intp)
        np.minimum(index, len(self.below) - 1, out=index)
        if self.convention in ("torchmetrics", "netcal"):  # [lo, hi)
            down, up = confidence < self.below[index], confidence >= self.above[index]
        else:  # (lo, hi]
            down, up = confidence <= self.below[index], confidence > self.above[index]
        index += up
        index -= down
        return index

    def values(self, confidence: Floats, eps: float) -> Floats:
        """Return confidences, which came with a dtype of this eps, as the library uses them, in float64."""
        if self.convention == "torchmetrics":
            confidence = confidence.astype(np.float32, copy=False)
        elif self.convention == "netcal":
            confidence = np.clip(confidence.astype(np.float64), eps, 1 - eps)
        return confidence.astype(np.float64, copy=False)


def make_bins(n_bins: int, convention: Convention = "refocal") -> Bins:
    """Return equal-width `Bins` after a check of the arguments."""
    n = check_n_bins(n_bins)
    i = np.arange(n + 1)
    if convention == "refocal":
        edges = i / n
    elif convention in ("netcal", "sklearn"):
        edges = np.linspace(0, 1, n + 1)
    elif convention in ("torchmetrics", "guo"):
        # PyTorch's float32 linspace: from both ends, each entry rounded once.
        step = float(np.float32(1) / np.float32(n))
        edges = np.where(i < (n + 1) // 2, step * i, 1 - step * (n - i)).astype(np.float32).astype(np.float64)
    else:
        raise ValueError(f"convention must be one of {get_args(Convention)}, got {convention!r}")
    if convention == "torchmetrics":
        edges = np.append(edges, 1.0)  # 1.0 has a bin of its own
    edges.flags.writeable = False
    inner = edges[1:-1]
    return Bins(convention, n, edges, np.append(-np.inf, inner), np.append(inner, np.inf))


def equal_mass_edges(confidence: Floats, n_bins: int) -> Floats:
    """Return the inner edges of bins (lo, hi] that hold about the same number of rows."""
    ranks = -(-np.arange(1, check_n_bins(n_bins)) * len(confidence) // n_bins)
    return np.unique(np.sort(confidence)[ranks - 1])


def check_n_bins(n_bins: object) -> int:
    """Return a number of bins."""
    return check_count("n_bins", n_bins, 1, LARGEST_N_BINS)


class Binned(NamedTuple):
    """What calibration errors are made of: a row for the target, then one for each class if asked for.

    Of independent labels: a row for all entries, then one for each label.
    """

    counts: Integers
    """Entries in every bin."""
    hits: Integers
    """Hits in every bin."""
    sums: Floats
    """Confidences in every bin, summed in float64."""

    @classmethod
    def zeros(cls, bins: Bins, n_classes: int | None) -> Self:
        """Return the numbers of no rows."""
        shape = (1 + (n_classes or 0), len(bins.edges) - 1)
        return cls(np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape))

    def plus(self, other: Binned) -> Binned:
        """Return the numbers of the rows of both."""
        return Binned(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    @property
    def n(self) -> int:
        """How many entries."""
        return int(self.counts[0].sum())

    def gaps(self) -> Floats:
        """Return count * |accuracy - confidence| of every bin."""
        if self.n == 0:
            raise ValueError("stats must have at least 1 row, got none: call update first")
        return np.abs(self.hits - self.sums)

    def ece(self) -> float:
        """Return the expected calibration error of the target."""
        return float(self.gaps()[0].sum() / self.n)

    def mce(self) -> float:
        """Return the maximum calibration error of the target, over the bins that have rows."""
        full = self.counts[0] > 0
        return float((self.gaps()[0][full] / self.counts[0][full]).max())

    def classwise_ece(self) -> float:
        """Return the expected calibration error of the classes, averaged over them."""
        return float(self.gaps()[1:].sum() / self.counts[1:].sum())

    def class_ece(self) -> Floats:
        """Return the expected calibration error of each class."""
        each: Floats = self.gaps()[1:].sum(axis=1) / self.counts[1:].sum(axis=1)
        return each


def checked_binned(shape: tuple[int, ...], data: Mapping[str, Any], n_labels: int | None) -> Binned:
    """Return the numbers that a dictionary has, after a check that they can be those of rows."""
    counts, hits, sums = (np.asarray(data[name]) for name in Binned._fields)
    if not all(a.shape == shape for a in (counts, hits, sums)):
        raise ValueError(f"counts, hits and sums must have the shape {shape}")
    if counts.dtype.kind not in "iu" or hits.dtype.kind not in "iu" or sums.dtype.kind not in "iuf":
        raise ValueError("counts and hits must be integers, sums numbers")
    if not ((0 <= hits) & (hits <= counts) & (sums >= 0)).all():
        raise ValueError("counts, hits and sums must fulfil 0 <= hits <= counts and sums >= 0")
    if not (sums <= counts * (1 + HALF_SUM_TOLERANCE)).all():
        raise ValueError("sums must be those of probabilities, so not above counts")
    if (counts[1:].sum(axis=1) * (n_labels or 1) != counts[0].sum()).any():
        raise ValueError("counts of every class must add up to the number of rows")
    if n_labels and any((a[1:].sum(axis=0) != a[0]).any() for a in (counts, hits)):
        raise ValueError("counts and hits of the labels must add up to those of all entries")
    if not n_labels and len(hits) > 1 and hits[1:].sum() != counts[0].sum():
        raise ValueError("hits of the classes must add up to the number of rows")
    return Binned(counts.astype(np.int64), hits.astype(np.int64), sums.astype(np.float64))


def bin_rows(rows: Rows, bins: Bins, target: Target, *, classwise: bool = False) -> Binned:
    """Count the entries in bins of the target's confidence and, if asked for, of every class's probability.

    Independent labels are the classes of their rows.
    """
    if rows.kind == "probs" and not rows.is_binary and rows.kept is None and bins.convention in AS_THEY_ARE:
        fast = compiled.bins(
            rows.values,
            rows.labels,
            rows.tolerance,
            bins.n_bins,
            (bins.below, bins.above),
            classwise=classwise,
        )
        if fast is not None:
            return Binned(*fast)
    labelled = rows.task == "multilabel"
    k = None if not classwise else rows.n_labels if labelled else rows.n_classes
    found = Binned.zeros(bins, k)
    counts, hits, sums = found
    n_bins = counts.shape[1]
    for part, block in rows.blocks():
        y = rows.labels[part]
        confidence, right = confidence_of(block, y, target)
        values = bins.values(confidence, rows.eps)
        index = bins.index(values)
        both = np.bincount(2 * index + right, minlength=2 * n_bins).reshape(n_bins, 2)
        counts[0] += both.sum(axis=1)
        hits[0] += both[:, 1]
        sums[0] += np.bincount(index, values, n_bins)
        if k is None:
            continue
        # One histogram for all classes: bin j of class c has the number c * n_bins + j.
        first = np.arange(k) * n_bins
        if labelled:
            cells = index.reshape(-1, k) + first
            hit = cells.reshape(-1)[right]
        else:
            values = bins.values(block, rows.eps)
            cells = bins.index(values) + first
            hit = cells[np.arange(len(y)), y]
        flat, size = cells.ravel("K"), k * n_bins  # in the order in which both are stored
        counts[1:] += np.bincount(flat, minlength=size).reshape(k, n_bins)
        hits[1:] += np.bincount(hit, minlength=size).reshape(k, n_bins)
        sums[1:] += np.bincount(flat, values.ravel("K"), size).reshape(k, n_bins)
    return found
