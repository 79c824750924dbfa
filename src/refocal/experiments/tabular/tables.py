"""The tables of the tabular study, each with the published value beside ours."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from refocal import objective_from_dict
from refocal.experiments.data import REGISTRY
from refocal.experiments.files import markdown_table, published_numbers
from refocal.experiments.sweeps import Run, origin_of
from refocal.experiments.tabular.study import BINNED, BINS

TITLES = {
    "ece": "ECE ({} bins, in %)",
    "error": "classification error (in %)",
    "classwise_ece": "classwise ECE ({} bins, in %)",
    "nll": "negative log-likelihood (mean)",
}
PERCENT = ("ece", "error", "classwise_ece")


class Published(NamedTuple):
    """A number of the paper's tables, with the spread printed beside it, and whether it is in boldface."""

    mean: float
    spread: float
    bold: bool


class Cell(NamedTuple):
    """Mean and standard error over trials, and whether no other method of its row is better."""

    values: tuple[float, ...]
    mean: float
    standard_error: float
    bold: bool
    published: Published | None


@dataclass(frozen=True)
class Table:
    """One metric of one model: rows are data sets, columns are methods."""

    model: str
    metric: str
    n_bins: int | None
    """Of a calibration error."""
    columns: tuple[str, ...]
    rows: dict[str, dict[str, Cell]]
    made: dict[str, tuple[Any, ...]]
    """What made each row: trials, epochs, weight decay, objectives, commits and machines."""

    @property
    def title(self) -> str:
        """What the numbers are."""
        return TITLES[self.metric].format(self.n_bins)


@functools.cache
def published() -> Mapping[tuple[str, str, str, str], Published]:
    """Return the numbers of the paper's tables by (data set, model, method, metric).

    Example:
        >>> published()["Australian", "linear", "FL-2-psi", "ece"]
        Published(mean=4.55, spread=0.84, bold=True)
    """
    return {
        (row["dataset"], row["model"], row["method"], row["metric"]): Published(
            float(row["mean"]), float(row["se"]), row["bold"] == "1"
        )
        for row in published_numbers()
        if row["paradigm"] == "standard"
    }


