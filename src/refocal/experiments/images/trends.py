"""The best gamma by the depth of the network and by the number of training images, from runs of Standard."""

from __future__ import annotations

import re
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


@dataclass(frozen=True)
class Trend:
    """Raw ECEs of Standard for several depths, or for several numbers of training images.

    Attributes:
        name: Of its files.
        what: "depth" or "training images".
        eces: The ECE of each trial, by depth or number, then by gamma.
    """

    name: str
    what: str
    eces: dict[int, dict[float, tuple[float, ...]]]

    @property
    def best(self) -> dict[int, float]:
        """The gamma with the smallest mean ECE, for each depth or number, among those that were run."""
        return {
            value: min(gammas, key=lambda gamma: float(np.mean(gammas[gamma])))
            for value, gammas in self.eces.items()
        }


def trends_of(groups: Iterable[Group]) -> list[Trend]:
    """Return the trends that groups show: those that differ in the model alone, or in ``train_size`` alone.

    A group counts if it has two gammas or more of Standard; a trend has two groups or more. Of machines there
    may be several: their numbers stand beside each other and are not averaged.
    """
    together: dict[tuple[str, str], dict[int, dict[float, tuple[float, ...]]]] = {}
    for group in groups:
        trials = group.trials("ece", "standard", "raw")
        eces = {gamma: tuple(some.values()) for gamma, some in trials.items()}
        if len(eces) < 2:
            continue
        model, size = group.config["model"], group.config.get("train_size")
        by_depth = ("depth", group.name.replace(f"-{model}", "", 1))
        together.setdefault(by_depth, {})[MODELS[model]] = eces
        if size is not None:
            by_size = ("training images", re.sub(r"-train_size-\d+", "", group.name, count=1))
            together.setdefault(by_size, {})[size] = eces
    return [
        Trend(f"{what.split()[-1]}-{name}", what, dict(sorted(values.items())))
        for (what, name), values in sorted(together.items())
        if 2 <= len(values) <= MOST
    ]


def trend_text(trends: Sequence[Trend]) -> Iterator[str]:
    """Give the tables of trends, in Markdown."""
    for trend in trends:
        gammas = sorted({gamma for some in trend.eces.values() for gamma in some})
        rows = [
            (
                value,
                *(f"{np.mean(some[g]):.4f} (n = {len(some[g])})" if g in some else "-" for g in gammas),
                f"{trend.best[value]:g}",
            )
            for value, some in trend.eces.items()
        ]
        yield from [f"# Best gamma by {trend.what}", "", "Raw ECE of Standard, mean over the trials.", ""]
        head = [trend.what, *(f"gamma {gamma:g}" for gamma in gammas), "best gamma"]
        yield from markdown_table(head, rows)
        yield from ["", f"![Best gamma by {trend.what}]({trend.name}.png)", ""]


def trend_figure(trend: Trend) -> Figure:
    """Return the ECE against gamma, a line for each depth or number, and beside it the best gamma."""
    figure = new_figure(8.0, 3.4)
    left, right = figure.subplots(1, 2)
    for i, (value, gammas) in enumerate(trend.eces.items()):
        order = sorted(gammas)
        look: dict[str, Any] = {"color": METHOD_COLORS[i], "marker": MARKERS[i]}
        means = [float(np.mean(gammas[gamma])) for gamma in order]
        left.plot(order, means, label=f"{value}", linestyle=LINE_STYLES[i % len(LINE_STYLES)], **look)
        points = [(gamma, ece) for gamma in order for ece in gammas[gamma]]
        left.scatter(*zip(*points, strict=True), s=9, alpha=0.6, **look)
        right.scatter([value], [trend.best[value]], s=40, **look)
    left.set_ylim(bottom=0)
    left.legend(fontsize=SMALL, frameon=False, title=trend.what, title_fontsize=SMALL)
    label_axes(left, r"$\gamma$", "raw ECE of Standard", "")
    right.set_xscale("log")
    right.set_xticks(list(trend.eces), [str(value) for value in trend.eces])
    right.minorticks_off()
    label_axes(right, trend.what, r"best $\gamma$", "")
    counts = {len(some) for gammas in trend.eces.values() for some in gammas.values()}
    least, most = min(counts), max(counts)
    n = f"{most}" if least == most else f"{least} to {most}"
    figure.supxlabel(f"n = {n} trial{'s' if most > 1 else ''} of each gamma; lines: means", fontsize=SMALL)
    return figure
