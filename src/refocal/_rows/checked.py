"""What a caller gives, as `Rows`: shapes and labels are checked here, scores when they are read."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, TypedDict, get_args

import numpy as np
import numpy.typing as npt

from refocal._checks import check_axis, warn_if_probs, warn_if_sigmoids
from refocal._rows.scores import Booleans, Kind, Rows, Scores, Target, Task
from refocal._rows.tables import label_array, numbers_of, same_order, score_array

SUM_TOLERANCE, HALF_SUM_TOLERANCE = 1e-3, 1e-2
"""How far the sum of a row of probabilities may be from 1; bfloat16 alone is off by up to 0.004."""


class RowOptions(TypedDict, total=False):
    """What says how scores and labels are to be read; `refocal.ece` describes each."""

    task: Task | None
    axis: int
    ignore_index: Hashable
    classes: Iterable[Hashable] | None


def checked_scores(
    scores: Any, *, from_logits: bool = False, name: str = "probs", task: Task | None = None, axis: int = -1
) -> Scores:
    """Return `Scores`, after a check of dtype and shape; classes or independent labels are along ``axis``."""
    check_task(task)
    name = "logits" if from_logits else name
    values, half = score_array(name, scores)
    if values.ndim == 0:
        raise ValueError(f"{name} must have shape (n, K), or (n,) for class 1 of two, got {values.shape}")
    if values.ndim == 1 and task in ("multiclass", "multilabel"):
        columns = "(n, K)" if task == "multiclass" else "(n, L)"
        raise ValueError(f"{name} must have shape {columns} for task {task!r}, got {values.shape}")
    given, has_columns = values.shape, values.ndim > 1 and task != "binary"
    if has_columns:
        axis = check_axis(name, values, axis)
        values = np.moveaxis(values, axis, -1)
    elif axis != -1:
        raise ValueError(
            f"axis must be -1 for scores of class 1, which have no axis of classes, got {axis!r}"
        )
    if 0 in (values.shape[:-1] if has_columns else values.shape):
        raise ValueError(f"{name} must have at least 1 row, got shape {given}")
    if has_columns and values.shape[-1] < (1 if task == "multilabel" else 2):
        least = "1 label" if task == "multilabel" else f"2 classes along axis {axis}, or shape (n,)"
        raise ValueError(f"{name} must have at least {least}, got shape {given}")
    if from_logits and has_columns and task != "multilabel":
        warn_if_probs(name, values)
    elif from_logits:
        warn_if_sigmoids(name, values)
    kind: Kind = "logits" if from_logits else "probs"
    return Scores(name, values, kind, HALF_SUM_TOLERANCE if half else SUM_TOLERANCE, task=task)


def checked_rows(
    probs: Any,
    labels: Any,
    *,
    from_logits: bool = False,
    task: Task | None = None,
    axis: int = -1,
    ignore_index: Hashable = None,
    classes: Iterable[Hashable] | None = None,
) -> Rows:
    """Return `Rows` of probabilities or logits, with a label for each entry; booleans are 0 and 1."""
    classes = same_order(probs, labels, classes)
    scores = checked_scores(probs, from_logits=from_logits, task=task, axis=axis)
    return _with_labels(scores, labels, axis, ignore_index, classes)


def logit_rows(
    logits: Any,
    labels: Any,
    axis: int = -1,
    *,
    task: Task | None = None,
    ignore_index: Hashable = None,
    classes: Iterable[Hashable] | None = None,
) -> Rows:
    """Return `Rows` of logits; every value is checked.

    Log odds, of shape (n,) or of independent labels, are taken where ``task`` says so.
    """
    classes = same_order(logits, labels, classes)
    scores = checked_scores(logits, from_logits=True, task=task, axis=axis)
    if scores.is_binary and task is None:
        raise ValueError(f"logits must have rows and classes, got shape {scores.values.shape}")
    rows = _with_labels(scores, labels, axis, ignore_index, classes)
    _ = rows.gap  # which looks at every value
    return rows


def _with_labels(
    scores: Scores, labels: Any, axis: int, ignore: Hashable, classes: Iterable[Hashable] | None
) -> Rows:
    """Return `Rows` of the labels that count, in the order of the entries."""
    if classes is not None and scores.task == "multilabel":
        raise ValueError("classes must be None for task 'multilabel', whose labels are 0 and 1")
    y = label_array(labels, any_type=classes is not None)
    if classes is None and y.dtype.kind not in "iub":
        hint = (
            "0 and 1 need an integer or boolean dtype"
            if scores.task == "multilabel"
            else "others need classes="
        )
        raise TypeError(f"labels must hold integers, got dtype {y.dtype} ({hint})")
    given = y.shape
    shape = scores.values.shape if scores.task == "multilabel" else scores.shape
    if scores.task == "multilabel" and y.ndim == len(shape):
        y = np.moveaxis(y, axis, -1)
    if y.shape != shape:
        one_for_each = not scores.is_binary and given == _shape(scores.values, axis)
        hint = " (independent labels need task='multilabel')" if one_for_each else ""
        whose = "" if scores.task == "multilabel" else "the rows of "
        expected = _shape(scores.values, axis) if scores.task == "multilabel" else shape
        raise ValueError(f"labels must have the shape {expected} of {whose}{scores.name}, got {given}{hint}")
    kept = None if ignore is None else _kept(y, scores, ignore)
    y = y.reshape(-1)
    if kept is not None:
        y = y[np.repeat(kept, scores.n_labels)]
    if classes is not None:
        y = numbers_of(y, classes, scores.n_classes)
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= scores.n_classes:
        wrong = low if low < 0 else high
        raise ValueError(f"labels must be within 0..{scores.n_classes - 1}, got {wrong}")
    y = y.astype(np.int64, copy=False)
    return Rows(scores.name, scores.values, scores.kind, scores.tolerance, y, task=scores.task, kept=kept)


def _kept(y: npt.NDArray[Any], scores: Scores, ignore: Hashable) -> Booleans | None:
    """Return which rows have another label than the one to ignore; None for all of them."""
    wanted = np.asarray(y != ignore if y.dtype.kind in "iub" else y.astype(object) != ignore)
    by_row = wanted.reshape(-1, scores.n_labels)
    kept: Booleans = np.asarray(by_row.any(axis=1))
    if scores.n_labels > 1 and (partly := kept & ~by_row.all(axis=1)).any():
        raise ValueError(
            f"labels of a row must be all ignore_index or none, got some in "
            f"{scores.row_name(int(np.argmax(partly)))}"
        )
    if not kept.any():
        raise ValueError(f"labels must have at least 1 that is not ignore_index, got only {ignore!r}")
    return None if kept.all() else kept


def _shape(values: npt.NDArray[Any], axis: int) -> tuple[int, ...]:
    """Return the shape as the caller knows it, with the classes along their axis."""
    shape = list(values.shape[:-1])
    shape.insert(axis % values.ndim, values.shape[-1])
    return tuple(shape)


def check_task(task: object) -> None:
    """Raise where it is not one of the three, nor None."""
    if task not in (None, *get_args(Task)):
        raise ValueError(f"task must be one of {get_args(Task)}, got {task!r}")


def check_target(target: object) -> None:
    """Raise where it is not one of the two, nor None."""
    if target not in (None, *get_args(Target)):
        raise ValueError(f"target must be one of {get_args(Target)}, got {target!r}")


def checked_target(target: Target | None, scores: Scores) -> Target:
    """Return whose calibration is measured, after a check that it is said where it must be."""
    check_target(target)
    if scores.is_binary:
        if target is None and scores.task is None:
            raise ValueError(
                f"target must be said for {scores.name} of shape (n,): 'top' for the likelier of the two "
                "classes, 'positive' for class 1; or say task='binary', which means 'positive'"
            )
        return target or "positive"
    if target == "positive":
        raise ValueError(
            f"target 'positive' needs {scores.name} of shape (n,), the scores of class 1, "
            f"got shape {scores.values.shape}"
        )
    return "top"
