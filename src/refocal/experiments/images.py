"""The image experiments: one ResNet, one gamma, one paradigm, one trial is a run.

A run trains, then keeps the logits of the validation part and of the test set. Every table and figure is made
from these logits, see `refocal.experiments.image_tables`. Temperature scaling changes no training, so the
paradigms TS_FL and TS_NLL share the runs of Standard.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import io
import math
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist

from refocal.experiments import runs
from refocal.experiments._files import write_atomic
from refocal.experiments.datasets import source
from refocal.experiments.image_data import PAD, ImageData, augment, load_images, prepare
from refocal.experiments.resnet import MODELS, build_model
from refocal.torch import FocalLoss

__all__ = ["PARADIGMS", "image_configs", "run_image", "sweep_images", "train_network"]

PARADIGMS = {"standard": 0.0, "ts_fl": 0.0, "ts_nll": 0.0, "ls": 0.1}
"""The training paradigms of the paper and their label smoothing."""


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
    validation: float = 0.1,
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
        validation: The part of each class's training images that is held out for the temperature.
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
    full, steps = (50, (25, 40)) if Path(dataset).stem.startswith("svhn") else (200, (80, 150))
    epochs = full if epochs is None else epochs
    _require(model in MODELS, "model", f"one of {', '.join(MODELS)}", model)
    _require(epochs >= 1, "epochs", ">= 1", epochs)
    seeds = list(range(trials) if isinstance(trials, int) else trials)
    _require(len(seeds) >= 1, "trials", ">= 1", trials)
    _require(batch_size >= 2, "batch_size", ">= 2", batch_size)
    _require(math.isfinite(lr) and lr > 0, "lr", "finite and > 0", lr)
    _require(0 < validation < 1, "validation", "in (0, 1)", validation)
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


def run_image(
    config: Mapping[str, Any],
    *,
    data: str | os.PathLike[str] | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    device: str = "auto",
    threads: int = 1,
    compile: bool = False,
) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Train one network and return what came out, with the logits of validation part and test set.

    With ``checkpoints`` the state is written after every epoch, and a run that was killed goes on from there:
    on a CPU its final weights are bit-identical to those of a run that was not. If torch.distributed is
    initialised, the processes share each batch; losses and normalisation are those of the whole batch.

    Args:
        config: One of `image_configs`.
        data: The folder of the data files; by default as `refocal.experiments.datasets.load` finds them.
        checkpoints: The folder of the checkpoints; None for none.
        device: "cpu", "cuda", "cuda:1", or "auto": CUDA where there is one.
        threads: Of PyTorch on the CPU. Sums depend on it in the last bits.
        compile: Whether to use `torch.compile`.

    Returns:
        The result (``error`` is that of the test set, ``train_loss`` has one number an epoch) and the arrays
        ``validation_logits``, ``validation_labels``, ``test_logits``, ``test_labels``.

    Raises:
        ValueError: If the data do not fit.
        FloatingPointError: If the training loss is not finite any more.
        OSError: If a data file is missing, or there is not enough disk for the checkpoints.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        keep_freed_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(config["seed"])
            images = prepare(
                load_images(config["dataset"], data), config["validation"], config["seed"], device
            )
            model = build_model(config["model"], images.n_classes, device=device)
            path = None if checkpoints is None else Path(checkpoints) / f"{runs.run_key(config)}.pt"
            trained = train_network(model, images, config, path, compile)
            validation = _logits(model, images, images.validation)
            test = _logits(model, images, images.test)
    finally:
        torch.set_num_threads(before)
    labels = images.test_labels.cpu().numpy()
    result = trained | {
        "error": float((test.argmax(1) != labels).mean()),
        "n_classes": images.n_classes,
        "n_train": len(images.train),
        "n_validation": len(images.validation),
        "n_test": len(images.test),
        "device": device,
        "threads": threads,
    }
    small = np.uint8 if images.n_classes <= 256 else np.int64
    return result, {
        "validation_logits": validation,
        "validation_labels": images.validation_labels.cpu().numpy().astype(small),
        "test_logits": test,
        "test_labels": labels.astype(small),
    }


def train_network(
    model: nn.Module,
    data: ImageData,
    config: Mapping[str, Any],
    checkpoint: Path | None = None,
    compile: bool = False,
) -> dict[str, Any]:
    """Train a network in place.

    Args:
        model: Of `refocal.experiments.resnet.build_model`, on the device of the images.
        data: The images.
        config: One of `image_configs`.
        checkpoint: The file to go on from, if it is there, and to write after every epoch.
        compile: Whether to use `torch.compile`.

    Returns:
        ``train_loss``, the mean over the images of each epoch, and the median ``seconds_per_epoch``.

    Raises:
        FloatingPointError: If the training loss is not finite any more.
        OSError: If there is not enough disk for the checkpoint.
    """
    device = data.train.device
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    criterion = FocalLoss(config["gamma"], label_smoothing=config["label_smoothing"], reduction="sum")
    optimizer = torch.optim.SGD(
        model.parameters(), config["lr"], config["momentum"], weight_decay=config["weight_decay"]
    )
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, config["milestones"])
    # On the CPU for every device, so that a trial sees the same images in the same order everywhere.
    generator = torch.Generator().manual_seed(config["seed"])
    losses: list[float] = []
    seconds: list[float] = []
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    if checkpoint is not None:
        saved = _read_checkpoint(checkpoint, config, device)
        if saved is not None:
            for name, part in parts.items():
                part.load_state_dict(saved[name])
            generator.set_state(saved["generator"].cpu())
            torch.set_rng_state(saved["global_generator"].cpu())
            losses, seconds = saved["losses"], saved["seconds"]
        elif rank == 0:
            _check_disk(checkpoint, model)
    network: nn.Module = torch.compile(model) if compile else model  # type: ignore[assignment]
    if world > 1:
        network = nn.parallel.DistributedDataParallel(network)
    n, size = len(data.train), config["batch_size"]
    model.train()
    for epoch in range(len(losses), config["epochs"]):
        start = time.perf_counter()
        total = torch.zeros((), dtype=torch.float64, device=device)
        order = torch.randperm(n, generator=generator).to(device)
        shift = torch.randint(0, 2 * PAD + 1, (n, 2), generator=generator).to(device)
        mirror = (torch.rand(n, generator=generator) < (0.5 if data.flip else 0.0)).to(device)
        for first in range(0, n, size):
            last = min(first + size, n)
            mine = slice(first + rank, last, world)
            images = augment(data, order[mine], shift[mine], mirror[mine])
            with torch.autocast(device.type, torch.bfloat16, enabled=config["precision"] == "bfloat16"):
                logits = network(images)
            loss = criterion(logits.float(), data.train_labels[order[mine]])
            optimizer.zero_grad()
            # Distributed training takes the mean of the processes' gradients; times world it is their sum.
            (loss * (world / (last - first))).backward()
            optimizer.step()
            total += loss.detach()
        scheduler.step()
        if world > 1:
            dist.all_reduce(total)
        losses.append(float(total) / n)
        seconds.append(round(time.perf_counter() - start, 3))
        if not math.isfinite(losses[-1]):
            raise FloatingPointError(f"the training loss is {losses[-1]} in epoch {epoch + 1}; lower lr")
        if checkpoint is not None and rank == 0:
            state = {name: part.state_dict() for name, part in parts.items()} | {
                "config": dict(config),
                "generator": generator.get_state(),
                "global_generator": torch.get_rng_state(),
                "losses": losses,
                "seconds": seconds,
            }
            _write_checkpoint(checkpoint, state)
    return {"train_loss": losses, "seconds_per_epoch": float(np.median(seconds))}


def keep_freed_memory() -> None:
    """Let the C library keep the memory that a training step frees, up to 2 GiB, for the next step.

    By default glibc gives buffers of many megabytes back to the system, which has to clear them and map them
    again some thousand pages at a time: a sixth of the time of a step of ResNet-8. Other C libraries are left
    as they are.
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # the names of the options in malloc.h
            mallopt(mmap_threshold, 32 << 20)
            mallopt(trim_threshold, (2 << 30) - 1)
            mallopt(top_pad, 64 << 20)


