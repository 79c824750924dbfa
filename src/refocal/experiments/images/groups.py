"""Which image runs belong together: those that differ in gamma, paradigm and trial, and in nothing else."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from refocal.experiments.images.study import KIND, PARADIGMS, experiments_of
from refocal.experiments.sweeps import Run, run_key
from refocal.experiments.sweeps.store import canonical

LONGEST = 150
"""Of the name of a group, in characters: file systems end names at 255."""

OWN = ("gamma", "paradigm", "seed")
"""What differs between the runs of a group, with the label smoothing that follows from the paradigm."""


@dataclass(frozen=True)
class Machine:
    """What a run was trained with, beyond its config; None is what its version did not record.

    Attributes: see `refocal.experiments.sweeps.devices.made_with`.
    """

    device: str
    threads: int
    compile: bool
    processes: int
    processor: str | None = None
    model: str | None = None
    instructions: str | None = None
    onednn: str | None = None
    torch: str | None = None
    loss: str | None = None
    commit: str | None = None

    def __str__(self) -> str:
        text = f"{self.device} with {self.threads} thread{'s' if self.threads > 1 else ''}"
        text += ", compiled" if self.compile else ""
        text += f", {self.processes} processes" if self.processes > 1 else ""
        torch = None if self.torch is None else f"torch {self.torch}"
        loss = None if self.loss is None else f"loss by {self.loss}"
        onednn = None if self.onednn in (None, "no limit") else f"oneDNN up to {self.onednn}"
        known = [x for x in (self.processor, self.model, self.instructions, onednn, torch, loss) if x]
        if self.loss is None:
            known.append("loss not recorded")
        return f"{text} ({', '.join(known)})"


def machines_of(run: Run) -> list[Machine]:
    """Return what a run was trained with, one after the other.

    Versions and machine of a run are those of the process that finished it: they tell of the last one.
    """
    try:
        found = run.result["machines"]
    except KeyError:  # the first runs of `results/images` have device and threads alone
        found = [
            {name: run.result[name] for name in ("device", "threads")} | {"compile": False, "processes": 1}
        ]
    known = {field.name for field in fields(Machine)}
    # A later version may record more.
    *before, last = ({name: value for name, value in one.items() if name in known} for one in found)
    usual: dict[str, Any] = {name: run.versions.get(name) for name in ("torch", "commit")}
    usual["processor"] = run.machine.get("processor") if last["device"] == "cpu" else None
    return [*(Machine(**one) for one in before), Machine(**usual | last)]


def group_runs(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the image runs that differ in gamma, paradigm and trial only, by a name for their files.

    Runs of different machines or data are not mixed. Where the runs of one setting have more than one
    recorded value of something that the last bits depend on (`Machine`, but for the commit), of the data file
    or of the number of its images, each value is a group of its own, and so are the runs that did not record
    it. With one recorded value, runs that did not record it count as having it; the report names each kind of
    machine with its number of runs.
    """
    together: dict[str, list[Run]] = {}
    for run in runs:
        if run.config.get("experiment") == KIND:
            together.setdefault(run_key(in_common(run.config)), []).append(run)
    groups: dict[str, list[Run]] = {}
    for same in sorted(together.values(), key=lambda runs: canonical(in_common(runs[0].config))):
        stem = name_of(in_common(same[0].config))
        for kind, some in _by_kind(same).items():
            groups[free_name(stem + kind, groups)] = some
    return groups


def in_common(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the runs of a group have in common; a label smoothing that is not the paradigm's too."""
    common = {key: value for key, value in config.items() if key not in OWN}
    if common["label_smoothing"] == PARADIGMS[config["paradigm"]]:
        del common["label_smoothing"]
    return common


def name_of(common: Mapping[str, Any], *left_out: str) -> str:
    """Return a name for the files of runs with so much in common, without the entries that are left out."""
    parts = [Path(common["dataset"]).stem, common["model"], str(common["epochs"])]
    if "model" in left_out:
        del parts[1]
    return "-".join(parts + [f"{k}-{v}" for k, v in unusual(common).items() if k not in left_out])


def free_name(name: str, taken: Container[str]) -> str:
    """Return a name for files and for links in Markdown that is not taken yet; a long one ends in a hash."""
    name = re.sub(r"[^\w.-]+", "_", name)
    if len(name) > LONGEST:
        name = f"{name[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    names = itertools.chain([name], (f"{name}-{i}" for i in itertools.count(2)))
    return next(one for one in names if one not in taken)


def _by_kind(runs: list[Run]) -> dict[str, list[Run]]:
    """Return runs of one setting by machine and data, as an ending of a name; one kind is no ending."""
    recorded = [_recorded(run) for run in runs]
    parting = [name for name in recorded[0] if len({some[name] for some in recorded} - {""}) > 1]
    kinds: dict[str, list[Run]] = {}
    for run, some in zip(runs, recorded, strict=True):
        ending = "".join(f"-{name}-{some[name] or 'not_recorded'}" for name in parting)
        kinds.setdefault(ending, []).append(run)
    return dict(sorted(kinds.items()))


def _recorded(run: Run) -> dict[str, str]:
    """Return what keeps runs of one setting apart, in words; nothing where it was not recorded."""
    machines, result = machines_of(run), run.result
    values = {
        field.name: [getattr(machine, field.name) for machine in machines]
        for field in fields(Machine)
        if field.name != "commit"
    }
    values["data"] = [(result.get("data_sha256") or "")[:8] or None]
    values["images"] = [result["n_train"] + result["n_validation"] if "n_train" in result else None]
    return {
        name: "_then_".join(str(value) for value in dict.fromkeys(some) if value is not None)
        for name, some in values.items()
    }


def unusual(common: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of `in_common` is not by default so for its data set, model and epochs."""
    usual = experiments_of(common["dataset"], common["model"], [0], ["ls"], 1, common["epochs"])[0].config()
    del usual["label_smoothing"]  # it is among what is in common where it is unusual
    return {key: value for key, value in common.items() if value != usual.get(key)}
