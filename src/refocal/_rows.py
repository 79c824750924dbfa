"""Scores of rows and their labels, every value checked once: what metrics, temperatures and choices share.

All of it is NumPy: a look at the values waits for the device anyway, and a block costs less than a
softmax of it. Blocks of rows stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from refocal._arrays import BLOCK, FEW_CLASSES, as_array, is_torch, namespace
from refocal._checks import check_floats, check_scores

Floats = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Target: TypeAlias = Literal["top", "positive"]
Kind: TypeAlias = Literal["probs", "logits", "log_probs"]

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
        kind: Probabilities, logits (of shape (n,): log odds), or log-probabilities in float64, which are
            results of ours and not checked again.
        tolerance: How far the sum of a row of probabilities may be from 1.
    """

    name: str
    values: Floats
    kind: Kind
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
        if self.kind != "probs":
            for rows, log_probs in self.log_blocks():
                yield rows, np.exp(log_probs)
            return
        for rows, raw in self._raw_blocks():
            if raw.ndim == 1:
                self._check_range(raw, rows.start)
                yield rows, np.stack([1 - raw.astype(np.float64), raw], axis=-1)
            else:
                block = np.asfortranarray(raw) if raw.shape[1] <= FEW_CLASSES else raw
                self._check_simplex(block, rows.start)
                yield rows, block

    def log_blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield where the rows are, and their log-probabilities: (rows, K) in float64."""
        if self.kind == "probs":
            for rows, block in self.blocks():
                with np.errstate(divide="ignore"):  # log 0 is -inf
                    log = np.log(block, dtype=np.float64)
                yield rows, log
            return
        for rows, raw in self._raw_blocks():
            yield rows, raw if self.kind == "log_probs" else self._log_softmax(raw, rows.start)

    def _raw_blocks(self) -> Iterator[tuple[slice, Floats]]:
        # Many classes are reduced where they lie, without copies: there fewer, larger blocks are faster.
        size = BLOCK if self.n_classes <= FEW_CLASSES else 4 * BLOCK
        dtype = np.float64 if self.values.dtype.itemsize > 4 else np.float32
        for rows in slices(self.n_rows, self.n_classes, size):
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
        self._check_largest(largest[:, 0], start)
        with np.errstate(over="ignore"):  # -inf is right for a logit that is 1e308 below
            z -= largest
        z -= np.log(np.exp(z).sum(axis=1, keepdims=True))
        return z

    def _check_largest(self, largest: Floats, start: int = 0) -> None:
        good = np.isfinite(largest)
        if not good.all():
            i = int(np.argmin(good))
            raise ValueError(
                f"{self.name} must be finite or -inf, with a finite one in every row, "
                f"got {largest[i].item()!r} in row {start + i}"
            )


@dataclass(frozen=True, eq=False)
class Rows(Scores):
    """Class scores with a label for each row.

    What a fit or several metrics need of all rows is computed once, when it is first asked for, and stays.

    Attributes:
        labels: Shape (n,), within the classes.
    """

    labels: Integers

    def take(self, index: slice | npt.NDArray[np.intp]) -> Self:
        """Return some of the rows, with what is known of them."""
        rows = replace(self, values=np.ascontiguousarray(self.values[index]), labels=self.labels[index])
        vars(rows).update({name: a[index] for name, a in vars(self).items() if name in ("largest", "gap")})
        return rows

    def some(self, n: int) -> Self:
        """Return n of the rows or a few less, spread evenly."""
        step = -(-self.n_rows // max(n, 1))
        return self if step == 1 else self.take(slice(None, None, step))

    def log_probs(self, values: Floats) -> Rows:
        """Return rows with the same labels and these log-probabilities, scaled to sum 1 in float64."""
        logits = replace(self, values=values, kind="logits")
        log_probs = np.empty(values.shape)
        for rows, block in logits.log_blocks():
            log_probs[rows] = block
        return replace(self, values=log_probs, kind="log_probs")

    @cached_property
    def z(self) -> Floats:
        """The logits in the dtype to compute in."""
        dtype = np.float64 if self.values.dtype.itemsize > 4 else np.float32
        return self.values.astype(dtype, copy=False)

    @cached_property
    def largest(self) -> Floats:
        """The largest logit of each row, shape (n, 1); every value of the rows is checked by it."""
        largest = self.z.max(axis=1)  # NaN where there is one
        self._check_largest(largest)
        return np.asarray(largest[:, None])

    @cached_property
    def gap(self) -> Floats:
        """The label's logit minus the largest one, in float64, shape (n,)."""
        with np.errstate(over="ignore"):  # 1e308 below counts as masked
            gap = self.z[np.arange(self.n_rows), self.labels].astype(np.float64) - self.largest[:, 0]
        masked = np.flatnonzero(gap == -np.inf)
        if masked.size:
            raise ValueError(
                f"labels must be classes with a finite logit, got one with -inf in row {masked[0]}"
            )
        return np.asarray(gap)

    def confidence(self, target: Target) -> tuple[Floats, Booleans]:
        """Return `confidence_of` all rows, in float64."""
        if target not in self._confidence:
            confidence, hit = np.empty(self.n_rows), np.empty(self.n_rows, bool)
            for rows, block in self.blocks():
                confidence[rows], hit[rows] = confidence_of(block, self.labels[rows], target)
            self._confidence[target] = confidence, hit
        return self._confidence[target]

    @cached_property
    def _confidence(self) -> dict[Target, tuple[Floats, Booleans]]:
        return {}


