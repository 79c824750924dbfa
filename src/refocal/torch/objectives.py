"""Every other objective as a loss for PyTorch: by its own formula, in PyTorch's operations."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from refocal._arrays import are_plain_tensors
from refocal.objectives import (
    Asymmetric,
    AsymmetricSingleLabel,
    GeneralizedCrossEntropy,
    Objective,
    OneVsRest,
    Poly1Focal,
    SigmoidFocal,
    check_objective,
    check_result_shape,
)
from refocal.torch.eager import check_labels, check_targets, reduced, working_dtype
from refocal.torch.losses import (
    as_given,
    as_index,
    check_entries_of,
    check_reduction,
    check_rows,
    ignored_target,
)
from refocal.torch.modules import Loss, changed
from refocal.torch.posterior import check_dim, class_axis


class ObjectiveLoss(Loss):
    """Any objective as a loss, also one of your own or of `refocal.adapters`.

    The loss of each row (of each entry, for sigmoid scores) is ``objective.loss``, differentiated by PyTorch;
    half precision is computed in float32. `FocalLoss` and `SigmoidFocalLoss` are faster, and have weights.

    Args:
        objective: An objective such as ``Poly1Focal(gamma=2.0)``.
        ignore_index: A class index, or a target of a sigmoid loss, that adds neither to the loss nor to the
            mean; not for distributions. None for none.
        reduction: "mean" (over what is not ignored), "sum" or "none".
        dim: The class axis of logits; None is 1, as ``nn.CrossEntropyLoss`` has it, and 0 for logits with one
            axis. Logits of shape (N, T, C) need ``dim=-1``.

    Example:
        >>> from refocal import adapters
        >>> criterion = ObjectiveLoss(adapters.from_timm_single_label(eps=0.1))
        >>> logits = torch.tensor([[2.0, 1.0, 0.0]], requires_grad=True)
        >>> criterion(logits, torch.tensor([0])).backward()
        >>> criterion.posterior(logits.detach()).round(decimals=3)
        tensor([[0.7840, 0.1590, 0.0570]])
    """

    _ignored_by_default: ClassVar[int | None] = -100

    def __init__(
        self,
        objective: Objective,
        ignore_index: int | None = -100,
        reduction: str = "mean",
        dim: int | None = None,
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        self._objective = check_objective(objective)
        if ignore_index is not None:
            as_index("ignore_index", ignore_index)
            if objective.scores == "sigmoid":
                ignored_target(ignore_index)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.dim = check_dim(dim)

    @property
    def objective(self) -> Objective:
        """What was trained with."""
        return self._objective

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss.

        Args:
            logits: Scores with the classes along ``dim``.
            target: Class indices of that shape without the classes, or distributions of the same shape; for
                sigmoid scores 0, 1 or probabilities of the same shape.
        """
        entries = self._objective.scores == "sigmoid"
        if entries:
            check_entries_of(logits, target)
            axis, ignores = class_axis(logits, self.dim), self.ignore_index is not None
        else:
            axis, hard = check_rows(logits, target, self.dim)
            ignores = self.ignore_index is not None and hard
        z = logits.to(working_dtype(logits))
        y = target.to(z.dtype) if entries or target.is_floating_point() else target.to(torch.int64)
        if are_plain_tensors(z, y):
            if entries:
                check_targets(y, self.ignore_index)
            elif hard:
                check_labels(y, z.shape[axis], self.ignore_index)
        kept: Tensor | None = torch.ne(y, self.ignore_index) if ignores else None  # type: ignore[arg-type]
        if kept is not None:  # what is ignored may hold anything, and has no gradient
            y = torch.where(kept, y, 0)
            z = torch.where(kept if entries else kept.unsqueeze(axis), z, 0)
        losses = self._losses(z, y, axis)
        losses = losses if kept is None else torch.where(kept, losses, 0)
        return as_given(reduced(losses, self.reduction, kept), logits)

    def _losses(self, z: Tensor, y: Tensor, axis: int) -> Tensor:
        """Return the losses, and finite gradients beside infinite logits: they stand for large ones."""
        objective, info = self._objective, torch.finfo(z.dtype)
        infinite = z.isinf()
        if objective.scores == "softmax":  # +inf, and nothing but -inf, have no softmax
            infinite = (z == -torch.inf) & (z.amax(axis, keepdim=True) > -torch.inf)
        z = torch.where(infinite, z.sign() * (info.max / 1e4), z)
        losses: Tensor = objective.loss(z, y, axis=axis)
        shape = z.shape if objective.scores == "sigmoid" else z.shape[:axis] + z.shape[axis + 1 :]
        check_result_shape(objective, "loss", losses, shape)
        return losses + torch.where(losses > info.max / 1e10, torch.inf, 0.0)

    def extra_repr(self) -> str:
        """Return the arguments of the objective, and the others that differ from the defaults."""
        if type(self) is ObjectiveLoss:
            said = [repr(self._objective)]
        else:
            fields = dataclasses.fields(self._objective)  # type: ignore[arg-type]
            said = [f"{field.name}={getattr(self._objective, field.name)!r}" for field in fields]
        rest = {
            "ignore_index": (self.ignore_index, self._ignored_by_default),
            "reduction": (self.reduction, "mean"),
            "dim": (self.dim, None),
        }
        return ", ".join([*said, *changed(rest)])


