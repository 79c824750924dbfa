"""The one place that decides how a loss is computed, and the autograd functions that it leads to.

There are five forms of each loss, equal within rounding:

- ``kernel``: machine code for float32 on the CPU, see `refocal.kernels`;
- ``triton``: kernels for GPUs, also in half precision, see `refocal.torch.cuda`;
- ``operator``: either of them as an operator that `torch.compile` does not look into;
- ``eager``: closed forms in PyTorch's operations, for every device and dtype;
- ``formula``: operations that every transformation of PyTorch can follow and differentiate, again and again.

`choose` is the table for losses, `choose_gradient` for their first derivatives; all further ones go through
the formula. The environment variable REFOCAL_KERNELS is ``all`` (the default), ``cpu`` or ``cuda`` for one
kind of kernels (``cuda`` is for all of Triton's), or ``off`` for none.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from refocal._arrays import are_plain_tensors
from refocal.torch import cpu, cuda
from refocal.torch.eager import (
    TENSORS,
    Loss,
    Sigmoid,
    Softmax,
    working_dtype,
)

AHEAD = 1 << 14
"""Up to so many logits, 64 KiB, the gradient is computed with the loss: the backward pass only scales it."""


def choose(
    z: Tensor,
    target: Tensor,
    *others: Tensor | None,
    loss: type[Loss] = Softmax,
    one_gamma: bool = True,
    one_each: bool = True,
) -> str:
    """Return the name of the form that computes a loss of these tensors: the first line that fits.

    Of a sigmoid loss, the kernel takes one number for gamma (``one_gamma``), its operator also one for each
    of the weights (``one_each``).
    """
    narrow = working_dtype(z) == torch.float32
    if torch.compiler.is_compiling():
        # A file must not need our operators, and `torch.func` cannot differentiate them.
        if torch.compiler.is_exporting() or _in_func_grad():
            return "formula"
        fits = z.device.type == "cpu" and narrow and _has_kernels()
        fits = fits or _fit_triton(loss, z, target, *others)
        return "operator" if fits and one_gamma and one_each else "formula"
    if not are_plain_tensors(z, target, *others):  # somebody follows the operations
        return "formula"
    if one_gamma and z.is_cpu and target.is_cpu and narrow and cpu.kernels():
        return "kernel"
    return "triton" if _fit_triton(loss, z, target, *others) else "eager"


def _fit_triton(loss: type[Loss], z: Tensor, *others: Tensor | None) -> bool:
    return cuda.serves(loss, z) and all(x is None or x.device == z.device for x in others)


def choose_gradient(form: str, *tensors: Tensor | None) -> str:
    """Return the name of the form that computes a gradient, given that of the loss."""
    if torch.is_grad_enabled():  # it will be differentiated again
        return "formula"
    if torch.compiler.is_compiling():  # compiled autograd
        return "eager"
    return form if are_plain_tensors(*tensors) else "formula"


def _has_kernels() -> bool:
    return bool(cpu.kernels())


_has_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]  # see `refocal.torch.cuda._usable`


def _in_func_grad() -> bool:
    """Whether `torch.func` differentiates around; its vmap alone does not count."""
    functorch = torch._C._functorch
    levels = functorch.get_interpreter_stack() or []
    return any(level.key() != functorch.TransformType.Vmap for level in levels)


_in_func_grad._dynamo_marked_constant = True  # type: ignore[attr-defined]


# The losses


def loss_of(p: Loss, reduction: str) -> Tensor:
    """Return a loss by the form that `choose` names."""
    if isinstance(p, Softmax):
        form = choose(p.z, p.target, p.gammas, p.weight)
    else:
        one_gamma, *one_each = (not isinstance(x, Tensor) for x in (p.gamma, p.of_one, p.of_zero))
        form = choose(p.z, p.target, loss=Sigmoid, one_gamma=one_gamma, one_each=all(one_each))
    if form != "triton" and not (form == "operator" and cuda.serves(type(p), p.z)):
        p = p.wide()  # other kernels read half precision as it is
    if form == "kernel":
        return apply(p, cpu.record_of(p), reduction)
    if form == "triton" and isinstance(p, Sigmoid):
        return apply(p, form, reduction)
    if form in ("triton", "eager"):
        losses = apply(p, form, "none")
    elif form == "operator":
        from refocal.torch import compiled

        return compiled.loss_of(p, reduction)
    else:
        losses = p.formula()
    return p.reduced(losses, reduction)


def apply(p: Loss, by: cpu.Record | str, reduction: str) -> Tensor:
    """Return a loss by machine code, given its record, or by the form of a name."""
    by_z, by_target = p.z.requires_grad, p.target.requires_grad
    if not (torch.is_grad_enabled() and (by_z or by_target)):
        found = cpu.losses(p, by, reduction) if isinstance(by, cpu.Record) else _losses(p, by, reduction)
        return found[0]
    # All but tensors in one, since PyTorch looks at each argument.
    result: Tensor = _apply_plainly((p, by, reduction, by_z), *p[: TENSORS[type(p)]])
    return result


def _losses(p: Loss, form: str, reduction: str) -> tuple[Tensor, Tensor | None]:
    """Return a loss by Triton, or the losses in closed form, and what is kept for the gradient."""
    return cuda.losses(p, reduction) if form == "triton" else (p.losses(), None)


class ClosedForm(Function):
    """A loss by machine code or in closed form. Of many rows at most three numbers of each are kept."""

    @staticmethod
    def forward(ctx: Any, rest: tuple[Loss, cpu.Record | str, str, bool], *tensors: Any) -> Tensor:
        p, by, reduction, by_z = rest
        if isinstance(by, cpu.Record):
            loss, kept, ctx.count, ctx.ahead = cpu.losses(p, by, reduction, AHEAD if by_z else 0)
        else:
            (loss, kept), ctx.count, ctx.ahead = _losses(p, by, reduction), 1.0, False
        # Weights and gammas too: their change before the backward pass is an error.
        ctx.save_for_backward(*tensors, kept)
        form = "kernel" if isinstance(by, cpu.Record) else by
        ctx.rest = type(p), form, reduction, p[len(tensors) :]
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, kept = ctx.saved_tensors
        kind, form, reduction, numbers = ctx.rest
        grad, wanted, others = grads[0], ctx.needs_input_grad[1:3], [None] * (len(tensors) - 2)
        by_z = by_target = None
        if ctx.ahead:
            plain = choose_gradient(form, grad, kept) == "kernel"
            if plain and math.isfinite(scale := grad.item() / ctx.count):
                by_z, wanted = kept * scale, (False, wanted[1])
                if not wanted[1]:
                    return None, by_z, None, *others
            kept = None
        p = kind(*tensors, *numbers)
        form = choose_gradient(form, grad, *tensors, kept)
        if form == "triton" and not cuda.serves(kind, p.z):  # hooks may have given other tensors back
            form = "eager"
        if form != "formula" and kind is Sigmoid and kept is not None:
            grad = grad / kept  # of a mean by Triton, on the device, whoever computes the gradient
        if form == "formula":
            by_z, by_target = by_autograd(p, reduction, grad, ctx.needs_input_grad[1:3])
        elif form == "kernel" and wanted[0]:
            by_z, wanted = cpu.gradient(p, kept, grad, ctx.count), (False, wanted[1])
        elif form == "triton" and wanted[0]:
            by_z, wanted = cuda.gradient(p, kept, grad), (False, wanted[1])
        if form != "formula" and any(wanted):
            scaled = grad / ctx.count if ctx.count else grad * math.nan  # the mean of no rows
            found, by_target = p.wide().gradients(scaled, wanted)
            by_z = by_z if found is None else found.to(p.z.dtype)
            by_target = by_target if by_target is None else by_target.to(p.target.dtype)
        return None, by_z, by_target, *others


_apply_plainly: Any = super(Function, ClosedForm).apply
"""`ClosedForm.apply` without what that does for `torch.func`, which `choose` has ruled out."""


def by_autograd(p: Loss, reduction: str, grad: Tensor, wanted: tuple[bool, ...]) -> list[Tensor | None]:
    """Return gradients by autograd, with a graph of their own if they will be differentiated again."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, or hooks on the inputs would run, and the history of the inputs would be walked, here too.
        p = p._replace(z=p.z.view_as(p.z), target=p.target.view_as(p.target))
        needed = [x for x, w in zip(p[:2], wanted, strict=True) if w]
        p = p.wide()
        loss = p.reduced(p.formula(), reduction)
        found = iter(torch.autograd.grad(loss, needed, grad, create_graph=again))
    return [next(found) if w else None for w in wanted]


@torch.no_grad()
def gradient_of(p: Softmax) -> Tensor:
    """Return the gradient by the logits of the sum of the losses."""
    one, form = p.z.new_ones((), dtype=working_dtype(p.z)), choose(p.z, p.target, p.gammas, p.weight)
    if form == "triton":
        return cuda.gradient(p, None, one)
    p = p.wide()
    if form == "kernel":
        return cpu.gradient(p, None, one, 1.0)
    p.check_labels()
    by_z, _ = p.gradients(one, (True, False))
    assert by_z is not None
    return by_z
