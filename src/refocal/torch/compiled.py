"""Kernels as operators of PyTorch, which `torch.compile` calls and does not look into.

Each has a fake form (shapes alone), its gradient, and what `torch.vmap` makes of it. One operator stands for
all devices: machine code for the CPU, Triton's kernels elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from refocal.torch import cpu, cuda, dispatch
from refocal.torch.eager import KEEP, OF_ROWS, TENSORS, Loss, Sigmoid, Softmax, working_dtype

SOFTMAX = "Tensor z, Tensor target, Tensor? gammas, Tensor? weight, "
SOFTMAX += "float gamma, int kind, SymInt ignore, float smoothing, int dim, bool hard"
SIGMOID = "Tensor z, Tensor y, float gamma, float of_one, float of_zero, float? ignore, float smoothing"

AHEAD = 1 << 20
"""Up to so many logits, 4 MiB, of few classes a compiled loss computes its gradient ahead."""


def _operator(name: str, schema: str) -> Any:
    return torch.library.custom_op(f"refocal::{name}", mutates_args=(), schema=schema)


def _as_promised(z: Tensor, x: Tensor) -> Tensor:
    """Return x in the strides that the fake forms below promise."""
    promised = torch.empty_like(z, dtype=x.dtype, device="meta").stride()  # mostly no memory is needed
    return x if x.stride() == promised else torch.empty_like(z, dtype=x.dtype).copy_(x)


@_operator("softmax_rows", f"({SOFTMAX}) -> (Tensor, Tensor)")  # type: ignore[untyped-decorator]
def softmax_rows(*args: Any) -> tuple[Tensor, Tensor]:
    """Return the losses of rows, and what is kept for the gradient."""
    p = Softmax(*args)
    if cuda.serves(Softmax, p.z):
        rows, kept = cuda.losses(p)
    else:
        rows, kept, *_ = cpu.losses(p, cpu.record_of(p), "none")
    if kept is None:
        kept = rows.new_empty(_kept_shape(p))
        kept[:1] = math.nan  # nothing of the promised is there, see `softmax_gradient`
    return rows, kept


def _kept_shape(p: Softmax) -> tuple[int, ...]:
    """Return what is promised to be kept, though pixels need nothing."""
    keeps = cuda.serves(Softmax, p.z) or (p.hard and not p.smoothing)
    return (p.rows.numel(), 3) if keeps and p.z.shape[p.dim] >= KEEP else (0,)


@_operator("softmax_gradient", f"(Tensor grad, Tensor kept, {SOFTMAX}) -> Tensor")  # type: ignore[untyped-decorator]
def softmax_gradient(grad: Tensor, kept: Tensor, *args: Any) -> Tensor:
    """Return the gradient by the logits."""
    p = Softmax(*args)
    if cuda.serves(Softmax, p.z):
        return _as_promised(p.z, cuda.gradient(p, kept if kept.numel() else None, grad))
    # By their strides now, logits may need what pixels did not keep; after a NaN it is found anew as well.
    found = kept if kept.numel() and not kept[0, 0].isnan() else None
    return _as_promised(p.z, cpu.gradient(p, found, grad, 1.0))


@_operator("softmax_total", f"({SOFTMAX}, bool mean) -> (Tensor, Tensor, Tensor)")  # type: ignore[untyped-decorator]
def softmax_total(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean or the sum of the losses of few classes, what a mean was divided by, and with the same
    pass over the logits the gradient of the sum."""
    *given, mean = args
    p = Softmax(*given)
    reduction = "mean" if mean else "sum"
    loss, kept, number, _ = cpu.losses(p, cpu.record_of(p), reduction, ahead=p.z.numel())
    if kept is None:  # the mean of no rows
        kept = cpu.gradient(p, None, p.z.new_ones(()), number)
    return loss, p.z.new_full((), number), _as_promised(p.z, kept)


@_operator("sigmoid_losses", f"({SIGMOID}) -> Tensor")  # type: ignore[untyped-decorator]
def sigmoid_losses(*args: Any) -> Tensor:
    """Return the loss of each binary problem."""
    p = Sigmoid(*args)
    if cuda.serves(Sigmoid, p.z):
        return _as_promised(p.z, cuda.losses(p)[0])
    return _as_promised(p.z, cpu.losses(p, cpu.record_of(p), "none")[0])