def gather(runs: Sequence[Run]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the trials of each (data set, model) put together, in their order.

    The name of a calibration error is a pair with its number of bins: ``("ece", 15)``. A trial that several
    runs have is taken from the one with most trials.
    """
    together: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: -len(run.config["trials"])):
        together.setdefault((run.config["dataset"], run.config["model"]), []).append(run)
    result = {}
    for (dataset, model), some in together.items():
        first = some[0].config
        trials: dict[int, dict[str, Any]] = {}
        for run in some:
            names = (first.keys() | run.config.keys()) - {"trials"}
            other = sorted(name for name in names if run.config.get(name) != first.get(name))
            if other:
                raise ValueError(
                    f"runs of {dataset}, {model} must differ in their trials only, got different "
                    f"{', '.join(other)}"
                )
            tables = _metrics_of(run)
            for i, trial in enumerate(run.config["trials"]):
                trials.setdefault(trial, {name: table[i] for name, table in tables.items()})
        metrics = trials[first["trials"][0]]
        result[dataset, model] = {
            "metrics": {name: np.array([trials[t][name] for t in sorted(trials)]) for name in metrics},
            "config": first,
            "methods": some[0].result["methods"],
            "made": _made(some, len(trials)),
        }
    return result


def _metrics_of(run: Run) -> dict[Any, Any]:
    """Return the numbers of a run, of one number of bins or of several, by metric."""
    tables: dict[Any, Any] = dict(run.result["metrics"])
    n_bins = run.config["n_bins"]
    if isinstance(n_bins, int):
        return {(name, n_bins) if name in BINNED else name: table for name, table in tables.items()}
    for name, array in run.arrays().items():
        tables |= {(name, n): array[..., i].astype(np.float64) for i, n in enumerate(n_bins)}
    return tables


def _made(runs: Sequence[Run], trials: int) -> tuple[Any, ...]:
    config = runs[0].config
    recipe = config.get("recipe", {})
    origins = zip(*map(origin_of, runs), strict=True)
    commits, machines = (" or ".join(dict.fromkeys(texts)) for texts in origins)
    options = (recipe.get(name, "") for name in ("epochs", "weight_decay"))
    return trials, *options, " ".join(method_names(config)), commits, machines


def method_names(config: Mapping[str, Any]) -> list[str]:
    """Return a name for each objective: CE, FL-2, or its own."""
    names = []
    for d in config["objectives"]:
        objective = objective_from_dict(d)
        gamma = objective.plain_gamma
        names.append(str(objective) if gamma is None else f"FL-{gamma:g}" if gamma else "CE")
    return names


def table_of(
    gathered: Mapping[tuple[str, str], dict[str, Any]],
    model: str,
    metric: str,
    *,
    n_bins: int = BINS[0],
    extra: bool = False,
    bold: bool = True,
) -> Table:
    """Return a table as in the paper's appendix; data sets without this number of bins have no row.

    Args:
        gathered: The runs of one sweep, see `gather`.
        model: "linear" or "mlp".
        metric: "ece", "error", "classwise_ece" or "nll".
        n_bins: Of a calibration error.
        extra: The temperature methods instead of the paper's.
        bold: Whether to find the best methods, by tests that take time.
    """
    known = published()
    factor = 100.0 if metric in PERCENT else 1.0
    rows: dict[str, dict[str, Cell]] = {}
    columns: list[str] = []
    key = (metric, n_bins) if metric in BINNED else metric
    order = {name: i for i, name in enumerate(REGISTRY)}
    datasets = [
        d for (d, its_model), entry in gathered.items() if its_model == model and key in entry["metrics"]
    ]
    for dataset in sorted(datasets, key=lambda name: order.get(name, len(order))):
        entry = gathered[dataset, model]
        values = factor * entry["metrics"][key]
        names = method_names(entry["config"])
        methods = entry["methods"]
        picked: dict[str, Any] = {}
        if extra:
            for g, name in enumerate(names):
                for method, suffix in (
                    ("ts_nll", "TS-NLL"),
                    ("ts_fl", "TS-FL"),
                    ("psi_ts_fl", "TS-FL-psi"),
                ):
                    if name != "CE" or method == "ts_nll":
                        picked[f"{name}-{suffix}"] = values[:, g, methods.index(method)]
        else:
            for g, name in enumerate(names):
                picked[name] = values[:, g, methods.index("raw")]
            if metric != "error":
                for g, name in enumerate(names):
                    if name != "CE":
                        picked[f"{name}-psi"] = values[:, g, methods.index("psi")]
        source = REGISTRY.get(dataset)
        paper = source.paper if source else None
        best = _not_worse(picked) if bold else set()
        rows[dataset] = {
            name: Cell(
                tuple(v.tolist()),
                float(v.mean()),
                float(v.std(ddof=1) / math.sqrt(len(v))) if len(v) > 1 else math.nan,
                name in best,
                known.get((paper, model, name, metric)) if paper else None,
            )
            for name, v in picked.items()
        }
        columns += [name for name in picked if name not in columns]
    made = {dataset: gathered[dataset, model]["made"] for dataset in rows}
    return Table(model, metric, n_bins if metric in BINNED else None, tuple(columns), rows, made)


def _not_worse(methods: Mapping[str, Any]) -> set[str]:
    """Return the best method and those that a one-sided t-test at 5 % does not find worse."""
    finite = {name: v for name, v in methods.items() if np.isfinite(v).all()}
    if not finite:
        return set()
    best = min(finite, key=lambda name: float(finite[name].mean()))
    result = {best}
    for name, v in finite.items():
        if name == best or len(v) < 2:
            continue
        worse = p_value_greater(v, finite[best]) < 0.05
        if not worse:
            result.add(name)
    return result


def p_value_greater(a: Any, b: Any) -> float:
    """Return the p-value of Welch's test that the mean of a is greater; 0 or 1 where nothing varies.

    NaN where one of them has fewer than 2 values: nothing can be said of their spread.
    """
    if min(len(a), len(b)) < 2:
        return math.nan
    if np.ptp(a) == np.ptp(b) == 0:
        return float(np.mean(a) <= np.mean(b))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where one of the two hardly varies
        return float(stats.ttest_ind(a, b, equal_var=False, alternative="greater").pvalue)


def to_markdown(table: Table) -> str:
    """Return the table with our mean (standard error), and the published mean after a slash."""
    rows = ((dataset, *(_markdown(row.get(c)) for c in table.columns)) for dataset, row in table.rows.items())
    return "\n".join(markdown_table(["data set", *table.columns], rows)) + "\n"


def _markdown(cell: Cell | None) -> str:
    if cell is None or not math.isfinite(cell.mean):
        return "–"
    text = _number(cell)
    text = f"**{text}**" if cell.bold else text
    return text if cell.published is None else f"{text} / {cell.published.mean:.2f}"


def _number(cell: Cell) -> str:
    spread = f" ({cell.standard_error:.2f})" if math.isfinite(cell.standard_error) else ""
    return f"{cell.mean:.2f}{spread}"


def to_latex(table: Table, comment: str = "") -> str:
    """Return the table as a LaTeX tabular; the published mean is the second line of a cell."""
    lines = [
        *(f"% {line}" for line in comment.splitlines()),
        rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(["Data set", *(_latex_name(c) for c in table.columns)]) + r" \\",
        r"\midrule",
    ]
    for dataset, row in table.rows.items():
        cells = [row.get(c) for c in table.columns]
        lines.append(" & ".join([_latex_name(dataset), *map(_latex, cells)]) + r" \\")
        second = [f"{cell.published.mean:.2f}" if cell and cell.published else "" for cell in cells]
        if any(second):
            lines.append(" & ".join([r"\quad published", *second]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_name(column: str) -> str:
    return column.replace("-psi", r"-$\Psi$").replace("_", r"\_")


def _latex(cell: Cell | None) -> str:
    if cell is None or not math.isfinite(cell.mean):
        return "--"
    text = _number(cell)
    return rf"\textbf{{{text}}}" if cell.bold else text


MADE = ("trials", "epochs", "weight_decay", "objectives", "commit", "machine")


def csv_header(others: Sequence[int] = ()) -> list[str]:
    """Return the names of the columns of `csv_rows`."""
    names = ["dataset", "model", "metric", "method", "n_bins", "mean", "se", "bold"]
    names += [f"{name}_{n}_bins" for n in others for name in ("mean", "se", "bold")]
    return [*names, "paper_mean", "paper_spread", "paper_bold", *MADE]


def csv_rows(tables: Sequence[Table], n_others: int = 0) -> list[tuple[Any, ...]]:
    """Return one row for each cell, in the order of `csv_header`.

    Args:
        tables: Of one metric and model: first that of the main number of bins, then those of the others. A
            metric without bins has one, and leaves the columns of the others empty.
        n_others: How many others the header has.
    """
    rows: list[tuple[Any, ...]] = []
    empty = ("", "", "")
    made = {dataset: of for table in reversed(tables) for dataset, of in table.made.items()}
    names = {(d, name): None for table in tables for d, row in table.rows.items() for name in row}
    for dataset, name in names:
        found = [table.rows.get(dataset, {}).get(name) for table in tables]
        numbers = [(c.mean, c.standard_error, int(c.bold)) if c else empty for c in found]
        numbers += [empty] * (1 + n_others - len(numbers))
        paper = next((c.published for c in found if c and c.published), None)
        of_paper = (paper.mean, paper.spread, int(paper.bold)) if paper else empty
        first = (dataset, tables[0].model, tables[0].metric, name, tables[0].n_bins or "")
        rows.append((*first, *(x for some in numbers for x in some), *of_paper, *made[dataset]))
    return rows
