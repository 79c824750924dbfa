"""The contract of an objective: a loss that knows its own inverse, and what its users check of it.

An objective is a frozen, hashable description of a loss with every option that was trained with.
``loss`` is for checks and for small models; what matters is ``posterior``.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar, Literal, Self, TypeAlias, cast

import numpy as np

from refocal._arrays import (
    Array,
    ArrayT,
    Namespace,
    as_array,
    at_hand,
    device,
    is_integer,
    is_numpy,
    is_torch,
    log1p,
    map_rows,
    namespace,
    stop_gradient,
    working_dtype,
)
from refocal._checks import (
    check_axis,
    check_floats,
    check_labels,
    check_probs,
    check_same_shape,
    check_scores,
    check_targets,
    known_log_odds,
    warn_if_probs,
    warn_if_sigmoids,
)

ScoreKind: TypeAlias = Literal["softmax", "sigmoid", "one-vs-rest"]


class Objective(abc.ABC):
    """What a model was trained with, and the way back to its posterior: the contract of all objectives.

    A class of your own defines `loss` and `log_posterior`; `logits` too, for `refocal.score_threshold`. The
    other methods follow from these, and may be overridden. A missing method, and an array of a wrong shape or
    library, are errors where the objective is used.

    **Scores.** A loss on a sigmoid says so in its class: ``scores = "sigmoid"``. Each entry of the logits is
    then a problem of its own, `loss` gets labels 0 and 1 of the shape of logits and returns that shape, and
    `log_posterior` is log P(y = 1). Without it, ``scores = "softmax"``: the entries along ``axis`` are the
    classes of one row, labels are their numbers, and `loss` has one number for each row.

    **Arrays.** Each method gets the arrays that its caller has: NumPy arrays from
    `refocal.TemperatureScaling` and `refocal.choose_calibration`, PyTorch tensors from training and
    `refocal.torch.Posterior`, JAX arrays from those who use JAX. It returns an array of the same library, so
    it is made of functions of refocal, or of those of ``array_api_compat.array_namespace(logits)``. Logits
    are floats of any shape with the classes along ``axis``.

    Example:
        >>> from array_api_compat import array_namespace
        >>> from refocal import Focal, TemperatureScaling
        >>> class Squared(Objective):  # the Brier loss, whose minimiser is the posterior itself
        ...     def loss(self, logits, labels, *, axis=-1):
        ...         xp, nll = array_namespace(logits), Focal(0.0).loss(logits, labels, axis=axis)
        ...         return xp.sum(self.posterior(logits, axis=axis) ** 2, axis=axis) - 2 * xp.exp(-nll)
        ...
        ...     def log_posterior(self, logits, *, axis=-1):
        ...         return Focal(0.0).log_posterior(logits, axis=axis)
        >>> logits, labels = np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0]]), np.array([0, 1, 1])
        >>> TemperatureScaling(Squared()).fit(logits, labels).predict_proba(logits[0]).round(3)
        array([0.667, 0.333])
    """

    kinds: ClassVar[dict[str, type[Objective]]] = {}
    """Every objective by the name of its class, for `objective_from_dict`."""

    scores: ClassVar[ScoreKind] = "softmax"
    """What turns logits into scores: a softmax of each row, a sigmoid of each entry (every entry is then a
    problem of its own), or sigmoids of the entries, read as a distribution of the row."""

    def __init_subclass__(cls) -> None:
        taken = Objective.kinds.get(cls.__name__)
        if taken is not None and cls.__module__ != taken.__module__ and is_ours(taken):
            raise TypeError(
                f"an objective must not be named {cls.__name__}, as {taken.__module__} has one of that name, "
                f"got {cls.__module__}.{cls.__qualname__}"
            )
        if not cls.__name__.startswith("_"):  # what several objectives share is none itself
            Objective.kinds[cls.__name__] = cls

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Say what is missing in words of our own."""
        missing = sorted(cls.__abstractmethods__)
        if missing:
            raise TypeError(f"{cls.__name__} must define {' and '.join(missing)} to be an objective")
        return super().__new__(cls)

    @abc.abstractmethod
    def loss(self, logits: ArrayT, labels: Any, *, axis: int = -1) -> ArrayT:
        """Return the loss of each row (of each entry, for sigmoid scores), not reduced.

        Labels are integers, of logits' shape without the class axis, or distributions of logits' shape;
        for sigmoid scores numbers in [0, 1] of logits' shape. Own classes need integers alone.
        """

    @abc.abstractmethod
    def log_posterior(self, logits: ArrayT, *, axis: int = -1) -> ArrayT:
        """Return the logarithm of `posterior`, an array of logits' shape."""

    def posterior(self, logits: ArrayT, *, axis: int = -1) -> ArrayT:
        """Return the true probabilities that belong to the logits of a model trained with this loss.

        The result has the shape of logits: along ``axis`` a distribution, or for sigmoid scores P(y = 1) of
        each entry. A softmax with a logit of inf, or with none but -inf, is not defined: its row is NaN.
        """
        y: Any = self.log_posterior(logits, axis=axis)
        return cast(ArrayT, namespace(y).exp(y))

    def posterior_from_probs(self, probs: ArrayT, *, axis: int = -1, check: bool = True) -> ArrayT:
        """Return the true probabilities that belong to scores; prefer `posterior` of the logits.

        Softmax scores are in [0, 1] and sum to 1 in each row (within 0.001, in half precision 0.01), sigmoid
        scores are in [0, 1]; ``check=False`` goes without a look at the values. At a score of exactly 0, or
        of 1 from a sigmoid, only `Focal`, `Poly1Focal` and `SigmoidFocal` have a gradient (others give 0).
        """
        given, axis = self._checked_probs("probs", probs, axis, check)
        xp = namespace(given)
        with np.errstate(divide="ignore"):
            p = xp.astype(given, working_dtype(given), copy=False)
            y: Any = self.posterior(self._logits_of_scores(xp, p), axis=axis)
        return cast(ArrayT, xp.astype(y, given.dtype, copy=False))

    def logits(self, posterior: ArrayT, *, axis: int = -1, check: bool = True) -> ArrayT:
        """Return logits of the risk minimiser: the inverse of `posterior`, of the same shape.

        The posterior is in [0, 1] and, unless scores are sigmoids, sums to 1 in each row. Infinite logits
        have no gradient.
        """
        name = type(self).__name__
        raise NotImplementedError(f"{name} must define logits(posterior, *, axis=-1), its inverse, for this")

    @property
    def plain_gamma(self) -> float | None:
        """Gamma, if this is the focal loss on a softmax without further options; otherwise None."""
        return None

    def without_smoothing(self) -> Objective:
        """Return the objective with label smoothing 0, whose posterior is that of the smoothed labels."""
        if dataclasses.is_dataclass(self) and getattr(self, "label_smoothing", 0.0):
            return dataclasses.replace(self, label_smoothing=0.0)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the objective as a dictionary that JSON can hold; `objective_from_dict` is the inverse."""
        name = type(self).__name__
        if not dataclasses.is_dataclass(self):
            if vars(self):
                raise TypeError(f"{name} must be a dataclass, or define to_dict, to be stored")
            return {"objective": name}
        fields = dataclasses.asdict(self)
        return {"objective": name, **{k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}}

    def _checked(self, name: str, x: Any, axis: int) -> tuple[Array, int]:
        """Return an array of real floats that the objective can take, and axis >= 0."""
        if self.scores != "sigmoid":
            return check_scores(name, x, axis)
        x = check_floats(name, x)
        if x.ndim == 0:
            raise ValueError(f"{name} must have at least one axis, got a single number")
        return x, check_axis(name, x, axis)

    def _checked_probs(self, name: str, x: Any, axis: int, check: bool) -> tuple[Array, int]:
        """Return scores or posteriors after `_checked` and a look at their values."""
        x, axis = self._checked(name, x, axis)
        by_entry = self.scores == "sigmoid" or (self.scores == "one-vs-rest" and name == "probs")
        try:
            check_probs(name, x, None if by_entry else axis, check)
        except ValueError as error:
            if by_entry or is_ours(type(self)):
                raise
            raise ValueError(f"{error}; {scores_hint(self)}") from None
        return x, axis

    def _logits_of_scores(self, xp: Namespace, p: Array) -> Array:
        # No gradient at the ends, where that of the logit is infinite and the rest of the chain is 0.
        tiny = xp.finfo(p.dtype).smallest_normal
        log_p = xp.log(xp.where(p < tiny, stop_gradient(p), p))
        if self.scores == "softmax":
            return log_p
        return log_p - log1p(xp, -xp.where(p == 1, stop_gradient(p), p))


def is_ours(kind: type[Objective]) -> bool:
    """Return whether a class of objectives is refocal's own."""
    return kind.__module__.split(".")[0] == __name__.split(".")[0]


