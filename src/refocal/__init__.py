"""Train with focal loss, get true probabilities.

Focal loss is not proper: the scores that minimise it are not the class posterior. `psi` is the closed
form that gives the posterior back; `Focal` and `SigmoidFocal` are losses that know their own inverse.
"""

from types import ModuleType as _ModuleType

from refocal._checks import SuspiciousInputWarning
from refocal.calibration import (
    FocalTemperatureScaling,
    Method,
    Selection,
    TemperatureScaling,
    choose_calibration,
)
from refocal.confidence import Confidence, confidence_region, eta_confidence, tau_oc, tau_uc
from refocal.focal import h, log_psi, phi, psi
from refocal.metrics import (
    CalibrationStats,
    CalibrationTest,
    Interval,
    adaptive_ece,
    brier,
    calibration_test,
    classwise_ece,
    confidence_interval,
    debiased_ece,
    ece,
    error_rate,
    kl_divergence,
    mce,
    nll,
    smooth_ece,
)
from refocal.minimizer import focal_minimizer
from refocal.objectives import (
    Asymmetric,
    AsymmetricSingleLabel,
    Focal,
    GeneralizedCrossEntropy,
    Objective,
    OneVsRest,
    Poly1Focal,
    SigmoidFocal,
    objective_from_dict,
)
from refocal.recovery import Recovered, check_inverse, posterior_of
from refocal.risk import conditional_risk, focal_loss
from refocal.thresholds import score_posterior, score_threshold

__version__ = "0.2.0"

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
    "Method",
    "Objective",
    "OneVsRest",
    "Poly1Focal",
    "Recovered",
    "Selection",
    "SigmoidFocal",
    "SuspiciousInputWarning",
    "TemperatureScaling",
    "__version__",
    "adaptive_ece",
    "brier",
    "calibration_test",
    "check_inverse",
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


def __getattr__(name: str) -> _ModuleType:
    """Import a part of refocal that not everybody uses when it is first asked for."""
    from importlib import import_module

    if name in ("adapters", "boosting", "detection", "plots", "report", "scoring", "sklearn", "torch"):
        return import_module(f"refocal.{name}")
    raise AttributeError(f"module 'refocal' has no attribute {name!r}")
