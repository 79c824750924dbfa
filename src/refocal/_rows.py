"""Class scores and labels whose every value is checked, in row blocks that stay in cache.

All of it is NumPy: a look at the values waits for the device anyway, and a block costs less than a
softmax of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from refocal._arrays import BLOCK, FEW_CLASSES, as_array, is_torch
from refocal._checks import check_floats

Floats = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Target: TypeAlias = Literal["top", "positive"]

SUM_TOLERANCE, HALF_SUM_TOLERANCE = 1e-3, 1e-2
"""How far the sum of a row of probabilities may be from 1; bfloat16 alone is off by up to 0.004."""

TIE = 0.51
"""Two classes of a row cannot both have this much."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Class scores; their shape is checked, their values are as the blocks are read.

    Attributes:
        name: What they are called in an error.
        values: Shape (n, K), or (n,) for class 1 of two.
        from_logits: Whether they are logits (of shape (n,): log odds) or probabilities.
        tolerance: How far the sum of a row of probabilities may be from 1.
    """

    name: str
    values: Floats
    from_logits: bool
    tolerance: float

    @property
    def n_rows(self) -> int:
        """How many rows."""
        return int(self.values.shape[0])

    @property
    def n_classes(self) -> int:
        """How many classes; 2 for scores of shape (n,)."""
        return 2 if self.values.ndim == 1 else int(self.values.shape[1])

    @property
    def eps(self) -> float:
        """The eps of the dtype in which the scores came; of one that NumPy does not know, float32's."""
        known = self.values.dtype.kind == "f"
        return float(np.finfo(self.values.dtype if known else np.float32).eps)

    def blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield where the rows are, and their probabilities: (rows, K) in float32 or float64.

        Probabilities of few classes come in column order, in which NumPy reduces a row many times faster;
        do not rely on it.
        """
        for rows, raw in self._raw_blocks():
            if self.from_logits:
                yield rows, np.exp(self._log_softmax(raw, rows.start))
            elif raw.ndim == 1:
                self._check_range(raw, rows.start)
                yield rows, np.stack([1 - raw.astype(np.float64), raw], axis=-1)
            else:
                block = np.asfortranarray(raw) if raw.shape[1] <= FEW_CLASSES else raw
                self._check_simplex(block, rows.start)
                yield rows, block

    def log_blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield where the rows are, and their log-probabilities: (rows, K) in float64."""
        if self.from_logits:
            for rows, raw in self._raw_blocks():
                yield rows, self._log_softmax(raw, rows.start)
            return
        for rows, block in self.blocks():
            with np.errstate(divide="ignore"):  # log 0 is -inf
                log = np.log(block, dtype=np.float64)
            yield rows, log

    def _raw_blocks(self) -> Iterator[tuple[slice, Floats]]:
        # Many classes are reduced where they lie, without copies: there fewer, larger blocks are faster.
        size = BLOCK if self.n_classes <= FEW_CLASSES else 4 * BLOCK
        step = max(1, size // self.n_classes)
        dtype = np.float64 if self.values.dtype.itemsize > 4 else np.float32
        for start in range(0, self.n_rows, step):
            rows = slice(start, start + step)
            yield rows, self.values[rows].astype(dtype, copy=False)

    def _check_range(self, values: Floats, start: int) -> None:
        good = (values >= 0) & (values <= 1)  # False for NaN
        if not good.all():
            i = int(np.argmin(good))
            raise ValueError(
                f"{self.name} must be within 0..1, got {float(values[i])!r} in row {start + i} "
                "(logits need from_logits=True)"
            )

    def _check_simplex(self, block: Floats, start: int) -> None:
        # The product with ones is the fastest sum of rows. NaN and infinities fail the comparison.
        total = block @ np.ones(block.shape[1], block.dtype)
        good = np.abs(total - 1) <= self.tolerance
        if good.all() and block.min() >= 0:
            return
        wrong = ~((block >= 0) & (block <= 1 + self.tolerance)).all(axis=1)
        if wrong.any():
            i = int(np.argmax(wrong))
            value = next(float(v) for v in block[i] if not 0 <= v <= 1 + self.tolerance)
            rule = f"{self.name} must be within 0..1, got {value!r}"
        else:
            i = int(np.argmin(good))
            rule = f"rows of {self.name} must sum to 1 within {self.tolerance}, got {float(total[i]):.6g}"
        raise ValueError(f"{rule} in row {start + i} (logits need from_logits=True)")

    def _log_softmax(self, logits: Floats, start: int) -> Floats:
        z = logits.astype(np.float64)
        if z.ndim == 1:
            z = np.stack([np.zeros_like(z), z], axis=-1)
        largest = z.max(axis=1, keepdims=True)  # NaN where there is one
        good = np.isfinite(largest[:, 0])
        if not good.all():
            i = int(np.argmin(good))
            raise ValueError(
                f"{self.name} must not hold NaN or +inf, nor only -inf in a row: see row {start + i}"
            )
        with np.errstate(over="ignore"):  # -inf is right for a logit that is 1e308 below
            z -= largest
        z -= np.log(np.exp(z).sum(axis=1, keepdims=True))
        return z


def checked_scores(scores: Any, *, from_logits: bool = False, name: str = "probs") -> Scores:
    """Return `Scores`, after a check of dtype and shape."""
    name = "logits" if from_logits else name
    x = check_floats(name, scores)
    half = False
    if is_torch(x):
        half = x.element_size() < 4
        x = x.detach().cpu()
        x = x.float() if half else x  # NumPy does not know bfloat16
    values = np.asarray(x)
    half = half or values.dtype.itemsize < 4
    if values.ndim not in (1, 2):
        raise ValueError(f"{name} must have shape (n, K), or (n,) for class 1 of two, got {values.shape}")
    if values.shape[0] == 0:
        raise ValueError(f"{name} must have at least 1 row, got shape {values.shape}")
    if values.ndim == 2 and values.shape[1] < 2:
        raise ValueError(f"{name} must have at least 2 classes, or shape (n,), got shape {values.shape}")
    return Scores(name, values, from_logits, HALF_SUM_TOLERANCE if half else SUM_TOLERANCE)


def checked_labels(labels: Any, scores: Scores) -> Integers:
    """Return one integer for every row of scores, within its classes; booleans are 0 and 1."""
    y = as_array(labels)
    y = np.asarray(y.detach().cpu() if is_torch(y) else y)
    if y.dtype.kind not in "iub":
        raise TypeError(f"labels must hold integers, got dtype {y.dtype}")
    n, k = scores.n_rows, scores.n_classes
    if y.shape != (n,):
        raise ValueError(f"labels must have the shape ({n},) of the rows of {scores.name}, got {y.shape}")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= k:
        raise ValueError(f"labels must be within 0..{k - 1}, got {low if low < 0 else high}")
    return y.astype(np.int64, copy=False)


def check_target(target: object) -> None:
    """Raise where it is not one of the two, nor None."""
    if target not in (None, *get_args(Target)):
        raise ValueError(f"target must be one of {get_args(Target)}, got {target!r}")


def checked_target(target: Target | None, scores: Scores) -> Target:
    """Return whose calibration is measured, after a check that it is said where it must be."""
    check_target(target)
    if scores.values.ndim == 1:
        if target is None:
            raise ValueError(
                f"target must be said for {scores.name} of shape (n,): 'top' for the likelier of the two "
                "classes, 'positive' for class 1"
            )
        return target
    if target == "positive":
        raise ValueError(
            f"target 'positive' needs {scores.name} of shape (n,), the scores of class 1, "
            f"got shape {scores.values.shape}"
        )
    return "top"


def confidence_of(block: Floats, labels: Integers, target: Target) -> tuple[Floats, Booleans]:
    """Return the confidence of every row and whether it is a hit.

    That is the largest probability and whether its class, the first of several, is the label; for
    "positive", the probability of class 1 and whether the label is 1.
    """
    if target == "positive":
        return block[:, 1], labels == 1
    at = np.arange(len(block))
    if block.shape[1] > FEW_CLASSES:
        top = block.argmax(axis=1)
        return block[at, top], top == labels
    # An argmax over few classes costs many times what a maximum does. A label that has the maximum is
    # the argmax, unless another class has it too.
    confidence = block.max(axis=1)
    hit = block[at, labels] == confidence
    doubtful = np.flatnonzero(hit & (confidence < TIE))
    hit[doubtful] = block[doubtful].argmax(axis=1) == labels[doubtful]
    return confidence, hit


def confidences(scores: Scores, labels: Integers, target: Target) -> tuple[Floats, Booleans]:
    """Return `confidence_of` all rows, in float64."""
    confidence, hit = np.empty(scores.n_rows), np.empty(scores.n_rows, bool)
    for rows, block in scores.blocks():
        confidence[rows], hit[rows] = confidence_of(block, labels[rows], target)
    return confidence, hit
