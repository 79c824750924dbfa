"""The losses in PyTorch's own operations, on every device: closed forms with gradients, and the formula.

By the logits z the gradient of a row with an integer target is that of cross entropy times one number, phi(p)
of the target's probability p, since d loss / d log p = -phi(p). Nothing is kept for the backward pass beyond
the inputs. The closed forms are not differentiated by autograd; `formula_rows` is what autograd, `vmap` and
tracers can follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from refocal._checks import LARGEST_GAMMA
from refocal.focal import focal_terms

Number = float | Tensor
"""A number, or a tensor that broadcasts to the logits."""

Tensors = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
"""Logits, targets, gammas, weights of the classes: as they were given, but for the logits' dtype."""

OF_ALL, OF_ROWS, OF_CLASSES = 0, 1, 2
"""What gamma differs between: nothing, rows, classes."""


class Options(NamedTuple):
    """What a softmax loss is beside its tensors."""

    gamma: float
    kind: int
    """`OF_ALL`: gamma is the number above. Else it is a tensor that broadcasts to the rows, or (C,)."""
    ignore: int
    smoothing: float
    dim: int
    hard: bool
    """Whether targets are class indices, of any integer type; else they are distributions."""


# The softmax loss. Tensors for each row have length 1 along dim.


def hard_rows(z: Tensor, y: Tensor, gamma: Number, dim: int) -> Tensor:
    """Return the losses for class indices y."""
    nll = _neg_log_prob(z, y, dim)
    return torch.expm1(-nll).neg_().pow_(gamma) * nll


def hard_gradient(z: Tensor, y: Tensor, gamma: Number, dim: int, grad: Tensor) -> Tensor:
    """Return the gradient by z of the losses times grad."""
    nll = _neg_log_prob(z, y, dim)
    miss = torch.expm1(-nll).neg_()
    # phi = (1 - p)^gamma (1 + gamma (-log p) p / (1 - p)), where p / (1 - p) = 1 / expm1(-log p)
    ratio = nll.clamp(max=torch.finfo(nll.dtype).max) / torch.expm1(nll)
    phi = miss.pow(gamma) * (1 + gamma * ratio) * grad
    return z.softmax(dim).mul_(phi).scatter_(dim, y, -phi * miss)


def _neg_log_prob(z: Tensor, y: Tensor, dim: int) -> Tensor:
    """Return -log p of the target; never 0, so that ratios of it are defined."""
    gap = z - z.amax(dim, keepdim=True)
    of_target = gap.gather(dim, y)
    others = gap.exp_().scatter_(dim, y, 0.0).sum(dim, keepdim=True)
    # log(1 + odds) where the target is the largest: nothing is lost next to p = 1
    nll = others.add_(torch.expm1(of_target)).log1p_().sub_(of_target)
    return nll.clamp_(min=torch.finfo(z.dtype).tiny)


def soft_rows(z: Tensor, v: Tensor, gamma: Number, dim: int) -> Tensor:
    """Return the losses for distributions v."""
    terms = soft_terms(z, gamma, dim).mul_(v)
    return torch.where(v == 0, 0, terms).sum(dim, keepdim=True)  # a masked class that is no target adds none


def soft_terms(z: Tensor, gamma: Number, dim: int) -> Tensor:
    """Return the loss of each class, which is the derivative of `soft_rows` by v."""
    log_q = z.log_softmax(dim)
    return torch.expm1(log_q).neg_().pow_(gamma).mul_(log_q.neg_())


def soft_gradient(z: Tensor, v: Tensor, gamma: Number, dim: int, grad: Tensor) -> Tensor:
    """Return the gradient by z of the losses times grad."""
    log_q = z.log_softmax(dim).clamp_(min=torch.finfo(z.dtype).min / 4)  # so that 0 log 0 is 0
    q, miss = log_q.exp(), torch.expm1(log_q).neg_()
    ratio = torch.where(miss > 0, -log_q / miss, 1)
    slopes = miss.pow(gamma).mul_(1 + gamma * q * ratio).mul_(v)  # v phi(q), minus the derivative by log q
    # d log q_j / d z_k = [j = k] - q_k; not q total - slope, which cancels where q is next to 1
    return q.mul_(slopes.sum(dim, keepdim=True) - slopes).sub_(slopes * miss).mul_(grad)


