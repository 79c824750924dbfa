"""The focal losses as PyTorch people use them: functions, and modules that give the probabilities back."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from refocal._arrays import are_plain_tensors
from refocal._checks import check_entries, check_fraction, check_number
from refocal.objectives import Focal, Objective, SigmoidFocal
from refocal.torch import dispatch
from refocal.torch.eager import OF_ALL, OF_CLASSES, OF_ROWS, Sigmoid, Softmax
from refocal.torch.posterior import NotScripted, class_axis

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
        target: Class indices of that shape without C, or probabilities of the same shape. An index that is
            no class raises IndexError; where values cannot be looked at (inside `torch.func`, in compiled
            code without kernels), loss and gradient are NaN.
        gamma: A number >= 0; a list or tuple with one for each class; or a tensor that broadcasts to the rows
            (the shape without C), without gradient. In a compiled function a gamma that changes should be a
            tensor: each new number compiles the function again.
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
    problem = _softmax(logits, target, gamma, weight, ignore_index, label_smoothing)
    return _as_given(dispatch.loss_of(problem, reduction), logits)


def focal_gradient(
    logits: Tensor,
    target: Tensor,
    gamma: Gamma = 2.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""Return the gradient by the logits of the sum of the losses, for training loops without autograd.

    .. math:: \partial \ell / \partial z = \varphi^\gamma(q_y) (q - e_y)

    for an integer target y; the arguments are those of `focal_loss`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
        >>> focal_gradient(logits, torch.tensor([0, 1])).round(decimals=4)
        tensor([[-0.0049,  0.0049],
                [ 0.2983, -0.2983]])
    """
    problem = _softmax(logits, target, gamma, weight, ignore_index, label_smoothing)
    return dispatch.gradient_of(problem).to(logits.dtype)


def which_form(logits: Tensor, target: Tensor) -> str:
    """Return how the losses of these tensors are computed here: "kernel", "operator", "eager" or "formula".

    See `refocal.torch.dispatch`. Sigmoid losses with one gamma or alpha for each class have no kernel: they
    are eager where this says kernel.

    Example:
        >>> which_form(torch.zeros(2, 3, dtype=torch.float64), torch.tensor([0, 1]))
        'eager'
    """
    return dispatch.choose(logits.to(_working_dtype(logits)), target)


def _softmax(
    logits: Tensor, target: Tensor, gamma: Gamma, weight: Tensor | None, ignore: int, label_smoothing: float
) -> Softmax:
    """Check the arguments of a softmax loss."""
    smoothing = check_fraction("label_smoothing", label_smoothing) if label_smoothing != 0 else 0.0
    if not logits.is_floating_point():
        raise TypeError(f"logits must hold floating point numbers, got dtype {logits.dtype}")
    if logits.ndim == 0:
        raise ValueError("logits must have a class axis, got a single number")
    dim = class_axis(logits)
    c = logits.shape[dim]
    if c == 0:
        raise ValueError(f"logits must have at least 1 class, got shape {tuple(logits.shape)}")
    hard = not target.is_floating_point()
    if hard and (target.dtype is torch.bool or target.is_complex()):
        raise TypeError(f"target must hold class indices or probabilities, got dtype {target.dtype}")
    expected = logits.shape[:dim] + logits.shape[dim + 1 :] if hard else logits.shape
    if target.shape != expected:
        raise ValueError(
            f"target must have the shape {tuple(expected)} ({'class indices' if hard else 'probabilities'}), "
            f"got {tuple(target.shape)}"
        )
    if weight is not None:
        if not isinstance(weight, Tensor):
            raise TypeError(f"weight must be a tensor, got {weight!r}")
        if weight.shape != (c,):
            raise ValueError(
                f"weight must have one number for each of the {c} classes, got shape {tuple(weight.shape)}"
            )
        if weight.is_complex():
            raise TypeError(f"weight must hold real numbers, got dtype {weight.dtype}")
        _check_no_gradient("weight", weight)
    z = logits if logits.dtype.itemsize >= 4 else logits.to(torch.float32)
    number, kind, gammas = _gammas(gamma, z, dim)
    if isinstance(ignore, bool) or not hasattr(ignore, "__index__"):
        raise TypeError(f"ignore_index must be an integer, got {ignore!r}")
    ignore = operator.index(ignore)
    if not -(2**63) <= ignore < (2**63 if hard else 0):
        rule = "fit into 64 bits" if hard else "be negative for probabilities"
        raise ValueError(f"ignore_index must {rule}, got {ignore}")
    if hard and target.dtype is not torch.int64:
        target = target.to(torch.int64)  # or ignore_index and the number of classes might not fit
    return Softmax(z, target, gammas, weight, number, kind, ignore, smoothing, dim, hard)


