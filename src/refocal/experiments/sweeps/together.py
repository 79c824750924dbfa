"""Runs that several processes do together, started by ``torchrun``.

The first process keeps the books. An error that every process knows of ends its run only, and the next run
starts; an error in the middle of a training step is known to one process alone, while the others wait for its
share of the batch, so that process ends, and with it the work of all.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import distributed as dist

from refocal.experiments.sweeps import runs
from refocal.experiments.sweeps.store import Run, canonical
from refocal.experiments.sweeps.workers import under_torchrun

log = logging.getLogger(__name__)

T = TypeVar("T")


class GroupError(ValueError):
    """What one process could not do, raised by all of them at the same place."""


@contextlib.contextmanager
def process_group(device: str) -> Iterator[tuple[int, int]]:
    """Join the processes that torchrun has started; give this one's number and how many there are.

    Processes that have joined already stay joined: a group is not opened a second time at the same address.
    """
    if dist.is_initialized():
        yield place()
        return
    if not under_torchrun():
        yield 0, 1
        return
    # DistributedDataParallel would import this module later, whose functions keep the group that is open then
    # as a default argument: the threads of the group would outlive it, and abort the interpreter at its end.
    importlib.import_module("torch.distributed.nn")
    on_gpu = torch.cuda.is_available() and device != "cpu"
    # Tensors on GPUs go through NCCL, and the words of `from_first` and `agreed` through gloo.
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    try:
        yield place()
    except (GroupError, runs.SweepError):  # every process is here
        _leave()
        raise
    except Exception:
        dist.destroy_process_group()
        raise
    # SystemExit and KeyboardInterrupt are not waited for: the other processes may be anywhere.
    _leave()


def place() -> tuple[int, int]:
    """Return this process's number and how many there are: 0 of 1 if it is alone."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def is_first() -> bool:
    """Return whether this process keeps the books."""
    return place()[0] == 0


def _leave() -> None:
    dist.barrier()  # nobody closes a connection that another still reads
    dist.destroy_process_group()


def from_first(make: Callable[[], T]) -> T:
    """Return on every process what the first one makes.

    Raises:
        GroupError: If that fails. Without other processes the error itself.
    """
    if not dist.is_initialized():
        return make()
    box: list[Any] = [None, None]
    error: Exception | None = None
    if dist.get_rank() == 0:
        try:
            box[0] = make()
        except Exception as caught:
            error, box[1] = caught, str(caught)
    dist.broadcast_object_list(box, src=0)
    if box[1] is not None:
        raise GroupError(box[1]) from error
    made: T = box[0]
    return made


def from_all(value: T) -> list[T]:
    """Return on every process what each of them has, by their numbers."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


@contextlib.contextmanager
def agreed() -> Iterator[None]:
    """Let every process fail where one of them does. Inside, no process may wait for another.

    Raises:
        GroupError: If one process raises inside. Without other processes the error itself.
    """
    if not dist.is_initialized():
        yield
        return
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    texts = from_all(None if error is None else f"{type(error).__name__}: {error}")
    first = next((text for text in texts if text is not None), None)
    if first is not None:
        raise GroupError(first) from error


def sweep_together(
    configs: Sequence[dict[str, Any]], run: Callable[[dict[str, Any]], Any], out: str | os.PathLike[str]
) -> list[Run]:
    """Do runs one after the other, each with all processes; the first one says which is next.

    Errors of ``run`` have to be `GroupError`; any other ends this process with exit code 1. The finished runs
    are returned on the first process, none on the others.

    Raises:
        SweepError: At the end and on every process, if runs failed.
        GroupError: If the first process cannot keep its books.
    """
    if dist.get_rank() > 0:
        _follow(run)
        return []

    def start(config: dict[str, Any]) -> Any:
        _say("run", config)
        return run(config)

    try:
        finished = runs.sweep(
            configs,
            lambda config: _or_leave(start, config),
            out,
            progress=False,
            on_wait=lambda: _say("wait"),  # a process that hears nothing for half an hour gives up
        )
    except runs.SweepError as error:
        _say("end", error)
        raise
    except Exception as error:
        stop = GroupError(str(error))
        _say("end", stop)
        raise stop from error
    _say("end")
    return finished


def _follow(run: Callable[[dict[str, Any]], Any]) -> None:
    """Do what the first process says until it says that this is the end, and why."""
    while True:
        said: list[Any] = [None, None]
        dist.broadcast_object_list(said, src=0)
        word, what = said
        if word == "run":
            with contextlib.suppress(GroupError):
                _or_leave(run, what)
        elif word == "end":
            if what is not None:
                raise what
            return


def _say(word: str, what: Any = None) -> None:
    """Tell the other processes: "run" and a config, "wait", or "end" and an error or None."""
    dist.broadcast_object_list([word, what], src=0)


def _or_leave(run: Callable[[dict[str, Any]], Any], config: dict[str, Any]) -> Any:
    """Do a run; leave the program at an error that the other processes do not know of."""
    try:
        return run(config)
    except GroupError:
        raise
    except Exception as error:
        log.error(
            "process %d cannot go on in %s: %s: %s; finished runs and the last checkpoint are kept",
            dist.get_rank(),
            canonical(config),
            type(error).__name__,
            error,
        )
        raise SystemExit(1) from None
