"""The paper's numerical illustration, without noise: three classes on a line, their posterior known.

The exact minimiser of the focal risk stands in for a perfectly trained network, so that all that is
wrong with its scores is the loss, and all that psi does to them can be seen.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from refocal import plots
from refocal.confidence import Confidence, eta_confidence
from refocal.focal import psi
from refocal.minimizer import focal_minimizer
from refocal.plots import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRIORS = np.array([0.5, 0.3, 0.2])
MEANS = np.array([-2.0, 0.6, 2.2])
SCALES = np.array([1.1, 1.0, 1.2])
"""Three normal densities: the outer classes are clear far out, the middle one is never above 0.76."""

GAMMAS = (1.0, 5.0)
N_BINS = 10
FILE_NAME = "refocal-demo.png"


@dataclass(frozen=True, eq=False)
class Estimate:
    """Estimated class probabilities on the grid, and how far they are from the true ones.

    Attributes:
        gamma: Of the focal loss.
        scores: "raw" (the minimiser of the focal risk) or "psi" (psi of it).
        probs: Shape (n, 3).
        max_error: The largest |estimate - truth| over points and classes.
        kl: KL(truth || estimate) in nats, averaged over p(x).
        ece: Expected calibration error against the true posterior, see `exact_ece`.
        err: Probability that the largest class of the estimate is not the label.
    """

    gamma: float
    scores: str
    probs: Floats
    max_error: float
    kl: float
    ece: float
    err: float


@dataclass(frozen=True, eq=False)
class DemoResult:
    """All numbers of the demo.

    Attributes:
        x: The grid, shape (n,).
        joint: p(x, y), shape (n, 3).
        posterior: The truth p(y | x), shape (n, 3).
        estimates: Raw and psi for each gamma.
        figure: The file that was written, if any.
    """

    x: Floats
    joint: Floats
    posterior: Floats
    estimates: tuple[Estimate, ...]
    figure: Path | None = None

    def table(self) -> str:
        """Return the numbers of the estimates as lines of plain text."""
        lines = [f"{'gamma':>5}  {'scores':<6}  {'max error':>9}  {'KL':>9}  {'ECE':>9}  {'ERR':>9}"]
        for e in self.estimates:
            numbers = "  ".join(f"{_short(value):>9}" for value in (e.max_error, e.kl, e.ece, e.err))
            lines.append(f"{e.gamma:>5g}  {e.scores:<6}  {numbers}")
        return "\n".join(lines)

    def summary(self) -> str:
        """Return in a few lines what the numbers show."""
        raw = [e for e in self.estimates if e.scores == "raw"]
        worst = max(raw, key=lambda e: e.max_error)
        under = min(float(np.mean(eta_confidence(e.probs, e.gamma) == Confidence.UNDER)) for e in raw)
        recovered = max(e.max_error for e in self.estimates if e.scores == "psi")
        return (
            f"Raw scores, though they minimise the focal risk exactly, are not probabilities:\n"
            f"  with gamma = {worst.gamma:g} they miss the truth by up to {worst.max_error:.2f}.\n"
            f"They are eta-underconfident at {under:.0%} of the points: max q is below max eta.\n"
            f"psi, a formula with nothing to fit, gives the truth back (max error {recovered:.0e}).\n"
            f"The predicted class stays, and so does ERR."
        )


def mixture_joint(x: Floats) -> Floats:
    r"""Return p(x, y) of the three classes.

    .. math:: p(x, y) = \pi_y \, \mathcal{N}(x; \mu_y, \sigma_y^2)

    Args:
        x: Points, shape (n,).

    Returns:
        Shape (n, 3).

    Example:
        >>> mixture_joint(np.array([-2.0])).round(3)
        array([[0.181, 0.004, 0.   ]])
    """
    z = (x[:, None] - MEANS) / SCALES
    joint: Floats = PRIORS * np.exp(-0.5 * z * z) / (SCALES * np.sqrt(2 * np.pi))
    return joint


def exact_ece(probs: Floats, posterior: Floats, weight: Floats, n_bins: int = N_BINS) -> float:
    r"""Return the expected calibration error where the true posterior is known.

    .. math:: \mathrm{ECE} = \sum_b \Bigl| \sum_{x \in b} w(x) \, (\eta_{\hat y}(x) - \max_y q_y(x)) \Bigr|,
        \quad \hat y = \arg\max_y q_y(x)

    Bins of max q are (lo, hi], of equal width; the first one includes 0.

    Args:
        probs: The estimate q, shape (n, K).
        posterior: The truth eta, of the same shape.
        weight: Of the points, shape (n,), with sum 1.
        n_bins: How many bins.

    Example:
        >>> exact_ece(np.array([[0.75, 0.25]]), np.array([[1.0, 0.0]]), np.array([1.0]))
        0.25
    """
    confidence = probs.max(axis=1)
    edges = np.arange(1, n_bins) / n_bins
    gap = weight * (_at_top(posterior, probs) - confidence)
    sums = np.bincount(np.searchsorted(edges, confidence, side="left"), weights=gap)
    return float(np.abs(sums).sum())


def compute_demo(points: int = 2401) -> DemoResult:
    """Compute the demo's numbers on an even grid of [-6, 6], with weights p(x).

    Args:
        points: Size of the grid.

    Example:
        >>> [f"{e.gamma:g} {e.scores} {e.ece:.2f}" for e in compute_demo().estimates]
        ['1 raw 0.07', '1 psi 0.00', '5 raw 0.23', '5 psi 0.00']
    """
    x = np.linspace(-6.0, 6.0, points)
    joint = mixture_joint(x)
    density = joint.sum(axis=1)
    posterior = joint / density[:, None]
    weight = density / density.sum()
    estimates = []
    for gamma in GAMMAS:
        raw = focal_minimizer(posterior, gamma)
        for name, probs in (("raw", raw), ("psi", psi(raw, gamma))):
            estimates.append(_estimate(gamma, name, probs, posterior, weight))
    return DemoResult(x, joint, posterior, tuple(estimates))


def run_demo(directory: str | os.PathLike[str]) -> DemoResult:
    """Compute the demo and write its figure, ``refocal-demo.png``.

    Args:
        directory: An existing folder. A figure from before is replaced, in one step.

    Returns:
        The numbers, with the path of the figure.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise NotADirectoryError(f"output folder must be an existing folder, got {str(directory)!r}")
    figure = plots.new_figure(13, 11)  # first of all, since it needs the optional matplotlib
    result = compute_demo()
    draw_demo(figure, result)
    return dataclasses.replace(result, figure=_write_whole(folder / FILE_NAME, plots.png_bytes(figure)))


