"""The end of a network: from logits to the true probabilities."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from refocal.objectives import Objective, check_result_shape


class NotScripted(nn.Module):
    """A module that says what to do in place of `torch.jit.script`."""

    def __prepare_scriptable__(self) -> nn.Module:
        """Raise: the hook of `torch.jit.script`, whose own words would be of our insides."""
        raise RuntimeError(
            f"{type(self).__name__} cannot be scripted by TorchScript; use torch.jit.trace or torch.export"
        )


class Posterior(NotScripted):
    """The end of a network that was trained with an objective: logits in, true probabilities out.

    The class axis is the second, or the only one. Made of plain operations, it goes through
    ``torch.export``, ``torch.onnx`` and ``torch.compile``.

    Args:
        objective: What was trained with, e.g. ``FocalLoss(gamma=2.0).objective``.

    Example:
        >>> from refocal import Focal
        >>> model = nn.Sequential(nn.Linear(4, 3), Posterior(Focal(gamma=2.0)))
        >>> model(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        if not isinstance(objective, Objective):
            raise TypeError(f"objective must be an objective of refocal, got {objective!r}")
        self.objective = objective

    def forward(self, logits: Tensor) -> Tensor:
        """Return the probabilities."""
        if torch._C._get_tracing_state() is None:
            return self._posterior(logits)
        with warnings.catch_warnings():  # of checks of shapes, which the tracer takes for computation
            warnings.simplefilter("ignore", TracerWarning)
            return self._posterior(logits)

    def _posterior(self, logits: Tensor) -> Tensor:
        result = self.objective.posterior(logits, axis=class_axis(logits))
        probs: Tensor = check_result_shape(self.objective, "posterior", result, logits.shape)
        return probs

    def extra_repr(self) -> str:
        """Return the objective."""
        return repr(self.objective)


def class_axis(logits: Tensor) -> int:
    """Return the class axis by PyTorch's convention: the second, or the only one."""
    return 1 if logits.ndim > 1 else 0
