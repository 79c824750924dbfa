"""What a study by number of labels found: crossing points, the tables in Markdown, the figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal.experiments.files import csv_bytes, figure_files, json_bytes, markdown_table, put_caption
from refocal.experiments.sweeps import Run, origin_text
from refocal.experiments.tabular.study import BINS
from refocal.plots import new_figure, share_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELLED = {
    "ts_nll": "temperature (NLL)",
    "focal_ts": "focal temperature",
    "chosen": "choose_calibration",
}
METHODS = {"raw": "raw", "psi": "psi, no labels", **LABELLED}
MEASURES = {"ece": f"ECE ({BINS[0]} bins, in %)", "nll": "NLL"}


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


def judged(runs: Sequence[Run]) -> tuple[list[Run], str]:
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


def files_of(runs: Sequence[Run], left_out: str) -> dict[str, bytes]:
    """Return the files of a report, by name: every number, the tables, the crossing points, the figure."""
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
    return {
        "labels.csv": csv_bytes(header, rows),
        "labels.md": _text(runs, summary, left_out).encode(),
        "labels.json": json_bytes(summary),
        **figure_files("labels", _figure(runs)),
    }


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
    """Return, for each model, the ECE minus that of psi by the number of labels: median and quartiles.

    Small data sets end before large ones, so a tick says how many data sets its points are of.
    """
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
        ax.set(xscale="log", xlabel="labelled rows", title=model)
        ax.set_xticks(
            sizes, [f"{n:,}\n(n = {sum(n in run.result['labels'] for run in some)})" for n in sizes]
        )
        ax.minorticks_off()
    axes[0].set_ylabel("ECE minus that of psi (points)")
    put_caption(figure, "line: median of the n data sets with enough rows; band: their middle half")
    share_legend(list(axes))
    return figure
