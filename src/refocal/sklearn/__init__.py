"""Estimators for scikit-learn whose ``predict_proba`` is the class posterior."""

from refocal.sklearn.linear import FocalLinearClassifier

__all__ = ["FocalLinearClassifier"]
