"""Temperature scaling: one number, fitted on labelled rows, that divides all logits."""

from __future__ import annotations

import json
import math
import os
import warnings
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from refocal._arrays import Array, log_softmax, map_rows, namespace, working_dtype
from refocal._checks import check_count, check_floats, check_number, check_scores
from refocal._rows import SUM_TOLERANCE, Rows, logit_rows
from refocal.calibration._search import (
    Derivatives,
    Start,
    focal_at,
    loss_at,
    moments,
    newton,
    nll_at,
    quasi_newton,
)
from refocal.files import write_atomic
from refocal.metrics.binning import bin_rows, check_n_bins, make_bins
from refocal.objectives import Focal, Objective, check_objective, log_posterior_of, objective_from_dict

ECE_RANGE, ECE_STEPS = 2.0, (0.025, 0.001)
"""Where log T is searched for the ECE, around that of the NLL, and the spacing of coarse and fine grids."""

ECE_REFINED = 5
"""Around how many of the best points of the coarse grid there is a fine one."""

FREE_GAMMAS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Where the search for a free gamma starts: the NLL may have two minima, one at an end."""


class Fit(NamedTuple):
    """The end of a fit: log b = -log T, gamma (of psi after the temperature), and how it got there."""

    log_b: float
    passes: int
    converged: bool
    gamma: float = 0.0

    @property
    def temperature(self) -> float:
        """T."""
        return math.exp(-self.log_b)

    def warn(self) -> None:
        """Warn the caller of the caller's caller if the fit did not converge."""
        if not self.converged:
            warnings.warn(
                f"the fit did not converge: T = {self.temperature:.6g} after {self.passes} passes",
                RuntimeWarning,
                stacklevel=4,
            )


