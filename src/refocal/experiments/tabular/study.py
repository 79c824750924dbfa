"""The tabular study: what is trained on which data, from the experiments to the report.

An experiment is one data set and one model with all its objectives and some of its trials, trained together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refocal import Focal, objective_from_dict
from refocal.experiments.data import REGISTRY, Dataset, find, load, names, source
from refocal.experiments.files import sha256_of
from refocal.experiments.sweeps import Workers, carry_out, run_key
from refocal.experiments.tabular.tasks import MARKS, PAPER_TASKS, Task
from refocal.extras import needs
from refocal.objectives import Objective

MODELS = ("linear", "mlp")
SCALINGS = ("auto", "whole", "standard", "minmax", "pixels", "none")
METHODS = ("raw", "psi", "ts_nll", "ts_fl", "psi_ts_fl")
METRICS = ("ece", "classwise_ece", "nll", "error")
BINNED = ("ece", "classwise_ece")
BINS = (15, 10)
"""Of the tables: what the published numbers fit, and what the paper's text says (docs/reproduce.md)."""
SCANNED = tuple(range(8, 26))
"""Numbers of bins that a study measures in any case, so that another one needs no new training."""
WORK_PER_RUN = 2e12
"""Multiplications after which the trials of an experiment are divided into several runs."""


@dataclass(frozen=True)
class Recipe:
    """How to train. The defaults are the paper's, except for ``weight_decay``.

    The paper says 0.001, but its tables are those of training without (docs/reproduce.md).
    """

    hidden: int = 64
    epochs: int = 50
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        least_values = {"hidden": 1, "epochs": 0, "batch_size": 1, "momentum": 0, "weight_decay": 0}
        for name, least in least_values.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}")
        if not self.lr > 0:
            raise ValueError(f"lr must be > 0, got {self.lr}")


