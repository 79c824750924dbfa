"""More losses on a softmax, with their inverse: generalised cross entropy, Poly-1, ASL."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any

from refocal._arrays import (
    Array,
    Namespace,
    Shares,
    at_most,
    at_top,
    is_integer,
    log1p,
    log_complement,
    log_softmax,
    namespace,
    neg_log,
    one_hot,
    quiet,
    shares,
    shares_of_probs,
    stop_gradient,
    top_ratio,
    total,
    working_dtype,
)
from refocal._checks import check_fraction, check_number, check_scores
from refocal.focal import log_phi
from refocal.minimizer import FLOOR, log_minimizer, log_of, newton
from refocal.objectives.base import Objective, _InBlocks, row_labels
from refocal.objectives.focal import LEFT, proportional


class _OnSoftmax(_InBlocks):
    """What the losses below share: each gives the loss of every class as the label."""

    def loss(self, logits: Any, labels: Any, *, axis: int = -1) -> Any:
        """Return the loss of each row, not reduced; labels are integers or distributions."""
        logits, axis = check_scores("logits", logits, axis)
        labels = row_labels(labels, logits, axis)
        xp = namespace(logits)
        with quiet(logits):
            z = xp.astype(logits, working_dtype(logits), copy=False)
            losses = self._losses(xp, shares(xp, z, axis), axis)
        return xp.astype(_expected(xp, losses, labels, axis), logits.dtype, copy=False)

    @abc.abstractmethod
    def _losses(self, xp: Namespace, s: Shares, axis: int) -> Array:
        """Return, for every class, the loss that the row would have with this class as its label."""


@dataclasses.dataclass(frozen=True)
class GeneralizedCrossEntropy(_OnSoftmax):
    r"""The generalized cross entropy on a softmax, made for noisy labels.

    .. math:: \ell(q, y) = (1 - q_y^k) / k

    The posterior is softmax((1 - k) z): the scores are too sure of themselves. k -> 0 is cross entropy.
    At k = 1 the loss is linear in q, its minimiser a one-hot vector, and no posterior comes back.

    Args:
        k: In (0, 1).

    Example:
        >>> GeneralizedCrossEntropy(k=0.7).posterior(np.array([2.0, 1.0, 0.0])).round(3)
        array([0.437, 0.324, 0.24 ])
    """

    k: float = 0.7

    def __post_init__(self) -> None:
        """Check the argument."""
        rule = "in (0, 1): at 1 the loss has no posterior"
        k = check_number("k", self.k, rule=rule)
        if not 0 < k < 1:
            raise ValueError(f"k must be {rule}, got {self.k!r}")
        object.__setattr__(self, "k", k)

    def _losses(self, xp: Namespace, s: Shares, axis: int) -> Array:
        return -xp.expm1(-self.k * neg_log(xp, s)) / self.k

    def _log_posterior(self, xp: Namespace, z: Array, axis: int) -> Array:
        return log_softmax(xp, (1 - self.k) * z, axis)

    def _logits(self, xp: Namespace, eta: Array, axis: int) -> Array:
        x = log_softmax(xp, log_of(xp, eta) / (1 - self.k), axis)
        return xp.where(eta == 0, -xp.inf, x)


@dataclasses.dataclass(frozen=True)
class Poly1Focal(_OnSoftmax):
    r"""The focal loss with the first coefficient of its polynomial series changed (PolyLoss).

    .. math:: \ell(q, y) = (1-q_y)^\gamma (-\log q_y) + \epsilon (1-q_y)^{\gamma+1}

    The posterior is proportional to -1 / l'(q_i), whose logarithm is
    log q - gamma log(1-q) - log(1 + gamma r + epsilon (gamma+1) q) with r = -q log q / (1-q). For
    epsilon >= -1 the loss is strictly convex, so the order of the classes stays and every posterior has
    one minimiser.

    Args:
        gamma: A number >= 0; 0 is the Poly-1 cross entropy.
        epsilon: A number >= -1; 0 is the focal loss.

    Example:
        >>> spec = Poly1Focal(gamma=2.0, epsilon=1.0)
        >>> spec.posterior(np.array([2.0, 1.0, 0.0])).round(3)
        array([0.851, 0.107, 0.041])
        >>> spec.logits(np.array([0.7, 0.2, 0.1])).round(3)
        array([-0.581, -1.243, -1.884])
    """

    gamma: float = 2.0
    epsilon: float = 1.0

    def __post_init__(self) -> None:
        """Check the arguments."""
        set_field = object.__setattr__
        set_field(self, "gamma", check_number("gamma", self.gamma, low=0, rule="finite and >= 0"))
        set_field(self, "epsilon", check_number("epsilon", self.epsilon, low=-1, rule="finite and >= -1"))

    def _losses(self, xp: Namespace, s: Shares, axis: int) -> Array:
        masked, nll, m = _is_masked(xp, s), _finite_nll(xp, s), log_complement(xp, s)
        return xp.where(masked, xp.inf, xp.exp(self.gamma * m) * (nll + self.epsilon * xp.exp(m)))

    def _log_posterior(self, xp: Namespace, z: Array, axis: int) -> Array:
        s = shares(xp, z, axis)
        gap, _ = self._log_ratio(xp, s)
        gap = gap - stop_gradient(xp.where(gap > 0, gap, 0))  # rounding must not lift a class over the top
        return log_softmax(xp, xp.where(s.top, 0, gap), axis)

    def _posterior_from_probs(self, xp: Namespace, p: Array, axis: int) -> Array:
        s = shares_of_probs(xp, p, axis)
        return proportional(xp, s, self._log_ratio(xp, s)[0] + s.neg_log_q, axis)

    def _logits(self, xp: Namespace, eta: Array, axis: int) -> Array:
        log_eta = log_of(xp, eta)
        target = stop_gradient(log_eta)
        x = log_minimizer(xp, target, self.gamma, axis)  # that of the plain focal loss, as a start
        x = newton(xp, lambda x: self._newton_step(xp, x, target, axis), x, 4 + 4 * self.gamma)
        # Two more steps with gradients make the first two derivatives those of the implicit function.
        for _ in range(2):
            x = x + self._newton_step(xp, x, log_eta, axis)
        return xp.where(eta == 0, -xp.inf, log_softmax(xp, x, axis))

    def _log_ratio(self, xp: Namespace, s: Shares) -> tuple[Array, Array]:
        """Return log(-1/l') below the top minus that of the top, and d log q / d log(-1/l') of every class.

        With n = 1 + gamma r + epsilon (gamma+1) q the function is log q - gamma log(1-q) - log n. At the top,
        with s its odds and e = (r - q) / s, n = s (q + gamma e) + (1 + epsilon)(gamma+1) q: nothing cancels
        there, even where epsilon is -1.
        """
        gamma, epsilon = self.gamma, self.epsilon
        o = s.q / (1 - s.q)
        r = o * at_most(xp, s.neg_log_q, xp.finfo(s.q.dtype).max)
        n = 1 + gamma * r + epsilon * (gamma + 1) * s.q
        below = gamma * log1p(xp, -s.q) + xp.log(n)
        slope = 1 + gamma * o - (gamma * (r - o + r * o) + epsilon * (gamma + 1) * s.q) / n
        odds, q, e = xp.exp(s.log_odds), xp.exp(-s.neg_log_top), _excess(xp, s)
        sure = (1 + epsilon) * (gamma + 1) * q
        log_n = xp.log(odds * (q + gamma * e) + sure) if epsilon > -1 else s.log_odds + xp.log(q + gamma * e)
        top = gamma * (s.log_odds - s.neg_log_top) + log_n
        below = below + stop_gradient(xp.where(s.equal, top - below, 0))
        steep = (
            odds + gamma - xp.exp(s.log_odds - log_n) * (gamma * e * (1 + odds) + epsilon * (gamma + 1) * q)
        )
        flat = ~(steep > 0)  # gamma 0, and no odds left
        g_top = xp.where(flat, 1, odds / xp.where(flat, 1, steep))
        return (s.neg_log_top - s.neg_log_q) - below + top, xp.where(s.top, g_top, 1 / slope)

    def _newton_step(self, xp: Namespace, x: Array, log_eta: Array, axis: int) -> Array:
        """Return the Newton step of log q, as that of the plain focal minimiser."""
        s = shares(xp, x, axis)
        gap, g = self._log_ratio(xp, s)
        r = xp.where(s.top, 0, gap - (log_eta - at_top(xp, s.top, log_eta, axis)))
        weight = xp.where(s.top, xp.exp(-s.neg_log_top), s.q) * g
        sum_of_weights = total(xp, weight, axis)
        some = sum_of_weights > 0
        c = total(xp, weight * r, axis) / xp.where(some, sum_of_weights, 1)
        return xp.where(some, g * (c - r), 0)


@dataclasses.dataclass(frozen=True)
class AsymmetricSingleLabel(_OnSoftmax):
    r"""The single-label form of the asymmetric loss (ASL): a softmax with smoothed labels.

    .. math::

        \ell(q, y) = c_1 (1-q_y)^{\gamma_+} (-\log q_y) + c_2 \sum_{i \ne y} q_i^{\gamma_-} (-\log q_i),
        \quad c_1 = 1 - \epsilon + \epsilon/K, \; c_2 = \epsilon/K

    With a = c1 phi(q) and b = c2 q^gamma_neg (gamma_neg (-log q) - 1), the posterior is
    (lambda q_i + b_i) / (a_i + b_i); lambda makes it sum to 1. Without smoothing this is the focal loss with
    gamma_pos. Where it is less than 1 % of psi with gamma_pos, divided by 1 - epsilon, as it can be for
    scores that are no minimiser, it counts as that much: no class that can happen gets 0.

    The risk need not be convex (a small gamma_neg or a large gamma_pos with much smoothing): `posterior`
    holds at every stationary point, `logits` returns one of them.

    Args:
        gamma_pos: A number >= 0.
        gamma_neg: A number >= 0.
        label_smoothing: In [0, 1), which the public code calls eps.

    Example:
        >>> AsymmetricSingleLabel(label_smoothing=0.1).posterior(np.array([2.0, 1.0, 0.0])).round(3)
        array([0.665, 0.245, 0.09 ])
    """

    gamma_pos: float = 0.0
    gamma_neg: float = 4.0
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        """Check the arguments."""
        set_gammas(self)
        object.__setattr__(self, "label_smoothing", check_fraction("label_smoothing", self.label_smoothing))

    def _losses(self, xp: Namespace, s: Shares, axis: int) -> Array:
        nll, (c1, c2) = neg_log(xp, s), self._shares_of_label(s.q.shape[axis])
        of_label = c1 * xp.exp(self.gamma_pos * log_complement(xp, s)) * _finite_nll(xp, s)
        of_label = xp.where(_is_masked(xp, s), xp.inf, of_label)
        if not c2:
            return of_label
        finite = nll < xp.inf if self.gamma_neg else xp.full_like(s.top, True)
        nll = xp.where(finite, nll, 0)
        of_other = c2 * xp.where(finite, xp.exp(-self.gamma_neg * nll), 0) * nll
        return of_label - of_other + total(xp, of_other, axis)

    def _log_posterior(self, xp: Namespace, z: Array, axis: int) -> Array:
        s = shares(xp, z, axis)
        q, a, b = self._slopes(xp, s, axis)
        below, top = log_phi(xp, s, self.gamma_pos, axis)
        smoothed = log_softmax(xp, xp.where(s.top, 0, (s.neg_log_top - s.neg_log_q) - below + top), axis)
        if not self.label_smoothing:
            return smoothed
        # By the classes below the top, since a + b of the top may be 0.
        d = xp.where(s.top, 1, a + b)
        d_top, b_top, q_top = (at_top(xp, s.top, x, axis) for x in (a + b, b, q))
        rest_b, rest_q = (total(xp, xp.where(s.top, 0, x / d), axis) for x in (b, q))
        lam = (d_top * (1 - rest_b) - b_top) / (q_top + d_top * rest_q)
        eta = xp.where(s.top, 0, (lam * q + b) / d)
        eta = xp.where(s.top, 1 - total(xp, eta, axis), eta)
        # In logarithms, as a probability may be below the smallest float.
        least = math.log(LEFT) - math.log1p(-self.label_smoothing) + smoothed
        y = xp.log(xp.where(eta > 0, eta, 1))
        y = log_softmax(xp, xp.where((eta > 0) & (y > least), y, least), axis)
        return xp.where(xp.isnan(lam), lam, y)

    def _logits(self, xp: Namespace, eta: Array, axis: int) -> Array:
        eps, fixed_eta = self.label_smoothing, stop_gradient(eta)
        if not eps:
            return xp.where(eta == 0, -xp.inf, log_minimizer(xp, log_of(xp, eta), self.gamma_pos, axis))
        # Without gamma_neg it is the usual smoothing, in which no score is 0.
        start = fixed_eta if self.gamma_neg else (1 - eps) * fixed_eta + eps / eta.shape[axis]
        x = log_minimizer(xp, log_of(xp, start), self.gamma_pos, axis)
        x = newton(xp, lambda x: self._newton_step(xp, x, fixed_eta, axis), x, 8)
        for _ in range(2):
            x = x + self._newton_step(xp, x, eta, axis)
        x = log_softmax(xp, x, axis)
        return xp.where(eta == 0, -xp.inf, x) if self.gamma_neg else x

    def _newton_step(self, xp: Namespace, x: Array, eta: Array, axis: int) -> Array:
        """Return the Newton step of log q towards lambda q - eta a + (1 - eta) b = 0, with sum q = 1."""
        s = shares(xp, x, axis)
        q, a, b = self._slopes(xp, s, axis)
        c2 = self._shares_of_label(x.shape[axis])[1]
        g = self.gamma_pos
        o = s.q / (1 - s.q)
        r = o * at_most(xp, s.neg_log_q, xp.finfo(s.q.dtype).max)
        odds, r_top = xp.exp(s.log_odds), top_ratio(xp, s)
        curve_top = g * (_excess(xp, s) * (1 + odds) / (1 + g * r_top) - 1 / xp.where(odds > 0, odds, 1))
        da = a * xp.where(s.top, curve_top, g * ((r - o + r * o) / (1 + g * r) - o))
        nll = at_most(xp, neg_log(xp, s), -FLOOR)
        db = c2 * xp.exp(-self.gamma_neg * nll) * self.gamma_neg * (self.gamma_neg * nll - 2)
        u = eta * a - (1 - eta) * b
        lam = total(xp, u, axis)
        residual = lam * q - u
        steep = lam * q - eta * da + (1 - eta) * db
        good = xp.abs(steep) > xp.finfo(x.dtype).smallest_normal
        steep = xp.where(good, xp.abs(steep), 1)
        weight = xp.where(good, q * q / steep, 0)
        some = total(xp, weight, axis)
        c = total(xp, xp.where(good, q * residual / steep, 0), axis) / xp.where(some > 0, some, 1)
        return xp.where(good, (c * q - residual) / steep, 0)

    def _slopes(self, xp: Namespace, s: Shares, axis: int) -> tuple[Array, Array, Array]:
        """Return q, and minus the derivatives by log q of the label's term and of another class's term."""
        c1, c2 = self._shares_of_label(s.q.shape[axis])
        below, top = log_phi(xp, s, self.gamma_pos, axis)
        a = c1 * xp.exp(xp.where(s.top, top, below))
        nll = at_most(xp, neg_log(xp, s), -FLOOR)
        b = c2 * xp.exp(-self.gamma_neg * nll) * (self.gamma_neg * nll - 1)
        return xp.where(s.top, xp.exp(-s.neg_log_top), s.q), a, b

    def _shares_of_label(self, k: int) -> tuple[float, float]:
        return 1 - self.label_smoothing + self.label_smoothing / k, self.label_smoothing / k


def _expected(xp: Namespace, losses: Array, labels: Array, axis: int) -> Array:
    """Return the loss of every row from the loss that each class would have as its label."""
    if is_integer(labels):
        hit = one_hot(xp, xp.expand_dims(labels, axis=axis), losses.shape[axis], axis)
        loss = xp.sum(xp.where(hit, losses, 0), axis=axis)
        return xp.where(xp.any(hit, axis=axis), loss, xp.nan)
    v = xp.astype(labels, losses.dtype, copy=False)
    return xp.sum(v * xp.where((v == 0) & (losses == xp.inf), 0, losses), axis=axis)


def _is_masked(xp: Namespace, s: Shares) -> Array:
    return (s.neg_log_q == xp.inf) & ~s.top


def _finite_nll(xp: Namespace, s: Shares) -> Array:
    """Return -log q with 0 for masked classes, whose infinity would make the gradients of others NaN."""
    return xp.where(_is_masked(xp, s), 0, neg_log(xp, s))


def _excess(xp: Namespace, s: Shares) -> Array:
    """Return for each row (r - q) / odds of the top, with r = -q log q / (1-q); 1/2 at odds 0.

    Directly it is (log(1 + odds) / odds - 1 / (1 + odds)) / odds, which cancels for small odds.
    """
    odds = xp.exp(s.log_odds)
    small = odds < 0.125
    x = xp.where(small, odds, 0)
    series = xp.zeros_like(x)
    for k in range(18, 0, -1):
        series = k / (k + 1) - x * series
    odds = xp.where(small, 1, odds)
    return xp.where(small, series, (s.neg_log_top / odds - 1 / (1 + odds)) / odds)


def set_gammas(spec: Objective) -> None:
    """Check both gammas of an asymmetric loss."""
    for name in ("gamma_pos", "gamma_neg"):
        value = check_number(name, getattr(spec, name), low=0, rule="finite and >= 0")
        object.__setattr__(spec, name, value)
