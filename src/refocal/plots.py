"""Pictures of calibration, drawn from frozen numbers on axes that the caller gives.

matplotlib is imported when a picture is asked for. Its global state (pyplot, rcParams) is left alone.
Methods differ by hatch or marker too, so that a print in grey can be read.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from refocal._checks import check_level
from refocal.binning import CalibrationStats
from refocal.intervals import wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

METHOD_COLORS = ("#D55E00", "#009E73", "#0072B2", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, safe for the colour-blind, without its yellow. Raw comes first, psi second."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "////", "....", "xxxx", "----", "oo", "++")
LINE_STYLES = ("-", "--", "-.", ":")

SMALL, NORMAL = 9, 11
"""Font sizes, in points."""


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that belongs to no window and to no global list.

    Args:
        width: In inches.
        height: In inches.

    Raises:
        ImportError: If matplotlib is missing; it says how to install it.

    Example:
        >>> axes = new_figure(8, 3).subplots(1, 2)
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ImportError("plots need matplotlib: pip install 'refocal[plots]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def figure_bytes(figure: Figure, format: Literal["png", "pdf", "svg"] = "png", dpi: int = 200) -> bytes:
    """Return a figure as the content of a file; the same figure gives the same bytes.

    Args:
        figure: As made by `new_figure`.
        format: "png", "pdf" (with TrueType fonts, as printers ask for) or "svg".
        dpi: Dots an inch, of PNG only.

    Raises:
        ValueError: If the format is another one.

    Example:
        >>> figure_bytes(new_figure(2, 1))[1:4]
        b'PNG'
    """
    from matplotlib import rc_context

    dates: dict[str, dict[str, Any]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
    if format not in dates:
        raise ValueError(f"format must be one of {tuple(dates)}, got {format!r}")
    buffer = io.BytesIO()
    # These two can be set in no other way; they are put back when the file is made.
    with rc_context({"pdf.fonttype": 42, "svg.hashsalt": "refocal"}):
        figure.savefig(buffer, format=format, dpi=dpi, facecolor="white", metadata=dates[format])
    return buffer.getvalue()


def axes_or_new(ax: Axes | None, width: float = 4.5, height: float = 4.0) -> Axes:
    """Return the axes, or those of a new figure for None."""
    return new_figure(width, height).subplots() if ax is None else ax


def label_axes(ax: Axes, x: str, y: str, title: str) -> None:
    """Set the three texts of the axes in this module's sizes."""
    ax.set_xlabel(x, fontsize=NORMAL)
    ax.set_ylabel(y, fontsize=NORMAL)
    ax.set_title(title, fontsize=NORMAL)
    ax.tick_params(labelsize=SMALL)


