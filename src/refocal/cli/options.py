"""Options that several commands share, and what they mean."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from refocal import Objective, Selection
    from refocal.scoring import Source

T = TypeVar("T")

log = logging.getLogger("refocal")

ONE_COLUMN = (
    "one score column is read as class 1 of a softmax of two; for the same gamma that is a sigmoid loss "
    "without alpha. A sigmoid head that was trained with an alpha needs --sigmoid and its --alpha"
)

NO_ALPHA = (
    "no --alpha was said: ones and zeros are taken to have had the same weight. Detectors are mostly trained "
    "with --alpha 0.25; --alpha 0.5 is the same as none, and says so"
)

FORMATS = ("csv", "csv.gz", "tsv", "tsv.gz", "parquet", "arrow", "npy", "npz")

FILES = """\
Files: CSV or TSV (.gz too), Parquet, Arrow/Feather, NPY, NPZ; a folder or a quoted pattern of Parquet files,
with hive partitions; URIs such as s3://bucket/scores.parquet; - for standard input and output (CSV, or what
--from and --to say). They are read in batches: memory does not grow with the rows.
"""


def add_command(commands: Any, name: str, text: str, description: str, example: str) -> Any:
    """Add a command that has --json and --debug."""
    parser = commands.add_parser(
        name,
        help=text,
        description=description,
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON, also for an error")
    add_debug(parser)
    return parser


def add_debug(parser: argparse.ArgumentParser) -> None:
    """Add --debug, which may stand before a command and behind it."""
    text = "show where in the code an error comes from"
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=text)


def add_input(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the file of scores, or several of them, and what is in it."""
    text = "a file, folder, pattern or URI of scores; - for a pipe"
    parser.add_argument("input", metavar="IN", nargs="+" if several else None, help=text)
    parser.add_argument(
        "--scores",
        nargs="+",
        metavar="COLUMN",
        help="the score columns, one for each class: names or patterns such as 'logit_*'",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--logits",
        dest="kind",
        action="store_const",
        const="logits",
        help="scores are logits: before the softmax or sigmoid",
    )
    kind.add_argument(
        "--probs",
        dest="kind",
        action="store_const",
        const="probs",
        help="scores are probabilities: after it. One of the two must be said, nothing is guessed",
    )
    parser.add_argument(
        "--from", dest="said", choices=FORMATS, help="the format of IN, if its name is silent"
    )


def add_labels(parser: argparse.ArgumentParser) -> None:
    """Add where the labels are and what they mean."""
    parser.add_argument(
        "--label",
        nargs="+",
        metavar="COLUMN",
        required=True,
        help="the column of true classes, numbers 0..K-1 or names; for --task multilabel one for each score",
    )
    add_classes(parser)
    parser.add_argument(
        "--task",
        choices=("binary", "multiclass", "multilabel"),
        help="what the columns are (default: binary for one score column, multiclass for several)",
    )


def add_classes(parser: argparse.ArgumentParser) -> None:
    """Add the names of the classes."""
    parser.add_argument(
        "--classes",
        metavar="A,B,...",
        type=lambda text: text.split(","),
        help="the classes in the order of the scores, where the columns do not have their names; of one score"
        " column: negative,positive",
    )


def add_objective(parser: argparse.ArgumentParser, *, choice: bool) -> None:
    """Add what the model was trained with."""
    group = parser.add_argument_group("what the model was trained with")
    group.add_argument(
        "--gamma", type=gamma, metavar="G", help="focal loss with this gamma (or one for each class: 1,2,3)"
    )
    group.add_argument("--alpha", type=number, metavar="A", help="the weight of positives, with --sigmoid")
    group.add_argument(
        "--sigmoid", action="store_true", help="on a sigmoid: every column is a problem of its own"
    )
    group.add_argument(
        "--objective", metavar="FILE", help="another loss, as JSON from `refocal adapters --json`"
    )
    if choice:
        group.add_argument("--calibration", metavar="FILE", help="what `refocal choose -o FILE` found")


def gamma(text: str) -> float | tuple[float, ...]:
    numbers = tuple(number(part) for part in text.split(","))
    return numbers[0] if len(numbers) == 1 else numbers


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None


def objective_of(args: argparse.Namespace) -> Objective | None:
    """Return what the options say the model was trained with; None if they do not, as for --sigmoid alone.

    Raises:
        ValueError: If they contradict each other, or a value is wrong.
    """
    from refocal import Focal, SigmoidFocal, objective_from_dict

    if args.objective is not None:
        _alone(args, "--objective", "gamma", "alpha", "sigmoid")
        return read_json(args.objective, objective_from_dict, "an objective")
    if args.gamma is None:
        if args.alpha is not None:
            raise ValueError("--gamma must be said with --alpha")
        return None
    if args.alpha is not None and not args.sigmoid:
        raise ValueError("--alpha belongs to the loss on a sigmoid: say --sigmoid too")
    return SigmoidFocal(args.gamma, args.alpha) if args.sigmoid else Focal(args.gamma)


def note_one_column(args: argparse.Namespace, n_columns: int) -> str | None:
    """Say how --gamma is understood for one score column without --sigmoid, and return that; else None.

    Who gives a gamma for each of two classes means a softmax, and is told nothing.
    """
    note_alpha(args)
    if not isinstance(args.gamma, float) or args.sigmoid or n_columns != 1:
        return None
    log.warning("%s", ONE_COLUMN)
    return ONE_COLUMN


def note_alpha(args: argparse.Namespace) -> None:
    """Say that no alpha was said for a loss on a sigmoid: most libraries have 0.25 by default."""
    if args.sigmoid and args.gamma is not None and args.alpha is None:
        log.warning("%s", NO_ALPHA)


def as_binary(objective: Objective | None) -> Objective | None:
    """Return the same loss on the sigmoid of one score, if it is a focal loss on a softmax of two.

    The softmax of (0, z) has the sigmoid of z for class 1, so without weights both losses are the same. On a
    sigmoid more methods compete, such as a bias.
    """
    from refocal import Focal, SigmoidFocal

    if type(objective) is Focal and isinstance(objective.gamma, float) and objective.weight is None:
        return SigmoidFocal(objective.gamma, None, objective.label_smoothing)
    return objective


def link_of(args: argparse.Namespace) -> Objective | Selection | None:
    """Return the objective or the saved choice that the options name."""
    if args.calibration is None:
        return objective_of(args)
    from refocal import Selection

    _alone(args, "--calibration", "gamma", "alpha", "sigmoid", "objective")
    return read_json(args.calibration, Selection.from_dict, "a choice of `refocal choose`")


def read_json(path: str, make: Callable[[dict[str, Any]], T], what: str) -> T:
    """Return what a JSON file describes.

    Raises:
        ValueError: If it cannot be read, or describes something else.
    """
    try:
        fields = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(fields, dict):
            raise ValueError(f"it holds a {type(fields).__name__}")
        return make(fields)
    except OSError as error:
        hint = (
            ""
            if what == "an objective"
            else "; `refocal choose -o` writes it, and the page of a report offers it"
        )
        raise ValueError(f"cannot read {path}: {error.strerror}{hint}") from error
    except KeyError as error:
        raise ValueError(f"{path} must hold {what}: {error} is missing") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} must hold {what}: {' '.join(str(error).split())}") from error


def _alone(args: argparse.Namespace, option: str, *others: str) -> None:
    for name in others:
        if getattr(args, name) not in (None, False):
            raise ValueError(f"{option} says it all: leave out --{name}")


def open_input(args: argparse.Namespace) -> Source:
    """Return the file that the options name."""
    from refocal.scoring import open_source

    return open_source(args.input, args.said)
