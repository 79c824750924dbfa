"""Tables and figures of the image experiments, made from the stored logits without training again."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal.experiments.data import source
from refocal.experiments.files import (
    BoxPanel,
    box_figure,
    csv_bytes,
    figure_files,
    markdown_table,
    published_numbers,
    write_outputs,
)
from refocal.experiments.images.measures import OWN, TITLES, Advice, Group, Measure, Recorded, measure_group
from refocal.experiments.images.study import KIND, experiments_of, paper_schedule
from refocal.experiments.sweeps import Run, read_runs
from refocal.plots import new_figure, plot_raw_psi, share_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINKS = {"raw": "raw", "psi": "Psi", "unsmoothed": "Psi, smoothing taken out"}
METRICS = {"ece": "ECE", "nll": "NLL", "classwise_ece": "CW-ECE"}
BOXES = {"error": "error (%)"} | METRICS


def published_errors(dataset: str, model: str) -> dict[tuple[str, float], tuple[float, float]]:
    """Return the paper's classification errors: mean and standard error in percent, by paradigm and gamma.

    Example:
        >>> published_errors("cifar10-s", "resnet8")["standard", 2.0]
        (26.45, 0.8)
    """
    try:
        paper = source(dataset).paper
    except ValueError:
        return {}
    gammas = {"CE": 0.0, "FL-1": 1.0, "FL-2": 2.0, "FL-3": 3.0}
    return {
        (row["paradigm"], gammas[row["method"]]): (float(row["mean"]), float(row["se"]))
        for row in published_numbers("error")
        if (row["dataset"], row["model"]) == (paper, model)
    }


def group_runs(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the image runs that differ in gamma, paradigm and trial only, by a name for their files."""
    together: dict[str, list[Run]] = {}
    for run in runs:
        if run.config.get("experiment") == KIND:
            common = sorted((key, str(value)) for key, value in run.config.items() if key not in OWN)
            together.setdefault(str(common), []).append(run)
    groups: dict[str, list[Run]] = {}
    for _, some in sorted(together.items()):
        config = some[0].config
        name = f"{Path(config['dataset']).stem}-{config['model']}-{config['epochs']}"
        name += "".join(f"-{key}-{value}" for key, value in _unusual(config).items())
        name = re.sub(r"[^\w.-]+", "_", name)  # for files, and for links in Markdown
        names = itertools.chain([name], (f"{name}-{i}" for i in itertools.count(2)))
        groups[next(one for one in names if one not in groups)] = some
    return groups


