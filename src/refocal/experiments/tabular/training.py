"""Train the models of one tabular experiment and measure them on the test part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from refocal import Focal, TemperatureScaling, classwise_ece, ece, error_rate, nll
from refocal.experiments.data import Dataset, find
from refocal.experiments.files import sha256_of
from refocal.experiments.sweeps.devices import torch_threads
from refocal.experiments.tabular.batched import Models, Trial, train
from refocal.experiments.tabular.study import BINNED, METHODS, METRICS, Experiment
from refocal.objectives import Objective, log_posterior_of


def run_config(
    config: Mapping[str, Any], data: str | None = None
) -> dict[str, Any] | tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Do one run of a sweep; the calibration errors of several numbers of bins are its arrays.

    Raises:
        ValueError: If the data are not those that the config was made for.
    """
    experiment = experiment_of(config, data)
    result = run_experiment(experiment)
    if isinstance(experiment.n_bins, int):
        return result
    return result, {name: np.array(result["metrics"].pop(name), np.float32) for name in BINNED}


def experiment_of(config: Mapping[str, Any], data: str | None = None) -> Experiment:
    """Return the experiment of the config of a run.

    Raises:
        ValueError: If the data are not those that the config was made for.
    """
    experiment = Experiment.from_config(config, data)
    path = find(experiment.file, data)
    if path is not None and config.get("sha256") not in (None, sha256_of(path)):
        raise ValueError(f"{path} is not the file that this run is for: its checksum differs")
    return experiment


def run_experiment(experiment: Experiment) -> dict[str, Any]:
    """Train and measure.

    Returns:
        ``metrics[metric][trial][objective][method]`` as nested lists, with the names of each axis; the
        calibration errors have an axis more where ``n_bins`` are several. A temperature that cannot be
        fitted (no error on the rows it is fitted on) gives NaN.
    """
    experiment, data = experiment.load()
    with torch_threads(1):  # the models are small, and the numbers must not depend on the machine
        return _measured(experiment, data)


class Trained(NamedTuple):
    """What was trained of an experiment, on its test rows."""

    n_train: int
    n_features: int
    logits: tuple[np.ndarray[Any, Any], ...]
    """Of each trial, (objectives, rows, classes)."""
    labels: tuple[np.ndarray[Any, Any], ...]
    """Of each trial."""


def train_experiment(experiment: Experiment, data: Dataset) -> Trained:
    """Train every model of an experiment that was `load`ed, with its data."""
    n_given = None
    x, y = torch.from_numpy(data.X.astype(np.float32)), torch.from_numpy(data.y)
    if data.X_test is not None and data.y_test is not None:
        x = torch.cat([x, torch.from_numpy(data.X_test.astype(np.float32))])
        y = torch.cat([y, torch.from_numpy(data.y_test)])
        n_given = len(data.X)
    trials, tests = zip(*(split(experiment, x, trial, n_given) for trial in experiment.trials), strict=True)
    models = train(x, y, trials, experiment.objectives, data.n_classes, experiment.model, experiment.recipe)
    logits = []
    for t, (trial, test) in enumerate(zip(trials, tests, strict=True)):
        one = Models(tuple((w[:, t : t + 1], b[:, t : t + 1]) for w, b in models.layers))
        inputs = (x[test] - trial.center) / trial.scale
        logits.append(one.logits(inputs.unsqueeze(0))[0].double().numpy())
    labels = tuple(y[test].numpy() for test in tests)
    return Trained(len(trials[0].rows), x.shape[1], tuple(logits), labels)


def _measured(experiment: Experiment, data: Dataset) -> dict[str, Any]:
    trained = train_experiment(experiment, data)
    bins = (experiment.n_bins,) if isinstance(experiment.n_bins, int) else experiment.n_bins
    shape = (len(experiment.trials), len(experiment.objectives), len(METHODS), len(METRICS), len(bins))
    metrics = np.full(shape, np.nan)
    for t, (logits, labels) in enumerate(zip(trained.logits, trained.labels, strict=True)):
        for g, objective in enumerate(experiment.objectives):
            metrics[t, g] = measure(logits[g], labels, objective, bins)
    several = () if isinstance(experiment.n_bins, int) else BINNED
    return {
        "n_train": trained.n_train,
        "n_test": len(trained.labels[0]),
        "n_features": trained.n_features,
        "n_classes": data.n_classes,
        "partial": data.partial,
        "methods": list(METHODS),
        "metrics": {
            name: (metrics[..., i, :] if name in several else metrics[..., i, 0]).tolist()
            for i, name in enumerate(METRICS)
        },
    }


def split(experiment: Experiment, x: Tensor, number: int, n_given: int | None) -> tuple[Trial, Tensor]:
    """Return the training part of a trial, and its test rows.

    Args:
        experiment: Its seed, scaling and part for training.
        x: All rows.
        number: Of the trial.
        n_given: How many of the first rows are the training part; None: drawn at random.
    """
    split_seed, model_seed = np.random.SeedSequence([experiment.seed, number]).generate_state(2).tolist()
    if n_given is not None:
        order = torch.arange(len(x))
        n_train = n_given
    else:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(split_seed))
        n_train = min(len(x) - 1, max(1, round((experiment.train_fraction or 0.5) * len(x))))
    rows, test = order[:n_train], order[n_train:]
    center, scale = _scaling(x if experiment.scaling == "whole" else x[rows], experiment.scaling)
    return Trial(rows, center, scale, model_seed), test


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


def measure(
    logits: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], objective: Objective, bins: Sequence[int]
) -> np.ndarray[Any, Any]:
    """Return the metrics (methods, metrics, numbers of bins) of one model on the test part."""
    gamma = objective.plain_gamma
    scalings = {"ts_nll": TemperatureScaling(objective="nll")}
    if gamma is not None:
        scalings["ts_fl"] = TemperatureScaling(objective="focal", gamma=gamma)
    fitted = {name: cross_fitted(logits, labels, scaling) for name, scaling in scalings.items()}
    softmax = Focal(0.0)
    plan = {
        "raw": (softmax, logits),
        "psi": (objective, logits),
        "ts_nll": (softmax, fitted["ts_nll"]),
        "ts_fl": (softmax, fitted.get("ts_fl")),
        "psi_ts_fl": (objective, fitted.get("ts_fl")),
    }
    result = np.full((len(METHODS), len(METRICS), len(bins)), np.nan)
    for i, method in enumerate(METHODS):
        link, z = plan[method]
        if z is not None:
            log_probs = log_posterior_of(link, z)
            probs = np.exp(log_probs)
            found = {
                "ece": [ece(probs, labels, n) for n in bins],
                "classwise_ece": [classwise_ece(probs, labels, n) for n in bins],
                "nll": nll(
                    log_probs, labels, from_logits=True
                ),  # in log space: a probability could round to 0
                "error": error_rate(probs, labels),
            }
            for j, name in enumerate(METRICS):
                result[i, j] = found[name]
    return result


def cross_fitted(
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
