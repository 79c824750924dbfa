"""Where a number comes from: the source that made it, its libraries, and the machine."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from refocal.experiments.sweeps.store import Run

LIBRARIES = ("refocal", "numpy", "numba", "torch", "scikit-learn", "ray")
"""Whose versions a result names, where they are installed."""

NOT_RECORDED = "not recorded"


@functools.cache
def versions() -> Mapping[str, str]:
    """Return the versions of Python and of the installed `LIBRARIES`, and the commit of a checkout."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[library] = metadata.version(library)
    commit = _commit(Path(__file__).parents[2])
    return found | ({"commit": commit} if commit else {})


@functools.cache
def machine() -> Mapping[str, Any]:
    """Return the kind of this machine; it does not say which one it is."""
    return {"processor": _processor(), "cores": os.cpu_count(), "system": platform.system()}


def machine_text(found: Mapping[str, Any]) -> str:
    """Return a machine in words.

    Example:
        >>> machine_text({"processor": "Z80", "cores": 1, "system": "CP/M"}), machine_text({})
        ('Z80, 1 core, CP/M', 'not recorded')
    """
    if not found:
        return NOT_RECORDED
    cores = found["cores"]
    return f"{found['processor']}, {cores} core{'' if cores == 1 else 's'}, {found['system']}"


def origin_of(run: Run) -> tuple[str, str]:
    """Return the commit and the machine of a run, for a table."""
    return run.versions.get("commit", NOT_RECORDED), machine_text(run.machine)


def origin_text(runs: Iterable[Run], commits: Iterable[str] | None = None) -> str:
    """Say the commits and the machines of runs, each with the number of runs where they differ.

    Args:
        runs: Which.
        commits: Of each run, "" where it is not known; by default that of the process which finished it.
    """
    runs = list(runs)
    if commits is None:
        commits = (run.versions.get("commit", "") for run in runs)
    counts = Counter(commit for commit in commits if commit)
    machines = Counter(machine_text(run.machine) for run in runs if run.machine)
    return f"Source: commit {_counted(counts, len(runs))}. Machine: {_counted(machines, len(runs))}."


def _counted(found: Counter[str], n: int) -> str:
    """Say each text with its number of runs, and of how many nothing is known."""
    if not found:
        return NOT_RECORDED
    missing = n - found.total()
    every = found.most_common() + ([(NOT_RECORDED, missing)] if missing else [])
    return ", ".join(f"{text} ({k} of {n} runs)" for text, k in every)


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _commit(package: Path) -> str | None:
    """Return the commit that a package is run from, or None if it is not part of a repository."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # the repository may be another project's
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
        return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def processor_model() -> str | None:
    """Return family, model and stepping of the processor, since a virtual machine may hide its name."""
    names = ("cpu family", "model", "stepping")
    found = _cpuinfo()
    return ", ".join(f"{name} {found[name]}" for name in names) if found.keys() >= {*names} else None


def _processor() -> str:
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


@functools.cache
def _cpuinfo() -> Mapping[str, str]:
    """Return what Linux says of the first processor; nothing elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
