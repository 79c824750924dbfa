"""Reliability diagrams, drawn from `refocal.CalibrationStats` on axes that the caller gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal._checks import LEVEL, check_level
from refocal.metrics import CalibrationStats
from refocal.metrics.intervals import wilson
from refocal.plots import style
from refocal.plots.style import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def accuracy_interval(stats: CalibrationStats, level: float) -> tuple[Floats, Floats]:
    r"""Return Wilson's score interval of the accuracy in every bin.

    .. math:: \frac{p + z^2/2n \pm z \sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}

    with p the accuracy, n the rows and z the normal quantile of (1 + level) / 2. Of independent labels, whose
    entries in a row may depend on each other, n is the entries divided by the labels, the least they count.

    Args:
        stats: The bins.
        level: In (0, 1).

    Returns:
        Lower and upper ends, NaN for bins without rows.

    Example:
        >>> stats = CalibrationStats(n_bins=2).update(np.array([[0.8, 0.2]] * 4), np.array([0, 0, 1, 0]))
        >>> [end.round(3).tolist() for end in accuracy_interval(stats, 0.9)]
        [[nan, 0.356], [nan, 0.942]]
    """
    n = np.where(stats.counts > 0, stats.counts / (stats.n_labels or 1), np.nan)
    return wilson(stats.accuracy, n, check_level(level))


def plot_reliability(
    stats: CalibrationStats | Mapping[str, CalibrationStats],
    *,
    ax: Axes | None = None,
    level: float | None = LEVEL,
    histogram: bool = True,
    title: str = "",
) -> Axes:
    """Draw the reliability diagram of one method, as bars, or of several, as lines.

    Of one method: a bar is the accuracy in a bin, and the hatched piece the gap to the mean confidence
    there. Of several: a line through (mean confidence, accuracy) of the bins. Bins without rows are left out.

    Args:
        stats: The bins of one method, or of each of several by name (at most 7). Of independent labels all
            entries are drawn; for one of them, or one class, give ``stats.of_class(k)``.
        ax: Where to draw; None for a new figure. One of yours has room for the strip above the axes with
            ``layout="constrained"``.
        level: Of the intervals of the accuracy (`accuracy_interval`); None for no intervals.
        histogram: Whether a strip above the axes shows the share of rows in each bin.
        title: Of the axes.

    Returns:
        The axes.

    Raises:
        ValueError: If there are no rows, or no methods or too many, or their targets differ.

    Example:
        >>> stats = CalibrationStats().update(np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([0, 0]))
        >>> plot_reliability(stats).get_ylabel()
        'accuracy'
        >>> len(plot_reliability({"raw": stats, "TS": stats}).get_legend().get_texts())
        3
    """
    if isinstance(stats, CalibrationStats):
        methods, names = [stats], [""]
    else:
        methods, names = list(stats.values()), list(stats)
        style.check_number_of("methods", len(methods))
        _check_targets(methods)
    errors = [one.ece() for one in methods]  # before anything is drawn, as it may raise
    ax = style.axes_or_new(ax, height=_height(histogram, title))
    if isinstance(stats, CalibrationStats):
        _bars_with_gaps(ax, stats)
        centres = (stats.edges[:-1] + stats.edges[1:]) / 2
        _intervals(ax, stats, centres, level, "black", f"{100 * (level or 0):g} % interval")
    else:
        for i, (name, one, error) in enumerate(zip(names, methods, errors, strict=True)):
            full, color = one.counts > 0, style.METHOD_COLORS[i]
            ax.plot(
                one.confidence[full],
                one.accuracy[full],
                color=color,
                marker=style.MARKERS[i],
                markersize=5,
                clip_on=False,  # a marker at 1 is whole
                label=f"{name}, ECE {error:.3f}",
                zorder=3,
            )
            _intervals(ax, one, one.confidence, level, color)
    _diagonal(ax)
    _frame(ax, methods[0], title, f"ECE {errors[0]:.3f}" if isinstance(stats, CalibrationStats) else None)
    if histogram:
        _histogram(ax, methods)
    return ax


def plot_raw_psi(
    raw: CalibrationStats,
    psi: CalibrationStats,
    *,
    ax: Axes | None = None,
    level: float | None = None,
    histogram: bool = False,
    title: str = "",
) -> Axes:
    """Draw the reliability diagrams of raw scores and of psi of them, bar beside bar (the paper's Fig. 4).

    Args:
        raw: The bins of the raw scores.
        psi: The bins of psi of them; with as many bins.
        ax: Where to draw; None for a new figure.
        level: Of the intervals of the accuracy; None for no intervals.
        histogram: Whether a strip above the axes shows the share of rows in each bin.
        title: Of the axes.

    Returns:
        The axes.

    Raises:
        ValueError: If there are no rows, or the bins or the targets differ.

    Example:
        >>> stats = CalibrationStats().update(np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([0, 0]))
        >>> plot_raw_psi(stats, stats).get_legend().get_texts()[1].get_text()
        'raw'
    """
    if raw.n_bins != psi.n_bins:
        raise ValueError(f"raw and psi must have the same bins, got {raw.n_bins} and {psi.n_bins}")
    if raw.convention != psi.convention:
        raise ValueError(
            "raw and psi must have bins of the same convention, "
            f"got {raw.convention!r} and {psi.convention!r}"
        )
    _check_targets([raw, psi])
    errors = rf"ECE-raw {raw.ece():.3f}, ECE-$\Psi$ {psi.ece():.3f}"
    ax = style.axes_or_new(ax, height=_height(histogram, title))
    for i, (stats, label) in enumerate(zip((raw, psi), ("raw", r"$\Psi$"), strict=True)):
        half = np.diff(stats.edges) / 2
        left = stats.edges[:-1] + i * half
        _bars(ax, left, 0.92 * half, stats.accuracy, style.METHOD_COLORS[i], style.HATCHES[i], label)
        _intervals(ax, stats, left + half / 2, level, "black")
    _diagonal(ax)
    _frame(ax, raw, title, errors)
    if histogram:
        _histogram(ax, [raw, psi])
    return ax


def _height(histogram: bool, title: str) -> float:
    """Return the height of a new figure in inches.

    The layout does not foresee that square axes shrink, and the strip above them with them: in a lower figure
    the x label and the top of the strip would be cut.
    """
    return 5.3 + 0.2 * len(title.splitlines()) if histogram else 4.3


def _check_targets(methods: Sequence[CalibrationStats]) -> None:
    targets = {stats.target or "top" for stats in methods}
    if len(targets) > 1:
        raise ValueError(f"methods must have the same target, got {' and '.join(map(repr, sorted(targets)))}")


def _diagonal(ax: Axes) -> None:
    look: dict[str, Any] = {"color": "0.35", "linestyle": (0, (4, 2)), "linewidth": 1.2, "zorder": 2.5}
    ax.plot([0, 1], [0, 1], label="calibrated", **look)


def _bars(
    ax: Axes, left: Floats, width: Floats, height: Floats, color: str, hatch: str, label: str | None
) -> None:
    full = ~np.isnan(height)
    look: dict[str, Any] = {
        "facecolor": style.light(color),
        "edgecolor": color,
        "linewidth": 0.8,
        "zorder": 2,
    }
    ax.bar(left[full], height[full], width[full], align="edge", hatch=hatch, label=label, **look)


def _bars_with_gaps(ax: Axes, stats: CalibrationStats) -> None:
    left, width = stats.edges[:-1], np.diff(stats.edges)
    _bars(ax, left, width, stats.accuracy, style.METHOD_COLORS[2], "", "accuracy")
    full = stats.counts > 0
    ax.bar(
        left[full],
        (stats.confidence - stats.accuracy)[full],
        width[full],
        bottom=stats.accuracy[full],
        align="edge",
        facecolor="none",
        edgecolor=style.METHOD_COLORS[0],
        linewidth=0.8,
        hatch="////",
        label="gap to confidence",
        zorder=2.2,
    )


def _intervals(
    ax: Axes, stats: CalibrationStats, x: Floats, level: float | None, color: str, label: str | None = None
) -> None:
    if level is None:
        return
    low, high = accuracy_interval(stats, level)
    full = stats.counts > 0
    p = stats.accuracy[full]
    reach = np.clip([p - low[full], high[full] - p], 0, None)  # rounding at 0 and 1
    look: dict[str, Any] = {"fmt": "none", "elinewidth": 1, "capsize": 2.5, "zorder": 3}
    ax.errorbar(x[full], p, reach, color=color, label=label, **look)


def _frame(ax: Axes, stats: CalibrationStats, title: str, legend_title: str | None) -> None:
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.set_aspect("equal")
    what = "the labels" if stats.n_labels else "class 1"
    positive = stats.target == "positive"
    x, y = (f"probability of {what}", f"share of {what}") if positive else ("confidence", "accuracy")
    style.label_axes(ax, x, y, title)
    look: dict[str, Any] = {
        "fontsize": style.SMALL,
        "title_fontsize": style.SMALL,
        "framealpha": 0.85,
        "edgecolor": "none",
    }
    ax.legend(loc="upper left", title=legend_title, alignment="left", **look).set_zorder(4)


def _histogram(ax: Axes, methods: Sequence[CalibrationStats]) -> None:
    """Draw the share of rows in each bin above the axes, as a part of them that layouts make room for."""
    strip = ax.inset_axes((0, 1.04, 1, 0.2))
    if len(methods) == 1:
        tint = style.light(style.METHOD_COLORS[2])
        strip.stairs(methods[0].counts / methods[0].n, methods[0].edges, color=tint, fill=True)
    else:
        looks = zip(methods, style.METHOD_COLORS, cycle(style.LINE_STYLES), strict=False)
        for stats, color, look in looks:
            strip.stairs(stats.counts / stats.n, stats.edges, color=color, linestyle=look, linewidth=1.4)
    top = max((stats.counts / stats.n).max() for stats in methods)
    strip.set(xlim=(0, 1), ylim=(0, 1.1 * top), xticks=[])
    strip.set_yticks([0, math.floor(100 * top) / 100 if top >= 0.01 else top])
    strip.tick_params(labelsize=style.SMALL)
    strip.set_ylabel("share", fontsize=style.SMALL)
