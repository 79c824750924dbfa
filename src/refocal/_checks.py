"""Every check of an argument. An error names the argument, the rule and what came."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from refocal._arrays import Array, as_array, concrete, device, is_float, is_integer, namespace, working_dtype

LARGEST_GAMMA = 1e9
"""What a larger gamma counts as: beyond it no digit of the result is left, and products overflow."""

LEVEL = 0.95
"""Of every interval, where the caller does not say."""


def check_floats(name: str, x: Any) -> Array:
    """Return an array of real floats."""
    x = as_array(x)
    if not is_float(x):
        raise TypeError(f"{name} must hold floating point numbers, got dtype {x.dtype}")
    return x


def check_axis(name: str, x: Array, axis: int) -> int:
    """Return an axis of an array, >= 0."""
    if not isinstance(axis, numbers.Integral) or isinstance(axis, bool):
        raise TypeError(f"axis must be an integer, got {axis!r}")
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis must be within the {x.ndim} axes of {name}, got {axis}")
    return int(axis) % x.ndim


def check_scores(name: str, x: Any, axis: int) -> tuple[Array, int]:
    """Return an array of real floats with at least two classes along ``axis``, and axis >= 0."""
    x = check_floats(name, x)
    axis = check_axis(name, x, axis)
    if x.shape[axis] < 2:
        raise ValueError(f"{name} must have at least 2 classes along axis {axis}, got shape {tuple(x.shape)}")
    return x, axis


def check_number(name: str, value: object, *, low: float = -math.inf, rule: str) -> float:
    """Return a finite real number >= low as a float."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if not (-math.inf < number < math.inf and number >= low):  # math.isfinite breaks torch.compile's graph
        raise ValueError(f"{name} must be {rule}, got {value!r}")
    return number


def check_fraction(name: str, value: object) -> float:
    """Return a number in [0, 1) as a float."""
    number = check_number(name, value, low=0, rule="in [0, 1)")
    if number >= 1:
        raise ValueError(f"{name} must be in [0, 1), got {value!r}")
    return number


def check_level(level: object) -> float:
    """Return the level of an interval as a float."""
    if isinstance(level, bool) or not isinstance(level, numbers.Real) or not 0 < float(level) < 1:
        raise ValueError(f"level must be within (0, 1), got {level!r}")
    return float(level)


def check_count(name: str, value: object, low: int, high: int | None = None) -> int:
    """Return an integer that is at least low and at most high."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    count = int(value)
    if count < low or (high is not None and count > high):
        rule = f"at least {low}" if high is None else f"within {low}..{high}"
        raise ValueError(f"{name} must be {rule}, got {count}")
    return count


def check_entries(
    name: str, value: object, rule: str, good: Callable[[float], bool]
) -> float | tuple[float, ...]:
    """Return a good number as a float, or one good number for each class as a tuple of floats."""
    if isinstance(value, numbers.Real):
        number = check_number(name, value, rule=rule)
        if not good(number):
            raise ValueError(f"{name} must be {rule}, got {value!r}")
        return number
    if (
        isinstance(value, (list, tuple))
        and len(value) > 1
        and all(isinstance(v, numbers.Real) for v in value)
    ):
        # Without NumPy, which `torch.compile` cannot follow here.
        checked = (check_entries(name, v, rule, good) for v in value)
        return tuple(number for number in checked if isinstance(number, float))
    values = None if isinstance(value, (str, bytes)) else concrete(as_array(value))
    if (
        values is None
        or values.ndim > 1
        or values.dtype.kind not in "iuf"
        or (values.ndim and values.size < 2)
    ):
        raise TypeError(f"{name} must be a number or one number for each class, got {value!r}")
    if values.ndim == 0:
        return check_entries(name, values.item(), rule, good)
    check_values(name, values, np.isfinite(values) & np.array([good(v) for v in values]), rule)
    return tuple(float(v) for v in values)


def check_gamma(gamma: object, like: Array, axis: int | None = None) -> Array | float:
    """Return gamma as a float, or as an array of ``like``'s library.

    An array has to broadcast over the rows of ``like``, which has its classes along ``axis`` (None
    for no class axis), and is returned with length 1 along that axis.
    """
    if isinstance(gamma, numbers.Real) or isinstance(gamma, (str, bytes)) or gamma is None:
        return min(check_number("gamma", gamma, low=0, rule="finite and >= 0"), LARGEST_GAMMA)
    given = as_array(gamma)
    if not (is_float(given) or is_integer(given)):
        raise TypeError(f"gamma must hold real numbers, got dtype {given.dtype}")
    values = concrete(given)
    if values is not None:
        check_values("gamma", values, np.isfinite(values) & (values >= 0), "finite and >= 0")
        if values.ndim == 0 and not getattr(given, "requires_grad", False):
            return min(float(values), LARGEST_GAMMA)
    xp = namespace(like)
    rows = tuple(s for i, s in enumerate(like.shape) if i != axis)
    if type(given) is not type(like) and values is not None:
        given = xp.asarray(values, device=device(like))
    given = xp.astype(xp.clip(given, None, LARGEST_GAMMA), working_dtype(like), copy=False)
    try:
        given = xp.broadcast_to(given, rows)
    except (ValueError, RuntimeError, TypeError):
        raise ValueError(
            f"gamma must be a number or broadcast to the rows {rows}, got shape {tuple(given.shape)}"
        ) from None
    return given if axis is None else xp.expand_dims(given, axis=axis)


def check_positive_gamma(gamma: object) -> Array | float:
    """Return gamma as a float or a floating point array of its own library, > 0."""
    if isinstance(gamma, numbers.Real):
        number = check_number("gamma", gamma, low=0, rule="finite and > 0")
        if number == 0:
            raise ValueError(f"gamma must be finite and > 0, got {gamma!r}")
        return number
    given = as_array(gamma)
    if not is_float(given):
        raise TypeError(f"gamma must hold floating point numbers, got dtype {given.dtype}")
    values = concrete(given)
    if values is not None:
        check_values("gamma", values, np.isfinite(values) & (values > 0), "finite and > 0")
    return given


def check_values(name: str, values: np.ndarray[Any, Any], good: np.ndarray[Any, Any], rule: str) -> None:
    """Raise with the first value that is not good."""
    if not good.all():
        raise ValueError(f"{name} must be {rule}, got {values[~good].flat[0].item()!r}")


def check_same_shape(name: str, x: Any, other_name: str, other: Array) -> Array:
    """Return an array of real floats with the shape of another."""
    x = check_floats(name, x)
    if tuple(x.shape) != tuple(other.shape):
        raise ValueError(
            f"{name} must have the shape {tuple(other.shape)} of {other_name}, got {tuple(x.shape)}"
        )
    return x


def check_labels(labels: Array, logits: Array, axis: int) -> None:
    """Raise where integer labels do not fit the rows of logits or, on NumPy, its classes."""
    rows = tuple(s for i, s in enumerate(logits.shape) if i != axis)
    if tuple(labels.shape) != rows:
        raise ValueError(
            f"labels must have the shape {rows} of the rows of logits, got {tuple(labels.shape)}"
        )
    if isinstance(labels, np.ndarray):
        k = logits.shape[axis]
        check_values("labels", labels, (labels >= 0) & (labels < k), f"within 0..{k - 1}")
