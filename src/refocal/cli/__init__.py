"""The command line: ``refocal COMMAND`` or ``python -m refocal COMMAND``.

Exit codes: 0 done, 1 the work failed or a value is not allowed, 2 an unknown option or a missing optional
dependency, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import sys
from collections.abc import Iterator, Sequence

from refocal import __version__
from refocal.cli import data, demo, reproduce

log = logging.getLogger("refocal")


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
        args = parser().parse_args(argv)
    except SystemExit as stop:  # argparse has printed what there was to say
        return stop.code if isinstance(stop.code, int) else 0
    with _on_standard_error():
        try:
            args.run(args)
            sys.stdout.flush()
        except ImportError as error:
            return _fail(2, error)
        except BrokenPipeError as error:
            return 1 if _reader_is_gone() else _fail(1, error)
        except (OSError, ValueError) as error:
            return _fail(1, error)
        except KeyboardInterrupt:
            return _fail(130, "interrupted")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands: each adds its own and sets ``run``."""
    top = argparse.ArgumentParser(
        prog="refocal",
        description="Train with focal loss, get true probabilities.",
        epilog="example:\n  refocal demo --out .",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"refocal {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (demo, data, reproduce):
        command.add_to(commands)
    return top


@contextlib.contextmanager
def _on_standard_error() -> Iterator[None]:
    """Say what refocal logs, a line for each message."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("refocal: %(message)s"))
    log.addHandler(handler)
    try:
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


def _fail(code: int, message: object) -> int:
    log.error("%s", message)
    return code
