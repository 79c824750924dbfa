"""Estimators for scikit-learn whose ``predict_proba`` is the class posterior."""

from refocal.extras import needs as _needs

with _needs("refocal.sklearn", "sklearn"):
    import sklearn as _sklearn  # noqa: F401

from refocal.sklearn.calibrated import CalibratedPosterior
from refocal.sklearn.linear import FocalLinearClassifier
from refocal.sklearn.mlp import FocalMLPClassifier
from refocal.sklearn.posterior import PosteriorClassifier

__all__ = ["CalibratedPosterior", "FocalLinearClassifier", "FocalMLPClassifier", "PosteriorClassifier"]
