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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist

from refocal.experiments import runs
from refocal.experiments._files import sha256_of, write_atomic
from refocal.experiments.engines import cores
from refocal.experiments.image_data import (
    PAD,
    ImageData,
    augment,
    fetched_file,
    prepare,
    read_images,
    ready_files,
)
from refocal.experiments.image_grid import PARADIGMS, image_configs
from refocal.experiments.resnet import build_model
from refocal.experiments.together import agreed, from_first, process_group, sweep_together
from refocal.torch import FocalLoss

__all__ = ["PARADIGMS", "default_jobs", "image_configs", "run_image", "sweep_images", "train_network"]


def run_image(
    config: Mapping[str, Any],
    *,
    data: str | os.PathLike[str] | Mapping[str, Path] | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    device: str = "auto",
    threads: int = 1,
    compile: bool = False,
) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Train one network and return what came out, with the logits of validation part and test set.

    With ``checkpoints`` the state is written after every epoch, and a run that was killed goes on from there:
    on a CPU its final weights are bit-identical to those of a run that was not, as long as device, threads,
    ``compile`` and the number of processes stay the same; a change is said. If torch.distributed is
    initialised, the processes share each batch; losses and normalisation are those of the whole batch.

    Args:
        config: One of `image_configs`.
        data: The folder of the data files; by default as `refocal.experiments.datasets.load` finds them. Or
            the file of each data set, by its name in the config.
        checkpoints: The folder of the checkpoints; None for none.
        device: "cpu", "cuda", "cuda:1", or "auto": CUDA where there is one.
        threads: Of PyTorch on the CPU. Sums depend on it in the last bits.
        compile: Whether to use `torch.compile`.

    Returns:
        The result (``error`` is that of the test set, ``train_loss`` has one number an epoch,
        ``data_sha256`` is of the file that was read) and the arrays ``validation_logits``,
        ``validation_labels``, ``test_logits``, ``test_labels``.

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
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(config["seed"])
            name, seed = config["dataset"], config["seed"]
            with agreed():
                file = data[name] if isinstance(data, Mapping) else fetched_file(name, data)
                sha256 = sha256_of(file)
                images = prepare(read_images(name, file), config["validation"], seed, device)
                model = build_model(config["model"], images.n_classes, device=device)
            path = None if checkpoints is None else Path(checkpoints) / f"{runs.run_key(config)}.pt"
            trained = train_network(model, images, config, path, compile, data_sha256=sha256)
            with agreed():
                validation = _logits(model, images, images.validation)
                test = _logits(model, images, images.test)
                if not (np.isfinite(validation).all() and np.isfinite(test).all()):
                    raise FloatingPointError("the logits of the trained network are not finite; lower lr")
    finally:
        torch.set_num_threads(before)
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


