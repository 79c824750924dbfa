"""``refocal choose``."""

from __future__ import annotations

import argparse
import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any

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
from refocal.cli.printing import Progress, in_words, to_json

log = logging.getLogger("refocal")


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "choose",
        "what to do with the scores of a model: nothing, a temperature, psi, or both",
        "Compare no calibration, temperature scaling, psi and both on labelled rows that the model was not\n"
        "trained on, by held-out likelihood, and say which to use, and whether its lead is clear. With -o\n"
        "the choice is saved for `refocal apply --calibration`. Of a large file a random sample is taken.\n\n"
        + FILES,
        "  refocal choose scores.parquet --scores 'logit_*' --logits --label y --gamma 2 -o choice.json",
    )
    add_input(parser)
    add_labels(parser)
    add_objective(parser, choice=False)
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="save the choice as JSON; replaced if it is there"
    )
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the sample (default: 200000)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and of the parts (default: 0)")
    parser.add_argument("--folds", type=int, help="parts that are held out in turn (default: 5)")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    import numpy as np

    from refocal import choose_calibration
    from refocal.files import write_atomic
    from refocal.scoring import Reservoir, check_output, shown

    if args.rows < 2:
        raise ValueError(f"--rows must be at least 2, got {args.rows}")
    if args.seed < 0:
        raise ValueError(f"--seed must be at least 0, got {args.seed}")
    if args.out is not None:
        check_output(args.out, args.input)  # now, not after minutes of work
    objective = objective_of(args)
    kept = Reservoir(args.rows, args.seed)
    with open_input(args) as source, Progress() as tell:
        rows, way, task, objective, note = rows_to_compare(args, source, objective)
        for block, labels, start in rows.blocks(tell):
            way.probs(block, start)  # which looks at every value
            kept.add(block, labels)
    logits, labels = way.logits(kept.scores).T, kept.labels.T
    if rows.task == "multilabel":
        labels = labels.reshape(logits.shape)
    elif task == "binary":
        logits = logits[:, 0]
    elif rows.task == "binary":
        other = np.log1p(-kept.scores.T) if way.kind == "probs" else np.zeros_like(logits)
        logits = np.concatenate([other, logits], axis=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = choose_calibration(
            np.ascontiguousarray(logits),
            labels,
            objective,
            task=task,
            n_folds=args.folds,
            seed=args.seed,
        )
    warned = list(dict.fromkeys(in_words(warning.message) for warning in caught))
    never = [
        name for k, name in enumerate(rows.classes) if rows.task != "multilabel" and k not in kept.labels
    ]
    if never:
        warned.append(f"never a label in the rows that were compared: {shown(never)}")
    for line in warned:
        log.warning("%s", line)
    noted = [note, found.assumption]
    result = found.to_dict() | {
        "input": args.input,
        "rows": kept.n_rows,
        "sampled": kept.scores.shape[1],
        "seed": args.seed,
        "classes": list(rows.classes),
        "classes_from": rows.labels.origin,
        "score_columns": list(rows.scores.columns),
        "warnings": [*(text for text in noted if text), *warned],
    }
    text = json.dumps(json.loads(to_json(result)), indent=1) + "\n"
    if args.out is not None:
        path = Path(args.out)
        try:
            write_atomic(path, text.encode(), suffix=f".{os.getpid()}.tmp")
        except OSError as error:
            raise OSError(f"cannot write {args.out}: {error.strerror}") from error
    if args.json:
        print(to_json(result))
        return
    sample = (
        f"a random sample of {kept.scores.shape[1]:,} (seed {args.seed}) of "
        if kept.n_rows > args.rows
        else ""
    )
    trained = "" if found.assumed else f"; trained with {found.objective}"
    print(f"{sample}{kept.n_rows:,} rows; {classes_text(rows)}{trained}\n")
    print(found)
    if args.out is not None:
        print(f"\nsaved: {args.out}")
