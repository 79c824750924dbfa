"""What all pictures share: figures, files, colours that everybody can tell apart, sizes.

matplotlib is imported when a picture is asked for, and its settings (rcParams) are left alone. Methods differ
by hatch or marker too, so that a print in grey can be read.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from refocal.extras import needs

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
    """Return an empty figure that pyplot does not know, for files: nothing has to close it.

    Args:
        width: In inches.
        height: In inches.

    Raises:
        ImportError: If matplotlib is missing; it says how to install it.

    Example:
        >>> axes = new_figure(8, 3).subplots(1, 2)
    """
    with needs("a plot", "matplotlib"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")


def figure_bytes(figure: Figure, format: Literal["png", "pdf", "svg"] = "png", dpi: int = 200) -> bytes:
    """Return a figure as the content of a file; the same figure gives the same bytes.

    Args:
        figure: As made by `new_figure`.
        format: "png", "pdf" (with TrueType fonts, as printers ask for) or "svg".
        dpi: Dots per inch, of PNG only.

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
    """Return the axes, or for None those of a new figure, which ``matplotlib.pyplot.show()`` shows."""
    if ax is not None:
        return ax
    with needs("a plot", "matplotlib"):
        from matplotlib import pyplot
    return pyplot.figure(figsize=(width, height), layout="constrained").subplots()


def label_axes(ax: Axes, x: str, y: str, title: str) -> None:
    """Set the three texts of the axes in this module's sizes."""
    ax.set_xlabel(x, fontsize=NORMAL)
    ax.set_ylabel(y, fontsize=NORMAL)
    ax.set_title(title, fontsize=NORMAL)
    ax.tick_params(labelsize=SMALL)


def share_legend(axes: Iterable[Axes]) -> None:
    """Put one legend above a figure in place of those of its axes.

    Args:
        axes: Of one figure, with things that have labels. Legends of their own are removed, titles too.

    Raises:
        ValueError: If there are no axes.

    Example:
        >>> figure = new_figure(6, 3)
        >>> for ax in figure.subplots(1, 2):
        ...     _ = ax.plot([0, 1], label="line"), ax.legend()
        >>> share_legend(figure.axes)
        >>> len(figure.legends), figure.axes[0].get_legend()
        (1, None)
    """
    keys: dict[str, Any] = {}
    axes = list(axes)
    if not axes:
        raise ValueError("axes must hold at least one, got none")
    for ax in axes:
        keys |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
        if (legend := ax.get_legend()) is not None:
            legend.remove()
    style: dict[str, Any] = {"ncols": len(keys), "fontsize": SMALL, "frameon": False}
    axes[0].figure.legend(keys.values(), keys, loc="outside upper center", **style)


def check_number_of(what: str, number: int) -> None:
    """Raise where there are more things to draw than colours, or none."""
    if not 1 <= number <= len(METHOD_COLORS):
        raise ValueError(f"{what} must be 1 to {len(METHOD_COLORS)}, got {number}")


def light(color: str) -> tuple[float, ...]:
    """Return a colour mixed with white."""
    return tuple(0.45 + 0.55 * int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
