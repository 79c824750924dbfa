"""The log of a search, ``search.csv``: every cell of every configuration, and what was found, read from it.

The summary is made of the rows as they are stored, so that it can be made again where the runs, which are
many, are not kept.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from refocal.experiments.data import REGISTRY
from refocal.experiments.tabular.judgement import Judged, Verdict, verdict_of
from refocal.experiments.tabular.tables import published

HEADER = (
    *("runs", "dataset", "task", "model", "train_fraction", "weight_decay", "scaling", "trials", "n_bins"),
    *("metric", "method", "mean", "published", "difference", "z", "strict"),
)
SEARCH, STUDY = "search", "study"
"""Of which runs a row is."""
EARLIER = "earlier"
"""The task of rows of a version that the paper's row was taken for before (`Task.rechosen`)."""


class Config(NamedTuple):
    """What is searched beside the number of bins."""

    train_fraction: float
    """0: the split that the data come with."""
    weight_decay: float
    scaling: str
    task: str = "paper"
    """Or "original": all rows of a file, where the paper's version leaves some out; or `EARLIER`."""


class Logged(NamedTuple):
    """One row of the log."""

    dataset: str
    model: str
    method: str
    trials: int
    mean: float
    published: float
    difference: float
    z: float
    strict: bool


class Found(NamedTuple):
    """The cells of one configuration, of one number of bins (None: errors)."""

    config: Config
    n_bins: int | None
    cells: list[Logged]
    verdicts: list[Verdict]


def log_rows(
    runs: str, config: Config, n_bins: int | None, cells: Iterable[Judged], trials: Mapping[Any, int]
) -> list[list[str]]:
    """Return the rows of one configuration and number of bins.

    Args:
        runs: `SEARCH` or `STUDY`.
        config: Of all cells.
        n_bins: Of the ECE, or None for errors.
        cells: Judged.
        trials: By data set and model.
    """
    return [
        [
            *(runs, cell.dataset, config.task, cell.model, str(config.train_fraction or "given")),
            *(f"{config.weight_decay:g}", config.scaling, str(trials[cell.dataset, cell.model])),
            *(str(n_bins or ""), cell.metric, cell.method),
            *(f"{round(number, 4):.10g}" for number in (cell.mean, cell.published, cell.difference)),
            f"{round(cell.z, 3):.10g}",
            str(int(cell.strict)),
        ]
        for cell in cells
    ]


def read_log(path: Path) -> list[list[str]]:
    """Return the rows of a log.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If the file has other columns.
    """
    with open(path, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    if tuple(header) != HEADER:
        raise ValueError(f"{path} must have the columns {', '.join(HEADER)}, got {', '.join(header)}")
    return rows


def found_in(rows: Sequence[Sequence[str]]) -> list[Found]:
    """Return the cells of rows of a log, which stand together by configuration and number of bins."""
    return [
        Found(config, n_bins, cells, [] if n_bins is None else _verdicts(cells))
        for (config, n_bins), some in itertools.groupby(rows, key=_place)
        for cells in [[_cell(row) for row in some]]
    ]


def _place(row: Sequence[str]) -> tuple[Config, int | None]:
    of = dict(zip(HEADER, row, strict=True))
    part = of["train_fraction"]
    config = Config(
        0.0 if part == "given" else float(part), float(of["weight_decay"]), of["scaling"], of["task"]
    )
    return config, int(of["n_bins"]) if of["n_bins"] else None


def _cell(row: Sequence[str]) -> Logged:
    of = dict(zip(HEADER, row, strict=True))
    mean, paper, difference, z = (float(of[name]) for name in ("mean", "published", "difference", "z"))
    name = (of["dataset"], of["model"], of["method"], int(of["trials"]))
    return Logged(*name, mean, paper, difference, z, of["strict"] == "1")


def _verdicts(cells: Iterable[Logged]) -> list[Verdict]:
    """Return whether psi helps, published and here, of every pair of cells before and after psi."""
    of = {(cell.dataset, cell.model, cell.method): cell for cell in cells}
    paper = published()
    result = []
    for (dataset, model, method), before in of.items():
        after = of.get((dataset, model, f"{method}-psi"))
        if after is not None:
            name = str(REGISTRY[dataset].paper)
            pair = [paper[name, model, of_method, "ece"] for of_method in (method, after.method)]
            result.append(verdict_of(dataset, model, method, pair, before.mean - after.mean))
    return result