def slices(n: int, k: int, size: int = BLOCK) -> Iterator[slice]:
    """Yield slices of n rows, each with up to ``size`` entries of k classes."""
    step = max(1, size // k)
    return (slice(start, start + step) for start in range(0, n, step))


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
    kind: Kind = "logits" if from_logits else "probs"
    return Scores(name, values, kind, HALF_SUM_TOLERANCE if half else SUM_TOLERANCE)


def checked_rows(probs: Any, labels: Any, *, from_logits: bool = False) -> Rows:
    """Return `Rows` of probabilities or logits, with one integer for each row; booleans are 0 and 1."""
    scores = checked_scores(probs, from_logits=from_logits)
    return Rows(**vars(scores), labels=_labels(labels, scores, (scores.n_rows,)))


def logit_rows(logits: Any, labels: Any, axis: int = -1) -> Rows:
    """Return `Rows` of logits of any shape with the classes along ``axis``; every value is checked."""
    logits, axis = check_scores("logits", logits, axis)
    if logits.ndim < 2:
        raise ValueError(f"logits must have rows and classes, got shape {tuple(logits.shape)}")
    xp = namespace(logits)
    moved = xp.moveaxis(logits, axis, -1)
    *shape, k = moved.shape
    scores = checked_scores(xp.reshape(moved, (math.prod(shape), k)), from_logits=True)
    rows = Rows(**vars(scores), labels=_labels(labels, scores, tuple(shape)))
    _ = rows.gap  # which looks at every value
    return rows


def _labels(labels: Any, scores: Scores, shape: tuple[int, ...]) -> Integers:
    """Return labels that came in a shape, in a row and within the classes."""
    y = as_array(labels)
    y = np.asarray(y.detach().cpu() if is_torch(y) else y)
    if y.dtype.kind not in "iub":
        raise TypeError(f"labels must hold integers, got dtype {y.dtype}")
    if y.shape != shape:
        raise ValueError(f"labels must have the shape {shape} of the rows of {scores.name}, got {y.shape}")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= scores.n_classes:
        wrong = low if low < 0 else high
        raise ValueError(f"labels must be within 0..{scores.n_classes - 1}, got {wrong}")
    return y.astype(np.int64, copy=False).reshape(-1)


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
