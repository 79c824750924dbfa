"""The search behind the protocol: which split, weight decay and number of bins fit the published tables.

Every configuration is trained on every data set and measured with 8 to 25 bins; every cell, with its distance
from the published one, is a row of ``search.csv``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refocal.experiments.files import csv_bytes, markdown_table, write_outputs
from refocal.experiments.sweeps import Run, Workers, carry_out, origin_text, read_runs, run_key
from refocal.experiments.tabular.judgement import BINS_FOUND, Judged, Verdict, counts, judge, verdicts
from refocal.experiments.tabular.study import (
    MODELS,
    SCANNED,
    Experiment,
    configs_of,
    data_folder,
    experiments_of,
)
from refocal.experiments.tabular.tables import gather, table_of
from refocal.extras import needs

DATASETS = (
    *("australian", "vehicle", "banknote", "splice", "banana", "spambase", "phoneme"),
    *("ringnorm", "twonorm", "phishing"),
)
"""The smaller ones, by whose tables neither version nor scaling was chosen, but for banknote's scaling."""
FRACTIONS = (0.5, 0.6, 0.7, 0.8, 0.9)
DECAYS = (0.0, 1e-4, 5e-4, 1e-3)
FOLDER = "search"
"""Of the runs, in the folder of the study, whose own runs they must not mix with."""
HEADER = (
    *("dataset", "model", "train_fraction", "weight_decay", "trials", "n_bins", "metric", "method"),
    *("mean", "published", "difference", "z", "strict"),
)


class Found(NamedTuple):
    """The cells of one configuration, of one number of bins (None: errors)."""

    train_fraction: float | None
    weight_decay: float
    n_bins: int | None
    trials: int
    cells: list[Judged]
    verdicts: list[Verdict]


def grid(
    datasets: Sequence[str] | None = None,
    *,
    fractions: Sequence[float] = FRACTIONS,
    decays: Sequence[float] = DECAYS,
    **options: Any,
) -> list[Experiment]:
    """Return the experiments of the search, data set by data set.

    Args:
        datasets: Names; `DATASETS` by default.
        fractions: Parts of the rows for training.
        decays: Weight decays.
        **options: As for `experiments_of`.
    """
    return [
        experiment
        for dataset in datasets or DATASETS
        for fraction in fractions
        for decay in decays
        for experiment in experiments_of([dataset], train_fraction=fraction, weight_decay=decay, **options)
    ]


def run(
    experiments: Sequence[Experiment],
    out: str | os.PathLike[str],
    *,
    workers: Workers | None = None,
    tell: Callable[[Path], None] | None = None,
) -> list[Path]:
    """Do the runs of a search that are not done yet, and write ``search.csv`` and ``search.md``.

    Args:
        experiments: Of `grid`.
        out: The folder of the study; the runs of the search are in a folder within.
        workers: As for `refocal.experiments.tabular.run`.
        tell: Called with each file.

    Raises:
        SweepError: After the report, if runs failed.
    """
    with needs("the tabular study", "torch"):
        from refocal.experiments.tabular.training import run_config

    do = functools.partial(run_config, data=data_folder(experiments))
    configs = configs_of(experiments)
    keys = [run_key(config) for config in configs]
    folder = Path(out) / FOLDER
    return carry_out(configs, do, folder, lambda: report(out, keys), workers=workers, tell=tell)


def report(out: str | os.PathLike[str], keys: Sequence[str] | None = None) -> list[Path]:
    """Write the log and the summary of a search, with the scan of the bins of the study itself.

    Args:
        out: The folder of the study.
        keys: Only these runs of the search; all by default.

    Raises:
        FileNotFoundError: If there is no run of a search.
    """
    runs = [run for run in read_runs(Path(out) / FOLDER) if keys is None or run.key in keys]
    if not runs:
        raise FileNotFoundError(f"no run of a search is finished in {out}")
    try:
        study = [run for run in read_runs(out) if "objectives" in run.config and not run.result["partial"]]
    except FileNotFoundError:
        study = []
    found = [one for some in _by_config(runs) for one in judged(some)]
    scan = judged([run for run in study if not isinstance(run.config["n_bins"], int)])
    log = [*_csv(found), *_csv(scan)]
    text = _summary(found, scan, origin_text(runs))
    return write_outputs(out, {"search.csv": csv_bytes(HEADER, log), "search.md": text.encode()})


def _by_config(runs: Iterable[Run]) -> list[list[Run]]:
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(_config(run), []).append(run)
    return [groups[key] for key in sorted(groups)]


def _config(run: Run) -> tuple[float, float]:
    return run.config["train_fraction"] or 0.0, run.config["recipe"]["weight_decay"]


def judged(runs: Sequence[Run]) -> list[Found]:
    """Return the cells of one configuration for every number of bins, and those of the errors."""
    gathered = gather(runs)
    if not gathered:
        return []
    fraction, decay = _config(runs[0])
    datasets = list(dict.fromkeys(dataset for dataset, _ in gathered))
    trials = min(entry["made"][0] for entry in gathered.values())
    result = []
    for n_bins in (*SCANNED, None):
        metric = "error" if n_bins is None else "ece"
        tables = [table_of(gathered, model, metric, n_bins=n_bins or 0) for model in MODELS]
        cells = [cell for table in tables for cell in judge(table, datasets)]
        signs = [] if n_bins is None else [v for table in tables for v in verdicts(table, datasets)]
        result.append(Found(fraction or None, decay, n_bins, trials, cells, signs))
    return result


