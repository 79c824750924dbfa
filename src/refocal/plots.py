"""Pictures of the paper's functions, drawn on axes that the caller gives.

Numbers come first: `phi_curves` and `max_eta_curves` return frozen numbers, and what is drawn is made
from such numbers only. matplotlib is imported when a figure is asked for, and its global state (pyplot,
rcParams) is left alone.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from refocal.confidence import tau_oc, tau_uc
from refocal.focal import phi, psi

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

GAMMA_COLORS = ("#E69F00", "#CC79A7", "#56B4E9", "#000000")
CLASS_COLORS = ("#0072B2", "#D55E00", "#009E73")
"""Okabe and Ito's palette, safe for the colour-blind: one half for gammas, the other for classes."""

LINE_STYLES = ("-", "--", "-.", ":")
"""So that the curves can also be told apart without colours."""

ESTIMATE: dict[str, Any] = {"linestyle": "-", "linewidth": 3.6, "alpha": 0.5}
TRUTH: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1.4, "zorder": 3}
"""A wide light line below a thin dashed one: both can be seen where they are the same."""

OVER, UNDER = "η-overconfident", "η-underconfident"
OVER_TINT, AMBIGUOUS_TINT, UNDER_TINT = "#F9E0D0", "#E4E4E4", "#D3E7F3"

SMALL, NORMAL = 9, 11
"""Font sizes, in points."""

LOG_AXES_FROM = 20
"""Number of classes from which on max q = 1/K would sit at the very edge of linear axes."""


@dataclass(frozen=True, eq=False)
class PhiCurves:
    """The numbers of `plot_phi`: phi at ``v`` (one row a gamma), and the two taus of ``highlight``."""

    gammas: tuple[float, ...]
    v: Floats
    phi: Floats
    highlight: float
    tau_oc: float
    tau_uc: float


