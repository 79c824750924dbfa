"""The data sets of the paper: what they are called, where they come from, what is known about the copies."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal


@dataclass(frozen=True)
class Source:
    """One data set of the registry.

    Attributes:
        name: As on the command line, and the name of its file without ``.npz``.
        paper: As in the paper's tables; None for a variant that has no rows of its own there.
        n_classes: Of the version that is meant.
        openml: Its number on OpenML; None where no number is certain.
        where: In words, where the data come from if not from OpenML.
        sha256: Of the file that our results were made with, unless the notes name another.
        kind: "tabular" for the paper's 30 small sets (MNIST and its like too), "image" for the ResNet sets.
        partial: That file has only a part of the rows: its results are shown, but not judged.
        codes: Categorical columns with numbers as levels keep these numbers; otherwise they become one-hot.
        shape: Of one image in an OpenML row, which is then stored as uint8, channels last.
        n_rows: Of the whole OpenML table, where rows are images.
        n_test: How many of the last OpenML rows are the test set.
        balanced: The test set has equally many rows of each class, by which the order of the rows is checked.
        notes: What a reader of the results should know.

    Example:
        >>> REGISTRY["usps"].openml, REGISTRY["usps"].n_classes
        (41082, 10)
    """

    name: str
    paper: str | None
    n_classes: int
    openml: int | None
    sha256: str | None
    where: str = ""
    kind: Literal["tabular", "image"] = "tabular"
    partial: bool = False
    codes: bool = False
    shape: tuple[int, ...] | None = None
    n_rows: int | None = None
    n_test: int = 0
    balanced: bool = False
    notes: str = ""


def _read() -> dict[str, Source]:
    """Return the rows of registry.csv by name: in the order of the paper's tables, variants last."""
    text = resources.files(__package__).joinpath("registry.csv").read_text(encoding="utf-8")
    found = {}
    for row in csv.DictReader(text.splitlines()):
        values: dict[str, Any] = {name: value or None for name, value in row.items()}
        for name in ("n_classes", "openml", "n_rows", "n_test"):
            values[name] = int(row[name]) if row[name] else None
        for name in ("partial", "codes", "balanced"):
            values[name] = row[name] == "1"
        values["shape"] = tuple(map(int, row["shape"].split())) or None
        found[row["name"]] = Source(**values | {"where": row["where"], "notes": row["notes"]})
    return found


REGISTRY = _read()
"""Every data set by name."""
