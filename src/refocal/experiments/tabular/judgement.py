"""How far the tables agree with the published ones, by a strict rule and by kinder ones, and what they show.

A published cell is a mean over ten trials with a spread in brackets, which is a standard deviation
(docs/reproduce.md). So the distance of two cells is

.. math:: z = (m - m_0) / \\sqrt{s^2 / n + s_0^2 / 10}

and the strict rule is |z| <= 3. It has no floor: a cell that hardly varies must be met as exactly as it is
printed.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refocal.experiments.tabular.tables import Cell, Table, p_value_greater
from refocal.experiments.tabular.tasks import PAPER_TASKS

PAPER_TRIALS = 10
STRICT = 3.0
FAR = 1.0
"""Points of difference above which a cell is listed."""

SEARCHED = ("letter", "pendigits", "satimage", "japanese-vowels", "banknote", "mushroom", "basehock")
"""Data sets whose published tables the scaling and the weight decay were chosen by."""
BINS_FOUND = (
    *("australian", "vehicle", "phoneme", "banknote", "phishing", "spambase"),
    *("twonorm", "ringnorm", "banana", "splice", "satimage", "mushroom"),
)
"""Data sets whose published tables the number of bins was found by."""
CHOSEN = (*PAPER_TASKS, "mnist")
"""Data sets whose own published tables say which version, or which scaling of pixels, is meant."""


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
    """The same with the printed spread as if it were a standard error."""
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
    gap = cell.mean - cell.published.mean
    spread = math.hypot(cell.standard_error, cell.published.spread / math.sqrt(PAPER_TRIALS))
    return gap / spread if spread else math.copysign(math.inf, gap) if gap else 0.0


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
                    printed=gap <= max(FAR, printed),
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
            gap = before.published.mean - after.published.mean
            clear = abs(gap) > 2 * math.hypot(before.published.spread, after.published.spread)
            agrees = (before.mean - after.mean) * gap > 0
            result.append(Verdict(dataset, table.model, name, gap > 0, clear, agrees))
    return result


def groups_of(datasets: Iterable[str]) -> dict[str, list[str]]:
    """Return judged data sets by what their agreement can tell; the last group is a confirmation."""
    judged = list(datasets)
    return {
        "protocol searched by it": [d for d in judged if d in SEARCHED],
        "version chosen by it": [d for d in judged if d in CHOSEN],
        "confirmed on it": [d for d in judged if d not in SEARCHED and d not in CHOSEN],
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
    errors = [cell for table in error for cell in judge(table, here)]
    signs = [verdict for table in ece for verdict in verdicts(table, here)]
    clear = [verdict for verdict in signs if verdict.clear]
    by_row = {
        f"{dataset}, {model}": counts(list(some))
        for (dataset, model), some in itertools.groupby(cells, key=lambda c: (c.dataset, c.model))
    }
    groups = groups_of(here) | {
        "bins found by it": [d for d in here if d in BINS_FOUND],
        "bins confirmed on it": [d for d in here if d not in BINS_FOUND],
        "neither bins, protocol nor version by it": [
            d for d in here if d not in BINS_FOUND and d not in SEARCHED and d not in CHOSEN
        ],
    }
    return {
        "data_sets": here,
        "ece": counts(cells),
        "ece_by_model": {t.model: counts([c for c in cells if c.model == t.model]) for t in ece},
        "ece_by_group": {
            name: counts([c for c in cells if c.dataset in some]) for name, some in groups.items()
        },
        "ece_by_row": by_row,
        "error": counts(errors),
        "boldface": {"cells": len(cells), "agree": sum(cell.bold for cell in cells)},
        "signs": {"pairs": len(signs), "agree": sum(v.agrees for v in signs)},
        "clear_verdicts": {
            "pairs": len(clear),
            "agree": sum(v.agrees for v in clear),
            "psi_always_helps_would_agree": sum(v.helps for v in clear),
        },
        "not_strict": [_told(cell) for cell in cells + errors if not cell.strict],
        "far": [_told(cell) for cell in cells + errors if abs(cell.difference) > FAR],
        "wrong_signs": [f"{v.dataset}, {v.model}, {v.method}" for v in signs if not v.agrees],
    }


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


def claims(tables: Sequence[Table], datasets: Sequence[str]) -> dict[str, Any]:
    """Return what the paper says of its tables in words, measured on ours and on the published ones.

    A data set counts for a claim if its own row has what the claim is about: two gammas, cross entropy, psi.

    Args:
        tables: The ECE table of each model.
        datasets: That are judged.
    """
    result: dict[str, Any] = {}
    every: list[tuple[Cell, Cell]] = []
    for table in tables:
        rows = [table.rows[d] for d in datasets if d in table.rows]
        raw = [by_gamma(row) for row in rows]
        several = [list(of.values()) for of in raw if len(of) > 1]
        papers = [[cell.published.mean for cell in of if cell.published] for of in several]
        known = [means for of, means in zip(several, papers, strict=True) if len(means) == len(of)]
        with_ce = [of for of in raw if len(of) > 1 and 0.0 in of]
        corrected = [(row[f"{name}-psi"], row[name]) for row in rows for name in row if f"{name}-psi" in row]
        gammas = sorted({gamma for of in with_ce for gamma in of} - {0.0})
        result[table.model] = {
            "data_sets": len(rows),
            "data_sets_with_two_gammas": len(several),
            "ece_rises_with_every_gamma": sum(_rises([cell.mean for cell in of]) for of in several),
            "data_sets_with_two_gammas_published": len(known),
            "ece_rises_with_every_gamma_published": sum(map(_rises, known)),
            "largest_gamma_above_ce": sum(of[max(of)].mean > of[0.0].mean for of in with_ce),
            "raw_above_ce": {
                f"FL-{gamma:g}": _smaller(
                    [(of[0.0], of[gamma]) for of in with_ce if gamma in of], "data_sets", "above"
                )
                for gamma in gammas
            },
            "psi_below_raw": _smaller(corrected, "pairs", "below"),
            "psi_against_ce": _against([(psi, row["CE"]) for row in rows for psi in _after_psi(row)]),
        }
        every += corrected
    result["psi_below_raw"] = _smaller(every, "pairs", "below")
    return result


def temperature_against_psi(
    tables: Sequence[Table], extra: Sequence[Table], datasets: Sequence[str]
) -> dict[str, int]:
    """Count how often a temperature that was cross-fitted with labels has a smaller NLL than psi without.

    Not the ECE: by chance one half has more hits than the other, so its temperature is too small for the
    other, whose temperature is too large for it. In bins of both halves that cancels, and the ECE is about as
    small as if the temperature had been fitted to the rows themselves (``results/tabular/crossfit.py``). The
    NLL is a sum over rows, each by a temperature that has not seen it.

    Args:
        tables: The NLL table of each model.
        extra: The same after temperature scaling.
        datasets: That are judged.

    Returns:
        ``pairs`` of a data set, a model and a gamma, ``compared``, those in which a temperature could be
        fitted in every trial, and in how many of these it is ``smaller``.
    """
    pairs = compared = smaller = 0
    for table, other in zip(tables, extra, strict=True):
        for dataset in datasets:
            row, temperature = table.rows.get(dataset, {}), other.rows.get(dataset, {})
            for name, cell in row.items():
                ts = temperature.get(name.replace("-psi", "-TS-NLL")) if name.endswith("-psi") else None
                if ts is not None:
                    pairs += 1
                    compared += math.isfinite(ts.mean)
                    smaller += ts.mean < cell.mean
    return {"pairs": pairs, "compared": compared, "smaller": smaller}


def by_gamma(row: Mapping[str, Cell]) -> dict[float, Cell]:
    """Return the cells of a row before psi by their gamma, the smallest first; other losses have none.

    Example:
        >>> list(by_gamma(dict.fromkeys(["FL-3", "FL-0.5", "FL-3-psi", "CE", "GCE"], None)))
        [0.0, 0.5, 3.0]
    """
    found = {}
    for name, cell in row.items():
        if name == "CE":
            found[0.0] = cell
        elif focal := re.fullmatch(r"FL-(\d[\d.e+-]*)", name):
            found[float(focal[1])] = cell
    return dict(sorted(found.items()))


def _after_psi(row: Mapping[str, Cell]) -> list[Cell]:
    """Return the cells of a row after psi, none where there is no cross entropy to compare them with."""
    return [cell for name, cell in row.items() if name.endswith("-psi")] if "CE" in row else []


def _rises(means: Sequence[float]) -> bool:
    return all(a < b for a, b in itertools.pairwise(means))


def _smaller(pairs: Sequence[tuple[Cell, Cell]], all_name: str, name: str) -> dict[str, Any]:
    """Count pairs, and those in which the first cell has the smaller mean, ours and published."""
    known = [(a.published, b.published) for a, b in pairs if a.published and b.published]
    return {
        all_name: len(pairs),
        name: sum(a.mean < b.mean for a, b in pairs),
        "published": {all_name: len(known), name: sum(a.mean < b.mean for a, b in known)},
    }


def _against(every: Sequence[tuple[Cell, Cell]]) -> dict[str, Any]:
    """Count pairs of ECE by a two-sided Welch test at 5 %, ours and (by the printed spreads) published."""
    pairs = [pair for pair in every if min(len(cell.values) for cell in pair) > 1]  # one trial has no spread
    better = worse = paper_better = paper_worse = known = 0
    for psi, ce in pairs:
        a, b = np.array(psi.values), np.array(ce.values)
        better += p_value_greater(b, a) < 0.025
        worse += p_value_greater(a, b) < 0.025
        if psi.published and ce.published:
            known += 1
            gap = psi.published.mean - ce.published.mean
            clear = abs(gap) > 2 * math.hypot(psi.published.spread, ce.published.spread) / math.sqrt(
                PAPER_TRIALS
            )
            paper_better += clear and gap < 0
            paper_worse += clear and gap > 0
    differences = [psi.mean - ce.mean for psi, ce in pairs]
    return {
        "pairs": len(pairs),
        "clearly_better": better,
        "no_clear_difference": len(pairs) - better - worse,
        "clearly_worse": worse,
        "median_difference": _rounded(np.median(differences)) if differences else None,
        "within_1_point": sum(abs(d) <= 1 for d in differences),
        "published": {
            "pairs": known,
            "clearly_better": paper_better,
            "no_clear_difference": known - paper_better - paper_worse,
            "clearly_worse": paper_worse,
        },
    }


def _rounded(value: Any) -> float:
    return round(float(value), 3)