class Poly1FocalLoss(ObjectiveLoss):
    r"""The Poly-1 focal loss, and the true probabilities after it; see `refocal.Poly1Focal`.

    .. math:: \ell(q, y) = (1-q_y)^\gamma (-\log q_y) + \epsilon (1-q_y)^{\gamma+1}

    Args:
        gamma: A number >= 0; 0 is the Poly-1 cross entropy.
        epsilon: A number >= -1; 0 is the focal loss.
        ignore_index: See `ObjectiveLoss`.
        reduction: See `ObjectiveLoss`.
        dim: See `ObjectiveLoss`.

    Example:
        >>> criterion = Poly1FocalLoss(gamma=2.0, epsilon=1.0)
        >>> round(criterion(torch.zeros(1, 2), torch.tensor([0])).item(), 4)
        0.2983
        >>> criterion.posterior(torch.tensor([[2.0, 1.0, 0.0]])).round(decimals=3)
        tensor([[0.8510, 0.1070, 0.0410]])
    """

    def __init__(
        self,
        gamma: float = 2.0,
        epsilon: float = 1.0,
        ignore_index: int | None = -100,
        reduction: str = "mean",
        dim: int | None = None,
    ) -> None:
        super().__init__(Poly1Focal(gamma, epsilon), ignore_index, reduction, dim)


class GCELoss(ObjectiveLoss):
    r"""The generalized cross entropy for noisy labels, and the true probabilities after it.

    .. math:: \ell(q, y) = (1 - q_y^k) / k

    Those are of the labels as they were given, noise included; see `refocal.GeneralizedCrossEntropy`.

    Args:
        k: In (0, 1), which the paper calls q.
        ignore_index: See `ObjectiveLoss`.
        reduction: See `ObjectiveLoss`.
        dim: See `ObjectiveLoss`.

    Example:
        >>> criterion = GCELoss(k=0.5)
        >>> round(criterion(torch.zeros(1, 4), torch.tensor([0])).item(), 4)
        1.0
        >>> criterion.posterior(torch.tensor([[2.0, 1.0, 0.0]])).round(decimals=3)
        tensor([[0.5060, 0.3070, 0.1860]])
    """

    def __init__(
        self,
        k: float = 0.7,
        ignore_index: int | None = -100,
        reduction: str = "mean",
        dim: int | None = None,
    ) -> None:
        super().__init__(GeneralizedCrossEntropy(k), ignore_index, reduction, dim)