def _unusual(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not by default so in a config of its data set, model and epochs."""
    usual = experiments_of(config["dataset"], config["model"], [0], ["ls"], 1, config["epochs"])[0].config()
    return {key: value for key, value in config.items() if key not in OWN and value != usual.get(key)}


def write_report(out: str | os.PathLike[str], report: str | os.PathLike[str] | None = None) -> list[Path]:
    """Make the files of `refocal.experiments.images.report`.

    Args:
        out: The folder of the runs.
        report: The folder of the report; by default the same.
    """
    groups = [measure_group(name, runs) for name, runs in sorted(group_runs(read_runs(out)).items())]
    if not groups:
        raise FileNotFoundError(f"no image run is finished in {out}")
    contents = {
        "README.md": "\n".join(line for group in groups for line in report_text(group)).encode() + b"\n",
        "measures.csv": _csv(Measure, ((group.name, row) for group in groups for row in group.measures)),
        "advice.csv": _csv(Advice, ((group.name, row) for group in groups for row in group.advice)),
    }
    for group in groups:
        contents |= figure_files(f"reliability-{group.name}", _reliability(group))
        contents |= figure_files(f"boxes-{group.name}", _boxes(group))
    return write_outputs(out if report is None else report, contents)


def _csv(kind: type[Recorded], rows: Iterable[tuple[str, Recorded]]) -> bytes:
    """Return a CSV of rows with the group of each first, and what made them last."""
    last = [field.name for field in fields(Recorded)]
    first = [field.name for field in fields(kind) if field.name not in (*last, "stats")]
    return csv_bytes(
        ["group", *first, *last],
        ([group, *(getattr(row, name) for name in first + last)] for group, row in rows),
    )


def _math(paradigm: str) -> str:
    """Return the title of a paradigm for a figure."""
    name, _, index = TITLES[paradigm].partition("_")
    return rf"{name}$_\mathrm{{{index}}}$" if index else name


def _reliability(group: Group) -> Figure:
    """Rows Standard, TS_FL, LS; columns gamma; the first trial that is there."""
    rows = [p for p in ("standard", "ts_fl", "ls") if group.trials("ece", p, "raw")]
    gammas = sorted({measure.gamma for measure in group.measures})
    figure = new_figure(3.0 * len(gammas), 3.2 * len(rows))
    axes = figure.subplots(len(rows), len(gammas), squeeze=False)
    drawn = []
    for row, paradigm in zip(axes, rows, strict=True):
        for ax, gamma in zip(row, gammas, strict=True):
            trials = [m for m in group.measures if (m.paradigm, m.gamma) == (paradigm, gamma)]
            if not trials:
                ax.set_axis_off()
                continue
            seed = min(m.seed for m in trials)
            raw, psi = (
                next(m.stats for m in trials if (m.link, m.seed) == (link, seed)) for link in ("raw", "psi")
            )
            title = (
                rf"{_math(paradigm)}, $\gamma$ = {gamma:g}"
                "\n"
                rf"ECE-raw {raw.ece():.3f}, ECE-$\Psi$ {psi.ece():.3f}"
            )
            plot_raw_psi(raw, psi, ax=ax, title=title)
            drawn.append(ax)
    share_legend(drawn)
    return figure


def _boxes(group: Group) -> Figure:
    """Rows error, ECE, NLL, CW-ECE; columns Standard, TS_FL, LS."""
    columns = [p for p in ("standard", "ts_fl", "ls") if group.trials("ece", p, "raw")]
    published = published_errors(group.config["dataset"], group.config["model"])
    panels = []
    for (metric, label), paradigm in itertools.product(BOXES.items(), columns):
        factor = 100 if metric == "error" else 1
        raw, psi = (group.trials(metric, paradigm, link) for link in ("raw", "psi"))
        series = {
            name: {f"{gamma:g}": [factor * v for v in values[gamma].values()] for gamma in raw}
            for name, values in (("raw", raw), (r"$\Psi$", psi))
        }
        errors = {f"{gamma:g}": mean for (p, gamma), (mean, _) in published.items() if p == paradigm}
        title = f"{_math(paradigm)}, {label}"
        panels.append(BoxPanel(title, series, {"raw": errors} if metric == "error" else {}))
    return box_figure(panels, len(columns), xlabel=r"$\gamma$")


def report_text(group: Group) -> Iterable[str]:
    """Give the lines of a group's tables, in Markdown."""
    config = group.config
    unusual = "".join(f", {key} {value}" for key, value in _unusual(config).items())
    yield f"# {config['dataset']}, {config['model']}, {config['epochs']} epochs{unusual}"
    yield ""
    machines = " or ".join(map(str, group.machines))
    yield (
        f"{group.n[0]} training, {group.n[1]} validation and {group.n[2]} test images; {_trials(group)}. "
        f"SGD on the focal loss, momentum {config['momentum']}, weight decay {config['weight_decay']}, batch "
        f"{config['batch_size']}, {config['precision']}. Schedule: {_schedule(group)}. Median "
        f"{group.seconds:.1f} s for an epoch on {machines}. {group.origin}"
    )
    yield from ["", *_command(group)]
    yield from _errors(group)
    for metric, title in METRICS.items():
        yield from _calibration(group, metric, title)
    yield from _directions(group)
    yield from _advice_table(group)
    if group.skipped:
        yield from ["", "## Left out", "", *(f"- {line}" for line in group.skipped)]
    yield ""
    yield f"![Reliability diagrams of the first trial](reliability-{group.name}.png)"
    yield ""
    yield f"![Box plots over the trials](boxes-{group.name}.png)"
    yield ""


def _trials(group: Group) -> str:
    """Say how many trials there are, and where settings differ in it."""
    counts = Counter((paradigm, gamma) for paradigm, gamma, _ in group.settings)
    least, most = min(counts.values()), max(counts.values())
    if least == most:
        return f"{most} trial{'s' if most > 1 else ''} of each setting"
    return f"{least} to {most} trials of a setting, see the column trials"


def _schedule(group: Group) -> str:
    """Say the schedule, and the paper's if it is another one."""
    epochs, steps = group.config["epochs"], group.config["milestones"]
    full, full_steps = paper_schedule(group.config["dataset"])
    text = f"{epochs} epochs, learning rate {group.config['lr']} divided by 10 after epochs "
    text += " and ".join(map(str, steps))
    if (epochs, steps) != (full, list(full_steps)):
        text += f" (the paper: {full} epochs, after {' and '.join(map(str, full_steps))})"
    return text


def _command(group: Group) -> Iterable[str]:
    """Give the command that makes the runs of a group, and what it does not say."""
    config = group.config
    trained, gammas, seeds = (sorted(set(column)) for column in zip(*group.settings, strict=True))
    paradigms = [paradigm for paradigm in ("standard", "ls") if paradigm in trained]
    trials = max(seeds) + 1
    machine = group.machines[0]
    alone = machine.processes == 1
    words = ["refocal" if alone else f"torchrun --nproc-per-node {machine.processes} -m refocal"]
    words += ["reproduce images --dataset", shlex.quote(config["dataset"]), "--model", config["model"]]
    words += ["--gamma", *(f"{gamma:g}" for gamma in gammas), "--paradigm", *paradigms]
    words += ["--trials", str(trials), "--epochs", str(config["epochs"])]
    words += ["--validation", str(config["validation"]), "--precision", config["precision"]]
    if "lr" in (unusual := _unusual(config)):
        words += ["--lr", str(config["lr"])]
    words += ["--device", machine.device, "--threads", str(machine.threads)]
    words += ["--compile"] if machine.compile else []
    yield from ["```", " ".join(words), "```"]
    options = ("precision", "validation", "lr")
    others = [f"{key}={value}" for key, value in unusual.items() if key not in options]
    if others:
        yield from ["", f"With {', '.join(others)}, for which the command has no option."]
    runs = len(gammas) * len(paradigms) * trials
    here = len(group.settings)
    if runs > here:
        yield from ["", f"The command makes {runs} runs; {here} of them are finished and here."]


def _errors(group: Group) -> Iterable[str]:
    published = published_errors(group.config["dataset"], group.config["model"])
    yield from ["", "## Test error in percent", ""]
    yield (
        "Mean over the trials (standard deviation). The paper has 10 trials of the full schedule, and calls "
        "its brackets standard errors."
    )
    rows = []
    for paradigm in ("standard", "ls"):
        for gamma, errors in group.trials("error", paradigm, "raw").items():
            mean, spread = published.get((paradigm, gamma), (None, None))
            percent = [100 * error for error in errors.values()]
            paper = "-" if mean is None else f"{mean:.2f} ({spread:.2f})"
            gap = "-" if mean is None else f"{np.mean(percent) - mean:+.2f}"
            rows.append((TITLES[paradigm], f"{gamma:g}", len(errors), _mean(percent, 2), paper, gap))
    yield from ["", *markdown_table(["paradigm", "gamma", "trials", "here", "paper", "difference"], rows)]


def _mean(numbers: Sequence[float], digits: int) -> str:
    """Return the mean, with the standard deviation if there is more than one number."""
    mean = f"{np.mean(numbers):.{digits}f}"
    if len(numbers) == 1 or not np.isfinite(numbers).all():
        return mean
    return f"{mean} ({np.std(numbers, ddof=1):.{digits}f})"


def _calibration(group: Group, metric: str, title: str) -> Iterable[str]:
    gammas = sorted({measure.gamma for measure in group.measures})
    yield from ["", f"## {title} on the test set, mean over the trials (standard deviation)", ""]
    rows = []
    for paradigm, name in TITLES.items():
        for link, scores in LINKS.items():
            found = group.trials(metric, paradigm, link)
            if found:
                cells = (_mean(list(found[g].values()), 4) if g in found else "-" for g in gammas)
                rows.append((name, scores, *cells))
    yield from markdown_table(["paradigm", "scores", *(f"gamma {gamma:g}" for gamma in gammas)], rows)
    if metric == "nll" and any(m.link == "unsmoothed" and np.isinf(m.nll) for m in group.measures):
        yield ""
        yield "inf: a label of the test set has probability 0 once the smoothing is taken out."


def _directions(group: Group) -> Iterable[str]:
    """Say of each direction of the paper whether it shows here, in how many trials, with the mean ECEs."""
    ece = {
        (paradigm, link): group.trials("ece", paradigm, link)
        for paradigm in ("standard", "ts_fl", "ls")
        for link in ("raw", "psi")
    }
    rows = list(_growth(ece["ls", "raw"]))
    for text, better, worse in (
        ("LS: Psi is better than raw", ("ls", "psi"), ("ls", "raw")),
        ("TS_FL without Psi is worse than Standard", ("standard", "raw"), ("ts_fl", "raw")),
        ("TS_FL with Psi is better than without", ("ts_fl", "psi"), ("ts_fl", "raw")),
        ("TS_FL with Psi is better than Standard", ("ts_fl", "psi"), ("standard", "raw")),
    ):
        for gamma in ece[better]:
            small, large = ece[better][gamma], ece[worse].get(gamma, {})
            seeds = sorted(small.keys() & large.keys())
            if gamma > 0 and seeds:
                a, b = (float(np.mean([side[seed] for seed in seeds])) for side in (small, large))
                count = sum(small[seed] < large[seed] for seed in seeds)
                of = f"{count} of {len(seeds)}"
                rows.append((f"{text}, gamma {gamma:g}", _shows(a < b), of, f"{a:.4f} against {b:.4f}"))
    if rows:
        yield from ["", "## The directions of the paper", ""]
        yield from markdown_table(["what the paper finds", "here", "in trials", "mean ECE"], rows)


def _growth(raw: dict[float, dict[int, float]]) -> Iterable[tuple[str, ...]]:
    """Say whether the raw ECE of label smoothing grows with gamma, in the trials that have every gamma."""
    seeds = sorted(set.intersection(*map(set, raw.values()))) if len(raw) > 1 else []
    if seeds:
        curves = {seed: [trials[seed] for trials in raw.values()] for seed in seeds}
        means = np.mean(list(curves.values()), axis=0)
        count = sum(all(np.diff(curve) > 0) for curve in curves.values())
        numbers = ", ".join(f"{mean:.4f} (gamma {gamma:g})" for gamma, mean in zip(raw, means, strict=True))
        shows = _shows(all(np.diff(means) > 0))
        yield "LS: the raw ECE grows with gamma", shows, f"{count} of {len(seeds)}", numbers


def _shows(it_does: bool) -> str:
    return "yes" if it_does else "**no**"


def _advice_table(group: Group) -> Iterable[str]:
    if not group.advice:
        return
    source = "the validation part" if group.n[1] else "one half of the test set, for the other"
    yield from ["", f"## What the selector advises, from {source}", ""]
    head = ["paradigm", "gamma", "trial", "advice", "clear", "T", "test ECE: raw -> advised"]
    head += ["test NLL: raw -> advised", "smallest test NLL"]
    rows = (
        (
            TITLES[a.paradigm],
            f"{a.gamma:g}",
            a.seed,
            a.winner,
            "yes" if a.clear else "no",
            f"{a.temperature:.3f}",
            f"{a.ece_raw:.4f} -> {a.ece_advised:.4f}",
            f"{a.nll_raw:.4f} -> {a.nll_advised:.4f}",
            a.best_nll,
        )
        for a in group.advice
    )
    yield from markdown_table(head, rows)