@dataclass(frozen=True, eq=False)
class MaxEtaCurves:
    """The numbers of `plot_max_eta`: the largest posterior (one row a gamma) at each largest score."""

    n_classes: int
    gammas: tuple[float, ...]
    max_q: Floats
    max_eta: Floats


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that belongs to no window and to no global list.

    Args:
        width: In inches.
        height: In inches.

    Example:
        >>> axes = new_figure(8, 3).subplots(1, 2)
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ImportError("plots need matplotlib: pip install 'refocal[plots]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def png_bytes(figure: Figure, dpi: int = 150) -> bytes:
    """Return a figure as the content of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
    return buffer.getvalue()


def phi_curves(gammas: Sequence[float], highlight: float, points: int = 401) -> PhiCurves:
    """Compute phi on [0, 1] for several gammas, and where the regions of one gamma begin and end.

    Args:
        gammas: Numbers >= 0.
        highlight: The gamma, > 0, of the regions.
        points: How many values of v.

    Example:
        >>> phi_curves((1.0, 3.0), highlight=3.0).phi.shape
        (2, 401)
    """
    v = np.linspace(0.0, 1.0, points)
    rows = np.stack([phi(v, gamma) for gamma in gammas])
    return PhiCurves(tuple(gammas), v, rows, highlight, tau_oc(highlight), tau_uc(highlight))


def max_eta_curves(n_classes: int, gammas: Sequence[float], points: int = 201) -> MaxEtaCurves:
    r"""Compute the largest posterior that belongs to each largest score of a focal risk minimiser.

    .. math:: \max_y \eta_y = \max_y \Psi^\gamma_y(q), \quad q = (m, r, \ldots, r), \ r = (1-m)/(K-1)

    Args:
        n_classes: K >= 2.
        gammas: Numbers >= 0.
        points: How many values of m, from 1/K to 1; evenly spaced on the axes of `plot_max_eta`.

    Example:
        >>> max_eta_curves(2, (1.0,), points=3).max_eta.round(3)
        array([[0.5  , 0.876, 1.   ]])
    """
    if n_classes < LOG_AXES_FROM:
        m = np.linspace(1 / n_classes, 1.0, points)
    else:
        m = np.geomspace(1 / n_classes, 1.0, points)
    q = np.repeat((1 - m[:, None]) / (n_classes - 1), n_classes, axis=1)
    q[:, 0] = m
    rows = np.stack([psi(q, gamma)[:, 0] for gamma in gammas])
    return MaxEtaCurves(n_classes, tuple(gammas), m, rows)


def plot_phi(ax: Axes, gammas: Sequence[float] = (0.5, 1.0, 3.0, 5.0), highlight: float = 3.0) -> None:
    """Draw phi for several gammas and shade what the largest score tells for one of them (Theorem 8).

    Args:
        ax: Where to draw.
        gammas: Numbers >= 0; from the fifth on, line styles come again.
        highlight: The gamma, > 0, whose regions are shaded.

    Example:
        >>> plot_phi(new_figure(4, 3).subplots(), gammas=(1.0, 3.0), highlight=3.0)
    """
    curves = phi_curves(gammas, highlight)
    low, high = curves.tau_oc, curves.tau_uc
    regions = (
        (0.0, low, OVER_TINT, OVER),
        (low, high, AMBIGUOUS_TINT, "ambiguous"),
        (high, 1.0, UNDER_TINT, UNDER),
    )
    for left, right, tint, name in regions:
        ax.axvspan(left, right, color=tint, linewidth=0, zorder=0)
        wide = right - left > 0.5
        x, y, rotation = (left + right) / 2, 1.1 if wide else 0.05, "horizontal" if wide else "vertical"
        ax.text(x, y, name, fontsize=SMALL, ha="center", va="bottom", rotation=rotation)
    for tau, name in ((low, "oc"), (high, "uc")):
        ax.axvline(tau, color="0.45", linewidth=0.8, zorder=1)
        label = rf"$\tau^\gamma_{{\mathrm{{{name}}}}}$"
        ax.text(tau + 0.01, 0.99, label, fontsize=NORMAL, va="top", transform=ax.get_xaxis_transform())
    ax.axhline(1.0, color="0.45", linewidth=0.8, zorder=1)
    _gamma_lines(ax, curves.gammas, curves.v, curves.phi)
    ax.legend(loc="upper right", ncols=2, fontsize=SMALL, frameon=False)
    ax.set(xlim=(0, 1), ylim=(0, max(1.6, 1.1 * curves.phi.max())))
    label_axes(ax, "$v$", r"$\varphi^\gamma(v)$", rf"$\varphi^\gamma$, regions of $\gamma = {highlight:g}$")


def plot_max_eta(ax: Axes, n_classes: int, gammas: Sequence[float] = (0.5, 1.0, 3.0, 5.0)) -> None:
    """Draw the largest posterior against the largest score of a focal risk minimiser.

    The other classes share the rest of the score evenly. Above the diagonal the minimiser is
    eta-underconfident, below it eta-overconfident. The axes are logarithmic for 20 classes or more.

    Args:
        ax: Where to draw.
        n_classes: K >= 2.
        gammas: Numbers >= 0; from the fifth on, line styles come again.

    Example:
        >>> plot_max_eta(new_figure(4, 3).subplots(), n_classes=1000, gammas=(1.0, 3.0))
    """
    curves = max_eta_curves(n_classes, gammas)
    m = curves.max_q
    ax.fill_between(m, m, 1, color=UNDER_TINT, linewidth=0, zorder=0)
    ax.fill_between(m, m[0], m, color=OVER_TINT, linewidth=0, zorder=0)
    ax.plot(m, m, color="0.45", linewidth=0.8, zorder=1)
    _gamma_lines(ax, curves.gammas, m, curves.max_eta)
    if n_classes < LOG_AXES_FROM:
        ax.set(xlim=(m[0], 1), ylim=(m[0], 1))
    else:
        low = max(m[0], 0.01)  # further down the curves only run together
        ax.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1))
    ax.text(0.03, 0.96, UNDER, fontsize=SMALL, va="top", rotation="vertical", transform=ax.transAxes)
    ax.text(0.96, 0.05, OVER, fontsize=SMALL, ha="right", transform=ax.transAxes)
    ax.legend(loc="lower right", bbox_to_anchor=(1.0, 0.1), fontsize=SMALL, frameon=False)
    label_axes(ax, r"$\max_y q^{\gamma,*}_y$", r"$\max_y \eta_y$", f"$K = {n_classes}$ classes")


def plot_posteriors(ax: Axes, x: Floats, truth: Floats, estimate: Floats | None, title: str) -> None:
    """Draw an estimate of the class posterior of 1-D data, solid, and the truth, dashed.

    Args:
        ax: Where to draw.
        x: Points, shape (n,).
        truth: The class posterior at x, shape (n, K); from the fourth class on, colours come again.
        estimate: Scores or probabilities of truth's shape, or None to draw the truth alone.
        title: Of the axes.

    Example:
        >>> x, eta = np.array([0.0, 1.0]), np.array([[0.9, 0.1], [0.2, 0.8]])
        >>> plot_posteriors(new_figure(4, 3).subplots(), x, eta, eta, "two classes")
    """
    for k, color in zip(range(truth.shape[1]), cycle(CLASS_COLORS), strict=False):
        label = f"$y = {k + 1}$" if estimate is None else None
        ax.plot(x, truth[:, k], color=color, **TRUTH, label=label)
        if estimate is not None:
            ax.plot(x, estimate[:, k], color=color, **ESTIMATE)
    if estimate is not None:
        ax.plot([], [], color="0.3", **ESTIMATE, label="estimate")
        ax.plot([], [], color="0.3", **TRUTH, label="truth")
    ax.legend(loc="center left", fontsize=SMALL, frameon=False)
    ax.set(xlim=(x[0], x[-1]), ylim=(-0.02, 1.02))
    y = r"$\eta_y(x)$" if estimate is None else r"$\eta_y(x)$ and its estimate"
    label_axes(ax, "$x$", y, title)


def _gamma_lines(ax: Axes, gammas: tuple[float, ...], x: Floats, rows: Floats) -> None:
    for gamma, row, color, style in zip(gammas, rows, cycle(GAMMA_COLORS), cycle(LINE_STYLES), strict=False):
        ax.plot(x, row, color=color, linestyle=style, linewidth=2, label=rf"$\gamma = {gamma:g}$")


def label_axes(ax: Axes, x: str, y: str, title: str) -> None:
    """Set the three texts of the axes in this module's sizes."""
    ax.set_xlabel(x, fontsize=NORMAL)
    ax.set_ylabel(y, fontsize=NORMAL)
    ax.set_title(title, fontsize=NORMAL)
    ax.tick_params(labelsize=SMALL)
