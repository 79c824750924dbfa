"""How good class probabilities are: calibration errors, proper scores, their intervals and a test."""

from refocal.metrics.binning import Convention as Convention
from refocal.metrics.intervals import (
    CalibrationTest as CalibrationTest,
    Interval as Interval,
    calibration_test as calibration_test,
    confidence_interval as confidence_interval,
)
from refocal.metrics.measures import (
    adaptive_ece as adaptive_ece,
    bisect as bisect,
    brier as brier,
    classwise_ece as classwise_ece,
    debiased_ece as debiased_ece,
    ece as ece,
    error_rate as error_rate,
    kl_divergence as kl_divergence,
    mce as mce,
    nll as nll,
    smooth_ece as smooth_ece,
)
from refocal.metrics.stats import CalibrationStats as CalibrationStats
