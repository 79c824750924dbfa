"""The pictures of a page, as inline SVG. Colours are those of the page, by CSS classes.

Every text and number goes through `tag`, which escapes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from refocal.report.numbers import Curve, Diagram, EtaConfidence, Thresholds

LEFT, TOP, SIDE, GAP, BARS = 48, 10, 260, 14, 54
"""Of a reliability diagram: the square of the plot, and the bars of the histogram below it."""
WIDTH, HEIGHT = LEFT + SIDE + 14, TOP + SIDE + GAP + BARS + 40
TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def tag(name: str, content: object = "", **attributes: object) -> Markup:
    """Return an element; ``_`` in the name of an attribute stands for ``-``.

    Example:
        >>> tag("text", "a < b", x=1, text_anchor="end")
        Markup('<text x="1" text-anchor="end">a &lt; b</text>')
    """
    pairs = ((key.rstrip("_").replace("_", "-"), _short(value)) for key, value in attributes.items())
    inside = Markup("").join(Markup(' {}="{}"').format(key, value) for key, value in pairs)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), inside, escape(content))


def _short(value: object) -> object:
    """Return a coordinate with two digits, which is a hundredth of a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def _svg(
    ident: str, title: str, text: str, width: int, height: int, parts: Iterable[Markup], kind: str = "chart"
) -> Markup:
    names = f"{ident}-title {ident}-desc"
    head = tag("title", title, id=f"{ident}-title") + tag("desc", text, id=f"{ident}-desc")
    return tag(
        "svg",
        head + Markup("").join(parts),
        id=ident,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_labelledby=names,
        class_=kind,
    )


def reliability(ident: str, diagram: Diagram, title: str, axes: tuple[str, str], kind: str) -> Markup:
    """Return a reliability diagram with a histogram below.

    Args:
        ident: Of the SVG element; unique on the page.
        diagram: The numbers.
        title: For those who do not see it.
        axes: What confidence and accuracy are called.
        kind: "raw", "after" or "explore": the colour.
    """
    most = max(diagram.counts)
    parts = [*_frame(LEFT, TOP, SIDE, SIDE, axes[1]), _line(0, 0, 1, 1, "ideal")]
    parts += [_bin(diagram, i, most) for i in range(len(diagram.counts))]
    bottom = TOP + SIDE + GAP + BARS
    parts.append(tag("line", x1=LEFT, x2=LEFT + SIDE, y1=bottom, y2=bottom, class_="axis"))
    parts += [_tick_x(LEFT + t * SIDE, bottom + 15, f"{t:g}") for t in TICKS]
    parts.append(tag("text", axes[0], x=LEFT + SIDE / 2, y=bottom + 33, class_="label", text_anchor="middle"))
    parts.append(tag("text", "cases", x=LEFT - 8, y=bottom - BARS / 2 + 4, class_="tick", text_anchor="end"))
    text = f"{diagram.n_rows:,} cases, expected calibration error {diagram.ece:.4f}. " + " ".join(
        bin_words(diagram, i) for i, count in enumerate(diagram.counts) if count
    )
    drawn = _svg(ident, title, text, WIDTH, HEIGHT, parts)
    return Markup('<div class="{}">{}</div>').format(f"diagram {kind}", drawn)


def bin_words(diagram: Diagram, i: int) -> str:
    """Return a bin in words."""
    count, span = diagram.counts[i], f"{diagram.edges[i]:.2g} to {diagram.edges[i + 1]:.2g}"
    if not count:
        return f"{span}: no cases."
    return (
        f"{span}: {count:,} cases, mean score {diagram.confidence[i]:.3f}, observed "
        f"{diagram.accuracy[i]:.3f} ({diagram.low[i]:.3f} to {diagram.high[i]:.3f})."
    )