@_operator("sigmoid_total", f"({SIGMOID}, bool mean) -> (Tensor, Tensor)")  # type: ignore[untyped-decorator]
def sigmoid_total(*args: Any) -> tuple[Tensor, Tensor]:
    """Return the mean or the sum of the losses of binary problems, and what a mean was divided by."""
    *given, mean = args
    p = Sigmoid(*given)
    reduction = "mean" if mean else "sum"
    if cuda.serves(Sigmoid, p.z):
        loss, number = cuda.losses(p, reduction)
        return loss, loss.new_ones(()) if number is None else number.clone()
    loss, _, count, _ = cpu.losses(p, cpu.record_of(p), reduction)
    return loss, loss.new_full((), count)


@_operator("sigmoid_gradient", f"(Tensor grad, {SIGMOID}) -> Tensor")  # type: ignore[untyped-decorator]
def sigmoid_gradient(grad: Tensor, *args: Any) -> Tensor:
    """Return the gradient by the logits; grad is a number, or one for each loss."""
    p = Sigmoid(*args)
    if cuda.serves(Sigmoid, p.z):
        return _as_promised(p.z, cuda.gradient(p, None, grad))
    return _as_promised(p.z, cpu.gradient(p, None, grad, 1.0))


def loss_of(p: Loss, reduction: str) -> Tensor:
    """Return a loss by an operator."""
    if isinstance(p, Softmax) and reduction != "none" and _ahead(p):
        loss: Tensor = softmax_total(*p, reduction == "mean")[0]
        return loss
    if isinstance(p, Sigmoid) and reduction != "none":
        loss = sigmoid_total(*p, reduction == "mean")[0]
        return loss
    losses = softmax_rows(*p)[0] if isinstance(p, Softmax) else sigmoid_losses(*p)
    return p.reduced(losses, reduction)


def _ahead(p: Softmax) -> bool:
    """Whether the gradient will be needed, and may be computed with the loss and kept."""
    few = p.z.shape[p.dim] < KEEP and p.z.numel() <= AHEAD and not cuda.serves(Softmax, p.z)
    return few and p.z.requires_grad and torch.is_grad_enabled()


# Shapes alone


@softmax_rows.register_fake  # type: ignore[untyped-decorator]
def _(*args: Any) -> tuple[Tensor, Tensor]:
    p = Softmax(*args)
    rows = p.z.new_empty(p.rows, dtype=working_dtype(p.z))
    return rows, rows.new_empty(_kept_shape(p))


