"""The report of the tabular study: its tables in Markdown, LaTeX and CSV, its summary, its box plots."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refocal.experiments.files import (
    BoxPanel,
    box_figure,
    csv_bytes,
    figure_files,
    json_bytes,
    markdown_table,
    write_outputs,
)
from refocal.experiments.sweeps import Run, origin_text, read_runs
from refocal.experiments.tabular.study import MODELS
from refocal.experiments.tabular.tables import (
    CSV_HEADER,
    TITLES,
    Agreement,
    Table,
    agreement,
    csv_rows,
    groups_of,
    make_table,
    method_names,
    to_latex,
    to_markdown,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODEL_TITLES = {"linear": "linear-in-input model", "mlp": "one hidden layer"}


def write_report(out: str | os.PathLike[str], keys: Sequence[str] | None = None) -> list[Path]:
    """Write the files of `refocal.experiments.tabular.report`."""
    runs = [run for run in read_runs(out) if "objectives" in run.config and (keys is None or run.key in keys)]
    if not runs:
        raise FileNotFoundError(f"no tabular run is finished in {out}")
    models = [model for model in MODELS if any(run.config["model"] == model for run in runs)]
    partial = sorted({run.config["dataset"] for run in runs if run.result["partial"]})
    files: dict[str, bytes] = {}
    cells: list[Sequence[Any]] = []
    made = f"{_options(runs)}\n{origin_text(runs)}"
    text = [_introduction(made, partial)]
    summary: dict[str, Any] = {}
    for model in models:
        for metric in TITLES:
            table = make_table(runs, model, metric)
            cells += csv_rows(table)
            files[f"{model}-{metric}.tex"] = to_latex(table, made).encode()
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
            "made": made.splitlines(),
        }
    )
    return write_outputs(out, files)


def _options(runs: Sequence[Run]) -> str:
    """Say how the models of all tables were trained."""
    recipes = [run.config["recipe"] for run in runs]
    epochs, decays = (sorted({recipe[name] for recipe in recipes}) for name in ("epochs", "weight_decay"))
    objectives = dict.fromkeys(name for run in runs for name in method_names(run.config))
    trials = {t for run in runs for t in run.config["trials"]}
    return (
        f"{len(trials)} trials of {' and '.join(map(str, epochs))} epochs, weight decay "
        f"{' and '.join(f'{decay:g}' for decay in decays)}, objectives {', '.join(objectives)} "
        "(CE: cross entropy; FL-g: focal loss of gamma g)."
    )


def _introduction(made: str, partial: Sequence[str]) -> str:
    shown = f" Not judged, since the copy is incomplete: {', '.join(partial)}." if partial else ""
    return (
        "# Tabular study\n\n"
        "Each cell: mean (standard error) over trials / published mean. Bold: the best method of a row, and "
        f"those that a one-sided Welch t-test at 5 % does not find worse.{shown}\n\n{made}\n"
    )


def _in_words(parts: Mapping[str, Agreement]) -> str:
    header = [
        "data sets",
        "clear published verdicts that agree",
        "cells within max(1 point, 3 combined standard errors)",
    ]
    rows = ((name, f"{a.agreed} of {a.verdicts}", f"{a.near} of {a.cells}") for name, a in parts.items())
    misses = [f"- {miss}" for miss in parts["all"].misses]
    return "\n".join([*markdown_table(header, rows), "", *misses]) + "\n"


def _boxes(table: Table) -> Figure:
    """Return box plots of every data set: ECE against the objective, raw and after psi."""
    panels = []
    for dataset, row in table.rows.items():
        groups = [name for name in row if not name.endswith("-psi")]
        cells = {
            "raw": {name: row[name] for name in groups},
            r"$\Psi$": {name: row.get(f"{name}-psi", row[name]) for name in groups},
        }
        series = {name: {group: cell.values for group, cell in some.items()} for name, some in cells.items()}
        published = {
            name: {group: c.published.mean for group, c in some.items() if c.published is not None}
            for name, some in cells.items()
        }
        panels.append(BoxPanel(dataset, series, published))
    return box_figure(panels, columns=5, ylabel="ECE (%)")
