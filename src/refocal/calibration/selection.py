"""What a choice between calibrations found: a table, the advice in words, and the way to apply it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from refocal._arrays import Array
from refocal.calibration._links import Numbers, Way, probs_of
from refocal.calibration._problem import Task
from refocal.metrics import CalibrationStats, Interval
from refocal.objectives import Focal, Objective, SigmoidFocal, objective_from_dict
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
        return f"Method({self.name!r}, T={_short(self.temperature)}, NLL {self.nll})"

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
            fields[name] = _interval_to_dict(getattr(self, name))
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
            fields[name] = _interval_from_dict(fields[name])
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


@dataclasses.dataclass(frozen=True, repr=False)
class Selection:
    """What `choose_calibration` found. Print it to see the table and the advice.

    Attributes:
        objective: What the model was said to be trained with.
        n_rows: Labelled rows.
        n_folds: Parts that were held out in turn.
        level: Of all intervals.
        negligible: The difference in NLL, in nats, that counts as none.
        methods: From simple to complex.
        skipped: Names of methods that could not be fitted, each with the reason.
        winner: The name of the simplest method that is not clearly worse than the best one, or worse by no
            more than ``negligible``, and that is the softmax or clearly better than it.
        clear: Whether the lead is clear: every simpler method is clearly worse, no other one can be
            better by more than ``negligible``, and none was skipped.
        psi_gap: NLL of `psi` alone minus that of the softmax, with its paired interval; None without psi.

    Example:
        >>> from refocal import choose_calibration
        >>> rng = np.random.default_rng(0)
        >>> posterior = rng.dirichlet([0.5, 0.5, 0.5], size=3000)
        >>> labels = (rng.random((3000, 1)) > posterior.cumsum(axis=1)).sum(axis=1)
        >>> logits = Focal(2.0).logits(posterior)  # of a model that minimises the focal loss
        >>> found = choose_calibration(logits, labels, objective=Focal(2.0))
        >>> found
        Selection(winner='psi', clear=True, n_rows=3000, methods=7)
        >>> found.apply(logits[:1]).round(3), posterior[:1].round(3)
        (array([[0.306, 0.001, 0.693]]), array([[0.306, 0.001, 0.693]]))
    """

    objective: Objective
    n_rows: int
    n_folds: int
    level: float
    negligible: float
    methods: tuple[Method, ...]
    skipped: tuple[tuple[str, str], ...]
    winner: str
    clear: bool
    psi_gap: Interval | None
    task: Task = "multiclass"
    labels: tuple[LabelGain, ...] = ()
    assumed: bool = False

    @property
    def psi_harms(self) -> bool:
        """Whether psi alone is clearly worse than the softmax."""
        return self.psi_gap is not None and self.psi_gap.low > 0

    @property
    def sentence(self) -> str:
        """The advice, in plain words."""
        return " ".join([self._advice(), *([self._why_psi_harms()] if self.psi_harms else [])])

    def method(self, name: str) -> Method:
        """Return a method by its name."""
        for method in self.methods:
            if method.name == name:
                return method
        raise ValueError(f"name must be one of {[m.name for m in self.methods]}, got {name!r}")

    def apply(self, logits: Array, *, method: str | None = None, axis: int = -1) -> Array:
        """Return the probabilities of the winner, or of another method, for any logits of the model."""
        return self.method(method or self.winner).probs(logits, axis=axis)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary that JSON can hold."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return fields | {
            "objective": self.objective.to_dict(),
            "methods": [method.to_dict() for method in self.methods],
            "skipped": [list(pair) for pair in self.skipped],
            "labels": [dataclasses.asdict(x) | {"gap": _interval_to_dict(x.gap)} for x in self.labels],
            "psi_gap": None if self.psi_gap is None else _interval_to_dict(self.psi_gap),
            "psi_harms": self.psi_harms,
            "sentence": self.sentence,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Selection:
        """Return what `to_dict` described."""
        young = ("task", "labels", "assumed")  # not in the first files
        names = [f.name for f in dataclasses.fields(cls) if f.name in fields or f.name not in young]
        own = {name: fields[name] for name in names}
        own["objective"] = objective_from_dict(own["objective"])
        own["methods"] = tuple(Method.from_dict(method) for method in own["methods"])
        own["skipped"] = tuple((name, reason) for name, reason in own["skipped"])
        own["psi_gap"] = None if own["psi_gap"] is None else _interval_from_dict(own["psi_gap"])
        own["labels"] = tuple(
            LabelGain(**x | {"gap": _interval_from_dict(x["gap"])}) for x in own.get("labels", ())
        )
        return cls(**own)

    def __repr__(self) -> str:
        return (
            f"Selection(winner={self.winner!r}, clear={self.clear}, n_rows={self.n_rows}, "
            f"methods={len(self.methods)})"
        )

    def __str__(self) -> str:
        """Return the table and the advice."""
        lines = [["method", "T", *METRICS.values()]]
        for m in self.methods:
            intervals = [dataclasses.replace(getattr(m, name), debiased=False) for name in METRICS]
            star = " *" if m.name == self.winner else ""
            lines.append([m.name + star, _short(m.temperature), *map(str, intervals)])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        notes = [f"{name} left out: {reason}." for name, reason in self.skipped]
        held_out = (
            f"Held out in {self.n_folds} parts of {self.n_rows} rows; {100 * self.level:g} % intervals."
        )
        return "\n".join([*rows, "", held_out, *notes, self.sentence])

    def _advice(self) -> str:
        winner, raw = self.method(self.winner), self.method("raw")
        before = self.methods.index(winner)
        open_ = [m.name for m in self.methods[:before] if m.behind.low <= 0]
        open_ += [m.name for m in self.methods[before + 1 :] if m.behind.low < -self.negligible]
        doubts = [f"they do not tell it from {', '.join(open_)}"] if open_ else []
        doubts += [f"{name} could not be fitted" for name, _ in self.skipped]
        if winner is raw and self.clear:
            return (
                f"Keep raw, the softmax as it is: no other method lowers its NLL of {raw.nll.value:.4f} by "
                f"more than {self.negligible:g}."
            )
        if winner is raw:
            worse = any(m.behind.low > 0 for m in self.methods)
            nothing = "Nothing is clearly better than raw" if worse else "Nothing is clear"
            return (
                f"{nothing} with {self.n_rows} rows. Keep the softmax for now, or label more rows: "
                f"{', and '.join(doubts)}."
            )
        what = f"{winner.name} ({METHODS[winner.name]})"
        if winner.temperature != 1:
            what += f" with T = {_short(winner.temperature, 3)}"
        if winner.bias != 0:
            what += f" and bias = {_short(winner.bias, 3)}"
        if isinstance(winner.link, (Focal, SigmoidFocal)) and winner.name == "focal_ts_free":
            what += f" and gamma = {winner.link.gamma:.3g}"
        gain = f"against raw it changes the NLL by {_nats(_minus(raw.behind))}"
        if self.clear:
            return f"Use {what}: {gain}, and no other method is better by more than {self.negligible:g}."
        return (
            f"Use {what} for now: {gain}. But its lead is not clear with {self.n_rows} rows: "
            f"{', and '.join(doubts)}."
        )

    def _why_psi_harms(self) -> str:
        assert self.psi_gap is not None
        temperature = next((m.temperature for m in self.methods if m.name == "ts_fl"), 1.0)
        assert isinstance(temperature, float)  # pooled
        if temperature > 1:
            why = (
                "the logits are sharper than those of the minimiser that psi starts from (the loss itself "
                f"asks for T = {temperature:.3g}), as after overfitting or training with another loss, "
                "and psi sharpens them more"
            )
        else:
            why = "the logits are not those of the minimiser that psi starts from, as with another loss"
        return f"psi alone would hurt: it changes the NLL by {_nats(self.psi_gap)}, because {why}."


def _interval_to_dict(x: Interval) -> dict[str, Any]:
    return {name: None if value == math.inf else value for name, value in dataclasses.asdict(x).items()}


def _interval_from_dict(fields: dict[str, Any]) -> Interval:
    values: dict[str, Any] = {name: math.inf if value is None else value for name, value in fields.items()}
    return Interval(**values)


def _as_list(x: Any) -> Any:
    return list(x) if isinstance(x, tuple) else x


def _short(x: Numbers, digits: int = 4) -> str:
    """Return a number, or the span of several."""
    if isinstance(x, tuple):
        return f"{min(x):.{digits}g} to {max(x):.{digits}g}"
    return f"{x:.{digits}g}"


def _minus(x: Interval) -> Interval:
    return dataclasses.replace(x, value=-x.value, low=-x.high, high=-x.low)


def _nats(x: Interval) -> str:
    return f"{x.value:+.4f} ({x.low:+.4f} to {x.high:+.4f})"
