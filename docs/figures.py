"""Every figure of the documentation, in light and in dark colours.

The site writes them before each build; ``python docs/figures.py`` also writes the picture of the README into
docs/images, which is tracked.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

import refocal
from refocal import plots

HERE = Path(__file__).parent
GAMMAS = (0.5, 1.0, 3.0, 5.0)


def first_block(page: str) -> dict[str, Any]:
    """Return the names that the first code block of a page leaves behind."""
    text = (HERE / page).read_text(encoding="utf-8")
    code = re.search(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert code, page
    names: dict[str, Any] = {"print": lambda *_: None}
    exec(compile(code[1], page, "exec"), names)
    return names


@functools.cache
def trained() -> dict[str, refocal.CalibrationStats]:
    """Return the bins of the network of the first page, raw and corrected."""
    names = first_block("start/first.md")
    raw = refocal.Focal(0.0).posterior(names["logits"])
    corrected = names["probs"]
    return {
        name: refocal.CalibrationStats().update(probs, names["labels"])
        for name, probs in (("focal scores", raw), ("after Psi", corrected))
    }


def reliability(figure: Figure) -> None:
    """Raw and corrected scores of a trained network."""
    plots.plot_reliability(trained(), ax=figure.subplots(), histogram=False)


def detector(figure: Figure) -> None:
    """What a sigmoid score means."""
    spec, score = refocal.SigmoidFocal(gamma=2.0, alpha=0.25), np.linspace(0, 1, 401)
    ax = figure.subplots()
    ax.plot(score, score, color="0.45", linestyle="--", linewidth=1, label="score = probability")
    ax.plot(score, spec.posterior_from_probs(score), color=plots.METHOD_COLORS[1], label="what it means")
    half = refocal.score_threshold(spec, 0.5)
    ax.plot([half, half, 0], [0, 0.5, 0.5], color=plots.METHOD_COLORS[0], linewidth=1)
    ax.annotate(f"a score of {half:.3f} means 1/2", (half, 0.5), (half + 0.06, 0.44), fontsize=plots.NORMAL)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    plots.label_axes(ax, "raw score", "probability", "sigmoid focal loss, alpha 0.25, gamma 2")
    ax.legend(fontsize=plots.SMALL, loc="upper left")


def sharpness(figure: Figure) -> None:
    """Where Psi helps and where it hurts: logits that are too flat or too sharp by a factor."""
    rng = np.random.default_rng(0)
    posterior = rng.dirichlet([1.0, 1.0, 1.0], size=4000)
    labels = (posterior.cumsum(1) < rng.random((4000, 1))).sum(1)
    spec = refocal.Focal(2.0)
    exact = spec.logits(posterior)
    factors = np.geomspace(0.25, 4.0, 33)
    methods: dict[str, list[float]] = {"raw": [], "Psi": [], "temperature": [], "temperature, then Psi": []}
    for factor in factors:
        z = factor * exact
        free = refocal.TemperatureScaling("nll").fit(z, labels)
        focal = refocal.TemperatureScaling(spec).fit(z, labels)
        guesses = (
            refocal.Focal(0.0).posterior(z),
            spec.posterior(z),
            free.predict_proba(z),
            spec.posterior(focal.transform(z)),
        )
        for values, probs in zip(methods.values(), guesses, strict=True):
            values.append(max(float(refocal.kl_divergence(probs, posterior)), 1e-5))
    ax = figure.subplots()
    for i, (name, values) in enumerate(methods.items()):
        ax.plot(factors, values, color=plots.METHOD_COLORS[i], linestyle=plots.LINE_STYLES[i], label=name)
    ax.axvline(1, color="0.45", linewidth=0.8)
    ax.set(xscale="log", yscale="log")
    ax.set_xticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"])
    ax.minorticks_off()
    title = "1: exactly at the minimiser of the focal loss, gamma 2"
    plots.label_axes(ax, "logits too sharp by this factor", "KL divergence from the truth", title)
    ax.legend(fontsize=plots.SMALL, loc="lower left", bbox_to_anchor=(0.0, 0.25))


def temperatures(figure: Figure) -> None:
    """The temperature that would do to a row what Psi does to its largest score."""
    ax = figure.subplots()
    for i, classes in enumerate((2, 3, 10, 100)):
        top = np.linspace(1 / classes + 0.01, 0.995, 120)
        rest = np.repeat((1 - top)[:, None] / (classes - 1), classes - 1, axis=1)
        found = temperature_like_psi(np.hstack([top[:, None], rest]), 2.0)
        ax.plot(
            top,
            found,
            color=plots.METHOD_COLORS[i],
            linestyle=plots.LINE_STYLES[i],
            label=f"{classes} classes",
        )
    ax.axhline(1, color="0.45", linewidth=0.8)
    ax.set(xlim=(0, 1), ylim=(0.3, 1.1))
    plots.label_axes(ax, "largest score, all others alike", "temperature", "gamma 2")
    ax.legend(fontsize=plots.SMALL)


def temperature_like_psi(rows: np.ndarray, gamma: float) -> np.ndarray:
    """Return for each row the temperature after which its largest score is that of Psi, by bisection."""
    wanted, low, high = (
        refocal.psi(rows, gamma).max(axis=1),
        np.full(len(rows), -5.0),
        np.full(len(rows), 5.0),
    )
    for _ in range(60):  # of log T: the largest score falls as it grows
        middle = (low + high) / 2
        powers = rows ** np.exp(-middle)[:, None]
        above = (powers / powers.sum(axis=1, keepdims=True)).max(axis=1) > wanted
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.exp((low + high) / 2)


def phi(figure: Figure) -> None:
    """The paper's phi."""
    plots.plot_phi(plots.phi_curves(GAMMAS, 3.0), ax=figure.subplots())


