"""Bring the counts of results/README.md to those of the stored summaries.

    python results/page.py

Each count of the page stands between two comments, and the first says where it comes from: a file, the place
in it, and how it is said: ``agreed of verdicts`` is two entries, ``.2f`` a format, ``-`` the value as it is.
The table of the image runs is written as a whole, from `COLUMNS` and `CLAIMS`.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
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


COLUMNS = {
    "all": "cifar10-s-resnet8-200-validation-0.0-precision-bfloat16",
    "drawn": "cifar10-resnet8-200-validation-0.0-precision-bfloat16-train_part-0.1",
    "all, public": "cifar10-s-resnet8-200-validation-0.0-precision-bfloat16"
    "-shortcuts-convolution-first_weights-outputs",
    "all, float32": "cifar10-s-resnet8-200-validation-0.0",
    "held out": "cifar10-s-resnet8-200",
    "ResNet-20": "cifar10-s-resnet20-200-validation-0.0-precision-bfloat16",
    "ResNet-44": "cifar10-s-resnet44-200-validation-0.0-precision-bfloat16",
    "ResNet-44, conv.": "cifar10-s-resnet44-200-validation-0.0-precision-bfloat16-shortcuts-convolution",
}
"""The groups of image runs that the page compares with Sec. 5, by their titles there."""

CLAIMS = (
    ("Psi alone worsens Standard (the paper: on CIFAR10, not on SVHN)", "Standard: Psi is better than raw"),
    (
        "Standard: some gamma > 0 has a smaller raw ECE than cross entropy "
        "(the paper: not with ResNet-8 on CIFAR10)",
        "Standard: a gamma > 0 has the smallest raw ECE",
    ),
    ("LS: the raw ECE grows with gamma", "LS: the raw ECE grows with gamma"),
    ("LS: gamma moves the ECE less with Psi", "LS: gamma moves the ECE less with Psi"),
    (
        "LS: with Psi gamma does not matter (here: it moves the ECE by at most 1 point)",
        "LS: with Psi gamma moves the ECE by at most 1 point",
    ),
    ("LS: Psi improves the ECE", "LS: Psi is better than raw"),
    ("TS_FL: the raw ECE grows with gamma", "TS_FL: the raw ECE grows with gamma"),
    ("TS_FL: gamma moves the ECE less with Psi", "TS_FL: gamma moves the ECE less with Psi"),
    ("TS_FL without Psi is worse than Standard", "TS_FL without Psi is worse than Standard"),
    ("TS_FL: Psi improves the ECE", "TS_FL with Psi is better than without"),
    ("TS_FL with Psi is better than Standard", "TS_FL with Psi is better than Standard"),
    (
        "LS: underconfident bins (here: most test images are in such bins)",
        "LS: most test images are in underconfident bins",
    ),
    ("TS_FL: the same", "TS_FL: most test images are in underconfident bins"),
    (
        "Standard: most test images are *not* in such bins (the paper: on CIFAR10)",
        "Standard: most test images are in underconfident bins",
    ),
    (
        "LS: underconfidence grows with gamma (here: accuracy minus mean confidence)",
        "LS: accuracy minus confidence grows with gamma",
    ),
    ("TS_FL: the same", "TS_FL: accuracy minus confidence grows with gamma"),
    ("Standard: the same", "Standard: accuracy minus confidence grows with gamma"),
)
"""What the paper says, and the count of the summary that speaks to it."""

OTHERWISE = ("Standard: Psi is better than raw", "Standard: most test images are in underconfident bins")
"""Counts of what the paper denies for CIFAR10: the other trials are those that agree with it."""


def image_rows(summary: dict[str, Any]) -> Iterator[str]:
    """Give the table of the image runs; what does not show every time is bold."""
    groups = [summary["groups"][name] for name in COLUMNS.values()]
    yield f"| claim | {' | '.join(COLUMNS)} |"
    yield "|---" * (len(COLUMNS) + 1) + "|"
    for text, some, every in (
        ("errors of the appendix: means within 1 point", "within_1_point", "published"),
        ("the same, strictly: z at most 3, from two trials on", "strict", "with_a_z"),
    ):
        cells = (_count(group["errors"][some], group["errors"][every]) for group in groups)
        yield f"| {text} | {' | '.join(cells)} |"
    for text, finding in CLAIMS:
        cells = []
        for group in groups:
            count = group["counts"].get(finding, {"shows": 0, "trials": 0})
            agree = count["trials"] - count["shows"] if finding in OTHERWISE else count["shows"]
            cells.append(_count(agree, count["trials"]))
        yield f"| {text} | {' | '.join(cells)} |"
    ranks = (group["rank_correlation_of_ece_and_nll"] for group in groups)
    cells = ("-" if rank is None else f"{rank:.2f}" for rank in ranks)
    yield f"| NLL is highly correlated with ECE (here: Spearman) | {' | '.join(cells)} |"


def _count(some: int, every: int) -> str:
    if not every:
        return "-"
    return f"{some} of {every}" if some == every else f"**{some} of {every}**"


def updated(text: str) -> str:
    """Return the page with every count as its source has it."""
    summary = json.loads((FOLDER / "images" / "summary.json").read_text(encoding="utf-8"))
    begin, end = "<!-- image rows: begin -->\n", "<!-- image rows: end -->"
    if begin in text:
        before, rest = text.split(begin)
        text = (
            before + begin + "".join(f"{line}\n" for line in image_rows(summary)) + end + rest.split(end)[1]
        )

    def count(match: re.Match[str]) -> str:
        source = [match[name] for name in ("file", "place", "form")]
        return f"<!-- {'; '.join(source)} -->{said(*source)}<!-- end -->"

    return COUNT.sub(count, text)


if __name__ == "__main__":
    page = FOLDER / "README.md"
    page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
