"""The state of a training between two epochs, as a file, so that a run that was killed goes on from there."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from refocal.experiments.images.study import Experiment
from refocal.experiments.sweeps import read_runs, run_key
from refocal.experiments.sweeps.devices import made_with
from refocal.experiments.sweeps.origin import NOT_RECORDED
from refocal.experiments.sweeps.together import from_first, is_first
from refocal.files import write_atomic

log = logging.getLogger(__name__)


@dataclass
class Progress:
    """All that an epoch changes.

    Attributes:
        experiment: What is trained.
        data_sha256: Of the file of the images; a checkpoint of another file is not gone on from.
        parts: Model, optimiser and schedule.
        generator: Of order and augmentation. On the CPU for every device, so that a trial sees the same
            images in the same order everywhere.
        losses: The mean over the images, of each epoch so far.
        seconds: Of each epoch so far.
        machines: What the last bits depend on, see `refocal.experiments.sweeps.devices.made_with`, and once
            more for each time that the run went on with something else.
    """

    experiment: Experiment
    data_sha256: str | None
    parts: dict[str, Any]
    generator: torch.Generator
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    machines: list[dict[str, Any]] = field(default_factory=list)

    def resume(self, path: Path | None) -> None:
        """Go on from the file, if it is there and of this run; else see that there is room for one.

        Raises:
            OSError: If there is not enough disk for the checkpoint; a `GroupError` in several processes.
        """
        # The first process reads it for all: they must go on from the same epoch.
        saved = None if path is None else from_first(lambda: self._saved_or_room(path))
        if saved is not None:
            for name, part in self.parts.items():
                part.load_state_dict(saved[name])
            self.generator.set_state(saved["generator"])
            self.losses, self.seconds = saved["losses"], saved["seconds"]
            self.machines = saved["machines"]

    def go_on_with(self, device: torch.device, compile: bool, loss: str) -> None:
        """Write down what the next epochs are computed with; a change is said."""
        now = made_with(device, compile, loss)
        if len(self.losses) == self.experiment.epochs or now in self.machines[-1:]:
            return
        if self.machines and is_first():
            before = self.machines[-1]
            old = {name: before.get(name, NOT_RECORDED) for name in now}  # by an earlier version
            changes = [f"{name} {old[name]} -> {now[name]}" for name in now if old[name] != now[name]]
            text = "run %s goes on with %s; the last bits depend on that"
            log.warning(text, self.experiment.key, ", ".join(changes))
        self.machines.append(now)

    def save(self, path: Path | None) -> None:
        """Write the file, in the first process; an earlier one is replaced in one step.

        Raises:
            OSError: If it cannot be written; it says whether an earlier one is kept.
        """
        if path is None or not is_first():
            return
        state = {name: part.state_dict() for name, part in self.parts.items()} | {
            "config": self.experiment.config(),
            "data_sha256": self.data_sha256,
            "machines": self.machines,
            "generator": self.generator.get_state(),
            "losses": self.losses,
            "seconds": self.seconds,
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        try:
            path.parent.mkdir(exist_ok=True)  # another sweep that ended may have removed it
            write_atomic(path, buffer.getvalue())
        except OSError as error:
            kept = "the earlier one is kept" if path.is_file() else "there is no earlier one"
            message = f"cannot write the checkpoint {path}: {error.strerror}; {kept}"
            raise OSError(error.errno, message) from error

    def _saved_or_room(self, path: Path) -> dict[str, Any] | None:
        """Return the state of a run that was cut short; None, after a look for room, if there is none."""
        if path.is_file():
            try:
                # On the CPU: loading a state into a model or an optimiser puts it where they are.
                state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
                if run_key(state["config"]) != self.experiment.key:
                    problem = "it belongs to another run"
                elif "machines" not in state:
                    problem = "it is of an earlier version"
                elif state["data_sha256"] != self.data_sha256:
                    problem = "it was made from another data file"
                else:
                    return state
            except Exception as error:  # torch.load raises many kinds for a damaged file
                problem = f"{type(error).__name__}: {error}".splitlines()[0]
            log.warning("%s is no checkpoint (%s); the run starts again", path, problem)
        _check_disk(path, self.parts["model"])
        return None


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


def remove_checkpoints(
    folder: Path, configs: Iterable[Mapping[str, Any]], out: str | os.PathLike[str]
) -> None:
    """Remove the checkpoints of finished runs, and the folder if it is empty then."""
    with contextlib.suppress(OSError):  # what is left does no harm, and must not hide another error
        finished = {run.key for run in read_runs(out)}
        for key in finished.intersection(map(run_key, configs)):
            for name in (f"{key}.pt", f"{key}.pt.tmp"):
                (folder / name).unlink(missing_ok=True)
        folder.rmdir()