def formula_rows(tensors: Tensors, o: Options) -> Tensor:
    """Return the losses of rows by the array functions of `refocal.focal`."""

    def hard(z: Tensor, y: Tensor, gamma: Any, of_class: Tensor | None) -> Tensor:
        loss: Tensor = focal_terms(z, y.squeeze(o.dim), gamma, o.dim, 1.0 if of_class is None else of_class)
        return loss.unsqueeze(o.dim)

    def soft(z: Tensor, v: Tensor, gamma: Any) -> Tensor:
        loss: Tensor = focal_terms(z, v, gamma, o.dim)
        return loss.unsqueeze(o.dim)

    return _combined(hard, soft, tensors, o).squeeze(o.dim)


def eager_rows(tensors: Tensors, o: Options) -> Tensor:
    """Return the losses of rows by closed forms."""
    z, target = tensors[:2]
    if o.hard and target.device.type == "cpu":
        c = z.shape[o.dim]
        bad = ((target < 0) | (target >= c)) & (target != o.ignore)
        if bool(bad.any()):
            raise IndexError(f"Target {int(target[bad][0])} is out of bounds.")

    def hard(z: Tensor, y: Tensor, gamma: Any, of_class: Tensor | None) -> Tensor:
        rows = hard_rows(z, y, _gamma_at(gamma, y, o), o.dim)
        if of_class is None:
            return rows
        weight = of_class.reshape(-1)[y]
        return torch.where(weight == 0, 0, weight * rows)  # the loss may be infinite

    return _combined(hard, lambda z, v, gamma: soft_rows(z, v, gamma, o.dim), tensors, o).squeeze(o.dim)


def eager_gradient(tensors: Tensors, o: Options, grad: Tensor) -> Tensor:
    """Return the gradient by the logits of the losses of rows times grad."""
    grad = grad.unsqueeze(o.dim)

    def hard(z: Tensor, y: Tensor, gamma: Any, of_class: Tensor | None) -> Tensor:
        by = grad if of_class is None else grad * of_class.reshape(-1)[y]
        return hard_gradient(z, y, _gamma_at(gamma, y, o), o.dim, by)

    def soft(z: Tensor, v: Tensor, gamma: Any) -> Tensor:
        return soft_gradient(z, v, gamma, o.dim, grad)

    return _combined(hard, soft, tensors, o)


def target_gradient(tensors: Tensors, o: Options, grad: Tensor) -> Tensor:
    """Return the gradient by targets that are distributions: each has the loss of its class, weighted."""
    z, target, gammas, weight = tensors
    terms = _combined(
        _no_labels, lambda z, v, gamma: soft_terms(z, gamma, o.dim), (z, target, gammas, None), o
    )
    if weight is not None:
        terms *= weight.to(z.dtype).view([-1] + [1] * (z.ndim - o.dim - 1))
    return (terms * ((1 - o.smoothing) * grad.unsqueeze(o.dim))).to(target.dtype)


def _no_labels(*args: Any) -> Tensor:
    raise AssertionError("class indices have no gradient")


