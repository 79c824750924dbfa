"""The search behind the protocol: which split, weight decay, scaling and bins fit the published tables.

`PLAN` says which configurations are trained on which data sets. All are measured with 8 to 25 bins; every
cell, with its distance from the published one, is a row of ``search.csv``.
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from refocal.experiments.files import csv_bytes, json_bytes, write_outputs
from refocal.experiments.sweeps import (
    NothingFinished,
    Run,
    Workers,
    carry_out,
    origin_text,
    read_runs,
    run_key,
)
from refocal.experiments.tabular.judgement import judge
from refocal.experiments.tabular.log import (
    EARLIER,
    HEADER,
    SEARCH,
    STUDY,
    Config,
    found_in,
    log_rows,
    read_log,
)
from refocal.experiments.tabular.searched import search_text
from refocal.experiments.tabular.study import (
    MODELS,
    SCANNED,
    Experiment,
    configs_of,
    data_folder,
    experiments_of,
)
from refocal.experiments.tabular.tables import gather, table_of
from refocal.experiments.tabular.tasks import MARKS
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
LOG, ABOUT = "search.csv", "search.json"
"""Every cell, and where its runs come from and which were left out."""
FILE = ("sha256", "task", *MARKS)
"""What of a config says which rows and classes a run is of."""


class Part(NamedTuple):
    """Data sets that are trained with each of some fractions and weight decays."""

    datasets: tuple[str, ...]
    fractions: tuple[float, ...] = (0.5,)
    decays: tuple[float, ...] = (0.0,)
    scaling: str = "standard"
    trials: int = 5
    models: tuple[str, ...] = MODELS
    task: str = "paper"


PLAN = (
    Part(DATASETS, FRACTIONS, DECAYS),
    # The weight decay of the text, on more data sets.
    Part(("image", "japanese-vowels", "letter", "pendigits", "satimage", "waveform"), decays=DECAYS[-1:]),
    # The scaling by the training part, where `DATASETS` do not have it.
    Part(
        (
            *("adult", "artificial-characters", "basehock", "coil20", "image", "isolet", "japanese-vowels"),
            *("letter", "magic", "mushroom", "pendigits", "satimage", "usps", "waveform"),
        ),
        trials=10,
    ),
    # Data sets that did not fit: smaller parts for training, other scalings.
    Part(("coil20", "isolet", "waveform"), (0.2, 0.3, 0.4)),
    Part(("mushroom",), (0.2, 0.3), task="original"),
    Part(("basehock", "usps"), (0.3,), models=("linear",)),
    Part(("coil20", "isolet", "waveform"), scaling="minmax"),
    Part(("coil20", "isolet", "usps", "waveform"), scaling="none"),
    *(Part(("mushroom",), scaling=scaling, task="original") for scaling in ("minmax", "none")),
    *(Part(("basehock",), scaling=scaling, models=("linear",)) for scaling in ("minmax", "none")),
)
"""The search whose log is stored, where most of it for waveform is of another class."""


def plan(*, models: Sequence[str] = MODELS, trials: int | None = None, **options: Any) -> list[Experiment]:
    """Return the experiments of `PLAN`.

    Args:
        models: Only these.
        trials: Instead of those of the plan.
        **options: As for `experiments_of`, for all of them.
    """
    return [
        experiment
        for part in PLAN
        for experiment in grid(
            part.datasets,
            fractions=part.fractions,
            decays=part.decays,
            models=[model for model in part.models if model in models],
            trials=part.trials if trials is None else trials,
            **options | {"scaling": part.scaling, "task": part.task},
        )
    ]


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
    """Do the runs of a search that are not done yet; write ``search.csv``, ``search.md``, ``search.json``.

    Args:
        experiments: Of `grid` or `plan`.
        out: The folder of the study; the runs of the search are in a folder within.
        workers: As for `refocal.experiments.tabular.run`.
        tell: Called with each file.

    Raises:
        ValueError: If the folder has a log whose runs are not kept, which the report would replace.
        SweepError: After the report, if runs failed.
    """
    if _only_log(Path(out)):
        raise ValueError(
            f"out must be another folder: the runs of {Path(out) / LOG} are not kept, its rows would be lost"
        )
    with needs("the tabular study", "torch"):
        from refocal.experiments.tabular.training import run_config

    do = functools.partial(run_config, data=data_folder(experiments))
    configs = configs_of(experiments)
    keys = [run_key(config) for config in configs]
    folder = Path(out) / FOLDER
    return carry_out(configs, do, folder, lambda: report(out, keys), workers=workers, tell=tell)


def report(out: str | os.PathLike[str], keys: Sequence[str] = ()) -> list[Path]:
    """Write the log and the summary of the searches of a folder, and scan the bins of the study itself.

    Where the runs of a search are not kept, its rows are those of the log that is there. All runs of a report
    are trained and measured alike, but for what is searched; ``search.md`` names those that are not.

    Args:
        out: The folder of the study.
        keys: Runs that decide what the others must be like; by default most runs do.

    Raises:
        FileNotFoundError: If there is no run of a search that can be judged.
    """
    rows, alike, told = _searched(out, keys)
    scan, of_study = _alike(_study_runs(out), keys, like=alike)
    study = _rows(STUDY, scan) or [row for row in rows if row[0] == STUDY]
    rows = [row for row in rows if row[0] == SEARCH]
    told = told | {"left_out": [*told["left_out"], *(f"{others} of the study" for others in of_study)]}
    grid = [(fraction, decay) for fraction in FRACTIONS for decay in DECAYS]
    text = search_text(found_in(rows), found_in(study), grid, told["made"], told["left_out"])
    files = {LOG: csv_bytes(HEADER, [*rows, *study]), "search.md": text.encode(), ABOUT: json_bytes(told)}
    return write_outputs(out, files)


def _searched(
    out: str | os.PathLike[str], keys: Sequence[str]
) -> tuple[list[list[str]], list[Run], dict[str, Any]]:
    """Return the rows of a search, its runs, if they are kept, and what is said of them."""
    folder = Path(out)
    if _only_log(folder):
        return read_log(folder / LOG), [], json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    every = read_runs(folder / FOLDER)
    if not every:
        raise NothingFinished(f"no run of a search is finished in {out}")
    runs = [run for run in every if not run.result["partial"]]
    partial = sorted({run.config["dataset"] for run in every if run.result["partial"]})
    if not runs:
        raise NothingFinished(f"no run of a search can be judged: incomplete copies of {', '.join(partial)}")
    alike, others = _alike(runs, keys)
    left_out = [f"{told} of the search" for told in others]
    left_out += [f"incomplete copies of {', '.join(partial)}"] if partial else []
    return _rows(SEARCH, alike), alike, {"made": origin_text(alike), "left_out": left_out}


def _only_log(folder: Path) -> bool:
    """Return whether a folder has the log of a search, and none of its runs."""
    return (folder / LOG).exists() and not any((folder / FOLDER / "runs").glob("*.json"))


def _study_runs(out: str | os.PathLike[str]) -> list[Run]:
    """Return the runs of the study itself that the bins are scanned of."""
    try:
        runs = [run for run in read_runs(out) if "objectives" in run.config and not run.result["partial"]]
    except FileNotFoundError:
        return []
    # The runs of before have one number of bins.
    return [run for run in runs if not isinstance(run.config["n_bins"], int)]


def _alike(runs: Sequence[Run], keys: Sequence[str], like: Sequence[Run] = ()) -> tuple[list[Run], list[str]]:
    """Return the runs that can be compared, and what is said of the others.

    Those are trained and measured alike, but for what is searched, and of one file for each data set.

    Args:
        runs: To choose from.
        keys: Of runs that the others must be like; where none of them is among the runs, most runs decide.
        like: Runs that all must be trained like, with the same files; numbers of bins may differ.
    """
    trained = [run for run in runs if not like or _trained(run) == _trained(like[0])]
    kept = _agreed(trained, keys, lambda run: run_key(_setting(run)))
    told = []
    if others := [run for run in runs if run not in kept]:
        chosen = _setting((kept or like)[0])
        names = {n for run in others for n, value in _setting(run).items() if value != chosen.get(n)}
        told.append(f"{_runs(others)} with different {', '.join(sorted(names))}")
    files: dict[tuple[str, str], tuple[Any, ...]] = {_data(run): _file(run) for run in like}
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in kept:
        groups.setdefault(_data(run), []).append(run)
    for data, some in groups.items():
        files.setdefault(data, _file(_agreed(some, keys, _file)[0]))
    if others := [run for run in kept if _file(run) != files[_data(run)]]:
        names = {run.config["dataset"] for run in others}
        told.append(f"{_runs(others)} with another file or version of {', '.join(sorted(names))}")
    return [run for run in kept if _file(run) == files[_data(run)]], told


def _data(run: Run) -> tuple[str, str]:
    return run.config["dataset"], _version(run)


def _version(run: Run) -> str:
    """Return the task of a run, or that it is of a version that the paper's row was taken for before."""
    of = Experiment.from_config(run.config)
    now = of.config()
    return of.task if all(run.config.get(mark) == now.get(mark) for mark in MARKS) else EARLIER


