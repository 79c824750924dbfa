"""Focal losses for PyTorch that give the true probabilities back."""

from refocal._checks import missing_package

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise missing_package("refocal.torch", "torch", error) from None

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
