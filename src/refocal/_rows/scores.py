"""Scores of rows and their labels: values are checked as they are read, in blocks that stay in the cache.

All of it is NumPy: a look at the values waits for the device anyway, and a block costs less than a
softmax of it. Whatever the shape and the strides, scores are read where they lie, never copied as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from refocal._arrays import BLOCK, FEW_CLASSES

Floats = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Target: TypeAlias = Literal["top", "positive"]
Task: TypeAlias = Literal["binary", "multiclass", "multilabel"]
Kind: TypeAlias = Literal["probs", "logits", "log_probs"]

TIE = 0.51
"""Two classes of a row cannot both have this much."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Class scores; their shape is checked, their values are as the blocks are read.

    A row is what was drawn from the world: a sample, a pixel. An entry is what has a label: a row, or with
    independent labels each of them, which is a row of two classes. So a multi-label problem is n L binary
    entries, L to a row, in the order of the rows.

    Attributes:
        name: What they are called in an error.
        values: Any strides. Shape (..., K), or (...) for class 1 of two, or (..., L) for independent labels.
        kind: Probabilities, logits (of class 1: log odds), or log-probabilities (of class 1: log odds) in
            float64, which are results of ours and not checked again.
        tolerance: How far the sum of a row of probabilities may be from 1.
        task: As the caller said; None if only the shape says it, (n,) or (n, K).
        kept: Which rows count; None for all.
    """

    name: str
    values: Floats
    kind: Kind
    tolerance: float
    task: Task | None = field(default=None, kw_only=True)
    kept: Booleans | None = field(default=None, kw_only=True)

    @property
    def is_binary(self) -> bool:
        """Whether an entry has one score, that of class 1."""
        return self.values.ndim == 1 or self.task in ("binary", "multilabel")

    @property
    def n_labels(self) -> int:
        """How many entries a row has: 1, or L."""
        return int(self.values.shape[-1]) if self.task == "multilabel" else 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the rows, those that do not count among them."""
        whole = self.values.ndim == 1 or self.task == "binary"
        return self.values.shape if whole else self.values.shape[:-1]

    @property
    def n_rows(self) -> int:
        """How many rows count."""
        return math.prod(self.shape) if self.kept is None else int(np.count_nonzero(self.kept))

    @property
    def n_entries(self) -> int:
        """How many entries."""
        return self.n_rows * self.n_labels

    @property
    def n_classes(self) -> int:
        """How many classes an entry has."""
        return 2 if self.is_binary else int(self.values.shape[-1])

    @property
    def eps(self) -> float:
        """The eps of the dtype in which the scores came; of one that NumPy does not know, float32's."""
        known = self.values.dtype.kind == "f"
        return float(np.finfo(self.values.dtype if known else np.float32).eps)

    def blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield where the entries are, and their probabilities: (entries, K) in float32 or float64.

        Probabilities of few classes come in column order, in which NumPy reduces a row many times faster;
        do not rely on it.
        """
        if self.kind != "probs":
            for rows, log_probs in self.log_blocks():
                yield rows, np.exp(log_probs)
            return
        for rows, raw in self.raw_blocks():
            if raw.ndim == 1:
                self._check_range(raw, rows.start)
                yield rows, np.stack([1 - raw.astype(np.float64), raw], axis=-1)
            else:
                block = np.asfortranarray(raw) if raw.shape[1] <= FEW_CLASSES else raw
                self._check_simplex(block, rows.start)
                yield rows, block

    def log_blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield where the entries are, and their log-probabilities: (entries, K) in float64."""
        if self.kind == "probs":
            for rows, block in self.blocks():
                with np.errstate(divide="ignore"):  # log 0 is -inf
                    log = np.log(block, dtype=np.float64)
                yield rows, log
            return
        for rows, raw in self.raw_blocks():
            if self.kind == "logits":
                yield rows, self._log_softmax(raw, rows.start)
            else:
                yield rows, raw if raw.ndim == 2 else -np.logaddexp(0, np.stack([raw, -raw], axis=-1))

    def logit_blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield where the entries are, and their logits as they came, of two classes 0 and the log odds."""
        for at, raw in self.raw_blocks():
            yield at, raw if raw.ndim == 2 else np.stack([np.zeros_like(raw), raw], axis=-1)

    def raw_blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield where the entries are, and their scores in float32 or float64: (entries, K) or (entries,)."""
        # Many classes are reduced where they lie, without copies: there fewer, larger blocks are faster.
        size = BLOCK if self.n_classes <= FEW_CLASSES else 4 * BLOCK
        dtype = np.float64 if self.values.dtype.itemsize > 4 else np.float32
        table = self.values.reshape(*self.shape, -1) if self.is_binary else self.values
        step = max(1, size // (self.n_classes * self.n_labels))
        start = seen = 0
        for strip in _strips(_joined(table), step):
            if self.kept is not None:
                here = self.kept[seen : seen + len(strip)]
                seen += len(strip)
                strip = strip if here.all() else strip[here]
            stop = start + len(strip) * self.n_labels
            if start < stop:
                strip = strip.astype(dtype, copy=False)
                yield slice(start, stop), strip.reshape(-1) if self.is_binary else strip
            start = stop

    def place(self, entry: int) -> str:
        """Return where an entry is, in the shape in which the scores came."""
        row, label = divmod(entry, self.n_labels)
        if self.kept is not None:
            row = int(np.flatnonzero(self.kept)[row])
        return f"{self.row_name(row)}, label {label}" if self.task == "multilabel" else self.row_name(row)

    def row_name(self, row: int) -> str:
        """Return what a row is called in an error: its number, or its place among several axes."""
        at = tuple(int(i) for i in np.unravel_index(row, self.shape))
        return f"row {row if len(at) == 1 else at}"

    def _check_range(self, values: Floats, start: int) -> None:
        good = (values >= 0) & (values <= 1)  # False for NaN
        if not good.all():
            i = int(np.argmin(good))
            raise ValueError(
                f"{self.name} must be within 0..1, got {float(values[i])!r} in {self.place(start + i)} "
                "(logits need from_logits=True)"
            )

    def _check_simplex(self, block: Floats, start: int) -> None:
        # The product with ones is the fastest sum of rows. NaN and infinities fail the comparison.
        total = block @ np.ones(block.shape[1], block.dtype)
        good = np.abs(total - 1) <= self.tolerance
        if good.all() and block.min() >= 0:
            return
        hint = "logits need from_logits=True"
        wrong = ~((block >= 0) & (block <= 1 + self.tolerance)).all(axis=1)
        if wrong.any():
            i = int(np.argmax(wrong))
            value = next(float(v) for v in block[i] if not 0 <= v <= 1 + self.tolerance)
            rule = f"{self.name} must be within 0..1, got {value!r}"
        else:
            i = int(np.argmin(good))
            rule = f"rows of {self.name} must sum to 1 within {self.tolerance}, got {float(total[i]):.6g}"
            hint += ", independent labels task='multilabel'"
        raise ValueError(f"{rule} in {self.place(start + i)} ({hint})")

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
                f"got {largest[i].item()!r} in {self.place(start + i)}"
            )


