"""A tiny image data set, and a training on it that takes a moment."""

import dataclasses

import numpy as np
import pytest

from refocal.experiments.images import experiments_of, study
from refocal.experiments.sweeps import Workers, read_runs

SIZE = 8


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
