"""Every check of an argument. An error names the argument, the rule and what came."""

from __future__ import annotations

import math
import numbers
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from refocal._arrays import (
    Array,
    as_array,
    at_hand,
    concrete,
    device,
    is_float,
    is_integer,
    is_numpy,
    is_torch,
    namespace,
    quiet,
    working_dtype,
)

LARGEST_GAMMA = 1e9
"""What a larger gamma counts as: beyond it no digit of the result is left, and products overflow."""

LEVEL = 0.95
"""Of every interval, where the caller does not say."""

TOLERANCE, HALF_TOLERANCE = 1e-3, 1e-2
"""How far from 1 the sum of a row of probabilities may be; the second in half precision."""

SAMPLE, FEWEST = 2000, 100
"""Rows or entries that a look for probabilities in the place of logits takes, and the fewest for log-odds."""

_known = ContextVar("known", default=False)


class SuspiciousInputWarning(UserWarning):
    """Input that is possible, but looks like something else than what was asked for.

    Example:
        >>> import warnings, refocal
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     _ = refocal.log_psi(np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]), gamma=2.0)
        >>> caught[0].category.__name__
        'SuspiciousInputWarning'
    """


def check_floats(name: str, x: Any) -> Array:
    """Return an array of real floats."""
    x = as_array(x, name)
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
    if isinstance(gamma, (numbers.Real, str, bytes)) or gamma is None:
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


def check_flag(check: object) -> None:
    """Raise where ``check`` is neither True nor False."""
    if not isinstance(check, bool):
        raise TypeError(f"check must be True or False, got {check!r}")


def check_probs(name: str, x: Array, axis: int | None, check: bool = True) -> None:
    """Raise where values are no probabilities: in [0, 1] and, in each row along ``axis``, with sum 1.

    Without an axis each entry is a probability of its own. Values are looked at where they are at hand:
    NumPy arrays, and outside tracing CPU tensors and JAX arrays on the CPU. Rows with a NaN pass.
    """
    check_flag(check)
    values = at_hand(x) if check else None
    if values is None or 0 in values.shape:
        return
    is_half = working_dtype(values) != values.dtype
    tolerance = HALF_TOLERANCE if is_half and axis is not None else TOLERANCE
    with quiet(values):
        if axis is None:
            good = values.min() >= 0 and values.max() <= 1
        else:  # then no entry is much above 1 either
            sums = _sums(values, axis, is_half)
            good = sums.min() >= 1 - tolerance and sums.max() <= 1 + tolerance and values.min() >= 0
    if not good:  # or a NaN: look more closely
        _check_closely(name, values, axis, tolerance)


def _sums(values: Array, axis: int, is_half: bool) -> Array:
    if is_torch(values):
        return values.sum(dim=axis, dtype=sys.modules["torch"].float32 if is_half else None)
    if axis == values.ndim - 1 and not is_half and values.flags.c_contiguous:
        return values @ np.ones(values.shape[axis], values.dtype)  # NumPy sums short rows slowly
    return values.sum(axis=axis, dtype=np.float32 if is_half else None)


def _check_closely(name: str, values: Array, axis: int | None, tolerance: float) -> None:
    """Raise with the first row that has no probabilities, and with what they look like."""
    given = np.asarray(values.double() if is_torch(values) else values, dtype=np.float64)
    v = given[..., None] if axis is None else np.moveaxis(given, axis, -1)
    known = np.asarray(~np.isnan(v).any(axis=-1))
    outside = known[..., None] & ((v < 0) | (v > (1 if axis is None else 1 + tolerance)))
    with np.errstate(invalid="ignore"):
        off = np.zeros_like(known) if axis is None else known & ~(np.abs(v.sum(axis=-1) - 1) <= tolerance)
    wrong = outside.any(axis=-1) | off
    if not wrong.any():
        return
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    entries = outside[first]
    got = f"{v[first][entries][0]:.6g}" if entries.any() else f"sum {v[first].sum():.6g}"
    place = "" if not first else f" in row {first[0]}" if len(first) == 1 else f" at {first}"
    if axis is None:
        raise ValueError(f"{name} must be in [0, 1], got {got}{place}{_resemblance(v[known], False)}")
    other = _other_axis(given, axis, tolerance)
    turned = f"; these sum to 1 along axis {other}: use axis={other}"
    like = _resemblance(v[known], True) if other is None else turned
    raise ValueError(
        f"{name} must be probabilities, in [0, 1] and with sum 1 in each row (within {tolerance:g}), "
        f"got {got}{place}{like}"
    )


