"""More losses on sigmoids, with their inverse: ASL, and one sigmoid for each class."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

from refocal._arrays import (
    Array,
    ArrayT,
    Namespace,
    at_most,
    concrete,
    is_integer,
    log1p,
    log_softmax,
    map_rows,
    namespace,
    one_hot,
    quiet,
    softplus,
    stop_gradient,
    total,
    working_dtype,
)
from refocal._checks import check_fraction, check_scores
from refocal.minimizer import MAX_STEPS, TRACED_STEPS, log_of
from refocal.objectives.base import (
    Objective,
    ScoreKind,
    _InBlocks,
    entry_targets,
    objective_from_dict,
    row_labels,
)
from refocal.objectives.focal import SigmoidFocal
from refocal.objectives.softmax import set_gammas


@dataclasses.dataclass(frozen=True)
class Asymmetric(_InBlocks):
    r"""The asymmetric loss (ASL) on a sigmoid: every entry of the logits is a binary problem of its own.

    .. math::

        L_+ = (1-p)^{\gamma_+} (-\log p), \quad L_- = p_m^{\gamma_-} (-\log(1-p_m)), \quad
        p_m = \max(p - \mathrm{clip}, 0)

    The posterior's odds are ``-L_-'(z) / L_+'(z)``; they rise with z for all arguments allowed here. With
    detached weights the powers count as constants in the derivatives, as in the public code's
    ``disable_torch_grad_focal_loss``.

    A score p <= clip means 0. With clip > 0 and gamma_pos = 0 (or detached weights with gamma_pos = 0)
    the odds stay below a bound: every posterior above it drives the score to 1, and a score of 1
    means "the bound or more". `logits` is then infinite there.

    Args:
        gamma_pos: A number >= 0.
        gamma_neg: A number >= 0.
        clip: In [0, 1), which the paper calls the margin m.
        detach_weights: Whether the training took no gradient through the powers.

    Example:
        >>> spec = Asymmetric(gamma_pos=1.0, gamma_neg=4.0, clip=0.05)
        >>> spec.posterior_from_probs(np.array([0.05, 0.3, 0.5, 0.9])).round(3)
        array([0.   , 0.007, 0.147, 0.974])
    """

    scores: ClassVar[ScoreKind] = "sigmoid"

    gamma_pos: float = 0.0
    gamma_neg: float = 4.0
    clip: float = 0.05
    detach_weights: bool = False

    def __post_init__(self) -> None:
        """Check the arguments."""
        set_gammas(self)
        object.__setattr__(self, "clip", check_fraction("clip", self.clip))
        if not isinstance(self.detach_weights, bool):
            raise TypeError(f"detach_weights must be True or False, got {self.detach_weights!r}")

    def loss(self, logits: Any, targets: Any, *, axis: int = -1) -> Any:
        """Return the loss of each entry, not reduced; targets are 0 or 1, or probabilities."""
        logits, axis = self._checked("logits", logits, axis)
        targets = entry_targets(targets, logits)
        xp = namespace(logits)
        with quiet(logits):
            z = xp.astype(logits, working_dtype(logits), copy=False)
            y = xp.astype(targets, z.dtype, copy=False)
            hit, miss = softplus(xp, -z), softplus(xp, z)
            active, log_u, nll_u = self._shifted(xp, z)
            focus = stop_gradient if self.detach_weights else _same
            of_one = focus(xp.exp(-_times(xp, self.gamma_pos, miss))) * xp.where(
                (y == 0) & (hit == xp.inf), 0, hit
            )
            of_zero = focus(xp.exp(_times(xp, self.gamma_neg, log_u))) * nll_u
            of_zero = xp.where(active & ((y != 1) | (nll_u < xp.inf)), of_zero, 0)
        return xp.astype(y * of_one + (1 - y) * of_zero, logits.dtype, copy=False)

    @property
    def _edge(self) -> float:
        """The logit of clip, up to which the posterior is 0."""
        return math.log(self.clip) - math.log1p(-self.clip) if self.clip else -math.inf

    def _shifted(self, xp: Namespace, z: Array) -> tuple[Array, Array, Array]:
        """Return where p > clip and, there, log p_m and -log(1 - p_m).

        p - clip = p (1 - clip)(1 - e^(edge - z)), exact also where p is near clip.
        """
        if not self.clip:
            return xp.full_like(z, 1) == 1, -softplus(xp, -z), softplus(xp, z)
        active = z > self._edge
        z = xp.where(active, z, self._edge + 1)
        t = xp.tanh((z - self._edge) / 2)  # 1 - e^(edge - z) = 2 t / (1 + t): ONNX has no expm1
        log_u = xp.log(2 * t) - log1p(xp, t) - softplus(xp, -z) + math.log1p(-self.clip)
        u = xp.exp(log_u)
        small = u < 0.5
        nll = -log1p(xp, -xp.where(small, u, 0))
        return active, log_u, xp.where(small, nll, -xp.log(xp.exp(-softplus(xp, z)) + self.clip))

    def _shifted_scores(self, xp: Namespace, p: Array) -> tuple[Array, Array, Array]:
        """Return the same from scores: next to clip a logit would round p - clip away."""
        active = p > self.clip
        u = xp.where(active, p - self.clip, 0.5)
        small = u < 0.5
        nll = -log1p(xp, -xp.where(small, u, 0))
        return active, xp.log(u), xp.where(small, nll, -xp.log((1 - p) + self.clip))

    def _log_odds(self, xp: Namespace, z: Array, shifted: tuple[Array, Array, Array] | None = None) -> Array:
        """Return log(-L_-' / L_+') = log h(p) + log(d L_- / d p_m), of which both rise with z.

        The first is log p - gamma_pos log(1-p) - log(1 + gamma_pos rho), rho = e^z log(1 + e^-z); the
        second gamma_neg log u - log(1-u) + log(1 + gamma_neg r), r = (1-u)(-log(1-u)) / u, with u = p_m.
        """
        active, log_u, nll_u = self._shifted(xp, z) if shifted is None else shifted
        y = (
            _times(xp, self.gamma_pos, softplus(xp, z))
            + _times(xp, self.gamma_neg, log_u)
            + nll_u
            - softplus(xp, -z)
        )
        if not self.detach_weights:
            rho, r = self._ratios(xp, z, log_u, nll_u)
            y = y + log1p(xp, self.gamma_neg * r) - log1p(xp, self.gamma_pos * rho)
        return xp.where(active | xp.isnan(z), y, -xp.inf)

    def _ratios(self, xp: Namespace, z: Array, log_u: Array, nll_u: Array) -> tuple[Array, Array]:
        limit = 80.0 if xp.finfo(z.dtype).bits == 32 else 700.0
        x, n = xp.clip(z, -limit, limit), at_most(xp, nll_u, limit)
        tiny = xp.exp(log_u) < xp.finfo(z.dtype).eps
        r = xp.where(tiny, 1, n * xp.exp(-n - xp.where(tiny, 0, log_u)))
        return softplus(xp, -x) * xp.exp(x), r

    def _slope(self, xp: Namespace, z: Array) -> Array:
        """Return the derivative of `_log_odds` by z where p > clip."""
        _, log_u, nll_u = self._shifted(xp, z)
        p, o, u = xp.exp(-softplus(xp, -z)), xp.exp(-softplus(xp, z)), xp.exp(log_u)
        gp, gn = self.gamma_pos, self.gamma_neg
        by_u = xp.exp(-softplus(xp, -z) - softplus(xp, z) - log_u)  # p (1-p) / u
        slope = o + gp * p + gn * by_u + by_u * u * xp.exp(nll_u)
        if not self.detach_weights:
            rho, r = self._ratios(xp, z, log_u, nll_u)
            small = u < 1e-3
            bend = xp.where(small, -u / 2, (u - nll_u) / xp.where(small, 1, u))  # u dr/du
            slope = slope + gn * by_u * bend / (1 + gn * r) - gp * (rho - p) / (1 + gp * rho)
        return slope

    def _log_posterior(self, xp: Namespace, z: Array, axis: int) -> Array:
        return -softplus(xp, -self._log_odds(xp, z))

    def _posterior_from_probs(self, xp: Namespace, p: Array, axis: int) -> Array:
        z = self._logits_of_scores(xp, p)
        shifted = self._shifted_scores(xp, p) if self.clip else None
        return xp.exp(-softplus(xp, -self._log_odds(xp, z, shifted)))

    def _logits(self, xp: Namespace, eta: Array, axis: int) -> Array:
        gp, gn = self.gamma_pos, self.gamma_neg
        goal = log_of(xp, eta) - log_of(xp, 1 - eta)
        if not self.clip:
            # The odds grow at least like z, so that they are surely larger or smaller beyond this.
            reach = xp.abs(goal) + math.log1p(gp) + math.log1p(gn) + 3
            start = xp.where(goal < 0, goal / (1 + gn), goal / (1 + gp))
            z = _root(xp, self._log_odds, self._slope, goal, start, -reach, reach)
            return xp.where(eta == 1, xp.inf, xp.where(eta == 0, -xp.inf, z))
        # Near the edge the odds go like a power of z - edge, so solve for its logarithm w.
        edge, eps = self._edge, xp.finfo(goal.dtype).eps
        least = xp.full_like(goal, math.log(4 * eps * (1 + abs(edge))))
        reach = xp.abs(goal) + math.log1p(gp) + (1 + gn) * (math.log1p(gn) - math.log1p(-self.clip)) + 40
        most = xp.log(reach * max(1, 1 / gp if gp else 1) - edge)
        limit = self._log_odds(xp, xp.full_like(goal, xp.inf))  # finite without gamma_pos
        w = _root(
            xp,
            lambda xp, w: self._log_odds(xp, edge + xp.exp(w)),
            lambda xp, w: self._slope(xp, edge + xp.exp(w)) * xp.exp(w),
            xp.where(goal < limit, goal, limit - 1) if not gp else goal,
            xp.zeros_like(goal),
            least,
            most,
        )
        z = xp.where((goal >= limit) | (eta == 1), xp.inf, edge + xp.where(w <= least, 0, xp.exp(w)))
        return xp.where(eta == 0, edge, z)


@dataclasses.dataclass(frozen=True)
class OneVsRest(Objective):
    r"""One sigmoid for each class, trained against the one-hot label and read as a class distribution.

    .. math:: \ell(z, y) = \sum_i L_i(z_i, 1[i = y])

    Every entry's posterior is P(y = i | x), and those of the minimiser sum to 1 by themselves. A model
    is not the minimiser, so each row is divided by its sum; a row of zeros gives NaN.

    Args:
        binary: The loss of an entry, `SigmoidFocal` or `Asymmetric`.

    Example:
        >>> OneVsRest(SigmoidFocal(gamma=2.0, alpha=0.25)).posterior(np.array([0.0, -1.0, -2.0])).round(3)
        array([0.803, 0.182, 0.014])
    """

    scores: ClassVar[ScoreKind] = "one-vs-rest"

    binary: Any = dataclasses.field(default_factory=SigmoidFocal)

    def __post_init__(self) -> None:
        """Check the argument; a dictionary of `to_dict` becomes its objective."""
        if isinstance(self.binary, dict):
            object.__setattr__(self, "binary", objective_from_dict(self.binary))
        if not isinstance(self.binary, (SigmoidFocal, Asymmetric)):
            raise TypeError(f"binary must be a SigmoidFocal or an Asymmetric, got {self.binary!r}")

    def without_smoothing(self) -> Objective:
        """Return the objective with label smoothing 0, whose posterior is that of the smoothed labels."""
        plain = self.binary.without_smoothing()
        return self if plain is self.binary else dataclasses.replace(self, binary=plain)

    def to_dict(self) -> dict[str, Any]:
        """Return the objective as a dictionary that JSON can hold; `objective_from_dict` is the inverse."""
        return {"objective": "OneVsRest", "binary": self.binary.to_dict()}

    def loss(self, logits: Any, labels: Any, *, axis: int = -1) -> Any:
        """Return the loss of each row, not reduced; labels are integers or distributions."""
        logits, axis = check_scores("logits", logits, axis)
        labels = row_labels(labels, logits, axis)
        xp = namespace(logits)
        if is_integer(labels):
            labels = one_hot(xp, xp.expand_dims(labels, axis=axis), logits.shape[axis], axis)
            wrong = ~xp.any(labels, axis=axis)
            loss = xp.sum(self.binary.loss(logits, labels, axis=axis), axis=axis)
            return xp.where(wrong, xp.nan, loss)
        return xp.sum(self.binary.loss(logits, labels, axis=axis), axis=axis)

    def log_posterior(self, logits: ArrayT, *, axis: int = -1) -> ArrayT:
        """Return the logarithm of `posterior`."""
        logits, axis = check_scores("logits", logits, axis)
        y = self.binary.log_posterior(logits, axis=axis)
        normalised: ArrayT = map_rows(log_softmax, y, axis=axis)
        return normalised

    def posterior_from_probs(self, probs: ArrayT, *, axis: int = -1, check: bool = True) -> ArrayT:
        """Return the true probabilities that belong to sigmoid scores; prefer `posterior` of the logits."""
        probs, axis = self._checked_probs("probs", probs, axis, check)
        p = self.binary.posterior_from_probs(probs, axis=axis, check=False)
        with quiet(p):
            normalised: ArrayT = p / total(namespace(p), p, axis)
        return normalised

    def logits(self, posterior: ArrayT, *, axis: int = -1, check: bool = True) -> ArrayT:
        """Return the logits of the risk minimiser: the inverse of `posterior`."""
        posterior, axis = self._checked_probs("posterior", posterior, axis, check)
        z: ArrayT = self.binary.logits(posterior, axis=axis, check=False)
        return z


def _root(
    xp: Namespace,
    f: Callable[[Namespace, Array], Array],
    slope: Callable[[Namespace, Array], Array],
    goal: Array,
    start: Array,
    low: Array,
    high: Array,
) -> Array:
    """Return x in [low, high] with f(x) = goal for an increasing f: Newton's method inside a bracket."""
    target, x, low, high = (stop_gradient(a) for a in (goal, start, low, high))
    tolerance = xp.finfo(x.dtype).eps ** 0.5 / 8
    done, least = xp.isnan(target), low
    for step in range(MAX_STEPS):
        y = f(xp, x)
        low, high = xp.where(y < target, x, low), xp.where(y < target, high, x)
        newton = x + (target - y) / slope(xp, x)
        done = done | (xp.abs(newton - x) <= tolerance * (1 + xp.abs(x)))
        middle = low + (high - low) / 2
        x = xp.where(done | ((newton >= low) & (newton <= high)), newton, middle)
        all_done = concrete(xp.all(done | (high <= low)))
        if (step + 1 == TRACED_STEPS) if all_done is None else all_done:
            break
    # Two more steps, with gradients by the goal, give the first two derivatives of the inverse.
    steepness = slope(xp, x)
    steepness = stop_gradient(xp.where(steepness > 0, steepness, 1))
    for _ in range(2):
        x = x + (goal - f(xp, x)) / steepness
        x = xp.where(x < least, least, x)
    return x


def _same(x: Array) -> Array:
    return x


def _times(xp: Namespace, gamma: float, x: Array) -> Array:
    """Return gamma x, and 0 for gamma = 0 even where x is infinite."""
    return gamma * x if gamma else xp.zeros_like(x)
