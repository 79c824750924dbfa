"""Temperature scaling: one number, fitted on labelled rows, that divides all logits."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from refocal._arrays import Array, namespace
from refocal._checks import check_count, check_floats, check_number
from refocal._rows import Task
from refocal.calibration._fits import Fit, fit_focal_temperature, fit_link_temperature, fit_temperature
from refocal.calibration._links import Way, probs_of, scaled
from refocal.calibration._problem import Problem, check_task, problem_of
from refocal.files import write_atomic
from refocal.metrics.binning import check_n_bins
from refocal.objectives import Focal, Objective, SigmoidFocal, check_objective, objective_from_dict
from refocal.objectives.base import ScoreKind


class _Scaling:
    """What the scalings share: probabilities, fitted numbers and files."""

    _settings: ClassVar[tuple[str, ...]]
    _fitted: ClassVar[tuple[str, ...]] = ("temperature_", "n_iter_", "converged_", "task_", "columns_")
    # what the first files did not have
    _younger: ClassVar[dict[str, Any]] = {"task": None, "task_": "multiclass", "columns_": None}
    task: Task | None
    task_: Task
    columns_: int | None
    temperature_: float
    n_iter_: int
    converged_: bool

    def predict_proba(self, logits: Array, *, axis: int = -1) -> Array:
        """Return probabilities, of the same shape, dtype and library; for sigmoid scores P(y = 1)."""
        self._check_fitted()
        return self._probs(logits, axis, log=False)

    def predict_log_proba(self, logits: Array, *, axis: int = -1) -> Array:
        """Return the logarithm of `predict_proba`."""
        self._check_fitted()
        return self._probs(logits, axis, log=True)

    def _probs(self, logits: Array, axis: int, *, log: bool) -> Array:
        way = Way(self.temperature_, self._link)
        return probs_of(self._kind, logits, way, axis, columns=self.columns_, log=log)

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
        fitted_before = "temperature_" in fields
        fields = {k: v for k, v in cls._younger.items() if fitted_before or not k.endswith("_")} | fields
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
            if fields["task_"] is None:
                raise ValueError("task_ must be a task, got None")
            check_task(fields["task_"], scaling._objective)
            if fields["columns_"] is not None:
                check_count("columns_", fields["columns_"], 1)
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

    @property
    def _objective(self) -> Objective | None:
        return None

    @property
    def _kind(self) -> ScoreKind:
        if self.task_ != "multiclass":
            return "sigmoid"
        return "softmax" if self._objective is None else self._objective.scores

    def _problem(
        self,
        logits: Any,
        labels: Any,
        axis: int,
        ignore_index: Hashable,
        classes: Sequence[Hashable] | None,
    ) -> Problem:
        return problem_of(logits, labels, self.task, self._objective, axis, ignore_index, classes)

    def _check_fitted(self) -> None:
        if "temperature_" not in vars(self):
            raise ValueError(f"{type(self).__name__} must be fitted first: call fit(logits, labels)")

    def _finish(self, fit: Fit, problem: Problem) -> Self:
        self.temperature_, self.n_iter_, self.converged_ = fit.temperature, fit.passes, fit.converged
        self.task_, self.columns_ = problem.task, problem.columns
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

    Logits are those of a softmax (multiclass), the log odds of class 1 (binary), or those of one sigmoid for
    each label (multilabel): then the softmax above is a sigmoid of each entry, and a loss the mean over all
    entries. The sigmoids of a `OneVsRest` objective are divided by their sum.

    Data for which the loss falls all the way to T = 0 or T = infinity is refused.

    Args:
        objective: "nll", "focal", "ece", or an objective.
        gamma: The gamma >= 0 of "focal".
        n_bins: The number of equal bins of "ece"; of sigmoid scores it is that of P(y = 1), over all entries.
        task: "binary", "multiclass" or "multilabel". None for that of the objective; without one, logits of
            shape (n,) are binary, others multiclass.

    Attributes:
        temperature_: T.
        task_: The task of the rows that it was fitted on.
        columns_: How many classes or labels those rows had, and others must have; None for a binary task,
            which takes log odds of any shape, each entry for itself.
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
        >>> log_odds = logits[:, 1] - logits[:, 0]
        >>> TemperatureScaling(task="binary").fit(log_odds, labels).predict_proba(log_odds[:1]).round(3)
        array([0.307])
    """

    _settings = ("objective", "gamma", "n_bins", "task")

    def __init__(
        self,
        objective: str | Objective = "nll",
        gamma: float | None = None,
        n_bins: int = 10,
        *,
        task: Task | None = None,
    ) -> None:
        if isinstance(objective, Objective):
            check_objective(objective)
        elif objective not in ("nll", "focal", "ece"):
            raise ValueError(f"objective must be 'nll', 'focal', 'ece' or an objective, got {objective!r}")
        if objective == "focal":
            gamma = check_number("gamma", gamma, low=0, rule="finite and >= 0")
        elif gamma is not None:
            raise ValueError(f"gamma must be None unless objective is 'focal', got {gamma!r}")
        self.objective, self.gamma, self.n_bins, self.task = objective, gamma, check_n_bins(n_bins), task
        check_task(task, self._objective)

    def fit(
        self,
        logits: Any,
        labels: Any,
        *,
        axis: int = -1,
        ignore_index: Hashable = None,
        classes: Sequence[Hashable] | None = None,
    ) -> Self:
        """Find T and return itself.

        Args:
            logits: Scores before the softmax, with the classes along ``axis``; -inf for a masked class. For
                sigmoid scores (binary, multilabel) of any shape.
            labels: Integers 0..K-1, of logits' shape without the class axis; for sigmoid scores 0 or 1, of
                logits' shape.
            axis: The class axis, or that of the labels.
            ignore_index: Rows with this label are left out, as for `refocal.ece`.
            classes: The label of each class in order, where labels are not 0..K-1.

        Raises:
            ValueError: Where values do not fit, or the loss falls all the way to T = 0 or T = infinity.
        """
        problem = self._problem(logits, labels, axis, ignore_index, classes)
        return self._finish(fit_temperature(problem, self.objective, self.gamma, self.n_bins), problem)

    def transform(self, logits: Array) -> Array:
        """Return logits / T, of the same shape, dtype and library."""
        self._check_fitted()
        logits = check_floats("logits", logits)
        z = scaled(logits, Way(self.temperature_), -1)
        return namespace(logits).astype(z, logits.dtype, copy=False)

    @property
    def _objective(self) -> Objective | None:
        return self.objective if isinstance(self.objective, Objective) else None