def max_eta(figure: Figure) -> None:
    """The largest score against what it means, for two and for a thousand classes."""
    for ax, classes in zip(figure.subplots(1, 2), (2, 1000), strict=True):
        plots.plot_max_eta(plots.max_eta_curves(classes, GAMMAS), ax=ax)


def taus(figure: Figure) -> None:
    """The two thresholds over gamma."""
    plots.plot_taus(plots.tau_curves(np.geomspace(0.01, 100, 201)), ax=figure.subplots())


def simplex(figure: Figure) -> None:
    """Where Psi moves the scores of three classes."""
    plots.plot_simplex(plots.simplex_map(2.0), ax=figure.subplots())


@dataclass(frozen=True)
class Drawing:
    """What draws a figure, its size in inches, and whether it stays on white, as light areas must."""

    draw: Callable[[Figure], None]
    width: float = 6.0
    height: float = 4.2
    on_white: bool = False


FIGURES = {
    "reliability": Drawing(reliability, 4.6),
    "detector": Drawing(detector, 5.4),
    "sharpness": Drawing(sharpness),
    "temperatures": Drawing(temperatures),
    "phi": Drawing(phi, on_white=True),
    "max-eta": Drawing(max_eta, 9.5, 4.4, on_white=True),
    "taus": Drawing(taus, on_white=True),
    "simplex": Drawing(simplex, height=5.0, on_white=True),
}


def svg(drawing: Drawing, *, dark: bool) -> bytes:
    """Return one figure, the same bytes each time; in the dark greys have their lightness turned round."""
    ink = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "0.1"
    )
    with rc_context({**ink, "legend.framealpha": 0.0, "svg.hashsalt": "refocal"}):
        figure = plots.new_figure(drawing.width, drawing.height)
        drawing.draw(figure)
        if dark and not drawing.on_white:
            turn_greys(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", transparent=not drawing.on_white, metadata={"Date": None})
    return buffer.getvalue()


def turn_greys(figure: Figure) -> None:
    """Make dark greys light and light ones dark; colours stay."""
    for artist in figure.findobj():
        for name in ("color", "facecolor", "edgecolor", "markeredgecolor", "markerfacecolor"):
            get, put = getattr(artist, f"get_{name}", None), getattr(artist, f"set_{name}", None)
            if get and put:
                turned = turn(get())
                if turned is not None:
                    put(turned)


def turn(color: Any) -> Any:
    """Return a grey with its lightness turned round, and None for what is no single grey."""
    try:
        if isinstance(color, np.ndarray) and color.shape[:1] == (1,):
            color = color[0]
        red, green, blue, alpha = to_rgba(color)
    except (TypeError, ValueError):
        return None
    return (1 - red,) * 3 + (alpha,) if red == green == blue and alpha > 0 else None


def write(folder: Path, names: tuple[str, ...] = tuple(FIGURES)) -> None:
    """Write figures that are not there yet, or older than this file or the page they are drawn from."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = (Path(__file__), HERE / "start/first.md")
    newest = max(path.stat().st_mtime for path in sources)
    for name in names:
        for mode in ("light", "dark"):
            path = folder / f"{name}-{mode}.svg"
            if not path.exists() or path.stat().st_mtime < newest:
                path.write_bytes(svg(FIGURES[name], dark=mode == "dark"))


if __name__ == "__main__":
    write(HERE / "_static" / "figures")
    write(HERE / "images", ("reliability",))
