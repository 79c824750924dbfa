"""Focal losses for PyTorch that give the true probabilities back."""

from refocal.torch.losses import FocalLoss, Posterior, SigmoidFocalLoss, focal_loss, sigmoid_focal_loss

__all__ = ["FocalLoss", "Posterior", "SigmoidFocalLoss", "focal_loss", "sigmoid_focal_loss"]