class FocalTemperatureScaling(_Scaling):
    r"""Divide logits by T and apply `psi`, with T, and if wanted gamma, by the NLL of labelled rows.

    .. math:: p = \Psi^\gamma(\mathrm{softmax}(z / T))

    `TemperatureScaling` is the case gamma = 0. A free gamma is searched in [0, 16]. For sigmoid scores
    (binary, multilabel) each entry is the problem of two classes that have the logits 0 and z.

    Args:
        gamma: The gamma of the training, or None to fit it too.
        task: As for `TemperatureScaling`.

    Attributes:
        temperature_: T.
        task_: The task of the rows that it was fitted on.
        columns_: How many classes or labels those rows had, and others must have; None for a binary task,
            which takes log odds of any shape, each entry for itself.
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

    _settings = ("gamma", "task")
    _fitted = ("temperature_", "gamma_", "n_iter_", "converged_", "task_", "columns_")
    gamma_: float

    def __init__(self, gamma: float | None = None, *, task: Task | None = None) -> None:
        check_task(task)
        self.task = task
        self.gamma = gamma if gamma is None else check_number("gamma", gamma, low=0, rule="finite and >= 0")

    def fit(
        self,
        logits: Any,
        labels: Any,
        *,
        axis: int = -1,
        ignore_index: Hashable = None,
        classes: Sequence[Hashable] | None = None,
    ) -> Self:
        """Find T, and gamma if it is free, and return itself.

        Args:
            logits: Scores before the softmax, with the classes along ``axis``; -inf for a masked class. For
                sigmoid scores (binary, multilabel) of any shape.
            labels: Integers 0..K-1, of logits' shape without the class axis; for sigmoid scores 0 or 1, of
                logits' shape.
            axis: The class axis, or that of the labels.
            ignore_index: Rows with this label are left out, as for `refocal.ece`.
            classes: The label of each class in order, where labels are not 0..K-1.

        Raises:
            ValueError: Where values do not fit, or the loss falls all the way to T = 0 or T = infinity.
        """
        problem = self._problem(logits, labels, axis, ignore_index, classes)
        if self.gamma is None:
            fit = fit_focal_temperature(problem)
        else:
            fit = fit_link_temperature(problem, Way(link=_psi_of(self.gamma, problem.kind)))
        self.gamma_ = fit.gamma if self.gamma is None else self.gamma
        return self._finish(fit, problem)

    @property
    def _link(self) -> Objective:
        return _psi_of(self.gamma_, self._kind)


def _psi_of(gamma: float, kind: ScoreKind) -> Objective:
    return SigmoidFocal(gamma, None) if kind == "sigmoid" else Focal(gamma)
