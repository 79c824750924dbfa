"""Data with a known posterior, and what the two engines are called."""

import importlib

import numpy as np
import pytest

ENGINES = {"xgboost": "FocalXGBClassifier", "lightgbm": "FocalLGBMClassifier"}


def classifier(engine, **options):
    """Return a focal classifier of an engine on one thread, or skip the test where the engine is absent."""
    pytest.importorskip(engine)
    return getattr(importlib.import_module("refocal.boosting"), ENGINES[engine])(n_jobs=1, **options)


def log_loss(engine, **options):
    """Return the engine's own classifier on one thread."""
    if engine == "xgboost":
        return pytest.importorskip(engine).XGBClassifier(n_jobs=1, **options)
    return pytest.importorskip(engine).LGBMClassifier(n_jobs=1, verbosity=-1, **options)


def draw(rng, posterior):
    """Return a label for each row of a posterior."""
    return (rng.random((len(posterior), 1)) > posterior.cumsum(axis=1)).sum(axis=1)


def binary(n, seed, intercept=-6.35):
    """Return features, labels and posterior of two classes; about 1 % are positive."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 20)).astype(np.float32)
    z = intercept + 1.2 * X[:, 0] + 0.8 * X[:, 1] * X[:, 2] + 0.7 * np.abs(X[:, 3]) + 0.5 * X[:, 4]
    p = 1 / (1 + np.exp(-z.astype(np.float64)))
    posterior = np.stack([1 - p, p], axis=1)
    return X, draw(rng, posterior), posterior


def five_classes(n, seed):
    """Return features, labels and posterior of five classes, whose log-odds are no sum over the features."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 20)).astype(np.float32)
    turn = X[:, :1] + 2 * np.pi * np.arange(5) / 5
    z = np.where(X[:, 1:2] > 0, 4.0, 2.0) * np.cos(turn, dtype=np.float64) + X[:, 2:3] * np.sin(2 * turn)
    z -= z.max(axis=1, keepdims=True)
    posterior = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return X, draw(rng, posterior), posterior


def kl(truth, probs):
    """Return the mean Kullback-Leibler divergence of rows from the truth."""
    probs = np.asarray(probs, dtype=np.float64)
    return float((truth * (np.log(truth) - np.log(probs))).sum(axis=1).mean())
