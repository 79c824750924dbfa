"""The paper's functions as frozen numbers, and pictures of these numbers.

phi with its regions, the largest posterior against the largest score, the two thresholds and the least
number of classes over gamma, and psi on the simplex of three classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from refocal.confidence import tau_oc, tau_uc
from refocal.focal import phi, psi
from refocal.plots.style import LINE_STYLES, NORMAL, SMALL, Floats, axes_or_new, label_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

GAMMA_COLORS = ("#E69F00", "#CC79A7", "#56B4E9", "#000000")
CLASS_COLORS = ("#0072B2", "#D55E00", "#009E73")
"""Okabe and Ito's palette, safe for the colour-blind: one half for gammas, the other for classes."""

OVER, UNDER = "η-overconfident", "η-underconfident"
OVER_TINT, AMBIGUOUS_TINT, UNDER_TINT = "#F9E0D0", "#E4E4E4", "#D3E7F3"

LOG_AXES_FROM = 20
"""Number of classes from which on max q = 1/K would sit at the very edge of linear axes."""

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
"""Of the simplex of three classes, drawn as a triangle."""


@dataclass(frozen=True, eq=False)
class PhiCurves:
    """The numbers of `plot_phi`: phi at ``v`` (one row for each gamma), and the two taus of ``highlight``."""

    gammas: tuple[float, ...]
    v: Floats
    phi: Floats
    highlight: float
    tau_oc: float
    tau_uc: float


@dataclass(frozen=True, eq=False)
class MaxEtaCurves:
    """The numbers of `plot_max_eta`: the largest posterior (one row for each gamma) at each largest score."""

    n_classes: int
    gammas: tuple[float, ...]
    max_q: Floats
    max_eta: Floats


@dataclass(frozen=True, eq=False)
class TauCurves:
    """The numbers of `plot_taus`: both thresholds of Theorem 8 at each gamma."""

    gamma: Floats
    tau_oc: Floats
    tau_uc: Floats


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """The numbers of `plot_class_counts`: how many classes eta-overconfidence takes at each gamma.

    Attributes:
        gamma: Shape (n,).
        near_uniform: Least K with eta-overconfident scores as close to (1/K, ..., 1/K) as one likes.
        known: Least K of the rows (u, ..., u, d) with a small d. No row of fewer classes is known.
    """

    gamma: Floats
    near_uniform: Integers
    known: Integers


@dataclass(frozen=True, eq=False)
class SimplexMap:
    """The numbers of `plot_simplex`: scores q of three classes, shape (n, 3), and psi of them.

    ``arrow`` tells the points from which arrows start: a coarser grid, so that they do not crowd.
    """

    gamma: float
    q: Floats
    psi: Floats
    arrow: np.ndarray[Any, np.dtype[np.bool_]]


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


def tau_curves(gammas: Floats) -> TauCurves:
    """Compute both thresholds of Theorem 8.

    Args:
        gammas: Numbers > 0, ascending.

    Example:
        >>> tau_curves(np.array([1.0])).tau_uc.round(4)
        array([0.3679])
    """
    return TauCurves(gammas, tau_oc(gammas), tau_uc(gammas))


def class_counts(gammas: Floats) -> ClassCounts:
    r"""Compute how many classes eta-overconfidence takes (the paper's footnote, and beyond it).

    Near the uniform row: the least K with :math:`1/K < \tau_{oc}`. Among the rows (u, ..., u, d) with d
    small: the least K with :math:`1/(K-1) < \tau_{uc}`. Theory, remark 2, has the reasons.

    Args:
        gammas: Numbers > 0, ascending.

    Example:
        >>> counts = class_counts(np.array([0.02, 0.03, 1.0, 5.0]))
        >>> counts.near_uniform, counts.known
        (array([ 5,  6,  8, 16]), array([4, 4, 4, 7]))
    """
    near = np.floor(1 / tau_oc(gammas)) + 1
    known = np.floor(1 / tau_uc(gammas)) + 2
    return ClassCounts(gammas, near.astype(np.int64), known.astype(np.int64))


