"""Which problem of a file each row of the published tables is, where the paper does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

MARKS = ("complete", "positive")
"""Entries of a config that tell a version of a data set from the one that runs of before are of."""


@dataclass(frozen=True)
class Task:
    """Which problem of a file the paper's row is, as far as its error tables tell (docs/reproduce.md)."""

    file: str
    positive: tuple[int, ...] = ()
    """Binary: these classes against the others."""
    rows: int | None = None
    """The first rows only."""
    missing: tuple[int, ...] = ()
    """Features that say "not known" by a 1: rows with one, and features that are then constant, are out."""
    rechosen: bool = False
    """Whether the first runs were of other classes."""

    def complete(self, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[Any, Any]:
        """Return the rows in which nothing is missing."""
        if not self.missing:
            return x, y
        known = (x[:, list(self.missing)] == 0).all(axis=1)
        x, y = x[known], y[known]
        return x[:, np.ptp(x, axis=0) > 0], y

    def mark(self) -> dict[str, Any]:
        """Return what a config says of the version, so that runs of an earlier one are other runs.

        Example:
            >>> PAPER_TASKS["waveform"].mark(), PAPER_TASKS["usps"].mark()
            ({'positive': [1]}, {})
        """
        complete = {"complete": True} if self.missing else {}  # the first runs were on all rows
        return complete | ({"positive": list(self.positive)} if self.rechosen else {})


PAPER_TASKS = {
    "usps": Task("usps", positive=(0,)),
    "coil20": Task("coil20", positive=(0,)),
    "isolet": Task("isolet", positive=(0,), rows=1560),
    "image": Task("image", positive=(3, 4, 6)),
    "waveform": Task("waveform-21", positive=(1,), rechosen=True),
    "splice": Task("splice-binary"),
    "mushroom": Task("mushroom", missing=(51,)),
}