def train_network(
    model: nn.Module,
    data: ImageData,
    config: Mapping[str, Any],
    checkpoint: Path | None = None,
    compile: bool = False,
    *,
    data_sha256: str | None = None,
) -> dict[str, Any]:
    """Train a network in place.

    Args:
        model: Of `refocal.experiments.resnet.build_model`, on the device of the images.
        data: The images.
        config: One of `image_configs`.
        checkpoint: The file to go on from, if it is there, and to write after every epoch.
        compile: Whether to use `torch.compile`.
        data_sha256: Of the file of the images; a checkpoint of another file is not gone on from.

    Returns:
        ``train_loss``, the mean over the images of each epoch, the median ``seconds_per_epoch``, and
        ``machines``, what the last bits depend on: a dictionary of device, threads, compile and processes,
        and one more for each time that the run went on with others.

    Raises:
        FloatingPointError: If the training loss is not finite any more.
        OSError: If there is not enough disk for the checkpoint.
        GroupError: Instead of these, in every process, if torch.distributed is initialised.
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
    machine = {
        "device": device.type,
        "threads": torch.get_num_threads(),
        "compile": compile,
        "processes": world,
    }
    machines: list[dict[str, Any]] = []
    if checkpoint is not None:
        # The first process reads it for all: they must go on from the same epoch.
        saved = from_first(lambda: _saved_or_room(checkpoint, config, data_sha256, model))
        if saved is not None:
            for name, part in parts.items():
                part.load_state_dict(saved[name])
            generator.set_state(saved["generator"])
            torch.set_rng_state(saved["global_generator"])
            losses, seconds, machines = saved["losses"], saved["seconds"], saved["machines"]
    if len(losses) < config["epochs"] and machine not in machines[-1:]:
        if machines and rank == 0:
            _say_what_changed(config, machines[-1], machine)
        machines.append(machine)
    # One graph a batch size, never one for several: which sizes came before must not change a bit.
    network: nn.Module = torch.compile(model, dynamic=False) if compile else model  # type: ignore[assignment]
    if world > 1:
        network = nn.parallel.DistributedDataParallel(network)
    n, size = len(data.train), config["batch_size"]
    model.train()
    for epoch in range(len(losses), config["epochs"]):
        start = time.perf_counter()
        # Apple's GPUs have no double precision.
        total = torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
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
        with agreed():
            if not math.isfinite(losses[-1]):
                raise FloatingPointError(f"the training loss is {losses[-1]} in epoch {epoch + 1}; lower lr")
            if checkpoint is not None and rank == 0:
                state = {name: part.state_dict() for name, part in parts.items()} | {
                    "config": dict(config),
                    "data_sha256": data_sha256,
                    "machines": machines,
                    "generator": generator.get_state(),
                    "global_generator": torch.get_rng_state(),
                    "losses": losses,
                    "seconds": seconds,
                }
                _write_checkpoint(checkpoint, state)
    return {
        "train_loss": losses,
        "seconds_per_epoch": float(np.median(seconds)),
        "machines": machines,
    }


def keep_freed_memory() -> None:
    """Let the C library keep the memory that a training step frees, up to 2 GiB, for the next step.

    By default glibc gives buffers of many megabytes back to the system, which has to clear and map their
    pages again in the next step. Kept memory has far fewer of these page faults. Other C libraries are left
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


def _saved_or_room(
    path: Path, config: Mapping[str, Any], data_sha256: str | None, model: nn.Module
) -> dict[str, Any] | None:
    """Return the state of a run that was cut short; None if there is none, and room for one is checked."""
    if path.is_file():
        try:
            # On the CPU: loading a state into a model or an optimiser puts it where they are.
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            if runs.run_key(state["config"]) != runs.run_key(config):
                problem = "it belongs to another run"
            elif "machines" not in state:
                problem = "it is of an earlier version"
            elif state["data_sha256"] != data_sha256:
                problem = "it was made from another data file"
            else:
                return state
        except Exception as error:  # torch.load raises many kinds for a damaged file
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"refocal: {path} is no checkpoint ({problem}); the run starts again", file=sys.stderr)
    _check_disk(path, model)
    return None


