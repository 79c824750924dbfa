"""``refocal demo``."""

from __future__ import annotations

import argparse


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="train on a known problem: focal scores are wrong, psi corrects them",
        description=(
            "Three classes on a line with a known posterior: small networks trained with cross entropy\n"
            "and with focal loss, gamma 1 and 5; their scores raw, after temperature scaling, after psi.\n"
            "Takes some seconds, prints a table and writes refocal-demo.png.\n"
            "Needs PyTorch and matplotlib: pip install torch matplotlib."
        ),
        epilog="example:\n  refocal demo --out figures",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", metavar="DIR", default=".", help="an existing folder for the figure (default: .)"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from refocal.demo import run_demo

    result = run_demo(args.out)
    print("Networks on a three-class mixture with a known posterior; KLD is the distance to it:\n")
    print(result.study.table(), result.summary(), f"figure: {result.figure}", sep="\n\n")
