"""Train with focal loss, get true probabilities.

Focal loss is not proper: the scores that minimise it are not the class posterior. `psi` is the closed
form that gives the posterior back; `Focal` and `SigmoidFocal` are losses that know their own inverse.
"""

from refocal.binning import CalibrationStats
from refocal.confidence import Confidence, confidence_region, eta_confidence, tau_oc, tau_uc
from refocal.focal import conditional_risk, focal_loss, h, log_psi, phi, psi
from refocal.intervals import CalibrationTest, Interval, calibration_test, confidence_interval
from refocal.metrics import (
    adaptive_ece,
    brier,
    classwise_ece,
    debiased_ece,
    ece,
    error_rate,
    kl_divergence,
    mce,
    nll,
    smooth_ece,
)
from refocal.minimizer import focal_minimizer
from refocal.objectives import Focal, SigmoidFocal, objective_from_dict
from refocal.recovery import posterior_of, score_posterior, score_threshold
from refocal.selection import Selection, choose_calibration
from refocal.sigmoid_objectives import Asymmetric, OneVsRest
from refocal.softmax_objectives import AsymmetricSingleLabel, GeneralizedCrossEntropy, Poly1Focal
from refocal.temperature import FocalTemperatureScaling, TemperatureScaling

__version__ = "0.1.0"

__all__ = [
    "Asymmetric",
    "AsymmetricSingleLabel",
    "CalibrationStats",
    "CalibrationTest",
    "Confidence",
    "Focal",
    "FocalTemperatureScaling",
    "GeneralizedCrossEntropy",
    "Interval",
    "OneVsRest",
    "Poly1Focal",
    "Selection",
    "SigmoidFocal",
    "TemperatureScaling",
    "__version__",
    "adaptive_ece",
    "brier",
    "calibration_test",
    "choose_calibration",
    "classwise_ece",
    "conditional_risk",
    "confidence_interval",
    "confidence_region",
    "debiased_ece",
    "ece",
    "error_rate",
    "eta_confidence",
    "focal_loss",
    "focal_minimizer",
    "h",
    "kl_divergence",
    "log_psi",
    "mce",
    "nll",
    "objective_from_dict",
    "phi",
    "posterior_of",
    "psi",
    "score_posterior",
    "score_threshold",
    "smooth_ece",
    "tau_oc",
    "tau_uc",
]
