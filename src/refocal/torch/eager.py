"""The losses in PyTorch's own operations, on every device: closed forms with gradients, and the formula.

By the logits z the gradient of a row with an integer target is that of cross entropy times one number, phi(p)
of the target's probability p, since d loss / d log p = -phi(p). Nothing is kept for the backward pass beyond
the inputs. Autograd does not see the closed forms; the formula is what autograd, `vmap` and tracers follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from refocal._checks import LARGEST_GAMMA
from refocal.kernels import SLACK
from refocal.risk import focal_terms

Number = float | Tensor
"""A number, or a tensor that broadcasts to the logits."""

Gradients = tuple[Tensor | None, Tensor | None]
"""By the logits and by the targets, where they are wanted."""

OF_ALL, OF_ROWS, OF_CLASSES = 0, 1, 2
"""What gamma differs between: nothing, rows, classes."""

KEEP = 33
"""From so many classes on kernels keep three numbers of each row for the gradient: a tenth of the logits."""


def working_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype to compute in: float32 for half precision."""
    return torch.float32 if x.dtype.itemsize < 4 else x.dtype


class Softmax(NamedTuple):
    """A softmax loss with its arguments, as they were given but for dtypes: labels are int64.

    Logits in half precision are for kernels that read them so; the methods here want them `wide`.
    """

    z: Tensor
    target: Tensor
    gammas: Tensor | None
    weight: Tensor | None
    gamma: float
    kind: int
    """`OF_ALL`: gamma is the number above. Else it is the tensor, which broadcasts to the rows or is (C,)."""
    ignore: int
    smoothing: float
    dim: int
    hard: bool
    """Whether targets are class indices; else they are distributions."""

    @property
    def rows(self) -> torch.Size:
        """The shape without the classes."""
        return self.z.shape[: self.dim] + self.z.shape[self.dim + 1 :]

    def wide(self) -> Softmax:
        """Return the loss with logits in the dtype to compute in."""
        return self if self.z.dtype.itemsize >= 4 else self._replace(z=self.z.to(torch.float32))

    def formula(self) -> Tensor:
        """Return the loss of each row by the array functions of `refocal.focal`."""

        def hard(z: Tensor, y: Tensor, gamma: Any, of_class: Tensor | None) -> Tensor:
            weight = 1.0 if of_class is None else of_class
            return focal_terms(z, y.squeeze(self.dim), gamma, self.dim, weight).unsqueeze(self.dim)  # type: ignore[no-any-return]

        def soft(z: Tensor, v: Tensor, gamma: Any) -> Tensor:
            return focal_terms(z, v, gamma, self.dim).unsqueeze(self.dim)  # type: ignore[no-any-return]

        return self._combined(hard, soft).squeeze(self.dim)

    def losses(self) -> Tensor:
        """Return the loss of each row by the closed form."""
        self.check_labels()

        def hard(z: Tensor, y: Tensor, gamma: Any, of_class: Tensor | None) -> Tensor:
            rows = _hard_rows(z, y, self._of_target(gamma, y), self.dim)
            if of_class is None:
                return rows
            weight = of_class.reshape(-1)[y]
            return torch.where((weight == 0) & rows.isinf(), 0, weight * rows)

        return self._combined(hard, lambda z, v, g: _soft_rows(z, v, g, self.dim)).squeeze(self.dim)

    def check_labels(self) -> None:
        """Raise for a label that is none of the classes, where a look does not wait for a device."""
        if self.hard:
            check_labels(self.target, self.z.shape[self.dim], self.ignore)

    def gradients(self, grad: Tensor, wanted: tuple[bool, ...]) -> Gradients:
        """Return the gradients of the losses times grad, which is a number or one for each row."""
        grad = grad.expand(self.rows).unsqueeze(self.dim)
        by_z = by_target = None
        if wanted[0]:

            def hard(z: Tensor, y: Tensor, gamma: Any, of_class: Tensor | None) -> Tensor:
                by = grad if of_class is None else grad * of_class.reshape(-1)[y]
                return _hard_gradient(z, y, self._of_target(gamma, y), self.dim, by)

            by_z = self._combined(hard, lambda z, v, g: _soft_gradient(z, v, g, self.dim, grad))
        if wanted[1]:  # each class has its own loss as its slope
            weight = None if self.weight is None else self._of_class(self.weight)
            terms = self._combined(_no_labels, lambda z, v, g: _soft_terms(z, g, self.dim))
            by_target = (terms if weight is None else terms * weight) * ((1 - self.smoothing) * grad)
            by_target = by_target.to(self.target.dtype)
        return by_z, by_target

    def reduced(self, rows: Tensor, reduction: str) -> Tensor:
        """Return the losses of rows, their sum, or their mean as cross entropy takes it."""
        if reduction != "mean" or not self.hard:
            return reduced(rows, reduction)
        kept = self.target != self.ignore
        if self.weight is None:
            return reduced(rows, reduction, kept)
        # A label that is no class has made the loss NaN; as an index it would stop a device.
        index = torch.where(kept, self.target, 0).clamp(0, len(self.weight) - 1).long()
        of_rows = self.weight.to(rows.dtype)[index]
        by = torch.where(kept, of_rows, 0).sum()
        return rows.sum() / torch.where(by == 0, torch.nan, by)  # smoothing may leave a sum over no weight

    def _combined(self, hard: Callable[..., Tensor], soft: Callable[..., Tensor]) -> Tensor:
        """Return what ``hard`` and ``soft`` give, losses or gradients, put together for the arguments.

        Whatever they get for each row has length 1 along the class axis.
        """
        z, dim, c, eps = self.z, self.dim, self.z.shape[self.dim], self.smoothing
        gamma: Number = self.gamma
        if self.gammas is not None:
            gamma = self.gammas.to(z.dtype).clamp(max=LARGEST_GAMMA)
            per_class = self.kind == OF_CLASSES
            gamma = self._of_class(gamma) if per_class else gamma.broadcast_to(self.rows).unsqueeze(dim)
        of_class = None if self.weight is None else self._of_class(self.weight)
        if not self.hard:
            v = self.target.to(z.dtype)
            v = (1 - eps) * v + eps / c if eps else v
            return soft(z, v if of_class is None else v * of_class, gamma)
        kept = (self.target != self.ignore).unsqueeze(dim)
        y = torch.where(kept, self.target.unsqueeze(dim), 0).long()
        z = torch.where(kept, z, 0)  # an ignored row may hold anything, and has no gradient
        result = hard(z, y, gamma, of_class)
        if eps:
            even = z.new_full((), 1 / c) if of_class is None else of_class / c
            result = (1 - eps) * result + eps * soft(z, even.expand_as(z), gamma)
        return torch.where(kept, result, 0)

    def _of_class(self, values: Tensor) -> Tensor:
        return values.to(self.z.dtype).view([-1] + [1] * (self.z.ndim - self.dim - 1))

    def _of_target(self, gamma: Any, y: Tensor) -> Any:
        return gamma.reshape(-1)[y] if self.kind == OF_CLASSES else gamma


