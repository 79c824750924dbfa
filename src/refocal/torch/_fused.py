"""Closed-form autograd functions: the focal loss near the price of cross entropy, and little memory.

By the logits z the gradient of a row is that of cross entropy times one number, phi(p) of the target's
probability p, since d loss / d log p = -phi(p). That number is all that is kept for the backward pass,
which takes the softmax again. With ``create_graph=True`` the backward pass differentiates the plain form
of the loss instead, so that derivatives of every order exist.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

BLOCK = 1 << 19
"""Entries worked on at a time on the CPU, so that temporaries stay in the cache."""

MANY_CLASSES = 64
"""From here on PyTorch's own softmax is fast on the CPU."""

Plain = Callable[..., Tensor]


def blocks(x: Tensor) -> Iterator[slice]:
    """Yield slices of rows: blocks of about `BLOCK` entries on the CPU, all rows elsewhere."""
    rows, columns = len(x), x[:1].numel()
    step = max(1, BLOCK // max(1, columns)) if x.device.type == "cpu" else max(1, rows)
    return (slice(i, min(i + step, rows)) for i in range(0, rows, step))


def in_blocks(x: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the `blocks` of x and those of others; a slice is a call, so few rows are passed as they are."""
    if x.numel() <= BLOCK:
        return iter(((x, *others),))
    return (tuple(t[rows] for t in (x, *others)) for rows in blocks(x))


_kept = threading.local()


def scratch(x: Tensor, count: int) -> list[Tensor]:
    """Return buffers of a block's shape. On the CPU they stay for the next call of the thread.

    Fresh ones cost more than the arithmetic, in page faults.
    """
    if x.device.type != "cpu" or x.numel() > BLOCK:
        return [torch.empty_like(x) for _ in range(count)]
    buffers = getattr(_kept, str(x.dtype), [])
    if len(buffers) < count or len(buffers[0]) != BLOCK:
        with torch.inference_mode(False):  # or a later training step could not write into them
            buffers = [torch.empty(BLOCK, dtype=x.dtype) for _ in range(count)]
        setattr(_kept, str(x.dtype), buffers)
    return [b[: x.numel()].view(x.shape) for b in buffers[:count]]


class HardFocal(Function):
    """The loss of every row for integer targets: logits (n, C), target (n, 1), gamma a number or (n,)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, gamma: Any, plain: Plain) -> Tensor:
        nll = _neg_log_prob(logits, target)
        power = torch.expm1(-nll).neg_().pow_(gamma)  # (1 - p)^gamma
        loss: Tensor = power * nll
        # phi = (1 - p)^gamma (1 + gamma (-log p) p / (1 - p)), where p / (1 - p) = 1 / expm1(-log p)
        ratio = nll.clamp_(max=torch.finfo(nll.dtype).max).div_(torch.expm1(nll)).mul_(gamma)
        ctx.save_for_backward(logits, target, power.addcmul_(power, ratio))
        ctx.plain = plain
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, phi = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *by_autograd(ctx, (logits,), grads[0]), None, None, None
        scale = (phi * grads[0]).unsqueeze(1)
        result = torch.empty_like(logits)
        for z, part, scale_part in in_blocks(logits, result, scale):
            _softmax(z, out=part).mul_(scale_part)
        return result.scatter_add_(1, target, scale.neg_()), None, None, None


def _neg_log_prob(logits: Tensor, target: Tensor) -> Tensor:
    """Return -log p of the target for every row; never 0, so that ratios of it are defined."""
    n, c = logits.shape
    tiny = torch.finfo(logits.dtype).tiny
    if c >= MANY_CLASSES and n * c <= 1 << 20:  # one call, at the price of its temporary
        return F.cross_entropy(logits, target.squeeze(1), reduction="none").clamp_(min=tiny)
    result = torch.empty_like(logits[:, 0])
    for z, y, part in in_blocks(logits, target, result):
        (others,) = scratch(z, 1)
        torch.sub(z, z.amax(1, keepdim=True), out=others)
        gap = others.gather(1, y).squeeze(1)
        others.exp_().scatter_(1, y, 0.0)
        # log(1 + odds) where the target is the largest: nothing is lost next to p = 1
        torch.sub(gap.expm1().add_(others.sum(1)).log1p_(), gap, out=part)
    return result.clamp_(min=tiny)


def _softmax(z: Tensor, out: Tensor) -> Tensor:
    """Fill out with the softmax; PyTorch's own is slow on the CPU for few classes."""
    if z.shape[1] >= MANY_CLASSES:
        return torch.softmax(z, 1, out=out)
    torch.sub(z, z.amax(1, keepdim=True), out=out).exp_()
    return out.div_(out.sum(1, keepdim=True))


class SoftFocal(Function):
    """The loss of every row for distributions: logits, targets (n, C).

    gamma is a number, (n, 1) or (1, C); weight is (1, C) or None.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, gamma: Any, weight: Tensor | None, plain: Plain
    ) -> Tensor:
        ctx.save_for_backward(logits, targets)
        ctx.gamma, ctx.weight, ctx.plain = gamma, weight, plain
        result = torch.empty_like(logits[:, 0])
        one = logits.new_ones(())
        for rows in blocks(logits):
            log_q, power = scratch(logits[rows], 2)
            _log_softmax(logits[rows], out=log_q)
            torch.exp(log_q, out=power)
            _power(torch.sub(one, power, out=power), _of_rows(gamma, rows)).mul_(log_q).mul_(targets[rows])
            if weight is not None:
                power.mul_(weight)
            torch.sum(power, 1, out=result[rows])
        return result.neg_()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets = ctx.saved_tensors
        if torch.is_grad_enabled() or ctx.needs_input_grad[1]:
            return *by_autograd(ctx, (logits, targets), grads[0]), None, None, None
        result = torch.empty_like(logits)
        one = logits.new_ones(())
        for rows in blocks(logits):
            q, gamma = result[rows], _of_rows(ctx.gamma, rows)
            log_q, miss = scratch(logits[rows], 2)
            _log_softmax(logits[rows], out=log_q)
            torch.exp(log_q, out=q)
            torch.sub(one, q, out=miss).clamp_(min=torch.finfo(miss.dtype).tiny)
            # phi = (1 - q)^(gamma - 1) (1 - q - gamma q log q)
            if isinstance(gamma, float):
                terms = torch.addcmul(miss, q, log_q, value=-gamma, out=log_q)
            else:
                terms = log_q.mul_(q).mul_(-gamma).add_(miss)
            terms.mul_(_power(miss, gamma - 1)).mul_(targets[rows])
            if ctx.weight is not None:
                terms.mul_(ctx.weight)
            grad = grads[0][rows].unsqueeze(1)
            q.mul_(terms.sum(1, keepdim=True).mul_(grad)).addcmul_(terms, grad, value=-1)
        return result, None, None, None, None


def _log_softmax(z: Tensor, out: Tensor) -> None:
    """Fill out with log q, with a large number for -inf, so that 0 log 0 is 0."""
    if z.shape[1] >= MANY_CLASSES or z.device.type != "cpu":
        torch.log_softmax(z, 1, out=out)
    else:
        torch.sub(z, z.amax(1, keepdim=True), out=out)
        out.sub_(out.exp().sum(1, keepdim=True).log_())
    out.clamp_(min=torch.finfo(z.dtype).min / 4)


def _of_rows(gamma: Any, rows: slice) -> Any:
    return gamma[rows] if isinstance(gamma, Tensor) and len(gamma) > 1 else gamma


def _power(miss: Tensor, gamma: Any) -> Tensor:
    """Return miss^gamma in place; PyTorch's own power by a fraction takes five times as long."""
    if isinstance(gamma, float) and gamma in (0.0, 1.0, 2.0, 3.0):
        return miss.pow_(gamma)
    return miss.clamp_(min=torch.finfo(miss.dtype).tiny).log_().mul_(gamma).exp_()


class Binary(NamedTuple):
    """The numbers of a binary focal loss."""

    gamma: float
    of_one: float
    """The weight of y = 1."""
    of_zero: float

    def weights(self, sign: Tensor) -> Tensor:
        """Return the weights of targets from their signs, in place."""
        return sign.mul_((self.of_one - self.of_zero) / 2).add_((self.of_one + self.of_zero) / 2)


class BinaryFocal(Function):
    """The sum of the losses of all entries, or each of them: logits and targets of one shape."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        spec: Binary,
        add_up: bool,
        plain: Plain,
    ) -> Tensor:
        ctx.save_for_backward(logits, targets)
        ctx.spec, ctx.add_up, ctx.plain = spec, add_up, plain
        z, y = logits.reshape(-1), targets.reshape(-1)
        ctx.hard = hard = _all_zero_or_one(y)
        total = z.new_zeros(())
        result = None if add_up else torch.empty_like(z)
        for rows in blocks(z):
            loss = _binary_loss(z[rows], y[rows], spec, hard)
            if result is None:
                total += loss.sum()
            else:
                result[rows] = loss
        return total if result is None else result.reshape(logits.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets = ctx.saved_tensors
        if torch.is_grad_enabled() or ctx.needs_input_grad[1]:
            return *by_autograd(ctx, (logits, targets), grads[0]), None, None, None
        z, y = logits.reshape(-1), targets.reshape(-1)
        grad = grads[0] if ctx.add_up else grads[0].reshape(-1)
        result = torch.empty_like(z)
        for rows in blocks(z):
            slope = _binary_slope(z[rows], y[rows], ctx.spec, ctx.hard)
            torch.mul(slope, grad if ctx.add_up else grad[rows], out=result[rows])
        return result.reshape(logits.shape), None, None, None, None


def _all_zero_or_one(y: Tensor) -> bool:
    """Whether no target is strictly between 0 and 1: then one sign of the logit is enough."""
    return all(not bool((y[rows] * y[rows]).sub_(y[rows]).any()) for rows in blocks(y))


def _is_moderate(z: Tensor) -> bool:
    """Whether no sigmoid of the logits underflows, so that its logarithm may be taken."""
    return bool(torch.linalg.vector_norm(z, torch.inf) < 80)


def _binary_loss(z: Tensor, y: Tensor, spec: Binary, hard: bool) -> Tensor:
    sign, s, hit, other = scratch(z, 4)
    if hard:
        torch.mul(y, 2, out=sign).sub_(1)
        torch.mul(sign, z, out=s)
        if _is_moderate(z):
            torch.sigmoid(s, out=hit).log_()
            loss = _power(torch.sigmoid(s.neg_(), out=other), spec.gamma).mul_(hit).neg_()
        else:
            _neg_logs(s, hit, other)
            loss = s.mul_(-spec.gamma).exp_().mul_(hit)
        return loss.mul_(spec.weights(sign))
    s.copy_(z)
    _neg_logs(s, hit, other)
    torch.mul(s, -spec.gamma, out=other).exp_().mul_(hit).mul_(y).mul_(spec.of_one)
    return hit.mul_(-spec.gamma).exp_().mul_(s).mul_(1 - y).mul_(spec.of_zero).add_(other)


def _binary_slope(z: Tensor, y: Tensor, spec: Binary, hard: bool) -> Tensor:
    sign, s, hit, other = scratch(z, 4)
    if hard:
        torch.mul(y, 2, out=sign).sub_(1)
        torch.mul(sign, z, out=s)
        if _is_moderate(z):
            torch.sigmoid(s, out=hit)
            torch.sigmoid(s.neg_(), out=other)
            torch.log(hit, out=s).mul_(hit)
            torch.sub(other, s, alpha=spec.gamma, out=s)  # 1 - p - gamma p log p
            slope = s.mul_(_power(other, spec.gamma))
            # minus the sign times its weight; the square of a sign is 1
            return slope.mul_(
                sign.mul_(-(spec.of_one + spec.of_zero) / 2).sub_((spec.of_one - spec.of_zero) / 2)
            )
        return _slope(s, hit, other, spec.gamma).mul_(sign).mul_(spec.weights(sign))
    torch.neg(z, out=s)
    torch.mul(_slope(s, hit, other, spec.gamma), 1 - y, out=sign).mul_(spec.of_zero)
    s.copy_(z)
    return _slope(s, hit, other, spec.gamma).mul_(y).mul_(spec.of_one).sub_(sign)


def _neg_logs(s: Tensor, hit: Tensor, other: Tensor) -> None:
    """Fill hit with -log p of p = sigmoid(s), and s with -log(1 - p)."""
    torch.abs(s, out=hit).neg_().exp_().log1p_()
    hit.sub_(torch.clamp(s, max=0, out=other))
    s.add_(hit)


def _slope(s: Tensor, hit: Tensor, other: Tensor, gamma: float) -> Tensor:
    """Return the derivative by s of the loss of y = 1: -(1 - p)^gamma (1 - p + gamma p (-log p))."""
    _neg_logs(s, hit, other)
    torch.neg(hit, out=other).exp_().mul_(hit).mul_(gamma)
    s.neg_()
    torch.exp(s, out=hit).add_(other)
    return s.mul_(gamma).exp_().mul_(hit).neg_()


def by_autograd(ctx: Any, inputs: tuple[Tensor, ...], grad: Tensor) -> list[Tensor | None]:
    """Return the gradients as functions that can be differentiated again."""
    needed = ctx.needs_input_grad[: len(inputs)]
    with torch.enable_grad():
        wanted = [x for x, n in zip(inputs, needed, strict=True) if n]
        found = iter(torch.autograd.grad(ctx.plain(*inputs), wanted, grad, create_graph=True))
    return [next(found) if n else None for n in needed]
