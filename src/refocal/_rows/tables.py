"""Scores and labels from whatever holds them, as NumPy arrays: tensors, data frames, columns, lists.

Nothing is imported for it: a frame or a column of pandas, polars or pyarrow says itself which of its values
are missing, and turns itself into an array. Columns of a frame count by their position; nobody reads their
names.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from refocal._arrays import as_array, is_float, is_torch


def score_array(name: str, x: Any) -> tuple[npt.NDArray[Any], bool]:
    """Return real floats, in their own strides where they can be, and whether they came in half precision.

    A missing score is NaN: it may belong to a row that does not count.
    """
    if is_torch(x):
        if not x.is_floating_point():
            raise TypeError(f"{name} must hold floating point numbers, got dtype {x.dtype}")
        half = x.element_size() < 4
        x = x.detach().cpu()
        return np.asarray(x.float() if half else x), half  # NumPy does not know bfloat16
    if _is_table(x):
        values = np.asarray(x.to_numpy())
        if values.dtype.kind == "O" and hasattr(x, "isna"):  # pandas' own dtypes
            try:
                values = np.asarray(x.to_numpy(dtype=np.float64, na_value=np.nan))
            except (TypeError, ValueError):
                pass  # no numbers, which the next check says
    else:
        values = _array(name, x)
    if not is_float(values):
        raise TypeError(f"{name} must hold floating point numbers, got dtype {values.dtype}")
    return np.asarray(values), values.dtype.itemsize < 4


def label_array(labels: Any) -> npt.NDArray[Any]:
    """Return labels of any type.

    Raises:
        ValueError: If one is missing.
    """
    if is_torch(labels):
        return np.asarray(labels.detach().cpu())
    _check_present(_missing(labels))
    y = np.asarray(labels.to_numpy() if _is_table(labels) else _array("labels", labels))
    if y.dtype.kind == "O":
        _check_present(np.vectorize(lambda v: v is None or v != v, otypes=[bool])(y))
        numbers = np.array(y.tolist()) if all(isinstance(v, (int, np.integer)) for v in y.flat) else y
        return numbers if numbers.dtype.kind in "iub" else y
    return y


def numbers_of(labels: npt.NDArray[Any], classes: Iterable[Hashable], n_classes: int) -> npt.NDArray[Any]:
    """Return the position of every label in ``classes``."""
    if isinstance(classes, (str, bytes)):
        raise TypeError(f"classes must be a sequence of labels, got {classes!r}")
    names: list[Hashable] = classes.tolist() if hasattr(classes, "tolist") else list(classes)
    number = {name: i for i, name in enumerate(names)}
    if len(number) < len(names):
        raise ValueError(f"classes must be all different, got {names!r}")
    if len(names) != n_classes:
        raise ValueError(f"classes must name the {n_classes} classes of the scores in order, got {names!r}")
    found = [number.get(label, -1) for label in labels.reshape(-1).tolist()]
    y = np.array(found, dtype=np.int64).reshape(labels.shape)
    if (y < 0).any():
        wrong = labels.reshape(-1).tolist()[found.index(-1)]
        raise ValueError(f"labels must be among classes, got {wrong!r}")
    return y


def _is_table(x: Any) -> bool:
    """Whether it is a frame or a column of pandas or polars."""
    return hasattr(x, "to_numpy") and (hasattr(x, "isna") or hasattr(x, "null_count"))


def _array(name: str, x: Any) -> npt.NDArray[Any]:
    try:
        y = as_array(x)
    except ValueError:  # NumPy's word for it is "inhomogeneous"
        raise ValueError(f"{name} must have rows of the same length") from None
    return np.asarray(y)


def _missing(x: Any) -> npt.NDArray[Any]:
    """Return where a frame or a column says that a value is missing."""
    if hasattr(x, "isna"):  # pandas
        return np.asarray(x.isna())
    if hasattr(x, "get_columns"):  # a frame of polars
        return np.stack([np.asarray(column.is_null()) for column in x.get_columns()], axis=1)
    return np.asarray(x.is_null() if hasattr(x, "is_null") else False)


def _check_present(missing: npt.NDArray[Any]) -> None:
    if missing.any():
        row = int(np.argwhere(missing)[0][0])
        raise ValueError(f"labels must all be there, got a missing one in row {row}")
