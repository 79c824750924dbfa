"""Estimators for scikit-learn whose ``predict_proba`` is the class posterior."""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:  # pragma: no cover - needs an environment without it
    raise ImportError("refocal.sklearn needs scikit-learn: pip install 'refocal[sklearn]'") from error

from refocal.sklearn.calibrated import CalibratedPosterior
from refocal.sklearn.linear import FocalLinearClassifier
from refocal.sklearn.mlp import FocalMLPClassifier
from refocal.sklearn.posterior import PosteriorClassifier

__all__ = ["CalibratedPosterior", "FocalLinearClassifier", "FocalMLPClassifier", "PosteriorClassifier"]
