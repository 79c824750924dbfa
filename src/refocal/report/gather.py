"""One pass over labelled scores: sums of all rows and a sample of them, in memory that does not grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from refocal._arrays import as_array
from refocal._rows import Booleans, Floats, Integers, Rows, checked_rows, slices
from refocal.metrics import CalibrationStats
from refocal.metrics.binning import make_bins

Task: TypeAlias = Literal["binary", "multiclass", "multilabel"]

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
        # A copy in any case: whoever reads a file may use the memory of a batch again.
        some = np.flatnonzero(keys < self._largest)
        self._parts.append((keys[some], scores[some], labels[some]))
        self._held += len(some)
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

    For "binary" and "multilabel" each entry of the scores is a problem of its own, its target class 1.

    Args:
        task: What the scores are of.
        from_logits: Whether scores are logits.
        classes: Names of the classes, which labels that are no integers are looked up in.
        n_bins: Of the calibration errors.
        sample: How many rows to keep; None for a number that fits the classes.
        seed: Of the sample.

    Attributes:
        n_rows: Rows so far.
        shape: Of a row of scores; () for class 1 of two.
        stats: The bins of the largest score, or of all entries.
        by_class: The bins of each class's own score, or each label's, as `class_bins` has them.
        predicted: For each class, how often it is predicted: its score is the largest, or above 1/2.
        found: For each class, how often it is predicted and the label.
        nll: The sum of the negative log-likelihoods of the entries.
        brier: The sum of their Brier scores.
        all_on_simplex: Whether the logits so far could as well be probabilities.
        sample: Some of the rows.
    """

    shape: tuple[int, ...]
    by_class: Floats
    predicted: Integers
    found: Integers
    sample: Sample

    def __init__(
        self,
        task: Task,
        *,
        from_logits: bool,
        n_bins: int,
        sample: int | None,
        seed: int,
        classes: Sequence[Any] | None = None,
    ) -> None:
        self.task, self.from_logits, self.n_bins, self.seed = task, from_logits, n_bins, seed
        self.n_rows, self.nll, self.brier = 0, 0.0, 0.0
        self.all_on_simplex = from_logits
        self.stats = CalibrationStats(n_bins, target="top" if task == "multiclass" else "positive")
        self._size = sample
        self._classes = None if task == "multilabel" else classes

    @property
    def n_classes(self) -> int:
        """How many classes or labels; 1 for class 1 of two."""
        return self.shape[0] if self.shape else 1

    @property
    def wrong(self) -> int:
        """How many predictions are wrong."""
        if self.task == "multiclass":
            return self.n_rows - int(self.found.sum())
        missed = self.by_class[1].sum() - self.found.sum()
        return int(missed + (self.predicted - self.found).sum())

    @property
    def n_entries(self) -> int:
        """How many predictions: one for each row, or for each of its labels."""
        return self.n_rows * (self.n_classes if self.task == "multilabel" else 1)

    def add(self, scores: Any, labels: Any) -> None:
        """Add a batch of rows; one without rows is passed over.

        Raises:
            TypeError: If scores are not floats or labels not integers.
            ValueError: If a shape or a value is wrong.
        """
        scores, labels = as_array(scores), as_array(labels)
        shape = tuple(scores.shape)
        if shape[:1] == (0,):
            return
        if self._classes is not None and isinstance(labels, np.ndarray) and labels.dtype.kind in "OUT":
            labels = _places(labels, self._classes)
        self._check_shapes(shape, tuple(labels.shape))
        if self.task == "multilabel":
            scores, labels = scores.reshape(-1), labels.reshape(-1)
        rows = checked_rows(scores, labels, from_logits=self.from_logits)
        if self.n_rows == 0:
            self._begin(shape[1:])
        own = rows.labels.reshape(shape[: 1 if self.task == "multiclass" else None])
        entries = np.empty(0 if self.task == "multiclass" else rows.n_rows)
        for part, block, log_label in _blocks(rows):
            y = rows.labels[part]
            self.nll -= float(log_label.sum())
            # The sum of (q - e_y)^2 over the classes is that of q^2, less 2 q_y, plus 1.
            hit = block[np.arange(len(y)), y]
            self.brier += float(np.einsum("ij,ij->", block, block) + (1 - 2 * hit).sum())
            if self.task == "multiclass":
                self.stats.update(block, y)
                self._count(block, y)
            else:
                entries[part] = block[:, 1]
                self.stats.update(entries[part], y)
        if self.task != "multiclass":
            for part in slices(shape[0], self.n_classes):
                self._count(entries.reshape(shape)[part], own[part])
        self.all_on_simplex = self.all_on_simplex and _on_simplex(rows)
        self.n_rows += shape[0]
        self.sample.add(rows.values.reshape(shape), own)

    def classwise_ece(self) -> float:
        """Return the calibration error of each class's own score, or each label's, averaged."""
        return float(class_errors(self.by_class).mean())

    def _check_shapes(self, shape: tuple[int, ...], labels: tuple[int, ...]) -> None:
        wanted = "(n,)" if self.task == "binary" else "(n, K)" if self.task == "multiclass" else "(n, L)"
        if len(shape) != (1 if self.task == "binary" else 2):
            raise ValueError(f"scores must have shape {wanted} for task {self.task!r}, got {shape}")
        if self.n_rows and shape[1:] != self.shape:
            raise ValueError(
                f"scores must have the {self.n_classes} columns of the first batch, got {shape[1]}"
            )
        if self.task == "multilabel" and labels != shape:
            raise ValueError(f"labels must have the shape {shape} of scores, got {labels}")

    def _begin(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        k = self.n_classes
        self.sample = Sample(self._size or min(SAMPLE_ROWS, max(FEWEST_ROWS, SAMPLE_ENTRIES // k)), self.seed)
        self.by_class = np.zeros((3, k, self.n_bins))
        self.found, self.predicted = np.zeros(k, np.int64), np.zeros(k, np.int64)

    def _count(self, probs: Floats, labels: Integers) -> None:
        """Count predictions, and rows in the bins of each class."""
        block, hits = columns(probs), hits_of(labels, self.n_classes, self.task)
        if self.task == "multiclass":
            predicted = hits_of(block.argmax(axis=1), self.n_classes, self.task)
        else:
            predicted = block > 0.5
        self.predicted += predicted.sum(axis=0)
        self.found += (predicted & hits).sum(axis=0)
        self.by_class += class_bins(block, hits, self.n_bins)


def _blocks(rows: Rows) -> Iterator[tuple[slice, Floats, Floats]]:
    """Yield where rows are, their probabilities in float64, and the log-probability of their labels."""
    if rows.kind == "probs":
        for part, block in rows.blocks():
            block = block.astype(np.float64, copy=False)
            with np.errstate(divide="ignore"):  # log 0 is -inf
                yield part, block, np.log(block[np.arange(len(block)), rows.labels[part]])
        return
    for part, log in rows.log_blocks():
        yield part, np.exp(log), log[np.arange(len(log)), rows.labels[part]]


def _places(labels: npt.NDArray[Any], classes: Sequence[Any]) -> Integers:
    """Return for each label its place among the classes, both compared as texts."""
    names, place = np.unique(labels.astype(str), return_inverse=True)
    known = {str(name): i for i, name in enumerate(classes)}
    unknown = [name for name in names.tolist() if name not in known]
    if unknown:
        raise ValueError(f"labels must be among classes, got {unknown[0]!r}")
    return np.array([known[name] for name in names.tolist()], np.int64)[place].reshape(labels.shape)


def columns(probs: Floats) -> Floats:
    """Return probabilities with a column for each class or label."""
    return probs[:, None] if probs.ndim == 1 else probs


def hits_of(labels: Integers, k: int, task: Task) -> Booleans:
    """Return for each row and each class or label whether it is there: (n, k)."""
    return np.asarray(labels[:, None] == np.arange(k) if task == "multiclass" else columns(labels) == 1)


def class_bins(probs: Floats, hits: Booleans, n_bins: int) -> Floats:
    """Return for each class and bin of its probability: rows, hits, and the sum of the probabilities.

    Example:
        >>> class_bins(np.array([[0.2, 0.8], [0.4, 0.6]]), np.array([[False, True], [True, False]]), 2)
        array([[[2. , 0. ], [0. , 2. ]],
               [[1. , 0. ], [0. , 1. ]],
               [[0.6, 0. ], [0. , 1.4]]])
    """
    k = probs.shape[1]
    cells = make_bins(n_bins).index(probs) + np.arange(k) * n_bins
    flat, size = cells.reshape(-1), k * n_bins
    counts = np.bincount(flat, minlength=size)
    found = np.bincount(cells[hits], minlength=size)
    return np.stack([counts, found, np.bincount(flat, probs.reshape(-1), size)]).reshape(3, k, n_bins)


def class_errors(bins: Floats) -> Floats:
    """Return the expected calibration error of each class."""
    counts, hits, sums = bins
    return np.asarray(np.abs(hits - sums).sum(axis=1) / counts.sum(axis=1))


def _on_simplex(rows: Rows) -> bool:
    """Return whether logits could as well be probabilities."""
    z = rows.values
    if not ((z >= 0) & (z <= 1)).all():
        return False
    return z.ndim == 1 or bool((np.abs(z.sum(axis=1) - 1) <= rows.tolerance).all())
