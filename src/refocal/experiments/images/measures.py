"""Numbers of the image experiments, from the stored logits: every paradigm, raw and with Psi."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refocal import (
    CalibrationStats,
    Focal,
    FocalTemperatureScaling,
    TemperatureScaling,
    choose_calibration,
    classwise_ece,
    ece,
    error_rate,
    nll,
)
from refocal.experiments.images.groups import Machine, in_common, machines_of
from refocal.experiments.sweeps import Run, origin_of, origin_text
from refocal.experiments.sweeps.origin import NOT_RECORDED

N_BINS = 10
"""As the paper says."""

BINS = range(8, 26)
"""The numbers of bins with which the ECE is measured too, to see what depends on them."""

TITLES = {"standard": "Standard", "ts_fl": "TS_FL", "ts_nll": "TS_NLL", "focal_ts": "focal TS", "ls": "LS"}
"""The paradigms as they are called in tables."""


Trials = dict[float, dict[int, float]]
"""A number of each trial, for each gamma."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What made the run of a row: options, source and machine."""

    epochs: int
    weight_decay: float
    objective: str
    commit: str
    machine: str


@dataclass(frozen=True)
class Measure(Recorded):
    """The test set under one run, one paradigm and one way to read its scores.

    Attributes:
        paradigm: "standard", "ts_fl", "ts_nll", "focal_ts" (T by the NLL of Psi) or "ls".
        link: "raw" is the softmax, "psi" its Psi, "unsmoothed" Psi with the label smoothing taken out.
        gamma: Of the training.
        seed: The trial.
        temperature: T, fitted on the validation part; 1 without temperature scaling. Without a validation
            part each half of the test set has the T of the other half, and this is their geometric mean.
        error: The part of wrong predictions.
        ece: With 10 bins. Where T is that of the other half, the mean of the halves' ECEs: by chance one half
            has more hits than the other, so its T is too small for the other, whose T is too large for it. In
            bins of both halves together that cancels, as if T had been fitted to the rows themselves.
        fair_ece: With 10 bins, see ``fair_eces``.
        nll: The mean over the rows, in nats. The paper has the sum.
        classwise_ece: With 10 bins, by halves as the ECE.
        gap: Accuracy minus mean confidence: above 0 where the scores are underconfident on the whole.
        stats: The bins.
        eces: With each number of `BINS`.
        fair_eces: The same, by halves whenever there is no validation part: to compare scores with a fitted T
            with others on the same rows.
        underconfident: The part of the rows in bins above the diagonal of the reliability diagram, whose
            accuracy is larger than their mean confidence, with each number of `BINS`; by halves as the ECE.
    """

    paradigm: str
    link: str
    gamma: float
    seed: int
    temperature: float
    error: float
    ece: float
    fair_ece: float
    nll: float
    classwise_ece: float
    gap: float
    stats: CalibrationStats
    eces: tuple[float, ...]
    fair_eces: tuple[float, ...]
    underconfident: tuple[float, ...]

    def number(self, metric: str) -> float:
        """Return a metric by its name; "ece_15", "fair_15" and "underconfident_15" have 15 bins."""
        name, _, bins = metric.rpartition("_")
        by_bins = {"ece": self.eces, "fair": self.fair_eces, "underconfident": self.underconfident}
        if name in by_bins:
            return by_bins[name][BINS.index(int(bins))]
        value: float = getattr(self, metric)
        return value


@dataclass(frozen=True)
class Advice(Recorded):
    """What the selector says of a run, from its validation part, and what that gives on the test set.

    Without a validation part one half of the test set takes its place, and the other half is the test set.
    """

    paradigm: str
    gamma: float
    seed: int
    winner: str
    clear: bool
    temperature: float
    ece_raw: float
    ece_advised: float
    nll_raw: float
    nll_advised: float
    best_nll: str
    sentence: str


