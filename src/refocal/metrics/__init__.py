"""How good class probabilities are: calibration errors, proper scores, their intervals and a test."""

from refocal.metrics.binning import Convention
from refocal.metrics.intervals import CalibrationTest, Interval, calibration_test, confidence_interval
from refocal.metrics.measures import (
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
from refocal.metrics.stats import CalibrationStats

__all__ = [
    "CalibrationStats",
    "CalibrationTest",
    "Convention",
    "Interval",
    "adaptive_ece",
    "brier",
    "calibration_test",
    "classwise_ece",
    "confidence_interval",
    "debiased_ece",
    "ece",
    "error_rate",
    "kl_divergence",
    "mce",
    "nll",
    "smooth_ece",
]