def reduced(losses: Tensor, reduction: str, kept: Tensor | None = None) -> Tensor:
    """Return losses, their sum, or their mean over those that are kept, which the others have to be 0 for."""
    if reduction == "mean" and kept is not None:
        return losses.sum() / kept.sum()
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()


def check_labels(labels: Tensor, c: int, ignore: int | None) -> None:
    """Raise for a label that is none of c classes, where a look does not wait for a device."""
    if labels.device.type == "cpu":
        outside = (labels < 0) | (labels >= c)
        bad = labels[outside if ignore is None else outside & (labels != ignore)]
        if len(bad):
            raise IndexError(f"Target {int(bad[0])} is out of bounds.")


def _no_labels(*args: Any) -> Tensor:
    raise AssertionError("class indices have no gradient")


def _hard_rows(z: Tensor, y: Tensor, gamma: Number, dim: int) -> Tensor:
    """Return the losses for class indices y."""
    nll = _neg_log_prob(z, y, dim)
    return torch.expm1(-nll).neg_().pow_(gamma) * nll


def _hard_gradient(z: Tensor, y: Tensor, gamma: Number, dim: int, grad: Tensor) -> Tensor:
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


def _soft_rows(z: Tensor, v: Tensor, gamma: Number, dim: int) -> Tensor:
    """Return the losses for distributions v."""
    terms = _soft_terms(z, gamma, dim)
    # A masked class that is no target adds nothing.
    return torch.where((v == 0) & terms.isinf(), 0, terms * v).sum(dim, keepdim=True)


def _soft_terms(z: Tensor, gamma: Number, dim: int) -> Tensor:
    """Return the loss of each class, which is the derivative of `_soft_rows` by v."""
    log_q = z.log_softmax(dim)
    return torch.expm1(log_q).neg_().pow_(gamma).mul_(log_q.neg_())


def _soft_gradient(z: Tensor, v: Tensor, gamma: Number, dim: int, grad: Tensor) -> Tensor:
    """Return the gradient by z of the losses times grad."""
    log_q = z.log_softmax(dim).clamp_(min=torch.finfo(z.dtype).min / 4)  # so that 0 log 0 is 0
    q, miss = log_q.exp(), torch.expm1(log_q).neg_()
    ratio = torch.where(miss > 0, -log_q / miss, 1)
    slopes = miss.pow(gamma).mul_(1 + gamma * q * ratio).mul_(v)  # v phi(q), minus the derivative by log q
    # d log q_j / d z_k = [j = k] - q_k; not q total - slope, which cancels where q is next to 1
    return q.mul_(slopes.sum(dim, keepdim=True) - slopes).sub_(slopes * miss).mul_(grad)


