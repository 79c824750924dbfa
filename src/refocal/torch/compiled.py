"""Machine code as operators of PyTorch, which `torch.compile` calls and does not look into.

Each has a fake form (shapes alone), its gradient, and what `torch.vmap` makes of it. Kernels for other
devices register themselves with the same operators.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refocal.torch import dispatch, eager
from refocal.torch.eager import OF_ROWS, Binary, Options

SOFTMAX = "Tensor z, Tensor target, Tensor? gammas, Tensor? weight, "
SOFTMAX += "float gamma, int kind, SymInt ignore, float smoothing, int dim, bool hard"
SIGMOID = "Tensor z, Tensor y, float gamma, float of_one, float of_zero"


def _operator(name: str, schema: str) -> Any:
    return torch.library.custom_op(f"refocal::{name}", mutates_args=(), device_types="cpu", schema=schema)


@_operator("softmax_rows", f"({SOFTMAX}) -> (Tensor, Tensor)")  # type: ignore[untyped-decorator]
def softmax_rows(*args: Any) -> tuple[Tensor, Tensor]:
    """Return the losses of rows, and what is kept for the gradient."""
    tensors, o = args[:4], Options(*args[4:])
    z = tensors[0]
    if not z.numel():
        return eager.eager_rows(tensors, o), z.new_empty(0)
    rows, kept, _ = dispatch.kernel_losses(tensors, o, "none")
    return rows, z.new_empty(0) if kept is None else kept


@_operator("softmax_gradient", f"(Tensor grad, Tensor kept, {SOFTMAX}) -> Tensor")  # type: ignore[untyped-decorator]
def softmax_gradient(grad: Tensor, kept: Tensor, *args: Any) -> Tensor:
    """Return the gradient by the logits."""
    tensors, o = args[:4], Options(*args[4:])
    if not tensors[0].numel():
        return torch.empty_like(tensors[0])
    return dispatch.kernel_gradient(tensors, o, kept if kept.numel() else None, grad, 1.0)


@_operator("sigmoid_losses", f"({SIGMOID}) -> Tensor")  # type: ignore[untyped-decorator]
def sigmoid_losses(z: Tensor, y: Tensor, *numbers: float) -> Tensor:
    """Return the loss of each binary problem."""
    return (
        dispatch.sigmoid_kernel_losses(z, y, Binary(*numbers), "none") if z.numel() else torch.empty_like(z)
    )


@_operator("sigmoid_gradient", f"(Tensor grad, {SIGMOID}) -> Tensor")  # type: ignore[untyped-decorator]
def sigmoid_gradient(grad: Tensor, z: Tensor, y: Tensor, *numbers: float) -> Tensor:
    """Return the gradient by the logits."""
    if not z.numel():
        return torch.empty_like(z)
    return dispatch.sigmoid_kernel_gradient(z, y, Binary(*numbers), grad, 1.0)


# Shapes alone


@softmax_rows.register_fake  # type: ignore[untyped-decorator]
def _(*args: Any) -> tuple[Tensor, Tensor]:
    z, o = args[0], Options(*args[4:])
    c = z.shape[o.dim]
    keeps = o.hard and not o.smoothing and c >= dispatch.KEEP
    rows = z.new_empty(z.shape[: o.dim] + z.shape[o.dim + 1 :])
    return rows, z.new_empty((rows.numel(), 3) if keeps else (0,))


softmax_gradient.register_fake(lambda grad, kept, z, *args: torch.empty_like(z))
sigmoid_losses.register_fake(lambda z, *args: torch.empty_like(z))
sigmoid_gradient.register_fake(lambda grad, z, *args: torch.empty_like(z))


# Gradients


def _keep_softmax(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[:4], output[1])
    ctx.options = Options(*inputs[4:])


def _softmax_backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    z, target, gammas, weight, kept = ctx.saved_tensors
    tensors, o, wanted = (z, target, gammas, weight), ctx.options, ctx.needs_input_grad[:2]
    if torch.is_grad_enabled():

        def loss(z: Tensor, target: Tensor) -> Tensor:
            return eager.formula_rows((z, target, gammas, weight), o)

        return *dispatch.by_autograd(loss, (z, target), wanted, grad), *[None] * 8
    by_z = softmax_gradient(grad, kept, *tensors, *o) if wanted[0] else None
    return by_z, eager.target_gradient(tensors, o, grad) if wanted[1] else None, *[None] * 8


def _keep_sigmoid(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.spec = Binary(*inputs[2:])


def _sigmoid_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (z, y), spec, wanted = ctx.saved_tensors, ctx.spec, ctx.needs_input_grad[:2]
    if torch.is_grad_enabled():
        again = dispatch.by_autograd(lambda z, y: eager.sigmoid_losses(z, y, spec), (z, y), wanted, grad)
        return *again, None, None, None
    by_z = sigmoid_gradient(grad, z, y, *spec) if wanted[0] else None
    _, by_y = eager.sigmoid_gradients(z, y, spec, grad, (False, wanted[1]))
    return by_z, by_y, None, None, None


softmax_rows.register_autograd(_softmax_backward, setup_context=_keep_softmax)
sigmoid_losses.register_autograd(_sigmoid_backward, setup_context=_keep_sigmoid)


# Under vmap: rows and entries do not know of each other, so one more axis in front is one more axis of rows.


def _in_front(x: Tensor, at: int | None, size: int) -> Tensor:
    return x.expand(size, *x.shape) if at is None else x.movedim(at, 0)


@softmax_rows.register_vmap  # type: ignore[untyped-decorator]
def _(info: Any, in_dims: Any, *args: Any) -> Any:
    (z, target, gammas, weight), o, size = args[:4], Options(*args[4:]), info.batch_size
    if in_dims[3] is not None or (o.kind != OF_ROWS and in_dims[2] is not None):
        raise ValueError("weight and gamma must be the same for all problems of a compiled vmap")
    if gammas is not None and o.kind == OF_ROWS:
        gammas = _in_front(
            gammas.broadcast_to(target.shape) if in_dims[2] is None else gammas, in_dims[2], size
        )
    z, target = _in_front(z, in_dims[0], size), _in_front(target, in_dims[1], size)
    rows, kept = softmax_rows(z, target, gammas, weight, *o._replace(dim=o.dim + 1))
    return (rows, kept.view(size, -1, 3) if kept.numel() else kept.expand(size, 0)), (0, 0)


@sigmoid_losses.register_vmap  # type: ignore[untyped-decorator]
def _(info: Any, in_dims: Any, z: Tensor, y: Tensor, *numbers: Any) -> Any:
    both = (_in_front(x, at, info.batch_size) for x, at in zip((z, y), in_dims, strict=False))
    return sigmoid_losses(*both, *numbers), 0
