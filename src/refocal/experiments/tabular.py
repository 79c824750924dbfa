"""The paper's tabular study: linear and one-hidden-layer models on 30 data sets, focal loss and psi.

One run is one data set and one model with all its objectives and some of its trials, trained together.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refocal import Focal, TemperatureScaling, classwise_ece, ece, error_rate, nll, objective_from_dict
from refocal.experiments._files import sha256_of
from refocal.experiments.batched import MODELS, Models, Recipe, Trial, gamma_of, train
from refocal.experiments.datasets import Dataset, find, load, source
from refocal.objectives import Objective

SCALINGS = ("auto", "standard", "minmax", "pixels", "none")
METHODS = ("raw", "psi", "ts_nll", "ts_fl", "psi_ts_fl")
METRICS = ("ece", "classwise_ece", "nll", "err")
WORK_A_RUN = 2e12
"""Multiplications after which the trials of an experiment are divided into several runs."""


@dataclass(frozen=True)
class Task:
    """Which problem of a file the paper's row is, as far as its error tables tell (docs/reproduce.md)."""

    file: str
    positive: tuple[int, ...] = ()
    """Binary: these classes against the others."""
    rows: int | None = None
    """The first rows only."""


PAPER_TASKS = {
    "usps": Task("usps", positive=(0,)),
    "coil20": Task("coil20", positive=(0,)),
    "isolet": Task("isolet", positive=(0,), rows=1560),
    "image": Task("image", positive=(3, 4, 6)),
    "waveform": Task("waveform-21", positive=(2,)),
    "splice": Task("splice-binary"),
}

PUBLISHED = Recipe(weight_decay=0.0)
"""The paper says 0.001, but its tables are those of training without (docs/reproduce.md)."""


@dataclass(frozen=True)
class Experiment:
    """One data set and one model, trained with several objectives in several trials.

    The defaults are the protocol that agrees with the published tables; docs/reproduce.md says how it was
    found. Where it differs from the paper's text: ``weight_decay`` is 0, not 0.001.

    Attributes:
        dataset: A name of the registry, or the path of an ``.npz`` file with ``X`` and ``y``.
        model: "linear" or "mlp".
        objectives: What is minimised. Any `refocal.objectives.Objective`; `from_config` needs one of refocal.
        trials: Their numbers; each is a split, an order and initial weights of its own.
        task: "paper" for the published version of the problem, "original" for the file as it is.
        train_fraction: Of the rows; the others are for testing. None: the test rows that the data come
            with, and half of the rows where they have none.
        scaling: Of the features, by the training part: "standard", "minmax" to [0, 1], "pixels" from 0..255
            to [0, 1], or "none". "auto": "pixels" for images, "standard" for tables.
        recipe: How to train.
        n_bins: Of the calibration errors.
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
    recipe: Recipe = PUBLISHED
    n_bins: int = 10
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
        if self.seed < 0 or self.n_bins < 1:
            raise ValueError(f"seed must be >= 0 and n_bins >= 1, got {self.seed} and {self.n_bins}")

    def config(self) -> dict[str, Any]:
        """Return all that decides the numbers, as JSON."""
        config = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del config["data"]
        config["objectives"] = [objective.to_dict() for objective in self.objectives]
        config["trials"] = list(self.trials)
        config["recipe"] = dataclasses.asdict(self.recipe)
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any], data: str | None = None) -> Experiment:
        """Return the experiment of a `config`."""
        values = {name: value for name, value in config.items() if name != "sha256"}
        values["objectives"] = tuple(objective_from_dict(d) for d in values["objectives"])
        values["trials"] = tuple(values["trials"])
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
            scaling = "pixels" if x.ndim > 2 else "standard"
        fraction = self.train_fraction
        if x_test is None or y_test is None:
            fraction = fraction or 0.5
        elif fraction is not None:
            x, y = np.concatenate([x, x_test]), np.concatenate([y, y_test])
            x_test = y_test = None
        task = self._task
        x, y = x[: task.rows], y[: task.rows]
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
        """Train and measure.

        Returns:
            ``metrics[metric][trial][objective][method]`` as nested lists, with the names of each axis. A
            temperature that cannot be fitted (no error on the rows it is fitted on) gives NaN.
        """
        experiment, data = self.load()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the models are small, and the numbers must not depend on the machine
        try:
            return experiment._run(data)
        finally:
            torch.set_num_threads(threads)

    def _run(self, data: Dataset) -> dict[str, Any]:
        n_given = None
        x, y = torch.from_numpy(data.X.astype(np.float32)), torch.from_numpy(data.y)
        if data.X_test is not None and data.y_test is not None:
            x = torch.cat([x, torch.from_numpy(data.X_test.astype(np.float32))])
            y = torch.cat([y, torch.from_numpy(data.y_test)])
            n_given = len(data.X)
        trials, tests = zip(*(self._split(x, trial, n_given) for trial in self.trials), strict=True)
        models = train(x, y, trials, self.objectives, data.n_classes, self.model, self.recipe)
        metrics = np.full((len(self.trials), len(self.objectives), len(METHODS), len(METRICS)), np.nan)
        for t, (trial, test) in enumerate(zip(trials, tests, strict=True)):
            one = Models(tuple((w[:, t : t + 1], b[:, t : t + 1]) for w, b in models.layers))
            inputs = (x[test] - trial.center) / trial.scale
            logits = one.logits(inputs.unsqueeze(0))[0].double().numpy()
            for g, objective in enumerate(self.objectives):
                metrics[t, g] = _measure(logits[g], y[test].numpy(), objective, self.n_bins)
        return {
            "n_train": len(trials[0].rows),
            "n_test": len(tests[0]),
            "n_features": x.shape[1],
            "n_classes": data.n_classes,
            "partial": data.partial,
            "methods": list(METHODS),
            "metrics": {name: metrics[..., i].tolist() for i, name in enumerate(METRICS)},
        }

    def _split(self, x: Tensor, number: int, n_given: int | None) -> tuple[Trial, Tensor]:
        """Return the training part of a trial, and its test rows.

        Args:
            x: All rows.
            number: Of the trial.
            n_given: How many of the first rows are the training part; None: drawn at random.
        """
        split_seed, model_seed = np.random.SeedSequence([self.seed, number]).generate_state(2).tolist()
        if n_given is not None:
            order = torch.arange(len(x))
            n_train = n_given
        else:
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(split_seed))
            n_train = min(len(x) - 1, max(1, round((self.train_fraction or 0.5) * len(x))))
        rows, test = order[:n_train], order[n_train:]
        center, scale = _scaling(x[rows], self.scaling)
        return Trial(rows, center, scale, model_seed), test


def tabular_configs(experiments: Sequence[Experiment]) -> list[dict[str, Any]]:
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
        step = max(1, min(len(experiment.trials), int(WORK_A_RUN / work)))
        for i in range(0, len(experiment.trials), step):
            part = dataclasses.replace(experiment, trials=experiment.trials[i : i + step])
            configs.append({**part.config(), "sha256": checksum})
    return configs


def run_tabular(config: Mapping[str, Any], data: str | None = None) -> dict[str, Any]:
    """Do one run of a sweep.

    Args:
        config: Of `tabular_configs`.
        data: A folder of ``.npz`` files; ``$REFOCAL_DATA`` by default.

    Raises:
        ValueError: If the data are not those that the config was made for.
    """
    experiment = Experiment.from_config(config, data)
    path = find(experiment.file, data)
    if path is not None and config.get("sha256") not in (None, sha256_of(path)):
        raise ValueError(f"{path} is not the file that this run is for: its checksum differs")
    return experiment.run()


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _scaling(rows: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Return what to subtract and to divide by; constant features are left alone."""
    if kind == "none":
        return torch.zeros_like(rows[0]), torch.ones_like(rows[0])
    if kind == "pixels":
        return torch.zeros_like(rows[0]), torch.full_like(rows[0], 255.0)
    if kind == "minmax":
        center, scale = rows.amin(0), rows.amax(0) - rows.amin(0)
    else:
        center, scale = rows.mean(0), rows.std(0, correction=0)
    return center, torch.where(scale > 0, scale, 1.0)


