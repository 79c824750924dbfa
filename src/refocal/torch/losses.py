"""The focal losses as functions with the arguments of PyTorch's own, which are checked here."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from refocal._arrays import are_plain_tensors
from refocal._checks import check_entries, check_fraction, check_number
from refocal.kernels.cuda import numbers_on
from refocal.objectives import SigmoidFocal
from refocal.torch import dispatch, repeated
from refocal.torch.eager import OF_ALL, OF_CLASSES, OF_ROWS, Number, Sigmoid, Softmax, working_dtype
from refocal.torch.posterior import class_axis

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
    dim: int | None = None,
) -> Tensor:
    r"""Return the focal loss, with the arguments, shapes and meaning of ``F.cross_entropy``.

    .. math:: \ell(q, v) = \sum_i w_i v_i (1-q_i)^{\gamma_i} (-\log q_i), \quad q = \mathrm{softmax}(z)

    With gamma = 0 it is cross entropy. Half precision is computed in float32.

    Args:
        logits: Scores of shape (C), (N, C) or (N, C, d1, ...), or with the classes elsewhere, see ``dim``.
        target: Class indices of that shape without C, or probabilities of the same shape. An index that is
            no class raises IndexError; where values cannot be looked at (in kernels for GPUs, inside
            `torch.func`, in compiled code without kernels), loss and gradient are NaN.
        gamma: A number >= 0; a list or tuple with one for each class; or a tensor that broadcasts to the rows
            (the shape without C), without gradient. In a compiled function a gamma that changes should be a
            tensor: each new number compiles the function again.
        weight: A weight >= 0 of each class, or None.
        ignore_index: An index that adds neither to the loss nor to the mean; not for probabilities.
        reduction: "mean" (weighted, as in cross entropy), "sum" or "none".
        label_smoothing: In [0, 1): how much of the uniform distribution is mixed into the target.
        dim: The class axis; None is 1, as cross entropy has it, and 0 for logits with one axis. Logits of
            shape (N, T, C), as of a transformer, need ``dim=-1``. Shapes of target, weight and gamma that do
            not fit the axis raise; probabilities of the same wrong shape cannot be seen.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 0.0]], requires_grad=True)
        >>> loss = focal_loss(logits, torch.tensor([0, 1]), gamma=2.0)
        >>> loss.backward()
        >>> round(loss.item(), 4)
        0.0875
    """
    check_reduction(reduction)
    kind = repeated.kind_of(logits, target, gamma, weight, ignore_index, label_smoothing, dim)
    if kind is not None and (loss := repeated.loss_again(kind, logits, target, reduction)) is not None:
        return loss
    problem = _softmax(logits, target, gamma, weight, ignore_index, label_smoothing, dim)
    if kind is not None:
        repeated.remember(kind, problem, target)
    return as_given(dispatch.loss_of(problem, reduction), logits)


def focal_gradient(
    logits: Tensor,
    target: Tensor,
    gamma: Gamma = 2.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    dim: int | None = None,
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
    problem = _softmax(logits, target, gamma, weight, ignore_index, label_smoothing, dim)
    return dispatch.gradient_of(problem).to(logits.dtype)


def which_form(logits: Tensor, target: Tensor) -> str:
    """Return how losses of these tensors are computed here: one of the forms of `refocal.torch.dispatch`.

    They are "kernel", "triton", "operator", "eager" and "formula". Sigmoid losses with one gamma for each
    class have no kernel: they are eager where this says kernel. With one alpha or pos_weight for each class
    they have no operator.

    Example:
        >>> which_form(torch.zeros(2, 3, dtype=torch.float64), torch.tensor([0, 1]))
        'eager'
    """
    return dispatch.choose(logits, target)


def _softmax(
    logits: Tensor,
    target: Tensor,
    gamma: Gamma,
    weight: Tensor | None,
    ignore: int,
    label_smoothing: float,
    dim: int | None,
) -> Softmax:
    """Check the arguments of a softmax loss."""
    smoothing = check_fraction("label_smoothing", label_smoothing) if label_smoothing != 0 else 0.0
    dim, hard = check_rows(logits, target, dim)
    c = logits.shape[dim]
    if weight is not None:
        if not isinstance(weight, Tensor):
            raise TypeError(f"weight must be a tensor, got {weight!r}")
        if weight.shape != (c,):
            raise ValueError(
                f"weight must have one number for each of the {c} classes, got shape {tuple(weight.shape)}"
                + elsewhere(logits, dim, lambda axis: weight.shape == logits.shape[axis : axis + 1])
            )
        if weight.is_complex():
            raise TypeError(f"weight must hold real numbers, got dtype {weight.dtype}")
        if weight.device != logits.device:
            raise ValueError(f"weight must be on the device {logits.device} of logits, got {weight.device}")
        check_no_gradient("weight", weight)
    number, kind, gammas = _gammas(gamma, logits, dim)
    ignore = as_index("ignore_index", ignore)
    if not -(2**63) <= ignore < (2**63 if hard else 0):
        rule = "fit into 64 bits" if hard else "be negative for probabilities"
        raise ValueError(f"ignore_index must {rule}, got {ignore}")
    if hard and target.dtype is not torch.int64:
        target = target.to(torch.int64)  # or ignore_index and the number of classes might not fit
    return Softmax(logits, target, gammas, weight, number, kind, ignore, smoothing, dim, hard)


def _gammas(gamma: Gamma, z: Tensor, dim: int) -> tuple[float, int, Tensor | None]:
    """Return gamma as a number, or what it differs between and the tensor of it."""
    if isinstance(gamma, numbers.Real):
        return check_number("gamma", gamma, low=0.0, rule="finite and >= 0"), OF_ALL, None
    if isinstance(gamma, Tensor):
        check_gamma_tensor(gamma)
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
            + elsewhere(z, dim, lambda axis: z.shape[axis] == len(values))
        )
    if are_plain_tensors(z):
        return 0.0, OF_CLASSES, numbers_on(values, working_dtype(z), z.device)
    return 0.0, OF_CLASSES, z.new_tensor(values, dtype=working_dtype(z))


def sigmoid_focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float | Sequence[float] = 2.0,
    alpha: float | Sequence[float] | None = 0.25,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    pos_weight: float | Sequence[float] | Tensor | None = None,
    dim: int | None = None,
) -> Tensor:
    r"""Return the focal loss of binary problems, one for each entry, with the values of torchvision's.

    .. math:: \ell = \alpha w y (1-p)^\gamma (-\log p) + (1-\alpha) (1-y) p^\gamma (-\log(1-p))

    Args:
        logits: Scores before the sigmoid, of any shape.
        target: 0 or 1, or probabilities, of the same shape. Others than ``ignore_index`` raise ValueError,
            where a look at them does not have to wait (not on other devices than the CPU, where kernels make
            loss and gradient NaN, nor inside `torch.func`); 0.01 beyond is taken for rounding.
        gamma: A number >= 0, or one for each class.
        alpha: The weight of y = 1 against 1 - alpha, in (0, 1), or one for each class; None for no
            weights.
        reduction: "mean" (over the entries that are not ignored), "sum" or "none".
        label_smoothing: In [0, 1): targets become (1 - eps) y + eps / 2.
        ignore_index: A target, none of 0 and 1, whose entries add neither to the loss nor to the mean: often
            -1, -100 or 255. None for none.
        pos_weight: w of the formula, a number > 0 or one for each class, as in ``nn.BCEWithLogitsLoss``; a
            tensor of them has no gradient. None for 1.
        dim: The class axis, for arguments with one number for each class; None is 1, and 0 for logits with
            one axis.

    Example:
        >>> round(sigmoid_focal_loss(torch.zeros(4), torch.ones(4)).item(), 4)
        0.0433
        >>> target = torch.tensor([1, 1, -1, -1])
        >>> round(sigmoid_focal_loss(torch.zeros(4), target, ignore_index=-1, pos_weight=3.0).item(), 4)
        0.13
    """
    check_reduction(reduction)
    spec = SigmoidFocal(gamma, alpha, label_smoothing)
    check_entries_of(logits, target)
    ignore = None if ignore_index is None else ignored_target(ignore_index)
    axis = class_axis(logits, dim)
    of_one: Number = 1.0 if spec.alpha is None else _of_classes("alpha", spec.alpha, logits, axis)
    of_zero = 1.0 if spec.alpha is None else 1 - of_one
    if pos_weight is not None:
        of_one = of_one * _of_classes("pos_weight", _pos_weight(pos_weight, logits), logits, axis)
    of_gamma = _of_classes("gamma", spec.gamma, logits, axis)
    problem = Sigmoid(logits, target, of_gamma, of_one, of_zero, ignore, spec.label_smoothing)
    return as_given(dispatch.loss_of(problem, reduction), logits)


def _pos_weight(
    value: float | Sequence[float] | Tensor, logits: Tensor
) -> float | tuple[float, ...] | Tensor:
    rule = "finite and > 0"
    if not isinstance(value, Tensor):
        return check_entries("pos_weight", value, rule, lambda v: v > 0)
    check_no_gradient("pos_weight", value)
    if value.device != logits.device:
        raise ValueError(f"pos_weight must be on the device {logits.device} of logits, got {value.device}")
    if value.ndim > 1:
        raise ValueError(f"pos_weight must be a number or one for each class, got shape {tuple(value.shape)}")
    value = value.reshape(()) if value.numel() == 1 else value
    if value.device.type == "cpu" and are_plain_tensors(value):
        return check_entries("pos_weight", value.tolist(), rule, lambda v: v > 0)
    return value  # not to be looked at: a compiler does, or the device would be waited for


def _of_classes(name: str, value: float | tuple[float, ...] | Tensor, z: Tensor, axis: int) -> Number:
    """Return a number, or numbers for the classes as a tensor that broadcasts to the logits."""
    if isinstance(value, float):
        return value
    if isinstance(value, Tensor) and value.ndim == 0:
        return value.to(working_dtype(z))
    if z.ndim == 0 or z.shape[axis] != len(value):
        raise ValueError(
            f"{name} must have one number for each of the {z.shape[axis] if z.ndim else 0} classes, "
            f"got {len(value)}" + elsewhere(z, axis, lambda other: z.shape[other] == len(value))
        )
    dtype = working_dtype(z)
    if isinstance(value, Tensor):
        values = value.to(dtype)
    elif are_plain_tensors(z):
        values = numbers_on(value, dtype, z.device)
    else:
        values = z.new_tensor(value, dtype=dtype)
    return values.view([-1] + [1] * (z.ndim - axis - 1))


# Checks that the other losses share


def check_rows(logits: Tensor, target: Tensor, dim: int | None) -> tuple[int, bool]:
    """Return the class axis, and whether targets are class indices, after a look at dtypes and shapes."""
    if not logits.is_floating_point():
        raise TypeError(f"logits must hold floating point numbers, got dtype {logits.dtype}")
    if logits.ndim == 0:
        raise ValueError("logits must have a class axis, got a single number")
    axis = class_axis(logits, dim)
    if logits.shape[axis] == 0:
        raise ValueError(f"logits must have at least 1 class, got shape {tuple(logits.shape)}")
    hard = not target.is_floating_point()
    if hard and (target.dtype is torch.bool or target.is_complex()):
        raise TypeError(f"target must hold class indices or probabilities, got dtype {target.dtype}")
    expected = logits.shape[:axis] + logits.shape[axis + 1 :] if hard else logits.shape
    if target.shape != expected:
        raise ValueError(
            f"target must have the shape {tuple(expected)} ({'class indices' if hard else 'probabilities'}), "
            f"got {tuple(target.shape)}"
            + elsewhere(logits, axis, lambda i: target.shape == logits.shape[:i] + logits.shape[i + 1 :])
        )
    return axis, hard


def check_entries_of(logits: Tensor, target: Tensor) -> None:
    """Raise for dtypes or shapes that no sigmoid loss can have."""
    if not logits.is_floating_point():
        raise TypeError(f"logits must hold floating point numbers, got dtype {logits.dtype}")
    if target.shape != logits.shape:
        raise ValueError(
            f"target must have the shape {tuple(logits.shape)} of logits, got {tuple(target.shape)}"
        )
    if target.is_complex():
        raise TypeError(f"target must hold real numbers, got dtype {target.dtype}")


def elsewhere(logits: Tensor, dim: int, fits: Callable[[int], bool]) -> str:
    """Return what to say where another axis than ``dim`` fits the classes; the first one is the batch."""
    for axis in range(logits.ndim - 1, 0, -1):
        if axis != dim and fits(axis):
            said = -1 if axis == logits.ndim - 1 else axis
            return (
                f"; the classes seem to be along dim {axis}: "
                f"say dim={said}, or pass logits.movedim({said}, {dim})"
            )
    return ""


def as_index(name: str, value: object) -> int:
    """Return an integer."""
    if type(value) is int:  # also a number that a compiler does not know, which has no other signs of one
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    return operator.index(value)


def ignored_target(ignore: int) -> float:
    """Return the target of a sigmoid loss that does not count, as targets are compared with it."""
    index = as_index("ignore_index", ignore)
    if index in (0, 1) or abs(index) > 1 << 24:
        raise ValueError(f"ignore_index must be no target, 0 or 1, and fit into float32, got {index}")
    return float(index)


def check_reduction(reduction: str) -> None:
    """Raise for an unknown reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")


def check_no_gradient(name: str, x: Tensor) -> None:
    """Raise for a tensor whose gradient would be lost."""
    if x.requires_grad:
        raise ValueError(f"{name} must not require a gradient, got a tensor that does")


def check_gamma_tensor(gamma: Tensor) -> None:
    """Raise for a gamma that needs a gradient or, where values can be looked at, is not one."""
    check_no_gradient("gamma", gamma)
    if (
        gamma.device.type == "cpu"
        and are_plain_tensors(gamma)
        and not bool(((gamma >= 0) & gamma.isfinite()).all())
    ):
        raise ValueError("gamma must be finite and >= 0, got a tensor with other values")


def as_given(loss: Tensor, logits: Tensor) -> Tensor:
    """Return the loss in float32 under autocast, as cross entropy does, else in the dtype of the logits."""
    half = logits.dtype.itemsize < 4
    autocast = half and not logits.is_meta and torch.is_autocast_enabled(logits.device.type)
    return loss.to(logits.dtype) if half and not autocast else loss
