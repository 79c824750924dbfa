"""The report of the tabular study: its tables in Markdown, LaTeX and CSV, its summary, its box plots."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refocal.experiments.files import (
    BoxPanel,
    box_figure,
    csv_bytes,
    figure_files,
    json_bytes,
    markdown_table,
    write_outputs,
)
from refocal.experiments.strict import PAPER_TRIALS
from refocal.experiments.sweeps import NothingFinished, Run, origin_text, read_runs
from refocal.experiments.tabular.claims import claims, temperature_against_psi
from refocal.experiments.tabular.explained import explanation, is_default
from refocal.experiments.tabular.judgement import (
    SPLIT_ALONE,
    bins_groups,
    judge,
    judgement,
    nearer,
)
from refocal.experiments.tabular.study import BINNED, BINS, MODELS, check_bins
from refocal.experiments.tabular.tables import (
    TITLES,
    Table,
    csv_header,
    csv_rows,
    gather,
    method_names,
    table_of,
    to_latex,
    to_markdown,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUMMARY = "summary.json"
OPTIMISTIC = (
    " In bins of both halves the errors of the two temperatures cancel, so this ECE is about as small as if "
    "they had been fitted to the rows themselves; the NLL can be compared with psi's."
)
MODEL_TITLES = {"linear": "linear-in-input model", "mlp": "one hidden layer"}


def write_report(
    out: str | os.PathLike[str], keys: Sequence[str] | None = None, bins: Sequence[int] | None = None
) -> list[Path]:
    """Write the files of `refocal.experiments.tabular.report`."""
    runs = [run for run in read_runs(out) if "objectives" in run.config and (keys is None or run.key in keys)]
    if not runs:
        raise NothingFinished(f"no tabular run is finished in {out}")
    gathered = gather(runs)
    bins = _bins(gathered, bins)
    models = [model for model in MODELS if any(its_model == model for _, its_model in gathered)]
    partial = sorted({run.config["dataset"] for run in runs if run.result["partial"]})
    judged = [d for d in dict.fromkeys(dataset for dataset, _ in gathered) if d not in partial]
    made = f"{_options(runs, gathered)}\n{origin_text(runs)}"

    def tables(metric: str, n_bins: int, **options: bool) -> list[Table]:
        return [table_of(gathered, model, metric, n_bins=n_bins, **options) for model in models]

    summary: dict[str, Any] = {
        "judgement": {n: judgement(tables("ece", n), tables("error", n), judged) for n in bins},
        "nearer": {},
        "claims": {n: claims(tables("ece", n), judged) for n in bins},
        "temperature_against_psi": temperature_against_psi(
            tables("nll", bins[0]), tables("nll", bins[0], extra=True), judged
        ),
        "runs": len(runs),
        "seconds": round(sum(run.seconds for run in runs), 1),
        "models_trained": sum(len(r.config["trials"]) * len(r.config["objectives"]) for r in runs),
        "partial": partial,
        "made": made.splitlines(),
    }
    if len(bins) > 1:
        of_first, of_second = (summary["judgement"][n] for n in bins[:2])
        here = of_first["data_sets"]
        groups = {"all": here, **bins_groups(here)}
        summary["nearer"] = {f"{bins[0]} than {bins[1]}": nearer(of_first, of_second, groups)}
    files: dict[str, bytes] = {}
    cells: list[Sequence[Any]] = []
    other = sorted({d for (d, _), entry in gathered.items() if ("ece", bins[0]) not in entry["metrics"]})
    if other:
        made += f"\nNot measured with {bins[0]} bins, so not in those tables: {', '.join(other)}."
    agreeing = {
        (c.dataset, c.model, c.metric, c.method)
        for table in tables("ece", BINS[0])
        for c in judge(table, judged)
        if c.strict
    }
    text = [_introduction(made, partial), *_in_words(summary, gathered, agreeing)]
    for model in models:
        for metric in TITLES:
            binned = metric in BINNED
            some = [table_of(gathered, model, metric, n_bins=n) for n in (bins if binned else bins[:1])]
            cells += csv_rows(some, len(bins) - 1)
            for i, table in enumerate(some):
                name = f"{model}-{metric}" + (f"-{table.n_bins}-bins" if i else "")
                files[f"{name}.tex"] = to_latex(table, made).encode()
                text.append(f"## {MODEL_TITLES[model]}: {table.title}\n\n{to_markdown(table)}")
            if metric in ("ece", "nll"):
                more = [
                    table_of(gathered, model, metric, n_bins=n, extra=True)
                    for n in (bins if binned else bins[:1])
                ]
                cells += csv_rows(more, len(bins) - 1)
                text.append(
                    f"### After temperature scaling, {more[0].title}\n\n"
                    "The temperature of each half of the test part is fitted on the other half; – where that "
                    f"has no error at all.{OPTIMISTIC if binned else ''}\n\n{to_markdown(more[0])}"
                )
        shown = table_of(gathered, model, "ece", n_bins=bins[0])
        if shown.rows:
            files |= figure_files(f"{model}-boxes", _boxes(shown))
    files["tables.md"] = "\n".join(text).encode()
    files["tables.csv"] = csv_bytes(csv_header(bins[1:]), cells)
    files[SUMMARY] = json_bytes(summary)
    return write_outputs(out, files)


def _bins(gathered: Mapping[Any, Mapping[str, Any]], bins: Sequence[int] | None) -> Sequence[int]:
    """Return the numbers of bins that were asked for, or else those of the published tables and the text."""
    measured = {name[1] for entry in gathered.values() for name in entry["metrics"] if name[0] == "ece"}
    if bins is None:
        return [n for n in BINS if n in measured] or sorted(measured)[:1]
    check_bins(bins)
    if missing := sorted(set(bins) - measured):
        raise ValueError(f"bins must be numbers that runs were measured with, got {missing[0]}")
    return bins


def _trials(gathered: Mapping[Any, Mapping[str, Any]]) -> list[int]:
    """Return the numbers of trials of data sets and models, each once."""
    return sorted({entry["made"][0] for entry in gathered.values()})


def _options(runs: Sequence[Run], gathered: Mapping[Any, Mapping[str, Any]]) -> str:
    """Say how the models of all tables were trained."""
    recipes = [run.config["recipe"] for run in runs]
    epochs, decays = (sorted({recipe[name] for recipe in recipes}) for name in ("epochs", "weight_decay"))
    objectives = dict.fromkeys(name for run in runs for name in method_names(run.config))
    trials = _trials(gathered)
    return (
        f"{' to '.join(map(str, dict.fromkeys((trials[0], trials[-1]))))} trials of "
        f"{' and '.join(map(str, epochs))} epochs, weight decay "
        f"{' and '.join(f'{decay:g}' for decay in decays)}, objectives {', '.join(objectives)} "
        "(CE: cross entropy; FL-g: focal loss of gamma g)."
    )


def _introduction(made: str, partial: Sequence[str]) -> str:
    shown = f" Not judged, since the copy is incomplete: {', '.join(partial)}." if partial else ""
    return (
        "# Tabular study\n\n"
        "Each cell: mean (standard error) over trials / published mean. Bold: the best method of a row, and "
        f"those that a one-sided Welch t-test at 5 % does not find worse.{shown}\n\n{made}\n"
    )


RULES = {
    "strict": "strict",
    "floor": "strict or within 1 point",
    "printed": "strict with brackets as standard errors",
}


def _in_words(
    summary: Mapping[str, Any],
    gathered: Mapping[tuple[str, str], Mapping[str, Any]],
    agreeing: Container[tuple[str, ...]],
) -> list[str]:
    """Return the judgement in Markdown: all counts, each row, and each cell that differs.

    Args:
        summary: With the judgement by each number of bins.
        gathered: The runs.
        agreeing: Data set, model, metric and method of cells that are strict with the published bins.
    """
    trials = _trials(gathered)
    default = {key: is_default(entry["config"], entry["made"][0]) for key, entry in gathered.items()}
    text = [
        "## How far the tables agree with the published ones\n\n"
        f"Strict: |difference| <= 3 sqrt(SD_paper^2 / {PAPER_TRIALS} + SD_ours^2 / "
        f"{trials[0] if len(trials) == 1 else 'trials'}), with the published brackets as standard "
        "deviations and no floor. Two kinder rules beside it: within 1 point is enough, or the brackets "
        "are the standard errors that the captions call them. z: the difference over that root. "
        "Clear verdicts: whether psi lowers the ECE, where the published difference is above two combined "
        "brackets.\n",
        "\n".join(markdown_table(*_short(summary["judgement"]))) + "\n",
        *_nearer(summary["nearer"]),
    ]
    for n, found in summary["judgement"].items():
        groups = found["ece_by_model"] | found["ece_by_group"]
        text += _counts("ECE", f"{n} bins", groups, found["ece_by_row"])
    first, found = next(iter(summary["judgement"].items()))
    text += _counts("error", "errors", found["error_by_group"], found["error_by_row"])
    for n, found in summary["judgement"].items():
        # Errors have no bins, so they are listed once.
        metrics = ("ece", "error") if n == first else ("ece",)
        what = f"Cells (ECE with {n} bins{', error' if n == first else ''})"
        for name, title in (
            ("not_strict", f"{what} that do not meet the strict rule"),
            ("far", f"{what} off by more than 1 point"),
        ):
            rows = [
                (
                    *(f"{c['dataset']}, {c['model']}", c["metric"], c["method"], f"{c['mean']:.2f}"),
                    *(f"{c['published']:.2f}", "" if c["z"] is None else f"{c['z']:.1f}"),
                    f"agrees with {BINS[0]} bins"
                    if n != BINS[0] and (c["dataset"], c["model"], c["metric"], c["method"]) in agreeing
                    else explanation(
                        *(c["dataset"], c["model"], c["metric"], c["z"]),
                        default=default[c["dataset"], c["model"]],
                    ),
                )
                for c in found[name]
                if c["metric"] in metrics
            ]
            if rows:
                header = ["data set, model", "metric", "method", "here", "published", "z", "what was tried"]
                table = "\n".join(markdown_table(header, rows))
                text.append(f"### {title}: {len(rows)}\n\n{table}\n")
    if told := [*_claims(summary["claims"]), *_temperature(summary["temperature_against_psi"])]:
        text.append("### What the tables show\n\n" + "\n".join(told) + "\n")
    return text


def _counts(
    what: str, title: str, groups: Mapping[str, Mapping[str, Any]], rows: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Give the tables of counts and z-scores, by groups of data sets and by data set and model.

    None where nothing is published to compare with, as for data of one's own.
    """
    if not rows:
        return
    yield f"### {title}\n"
    for first, some in ((f"{what} cells", groups), ("data set, model", rows)):
        counted = [(name, *_counted(of)) for name, of in some.items() if of["cells"]]
        yield "\n".join(markdown_table([first, *RULES.values(), "mean z", "rms z"], counted)) + "\n"