def _resemblance(v: np.ndarray[Any, Any], in_rows: bool) -> str:
    """Say what numbers that are no probabilities look like."""
    low, high, sums = v.min(), v.max(), v.sum(axis=-1)
    if -TOLERANCE <= low and high <= 1 + TOLERANCE and (not in_rows or np.abs(sums - 1).max() <= TOLERANCE):
        return "; these look like probabilities with rounding errors: clip them to [0, 1]"
    if low >= 0 and high > 1 and high <= 101 and (np.abs(sums - 100).max() <= 1 if in_rows else high > 20):
        return "; these look like percentages: divide by 100"
    if low < 0 or high > 1 + TOLERANCE:
        use = "posterior(logits) or log_psi(logits)" if in_rows else "posterior(logits)"
        return f"; these look like logits: use {use}"
    if np.abs(sums - 1).max() <= 0.05:
        return "; these look like rounded probabilities: divide each row by its sum"
    return "; these look like independent sigmoid scores: use SigmoidFocal"


def _other_axis(v: np.ndarray[Any, Any], axis: int, tolerance: float) -> int | None:
    if not (v.min() >= 0 and v.max() <= 1):
        return None
    others = (i for i in range(v.ndim) if i != axis and v.shape[i] > 1)
    return next((i for i in others if np.abs(v.sum(axis=i) - 1).max() <= tolerance), None)


def warn_if_probs(name: str, logits: Array, axis: int = -1) -> None:
    """Warn where logits look like probabilities: every row in [0, 1] and with sum 1, not all of them one-hot.

    Looks at some rows, where values are at hand. A single row of two classes says too little.
    """
    values = at_hand(logits)
    if values is None or values.ndim == 0 or 0 in values.shape:
        return
    k = values.shape[axis]
    n = math.prod(values.shape) // k
    if k < 2 or (n == 1 and k == 2):
        return
    one = values[tuple(slice(None) if i == axis % values.ndim else 0 for i in range(values.ndim))]
    with quiet(values):
        if one.min() < 0 or abs(float(one.sum()) - 1) > HALF_TOLERANCE:  # mostly it ends here, if not NaN
            return
        rows = np.moveaxis(values, axis, -1) if is_numpy(values) else values.movedim(axis, -1)
        rows = rows.reshape((n, k))[:SAMPLE]
        rows = np.asarray(rows if is_numpy(rows) else rows.double(), dtype=np.float64)
        rows = rows[~np.isnan(rows).any(axis=-1)]
        if rows.size <= 2 or not (rows.min() >= 0 and np.abs(rows.sum(axis=-1) - 1).max() <= TOLERANCE):
            return
    if ((rows == 0) | (rows == 1)).all():
        return
    warnings.warn(
        f"{name} look like probabilities, as every row is in [0, 1] with sum 1: give the scores before the "
        "softmax, or use psi or posterior_from_probs",
        SuspiciousInputWarning,
        stacklevel=_levels_to_the_caller(),
    )


def warn_if_sigmoids(name: str, log_odds: Array) -> None:
    """Warn where log-odds look like sigmoid scores: many, all in [0, 1], neither all equal nor all 0 or 1.

    Looks at entries spread over all of them, where values are at hand, and at the others before it warns.
    """
    values = at_hand(log_odds)
    if values is None or math.prod(values.shape) < FEWEST or _known.get():
        return
    with quiet(values):
        some = values
        while (n := math.prod(some.shape)) > 2 * SAMPLE:
            axis = max(range(some.ndim), key=lambda i: some.shape[i])
            some = some[(slice(None),) * axis + (slice(None, None, min(n // SAMPLE, some.shape[axis])),)]
        if ((some < 0) | (some > 1)).any():  # mostly it ends here
            return
        seen = np.asarray(some if is_numpy(some) else some.double(), dtype=np.float64)
        seen = seen[~np.isnan(seen)]
        if seen.size < FEWEST or seen.min() == seen.max() or ((seen == 0) | (seen == 1)).all():
            return
        if ((values < 0) | (values > 1)).any():
            return
    warnings.warn(
        f"{name} look like probabilities, as every entry is in [0, 1]: give the scores before the sigmoid, "
        "or say that they are probabilities (posterior_from_probs, from_logits=False)",
        SuspiciousInputWarning,
        stacklevel=_levels_to_the_caller(),
    )


@contextmanager
def known_log_odds() -> Iterator[None]:
    """Keep `warn_if_sigmoids` quiet: the log-odds are computed, or were looked at before."""
    token = _known.set(True)
    try:
        yield
    finally:
        _known.reset(token)


def _levels_to_the_caller() -> int:
    """Return at which level of the stack the code is that called refocal."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "refocal":
        level, frame = level + 1, frame.f_back
    return level


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


def check_targets(name: str, targets: Array) -> None:
    """Raise where soft targets are not within 0..1, and more than by rounding, if values are at hand."""
    values = at_hand(targets)
    if values is None or 0 in values.shape:
        return
    with quiet(values):
        if values.min() >= -HALF_TOLERANCE and values.max() <= 1 + HALF_TOLERANCE:
            return
    if is_torch(values):
        values = values.double() if values.is_floating_point() else values
    given = np.asarray(values)
    check_values(name, given, (given >= -HALF_TOLERANCE) & (given <= 1 + HALF_TOLERANCE), "within 0..1")
