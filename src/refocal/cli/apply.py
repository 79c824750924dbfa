"""``refocal apply``."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from refocal.cli.options import (
    FILES,
    FORMATS,
    add_classes,
    add_command,
    add_input,
    add_objective,
    link_of,
    note_one_column,
)
from refocal.cli.printing import Progress, to_json
from refocal.cli.saved import order_of, saved_of

if TYPE_CHECKING:
    from refocal.scoring import Job, Source


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "apply",
        "write true probabilities beside the scores of a file",
        "Write the rows of IN to OUT with the true class probabilities in new columns. All columns stay,\n"
        "and so does the order. OUT gets its name when all of it is written, and replaces a file that is\n"
        "there; an error leaves the old one. OUT must not be IN. A folder of Parquet files becomes a\n"
        "folder, if OUT is no name of a file.\n\n" + FILES,
        "  refocal apply scores.parquet probs.parquet --scores 'logit_*' --logits --gamma 2\n"
        "  refocal apply boxes.csv out.csv --scores score --probs --sigmoid --gamma 2 --alpha 0.25\n"
        "  refocal apply scores.parquet probs.parquet --scores 'logit_*' --logits --calibration choice.json",
    )
    add_input(parser)
    add_classes(parser)
    parser.add_argument(
        "output", metavar="OUT", help="a file (replaced if it is there), folder or URI; - for standard output"
    )
    add_objective(parser, choice=True)
    parser.add_argument("--to", choices=FORMATS, help="the format of OUT, if its name is silent")
    parser.add_argument(
        "--prefix", default="prob_", help="what new columns begin with; the class follows (default: prob_)"
    )
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="ray: Ray Data on a cluster, for the same rows (default: local)",
    )
    parser.add_argument("--address", help="of the Ray cluster, such as auto (default: one on this machine)")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from refocal import Selection
    from refocal.scoring import Job, Recovery, apply_file, find_scores, named, needed_kind, shown

    link = link_of(args)
    if link is None:
        raise ValueError("--gamma, --objective or --calibration must say what the model was trained with")
    if args.json and args.output == "-":
        raise ValueError("--json needs a file for OUT, since standard output has the rows")
    if args.address is not None and args.engine != "ray":
        raise ValueError("--address: for --engine ray only")
    objective = link.objective if isinstance(link, Selection) else link
    saved = saved_of(args)
    made: list[Job] = []

    def make(source: Source) -> Job:
        scores = find_scores(source, args.scores)
        order = order_of(saved, link, scores, args.classes) if isinstance(link, Selection) and saved else None
        kind = needed_kind(source, scores, args.kind)
        note_one_column(args, len(scores.columns))
        if args.classes is not None:
            scores = named(scores, args.classes)
        made.append(Job(scores, Recovery(link, kind, objective.scores, order), args.prefix))
        return made[-1]

    start = time.perf_counter()
    with Progress() as tell:
        options = {"said": args.said, "to": args.to, "tell": tell}
        if args.engine == "ray":
            from refocal.scoring.cluster import apply_by_ray

            n = apply_by_ray(args.input, args.output, make, address=args.address, **options)
        else:
            n = apply_file(args.input, args.output, make, **options)
    seconds = time.perf_counter() - start
    if args.output == "-":
        return
    done = {
        "input": args.input,
        "output": args.output,
        "rows": n,
        "seconds": round(seconds, 3),
        "scores": made[0].scores.columns,
        "kind": made[0].recovery.kind,
        "columns": made[0].made,
        "objective": objective.to_dict(),
        "method": link.winner if isinstance(link, Selection) else "psi",
    }
    if args.json:
        print(to_json(done))
        return
    new = made[0].made
    columns = new[0] if len(new) == 1 else f"{new[0]} ... {new[-1]}"
    speed = f"{n / max(seconds, 1e-9):,.0f} rows/s"
    print(f"{args.output}: {n:,} rows with {columns}, from {shown(made[0].scores.columns)} ({speed})")
    print(f"by {done['method']} of {objective}")