def _measure(
    logits: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], objective: Any, n_bins: int
) -> np.ndarray[Any, Any]:
    """Return the metrics (methods, metrics) of one model on the test part."""
    gamma = gamma_of(objective)
    by_nll = _cross_fitted(logits, labels, TemperatureScaling(objective="nll"))
    by_focal = (
        None
        if gamma is None
        else _cross_fitted(logits, labels, TemperatureScaling(objective="focal", gamma=gamma))
    )
    probs = {
        "raw": _softmax(logits),
        "psi": objective.posterior(logits),
        "ts_nll": None if by_nll is None else _softmax(by_nll),
        "ts_fl": None if by_focal is None else _softmax(by_focal),
        "psi_ts_fl": None if by_focal is None else objective.posterior(by_focal),
    }
    result = np.full((len(METHODS), len(METRICS)), np.nan)
    for i, method in enumerate(METHODS):
        p = probs[method]
        if p is not None:
            result[i] = (
                ece(p, labels, n_bins),
                classwise_ece(p, labels, n_bins),
                nll(p, labels),
                error_rate(p, labels),
            )
    return result


def _cross_fitted(
    logits: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], scaling: TemperatureScaling
) -> np.ndarray[Any, Any] | None:
    """Return logits scaled by the temperature of the other half; None where one cannot be fitted.

    The paper's protocol has no validation part. So that training stays as it was, each half of the test
    rows is scaled by what the other half says. Halves are in the order of the test rows: drawn at random, or
    that of the file where it has a test part.
    """
    half = len(labels) // 2
    result = np.empty_like(logits)
    for fit, use in ((slice(half), slice(half, None)), (slice(half, None), slice(half))):
        try:
            result[use] = scaling.fit(logits[fit], labels[fit]).transform(logits[use])
        except ValueError:
            return None
    return result


def _softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    probs: np.ndarray[Any, Any] = Focal(0.0).posterior(logits)
    return probs
