"""One way from logits to probabilities, with what held-out rows say of it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from refocal._arrays import Array
from refocal.calibration._links import Numbers, Way, probs_of
from refocal.metrics import CalibrationStats, Interval
from refocal.objectives import Objective, objective_from_dict
from refocal.objectives.base import ScoreKind

METHODS = {
    "raw": "the scores as they are",
    "psi": "the objective's posterior",
    "psi_unsmoothed": "the same, label smoothing taken out",
    "ts_nll": "a temperature by the NLL",
    "ts_fl": "a temperature by the objective's own loss",
    "psi_ts_fl": "psi after the temperature of ts_fl",
    "psi_ts_fl_unsmoothed": "the same, label smoothing taken out",
    "focal_ts": "psi after a temperature by the NLL of the result",
    "focal_ts_free": "the same, with a fitted gamma",
    "platt": "a temperature and a bias by the NLL",
    "ts_nll_per_label": "a temperature for each label by the NLL",
    "ts_nll_per_class": "a temperature for each class by the NLL of its sigmoid",
    "focal_ts_per_label": "psi after a temperature for each label by the NLL of the result",
    "platt_per_label": "a temperature and a bias for each label by the NLL",
}
"""The methods, from simple to complex: of two that cannot be told apart, the first is chosen."""

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

    def __repr__(self) -> str:
        return f"Method({self.name!r}, T={short(self.temperature)}, NLL {self.nll})"

    def log_probs(self, logits: Array, *, axis: int = -1) -> Array:
        """Return log-probabilities, of the same shape, dtype and library."""
        return probs_of(self.scores, logits, self._way, axis, log=True)

    def probs(self, logits: Array, *, axis: int = -1) -> Array:
        """Return probabilities, of the same shape, dtype and library."""
        return probs_of(self.scores, logits, self._way, axis)

    @property
    def _way(self) -> Way:
        return Way(self.temperature, self.link, self.bias, self.floor)

    def to_dict(self) -> dict[str, Any]:
        """Return the method as a dictionary that JSON can hold; an infinite number is None."""
        names = ("name", "temperature", "bias", "floor", "scores", "converged", "shared")
        fields: dict[str, Any] = {name: _as_list(getattr(self, name)) for name in names}
        fields["link"] = None if self.link is None else self.link.to_dict()
        for name in (*METRICS, "behind"):
            fields[name] = interval_to_dict(getattr(self, name))
        return fields | {"stats": self.stats.to_dict()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Method:
        """Return the method that `to_dict` described.

        Raises:
            ValueError: If it is none of the methods.
        """
        fields = dict(fields)
        if fields["name"] not in METHODS:
            raise ValueError(f"name must be one of {', '.join(METHODS)}, got {fields['name']!r}")
        for name in (*METRICS, "behind"):
            fields[name] = interval_from_dict(fields[name])
        for name in ("temperature", "bias", "shared"):
            if isinstance(fields.get(name), list):
                fields[name] = tuple(fields[name])
        link = fields["link"]
        fields["link"] = None if link is None else objective_from_dict(link)
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


def _as_list(x: Any) -> Any:
    return list(x) if isinstance(x, tuple) else x


def short(x: Numbers, digits: int = 4) -> str:
    """Return a number, or the span of several."""
    if isinstance(x, tuple):
        return f"{min(x):.{digits}g} to {max(x):.{digits}g}"
    return f"{x:.{digits}g}"
