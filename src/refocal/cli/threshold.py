"""``refocal threshold``."""

from __future__ import annotations

import argparse
import math
from typing import Any

from refocal.cli.options import add_command, gamma, number, read_json
from refocal.cli.printing import table, to_json


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "threshold",
        "the raw score that means a given probability",
        "The raw score of a sigmoid (or of class 1 of two) that means a given probability, so that a\n"
        "threshold says what it should: with alpha 0.25 and gamma 2 a score of 0.5 means a probability of\n"
        "0.75, and one half is reached at 0.399.",
        "  refocal threshold --gamma 2 --alpha .25 --posterior .5",
    )
    parser.add_argument("--gamma", type=gamma, metavar="G", help="of the focal loss on a sigmoid")
    parser.add_argument("--alpha", type=number, metavar="A", help="its weight of positives (default: none)")
    parser.add_argument(
        "--objective", metavar="FILE", help="another loss, as JSON from `refocal adapters --json`"
    )
    parser.add_argument(
        "--posterior",
        type=number,
        nargs="+",
        metavar="P",
        default=[0.5],
        help="probabilities (default: 0.5)",
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    import numpy as np

    from refocal import SigmoidFocal, objective_from_dict, score_threshold

    if (args.objective is None) == (args.gamma is None) or (args.objective and args.alpha is not None):
        raise ValueError("either --gamma (and --alpha) or --objective must be said")
    if args.objective is not None:
        objective = read_json(args.objective, objective_from_dict, "an objective")
    else:
        objective = SigmoidFocal(args.gamma, args.alpha)
    found = []
    for p in args.posterior:
        for k, score in enumerate(np.atleast_1d(score_threshold(objective, p))):
            logit = math.log(score / (1 - score)) if 0 < score < 1 else None
            found.append({"posterior": p, "class": k, "score": float(score), "logit": logit})
    if args.json:
        print(to_json({"objective": objective.to_dict(), "thresholds": found}))
        return
    many = len(found) > len(args.posterior)
    rows = [["probability", *(["class"] if many else []), "raw score", "logit"]]
    for line in found:
        logit = line["logit"]
        rows.append(
            [
                f"{line['posterior']:g}",
                *([str(line["class"])] if many else []),
                f"{line['score']:.6f}",
                "" if logit is None else f"{logit:.6f}",
            ]
        )
    print(table(rows))
