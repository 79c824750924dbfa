"""Figures of a group of image runs: reliability diagrams, and the numbers of its trials."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from refocal.experiments.files import BoxPanel, box_figure, put_caption
from refocal.experiments.images.judge import published_for
from refocal.experiments.images.measures import TITLES, Group
from refocal.plots import new_figure, plot_raw_psi, share_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = {"ece": "ECE", "nll": "NLL", "classwise_ece": "CW-ECE"}


def has_something_to_compare(group: Group) -> bool:
    """Return whether there is anything to compare: more than one gamma, or more than one trial."""
    return (
        len({gamma for _, gamma, _ in group.settings}) > 1 or len({seed for *_, seed in group.settings}) > 1
    )


def has_psi(group: Group) -> bool:
    """Return whether Psi does anything: at gamma 0 alone, every diagram would show the same bars twice."""
    return any(gamma > 0 for _, gamma, _ in group.settings)


def _math(paradigm: str) -> str:
    """Return the title of a paradigm for a figure."""
    name, _, index = TITLES[paradigm].partition("_")
    return rf"{name}$_\mathrm{{{index}}}$" if index else name


def reliability_figure(group: Group) -> Figure:
    """Return reliability diagrams: rows Standard, TS_FL, LS; columns gamma; the first trial that is there."""
    rows = [p for p in ("standard", "ts_fl", "ls") if group.trials("ece", p, "raw")]
    gammas = sorted({measure.gamma for measure in group.measures})
    figure = new_figure(3.0 * len(gammas), 3.2 * len(rows))
    axes = figure.subplots(len(rows), len(gammas), squeeze=False)
    drawn = []
    for row, paradigm in zip(axes, rows, strict=True):
        for ax, gamma in zip(row, gammas, strict=True):
            trials = [m for m in group.measures if (m.paradigm, m.gamma) == (paradigm, gamma)]
            if not trials:
                ax.set_axis_off()
                continue
            seed = min(m.seed for m in trials)
            raw, psi = (
                next(m for m in trials if (m.link, m.seed) == (link, seed)) for link in ("raw", "psi")
            )
            title = (
                rf"{_math(paradigm)}, $\gamma$ = {gamma:g}"
                "\n"
                rf"ECE-raw {raw.ece:.3f}, ECE-$\Psi$ {psi.ece:.3f}"
            )
            plot_raw_psi(raw.stats, psi.stats, ax=ax, level=0.95, title=title)
            drawn.append(ax)
    share_legend(drawn)
    text = (
        f"{_what(group)}: {group.n[2]:,} test images, the first trial of each setting; black: 95 % intervals"
    )
    halves = f"\n{_halves()}, the bars are of all images" if not group.n[1] and "ts_fl" in rows else ""
    put_caption(figure, f"{text}, wide where a bin has few images{halves}")
    return figure


def _what(group: Group) -> str:
    return f"{group.name}, {group.n[0]:,} training images"


def _halves() -> str:
    return f"{_math('ts_fl')}: T is of the other half of the images, the ECE is the mean of both halves"


def boxes_figure(group: Group) -> Figure:
    """Return ECE, NLL, CW-ECE in rows, paradigms in columns; then the errors, which Psi and T leave alone."""
    columns = [p for p in ("standard", "ts_fl", "ls") if group.trials("ece", p, "raw")]
    panels = []
    for (metric, label), paradigm in itertools.product(METRICS.items(), columns):
        series = {
            name: _series(group.trials(metric, paradigm, link))
            for name, link in (("raw", "raw"), (r"$\Psi$", "psi"))
        }
        panels.append(BoxPanel(f"{_math(paradigm)}, {label}", series, from_zero=metric != "nll"))
    published = published_for(group)
    for paradigm in columns:
        if paradigm != "ts_fl":
            errors = {"raw": _series(group.trials("error", paradigm, "raw"), 100)}
            papers = {f"{gamma:g}": mean for (p, gamma), (mean, _) in published.items() if p == paradigm}
            title = f"{_math(paradigm)}, error (%)"
            panels.append(BoxPanel(title, errors, {"raw": papers}, from_zero=False))
    halves = f"; {_halves()}" if not group.n[1] and "ts_fl" in columns else ""
    return box_figure(panels, len(columns), xlabel=r"$\gamma$", note=f"{_what(group)}{halves}")


def _series(trials: Mapping[float, Mapping[int, float]], factor: float = 1.0) -> dict[str, list[float]]:
    return {f"{gamma:g}": [factor * value for value in some.values()] for gamma, some in trials.items()}
