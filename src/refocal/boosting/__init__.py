"""Gradient boosting with the focal loss and true probabilities: XGBoost and LightGBM."""

from __future__ import annotations

from typing import Any

from refocal.boosting.objective import FocalObjective, base_rate_shift, focal_metric, focal_objective

__all__ = [
    "FocalLGBMClassifier",
    "FocalObjective",
    "FocalXGBClassifier",
    "add_start",
    "base_rate_shift",
    "focal_metric",
    "focal_objective",
]


def __getattr__(name: str) -> Any:
    # Each engine is imported when its classifier is asked for: most people have one of the two.
    if name == "FocalXGBClassifier":
        from refocal.boosting._xgboost import FocalXGBClassifier

        return FocalXGBClassifier
    if name in ("FocalLGBMClassifier", "add_start"):
        from refocal.boosting import _lightgbm

        return getattr(_lightgbm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