def _logits(model: nn.Module, data: ImageData, images: Tensor) -> np.ndarray[Any, Any]:
    """Return the logits of images as float32 (n, n_classes)."""
    model.eval()
    with torch.inference_mode():
        blocks = [model(data.normalise(block)).float().cpu() for block in torch.split(images, 500)]
    return torch.cat(blocks).numpy()


def _read_checkpoint(path: Path, config: Mapping[str, Any], device: torch.device) -> dict[str, Any] | None:
    """Return the state of a run that was cut short; None if there is none, or it cannot be read."""
    if not path.is_file():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        if runs.run_key(state["config"]) == runs.run_key(config):
            return state
        problem = "it belongs to another run"
    except Exception as error:  # torch.load raises many kinds for a damaged file
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    print(f"refocal: {path} is no checkpoint ({problem}); the run starts again", file=sys.stderr)
    return None


def _write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    try:
        write_atomic(path, buffer.getvalue())
    except OSError as error:
        raise OSError(
            error.errno, f"cannot write the checkpoint {path}: {error.strerror}; the one before it is kept"
        ) from error


def _check_disk(path: Path, model: nn.Module) -> None:
    """Raise before the training if the checkpoints have no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Weights and momentum, and the new file stands beside the old one for a moment; 64 KiB for the rest.
    needed = 2 * (2 * sum(p.numel() * p.element_size() for p in model.parameters()) + 65536)
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise OSError(
            errno.ENOSPC, f"checkpoints need {needed} bytes in {path.parent}, and {free} are free", str(path)
        )


def sweep_images(
    configs: Iterable[Mapping[str, Any]],
    out: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    device: str = "auto",
    threads: int = 1,
    compile: bool = False,
    **options: Any,
) -> list[runs.Run]:
    """Do every run that is not done yet: `refocal.experiments.runs.sweep` of `run_image`.

    Checkpoints are in ``<out>/checkpoints`` and are removed when all runs are done. Under ``torchrun`` the
    runs are done one after the other, each by all processes together; then ``options`` must be empty.

    Args:
        configs: Of `image_configs`.
        out: The folder of the results.
        data: See `run_image`, as ``device``, ``threads`` and ``compile``.
        device: See above.
        threads: See above.
        compile: See above.
        **options: Of `refocal.experiments.runs.sweep`: jobs, engine, address, resources, progress.

    Returns:
        The finished runs in the order of the configs.
    """
    wanted = [dict(config) for config in configs]
    folder = Path(out).absolute() / "checkpoints"
    run = functools.partial(
        run_image, data=data, checkpoints=folder, device=device, threads=threads, compile=compile
    )
    with _process_group(device) as (rank, world):
        if world == 1:
            finished = runs.sweep(wanted, run, out, **options)
        else:
            if options.keys() - {"progress"}:
                raise ValueError(f"under torchrun there is no choice of {', '.join(options)}")
            if device == "auto" and torch.cuda.is_available():
                run.keywords["device"] = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
            finished = _together(wanted, run, out, rank)
    if rank == 0:
        for config in wanted:
            (folder / f"{runs.run_key(config)}.pt").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
    return finished


def _together(
    configs: list[dict[str, Any]], run: functools.partial[Any], out: str | os.PathLike[str], rank: int
) -> list[runs.Run]:
    """Do runs with all processes: the first keeps the books, the others take part in the training."""
    finished = []
    for config in configs:
        # What is done already only the first process says: the others may see the folder later.
        done = [rank == 0 and any(old.key == runs.run_key(config) for old in _kept(out))]
        dist.broadcast_object_list(done, src=0)
        if rank == 0:
            finished += runs.sweep([config], run, out, progress=False)
        elif not done[0]:
            run(config)
    return finished


def _kept(out: str | os.PathLike[str]) -> list[runs.Run]:
    try:
        return runs.read_runs(out)
    except FileNotFoundError:
        return []


@contextlib.contextmanager
def _process_group(device: str) -> Iterator[tuple[int, int]]:
    """Join the processes that torchrun has started; give this one's number and how many there are.

    Processes that have joined already stay joined: a group is not opened a second time at the same address.
    """
    world = int(os.environ.get("WORLD_SIZE", 1))
    if dist.is_initialized():
        yield dist.get_rank(), dist.get_world_size()
        return
    if world == 1:
        yield 0, 1
        return
    on_gpu = torch.cuda.is_available() and device != "cpu"
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield dist.get_rank(), world
    finally:
        dist.destroy_process_group()


def _require(good: bool, name: str, rule: str, value: object) -> None:
    if not good:
        raise ValueError(f"{name} must be {rule}, got {value!r}")
