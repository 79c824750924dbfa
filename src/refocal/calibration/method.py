"""One way from logits to probabilities, with what held-out rows say of it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, get_args

from refocal._arrays import Array
from refocal._checks import check_count, check_fraction, check_number
from refocal.calibration._links import Numbers, Way, probs_of, score_where
from refocal.metrics import CalibrationStats, Interval
from refocal.objectives import Objective, objective_from_dict
from refocal.objectives.base import ScoreKind

METHODS = {
    "raw": "the scores as they are",
    "psi": "the objective's posterior",
    "psi_unsmoothed": "the objective's posterior, label smoothing taken out",
    "ts_nll": "a temperature by the NLL",
    "ts_fl": "a temperature by the objective's own loss",
    "psi_ts_fl": "psi after the temperature of ts_fl",
    "psi_ts_fl_unsmoothed": "psi_unsmoothed after the temperature of ts_fl",
    "focal_ts": "psi after a temperature by the NLL of the result",
    "focal_ts_free": "psi of a fitted gamma after a temperature, both by the NLL of the result",
    "platt": "a temperature and a bias by the NLL",
    "ts_nll_per_label": "a temperature for each label by the NLL",
    "ts_nll_per_class": "a temperature for each class by the NLL of its sigmoid",
    "focal_ts_per_label": "psi after a temperature for each label by the NLL of the result",
    "platt_per_label": "a temperature and a bias for each label by the NLL",
}
"""The methods, from simple to complex: of two that cannot be told apart, the first is chosen."""

SMOOTHED = {"psi": "Psi with label smoothing left in, as in the paper"}
"""What methods are where the objective has label smoothing, if that is another thing."""

METRICS = {
    "nll": "NLL",
    "brier": "Brier",
    "ece": "ECE, debiased interval",
    "classwise_ece": "classwise ECE, debiased interval",
    "error_rate": "error rate",
}
"""The metrics, and what they are called in the table."""


@dataclasses.dataclass(frozen=True, repr=False)
class Method:
    """One way from logits to probabilities, link(logits / T), and how it does on held-out rows.

    Attributes:
        name: One of those that `choose_calibration` lists.
        temperature: T, fitted on all rows; 1 where none is fitted. A number, or one for each label.
        link: The objective whose posterior is taken, or None for the raw scores.
        nll: The held-out metrics, each with its interval.
        brier: See nll.
        ece: See nll.
        classwise_ece: See nll.
        error_rate: See nll.
        behind: NLL minus that of the winner, with its paired interval.
        stats: The held-out bins, for reliability diagrams; of P(y = 1) of all entries for sigmoid scores.
        bias: What is added to logits / T; a number, or one for each label.
        floor: The share of the raw scores of logits / T + bias that is mixed into a posterior which would be
            0 for outcomes that can happen, as that of `Asymmetric` is up to its clip.
        scores: What turns logits into raw scores: "softmax", "sigmoid" or "one-vs-rest".
        converged: Whether the search for the numbers ended with a small step.
        shared: Labels that have the numbers of all labels, since they are too rarely 1 or 0 for their own.
        columns: How many classes or labels the rows of the fit had, and logits must have; None for a binary
            task, which takes log odds of any shape, each entry for itself.

    Example:
        >>> from refocal import choose_calibration
        >>> logits = np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0], [1.0, 0.0]] * 50)
        >>> choose_calibration(logits, np.array([0, 0, 1, 1] * 50)).method("raw")
        Method('raw', T=1, NLL 0.4505 [0.3800, 0.5210])
    """

    name: str
    temperature: Numbers
    link: Objective | None
    nll: Interval
    brier: Interval
    ece: Interval
    classwise_ece: Interval
    error_rate: Interval
    behind: Interval
    stats: CalibrationStats
    bias: Numbers = 0.0
    floor: float = 0.0
    scores: ScoreKind = "softmax"
    converged: bool = True
    shared: tuple[int, ...] = ()
    columns: int | None = None

    @property
    def extras(self) -> str:
        """What was fitted besides T, in words: a bias, a gamma; empty for nothing."""
        found = [] if self.bias == 0 else [f"bias {short(self.bias)}"]
        if self.name == "focal_ts_free":
            found.append(f"gamma {short(getattr(self.link, 'gamma', 0.0))}")
        return ", ".join(found)

    def __repr__(self) -> str:
        return f"Method({self.name!r}, T={short(self.temperature)}, NLL {self.nll})"

    def log_probs(self, logits: Array, *, axis: int = -1) -> Array:
        """Return log-probabilities, of the same shape, dtype and library."""
        return probs_of(self.scores, logits, self._way, axis, columns=self.columns, log=True)

    def probs(self, logits: Array, *, axis: int = -1) -> Array:
        """Return probabilities, of the same shape, dtype and library."""
        return probs_of(self.scores, logits, self._way, axis, columns=self.columns)

    def threshold(self, posterior: float = 0.5) -> Numbers:
        """Return the raw score from which on the probability is at least a given one.

        The raw score is the sigmoid of a logit, or that of class 1 for a softmax of two classes. It is found
        by bisection of the method's own probability, which rises with the logit.

        Args:
            posterior: A probability in [0, 1].

        Returns:
            A number, or one for each label where labels differ; 1 where no score below it reaches the
            probability.

        Raises:
            ValueError: With more than two classes, where a score alone has no probability.

        Example:
            >>> from refocal import SigmoidFocal, choose_calibration
            >>> rng = np.random.default_rng(0)
            >>> posterior = rng.beta(0.5, 2.0, size=500)
            >>> spec = SigmoidFocal(gamma=2.0, alpha=0.25)
            >>> labels = rng.random(500) < posterior
            >>> found = choose_calibration(spec.logits(posterior), labels, spec, n_resamples=50)
            >>> round(found.method("psi").threshold(0.5), 4)
            0.3988
        """
        p = check_number("posterior", posterior, low=0, rule="in [0, 1]")
        if p > 1:
            raise ValueError(f"posterior must be in [0, 1], got {posterior!r}")
        if self.scores != "sigmoid" and (self.scores != "softmax" or self.columns != 2):
            k = "an unknown number of" if self.columns is None else self.columns
            raise ValueError(
                "threshold needs sigmoid scores or a softmax of two classes, as otherwise the probability "
                f"depends on all scores of a row, got {k} classes ({self.scores})"
            )
        if self.scores == "softmax":
            return float(score_where(self.scores, self._way, p, 1)[0])
        options = vars(self.link).values() if self.link is not None else ()
        each = [len(v) for v in (self.temperature, self.bias, *options) if isinstance(v, tuple)]
        scores = score_where(self.scores, self._way, p, self.columns or max(each, default=1))
        return tuple(scores.tolist()) if each or (scores != scores[0]).any() else float(scores[0])

    @property
    def _way(self) -> Way:
        return Way(self.temperature, self.link, self.bias, self.floor)

    def to_dict(self) -> dict[str, Any]:
        """Return the method as a dictionary that JSON can hold; an infinite number is None."""
        names = ("name", "temperature", "bias", "floor", "scores", "converged", "shared", "columns")
        fields: dict[str, Any] = {name: _as_list(getattr(self, name)) for name in names}
        fields["link"] = None if self.link is None else self.link.to_dict()
        for name in (*METRICS, "behind"):
            fields[name] = interval_to_dict(getattr(self, name))
        return fields | {"stats": self.stats.to_dict()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Method:
        """Return the method that `to_dict` described.

        Raises:
            TypeError: If it is no dictionary, or a value has a wrong type.
            ValueError: If a key is missing, or a value is wrong.
        """
        fields = checked_keys(cls, fields)
        if fields["name"] not in METHODS:
            raise ValueError(f"name must be one of {', '.join(METHODS)}, got {fields['name']!r}")
        for name in (*METRICS, "behind"):
            fields[name] = interval_from_dict(fields[name])
        link = fields["link"]
        fields["link"] = None if link is None else objective_from_dict(link)
        fields["temperature"] = _numbers("temperature", fields["temperature"], "finite and > 0")
        fields["bias"] = _numbers("bias", fields.get("bias", 0.0), "finite")
        fields["floor"] = check_fraction("floor", fields.get("floor", 0.0))
        scores = fields.get("scores", "softmax")
        if scores not in get_args(ScoreKind):
            raise ValueError(f"scores must be one of {get_args(ScoreKind)}, got {scores!r}")
        if fields["link"] is not None and fields["link"].scores != scores:
            raise ValueError(f"link must be one on scores {scores!r}, got {fields['link']!r}")
        if not isinstance(fields.get("converged", True), bool):
            raise TypeError(f"converged must be True or False, got {fields['converged']!r}")
        fields["shared"] = tuple(check_count("shared", j, 0) for j in fields.get("shared", ()))
        columns = fields.get("columns")
        if columns is not None:
            check_count("columns", columns, 1)
            for name in ("temperature", "bias"):
                if isinstance(fields[name], tuple) and len(fields[name]) != columns:
                    raise ValueError(
                        f"{name} must have one number for each of the {columns} columns, "
                        f"got {len(fields[name])}"
                    )
        return cls(**fields | {"stats": CalibrationStats.from_dict(fields["stats"])})


@dataclasses.dataclass(frozen=True)
class LabelGain:
    """What the winner changes for one label of a multilabel task.

    Attributes:
        label: Its number.
        n_positive: How many rows have it.
        gap: NLL of the winner minus that of the raw scores, with its paired interval.

    Example:
        >>> LabelGain(3, 120, Interval(-0.02, -0.03, -0.01, 0.95, "bootstrap")).gains
        True
    """

    label: int
    n_positive: int
    gap: Interval

    @property
    def gains(self) -> bool:
        """Whether the winner is clearly better than the raw scores for this label."""
        return self.gap.high < 0


def interval_to_dict(x: Interval) -> dict[str, Any]:
    """Return an interval as what JSON can hold: an infinite number is None."""
    return {name: None if value == math.inf else value for name, value in dataclasses.asdict(x).items()}


def interval_from_dict(fields: dict[str, Any]) -> Interval:
    """Return the interval that `interval_to_dict` described."""
    values: dict[str, Any] = {name: math.inf if value is None else value for name, value in fields.items()}
    return Interval(**values)


def checked_keys(cls: type[Any], fields: object) -> dict[str, Any]:
    """Return what a dictionary has of the fields of a dataclass, after a check that none is missing."""
    if not isinstance(fields, dict):
        raise TypeError(f"fields must be a dictionary, got {type(fields).__name__}")
    missing = [
        f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING and f.name not in fields
    ]
    if missing:
        raise ValueError(f"fields must have the keys {missing} too, got {sorted(fields, key=str)}")
    return {f.name: fields[f.name] for f in dataclasses.fields(cls) if f.name in fields}


def _numbers(name: str, value: Any, rule: str) -> Numbers:
    """Return a finite number, or a tuple of them from a list; "> 0" in the rule is held."""
    if isinstance(value, (list, tuple)):
        return tuple(_number(name, v, rule) for v in value)
    return _number(name, value, rule)


def _number(name: str, value: Any, rule: str) -> float:
    number = check_number(name, value, rule=rule)
    if "> 0" in rule and number <= 0:
        raise ValueError(f"{name} must be {rule}, got {value!r}")
    return number


def _as_list(x: Any) -> Any:
    return list(x) if isinstance(x, tuple) else x


def short(x: Numbers, digits: int = 4) -> str:
    """Return a number, or the span of several."""
    if isinstance(x, tuple):
        return f"{min(x):.{digits}g} to {max(x):.{digits}g}"
    return f"{x:.{digits}g}"
