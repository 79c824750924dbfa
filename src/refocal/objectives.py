"""Losses that know their own inverse: what the scores of their minimiser say about the classes.

An objective is a frozen, hashable description of a loss with every option that was trained with.
``loss`` is for checks and for small models; what matters is ``posterior``.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterable
from typing import Any, ClassVar

from refocal._arrays import (
    Array,
    Namespace,
    as_array,
    device,
    is_integer,
    log1p,
    log_softmax,
    map_rows,
    namespace,
    softplus,
    working_dtype,
)
from refocal._checks import (
    check_axis,
    check_entries,
    check_floats,
    check_fraction,
    check_labels,
    check_same_shape,
    check_scores,
)
from refocal.focal import focal_terms, log_h, log_psi, psi
from refocal.minimizer import log_minimizer, log_of

Numbers = float | Iterable[float]


class Objective(abc.ABC):
    """What all objectives share: the way into and out of a dictionary, and their main method."""

    kinds: ClassVar[dict[str, type[Objective]]] = {}
    scores: ClassVar[str] = "softmax"
    """What turns logits into scores: "softmax", "sigmoid", or "one-vs-rest" for sigmoids read as a row."""

    def __init_subclass__(cls) -> None:
        if not cls.__name__.startswith("_"):  # what several objectives share is none itself
            Objective.kinds[cls.__name__] = cls

    def to_dict(self) -> dict[str, Any]:
        """Return the objective as a dictionary that JSON can hold; `objective_from_dict` is the inverse."""
        fields = dataclasses.asdict(self)  # type: ignore[call-overload]
        listed = {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
        return {"objective": type(self).__name__, **listed}

    @abc.abstractmethod
    def log_posterior(self, logits: Array, *, axis: int = -1) -> Array:
        """Return the logarithm of `posterior`."""

    def posterior(self, logits: Array, *, axis: int = -1) -> Array:
        """Return the true probabilities that belong to the logits of a model trained with this loss."""
        y = self.log_posterior(logits, axis=axis)
        return namespace(y).exp(y)


def objective_from_dict(fields: dict[str, Any]) -> Objective:
    """Return the objective that `to_dict` described.

    Args:
        fields: A dictionary with the class name under "objective" and that class's arguments.

    Example:
        >>> objective_from_dict({"objective": "Focal", "gamma": 2.0})
        Focal(gamma=2.0, weight=None, label_smoothing=0.0)
    """
    arguments = dict(fields)
    name = arguments.pop("objective", None)
    if name not in Objective.kinds:
        raise ValueError(f"objective must be one of {', '.join(Objective.kinds)}, got {name!r}")
    return Objective.kinds[name](**arguments)


@dataclasses.dataclass(frozen=True)
class Focal(Objective):
    r"""The focal loss on a softmax, with the options of ``torch.nn.CrossEntropyLoss``.

    .. math:: \ell(q, v) = \sum_i w_i v_i (1-q_i)^{\gamma_i} (-\log q_i)

    with v the label's one-hot vector or a distribution, mixed with the uniform one by label smoothing.
    The posterior is proportional to h(q_i) / w_i, with class i's own gamma; smoothing eps is then taken
    out by (s - eps/K) / (1 - eps), clipped to the simplex. With weights or gammas of the classes the
    most probable class may be another one than that with the largest score.

    Args:
        gamma: A number >= 0, or one a class.
        weight: A number > 0 a class, or None.
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

    def __post_init__(self) -> None:
        """Check the arguments and turn sequences into tuples."""
        set_field = object.__setattr__
        set_field(self, "gamma", check_entries("gamma", self.gamma, "finite and >= 0", lambda v: v >= 0))
        if self.weight is not None:
            weight = check_entries("weight", self.weight, "finite and > 0", lambda v: v > 0)
            if isinstance(weight, float):
                raise TypeError(f"weight must hold one number a class, got {self.weight!r}")
            set_field(self, "weight", weight)
        set_field(self, "label_smoothing", check_fraction("label_smoothing", self.label_smoothing))

    def loss(self, logits: Array, labels: Array, *, axis: int = -1) -> Array:
        """Return the loss of every row, not reduced; labels are integers or distributions."""
        logits, axis = check_scores("logits", logits, axis)
        gamma, weight = self._class_arrays(logits, axis)
        labels = row_labels(labels, logits, axis)
        loss = focal_terms(logits, labels, gamma, axis, weight)
        if self.label_smoothing:
            xp, k = namespace(logits), logits.shape[axis]
            uniform = xp.full_like(xp.astype(logits, working_dtype(logits)), 1 / k)
            even = focal_terms(logits, uniform, gamma, axis, weight)
            loss = (1 - self.label_smoothing) * loss + self.label_smoothing * even
        return loss

    def log_posterior(self, logits: Array, *, axis: int = -1) -> Array:
        """Return the logarithm of `posterior`."""
        if self._is_plain:
            return log_psi(logits, self.gamma, axis=axis)
        logits, axis = check_scores("logits", logits, axis)
        gamma, weight = self._class_arrays(logits, axis)
        return map_rows(self._log_posterior, logits, gamma, weight, axis=axis)

    def posterior_from_probs(self, probs: Array, *, axis: int = -1) -> Array:
        """Return the true probabilities that belong to softmax scores; prefer `posterior` of the logits."""
        if self._is_plain:
            return psi(probs, self.gamma, axis=axis)
        probs, axis = check_scores("probs", probs, axis)
        gamma, weight = self._class_arrays(probs, axis)
        return map_rows(self._posterior_from_probs, probs, gamma, weight, axis=axis)

    def logits(self, posterior: Array, *, axis: int = -1) -> Array:
        """Return the log-scores of the risk minimiser: the inverse of `posterior`, -inf for a score of 0."""
        posterior, axis = check_scores("posterior", posterior, axis)
        gamma, weight = self._class_arrays(posterior, axis)
        return map_rows(self._logits, posterior, gamma, weight, axis=axis)

    @property
    def _is_plain(self) -> bool:
        return isinstance(self.gamma, float) and self.weight is None and not self.label_smoothing

    def _class_arrays(self, like: Array, axis: int) -> tuple[Array | float, Array | float]:
        return per_class("gamma", self.gamma, like, axis), per_class("weight", self.weight or 1.0, like, axis)

    def _log_posterior(self, xp: Namespace, z: Array, gamma: Any, weight: Any, axis: int) -> Array:
        top, gap = log_h(xp, z, gamma, axis)
        log_weight = 0.0 if isinstance(weight, float) else xp.log(weight)
        y = log_softmax(xp, xp.where(top, 0, gap) - log_weight, axis)
        return self._without_smoothing(xp, y, axis)

    def _without_smoothing(self, xp: Namespace, log_s: Array, axis: int) -> Array:
        if not self.label_smoothing:
            return log_s
        p = xp.exp(log_s) - self.label_smoothing / log_s.shape[axis]
        positive = p > 0
        p = xp.where(positive, p, 0)
        p = p / xp.sum(p, axis=axis, keepdims=True)
        return xp.where(xp.isnan(log_s), log_s, xp.where(positive, xp.log(xp.where(positive, p, 1)), -xp.inf))

    def _posterior_from_probs(self, xp: Namespace, q: Array, gamma: Any, weight: Any, axis: int) -> Array:
        return xp.exp(self._log_posterior(xp, xp.log(q), gamma, weight, axis))

    def _logits(self, xp: Namespace, eta: Array, gamma: Any, weight: Any, axis: int) -> Array:
        eps = self.label_smoothing
        mixed = (1 - eps) * eta + eps / eta.shape[axis]
        x = log_minimizer(xp, log_of(xp, mixed * weight), gamma, axis)
        return xp.where(mixed == 0, -xp.inf, x)