def simplex_map(gamma: float, side: int = 61) -> SimplexMap:
    """Compute psi on an even grid over the inside of the simplex of three classes.

    Args:
        gamma: A number >= 0.
        side: Points along an edge.

    Example:
        >>> simplex_map(2.0, side=4).q.shape
        (10, 3)
    """
    i, j = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    inside = i + j < side
    i, j = i[inside], j[inside]
    q = (np.stack([i, j, side - 1 - i - j], axis=1) + 1 / 3) / side
    return SimplexMap(gamma, q, psi(q, gamma), (i % 6 == 2) & (j % 6 == 2))


def plot_phi(curves: PhiCurves, *, ax: Axes | None = None) -> Axes:
    """Draw phi for several gammas and shade what the largest score tells for one of them (Theorem 8).

    Args:
        curves: From `phi_curves`; from the fifth gamma on, line styles come again.
        ax: Where to draw; None for a new figure.

    Returns:
        The axes.

    Example:
        >>> plot_phi(phi_curves((1.0, 3.0), highlight=3.0)).get_xlabel()
        '$v$'
    """
    ax = axes_or_new(ax)
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
    title = rf"$\varphi^\gamma$, regions of $\gamma = {curves.highlight:g}$"
    label_axes(ax, "$v$", r"$\varphi^\gamma(v)$", title)
    return ax


def plot_max_eta(curves: MaxEtaCurves, *, ax: Axes | None = None) -> Axes:
    """Draw the largest posterior against the largest score of a focal risk minimiser.

    The other classes share the rest of the score evenly. Above the diagonal the minimiser is
    eta-underconfident, below it eta-overconfident. The axes are logarithmic for 20 classes or more.

    Args:
        curves: From `max_eta_curves`; from the fifth gamma on, line styles come again.
        ax: Where to draw; None for a new figure.

    Returns:
        The axes.

    Example:
        >>> plot_max_eta(max_eta_curves(1000, (1.0, 3.0))).get_xscale()
        'log'
    """
    ax = axes_or_new(ax)
    m = curves.max_q
    ax.fill_between(m, m, 1, color=UNDER_TINT, linewidth=0, zorder=0)
    ax.fill_between(m, m[0], m, color=OVER_TINT, linewidth=0, zorder=0)
    ax.plot(m, m, color="0.45", linewidth=0.8, zorder=1)
    _gamma_lines(ax, curves.gammas, m, curves.max_eta)
    if curves.n_classes < LOG_AXES_FROM:
        ax.set(xlim=(m[0], 1), ylim=(m[0], 1))
    else:
        low = max(m[0], 0.01)  # further down the curves only run together
        ax.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1))
    ax.text(0.03, 0.96, UNDER, fontsize=SMALL, va="top", rotation="vertical", transform=ax.transAxes)
    ax.text(0.96, 0.05, OVER, fontsize=SMALL, ha="right", transform=ax.transAxes)
    ax.legend(loc="lower right", bbox_to_anchor=(1.0, 0.1), fontsize=SMALL, frameon=False)
    label_axes(ax, r"$\max_y q^{\gamma,*}_y$", r"$\max_y \eta_y$", f"$K = {curves.n_classes}$ classes")
    return ax


def plot_taus(curves: TauCurves, *, ax: Axes | None = None) -> Axes:
    """Draw both thresholds of Theorem 8 over gamma, and the three regions between them.

    Args:
        curves: From `tau_curves`.
        ax: Where to draw; None for a new figure.

    Returns:
        The axes.

    Example:
        >>> plot_taus(tau_curves(np.geomspace(0.1, 10, 50))).get_xscale()
        'log'
    """
    ax = axes_or_new(ax)
    gamma, low, high = curves.gamma, curves.tau_oc, curves.tau_uc
    for bottom, top, tint in (
        (0 * low, low, OVER_TINT),
        (low, high, AMBIGUOUS_TINT),
        (high, 0 * high + 0.55, UNDER_TINT),
    ):
        ax.fill_between(gamma, bottom, top, color=tint, linewidth=0, zorder=0)
    ax.plot(gamma, high, color=CLASS_COLORS[0], linewidth=2, label=r"$\tau^\gamma_{\mathrm{uc}}$")
    label = r"$\tau^\gamma_{\mathrm{oc}}$"
    ax.plot(gamma, low, color=CLASS_COLORS[1], linewidth=2, linestyle="--", label=label)
    ax.set(xscale="log", xlim=(gamma[0], gamma[-1]), ylim=(0, 0.55))
    ax.text(0.04, 0.03, OVER, fontsize=SMALL, transform=ax.transAxes)
    ax.text(0.04, 0.55, "ambiguous", fontsize=SMALL, transform=ax.transAxes)
    ax.text(0.6, 0.68, UNDER, fontsize=SMALL, transform=ax.transAxes)
    ax.legend(loc="upper right", ncols=2, fontsize=NORMAL, frameon=False)
    label_axes(ax, r"$\gamma$", r"$\max_y q^{\gamma,*}_y$", "what the largest score tells")
    return ax