def _combined(
    hard: Callable[..., Tensor], soft: Callable[..., Tensor], tensors: Tensors, o: Options
) -> Tensor:
    """Return what ``hard`` and ``soft`` give, losses or gradients, put together for the options."""
    z, target, gammas, weight = tensors
    dim, c = o.dim, z.shape[o.dim]
    of_classes = [c] + [1] * (z.ndim - dim - 1)
    gamma: Number = o.gamma
    if gammas is not None:
        gamma = gammas.to(z.dtype).clamp(max=LARGEST_GAMMA)
        rows = z.shape[:dim] + z.shape[dim + 1 :]
        gamma = gamma.view(of_classes) if o.kind == OF_CLASSES else gamma.broadcast_to(rows).unsqueeze(dim)
    of_class = None if weight is None else weight.to(z.dtype).view(of_classes)
    if not o.hard:
        v = target.to(z.dtype)
        v = (1 - o.smoothing) * v + o.smoothing / c if o.smoothing else v
        return soft(z, v if of_class is None else v * of_class, gamma)
    kept = (target != o.ignore).unsqueeze(dim)
    y = torch.where(kept, target.unsqueeze(dim), 0).long()
    z = torch.where(kept, z, 0)  # an ignored row may hold anything, and has no gradient
    result = hard(z, y, gamma, of_class)
    if o.smoothing:
        even = z.new_full((), 1 / c) if of_class is None else of_class / c
        result = (1 - o.smoothing) * result + o.smoothing * soft(z, even.expand_as(z), gamma)
    return torch.where(kept, result, 0)


def _gamma_at(gamma: Any, y: Tensor, o: Options) -> Any:
    """Return gamma of the target's class, where there is one for each class."""
    return gamma.reshape(-1)[y] if o.kind == OF_CLASSES else gamma


# The sigmoid loss


class Binary(NamedTuple):
    """The numbers of a sigmoid loss; those that differ between classes are tensors that broadcast."""

    gamma: Number
    of_one: Number
    """The weight of y = 1."""
    of_zero: Number


def sigmoid_losses(z: Tensor, y: Tensor, spec: Binary) -> Tensor:
    """Return the loss of each binary problem, which autograd can differentiate too."""
    one, zero = _sigmoid_terms(z, spec.gamma)
    # A logit may be infinite: nothing of the target that it excludes may be left.
    return torch.where(y == 0, 0, spec.of_one * y * one) + torch.where(
        y == 1, 0, spec.of_zero * (1 - y) * zero
    )


def sigmoid_gradients(
    z: Tensor, y: Tensor, spec: Binary, grad: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients by z and y of the losses times grad."""
    by_z = by_y = None
    if wanted[0]:
        one = _sigmoid_slope(z, spec.gamma).mul_(spec.of_one * y)
        zero = _sigmoid_slope(-z, spec.gamma).mul_(spec.of_zero * (1 - y))
        by_z = (torch.where(y == 1, 0, zero) - torch.where(y == 0, 0, one)).mul_(grad)
    if wanted[1]:
        one, zero = _sigmoid_terms(z, spec.gamma)
        by_y = (spec.of_one * one - spec.of_zero * zero) * grad
    return by_z, by_y


def _sigmoid_terms(z: Tensor, gamma: Number) -> tuple[Tensor, Tensor]:
    """Return the losses of y = 1 and of y = 0."""
    neg_log_p, neg_log_miss = -F.logsigmoid(z), -F.logsigmoid(-z)
    return _power(neg_log_miss, gamma) * neg_log_p, _power(neg_log_p, gamma) * neg_log_miss


def _sigmoid_slope(z: Tensor, gamma: Number) -> Tensor:
    """Return minus the derivative of the loss of y = 1: (1 - p)^gamma (1 - p + gamma p (-log p))."""
    p, neg_log_p, neg_log_miss = torch.sigmoid(z), -F.logsigmoid(z), -F.logsigmoid(-z)
    hit = torch.where(p > 0, p * neg_log_p, 0)  # also where the logit is infinite
    return _power(neg_log_miss, gamma) * (torch.sigmoid(-z) + gamma * hit)


def _power(neg_log: Tensor, gamma: Number) -> Tensor:
    """Return x^gamma from -log x, which may be infinite; x itself would underflow."""
    return torch.exp(-gamma * neg_log.clamp(max=torch.finfo(neg_log.dtype).max))
