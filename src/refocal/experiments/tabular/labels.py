"""Psi against what is fitted on labelled rows, by how many of these there are.

Psi needs no labels. A temperature needs some, and is the better the more there are: where do they cross?
A few models are trained for each data set. Of the test rows of one of them, n are drawn as labelled ones, 20
times in all, in turn of each model; every method is measured on the test rows that were not drawn.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal import Focal, FocalTemperatureScaling, TemperatureScaling, choose_calibration, ece, nll
from refocal.experiments.data import REGISTRY
from refocal.experiments.files import csv_bytes, figure_files, json_bytes, markdown_table, write_outputs
from refocal.experiments.sweeps import Run, Workers, carry_out, origin_text, read_runs, run_key
from refocal.experiments.tabular.study import BINS, Experiment, configs_of, data_folder
from refocal.experiments.tabular.tasks import MARKS
from refocal.extras import needs
from refocal.objectives import log_posterior_of
from refocal.plots import new_figure, share_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = (10, 30, 100, 300, 1000, 3000)
DRAWS = 20
LABELLED = {
    "ts_nll": "temperature (NLL)",
    "focal_ts": "focal temperature",
    "chosen": "choose_calibration",
}
METHODS = {"raw": "raw", "psi": "psi, no labels", **LABELLED}
MEASURES = {"ece": f"ECE ({BINS[0]} bins, in %)", "nll": "NLL"}
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
        raise ValueError("one gamma at a time: the table has a row for each data set and model")
    do = functools.partial(run_labels, data=data_folder(experiments))
    configs = label_configs(experiments)
    check_one_setting(configs)
    keys = [run_key(config) for config in configs]
    folder = Path(out) / FOLDER
    return carry_out(configs, do, folder, lambda: report(out, keys), workers=workers, tell=tell)


def crossing(means: Sequence[float], psi: Sequence[float], labels: Sequence[int]) -> float:
    """Return the smallest number of labels from which on a method is below psi; infinity if there is none.

    Example:
        >>> crossing([5.0, 2.0, 1.0], [2.5, 2.5, 2.5], [10, 30, 100])
        30
        >>> crossing([2.0, 3.0, 3.0], [2.5, 2.5, 2.5], [10, 30, 100])
        inf
    """
    found: float = math.inf
    for mean, reference, n in zip(reversed(means), reversed(psi), reversed(labels), strict=True):
        if not mean < reference:
            break
        found = n
    return found


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
        raise FileNotFoundError(f"no run by number of labels is finished in {out}")
    runs, left_out = _reported(found)
    if not runs:
        raise FileNotFoundError(f"no run by number of labels can be reported: {left_out}")
    check_one_setting([run.config for run in runs])
    rows = [
        (
            *(_dataset(run), _model(run), _gamma(run), run.config["model"]["scaling"]),
            *(run.result["n_test"], n, measure, method),
            *(of[method][name][i] for name in ("mean", "sd", "below_psi")),
            run.result["unfitted"].get(method, [0] * (i + 1))[i],
        )
        for run in runs
        for measure, of in run.result["measures"].items()
        for i, n in enumerate(run.result["labels"])
        for method in METHODS
    ]
    header = (
        *("dataset", "model", "gamma", "scaling", "n_test", "labels", "measure", "method"),
        *("mean", "sd", "below_psi", "unfitted"),
    )
    summary = _summary(runs)
    files = {
        "labels.csv": csv_bytes(header, rows),
        "labels.md": _text(runs, summary, left_out).encode(),
        "labels.json": json_bytes(summary),
        **figure_files("labels", _figure(runs)),
    }
    return write_outputs(out, files)


def _reported(runs: Sequence[Run]) -> tuple[list[Run], str]:
    """Return the runs that count, in the order of the tables, and a sentence on the others."""
    partial = [run for run in runs if run.result["partial"]]
    small = [run for run in runs if not run.result["partial"] and not run.result["labels"]]
    told = []
    if partial:
        told.append(f"incomplete copies are not judged ({_names(partial)})")
    if small:
        least = 2 * min(n for run in small for n in run.config["labels"])
        rows = min(run.result["n_test"] for run in small)
        told.append(f"at least {least} test rows are needed, got {rows} ({_names(small)})")
    rest = [run for run in runs if run not in partial and run not in small]
    return sorted(rest, key=lambda run: (_model(run), _dataset(run))), "; ".join(told)


def _names(runs: Iterable[Run]) -> str:
    return ", ".join(sorted({_dataset(run) for run in runs}))


def _dataset(run: Run) -> str:
    return str(run.config["model"]["dataset"])


def _model(run: Run) -> str:
    return str(run.config["model"]["model"])


def _gamma(run: Run) -> float:
    (objective,) = run.config["model"]["objectives"]
    return float(objective["gamma"])


def _summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the crossing points and their medians, by measure, model and method."""
    result: dict[str, Any] = {}
    models = list(dict.fromkeys(map(_model, runs)))
    for measure in MEASURES:
        for model in (*models, "all"):
            for method in LABELLED:
                points = {
                    f"{_dataset(run)}, {_model(run)}": crossing(
                        run.result["measures"][measure][method]["mean"],
                        run.result["measures"][measure]["psi"]["mean"],
                        run.result["labels"],
                    )
                    for run in runs
                    if model in ("all", _model(run))
                }
                # The upper one of the two in the middle: a mean of them need not be a number that was tried.
                middle = sorted(points.values())[len(points) // 2]
                told: dict[str, Any] = {
                    "models": len(points),
                    "median": _or_never(middle),
                    "never": sum(math.isinf(n) for n in points.values()),
                }
                if model == "all":
                    told["each"] = {name: _or_never(n) for name, n in points.items()}
                result.setdefault(measure, {}).setdefault(model, {})[method] = told
    return result


def _or_never(n: float) -> int | None:
    return None if math.isinf(n) else int(n)


def _text(runs: Sequence[Run], summary: Mapping[str, Any], left_out: str) -> str:
    config = runs[0].config
    text = [
        "# How many labels until a temperature is better than psi",
        "",
        f"Focal loss of gamma {_gamma(runs[0]):g}, {len(config['model']['trials'])} trainings for each data "
        "set and model. Of the test rows of one of them in turn, n are drawn as labelled, "
        f"{config['draws']} times, at most half; every method is measured on the rows that were not drawn, "
        "and means over draws are compared. Psi uses no label. A temperature that cannot be fitted (no error "
        "among the drawn rows) is 1; for the focal temperature and the choice that leaves psi. "
        f"Scaling of the features: {', '.join(sorted({run.config['model']['scaling'] for run in runs}))}. "
        f"{origin_text(runs)}",
        "",
        "The crossing point: the smallest n of "
        f"{', '.join(map(str, config['labels']))} from which on the method is below psi for all n that were "
        "tried; never: psi is still below at the largest n that the data set has rows for. Of an even number "
        "of models the median is the upper of the two in the middle.",
        "",
        *([f"Left out: {left_out}.", ""] if left_out else []),
    ]
    for measure, title in MEASURES.items():
        header = ["model", *(f"{name}: median (never)" for name in LABELLED.values())]
        rows = [
            (model, *(f"{_n(of[m]['median'])} ({of[m]['never']} of {of[m]['models']})" for m in LABELLED))
            for model, of in summary[measure].items()
        ]
        text += [f"## {title}", "", *markdown_table(header, rows), ""]
    for measure, title in MEASURES.items():
        each = {method: summary[measure]["all"][method]["each"] for method in LABELLED}
        header = ["data set, model", "test rows", "raw", *(f"{n} labels" for n in config["labels"])]
        header += [f"{name} crosses at" for name in LABELLED.values()]
        rows = []
        for run in runs:
            of, sizes = run.result["measures"][measure], run.result["labels"]
            name = f"{_dataset(run)}, {_model(run)}"
            digits = 2 if measure == "ece" else 3
            # Psi on the rows that are left at each n: that is what the crossing compares with.
            pairs = zip(of["ts_nll"]["mean"], of["psi"]["mean"], strict=True)
            cells = [f"{fitted:.{digits}f} / {psi:.{digits}f}" for fitted, psi in pairs]
            raw = f"{of['raw']['mean'][0]:.{digits}f}"
            cells += ["–"] * (len(config["labels"]) - len(sizes))
            rows.append((name, run.result["n_test"], raw, *cells, *(_n(each[m][name]) for m in LABELLED)))
        text += [
            f"## Each data set: {title} of the temperature by the NLL / of psi, on the rows left",
            "",
            *markdown_table(header, rows),
            "",
        ]
    return "\n".join(text)


def _n(n: int | None) -> str:
    return "never" if n is None else str(n)


def _figure(runs: Sequence[Run]) -> Figure:
    """Return, for each model, the ECE minus that of psi by the number of labels: median and quartiles."""
    models = list(dict.fromkeys(map(_model, runs)))
    figure = new_figure(4.2 * len(models), 3.4)
    axes = figure.subplots(1, len(models), squeeze=False, sharey=True).flat
    for ax, model in zip(axes, models, strict=True):
        some = [run for run in runs if _model(run) == model]
        sizes = sorted({n for run in some for n in run.result["labels"]})
        for method, title in LABELLED.items():
            gaps: dict[int, list[float]] = {n: [] for n in sizes}
            for run in some:
                of = run.result["measures"]["ece"]
                for i, n in enumerate(run.result["labels"]):
                    gaps[n].append(of[method]["mean"][i] - of["psi"]["mean"][i])
            low, middle, high = np.array([np.percentile(gaps[n], (25, 50, 75)) for n in sizes]).T
            (line,) = ax.plot(sizes, middle, marker="o", markersize=3, label=title)
            ax.fill_between(sizes, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        ax.axhline(0, color="0.4", linewidth=0.8)
        ax.set(xscale="log", xlabel="labelled rows", title=f"{model}, n = {len(some)} data sets")
    axes[0].set_ylabel("ECE minus that of psi (points)")
    share_legend(list(axes))
    return figure
