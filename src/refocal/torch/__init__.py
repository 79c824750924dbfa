"""Focal losses for PyTorch that give the true probabilities back."""

from refocal.extras import needs as _needs

with _needs("refocal.torch", "torch"):
    import torch as _torch  # noqa: F401

from refocal.torch.losses import (
    FocalLoss,
    SigmoidFocalLoss,
    focal_gradient,
    focal_loss,
    sigmoid_focal_loss,
    which_form,
)
from refocal.torch.posterior import Posterior

__all__ = ["FocalLoss", "Posterior", "SigmoidFocalLoss"]
__all__ += ["focal_gradient", "focal_loss", "sigmoid_focal_loss", "which_form"]
