"""The command line: ``refocal COMMAND`` or ``python -m refocal COMMAND``.

Exit codes: 0 done, 1 the work failed, 2 wrong usage or a missing optional dependency, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from refocal import __version__

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: The words after ``refocal``; those of the process by default.

    Example:
        >>> main(["--version"])
        refocal 0.1.0
        0
    """
    try:
        args = _parser().parse_args(argv)
    except SystemExit as stop:  # argparse has printed what there was to say
        return stop.code if isinstance(stop.code, int) else 0
    try:
        args.run(args)
    except ImportError as error:
        return _fail(2, str(error))
    except (OSError, ValueError) as error:
        return _fail(1, str(error))
    except KeyboardInterrupt:
        return _fail(130, "interrupted")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="refocal",
        description="Train with focal loss, get true probabilities.",
        epilog="example:\n  refocal demo --out .",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"refocal {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    return parser


# A command is a function that adds its parser and sets `run`. What it needs is imported when it runs,
# so that help is quick and a missing library stops only the commands that use it.


def _add_demo(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        help="see on a known problem that focal scores are wrong and that psi corrects them",
        description=(
            "Three classes on a line with a known posterior: the exact minimiser of the focal risk\n"
            "for gamma 1 and 5, before and after psi. Prints a table and writes refocal-demo.png.\n"
            "The figure needs matplotlib: pip install 'refocal[plots]'."
        ),
        epilog="example:\n  refocal demo --out figures",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", metavar="DIR", default=".", help="an existing folder for the figure (default: .)"
    )
    parser.set_defaults(run=_demo)


def _demo(args: argparse.Namespace) -> None:
    from refocal.demo import run_demo

    result = run_demo(args.out)
    print("Scores against the true posterior of a three-class mixture, averages over p(x):\n")
    print(result.table(), result.summary(), f"figure: {result.figure}", sep="\n\n")


def _fail(code: int, message: str) -> int:
    print(f"refocal: {message}", file=sys.stderr)
    return code