def _csv(found: Iterable[Found]) -> list[tuple[Any, ...]]:
    return [
        (
            *(cell.dataset, cell.model, "given" if f.train_fraction is None else f.train_fraction),
            *(f.weight_decay, f.trials, f.n_bins or "", cell.metric, cell.method),
            *(round(cell.mean, 4), cell.published, round(cell.difference, 4), round(cell.z, 3)),
            int(cell.strict),
        )
        for f in found
        for cell in f.cells
    ]


def _summary(found: Sequence[Found], scan: Sequence[Found], made: str) -> str:
    datasets = list(dict.fromkeys(cell.dataset for f in found for cell in f.cells))
    configs = {(f.train_fraction, f.weight_decay) for f in found}
    # A data set of which some configurations are not done yet would tilt the comparison.
    whole = [
        d
        for d in datasets
        if all(any(c.dataset == d for c in f.cells if c.model == m) for f in found for m in MODELS)
    ]
    text = [
        "# The search behind the tabular protocol",
        "",
        f"{len(configs)} configurations (part of the rows for training x weight decay) on {len(whole)} data sets "
        f"({', '.join(whole)}), linear and one hidden layer, {min(f.trials for f in found)} trials, each measured "
        f"with {SCANNED[0]} to {SCANNED[-1]} bins. Every cell is a row of `search.csv`. {made}",
        "",
        "Strict: |difference| <= 3 sqrt(SD_paper^2 / 10 + SD_ours^2 / trials). z: difference over that root. Points: "
        "mean absolute difference. Clear verdicts: whether psi helps, where the paper is clear about it.",
        "",
        "## Split and weight decay",
        "",
    ]
    rows = []
    for fraction, decay in sorted(configs, key=lambda c: (c[0] or 0, c[1])):
        some = [f for f in found if (f.train_fraction, f.weight_decay) == (fraction, decay)]
        of = {f.n_bins: _within(f, whole) for f in some}
        best = min((n for n in of if n is not None), key=lambda n: _rms(of[n].cells))
        rows.append(
            (
                *(fraction, f"{decay:g}", *_told(of[10]), *_told(of[15])),
                *(f"{best}: {_fraction(of[best].cells)}, {_rms(of[best].cells):.2f}",),
                *(_clear(of[10]), _fraction(of[None].cells), f"{_rms(of[None].cells):.2f}"),
            )
        )
    header = [
        *("training part", "weight decay", "ECE, 10 bins: strict", "mean z", "rms z", "points"),
        *("ECE, 15 bins: strict", "mean z", "rms z", "points", "best bins: strict, rms z"),
        *("clear verdicts (10 bins)", "errors: strict", "rms z"),
    ]
    text += [*markdown_table(header, rows), ""]
    text += ["## Number of bins, half split, no weight decay, the same data sets", ""]
    text += _bins_table([_within(f, whole) for f in found if (f.train_fraction, f.weight_decay) == (0.5, 0.0)])
    if scan:
        parts = {
            "All data sets of the study (its 10 trials)": lambda d: True,
            "Data sets that the 15 was not found by": lambda d: d not in BINS_FOUND,
        }
        for title, keep in parts.items():
            sets = [d for d in dict.fromkeys(c.dataset for f in scan for c in f.cells) if keep(d)]
            text += ["", f"## {title}: {len(sets)}", "", ", ".join(sets) + ".", ""]
            text += _bins_table([_within(f, sets) for f in scan])
    return "\n".join(text) + "\n"


def _within(found: Found, datasets: Sequence[str]) -> Found:
    return found._replace(
        cells=[cell for cell in found.cells if cell.dataset in datasets],
        verdicts=[v for v in found.verdicts if v.dataset in datasets],
    )


def _bins_table(found: Sequence[Found]) -> list[str]:
    rows = [(f.n_bins, *_told(f), _clear(f)) for f in found if f.n_bins is not None]
    return markdown_table(["bins", "strict", "mean z", "rms z", "points", "clear verdicts"], rows)


def _told(found: Found) -> tuple[str, str, str, str]:
    number = counts(found.cells)
    points = np.mean([abs(cell.difference) for cell in found.cells]) if found.cells else np.nan
    return _fraction(found.cells), f"{number['z_mean']}", f"{number['z_rms']}", f"{points:.3f}"


def _fraction(cells: Sequence[Judged]) -> str:
    return f"{sum(cell.strict for cell in cells)} of {len(cells)}"


def _rms(cells: Sequence[Judged]) -> float:
    return float(np.sqrt(np.mean([cell.z**2 for cell in cells]))) if cells else float("nan")


def _clear(found: Found) -> str:
    clear = [v for v in found.verdicts if v.clear]
    return f"{sum(v.agrees for v in clear)} of {len(clear)}"