def _say_what_changed(config: Mapping[str, Any], before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changes = [f"{name} {before[name]} -> {now[name]}" for name in now if before[name] != now[name]]
    key = runs.run_key(config)
    print(
        f"refocal: run {key} goes on with {', '.join(changes)}; the last bits depend on that", file=sys.stderr
    )


def _write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    try:
        path.parent.mkdir(exist_ok=True)  # another sweep that ended may have removed it
        write_atomic(path, buffer.getvalue())
    except OSError as error:
        kept = "the earlier one is kept" if path.is_file() else "there is no earlier one"
        raise OSError(error.errno, f"cannot write the checkpoint {path}: {error.strerror}; {kept}") from error


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

    Checkpoints are in ``<out>/checkpoints``, until their runs are finished. Before the first run
    every data set is fetched, read and checked, here and once. Under ``torchrun`` the runs are done one after
    the other, each by all processes together; then ``options`` must be empty. There a run that fails in every
    process (its loss is not finite, a checkpoint cannot be written) stops no other run, but a process that
    fails alone in a training step ends with exit code 1, and so do the others.

    Args:
        configs: Of `image_configs`.
        out: The folder of the results.
        data: The folder of the data files, see `run_image`, as ``device``, ``threads`` and ``compile``.
        device: See above.
        threads: See above.
        compile: See above.
        **options: Of `refocal.experiments.runs.sweep`: jobs, engine, address, resources, progress. With Ray
            a run trains on a GPU only if ``resources`` ask for one; Ray may show it one all the same.

    Returns:
        The finished runs in the order of the configs; under torchrun none but in the first process.

    Raises:
        ValueError: Before anything starts, if an option or the data cannot be used, or finished runs were
            made from another data file.
        SweepError: At the end, if runs failed.
    """
    wanted = [dict(config) for config in configs]
    folder = Path(out).absolute() / "checkpoints"
    with process_group(device) as (rank, world):
        if world > 1:
            if options.keys() - {"progress"}:
                raise ValueError(f"under torchrun there is no choice of {', '.join(options)}")
            if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
                device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        with agreed():
            if threads < 1:
                raise ValueError(f"threads must be >= 1, got {threads}")
            if options.get("engine") == "ray":  # whose workers have devices of their own
                device = _ray_device(device, options.get("resources") or {})
            else:
                _check_device(device)
            if device.startswith("cuda:") and world > 1:
                torch.cuda.set_device(device)
        files = from_first(lambda: ready_files(wanted, out, data))
        run = functools.partial(
            run_image, data=files, checkpoints=folder, device=device, threads=threads, compile=compile
        )
        try:
            if world == 1:
                return runs.sweep(wanted, run, out, **options)
            return sweep_together(wanted, run, out)
        finally:
            if rank == 0:
                _remove_checkpoints(folder, wanted, Path(out))


def _remove_checkpoints(folder: Path, configs: Iterable[Mapping[str, Any]], out: Path) -> None:
    """Remove the checkpoints of finished runs, and the folder if it is empty then."""
    with contextlib.suppress(OSError):  # what is left does no harm, and must not hide another error
        finished = {run.key for run in runs.read_runs(out)}
        for key in finished.intersection(map(runs.run_key, configs)):
            for name in (f"{key}.pt", f"{key}.pt.tmp"):
                (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def default_jobs(device: str, threads: int) -> int:
    """Return how many runs to do at a time: 1 on CUDA, one for each ``threads`` cores on a CPU.

    Args:
        device: See `run_image`, as ``threads``.
        threads: See above.

    Example:
        >>> default_jobs("cpu", threads=10**6), default_jobs("cuda", threads=1)
        (1, 1)
    """
    if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()):
        return 1
    return max(1, cores() // max(1, threads))


def _ray_device(device: str, resources: Mapping[str, Any]) -> str:
    if resources.get("num_gpus"):
        return device
    if device.startswith("cuda"):
        raise ValueError(
            f"device {device!r} with engine 'ray' needs a GPU for each run: --gpus-per-run, or num_gpus in "
            "resources, for example 1 or 0.5"
        )
    return "cpu" if device == "auto" else device


def _check_device(device: str) -> None:
    if device == "auto":
        return
    try:
        kind = torch.device(device)
        here = kind.type != "cuda" or (kind.index or 0) < torch.cuda.device_count()
        if kind.type not in ("cpu", "cuda"):
            torch.zeros(1, device=kind).cpu()
    except Exception as error:  # each kind of device has errors of its own
        raise ValueError(f"device must be one of this machine, got {device!r} ({error})") from None
    if not here:
        count = torch.cuda.device_count()
        raise ValueError(f"device must be one of this machine, got {device!r}; it has {count} CUDA devices")
