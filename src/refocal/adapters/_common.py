"""What several adapters share: how libraries say alpha and weights, and why some losses have no posterior."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from refocal._arrays import as_array, concrete
from refocal._checks import check_entries, check_number
from refocal.objectives import Focal, SigmoidFocal

Numbers = float | Iterable[float]

QUALITY = (
    "its targets are qualities of boxes between 0 and 1 that do not enter the loss linearly, so that the "
    "best score depends on more than their mean and belongs to no probability"
)
HEAT_MAP = (
    "its targets are heights of a heat map that weigh the negatives, so that the best score depends on more "
    "than the probability of a centre"
)
BOX_EDGES = "it is a loss of box edges, not of classes"
REDUCED = (
    "the reduced loss has a break at its threshold, and the scores around it are the minimiser of no "
    "probability"
)


def refuse(name: str, rule: str, value: object, reason: str) -> NoReturn:
    """Raise the ValueError of an argument whose loss has no posterior here."""
    raise ValueError(f"{name} must be {rule}, got {value!r}: {reason}")


def fraction(name: str, value: object) -> float:
    """Return a number in (0, 1): the weight of the positives, against 1 minus it."""
    if getattr(value, "ndim", None) == 0:
        value = float(value)  # type: ignore[arg-type]
    number = check_number(name, value, rule="in (0, 1)")
    if not 0 < number < 1:
        raise ValueError(f"{name} must be in (0, 1), got {value!r}")
    return number


def signed_alpha(name: str, value: object) -> float | None:
    """Return an alpha in (0, 1), or None for a negative one, by which these libraries mean no weights."""
    number = check_number(name, value, rule="in (0, 1), or negative for no weights")
    if number == 0 or number >= 1:
        raise ValueError(f"{name} must be in (0, 1), or negative for no weights, got {value!r}")
    return None if number < 0 else number


def positive(name: str, value: Any) -> float | tuple[float, ...]:
    """Return a number > 0, or one for each class; an array of a single number is that number."""
    values = concrete(as_array(value)) if not isinstance(value, (str, bytes)) else None
    if values is not None and values.size == 1 and values.dtype.kind in "iuf":
        value = values.item()
    return check_entries(name, value, "finite and > 0", lambda v: v > 0)


def weighted_sigmoid(gamma: Any, alpha: float | None, name: str, pos_weight: Any) -> SigmoidFocal:
    """Return the objective with weights alpha w against 1 - alpha, which is another alpha.

    Without alpha they are w against 1.
    """
    w = None if pos_weight is None else positive(name, pos_weight)
    if w is None or w == 1:
        return SigmoidFocal(gamma=gamma, alpha=alpha)
    a = 0.5 if alpha is None else alpha
    mixed = [a * v / (a * v + 1 - a) for v in ((w,) if isinstance(w, float) else w)]
    return SigmoidFocal(gamma=gamma, alpha=mixed[0] if isinstance(w, float) else mixed)


def class_weights(name: str, weight: Any, n_classes: int | None) -> tuple[float, ...] | None:
    """Return weights of the classes, or None where they are all the same."""
    if weight is None:
        return None
    weights = positive(name, weight)
    if isinstance(weights, float):
        return None
    if n_classes is not None and len(weights) != n_classes:
        raise ValueError(
            f"{name} must have one number for each of the {n_classes} classes, got {len(weights)}"
        )
    return weights


def background_focal(gamma: float, alpha: object, weight: Any, n_classes: int | None) -> Focal:
    """Return the softmax loss with 1 - alpha for class 0 and alpha for all others, times class weights."""
    if n_classes is not None and (
        isinstance(n_classes, bool) or not isinstance(n_classes, int) or n_classes < 2
    ):
        raise ValueError(f"n_classes must be an integer >= 2, got {n_classes!r}")
    weights = class_weights("weight", weight, n_classes)
    if alpha is None:
        return Focal(gamma=gamma, weight=weights)
    a = fraction("alpha", alpha)
    if weights is None:
        if n_classes is None:
            raise ValueError("n_classes must be given where a softmax has an alpha, got None")
        weights = (1.0,) * n_classes
    return Focal(gamma=gamma, weight=tuple(w * (a if i else 1 - a) for i, w in enumerate(weights)))