@dataclass(frozen=True)
class Group:
    """The runs of one data set, model and schedule, measured.

    Attributes:
        name: Of its files.
        config: What all runs have in common.
        measures: Of every run, paradigm and link.
        advice: One for each run, where there are enough validation images.
        settings: Paradigm, gamma and trial of each run.
        skipped: Temperatures that could not be fitted and runs without advice, with the reason.
        seconds: Of an epoch, the median over the runs.
        machines: How many runs were trained with each, at least for a time, the most frequent one first; the
            commits are in `origin`.
        origin: In words, commits of the source that trained and kinds of machines, where they are known.
        n: Images for training, validation and test.
    """

    name: str
    config: dict[str, Any]
    measures: tuple[Measure, ...]
    advice: tuple[Advice, ...]
    settings: tuple[tuple[str, float, int], ...]
    skipped: tuple[str, ...]
    seconds: float
    machines: dict[Machine, int]
    origin: str
    n: tuple[int, int, int]

    @property
    def machines_text(self) -> str:
        """The machines in words, with numbers of runs where there are several."""
        if len(self.machines) == 1:
            return str(next(iter(self.machines)))
        return " or ".join(
            f"{machine} ({n} run{'s' if n > 1 else ''})" for machine, n in self.machines.items()
        )

    def trials(self, metric: str, paradigm: str, link: str) -> Trials:
        """Return a metric's value of each trial, for each gamma that has any; see `Measure.number`."""
        found: Trials = {}
        for measure in sorted(self.measures, key=lambda m: (m.gamma, m.seed)):
            if (measure.paradigm, measure.link) == (paradigm, link):
                found.setdefault(measure.gamma, {})[measure.seed] = measure.number(metric)
        return found


def measure_group(name: str, runs: Sequence[Run]) -> Group:
    """Return the numbers of every table and figure of runs that differ in gamma, paradigm and trial only."""
    measures: list[Measure] = []
    advice: list[Advice] = []
    settings: list[tuple[str, float, int]] = []
    skipped: list[str] = []
    for run in sorted(runs, key=lambda r: (r.config["gamma"], r.config["paradigm"], r.config["seed"])):
        found, problems = _measure(run)
        measures += found
        skipped += problems
        paradigm, gamma, seed = (run.config[key] for key in ("paradigm", "gamma", "seed"))
        settings.append((paradigm, gamma, seed))
        try:
            advice.append(_advise(run))
        except ValueError as error:
            skipped.append(f"advice for {TITLES[paradigm]} of gamma {gamma:g}, trial {seed}: {error}")
    result = runs[0].result
    trained = [machines_of(run) for run in runs]
    kinds = (dict.fromkeys(replace(machine, commit=None) for machine in some) for some in trained)
    machines = Counter(machine for some in kinds for machine in some)
    commits = (
        dict.fromkeys(m.commit for m in some if m.commit not in (None, NOT_RECORDED)) for some in trained
    )
    return Group(
        name,
        in_common(runs[0].config),
        tuple(measures),
        tuple(advice),
        tuple(settings),
        tuple(skipped),
        float(np.median([run.result["seconds_per_epoch"] for run in runs])),
        dict(machines.most_common()),
        origin_text(runs, (" then ".join(map(str, some)) for some in commits)),
        (result["n_train"], result["n_validation"], result["n_test"]),
    )


def _made_by(run: Run) -> dict[str, Any]:
    gamma, smoothing = run.config["gamma"], run.config["label_smoothing"]
    commit, machine = origin_of(run)
    return {
        "epochs": run.config["epochs"],
        "weight_decay": run.config["weight_decay"],
        "objective": f"focal loss, gamma {gamma:g}" + (f", smoothing {smoothing:g}" if smoothing else ""),
        "commit": commit,
        "machine": machine,
    }


