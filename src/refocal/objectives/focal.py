"""The focal loss on a softmax and on a sigmoid, with its options, and its inverse."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from refocal import _compiled as compiled
from refocal._arrays import (
    Array,
    ArrayT,
    HasShape,
    Namespace,
    Numbers,
    Shares,
    at_most,
    at_top,
    log1p,
    log_softmax,
    namespace,
    quiet,
    shares_of_probs,
    softplus,
    stop_gradient,
    total,
    working_dtype,
)
from refocal._checks import check_entries, check_fraction, check_scores
from refocal.focal import log_h, log_phi, log_psi, psi, psi_body
from refocal.minimizer import log_minimizer, log_of
from refocal.objectives.base import (
    ScoreKind,
    _InBlocks,
    check_of_classes,
    entry_targets,
    per_class,
    row_labels,
)
from refocal.risk import focal_terms

LEFT = 0.01
"""The least share of a smoothed probability that is left when label smoothing is taken out."""


@dataclasses.dataclass(frozen=True)
class Focal(_InBlocks):
    r"""The focal loss on a softmax, with the options of ``torch.nn.CrossEntropyLoss``.

    .. math:: \ell(q, v) = \sum_i w_i v_i (1-q_i)^{\gamma_i} (-\log q_i)

    with v the label's one-hot vector or a distribution, mixed with the uniform one by label smoothing.
    The posterior is proportional to h(q_i) / w_i, with class i's own gamma. With weights or gammas of the
    classes the most probable class may be another one than that with the largest score.

    Smoothing eps is then taken out of these s_i: (s_i - eps/K) / (1 - eps), but of no class more than 99 %
    of s_i, and scaled to sum 1. A model is never quite the minimiser, and a class whose s_i lies
    below eps/K can happen all the same: it keeps a probability, so the loss of its rows is at most that of
    the smoothed s plus log 100 = 4.6, and a scale of at most 0.01 eps / (1 - eps). At the minimiser the
    posterior is exact where every eta_i is at least 0.0102 eps/K / (1 - eps); below, eta_i
    counts as at most that much, which costs a row at most 0.0102 eps / (1 - eps) in log eta.

    Args:
        gamma: A number >= 0, or one for each class.
        weight: A number > 0 for each class, or None.
        label_smoothing: In [0, 1).

    Example:
        >>> spec = Focal(gamma=2.0)
        >>> spec.posterior(np.array([2.0, 1.0, 0.0])).round(3)
        array([0.884, 0.088, 0.029])
        >>> spec.logits(np.array([0.7, 0.2, 0.1])).round(3)
        array([-0.625, -1.229, -1.759])
    """

    gamma: Any = 2.0
    weight: Any = None
    label_smoothing: float = 0.0

    if TYPE_CHECKING:  # what is taken; the fields are floats and tuples of them

        def __init__(
            self,
            gamma: Numbers = 2.0,
            weight: Iterable[float] | HasShape | None = None,
            label_smoothing: float = 0.0,
        ) -> None: ...

    def __post_init__(self) -> None:
        """Check the arguments and turn sequences into tuples."""
        set_field = object.__setattr__
        set_field(self, "gamma", check_entries("gamma", self.gamma, "finite and >= 0", lambda v: v >= 0))
        if self.weight is not None:
            weight = check_entries("weight", self.weight, "finite and > 0", lambda v: v > 0)
            if isinstance(weight, float):
                raise TypeError(f"weight must hold one number for each class, got {self.weight!r}")
            set_field(self, "weight", weight)
        set_field(self, "label_smoothing", check_fraction("label_smoothing", self.label_smoothing))

    def loss(self, logits: Any, labels: Any, *, axis: int = -1) -> Any:
        """Return the loss of each row, not reduced; labels are integers or distributions."""
        logits, axis = check_scores("logits", logits, axis)
        gamma, weight = self._parameters(logits, axis)
        labels = row_labels(labels, logits, axis)
        loss = focal_terms(logits, labels, gamma, axis, weight)
        if self.label_smoothing:
            xp, k = namespace(logits), logits.shape[axis]
            uniform = xp.full_like(xp.astype(logits, working_dtype(logits)), 1 / k)
            even = focal_terms(logits, uniform, gamma, axis, weight)
            loss = (1 - self.label_smoothing) * loss + self.label_smoothing * even
        return loss

    def log_posterior(self, logits: ArrayT, *, axis: int = -1) -> ArrayT:
        """Return the logarithm of `posterior`."""
        gamma = self.plain_gamma
        return (
            super().log_posterior(logits, axis=axis) if gamma is None else log_psi(logits, gamma, axis=axis)
        )

    def posterior_from_probs(self, probs: ArrayT, *, axis: int = -1, check: bool = True) -> ArrayT:
        """Return the true probabilities that belong to softmax scores; prefer `posterior` of the logits."""
        gamma = self.plain_gamma
        if gamma is None:
            return super().posterior_from_probs(probs, axis=axis, check=check)
        return psi(probs, gamma, axis=axis, check=check)

    @property
    def plain_gamma(self) -> float | None:
        """Gamma, if it is one number and there is neither a weight nor label smoothing; otherwise None.

        A subclass may have another loss, so it is never plain.
        """
        plain = (
            type(self) is Focal
            and isinstance(self.gamma, float)
            and self.weight is None
            and not self.label_smoothing
        )
        return self.gamma if plain else None

    def _compiled(self, logits: Array, axis: int, *, logarithm: bool) -> Array | None:
        if type(self) is not Focal or self.label_smoothing:
            return None
        check_of_classes("gamma", self.gamma, logits, axis)
        check_of_classes("weight", self.weight, logits, axis)

        def plain(rows: Array) -> Array:
            log_posterior = self._log_posterior_of(rows, 1)
            return log_posterior if logarithm else namespace(rows).exp(log_posterior)

        log_weights = None
        if self.weight is not None:  # against the smallest: a factor of all weights must cost no digits
            logs = [math.log(w) for w in self.weight]
            least = min(logs)
            log_weights = tuple(log - least for log in logs)
        return compiled.psi(
            logits, self.gamma, axis, plain=plain, logarithm=logarithm, log_weights=log_weights
        )

    def _parameters(self, like: Array, axis: int) -> tuple[Any, Any]:
        """Return gamma and weight."""
        return per_class("gamma", self.gamma, like, axis), per_class("weight", self.weight or 1.0, like, axis)

    def _log_posterior(self, xp: Namespace, z: Array, gamma: Any, weight: Any, axis: int) -> Array:
        top, gap = log_h(xp, z, gamma, axis)
        log_weight = 0.0 if isinstance(weight, float) else xp.log(weight)
        y = log_softmax(xp, xp.where(top, 0, gap) - log_weight, axis)
        return self._unsmoothed(xp, y, axis)

    def _posterior_from_probs(self, xp: Namespace, p: Array, gamma: Any, weight: Any, axis: int) -> Array:
        if isinstance(gamma, float) and isinstance(weight, float):
            y = psi_body(xp, p, gamma, axis)
        else:
            s = shares_of_probs(xp, p, axis)
            below, top = log_phi(xp, s, gamma, axis)
            factor = s.neg_log_top + top - below
            if not isinstance(weight, float):
                log_weight = xp.log(weight) + xp.zeros_like(p)
                factor = factor + at_top(xp, s.top, log_weight, axis) - log_weight
            y = proportional(xp, s, factor, axis)
        if not self.label_smoothing:
            return y
        left = y - self.label_smoothing / y.shape[axis]  # as `_unsmoothed`, with a gradient at 0 too
        left = xp.where(left < LEFT * y, LEFT * y, left)
        return left / xp.sum(left, axis=axis, keepdims=True)

    def _unsmoothed(self, xp: Namespace, log_s: Array, axis: int) -> Array:
        if not self.label_smoothing:
            return log_s
        y = log_s + log_left(xp, log_s, self.label_smoothing / log_s.shape[axis])
        return log_softmax(xp, y, axis)

    def _logits(self, xp: Namespace, eta: Array, gamma: Any, weight: Any, axis: int) -> Array:
        eps = self.label_smoothing
        mixed = (1 - eps) * eta + eps / eta.shape[axis]
        x = log_minimizer(xp, log_of(xp, mixed * weight), gamma, axis)
        return xp.where(mixed == 0, -xp.inf, x)


@dataclasses.dataclass(frozen=True)
class SigmoidFocal(_InBlocks):
    r"""The focal loss on a sigmoid: every entry of the logits is a binary problem of its own.

    .. math:: \ell(p, y) = \alpha y (1-p)^\gamma (-\log p) + (1-\alpha) (1-y) p^\gamma (-\log(1-p))

    With z the logit, the posterior's log-odds are
    (1 + gamma) z + log(1 + gamma rho(-z)) - log(1 + gamma rho(z)) + log((1 - alpha) / alpha), where
    rho(z) = e^z log(1 + e^{-z}). The values are those of torchvision's ``sigmoid_focal_loss``.

    Args:
        gamma: A number >= 0, or one for each class.
        alpha: The weight of y = 1 against 1 - alpha for y = 0, in (0, 1), a number or one for each class;
            None for no weights.
        label_smoothing: In [0, 1): targets become (1 - eps) y + eps / 2. It is taken out of both outcomes as
            `Focal` takes it out of two classes.

    Example:
        >>> spec = SigmoidFocal(gamma=2.0, alpha=0.25)
        >>> spec.posterior_from_probs(np.array([0.1, 0.3, 0.5])).round(3)
        array([0.008, 0.236, 0.75 ])
    """

    scores: ClassVar[ScoreKind] = "sigmoid"

    gamma: Any = 2.0
    alpha: Any = 0.25
    label_smoothing: float = 0.0

    if TYPE_CHECKING:

        def __init__(
            self, gamma: Numbers = 2.0, alpha: Numbers | None = 0.25, label_smoothing: float = 0.0
        ) -> None: ...

    def __post_init__(self) -> None:
        """Check the arguments and turn sequences into tuples."""
        set_field = object.__setattr__
        set_field(self, "gamma", check_entries("gamma", self.gamma, "finite and >= 0", lambda v: v >= 0))
        if self.alpha is not None:
            alpha = check_entries("alpha", self.alpha, "in (0, 1), or None", lambda v: 0 < v < 1)
            set_field(self, "alpha", alpha)
        set_field(self, "label_smoothing", check_fraction("label_smoothing", self.label_smoothing))

    def loss(self, logits: Any, targets: Any, *, axis: int = -1) -> Any:
        """Return the loss of each entry, not reduced; targets are 0 or 1, or probabilities."""
        logits, axis = self._checked("logits", logits, axis)
        targets = entry_targets(targets, logits)
        xp = namespace(logits)
        gamma, alpha = self._class_arrays(logits, axis)
        z = xp.astype(logits, working_dtype(logits), copy=False)
        y = (1 - self.label_smoothing) * xp.astype(targets, z.dtype, copy=False) + self.label_smoothing / 2
        hit, miss = softplus(xp, -z), softplus(xp, z)  # -log p, -log(1 - p)
        most = xp.finfo(z.dtype).max  # and not infinity, of which gamma 0 would make NaN
        with quiet(z):
            of_one = y * xp.exp(-gamma * at_most(xp, miss, most))
            of_zero = (1 - y) * xp.exp(-gamma * at_most(xp, hit, most))
        of_one = of_one * xp.where((y == 0) & (hit == xp.inf), 0, hit)
        of_zero = of_zero * xp.where((y == 1) & (miss == xp.inf), 0, miss)
        loss = of_one + of_zero if alpha is None else alpha * of_one + (1 - alpha) * of_zero
        return xp.astype(loss, logits.dtype, copy=False)

    def _compiled(self, logits: Array, axis: int, *, logarithm: bool) -> Array | None:
        numbers = isinstance(self.gamma, float) and (self.alpha is None or isinstance(self.alpha, float))
        if type(self) is not SigmoidFocal or self.label_smoothing or not numbers:
            return None
        return compiled.binary_posterior(logits, *self._parameters(logits, axis), logarithm=logarithm)

    def _class_arrays(self, like: Array, axis: int) -> tuple[Any, Any]:
        alpha = None if self.alpha is None else per_class("alpha", self.alpha, like, axis)
        return per_class("gamma", self.gamma, like, axis), alpha

    def _parameters(self, like: Array, axis: int) -> tuple[Any, Any]:
        """Return gamma, and the log-odds that alpha takes away."""
        gamma, alpha = self._class_arrays(like, axis)
        if alpha is None:
            return gamma, 0.0
        if isinstance(alpha, float):
            return gamma, math.log1p(-alpha) - math.log(alpha)
        xp = namespace(like)
        return gamma, log1p(xp, -alpha) - xp.log(alpha)

    def _log_posterior(self, xp: Namespace, z: Array, gamma: Any, shift: Any, axis: int) -> Array:
        t = binary_log_odds(xp, z, gamma) + shift
        if self.label_smoothing:
            e = self.label_smoothing / 2
            t = t + log_left(xp, -softplus(xp, -t), e) - log_left(xp, -softplus(xp, t), e)
        return -softplus(xp, -t)

    def _posterior_from_probs(self, xp: Namespace, p: Array, gamma: Any, shift: Any, axis: int) -> Array:
        y = super()._posterior_from_probs(xp, p, gamma, shift, axis)
        if self.label_smoothing or (isinstance(gamma, float) and gamma):
            return y
        # At gamma 0 the ends have a gradient other than 0.
        both = (shift, -shift)
        c1, c0 = (math.exp(min(x, 0)) if isinstance(x, float) else xp.exp(at_most(xp, x, 0)) for x in both)
        plain = c1 * p / (c1 * p + c0 * (1 - p))
        return plain if isinstance(gamma, float) else xp.where(gamma == 0, plain, y)

    def _logits(self, xp: Namespace, eta: Array, gamma: Any, shift: Any, axis: int) -> Array:
        eps = self.label_smoothing
        of_one, of_zero = (1 - eps) * eta + eps / 2, (1 - eps) * (1 - eta) + eps / 2
        # The binary problem is the softmax one with two classes, of which the first has score 1 - p.
        log_eta = xp.stack([log_of(xp, of_zero), log_of(xp, of_one) - shift], axis=-1)
        gamma = gamma if isinstance(gamma, float) else xp.expand_dims(gamma, axis=-1)
        x = log_minimizer(xp, log_eta, gamma, log_eta.ndim - 1)
        z = x[..., 1] - x[..., 0]
        return xp.where(of_one == 0, -xp.inf, xp.where(of_zero == 0, xp.inf, z))


def proportional(xp: Namespace, s: Shares, factor: Array, axis: int) -> Array:
    """Return distributions in proportion to q e^factor, where the factor of the top counts as 1 / q.

    q is a factor of its own, so that an entry of 0 has its gradient.
    """
    lead = xp.where(s.q > 0, factor - s.neg_log_q, 0)
    most = xp.max(xp.where(s.top, 0, lead), axis=axis, keepdims=True)
    most = stop_gradient(xp.where(most > 0, most, 0))
    limit = 80.0 if xp.finfo(factor.dtype).bits == 32 else 700.0
    y = xp.where(s.top, xp.exp(-most), s.q * xp.exp(at_most(xp, factor - most, limit)))
    return y / total(xp, y, axis)


def binary_log_odds(xp: Namespace, z: Array, gamma: Any) -> Array:
    """Return log h(p) - log h(1 - p) of p = sigmoid(z)."""
    limit = 80.0 if xp.finfo(z.dtype).bits == 32 else 700.0
    x = xp.clip(z, -limit, limit)  # beyond it rho is 0 or 1
    rho, rho_minus = softplus(xp, -x) * xp.exp(x), softplus(xp, x) * xp.exp(-x)
    return (1 + gamma) * z + log1p(xp, gamma * rho_minus) - log1p(xp, gamma * rho)


def log_left(xp: Namespace, log_s: Array, e: float) -> Array:
    """Return log((s - e) / s), and log LEFT where less than that is left of s."""
    # Beyond 0 the exponential could overflow, and nothing is left anyway.
    left = 1 - xp.exp(at_most(xp, math.log(e) - log_s, 0.0))
    return xp.log(xp.where(left < LEFT, LEFT, left))
