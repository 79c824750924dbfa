"""What to do with the scores of a trained model: temperatures, psi, and the choice between them."""

from refocal.calibration.choose import choose_calibration as choose_calibration
from refocal.calibration.method import LabelGain as LabelGain, Method as Method
from refocal.calibration.selection import Selection as Selection
from refocal.calibration.temperature import (
    FocalTemperatureScaling as FocalTemperatureScaling,
    TemperatureScaling as TemperatureScaling,
)