def _measure(run: Run) -> tuple[list[Measure], list[str]]:
    """Read the test logits of a run in every way."""
    gamma, paradigm, seed = run.config["gamma"], run.config["paradigm"], run.config["seed"]
    smoothing = run.config["label_smoothing"]
    arrays = run.arrays()
    z, y = arrays["test_logits"].astype(np.float64), arrays["test_labels"].astype(np.int64)
    raw, psi = Focal(0.0), Focal(gamma)
    plan: list[tuple[str, Any, dict[str, Focal]]] = [(paradigm, None, {"raw": raw, "psi": psi})]
    if smoothing:
        plan[0][2]["unsmoothed"] = Focal(gamma, label_smoothing=smoothing)
    else:
        plan += [
            ("ts_fl", TemperatureScaling("focal", gamma=gamma), {"raw": raw, "psi": psi}),
            ("ts_nll", TemperatureScaling("nll"), {"raw": raw, "psi": psi}),
            ("focal_ts", FocalTemperatureScaling(gamma), {"psi": psi}),
        ]
    measures, problems, made = [], [], _made_by(run)
    fits = _fits(arrays)
    parts = [rows for _, rows in fits]  # the whole test set, or its halves
    for title, scaling, links in plan:
        temperatures = np.ones(len(z))
        try:
            for (fit_z, fit_y), rows in fits if scaling is not None else ():
                temperatures[rows] = scaling.fit(fit_z, fit_y).temperature_
        except ValueError as error:
            problems.append(f"{TITLES[title]} of gamma {gamma:g}, trial {seed}: {error}")
            continue
        fitted = np.unique(temperatures)
        temperature = float(np.prod(fitted) ** (1 / len(fitted)))
        for link, objective in links.items():
            # In log space: a probability could round to 0.
            log_probs = objective.log_posterior(z / temperatures[:, None])
            probs = np.exp(log_probs)
            stats = CalibrationStats(N_BINS, z.shape[1]).update(probs, y)
            own = parts if scaling is not None else [slice(None)]
            loss, wrong = nll(log_probs, y, from_logits=True), error_rate(probs, y)
            eces = tuple(_over_parts(ece, probs, y, own, n_bins=bins) for bins in BINS)
            fair = (
                eces
                if own is parts
                else tuple(_over_parts(ece, probs, y, parts, n_bins=bins) for bins in BINS)
            )
            above = tuple(_over_parts(_underconfident, probs, y, own, n_bins=bins) for bins in BINS)
            ten = BINS.index(N_BINS)
            classwise = _over_parts(classwise_ece, probs, y, own, n_bins=N_BINS)
            gap = 1 - wrong - float(probs.max(1).mean())
            numbers = (wrong, eces[ten], fair[ten], loss, classwise, gap)
            by_bins = (stats, eces, fair, above)
            measures.append(Measure(title, link, gamma, seed, temperature, *numbers, *by_bins, **made))
    return measures, problems


def _over_parts(
    metric: Callable[..., float], probs: Any, labels: Any, parts: Sequence[Any], n_bins: int
) -> float:
    """Return the mean of a metric over parts of the rows, weighted by their numbers of rows."""
    parts = [rows for rows in parts if len(labels[rows])]  # a half of one row has none
    found = [metric(probs[rows], labels[rows], n_bins=n_bins) for rows in parts]
    return float(np.average(found, weights=[len(labels[rows]) for rows in parts]))


def _underconfident(probs: Any, labels: Any, n_bins: int) -> float:
    """Return the part of the rows in bins whose accuracy is larger than their mean confidence."""
    stats = CalibrationStats(n_bins).update(probs, labels)
    full = stats.counts > 0
    above = stats.accuracy[full] > stats.confidence[full]
    return float(stats.counts[full][above].sum() / stats.n)


def _fits(arrays: Mapping[str, Any]) -> list[tuple[tuple[Any, Any], Any]]:
    """Return the rows to fit on, logits and labels, with the test rows that the fit serves.

    Without a validation part these are two random halves of the test set, each fitted on the other.
    """

    def part(name: str, rows: Any = slice(None)) -> tuple[Any, Any]:
        return arrays[f"{name}_logits"][rows], arrays[f"{name}_labels"][rows].astype(np.int64)

    if len(arrays["validation_labels"]):
        return [(part("validation"), slice(None))]
    order = np.random.default_rng(0).permutation(len(arrays["test_labels"]))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    return [(part("test", halves[0]), halves[1]), (part("test", halves[1]), halves[0])]


def _advise(run: Run) -> Advice:
    """Ask the selector with the validation part, and see on the test set what its advice is worth."""
    gamma, paradigm, seed = run.config["gamma"], run.config["paradigm"], run.config["seed"]
    objective = Focal(gamma, label_smoothing=run.config["label_smoothing"])
    arrays = run.arrays()
    (validation_z, validation_y), rows = _fits(arrays)[0]
    selection = choose_calibration(validation_z.astype(np.float64), validation_y, objective, n_folds=5)
    z, y = arrays["test_logits"][rows].astype(np.float64), arrays["test_labels"][rows].astype(np.int64)
    log_probs = {method.name: method.log_probs(z) for method in selection.methods}
    losses = {name: nll(log_p, y, from_logits=True) for name, log_p in log_probs.items()}
    eces = {name: CalibrationStats(N_BINS).update(np.exp(p), y).ece() for name, p in log_probs.items()}
    winner = selection.method(selection.winner)
    assert isinstance(winner.temperature, float)  # one for all classes
    return Advice(
        paradigm,
        gamma,
        seed,
        winner.name,
        selection.clear,
        winner.temperature,
        eces["raw"],
        eces[winner.name],
        losses["raw"],
        losses[winner.name],
        min(losses, key=lambda name: losses[name]),
        selection.sentence,
        **_made_by(run),
    )