def _bin(diagram: Diagram, i: int, most: int) -> Markup:
    """Return a bin: the band of its interval, the gap to the diagonal, a dot, a bar, a text to hover."""
    low, high, count = diagram.edges[i], diagram.edges[i + 1], diagram.counts[i]
    x, width = LEFT + low * SIDE, (high - low) * SIDE
    confidence, accuracy, below, above = (
        (a[i] if count else 0.0) for a in (diagram.confidence, diagram.accuracy, diagram.low, diagram.high)
    )
    at, bar = LEFT + confidence * SIDE, BARS * count / most
    bottom = TOP + SIDE + GAP + BARS
    shapes = (
        tag("title", bin_words(diagram, i)),
        tag("rect", x=x, y=TOP, width=width, height=SIDE + GAP + BARS, class_="hover"),
        tag("rect", x=x, y=_y(above), width=width, height=(above - below) * SIDE, class_="band"),
        tag("line", x1=at, x2=at, y1=_y(confidence), y2=_y(accuracy), class_="gap"),
        tag("circle", cx=at, cy=_y(accuracy), r=4, class_="dot"),
        tag("rect", x=x + 1, y=bottom - bar, width=width - 2, height=bar, class_="bar"),
    )
    return tag("g", Markup("").join(shapes), class_="bin" if count else "bin empty")


def _y(value: float) -> float:
    return TOP + (1 - value) * SIDE


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return tag("line", x1=LEFT + x1 * SIDE, x2=LEFT + x2 * SIDE, y1=_y(y1), y2=_y(y2), class_=kind)


def _tick_x(x: float, y: float, text: str) -> Markup:
    return tag("text", text, x=x, y=y, class_="tick", text_anchor="middle")


def _frame(left: float, top: float, width: float, height: float, label: str) -> list[Markup]:
    """Return the grid of an axis from 0 to 1, with numbers and its name."""
    parts = []
    for t in TICKS:
        y = top + (1 - t) * height
        parts.append(tag("line", x1=left, x2=left + width, y1=y, y2=y, class_="axis" if t == 0 else "rule"))
        parts.append(tag("text", f"{t:g}", x=left - 8, y=y + 4, class_="tick", text_anchor="end"))
    middle = top + height / 2
    turn = f"translate(11 {middle:g}) rotate(-90)"
    return [*parts, tag("text", label, transform=turn, class_="label", text_anchor="middle")]


def thresholds(ident: str, found: Thresholds, what: str) -> Markup:
    """Return the probability by raw score, with the scores that mean one half."""
    parts = [*_frame(LEFT, TOP, SIDE, SIDE, "probability"), _line(0, 0, 1, 1, "ideal")]
    parts += [tag("circle", cx=LEFT + s * SIDE, cy=_y(p), r=1.8, class_="point") for s, p in found.points]
    texts = []
    if found.curves:
        half = found.wanted.index(0.5)
        parts.append(_line(0, 0.5, 1, 0.5, "half"))
        names = list(dict.fromkeys(curve.name for curve in found.curves))
        for curve, scores in zip(found.curves, found.scores, strict=True):
            other = "" if curve.method == found.method else " other"
            parts.append(_path(curve, f"curve c{names.index(curve.name)}{other}"))
            score = scores[half]
            if math.isfinite(score):
                parts.append(_line(score, 0, score, 0.5, "half"))
                parts.append(tag("circle", cx=LEFT + score * SIDE, cy=_y(0.5), r=4, class_="dot"))
                texts.append(f"{curve.method}, {curve.name}: a score of {score:.3f} means 0.5.")
    parts += [_tick_x(LEFT + t * SIDE, TOP + SIDE + 17, f"{t:g}") for t in TICKS]
    parts.append(
        tag("text", what, x=LEFT + SIDE / 2, y=TOP + SIDE + 35, class_="label", text_anchor="middle")
    )
    text = " ".join(texts) or "Score and probability of the largest class, for some rows."
    return _svg(ident, "What a raw score means", text, WIDTH, TOP + SIDE + 44, parts)


