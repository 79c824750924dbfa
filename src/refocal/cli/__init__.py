"""The command line: ``refocal COMMAND`` or ``python -m refocal COMMAND``.

Exit codes: 0 done; 1 the work failed, as on a full disk; 2 what was given is wrong (an option, a value, a
file) or a package is missing; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import NoReturn

from refocal import SuspiciousInputWarning, __version__
from refocal.cli import adapters, apply, choose, data, demo, metrics, report, reproduce, tau, threshold
from refocal.cli.options import add_debug
from refocal.cli.printing import in_words, to_json

log = logging.getLogger("refocal")

COMMANDS = (apply, choose, report, metrics, tau, threshold, adapters, demo, data, reproduce)


class UsageError(Exception):
    """The words after ``refocal`` are no command."""


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print after many lines of usage."""
        raise UsageError(f"{self.prog}: error: {message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: The words after ``refocal``; those of the process by default.

    Example:
        >>> main(["--version"])
        refocal 0.2.0
        0
    """
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        args = parser().parse_args(words)
    except SystemExit:  # argparse has printed what there was to say
        return 0
    except UsageError as error:
        print(error, file=sys.stderr)
        if "--json" in words:
            print(to_json({"error": str(error)}))
        return 2
    with _on_standard_error():
        try:
            args.run(args)
            sys.stdout.flush()
        except KeyboardInterrupt:
            return _fail(130, "interrupted", args)
        except BrokenPipeError as error:
            return 1 if _reader_is_gone() else _fail(1, error, args)
        except (ImportError, ValueError) as error:
            return _fail(getattr(error, "exit_code", 2), error, args)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            return _fail(2, error, args)
        except OSError as error:
            return _fail(1, error, args)
        except Exception as error:
            where = "" if _debugs(args) else ": refocal --debug shows where"
            return _fail(1, f"{type(error).__name__}: {error} (this is a bug of refocal{where})", args)
    return 0


def parser() -> Parser:
    """Return the parser of all commands: each adds its own and sets ``run``."""
    top = Parser(
        prog="refocal",
        description="Train with focal loss, get true probabilities.",
        epilog=(
            "example:\n  refocal demo --out .\n"
            "  refocal apply scores.csv out.csv --scores 'logit_*' --logits --gamma 2"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"refocal {__version__}")
    add_debug(top)
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    return top


@contextlib.contextmanager
def _on_standard_error() -> Iterator[None]:
    """Say what refocal logs and what Python warns of, a line for each message, and each message once."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("refocal: %(message)s"))
    said: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        is_known = text in said
        said.add(text)
        return not is_known

    handler.addFilter(is_new)
    log.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", SuspiciousInputWarning)
            warnings.showwarning = lambda message, *_, **__: log.warning("%s", in_words(message))
            yield
    finally:
        log.removeHandler(handler)


def _reader_is_gone() -> bool:
    """Return whether who read the output, such as `head`, has seen enough; then nothing is said of it."""
    with contextlib.suppress(AttributeError, ValueError, OSError):  # no poll here, or no file
        out, poll = sys.stdout.fileno(), select.poll()
        poll.register(out, 0)
        if poll.poll(0):
            os.dup2(os.open(os.devnull, os.O_WRONLY), out)  # Python flushes again at its end
            return True
    return False


def _debugs(args: argparse.Namespace) -> bool:
    return bool(getattr(args, "debug", False))


def _fail(code: int, message: object, args: argparse.Namespace) -> int:
    """Say what is wrong in one line, as JSON too if asked for, and return the exit code."""
    if _debugs(args):
        traceback.print_exc()
    text = " ".join(str(message).split())
    log.error("%s", text)
    if getattr(args, "json", False):
        print(to_json({"error": text}))
    return code
