"""The focal losses as PyTorch people use them: functions, and modules that give the probabilities back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from refocal._arrays import is_real_tensor
from refocal._checks import check_entries, check_fraction, check_number
from refocal.focal import focal_terms
from refocal.objectives import Focal, Objective, SigmoidFocal
from refocal.torch._fast import BinaryFocalKernel, HardFocalKernel, SoftFocalKernel, as_label, fits
from refocal.torch._fused import Binary, BinaryFocal, HardFocal, SoftFocal

Gamma = float | Sequence[float] | Tensor
REDUCTIONS = ("mean", "sum", "none")


def focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: Gamma = 2.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""Return the focal loss, with the arguments, shapes and meaning of ``F.cross_entropy``.

    .. math:: \ell(q, v) = \sum_i w_i v_i (1-q_i)^{\gamma_i} (-\log q_i), \quad q = \mathrm{softmax}(z)

    With gamma = 0 it is cross entropy. Half precision is computed in float32.

    Args:
        logits: Scores of shape (C), (N, C) or (N, C, d1, ...).
        target: Class indices of that shape without C, or probabilities of the same shape.
        gamma: A number >= 0; a list or tuple of one a class; or a tensor that broadcasts to the rows
            (the shape without C), without gradient.
        weight: A weight >= 0 of each class, or None.
        ignore_index: An index that adds neither to the loss nor to the mean; not for probabilities.
        reduction: "mean" (weighted, as in cross entropy), "sum" or "none".
        label_smoothing: In [0, 1): how much of the uniform distribution is mixed into the target.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 0.0]], requires_grad=True)
        >>> loss = focal_loss(logits, torch.tensor([0, 1]), gamma=2.0)
        >>> loss.backward()
        >>> round(loss.item(), 4)
        0.0875
    """
    check_reduction(reduction)
    smoothing = check_fraction("label_smoothing", label_smoothing)
    if not logits.is_floating_point():
        raise TypeError(f"logits must hold floating point numbers, got dtype {logits.dtype}")
    if logits.ndim == 0:
        raise ValueError("logits must have a class axis, got a single number")
    if weight is None and not smoothing and logits.ndim == 2 and isinstance(gamma, (int, float)):
        loss = _in_one_call(logits, target, gamma, ignore_index, reduction)
        if loss is not None:
            return loss
    return _in_steps(logits, target, gamma, weight, ignore_index, reduction, smoothing)


def _in_one_call(
    logits: Tensor, target: Tensor, gamma: float, ignore_index: int, reduction: str
) -> Tensor | None:
    """Return the loss if a kernel can do it all, else None."""
    hard = target.shape == logits.shape[:1]
    if not fits(logits) or not fits(target, torch.int64 if hard else torch.float32):
        return None
    ignored = as_label(ignore_index)
    if ignored is None or not (hard or target.shape == logits.shape):
        return None
    gamma = check_number("gamma", gamma, low=0.0, rule="finite and >= 0")

    def plain(z: Tensor, y: Tensor = target) -> Tensor:
        return _in_steps(z, y, gamma, None, ignore_index, reduction, 0.0)

    if hard:
        return _apply(HardFocalKernel, logits, target, gamma, ignored, reduction, plain)
    return _apply(SoftFocalKernel, logits, target, gamma, reduction, plain)


def _in_steps(
    logits: Tensor,
    target: Tensor,
    gamma: Gamma,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    smoothing: float,
) -> Tensor:
    axis = class_axis(logits)
    c = logits.shape[axis]
    row_shape = logits.shape[:axis] + logits.shape[axis + 1 :]
    if weight is not None:
        if weight.shape != (c,):
            raise ValueError(
                f"weight must have one number for each of the {c} classes, got shape {tuple(weight.shape)}"
            )
        weight = weight.to(_working_dtype(logits))
    hard = not target.is_floating_point()
    expected = row_shape if hard else logits.shape
    if target.shape != expected:
        raise ValueError(
            f"target must have the shape {tuple(expected)} ({'class indices' if hard else 'probabilities'}), "
            f"got {tuple(target.shape)}"
        )
    z = _rows(logits.to(_working_dtype(logits)), axis)
    per_class, gamma = _gamma(gamma, z, row_shape)
    if hard:
        y = target.reshape(-1).long()
        kept = _kept(y, ignore_index)
        if kept is not None:
            y = torch.where(kept, y, 0)
        rows = _hard_rows(z, y, gamma, per_class)
        importance = _importance(y, weight, kept)
        if importance is not None:
            rows = importance * rows
        if kept is not None:
            rows = torch.where(kept, rows, 0)  # whatever the logits of an ignored row are
        if smoothing:
            even = z.new_full((1, 1), 1 / c).expand_as(z)
            spread = _soft_rows(z, even, gamma, weight, per_class)
            rows = (1 - smoothing) * rows + smoothing * (
                spread if kept is None else torch.where(kept, spread, 0)
            )
    else:
        v = _rows(target.to(z.dtype), axis)
        if smoothing:
            v = (1 - smoothing) * v + smoothing / c
        rows = _soft_rows(z, v, gamma, weight, per_class)
        importance = None
    if reduction == "none":
        loss = rows.reshape(row_shape)
    elif reduction == "sum":
        loss = rows.sum()
    else:
        loss = rows.mean() if importance is None else rows.sum() / importance.sum()
    return loss.to(_result_dtype(logits))