class Sigmoid(NamedTuple):
    """A sigmoid loss with its arguments; numbers that differ between classes are tensors that broadcast."""

    z: Tensor
    target: Tensor
    """As it was given; the methods want it in the dtype of the logits, see `wide`."""
    gamma: Number
    of_one: Number
    """The weight of y = 1."""
    of_zero: Number
    ignore: float | None
    smoothing: float

    def wide(self) -> Sigmoid:
        """Return the loss with logits and targets in the dtype to compute in."""
        dtype = working_dtype(self.z)
        return self._replace(z=self.z.to(dtype), target=self.target.to(dtype))

    def losses(self) -> Tensor:
        """Return the loss of each binary problem: the closed form, which autograd can follow too."""
        check_targets(self.target, self.ignore)
        return self.formula()

    def formula(self) -> Tensor:
        """Return the same without a look at the targets."""
        p, kept = self._without_ignored()
        y, (one, zero) = p._smoothed(), p._terms()
        # A logit may be infinite: nothing of the target that it excludes may be left.
        one = torch.where((y == 0) & one.isinf(), 0, one)
        zero = torch.where((y == 1) & zero.isinf(), 0, zero)
        losses = self.of_one * y * one + self.of_zero * (1 - y) * zero
        return losses if kept is None else torch.where(kept, losses, 0)

    def gradients(self, grad: Tensor, wanted: tuple[bool, ...]) -> Gradients:
        """Return the gradients of the losses times grad, which is a number or one for each entry."""
        p, kept = self._without_ignored()
        y, by_z, by_target = p._smoothed(), None, None
        if wanted[0]:
            one = p._slope(p.z).mul_(self.of_one * y)
            zero = p._slope(-p.z).mul_(self.of_zero * (1 - y))
            by_z = (torch.where(y == 1, 0, zero) - torch.where(y == 0, 0, one)).mul_(grad)
            by_z = by_z if kept is None else torch.where(kept, by_z, 0)
        if wanted[1]:
            one, zero = p._terms()
            by_target = (self.of_one * one - self.of_zero * zero) * ((1 - self.smoothing) * grad)
            by_target = by_target if kept is None else torch.where(kept, by_target, 0)
        return by_z, by_target

    def reduced(self, losses: Tensor, reduction: str) -> Tensor:
        """Return the losses, their sum, or their mean over the entries that are not ignored."""
        kept = None if reduction != "mean" or self.ignore is None else self.target != self.ignore
        return reduced(losses, reduction, kept)

    def _without_ignored(self) -> tuple[Sigmoid, Tensor | None]:
        """Return the problem with 0 in ignored entries, which may hold anything, and where the others are."""
        if self.ignore is None:
            return self, None
        kept = self.target != self.ignore
        return self._replace(z=torch.where(kept, self.z, 0), target=torch.where(kept, self.target, 0)), kept

    def _smoothed(self) -> Tensor:
        eps = self.smoothing
        return (1 - eps) * self.target + eps / 2 if eps else self.target

    def _terms(self) -> tuple[Tensor, Tensor]:
        """Return the losses of y = 1 and of y = 0."""
        neg_log_p, neg_log_miss = -F.logsigmoid(self.z), -F.logsigmoid(-self.z)
        return self._power(neg_log_miss) * neg_log_p, self._power(neg_log_p) * neg_log_miss

    def _slope(self, z: Tensor) -> Tensor:
        """Return minus the derivative of the loss of y = 1: (1 - p)^gamma (1 - p + gamma p (-log p))."""
        p, neg_log_p, neg_log_miss = torch.sigmoid(z), -F.logsigmoid(z), -F.logsigmoid(-z)
        hit = torch.where(p > 0, p * neg_log_p, 0)  # also where the logit is infinite
        return self._power(neg_log_miss) * (torch.sigmoid(-z) + self.gamma * hit)

    def _power(self, neg_log: Tensor) -> Tensor:
        """Return x^gamma from -log x, which may be infinite; x itself would underflow."""
        return torch.exp(-self.gamma * neg_log.clamp(max=torch.finfo(neg_log.dtype).max))


def check_targets(targets: Tensor, ignore: float | None) -> None:
    """Raise for a target of a binary problem that is none, where a look does not wait for a device."""
    if targets.device.type == "cpu":
        outside = ~((targets >= -SLACK) & (targets <= 1 + SLACK))
        bad = targets[outside if ignore is None else outside & (targets != ignore)]
        if len(bad):
            raise bad_target(bad[0].item(), ignore)


def bad_target(value: float, ignore: float | None) -> ValueError:
    """Return the error for a target of a binary problem that is none."""
    if ignore is not None:
        return ValueError(f"target must be in 0..1 or ignore_index={ignore:g}, got {value:g}")
    help = f"; say ignore_index={value:g} for entries that do not count" if value % 1 == 0 else ""
    return ValueError(f"target must be in 0..1, got {value:g}{help}")


Loss = Softmax | Sigmoid
TENSORS = {Softmax: 4, Sigmoid: 2}
"""How many tensors come first."""
