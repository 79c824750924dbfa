"""What a choice between calibrations found: a table, the advice in words, and the way to apply it."""

from __future__ import annotations

import dataclasses
import html
from typing import Any

from refocal._arrays import Array
from refocal._checks import check_count, check_level, check_number
from refocal._rows import Task
from refocal.calibration._links import Numbers
from refocal.calibration._problem import check_task
from refocal.calibration.method import (
    METHODS,
    METRICS,
    SMOOTHED,
    LabelGain,
    Method,
    checked_keys,
    interval_from_dict,
    interval_to_dict,
    short,
)
from refocal.extras import needs
from refocal.metrics import Interval
from refocal.objectives import Focal, Objective, SigmoidFocal, objective_from_dict

RAW = {
    "softmax": "the softmax as it is",
    "sigmoid": "the sigmoid as it is",
    "one-vs-rest": "the sigmoids divided by their sum",
}

DEBIASED = (
    "The interval of a calibration error is for the true error; the plain value before it is biased upward, "
    "and may lie above."
)


STILL_OFF = 0.02
"""From this lower end of its ECE on the best method counts as not calibrated."""


@dataclasses.dataclass(frozen=True, repr=False)
class Selection:
    """What `choose_calibration` found. Print it to see the table and the advice.

    Attributes:
        objective: What the model was said to be trained with, or what was assumed.
        n_rows: Labelled rows.
        n_folds: Parts that were held out in turn.
        level: Of all intervals.
        negligible: The difference in NLL, in nats, that counts as none.
        methods: From simple to complex.
        skipped: Names of methods that could not be fitted, each with the reason.
        winner: The name of the simplest method whose NLL is above the smallest one by no more than
            ``negligible``.
        clear: Whether the lead is clear: every simpler method is clearly worse, no other one can be
            better by more than ``negligible``, and none was skipped.
        psi_gap: NLL of `psi` alone minus that of the raw scores, with its paired interval; None without psi.
        task: "binary", "multiclass" or "multilabel". The NLL of a row with several labels is the mean over
            them, so that the pooled NLL is the macro one too; the ECE is pooled, the classwise ECE macro.
        labels: For each label of a multilabel task, what the winner changes; empty for other tasks.
        assumed: Whether no objective was given.

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
        """Whether psi alone is clearly worse than the raw scores."""
        return self.psi_gap is not None and self.psi_gap.low > 0

    @property
    def sentence(self) -> str:
        """The advice, in plain words."""
        harm = [self._why_psi_harms()] if self.psi_harms else []
        return " ".join([self._advice(), *self._still_off(), *harm])

    @property
    def assumption(self) -> str | None:
        """What was assumed, in a sentence; None where an objective was given."""
        return f"No objective was given: {self.objective} is assumed." if self.assumed else None

    def describe(self, name: str) -> str:
        """Return what a method does, in a few words."""
        smoothed = self.objective.without_smoothing() is not self.objective
        return (METHODS | SMOOTHED if smoothed else METHODS)[self.method(name).name]

    def method(self, name: str) -> Method:
        """Return a method by its name."""
        for method in self.methods:
            if method.name == name:
                return method
        raise ValueError(f"name must be one of {[m.name for m in self.methods]}, got {name!r}")

    def apply(self, logits: Array, *, method: str | None = None, axis: int = -1) -> Array:
        """Return the probabilities of the winner, or of another method, for any logits of the model.

        They must have as many classes or labels along ``axis`` as those of the choice. A binary choice takes
        log odds of any shape, each entry for itself: two columns are two log odds, not a softmax.
        """
        return self.method(method or self.winner).probs(logits, axis=axis)

    def threshold(self, posterior: float = 0.5, *, method: str | None = None) -> Numbers:
        """Return the raw score from which on the winner, or another method, gives at least a probability.

        `refocal.score_threshold` speaks of the objective's posterior, which is the method "psi" alone. See
        `Method.threshold`: for sigmoid scores and two classes, a number or one for each label.
        """
        return self.method(method or self.winner).threshold(posterior)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary that JSON can hold."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return fields | {
            "objective": self.objective.to_dict(),
            "methods": [method.to_dict() for method in self.methods],
            "skipped": [list(pair) for pair in self.skipped],
            "labels": [dataclasses.asdict(x) | {"gap": interval_to_dict(x.gap)} for x in self.labels],
            "psi_gap": None if self.psi_gap is None else interval_to_dict(self.psi_gap),
            "psi_harms": self.psi_harms,
            "sentence": self.sentence,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Selection:
        """Return what `to_dict` described; further keys, as those of `refocal choose`, are left aside.

        Raises:
            TypeError: If it is no dictionary, or a value has a wrong type.
            ValueError: If a key is missing, or a value is wrong.
        """
        own = checked_keys(cls, fields)
        own["objective"] = objective_from_dict(own["objective"])
        own["methods"] = tuple(Method.from_dict(method) for method in own["methods"])
        own["skipped"] = tuple((name, reason) for name, reason in own["skipped"])
        own["psi_gap"] = None if own["psi_gap"] is None else interval_from_dict(own["psi_gap"])
        own["labels"] = tuple(
            LabelGain(**x | {"gap": interval_from_dict(x["gap"])}) for x in own.get("labels", ())
        )
        for name in ("n_rows", "n_folds"):
            check_count(name, own[name], 2)
        check_level(own["level"])
        check_number("negligible", own["negligible"], low=0, rule="finite and >= 0")
        for name in ("clear", "assumed"):
            if not isinstance(own.get(name, False), bool):
                raise TypeError(f"{name} must be True or False, got {own[name]!r}")
        found = cls(**own)
        if found.task is None:
            raise ValueError("task must be a task, got None")
        check_task(found.task, found.objective)
        names = [m.name for m in found.methods]
        if "raw" not in names or found.winner not in names:
            raise ValueError(f"methods must have raw and the winner {found.winner!r}, got {names}")
        for m in found.methods:
            if (m.scores == "sigmoid") == (found.task == "multiclass"):
                raise ValueError(
                    f"scores of {m.name} must be those of the task {found.task!r}, got {m.scores!r}"
                )
        return found

    def __repr__(self) -> str:
        return (
            f"Selection(winner={self.winner!r}, clear={self.clear}, n_rows={self.n_rows}, "
            f"methods={len(self.methods)})"
        )

    def __str__(self) -> str:
        """Return the table and the advice."""
        lines = self._table()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([*rows, "", *self._notes(), self.sentence])

    def _repr_html_(self) -> str:
        """Return the table and the advice for a notebook."""
        head, *lines = [[html.escape(cell) for cell in line] for line in self._table()]
        top = "".join(f"<th>{cell}</th>" for cell in head)
        rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in (*self._notes(), self.sentence))
        return f"<table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table>{notes}"

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame: a row for each method, and the ends of every interval.

        Raises:
            ImportError: Without pandas.
        """
        with needs("Selection.to_frame", "pandas"):
            import pandas
        table = []
        for m in self.methods:
            numbers: dict[str, Any] = {"temperature": m.temperature, "bias": m.bias}
            numbers |= {"gamma": getattr(m.link, "gamma", None), "converged": m.converged}
            for name in (*METRICS, "behind"):
                x = getattr(m, name)
                numbers |= {name: x.value, f"{name}_low": x.low, f"{name}_high": x.high}
            table.append({"method": m.name, "winner": m.name == self.winner, **numbers})
        return pandas.DataFrame(table).set_index("method")

    def _table(self) -> list[list[str]]:
        lines = [["method", "T", *METRICS.values()]]
        for m in self.methods:
            intervals = [dataclasses.replace(getattr(m, name), debiased=False) for name in METRICS]
            star = " *" if m.name == self.winner else ""
            fitted = ", ".join(filter(None, [short(m.temperature), m.extras]))
            lines.append([m.name + star, fitted, *map(str, intervals)])
        return lines

    def _notes(self) -> list[str]:
        notes = [f"{self.n_rows} rows, held out in {self.n_folds} parts; {100 * self.level:g} % intervals."]
        notes.append(DEBIASED)
        if self.assumption is not None:
            notes.append(self.assumption)
        notes += [f"{name} left out: {reason}." for name, reason in self.skipped]
        notes += [
            f"{m.name}: the search for its numbers did not converge." for m in self.methods if not m.converged
        ]
        notes += [
            f"{m.name}: labels {', '.join(map(str, m.shared))} have the numbers of all labels, as they are "
            "too rarely 1 or 0 for their own."
            for m in self.methods
            if m.shared
        ]
        if self.labels:
            gain = [str(x.label) for x in self.labels if x.gains]
            which = f"labels {', '.join(gain)} gain clearly" if gain else "no label gains clearly"
            notes.append(f"By {self.winner}, against raw, {which}.")
        return notes

    def _advice(self) -> str:
        winner, raw = self.method(self.winner), self.method("raw")
        before = self.methods.index(winner)
        open_ = [m.name for m in self.methods[:before] if m.behind.low <= 0]
        open_ += [m.name for m in self.methods[before + 1 :] if m.behind.low < -self.negligible]
        doubts = [f"they do not tell it from {', '.join(open_)}"] if open_ else []
        doubts += [f"{name} could not be fitted" for name, _ in self.skipped]
        if winner is raw and self.clear:
            return (
                f"Keep raw, {RAW[raw.scores]}: no other method lowers its NLL of {raw.nll.value:.4f} by "
                f"more than {self.negligible:g}."
            )
        if winner is raw:
            worse = any(m.behind.low > 0 for m in self.methods)
            nothing = "Nothing is clearly better than raw" if worse else "Nothing is clear"
            return (
                f"{nothing} with {self.n_rows} rows. Keep {RAW[raw.scores]} for now, or label more rows: "
                f"{', and '.join(doubts)}."
            )
        what = f"{winner.name} ({self.describe(winner.name)})"
        if winner.temperature != 1:
            what += f" with T = {short(winner.temperature, 3)}"
        if winner.bias != 0:
            what += f" and bias = {short(winner.bias, 3)}"
        if isinstance(winner.link, (Focal, SigmoidFocal)) and winner.name == "focal_ts_free":
            what += f" and gamma = {winner.link.gamma:.3g}"
        gain = f"against raw it changes the NLL by {_nats(_minus(raw.behind))}"
        if self.clear:
            return f"Use {what}: {gain}, and no other method is better by more than {self.negligible:g}."
        return (
            f"Use {what} for now: {gain}. But its lead is not clear with {self.n_rows} rows: "
            f"{', and '.join(doubts)}."
        )

    def _still_off(self) -> list[str]:
        ece = self.method(self.winner).ece
        if ece.low < STILL_OFF:
            return []
        return [
            f"Even so its calibration error is {ece.low:.3f} to {ece.high:.3f}: was the model trained with "
            "class weights, an alpha, label smoothing or another gamma that the objective does not have?"
        ]

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


def _minus(x: Interval) -> Interval:
    return dataclasses.replace(x, value=-x.value, low=-x.high, high=-x.low)


def _nats(x: Interval) -> str:
    return f"{x.value:+.4f} ({x.low:+.4f} to {x.high:+.4f})"