def sigmoid_focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float | Sequence[float] = 2.0,
    alpha: float | Sequence[float] | None = 0.25,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""Return the focal loss of binary problems, one an entry, with the values of torchvision's.

    .. math:: \ell = \alpha y (1-p)^\gamma (-\log p) + (1-\alpha) (1-y) p^\gamma (-\log(1-p))

    Args:
        logits: Scores before the sigmoid, of any shape.
        target: 0 or 1, or probabilities, of the same shape.
        gamma: A number >= 0, or one a class (the second axis).
        alpha: The weight of y = 1 against 1 - alpha, in (0, 1), or one a class; None for no weights.
        reduction: "mean", "sum" or "none".
        label_smoothing: In [0, 1): targets become (1 - eps) y + eps / 2.

    Example:
        >>> round(sigmoid_focal_loss(torch.zeros(4), torch.ones(4)).item(), 4)
        0.0433
    """
    check_reduction(reduction)
    spec = SigmoidFocal(gamma, alpha, label_smoothing)
    if not logits.is_floating_point():
        raise TypeError(f"logits must hold floating point numbers, got dtype {logits.dtype}")
    if target.shape != logits.shape:
        raise ValueError(
            f"target must have the shape {tuple(logits.shape)} of logits, got {tuple(target.shape)}"
        )
    z = logits.to(_working_dtype(logits))
    y = target.to(z.dtype)
    if isinstance(spec.gamma, float) and isinstance(spec.alpha, float | None) and is_real_tensor(z):
        of_one, of_zero = (1.0, 1.0) if spec.alpha is None else (spec.alpha, 1 - spec.alpha)
        if spec.label_smoothing:
            y = (1 - spec.label_smoothing) * y + spec.label_smoothing / 2
        bare = SigmoidFocal(spec.gamma, spec.alpha)
        add_up = reduction != "none"

        def plain(z: Tensor, y: Tensor) -> Tensor:
            return bare.loss(z.reshape(-1), y.reshape(-1)).sum() if add_up else _any_shape(bare, z, y)

        numbers = Binary(spec.gamma, of_one, of_zero)
        if fits(z) and fits(y):
            loss = _apply(BinaryFocalKernel, z, y, numbers, "sum" if add_up else "none", plain)
        else:
            loss = _apply(BinaryFocal, z, y, numbers, add_up, plain)
    else:
        loss = _any_shape(spec, z, y)
        loss = loss if reduction == "none" else loss.sum()
    if reduction == "mean":
        loss = loss / logits.numel()
    return loss.to(_result_dtype(logits))


class _Loss(nn.Module):
    """A loss that gives the probabilities back."""

    @property
    def objective(self) -> Objective:
        """What was trained with, as `refocal.objective_from_dict` can rebuild it."""
        raise AttributeError("objective")

    def posterior(self, logits: Tensor) -> Tensor:
        """Return the true probabilities that belong to the logits of a model trained with this loss."""
        probs: Tensor = self.objective.posterior(logits, axis=class_axis(logits))
        return probs

    def log_posterior(self, logits: Tensor) -> Tensor:
        """Return the logarithm of `posterior`."""
        log_probs: Tensor = self.objective.log_posterior(logits, axis=class_axis(logits))
        return log_probs


class FocalLoss(_Loss):
    r"""The focal loss wherever ``nn.CrossEntropyLoss`` goes, and the true probabilities after training.

    The arguments are those of `focal_loss`; ``weight`` is a buffer and moves with the module.

    Example:
        >>> criterion = FocalLoss(gamma=2.0)
        >>> logits = torch.tensor([[2.0, 1.0, 0.0]], requires_grad=True)
        >>> criterion(logits, torch.tensor([0])).backward()
        >>> criterion.posterior(logits.detach()).round(decimals=3)
        tensor([[0.8840, 0.0880, 0.0290]])
    """

    weight: Tensor | None

    def __init__(
        self,
        gamma: Gamma = 2.0,
        weight: Tensor | Sequence[float] | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        if isinstance(gamma, Tensor):
            _check_gamma_tensor(gamma)
            self.register_buffer("gamma", gamma)
        else:
            self.gamma = check_entries("gamma", gamma, "finite and >= 0", lambda v: v >= 0)
        if weight is not None:
            weight = torch.as_tensor(weight, dtype=torch.get_default_dtype())
            if weight.ndim != 1 or not bool(((weight >= 0) & weight.isfinite()).all()):
                raise ValueError(f"weight must hold one finite number >= 0 a class, got {weight.tolist()}")
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = check_fraction("label_smoothing", label_smoothing)

    @property
    def objective(self) -> Focal:
        """What was trained with; a tensor gamma, which differs between rows, has none."""
        if isinstance(self.gamma, Tensor) and self.gamma.numel() > 1:
            raise ValueError("gamma must be a number or one a class for a posterior, got one a row")
        gamma = self.gamma.item() if isinstance(self.gamma, Tensor) else self.gamma
        weight = None if self.weight is None else self.weight.tolist()
        return Focal(gamma, weight, self.label_smoothing)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return focal_loss(
            logits, target, self.gamma, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )

    def extra_repr(self) -> str:
        """Return the arguments that differ from the defaults, and gamma."""
        parts = [f"gamma={self.gamma}"]
        if self.weight is not None:
            parts.append(f"weight={self.weight.tolist()}")
        if self.ignore_index != -100:
            parts.append(f"ignore_index={self.ignore_index}")
        if self.reduction != "mean":
            parts.append(f"reduction={self.reduction!r}")
        if self.label_smoothing:
            parts.append(f"label_smoothing={self.label_smoothing}")
        return ", ".join(parts)


class SigmoidFocalLoss(_Loss):
    r"""The sigmoid focal loss of detection and multi-label problems, and the true probabilities after it.

    The arguments are those of `sigmoid_focal_loss`.

    Example:
        >>> criterion = SigmoidFocalLoss(gamma=2.0, alpha=0.25)
        >>> scores = torch.tensor([0.1, 0.3, 0.5])
        >>> criterion.posterior(scores.logit()).round(decimals=3)
        tensor([0.0080, 0.2360, 0.7500])
    """

    def __init__(
        self,
        gamma: float | Sequence[float] = 2.0,
        alpha: float | Sequence[float] | None = 0.25,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        self._objective = SigmoidFocal(gamma, alpha, label_smoothing)
        self.reduction = reduction

    @property
    def objective(self) -> SigmoidFocal:
        """What was trained with."""
        return self._objective

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        spec = self._objective
        return sigmoid_focal_loss(
            logits, target, spec.gamma, spec.alpha, self.reduction, spec.label_smoothing
        )

    def extra_repr(self) -> str:
        """Return the arguments."""
        spec = self._objective
        parts = f"gamma={spec.gamma}, alpha={spec.alpha}, reduction={self.reduction!r}"
        return parts + (f", label_smoothing={spec.label_smoothing}" if spec.label_smoothing else "")


class Posterior(nn.Module):
    """The end of a network that was trained with an objective: logits in, true probabilities out.

    The class axis is the second, or the only one. Made of plain operations, it goes through
    ``torch.export``, ``torch.onnx`` and ``torch.compile``.

    Args:
        objective: What was trained with, e.g. ``FocalLoss(gamma=2.0).objective``.

    Example:
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
        probs: Tensor = self.objective.posterior(logits, axis=class_axis(logits))
        return probs

    def extra_repr(self) -> str:
        """Return the objective."""
        return repr(self.objective)


