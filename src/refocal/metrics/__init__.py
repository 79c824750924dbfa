"""How good class probabilities are: calibration errors, proper scores, their intervals and a test."""

from refocal.metrics.binning import Convention as Convention
from refocal.metrics.errors import (
    adaptive_ece as adaptive_ece,
    classwise_ece as classwise_ece,
    debiased_ece as debiased_ece,
    ece as ece,
    mce as mce,
    smooth_ece as smooth_ece,
)
from refocal.metrics.intervals import (
    Interval as Interval,
    confidence_interval as confidence_interval,
)
from refocal.metrics.measures import (
    bisect as bisect,
    brier as brier,
    error_rate as error_rate,
    kl_divergence as kl_divergence,
    nll as nll,
)
from refocal.metrics.significance import (
    CalibrationTest as CalibrationTest,
    calibration_test as calibration_test,
)
from refocal.metrics.stats import CalibrationStats as CalibrationStats
