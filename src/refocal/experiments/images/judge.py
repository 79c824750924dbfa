"""What the image runs say of the paper: errors beside the published ones, directions as counts of trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from refocal.experiments.data import source
from refocal.experiments.files import published_numbers
from refocal.experiments.images.groups import unusual
from refocal.experiments.images.measures import BINS, N_BINS, TITLES, Group, Trials
from refocal.experiments.images.study import paper_schedule
from refocal.experiments.images.trends import Trend, claim_text, said_gamma
from refocal.experiments.strict import STRICT, z_of

COMPARISONS = (
    ("Standard: Psi is better than raw", ("standard", "psi"), ("standard", "raw")),
    ("LS: Psi is better than raw", ("ls", "psi"), ("ls", "raw")),
    ("TS_FL without Psi is worse than Standard", ("standard", "raw"), ("ts_fl", "raw")),
    ("TS_FL with Psi is better than without", ("ts_fl", "psi"), ("ts_fl", "raw")),
    ("TS_FL with Psi is better than Standard", ("ts_fl", "psi"), ("standard", "raw")),
)
"""Directions of Sec. 5: the scores with the smaller ECE or NLL, then those with the larger one."""

PAPER_SAYS = {
    "Standard: Psi is better than raw": "on SVHN, not on CIFAR10",
    "Standard: a gamma > 0 has the smallest raw ECE": "not with ResNet-8 on CIFAR10, nor on SVHN",
    "Standard: most test images are in underconfident bins": "on SVHN, not on CIFAR10",
}
"""Findings that the paper does not have, or not everywhere; it has the others."""


@dataclass(frozen=True)
class ErrorCell:
    """Our classification errors of one setting beside the published ones, in percent.

    Attributes:
        paradigm: "standard" or "ls".
        gamma: Of the training.
        trials: How many.
        mean: Over the trials.
        sd: The standard deviation of the trials; None of a single one.
        published: The paper's mean over 10 trials; None where it has none, or the schedule is another one.
        published_sd: What the paper prints in brackets, which is a standard deviation: see docs/reproduce.md.
        z: The difference over sqrt(published_sd^2 / 10 + sd^2 / trials); None of a single trial.
    """

    paradigm: str
    gamma: float
    trials: int
    mean: float
    sd: float | None
    published: float | None
    published_sd: float | None
    z: float | None

    @property
    def difference(self) -> float | None:
        """Ours minus the published mean."""
        return None if self.published is None else self.mean - self.published


@dataclass(frozen=True)
class Direction:
    """A direction of Sec. 5: in how many trials it shows, and the means that it compares, mostly ECEs."""

    finding: str
    gamma: float | None
    shows: int
    trials: int
    means: str


def published_errors(dataset: str, model: str) -> dict[tuple[str, float], tuple[float, float]]:
    """Return the paper's classification errors: mean and bracket in percent, by paradigm and gamma.

    Example:
        >>> published_errors("cifar10-s", "resnet8")["standard", 2.0]
        (26.45, 0.8)
    """
    try:
        paper = source(dataset).paper
    except ValueError:
        return {}
    gammas = {"CE": 0.0, "FL-1": 1.0, "FL-2": 2.0, "FL-3": 3.0}
    return {
        (row["paradigm"], gammas[row["method"]]): (float(row["mean"]), float(row["se"]))
        for row in published_numbers("error")
        if (row["dataset"], row["model"]) == (paper, model)
    }


def published_for(group: Group) -> dict[tuple[str, float], tuple[float, float]]:
    """Return the `published_errors` that a group can be held to: of the paper's training alone.

    The paper does not say what it held out, in which precision it trained, what the shortcuts and first
    weights of its networks are, and whether each trial drew a CIFAR-10-s of its own, so these may differ.
    """
    config, dataset, changed = group.config, group.config["dataset"], unusual(group.config)
    if dataset == "cifar10" and changed.get("train_part") == 0.1:
        dataset = "cifar10-s"
        del changed["train_part"]
    if changed.keys() - {"validation", "precision", "shortcuts", "first_weights"}:
        return {}
    epochs, steps = paper_schedule(dataset)
    if (config["epochs"], list(config["milestones"])) != (epochs, list(steps)):
        return {}
    return published_errors(dataset, config["model"])


def judge_errors(group: Group) -> list[ErrorCell]:
    """Return the errors of every trained setting beside the published ones."""
    published = published_for(group)
    cells = []
    for paradigm in ("standard", "ls"):
        for gamma, errors in group.trials("error", paradigm, "raw").items():
            percent = [100 * error for error in errors.values()]
            n, mean = len(percent), float(np.mean(percent))
            sd = float(np.std(percent, ddof=1)) if n > 1 else None
            paper, paper_sd = published.get((paradigm, gamma), (None, None))
            z = None
            if paper is not None and paper_sd is not None and sd is not None:
                z = z_of(mean, sd / math.sqrt(n), paper, paper_sd)
            cells.append(ErrorCell(paradigm, gamma, n, mean, sd, paper, paper_sd, z))
    return cells


def directions(group: Group, bins: int = N_BINS) -> list[Direction]:
    """Return the directions of Sec. 5 that the runs of a group can speak to.

    What is said over gamma counts every trial with two gammas or more, over the gammas that it has.

    Args:
        group: The runs.
        bins: Of the ECE and of the reliability diagram, one of `BINS`.
    """
    ece, fair = (_by_scores(group, f"{name}_{bins}") for name in ("ece", "fair"))
    found = list(_compared("ECE", ece, fair))
    found += _within("LS: with Psi gamma moves the ECE by at most 1 point", ece["ls", "psi"], 0.01)
    for paradigm in ("standard", "ts_fl", "ls"):
        text = f"{TITLES[paradigm]}: most test images are in underconfident bins"
        found += _most(text, group.trials(f"underconfident_{bins}", paradigm, "raw"))
    for paradigm in ("standard", "ts_fl", "ls"):
        text = f"{TITLES[paradigm]}: accuracy minus confidence grows with gamma"
        found += _growth(text, group.trials("gap", paradigm, "raw"))
    return found


def directions_by_nll(group: Group) -> list[Direction]:
    """Return those directions that can be counted by the NLL too, which knows no bins and no halves."""
    numbers = _by_scores(group, "nll")
    return list(_compared("NLL", numbers, numbers))


def _by_scores(group: Group, metric: str) -> dict[tuple[str, str], Trials]:
    return {
        (paradigm, link): group.trials(metric, paradigm, link)
        for paradigm in ("standard", "ts_fl", "ls")
        for link in ("raw", "psi")
    }


def _compared(
    name: str, numbers: Mapping[tuple[str, str], Trials], fair: Mapping[tuple[str, str], Trials]
) -> Iterator[Direction]:
    """Give the directions over gamma, and between scores; ``fair`` ones are all measured on the same rows."""
    yield from _sweet_spot(f"Standard: a gamma > 0 has the smallest raw {name}", numbers["standard", "raw"])
    for paradigm in ("ls", "ts_fl"):
        text = f"{TITLES[paradigm]}: the raw {name} grows with gamma"
        yield from _growth(text, numbers[paradigm, "raw"])
    for paradigm in ("ls", "ts_fl"):
        text = f"{TITLES[paradigm]}: gamma moves the {name} less with Psi"
        yield from _steadiness(text, numbers[paradigm, "raw"], numbers[paradigm, "psi"])
    for text, better, worse in COMPARISONS:
        sides = fair if better[0] != worse[0] else numbers
        for gamma in sides[better]:
            small, large = sides[better][gamma], sides[worse].get(gamma, {})
            seeds = sorted(small.keys() & large.keys())
            if gamma > 0 and seeds:
                means = " against ".join(
                    f"{np.mean([side[s] for s in seeds]):.4f}" for side in (small, large)
                )
                shows = sum(small[seed] < large[seed] for seed in seeds)
                yield Direction(text, gamma, shows, len(seeds), means)


def _curves(trials: Trials) -> dict[int, dict[float, float]]:
    """Return the numbers over gamma of each trial that has two gammas or more."""
    curves: dict[int, dict[float, float]] = {}
    for gamma, some in sorted(trials.items()):
        for seed, number in some.items():
            curves.setdefault(seed, {})[gamma] = number
    return {seed: curve for seed, curve in curves.items() if len(curve) > 1}


def _growth(text: str, raw: Trials) -> Iterator[Direction]:
    curves = _curves(raw)
    if curves:
        gammas = sorted({gamma for curve in curves.values() for gamma in curve})
        some = {g: [curve[g] for curve in curves.values() if g in curve] for g in gammas}
        lacking = {g: "" if len(some[g]) == len(curves) else f", n = {len(some[g])}" for g in gammas}
        numbers = ", ".join(f"{np.mean(some[g]):.4f} (gamma {g:g}{lacking[g]})" for g in gammas)
        shows = sum(bool(np.all(np.diff(list(curve.values())) > 0)) for curve in curves.values())
        yield Direction(text, None, shows, len(curves), numbers)


def _most(text: str, parts: Trials) -> Iterator[Direction]:
    for gamma, some in parts.items():
        if gamma > 0:
            shows, mean = sum(part > 0.5 for part in some.values()), np.mean(list(some.values()))
            yield Direction(text, gamma, shows, len(some), f"{100 * mean:.0f} % of them")


def _sweet_spot(text: str, raw: Trials) -> Iterator[Direction]:
    curves = [curve for curve in _curves(raw).values() if 0.0 in curve]
    if curves:
        best = [min(curve, key=lambda gamma: curve[gamma]) for curve in curves]
        counts = ", ".join(f"gamma {gamma:g} in {best.count(gamma)}" for gamma in sorted(set(best)))
        yield Direction(text, None, sum(gamma > 0 for gamma in best), len(curves), counts)


def _within(text: str, trials: Trials, tolerance: float) -> Iterator[Direction]:
    ranges = [float(np.ptp(list(curve.values()))) for curve in _curves(trials).values()]
    if ranges:
        shows = sum(moved <= tolerance for moved in ranges)
        yield Direction(text, None, shows, len(ranges), f"range {np.mean(ranges):.4f}")


def _steadiness(text: str, raw: Trials, psi: Trials) -> Iterator[Direction]:
    spreads = [
        [float(np.ptp(list(curves[seed].values()))) for curves in (_curves(psi), _curves(raw))]
        for seed in _curves(raw)
    ]
    if spreads:
        a, b = np.mean(spreads, axis=0)
        shows = sum(with_psi < plain for with_psi, plain in spreads)
        yield Direction(text, None, shows, len(spreads), f"range {a:.4f} against {b:.4f}")


def bins_matter(group: Group) -> list[str]:
    """Return the directions whose count is another one with 8 to 25 bins than with 10, and where."""
    here = {(d.finding, d.gamma): d for d in directions(group)}
    changed: dict[tuple[str, float | None], list[str]] = {}
    for bins in BINS:
        for d in directions(group, bins):
            if d.shows != here[d.finding, d.gamma].shows:
                changed.setdefault((d.finding, d.gamma), []).append(f"{d.shows} with {bins} bins")
    return [
        f"{text}{'' if gamma is None else f', gamma {gamma:g}'}: {here[text, gamma].shows} of "
        f"{here[text, gamma].trials} with 10 bins, {', '.join(texts)}"
        for (text, gamma), texts in changed.items()
    ]


def summary_of(groups: Sequence[Group], trends: Sequence[Trend] = ()) -> dict[str, Any]:
    """Return what the runs say of the paper, as JSON: errors, directions, what depends on bins, trends."""
    return {
        "rule": "strict: |z| <= 3, z = difference / sqrt(published SD^2 / 10 + our SD^2 / trials)",
        "runs": sum(len(group.settings) for group in groups),
        "groups": {group.name: _group_summary(group) for group in groups},
        "trends": {trend.name: trend.summary() for trend in trends},
    }


def _group_summary(group: Group) -> dict[str, Any]:
    cells, found = judge_errors(group), directions(group)
    return {
        "config": group.config,
        "runs": len(group.settings),
        "machines": group.machines_text,
        "errors": _counts(cells)
        | {"cells": [asdict(cell) | {"difference": cell.difference} for cell in cells]},
        "directions": [asdict(d) for d in found],
        "counts": _totals(found),
        "counts_by_nll": _totals(directions_by_nll(group)),
        "directions_that_change_with_the_bins": bins_matter(group),
        "rank_correlation_of_ece_and_nll": dict(zip(("rho", "scores"), _ece_and_nll(group), strict=True)),
    }


def _totals(found: Iterable[Direction]) -> dict[str, dict[str, int]]:
    """Return the counts of directions over all gammas."""
    totals: dict[str, dict[str, int]] = {}
    for d in found:
        total = totals.setdefault(d.finding, {"shows": 0, "trials": 0})
        total["shows"] += d.shows
        total["trials"] += d.trials
    return totals


def _ece_and_nll(group: Group) -> tuple[float | None, int]:
    """Return Spearman's correlation of ECE and NLL over the scores of Sec. 5, and of how many it is.

    Those are Standard, TS_FL and LS of each trial and gamma, raw and with Psi. Scores that are the same count
    once: at gamma 0 Psi changes nothing. None of fewer than three, or if all ECEs are equal, or all NLLs.
    """
    pairs = [
        (m.fair_ece, m.nll)
        for m in group.measures
        if np.isfinite(m.nll)
        and m.paradigm in ("standard", "ts_fl", "ls")
        and (m.link == "raw" or (m.link == "psi" and m.gamma > 0))
    ]
    if len(pairs) < 3 or min(len(set(side)) for side in zip(*pairs, strict=True)) < 2:
        return None, len(pairs)
    return float(spearmanr(*zip(*pairs, strict=True)).statistic), len(pairs)


def _counts(cells: Iterable[ErrorCell]) -> dict[str, int]:
    """Return how many settings have a published error, and how many of these agree by either rule."""
    known = [cell for cell in cells if cell.difference is not None]
    judged = [cell.z for cell in known if cell.z is not None]
    return {
        "published": len(known),
        "within_1_point": sum(abs(cell.difference or 0.0) <= 1 + 1e-9 for cell in known),
        "with_a_z": len(judged),
        "strict": sum(abs(z) <= STRICT for z in judged),
    }


def summary_text(summary: Mapping[str, Any]) -> Iterator[str]:
    """Give the lines of `summary_of` for people."""
    yield summary["rule"]
    yield "Standard: plain labels; LS: label smoothing; TS_FL: Standard with the T of least focal loss"
    yield "The lines of a group are what Sec. 5 of the paper says; where it says another thing, that follows."
    for name, group in summary["groups"].items():
        yield f"{name}: {group['runs']} runs on {group['machines']}"
        errors = group["errors"]
        for cell in errors["cells"]:
            yield f"  {TITLES[cell['paradigm']]}, gamma {cell['gamma']:g}: error {_cell_text(cell)}"
        if errors["published"]:
            yield (
                f"  errors within 1 point: {errors['within_1_point']} of {errors['published']}; "
                f"strict: {errors['strict']} of {errors['with_a_z']} with two trials or more"
            )
        by_nll = group["counts_by_nll"]
        for finding, count in group["counts"].items():
            parts = [
                f"gamma {d['gamma']:g}: {d['shows']} of {d['trials']}"
                for d in group["directions"]
                if d["finding"] == finding and d["gamma"] is not None
            ]
            text = f"  {finding}: {count['shows']} of {count['trials']} "
            text += "pairs of trial and gamma" if parts else "trials"
            text += f" ({', '.join(parts)})" if parts else ""
            text += f" [the paper: {PAPER_SAYS[finding]}]" if finding in PAPER_SAYS else ""
            other = by_nll.get(finding.replace("ECE", "NLL"))
            yield text + (f"; by the NLL {other['shows']} of {other['trials']}" if other else "")
    for name, trend in summary["trends"].items():
        yield f"{name}: raw ECE of Standard"
        for row in trend["values"]:
            eces = ", ".join(f"{cell['ece']:.4f} (gamma {cell['gamma']:g})" for cell in row["raw"])
            best = said_gamma(row["best_gamma"], row["best_is_largest"])
            yield f"  {trend['what']} {row['value']}: {eces}; best gamma {best}"
        yield from ("  " + line for line in claim_text(trend))


def _cell_text(cell: Mapping[str, Any]) -> str:
    sd = "" if cell["sd"] is None else f"SD {cell['sd']:.2f}, "
    text = f"{cell['mean']:.2f} ({sd}n {cell['trials']})"
    if cell["published"] is None:
        return f"{text}, nothing published to compare with"
    text += f", published {cell['published']:.2f} (SD {cell['published_sd']:.2f})"
    text += f": {cell['difference']:+.2f} points"
    return text if cell["z"] is None else f"{text}, z {cell['z']:+.1f}"
