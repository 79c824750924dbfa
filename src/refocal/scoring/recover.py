"""From a block of scores to probabilities, by an objective or a choice; and what scores look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from refocal._checks import warn_if_probs, warn_if_sigmoids
from refocal.calibration import Selection
from refocal.objectives import Objective
from refocal.objectives.base import ScoreKind
from refocal.scoring.columns import Floats
from refocal.scoring.paths import InputError

Kind: TypeAlias = Literal["logits", "probs"]

TOLERANCE = 1e-3
"""How far the sum of a row of probabilities may be from 1, as in the metrics."""
ROUNDED = 0.05
"""How far it is from 1 at most where probabilities were rounded to two decimals."""


@dataclass(frozen=True)
class Recovery:
    """The way from scores to probabilities; the same for every block of rows.

    Attributes:
        link: What the model was trained with, or a choice that was made for it; None for the scores as they
            are (a softmax or a sigmoid of logits).
        kind: What the scores are.
        scores: What turns logits into scores: a softmax of each row, a sigmoid of each entry, which is then a
            problem of its own, or sigmoids that are read as a distribution of the row.
        order: For each class of the link the score column that is of it; None for the same order.
    """

    link: Objective | Selection | None
    kind: Kind
    scores: ScoreKind
    order: tuple[int, ...] | None = None

    def probs(self, block: Floats, start: int = 0) -> Floats:
        """Return probabilities of the shape and dtype of a block.

        Args:
            block: Scores with classes first, shape (K, rows). One row of them is class 1 of two.
            start: How many rows came before, to name a row in an error.

        Raises:
            InputError: If a value is NaN, or cannot be a logit or a probability.
        """
        two = len(block) == 1 and self.scores == "softmax"
        if self.kind == "probs":
            check_probs(block, start, sums=self.scores == "softmax" and not two)
        elif self.scores == "softmax" and not two:
            warn_if_probs("scores", block, 0)
        else:
            warn_if_sigmoids("scores", block)
        if two:
            other = 1 - block if self.kind == "probs" else np.zeros_like(block)
            return self._probs(np.concatenate([other, block]), start)[1:]
        if self.order is None:
            return self._probs(block, start)
        order = list(self.order)
        result = np.empty_like(block)
        result[order] = self._probs(block[order], start)
        return result

    def _probs(self, block: Floats, start: int) -> Floats:
        if isinstance(self.link, Selection):
            result = self.link.apply(self.logits(block), axis=0)
        elif self.link is None:
            result = self._raw(block)
        elif self.kind == "probs":
            result = self.link.posterior_from_probs(block, axis=0)
        else:
            result = self.link.posterior(block, axis=0)
        if not np.isfinite(result.sum()) or (block.size and block.max() == np.inf):
            _refuse(block, result, start)
        return np.asarray(result)

    def _raw(self, block: Floats) -> Floats:
        """Return scores as they are, as if they were probabilities."""
        if self.kind == "logits":
            block = softmax(block) if self.scores == "softmax" else sigmoid(block)
        return block / block.sum(axis=0) if self.scores == "one-vs-rest" else block

    def logits(self, block: Floats) -> Floats:
        """Return the logits of a block that was checked; of probabilities some that lead to them."""
        if self.kind == "logits":
            return block
        with np.errstate(divide="ignore"):
            return np.log(block) if self.scores == "softmax" else np.log(block) - np.log1p(-block)


def softmax(z: Floats) -> Floats:
    """Return exp(z) / sum exp(z) over the classes, which come first; NaN for a row without a finite logit."""
    with np.errstate(invalid="ignore"):
        e = z - z.max(axis=0)
    np.exp(e, out=e)
    e /= e.sum(axis=0)
    return np.asarray(e)


def sigmoid(z: Floats) -> Floats:
    """Return 1 / (1 + exp(-z)), without overflow."""
    small = np.exp(-np.abs(z))
    return np.asarray(np.where(z >= 0, 1, small) / (1 + small), dtype=z.dtype)


def check_probs(block: Floats, start: int, *, sums: bool) -> None:
    """Raise where a value is no probability or, if they must, the classes of a row do not sum to 1."""
    if not block.size:
        return
    if not (block.min() >= 0 and block.max() <= 1 + (TOLERANCE if sums else 0)):  # False for NaN
        good = (block >= 0) & (block <= 1 + (TOLERANCE if sums else 0))
        i = int(np.argmin(good.all(axis=0)))
        value = next(float(v) for v, g in zip(block[:, i], good[:, i], strict=True) if not g)
        raise InputError(f"--probs must be within 0..1, got {value:g} in row {start + i}; {look(block)}")
    if sums:
        total = block.sum(axis=0)
        good = np.abs(total - 1) <= (TOLERANCE if block.dtype.itemsize > 2 else 10 * TOLERANCE)
        if not good.all():
            i = int(np.argmin(good))
            raise InputError(
                f"--probs of a row must sum to 1 within {TOLERANCE:g}, got {total[i]:.6g} in row {start + i}"
                f"; {look(block)}"
            )


def look(block: Floats) -> str:
    """Return in words what scores look like, and which option would say so."""
    values = block[np.isfinite(block)]
    if not values.size:
        return "there is no finite value"
    low, high = float(values.min()), float(values.max())
    text = f"values lie between {low:.3g} and {high:.3g}"
    total = block.sum(axis=0)
    if low >= 0 and 1 + TOLERANCE < high <= 100:
        if len(block) == 1:
            return f"{text}: these look like percentages, divide them by 100, or like logits, say --logits"
        if np.abs(total - 100).max() <= ROUNDED * 100:
            return f"{text} and each row sums to about 100: these look like percentages, divide them by 100"
    if low < 0 or high > 1 + TOLERANCE:
        return f"{text}: these look like logits, say --logits"
    if len(block) == 1:
        return f"{text}: these look like probabilities, say --probs"
    off = np.abs(total - 1)
    summed = (off <= 10 * TOLERANCE).mean()
    if summed == 1:
        return f"{text} and each row sums to 1: these look like probabilities, say --probs"
    if off.max() <= ROUNDED:
        return (
            f"{text} and each row sums to 1 within {off.max():.2g}: these look like rounded probabilities, "
            "write them with more digits, or divide each row by its sum"
        )
    return (
        f"{text} and {summed:.0%} of the rows sum to 1: these look like probabilities of single labels "
        "(--probs with --sigmoid or --task multilabel), or like logits of a small range (--logits)"
    )


def _refuse(block: Floats, result: Floats, start: int) -> None:
    i = int(np.argmin((np.isfinite(result) & (block < np.inf)).all(axis=0)))
    column = block[:, i]
    value = next((v for v in column if not v < np.inf), column.max())
    raise InputError(
        f"scores must be finite or -inf, with a finite one in each row, got {value:g} in row {start + i}"
    )
