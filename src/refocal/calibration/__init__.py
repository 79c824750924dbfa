"""What to do with the scores of a trained model: temperatures, psi, and the choice between them."""

from refocal.calibration.choose import choose_calibration
from refocal.calibration.selection import Method, Selection
from refocal.calibration.temperature import FocalTemperatureScaling, TemperatureScaling

__all__ = ["FocalTemperatureScaling", "Method", "Selection", "TemperatureScaling", "choose_calibration"]