@dataclass(frozen=True)
class Experiment:
    """One data set and one model, trained with several objectives in several trials.

    The defaults are the protocol that agrees with the published tables; docs/reproduce.md says how it was
    found.

    Attributes:
        dataset: A name of the registry, or the path of an ``.npz`` file with ``X`` and ``y``.
        model: "linear" or "mlp".
        objectives: What is minimised. Any `refocal.objectives.Objective`; `from_config` needs one of refocal.
        trials: Their numbers; each is a split, an order and initial weights of its own.
        task: "paper" for the published version of the problem, "original" for the file as it is.
        train_fraction: Of the rows; the others are for testing. None: the test rows that the data come
            with, and half of the rows where they have none.
        scaling: Of the features: "standard" (mean 0, variance 1) or "minmax" (to [0, 1]) by the training
            part; "whole", as "standard", but by all rows, those for testing too: the published tables fit it;
            "pixels" from 0..255 to [0, 1], or "none". "auto": "pixels" for images, "whole" for
            tables of the paper, "standard" for others.
        recipe: How to train.
        n_bins: Of the calibration errors: one number, or several that are all measured.
        seed: Of all trials.
        data: A folder of ``.npz`` files.

    Example:
        >>> Experiment("banana", objectives=(Focal(2.0),), trials=(0, 1)).config()["trials"]
        [0, 1]
    """

    dataset: str
    model: str = "linear"
    objectives: tuple[Objective, ...] = tuple(Focal(float(g)) for g in range(4))
    trials: tuple[int, ...] = tuple(range(10))
    task: str = "paper"
    train_fraction: float | None = None
    scaling: str = "auto"
    recipe: Recipe = Recipe()
    n_bins: int | tuple[int, ...] = BINS[0]
    seed: int = 0
    data: str | None = None

    def __post_init__(self) -> None:
        with contextlib.suppress(ValueError):  # a file, or a name of the user's own
            object.__setattr__(self, "dataset", source(self.dataset).name)
        _check_choice("model", self.model, MODELS)
        _check_choice("task", self.task, ("paper", "original"))
        _check_choice("scaling", self.scaling, SCALINGS)
        if not self.objectives or not self.trials:
            raise ValueError("objectives and trials must not be empty")
        if self.train_fraction is not None and not 0 < self.train_fraction < 1:
            raise ValueError(f"train_fraction must be between 0 and 1, got {self.train_fraction}")
        if len(set(self.trials)) < len(self.trials) or min(self.trials) < 0:
            raise ValueError(f"trials must be different numbers >= 0, got {self.trials}")
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")
        check_bins((self.n_bins,) if isinstance(self.n_bins, int) else self.n_bins)

    def config(self) -> dict[str, Any]:
        """Return all that decides the numbers, as JSON."""
        config = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del config["data"]
        config["objectives"] = [objective.to_dict() for objective in self.objectives]
        config["trials"] = list(self.trials)
        config["n_bins"] = self.n_bins if isinstance(self.n_bins, int) else list(self.n_bins)
        config["recipe"] = dataclasses.asdict(self.recipe)
        return config | self._task.mark()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], data: str | None = None) -> Experiment:
        """Return the experiment of a `config`."""
        values = {name: value for name, value in config.items() if name not in ("sha256", *MARKS)}
        paper = PAPER_TASKS.get(config["dataset"])
        if paper and paper.missing and not config.get("complete"):
            values["task"] = "original"  # a run from when the paper's version was not known
        values["objectives"] = tuple(objective_from_dict(d) for d in values["objectives"])
        values["trials"] = tuple(values["trials"])
        if not isinstance(values["n_bins"], int):
            values["n_bins"] = tuple(values["n_bins"])
        values["recipe"] = Recipe(**values["recipe"])
        return cls(**values, data=data)

    @property
    def _task(self) -> Task:
        itself = Task(self.dataset)
        return PAPER_TASKS.get(self.dataset, itself) if self.task == "paper" else itself

    @property
    def file(self) -> str:
        """The name or path of the data."""
        return self._task.file

    def load(self) -> tuple[Experiment, Dataset]:
        """Return the experiment without "auto" and None, and the data of its task, checked and flat."""
        found = load(self.file, self.data)
        x, y, x_test, y_test = found.X, found.y, found.X_test, found.y_test
        scaling = self.scaling
        if scaling == "auto":
            own = self.dataset not in REGISTRY  # whose test rows stay unseen
            scaling = "pixels" if x.ndim > 2 else "standard" if own else "whole"
        fraction = self.train_fraction
        if x_test is None or y_test is None:
            fraction = fraction or 0.5
        elif fraction is not None:
            x, y = np.concatenate([x, x_test]), np.concatenate([y, y_test])
            x_test = y_test = None
        task = self._task
        x, y = task.complete(x[: task.rows], y[: task.rows])
        n_classes = found.n_classes
        if task.positive:
            y, n_classes = np.isin(y, task.positive).astype(np.int64), 2
            y_test = None if y_test is None else np.isin(y_test, task.positive).astype(np.int64)
        data = Dataset(
            self.dataset,
            x.reshape(len(x), -1),
            y,
            n_classes,
            None if x_test is None else x_test.reshape(len(x_test), -1),
            y_test,
            found.partial,
        )
        return dataclasses.replace(self, scaling=scaling, train_fraction=fraction), data

    def run(self) -> dict[str, Any]:
        """Train and measure, see `refocal.experiments.tabular.training.run_experiment`."""
        with needs("the tabular study", "torch"):
            from refocal.experiments.tabular.training import run_experiment

        return run_experiment(self)


def experiments_of(
    datasets: Sequence[str] | None = None,
    *,
    models: Sequence[str] = MODELS,
    gammas: Sequence[float] = (0.0, 1.0, 2.0, 3.0),
    trials: int = 10,
    epochs: int = 50,
    weight_decay: float = 0.0,
    bins: Sequence[int] = (),
    **options: Any,
) -> list[Experiment]:
    """Return an experiment for each model and data set.

    Args:
        datasets: Names or ``.npz`` files; all of the paper's that are in the data folder by default.
        models: "linear", "mlp".
        gammas: Of the focal losses; 0 is cross entropy.
        trials: How many.
        epochs: Of the training.
        weight_decay: Of the training.
        bins: Numbers of bins to measure beside `SCANNED`.
        **options: More fields of `Experiment`.

    Raises:
        ValueError: If a value is not allowed, or no data set is there.
    """
    if trials < 1 or epochs < 1:
        raise ValueError(f"trials and epochs must be at least 1, got {trials} and {epochs}")
    objectives = tuple(Focal(float(gamma)) for gamma in gammas)
    recipe = Recipe(epochs=epochs, weight_decay=weight_decay)
    n_bins = tuple(sorted({*SCANNED, *bins}))
    if datasets is None:
        known = [name for name in names("tabular") if REGISTRY[name].paper is not None]
        task, data = options.get("task", "paper"), options.get("data")
        datasets = [n for n in known if find(Experiment(n, task=task).file, data) is not None]
        if not datasets:
            raise ValueError("no data set is here: give --data or REFOCAL_DATA, or `refocal data fetch NAME`")
    return [
        Experiment(
            dataset,
            model,
            objectives=objectives,
            trials=tuple(range(trials)),
            recipe=recipe,
            n_bins=n_bins,
            **options,
        )
        for model in models
        for dataset in datasets
    ]


