"""Losses that know their own inverse: what the scores of their minimiser say about the classes."""

from refocal.objectives.base import (
    Objective,
    check_objective,
    log_posterior_of,
    losses_of,
    objective_from_dict,
)
from refocal.objectives.focal import Focal, SigmoidFocal
from refocal.objectives.sigmoid import Asymmetric, OneVsRest
from refocal.objectives.softmax import AsymmetricSingleLabel, GeneralizedCrossEntropy, Poly1Focal

__all__ = [
    "Asymmetric",
    "AsymmetricSingleLabel",
    "Focal",
    "GeneralizedCrossEntropy",
    "Objective",
    "OneVsRest",
    "Poly1Focal",
    "SigmoidFocal",
    "check_objective",
    "log_posterior_of",
    "losses_of",
    "objective_from_dict",
]
