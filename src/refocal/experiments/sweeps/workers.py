"""Who does the runs of a study: this machine, a Ray cluster, or the processes that torchrun has started.

All that the command line says about it, and what follows from it, is decided here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refocal.experiments.sweeps.origin import cores
from refocal.experiments.sweeps.runs import SweepError, sweep
from refocal.experiments.sweeps.store import NothingFinished

OF_RAY = ("address", "cpus_per_run", "gpus_per_run")


@dataclass(frozen=True)
class Workers:
    """The options of a sweep as they are typed; None is the default.

    Attributes:
        jobs: How many runs at a time; by default what the cores allow, 1 on a GPU and in each process of
            torchrun, as many as Ray takes.
        engine: "local" (the default) or "ray".
        address: Of the Ray cluster; by default one is started here.
        cpus_per_run: What a Ray run asks for; by default its threads.
        gpus_per_run: What a Ray run asks for; by default 0.

    Raises:
        ValueError: If options do not go together.

    Example:
        >>> Workers(jobs=3).options()
        {'jobs': 3}
    """

    jobs: int | None = None
    engine: str | None = None
    address: str | None = None
    cpus_per_run: float | None = None
    gpus_per_run: float | None = None

    def __post_init__(self) -> None:
        if self.engine != "ray" and (names := self._given(*OF_RAY)):
            raise ValueError(f"{names}: for --engine ray only")

    def _given(self, *names: str) -> str:
        """Return those of the options that were given, as they are typed."""
        return ", ".join(f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None)

    def check_together(self) -> None:
        """Raise where options were given that torchrun has decided, if its processes do each run together."""
        if under_torchrun() and (names := self._given("jobs", "engine", *OF_RAY)):
            raise ValueError(f"under torchrun there is no choice of {names}")

    def options(self, threads: int = 1, on_gpu: bool = False) -> dict[str, Any]:
        """Return the options of `sweep`.

        Args:
            threads: Of a run.
            on_gpu: Whether a run takes the GPU of this machine.
        """
        if self.engine in (None, "local"):
            default = 1 if on_gpu or under_torchrun() else max(1, cores() // max(1, threads))
            return {"jobs": default if self.jobs is None else self.jobs}
        asked = {"num_cpus": self.cpus_per_run, "num_gpus": self.gpus_per_run}
        resources = {"num_cpus": float(threads)} | {k: v for k, v in asked.items() if v is not None}
        return {"jobs": self.jobs, "engine": self.engine, "address": self.address, "resources": resources}


def under_torchrun() -> bool:
    """Return whether this is one of several processes that torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1


def carry_out(
    configs: Sequence[Mapping[str, Any]],
    run: Callable[[dict[str, Any]], Any],
    out: str | os.PathLike[str],
    report: Callable[[], list[Path]],
    *,
    workers: Workers | None,
    tell: Callable[[Path], None] | None = None,
    threads: int = 1,
    on_gpu: bool = False,
    together: bool = False,
) -> list[Path]:
    """Do the runs of a study that are not done yet, then report on what is finished, even if some failed.

    Args:
        configs: Of the runs, as ``run`` and ``out`` for `sweep`.
        run: See above.
        out: See above.
        report: Writes the report and returns its files.
        workers: Who does the runs; None: this process, one after the other.
        tell: Called with each file of the report, before an error of a run is raised.
        threads: Of a run.
        on_gpu: Whether a run takes the GPU of this machine.
        together: Whether all processes of torchrun do each run; then the first one alone reports.

    Raises:
        SweepError: After the report, if runs failed.
    """
    failed: SweepError | None = None

    def finished() -> list[Path]:
        nonlocal failed
        try:
            return report()
        except Exception as error:
            if failed is None:
                raise
            if not isinstance(error, NothingFinished):
                text = f"{failed}\nthe report of the others could not be made: {error}"
                failed = SweepError(text, failed.failures)
                failed.__cause__ = error
            return []

    try:
        if together:
            from refocal.experiments.sweeps.together import from_first, is_first, sweep_together

            sweep_together([dict(config) for config in configs], run, out)
        else:
            sweep(configs, run, out, **workers.options(threads, on_gpu) if workers else {})
    except SweepError as error:
        failed = error
    # torchrun ends all processes as soon as one fails: none may leave before the report is written and told.
    paths = from_first(finished) if together else finished()
    if together and not is_first():
        paths = []
    if tell is not None:
        for path in paths:
            tell(path)
    if failed is not None:
        raise failed
    return paths
