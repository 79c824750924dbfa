"""Numbers over trials: boxes where there are enough of them, points where there are few."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 0.8
"""Of the boxes of one group together."""

FEWEST = 5
"""Numbers for a box: of fewer, quartiles would be the numbers themselves or made up between them."""


def plot_boxes(
    series: Mapping[str, Mapping[Any, Sequence[float]]],
    *,
    published: Mapping[str, Mapping[Any, float]] | None = None,
    ax: Axes | None = None,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    legend: bool = True,
    from_zero: bool = True,
) -> Axes:
    """Draw numbers over trials, the series side by side in each group: boxes from 5 numbers on, else points.

    A box is the middle half with its median; whiskers reach to the last number within 1.5 box lengths,
    what lies further is a point. Of fewer than 5 numbers every one is a point, beside the others.

    Args:
        series: For each name, such as "raw", the numbers of every group, such as one gamma each. At most 7.
        published: For some names and groups, a number from elsewhere to compare with: an open diamond.
        ax: Where to draw; None for a new figure.
        xlabel: What the groups are.
        ylabel: What the numbers are.
        title: Of the axes.
        legend: Whether to draw one, with room for it above the boxes; not so for `share_legend`.
        from_zero: Whether the axis starts at 0, where no number is negative.

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
    style.check_number_of("series", len(series))
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
    marks = [
        (groups.index(group) + _shift(list(series).index(name), len(series)), value)
        for name, values in (published or {}).items()
        for group, value in values.items()
        if name in series and group in groups
    ]
    ax = style.axes_or_new(ax, width=max(4.0, 1.5 + 0.45 * len(groups) * len(series)), height=3.4)
    for i, (name, numbers) in enumerate(series.items()):
        many = [j for j, group in enumerate(groups) if len(numbers[group]) >= FEWEST]
        places = np.arange(len(groups)) + _shift(i, len(series))
        if many:
            _draw_boxes(ax, i, [numbers[groups[j]] for j in many], places[many].tolist(), len(series), name)
        points = [
            (place, value)
            for j, group in enumerate(groups)
            if j not in many
            for place, value in zip(
                _beside(places[j], numbers[group], len(series)), numbers[group], strict=True
            )
        ]
        if points:
            look: dict[str, Any] = {"marker": style.MARKERS[i], "color": style.METHOD_COLORS[i], "s": 18}
            ax.scatter(*zip(*points, strict=True), label=None if many else name, alpha=0.8, **look)
    if marks:
        look = {"marker": "D", "s": 30, "facecolors": "none", "edgecolors": "black", "zorder": 4}
        ax.scatter(*zip(*marks, strict=True), label="published", **look)
    ax.set_xticks(range(len(groups)), [str(group) for group in groups])
    ax.set_xlim(-0.5, len(groups) - 0.5)
    for edge in np.arange(len(groups) - 1) + 0.5:
        ax.axvline(edge, color="0.85", linewidth=0.8, zorder=0)
    low, high = ax.get_ylim()
    drawn = [value for numbers in series.values() for group in groups for value in numbers[group]]
    drawn += [value for _, value in marks]
    if from_zero and min(drawn) >= 0:
        low = 0.0
        # Room for a whole marker, which the margin of numbers that lie close together is not.
        high = max(high, max(drawn) + 0.06 * (max(drawn) - low))
    if legend:
        entries = len(series) + bool(marks)
        columns = min(4, entries)
        high += 0.15 * math.ceil(entries / columns) * (high - low)
        ax.legend(loc="upper center", ncols=columns, fontsize=style.SMALL, frameon=False)
    ax.set_ylim(low, high)
    style.label_axes(ax, xlabel, ylabel, title)
    return ax


def _draw_boxes(
    ax: Axes, i: int, numbers: Sequence[Sequence[float]], places: Sequence[float], n: int, name: str
) -> None:
    """Draw the boxes of series i of n."""
    color = style.METHOD_COLORS[i]
    ax.boxplot(
        [np.asarray(some, dtype=float) for some in numbers],
        positions=places,
        widths=0.82 * WIDTH / n,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": style.light(color), "hatch": style.HATCHES[i], "edgecolor": color},
        medianprops={"color": "black", "linewidth": 1.4},
        whiskerprops={"color": color},
        capprops={"color": color},
        flierprops={"marker": style.MARKERS[i], "markersize": 3, "markeredgecolor": color},
        label=name,
    )


def _shift(i: int, n: int) -> float:
    """Return how far series i of n stands from the middle of its group."""
    return (i - (n - 1) / 2) * WIDTH / n


def _beside(place: float, numbers: Sequence[float], n: int) -> list[float]:
    """Return where to draw points of one of n series: around its place, so that equal ones do not hide."""
    reach = 0.25 * WIDTH / n * min(1.0, 0.5 * (len(numbers) - 1))
    return np.linspace(place - reach, place + reach, len(numbers)).tolist() if len(numbers) > 1 else [place]
