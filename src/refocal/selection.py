"""What to do with the logits of a model: nothing, a temperature, psi, or both, by held-out likelihood."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from refocal._arrays import Array, log_softmax, map_rows, namespace, working_dtype
from refocal._checks import check_count, check_level, check_number, check_scores
from refocal._temperature_fit import Values, labelled_rows
from refocal.binning import CalibrationStats
from refocal.intervals import BINNED_METRICS, Interval, confidence_interval
from refocal.metrics import nll_rows
from refocal.objectives import Focal, Objective, objective_from_dict
from refocal.temperature import FocalTemperatureScaling, TemperatureScaling, check_softmax

TITLES = {
    "raw": "softmax",
    "psi": "Psi",
    "psi_unsmoothed": "Psi, unsmoothed",
    "ts_nll": "TS_NLL",
    "ts_fl": "TS_FL",
    "psi_after_ts_fl": "Psi after TS_FL",
    "psi_after_ts_fl_unsmoothed": "Psi after TS_FL, unsmoothed",
    "focal_ts": "focal TS",
    "focal_ts_free": "focal TS, free gamma",
}
"""The methods, from simple to complex: of two that cannot be told apart, the first is chosen."""

METRICS = ("nll", "brier", "ece", "classwise_ece", "error_rate")

RESAMPLED_ENTRIES, FEWEST_RESAMPLES = 5 * 10**7, 100
"""The interval of the classwise ECE, a slow one, gets fewer resamples where there are many entries."""


@dataclasses.dataclass(frozen=True)
class Method:
    """One way from logits to probabilities, link(logits / T), and how it does on held-out rows.

    Attributes:
        name: "raw", "psi", "psi_unsmoothed", "ts_nll", "ts_fl", "psi_after_ts_fl",
            "psi_after_ts_fl_unsmoothed", "focal_ts" or "focal_ts_free".
        temperature: T, fitted on all rows; 1 where none is fitted.
        link: The objective whose posterior is taken, or None for the softmax.
        nll: The held-out metrics, each with its interval.
        brier: See nll.
        ece: See nll.
        classwise_ece: See nll.
        error_rate: See nll.
        behind: NLL minus that of the winner, with its paired interval.
        stats: The held-out bins, for reliability diagrams.
    """

    name: str
    temperature: float
    link: Objective | None
    nll: Interval
    brier: Interval
    ece: Interval
    classwise_ece: Interval
    error_rate: Interval
    behind: Interval
    stats: CalibrationStats

    @property
    def title(self) -> str:
        """The name as people write it."""
        return TITLES[self.name]

    def log_probs(self, logits: Array, *, axis: int = -1) -> Array:
        """Return log-probabilities, of the same shape, dtype and library."""
        logits, axis = check_scores("logits", logits, axis)
        y = _log_probs(logits, self.temperature, self.link, axis)
        return namespace(logits).astype(y, logits.dtype, copy=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the method as a dictionary that JSON can hold; an infinite number is None."""
        fields: dict[str, Any] = {"name": self.name, "temperature": self.temperature}
        fields["link"] = None if self.link is None else self.link.to_dict()
        for name in (*METRICS, "behind"):
            fields[name] = _interval_to_dict(getattr(self, name))
        return fields | {"stats": self.stats.to_dict()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Method:
        """Return the method that `to_dict` described."""
        fields = dict(fields)
        for name in (*METRICS, "behind"):
            fields[name] = _interval_from_dict(fields[name])
        link = fields["link"]
        fields["link"] = None if link is None else objective_from_dict(link)
        return cls(**fields | {"stats": CalibrationStats.from_dict(fields["stats"])})


@dataclasses.dataclass(frozen=True)
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
        >>> rng = np.random.default_rng(0)
        >>> posterior = rng.dirichlet([0.5, 0.5, 0.5], size=3000)
        >>> labels = (rng.random((3000, 1)) > posterior.cumsum(axis=1)).sum(axis=1)
        >>> logits = Focal(2.0).logits(posterior)  # of a model that minimises the focal loss
        >>> found = choose_calibration(logits, labels, objective=Focal(2.0))
        >>> found.winner, found.clear
        ('psi', True)
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
        chosen = self.method(method or self.winner)
        logits, axis = check_scores("logits", logits, axis)
        xp = namespace(logits)
        # Cast last: the logarithm in half precision would lose two digits more.
        y = _log_probs(logits, chosen.temperature, chosen.link, axis)
        return xp.astype(xp.exp(y), logits.dtype, copy=False)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary that JSON can hold."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return fields | {
            "objective": self.objective.to_dict(),
            "methods": [method.to_dict() for method in self.methods],
            "skipped": [list(pair) for pair in self.skipped],
            "psi_gap": None if self.psi_gap is None else _interval_to_dict(self.psi_gap),
            "psi_harms": self.psi_harms,
            "sentence": self.sentence,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Selection:
        """Return what `to_dict` described."""
        own = {f.name: fields[f.name] for f in dataclasses.fields(cls)}
        own["objective"] = objective_from_dict(own["objective"])
        own["methods"] = tuple(Method.from_dict(method) for method in own["methods"])
        own["skipped"] = tuple((name, reason) for name, reason in own["skipped"])
        own["psi_gap"] = None if own["psi_gap"] is None else _interval_from_dict(own["psi_gap"])
        return cls(**own)

    def __str__(self) -> str:
        """Return the table and the advice."""
        names = {"nll": "NLL", "brier": "Brier", "ece": "ECE", "classwise_ece": "classwise ECE"}
        head = ["", "T", *(names.get(m, "error") for m in METRICS)]
        lines = [head]
        for m in self.methods:
            cells = [f"{(i := getattr(m, name)).value:.4f} [{i.low:.4f}, {i.high:.4f}]" for name in METRICS]
            lines.append([m.title + (" *" if m.name == self.winner else ""), f"{m.temperature:.4g}", *cells])
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        rows = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        notes = [f"{TITLES[name]} left out: {reason}." for name, reason in self.skipped]
        held_out = (
            f"Held out in {self.n_folds} parts of {self.n_rows} rows; {100 * self.level:g} % intervals."
        )
        return "\n".join([*rows, "", held_out, *notes, self.sentence])

    def _advice(self) -> str:
        winner, raw = self.method(self.winner), self.method("raw")
        before = self.methods.index(winner)
        open_ = [m for m in self.methods[:before] if m.behind.low <= 0]
        open_ += [m for m in self.methods[before + 1 :] if m.behind.low < -self.negligible]
        doubts = [f"they do not tell it from {_list(open_)}"] if open_ else []
        doubts += [f"{TITLES[name]} could not be fitted" for name, _ in self.skipped]
        if winner is raw and self.clear:
            return (
                f"Keep the softmax as it is: no other method lowers its NLL of {raw.nll.value:.4f} by more "
                f"than {self.negligible:g}."
            )
        if winner is raw:
            worse = any(m.behind.low > 0 for m in self.methods)
            nothing = "Nothing is clearly better than the softmax" if worse else "Nothing is clear"
            return (
                f"{nothing} with {self.n_rows} rows. Keep the softmax for now, or label more rows: "
                f"{', and '.join(doubts)}."
            )
        what = winner.title + (f" with T = {winner.temperature:.3g}" if winner.temperature != 1 else "")
        if isinstance(winner.link, Focal) and winner.name == "focal_ts_free":
            what += f" and gamma = {winner.link.gamma:.3g}"
        gain = f"against the softmax it changes the NLL by {_nats(_minus(raw.behind))}"
        if self.clear:
            return f"Use {what}: {gain}, and no other method is better by more than {self.negligible:g}."
        return (
            f"Use {what} for now: {gain}. But its lead is not clear with {self.n_rows} rows: "
            f"{', and '.join(doubts)}."
        )

    def _why_psi_harms(self) -> str:
        assert self.psi_gap is not None
        temperature = next((m.temperature for m in self.methods if m.name == "ts_fl"), 1.0)
        if temperature > 1:
            why = (
                "the logits are sharper than those of the minimiser that Psi starts from (the loss itself "
                f"asks for T = {temperature:.3g}), as after overfitting or training with another loss, "
                "and Psi sharpens them more"
            )
        else:
            why = "the logits are not those of the minimiser that Psi starts from, as with another loss"
        return f"Psi alone would hurt: it changes the NLL by {_nats(self.psi_gap)}, because {why}."


def _interval_to_dict(x: Interval) -> dict[str, Any]:
    return {name: None if value == math.inf else value for name, value in dataclasses.asdict(x).items()}


def _interval_from_dict(fields: dict[str, Any]) -> Interval:
    values: dict[str, Any] = {name: math.inf if value is None else value for name, value in fields.items()}
    return Interval(**values)


def _list(methods: list[Method]) -> str:
    return ", ".join(m.title for m in methods)


def _minus(x: Interval) -> Interval:
    return dataclasses.replace(x, value=-x.value, low=-x.high, high=-x.low)


def _nats(x: Interval) -> str:
    return f"{x.value:+.4f} ({x.low:+.4f} to {x.high:+.4f})"


def choose_calibration(
    logits: Array,
    labels: Array,
    objective: Objective | None = None,
    *,
    n_folds: int = 5,
    level: float = 0.95,
    negligible: float = 0.001,
    n_bins: int = 10,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Selection:
    """Choose between no calibration, temperature scaling, `psi`, and both, on labelled held-out rows.

    Each method is fitted on all parts of the rows but one and measured on that one, in turn. The winner is
    the simplest method whose NLL is not clearly above the smallest one: the interval of their difference,
    by a bootstrap that draws the same rows for both, reaches 0, or the difference is negligible. Unless it
    is the softmax, it must be clearly better than that. A wrong gamma, an overfitted model or one trained
    with another loss shows in the table, whatever the theory says.

    The methods, from simple to complex: the softmax as it is; Psi, the objective's posterior; temperature
    scaling by the NLL and by the objective's own loss; Psi after the latter; focal temperature scaling with
    the given gamma and with a free one. For label smoothing, Psi comes twice: as in the paper, and
    with the smoothing taken out, which may leave a probability of 0: one such label makes the NLL infinite.

    Args:
        logits: Scores before the softmax, (n, K), of rows that the model was not trained on.
        labels: Integers 0..K-1, (n,).
        objective: What the model was trained with; None for ``Focal(2.0)``.
        n_folds: Parts, at least 2.
        level: Of the intervals, within (0, 1).
        negligible: The difference in NLL, in nats, that counts as none.
        n_bins: The number of bins of the calibration errors.
        n_resamples: Of the bootstrap.
        seed: Of the parts and of the bootstrap.

    Returns:
        A `Selection`.

    Raises:
        TypeError: If logits are not floats or labels not integers.
        ValueError: If an argument is wrong.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.integers(3, size=40)
        >>> logits = rng.normal(size=(40, 3)) + np.eye(3)[labels]
        >>> found = choose_calibration(logits, labels)
        >>> found.winner, found.clear, found.sentence[:29]
        ('raw', False, 'Nothing is clear with 40 rows')
    """
    objective = Focal(2.0) if objective is None else objective
    if not isinstance(objective, Objective):
        raise TypeError(f"objective must be an objective such as Focal(2.0), got {objective!r}")
    check_softmax(objective)
    rows = labelled_rows(logits, labels, -1)
    n, k = rows.z.shape
    if n < 2:
        raise ValueError(f"logits must have at least 2 rows, got {n}")
    n_folds, level = check_count("n_folds", n_folds, 2, n), check_level(level)
    check_count("n_resamples", n_resamples, 1)
    check_count("seed", seed, 0)
    negligible = check_number("negligible", negligible, low=0, rule="finite and >= 0")
    parts = np.array_split(np.random.default_rng(seed).permutation(n), n_folds)
    fitted = _fit(rows.z, rows.labels, objective)
    fits = [_fit(np.delete(rows.z, p, axis=0), np.delete(rows.labels, p), objective) for p in parts]
    # A part without a fit leaves the method out, with the reason: it could not be measured on all rows.
    skipped = {name: fit for every in (*fits, fitted) for name, fit in every.items() if isinstance(fit, str)}
    names = [name for name in TITLES if name in fitted and name not in skipped]
    losses, measured = np.empty((n, len(names))), []
    resamples = min(n_resamples, max(FEWEST_RESAMPLES, RESAMPLED_ENTRIES // (n * k)))
    for i, name in enumerate(names):
        held_out = np.empty_like(rows.z)
        for part, fit in zip(parts, fits, strict=True):
            temperature, link = fit[name]
            held_out[part] = _log_probs(rows.z[part], temperature, link, 1)
        losses[:, i] = nll_rows(held_out, rows.labels, from_logits=True)
        measured.append(_measure(held_out, rows.labels, level, n_bins, resamples, seed))
    means, sampled = losses.mean(axis=0), _bootstrap(losses, n_resamples, seed)

    def gap(name: str, other: str) -> Interval:
        i, j = names.index(name), names.index(other)
        if means[i] == math.inf:
            return Interval(math.inf, math.inf, math.inf, level, "bootstrap")
        low, high = np.quantile(sampled[:, i] - sampled[:, j], ((1 - level) / 2, (1 + level) / 2))
        return Interval(float(means[i] - means[j]), float(low), float(high), level, "bootstrap")

    best = names[int(np.argmin(means))]
    to_best = [gap(name, best) for name in names]

    def may_win(i: int) -> bool:
        shown = i == 0 or gap("raw", names[i]).low > 0
        return shown and (to_best[i].low <= 0 or to_best[i].value <= negligible)

    # The best one may: if the softmax may not, it is clearly worse than that.
    at = next(i for i in range(len(names)) if may_win(i))
    behind = [gap(name, names[at]) for name in names]
    return Selection(
        objective=objective,
        n_rows=n,
        n_folds=n_folds,
        level=level,
        negligible=negligible,
        methods=tuple(
            Method(name, *fitted[name], **metrics | {"behind": interval})
            for name, metrics, interval in zip(names, measured, behind, strict=True)
        ),
        skipped=tuple(skipped.items()),
        winner=names[at],
        clear=not skipped
        and all(b.low > 0 for b in behind[:at])
        and all(b.low >= -negligible for b in behind[at + 1 :]),
        psi_gap=gap("psi", "raw") if "psi" in names else None,
    )


def _fit(z: Values, y: Values, objective: Any) -> dict[str, Any]:
    """Return T and link of every method, as a tuple, or the reason why it has none, as a text."""
    eps = getattr(objective, "label_smoothing", 0.0)
    plain = dataclasses.replace(objective, label_smoothing=0.0) if eps else objective
    fits: dict[str, Any] = {"raw": (1.0, None)}
    plan: list[tuple[Any, dict[str, Objective | None]]] = [(TemperatureScaling("nll"), {"ts_nll": None})]
    if objective != Focal(0.0):
        fits["psi"] = (1.0, plain)
        plan.append((TemperatureScaling(objective), {"ts_fl": None, "psi_after_ts_fl": plain}))
        if eps:
            fits["psi_unsmoothed"] = (1.0, objective)
            plan[-1][1]["psi_after_ts_fl_unsmoothed"] = objective
    gamma = getattr(plain, "gamma", None)
    if isinstance(gamma, float) and gamma > 0 and plain == Focal(gamma):
        plan.append((FocalTemperatureScaling(gamma), {"focal_ts": plain}))
    plan.append((FocalTemperatureScaling(), {"focal_ts_free": None}))
    for scaling, links in plan:
        try:
            scaling.fit(z, y)
        except ValueError as error:
            fits |= dict.fromkeys(links, str(error))
            continue
        if "focal_ts_free" in links:
            links["focal_ts_free"] = Focal(scaling.gamma_)
        fits |= {name: (scaling.temperature_, link) for name, link in links.items()}
    return fits


def _log_probs(logits: Array, temperature: float, link: Objective | None, axis: int) -> Array:
    """Return log-probabilities in the dtype to compute in."""
    z = namespace(logits).astype(logits, working_dtype(logits), copy=False) / temperature
    return map_rows(log_softmax, z, axis=axis) if link is None else link.log_posterior(z, axis=axis)


def _measure(
    log_probs: Values, labels: Values, level: float, n_bins: int, n_resamples: int, seed: int
) -> dict[str, Any]:
    """Return every metric of held-out rows with its interval, and the bins."""
    found: dict[str, Any] = {}
    for name in METRICS:
        options: dict[str, Any] = {"level": level, "from_logits": True}
        if name in BINNED_METRICS:
            options["n_bins"] = n_bins
        if name == "nll" and np.isneginf(log_probs[np.arange(len(labels)), labels]).any():
            found[name] = Interval(math.inf, math.inf, math.inf, level, "analytic")
        elif name == "classwise_ece":
            options |= {"n_resamples": n_resamples, "seed": seed}
            found[name] = confidence_interval(name, log_probs, labels, method="bootstrap", **options)
        else:
            found[name] = confidence_interval(name, log_probs, labels, method="analytic", **options)
    return found | {"stats": CalibrationStats(n_bins).update(np.exp(log_probs), labels)}


def _bootstrap(losses: Values, n_resamples: int, seed: int) -> Values:
    """Return the means of resampled rows, the same ones for all columns: (n_resamples, columns)."""
    rng, n = np.random.default_rng(seed), len(losses)
    finite = np.where(np.isfinite(losses), losses, 0)
    means = np.empty((n_resamples, losses.shape[1]))
    for mean in means:
        mean[:] = np.bincount(rng.integers(n, size=n), minlength=n) @ finite / n
    return means
