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


@torch.library.custom_op("refocal::softmax_rows", mutates_args=(), device_types="cpu")
def softmax_rows(
    z: Tensor,
    target: Tensor,
    gammas: Tensor | None,
    weight: Tensor | None,
    gamma: float,
    kind: int,
    ignore: int,
    smoothing: float,
    dim: int,
    hard: bool,
) -> tuple[Tensor, Tensor]:
    """Return the losses of rows, and what is kept for the gradient."""
    o = Options(gamma, kind, ignore, smoothing, dim, hard)
    if not z.numel():
        return eager.eager_rows((z, target, gammas, weight), o), z.new_empty(0)
    rows, kept, _ = dispatch.kernel_losses((z, target, gammas, weight), o, "none")
    return rows, z.new_empty(0) if kept is None else kept


@torch.library.custom_op("refocal::softmax_gradient", mutates_args=(), device_types="cpu")
def softmax_gradient(
    grad: Tensor,
    kept: Tensor,
    z: Tensor,
    target: Tensor,
    gammas: Tensor | None,
    weight: Tensor | None,
    gamma: float,
    kind: int,
    ignore: int,
    smoothing: float,
    dim: int,
    hard: bool,
) -> Tensor:
    """Return the gradient by the logits."""
    o = Options(gamma, kind, ignore, smoothing, dim, hard)
    if not z.numel():
        return torch.empty_like(z)
    grad = grad if grad.ndim else grad.expand(1)
    return dispatch.kernel_gradient((z, target, gammas, weight), o, kept if kept.numel() else None, grad, 1.0)


@torch.library.custom_op("refocal::sigmoid_losses", mutates_args=(), device_types="cpu")
def sigmoid_losses(z: Tensor, y: Tensor, gamma: float, of_one: float, of_zero: float) -> Tensor:
    """Return the loss of each binary problem."""
    if not z.numel():
        return torch.empty_like(z)
    return dispatch.sigmoid_kernel_losses(z, y, Binary(gamma, of_one, of_zero), "none")


@torch.library.custom_op("refocal::sigmoid_gradient", mutates_args=(), device_types="cpu")
def sigmoid_gradient(
    grad: Tensor, z: Tensor, y: Tensor, gamma: float, of_one: float, of_zero: float
) -> Tensor:
    """Return the gradient by the logits."""
    if not z.numel():
        return torch.empty_like(z)
    return dispatch.sigmoid_kernel_gradient(z, y, Binary(gamma, of_one, of_zero), grad.expand(z.shape), 1.0)


# Shapes alone


@softmax_rows.register_fake
def _(z: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    *_, smoothing, dim, hard = args
    shape = z.shape[:dim] + z.shape[dim + 1 :]
    count = z.numel() // z.shape[dim] if z.shape[dim] else 0
    keeps = hard and not smoothing and z.shape[dim] >= dispatch.KEEP
    return z.new_empty(shape), z.new_empty((count, 3) if keeps else (0,))


@softmax_gradient.register_fake
def _(grad: Tensor, kept: Tensor, z: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(z)


@sigmoid_losses.register_fake
def _(z: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(z)


@sigmoid_gradient.register_fake
def _(grad: Tensor, z: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(z)


# Gradients


def _keep_softmax(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, gamma, kind, ignore, smoothing, dim, hard = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, output[1])
    ctx.options = Options(gamma, kind, ignore, smoothing, dim, hard)


def _softmax_backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    z, target, gammas, weight, kept = ctx.saved_tensors
    tensors, o = (z, target, gammas, weight), ctx.options
    wanted = ctx.needs_input_grad[:2]
    if torch.is_grad_enabled():

        def loss(z: Tensor, target: Tensor) -> Tensor:
            return eager.formula_rows((z, target, gammas, weight), o)

        return *dispatch.by_autograd(loss, (z, target), wanted, grad), *[None] * 8
    by_z = softmax_gradient(grad, kept, *tensors, *o) if wanted[0] else None
    return by_z, eager.target_gradient(tensors, o, grad) if wanted[1] else None, *[None] * 8


def _keep_sigmoid(ctx: Any, inputs: Any, output: Any) -> None:
    z, y, *numbers = inputs
    ctx.save_for_backward(z, y)
    ctx.spec = Binary(*numbers)


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


def _in_front(x: Any, at: int | None, size: int) -> Any:
    if not isinstance(x, Tensor):
        return x
    return x.expand(size, *x.shape) if at is None else x.movedim(at, 0)


@softmax_rows.register_vmap
def _(info: Any, in_dims: Any, *args: Any) -> Any:
    z, target, gammas, weight, gamma, kind, ignore, smoothing, dim, hard = args
    if in_dims[3] is not None or (kind != OF_ROWS and in_dims[2] is not None):
        raise ValueError(
            "weight and gamma must not differ between the problems of vmap in a compiled function"
        )
    z, target = (_in_front(x, at, info.batch_size) for x, at in zip((z, target), in_dims, strict=False))
    if kind == OF_ROWS:
        rows = z.shape[1 : dim + 1] + z.shape[dim + 2 :]
        gammas = _in_front(
            gammas.broadcast_to(rows) if in_dims[2] is None else gammas, in_dims[2], info.batch_size
        )
    rows, kept = softmax_rows(z, target, gammas, weight, gamma, kind, ignore, smoothing, dim + 1, hard)
    kept = kept.view(info.batch_size, -1, 3) if kept.numel() else kept.expand(info.batch_size, 0)
    return (rows, kept), (0, 0)
