"""``refocal threshold``."""

from __future__ import annotations

import argparse
import math
from typing import Any

from refocal.cli.options import add_command, add_objective, link_of, note_alpha, number
from refocal.cli.printing import table, to_json


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "threshold",
        "the raw score that means a given probability",
        "The raw score of a sigmoid (or of class 1 of two) that means a given probability, so that a\n"
        "threshold says what it should: with alpha 0.25 and gamma 2 a score of 0.5 means a probability of\n"
        "0.75, and one half is reached at 0.399. With --calibration it is the score from which on the\n"
        "method that `refocal choose` found gives this probability; otherwise psi is meant. The loss is one\n"
        "on a sigmoid, so --sigmoid may be said or left out.",
        "  refocal threshold --gamma 2 --alpha .25 --posterior .5\n"
        "  refocal threshold --sigmoid --gamma 2 --alpha .25 --posterior .1 .5 .9",
    )
    add_objective(parser, choice=True)
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

    from refocal import Selection, score_threshold

    if isinstance(args.gamma, tuple) and not args.sigmoid:
        raise ValueError(
            "--gamma must be one number, or say --sigmoid: several are those of the labels of sigmoids"
        )
    args.sigmoid = args.sigmoid or args.gamma is not None
    link = link_of(args)
    note_alpha(args)
    if link is None:
        raise ValueError("--gamma, --objective or --calibration must say what the model was trained with")
    chosen = link if isinstance(link, Selection) else None
    objective = link.objective if isinstance(link, Selection) else link
    found = []
    for p in args.posterior:
        scores = score_threshold(objective, p) if chosen is None else chosen.threshold(p)
        for k, score in enumerate(np.atleast_1d(scores)):
            logit = math.log(score / (1 - score)) if 0 < score < 1 else None
            found.append({"posterior": p, "class": k, "score": float(score), "logit": logit})
    if args.json:
        method = "psi" if chosen is None else chosen.winner
        print(to_json({"objective": objective.to_dict(), "method": method, "thresholds": found}))
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
    if chosen is not None:
        print(f"\nby {chosen.winner}: {chosen.describe(chosen.winner)}")
