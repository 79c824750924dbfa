"""Tables of OpenML as the arrays of an ``.npz`` file."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from refocal.experiments.data.registry import Source
from refocal.extras import needs

Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]

TABLE = ("X", "y")
SPLIT = ("X_train", "y_train", "X_test", "y_test")
"""The arrays of a file: one table, or one that is split into training and test rows."""


def fetch_arrays(entry: Source) -> dict[str, Numbers]:
    """Fetch a data set that has an OpenML number, and return its arrays.

    Raises:
        OSError: If OpenML cannot be reached.
        ValueError: If what came is not what the registry says.
        ImportError: If scikit-learn is not installed.
    """
    with needs("fetching data", "sklearn"):
        from sklearn import datasets
    try:
        # This parser needs no pandas and says which columns are categorical. Without a folder of its own
        # scikit-learn would fetch everything twice, the first time for the checksum.
        with tempfile.TemporaryDirectory() as folder:
            table = datasets.fetch_openml(
                data_id=entry.openml, as_frame=False, parser="liac-arff", data_home=folder
            )
    except OSError as error:
        raise OSError(
            f"cannot fetch {entry.name} from OpenML (number {entry.openml}): {error}; without a network, put "
            f"{entry.name}.npz into a folder that you name with --data or REFOCAL_DATA"
        ) from error
    return arrays_of(table, entry)


def arrays_of(table: Mapping[str, Any], entry: Source) -> dict[str, Numbers]:
    """Turn what scikit-learn fetched into the arrays of an ``.npz`` file."""
    X = table["data"].toarray() if hasattr(table["data"], "toarray") else np.asarray(table["data"])
    y = _integer_labels(table["target"], entry)
    if entry.shape is not None:
        _check_rows(y, entry)
        images = _pixels(X, entry).reshape(len(X), *entry.shape)
        if entry.shape[0] == 3:
            images = np.ascontiguousarray(np.moveaxis(images, 1, -1))
        cut = len(images) - entry.n_test
        return dict(zip(SPLIT, (images[:cut], y[:cut], images[cut:], y[cut:]), strict=True))
    categories = table.get("categories") or {}
    numeric = [i for i, name in enumerate(table["feature_names"]) if name not in categories]
    columns = [X[:, numeric].astype(np.float32)]
    labels = [table["feature_names"][i] for i in numeric]
    for i, name in enumerate(table["feature_names"]):
        if name in categories:
            levels = categories[name]
            if entry.codes:
                columns.append(_coded(X[:, i], levels)[:, None])
                labels.append(name)
                continue
            hot, used = _one_hot(X[:, i], levels)
            columns.append(hot)
            labels += [f"{name}={level}" for level in used]
    return {"X": np.hstack(columns), "y": y, "feature_names": np.array(labels, dtype=np.str_)}


def _check_rows(y: Numbers, entry: Source) -> None:
    """Raise if the last rows cannot be the test set."""
    if entry.n_rows not in (None, len(y)):
        raise ValueError(
            f"OpenML's {entry.name} must have {entry.n_rows} rows, got {len(y)}: another version?"
        )
    counts = np.bincount(y[len(y) - entry.n_test :], minlength=entry.n_classes)
    if entry.balanced and counts.min() != counts.max():
        raise ValueError(
            f"OpenML's {entry.name} must have {entry.n_test // entry.n_classes} images of each class in its "
            f"last {entry.n_test} rows, the test set, got {counts.min()} to {counts.max()}: its rows are not "
            "in the order that is read here"
        )


def _pixels(X: Numbers, entry: Source) -> Numbers:
    """Return rows as uint8, or raise if that would change a value."""
    with np.errstate(invalid="ignore"):  # what is no uint8 shows in the comparison
        pixels = X.astype(np.uint8)
    wrong = X[pixels != X]
    if wrong.size or pixels.max() <= 1:  # 0 and 1 alone are on another scale
        got = f"{wrong[0]:g}" if wrong.size else f"none above {pixels.max()}"
        raise ValueError(
            f"OpenML's {entry.name} must have pixels that are whole numbers within 0..255, some above 1, got "
            f"{got}"
        )
    return pixels


def _integer_labels(target: Any, entry: Source) -> Numbers:
    target = np.asarray(target)
    if target.ndim != 1 or any(value is None or value != value for value in target):
        raise ValueError(
            f"OpenML's {entry.name} must have one label for each row, got missing or several ones"
        )
    with contextlib.suppress(ValueError):  # "10" comes after "9" where labels are numbers
        target = target.astype(np.float64)
    classes, y = np.unique(target.astype(np.str_) if target.dtype == object else target, return_inverse=True)
    if len(classes) != entry.n_classes:
        raise ValueError(
            f"OpenML's {entry.name} must have {entry.n_classes} classes, got {len(classes)}: another version?"
        )
    return y.astype(np.int64)


def _one_hot(column: Numbers, levels: list[str]) -> tuple[Numbers, list[str]]:
    """Return a column for each level that occurs, a missing value being the level "?"."""
    codes = np.where(np.isnan(column), len(levels), column).astype(np.int64)
    used = np.unique(codes)
    return (codes[:, None] == used).astype(np.float32), [[*levels, "?"][code] for code in used]


def _coded(column: Numbers, levels: list[str]) -> Numbers:
    """Return the numbers that the levels are the texts of."""
    values = np.array([float(level) for level in levels] + [np.nan], dtype=np.float32)
    return values[np.where(np.isnan(column), len(levels), column).astype(np.int64)]
