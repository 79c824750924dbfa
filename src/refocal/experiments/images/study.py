"""The image study: which networks are trained, on what and how, from the experiments to the report.

An experiment trains one ResNet with one gamma and one paradigm in one trial, then keeps the logits of the
validation part and of the test set. Every table and figure is made from these logits. Temperature scaling
changes no training, so the paradigms TS_FL and TS_NLL share the runs of Standard.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from refocal.experiments.data import source
from refocal.experiments.sweeps import Workers, carry_out, run_key
from refocal.extras import needs

MODELS = {"resnet8": 8, "resnet20": 20, "resnet44": 44, "resnet110": 110}
"""The networks of the paper and their depth: 6 n + 2 layers with weights."""

PARADIGMS = {"standard": 0.0, "ts_fl": 0.0, "ts_nll": 0.0, "ls": 0.1}
"""The training paradigms of the paper and their label smoothing."""

SHORTCUTS = ("plain", "convolution")
FIRST_WEIGHTS = ("inputs", "outputs")
"""Of the networks, see `Experiment`."""

KIND = "images"
"""The entry of a config that tells these runs from those of other studies."""


@dataclass(frozen=True)
class Experiment:
    """One training of one network.

    Attributes:
        dataset: A name of an image data set, or a ``.npz`` file.
        model: "resnet8", "resnet20", "resnet44" or "resnet110".
        gamma: Of the focal loss; 0 is cross entropy.
        paradigm: "standard" or "ls".
        label_smoothing: Of the targets.
        seed: The trial: weights, order, augmentation and validation part follow from it.
        epochs: Passes over the training images.
        milestones: The epochs after which the learning rate is divided by 10.
        batch_size: Images in a step, over all processes of a run.
        lr: The learning rate at the start.
        momentum: Of SGD.
        weight_decay: Of SGD.
        validation: The part of each class's training images that is held out for the temperature. With 0
            there is none, and the temperature is cross-fitted on halves of the test set.
        precision: "float32", or "bfloat16" for mixed precision.
        train_size: With a number, training and test images are one pool, from which so many are drawn for
            training; a smaller part is inside a larger one. None: the images as they are.
        test_size: How many of the pool are for testing, the same for every ``train_size``.
        train_part: With a number in (0, 1), each trial draws so much of the training images of each class for
            itself, and tests on the whole test set. None: every trial has the same images.
        shortcuts: Where a block halves the image: "plain" has no parameters, "convolution" a convolution of
            one pixel with normalisation (options A and B of He et al., 2016). The paper does not say.
        first_weights: "inputs" draws those of every layer with the deviation sqrt(2 / inputs), "outputs" as
            torchvision's ResNets: convolutions with sqrt(2 / outputs), the linear layer as PyTorch does. The
            paper does not say.

    Raises:
        ValueError: If a value is not one of these.

    Example:
        >>> Experiment("svhn", gamma=2.0).config()["weight_decay"]
        0.0005
    """

    dataset: str
    model: str = "resnet8"
    gamma: float = 0.0
    paradigm: str = "standard"
    label_smoothing: float = 0.0
    seed: int = 0
    epochs: int = 200
    milestones: tuple[int, ...] = (80, 150)
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    validation: float = 0.1
    precision: str = "float32"
    train_size: int | None = None
    test_size: int | None = None
    train_part: float | None = None
    shortcuts: str = "plain"
    first_weights: str = "inputs"

    def __post_init__(self) -> None:
        _require(self.model in MODELS, "model", f"one of {', '.join(MODELS)}", self.model)
        good = self.paradigm in ("standard", "ls")
        _require(good, "paradigm", "'standard' or 'ls' (TS is made from 'standard')", self.paradigm)
        _require(0 <= self.label_smoothing < 1, "label_smoothing", "in [0, 1)", self.label_smoothing)
        _require(self.seed >= 0, "seed", ">= 0", self.seed)
        _require(self.epochs >= 1, "epochs", ">= 1", self.epochs)
        _require(self.batch_size >= 2, "batch_size", ">= 2", self.batch_size)
        _require(math.isfinite(self.lr) and self.lr > 0, "lr", "finite and > 0", self.lr)
        _require(0 <= self.validation < 1, "validation", "in [0, 1)", self.validation)
        good = self.precision in ("float32", "bfloat16")
        _require(good, "precision", "'float32' or 'bfloat16'", self.precision)
        for name, choices in (("shortcuts", SHORTCUTS), ("first_weights", FIRST_WEIGHTS)):
            value = getattr(self, name)
            _require(value in choices, name, f"one of {', '.join(choices)}", value)
        _require(math.isfinite(self.gamma) and self.gamma >= 0, "gamma", "finite and >= 0", self.gamma)
        for name in ("train_size", "test_size"):
            size = getattr(self, name)
            _require(size is None or size >= 1, name, "None or >= 1", size)
        both = (self.train_size is None) == (self.test_size is None)
        _require(both, "test_size", "a number exactly if train_size is one", self.test_size)
        good = self.train_part is None or (0 < self.train_part < 1 and self.train_size is None)
        _require(good, "train_part", "None or in (0, 1), and None with a train_size", self.train_part)

    def config(self) -> dict[str, Any]:
        """Return all that decides the numbers, as JSON."""
        config = {"experiment": KIND} | asdict(self) | {"milestones": list(self.milestones)}
        for name in ("train_size", "test_size", "train_part"):
            if config[name] is None:  # the keys of runs from before there were sizes
                del config[name]
        for name, choices in (("shortcuts", SHORTCUTS), ("first_weights", FIRST_WEIGHTS)):
            if config[name] == choices[0]:  # likewise
                del config[name]
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Experiment:
        """Return the experiment of a `config`."""
        values = {name: value for name, value in config.items() if name != "experiment"}
        return cls(**values | {"milestones": tuple(values["milestones"])})

    @property
    def key(self) -> str:
        """The name of its run."""
        return run_key(self.config())


def experiments_of(
    dataset: str = "cifar10-s",
    model: str = "resnet8",
    gammas: Iterable[float] = (0, 1, 2, 3),
    paradigms: Iterable[str] = ("standard", "ls"),
    trials: int | Iterable[int] = 10,
    epochs: int | None = None,
    **options: Any,
) -> list[Experiment]:
    """Return the trainings of a grid, trial by trial, so that a sweep that is cut short is balanced.

    The schedule is the paper's: 200 epochs with the learning rate divided by 10 after 80 and 150; for SVHN 50
    epochs, 25 and 40. With another number of epochs the two steps move in proportion. Within a trial every
    run starts from the same weights and sees the same images in the same order.

    Args:
        dataset: See `Experiment`, as for ``model`` and ``options``.
        model: See above.
        gammas: Of the focal loss.
        paradigms: "standard", "ls" (label smoothing 0.1), "ts_fl", "ts_nll" (both train as "standard").
        trials: How many, or which.
        epochs: By default the paper's number.
        **options: See above.

    Example:
        >>> grid = experiments_of("cifar10-s", "resnet8", [0, 2], ["standard", "ls"], trials=10, epochs=40)
        >>> len(grid), grid[0].milestones
        (40, (16, 30))
    """
    with contextlib.suppress(ValueError):  # a file, or a name of the user's own
        dataset = source(dataset).name
    full, steps = paper_schedule(dataset)
    epochs = full if epochs is None else epochs
    seeds = list(range(trials) if isinstance(trials, int) else trials)
    _require(len(seeds) >= 1, "trials", ">= 1", trials)
    paradigms = list(paradigms)
    for paradigm in paradigms:
        _require(paradigm in PARADIGMS, "paradigm", f"one of {', '.join(PARADIGMS)}", paradigm)
    milestones = tuple(max(1, round(step * epochs / full)) for step in steps)
    trainings = dict.fromkeys("ls" if PARADIGMS[paradigm] else "standard" for paradigm in paradigms)
    gammas = [float(gamma) for gamma in gammas]
    return [
        Experiment(
            dataset, model, gamma, paradigm, PARADIGMS[paradigm], int(trial), epochs, milestones, **options
        )
        for trial in seeds
        for gamma in gammas
        for paradigm in trainings
    ]


def paper_schedule(dataset: str) -> tuple[int, tuple[int, int]]:
    """Return the paper's number of epochs, and those after which the learning rate is divided by 10."""
    return (50, (25, 40)) if Path(dataset).stem.lower().startswith("svhn") else (200, (80, 150))


