"""Metrics of a stream of rows: sums that can be added up, in memory that does not grow."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from refocal.metrics import CalibrationStats
from refocal.scoring.columns import Codes, Floats

Task: TypeAlias = Literal["binary", "multiclass", "multilabel"]

FIELDS = ("task", "nll_sum", "brier_sum", "errors", "stats")


class Measures:
    r"""NLL, Brier score, error rate and calibration errors of rows that come in blocks.

    .. math:: \mathrm{NLL} = -\frac{1}{n} \sum \log p_y, \quad
        \mathrm{Brier} = \frac{1}{n} \sum \Bigl(\sum_k p_k^2 - 2 p_y + 1\Bigr)

    Of one column of scores (binary), p is that of class 1, whose own calibration is measured; of independent
    labels (multilabel) each entry counts as such a row, and the classwise ECE is the mean over the labels.

    Args:
        task: "binary", "multiclass" or "multilabel".
        n_labels: For "multilabel": how many.
        n_classes: For "multiclass": K, to keep bins of each class too, which takes several times as long;
            None for none.
        n_bins: How many bins.

    Example:
        >>> measures = Measures(n_classes=2)
        >>> measures = measures.update(np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([0, 1]))
        >>> {name: round(value, 4) for name, value in measures.values().items()}
        {'nll': 0.2877, 'brier': 0.125, 'error_rate': 0.0, 'ece': 0.25, 'mce': 0.25, 'classwise_ece': 0.25}
    """

    def __init__(
        self,
        task: Task = "multiclass",
        *,
        n_labels: int = 1,
        n_classes: int | None = None,
        n_bins: int = 10,
    ) -> None:
        self.task: Task = task
        if task == "multiclass":
            self.stats = [CalibrationStats(n_bins, n_classes)]
        else:
            count = 1 if task == "binary" else n_labels
            self.stats = [CalibrationStats(n_bins, target="positive") for _ in range(count)]
        self.nll_sum, self.brier_sum, self.errors = 0.0, 0.0, 0

    @property
    def n(self) -> int:
        """How many rows."""
        return self.stats[0].n

    def update(self, probs: Floats, labels: Codes) -> Measures:
        """Add rows: probabilities with classes first, shape (K, rows), and labels with rows last.

        For "binary" there is one row of probabilities, for "multilabel" one for each label, and labels are
        0 and 1.
        """
        if self.task == "multiclass":
            before = int(self.stats[0].hits.sum())
            self.stats[0].update(probs.T, labels)
            self.errors += labels.size - (int(self.stats[0].hits.sum()) - before)
            p = probs[labels, np.arange(probs.shape[1])].astype(np.float64)
            q = probs.astype(np.float32) if probs.dtype.itemsize < 4 else probs
            squares = np.einsum("kn,kn->n", q, q).sum(dtype=np.float64)
            self.brier_sum += float(squares) - 2 * float(p.sum()) + p.size
        else:
            labels = labels.reshape(probs.shape)
            for stats, q, y in zip(self.stats, probs, labels, strict=True):
                stats.update(q, y)
            self.errors += int(((probs > 0.5) != labels).sum())
            p = np.where(labels == 1, probs, 1 - probs.astype(np.float64))
            self.brier_sum += 2 * float(((1 - p) ** 2).sum())
        with np.errstate(divide="ignore"):  # a label of probability 0 has an infinite loss
            self.nll_sum -= float(np.log(p).sum())
        return self

    def merge(self, other: Measures) -> Measures:
        """Return the measures of the rows of both."""
        if self.task != other.task or len(self.stats) != len(other.stats):
            raise ValueError(f"measures to merge must be of the same task, got {self.task} and {other.task}")
        both = Measures(self.task)
        both.stats = [a.merge(b) for a, b in zip(self.stats, other.stats, strict=True)]
        both.nll_sum = self.nll_sum + other.nll_sum
        both.brier_sum = self.brier_sum + other.brier_sum
        both.errors = self.errors + other.errors
        return both

    def values(self) -> dict[str, float]:
        """Return every metric by its name.

        Raises:
            ValueError: If there are no rows.
        """
        whole = functools.reduce(CalibrationStats.merge, self.stats)
        found = {"ece": whole.ece(), "mce": whole.mce()}
        if self.task == "multilabel":
            found["classwise_ece"] = sum(stats.ece() for stats in self.stats) / len(self.stats)
        elif whole.n_classes is not None:
            found["classwise_ece"] = whole.classwise_ece()
        sums = {"nll": self.nll_sum, "brier": self.brier_sum, "error_rate": self.errors}
        return {name: value / whole.n for name, value in sums.items()} | found

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as what JSON can hold; an infinite one is None."""
        return {
            "task": self.task,
            "nll_sum": self.nll_sum if math.isfinite(self.nll_sum) else None,
            "brier_sum": self.brier_sum,
            "errors": self.errors,
            "stats": [stats.to_dict() for stats in self.stats],
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Measures:
        """Return what `to_dict` described."""
        if set(fields) != set(FIELDS):
            raise ValueError(f"measures must have the keys {sorted(FIELDS)}, got {sorted(fields)}")
        measures = cls(fields["task"])
        measures.stats = [CalibrationStats.from_dict(stats) for stats in fields["stats"]]
        measures.nll_sum = math.inf if fields["nll_sum"] is None else float(fields["nll_sum"])
        measures.brier_sum, measures.errors = float(fields["brier_sum"]), int(fields["errors"])
        return measures
