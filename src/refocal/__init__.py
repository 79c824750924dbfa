"""Train with focal loss, get true probabilities.

Focal loss is not proper: the scores that minimise it are not the class posterior. `psi` is the closed
form that gives the posterior back; `Focal` and `SigmoidFocal` are losses that know their own inverse.
"""

from refocal.confidence import Confidence, confidence_region, eta_confidence, tau_oc, tau_uc
from refocal.focal import conditional_risk, focal_loss, h, log_psi, phi, psi
from refocal.minimizer import focal_minimizer
from refocal.objectives import Focal, SigmoidFocal, objective_from_dict
from refocal.recovery import posterior_of, score_posterior, score_threshold
from refocal.sigmoid_objectives import Asymmetric, OneVsRest
from refocal.softmax_objectives import AsymmetricSingleLabel, GeneralizedCrossEntropy, Poly1Focal

__version__ = "0.1.0"

__all__ = [
    "Asymmetric",
    "AsymmetricSingleLabel",
    "Confidence",
    "Focal",
    "GeneralizedCrossEntropy",
    "OneVsRest",
    "Poly1Focal",
    "SigmoidFocal",
    "__version__",
    "conditional_risk",
    "confidence_region",
    "eta_confidence",
    "focal_loss",
    "focal_minimizer",
    "h",
    "log_psi",
    "objective_from_dict",
    "phi",
    "posterior_of",
    "psi",
    "score_posterior",
    "score_threshold",
    "tau_oc",
    "tau_uc",
]
