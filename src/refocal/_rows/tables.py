"""Scores and labels from whatever holds them, as NumPy arrays: tensors, data frames, columns, lists.

Nothing is imported for it: a frame or a column of pandas, polars or pyarrow says itself which of its values
are missing, and turns itself into an array. Columns and rows of a frame count by their position: names and
indices are read only to refuse two orders that contradict each other, never to sort.
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
        unknown = half and str(x.dtype) != "torch.float16"  # bfloat16 and smaller, to NumPy
        x = x.detach().cpu()
        return np.asarray(x.float() if unknown else x), half
    values = _array(name, x)
    if values.dtype.kind == "O" and hasattr(x, "isna"):  # pandas' own dtypes
        try:
            values = np.asarray(x.to_numpy(dtype=np.float64, na_value=np.nan))
        except (TypeError, ValueError):
            pass  # no numbers, which the next check says
    if not is_float(values):
        raise TypeError(f"{name} must hold floating point numbers, got dtype {values.dtype}")
    return np.asarray(values), values.dtype.itemsize < 4


def label_array(labels: Any, *, any_type: bool = False) -> npt.NDArray[Any]:
    """Return labels; if they may have any type, those of a list as they are.

    Raises:
        ValueError: If one is missing.
    """
    if is_torch(labels):
        return np.asarray(labels.detach().cpu())
    _check_present(_missing(labels))
    if any_type and isinstance(labels, (list, tuple)):  # or NumPy would make strings of 1 and "a"
        y = np.array(labels, dtype=object)
    else:
        y = _array("labels", labels)
    if y.dtype.kind != "O":
        return y
    _check_present(np.vectorize(_is_missing, otypes=[bool])(y))
    if not any_type and all(isinstance(v, (int, np.integer, np.bool_)) for v in y.flat):
        return np.array(y.tolist())  # nullable integers and booleans of frames
    return y


def numbers_of(labels: npt.NDArray[Any], classes: Iterable[Hashable], n_classes: int) -> npt.NDArray[Any]:
    """Return the position of every label in ``classes``."""
    if isinstance(classes, (str, bytes)):
        raise TypeError(f"classes must be a sequence of labels, got {classes!r}")
    names: list[Hashable] = classes.tolist() if hasattr(classes, "tolist") else list(classes)
    try:
        number = {name: i for i, name in enumerate(names)}
    except TypeError:
        raise TypeError(f"classes must be hashable, got {names!r}") from None
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


def same_order(scores: Any, labels: Any, classes: Iterable[Hashable] | None) -> Iterable[Hashable] | None:
    """Return classes (an iterator as a list), after a check that names of scores and labels do not disagree.

    Raises:
        ValueError: If columns, classes or the index of the rows are the same in another order.
    """
    columns, others = _columns(scores), _columns(labels)
    if columns and others and _reordered(columns, others):
        raise ValueError(
            f"labels must have the columns of the scores in the same order, {columns}, got {others}"
        )
    if hasattr(scores, "iloc") and hasattr(labels, "iloc") and not scores.index.equals(labels.index):
        if len(scores) == len(labels) and set(scores.index) == set(labels.index):
            raise ValueError(
                "labels must have the index of the scores in the same order (to_numpy() drops it, where rows "
                "are meant by position)"
            )
    if classes is None or isinstance(classes, (str, bytes)):
        return classes
    classes = classes.tolist() if hasattr(classes, "tolist") else list(classes)
    if columns and not _is_numbered(scores) and _reordered(columns, classes):
        raise ValueError(
            f"classes must be in the order of the columns of the scores, {columns}, got {classes}"
        )
    return classes


def _columns(x: Any) -> list[Hashable]:
    """Return the names of the columns of a frame: pandas and polars, or pyarrow; none for other things."""
    if hasattr(x, "iloc"):
        return list(x.columns) if x.ndim == 2 else []
    names = getattr(x, "column_names", None) or getattr(x, "columns", None)
    return list(names) if isinstance(names, list) else []


def _is_numbered(frame: Any) -> bool:
    """Whether columns of pandas have the numbers that they get when nobody names them."""
    return type(frame.columns).__name__ == "RangeIndex"


def _reordered(names: list[Hashable], others: list[Hashable]) -> bool:
    one, other = [str(name) for name in names], [str(name) for name in others]
    return one != other and sorted(one) == sorted(other)


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


def _is_missing(label: object) -> bool:
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas' NA is neither equal nor unequal
        return True


def _check_present(missing: npt.NDArray[Any]) -> None:
    if missing.any():
        row = int(np.argwhere(missing)[0][0])
        raise ValueError(f"labels must all be there, got a missing one in row {row}")