# What trains and what draws is imported when it is asked for: tables need no torch, a training no matplotlib.


def run(
    experiments: Sequence[Experiment],
    out: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    device: str = "auto",
    threads: int = 1,
    compile: bool = False,
    workers: Workers | None = None,
    tell: Callable[[Path], None] | None = None,
) -> list[Path]:
    """Do the runs that are not done yet, report on every run of the folder, and return the report's files.

    Checkpoints are in ``<out>/checkpoints``, until their runs are finished. Before the first run
    every data set is fetched, read and checked, here and once. Under ``torchrun`` the runs are done one after
    the other, each by all processes together. There a run that fails in every process (its loss is not
    finite, a checkpoint cannot be written) stops no other run, but a process that fails alone in a training
    step ends with exit code 1, and so do the others.

    Args:
        experiments: What to train.
        out: The folder of the results.
        data: The folder of the data files; by default as `refocal.experiments.data.load` finds them.
        device: "cpu", "cuda", "cuda:1", or "auto": CUDA where there is one.
        threads: Of PyTorch on the CPU, in a run.
        compile: Whether to use `torch.compile`.
        workers: Who does the runs; None: this process, or those of torchrun, one run after the other.
        tell: Called with each file of the report.

    Raises:
        ValueError: Before anything starts, if an option or the data cannot be used, or finished runs were
            made from another data file.
        SweepError: After the report, if runs failed.
    """
    with needs("the image study", "torch"):
        from refocal.experiments.images.checkpoints import remove_checkpoints
        from refocal.experiments.images.data import ready_files
        from refocal.experiments.images.training import run_config
        from refocal.experiments.sweeps.devices import together_on
        from refocal.experiments.sweeps.together import from_first, is_first
    with needs("the image study", "scipy"):
        import scipy.stats  # noqa: F401 - the report needs it: said before the training, not after it

    configs = [experiment.config() for experiment in experiments]
    checkpoints = Path(out).absolute() / "checkpoints"
    _require(threads >= 1, "threads", ">= 1", threads)
    with together_on(device, threads, workers) as (device, how):
        files = from_first(lambda: ready_files(configs, out, data))
        do = functools.partial(run_config, data=files, checkpoints=checkpoints, device=device)
        do = functools.partial(do, threads=threads, compile=compile)
        try:
            return carry_out(configs, do, out, lambda: report(out), workers=workers, tell=tell, **how)
        finally:
            if is_first():
                remove_checkpoints(checkpoints, configs, out)


