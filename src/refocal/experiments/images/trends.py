"""What depth and number of training images change: the best gamma, and what Psi does; from Standard."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal.experiments.files import markdown_table
from refocal.experiments.images.measures import Group
from refocal.experiments.images.study import MODELS
from refocal.plots import LINE_STYLES, MARKERS, METHOD_COLORS, SMALL, label_axes, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = len(METHOD_COLORS)

Eces = dict[float, dict[int, float]]
"""The ECE of each trial, for each gamma."""


@dataclass(frozen=True)
class Trend:
    """ECEs of Standard for several depths, or for several numbers of training images.

    Attributes:
        name: Of its files.
        what: "depth" or "training images".
        raw: Of the softmax, by depth or number.
        psi: Of its Psi, likewise.
    """

    name: str
    what: str
    raw: dict[int, Eces]
    psi: dict[int, Eces]

    @property
    def best(self) -> dict[int, float]:
        """The gamma with the smallest mean raw ECE, for each depth or number, among those that were run."""
        return {
            value: min(eces, key=lambda gamma: float(np.mean(list(eces[gamma].values()))))
            for value, eces in self.raw.items()
        }

    @property
    def ends(self) -> tuple[int, int]:
        """The two that the paper's claims are counted between: few layers to many, many images to few."""
        least, most = min(self.raw), max(self.raw)
        return (least, most) if self.what == "depth" else (most, least)

    def effect(self, value: int) -> Eces:
        """Return what Psi adds to the ECE of each trial, for each gamma > 0: below 0 where it helps."""
        return {
            gamma: {seed: self.psi[value][gamma][seed] - ece for seed, ece in some.items()}
            for gamma, some in self.raw[value].items()
            if gamma > 0
        }

    def best_in_trials(self, value: int) -> dict[int, float]:
        """Return the gamma with the smallest raw ECE of each trial that has every gamma of this value."""
        eces = self.raw[value]
        seeds = set.intersection(*(set(some) for some in eces.values()))
        return {seed: min(eces, key=lambda gamma: eces[gamma][seed]) for seed in sorted(seeds)}

    def claims(self) -> dict[str, dict[str, int]]:
        """Return the paper's two claims between the `ends`, as counts of trials that have both.

        The best gamma is compared where both ends have the same gammas: larger (as the paper says), the same
        or smaller. Psi helps less if what it adds to the ECE is larger, counted for each gamma > 0.
        """
        first, last = self.ends
        found = Counter(larger=0, same=0, smaller=0, trials=0)
        if self.raw[first].keys() == self.raw[last].keys():
            before, after = self.best_in_trials(first), self.best_in_trials(last)
            for seed in before.keys() & after.keys():
                found["trials"] += 1
                steps = {1: "larger", 0: "same", -1: "smaller"}
                found[steps[int(np.sign(after[seed] - before[seed]))]] += 1
        here, there = self.effect(first), self.effect(last)
        pairs = [
            (here[gamma][seed], there[gamma][seed])
            for gamma in here.keys() & there.keys()
            for seed in here[gamma].keys() & there[gamma].keys()
        ]
        less = {"shows": sum(after > before for before, after in pairs), "trials": len(pairs)}
        return {"best gamma": dict(found), "Psi helps less": less}

    def summary(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        return {
            "what": self.what,
            "ends": self.ends,
            "claims": self.claims(),
            "values": [
                {
                    "value": value,
                    "best_gamma": self.best[value],
                    "best_in_trials": list(self.best_in_trials(value).values()),
                    "raw": [_row(gamma, some) for gamma, some in self.raw[value].items()],
                    "psi": [_row(gamma, some) for gamma, some in self.psi[value].items()],
                }
                for value in self.raw
            ],
        }


def _row(gamma: float, some: dict[int, float]) -> dict[str, Any]:
    return {"gamma": gamma, "ece": float(np.mean(list(some.values()))), "trials": len(some)}


def trends_of(groups: Iterable[Group]) -> list[Trend]:
    """Return the trends that groups show: those that differ in the model alone, or in ``train_size`` alone.

    A group counts if it has two gammas or more of Standard; a trend has two groups or more. Of machines there
    may be several: their numbers stand beside each other and are not averaged.
    """
    together: dict[tuple[str, str], dict[int, Group]] = {}
    for group in groups:
        if len(group.trials("ece", "standard", "raw")) < 2:
            continue
        model, size = group.config["model"], group.config.get("train_size")
        by_depth = ("depth", group.name.replace(f"-{model}", "", 1))
        together.setdefault(by_depth, {})[MODELS[model]] = group
        if size is not None:
            by_size = ("training images", re.sub(r"-train_size-\d+", "", group.name, count=1))
            together.setdefault(by_size, {})[size] = group
    trends = []
    for (what, name), some in sorted(together.items(), key=lambda item: item[0]):
        if 2 <= len(some) <= MOST:
            raw, psi = (
                {value: group.trials("ece", "standard", link) for value, group in sorted(some.items())}
                for link in ("raw", "psi")
            )
            trends.append(Trend(f"{what.split()[-1]}-{name}", what, raw, psi))
    return trends


def trend_text(trends: Sequence[Trend]) -> Iterator[str]:
    """Give the tables of trends, in Markdown."""
    for trend in trends:
        gammas = sorted({gamma for some in trend.raw.values() for gamma in some})
        rows = []
        for value in trend.raw:
            for scores, eces in (("raw", trend.raw[value]), ("Psi", trend.psi[value])):
                cells = (_cell(list(eces[gamma].values())) if gamma in eces else "-" for gamma in gammas)
                best = f"{trend.best[value]:g}" if scores == "raw" else ""
                rows.append((value, scores, *cells, best))
        yield from [f"# Best gamma by {trend.what}: {trend.name.partition('-')[2]}", ""]
        yield from ["ECE of Standard, mean over the trials, and the gamma with the smallest raw one.", ""]
        head = [trend.what, "scores", *(f"gamma {gamma:g}" for gamma in gammas), "best gamma"]
        yield from [*markdown_table(head, rows), "", *claim_text(trend.summary()), ""]
        yield from [f"![Best gamma by {trend.what}]({trend.name}.png)", ""]


def _cell(eces: Sequence[float]) -> str:
    return f"{np.mean(eces):.4f} (n = {len(eces)})"


def claim_text(summary: dict[str, Any]) -> Iterator[str]:
    """Give a sentence for each of the paper's claims, from `Trend.summary`."""
    first, last = summary["ends"]
    best, less = summary["claims"]["best gamma"], summary["claims"]["Psi helps less"]
    by_depth = summary["what"] == "depth"
    between = f"from depth {first} to {last}" if by_depth else f"from {first} training images to {last}"
    yield (
        f"- The best gamma grows {between}: in {best['larger']} of {best['trials']} trials; the same in "
        f"{best['same']}, smaller in {best['smaller']}."
    )
    yield (
        f"- Psi helps less, or does more harm, {between}: in {less['shows']} of {less['trials']} trials "
        "of gamma > 0."
    )


def trend_figure(trend: Trend) -> Figure:
    """Return the raw ECE against gamma, a line for each depth or number; the best gamma; what Psi adds."""
    figure = new_figure(11.0, 3.4)
    left, middle, right = figure.subplots(1, 3)
    for i, value in enumerate(trend.raw):
        look: dict[str, Any] = {"color": METHOD_COLORS[i], "marker": MARKERS[i]}
        line = look | {"label": f"{value}", "linestyle": LINE_STYLES[i % len(LINE_STYLES)]}
        for ax, eces in ((left, trend.raw[value]), (right, trend.effect(value))):
            order = sorted(eces)
            ax.plot(order, [float(np.mean(list(eces[gamma].values()))) for gamma in order], **line)
            points = [(gamma, ece) for gamma in order for ece in eces[gamma].values()]
            ax.scatter(*zip(*points, strict=True), s=9, alpha=0.6, **look)
        middle.scatter([value], [trend.best[value]], s=40, **look)
    left.set_ylim(bottom=0)
    left.legend(fontsize=SMALL, frameon=False, title=trend.what, title_fontsize=SMALL)
    label_axes(left, r"$\gamma$", "raw ECE of Standard", "")
    middle.set_xscale("log")
    middle.set_xticks(list(trend.raw), [str(value) for value in trend.raw])
    middle.minorticks_off()
    middle.set_yticks(sorted({gamma for eces in trend.raw.values() for gamma in eces}))
    label_axes(middle, trend.what, r"best $\gamma$", "")
    right.axhline(0, color="black", linewidth=0.8)
    label_axes(right, r"$\gamma$", r"ECE-$\Psi$ minus ECE-raw", "")
    counts = {len(some) for eces in trend.raw.values() for some in eces.values()}
    least, most = min(counts), max(counts)
    n = f"{most}" if least == most else f"{least} to {most}"
    figure.supxlabel(f"n = {n} trial{'s' if most > 1 else ''} of each gamma; lines: means", fontsize=SMALL)
    return figure
