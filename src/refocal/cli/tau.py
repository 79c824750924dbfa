"""``refocal tau``."""

from __future__ import annotations

import argparse
from typing import Any

from refocal.cli.options import add_command, number
from refocal.cli.printing import to_json


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "tau",
        "where focal scores are surely too high, and surely too low",
        "The two thresholds of a focal loss on a softmax (the paper's Theorem 8). Up to tau_oc the largest\n"
        "score of a model that minimises the loss is above the true probability (eta-overconfident), from\n"
        "tau_uc on it is below (eta-underconfident). Between the two the other scores decide.",
        "  refocal tau --gamma 2",
    )
    parser.add_argument("--gamma", type=number, metavar="G", required=True, help="a number > 0")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from refocal import tau_oc, tau_uc

    low, high = tau_oc(args.gamma), tau_uc(args.gamma)
    if args.json:
        print(to_json({"gamma": args.gamma, "tau_oc": low, "tau_uc": high}))
        return
    print(f"tau_oc {low:.6f}  a largest score up to this is above the true probability (eta-overconfident)")
    print(f"tau_uc {high:.6f}  a largest score from this on is below it (eta-underconfident)")
