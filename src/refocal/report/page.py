"""From the numbers of a report to its page."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np

from refocal import __version__
from refocal.calibration import Selection
from refocal.extras import needs
from refocal.metrics.intervals import wilson
from refocal.report.numbers import Diagram, Grid, Numbers
from refocal.report.words import source_of

with needs("a report page", "jinja2"):
    import jinja2
    from jinja2.utils import htmlsafe_json_dumps
    from markupsafe import Markup

from refocal.report import charts

SHOWN_CLASSES = 1000
"""So many rows of the table of classes are on the page, which so stays below 2 MB."""


AXES = {
    "multiclass": ("confidence: the largest probability", "accuracy"),
    "binary": ("probability of class 1", "share of class 1"),
    "multilabel": ("probability of a label", "share that has it"),
}
"""What confidence and accuracy are called."""

TWICE = "Brier: the sum over both classes, twice what scikit-learn's binary brier_score_loss is."
BRIER = {
    "multiclass": "Brier: the sum over all classes.",
    "binary": TWICE,
    "multilabel": TWICE,
}
"""Which of the Brier scores is meant."""


def report_page(numbers: Numbers) -> str:
    """Return the page of one report."""
    return _render([_view(numbers, "", numbers.name)], f"{numbers.name}: calibration report", {})


def comparison_page(reports: Mapping[str, Numbers]) -> str:
    """Return the page of several reports."""
    views = [_view(numbers, f"m{i}-", name) for i, (name, numbers) in enumerate(reports.items(), 1)]
    return _render(views, " · ".join(reports), _comparison(list(reports.values()), list(reports)))


def _render(views: list[dict[str, Any]], title: str, comparison: dict[str, str]) -> str:
    css, js = _file("page.css"), _file("page.js")
    digest = base64.b64encode(hashlib.sha256(js.encode()).digest()).decode()
    # Only this script may run, and nothing may be fetched, whatever the names in the data are.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    page = _template().render(
        reports=views,
        title=title,
        comparison=comparison,
        css=Markup(css),
        js=Markup(js),
        policy=policy,
        version=__version__,
    )
    return page.lstrip()


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {
        "num": _number,
        "pct": _percent,
        "count": "{:,}".format,
        "temperature": _temperature,
    }
    return environment.from_string(_file("page.html"))


def _file(name: str) -> str:
    return resources.files("refocal.report").joinpath(name).read_text(encoding="utf-8")


def _view(numbers: Numbers, prefix: str, name: str) -> dict[str, Any]:
    """Return what the template needs of a report: its numbers, its charts, and some words."""
    n, selection = numbers, numbers.selection
    winner = None if selection is None else selection.method(selection.winner)
    axes = AXES[n.task]
    explored = _explored(n.grid, n.before, n.level)
    start = explored[n.grid.start[0]][n.grid.start[1]]
    zero_is_raw = any(method == "raw" for method, _ in n.grid.presets)
    return {
        **vars(n),
        "name": name,
        "n_classes": n.n_classes + (n.task == "binary"),
        "class_word": "labels" if n.task == "multilabel" else "classes",
        "unit": "label" if n.task == "multilabel" else "row",
        "objective_text": source_of(n.objective).removeprefix("refocal."),
        "level_text": f"{100 * n.level:g} %",
        "recommended": winner,
        "changed": winner is not None and winner.name != "raw",
        "method_words": {}
        if selection is None
        else {m.name: selection.describe(m.name) for m in selection.methods},
        "brier_note": BRIER[n.task],
        "curves_by": list(dict.fromkeys(curve.method for curve in n.thresholds.curves)),
        "after_is_advice": winner is not None and winner.name == n.after_name,
        "gamma_zero": "the scores as they are" if zero_is_raw else "psi without focusing",
        "shown_classes": _shown(n),
        "choice_url": "" if selection is None else _data_url(json.dumps(_saved(n, selection))),
        "before_chart": charts.reliability(f"{prefix}before", n.before, "Scores as they are", axes, "raw"),
        "after_chart": None
        if n.after is None
        else charts.reliability(f"{prefix}after", n.after, f"After {n.after_name}", axes, "after"),
        "explore_chart": charts.reliability(
            f"{prefix}explored", start, "For the chosen gamma and temperature", axes, "explore"
        ),
        "grid_json": htmlsafe_json_dumps(_grid_data(n.grid, explored), dumps=_compact),
        "threshold_chart": charts.thresholds(
            f"{prefix}threshold",
            n.thresholds,
            "raw score of class 1" if n.thresholds.exact else "largest raw score",
        ),
        "eta_chart": charts.eta_histogram(f"{prefix}eta-chart", n.eta),
        "small_chart": charts.small_reliability(
            f"{prefix}small",
            [("raw", n.before), *([] if n.after is None else [("after", n.after)])],
            f"Reliability of {name}",
        ),
        "summary": _summary(n),
    }


def _saved(n: Numbers, selection: Selection) -> dict[str, Any]:
    """Return what the page offers as choice.json: `refocal apply` goes by names of classes."""
    names = [each.name for each in n.classes]
    by_number = n.task == "binary" or all(name.isdecimal() for name in names)
    return selection.to_dict() | ({} if by_number else {"classes": names})


def _shown(n: Numbers) -> list[Any]:
    """Return the classes of the table: all, or those whose mean score is farthest from their share."""
    if n.n_classes <= SHOWN_CLASSES:
        return list(n.classes)
    far = sorted(range(n.n_classes), key=lambda i: -abs(n.classes[i].mean - n.classes[i].share))
    return [n.classes[i] for i in sorted(far[:SHOWN_CLASSES])]


def _summary(n: Numbers) -> list[tuple[str, str]]:
    metrics = {
        "nll": "NLL",
        "brier": "Brier score",
        "ece": "ECE",
        "mce": "largest gap of a bin (MCE)",
        "classwise_ece": "classwise ECE",
        "error_rate": "error rate",
    }
    rows = [
        ("rows", f"{n.n_rows:,}"),
        ("task", n.task),
        ("classes or labels", f"{n.n_classes + (n.task == 'binary'):,}"),
    ]
    rows.append(("scores", "logits" if n.from_logits else "probabilities"))
    rows.append(("objective", source_of(n.objective) + ("" if n.objective_given else " (assumed)")))
    rows += [(words, _number(n.metrics[key])) for key, words in metrics.items()]
    rows.append(("bins", str(len(n.before.counts))))
    all_ = n.n_sample == n.n_rows
    sample = "all rows" if all_ else f"{n.n_sample:,} rows drawn at random, seed {n.seed}"
    rows.append(("methods fitted and compared on", sample))
    rows.append(("sliders computed from", f"{n.grid.n_rows:,} rows"))
    rows.append(("intervals", f"{100 * n.level:g} %"))
    return rows


def _explored(grid: Grid, before: Diagram, level: float) -> list[list[Diagram]]:
    """Return the diagram of each point of the grid."""
    found: list[list[Diagram]] = []
    for i, row in enumerate(grid.counts):
        found.append([])
        for j, counts in enumerate(row):
            accuracy = np.array(grid.hits[i][j]) / np.maximum(counts, 1)
            low, high = wilson(accuracy, np.maximum(counts, 1), level)
            share, below, above = (tuple(a.tolist()) for a in (accuracy, low, high))
            mean, ece = grid.confidence[i][j], grid.ece[i][j]
            found[-1].append(Diagram(before.edges, counts, mean, share, below, above, ece))
    return found


def _grid_data(grid: Grid, explored: list[list[Diagram]]) -> dict[str, Any]:
    """Return the grid as the script reads it: shares in units of 1/10,000, errors as they are shown."""

    def shares(values: tuple[float, ...]) -> list[int]:
        return [round(10_000 * v) for v in values]

    points = [
        [
            [d.counts, *map(shares, (d.confidence, d.accuracy, d.low, d.high)), _number(d.ece), _number(nll)]
            for d, nll in zip(row, nlls, strict=True)
        ]
        for row, nlls in zip(explored, grid.nll, strict=True)
    ]
    return {
        "box": [charts.LEFT, charts.TOP, charts.SIDE, charts.GAP, charts.BARS],
        "gamma": [f"{g:.3g}" for g in grid.gammas],
        "temperature": [f"{t:.3g}" for t in grid.temperatures],
        "points": points,
    }


def _comparison(reports: list[Numbers], names: list[str]) -> dict[str, str]:
    """Return what to say of several reports together: the smallest NLL, and whether they compare."""

    def nll(n: Numbers) -> float:
        return math.inf if n.selection is None else n.selection.method(n.selection.winner).nll.value

    best = min(range(len(reports)), key=lambda i: nll(reports[i]))
    words = "No method could be compared."
    if nll(reports[best]) < math.inf:
        words = f"{names[best]} has the smallest NLL after its recommended method, {nll(reports[best]):.4f}."
    same = len({(n.n_rows, tuple(c.rows for c in n.classes)) for n in reports}) == 1
    warning = (
        ""
        if same
        else "These reports are not of the same labels, so models may differ because their rows do."
    )
    return {"words": words, "warning": warning}


def _compact(value: Any, **options: Any) -> str:
    return json.dumps(value, separators=(",", ":"), **options)


def _data_url(text: str) -> str:
    return "data:application/json;base64," + base64.b64encode(text.encode()).decode()


def _number(value: float | None) -> str:
    """Return a number with four digits after the point, and a minus sign that is as wide as a digit."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    return f"{round(value, 4) + 0.0:.4f}".replace("-", "−")  # + 0.0: no -0.0000


def _percent(value: float | None) -> str:
    """Return a share in percent with one digit after the point."""
    return "–" if value is None else f"{100 * value:.1f} %"


def _temperature(value: Any) -> str:
    """Return T, or the range of those of the labels."""
    return f"{value:.4g}" if isinstance(value, float) else f"{min(value):.3g}–{max(value):.3g}"