class AsymmetricSingleLabelLoss(ObjectiveLoss):
    r"""The asymmetric loss on a softmax, as timm's, and the true probabilities after it.

    .. math::

        \ell(q, y) = c_1 (1-q_y)^{\gamma_+} (-\log q_y) + c_2 \sum_{i \ne y} q_i^{\gamma_-} (-\log q_i),
        \quad c_1 = 1 - \epsilon + \epsilon/K, \; c_2 = \epsilon/K

    See `refocal.AsymmetricSingleLabel`.

    Args:
        gamma_pos: A number >= 0.
        gamma_neg: A number >= 0.
        label_smoothing: In [0, 1), epsilon.
        ignore_index: See `ObjectiveLoss`.
        reduction: See `ObjectiveLoss`.
        dim: See `ObjectiveLoss`.

    Example:
        >>> criterion = AsymmetricSingleLabelLoss(label_smoothing=0.1)
        >>> criterion.posterior(torch.tensor([[2.0, 1.0, 0.0]])).round(decimals=3)
        tensor([[0.6650, 0.2450, 0.0900]])
    """

    def __init__(
        self,
        gamma_pos: float = 0.0,
        gamma_neg: float = 4.0,
        label_smoothing: float = 0.1,
        ignore_index: int | None = -100,
        reduction: str = "mean",
        dim: int | None = None,
    ) -> None:
        spec = AsymmetricSingleLabel(gamma_pos, gamma_neg, label_smoothing)
        super().__init__(spec, ignore_index, reduction, dim)


class OneVsRestLoss(ObjectiveLoss):
    r"""One sigmoid for each class against the one-hot label, and a distribution over the classes after it.

    .. math:: \ell(z, y) = \sum_i L_i(z_i, 1[i = y])

    See `refocal.OneVsRest`.

    Args:
        binary: The loss of an entry, `refocal.SigmoidFocal` or `refocal.Asymmetric`.
        ignore_index: See `ObjectiveLoss`.
        reduction: See `ObjectiveLoss`.
        dim: See `ObjectiveLoss`.

    Example:
        >>> criterion = OneVsRestLoss(SigmoidFocal(gamma=2.0, alpha=0.25))
        >>> criterion.posterior(torch.tensor([[0.0, -1.0, -2.0]])).round(decimals=3)
        tensor([[0.8030, 0.1820, 0.0140]])
    """

    def __init__(
        self,
        binary: SigmoidFocal | Asymmetric | None = None,
        ignore_index: int | None = -100,
        reduction: str = "mean",
        dim: int | None = None,
    ) -> None:
        spec = OneVsRest() if binary is None else OneVsRest(binary)
        super().__init__(spec, ignore_index, reduction, dim)


class AsymmetricLoss(ObjectiveLoss):
    r"""The asymmetric loss (ASL) of multi-label problems, and the true probabilities after it.

    .. math::

        \ell = y (1-p)^{\gamma_+} (-\log p) + (1-y) p_m^{\gamma_-} (-\log(1-p_m)), \quad
        p_m = \max(p - \mathrm{clip}, 0)

    With clip > 0 and gamma_pos = 0, its authors' default, no score tells probabilities above a bound
    apart; see `refocal.Asymmetric`.

    Args:
        gamma_pos: A number >= 0.
        gamma_neg: A number >= 0.
        clip: In [0, 1).
        detach_weights: Whether no gradient goes through the powers.
        ignore_index: A target, none of 0 and 1, whose entries do not count; None for none.
        reduction: See `ObjectiveLoss`; the authors' code has "sum".
        dim: See `ObjectiveLoss`; entries are problems of their own, wherever the classes are.

    Example:
        >>> criterion = AsymmetricLoss(gamma_pos=1.0, gamma_neg=4.0, clip=0.05)
        >>> target = torch.tensor([[1, 0, -1]])
        >>> round(AsymmetricLoss(1.0, 4.0, 0.05, ignore_index=-1)(torch.zeros(1, 3), target).item(), 4)
        0.1855
        >>> criterion.posterior(torch.tensor([0.05, 0.3, 0.5, 0.9]).logit()).round(decimals=3)
        tensor([0.0000, 0.0070, 0.1470, 0.9740])
    """

    _ignored_by_default = None

    def __init__(
        self,
        gamma_pos: float = 0.0,
        gamma_neg: float = 4.0,
        clip: float = 0.05,
        detach_weights: bool = False,
        ignore_index: int | None = None,
        reduction: str = "mean",
        dim: int | None = None,
    ) -> None:
        super().__init__(Asymmetric(gamma_pos, gamma_neg, clip, detach_weights), ignore_index, reduction, dim)