def _path(curve: Curve, kind: str) -> Markup:
    steps = (
        f"{LEFT + s * SIDE:.2f} {_y(p):.2f}"
        for s, p in zip(curve.score, curve.probability, strict=True)
        if math.isfinite(p)
    )
    return tag("path", d="M" + "L".join(steps), class_=kind)


def eta_histogram(ident: str, eta: EtaConfidence) -> Markup:
    """Return the histogram of the largest score, with the thresholds of Theorem 8."""
    left, width, height, top = 12, 400, 110, 26
    kinds = [
        ("under", eta.counts_under, "eta-underconfident"),
        ("equal", eta.counts_equal, "neither"),
        ("over", eta.counts_over, "eta-overconfident"),
    ]
    most = max(1, *(sum(c) for c in zip(*(counts for _, counts, _ in kinds), strict=True)))
    parts = []
    for i, (low, high) in enumerate(zip(eta.edges, eta.edges[1:], strict=False)):
        y = float(top + height)
        for kind, counts, name in kinds:
            bar = height * counts[i] / most
            y -= bar
            if counts[i]:
                text = tag("title", f"{low:.3f} to {high:.3f}: {counts[i]:,} cases, {name}.")
                shape = tag(
                    "rect",
                    text,
                    x=left + low * width + 0.5,
                    y=y,
                    width=(high - low) * width - 1,
                    height=bar,
                    class_=kind,
                )
                parts.append(shape)
    bottom = top + height
    parts.append(tag("line", x1=left, x2=left + width, y1=bottom, y2=bottom, class_="axis"))
    parts += [_tick_x(left + t * width, bottom + 16, f"{t:g}") for t in TICKS]
    parts.append(
        tag("text", "largest score", x=left + width / 2, y=bottom + 34, class_="label", text_anchor="middle")
    )
    for letter, tau, anchor, shift in (
        ("τ_oc", eta.tau_oc, "end", -4),
        ("τ_uc", eta.tau_uc, "start", 4),
    ):
        if tau is not None:
            x = left + tau * width
            parts.append(tag("line", x1=x, x2=x, y1=top - 10, y2=bottom, class_="tau"))
            parts.append(
                tag("text", f"{letter} {tau:.3f}", x=x + shift, y=top - 12, class_="tick", text_anchor=anchor)
            )
    words = f"{eta.under:.1%} of cases are eta-underconfident, {eta.over:.1%} eta-overconfident."
    size = (left + width + 12, bottom + 42)
    return _svg(ident, "Largest scores and what they mean", words, *size, parts, "chart wide")


def small_reliability(ident: str, diagrams: Sequence[tuple[str, Diagram]], title: str) -> Markup:
    """Return the curves of several diagrams in one small square: "raw" and "after"."""
    parts = [*_frame(LEFT, TOP, SIDE, SIDE, "observed"), _line(0, 0, 1, 1, "ideal")]
    for kind, diagram in diagrams:
        full = [i for i, count in enumerate(diagram.counts) if count]
        points = [(LEFT + diagram.confidence[i] * SIDE, _y(diagram.accuracy[i])) for i in full]
        steps = "L".join(f"{x:.2f} {y:.2f}" for x, y in points)
        shapes: list[Markup] = [tag("path", d=f"M{steps}", class_="join")]
        shapes += [tag("circle", cx=x, cy=y, r=3.5, class_="dot") for x, y in points]
        parts.append(tag("g", Markup("").join(shapes), class_=kind))
    parts += [_tick_x(LEFT + t * SIDE, TOP + SIDE + 17, f"{t:g}") for t in TICKS]
    parts.append(
        tag("text", "score", x=LEFT + SIDE / 2, y=TOP + SIDE + 35, class_="label", text_anchor="middle")
    )
    text = " ".join(f"{kind}: expected calibration error {d.ece:.4f}." for kind, d in diagrams)
    return _svg(ident, title, text, WIDTH, TOP + SIDE + 44, parts)
