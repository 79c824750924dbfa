"""One pass over labelled scores: sums of all rows and a sample of them, in memory that does not grow."""

from __future__ import annotations

from typing import Any

import numpy as np

from refocal._rows import Floats, Integers, Rows, checked_rows
from refocal.metrics import CalibrationStats
from refocal.metrics.measures import brier_rows, nll_rows

SAMPLE_ROWS, SAMPLE_ENTRIES, FEWEST_ROWS = 50_000, 4_000_000, 2_000
"""The sample of a report, unless its size is said: enough for the selector, which takes seconds for it."""


class Sample:
    """A simple random sample of a stream, whatever the batches: the rows with the smallest random keys.

    Args:
        size: How many rows to keep.
        seed: Of the keys, of which each row gets one in its turn.

    Example:
        >>> sample = Sample(2, seed=0)
        >>> for batch in (np.arange(3), np.arange(3, 9)):
        ...     sample.add(batch[:, None], batch)
        >>> sample.rows()[1]
        array([2, 3])
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self._rng = np.random.default_rng(seed)
        self._parts: list[tuple[Floats, Floats, Integers]] = []
        self._held, self._largest = 0, np.inf

    def add(self, scores: Floats, labels: Integers) -> None:
        """Take the next rows of the stream."""
        keys = self._rng.random(len(labels))
        if self._largest < np.inf:
            some = keys < self._largest
            keys, scores, labels = keys[some], scores[some], labels[some]
        self._parts.append((keys, scores, labels))
        self._held += len(keys)
        if self._held >= 2 * self.size:
            self._shrink()

    def rows(self) -> tuple[Floats, Integers]:
        """Return scores and labels of the sample, in the order of the stream."""
        self._shrink()
        _, scores, labels = self._parts[0]
        return scores, labels

    def _shrink(self) -> None:
        if len(self._parts) > 1:
            keys, scores, labels = (np.concatenate(x) for x in zip(*self._parts, strict=True))
        else:
            keys, scores, labels = self._parts[0]
        if len(keys) > self.size:
            best = np.sort(np.argpartition(keys, self.size - 1)[: self.size])
            keys, scores, labels = keys[best], scores[best], labels[best]
            self._largest = float(keys.max())
        self._parts, self._held = [(keys, scores, labels)], len(keys)


class Gathered:
    """What a report needs of all rows, added up batch by batch.

    Args:
        from_logits: Whether scores are logits.
        n_bins: Of the calibration errors.
        sample: How many rows to keep; None for a number that fits the classes.
        seed: Of the sample.

    Attributes:
        n_rows: Rows so far.
        shape: Of a row of scores.
        stats: The bins of the scores as they are, those of every class too.
        found: For each class, how often it is the label and has the largest score.
        predicted: For each class, how often it has the largest score.
    """

    def __init__(self, *, from_logits: bool, n_bins: int, sample: int | None, seed: int) -> None:
        self.from_logits, self.n_bins, self.seed = from_logits, n_bins, seed
        self.n_rows, self.nll, self.brier = 0, 0.0, 0.0
        self.all_on_simplex = from_logits
        self._sample_size = sample
        self.shape: tuple[int, ...] = ()
        self.sample: Sample
        self.stats: CalibrationStats
        self.found: Integers
        self.predicted: Integers

    @property
    def n_classes(self) -> int:
        """How many classes."""
        return self.shape[0] if self.shape else 2

    def add(self, scores: Any, labels: Any) -> None:
        """Add a batch of rows; without rows it is passed over."""
        if getattr(scores, "shape", (1,))[:1] == (0,):
            return
        rows = checked_rows(scores, labels, from_logits=self.from_logits)
        if self.n_rows == 0:
            self._begin(rows)
        elif rows.values.shape[1:] != self.shape:
            raise ValueError(
                f"{rows.name} must have the shape (n, *{self.shape}) of the first batch, "
                f"got {rows.values.shape}"
            )
        for part, block in rows.blocks():
            y = rows.labels[part]
            top = block.argmax(axis=1)
            self.stats.update(block if self.shape else block[:, 1], y)
            self.predicted += np.bincount(top, minlength=self.n_classes)
            self.found += np.bincount(y[top == y], minlength=self.n_classes)
        self.nll += float(nll_rows(rows).sum())
        self.brier += float(brier_rows(rows).sum())
        self.all_on_simplex = self.all_on_simplex and _on_simplex(rows)
        self.n_rows += rows.n_rows
        self.sample.add(rows.values, rows.labels)

    def _begin(self, rows: Rows) -> None:
        self.shape = rows.values.shape[1:]
        k = self.n_classes
        size = self._sample_size or min(SAMPLE_ROWS, max(FEWEST_ROWS, SAMPLE_ENTRIES // k))
        self.sample = Sample(size, self.seed)
        self.stats = CalibrationStats(self.n_bins, k, target=None if self.shape else "positive")
        self.found, self.predicted = np.zeros(k, np.int64), np.zeros(k, np.int64)


def _on_simplex(rows: Rows) -> bool:
    """Return whether logits could as well be probabilities."""
    z = rows.values
    if not ((z >= 0) & (z <= 1)).all():
        return False
    return z.ndim == 1 or bool((np.abs(z.sum(axis=1) - 1) <= rows.tolerance).all())