def scores_hint(objective: Objective) -> str:
    """Return what to do where an objective that does not say so is one on a sigmoid."""
    return f"if the loss is one on a sigmoid, set scores = 'sigmoid' in the class {type(objective).__name__}"


class _InBlocks(Objective):
    """Objectives that are given by two functions on blocks of rows, in the dtype to compute in."""

    def log_posterior(self, logits: ArrayT, *, axis: int = -1) -> ArrayT:
        """Return the logarithm of `posterior`."""
        logits, axis = self._checked("logits", logits, axis)
        self._warn(logits, axis)
        found = self._compiled(logits, axis, logarithm=True)
        y: ArrayT = self._log_posterior_of(logits, axis) if found is None else found
        return y

    def posterior(self, logits: ArrayT, *, axis: int = -1) -> ArrayT:
        """Return the true probabilities that belong to the logits of a model trained with this loss."""
        given, at = self._checked("logits", logits, axis)
        found: ArrayT | None = self._compiled(given, at, logarithm=False)
        if found is None:
            return super().posterior(logits, axis=axis)
        self._warn(given, at)
        return found

    def _warn(self, logits: Array, axis: int) -> None:
        """Warn of logits that look like scores."""
        if self.scores == "softmax":
            warn_if_probs("logits", logits, axis)
        else:
            warn_if_sigmoids("logits", logits)

    def _log_posterior_of(self, logits: Array, axis: int) -> Array:
        return map_rows(self._log_posterior, logits, *self._parameters(logits, axis), axis=axis)

    def _compiled(self, logits: Array, axis: int, *, logarithm: bool) -> Array | None:
        """Return the posterior or its logarithm by machine code, where there is some."""
        return None

    def posterior_from_probs(self, probs: ArrayT, *, axis: int = -1, check: bool = True) -> ArrayT:
        """Return the true probabilities that belong to scores; prefer `posterior` of the logits."""
        probs, axis = self._checked_probs("probs", probs, axis, check)
        y: ArrayT = map_rows(self._posterior_from_probs, probs, *self._parameters(probs, axis), axis=axis)
        return y

    def logits(self, posterior: ArrayT, *, axis: int = -1, check: bool = True) -> ArrayT:
        """Return the logits of the risk minimiser: the inverse of `posterior`, -inf for a score of 0."""
        posterior, axis = self._checked_probs("posterior", posterior, axis, check)
        y: ArrayT = map_rows(self._logits, posterior, *self._parameters(posterior, axis), axis=axis)
        return y

    def _parameters(self, like: Array, axis: int) -> tuple[Any, ...]:
        """Return numbers, or arrays that broadcast against ``like``, for the functions below."""
        return ()

    def _posterior_from_probs(self, xp: Namespace, p: Array, *args: Any) -> Array:
        return xp.exp(self._log_posterior(xp, self._logits_of_scores(xp, p), *args))

    @abc.abstractmethod
    def _log_posterior(self, xp: Namespace, z: Array, *args: Any) -> Array:
        """Return the body of `log_posterior`; ``args`` are the parameters and the axis."""

    @abc.abstractmethod
    def _logits(self, xp: Namespace, eta: Array, *args: Any) -> Array:
        """Return the body of `logits`; ``args`` are the parameters and the axis."""