@softmax_total.register_fake  # type: ignore[untyped-decorator]
def _(z: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return z.new_empty(()), z.new_empty(()), torch.empty_like(z)


@sigmoid_total.register_fake  # type: ignore[untyped-decorator]
def _(z: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    loss = z.new_empty((), dtype=working_dtype(z))
    return loss, loss.new_empty(())


softmax_gradient.register_fake(lambda grad, kept, z, *args: torch.empty_like(z))
sigmoid_losses.register_fake(lambda z, *args: torch.empty_like(z, dtype=working_dtype(z)))
sigmoid_gradient.register_fake(lambda grad, z, *args: torch.empty_like(z))


# Gradients


def _keep(kind: type[Loss]) -> Callable[[Any, Any, Any], None]:
    tensors = TENSORS[kind]

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        kept = output[1:] if isinstance(output, tuple) else ()
        ctx.mark_non_differentiable(*kept)
        ctx.save_for_backward(*inputs[:tensors], *kept)
        ctx.numbers = inputs[tensors:]

    return keep


def _softmax_backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    *tensors, kept = ctx.saved_tensors
    p = Softmax(*tensors, *ctx.numbers)
    return _gradients(ctx, p, grad, lambda: softmax_gradient(grad, kept, *p))


def _total_backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    *tensors, number, kept = ctx.saved_tensors
    *numbers, mean = ctx.numbers
    p, scale = Softmax(*tensors, *numbers), grad / number
    # An ignored row has no gradient, whatever the scale is.
    by_z = lambda: torch.where(kept == 0, 0, kept * scale)  # noqa: E731
    return *_gradients(ctx, p, grad, by_z, "mean" if mean else "sum", scale), None


def _sigmoid_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    p = Sigmoid(*ctx.saved_tensors, *ctx.numbers)
    return _gradients(ctx, p, grad, lambda: sigmoid_gradient(grad, *p))


def _sigmoid_total_backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    *tensors, number = ctx.saved_tensors
    *numbers, mean = ctx.numbers
    p, scale = Sigmoid(*tensors, *numbers), grad / number
    by_z = lambda: sigmoid_gradient(scale, *p)  # noqa: E731
    return *_gradients(ctx, p, grad, by_z, "mean" if mean else "sum", scale), None


def _gradients(
    ctx: Any,
    p: Loss,
    grad: Tensor,
    by_z: Callable[[], Tensor],
    reduction: str = "none",
    scale: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    wanted, others = ctx.needs_input_grad[:2], [None] * (len(p) - 2)
    if torch.is_grad_enabled():  # they will be differentiated again
        return *dispatch.by_autograd(p, reduction, grad, wanted), *others
    _, by_target = p.wide().gradients(grad if scale is None else scale, (False, wanted[1]))
    by_target = by_target if by_target is None else by_target.to(p.target.dtype)
    return by_z() if wanted[0] else None, by_target, *others


softmax_rows.register_autograd(_softmax_backward, setup_context=_keep(Softmax))
softmax_total.register_autograd(_total_backward, setup_context=_keep(Softmax))
sigmoid_losses.register_autograd(_sigmoid_backward, setup_context=_keep(Sigmoid))
sigmoid_total.register_autograd(_sigmoid_total_backward, setup_context=_keep(Sigmoid))


# Under vmap: rows and entries do not know of each other, so one more axis in front is one more axis of rows.


def _in_front(x: Tensor, at: int | None, size: int) -> Tensor:
    return x.expand(size, *x.shape) if at is None else x.movedim(at, 0)


@softmax_rows.register_vmap  # type: ignore[untyped-decorator]
def _(info: Any, in_dims: Any, *args: Any) -> Any:
    p, size = Softmax(*args), info.batch_size
    if in_dims[3] is not None or (p.kind != OF_ROWS and in_dims[2] is not None):
        raise ValueError("weight and gamma must be the same for all problems of a compiled vmap")
    z, target, gammas = _in_front(p.z, in_dims[0], size), _in_front(p.target, in_dims[1], size), p.gammas
    if gammas is not None and p.kind == OF_ROWS:
        # Axes that a problem's gammas lack come between the problems and theirs.
        gammas = _in_front(gammas, in_dims[2], size)
        gammas = gammas.reshape(size, *[1] * (z.ndim - 1 - gammas.ndim), *gammas.shape[1:])
    rows, kept = softmax_rows(z, target, gammas, p.weight, *p[4:8], p.dim + 1, p.hard)
    kept = kept.view(size, rows.numel() // size, 3) if kept.ndim == 2 else kept.expand(size, 0)
    return (rows, kept), (0, 0)


def _one_by_one(operator: Any) -> Callable[..., Any]:
    """Return the rule for an operator whose problems each have a mean of their own."""

    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        def of(i: int) -> list[Any]:
            return [x if at is None else x.select(at, i) for x, at in zip(args, in_dims, strict=True)]

        results = [
            torch.stack(x) for x in zip(*(operator(*of(i)) for i in range(info.batch_size)), strict=True)
        ]
        return tuple(results), (0,) * len(results)

    return rule


softmax_total.register_vmap(_one_by_one(softmax_total))
sigmoid_total.register_vmap(_one_by_one(sigmoid_total))


@sigmoid_losses.register_vmap  # type: ignore[untyped-decorator]
def _(info: Any, in_dims: Any, z: Tensor, y: Tensor, *numbers: Any) -> Any:
    both = (_in_front(x, at, info.batch_size) for x, at in zip((z, y), in_dims, strict=False))
    return sigmoid_losses(*both, *numbers), 0
