"""The losses of boosted trees, which see a loss through its derivatives."""

from __future__ import annotations

from typing import Any

from refocal.adapters._common import fraction, refuse, weighted_sigmoid
from refocal.objectives import SigmoidFocal


def from_catboost(
    loss_function: str = "Focal",
    *,
    focal_alpha: float | None = None,
    focal_gamma: float | None = None,
) -> SigmoidFocal:
    """Return the objective of CatBoost's loss ``Focal:focal_alpha=...;focal_gamma=...``.

    It is torchvision's formula. Give it the raw values (``prediction_type="RawFormulaVal"``). CatBoost has no
    weights of the classes for this loss.

    Args:
        loss_function: CatBoost's own string, with the two numbers or without.
        focal_alpha: In (0, 1).
        focal_gamma: A number > 0.

    Example:
        >>> from_catboost("Focal:focal_alpha=0.25;focal_gamma=2.0")
        SigmoidFocal(gamma=2.0, alpha=0.25, label_smoothing=0.0)
        >>> from_catboost(focal_alpha=0.5, focal_gamma=1.0)
        SigmoidFocal(gamma=1.0, alpha=0.5, label_smoothing=0.0)
    """
    kind, _, listed = loss_function.partition(":")
    if kind != "Focal":
        refuse("loss_function", "CatBoost's 'Focal'", loss_function, "it is not a focal loss")
    given: dict[str, Any] = {"focal_alpha": focal_alpha, "focal_gamma": focal_gamma}
    for entry in filter(None, listed.split(";")):
        name, _, text = entry.partition("=")
        if given.get(name, 0) is not None:  # unknown, or said twice
            raise ValueError(
                "loss_function must be 'Focal:focal_alpha=...;focal_gamma=...', each number given once, "
                f"got {loss_function!r} with focal_alpha={focal_alpha!r}, focal_gamma={focal_gamma!r}"
            )
        try:
            given[name] = float(text)
        except ValueError:
            raise ValueError(f"{name} must be a number, got {text!r}") from None
    for name, value in given.items():
        if value is None:
            raise ValueError(f"{name} must be given, as CatBoost has no default for it")
    return SigmoidFocal(gamma=given["focal_gamma"], alpha=fraction("focal_alpha", given["focal_alpha"]))


def from_bokbokbok(alpha: float = 1.0, gamma: float = 2.0) -> SigmoidFocal:
    """Return the objective of bokbokbok's ``WeightedFocalLoss`` for XGBoost and LightGBM.

    It is alpha (1 - p)^gamma (-log p) for y = 1 and p^gamma (-log(1 - p)) for y = 0. Give it margins, with
    the start of the boosting added where the engine leaves it out.

    Args:
        alpha: A number > 0, the weight of the positives against 1.
        gamma: A number >= 0.

    Example:
        >>> from_bokbokbok(alpha=3.0, gamma=2.0)
        SigmoidFocal(gamma=2.0, alpha=0.75, label_smoothing=0.0)
    """
    return weighted_sigmoid(gamma, None, "alpha", alpha)