def plot_class_counts(counts: ClassCounts, *, ax: Axes | None = None) -> Axes:
    """Draw the least number of classes with eta-overconfident scores over gamma.

    Args:
        counts: From `class_counts`.
        ax: Where to draw; None for a new figure.

    Returns:
        The axes.

    Example:
        >>> plot_class_counts(class_counts(np.geomspace(0.01, 10, 200))).get_xscale()
        'log'
    """
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    ax = axes_or_new(ax)
    lines = (
        (counts.near_uniform, CLASS_COLORS[1], "--", "near the uniform row"),
        (counts.known, CLASS_COLORS[0], "-", r"rows $(u, \ldots, u, d)$, small $d$"),
    )
    for k, color, style, name in lines:
        ax.step(counts.gamma, k, where="post", color=color, linestyle=style, linewidth=2, label=name)
    most = int(counts.near_uniform.max())
    ax.set(xscale="log", yscale="log", xlim=(counts.gamma[0], counts.gamma[-1]), ylim=(3, 1.3 * most))
    ax.set_yticks([k for k in (3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 200, 500) if k <= 1.3 * most])
    ax.yaxis.set_major_formatter(ScalarFormatter())
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.grid(axis="y", color="0.9")
    ax.legend(loc="upper left", fontsize=SMALL, frameon=False)
    label_axes(ax, r"$\gamma$", "least $K$", "classes that η-overconfidence takes")
    return ax


def plot_simplex(map_: SimplexMap, *, ax: Axes | None = None) -> Axes:
    """Draw psi on the simplex of three classes: arrows from q to psi(q), on how much the top class gains.

    Args:
        map_: From `simplex_map`.
        ax: Where to draw; None for a new figure. A colour bar is added beside it.

    Returns:
        The axes.

    Example:
        >>> len(plot_simplex(simplex_map(2.0)).texts)
        3
    """
    ax = axes_or_new(ax, width=5.5)
    x, y = (map_.q @ CORNERS).T
    gain = map_.psi.max(axis=1) - map_.q.max(axis=1)
    most = max(float(gain.max()), 1e-3)
    # Only the lighter half of the colours, on which arrows can be seen.
    filled = ax.tricontourf(x, y, np.clip(gain, 0, None), levels=8, cmap="Blues", vmin=0, vmax=2 * most)
    bar = ax.figure.colorbar(filled, ax=ax, shrink=0.8, format="%g")
    bar.set_label(r"$\max_y \Psi^\gamma_y(q) - \max_y q_y$", fontsize=NORMAL)
    bar.ax.tick_params(labelsize=SMALL)
    start, end = map_.q[map_.arrow] @ CORNERS, map_.psi[map_.arrow] @ CORNERS
    style: dict[str, Any] = {
        "angles": "xy",
        "scale_units": "xy",
        "scale": 1,
        "width": 0.004,
        "color": "black",
    }
    ax.quiver(*start.T, *(end - start).T, **style)
    ax.plot(*CORNERS[[0, 1, 2, 0]].T, color="0.3", linewidth=1)
    for k, ((u, v), ha) in enumerate(zip(CORNERS, ("right", "left", "center"), strict=True)):
        ax.text(u, v, f" $y = {k + 1}$ ", fontsize=NORMAL, ha=ha, va="bottom" if v else "top")
    ax.set_aspect("equal")
    ax.set_axis_off()
    ax.set_title(rf"$\Psi^\gamma$ of three classes, $\gamma = {map_.gamma:g}$", fontsize=NORMAL, pad=16)
    return ax


def _gamma_lines(ax: Axes, gammas: tuple[float, ...], x: Floats, rows: Floats) -> None:
    for gamma, row, color, style in zip(gammas, rows, cycle(GAMMA_COLORS), cycle(LINE_STYLES), strict=False):
        ax.plot(x, row, color=color, linestyle=style, linewidth=2, label=rf"$\gamma = {gamma:g}$")
