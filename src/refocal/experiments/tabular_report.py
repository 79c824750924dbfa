"""The tabular study from its configs to its tables and figures."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from refocal import Focal
from refocal.experiments._outputs import csv_bytes, figure_files, json_bytes, write_outputs
from refocal.experiments.batched import MODELS, Recipe
from refocal.experiments.datasets import REGISTRY, find, names
from refocal.experiments.runs import Run, sweep
from refocal.experiments.tabular import Experiment, run_tabular, tabular_configs
from refocal.experiments.tabular_tables import (
    CSV_HEADER,
    TITLES,
    Agreement,
    Table,
    agreement,
    csv_rows,
    groups_of,
    make_table,
    to_latex,
    to_markdown,
)
from refocal.plots import new_figure, plot_boxes

MODEL_TITLES = {"linear": "linear-in-input model", "mlp": "one hidden layer"}


def experiments_of(
    datasets: Sequence[str] | None = None,
    *,
    models: Sequence[str] = MODELS,
    gammas: Sequence[float] = (0.0, 1.0, 2.0, 3.0),
    trials: int = 10,
    epochs: int = 50,
    weight_decay: float = 0.0,
    **options: Any,
) -> list[Experiment]:
    """Return one experiment a model and data set.

    Args:
        datasets: Names or ``.npz`` files; all of the paper's that are in the data folder by default.
        models: "linear", "mlp".
        gammas: Of the focal losses; 0 is cross entropy.
        trials: How many.
        epochs: Of the training.
        weight_decay: Of the training.
        **options: More fields of `Experiment`.

    Raises:
        ValueError: If a value is not allowed, or no data set is there.
    """
    if trials < 1 or epochs < 1:
        raise ValueError(f"trials and epochs must be at least 1, got {trials} and {epochs}")
    objectives = tuple(Focal(float(gamma)) for gamma in gammas)
    recipe = Recipe(epochs=epochs, weight_decay=weight_decay)
    if datasets is None:
        known = [name for name in names("tabular") if REGISTRY[name].paper is not None]
        task, data = options.get("task", "paper"), options.get("data")
        datasets = [n for n in known if find(Experiment(n, task=task).file, data) is not None]
        if not datasets:
            raise ValueError("no data set is here: give --data or REFOCAL_DATA, or `refocal data fetch NAME`")
    return [
        Experiment(
            dataset, model, objectives=objectives, trials=tuple(range(trials)), recipe=recipe, **options
        )
        for model in models
        for dataset in datasets
    ]


def run_tabular_study(
    experiments: Sequence[Experiment], out: str | os.PathLike[str], **engine: Any
) -> list[Path]:
    """Do the runs that are not done yet, write tables and figures of all of them, and return the files.

    Args:
        experiments: What to train; their ``data`` is one folder.
        out: A folder; the runs are kept in it.
        **engine: Options of `refocal.experiments.runs.sweep`: ``jobs``, ``engine``, ``address``, ...
    """
    folders = {experiment.data for experiment in experiments}
    if len(folders) > 1:
        raise ValueError(f"data must be one folder for all experiments, got {len(folders)}")
    # A worker on another machine, or one that was there before, has another environment and folder.
    data = next(iter(folders), None) or os.environ.get("REFOCAL_DATA")
    run = functools.partial(run_tabular, data=None if data is None else os.path.abspath(data))
    runs = sweep(tabular_configs(experiments), run, out, **engine)
    return write_tabular_report(runs, out)


def write_tabular_report(runs: Sequence[Run], out: str | os.PathLike[str]) -> list[Path]:
    """Write the tables (Markdown, LaTeX, CSV), the summary and the box plots of some runs."""
    models = list(dict.fromkeys(run.config["model"] for run in runs))
    partial = sorted({run.config["dataset"] for run in runs if run.result["partial"]})
    files: dict[str, bytes] = {}
    cells: list[Sequence[Any]] = []
    text = [_introduction(runs, partial)]
    summary: dict[str, Any] = {}
    for model in models:
        for metric in TITLES:
            table = make_table(runs, model, metric)
            cells += csv_rows(table)
            files[f"{model}-{metric}.tex"] = to_latex(table).encode()
            text.append(f"## {MODEL_TITLES[model]}: {TITLES[metric]}\n\n{to_markdown(table)}")
            if metric == "ece":
                groups = groups_of(table, partial)
                parts = {name: agreement(table, datasets) for name, datasets in groups.items()}
                whole = agreement(table, [dataset for group in groups.values() for dataset in group])
                summary[model] = {name: found._asdict() for name, found in (parts | {"all": whole}).items()}
                text.append(_in_words(parts | {"all": whole}))
            if metric in ("ece", "nll"):
                extra = make_table(runs, model, metric, extra=True)
                cells += csv_rows(extra)
                text.append(
                    f"### After temperature scaling, {TITLES[metric]}\n\n"
                    "The temperature of each half of the test part is fitted on the other half; – where that "
                    f"has no error at all.\n\n{to_markdown(extra)}"
                )
        files |= figure_files(f"{model}-boxes", _boxes(make_table(runs, model, "ece")))
    files["tables.md"] = "\n".join(text).encode()
    files["tables.csv"] = csv_bytes(CSV_HEADER, cells)
    files["summary.json"] = json_bytes(
        {
            "agreement": summary,
            "runs": len(runs),
            "seconds": round(sum(run.seconds for run in runs), 1),
            "models_trained": sum(len(r.config["trials"]) * len(r.config["objectives"]) for r in runs),
            "partial": partial,
        }
    )
    return write_outputs(out, files)


def _introduction(runs: Sequence[Run], partial: Sequence[str]) -> str:
    shown = f" Not judged, since the copy is incomplete: {', '.join(partial)}." if partial else ""
    return (
        "# Tabular study\n\n"
        "Each cell: mean (standard error) over trials / published mean. Bold: the best method of a row, and "
        f"those that a one-sided Welch t-test at 5 % does not find worse.{shown}\n"
    )


def _in_words(parts: Mapping[str, Agreement]) -> str:
    lines = [
        "| data sets | clear published verdicts that agree | "
        "cells within max(1 point, 3 combined standard errors) |",
        "|---|---|---|",
        *(f"| {name} | {a.agreed} of {a.verdicts} | {a.near} of {a.cells} |" for name, a in parts.items()),
        "",
        *(f"- {miss}" for miss in parts["all"].misses),
    ]
    return "\n".join(lines) + "\n"


def _boxes(table: Table) -> Any:
    """Return box plots of every data set: ECE against the objective, raw and after psi."""
    columns = 5
    rows = math.ceil(len(table.rows) / columns)
    figure = new_figure(2.6 * columns, 2.1 * rows)
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat[len(table.rows) :]:
        ax.set_axis_off()
    for ax, (dataset, row) in zip(axes.flat, table.rows.items(), strict=False):
        groups = [name for name in row if not name.endswith("-psi")]
        series = {
            "raw": {name: row[name].values for name in groups},
            r"$\Psi$": {name: row.get(f"{name}-psi", row[name]).values for name in groups},
        }
        plot_boxes(series, ax=ax, ylabel="ECE (%)", title=dataset)
    return figure
