"""The one place that decides how a loss is computed, and the autograd functions that it leads to.

There are four forms of each loss, equal within rounding:

- ``kernel``: machine code for float32 on the CPU, see `refocal.kernels`;
- ``operator``: the same machine code as an operator that `torch.compile` does not look into;
- ``eager``: closed forms in PyTorch's operations, for every device and dtype;
- ``formula``: operations that every transformation of PyTorch can follow and differentiate, again and again.

`choose` is the table for losses, `choose_gradient` for their first derivatives; all further ones go through
the formula. The environment variable REFOCAL_KERNELS is ``cpu`` (the default) or ``off``, no machine code.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from refocal._arrays import is_plain_tensor
from refocal._checks import LARGEST_GAMMA
from refocal.kernels import rows
from refocal.torch import eager
from refocal.torch.eager import OF_ROWS, Binary, Options, Tensors

KEEP = 32
"""From so many classes on three numbers of each row are kept for the backward pass: a tenth of the logits."""

LARGEST = torch.finfo(torch.float32).max

FOLDER = Path(torch.__file__).parent / "lib"
"""Where PyTorch may have its OpenMP library, in whose threads kernels run."""


def choose(z: Tensor, target: Tensor) -> str:
    """Return the name of the form that computes the loss of these tensors: the first line that fits."""
    if torch.compiler.is_compiling():
        if torch.compiler.is_exporting():  # the file must not need our operators
            return "formula"
        return (
            "operator"
            if z.device.type == "cpu" and z.dtype == torch.float32 and _has_kernels()
            else "formula"
        )
    if not (is_plain_tensor(z) and is_plain_tensor(target)):  # somebody follows the operations
        return "formula"
    if z.is_cpu and target.is_cpu and z.dtype is torch.float32 and z.numel() and kernels():
        return "kernel"
    return "eager"


def choose_gradient(form: str, *tensors: Tensor) -> str:
    """Return the name of the form that computes a gradient, given that of the loss."""
    if torch.is_grad_enabled():  # it will be differentiated again
        return "formula"
    if torch.compiler.is_compiling():  # compiled autograd
        return "eager"
    return form if all(is_plain_tensor(x) for x in tensors) else "formula"


_kernels: dict[str, ModuleType] | None = None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_kernels() -> bool:
    return bool(kernels())


def kernels() -> dict[str, ModuleType]:
    """Return the modules of machine code, none where they are not wanted or not to be had."""
    global _kernels
    if _kernels is None:
        switch = os.environ.get("REFOCAL_KERNELS", "cpu")
        if switch not in ("cpu", "off"):
            raise ValueError(f"REFOCAL_KERNELS must be 'cpu' or 'off', got {switch!r}")
        _kernels = _load() if switch == "cpu" else {}
    return _kernels


def _load() -> dict[str, ModuleType]:
    try:
        import numba

        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            return {}
        from refocal.kernels import machine, sigmoid, softmax
    except Exception as error:  # whatever a Numba that does not fit the other packages raises
        if not (isinstance(error, ModuleNotFoundError) and error.name == "numba"):  # an extra, not asked for
            warnings.warn(f"refocal goes without compiled kernels: {error}", RuntimeWarning, stacklevel=4)
        return {}
    return {"hard": softmax, "soft": softmax, "sigmoid": sigmoid, "machine": machine}


# The softmax loss


def softmax_loss(tensors: Tensors, o: Options, reduction: str) -> Tensor:
    """Return the loss by the form that `choose` names."""
    form = choose(*tensors[:2])
    if form == "kernel":
        return apply(SoftmaxFocal, *tensors, o, form, reduction)
    if form == "eager":
        rows = apply(SoftmaxFocal, *tensors, o, form, "none")
    elif form == "operator":
        from refocal.torch import compiled

        rows = compiled.softmax_rows(*tensors, *o)[0]
    else:
        rows = eager.formula_rows(tensors, o)
    return _reduced(rows, tensors, o, reduction)


def _reduced(rows: Tensor, tensors: Tensors, o: Options, reduction: str) -> Tensor:
    if reduction == "none":
        return rows
    if reduction == "sum":
        return rows.sum()
    if not o.hard:
        return rows.mean()
    _, target, _, weight = tensors
    kept = target != o.ignore
    if weight is None:
        return rows.sum() / kept.sum()
    of_rows = weight.to(rows.dtype)[torch.where(kept, target, 0).long()]
    return rows.sum() / torch.where(kept, of_rows, 0).sum()


class SoftmaxFocal(Function):
    """The loss by machine code or closed forms. Beyond the inputs at most three numbers a row are kept."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        z, target, gammas, weight, o, form, reduction = args
        tensors = z, target, gammas, weight
        if form == "kernel":
            loss, kept, ctx.count = kernel_losses(tensors, o, reduction)
        else:
            loss, kept, ctx.count = eager.eager_rows(tensors, o), None, 1.0
        ctx.save_for_backward(*tensors, kept)  # weights and gammas too: a change before backward is an error
        ctx.rest = o, form, reduction
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        z, target, gammas, weight, kept = ctx.saved_tensors
        (o, form, reduction), grad, wanted = ctx.rest, grads[0], ctx.needs_input_grad[:2]
        form = choose_gradient(form, grad, z, target)
        if form == "formula":

            def loss(z: Tensor, target: Tensor) -> Tensor:
                tensors = z, target, gammas, weight
                return _reduced(eager.formula_rows(tensors, o), tensors, o, reduction)

            return *by_autograd(loss, (z, target), wanted, grad), *[None] * 5
        tensors = z, target, gammas, weight
        by_z = by_target = None
        if wanted[0] and form == "kernel":
            by_z = kernel_gradient(tensors, o, kept, grad, ctx.count)
        elif wanted[0]:
            by_z = eager.eager_gradient(tensors, o, _for_rows(grad, ctx.count, z, o))
        if wanted[1]:
            by_target = eager.target_gradient(tensors, o, _for_rows(grad, ctx.count, z, o))
        return by_z, by_target, *[None] * 5