def class_axis(logits: Tensor) -> int:
    """Return the class axis by PyTorch's convention: the second, or the only one."""
    return 1 if logits.ndim > 1 else 0


def check_reduction(reduction: str) -> None:
    """Raise for an unknown reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")


def _rows(x: Tensor, axis: int) -> Tensor:
    """Return x as rows of classes (n, C); a batch of them is passed as it is, since each view is a call."""
    return x if x.ndim == 2 else x.movedim(axis, -1).reshape(-1, x.shape[axis])


def _gamma(gamma: Gamma, z: Tensor, row_shape: torch.Size) -> tuple[bool, float | Tensor]:
    """Return whether gamma is one a class, and gamma as a number, (C,), or one a row (n,)."""
    if isinstance(gamma, Tensor):
        _check_gamma_tensor(gamma)
        try:
            return False, gamma.to(z.dtype).broadcast_to(row_shape).reshape(-1)
        except RuntimeError:
            raise ValueError(
                f"gamma must broadcast to the rows {tuple(row_shape)}, got shape {tuple(gamma.shape)}"
            ) from None
    checked = check_entries("gamma", gamma, "finite and >= 0", lambda v: v >= 0)
    if isinstance(checked, float):
        return False, checked
    if len(checked) != z.shape[1]:
        raise ValueError(
            f"gamma must have one number for each of the {z.shape[1]} classes, got {len(checked)}"
        )
    return True, z.new_tensor(checked)


def _kept(y: Tensor, ignore_index: int) -> Tensor | None:
    """Return which rows count, or None where it can be seen that all do: then nothing need be kept of it."""
    kept = y != ignore_index
    return None if kept.device.type == "cpu" and is_real_tensor(kept) and bool(kept.all()) else kept


def _importance(y: Tensor, weight: Tensor | None, kept: Tensor | None) -> Tensor | None:
    if weight is None:
        return kept
    return weight[y] if kept is None else weight[y] * kept


def _check_gamma_tensor(gamma: Tensor) -> None:
    if gamma.requires_grad:
        raise ValueError("gamma must not require a gradient, got a tensor that does")
    if (
        gamma.device.type == "cpu"
        and is_real_tensor(gamma)
        and not bool(((gamma >= 0) & gamma.isfinite()).all())
    ):
        raise ValueError("gamma must be finite and >= 0, got a tensor with other values")


def _hard_rows(z: Tensor, y: Tensor, gamma: float | Tensor, per_class: bool) -> Tensor:
    """Return the loss of every row of (n, C) logits for class indices."""
    of_row = gamma[y] if per_class and isinstance(gamma, Tensor) else gamma
    column = of_row if isinstance(of_row, float) else of_row.unsqueeze(1)

    def plain(z: Tensor) -> Tensor:
        loss: Tensor = focal_terms(z, y, column, 1)
        return loss

    if fits(z) and fits(y, torch.int64):
        return _apply(HardFocalKernel, z, y, of_row, None, "none", plain)
    return _apply(HardFocal, z, y.unsqueeze(1), of_row, plain) if is_real_tensor(z) else plain(z)


def _soft_rows(z: Tensor, v: Tensor, gamma: float | Tensor, weight: Tensor | None, per_class: bool) -> Tensor:
    """Return the loss of every row of (n, C) logits for distributions."""
    if isinstance(gamma, Tensor):
        gamma = gamma.unsqueeze(0 if per_class else 1)
    row = None if weight is None else weight.unsqueeze(0)

    def plain(z: Tensor, v: Tensor) -> Tensor:
        loss: Tensor = focal_terms(z, v, gamma, 1, 1.0 if row is None else row)
        return loss

    if isinstance(gamma, float) and row is None and fits(z) and fits(v):
        return _apply(SoftFocalKernel, z, v, gamma, "none", plain)
    return _apply(SoftFocal, z, v, gamma, row, plain) if is_real_tensor(z) else plain(z, v)


def _apply(function: type[torch.autograd.Function], *args: object) -> Tensor:
    result: Tensor = function.apply(*args)  # type: ignore[no-untyped-call]
    return result


def _any_shape(spec: SigmoidFocal, z: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = spec.loss(z, y, axis=class_axis(z)) if z.ndim else spec.loss(z[None], y[None])[0]
    return loss


def _working_dtype(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype.itemsize < 4 else x.dtype


def _result_dtype(logits: Tensor) -> torch.dtype:
    """Return float32 under autocast, as cross entropy does, and the logits' dtype elsewhere."""
    autocast = torch.is_autocast_enabled(logits.device.type)
    return _working_dtype(logits) if autocast else logits.dtype