def _nearer(found: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Iterator[str]:
    for name, groups in found.items():
        told = "; ".join(f"{group}: {of['nearer']} of {of['tables']}" for group, of in groups.items())
        if groups["all"]["tables"]:
            yield f"Tables (a data set and a model) whose rms z is smaller with {name} bins: {told}.\n"


def _counted(of: Mapping[str, Any]) -> tuple[str, ...]:
    rules = (f"{of[rule]} of {of['cells']}" for rule in RULES)
    # None where no cell has a finite z: neither the published one nor ours varies.
    return *rules, *("-" if of[z] is None else f"{of[z]:.2f}" for z in ("z_mean", "z_rms"))


def _short(judgement: Mapping[Any, Mapping[str, Any]]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the header and the rows of the short summary, a column for each number of bins."""
    rows: list[tuple[str, ...]] = [("data sets", *(str(len(of["data_sets"])) for of in judgement.values()))]
    for metric in ("ece", "error"):
        for rule, title in RULES.items():
            found = (f"{of[metric][rule]} of {of[metric]['cells']}" for of in judgement.values())
            rows.append((f"{metric} cells, {title}", *found))
        # None where there is no published cell, as for data of one's own.
        found = (
            "-" if of[metric]["z_rms"] is None else f"{of[metric]['z_mean']}, {of[metric]['z_rms']}"
            for of in judgement.values()
        )
        rows.append((f"{metric} cells, z: mean, rms", *found))
        least = [of[f"{metric}_by_group"][SPLIT_ALONE] for of in judgement.values()]
        if any(of["cells"] for of in least):
            title = f"{metric} cells, strict, data sets that only the split was chosen by"
            rows.append((title, *(f"{of['strict']} of {of['cells']}" for of in least)))
    for name, part, title in (
        ("clear_verdicts", "agree", "clear verdicts on psi"),
        ("clear_verdicts", "psi_always_helps_would_agree", "... that 'psi always helps' would meet"),
        ("signs", "agree", "all signs of psi"),
        ("signs", "psi_always_helps_would_agree", "... that 'psi always helps' would meet"),
        ("boldface", "agree", "boldface as published"),
        ("boldface", "ce_and_psi_bold_would_agree", "... that 'CE and psi bold' would meet"),
    ):
        whole = "cells" if name == "boldface" else "pairs"
        rows.append((title, *(f"{of[name][part]} of {of[name][whole]}" for of in judgement.values())))
    far = (str(sum(c["metric"] == "ece" for c in of["far"])) for of in judgement.values())
    rows.append(("ECE cells off by more than 1 point", *far))
    return ["", *(f"{n} bins" for n in judgement)], rows


def _claims(found: Mapping[Any, Mapping[str, Any]]) -> list[str]:
    """Return what the paper says of its tables, as counted here, in sentences; of no cells none."""
    lines = []
    for n, of in found.items():
        for model in MODELS:
            lines += [f"- {n} bins, {model}: {said}" for said in _of_model(of.get(model, {}))]
    return lines


def _temperature(found: Mapping[str, int]) -> Iterator[str]:
    if found["compared"]:
        yield (
            "- A temperature fitted on labelled rows (the other half of the test part) has a smaller NLL "
            f"than psi, which needs no labels, in {found['smaller']} of the {found['compared']} comparisons "
            "in which it could be fitted in every trial."
        )
    if 0 < found["compared"] < found["pairs"]:
        yield (
            f"- In {found['pairs'] - found['compared']} more there was a trial without an error to fit it "
            f"to; with a temperature of 1 there it is {found['smaller_with_1']} of {found['pairs']}."
        )


def _of_model(c: Mapping[str, Any]) -> Iterator[str]:
    if not c:
        return
    below, against = c["psi_below_raw"], c["psi_against_ce"]
    if c["data_sets_with_two_gammas"]:
        names = ("ece_rises_with_every_gamma", "data_sets_with_two_gammas")
        of = {name: c[name] for name in names} | {
            "published": {name: c[f"{name}_published"] for name in names}
        }
        yield f"data sets in which the raw ECE rises with every step of gamma: {_both(of, *names)}."
    if c["raw_above_ce"]:
        told = (f"{name} {_both(of, 'above', 'data_sets')}" for name, of in c["raw_above_ce"].items())
        yield f"data sets in which the raw ECE is above that of cross entropy: {', '.join(told)}."
    if below["pairs"]:
        yield f"pairs in which psi has a smaller mean ECE than raw: {_both(below, 'below', 'pairs')}."
    if against["pairs"]:
        paper = against["published"]
        published = (
            " Published numbers, by two combined standard errors: "
            f"{paper['clearly_better']}, {paper['no_clear_difference']}, {paper['clearly_worse']}."
        )
        yield (
            f"psi against cross entropy, ECE of {against['pairs']} pairs: clearly "
            f"smaller {against['clearly_better']}, no clear difference {against['no_clear_difference']}, "
            f"clearly larger {against['clearly_worse']} (two-sided Welch test at 5 %); "
            f"{against['within_1_point']} within 1 point, median difference "
            f"{against['median_difference']} points.{published if paper['pairs'] else ''}"
        )


def _both(of: Mapping[str, Any], part: str, whole: str) -> str:
    """Say a count of ours, and the published one where there is something to count."""
    paper = of["published"]
    return f"{of[part]} of {of[whole]}" + (
        f" (published: {paper[part]} of {paper[whole]})" if paper[whole] else ""
    )


def short_summary(out: str | os.PathLike[str]) -> str:
    """Return the judgement of ``summary.json`` as aligned text, the rule first."""
    summary = json.loads((Path(out) / SUMMARY).read_text(encoding="utf-8"))
    header, rows = _short(summary["judgement"])
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = (
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in (header, *rows)
    )
    rule = f"strict: |difference| <= 3 sqrt(SD_paper^2 / {PAPER_TRIALS} + SD_ours^2 / trials); "
    return "\n".join([f"{rule}z: the difference over that root", *lines])


def _boxes(table: Table) -> Figure:
    """Return box plots of every data set: ECE against the objective, raw and after psi."""
    panels = []
    for dataset, row in table.rows.items():
        groups = [name for name in row if not name.endswith("-psi")]
        cells = {
            "raw": {name: row[name] for name in groups},
            r"$\Psi$": {name: row.get(f"{name}-psi", row[name]) for name in groups},
        }
        series = {name: {group: cell.values for group, cell in some.items()} for name, some in cells.items()}
        published = {
            name: {group: c.published.mean for group, c in some.items() if c.published is not None}
            for name, some in cells.items()
        }
        panels.append(BoxPanel(dataset, series, published))
    return box_figure(panels, columns=5, ylabel="ECE (%)")
