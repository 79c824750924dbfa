"""Train one network of the image study and keep its logits."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist

from refocal.experiments.files import sha256_of
from refocal.experiments.images.checkpoints import Progress
from refocal.experiments.images.data import (
    PAD,
    ImageData,
    augment,
    draw_of_trial,
    draw_part,
    fetched_file,
    prepare,
    read_images,
)
from refocal.experiments.images.resnet import build_model
from refocal.experiments.images.study import Experiment
from refocal.experiments.sweeps.devices import keep_freed_memory, torch_threads
from refocal.experiments.sweeps.together import agreed, place
from refocal.torch import FocalLoss, which_form


def run_config(
    config: Mapping[str, Any], **options: Any
) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Do one run of a sweep: `run_experiment` of the experiment that a config describes."""
    return run_experiment(Experiment.from_config(config), **options)


def run_experiment(
    experiment: Experiment,
    *,
    data: str | os.PathLike[str] | Mapping[str, Path] | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    device: str = "auto",
    threads: int = 1,
    compile: bool = False,
) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Train one network and return what came out, with the logits of validation part and test set.

    With a folder for ``checkpoints`` the state is written after every epoch, and a run that was killed goes
    on from there: on a CPU its final weights are bit-identical to those of a run that was not, if device,
    threads, ``compile`` and the number of processes stay the same; a change is said. If torch.distributed is
    initialised, the processes share each batch; losses and normalisation are those of the whole batch.
    ``data`` is a folder, or the file of each data set by its name; the rest is as for `images.run`.

    Raises:
        ValueError: If the data do not fit.
        FloatingPointError: If the training loss or the logits are not finite any more.
        OSError: If a data file is missing, or there is not enough disk for the checkpoints.
        GroupError: Instead of these, in every process, if torch.distributed is initialised.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        keep_freed_memory()
    name, seed = experiment.dataset, experiment.seed
    with torch_threads(threads), torch.random.fork_rng():
        torch.manual_seed(seed)
        with agreed():
            file = data[name] if isinstance(data, Mapping) else fetched_file(name, data)
            sha256 = sha256_of(file)
            part = draw_part(read_images(name, file), experiment.train_size, experiment.test_size)
            part = draw_of_trial(part, experiment.train_part, seed)
            images = prepare(part, experiment.validation, seed, device)
            model = build_model(
                experiment.model,
                images.n_classes,
                shortcuts=experiment.shortcuts,
                first_weights=experiment.first_weights,
                device=device,
            )
        path = None if checkpoints is None else Path(checkpoints) / f"{experiment.key}.pt"
        trained = train(model, images, experiment, path, compile, data_sha256=sha256)
        with agreed():
            validation = _logits(model, images, images.validation)
            test = _logits(model, images, images.test)
            if not (np.isfinite(validation).all() and np.isfinite(test).all()):
                raise FloatingPointError("the logits of the trained network are not finite; lower lr")
    labels = images.test_labels.cpu().numpy()
    result = trained | {
        "error": float((test.argmax(1) != labels).mean()),
        "n_classes": images.n_classes,
        "n_train": len(images.train),
        "n_validation": len(images.validation),
        "n_test": len(images.test),
        "data_sha256": sha256,
    }
    small = np.uint8 if images.n_classes <= 256 else np.int64
    return result, {
        "validation_logits": validation,
        "validation_labels": images.validation_labels.cpu().numpy().astype(small),
        "test_logits": test,
        "test_labels": labels.astype(small),
    }


def train(
    model: nn.Module,
    data: ImageData,
    experiment: Experiment,
    checkpoint: Path | None = None,
    compile: bool = False,
    *,
    data_sha256: str | None = None,
) -> dict[str, Any]:
    """Train a network in place; it raises as `run_experiment`.

    Returns:
        ``train_loss``, the mean over the images of each epoch, the median ``seconds_per_epoch``, and
        ``machines``, see `refocal.experiments.images.checkpoints.Progress`.
    """
    device, processes = data.train.device, place()[1]
    criterion = FocalLoss(experiment.gamma, label_smoothing=experiment.label_smoothing, reduction="sum")
    optimizer = torch.optim.SGD(
        model.parameters(), experiment.lr, experiment.momentum, weight_decay=experiment.weight_decay
    )
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, list(experiment.milestones))
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    generator = torch.Generator().manual_seed(experiment.seed)
    progress = Progress(experiment, data_sha256, parts, generator)
    progress.resume(checkpoint)
    form = which_form(data.mean.new_zeros(1, data.n_classes), data.train_labels[:1])
    progress.go_on_with(device, compile, form)
    network = _network(model, compile)
    model.train()
    while (epoch := len(progress.losses)) < experiment.epochs:
        start = time.perf_counter()
        total = _zero(device)
        for images, labels, size in _batches(data, experiment.batch_size, generator):
            with torch.autocast(device.type, torch.bfloat16, enabled=experiment.precision == "bfloat16"):
                logits = network(images)
            loss = criterion(logits.float(), labels)
            optimizer.zero_grad()
            # The processes take the mean of their gradients; times their number it is the sum.
            (loss * (processes / size)).backward()
            optimizer.step()
            total += loss.detach()
        scheduler.step()
        if processes > 1:
            dist.all_reduce(total)
        progress.losses.append(float(total) / len(data.train))
        progress.seconds.append(round(time.perf_counter() - start, 3))
        with agreed():
            if not math.isfinite(progress.losses[-1]):
                text = f"the training loss is {progress.losses[-1]} in epoch {epoch + 1}; lower lr"
                raise FloatingPointError(text)
            progress.save(checkpoint)
    return {
        "train_loss": progress.losses,
        "seconds_per_epoch": float(np.median(progress.seconds)),
        "machines": progress.machines,
    }


def _network(model: nn.Module, compile: bool) -> nn.Module:
    """Return what computes the logits: the model itself, compiled, shared by processes."""
    # A graph for each batch size, never one for several: which sizes came before must not change a bit.
    network: nn.Module = torch.compile(model, dynamic=False) if compile else model  # type: ignore[assignment]
    return nn.parallel.DistributedDataParallel(network) if place()[1] > 1 else network


def _zero(device: torch.device) -> Tensor:
    """Return a sum to add to; Apple's GPUs have no double precision."""
    return torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)


def _batches(
    data: ImageData, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Give this process's share of each batch of an epoch, augmented: images, labels, size of the batch."""
    n, device = len(data.train), data.train.device
    order = torch.randperm(n, generator=generator).to(device)
    shift = torch.randint(0, 2 * PAD + 1, (n, 2), generator=generator).to(device)
    mirror = (torch.rand(n, generator=generator) < (0.5 if data.flip else 0.0)).to(device)
    rank, processes = place()
    for first in range(0, n, batch_size):
        last = min(first + batch_size, n)
        mine = slice(first + rank, last, processes)
        rows = order[mine]
        yield augment(data, rows, shift[mine], mirror[mine]), data.train_labels[rows], last - first


def _logits(model: nn.Module, data: ImageData, images: Tensor) -> np.ndarray[Any, Any]:
    """Return the logits of images as float32 (n, n_classes)."""
    model.eval()
    with torch.inference_mode():
        blocks = [model(data.normalise(block)).float().cpu() for block in torch.split(images, 500)]
    return torch.cat(blocks).numpy()