def _gammas(gamma: Gamma, z: Tensor, dim: int) -> tuple[float, int, Tensor | None]:
    """Return gamma as a number, or what it differs between and the tensor of it."""
    if isinstance(gamma, numbers.Real):
        return check_number("gamma", gamma, low=0.0, rule="finite and >= 0"), OF_ALL, None
    if isinstance(gamma, Tensor):
        _check_gamma_tensor(gamma)
        rows = z.shape[:dim] + z.shape[dim + 1 :]
        try:
            gamma.broadcast_to(rows)
        except RuntimeError:
            raise ValueError(
                f"gamma must broadcast to the rows {tuple(rows)}, got shape {tuple(gamma.shape)}"
            ) from None
        return 0.0, OF_ROWS, gamma
    values: float | tuple[float, ...]
    if isinstance(gamma, (list, tuple)):
        values = tuple(check_number("gamma", g, low=0.0, rule="finite and >= 0") for g in gamma)
    else:
        values = check_entries("gamma", gamma, "finite and >= 0", lambda v: v >= 0)
    if isinstance(values, float):
        return values, OF_ALL, None
    if len(values) != z.shape[dim]:
        raise ValueError(
            f"gamma must have one number for each of the {z.shape[dim]} classes, got {len(values)}"
        )
    return 0.0, OF_CLASSES, z.new_tensor(values)


def sigmoid_focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float | Sequence[float] = 2.0,
    alpha: float | Sequence[float] | None = 0.25,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""Return the focal loss of binary problems, one for each entry, with the values of torchvision's.

    .. math:: \ell = \alpha y (1-p)^\gamma (-\log p) + (1-\alpha) (1-y) p^\gamma (-\log(1-p))

    Args:
        logits: Scores before the sigmoid, of any shape.
        target: 0 or 1, or probabilities, of the same shape.
        gamma: A number >= 0, or one for each class (the second axis).
        alpha: The weight of y = 1 against 1 - alpha, in (0, 1), or one for each class; None for no
            weights.
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
    if target.is_complex():
        raise TypeError(f"target must hold real numbers, got dtype {target.dtype}")
    z = logits.to(_working_dtype(logits))
    y = target.to(z.dtype)
    if spec.label_smoothing:
        y = (1 - spec.label_smoothing) * y + spec.label_smoothing / 2
    of_one = 1.0 if spec.alpha is None else spec.alpha
    of_zero = 1.0 if spec.alpha is None else _minus(spec.alpha)
    problem = Sigmoid(z, y, *(_of_classes(x, z) for x in (spec.gamma, of_one, of_zero)))
    return _as_given(dispatch.loss_of(problem, reduction), logits)


def _minus(alpha: float | tuple[float, ...]) -> float | tuple[float, ...]:
    return tuple(1 - a for a in alpha) if isinstance(alpha, tuple) else 1 - alpha


def _of_classes(value: float | tuple[float, ...], z: Tensor) -> float | Tensor:
    """Return a number, or numbers for the classes as a tensor that broadcasts to the logits."""
    if isinstance(value, float):
        return value
    axis = class_axis(z)
    if z.ndim == 0 or z.shape[axis] != len(value):
        raise ValueError(
            f"gamma and alpha must have one number for each of the {z.shape[axis] if z.ndim else 0} classes, "
            f"got {len(value)}"
        )
    return z.new_tensor(value).view([-1] + [1] * (z.ndim - axis - 1))


class _Loss(NotScripted):
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
            if not isinstance(weight, Tensor):
                weight = torch.tensor(weight, dtype=torch.get_default_dtype())
            _check_no_gradient("weight", weight)
            if weight.ndim != 1 or not bool(((weight >= 0) & weight.isfinite()).all()):
                raise ValueError(
                    f"weight must hold one finite number >= 0 for each class, got {weight.tolist()}"
                )
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = check_fraction("label_smoothing", label_smoothing)

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
            logits, target, self.gamma, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )

    def extra_repr(self) -> str:
        """Return the arguments that differ from the defaults, and gamma."""
        weight = None if self.weight is None else self.weight.tolist()
        names = ("weight", "ignore_index", "reduction", "label_smoothing")
        values = (weight, self.ignore_index, self.reduction, self.label_smoothing)
        rest = zip(names, values, (None, -100, "mean", 0.0), strict=True)
        parts = [f"{name}={value!r}" for name, value, default in rest if value != default]
        return ", ".join([f"gamma={self.gamma}", *parts])


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


def check_reduction(reduction: str) -> None:
    """Raise for an unknown reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")


def _check_no_gradient(name: str, x: Tensor) -> None:
    if x.requires_grad:
        raise ValueError(f"{name} must not require a gradient, got a tensor that does")


def _check_gamma_tensor(gamma: Tensor) -> None:
    _check_no_gradient("gamma", gamma)
    if (
        gamma.device.type == "cpu"
        and are_plain_tensors(gamma)
        and not bool(((gamma >= 0) & gamma.isfinite()).all())
    ):
        raise ValueError("gamma must be finite and >= 0, got a tensor with other values")


def _working_dtype(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype.itemsize < 4 else x.dtype


def _as_given(loss: Tensor, logits: Tensor) -> Tensor:
    """Return the loss in float32 under autocast, as cross entropy does, else in the dtype of the logits."""
    half = logits.dtype.itemsize < 4
    autocast = half and not logits.is_meta and torch.is_autocast_enabled(logits.device.type)
    return loss.to(logits.dtype) if half and not autocast else loss