def objective_from_dict(fields: Mapping[str, Any]) -> Objective:
    """Return the objective that `to_dict` described.

    Args:
        fields: A dictionary with the class name under "objective" and that class's arguments.

    Example:
        >>> from refocal import Focal
        >>> objective_from_dict({"objective": "Focal", "gamma": 2.0})
        Focal(gamma=2.0, weight=None, label_smoothing=0.0)
    """
    arguments = dict(fields)
    name = arguments.pop("objective", None)
    if isinstance(name, Mapping):
        raise ValueError("objective must be the name of a class, got a dictionary: this is a saved choice")
    if name not in Objective.kinds:
        raise ValueError(
            f"objective must be one of {', '.join(Objective.kinds)}, got {name!r}; if it is a class of your "
            "own, import the module that defines it first"
        )
    return Objective.kinds[name](**arguments)


def n_classes_of(objective: Objective) -> int | None:
    """Return how many classes an objective has parameters for, None where one number serves all."""
    lengths = [len(value) for value in vars(objective).values() if isinstance(value, tuple)]
    return lengths[0] if lengths else None


def check_objective(objective: object, *, softmax: bool = False) -> Objective:
    """Return an objective, if wanted one on a softmax."""
    if not isinstance(objective, Objective):
        raise TypeError(f"objective must be an objective such as Focal(2.0), got {objective!r}")
    if softmax and objective.scores != "softmax":
        raise ValueError(
            f"objective must be one on a softmax, got {type(objective).__name__} ({objective.scores})"
        )
    return objective


