"""Gradient boosting with the focal loss and true probabilities: XGBoost and LightGBM."""

from __future__ import annotations

from typing import Any

from refocal.boosting.objective import FocalObjective, focal_metric, focal_objective

__all__ = ["FocalLGBMClassifier", "FocalObjective", "FocalXGBClassifier", "focal_metric", "focal_objective"]


def __getattr__(name: str) -> Any:
    # Each engine is imported when its classifier is asked for: most people have one of the two.
    if name == "FocalXGBClassifier":
        from refocal.boosting._xgboost import FocalXGBClassifier

        return FocalXGBClassifier
    if name == "FocalLGBMClassifier":
        from refocal.boosting._lightgbm import FocalLGBMClassifier

        return FocalLGBMClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
