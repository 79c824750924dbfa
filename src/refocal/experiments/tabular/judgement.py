"""How far the tables agree with the published ones, by the strict rule and by kinder ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refocal.experiments.strict import STRICT, z_of
from refocal.experiments.tabular.tables import Cell, Published, Table
from refocal.experiments.tabular.tasks import PAPER_TASKS

FAR = 1.0
"""Points of difference above which a cell is listed."""

SEARCHED = ("letter", "pendigits", "satimage", "japanese-vowels", "banknote", "mushroom", "basehock")
"""Data sets whose published tables the scaling and the weight decay were chosen by."""
BINS_FOUND = (
    *("australian", "vehicle", "phoneme", "banknote", "phishing", "spambase"),
    *("twonorm", "ringnorm", "banana", "splice", "satimage", "mushroom"),
)
"""Data sets whose published tables the number of bins was found by."""
CHOSEN = (*PAPER_TASKS, "mnist", "adult", "fashion-mnist")
"""Data sets whose own published tables say which version, scaling of pixels or test rows are meant.

Of Adult all rows were kept after four versions had been compared with its tables; Fashion-MNIST got its
official test rows after others had missed its tables.
"""
SPLIT_ALONE = "only the split chosen by it"
"""The group of data sets by whose tables nothing else was chosen; the split is from the spreads of all."""


class Judged(NamedTuple):
    """One cell against the published one."""

    dataset: str
    model: str
    metric: str
    method: str
    mean: float
    published: float
    z: float
    """Difference over its standard error; infinite where neither varies and they differ."""
    strict: bool
    """Whether |z| <= 3."""
    floor: bool
    """Whether the difference is at most max(1 point, 3 standard errors)."""
    printed: bool
    """The strict rule with the printed spread as the standard error that its caption calls it."""
    bold: bool
    """Whether both are in boldface, or neither."""

    @property
    def difference(self) -> float:
        """Ours minus the published one, in points."""
        return self.mean - self.published


def z_score(cell: Cell) -> float:
    """Return the distance of a cell from the published one in standard errors of their difference.

    Raises:
        ValueError: If the cell has no published value, or less than two trials.
    """
    if cell.published is None or not math.isfinite(cell.standard_error):
        raise ValueError("a z-score needs a published value and at least 2 trials")
    return z_of(cell.mean, cell.standard_error, cell.published.mean, cell.published.spread)


def judge(table: Table, datasets: Iterable[str]) -> list[Judged]:
    """Return every cell of some rows that has a published value; a single trial cannot be judged."""
    result = []
    for dataset in datasets:
        for name, cell in table.rows.get(dataset, {}).items():
            if cell.published is None or not math.isfinite(cell.standard_error):
                continue
            z, gap = z_score(cell), abs(cell.mean - cell.published.mean)
            printed = STRICT * math.hypot(cell.standard_error, cell.published.spread)
            result.append(
                Judged(
                    dataset,
                    table.model,
                    table.metric,
                    name,
                    cell.mean,
                    cell.published.mean,
                    z,
                    strict=abs(z) <= STRICT,
                    floor=gap <= FAR or abs(z) <= STRICT,
                    printed=gap <= printed,
                    bold=cell.bold == cell.published.bold,
                )
            )
    return result


class Verdict(NamedTuple):
    """Whether psi helps: the ECE of a loss before psi against that after it, published and here."""

    dataset: str
    model: str
    method: str
    helps: bool
    """Published."""
    clear: bool
    """Published, above two combined printed spreads."""
    agrees: bool
    """Whether the sign is the same here; a difference of exactly 0 has none."""


def verdicts(table: Table, datasets: Iterable[str]) -> list[Verdict]:
    """Return the verdict of every pair of cells, before and after psi, of some rows of a table of ECE."""
    result = []
    for dataset in datasets:
        row = table.rows.get(dataset, {})
        for name, before in row.items():
            after = row.get(f"{name}-psi")
            if after is None or before.published is None or after.published is None:
                continue
            pair = (before.published, after.published)
            result.append(verdict_of(dataset, table.model, name, pair, before.mean - after.mean))
    return result


def verdict_of(
    dataset: str, model: str, method: str, paper: Sequence[Published], difference: float
) -> Verdict:
    """Return the verdict of a pair: published before and after psi, and our difference of the two."""
    before, after = paper
    gap = before.mean - after.mean
    clear = abs(gap) > 2 * math.hypot(before.spread, after.spread)
    return Verdict(dataset, model, method, gap > 0, clear, difference * gap > 0)


def groups_of(datasets: Iterable[str]) -> dict[str, list[str]]:
    """Return judged data sets by what was chosen by their tables."""
    judged = list(datasets)
    return {
        "scaling and weight decay chosen by it": [d for d in judged if d in SEARCHED],
        "version, pixels or test rows chosen by it": [d for d in judged if d in CHOSEN],
        **bins_groups(judged),
        SPLIT_ALONE: [d for d in judged if d not in (*SEARCHED, *CHOSEN, *BINS_FOUND)],
    }


def bins_groups(datasets: Iterable[str]) -> dict[str, list[str]]:
    """Return judged data sets by whether the number of bins was found by them."""
    judged = list(datasets)
    return {
        "bins found by it": [d for d in judged if d in BINS_FOUND],
        "bins not found by it": [d for d in judged if d not in BINS_FOUND],
    }


def counts(cells: Sequence[Judged]) -> dict[str, Any]:
    """Return how many cells meet each rule, and the mean and root mean square of the finite z."""
    finite = [cell.z for cell in cells if math.isfinite(cell.z)]
    return {
        "cells": len(cells),
        "strict": sum(cell.strict for cell in cells),
        "floor": sum(cell.floor for cell in cells),
        "printed": sum(cell.printed for cell in cells),
        "z_mean": _rounded(np.mean(finite)) if finite else None,
        "z_rms": _rounded(np.sqrt(np.mean(np.square(finite)))) if finite else None,
    }


def judgement(ece: Sequence[Table], error: Sequence[Table], datasets: Sequence[str]) -> dict[str, Any]:
    """Return the whole judgement of a study as JSON values.

    Args:
        ece: The ECE table of each model, of one number of bins.
        error: The error table of each model.
        datasets: That are judged; those without a row are left out.
    """
    here = [d for d in datasets if any(d in table.rows for table in ece)]
    cells = [cell for table in ece for cell in judge(table, here)]
    # Errors have no bins: a data set that was measured with other numbers of them has errors all the same.
    errors = [cell for table in error for cell in judge(table, datasets)]
    signs = [verdict for table in ece for verdict in verdicts(table, here)]
    clear = [verdict for verdict in signs if verdict.clear]
    groups = groups_of(datasets)
    return {
        "data_sets": here,
        "ece": counts(cells),
        "ece_by_model": {t.model: counts([c for c in cells if c.model == t.model]) for t in ece},
        "ece_by_group": _by_group(cells, groups),
        "ece_by_row": _by_row(cells),
        "error": counts(errors),
        "error_by_group": _by_group(errors, groups),
        "error_by_row": _by_row(errors),
        "boldface": {
            "cells": len(cells),
            "agree": sum(cell.bold for cell in cells),
            "ce_and_psi_bold_would_agree": sum(_bold_by_rule(cell, ece) for cell in cells),
        },
        "signs": {
            "pairs": len(signs),
            "agree": sum(v.agrees for v in signs),
            "psi_always_helps_would_agree": sum(v.helps for v in signs),
        },
        "clear_verdicts": {
            "pairs": len(clear),
            "agree": sum(v.agrees for v in clear),
            "psi_always_helps_would_agree": sum(v.helps for v in clear),
        },
        "not_strict": [_told(cell) for cell in cells + errors if not cell.strict],
        "far": [_told(cell) for cell in cells + errors if abs(cell.difference) > FAR],
        "wrong_signs": [f"{v.dataset}, {v.model}, {v.method}" for v in signs if not v.agrees],
    }


def _by_group(cells: Sequence[Judged], groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    return {name: counts([c for c in cells if c.dataset in some]) for name, some in groups.items()}


def _by_row(cells: Sequence[Judged]) -> dict[str, Any]:
    rows = itertools.groupby(cells, key=lambda c: f"{c.dataset}, {c.model}")
    return {name: counts(list(some)) for name, some in rows}


def _bold_by_rule(cell: Judged, tables: Sequence[Table]) -> bool:
    """Return whether a cell is published as who looks at no number prints it: CE and psi in boldface."""
    (table,) = (table for table in tables if table.model == cell.model)
    paper = table.rows[cell.dataset][cell.method].published
    return paper is not None and paper.bold == (cell.method == "CE" or cell.method.endswith("-psi"))


def nearer(
    first: Mapping[str, Any], second: Mapping[str, Any], groups: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, int]]:
    """Count tables of one data set and model whose rms z is smaller by the first of two judgements.

    Args:
        first: A `judgement`, of one number of bins.
        second: Of another one.
        groups: Names of data sets that are counted together.
    """
    pairs = {
        name: (of["z_rms"], second["ece_by_row"][name]["z_rms"]) for name, of in first["ece_by_row"].items()
    }
    known = {name: pair for name, pair in pairs.items() if None not in pair}
    result = {}
    for group, datasets in groups.items():
        of_group = [pair for name, pair in known.items() if name.split(", ")[0] in datasets]
        result[group] = {"tables": len(of_group), "nearer": sum(a < b for a, b in of_group)}
    return result


def _told(cell: Judged) -> dict[str, Any]:
    return {
        "dataset": cell.dataset,
        "model": cell.model,
        "metric": cell.metric,
        "method": cell.method,
        "mean": round(cell.mean, 3),
        "published": cell.published,
        "z": _rounded(cell.z) if math.isfinite(cell.z) else None,
    }


def _rounded(value: Any) -> float:
    return round(float(value), 3)