def draw_demo(figure: Figure, result: DemoResult) -> None:
    """Draw the paper's functions, the mixture, and its posterior before and after psi: nine axes."""
    axes = figure.subplots(3, 3)
    plots.plot_phi(axes[0, 0])
    plots.plot_max_eta(axes[0, 1], n_classes=2)
    plots.plot_max_eta(axes[0, 2], n_classes=1000)
    x = result.x
    densities = axes[1, 0]
    densities.plot(x, result.joint.sum(axis=1), color="0.3", linestyle=":", linewidth=2, label="$p(x)$")
    for k, color in enumerate(plots.CLASS_COLORS):
        densities.plot(x, result.joint[:, k], color=color, linewidth=2, label=f"$p(x, y = {k + 1})$")
    densities.set(xlim=(x[0], x[-1]), ylim=(0, None))
    densities.legend(loc="upper right", fontsize=plots.SMALL, frameon=False)
    plots.label_axes(densities, "$x$", "density", "the mixture")
    plots.plot_posteriors(axes[2, 0], x, result.posterior, None, r"the truth, $\eta_y(x) = p(y \mid x)$")
    rows = {"raw": (1, r"raw scores $q^{\gamma,*}$"), "psi": (2, r"$\Psi^\gamma(q^{\gamma,*})$")}
    for e in result.estimates:
        row, name = rows[e.scores]
        title = rf"{name}, $\gamma = {e.gamma:g}$" + f"\nERR {e.err:.3f}   KL {e.kl:.3f}   ECE {e.ece:.3f}"
        plots.plot_posteriors(axes[row, 1 + GAMMAS.index(e.gamma)], x, result.posterior, e.probs, title)
    for letter, ax in zip("abcdefghi", axes.flat, strict=True):
        name = f"({letter})" + "\n" * ax.get_title().count("\n")
        ax.set_title(name, loc="left", fontsize=plots.NORMAL, fontweight="bold")


def _estimate(gamma: float, name: str, probs: Floats, posterior: Floats, weight: Floats) -> Estimate:
    kl = (posterior * np.log(posterior / probs)).sum(axis=1)
    return Estimate(
        gamma=gamma,
        scores=name,
        probs=probs,
        max_error=float(np.abs(probs - posterior).max()),
        kl=float(weight @ kl),
        ece=exact_ece(probs, posterior, weight),
        err=float(weight @ (1 - _at_top(posterior, probs))),
    )


def _at_top(posterior: Floats, probs: Floats) -> Floats:
    """Return the posterior of the class that has the largest score, for every point."""
    top: Floats = np.take_along_axis(posterior, probs.argmax(axis=1)[:, None], axis=1)[:, 0]
    return top


def _short(value: float) -> str:
    return f"{value:.4f}" if abs(value) >= 1e-4 else f"{value:.0e}"


def _write_whole(path: Path, content: bytes) -> Path:
    """Write a file completely or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as error:
        raise OSError(f"cannot write {str(path)!r}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):  # after success it is gone
            part.unlink()
    return path