def softmax_gradient(tensors: Tensors, o: Options) -> Tensor:
    """Return the gradient by the logits of the sum of the losses."""
    z = tensors[0].detach()
    tensors, one = (z, *tensors[1:]), z.new_ones(())
    if choose(z, tensors[1]) == "kernel":
        return kernel_gradient(tensors, o, None, one, 1.0)
    return eager.eager_gradient(tensors, o, _for_rows(one, 1.0, z, o))


def _for_rows(grad: Tensor, count: float, z: Tensor, o: Options) -> Tensor:
    """Return the gradient of a loss as one for each row."""
    rows = z.shape[: o.dim] + z.shape[o.dim + 1 :]
    return grad if grad.shape == rows and count == 1.0 else (grad / count if count else grad * 0).expand(rows)


def by_autograd(
    loss: Callable[..., Tensor], inputs: tuple[Tensor, ...], wanted: tuple[bool, ...], grad: Tensor
) -> list[Tensor | None]:
    """Return gradients by autograd, with a graph of their own if they will be differentiated again."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        needed = [x for x, w in zip(inputs, wanted, strict=True) if w]
        found = iter(torch.autograd.grad(loss(*inputs), needed, grad, create_graph=again))
    return [next(found) if w else None for w in wanted]


def apply(function: type[Function], *args: object) -> Tensor:
    """Return what an autograd function gives."""
    result: Tensor = function.apply(*args)  # type: ignore[no-untyped-call]
    return result


# The sigmoid loss


def sigmoid_loss(z: Tensor, y: Tensor, spec: Binary, reduction: str) -> Tensor:
    """Return the loss by the form that `choose` names."""
    form = choose(z, y)
    if any(isinstance(x, Tensor) for x in spec):  # machine code takes one number each
        form = {"kernel": "eager", "operator": "formula"}.get(form, form)
    if form == "kernel":
        return apply(SigmoidFocalFunction, z, y, spec, form, reduction)
    if form == "eager":
        losses = apply(SigmoidFocalFunction, z, y, spec, form, "none")
    elif form == "operator":
        from refocal.torch import compiled

        losses = compiled.sigmoid_losses(z, y, *spec)
    else:
        losses = eager.sigmoid_losses(z, y, spec)
    return _summed(losses, reduction)


def _summed(losses: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.mean()


class SigmoidFocalFunction(Function):
    """The loss by machine code or closed forms. Nothing but the inputs is kept."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, y: Tensor, spec: Binary, form: str, reduction: str) -> Tensor:
        ctx.save_for_backward(z, y)
        ctx.rest = spec, form, reduction
        return (
            sigmoid_kernel_losses(z, y, spec, reduction)
            if form == "kernel"
            else eager.sigmoid_losses(z, y, spec)
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        z, y = ctx.saved_tensors
        (spec, form, reduction), grad, wanted = ctx.rest, grads[0], ctx.needs_input_grad[:2]
        form = choose_gradient(form, grad, z, y)
        if form == "formula":

            def loss(z: Tensor, y: Tensor) -> Tensor:
                return _summed(eager.sigmoid_losses(z, y, spec), reduction)

            return *by_autograd(loss, (z, y), wanted, grad), None, None, None
        count = float(z.numel()) if reduction == "mean" else 1.0
        if form == "kernel" and not wanted[1]:
            return sigmoid_kernel_gradient(z, y, spec, grad, count), None, None, None, None
        return *eager.sigmoid_gradients(z, y, spec, grad / count, wanted), None, None, None


# Machine code: what a record holds, see `refocal.kernels.softmax` and `refocal.kernels.sigmoid`


def kernel_losses(tensors: Tensors, o: Options, reduction: str) -> tuple[Tensor, Tensor | None, float]:
    """Return the loss by machine code, what is kept for the gradient, and what a mean was divided by."""
    z, c = tensors[0], tensors[0].shape[o.dim]
    each = reduction == "none"
    loss = z.new_empty(z.shape[: o.dim] + z.shape[o.dim + 1 :] if each else 0)
    name, fields, owners = _fields(tensors, o)
    kept = z.new_empty(z.numel() // c, 3) if name == "hard" and c >= KEEP else None
    keep = (0, 0) if kept is None else (1, kept.data_ptr())
    fields += [each, loss.data_ptr(), *keep, 1.0, 0, 0, 0, 0, 0]
    total, count = _run(name, z.numel() // c, z.numel(), [0, *fields], owners)
    if each:
        return loss, kept, 1.0
    return _value(z, reduction, total, count), kept, count if reduction == "mean" else 1.0


def kernel_gradient(tensors: Tensors, o: Options, kept: Tensor | None, grad: Tensor, count: float) -> Tensor:
    """Return the gradient by the logits by machine code."""
    z, c = _readable(tensors[0], torch.float32), tensors[0].shape[o.dim]
    result = torch.empty_like(z)
    where = _rows(result, o.dim)
    if where is None:
        result = torch.empty_like(z, memory_format=torch.contiguous_format)
        where = rows(result.shape, result.stride(), o.dim) or (0, 1, 1, 0)
    name, fields, owners = _fields((z, *tensors[1:]), o)
    keep = (0, 0) if kept is None else (1, _own(owners, kept, torch.float32).data_ptr())
    scale, each = _factor(owners, grad, count)
    fields += [*each, *keep, scale, result.data_ptr(), *where]
    _run(name, z.numel() // c, z.numel(), [1, *fields], owners)
    return result


def sigmoid_kernel_losses(z: Tensor, y: Tensor, spec: Binary, reduction: str) -> Tensor:
    """Return the loss by machine code."""
    each = reduction == "none"
    fields, owners, z = _sigmoid_fields(z, y, spec)
    loss = torch.empty_like(z) if each else z.new_empty(0)
    fields += [each, loss.data_ptr(), 1.0, 0]
    total, count = _run("sigmoid", z.numel(), z.numel(), [0, *fields], owners)
    return loss if each else _value(z, reduction, total, count)


def sigmoid_kernel_gradient(z: Tensor, y: Tensor, spec: Binary, grad: Tensor, count: float) -> Tensor:
    """Return the gradient by the logits by machine code."""
    fields, owners, z = _sigmoid_fields(z, y, spec)
    if grad.ndim:
        grad = torch.empty_like(z).copy_(grad)  # in the order of the logits
    result = torch.empty_like(z)
    scale, each = _factor(owners, grad, count)
    _run("sigmoid", z.numel(), z.numel(), [1, *fields, *each, scale, result.data_ptr()], owners)
    return result


def _run(name: str, count: int, work: int, fields: list[float], owners: list[Tensor]) -> tuple[float, float]:
    """Run a kernel on memory that the owners hold until it ends; return its sums."""
    modules = kernels()
    team = modules["machine"].openmp(FOLDER)
    try:
        sums: tuple[float, float] = getattr(modules[name], name)(
            count, work, torch.get_num_threads(), team, owners, *fields
        )
    except IndexError as error:
        (row,) = error.args
        raise IndexError(f"Target {int(owners[0].reshape(-1)[row])} is out of bounds.") from None
    return sums


def _fields(tensors: Tensors, o: Options) -> tuple[str, list[float], list[Tensor]]:
    """Return the kind of kernel, what its record has of the inputs, and who owns the memory."""
    z, target, gammas, weight = tensors
    owners: list[Tensor] = []
    labels = _own(owners, target, torch.int64).data_ptr() if o.hard else 0  # the first: see `_run`
    fields: list[float] = [z.shape[o.dim], *_own_rows(owners, z, o.dim)]
    name, gamma = "hard" if o.hard and not o.smoothing else "soft", min(o.gamma, LARGEST_GAMMA)
    if name == "hard":
        fields += [labels]
    else:
        where = (0, 0, 0, 1, 0) if o.hard else _own_rows(owners, target.to(torch.float32), o.dim)
        whole = gammas is None and gamma in (
            0.0,
            1.0,
            2.0,
            3.0,
        )  # powers by multiplication are the faster ones
        fields += [o.hard, labels, *where, o.smoothing]
        fields += [1, int(gamma) & 1, int(gamma) & 2] if whole else [0, 0, 0]
    address = 0
    if gammas is not None:
        gammas = gammas.to(torch.float64).clamp(max=LARGEST_GAMMA)
        if o.kind == OF_ROWS:
            gammas = gammas.broadcast_to(z.shape[: o.dim] + z.shape[o.dim + 1 :])
        address = _own(owners, gammas, torch.float64).data_ptr()
    fields += [gamma, o.kind, address]
    fields += [0, 0] if weight is None else [1, _own(owners, weight, torch.float32).data_ptr()]
    return name, [*fields, o.ignore], owners


def _sigmoid_fields(z: Tensor, y: Tensor, spec: Binary) -> tuple[list[float], list[Tensor], Tensor]:
    """Return what a record has of the inputs, who owns the memory, and the logits, without gaps in it."""
    z = _readable(z, torch.float32)
    if not z.is_contiguous() and torch.empty_like(z).stride() != z.stride():  # with gaps, or overlapping
        z = z.contiguous()
    if y.dtype is not torch.float32 or y.stride() != z.stride() or y.is_neg():
        y = torch.empty_like(z).copy_(y)
    gamma = min(float(spec.gamma), LARGEST_GAMMA)
    whole = min(3, int(gamma))  # powers by multiplication are the exact ones
    numbers = [whole & 1, whole & 2, gamma - whole, float(spec.of_one), float(spec.of_zero)]
    return [z.data_ptr(), y.data_ptr(), *numbers], [z, y], z


def _rows(x: Tensor, dim: int) -> tuple[int, ...] | None:
    if x.ndim == 2 and dim == 1:
        outer, of_class = x.stride()
        return outer, of_class, 1, 0
    return rows(x.shape, x.stride(), dim)


def _own_rows(owners: list[Tensor], x: Tensor, dim: int) -> tuple[int, ...]:
    """Return the fields of rows, whose memory is added to the owners."""
    x = _readable(x, torch.float32)
    where = _rows(x, dim)
    if where is None:
        x = x.contiguous()
        where = rows(x.shape, x.stride(), dim)
        assert where is not None
    owners.append(x)
    return x.data_ptr(), *where


def _own(owners: list[Tensor], x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor as a run of numbers, and add it to the owners."""
    x = _readable(x, dtype)
    owners.append(x if x.is_contiguous() else x.contiguous())
    return owners[-1]


def _readable(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor that machine code can read: hooks on saved tensors may have given another one back."""
    if x.dtype is dtype and x.is_cpu and not (x.is_neg() or x._is_zerotensor()):
        return x
    return x.to("cpu", dtype).resolve_neg().clone()


def _factor(owners: list[Tensor], grad: Tensor, count: float) -> tuple[float, tuple[int, int]]:
    """Return what gradients are multiplied by: a number, and whether and where each row has its own."""
    if grad.ndim == 0:
        return grad.item() / count if count else 0.0, (0, 0)
    return 1.0, (1, _own(owners, grad, torch.float32).data_ptr())


def _value(z: Tensor, reduction: str, total: float, count: float) -> Tensor:
    """Return a sum, or a mean (NaN of no rows)."""
    if reduction == "mean":
        total = total / count if count else math.nan
    return z.new_full((), math.copysign(math.inf, total) if abs(total) > LARGEST else total)
