"""CalibrationStats: what calibration errors are made of, in memory that does not grow with the rows.

This is the one place with a rule for the edges of bins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from refocal._checks import check_count
from refocal._rows import (
    HALF_SUM_TOLERANCE,
    Floats,
    Integers,
    Scores,
    Target,
    check_target,
    checked_labels,
    checked_scores,
    checked_target,
    confidence_of,
)

Convention: TypeAlias = Literal["refocal", "torchmetrics", "netcal", "sklearn", "guo"]

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
    n = check_count("n_bins", n_bins, 1, LARGEST_N_BINS)
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


class CalibrationStats:
    r"""Counts and sums of bins, from which calibration errors and reliability diagrams are made.

    A row counts with its confidence :math:`\max_k q_k` and whether the class that has it (the first
    of several) is the label. Bins have equal width; in bin :math:`B_j` are :math:`|B_j|` rows, of mean
    confidence conf and accuracy acc:

    .. math:: \mathrm{ECE} = \sum_j \frac{|B_j|}{n} |\mathrm{acc}(B_j) - \mathrm{conf}(B_j)|, \quad
        \mathrm{MCE} = \max_j |\mathrm{acc}(B_j) - \mathrm{conf}(B_j)|

    With ``n_classes`` each class k has bins of its own, over :math:`q_k` and whether the label is k:

    .. math:: \mathrm{classwise\ ECE} = \frac{1}{K} \sum_k \sum_j \frac{|B_{j,k}|}{n}
        |\mathrm{acc}_k(B_{j,k}) - \mathrm{conf}_k(B_{j,k})|

    Memory is a number a bin (and a class), whatever the number of rows. Counts are int64, sums float64.

    Bins are (lo, hi]; the first includes 0, the last holds 1.0. An edge is j / n_bins in float64, and a
    confidence is compared by the number that it holds, whatever its dtype: float64 0.3 is on the edge and
    falls below it, float32 0.3, which is 0.30000001192..., falls above.

    Args:
        n_bins: How many bins.
        n_classes: K, to keep bins of every class too; None for the top label alone.
        convention: Whose bins. "refocal": as above. "sklearn": the same, with NumPy's linspace as edges (it
            has 0.30000000000000004 for 0.3). "guo" (code of Guo et al., 2017): the same, with PyTorch's
            float32 linspace. "netcal": [lo, hi) with NumPy's linspace, confidences clipped by an eps of
            their dtype; but float32 confidences on an edge it counts in one bin and averages in another.
            "torchmetrics": [lo, hi) with PyTorch's float32 linspace, confidences in float32 (which its
            binary form leaves in float64), and one more bin for exactly 1.0, so that arrays have
            n_bins + 1 entries.
        target: For scores of shape (n,), the probability of class 1 of two: "top" for the likelier class of
            a row (class 0 at 0.5), "positive" for class 1 itself. Scores of shape (n, K) are always "top".

    Example:
        >>> stats = CalibrationStats(n_bins=5)
        >>> stats.update(np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]]), np.array([0, 1, 1])).n
        3
        >>> stats.counts
        array([0, 0, 0, 2, 1])
        >>> round(stats.ece(), 4)  # bin (0.6, 0.8]: mean 0.75, half of it right; bin (0.8, 1]: 0.9, right
        0.2
    """

    def __init__(
        self,
        n_bins: int = 10,
        n_classes: int | None = None,
        convention: Convention = "refocal",
        target: Target | None = None,
    ) -> None:
        self._bins = make_bins(n_bins, convention)
        self._n_classes = None if n_classes is None else check_count("n_classes", n_classes, 2)
        check_target(target)
        self._target = target
        # Row 0 is the target; the classes follow. Never changed in place: what was handed out stays.
        shape = (1 + (self._n_classes or 0), len(self._bins.edges) - 1)
        self._set(np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape))

    def update(self, probs: Any, labels: Any) -> CalibrationStats:
        """Add a batch of rows.

        Args:
            probs: Probabilities, shape (n, K), or (n,) for class 1 of two (then ``target`` must be set);
                NumPy, PyTorch, JAX. Rows sum to 1 within 0.001 (0.01 in half precision).
            labels: Integers within 0..K-1, shape (n,).

        Returns:
            This object.

        Raises:
            TypeError: If probs are not floats or labels not integers.
            ValueError: If a shape or a value is wrong; then nothing was added.
        """
        scores = checked_scores(probs)
        return self._add(scores, checked_labels(labels, scores))

    def _add(self, scores: Scores, labels: Integers) -> CalibrationStats:
        target = checked_target(self._target, scores)
        k, n_bins = self._n_classes, self._counts.shape[1]
        if k not in (None, scores.n_classes):
            raise ValueError(f"probs must have the {k} classes of n_classes, got {scores.n_classes}")
        counts, hits, sums = self._counts.copy(), self._hits.copy(), self._sums.copy()
        for rows, block in scores.blocks():
            y = labels[rows]
            confidence, right = confidence_of(block, y, target)
            values = self._bins.values(confidence, scores.eps)
            index = self._bins.index(values)
            both = np.bincount(2 * index + right, minlength=2 * n_bins).reshape(n_bins, 2)
            counts[0] += both.sum(axis=1)
            hits[0] += both[:, 1]
            sums[0] += np.bincount(index, values, n_bins)
            if k is None:
                continue
            # One histogram for all classes: bin j of class c has the number c * n_bins + j.
            values = self._bins.values(block, scores.eps)
            cells = self._bins.index(values) + np.arange(k) * n_bins
            hit = cells[np.arange(len(y)), y]
            flat, size = cells.ravel("K"), k * n_bins  # in the order in which both are stored
            counts[1:] += np.bincount(flat, minlength=size).reshape(k, n_bins)
            hits[1:] += np.bincount(hit, minlength=size).reshape(k, n_bins)
            sums[1:] += np.bincount(flat, values.ravel("K"), size).reshape(k, n_bins)
        self._set(counts, hits, sums)
        return self

    def merge(self, other: CalibrationStats) -> CalibrationStats:
        """Return the stats of the rows of both; the order does not matter.

        Args:
            other: With the same settings.

        Raises:
            ValueError: If a setting differs.
        """
        if not isinstance(other, CalibrationStats):
            raise TypeError(f"other must be CalibrationStats, got {type(other).__name__}")
        for name in ("n_bins", "n_classes", "convention", "target"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs and {mine, theirs} != {None, "top"}:
                raise ValueError(f"stats to merge must have the same {name}, got {mine!r} and {theirs!r}")
        target = self.target or other.target  # None and "top" make "top", in either order
        return self._with(
            self._counts + other._counts, self._hits + other._hits, self._sums + other._sums, target
        )

    def all_reduce(self, group: Any = None) -> CalibrationStats:
        """Return the stats of the rows of all processes of torch.distributed.

        Args:
            group: A process group; None for all processes.

        Raises:
            RuntimeError: If torch.distributed is not initialised.
            ValueError: In every process, if a setting differs between them.
        """
        import torch
        from torch import distributed

        if not distributed.is_initialized():
            raise RuntimeError("all_reduce needs torch.distributed.init_process_group to be called before")
        device = "cuda" if distributed.get_backend(group) == "nccl" else "cpu"
        target = self._all_same(lambda x, op: distributed.all_reduce(x, op, group=group), device)
        whole = torch.from_numpy(np.stack([self._counts, self._hits])).to(device)
        sums = torch.from_numpy(self._sums.copy()).to(device)
        distributed.all_reduce(whole, group=group)
        distributed.all_reduce(sums, group=group)
        counts, hits = whole.cpu().numpy()
        return self._with(counts, hits, sums.cpu().numpy(), target)

    def _all_same(self, reduce: Callable[[Any, Any], Any], device: str) -> Target | None:
        """Return the target of all processes, after a check that their settings are the same."""
        import torch
        from torch.distributed import ReduceOp

        conventions: tuple[Convention, ...] = get_args(Convention)
        targets: tuple[Target | None, ...] = (None, *get_args(Target))
        mine = [self.n_bins, self.n_classes or 0, conventions.index(self.convention)]
        mine.append(targets.index(self.target))
        # One reduction for both ends: the largest of -x is minus the smallest.
        both = torch.tensor([mine, [-x for x in mine]], dtype=torch.int64, device=device)
        reduce(both, ReduceOp.MAX)
        most, least = both[0].tolist(), (-both[1]).tolist()
        for i, name in enumerate(("n_bins", "n_classes", "convention", "target")):
            if most[i] != least[i] and not (name == "target" and most[i] == targets.index("top")):
                raise ValueError(
                    f"stats to reduce must have the same {name} in every process, got "
                    f"{getattr(self, name)!r} in this one and another elsewhere"
                )
        return targets[int(most[3])]

    def to_dict(self) -> dict[str, Any]:
        """Return settings and numbers as what JSON can hold, without loss."""
        return {
            "n_bins": self.n_bins,
            "n_classes": self.n_classes,
            "convention": self.convention,
            "target": self.target,
            "counts": self._counts.tolist(),
            "hits": self._hits.tolist(),
            "sums": self._sums.tolist(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CalibrationStats:
        """Return the stats that `to_dict` described.

        Raises:
            ValueError: If something is missing, or the numbers do not fit the settings.
        """
        if not isinstance(data, Mapping):
            raise TypeError(f"stats must be a dictionary, got {type(data).__name__}")
        names = ("n_bins", "n_classes", "convention", "target", "counts", "hits", "sums")
        if set(data) != set(names):
            raise ValueError(f"stats must have exactly the keys {sorted(names)}, got {sorted(data)}")
        stats = cls(*(data[name] for name in names[:4]))
        counts, hits, sums = (np.asarray(data[name]) for name in names[4:])
        if not all(a.shape == stats._counts.shape for a in (counts, hits, sums)):
            raise ValueError(f"counts, hits and sums must have the shape {stats._counts.shape}")
        if counts.dtype.kind not in "iu" or hits.dtype.kind not in "iu" or sums.dtype.kind not in "iuf":
            raise ValueError("counts and hits must be integers, sums numbers")
        if not ((0 <= hits) & (hits <= counts) & (sums >= 0)).all():
            raise ValueError("counts, hits and sums must fulfil 0 <= hits <= counts and sums >= 0")
        if not (sums <= counts * (1 + HALF_SUM_TOLERANCE)).all():
            raise ValueError("sums must be those of probabilities, so not above counts")
        if (counts[1:].sum(axis=1) != counts[0].sum()).any():
            raise ValueError("counts of every class must add up to the number of rows")
        if len(hits) > 1 and hits[1:].sum() != counts[0].sum():
            raise ValueError("hits of the classes must add up to the number of rows")
        return stats._with(
            counts.astype(np.int64), hits.astype(np.int64), sums.astype(np.float64), stats.target
        )

    def ece(self) -> float:
        """Return the expected calibration error.

        Raises:
            ValueError: If there are no rows. (So do the others.)
        """
        return float(self._gaps()[0].sum() / self.n)

    def mce(self) -> float:
        """Return the maximum calibration error, over the bins that have rows."""
        full = self.counts > 0
        return float((self._gaps()[0][full] / self.counts[full]).max())

    def classwise_ece(self) -> float:
        """Return the classwise expected calibration error.

        Raises:
            ValueError: If n_classes was not given.
        """
        k = self._need_classes("classwise_ece")
        return float(self._gaps()[1:].sum() / (self.n * k))

    @property
    def n_bins(self) -> int:
        """How many bins were asked for."""
        return self._bins.n_bins

    @property
    def n_classes(self) -> int | None:
        """How many classes have bins of their own; None for none."""
        return self._n_classes

    @property
    def convention(self) -> Convention:
        """Whose bins they are."""
        return self._bins.convention

    @property
    def target(self) -> Target | None:
        """What (n,) probabilities are measured for."""
        return self._target

    @property
    def n(self) -> int:
        """How many rows."""
        return int(self._counts[0].sum())

    @property
    def edges(self) -> Floats:
        """Edges of the bins."""
        return self._bins.edges

    @property
    def counts(self) -> Integers:
        """Rows in every bin."""
        return np.asarray(self._counts[0])

    @property
    def hits(self) -> Integers:
        """Rows in every bin whose predicted class is the label; with target "positive" those of class 1."""
        return np.asarray(self._hits[0])

    @property
    def confidence(self) -> Floats:
        """Mean confidence in every bin, NaN where there are no rows."""
        return _mean(self._sums[0], self._counts[0])

    @property
    def accuracy(self) -> Floats:
        """Share of hits in every bin, NaN where there are no rows."""
        return _mean(self._hits[0], self._counts[0])

    @property
    def class_counts(self) -> Integers:
        """Rows in every bin of every class, shape (K, bins)."""
        self._need_classes("class_counts")
        return self._counts[1:]

    @property
    def class_hits(self) -> Integers:
        """Rows of the class in every bin of every class, shape (K, bins)."""
        self._need_classes("class_hits")
        return self._hits[1:]

    @property
    def class_confidence(self) -> Floats:
        """Mean probability of the class in every bin of every class, NaN where there are no rows."""
        self._need_classes("class_confidence")
        return _mean(self._sums[1:], self._counts[1:])

    @property
    def class_accuracy(self) -> Floats:
        """Share of the class in every bin of every class, NaN where there are no rows."""
        self._need_classes("class_accuracy")
        return _mean(self._hits[1:], self._counts[1:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CalibrationStats) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # update changes it

    def __repr__(self) -> str:
        return (
            f"CalibrationStats(n_bins={self.n_bins}, n_classes={self.n_classes}, "
            f"convention={self.convention!r}, target={self.target!r}, n={self.n})"
        )

    def _with(
        self, counts: Integers, hits: Integers, sums: Floats, target: Target | None
    ) -> CalibrationStats:
        stats = CalibrationStats(self.n_bins, self.n_classes, self.convention, target)
        stats._set(counts, hits, sums)
        return stats

    def _set(self, counts: Integers, hits: Integers, sums: Floats) -> None:
        for a in (counts, hits, sums):
            a.flags.writeable = False
        self._counts, self._hits, self._sums = counts, hits, sums

    def _gaps(self) -> Floats:
        """Return count * |accuracy - confidence| of every bin."""
        if self.n == 0:
            raise ValueError("stats must have at least 1 row, got none: call update first")
        return np.abs(self._hits - self._sums)

    def _need_classes(self, name: str) -> int:
        if self._n_classes is None:
            raise ValueError(f"{name} needs CalibrationStats(n_classes=K), got n_classes=None")
        return self._n_classes


def _mean(total: npt.NDArray[Any], counts: Integers) -> Floats:
    mean = np.full(counts.shape, np.nan)
    np.divide(total, counts, out=mean, where=counts > 0)
    mean.flags.writeable = False
    return mean