def report(out: str | os.PathLike[str]) -> list[Path]:
    """Make the tables and figures of every finished image run of a folder, without training.

    Files: ``README.md`` (all tables, what the paper says and in how many trials it shows), ``summary.json``,
    ``measures.csv``, ``advice.csv``, ``bins.csv`` (the ECE with 8 to 25 bins), and for each data set, model,
    schedule and kind of machine ``reliability-*`` and, where there is something to compare, ``boxes-*``;
    where there are several depths or sizes, ``depth-*`` and ``images-*`` (PNG, PDF).

    Args:
        out: The folder that `run` wrote to.

    Raises:
        FileNotFoundError: If no image run is finished in the folder.
    """
    with needs("a report", "scipy"):
        from refocal.experiments.images.tables import write_report

    return write_report(out)


def summary_text(out: str | os.PathLike[str]) -> list[str]:
    """Return the lines of the last report of a folder: errors beside the paper's, directions as counts."""
    with needs("a report", "scipy"):
        from refocal.experiments.images.judge import summary_text as lines

    return list(lines(json.loads((Path(out) / "summary.json").read_text(encoding="utf-8"))))


def _require(good: bool, name: str, rule: str, value: object) -> None:
    if not good:
        raise ValueError(f"{name} must be {rule}, got {value!r}")
