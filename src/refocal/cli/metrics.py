"""``refocal metrics``."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from refocal.cli.options import (
    FILES,
    add_command,
    add_input,
    add_labels,
    add_objective,
    as_binary,
    link_of,
    note_one_column,
    open_input,
)
from refocal.cli.printing import Progress, table, to_json
from refocal.cli.saved import Saved, order_of, saved_of

if TYPE_CHECKING:
    from refocal import Objective, Selection
    from refocal.scoring import Labelled, Recovery, Source, Task

NAMES = {
    "nll": "NLL",
    "brier": "Brier score",
    "error_rate": "error rate",
    "ece": "ECE",
    "mce": "MCE",
    "classwise_ece": "classwise ECE",
}


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "metrics",
        "how good the scores of a file are as probabilities",
        "NLL, Brier score, error rate and calibration errors of scores with labels; with --gamma,\n"
        "--objective or --calibration those of the true probabilities too, beside them. The numbers are\n"
        "sums over rows: --json has the sums, by which the results of several files can be added up\n"
        "(refocal.scoring.Measures.from_dict, .merge).\n\n" + FILES,
        "  refocal metrics scores.parquet --scores 'logit_*' --logits --label y --gamma 2\n"
        "  refocal metrics probs.csv --scores 'p_*' --probs --label species",
    )
    add_input(parser)
    add_labels(parser)
    add_objective(parser, choice=True)
    parser.add_argument("--bins", type=int, default=10, help="of the calibration errors (default: 10)")
    parser.add_argument(
        "--classwise",
        action="store_true",
        help="the ECE of each class too, averaged, which takes several times as long (labels: always)",
    )
    parser.set_defaults(run=_run)


def rows_of(
    args: argparse.Namespace, source: Source, link: Objective | Selection | None
) -> tuple[Labelled, Recovery]:
    """Return the rows that the options name, and how their scores are read as they are."""
    import numpy as np

    from refocal import Selection
    from refocal.scoring import Recovery, find_scores, labelled, needed_kind

    scores = find_scores(source, args.scores, args.label)
    kind = needed_kind(source, scores, args.kind)
    objective = link.objective if isinstance(link, Selection) else link
    on_sigmoid = args.sigmoid if objective is None else objective.scores == "sigmoid"
    task = args.task
    if on_sigmoid and len(scores.columns) > 1:
        if task not in (None, "multilabel"):
            raise ValueError(f"--task must be multilabel for a loss on a sigmoid, got {task}")
        task = "multilabel"
    rows = labelled(source, lambda: open_input(args), scores, args.label, task, args.classes)
    if rows.task == "multilabel" and objective is not None and not on_sigmoid:
        raise ValueError("--task multilabel needs a loss on a sigmoid: say --sigmoid")
    how = "sigmoid" if rows.task == "multilabel" else "softmax" if objective is None else objective.scores
    if objective is not None:  # now, not after minutes of work: one gamma for each class, if several
        Recovery(objective, "logits", how).probs(-np.ones((len(scores.columns), 1)))
    return rows, Recovery(None, kind, how)


class Compared(NamedTuple):
    """Labelled rows that methods are compared on.

    Attributes:
        rows: What the file has.
        way: How its scores are read as they are.
        task: What they are compared as. One score is "binary"; "multiclass" if its loss has no other form
            than that of two classes, as with a gamma for each of them.
        objective: What the model was trained with; None for what is assumed then.
        note: What was said about one score column; None for nothing.
    """

    rows: Labelled
    way: Recovery
    task: Task
    objective: Objective | None
    note: str | None


def rows_to_compare(args: argparse.Namespace, source: Source, objective: Objective | None) -> Compared:
    """Return the rows that the options name, and as what their methods are compared."""
    rows, way = rows_of(args, source, objective)
    note, task = note_one_column(args, len(rows.scores.columns)), rows.task
    if task == "binary":
        objective = as_binary(objective)
        if objective is None or objective.scores == "sigmoid":
            way = dataclasses.replace(way, scores="sigmoid")
        elif objective.scores == "softmax":
            task = "multiclass"
    return Compared(rows, way, task, objective, note)


def classes_text(rows: Labelled) -> str:
    """Return which classes the labels are of, how that is known, and which columns are the scores."""
    from refocal.scoring import shown

    names = rows.classes
    listed = ", ".join(names) if len(names) <= 10 else f"{', '.join(names[:9])}, ... {names[-1]}"
    what = "labels" if rows.task == "multilabel" else "classes"
    return f"{len(names)} {what}: {listed} ({rows.labels.origin}); scores: {shown(rows.scores.columns)}"


def _notes(args: argparse.Namespace, link: Objective | Selection | None, saved: Saved | None) -> list[str]:
    """Return what a reader of the numbers must know."""
    from refocal import Selection
    from refocal.calibration.method import METHODS, short

    notes = [
        "Calibration errors are biased upward: with few rows they are above 0 for true probabilities too."
    ]
    if isinstance(link, Selection) and saved is not None:
        temperature = short(link.method(link.winner).temperature, 3)
        number = "" if temperature == "1" else f", T = {temperature}"
        notes.append(f"{link.winner} is the choice of {saved.path}: {METHODS[link.winner]}{number}.")
        if link.winner != "raw" and saved.is_of(args.input):
            notes.append(
                f"{saved.path} was made from these rows, so the numbers of {link.winner} are not held out; "
                "those of `refocal choose` are."
            )
    return notes


def _run(args: argparse.Namespace) -> None:
    from refocal import Selection
    from refocal.scoring import Measures

    link, saved = link_of(args), saved_of(args)
    corrected = link.winner if isinstance(link, Selection) else "posterior"
    with open_input(args) as source, Progress() as tell:
        rows, raw = rows_of(args, source, link)
        note_one_column(args, len(rows.scores.columns))
        ways = {"raw": raw}
        if isinstance(link, Selection) and saved is not None:
            order = order_of(saved, link, rows.scores, args.classes)
            if corrected != "raw":
                ways[corrected] = dataclasses.replace(raw, link=link, order=order)
        elif link is not None:
            ways[corrected] = dataclasses.replace(raw, link=link)
        settings: dict[str, Any] = {"n_labels": len(rows.scores.columns), "n_bins": args.bins}
        if args.classwise and rows.task == "multiclass":
            settings["n_classes"] = rows.n_classes
        measured = {name: Measures(rows.task, **settings) for name in ways}
        for block, labels, start in rows.blocks(tell):
            for name, way in ways.items():
                measured[name].update(way.probs(block, start), labels)
    values = {name: m.values() for name, m in measured.items()}
    notes = _notes(args, link, saved)
    if args.json:
        done = {
            "input": args.input,
            "rows": measured["raw"].n,
            "task": rows.task,
            "kind": raw.kind,
            "classes": rows.classes,
            "classes_from": rows.labels.origin,
            "link": None if link is None else link.to_dict(),
            "metrics": values,
            "notes": notes,
            "sums": {name: m.to_dict() for name, m in measured.items()},
        }
        print(to_json(done))
        return
    print(f"{measured['raw'].n:,} rows; {classes_text(rows)}\n")
    lines = [["", *values]]
    for name in values["raw"]:
        lines.append([NAMES[name], *(f"{v[name]:.6f}" for v in values.values())])
    print(table(lines))
    print("\n" + "\n".join(notes))
