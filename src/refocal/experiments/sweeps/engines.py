"""Where runs are executed: in this process, in other processes, or on a Ray cluster.

An engine takes a run and gives a future of its outcome. It knows nothing of files: the process that called
`sweep` reads, claims and writes, so that results and their safety are the same for every engine.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeAlias

import numpy as np

from refocal.experiments.sweeps.origin import machine, versions
from refocal.experiments.sweeps.store import Outcome, canonical
from refocal.extras import needs

log = logging.getLogger(__name__)

RunFunction: TypeAlias = Callable[[dict[str, Any]], Any]

RETRIES = 3
"""How often a run is tried again whose worker was killed. A run that raises is not tried again."""


class Engine(Protocol):
    """Executes runs, at most ``slots`` at a time. Leaving it by an exception stops what is running."""

    slots: int

    def submit(self, run: RunFunction, config: dict[str, Any]) -> Future[Outcome]:
        """Start a run. The future raises `BrokenExecutor` if its worker died."""

    def __enter__(self) -> Engine: ...

    def __exit__(self, *error: object) -> None: ...


def execute(run: RunFunction, config: dict[str, Any]) -> Outcome:
    """Do one run; an error in it becomes a part of the outcome."""
    source = dict(versions())  # now: a commit may come while the run goes on
    start = time.perf_counter()
    try:
        result, arrays = _split(run(config))
        text, error = canonical(result), None
    except Exception:
        text, arrays, error = "", {}, traceback.format_exc()
    seconds = round(time.perf_counter() - start, 3)
    return Outcome(text, arrays, seconds, source, dict(machine()), error)


def _split(returned: Any) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    result, arrays = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
    if not isinstance(result, dict) or not isinstance(arrays, dict):
        raise TypeError(f"a run must return a dict, or a dict and a dict of arrays, got {type(returned)}")
    arrays = {name: np.asarray(value) for name, value in arrays.items()}
    for name, value in arrays.items():
        if value.dtype.hasobject:
            raise TypeError(f"the array {name} holds Python objects; only numbers and texts can be kept")
    return result, arrays


class InProcess:
    """One run after the other, here: what a debugger and a profiler like best."""

    slots = 1

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(self, run: RunFunction, config: dict[str, Any]) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        future.set_result(execute(run, config))
        return future


class Processes:
    """Spawned processes. Each is a pool of its own, so that a killed one takes no other run with it."""

    def __init__(self, jobs: int) -> None:
        self.slots = jobs
        self._context = multiprocessing.get_context("spawn")
        # The workers hold the reading end, only this process the writing end: they see when it is gone.
        self._reader, self._writer = self._context.Pipe(duplex=False)
        self._lanes: list[tuple[ProcessPoolExecutor, Future[Outcome] | None]] = [
            (self._pool(), None) for _ in range(jobs)
        ]

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        if any(error):
            self._writer.close()
        for pool, _ in self._lanes:
            pool.shutdown(cancel_futures=True)
        self._writer.close()
        self._reader.close()

    def submit(self, run: RunFunction, config: dict[str, Any]) -> Future[Outcome]:
        index = next(i for i, (_, last) in enumerate(self._lanes) if last is None or last.done())
        pool, _ = self._lanes[index]
        try:
            future = pool.submit(execute, run, config)
        except BrokenExecutor:  # its process was killed, in the last run or since
            pool.shutdown()
            pool = self._pool()
            future = pool.submit(execute, run, config)
        self._lanes[index] = (pool, future)
        return future

    def _pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            1, mp_context=self._context, initializer=_start_worker, initargs=(self._reader,)
        )


def _start_worker(parent: Connection) -> None:
    # Ctrl-C reaches every process of a terminal; the parent alone decides what is to be done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(format="refocal: %(message)s")
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Connection) -> None:
    """End this process at once when its parent has ended, even by kill -9, or wants it to."""
    with contextlib.suppress(EOFError, OSError):
        parent.recv()
    os._exit(1)


class RayCluster:
    """Ray tasks, on a cluster or on a Ray that is started here for the sweep."""

    def __init__(self, address: str | None, resources: Mapping[str, Any] | None, jobs: int | None) -> None:
        with needs("engine 'ray'", "ray"):
            import ray
        self._ray: Any = ray
        self._started = not ray.is_initialized()
        if self._started:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports to its makers by default
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        self.slots = sys.maxsize if jobs is None else jobs
        self._task = ray.remote(max_retries=RETRIES, **(resources or {}))(_execute_pickled)
        _say_what_is_missing(
            resources or {}, [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        )
        self._references: dict[Future[Outcome], Any] = {}

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if any(error):
                # A copy: a thread of Ray takes out each future that is done, and cancelled ones soon are.
                for future, reference in self._references.copy().items():
                    if not future.done():
                        self._ray.cancel(reference, force=True)
        finally:
            if self._started:
                self._ray.shutdown()

    def submit(self, run: RunFunction, config: dict[str, Any]) -> Future[Outcome]:
        reference = self._task.remote(sys.path, self._ray.cloudpickle.dumps(run), config)
        future: Future[Outcome] = reference.future()
        self._references[future] = reference
        future.add_done_callback(lambda done: self._references.pop(done, None))
        return future


def _say_what_is_missing(resources: Mapping[str, Any], nodes: Sequence[Mapping[str, float]]) -> None:
    """Say that a task does not fit on any node: Ray would wait in silence, for ever or for a new node."""
    cpus = resources.get("num_cpus")
    wanted = {"CPU": 1 if cpus is None else cpus, "GPU": resources.get("num_gpus")}
    asked = {name: n for name, n in (wanted | (resources.get("resources") or {})).items() if n}
    if any(all(node.get(name, 0) >= n for name, n in asked.items()) for node in nodes):
        return

    def text(amounts: Mapping[str, float]) -> str:
        return ", ".join(f"{amounts.get(name, 0):g} {name}" for name in asked)

    log.warning(
        "a run asks for %s, and the nodes of the Ray cluster have %s; nothing starts until a node with that "
        "much joins",
        text(asked),
        " or ".join(dict.fromkeys(map(text, nodes))),
    )


def _execute_pickled(path: list[str], run: bytes, config: dict[str, Any]) -> Outcome:
    # A Ray worker knows the folder of the program, but not what the program has added to its path.
    sys.path += [folder for folder in path if folder not in sys.path]
    return execute(pickle.loads(run), config)


def check_options(
    engine: str, run: RunFunction, jobs: int | None, address: str | None, resources: Mapping[str, Any] | None
) -> None:
    """Raise ValueError for options of `sweep` that cannot work."""
    if engine not in ("local", "ray"):
        raise ValueError(f"engine must be 'local' or 'ray', got {engine!r}")
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise ValueError(f"jobs must be a whole number >= 1, got {jobs!r}")
    if engine == "local" and (address is not None or resources is not None):
        raise ValueError("address and resources are for engine='ray' only")
    if engine == "local" and jobs not in (None, 1):
        try:
            pickle.dumps(run)
        except Exception as error:
            raise ValueError(
                f"run must be a function of a module when jobs > 1, got {run!r} ({error})"
            ) from None


def start_engine(
    engine: str, jobs: int | None, address: str | None, resources: Mapping[str, Any] | None
) -> Engine:
    """Start the engine that the options of `sweep` ask for."""
    if engine == "ray":
        return RayCluster(address, resources, jobs)
    return InProcess() if jobs is None or jobs == 1 else Processes(jobs)
