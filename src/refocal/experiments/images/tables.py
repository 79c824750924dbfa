"""Tables and figures of the image experiments, made from the stored logits without training again."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from refocal.experiments.files import (
    csv_bytes,
    figure_files,
    json_bytes,
    markdown_table,
    write_outputs,
)
from refocal.experiments.images.figures import (
    METRICS,
    boxes_figure,
    has_psi,
    has_something_to_compare,
    reliability_figure,
)
from refocal.experiments.images.groups import group_runs, unusual
from refocal.experiments.images.judge import (
    bins_matter,
    directions,
    judge_errors,
    summary_of,
)
from refocal.experiments.images.measures import BINS, TITLES, Advice, Group, Measure, Recorded, measure_group
from refocal.experiments.images.study import paper_schedule
from refocal.experiments.images.trends import trend_figure, trend_text, trends_of
from refocal.experiments.sweeps import NothingFinished, read_runs

LINKS = {"raw": "raw", "psi": "Psi", "unsmoothed": "Psi, smoothing taken out"}
OPTIONS = tuple("validation precision lr train_size test_size train_part shortcuts first_weights".split())
"""What the command has an option for; the first two are always shown, the others where they are unusual."""


def write_report(out: str | os.PathLike[str]) -> list[Path]:
    """Make the files of `refocal.experiments.images.report` in the folder of the runs."""
    groups = [measure_group(name, runs) for name, runs in sorted(group_runs(read_runs(out)).items())]
    if not groups:
        raise NothingFinished(f"no image run is finished in {out}")
    trends = trends_of(groups)
    lines = [*_introduction(groups), *trend_text(trends)]
    lines += [line for group in groups for line in report_text(group, groups)]
    contents = {
        "README.md": "\n".join(lines).encode() + b"\n",
        "measures.csv": _csv(Measure, ((group.name, row) for group in groups for row in group.measures)),
        "advice.csv": _csv(Advice, ((group.name, row) for group in groups for row in group.advice)),
        "bins.csv": _bins_csv(groups),
    }
    for group in groups:
        if has_psi(group):
            contents |= figure_files(f"reliability-{group.name}", reliability_figure(group))
        if has_something_to_compare(group):
            contents |= figure_files(f"boxes-{group.name}", boxes_figure(group))
    for trend in trends:
        contents |= figure_files(trend.name, trend_figure(trend))
    folder = Path(out)
    before = _files_before(folder / "summary.json")
    contents["summary.json"] = json_bytes(summary_of(groups, trends) | {"files": sorted(contents)})
    paths = write_outputs(folder, contents)
    for name in before - contents.keys():  # of a group that has another name now: its numbers are old
        (folder / name).unlink(missing_ok=True)
    return paths


def _files_before(summary: Path) -> set[str]:
    """Return the figures that the last report wrote; none if there was no report that says so."""
    try:
        names = json.loads(summary.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {name for name in names if Path(name).name == name and Path(name).suffix in (".png", ".pdf")}


def _introduction(groups: Sequence[Group]) -> Iterable[str]:
    """Say what the words of the tables mean, and which sections there are."""
    yield from ["# Image runs: what each section has", ""]
    yield (
        "From the stored logits, without training. ECE and CW-ECE have 10 bins. Standard: plain labels. LS: "
        "label smoothing 0.1 (where a title says another one, that). TS_FL and TS_NLL: Standard with the "
        "temperature T for which the focal loss or the NLL of softmax(z / T) is smallest. focal TS: with the "
        "T for which the NLL of Psi is smallest. Smoothing taken out: Psi gives the posterior of the "
        "smoothed labels; here that is undone. The selector's methods are those of "
        "`refocal.choose_calibration`; focal_ts_free fits gamma and T."
    )
    yield ""
    rows = [
        (
            f"[{group.name}](#{_anchor(_title(group, groups))})",
            *(group.config[key] for key in ("dataset", "model", "epochs", "precision")),
            group.n[0],
            _trials(group).partition(",")[0],
            len(group.settings),
        )
        for group in groups
    ]
    head = ["group", "data", "model", "epochs", "precision", "training images", "trials", "runs"]
    yield from [*markdown_table(head, rows), ""]


def _anchor(title: str) -> str:
    """Return the anchor that Markdown readers give a title."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _title(group: Group, groups: Sequence[Group]) -> str:
    """Return the title of a section; groups that differ in their machines alone have their names in it."""
    config = group.config
    options = "".join(f", {key} {value}" for key, value in unusual(config).items())
    title = f"{config['dataset']}, {config['model']}, {config['epochs']} epochs{options}"
    shared = any(other.config == config and other.name != group.name for other in groups)
    return f"{title} ({group.name})" if shared else title


def _bins_csv(groups: Iterable[Group]) -> bytes:
    """Return the ECE with every number of bins."""
    rows = (
        [group.name, m.paradigm, m.link, m.gamma, m.seed, *m.eces] for group in groups for m in group.measures
    )
    return csv_bytes(["group", "paradigm", "link", "gamma", "seed", *(f"bins_{b}" for b in BINS)], rows)


