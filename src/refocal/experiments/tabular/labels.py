"""Psi against what is fitted on labelled rows, by how many of these there are.

Psi needs no labels. A temperature needs some, and is the better the more there are: where do they cross?
A few models are trained for each data set. Of the test rows of one of them, n are drawn as labelled ones, 20
times in all, in turn of each model; every method is measured on the test rows that were not drawn.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from refocal import Focal, FocalTemperatureScaling, TemperatureScaling, choose_calibration, ece, nll
from refocal.experiments.data import REGISTRY
from refocal.experiments.files import write_outputs
from refocal.experiments.sweeps import NothingFinished, Workers, carry_out, read_runs, run_key
from refocal.experiments.tabular.labelled import LABELLED, MEASURES, METHODS, files_of, judged
from refocal.experiments.tabular.study import BINS, Experiment, configs_of, data_folder
from refocal.experiments.tabular.tasks import MARKS
from refocal.extras import needs
from refocal.objectives import log_posterior_of

LABELS = (10, 30, 100, 300, 1000, 3000)
DRAWS = 20
FOLDER = "labels"
"""Of the runs, in the folder of the study, whose own runs they must not mix with."""
BY_DATA = ("sha256", *MARKS, "scaling", "train_fraction")
"""What differs by data set in the runs of one command."""


def label_configs(
    experiments: Sequence[Experiment], labels: Sequence[int] = LABELS, draws: int = DRAWS
) -> list[dict[str, Any]]:
    """Return a config for each experiment: its own, with the numbers of labels and of draws."""
    # The draws are over all trials of a data set, so these are not divided into several runs.
    firsts = ((configs_of([experiment])[0], experiment.trials) for experiment in experiments)
    return [
        {"labels": list(labels), "draws": draws, "model": config | {"trials": list(trials)}}
        for config, trials in firsts
    ]


def run_labels(config: Mapping[str, Any], data: str | None = None) -> dict[str, Any]:
    """Train the models of one data set, then fit and measure every method on every draw.

    Returns:
        ``measures[measure][method]``: for each number of labels the value of each draw; ``unfitted[method]``:
        how many draws had no fit. A temperature without a fit is 1, a choice without one is psi.
    """
    with needs("the tabular study", "torch"):
        from refocal.experiments.sweeps.devices import torch_threads
        from refocal.experiments.tabular.training import experiment_of, train_experiment

    experiment, found = experiment_of(config["model"], data).load()
    with torch_threads(1):
        trained = train_experiment(experiment, found)
    (objective,) = experiment.objectives
    n_test = len(trained.labels[0])
    # At most half of the test rows: the others are those that all methods are measured on.
    sizes = [n for n in config["labels"] if 2 * n <= n_test]
    values = {
        measure: {m: np.full((len(sizes), config["draws"]), np.nan) for m in METHODS} for measure in MEASURES
    }
    unfitted = {method: [0] * len(sizes) for method in LABELLED}
    links = {"raw": Focal(0.0), "psi": objective}
    for draw in range(config["draws"]):
        (logits,), labels = (
            of_trials[draw % len(trained.labels)] for of_trials in (trained.logits, trained.labels)
        )
        free = {name: log_posterior_of(link, logits) for name, link in links.items()}
        order = np.random.default_rng([experiment.seed, draw]).permutation(n_test)
        for i, n in enumerate(sizes):
            fit, rest = order[:n], order[n:]
            log_probs = {name: of_all[rest] for name, of_all in free.items()}
            for method, fallback in (("ts_nll", "raw"), ("focal_ts", "psi"), ("chosen", "psi")):
                try:
                    log_probs[method] = _fitted(method, objective, logits[fit], labels[fit], logits[rest])
                except ValueError:
                    unfitted[method][i] += 1
                    log_probs[method] = log_probs[fallback]
            for method, of_rest in log_probs.items():
                values["ece"][method][i, draw] = 100 * ece(np.exp(of_rest), labels[rest], BINS[0])
                values["nll"][method][i, draw] = nll(of_rest, labels[rest], from_logits=True)
    return {
        "n_test": n_test,
        "labels": sizes,
        "partial": found.partial,
        "unfitted": unfitted,
        "measures": {
            measure: {method: _told(array, of["psi"]) for method, array in of.items()}
            for measure, of in values.items()
        },
    }


def _fitted(method: str, objective: Any, logits: Any, labels: Any, others: Any) -> Any:
    """Return the log-probabilities of other rows by a method fitted on some."""
    if method == "ts_nll":
        return TemperatureScaling(objective="nll").fit(logits, labels).predict_log_proba(others)
    if method == "focal_ts":
        return FocalTemperatureScaling(objective.plain_gamma).fit(logits, labels).predict_log_proba(others)
    # The intervals, which take the time, are not looked at.
    found = choose_calibration(logits, labels, objective, n_resamples=1)
    return found.method(found.winner).log_probs(others)


def _told(values: Any, psi: Any) -> dict[str, list[float]]:
    """Return mean, standard deviation and the share below psi, over draws, for each number of labels."""
    return {
        "mean": values.mean(axis=1).tolist(),
        "sd": values.std(axis=1, ddof=1).tolist(),
        "below_psi": (values < psi).mean(axis=1).tolist(),
    }


def run(
    experiments: Sequence[Experiment],
    out: str | os.PathLike[str],
    *,
    workers: Workers | None = None,
    tell: Callable[[Path], None] | None = None,
) -> list[Path]:
    """Do the runs that are not done yet, and write ``labels.csv``, ``labels.md``, ``.json``, and the figure.

    Args:
        experiments: Of one objective each.
        out: The folder of the study; the runs are in a folder within.
        workers: As for `refocal.experiments.tabular.run`.
        tell: Called with each file.

    Raises:
        ValueError: If an experiment has several objectives, or experiments are not of one table.
        SweepError: After the report, if runs failed.
    """
    if any(len(experiment.objectives) != 1 for experiment in experiments):
        names = sorted({str(objective) for experiment in experiments for objective in experiment.objectives})
        raise ValueError(f"objectives must be one for a table by number of labels, got {', '.join(names)}")
    do = functools.partial(run_labels, data=data_folder(experiments))
    configs = label_configs(experiments)
    check_one_setting(configs)
    keys = [run_key(config) for config in configs]
    folder = Path(out) / FOLDER
    return carry_out(configs, do, folder, lambda: report(out, keys), workers=workers, tell=tell)


def check_one_setting(configs: Iterable[Mapping[str, Any]]) -> None:
    """Check that runs are of one table: they differ in data set and model only, and in what these ask for.

    Raises:
        ValueError: If they differ in anything else, or a data set and model is there twice.
    """
    first: dict[tuple[str, str], Any] = {}
    entries = [entry for config in configs for entry in _entries(config)]
    different = {name for name, among, value in entries if first.setdefault((name, among), value) != value}
    if different:
        raise ValueError(
            "the runs of a table by number of labels must differ in data set and model only, got different "
            f"{', '.join(sorted(different))}; give each setting an --out of its own, or the options of one "
            "instead of --report (what is done is not done again)"
        )


def _entries(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Give the name of each entry, among which runs it must be the same, and its value."""
    model = config["model"]
    dataset, scaling = model["dataset"], model["scaling"]
    (objective,) = model["objectives"]
    for part in (config, model, model["recipe"], objective):
        for name, value in part.items():
            if name not in ("model", "dataset", "objectives", "recipe", *BY_DATA):
                yield name, "all", value
    for name in BY_DATA:
        yield name, f"{dataset}, {model['model']}", model.get(name)
    # Images have a scaling of their own, and the default of tables depends on whether they are of the paper.
    if scaling != "pixels":
        yield "scaling", "tables of the paper" if dataset in REGISTRY else "other tables", scaling
    # None: the test rows that the data come with, where others are divided into halves.
    yield "train_fraction", "all", model["train_fraction"] or 0.5


def report(out: str | os.PathLike[str], keys: Sequence[str] | None = None) -> list[Path]:
    """Write table, summary and figure of finished runs.

    Args:
        out: The folder of the study.
        keys: Only these runs; by default all.

    Raises:
        FileNotFoundError: If no run is finished, or none that is can be reported.
        ValueError: If the runs are not of one table, see `check_one_setting`.
    """
    found = [run for run in read_runs(Path(out) / FOLDER) if keys is None or run.key in keys]
    if not found:
        raise NothingFinished(f"no run by number of labels is finished in {out}")
    runs, left_out = judged(found)
    if not runs:
        raise NothingFinished(f"no run by number of labels can be reported: {left_out}")
    check_one_setting([run.config for run in runs])
    return write_outputs(out, files_of(runs, left_out))
