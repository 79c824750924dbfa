"""Numbers of the image experiments, from the stored logits: every paradigm, raw and with Psi."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refocal import (
    CalibrationStats,
    Focal,
    FocalTemperatureScaling,
    TemperatureScaling,
    choose_calibration,
    error_rate,
    nll,
)
from refocal.experiments.images.groups import Machine, in_common, machines_of
from refocal.experiments.sweeps import Run, origin_of, origin_text

N_BINS = 10
"""As the paper says."""

BINS = range(8, 26)
"""The numbers of bins with which the ECE is measured too, to see what depends on them."""

TITLES = {"standard": "Standard", "ts_fl": "TS_FL", "ts_nll": "TS_NLL", "focal_ts": "focal TS", "ls": "LS"}
"""The paradigms as they are called in tables."""


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
        ece: With 10 bins.
        nll: The mean over the rows, in nats. The paper has the sum.
        classwise_ece: With 10 bins.
        gap: Accuracy minus mean confidence: above 0 where the scores are underconfident on the whole.
        stats: The bins.
        eces: With each number of `BINS`.
        underconfident: The part of the rows in bins above the diagonal of the reliability diagram, whose
            accuracy is larger than their mean confidence, with each number of `BINS`.
    """

    paradigm: str
    link: str
    gamma: float
    seed: int
    temperature: float
    error: float
    ece: float
    nll: float
    classwise_ece: float
    gap: float
    stats: CalibrationStats
    eces: tuple[float, ...]
    underconfident: tuple[float, ...]

    def number(self, metric: str) -> float:
        """Return a metric by its name; "ece_15" is the ECE with 15 bins, "underconfident_15" likewise."""
        name, _, bins = metric.rpartition("_")
        by_bins = {"ece": self.eces, "underconfident": self.underconfident}
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
        machines: Of the runs, each once, the most frequent one first; the commits are in `origin`.
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
    machines: tuple[Machine, ...]
    origin: str
    n: tuple[int, int, int]

    def trials(self, metric: str, paradigm: str, link: str) -> dict[float, dict[int, float]]:
        """Return a metric's value of each trial, for each gamma that has any; see `Measure.number`."""
        found: dict[float, dict[int, float]] = {}
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
    machines = Counter(replace(machine, commit=None) for run in runs for machine in machines_of(run))
    return Group(
        name,
        in_common(runs[0].config),
        tuple(measures),
        tuple(advice),
        tuple(settings),
        tuple(skipped),
        float(np.median([run.result["seconds_per_epoch"] for run in runs])),
        tuple(machine for machine, _ in machines.most_common()),
        origin_text(runs),
        (result["n_train"], result["n_validation"], result["n_test"]),
    )


def _recorded(run: Run) -> dict[str, Any]:
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
    measures, problems, made = [], [], _recorded(run)
    for title, scaling, links in plan:
        temperatures = np.ones(len(z))
        try:
            for (fit_z, fit_y), rows in _fits(arrays) if scaling is not None else ():
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
            loss, wrong = nll(log_probs, y, from_logits=True), error_rate(probs, y)
            gap = 1 - wrong - float(probs.max(1).mean())
            numbers = (wrong, stats.ece(), loss, stats.classwise_ece(), gap)
            binned = [CalibrationStats(bins).update(probs, y) for bins in BINS]
            by_bins = tuple(some.ece() for some in binned), tuple(map(_underconfident, binned))
            measures.append(Measure(title, link, gamma, seed, temperature, *numbers, stats, *by_bins, **made))
    return measures, problems


def _underconfident(stats: CalibrationStats) -> float:
    """Return the part of the rows in bins whose accuracy is larger than their mean confidence."""
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
        **_recorded(run),
    )