def configs_of(experiments: Sequence[Experiment]) -> list[dict[str, Any]]:
    """Return the configs of a sweep; the trials of a large experiment are divided into several runs.

    The data of every experiment are loaded and checked here, before anything is trained.
    """
    configs = []
    for experiment in experiments:
        experiment, data = experiment.load()
        path = find(experiment.file, experiment.data)
        checksum = sha256_of(path) if path else None  # other data are another run
        width = data.n_classes if experiment.model == "linear" else experiment.recipe.hidden
        work = (
            6.0
            * len(data.X)
            * data.X.shape[1]
            * width
            * experiment.recipe.epochs
            * len(experiment.objectives)
        )
        step = max(1, min(len(experiment.trials), int(WORK_PER_RUN / work)))
        for i in range(0, len(experiment.trials), step):
            part = dataclasses.replace(experiment, trials=experiment.trials[i : i + step])
            configs.append({**part.config(), "sha256": checksum})
    return configs


# What trains and what draws is imported when it is asked for: tables need no torch, a training no matplotlib.


def run(
    experiments: Sequence[Experiment],
    out: str | os.PathLike[str],
    *,
    bins: Sequence[int] | None = None,
    workers: Workers | None = None,
    tell: Callable[[Path], None] | None = None,
) -> list[Path]:
    """Do the runs that are not done yet, report on those of these experiments, and return the files.

    Args:
        experiments: What to train; their ``data`` is one folder.
        out: The folder of the results.
        bins: Of the tables, as for `report`.
        workers: Who does the runs; None: this process, or those of torchrun, one run after the other.
        tell: Called with each file of the report.

    Raises:
        ValueError: Before anything starts, if an option or the data cannot be used.
        SweepError: After the report, if runs failed.
    """
    with needs("the tabular study", "torch"):
        from refocal.experiments.tabular.training import run_config

    if bins is not None:
        check_bins(bins)
    do = functools.partial(run_config, data=data_folder(experiments))
    configs = configs_of(experiments)
    keys = [run_key(config) for config in configs]
    return carry_out(configs, do, out, lambda: report(out, keys, bins=bins), workers=workers, tell=tell)


def check_bins(bins: Sequence[int]) -> None:
    """Check numbers of bins.

    Raises:
        ValueError: If there is none, or one is too small or there twice.
    """
    if not bins or min(bins) < 1 or len(set(bins)) < len(bins):
        raise ValueError(f"bins must be different numbers >= 1, got {', '.join(map(str, bins)) or 'none'}")


def data_folder(experiments: Sequence[Experiment]) -> str | None:
    """Return the absolute path of the data of all experiments, for workers; None for no folder.

    A worker on another machine, or one that was there before, has another environment and folder.

    Raises:
        ValueError: If experiments have different folders.
    """
    folders = {experiment.data for experiment in experiments}
    if len(folders) > 1:
        raise ValueError(f"data must be one folder for all experiments, got {len(folders)}")
    data = next(iter(folders), None) or os.environ.get("REFOCAL_DATA")
    return None if data is None else os.path.abspath(data)


def report(
    out: str | os.PathLike[str], keys: Sequence[str] | None = None, *, bins: Sequence[int] | None = None
) -> list[Path]:
    """Make the tables and figures of finished runs of a folder, without training.

    Files: ``tables.md``, ``tables.csv``, ``summary.json``, and for each model the tables in LaTeX and the
    box plots (PNG, PDF).

    Args:
        out: The folder that `run` wrote to.
        keys: Only these runs; by default all, which must differ in data sets, models and trials only.
        bins: Numbers of bins of the calibration errors: the first is that of the figures, the others stand
            beside it. None: 15 and 10, as far as the runs were measured with them.

    Raises:
        FileNotFoundError: If no such run is finished in the folder.
        ValueError: If no run was measured with one of these numbers of bins, or the runs do not belong
            into one table.
    """
    with needs("a report", "scipy"):
        from refocal.experiments.tabular.outputs import write_report

    return write_report(out, keys, bins)


def summary_text(out: str | os.PathLike[str]) -> str:
    """Return the judgement of the last `report` of a folder as a short table for the terminal."""
    with needs("a report", "scipy"):
        from refocal.experiments.tabular.outputs import short_summary

    return short_summary(out)


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
