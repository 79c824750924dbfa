"""Which detections are right: boxes, their overlap, and the greedy matching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from refocal._arrays import as_array, is_float, is_torch
from refocal._checks import check_floats, check_number, check_values

Feature: TypeAlias = Literal["cx", "cy", "w", "h"]
Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]

OUTSIDE = 1e-3
"""How far a box may reach out of the image, as a share of its size: boxes are rounded to pixels."""


def match_detections(
    boxes: Any,
    scores: Any,
    truths: Any,
    *,
    iou_threshold: float = 0.5,
    labels: Any = None,
    truth_labels: Any = None,
) -> Booleans:
    r"""Return which detections of one image are right, each ground truth being found once.

    .. math:: \mathrm{IoU}(a, b) = |a \cap b| / |a \cup b|

    In falling order of scores (of equal ones the first first), a detection takes the ground truth with the
    largest IoU (of equal ones the first) among those that are still free, of its class, and at an IoU of
    ``iou_threshold`` or more. A detection that finds none is wrong; so is a second one of the same object.

    Args:
        boxes: The detections that non-maximum suppression left, shape (n, 4): x1, y1, x2, y2.
        scores: One for each of them, shape (n,), within 0..1.
        truths: The boxes of the objects, shape (m, 4).
        iou_threshold: In (0, 1].
        labels: The classes of the detections, shape (n,), integers or strings; None to match boxes of
            every class with each other.
        truth_labels: The classes of the objects, shape (m,); None as for labels.

    Returns:
        Booleans of shape (n,), in the order of the detections.

    Raises:
        ValueError: If a shape or value is wrong, or only one of labels and truth_labels is given.

    Example:
        >>> boxes = [[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 11.0, 10.0], [50.0, 50.0, 60.0, 60.0]]
        >>> match_detections(boxes, [0.6, 0.9, 0.8], [[0.0, 0.0, 10.0, 10.0]])
        array([False,  True, False])
    """
    boxes, truths = checked_boxes("boxes", boxes), checked_boxes("truths", truths)
    scores = checked_scores("scores", scores, len(boxes))
    iou = _iou(boxes, truths)
    iou[iou < checked_threshold(iou_threshold)] = 0
    if (labels is None) != (truth_labels is None):
        raise ValueError("labels and truth_labels must be given both or neither, got one of them")
    if labels is not None:
        ours, theirs = (
            _classes("labels", labels, len(boxes)),
            _classes("truth_labels", truth_labels, len(truths)),
        )
        if len(ours) and len(theirs) and (ours.dtype.kind == "U") != (theirs.dtype.kind == "U"):
            raise TypeError(
                f"labels and truth_labels must be of one kind, got dtypes {ours.dtype} and {theirs.dtype}"
            )
        iou *= ours[:, None] == theirs
    right = np.zeros(len(boxes), dtype=bool)
    in_turn = np.argsort(-scores, kind="stable")
    overlaps: Booleans = np.any(iou > 0, axis=1)
    for i in in_turn[overlaps[in_turn]]:
        j = int(iou[i].argmax())
        if iou[i, j] > 0:
            right[i] = True
            iou[:, j] = 0
    return right


def box_features(boxes: Any, image_size: Any, features: Sequence[Feature]) -> Floats:
    """Return positions and sizes of boxes as shares of the image's width and height, shape (n, F)."""
    boxes = checked_boxes("boxes", boxes)
    if image_size is None:
        raise ValueError(f"image_size must be given for {', '.join(features)}, got None")
    size = np.asarray(image_size, dtype=np.float64)
    if size.shape != (2,) or not (np.isfinite(size) & (size > 0)).all():
        raise ValueError(f"image_size must be a width and a height > 0, got {image_size!r}")
    corners = boxes / np.tile(size, 2)
    outside = np.flatnonzero(np.any(np.abs(corners - 0.5) > 0.5 + OUTSIDE, axis=1))
    if outside.size:
        i = int(outside[0])
        raise ValueError(
            f"boxes must lie in the image of width {size[0]:g} and height {size[1]:g} (clip them first), "
            f"got {boxes[i].tolist()} in row {i}"
        )
    x1, y1, x2, y2 = corners.T
    columns = {"cx": (x1 + x2) / 2, "cy": (y1 + y2) / 2, "w": x2 - x1, "h": y2 - y1}
    table: Floats = np.stack([columns[name] for name in features], axis=1)
    return table.clip(0, 1)


