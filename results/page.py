"""Bring the counts of results/README.md to those of the stored summaries, and write images/claims.md.

    python results/page.py

Each count of the page stands between two comments, and the first says where it comes from: a file, the place
in it, and how it is said: ``agreed of verdicts`` is two entries, ``.2f`` a format, ``-`` the value as it is.
In a place, ``value=4500`` is the one entry of a list that has this value. The tables of the image runs are
written as a whole, from `COLUMNS` and `CLAIMS`: the page has three groups, images/claims.md all of them.
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
            value = _entry(value, name) if isinstance(value, list) else value[name]
    if " of " in form:
        some, every = form.split(" of ")
        return f"{value[some]} of {value[every]}"
    return format(value, "" if form == "-" else form)


def _entry(values: list[Any], name: str) -> Any:
    """Return the entry with this number, or the one entry with such values."""
    if "=" not in name:
        return values[int(name)]
    wanted = dict(part.split("=") for part in name.split(","))
    found = [one for one in values if all(str(one[key]) == value for key, value in wanted.items())]
    if len(found) != 1:
        raise KeyError(f"{len(found)} entries have {name}")
    return found[0]


def more_bins(which: str) -> float:
    """Return the "mean", "min" or "max" of the ECE with 15 bins minus that with 10, in points."""
    with open(FOLDER / "images" / "bins.csv", newline="", encoding="utf-8") as file:
        gaps = [100 * (float(row["bins_15"]) - float(row["bins_10"])) for row in csv.DictReader(file)]
    return {"mean": sum(gaps) / len(gaps), "min": min(gaps), "max": max(gaps)}[which]


def changes() -> int:
    """Return how many counts of directions are others with some number of bins from 8 to 25 than with 10."""
    groups = image_summary()["groups"].values()
    return sum(len(group["directions_that_change_with_the_bins"]) for group in groups)


def directions() -> int:
    """Return how many counts of directions there are."""
    return sum(len(group["directions"]) for group in image_summary()["groups"].values())


RULES: dict[str, Callable[..., Any]] = {"15 bins": more_bins, "changes": changes, "directions": directions}
"""What is counted here, since no summary has it; the file is named for the reader."""


COLUMNS = {
    "all": "cifar10-s-resnet8-200-validation-0.0-precision-bfloat16",
    "drawn": "cifar10-resnet8-200-validation-0.0-precision-bfloat16-train_part-0.1",
    "all, public": "cifar10-s-resnet8-200-validation-0.0-precision-bfloat16"
    "-shortcuts-convolution-first_weights-outputs",
    "all, float32": "cifar10-s-resnet8-200-validation-0.0",
    "held out": "cifar10-s-resnet8-200",
    "ResNet-20": "cifar10-s-resnet20-200-validation-0.0-precision-bfloat16",
    "ResNet-20, drawn": "cifar10-resnet20-200-validation-0.0-precision-bfloat16-train_part-0.1",
    "ResNet-44": "cifar10-s-resnet44-200-validation-0.0-precision-bfloat16",
    "ResNet-44, conv.": "cifar10-s-resnet44-200-validation-0.0-precision-bfloat16-shortcuts-convolution",
}
"""The groups of image runs that are compared with Sec. 5, by their titles."""

SHORT = ("all", "drawn", "ResNet-20")
"""Those that the page itself has: the most trials, and another depth."""

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

ERRORS = (
    ("errors of the appendix: means within 1 point", "within_1_point", "published"),
    ("the same, strictly: z at most 3, from two trials on", "strict", "with_a_z"),
)
"""What is counted of the errors: a title, and two entries of the summary."""

OTHERWISE = ("Standard: Psi is better than raw", "Standard: most test images are in underconfident bins")
"""Counts of what the paper denies for CIFAR10: the other trials are those that agree with it."""


def short_rows(summary: dict[str, Any]) -> Iterator[str]:
    """Give the table of the page: three groups, by the ECE and by the NLL."""
    groups = [summary["groups"][COLUMNS[title]] for title in SHORT]
    yield f"| claim | {' | '.join(f'{title} | by NLL' for title in SHORT)} |"
    yield "|---" * (2 * len(SHORT) + 1) + "|"
    for text, some, every in ERRORS:
        cells = (f"{_count(group['errors'][some], group['errors'][every])} | " for group in groups)
        yield f"| {text} | {' | '.join(cells)} |"
    for text, finding in CLAIMS:
        cells = (f"{_said(group, finding)} | {_said(group, finding, 'NLL') or ''}" for group in groups)
        yield f"| {text} | {' | '.join(cells)} |"


def all_rows(summary: dict[str, Any], metric: str) -> Iterator[str]:
    """Give a table of all groups, by the "ECE" or by the "NLL"."""
    groups = [summary["groups"][name] for name in COLUMNS.values()]
    yield f"| claim | {' | '.join(COLUMNS)} |"
    yield "|---" * (len(COLUMNS) + 1) + "|"
    for text, some, every in ERRORS if metric == "ECE" else ():
        cells = [_count(group["errors"][some], group["errors"][every]) for group in groups]
        yield f"| {text} | {' | '.join(cells)} |"
    for text, finding in CLAIMS:
        found = [_said(group, finding, metric) for group in groups]
        if metric == "ECE" and not any(found):
            raise KeyError(f"no group has {finding!r}")
        if any(found):
            yield f"| {text.replace('ECE', metric)} | {' | '.join(cell or '-' for cell in found)} |"


def claims_page(summary: dict[str, Any]) -> Iterator[str]:
    """Give the page of all groups."""
    yield from ["# The directions of Sec. 5, for all groups", ""]
    yield "Written by `python results/page.py`. What the columns are is said on"
    yield "[the first page](../README.md#images-sec-5). Rows about the course over gamma count trials, the"
    yield "others pairs of trial and gamma > 0. Bold: not every time."
    yield from ["", "## By the ECE", "", *all_rows(summary, "ECE"), ""]
    yield from ["## By the NLL", "", *all_rows(summary, "NLL"), ""]
    yield from ["## ECE and NLL", ""]
    yield "Spearman's correlation over the scores of Standard, TS_FL and LS, raw and with Psi, of every trial"
    yield "and gamma (the paper: highly correlated). Scores of one trial share their network, so they are not"
    yield "independent."
    yield from ["", f"| | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    ranks = [summary["groups"][name]["rank_correlation_of_ece_and_nll"] for name in COLUMNS.values()]
    yield "| correlation | " + " | ".join(f"{rank['rho']:.2f}" for rank in ranks) + " |"
    yield "| scores | " + " | ".join(str(rank["scores"]) for rank in ranks) + " |"


def _said(group: dict[str, Any], finding: str, metric: str = "ECE") -> str:
    """Return the count of a finding by a metric; nothing where it is not counted."""
    counts = group["counts"] if metric == "ECE" else group["counts_by_nll"]
    key = finding.replace("ECE", metric)
    if key not in counts:
        return ""
    shows, trials = counts[key]["shows"], counts[key]["trials"]
    return _count(trials - shows if finding in OTHERWISE else shows, trials)


def _count(some: int, every: int) -> str:
    if not every:
        return "-"
    return f"{some} of {every}" if some == every else f"**{some} of {every}**"


def updated(text: str) -> str:
    """Return the page with every count as its source has it."""
    begin, end = "<!-- image rows: begin -->\n", "<!-- image rows: end -->"
    if begin in text:
        before, rest = text.split(begin)
        rows = "".join(f"{line}\n" for line in short_rows(image_summary()))
        text = before + begin + rows + end + rest.split(end)[1]

    def count(match: re.Match[str]) -> str:
        source = [match[name] for name in ("file", "place", "form")]
        return f"<!-- {'; '.join(source)} -->{said(*source)}<!-- end -->"

    return COUNT.sub(count, text)


def image_summary() -> dict[str, Any]:
    """Return what the runs of images say of the paper."""
    summary: dict[str, Any] = json.loads((FOLDER / "images" / "summary.json").read_text(encoding="utf-8"))
    return summary


if __name__ == "__main__":
    page = FOLDER / "README.md"
    page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
    claims = "".join(f"{line}\n" for line in claims_page(image_summary()))
    (FOLDER / "images" / "claims.md").write_text(claims, encoding="utf-8")
