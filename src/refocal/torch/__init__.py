"""Focal losses for PyTorch that give the true probabilities back."""

from refocal.extras import needs as _needs

with _needs("refocal.torch", "torch"):
    import torch as _torch  # noqa: F401

from refocal.torch.losses import focal_gradient, focal_loss, sigmoid_focal_loss, which_form
from refocal.torch.modules import FocalLoss, SigmoidFocalLoss
from refocal.torch.objectives import (
    AsymmetricLoss,
    AsymmetricSingleLabelLoss,
    GCELoss,
    ObjectiveLoss,
    OneVsRestLoss,
    Poly1FocalLoss,
)
from refocal.torch.posterior import Posterior

__all__ = ["AsymmetricLoss", "AsymmetricSingleLabelLoss", "FocalLoss", "GCELoss", "ObjectiveLoss"]
__all__ += ["OneVsRestLoss", "Poly1FocalLoss", "Posterior", "SigmoidFocalLoss"]
__all__ += ["focal_gradient", "focal_loss", "sigmoid_focal_loss", "which_form"]
