"""Calibration of detectors: how often a detection with score s is right.

The scores of a focal-trained detector pass two stages, and each has a question of its own:

- Before non-maximum suppression a score belongs to one anchor (point, query) and one class. Psi, as
  ``SigmoidFocal(gamma, alpha).posterior``, gives the probability that the assignment of the training makes
  that anchor a positive of that class. `refocal.score_threshold` speaks of this probability, too.
- After it a detection is the survivor of many overlapping anchors, and is right if it matches an object that
  no better detection took. The share of those is the precision, which `DetectionCalibration` measures.

Psi cannot give the second. A survivor was chosen because its score was the largest among its neighbours, its
box has to overlap at the IoU of the evaluation, not at that of the assignment, and duplicates count as wrong:
none of this is in the score. So Psi takes the distortion of the loss away, and what is left between posterior
and precision has to be measured, and fitted, on detections. Scores that are no plain sigmoid (with a
centerness or an IoU branch multiplied in) have no Psi at all; their precision can be measured all the same.
"""

from refocal.detection.matching import match_detections
from refocal.detection.stats import DetectionCalibration

__all__ = ["DetectionCalibration", "match_detections"]
