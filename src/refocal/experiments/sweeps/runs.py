"""Sweeps: many runs of one function, each done once, whatever happens in between.

A sweep can be killed at any moment and started again: finished runs are read, the others are done. Several
processes, on one machine or on several with a shared folder, may work on the same sweep.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import contextmanager
from typing import Any

from refocal.experiments.sweeps.engines import RETRIES, Engine, RunFunction, check_options, start_engine
from refocal.experiments.sweeps.store import Outcome, Run, Store, canonical, run_key

log = logging.getLogger(__name__)

POLL = 0.2
"""Seconds between two looks at runs that another process has claimed."""


class SweepError(ValueError):
    """Some runs failed; the others are done and kept.

    Attributes:
        failures: The text of the error of each failed run, by key.
    """

    exit_code = 1
    """Of a command: what was given was right."""

    def __init__(self, message: str, failures: dict[str, str]) -> None:
        super().__init__(message)
        self.failures = failures

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.failures)


def sweep(
    configs: Iterable[Mapping[str, Any]],
    run: RunFunction,
    out: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    engine: str = "local",
    address: str | None = None,
    resources: Mapping[str, Any] | None = None,
    progress: bool = True,
    on_wait: Callable[[], None] | None = None,
) -> list[Run]:
    """Do every run that is not done yet, and return all of them in the order of the configs.

    Numbers do not depend on ``engine`` and ``jobs`` if ``run`` is deterministic; a run that uses PyTorch
    should call ``torch.set_num_threads`` itself, because sums may depend on the number of threads.

    Args:
        configs: For each run a dict of JSON values. Equal configs are one run.
        run: ``run(config)`` returns a dict of JSON values, or that and a dict of arrays, which are kept as
            ``.npz``. A function of a module, unless it runs in this process.
        out: The folder of the results, ``<out>/runs/<key>.json``; it is made if it is not there.
        jobs: How many runs at a time. Local: 1 (this process) by default, more are processes. Ray: by default
            as many as the cluster takes.
        engine: "local" or "ray".
        address: Of the Ray cluster; by default the one that is initialised, or a new one on this machine.
        resources: Of a Ray task, for example ``{"num_cpus": 1, "num_gpus": 0.5}``.
        progress: Show a bar with the time left on standard error if that is a terminal.
        on_wait: Called again and again while all that is left is claimed by other processes.

    Returns:
        The finished run of each config.

    Raises:
        SweepError: At the end, if runs failed. Each was logged with its config.
        OSError: If the folder cannot be written to, before anything starts or when the disk is full.
            Finished runs are kept.
        ValueError: If a config or an option is not valid, before anything starts.
        ImportError: If engine="ray" and Ray is not installed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as out:
        ...     runs = sweep([{"x": 2}, {"x": 3}], lambda config: {"y": config["x"] ** 2}, out)
        >>> [run.result["y"] for run in runs]
        [4, 9]
    """
    wanted = [dict(config) for config in configs]
    keys = [run_key(config) for config in wanted]
    check_options(engine, run, jobs, address, resources)
    done: dict[str, Run] = {}
    todo: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}
    with Store(out) as store:
        for key, config in dict(zip(keys, wanted, strict=True)).items():
            finished = store.read(key)
            if finished is not None:
                done[key] = finished
                continue
            todo[key] = config
            if store.path(key).exists():
                log.warning("%s is damaged; its run is done again", store.path(key))
        total = len(done) + len(todo)
        if todo:
            with (
                start_engine(engine, jobs, address, resources) as workers,
                _bar(len(todo), progress) as advance,
            ):
                try:
                    _work(todo, run, store, workers, done, failures, advance, on_wait)
                except KeyboardInterrupt:
                    kept = sum(store.read(key) is not None for key in set(keys))
                    log.warning(
                        "stopped; %d of %d runs are finished and kept in %s", kept, total, store.folder
                    )
                    raise
    if failures:
        key, text = next(iter(failures.items()))
        raise SweepError(
            f"{len(failures)} of {total} runs failed (finished ones are kept in {store.folder}); "
            f"the first: {text.strip().splitlines()[-1]}, with {canonical(todo[key])}",
            failures,
        )
    return [done[key] for key in keys]


def _work(
    todo: dict[str, dict[str, Any]],
    run: RunFunction,
    store: Store,
    engine: Engine,
    done: dict[str, Run],
    failures: dict[str, str],
    advance: Callable[[], None],
    on_wait: Callable[[], None] | None,
) -> None:
    """Do the runs of ``todo``, or wait for the processes that have claimed them."""
    waiting = deque(todo)
    flying: dict[Future[Outcome], str] = {}
    deaths: dict[str, int] = {}
    while waiting or flying:
        elsewhere = 0
        while len(flying) < engine.slots and elsewhere < len(waiting):
            key = waiting.popleft()
            if not store.claim(key):
                waiting.append(key)
                elsewhere += 1
                continue
            finished = store.read(key)  # it may have been done since the first look
            if finished is None:
                flying[engine.submit(run, todo[key])] = key
                continue
            done[key] = finished
            store.release(key)
            advance()
        if not flying:
            if waiting:
                time.sleep(POLL)
                if on_wait is not None:
                    on_wait()
            continue
        landed, _ = wait(flying, timeout=POLL if elsewhere else None, return_when=FIRST_COMPLETED)
        for future in landed:
            key = flying.pop(future)
            try:
                outcome = future.result()
                error = outcome.error
            except BrokenExecutor as death:
                deaths[key] = deaths.get(key, 0) + 1
                if deaths[key] <= RETRIES:
                    waiting.appendleft(key)
                    continue
                error = f"its process died {deaths[key]} times: {death}"
            except Exception as failure:  # of the engine: Ray gave up, or the outcome could not be sent
                error = f"{type(failure).__name__}: {failure}"
            if error is None:
                done[key] = store.write(key, todo[key], outcome)
            else:
                failures[key] = error
                log.error("run %s failed: %s\n%s", key, canonical(todo[key]), error.rstrip())
            store.release(key)
            advance()


@contextmanager
def _bar(total: int, show: bool) -> Iterator[Callable[[], None]]:
    """Give a function to call after each run; it moves a bar if there is a terminal to show it."""
    if not (show and sys.stderr.isatty()):
        yield lambda: None
        return
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:  # a bar is no reason to stop
        yield lambda: None
        return
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
    )
    # Runs may take minutes: the time left is estimated from an hour of them, not from rich's 30 seconds.
    with progress.Progress(*columns, console=Console(stderr=True), speed_estimate_period=3600) as bar:
        task = bar.add_task("runs", total=total)
        yield lambda: bar.advance(task)
