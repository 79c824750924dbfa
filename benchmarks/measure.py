"""What the benchmarks share: the best of interleaved runs, the peers that are installed, result files."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from refocal.experiments.files import json_bytes, write_outputs
from refocal.experiments.sweeps import machine, versions

T = TypeVar("T")

# Not the tracked numbers: those change only if somebody asks for it, with BENCH_RESULTS=benchmarks/results.
FOLDER = Path(os.environ.get("BENCH_RESULTS") or Path(__file__).parents[1] / "out" / "benchmarks")

PACKAGES = ("numpy", "scipy", "torch", "numba", "array-api-compat", "refocal")

absent: dict[str, str] = {}
"""The peers that could not be imported, and why."""


def best_of_each(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the best seconds of each call; they take turns, so that a slow spell of the machine hits all."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def installed(peers: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """Return what the makers of the peers give; an absent one is named, here and in the file."""
    found: dict[str, T] = {}
    for name, make in peers.items():
        try:
            found[name] = make()
        except ImportError as error:
            if name not in absent:
                absent[name] = str(error)
                print(f"absent: {name} ({error}); `make bench` installs the peers", file=sys.stderr)
    return found


def write_results(name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows, machine, versions and absent peers to NAME-MACHINE.json: a file for each kind."""
    packages: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            packages[package] = None
    source = {"python": versions()["python"], "commit": versions().get("commit"), "packages": packages}
    content = {"machine": dict(machine()) | source, "absent": absent, "rows": rows}
    kind = re.sub(r"\W+", "-", f"{machine()['processor']} {machine()['cores']} cores".lower()).strip("-")
    path = FOLDER / f"{name}-{kind}.json"
    what = "replaced" if path.exists() else "written"
    write_outputs(FOLDER, {path.name: json_bytes(content)})
    print(f"{what}: {path}")
