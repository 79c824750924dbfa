"""Metrics of a stream of rows: sums that can be added up, in memory that does not grow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from refocal.metrics import CalibrationStats
from refocal.scoring.columns import Codes, Floats

FIELDS = ("nll_sum", "brier_sum", "stats")


class Measures:
    r"""NLL, Brier score, error rate and calibration errors of rows that come in blocks.

    .. math:: \mathrm{NLL} = -\frac{1}{n} \sum \log p_y, \quad
        \mathrm{Brier} = \frac{1}{n} \sum \Bigl(\sum_k p_k^2 - 2 p_y + 1\Bigr)

    Args:
        n_classes: K, to keep bins of each class too, which takes several times as long; None for none.
        n_bins: How many bins.

    Example:
        >>> measures = Measures(2).update(np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([0, 1]))
        >>> {name: round(value, 4) for name, value in measures.values().items()}
        {'nll': 0.2877, 'brier': 0.125, 'error_rate': 0.0, 'ece': 0.25, 'mce': 0.25, 'classwise_ece': 0.25}
    """

    def __init__(self, n_classes: int | None = None, n_bins: int = 10) -> None:
        self.stats = CalibrationStats(n_bins, n_classes)
        self.nll_sum, self.brier_sum = 0.0, 0.0

    @property
    def n(self) -> int:
        """How many rows."""
        return self.stats.n

    def update(self, probs: Floats, labels: Codes) -> Measures:
        """Add rows: probabilities with classes first, shape (K, rows), and labels 0..K-1.

        One row of probabilities is class 1 of two.
        """
        if len(probs) == 1:
            probs = np.concatenate([1 - probs, probs])
        self.stats.update(probs.T, labels)
        p = probs[labels, np.arange(probs.shape[1])].astype(np.float64)
        with np.errstate(divide="ignore"):  # a label of probability 0 has an infinite loss
            self.nll_sum -= float(np.log(p).sum())
        squares = sum(float(np.einsum("n,n->", q, q, dtype=np.float64)) for q in probs)
        self.brier_sum += squares - 2 * float(p.sum()) + p.size
        return self

    def merge(self, other: Measures) -> Measures:
        """Return the measures of the rows of both."""
        both = Measures(self.stats.n_classes, self.stats.n_bins)
        both.stats = self.stats.merge(other.stats)
        both.nll_sum = self.nll_sum + other.nll_sum
        both.brier_sum = self.brier_sum + other.brier_sum
        return both

    def values(self) -> dict[str, float]:
        """Return every metric by its name.

        Raises:
            ValueError: If there are no rows.
        """
        stats = self.stats
        classwise = {} if stats.n_classes is None else {"classwise_ece": stats.classwise_ece()}
        return {
            "nll": self.nll_sum / self.n if self.n else math.nan,
            "brier": self.brier_sum / self.n if self.n else math.nan,
            "error_rate": 1 - int(stats.hits.sum()) / self.n if self.n else math.nan,
            "ece": stats.ece(),
            "mce": stats.mce(),
        } | classwise

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as what JSON can hold; an infinite one is None."""
        nll = self.nll_sum if math.isfinite(self.nll_sum) else None
        return {"nll_sum": nll, "brier_sum": self.brier_sum, "stats": self.stats.to_dict()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Measures:
        """Return what `to_dict` described."""
        if set(fields) != set(FIELDS):
            raise ValueError(f"measures must have the keys {sorted(FIELDS)}, got {sorted(fields)}")
        stats = CalibrationStats.from_dict(fields["stats"])
        measures = cls(stats.n_classes, stats.n_bins)
        measures.stats = stats
        measures.nll_sum = math.inf if fields["nll_sum"] is None else float(fields["nll_sum"])
        measures.brier_sum = float(fields["brier_sum"])
        return measures