class _Scaling:
    """What the scalings share: probabilities, fitted numbers and files."""

    _settings: ClassVar[tuple[str, ...]]
    _fitted: ClassVar[tuple[str, ...]] = ("temperature_", "n_iter_", "converged_")
    temperature_: float
    n_iter_: int
    converged_: bool

    def predict_proba(self, logits: Array, *, axis: int = -1) -> Array:
        """Return probabilities, of the same shape, dtype and library."""
        self._check_fitted()
        return scaled_probs(logits, self.temperature_, self._link, axis)

    def predict_log_proba(self, logits: Array, *, axis: int = -1) -> Array:
        """Return the logarithm of `predict_proba`."""
        self._check_fitted()
        return scaled_probs(logits, self.temperature_, self._link, axis, log=True)

    def to_dict(self) -> dict[str, Any]:
        """Return settings and fitted numbers as a dictionary that JSON can hold."""
        fields: dict[str, Any] = {"scaling": type(self).__name__}
        for name in self._settings:
            value = getattr(self, name)
            fields[name] = value.to_dict() if isinstance(value, Objective) else value
        return fields | {name: vars(self)[name] for name in self._fitted if name in vars(self)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Return what `to_dict` described.

        Raises:
            TypeError: If it is no dictionary, or a value has a wrong type.
            ValueError: If a key is missing or unknown, or a value is wrong.
        """
        if not isinstance(fields, dict):
            raise TypeError(f"fields must be a dictionary, got {type(fields).__name__}")
        if fields.get("scaling") != cls.__name__:
            raise ValueError(f"scaling must be {cls.__name__!r}, got {fields.get('scaling')!r}")
        own = {"scaling", *cls._settings}
        fitted = set(fields) - own
        if set(fields) - fitted != own or (fitted and fitted != set(cls._fitted)):
            raise ValueError(
                f"fields must have the keys {sorted(own)} and all or none of {sorted(cls._fitted)}, "
                f"got {sorted(fields, key=str)}"
            )
        settings = {name: fields[name] for name in cls._settings}
        if isinstance(settings.get("objective"), dict):
            settings["objective"] = objective_from_dict(settings["objective"])
        scaling = cls(**settings)
        if fitted:
            if check_number("temperature_", fields["temperature_"], low=0, rule="finite and > 0") == 0:
                raise ValueError("temperature_ must be finite and > 0, got 0")
            if "gamma_" in fitted:
                check_number("gamma_", fields["gamma_"], low=0, rule="finite and >= 0")
            check_count("n_iter_", fields["n_iter_"], 1)
            if not isinstance(fields["converged_"], bool):
                raise TypeError(f"converged_ must be True or False, got {fields['converged_']!r}")
            vars(scaling).update({name: fields[name] for name in cls._fitted})
        return scaling

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict` as a JSON file. An older file is replaced in one step, or left as it is."""
        self._check_fitted()
        text = json.dumps(self.to_dict(), indent=1) + "\n"
        write_atomic(Path(path), text.encode(), suffix=f".{os.getpid()}.tmp")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return what `save` wrote."""
        return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))

    @property
    def _link(self) -> Objective | None:
        return None

    def _check_fitted(self) -> None:
        if "temperature_" not in vars(self):
            raise ValueError(f"{type(self).__name__} must be fitted first: call fit(logits, labels)")

    def _finish(self, fit: Fit) -> Self:
        self.temperature_, self.n_iter_, self.converged_ = fit.temperature, fit.passes, fit.converged
        fit.warn()
        return self


class TemperatureScaling(_Scaling):
    r"""Divide logits by the temperature T > 0 that minimises a loss of labelled rows.

    .. math:: T^* = \arg\min_{T > 0} \frac1n \sum_i \ell\bigl(\mathrm{softmax}(z_i / T), y_i\bigr)

    Which loss, says ``objective`` (TS_NLL, TS_FL and TS_ECE in the paper):

    - "nll": the negative log-likelihood. It is convex in 1 / T, so the T that is found is the only one.
    - "focal": the focal loss with ``gamma``. It is not quite convex (where a label has a small probability),
      so the minimum found is that which the search reaches from the T of the NLL.
    - "ece": the expected calibration error. It jumps wherever a row changes its bin, so it is searched on
      grids around the T of the NLL: in steps of 2.5 % within a factor of 7.4, then in steps of 0.1 %
      around the best five of those. The ECE of a grid point is exact; between two points nothing is promised.
    - an objective such as ``Focal(2.0, weight=...)``: its own loss, with derivatives by differences.

    Data for which the loss falls all the way to T = 0 or T = infinity is refused.

    Args:
        objective: "nll", "focal", "ece", or an objective on a softmax.
        gamma: The gamma >= 0 of "focal".
        n_bins: The number of equal bins of "ece".

    Attributes:
        temperature_: T.
        n_iter_: Passes over all rows that the fit took; of an objective, each computes the loss three times.
        converged_: Whether the last step was small ("ece": whether the best point is inside the grid). If
            not, `fit` warns too.

    Example:
        >>> logits = np.log([[0.9, 0.1]] * 3 + [[0.2, 0.8]] * 3)
        >>> labels = np.array([0, 0, 1, 1, 1, 0])
        >>> scaling = TemperatureScaling().fit(logits, labels)
        >>> round(scaling.temperature_, 3)
        2.704
        >>> scaling.predict_proba(logits[:1]).round(3)
        array([[0.693, 0.307]])
    """

    _settings = ("objective", "gamma", "n_bins")

    def __init__(
        self, objective: str | Objective = "nll", gamma: float | None = None, n_bins: int = 10
    ) -> None:
        if isinstance(objective, Objective):
            check_objective(objective, softmax=True)
        elif objective not in ("nll", "focal", "ece"):
            raise ValueError(f"objective must be 'nll', 'focal', 'ece' or an objective, got {objective!r}")
        if objective == "focal":
            gamma = check_number("gamma", gamma, low=0, rule="finite and >= 0")
        elif gamma is not None:
            raise ValueError(f"gamma must be None unless objective is 'focal', got {gamma!r}")
        self.objective, self.gamma, self.n_bins = objective, gamma, check_n_bins(n_bins)

    def fit(self, logits: Array, labels: Array, *, axis: int = -1) -> Self:
        """Find T and return itself.

        Args:
            logits: Scores before the softmax, with the classes along ``axis``; -inf for a masked class.
            labels: Integers 0..K-1, of logits' shape without the class axis.
            axis: The class axis.

        Raises:
            ValueError: Where values do not fit, or the loss falls all the way to T = 0 or T = infinity.
        """
        return self._finish(
            fit_temperature(logit_rows(logits, labels, axis), self.objective, self.gamma, self.n_bins)
        )

    def transform(self, logits: Array) -> Array:
        """Return logits / T, of the same shape, dtype and library."""
        self._check_fitted()
        logits = check_floats("logits", logits)
        return namespace(logits).astype(_scaled(logits, self.temperature_), logits.dtype, copy=False)


class FocalTemperatureScaling(_Scaling):
    r"""Divide logits by T and apply `psi`, with T, and if wanted gamma, by the NLL of labelled rows.

    .. math:: p = \Psi^\gamma(\mathrm{softmax}(z / T))

    `TemperatureScaling` is the case gamma = 0. A free gamma is searched in [0, 16].

    Args:
        gamma: The gamma of the training, or None to fit it too.

    Attributes:
        temperature_: T.
        gamma_: gamma, given or fitted.
        n_iter_: Passes over all rows that the fit took.
        converged_: Whether the last step was small. If not, `fit` warns too.

    Example:
        >>> logits = np.log([[0.9, 0.1]] * 3 + [[0.2, 0.8]] * 3)
        >>> labels = np.array([0, 0, 1, 1, 1, 0])
        >>> scaling = FocalTemperatureScaling(gamma=2.0).fit(logits, labels)
        >>> scaling.predict_proba(logits[:1]).round(3)
        array([[0.693, 0.307]])
    """

    _settings = ("gamma",)
    _fitted = ("temperature_", "gamma_", "n_iter_", "converged_")
    gamma_: float

    def __init__(self, gamma: float | None = None) -> None:
        self.gamma = gamma if gamma is None else check_number("gamma", gamma, low=0, rule="finite and >= 0")

    def fit(self, logits: Array, labels: Array, *, axis: int = -1) -> Self:
        """Find T, and gamma if it is free, and return itself.

        Args:
            logits: Scores before the softmax, with the classes along ``axis``; -inf for a masked class.
            labels: Integers 0..K-1, of logits' shape without the class axis.
            axis: The class axis.

        Raises:
            ValueError: Where values do not fit, or the loss falls all the way to T = 0 or T = infinity.
        """
        fit = fit_focal_temperature(logit_rows(logits, labels, axis), self.gamma)
        self.gamma_ = fit.gamma
        return self._finish(fit)

    @property
    def _link(self) -> Objective:
        return Focal(self.gamma_)


def scaled_probs(
    logits: Array, temperature: float, link: Objective | None, axis: int, *, log: bool = False
) -> Array:
    """Return (log-)probabilities of logits / T, by the posterior of an objective or the softmax."""
    logits, axis = check_scores("logits", logits, axis)
    xp = namespace(logits)
    y = log_probs_of(logits, temperature, link, axis)
    # Cast last: the logarithm in half precision would lose two digits more.
    return xp.astype(y if log else xp.exp(y), logits.dtype, copy=False)


def log_probs_of(logits: Array, temperature: float, link: Objective | None, axis: int) -> Array:
    """Return log-probabilities in the dtype to compute in."""
    z = _scaled(logits, temperature)
    return map_rows(log_softmax, z, axis=axis) if link is None else log_posterior_of(link, z, axis)


def _scaled(logits: Array, temperature: float) -> Array:
    return namespace(logits).astype(logits, working_dtype(logits), copy=False) / temperature


def fit_temperature(
    rows: Rows, objective: str | Objective, gamma: float | None = None, n_bins: int = 10
) -> Fit:
    """Return the fit of `TemperatureScaling` to rows."""
    start = Start.of(rows)
    if objective == "nll":
        return Fit(*newton(lambda u: nll_at(rows, u), start.log_b, start))
    if objective == "ece":
        return _search_ece(rows, n_bins, start)
    if isinstance(objective, Objective):
        gamma = objective.plain_gamma
        if objective.without_smoothing() is not objective and np.isneginf(rows.z).any():
            raise ValueError(
                "the loss is infinite at every T: label smoothing gives weight to a class with logit -inf"
            )

    def loss(some: Rows, u: float) -> Derivatives:
        if isinstance(objective, Objective) and gamma is None:
            return loss_at(some, objective, u)
        assert gamma is not None  # "focal" has one
        return focal_at(some, u, gamma)

    best, _, _ = newton(lambda u: loss(start.rows, u), start.log_b, start, strict=False)
    return Fit(*newton(lambda u: loss(rows, u), best, start))


def fit_focal_temperature(rows: Rows, gamma: float | None = None) -> Fit:
    """Return the fit of `FocalTemperatureScaling` to rows."""
    start = Start.of(rows)
    best, point = math.inf, np.array([start.log_b, gamma or 0.0])
    for first in FREE_GAMMAS if gamma is None else (gamma,):
        found = quasi_newton(start.rows, np.array([point[0], first]), False, start, strict=False)
        if found.value < best:
            best, point = found.value, found.point
    found = quasi_newton(rows, point, gamma is None, start)
    return Fit(float(found.point[0]), found.passes, found.converged, float(found.point[1]))


def _search_ece(rows: Rows, n_bins: int, start: Start) -> Fit:
    """Return the best log b of the grids around that of the NLL; converged means that it lies inside."""
    centre, passes, _ = newton(lambda u: nll_at(rows, u), start.log_b, start)
    right = (rows.z.argmax(axis=1) == rows.labels).astype(np.int64)
    bins = make_bins(n_bins)

    def error(u: float) -> float:
        confidence = 1 / moments(rows, math.exp(u), order=0)[0]
        return bin_rows(Rows("probs", confidence, "probs", SUM_TOLERANCE, right), bins, "positive").ece()

    coarse, fine = ECE_STEPS
    around = round(ECE_RANGE / coarse)
    found = {u: error(u) for u in centre + coarse * np.arange(-around, around + 1)}
    inner = fine * np.arange(-round(coarse / fine), round(coarse / fine) + 1)
    for middle in sorted(found, key=found.__getitem__)[:ECE_REFINED]:
        found |= {u: error(u) for u in middle + inner if u not in found}
    best = min(found, key=found.__getitem__)
    return Fit(float(best), passes + len(found), bool(abs(best - centre) < ECE_RANGE))