def accuracy_interval(stats: CalibrationStats, level: float) -> tuple[Floats, Floats]:
    r"""Return Wilson's score interval of the accuracy in every bin.

    .. math:: \frac{p + z^2/2n \pm z \sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}

    with p the accuracy, n the rows and z the normal quantile of (1 + level) / 2.

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
    n = np.where(stats.counts > 0, stats.counts, np.nan)
    return wilson(stats.accuracy, n, check_level(level))


def plot_reliability(
    stats: CalibrationStats | Mapping[str, CalibrationStats],
    *,
    ax: Axes | None = None,
    level: float | None = 0.9,
    histogram: bool = True,
    title: str = "",
) -> Axes:
    """Draw the reliability diagram of one method, as bars, or of several, as lines.

    Of one method: a bar is the accuracy in a bin, and the hatched piece the gap to the mean confidence
    there. Of several: a line through (mean confidence, accuracy) of the bins. Bins without rows are left out.

    Args:
        stats: The bins of one method, or of each of several by name (at most 7).
        ax: Where to draw; None for a new figure.
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
        _check_number("methods", len(methods))
        _check_targets(methods)
    errors = [one.ece() for one in methods]  # before anything is drawn, as it may raise
    ax = axes_or_new(ax, height=5.0 if histogram else 4.3)
    if isinstance(stats, CalibrationStats):
        _bars_with_gaps(ax, stats)
        centres = (stats.edges[:-1] + stats.edges[1:]) / 2
        _intervals(ax, stats, centres, level, "black", f"{100 * (level or 0):g} % interval")
    else:
        for i, (name, one, error) in enumerate(zip(names, methods, errors, strict=True)):
            full, color = one.counts > 0, METHOD_COLORS[i]
            ax.plot(
                one.confidence[full],
                one.accuracy[full],
                color=color,
                marker=MARKERS[i],
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
        'ECE-raw 0.450'
    """
    if raw.n_bins != psi.n_bins:
        raise ValueError(f"raw and psi must have the same bins, got {raw.n_bins} and {psi.n_bins}")
    if raw.convention != psi.convention:
        raise ValueError(
            "raw and psi must have bins of the same convention, "
            f"got {raw.convention!r} and {psi.convention!r}"
        )
    _check_targets([raw, psi])
    labels = (f"ECE-raw {raw.ece():.3f}", rf"ECE-$\Psi$ {psi.ece():.3f}")
    ax = axes_or_new(ax, height=5.0 if histogram else 4.3)
    for i, (stats, label) in enumerate(zip((raw, psi), labels, strict=True)):
        half = np.diff(stats.edges) / 2
        left = stats.edges[:-1] + i * half
        _bars(ax, left, 0.92 * half, stats.accuracy, METHOD_COLORS[i], HATCHES[i], label)
        _intervals(ax, stats, left + half / 2, level, "black")
    _diagonal(ax)
    _frame(ax, raw, title, None)
    if histogram:
        _histogram(ax, [raw, psi])
    return ax


def plot_boxes(
    series: Mapping[str, Mapping[Any, Sequence[float]]],
    *,
    ax: Axes | None = None,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
) -> Axes:
    """Draw box plots of numbers over trials, the series side by side in each group.

    A box is the middle half with its median; whiskers reach to the last number within 1.5 box lengths,
    what lies further is a point.

    Args:
        series: For each name, such as "raw", the numbers of every group, such as one gamma each. At most 7.
        ax: Where to draw; None for a new figure.
        xlabel: What the groups are.
        ylabel: What the numbers are.
        title: Of the axes.

    Returns:
        The axes.

    Raises:
        ValueError: If groups differ between series, or a group is empty or holds NaN or infinity.

    Example:
        >>> trials = {"raw": {0: [0.02, 0.03], 1: [0.07, 0.09]}, "psi": {0: [0.02, 0.03], 1: [0.01, 0.02]}}
        >>> ax = plot_boxes(trials, xlabel="gamma", ylabel="ECE")
        >>> [label.get_text() for label in ax.get_xticklabels()]
        ['0', '1']
    """
    _check_number("series", len(series))
    groups = list(next(iter(series.values())))
    for name, numbers in series.items():
        if set(numbers) != set(groups):
            raise ValueError(
                f"series must have the same groups, got {groups} and, in {name!r}, {list(numbers)}"
            )
        for group in groups:
            if len(numbers[group]) == 0 or not np.isfinite(numbers[group]).all():
                raise ValueError(
                    f"series must have finite numbers in every group, not so {name!r} in {group!r}"
                )
    ax = axes_or_new(ax, width=max(4.0, 1.5 + 0.45 * len(groups) * len(series)), height=3.4)
    width = 0.8 / len(series)
    for i, (name, numbers) in enumerate(series.items()):
        # A single trial is a line and no box: the line has to say whose it is.
        single = all(len(numbers[group]) == 1 for group in groups)
        color, thickness = (METHOD_COLORS[i], 3.0) if single else ("black", 1.4)
        ax.boxplot(
            [np.asarray(numbers[group], dtype=float) for group in groups],
            positions=np.arange(len(groups)) + (i - (len(series) - 1) / 2) * width,
            widths=0.82 * width,
            patch_artist=True,
            manage_ticks=False,
            boxprops={
                "facecolor": _light(METHOD_COLORS[i]),
                "hatch": HATCHES[i],
                "edgecolor": METHOD_COLORS[i],
            },
            medianprops={"color": color, "linewidth": thickness},
            whiskerprops={"color": METHOD_COLORS[i]},
            capprops={"color": METHOD_COLORS[i]},
            flierprops={"marker": MARKERS[i], "markersize": 3, "markeredgecolor": METHOD_COLORS[i]},
            label=name,
        )
    ax.set_xticks(range(len(groups)), [str(group) for group in groups])
    ax.set_xlim(-0.5, len(groups) - 0.5)
    for edge in np.arange(len(groups) - 1) + 0.5:
        ax.axvline(edge, color="0.85", linewidth=0.8, zorder=0)
    columns = min(4, len(series))
    low, high = ax.get_ylim()
    above = 0.15 * math.ceil(len(series) / columns)  # room for the legend
    ax.set_ylim(low, high + above * (high - low))
    ax.legend(loc="upper center", ncols=columns, fontsize=SMALL, frameon=False)
    label_axes(ax, xlabel, ylabel, title)
    return ax


def _check_number(what: str, number: int) -> None:
    if not 1 <= number <= len(METHOD_COLORS):
        raise ValueError(f"{what} must be 1 to {len(METHOD_COLORS)}, got {number}")


def _check_targets(methods: Sequence[CalibrationStats]) -> None:
    targets = {stats.target or "top" for stats in methods}
    if len(targets) > 1:
        raise ValueError(f"methods must have the same target, got {' and '.join(map(repr, sorted(targets)))}")


def _light(color: str) -> tuple[float, ...]:
    """Return a colour mixed with white."""
    return tuple(0.45 + 0.55 * int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))


def _diagonal(ax: Axes) -> None:
    style: dict[str, Any] = {"color": "0.35", "linestyle": (0, (4, 2)), "linewidth": 1.2, "zorder": 2.5}
    ax.plot([0, 1], [0, 1], label="calibrated", **style)


def _bars(
    ax: Axes, left: Floats, width: Floats, height: Floats, color: str, hatch: str, label: str | None
) -> None:
    full = ~np.isnan(height)
    style: dict[str, Any] = {"facecolor": _light(color), "edgecolor": color, "linewidth": 0.8, "zorder": 2}
    ax.bar(left[full], height[full], width[full], align="edge", hatch=hatch, label=label, **style)


def _bars_with_gaps(ax: Axes, stats: CalibrationStats) -> None:
    left, width = stats.edges[:-1], np.diff(stats.edges)
    _bars(ax, left, width, stats.accuracy, METHOD_COLORS[2], "", "accuracy")
    full = stats.counts > 0
    ax.bar(
        left[full],
        (stats.confidence - stats.accuracy)[full],
        width[full],
        bottom=stats.accuracy[full],
        align="edge",
        facecolor="none",
        edgecolor=METHOD_COLORS[0],
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
    style: dict[str, Any] = {"fmt": "none", "elinewidth": 1, "capsize": 2.5, "zorder": 3}
    ax.errorbar(x[full], p, reach, color=color, label=label, **style)


def _frame(ax: Axes, stats: CalibrationStats, title: str, legend_title: str | None) -> None:
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.set_aspect("equal")
    positive = stats.target == "positive"
    x, y = ("probability of class 1", "share of class 1") if positive else ("confidence", "accuracy")
    label_axes(ax, x, y, title)
    style: dict[str, Any] = {
        "fontsize": SMALL,
        "title_fontsize": SMALL,
        "framealpha": 0.85,
        "edgecolor": "none",
    }
    ax.legend(loc="upper left", title=legend_title, alignment="left", **style).set_zorder(4)


def _histogram(ax: Axes, methods: Sequence[CalibrationStats]) -> None:
    """Draw the share of rows in each bin above the axes, as a part of them that layouts make room for."""
    strip = ax.inset_axes((0, 1.04, 1, 0.2))
    if len(methods) == 1:
        tint = _light(METHOD_COLORS[2])
        strip.stairs(methods[0].counts / methods[0].n, methods[0].edges, color=tint, fill=True)
    else:
        styles = zip(methods, METHOD_COLORS, cycle(LINE_STYLES), strict=False)
        for stats, color, style in styles:
            strip.stairs(stats.counts / stats.n, stats.edges, color=color, linestyle=style, linewidth=1.4)
    top = max((stats.counts / stats.n).max() for stats in methods)
    strip.set(xlim=(0, 1), ylim=(0, 1.1 * top), xticks=[])
    strip.set_yticks([0, math.floor(100 * top) / 100 if top >= 0.01 else top])
    strip.tick_params(labelsize=SMALL)
    strip.set_ylabel("share", fontsize=SMALL)