def _runs(runs: Sequence[Run]) -> str:
    return "1 run" if len(runs) == 1 else f"{len(runs)} runs"


def _agreed(runs: Sequence[Run], keys: Sequence[str], value: Callable[[Run], Hashable]) -> list[Run]:
    """Return the runs with the most common value; those of keys outvote all others."""
    votes: Counter[Hashable] = Counter()
    for run in runs:
        votes[value(run)] += 1 + len(runs) * (run.key in keys)
    chosen = max(votes, key=lambda v: votes[v], default=None)
    return [run for run in runs if value(run) == chosen]


def _setting(run: Run) -> dict[str, Any]:
    """Return what is neither searched nor differs by data set, model and trial."""
    own = ("dataset", "model", "trials", "train_fraction", "scaling", "recipe", *FILE)
    recipe = {name: value for name, value in run.config["recipe"].items() if name != "weight_decay"}
    return {name: value for name, value in run.config.items() if name not in own} | recipe


def _trained(run: Run) -> dict[str, Any]:
    return _setting(run) | {"n_bins": None}


def _file(run: Run) -> tuple[Any, ...]:
    return run.config.get("sha256"), _version(run)


def _by_config(runs: Iterable[Run]) -> list[list[Run]]:
    groups: dict[Config, list[Run]] = {}
    for run in runs:
        groups.setdefault(_config(run), []).append(run)
    return [groups[key] for key in sorted(groups)]


def _config(run: Run) -> Config:
    of = Experiment.from_config(run.config)
    return Config(of.train_fraction or 0.0, of.recipe.weight_decay, of.scaling, _version(run))


def _rows(name: str, runs: Sequence[Run]) -> list[list[str]]:
    """Return the rows of the log of some runs: every number of bins, and errors, by configuration."""
    result = []
    for some in _by_config(runs):
        gathered = gather(some)
        datasets = list(dict.fromkeys(dataset for dataset, _ in gathered))
        trials = {key: entry["made"][0] for key, entry in gathered.items()}
        for n_bins in (*SCANNED, None):
            metric = "error" if n_bins is None else "ece"
            tables = [table_of(gathered, model, metric, n_bins=n_bins or 0, bold=False) for model in MODELS]
            cells = [cell for table in tables for cell in judge(table, datasets)]
            result += log_rows(name, _config(some[0]), n_bins, cells, trials)
    return result
