"""CalibrationStats: binned rows that can be added up, in memory that does not grow with the rows."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from refocal._checks import check_count
from refocal._html import data_frame, html_table
from refocal._rows import (
    HALF_SUM_TOLERANCE,
    Floats,
    Integers,
    Rows,
    Target,
    Task,
    check_target,
    check_task,
    checked_rows,
    checked_target,
)
from refocal.metrics.binning import Binned, Convention, bin_rows, make_bins
from refocal.metrics.processes import all_reduced

SETTINGS = ("n_bins", "n_classes", "convention", "target", "task", "n_labels")
"""What two stats must have in common to be added up."""


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

    With ``task="multilabel"`` it is the entries, n L of them, that count, each with the probability of its
    label and whether the row has it; and each of the ``n_labels`` labels has bins of its own, as a class has.

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
            a row (class 0 at 0.5), "positive" for class 1 itself, which it is where ``task`` is "binary" or
            "multilabel". Scores of shape (n, K) are always "top".
        task: "binary", "multiclass" or "multilabel"; None: by the shape, (n,) or (n, K).
        n_labels: L, for "multilabel".

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
        *,
        task: Task | None = None,
        n_labels: int | None = None,
    ) -> None:
        self._bins = make_bins(n_bins, convention)
        self._n_classes = None if n_classes is None else check_count("n_classes", n_classes, 2)
        check_target(target)
        check_task(task)
        if task != "multilabel" and n_labels is not None:
            raise ValueError(f"n_labels must be None unless task is 'multilabel', got {n_labels!r}")
        if task == "multilabel" and n_classes is not None:
            raise ValueError(f"n_classes must be None for task 'multilabel', got {n_classes!r}")
        self._task = task
        self._n_labels = check_count("n_labels", n_labels, 1) if task == "multilabel" else None
        self._target: Target | None = target or ("positive" if task in ("binary", "multilabel") else None)
        # Never changed in place: what was handed out stays.
        self._set(Binned.zeros(self._bins, self._n_classes or self._n_labels))

    def update(
        self,
        probs: Any,
        labels: Any,
        *,
        axis: int = -1,
        ignore_index: Hashable = None,
        classes: Sequence[Hashable] | None = None,
    ) -> CalibrationStats:
        """Add a batch of rows.

        Args:
            probs: Probabilities, shape (n, K), (n,) for class 1 of two (then ``target`` or ``task`` must be
                set), or (n, L) for independent labels; as for `refocal.ece`. Rows of classes sum to 1 within
                0.001 (0.01 in half precision).
            labels: Integers within 0..K-1, shape (n,); of independent labels 0 and 1, shape (n, L).
            axis: As for `refocal.ece`.
            ignore_index: As for `refocal.ece`.
            classes: As for `refocal.ece`.

        Returns:
            This object.

        Raises:
            TypeError: If probs are not floats or labels not integers.
            ValueError: If a shape or a value is wrong; then nothing was added.
        """
        rows = checked_rows(
            probs, labels, task=self._task, axis=axis, ignore_index=ignore_index, classes=classes
        )
        target, k = checked_target(self._target, rows), self._n_classes
        if k not in (None, rows.n_classes):
            raise ValueError(f"{rows.name} must have the {k} classes of n_classes, got {rows.n_classes}")
        if self._n_labels not in (None, rows.n_labels):
            raise ValueError(
                f"{rows.name} must have the {self._n_labels} labels of n_labels, got {rows.n_labels}"
            )
        classwise = k is not None or self._n_labels is not None
        self._set(self._binned.plus(bin_rows(rows, self._bins, target, classwise=classwise)))
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
        for name in SETTINGS:
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
        settings = {name: getattr(self, name) for name in SETTINGS}
        return self._with(*all_reduced(settings, self._binned, group))

    def to_dict(self) -> dict[str, Any]:
        """Return settings and numbers as what JSON can hold, without loss."""
        return {
            **{name: getattr(self, name) for name in SETTINGS},
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
        names, later = (*SETTINGS[:4], "counts", "hits", "sums"), SETTINGS[4:]
        if set(data) - set(later) != set(names):  # older ones have no task
            raise ValueError(f"stats must have exactly the keys {sorted(names + later)}, got {sorted(data)}")
        given: dict[str, Any] = {name: data.get(name) for name in SETTINGS}
        stats = cls(**given)
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
        n = counts[0].sum() // (stats.n_labels or 1)
        if (counts[1:].sum(axis=1) != n).any():
            raise ValueError("counts of every class must add up to the number of rows")
        if stats.n_labels and any((a[1:].sum(axis=0) != a[0]).any() for a in (counts, hits)):
            raise ValueError("counts and hits of the labels must add up to those of all entries")
        if stats.n_classes and hits[1:].sum() != n:
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
        """Return the mean of the expected calibration errors of the classes, or of the independent labels.

        Raises:
            ValueError: If neither n_classes nor n_labels was given.
        """
        self._classes("classwise_ece")  # raises where there are none
        return self._binned.classwise_ece()

    def class_ece(self) -> Floats:
        """Return the expected calibration error of each class, or of each independent label."""
        self._classes("class_ece")
        return self._binned.class_ece()

    def of_class(self, k: int) -> CalibrationStats:
        """Return the bins of a class, or of an independent label, as stats of their own: for a diagram."""
        count = len(self._classes("of_class").counts)
        k = check_count("k", k, 0, count - 1)
        target: Target = "positive" if self._n_labels is None else self._target or "positive"
        stats = CalibrationStats(self.n_bins, None, self.convention, target, task="binary")
        stats._set(Binned(*(a[k + 1 : k + 2] for a in self._binned)))
        return stats

    def to_frame(self) -> Any:
        """Return a frame of pandas with a row for each bin, of each class too where classes have bins.

        Columns: class (-1 for the bins of all), low, high, count, hits, confidence, accuracy.

        Raises:
            ImportError: If pandas is missing; it says how to install it.
        """
        return data_frame(self._columns())

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
    def task(self) -> Task | None:
        """What the probabilities are; None where their shape says it."""
        return self._task

    @property
    def n_labels(self) -> int | None:
        """How many independent labels there are; None for none."""
        return self._n_labels

    @property
    def n(self) -> int:
        """How many rows; of independent labels, how many entries: rows times labels."""
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
        settings = [f"{name}={getattr(self, name)!r}" for name in SETTINGS[:4]]
        settings += [
            f"{name}={value!r}" for name in SETTINGS[4:] if (value := getattr(self, name)) is not None
        ]
        return f"CalibrationStats({', '.join(settings)}, n={self.n})"

    def _repr_html_(self) -> str:
        columns = {name: a[: len(self.counts)] for name, a in self._columns().items() if name != "class"}
        caption = f"ECE {self.ece():.4f}, MCE {self.mce():.4f}, n {self.n}" if self.n else "no rows"
        return html_table(list(columns), zip(*(a.tolist() for a in columns.values()), strict=True), caption)

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        counts, hits, sums = self._binned
        k, bins = counts.shape
        return {
            "class": np.repeat(np.arange(-1, k - 1), bins),
            "low": np.tile(self.edges[:-1], k),
            "high": np.tile(self.edges[1:], k),
            "count": counts.reshape(-1),
            "hits": hits.reshape(-1),
            "confidence": _mean(sums, counts).reshape(-1),
            "accuracy": _mean(hits, counts).reshape(-1),
        }

    def _with(self, binned: Binned, target: Target | None) -> CalibrationStats:
        stats = CalibrationStats(
            self.n_bins, self.n_classes, self.convention, target, task=self.task, n_labels=self.n_labels
        )
        stats._set(binned)
        return stats

    def _set(self, binned: Binned) -> None:
        for a in binned:
            a.flags.writeable = False
        self._binned = binned

    def _classes(self, name: str) -> Binned:
        if self._n_classes is None and self._n_labels is None:
            raise ValueError(f"{name} needs CalibrationStats(n_classes=K), got n_classes=None")
        return Binned(*(a[1:] for a in self._binned))


def _mean(total: npt.NDArray[Any], counts: Integers) -> Floats:
    mean = np.full(counts.shape, np.nan)
    np.divide(total, counts, out=mean, where=counts > 0)
    mean.flags.writeable = False
    return mean


def stats_of(rows: Rows, n_bins: int) -> CalibrationStats:
    """Return the stats of rows that were checked before: for class 1 if ``task`` says so, or the top one."""
    n_labels = rows.n_labels if rows.task == "multilabel" else None
    stats = CalibrationStats(n_bins, task=rows.task, n_labels=n_labels)
    classwise = n_labels is not None
    stats._set(bin_rows(rows, make_bins(n_bins), stats.target or "top", classwise=classwise))
    return stats
