"""What the benchmarks share: the best of several interleaved runs, and results beside their machine."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from refocal.experiments.engines import versions

FOLDER = Path(__file__).parent / "results"


def best_of_each(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the best seconds of each call; they take turns, so that a slow spell of the machine hits all."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def machine() -> dict[str, Any]:
    """Return what the numbers depend on."""
    packages = {}
    for name in ("numpy", "scipy", "torch", "array-api-compat", "refocal"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "packages": packages,
        "commit": versions().get("commit"),
    }


def write_results(name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows and machine to results/NAME.json, atomically."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    temporary.replace(path)
    print(f"written: {path.name}")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
