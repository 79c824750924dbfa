"""DetectionCalibration: what D-ECE is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from refocal._checks import check_count, check_values
from refocal.detection.matching import (
    Feature,
    Floats,
    as_numpy,
    box_features,
    checked_features,
    checked_scores,
    checked_threshold,
    match_detections,
)
from refocal.metrics.binning import make_bins

Integers = npt.NDArray[np.int64]

LARGEST_CELLS = 10_000_000
"""Cells of bins that are kept: 240 MB."""


class DetectionCalibration:
    r"""How far the scores of detections are from their precision: D-ECE, in memory that does not grow.

    Detections fall into cells :math:`I` of equal width in each dimension: the score and, where asked for,
    the position and size of the box. With precision prec the share of right detections in a cell and conf
    their mean score (Kueppers et al., 2020):

    .. math:: \textrm{D-ECE} = \sum_I \frac{|I|}{n} |\mathrm{prec}(I) - \mathrm{conf}(I)|

    The numbers are those of netcal's ``ECE(bins, detection=True)`` in float64. Bins are [lo, hi), the last
    one holds 1.0 too. An object that was not found is in no cell: this says nothing about recall. Nor does
    it say anything about scores below the smallest that the detector hands out.

    Use it after non-maximum suppression. What Psi can say about detections, and what not, stands at the
    top of this module.

    Args:
        n_bins: How many bins in each dimension, a number or one for each: score first, then features.
        features: Any of "cx", "cy" (centre) and "w", "h" (size), as shares of the image's size.
        iou_threshold: From which IoU on a detection is right, in (0, 1].
        match_classes: Whether it must also have the object's class.
        min_count: Cells with fewer detections count as 0 in the sum (netcal's ``sample_threshold``).

    Example:
        >>> stats = DetectionCalibration(n_bins=10, match_classes=False)
        >>> boxes = np.array([[0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0]])
        >>> stats.update(boxes, np.array([0.9, 0.75]), boxes[:1]).n
        2
        >>> round(stats.d_ece(), 3)  # 0.9 was right, 0.75 was wrong
        0.425
    """

    def __init__(
        self,
        n_bins: int | Iterable[int] = 10,
        features: Iterable[Feature] = (),
        iou_threshold: float = 0.5,
        match_classes: bool = True,
        min_count: int = 1,
    ) -> None:
        self._features = checked_features(features)
        dimensions = 1 + len(self._features)
        listed = tuple(n_bins) if isinstance(n_bins, Iterable) else (n_bins,) * dimensions
        if len(listed) != dimensions:
            raise ValueError(
                f"n_bins must be a number or one for each of the {dimensions} dimensions, got {len(listed)}"
            )
        self._bins = tuple(make_bins(n, "netcal") for n in listed)
        self._shape = tuple(bins.n_bins for bins in self._bins)
        if np.prod(self._shape, dtype=float) > LARGEST_CELLS:
            raise ValueError(f"n_bins must make at most {LARGEST_CELLS} cells, got {self._shape}")
        self._iou_threshold = checked_threshold(iou_threshold)
        if not isinstance(match_classes, bool):
            raise TypeError(f"match_classes must be True or False, got {match_classes!r}")
        self._match_classes = match_classes
        self._min_count = check_count("min_count", min_count, 1)
        # Never changed in place: what was handed out stays.
        self._set(np.zeros(self._shape, np.int64), np.zeros(self._shape, np.int64), np.zeros(self._shape))

    def update(
        self,
        boxes: Any,
        scores: Any,
        truths: Any,
        *,
        labels: Any = None,
        truth_labels: Any = None,
        image_size: tuple[float, float] | None = None,
    ) -> DetectionCalibration:
        """Add the detections of one image, after `match_detections`.

        Args:
            boxes: Shape (n, 4), x1, y1, x2, y2 in pixels; n may be 0. NumPy, PyTorch, JAX.
            scores: Shape (n,), within 0..1.
            truths: The boxes of the objects, shape (m, 4); m may be 0, and then all detections are wrong.
            labels: The classes of the detections, shape (n,); needed where classes are matched.
            truth_labels: The classes of the objects, shape (m,); needed where classes are matched.
            image_size: Width and height in pixels; needed where there are features.

        Returns:
            This object.

        Raises:
            ValueError: If a shape or value is wrong, or something needed is missing; nothing is added then.
        """
        for name, value in (("labels", labels), ("truth_labels", truth_labels)):
            if self._match_classes and value is None:
                raise ValueError(
                    f"{name} must be given where classes are matched (match_classes=True), got None"
                )
        if not self._match_classes:
            labels = truth_labels = None
        right = match_detections(
            boxes,
            scores,
            truths,
            iou_threshold=self._iou_threshold,
            labels=labels,
            truth_labels=truth_labels,
        )
        features = box_features(boxes, image_size, self._features) if self._features else None
        return self.add(scores, right, features)

    def add(self, scores: Any, right: Any, features: Any = None) -> DetectionCalibration:
        """Add detections that were matched elsewhere, for instance by COCO's own evaluation.

        Args:
            scores: Shape (n,), within 0..1.
            right: Booleans, or integers 0 and 1, shape (n,).
            features: Shape (n, F), one column for each of this object's features, within 0..1.

        Returns:
            This object.

        Raises:
            ValueError: If a shape or value is wrong; nothing is added then.
        """
        scores = checked_scores("scores", scores)
        hits = _checked_hits(right, len(scores))
        columns = [scores]
        if self._features:
            if features is None:
                raise ValueError(f"features must be given for {', '.join(self._features)}, got None")
            table = as_numpy(features).astype(np.float64)
            if table.shape != (len(scores), len(self._features)):
                raise ValueError(
                    f"features must have the shape {(len(scores), len(self._features))}, got {table.shape}"
                )
            check_values("features", table, (table >= 0) & (table <= 1), "within 0..1")
            columns += list(table.T)
        elif features is not None:
            raise ValueError("features must be None, as this object has none, got some")
        eps = float(np.finfo(np.float64).eps)
        values = [bins.values(column, eps) for bins, column in zip(self._bins, columns, strict=True)]
        index = [bins.index(value) for bins, value in zip(self._bins, values, strict=True)]
        cell = np.ravel_multi_index(tuple(index), self._shape)

        def total(weights: Any = None) -> npt.NDArray[Any]:
            return np.bincount(cell, weights, self._counts.size).reshape(self._shape)

        self._set(
            self._counts + total(),
            self._hits + total(hits).astype(np.int64),
            self._sums + total(values[0]),
        )
        return self

    def merge(self, other: DetectionCalibration) -> DetectionCalibration:
        """Return the stats of the detections of both; the order does not matter.

        Args:
            other: With the same settings.

        Raises:
            ValueError: If a setting differs.
        """
        if not isinstance(other, DetectionCalibration):
            raise TypeError(f"other must be DetectionCalibration, got {type(other).__name__}")
        for (name, mine), theirs in zip(self._settings().items(), other._settings().values(), strict=True):
            if mine != theirs:
                raise ValueError(f"stats to merge must have the same {name}, got {mine!r} and {theirs!r}")
        both = DetectionCalibration(**self._settings())
        both._set(self._counts + other._counts, self._hits + other._hits, self._sums + other._sums)
        return both

    def to_dict(self) -> dict[str, Any]:
        """Return settings and numbers as what JSON can hold, without loss."""
        numbers = {"counts": self._counts, "hits": self._hits, "sums": self._sums}
        settings = {k: list(v) if isinstance(v, tuple) else v for k, v in self._settings().items()}
        return settings | {name: array.ravel().tolist() for name, array in numbers.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DetectionCalibration:
        """Return the stats that `to_dict` described.

        Raises:
            ValueError: If something is missing, or the numbers do not fit the settings.
        """
        settings = ("n_bins", "features", "iou_threshold", "match_classes", "min_count")
        names = {*settings, "counts", "hits", "sums"}
        if set(data) != names:
            raise ValueError(f"stats must have exactly the keys {sorted(names)}, got {sorted(data)}")
        stats = cls(*(data[name] for name in settings))
        arrays = [np.asarray(data[name]) for name in ("counts", "hits", "sums")]
        counts, hits, sums = arrays
        if (
            any(a.shape != (stats._counts.size,) for a in arrays)
            or counts.dtype.kind + hits.dtype.kind != "ii"
        ):
            raise ValueError(
                f"counts, hits and sums must be {stats._counts.size} numbers, the first two integers"
            )
        if not ((0 <= hits) & (hits <= counts) & (0 <= sums) & (sums <= counts)).all():
            raise ValueError("counts, hits and sums must fulfil 0 <= hits <= counts and 0 <= sums <= counts")
        counts, hits, sums = (a.reshape(stats._shape) for a in arrays)
        stats._set(counts.astype(np.int64), hits.astype(np.int64), sums.astype(np.float64))
        return stats

    def d_ece(self) -> float:
        """Return the detection expected calibration error.

        Raises:
            ValueError: If there are no detections. (So does `d_mce`.)
        """
        return float(self._gaps().sum() / self.n)

    def d_mce(self) -> float:
        """Return the largest gap between precision and mean score of a cell that counts."""
        return float((self._gaps() / np.maximum(self._counts, 1)).max())

    @property
    def n(self) -> int:
        """How many detections."""
        return int(self._counts.sum())

    @property
    def edges(self) -> tuple[Floats, ...]:
        """Edges of the bins in each dimension, score first."""
        return tuple(bins.edges for bins in self._bins)

    @property
    def counts(self) -> Integers:
        """Detections in every cell, one axis for each dimension, score first."""
        return self._counts

    @property
    def hits(self) -> Integers:
        """Right detections in every cell."""
        return self._hits

    @property
    def precision(self) -> Floats:
        """Share of right detections in every cell, NaN where there are none."""
        return self._mean(self._hits)

    @property
    def confidence(self) -> Floats:
        """Mean score in every cell, NaN where there are no detections."""
        return self._mean(self._sums)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DetectionCalibration) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # update changes it

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self._settings().items())
        return f"DetectionCalibration({inside}, n={self.n})"

    def _settings(self) -> dict[str, Any]:
        return {
            "n_bins": self._shape,
            "features": self._features,
            "iou_threshold": self._iou_threshold,
            "match_classes": self._match_classes,
            "min_count": self._min_count,
        }

    def _set(self, counts: Integers, hits: Integers, sums: Floats) -> None:
        for a in (counts, hits, sums):
            a.flags.writeable = False
        self._counts, self._hits, self._sums = counts, hits, sums

    def _mean(self, total: npt.NDArray[Any]) -> Floats:
        mean = np.full(self._shape, np.nan)
        np.divide(total, self._counts, out=mean, where=self._counts > 0)
        return mean

    def _gaps(self) -> Floats:
        """Return count * |precision - mean score| of every cell, 0 of those that do not count."""
        if self.n == 0:
            raise ValueError("stats must have at least 1 detection, got none: call update first")
        return np.abs(self._hits - self._sums) * (self._counts >= self._min_count)


def _checked_hits(right: Any, n: int) -> npt.NDArray[Any]:
    hits = as_numpy(right)
    if hits.shape != (n,):
        raise ValueError(f"right must have the shape {(n,)} of scores, got {hits.shape}")
    if n and hits.dtype.kind not in "biu":
        raise TypeError(f"right must hold booleans or integers, got dtype {hits.dtype}")
    check_values("right", hits, (hits == 0) | (hits == 1), "0 or 1")
    return hits