@dataclasses.dataclass(frozen=True)
class SigmoidFocal(Objective):
    r"""The focal loss on a sigmoid: every entry of the logits is a binary problem of its own.

    .. math:: \ell(p, y) = \alpha y (1-p)^\gamma (-\log p) + (1-\alpha) (1-y) p^\gamma (-\log(1-p))

    With z the logit, the posterior's log-odds are
    (1 + gamma) z + log(1 + gamma rho(-z)) - log(1 + gamma rho(z)) + log((1 - alpha) / alpha), where
    rho(z) = e^z log(1 + e^{-z}). The values are those of torchvision's ``sigmoid_focal_loss``.

    Args:
        gamma: A number >= 0, or one a class.
        alpha: The weight of y = 1 against 1 - alpha for y = 0, in (0, 1), a number or one a class; None
            for no weights.
        label_smoothing: In [0, 1): targets become (1 - eps) y + eps / 2.

    Example:
        >>> spec = SigmoidFocal(gamma=2.0, alpha=0.25)
        >>> spec.posterior_from_probs(np.array([0.1, 0.3, 0.5])).round(3)
        array([0.008, 0.236, 0.75 ])
    """

    scores: ClassVar[str] = "sigmoid"

    gamma: Any = 2.0
    alpha: Any = 0.25
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        """Check the arguments and turn sequences into tuples."""
        set_field = object.__setattr__
        set_field(self, "gamma", check_entries("gamma", self.gamma, "finite and >= 0", lambda v: v >= 0))
        if self.alpha is not None:
            alpha = check_entries("alpha", self.alpha, "in (0, 1), or None", lambda v: 0 < v < 1)
            set_field(self, "alpha", alpha)
        set_field(self, "label_smoothing", check_fraction("label_smoothing", self.label_smoothing))

    def loss(self, logits: Array, targets: Array, *, axis: int = -1) -> Array:
        """Return the loss of every entry, not reduced; targets are 0 or 1, or probabilities."""
        logits, axis = entry_scores("logits", logits, axis)
        targets = entry_targets(targets, logits)
        xp = namespace(logits)
        gamma, alpha = self._class_arrays(logits, axis)
        z = xp.astype(logits, working_dtype(logits), copy=False)
        y = (1 - self.label_smoothing) * xp.astype(targets, z.dtype, copy=False) + self.label_smoothing / 2
        hit, miss = softplus(xp, -z), softplus(xp, z)  # -log p, -log(1 - p)
        of_one = y * xp.exp(-gamma * miss) * xp.where((y == 0) & (hit == xp.inf), 0, hit)
        of_zero = (1 - y) * xp.exp(-gamma * hit) * xp.where((y == 1) & (miss == xp.inf), 0, miss)
        loss = of_one + of_zero if alpha is None else alpha * of_one + (1 - alpha) * of_zero
        return xp.astype(loss, logits.dtype, copy=False)

    def log_posterior(self, logits: Array, *, axis: int = -1) -> Array:
        """Return the logarithm of P(y = 1), entry by entry."""
        logits, axis = entry_scores("logits", logits, axis)
        return map_rows(self._log_posterior, logits, *self._parameters(logits, axis), axis=axis)

    def posterior_from_probs(self, probs: Array, *, axis: int = -1) -> Array:
        """Return the P(y = 1) that belong to sigmoid scores; prefer `posterior` of the logits."""
        probs, axis = entry_scores("probs", probs, axis)
        return map_rows(self._posterior_from_probs, probs, *self._parameters(probs, axis), axis=axis)

    def logits(self, posterior: Array, *, axis: int = -1) -> Array:
        """Return the logits of the risk minimiser: the inverse of `posterior`."""
        posterior, axis = entry_scores("posterior", posterior, axis)
        return map_rows(self._logits, posterior, *self._parameters(posterior, axis), axis=axis)

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
        log_s = -softplus(xp, -t)
        if not self.label_smoothing:
            return log_s
        p = (xp.exp(log_s) - self.label_smoothing / 2) / (1 - self.label_smoothing)
        positive = p > 0
        log_p = xp.log(xp.where(positive, xp.where(p < 1, p, 1), 1))
        return xp.where(positive | xp.isnan(p), log_p, -xp.inf)

    def _posterior_from_probs(self, xp: Namespace, p: Array, gamma: Any, shift: Any, axis: int) -> Array:
        return xp.exp(self._log_posterior(xp, xp.log(p) - log1p(xp, -p), gamma, shift, axis))

    def _logits(self, xp: Namespace, eta: Array, gamma: Any, shift: Any, axis: int) -> Array:
        eps = self.label_smoothing
        of_one, of_zero = (1 - eps) * eta + eps / 2, (1 - eps) * (1 - eta) + eps / 2
        # The binary problem is the softmax one with two classes, of which the first has score 1 - p.
        log_eta = xp.stack([log_of(xp, of_zero), log_of(xp, of_one) - shift], axis=-1)
        gamma = gamma if isinstance(gamma, float) else xp.expand_dims(gamma, axis=-1)
        x = log_minimizer(xp, log_eta, gamma, log_eta.ndim - 1)
        z = x[..., 1] - x[..., 0]
        return xp.where(of_one == 0, -xp.inf, xp.where(of_zero == 0, xp.inf, z))