def checked_features(features: Any) -> tuple[Feature, ...]:
    """Return names of features, each once."""
    known = get_args(Feature)
    listed = tuple(features)
    if isinstance(features, str) or len(set(listed)) != len(listed) or not set(listed) <= set(known):
        raise ValueError(f"features must be a sequence of {known}, each at most once, got {features!r}")
    return listed


def checked_threshold(iou_threshold: object) -> float:
    """Return a number in (0, 1]."""
    threshold = check_number("iou_threshold", iou_threshold, rule="in (0, 1]")
    if not 0 < threshold <= 1:
        raise ValueError(f"iou_threshold must be in (0, 1], got {iou_threshold!r}")
    return threshold


def checked_boxes(name: str, x: Any) -> Floats:
    """Return finite boxes with x1 <= x2 and y1 <= y2, shape (n, 4)."""
    boxes = as_numpy(x)
    if boxes.size == 0 and boxes.ndim < 3:  # no box is often an empty list
        return np.zeros((0, 4))
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{name} must have the shape (n, 4), got {boxes.shape}")
    if boxes.dtype.kind not in "iuf":
        raise TypeError(f"{name} must hold real numbers, got dtype {boxes.dtype}")
    boxes = boxes.astype(np.float64, copy=False)
    check_values(name, boxes, np.isfinite(boxes), "finite")
    turned = np.flatnonzero((boxes[:, 0] > boxes[:, 2]) | (boxes[:, 1] > boxes[:, 3]))
    if turned.size:
        i = int(turned[0])
        raise ValueError(
            f"{name} must be x1, y1, x2, y2 with x1 <= x2 and y1 <= y2, got {boxes[i].tolist()} in row {i}"
        )
    return boxes


def checked_scores(name: str, x: Any, n: int | None = None) -> Floats:
    """Return numbers within 0..1, shape (n,)."""
    scores = as_numpy(check_floats(name, x))
    if scores.ndim != 1 or n not in (None, len(scores)):
        raise ValueError(f"{name} must have the shape {'(n,)' if n is None else (n,)}, got {scores.shape}")
    check_values(name, scores, (scores >= 0) & (scores <= 1), "within 0..1")
    return scores


def as_numpy(x: Any) -> npt.NDArray[Any]:
    """Return the values of an array of any library, wherever it lies."""
    x = as_array(x)
    if is_torch(x):
        x = x.detach().cpu()
        x = x.double() if x.is_floating_point() else x  # NumPy has no bfloat16
    return np.asarray(x, dtype=np.float64 if is_float(x) else None)


def _classes(name: str, x: Any, n: int) -> npt.NDArray[Any]:
    classes = as_numpy(x)
    if classes.shape != (n,):
        raise ValueError(f"{name} must have the shape {(n,)}, got {classes.shape}")
    if n and classes.dtype.kind not in "iuU":
        raise TypeError(f"{name} must hold integers or strings, got dtype {classes.dtype}")
    return classes


def _iou(a: Floats, b: Floats) -> Floats:
    """Return the IoU of every box of a with every one of b, 0 for two boxes without area."""
    low, high = np.maximum(a[:, None, :2], b[:, :2]), np.minimum(a[:, None, 2:], b[:, 2:])
    both = np.clip(high - low, 0, None).prod(axis=-1)
    of_a, of_b = (np.prod(x[:, 2:] - x[:, :2], axis=1) for x in (a, b))
    union = of_a[:, None] + of_b - both
    iou: Floats = np.divide(both, union, out=np.zeros_like(both), where=union > 0)
    return iou
