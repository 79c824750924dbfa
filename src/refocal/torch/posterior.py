"""The end of a network: from logits to the true probabilities."""

from __future__ import annotations

import operator
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

    Made of plain operations, it goes through ``torch.export``, ``torch.onnx`` and ``torch.compile``.

    Args:
        objective: What was trained with, e.g. ``FocalLoss(gamma=2.0).objective``.
        dim: The class axis. None is 1, as ``nn.CrossEntropyLoss`` has it, and 0 for logits with one axis;
            arrays have ``axis=-1``, as in `refocal.Focal.posterior`. Logits of shape (N, T, C), as of a
            transformer, need ``dim=-1``: nothing in the numbers shows a wrong axis, and the answer would be
            one over T.

    Example:
        >>> from refocal import Focal
        >>> model = nn.Sequential(nn.Linear(4, 3), Posterior(Focal(gamma=2.0)))
        >>> model(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
        >>> Posterior(Focal(gamma=2.0), dim=-1)(torch.zeros(1, 2, 4))
        tensor([[[0.2500, 0.2500, 0.2500, 0.2500],
                 [0.2500, 0.2500, 0.2500, 0.2500]]])
    """

    dim: int | None = None

    def __init__(self, objective: Objective, dim: int | None = None) -> None:
        super().__init__()
        if not isinstance(objective, Objective):
            raise TypeError(f"objective must be an objective of refocal, got {objective!r}")
        self.objective = objective
        self.dim = check_dim(dim)

    def forward(self, logits: Tensor) -> Tensor:
        """Return the probabilities."""
        if torch._C._get_tracing_state() is None:
            return self._posterior(logits)
        with warnings.catch_warnings():  # of checks of shapes, which the tracer takes for computation
            warnings.simplefilter("ignore", TracerWarning)
            return self._posterior(logits)

    def _posterior(self, logits: Tensor) -> Tensor:
        result = self.objective.posterior(logits, axis=class_axis(logits, self.dim))
        probs: Tensor = check_result_shape(self.objective, "posterior", result, logits.shape)
        return probs

    def extra_repr(self) -> str:
        """Return the objective, and the class axis where it was said."""
        return f"{self.objective!r}" + ("" if self.dim is None else f", dim={self.dim}")


def check_dim(dim: int | None) -> int | None:
    """Return a class axis as an int, None for PyTorch's convention."""
    if dim is None:
        return None
    if isinstance(dim, bool) or not hasattr(dim, "__index__"):
        raise TypeError(f"dim must be an integer or None, got {dim!r}")
    return operator.index(dim)


def class_axis(logits: Tensor, dim: int | None = None) -> int:
    """Return the class axis, >= 0; None is PyTorch's convention: the second, or the only one."""
    if dim is None:
        return 1 if logits.ndim > 1 else 0
    axis = check_dim(dim)
    if axis is None or not -logits.ndim <= axis < logits.ndim:
        raise ValueError(f"dim must be within the {logits.ndim} axes of logits, got {dim}")
    return axis % logits.ndim
