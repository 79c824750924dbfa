"""CalibrationStats: binned rows that can be added up, in memory that does not grow with the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from refocal._checks import check_count
from refocal._rows import (
    HALF_SUM_TOLERANCE,
    Floats,
    Integers,
    Rows,
    Target,
    check_target,
    checked_rows,
    checked_target,
)
from refocal.metrics.binning import Binned, Convention, bin_rows, make_bins


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

    Memory is a few numbers for each bin, however many rows there are. Counts are int64, sums float64.

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
        # Never changed in place: what was handed out stays.
        self._set(Binned.zeros(self._bins, self._n_classes))

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
        rows = checked_rows(probs, labels)
        target, k = checked_target(self._target, rows), self._n_classes
        if k not in (None, rows.n_classes):
            raise ValueError(f"{rows.name} must have the {k} classes of n_classes, got {rows.n_classes}")
        self._set(self._binned.plus(bin_rows(rows, self._bins, target, classwise=k is not None)))
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
        return self._with(self._binned.plus(other._binned), target)

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
        whole = torch.from_numpy(np.stack(self._binned[:2])).to(device)
        sums = torch.from_numpy(self._binned.sums.copy()).to(device)
        distributed.all_reduce(whole, group=group)
        distributed.all_reduce(sums, group=group)
        counts, hits = whole.cpu().numpy()
        return self._with(Binned(counts, hits, sums.cpu().numpy()), target)

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
            **{name: a.tolist() for name, a in self._binned._asdict().items()},
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
        shape = stats._binned.counts.shape
        if not all(a.shape == shape for a in (counts, hits, sums)):
            raise ValueError(f"counts, hits and sums must have the shape {shape}")
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
        binned = Binned(counts.astype(np.int64), hits.astype(np.int64), sums.astype(np.float64))
        return stats._with(binned, stats.target)

    def ece(self) -> float:
        """Return the expected calibration error.

        Raises:
            ValueError: If there are no rows. (So do the others.)
        """
        return self._binned.ece()

    def mce(self) -> float:
        """Return the maximum calibration error, over the bins that have rows."""
        return self._binned.mce()

    def classwise_ece(self) -> float:
        """Return the classwise expected calibration error.

        Raises:
            ValueError: If n_classes was not given.
        """
        self._classes("classwise_ece")  # raises where there are none
        return self._binned.classwise_ece()

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
        return self._binned.n

    @property
    def edges(self) -> Floats:
        """Edges of the bins."""
        return self._bins.edges

    @property
    def counts(self) -> Integers:
        """Rows in every bin."""
        return np.asarray(self._binned.counts[0])

    @property
    def hits(self) -> Integers:
        """Rows in every bin whose predicted class is the label; with target "positive" those of class 1."""
        return np.asarray(self._binned.hits[0])

    @property
    def confidence(self) -> Floats:
        """Mean confidence in every bin, NaN where there are no rows."""
        return _mean(self._binned.sums[0], self._binned.counts[0])

    @property
    def accuracy(self) -> Floats:
        """Share of hits in every bin, NaN where there are no rows."""
        return _mean(self._binned.hits[0], self._binned.counts[0])

    @property
    def class_counts(self) -> Integers:
        """Rows in every bin of every class, shape (K, bins)."""
        return self._classes("class_counts").counts

    @property
    def class_hits(self) -> Integers:
        """Rows of the class in every bin of every class, shape (K, bins)."""
        return self._classes("class_hits").hits

    @property
    def class_confidence(self) -> Floats:
        """Mean probability of the class in every bin of every class, NaN where there are no rows."""
        counts, _, sums = self._classes("class_confidence")
        return _mean(sums, counts)

    @property
    def class_accuracy(self) -> Floats:
        """Share of the class in every bin of every class, NaN where there are no rows."""
        counts, hits, _ = self._classes("class_accuracy")
        return _mean(hits, counts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CalibrationStats) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # update changes it

    def __repr__(self) -> str:
        return (
            f"CalibrationStats(n_bins={self.n_bins}, n_classes={self.n_classes}, "
            f"convention={self.convention!r}, target={self.target!r}, n={self.n})"
        )

    def _with(self, binned: Binned, target: Target | None) -> CalibrationStats:
        stats = CalibrationStats(self.n_bins, self.n_classes, self.convention, target)
        stats._set(binned)
        return stats

    def _set(self, binned: Binned) -> None:
        for a in binned:
            a.flags.writeable = False
        self._binned = binned

    def _classes(self, name: str) -> Binned:
        if self._n_classes is None:
            raise ValueError(f"{name} needs CalibrationStats(n_classes=K), got n_classes=None")
        return Binned(*(a[1:] for a in self._binned))


def _mean(total: npt.NDArray[Any], counts: Integers) -> Floats:
    mean = np.full(counts.shape, np.nan)
    np.divide(total, counts, out=mean, where=counts > 0)
    mean.flags.writeable = False
    return mean


def stats_of(rows: Rows, n_bins: int) -> CalibrationStats:
    """Return the stats of rows that were checked before, for the top label."""
    stats = CalibrationStats(n_bins)
    stats._set(bin_rows(rows, make_bins(n_bins), "top"))
    return stats
