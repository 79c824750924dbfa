"""Losses that know their own inverse: what the scores of their minimiser say about the classes."""

from refocal.objectives.base import (
    Objective as Objective,
    check_objective as check_objective,
    check_result_shape as check_result_shape,
    log_posterior_of as log_posterior_of,
    logits_of as logits_of,
    losses_of as losses_of,
    objective_from_dict as objective_from_dict,
)
from refocal.objectives.focal import Focal as Focal, SigmoidFocal as SigmoidFocal
from refocal.objectives.sigmoid import Asymmetric as Asymmetric, OneVsRest as OneVsRest
from refocal.objectives.softmax import (
    AsymmetricSingleLabel as AsymmetricSingleLabel,
    GeneralizedCrossEntropy as GeneralizedCrossEntropy,
    Poly1Focal as Poly1Focal,
)
