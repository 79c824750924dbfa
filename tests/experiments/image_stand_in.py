"""A tiny image data set, and a training on it that takes a moment."""

import dataclasses

import numpy as np
import pytest

import refocal
from refocal.experiments.images import experiments_of, study
from refocal.experiments.sweeps import Workers, read_runs

SIZE = 8
K = 4
VALIDATION = 500


def save_tiny(path):
    """Save images whose class is their colour, with noise, and return the path."""
    rng = np.random.default_rng(0)

    def draw(n):
        y = np.arange(n) % 4
        x = rng.integers(0, 150, (n, SIZE, SIZE, 3)) + 100 * np.eye(4, 3, dtype=int)[y][:, None, None]
        return x.astype(np.uint8), y

    (x, y), (x_test, y_test) = draw(52), draw(20)
    np.savez(path, X_train=x, y_train=y, X_test=x_test, y_test=y_test)
    return path


def experiment_of(path, **changes):
    """One small training: 44 images in batches of 13, so that the last is smaller; learning rate in steps."""
    (one,) = experiments_of(str(path), "resnet8", [2], ["standard"], 1, 4, batch_size=13, validation=0.15)
    return dataclasses.replace(one, **{"milestones": (2, 3)} | changes)


def config_of(path, **changes):
    """The config of one small training."""
    return experiment_of(path, **changes).config()


def swept(experiments, out, **options):
    """Do the runs of experiments in this process, without a report, and return them in order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "report", lambda out: [])  # its figures take seconds
        study.run(experiments, out, **{"workers": Workers(jobs=1)} | options)
    runs = {run.key: run for run in read_runs(out)}
    return [runs[experiment.key] for experiment in experiments]


def image_configs(*arguments, **options):
    return [experiment.config() for experiment in experiments_of(*arguments, **options)]


def minimiser_run(config):
    """The logits of a network that knows the focal minimiser, but is too sharp by 2 without smoothing."""
    rng = np.random.default_rng(config["seed"])
    arrays = {}
    for part, n in (("validation", VALIDATION), ("test", 2000)):
        posterior = rng.dirichlet(np.full(K, 0.4), n) * 0.98 + 0.02 / K
        labels = (rng.random((n, 1)) > posterior.cumsum(1)).sum(1)
        smoothing = config["label_smoothing"]
        learned = (1 - smoothing) * posterior + smoothing / K
        sharp = 1.0 if smoothing else 2.0
        arrays[f"{part}_logits"] = (sharp * refocal.Focal(config["gamma"]).logits(learned)).astype(np.float32)
        arrays[f"{part}_labels"] = labels.astype(np.uint8)
    wrong = arrays["test_logits"].argmax(1) != arrays["test_labels"]
    sizes = {"n_train": 9, "n_validation": VALIDATION, "n_test": 2000}
    return {
        "error": wrong.mean(),
        "seconds_per_epoch": 2.0,
        "machines": [{"device": "cpu", "threads": 1, "compile": False, "processes": 1}],
        **sizes,
    }, arrays


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def plain_ece(probs, labels, bins=10):
    confidence, right = probs.max(1), probs.argmax(1) == labels
    gaps = 0.0
    for j in range(bins):
        inside = (confidence > j / bins) & (confidence <= (j + 1) / bins)
        if inside.any():
            gaps += abs(right[inside].mean() - confidence[inside].mean()) * inside.mean()
    return gaps
