"""A random sample of the rows of a stream, each row as likely as another, in memory that does not grow."""

from __future__ import annotations

from typing import Any

import numpy as np

from refocal.scoring.columns import Codes, Floats


class Reservoir:
    """Up to ``size`` of all rows that were added; the same ones for the same seed and rows.

    Row i (from 0) comes in with probability size / (i + 1), at a random place: Vitter's algorithm R
    (1985). The rows are the same however they were cut into blocks.

    Args:
        size: How many rows to keep at most.
        seed: Of the draw.

    Example:
        >>> kept = Reservoir(3, seed=0)
        >>> kept.add(np.arange(10.0)[None], np.arange(10)).n_rows, kept.scores.shape
        (10, (1, 3))
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size, self.n_rows = size, 0
        self._rng = np.random.default_rng(seed)
        self._scores: np.ndarray[Any, Any] | None = None
        self._labels: np.ndarray[Any, Any] | None = None

    def add(self, block: Floats, labels: Codes) -> Reservoir:
        """Add rows: scores with classes first, and labels with rows last."""
        n = block.shape[1]
        if self._scores is None or self._labels is None:
            self._scores = np.empty((self.size, len(block)), block.dtype)
            self._labels = np.empty((self.size, *labels.shape[:-1]), labels.dtype)
        if block.dtype.itemsize > self._scores.dtype.itemsize:
            self._scores = self._scores.astype(block.dtype)
        first = min(n, max(0, self.size - self.n_rows))
        at = np.arange(self.n_rows, self.n_rows + first)
        rest = np.arange(first, n)
        # One number for each row, whether it is used or not: blocks of any length draw the same ones.
        place = (self._rng.random(n) * (self.n_rows + 1 + np.arange(n))).astype(np.int64)
        chosen = rest[place[rest] < self.size]
        to = np.concatenate([at, place[chosen]])
        source = np.concatenate([np.arange(first), chosen])
        # Of rows that go to one place the last stays, as if they had come one by one.
        to, last = np.unique(to[::-1], return_index=True)
        source = source[::-1][last]
        self._scores[to] = block.T[source]
        self._labels[to] = labels.T[source]
        self.n_rows += n
        return self

    @property
    def scores(self) -> Floats:
        """The rows that were kept, classes first."""
        assert self._scores is not None
        return self._scores[: min(self.size, self.n_rows)].T

    @property
    def labels(self) -> Codes:
        """Their labels, rows last."""
        assert self._labels is not None
        return np.asarray(self._labels[: min(self.size, self.n_rows)].T)
