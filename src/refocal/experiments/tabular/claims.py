"""What the paper says of its tables in words, measured on ours and on the published ones."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refocal.experiments.strict import PAPER_TRIALS
from refocal.experiments.tabular.tables import Cell, Table, p_value_greater


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
        fitted in every trial, and in how many of these it is ``smaller``. ``smaller_with_1`` is of all pairs,
        with the raw scores where it could not be fitted.
    """
    pairs = compared = smaller = with_1 = 0
    for table, other in zip(tables, extra, strict=True):
        for dataset in datasets:
            row, temperature = table.rows.get(dataset, {}), other.rows.get(dataset, {})
            for name, cell in row.items():
                ts = temperature.get(name.replace("-psi", "-TS-NLL")) if name.endswith("-psi") else None
                if ts is not None:
                    pairs += 1
                    compared += math.isfinite(ts.mean)
                    smaller += ts.mean < cell.mean
                    raw = row[name.removesuffix("-psi")].values
                    fitted = [t if math.isfinite(t) else r for t, r in zip(ts.values, raw, strict=True)]
                    with_1 += float(np.mean(fitted)) < cell.mean
    return {"pairs": pairs, "compared": compared, "smaller": smaller, "smaller_with_1": with_1}


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
        "median_difference": round(float(np.median(differences)), 3) if differences else None,
        "within_1_point": sum(abs(d) <= 1 for d in differences),
        "published": {
            "pairs": known,
            "clearly_better": paper_better,
            "no_clear_difference": known - paper_better - paper_worse,
            "clearly_worse": paper_worse,
        },
    }