def losses_of(objective: Objective, logits: Array, labels: Array, axis: int = -1) -> Array:
    """Return the loss of each row for integer labels, after a check that the objective keeps its contract."""
    return _kept(objective, "loss", (logits, labels), axis, labels.shape)


def log_posterior_of(objective: Objective, logits: Array, axis: int = -1) -> Array:
    """Return the log-posterior of logits, after a check that the objective keeps its contract.

    Logits that come here were looked at before, and many were divided by a temperature since.
    """
    with nullcontext() if at_hand(logits) is None else known_log_odds():
        return _kept(objective, "log_posterior", (logits,), axis, logits.shape)


def logits_of(objective: Objective, posterior: Array, axis: int = -1) -> Array:
    """Return the logits of a posterior, after a check that the objective keeps its contract."""
    return _kept(objective, "logits", (posterior,), axis, posterior.shape)


def check_result_shape(objective: Objective, method: str, result: Array, shape: tuple[int, ...]) -> Array:
    """Return what a method of an objective gave, if its shape is that of the contract."""
    if tuple(result.shape) != tuple(shape):
        rule = {"loss": "one number for each row, shape", "logits": "the shape of the posterior"}
        # Not a ValueError: that is what data are refused with, and a choice then leaves a method out.
        raise TypeError(
            f"{method} of {type(objective).__name__} must return {rule.get(method, 'the shape of logits')} "
            f"{tuple(shape)}, got shape {tuple(result.shape)}"
        )
    return result


def _kept(
    objective: Objective, method: str, arrays: tuple[Array, ...], axis: int, shape: tuple[int, ...]
) -> Array:
    what, given = f"{method} of {type(objective).__name__}", arrays[0]
    try:
        result = getattr(objective, method)(*arrays, axis=axis)
    except AttributeError as error:  # a method of another library's arrays
        kind = type(given).__name__
        raise TypeError(f"{what} must take arrays of any library, but fails on {kind}: {error}") from error
    here, there = ((is_numpy(x), is_torch(x)) for x in (given, result))  # a traced array has many types
    if here != there or not hasattr(result, "shape"):
        raise TypeError(
            f"{what} must return the kind of array that it got, {type(given).__name__}, "
            f"got {type(result).__name__}"
        )
    return check_result_shape(objective, method, result, shape)


def check_of_classes(name: str, value: Any, like: Array, axis: int) -> None:
    """Raise where there are numbers, but not one for each class."""
    k = like.shape[axis]
    if isinstance(value, tuple) and len(value) != k:
        raise ValueError(f"{name} must have one number for each of the {k} classes, got {len(value)}")


def per_class(name: str, value: Any, like: Array, axis: int) -> Any:
    """Return a number as it is, and numbers of the classes as an array that broadcasts against another."""
    if isinstance(value, float):
        return value
    check_of_classes(name, value, like, axis)
    xp = namespace(like)
    shape = [1] * like.ndim
    shape[axis] = len(value)
    array = xp.asarray(value, dtype=working_dtype(like), device=device(like))
    return xp.reshape(array, tuple(shape))


def row_labels(labels: Any, logits: Array, axis: int) -> Array:
    """Return labels that fit the rows of logits: integers, or distributions over the classes."""
    labels = as_array(labels, "labels")
    if not is_integer(labels):
        labels = check_same_shape("labels", labels, "logits", logits)
        check_targets("labels", labels)
        return labels
    check_labels(labels, logits, axis)
    return labels


def entry_targets(targets: Any, logits: Array) -> Array:
    """Return targets, one for each entry of logits and within 0..1."""
    targets = as_array(targets, "targets")
    if tuple(targets.shape) != tuple(logits.shape):
        raise ValueError(
            f"targets must have the shape {tuple(logits.shape)} of logits, got {tuple(targets.shape)}"
        )
    check_targets("targets", targets)
    return targets
