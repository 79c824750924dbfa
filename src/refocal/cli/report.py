"""``refocal report``."""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refocal.cli.metrics import classes_text, rows_to_compare
from refocal.cli.options import (
    FILES,
    add_command,
    add_input,
    add_labels,
    add_objective,
    objective_of,
    open_input,
)
from refocal.cli.printing import Progress

if TYPE_CHECKING:
    from refocal import Objective
    from refocal.report import Report


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "report",
        "one page: are these scores probabilities, what is wrong, what to do",
        "Write one HTML file with the verdict, the methods compared, reliability diagrams, tables of the\n"
        "classes and the command that applies the advice. It needs no network. Several files make one page\n"
        "that compares them, as models or epochs. Of a large file methods are compared on a random sample,\n"
        "whose size the page says.\n\n" + FILES,
        "  refocal report scores.parquet --scores 'logit_*' --logits --label y --gamma 2 -o report.html",
    )
    add_input(parser, several=True)
    add_labels(parser)
    add_objective(parser, choice=False)
    parser.add_argument(
        "-o", "--out", metavar="FILE", required=True, help="the page; replaced if it is there"
    )
    parser.add_argument("--bins", type=int, default=10, help="of the diagrams (default: 10)")
    parser.add_argument("--rows", type=int, help="rows of the sample (default: up to 50000)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default: 0)")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from refocal.files import write_atomic
    from refocal.report import Report
    from refocal.scoring import check_output

    check_output(args.out, *args.input)  # now, not after minutes of work
    if args.rows is not None and args.rows < 2:
        raise ValueError(f"--rows must be at least 2, got {args.rows}")
    if args.seed < 0:
        raise ValueError(f"--seed must be at least 0, got {args.seed}")
    objective = objective_of(args)
    reports: dict[str, Report] = {}
    for name, one in _by_name(args).items():
        reports[name] = _report(one, name, objective, args.json)
    page = next(iter(reports.values())) if len(reports) == 1 else Report.compare(reports)
    try:
        write_atomic(Path(args.out), page.html().encode(), suffix=f".{os.getpid()}.tmp")
    except OSError as error:
        raise OSError(f"cannot write {args.out}: {error.strerror}") from error
    if args.json:
        print(page.json())
        return
    for name, report in reports.items():
        start = f"{name}: " if len(reports) > 1 else ""
        print(f"{start}{report.numbers.headline}")
    print(f"saved: {args.out}")


def _by_name(args: argparse.Namespace) -> dict[str, argparse.Namespace]:
    """Return the arguments for each input under the name that the page gives it."""
    if len(set(args.input)) < len(args.input):
        raise ValueError(f"IN must be different files, got {' '.join(args.input)}")
    found = {}
    for given in args.input:
        one = copy.copy(args)
        one.input = given
        short = Path(given).name.split(".")[0] or given
        found[short if short not in found else given] = one
    return found


def _words_for_apply(args: argparse.Namespace) -> list[str]:
    """Return what `refocal apply` has to be told about the same file, besides what its scores are."""
    return [
        *([] if args.scores is None else ["--scores", *args.scores]),
        *([] if args.said is None else ["--from", args.said]),
    ]


def _report(args: argparse.Namespace, name: str, objective: Objective | None, quiet: bool) -> Report:
    from refocal.report import Report

    with open_input(args) as source, Progress() as tell:
        rows, way, task, objective, _ = rows_to_compare(args, source, objective)

        def batches() -> Iterator[tuple[Any, Any]]:
            import numpy as np

            for block, labels, start in rows.blocks(tell):
                way.probs(block, start)  # which names the row of a wrong value
                if rows.task == "multilabel":
                    yield block.T, labels.reshape(block.shape).T
                elif task == "binary":
                    yield block[0], labels
                elif rows.task == "binary":
                    first = 1 - block if way.kind == "probs" else np.zeros_like(block)
                    yield np.concatenate([first, block]).T, labels
                else:
                    yield block.T, labels

        report = Report.from_stream(
            batches(),
            objective=objective,
            task=task,
            classes=rows.classes,
            name=name,
            from_logits=way.kind == "logits",
            n_bins=args.bins,
            sample=args.rows,
            seed=args.seed,
            source=args.input,
            options=_words_for_apply(args),
        )
    if not quiet:
        print(f"{report.numbers.n_rows:,} rows; {classes_text(rows)}")
    return report