@dataclass(frozen=True, eq=False)
class Rows(Scores):
    """Class scores with a label for each entry.

    What a fit or several metrics need of all rows is computed once, when it is first asked for, and stays.

    Attributes:
        labels: One for each entry that counts, within the classes.
    """

    labels: Integers

    def take(self, index: slice | npt.NDArray[np.intp]) -> Self:
        """Return some of the rows, copied together, with what is known of them."""
        if self.kept is None and len(self.shape) == 1:
            values = self.values[index]
        else:
            every = np.arange(self.n_rows) if self.kept is None else np.flatnonzero(self.kept)
            values = self.values[np.unravel_index(every[index], self.shape)]

        def some(a: npt.NDArray[Any]) -> npt.NDArray[Any]:
            by_row = a.reshape(self.n_rows, self.n_labels, *a.shape[1:])
            return by_row[index].reshape(-1, *a.shape[1:])

        rows = replace(self, values=np.ascontiguousarray(values), labels=some(self.labels), kept=None)
        vars(rows).update({name: some(a) for name, a in vars(self).items() if name in ("largest", "gap")})
        return rows

    def some(self, n: int) -> Self:
        """Return n of the rows or a few less, spread evenly."""
        step = -(-self.n_rows // max(n, 1))
        return self if step == 1 else self.take(slice(None, None, step))

    def label(self, j: int) -> Self:
        """Return the binary rows of one of the independent labels."""
        return replace(
            self, values=self.values[..., j], labels=self.labels[j :: self.n_labels], task="binary"
        )

    def by_row(self, values: Floats) -> Floats:
        """Return the mean over the entries of each row, which is what was drawn independently."""
        return values if self.n_labels == 1 else values.reshape(-1, self.n_labels).mean(axis=1)

    def log_probs(self, values: Floats) -> Rows:
        """Return rows with the same labels and these log-probabilities, scaled to sum 1 in float64.

        Args:
            values: Shape (entries, K).
        """
        logits = replace(self, values=values, kind="logits", task=None, kept=None)
        log_probs = np.empty(values.shape)
        for rows, block in logits.log_blocks():
            log_probs[rows] = block
        if not self.is_binary:
            return replace(logits, values=log_probs, kind="log_probs")
        odds = (log_probs[:, 1] - log_probs[:, 0]).reshape(-1, self.n_labels)
        odds = odds if self.task == "multilabel" else odds[:, 0]
        return replace(self, values=odds, kind="log_probs", kept=None)

    @cached_property
    def z(self) -> Floats:
        """The logits in the dtype to compute in, (entries, K); a copy unless they came as (n, K).

        `logit_blocks` goes without the copy.
        """
        dtype = np.float64 if self.values.dtype.itemsize > 4 else np.float32
        if self.kept is None and not self.is_binary and self.values.ndim == 2:
            return self.values.astype(dtype, copy=False)
        z = np.empty((self.n_entries, self.n_classes), dtype)
        for at, block in self.logit_blocks():
            z[at] = block
        return z

    @cached_property
    def largest(self) -> Floats:
        """The largest logit of each entry, shape (entries, 1); every value is checked by it."""
        largest = np.concatenate([block.max(axis=1) for _, block in self.logit_blocks()])  # NaN if one is
        self._check_largest(largest)
        return np.asarray(largest[:, None])

    @cached_property
    def gap(self) -> Floats:
        """The label's logit minus the largest one, in float64, shape (entries,)."""
        gap = np.empty(self.n_entries)
        for at, block in self.logit_blocks():
            gap[at] = block[np.arange(len(block)), self.labels[at]]
        with np.errstate(over="ignore"):  # 1e308 below counts as masked
            gap -= self.largest[:, 0]
        masked = np.flatnonzero(gap == -np.inf)
        if masked.size:
            raise ValueError(
                "labels must be classes with a finite logit, got one with -inf in "
                f"{self.place(int(masked[0]))}"
            )
        return gap

    def confidence(self, target: Target) -> tuple[Floats, Booleans]:
        """Return `confidence_of` all entries, in float64."""
        if target not in self._confidence:
            confidence, hit = np.empty(self.n_entries), np.empty(self.n_entries, bool)
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


def _joined(table: Floats) -> Floats:
    """Join the axes of the rows, from the last one on, as far as their memory is one piece."""
    first, strides = table.ndim - 2, table.strides
    while first > 0 and strides[first - 1] == strides[first] * table.shape[first]:
        first -= 1
    return table.reshape(*table.shape[:first], -1, table.shape[-1])


def _strips(table: Floats, step: int) -> Iterator[Floats]:
    """Yield all rows of (..., K) in order, up to a number at a time, where they lie if they can be."""
    inner = math.prod(table.shape[1:-1])
    if table.ndim > 2 and inner >= step:
        for part in table:
            yield from _strips(part, step)
        return
    group = max(1, step // inner)
    for i in range(0, len(table), group):
        yield table[i : i + group].reshape(-1, table.shape[-1])


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