def binary_log_odds(xp: Namespace, z: Array, gamma: Any) -> Array:
    """Return log h(p) - log h(1 - p) of p = sigmoid(z)."""
    limit = 80.0 if xp.finfo(z.dtype).bits == 32 else 700.0
    x = xp.clip(z, -limit, limit)  # beyond it rho is 0 or 1
    rho, rho_minus = softplus(xp, -x) * xp.exp(x), softplus(xp, x) * xp.exp(-x)
    return (1 + gamma) * z + log1p(xp, gamma * rho_minus) - log1p(xp, gamma * rho)


def per_class(name: str, value: Any, like: Array, axis: int) -> Any:
    """Return a number as it is, and numbers of the classes as an array that broadcasts against another."""
    if isinstance(value, float):
        return value
    k = like.shape[axis]
    if len(value) != k:
        raise ValueError(f"{name} must have one number for each of the {k} classes, got {len(value)}")
    xp = namespace(like)
    shape = [1] * like.ndim
    shape[axis] = k
    array = xp.asarray(value, dtype=working_dtype(like), device=device(like))
    return xp.reshape(array, tuple(shape))


def row_labels(labels: Any, logits: Array, axis: int) -> Array:
    """Return labels that fit the rows of logits: integers, or distributions over the classes."""
    labels = as_array(labels)
    if not is_integer(labels):
        return check_same_shape("labels", labels, "logits", logits)
    check_labels(labels, logits, axis)
    return labels


def entry_targets(targets: Any, logits: Array) -> Array:
    """Return targets, one for each entry of logits."""
    targets = as_array(targets)
    if tuple(targets.shape) != tuple(logits.shape):
        raise ValueError(
            f"targets must have the shape {tuple(logits.shape)} of logits, got {tuple(targets.shape)}"
        )
    return targets


def entry_scores(name: str, x: Any, axis: int) -> tuple[Array, int]:
    """Return an array of real floats of any shape, and axis >= 0."""
    x = check_floats(name, x)
    if x.ndim == 0:
        raise ValueError(f"{name} must have at least one axis, got a single number")
    return x, check_axis(name, x, axis)
