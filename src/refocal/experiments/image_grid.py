"""The configs of the image experiments: which networks are trained, on what, and how."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from refocal.experiments.datasets import source

__all__ = ["MODELS", "PARADIGMS", "VALIDATION", "image_configs", "paper_schedule"]

MODELS = {"resnet8": 8, "resnet20": 20, "resnet44": 44, "resnet110": 110}
"""The networks of the paper and their depth: 6 n + 2 layers with weights."""

PARADIGMS = {"standard": 0.0, "ts_fl": 0.0, "ts_nll": 0.0, "ls": 0.1}
"""The training paradigms of the paper and their label smoothing."""

VALIDATION = 0.1
"""The part of each class's training images that is held out by default; 0 trains on all, as the paper."""


def image_configs(
    dataset: str = "cifar10-s",
    model: str = "resnet8",
    gammas: Iterable[float] = (0, 1, 2, 3),
    paradigms: Iterable[str] = ("standard", "ls"),
    trials: int | Iterable[int] = 10,
    epochs: int | None = None,
    *,
    batch_size: int = 128,
    lr: float = 0.1,
    validation: float = VALIDATION,
    precision: str = "float32",
) -> list[dict[str, Any]]:
    """Return one config a training, trial by trial, so that a sweep that is cut short is balanced.

    The schedule is the paper's: 200 epochs with the learning rate divided by 10 after 80 and 150; for SVHN 50
    epochs, 25 and 40. With another number of epochs the two steps move in proportion. Within a trial every
    run starts from the same weights and sees the same images in the same order.

    Args:
        dataset: A name of an image data set, or a ``.npz`` file.
        model: "resnet8", "resnet20", "resnet44" or "resnet110".
        gammas: Of the focal loss; 0 is cross entropy.
        paradigms: "standard", "ls" (label smoothing 0.1), "ts_fl", "ts_nll" (both train as "standard").
        trials: How many, or which.
        epochs: Passes over the training images; by default the paper's number.
        batch_size: Images a step, over all processes of a run.
        lr: The learning rate at the start.
        validation: The part of each class's training images that is held out for the temperature. With 0
            there is none, and the temperature is cross-fitted on halves of the test set.
        precision: "float32", or "bfloat16" for mixed precision.

    Raises:
        ValueError: If a value is not one of these.

    Example:
        >>> configs = image_configs("cifar10-s", "resnet8", [0, 2], ["standard", "ls"], trials=10, epochs=40)
        >>> len(configs), configs[0]["milestones"]
        (40, [16, 30])
    """
    with contextlib.suppress(ValueError):  # a file, or a name of the user's own
        dataset = source(dataset).name
    full, steps = paper_schedule(dataset)
    epochs = full if epochs is None else epochs
    _require(model in MODELS, "model", f"one of {', '.join(MODELS)}", model)
    _require(epochs >= 1, "epochs", ">= 1", epochs)
    seeds = list(range(trials) if isinstance(trials, int) else trials)
    _require(len(seeds) >= 1, "trials", ">= 1", trials)
    _require(batch_size >= 2, "batch_size", ">= 2", batch_size)
    _require(math.isfinite(lr) and lr > 0, "lr", "finite and > 0", lr)
    _require(0 <= validation < 1, "validation", "in [0, 1)", validation)
    _require(precision in ("float32", "bfloat16"), "precision", "'float32' or 'bfloat16'", precision)
    paradigms = list(paradigms)
    for paradigm in paradigms:
        _require(paradigm in PARADIGMS, "paradigm", f"one of {', '.join(PARADIGMS)}", paradigm)
    gammas = [float(gamma) for gamma in gammas]
    for gamma in gammas:
        _require(math.isfinite(gamma) and gamma >= 0, "gamma", "finite and >= 0", gamma)
    common = {
        "experiment": "images",
        "dataset": dataset,
        "model": model,
        "epochs": epochs,
        "milestones": [round(step * epochs / full) for step in steps],
        "batch_size": batch_size,
        "lr": lr,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "validation": validation,
        "precision": precision,
    }
    trainings = list(dict.fromkeys("ls" if PARADIGMS[paradigm] else "standard" for paradigm in paradigms))
    return [
        common
        | {"gamma": gamma, "paradigm": paradigm, "label_smoothing": PARADIGMS[paradigm], "seed": int(trial)}
        for trial in seeds
        for gamma in gammas
        for paradigm in trainings
    ]


def paper_schedule(dataset: str) -> tuple[int, tuple[int, int]]:
    """Return the paper's number of epochs, and those after which the learning rate is divided by 10."""
    return (50, (25, 40)) if Path(dataset).stem.lower().startswith("svhn") else (200, (80, 150))


def _require(good: bool, name: str, rule: str, value: object) -> None:
    if not good:
        raise ValueError(f"{name} must be {rule}, got {value!r}")
