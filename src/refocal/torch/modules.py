"""The focal losses as modules, which give the true probabilities back after training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from refocal._checks import check_entries, check_fraction
from refocal.objectives import Focal, Objective, SigmoidFocal
from refocal.torch.losses import (
    Gamma,
    check_gamma_tensor,
    check_no_gradient,
    check_reduction,
    focal_loss,
    ignored_target,
    sigmoid_focal_loss,
)
from refocal.torch.posterior import NotScripted, check_dim, class_axis


class Loss(NotScripted):
    """A loss that gives the probabilities back: what all modules here share."""

    dim: int | None = None

    @property
    def objective(self) -> Objective:
        """What was trained with, as `refocal.objective_from_dict` can rebuild it."""
        raise AttributeError("objective")

    def posterior(self, logits: Tensor, dim: int | None = None) -> Tensor:
        """Return the true probabilities that belong to the logits of a model trained with this loss.

        Args:
            logits: What the model returns.
            dim: The class axis; None is that of the loss, and that is 1 where it was not said either (0 for
                logits with one axis), as ``nn.CrossEntropyLoss`` has it. **Logits of shape (N, T, C) need**
                ``dim=-1``, here or at the loss: nothing in their numbers shows a wrong axis. Arrays have
                ``axis=-1``, as in `refocal.Focal.posterior`.
        """
        probs: Tensor = self.objective.posterior(logits, axis=self._axis(logits, dim))
        return probs

    def log_posterior(self, logits: Tensor, dim: int | None = None) -> Tensor:
        """Return the logarithm of `posterior`, with its arguments."""
        log_probs: Tensor = self.objective.log_posterior(logits, axis=self._axis(logits, dim))
        return log_probs

    def _axis(self, logits: Tensor, dim: int | None) -> int:
        return class_axis(logits, self.dim if dim is None else dim)


class FocalLoss(Loss):
    r"""The focal loss wherever ``nn.CrossEntropyLoss`` goes, and the true probabilities after training.

    The arguments are those of `focal_loss`; ``weight`` is a buffer and moves with the module. ``dim``, the
    class axis, is that of `posterior` too.

    Example:
        >>> criterion = FocalLoss(gamma=2.0)
        >>> logits = torch.tensor([[2.0, 1.0, 0.0]], requires_grad=True)
        >>> criterion(logits, torch.tensor([0])).backward()
        >>> criterion.posterior(logits.detach()).round(decimals=3)
        tensor([[0.8840, 0.0880, 0.0290]])
        >>> tokens = FocalLoss(gamma=2.0, dim=-1)
        >>> tokens.posterior(logits.detach().expand(1, 2, 3)).round(decimals=3)
        tensor([[[0.8840, 0.0880, 0.0290],
                 [0.8840, 0.0880, 0.0290]]])
    """

    weight: Tensor | None

    def __init__(
        self,
        gamma: Gamma = 2.0,
        weight: Tensor | Sequence[float] | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        dim: int | None = None,
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        if isinstance(gamma, Tensor):
            check_gamma_tensor(gamma)
            self.register_buffer("gamma", gamma)
        else:
            self.gamma = check_entries("gamma", gamma, "finite and >= 0", lambda v: v >= 0)
        if weight is not None:
            if not isinstance(weight, Tensor):
                weight = torch.tensor(weight, dtype=torch.get_default_dtype())
            check_no_gradient("weight", weight)
            if weight.ndim != 1 or not bool(((weight >= 0) & weight.isfinite()).all()):
                raise ValueError(
                    f"weight must hold one finite number >= 0 for each class, got {weight.tolist()}"
                )
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = check_fraction("label_smoothing", label_smoothing)
        self.dim = check_dim(dim)

    @property
    def objective(self) -> Focal:
        """What was trained with; a tensor gamma, which differs between rows, has none."""
        if isinstance(self.gamma, Tensor) and self.gamma.numel() > 1:
            raise ValueError(
                "gamma must be a number or one for each class to have a posterior, got one for each row"
            )
        gamma = self.gamma.item() if isinstance(self.gamma, Tensor) else self.gamma
        weight = None if self.weight is None else self.weight.tolist()
        return Focal(gamma, weight, self.label_smoothing)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return focal_loss(
            logits,
            target,
            self.gamma,
            self.weight,
            self.ignore_index,
            self.reduction,
            self.label_smoothing,
            self.dim,
        )

    def extra_repr(self) -> str:
        """Return the arguments that differ from the defaults, and gamma."""
        weight = None if self.weight is None else self.weight.tolist()
        rest = {
            "weight": (weight, None),
            "ignore_index": (self.ignore_index, -100),
            "reduction": (self.reduction, "mean"),
            "label_smoothing": (self.label_smoothing, 0.0),
            "dim": (self.dim, None),
        }
        return ", ".join([f"gamma={self.gamma}", *changed(rest)])


class SigmoidFocalLoss(Loss):
    r"""The sigmoid focal loss of detection and multi-label problems, and the true probabilities after it.

    The arguments are those of `sigmoid_focal_loss`; a tensor ``pos_weight`` is read once, here. With it the
    objective is that of another alpha: the posterior depends on the weights alpha w and 1 - alpha by their
    ratio alone.

    Example:
        >>> criterion = SigmoidFocalLoss(gamma=2.0, alpha=0.25)
        >>> scores = torch.tensor([0.1, 0.3, 0.5])
        >>> criterion.posterior(scores.logit()).round(decimals=3)
        tensor([0.0080, 0.2360, 0.7500])
        >>> SigmoidFocalLoss(gamma=2.0, alpha=0.25, pos_weight=3.0).objective
        SigmoidFocal(gamma=2.0, alpha=0.5, label_smoothing=0.0)
    """

    def __init__(
        self,
        gamma: float | Sequence[float] = 2.0,
        alpha: float | Sequence[float] | None = 0.25,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
        pos_weight: float | Sequence[float] | Tensor | None = None,
        dim: int | None = None,
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        spec = SigmoidFocal(gamma, alpha, label_smoothing)
        self.gamma, self.alpha, self.label_smoothing = spec.gamma, spec.alpha, spec.label_smoothing
        self.reduction = reduction
        self.ignore_index = None if ignore_index is None else int(ignored_target(ignore_index))
        self.pos_weight: float | tuple[float, ...] | None = None
        if pos_weight is not None:
            if isinstance(pos_weight, Tensor):
                pos_weight = pos_weight.item() if pos_weight.numel() == 1 else pos_weight.tolist()
            self.pos_weight = check_entries("pos_weight", pos_weight, "finite and > 0", lambda v: v > 0)
        self.dim = check_dim(dim)

    @property
    def objective(self) -> SigmoidFocal:
        """What was trained with; pos_weight is in its alpha."""
        return SigmoidFocal(self.gamma, _mixed(self.alpha, self.pos_weight), self.label_smoothing)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return sigmoid_focal_loss(
            logits,
            target,
            self.gamma,
            self.alpha,
            self.reduction,
            self.label_smoothing,
            self.ignore_index,
            self.pos_weight,
            self.dim,
        )

    def extra_repr(self) -> str:
        """Return gamma, alpha and reduction, and the other arguments that differ from the defaults."""
        rest = {
            "label_smoothing": (self.label_smoothing, 0.0),
            "ignore_index": (self.ignore_index, None),
            "pos_weight": (self.pos_weight, None),
            "dim": (self.dim, None),
        }
        first = f"gamma={self.gamma}, alpha={self.alpha}, reduction={self.reduction!r}"
        return ", ".join([first, *changed(rest)])


def _mixed(alpha: Any, pos_weight: Any) -> Any:
    """Return the alpha of weights alpha w against 1 - alpha; None is 1/2 here."""
    if pos_weight is None:
        return alpha
    alpha = 0.5 if alpha is None else alpha
    if isinstance(alpha, float) and isinstance(pos_weight, float):
        return alpha * pos_weight / (alpha * pos_weight + 1 - alpha)
    n = len(pos_weight if isinstance(alpha, float) else alpha)
    of_class = [(x,) * n if isinstance(x, float) else x for x in (alpha, pos_weight)]
    if len(of_class[1]) != n:
        raise ValueError(
            f"pos_weight must have one number for each of the {n} classes of alpha, got {len(pos_weight)}"
        )
    return tuple(_mixed(a, w) for a, w in zip(*of_class, strict=True))


def changed(arguments: dict[str, tuple[Any, Any]]) -> list[str]:
    """Return the arguments, each with its value and its default, that differ from the default."""
    return [f"{name}={value!r}" for name, (value, default) in arguments.items() if value != default]
