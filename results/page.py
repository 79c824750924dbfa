"""Bring the counts of results/README.md to those of the stored summaries.

    python results/page.py

Each count of the page stands between two comments, and the first says where it comes from: a file, the place
in it, and how it is said: ``agreed of verdicts`` is two entries, ``.2f`` a format, ``-`` the value as it is.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
COUNT = re.compile(r"<!-- (?P<file>[^;>]+); (?P<place>[^;>]+); (?P<form>[^;>]+) -->(?P<text>.*?)<!-- end -->")


def said(file: str, place: str, form: str) -> str:
    """Return what should stand on the page.

    Raises:
        LookupError: If the place is not in the file.
    """
    rule, *names = place.split("/")
    value: Any
    if rule in RULES:
        value = RULES[rule](*names)
    else:
        value = json.loads((FOLDER / file).read_text(encoding="utf-8"))
        for name in place.split("/"):
            value = value[int(name) if isinstance(value, list) else name]
    if " of " in form:
        some, every = form.split(" of ")
        return f"{value[some]} of {value[every]}"
    return format(value, "" if form == "-" else form)


def more_bins(which: str) -> float:
    """Return the "mean", "min" or "max" of the ECE with 15 bins minus that with 10, in points."""
    with open(FOLDER / "images" / "bins.csv", newline="", encoding="utf-8") as file:
        gaps = [100 * (float(row["bins_15"]) - float(row["bins_10"])) for row in csv.DictReader(file)]
    return {"mean": sum(gaps) / len(gaps), "min": min(gaps), "max": max(gaps)}[which]


def changes() -> int:
    """Return how many counts of directions are others with some number of bins from 8 to 25 than with 10."""
    groups = json.loads((FOLDER / "images" / "summary.json").read_text(encoding="utf-8"))["groups"]
    return sum(len(group["directions_that_change_with_the_bins"]) for group in groups.values())


RULES: dict[str, Callable[..., Any]] = {"15 bins": more_bins, "changes": changes}
"""What is counted here, since no summary has it; the file is named for the reader."""


def updated(text: str) -> str:
    """Return the page with every count as its source has it."""

    def count(match: re.Match[str]) -> str:
        source = [match[name] for name in ("file", "place", "form")]
        return f"<!-- {'; '.join(source)} -->{said(*source)}<!-- end -->"

    return COUNT.sub(count, text)


if __name__ == "__main__":
    page = FOLDER / "README.md"
    page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