def _csv(kind: type[Recorded], rows: Iterable[tuple[str, Recorded]]) -> bytes:
    """Return a CSV of rows with the group of each first, and what made them last."""
    last = [field.name for field in fields(Recorded)]
    first = [
        field.name
        for field in fields(kind)
        if field.name not in (*last, "stats", "eces", "fair_eces", "underconfident")
    ]
    return csv_bytes(
        ["group", *first, *last],
        ([group, *(getattr(row, name) for name in first + last)] for group, row in rows),
    )


def report_text(group: Group, groups: Sequence[Group] = ()) -> Iterable[str]:
    """Give the lines of a group's tables, in Markdown; ``groups`` are all of the report."""
    config = group.config
    yield f"# {_title(group, groups)}"
    yield ""
    yield (
        f"{group.n[0]} training, {group.n[1]} validation and {group.n[2]} test images; {_trials(group)}. "
        f"SGD on the focal loss, momentum {config['momentum']}, weight decay {config['weight_decay']}, batch "
        f"{config['batch_size']}, {config['precision']}. Schedule: {_schedule(group)}. Median "
        f"{group.seconds:.1f} s for an epoch on {group.machines_text}. {group.origin}"
    )
    if not group.n[1]:
        yield ""
        yield (
            "Nothing was held out, so T is cross-fitted: each half of the test set has the T of the other. "
            "The calibration errors of scores with such a T are means over the two halves, and where they "
            "are compared with scores without, both are."
        )
    others = [other for other in groups if other.config == group.config and other.name != group.name]
    if others:
        yield ""
        yield (
            f"{len(group.settings)} of the runs of this setting. Others were trained on "
            + "; ".join(f"{other.machines_text} (`{other.name}`)" for other in others)
            + ". Their numbers differ in more than the trial, so they are not averaged with these."
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
    if has_psi(group):
        yield f"![Reliability diagrams of the first trial](reliability-{group.name}.png)"
        yield ""
    if has_something_to_compare(group):
        yield f"![{_trials(group)}: points, or boxes from 5 trials on](boxes-{group.name}.png)"
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
    machine = next(iter(group.machines))
    alone = machine.processes == 1
    words = ["refocal" if alone else f"torchrun --nproc-per-node {machine.processes} -m refocal"]
    words += ["reproduce images --dataset", shlex.quote(config["dataset"]), "--model", config["model"]]
    words += ["--gamma", *(str(gamma).removesuffix(".0") for gamma in gammas), "--paradigm", *paradigms]
    words += ["--trials", str(trials), "--epochs", str(config["epochs"])]
    changed = unusual(config)
    for name in OPTIONS:
        if name in changed or name in ("validation", "precision"):
            words += [f"--{name.replace('_', '-')}", str(config[name])]
    words += ["--device", machine.device, "--threads", str(machine.threads)]
    words += ["--compile"] if machine.compile else []
    yield from ["```", " ".join(words), "```"]
    others = [f"{key}={value}" for key, value in changed.items() if key not in OPTIONS]
    if others:
        yield from ["", f"With {', '.join(others)}, for which the command has no option."]
    runs = len(gammas) * len(paradigms) * trials
    here = len(group.settings)
    if runs > here:
        yield from ["", f"The command makes {runs} runs; {here} of them are finished and here."]


def _errors(group: Group) -> Iterable[str]:
    yield from ["", "## Test error in percent", ""]
    yield (
        "Mean over the trials (standard deviation). The paper has 10 trials of the full schedule. Its "
        "brackets, called standard errors there, look like standard deviations (docs/reproduce.md) and count "
        "as such. z is the difference over sqrt(SD² / 10 + SD² / trials), from two trials on."
    )
    rows = []
    for cell in judge_errors(group):
        here = f"{cell.mean:.2f}" + ("" if cell.sd is None else f" ({cell.sd:.2f})")
        paper = "-" if cell.published is None else f"{cell.published:.2f} ({cell.published_sd:.2f})"
        gap = "-" if cell.difference is None else f"{cell.difference:+.2f}"
        z = "-" if cell.z is None else f"{cell.z:+.1f}"
        rows.append((TITLES[cell.paradigm], f"{cell.gamma:g}", cell.trials, here, paper, gap, z))
    head = ["paradigm", "gamma", "trials", "here", "paper", "difference", "z"]
    yield from ["", *markdown_table(head, rows)]


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
    """Say of each direction of Sec. 5 in how many trials it shows, and what depends on the number of bins."""
    rows = [
        (d.finding + ("" if d.gamma is None else f", gamma {d.gamma:g}"), f"{d.shows} of {d.trials}", d.means)
        for d in directions(group)
    ]
    if rows:
        yield from ["", "## The directions of the paper", ""]
        yield from [
            "Rows that name no gamma count each trial with two gammas or more, over those it has (the first: "
            "with gamma 0 among them); the others count the trials of their gamma. A bin is underconfident "
            "if its accuracy is above its mean confidence.",
            "",
        ]
        head = ["what the paper finds", "shows in trials", "numbers, of the ECE or of what the row names"]
        yield from markdown_table(head, rows)
        changes = bins_matter(group)
        counts = (
            "All counts are the same with every number of bins from 8 to 25."
            if not changes
            else ("With 8 to 25 bins instead of 10 these counts are others: " + "; ".join(changes) + ".")
        )
        yield from ["", counts]


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
