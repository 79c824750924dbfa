"""What commands print: JSON that is always valid, tables, and the progress of long ones."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from refocal import SuspiciousInputWarning

EVERY = 0.2
"""Seconds between two lines of progress."""


def to_json(value: Any) -> str:
    """Return JSON; numbers that it cannot hold become null.

    Example:
        >>> to_json({"nll": float("inf"), "names": ("a", "b")})
        '{"nll": null, "names": ["a", "b"]}'
    """
    return json.dumps(_plain(value), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def in_words(warning: Warning | str) -> str:
    """Return a warning of the library in one line, in the words of the command line.

    Example:
        >>> in_words(UserWarning("two\\n  lines"))
        'two lines'
    """
    if isinstance(warning, SuspiciousInputWarning):
        return "warning: the scores look like probabilities, but were used as logits; say --probs if so"
    return " ".join(str(warning).split())


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return lines of columns that stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


class Progress:
    """Rows, rows per second and time left, on one line of a terminal; nothing in a pipe.

    Args:
        stream: Where to; standard error by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty()
        self._start = self._last = time.monotonic()
        self._width = 0

    def __call__(self, n_rows: int, fraction: float | None) -> None:
        """Say how far it is, if enough time has passed."""
        now = time.monotonic()
        if not self._shown or now - self._last < EVERY:
            return
        self._last = now
        line = progress_line(n_rows, fraction, now - self._start)
        self._stream.write("\r" + line.ljust(self._width))
        self._stream.flush()
        self._width = len(line)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()


def progress_line(n_rows: int, fraction: float | None, seconds: float) -> str:
    """Return how far it is, in words.

    Example:
        >>> progress_line(2_000_000, 0.5, 10.0)
        '2,000,000 rows, 50 %, 200,000 rows/s, 10 s left'
    """
    parts = [f"{n_rows:,} rows"]
    if fraction:
        parts.append(f"{100 * fraction:.0f} %")
    parts.append(f"{n_rows / max(seconds, 1e-9):,.0f} rows/s")
    if fraction:
        left = seconds * (1 - fraction) / fraction
        parts.append(f"{left / 60:.0f} min left" if left >= 120 else f"{left:.0f} s left")
    return ", ".join(parts)
