"""What `refocal choose -o FILE` saved beside the choice: of which columns, classes and rows it is."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from refocal.cli.options import log, read_json

if TYPE_CHECKING:
    from refocal import Selection
    from refocal.scoring import Scores


class Saved(NamedTuple):
    """The rows of a saved choice.

    Attributes:
        path: The file of the choice.
        classes: The classes of its labels in the order of the scores; empty where it does not say.
        columns: Its score columns in order; empty where it does not say.
        input: The file that it was fitted on; empty where it does not say.
    """

    path: str
    classes: tuple[str, ...]
    columns: tuple[str, ...]
    input: str

    def is_of(self, path: str) -> bool:
        """Return whether a file is the one of the fit."""
        if not self.input or "-" in (self.input, path):
            return False
        return os.path.realpath(self.input) == os.path.realpath(path)


def saved_of(args: argparse.Namespace) -> Saved | None:
    """Return of which rows the choice of ``--calibration`` is; None without one."""
    path = args.calibration
    if path is None:
        return None

    def make(fields: dict[str, Any]) -> Saved:
        classes, columns = fields.get("classes", []), fields.get("score_columns", [])
        for given in (classes, columns):
            if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
                raise ValueError(f"classes and score_columns must be lists of names, got {given!r}")
        return Saved(path, tuple(classes), tuple(columns), str(fields.get("input", "")))

    return read_json(path, make, "a choice of `refocal choose`")


def order_of(
    saved: Saved, link: Selection, scores: Scores, said: Sequence[str] | None
) -> tuple[int, ...] | None:
    """Return for each class of a choice the score column that is of it, by names; None for the same order.

    Args:
        saved: Of which rows the choice is.
        link: The choice.
        scores: The score columns that it is applied to.
        said: What ``--classes`` names them.

    Raises:
        InputError: If they are not as many, or their names do not tell which is which.
    """
    from refocal.objectives.base import n_classes_of
    from refocal.scoring import InputError, class_names

    n, fitted = len(scores.columns), link.method(link.winner).columns
    if fitted is None or (n == 1 and fitted == 2 and link.task == "multiclass"):
        return None
    if n != fitted:
        what = "labels" if link.task == "multilabel" else "classes"
        columns = "1 column" if n == 1 else f"{n} columns"
        raise InputError(f"--scores names {columns}, {saved.path} has {fitted} {what}")
    if not saved.classes and not saved.columns:
        if n_classes_of(link.objective) and not all(name.isdecimal() for name in scores.classes):
            log.warning(
                "%s does not name its classes: the numbers of each are taken in the order of the columns, %s",
                saved.path,
                ", ".join(scores.classes),
            )
        return None
    there = class_names(saved.columns) if saved.columns else []
    pairs = ((said, saved.classes), (scores.classes, there), (scores.classes, saved.classes), (said, there))
    for here, of_fit in pairs:
        if here and len(here) == n and set(here) == set(of_fit):
            order = tuple(list(here).index(name) for name in of_fit)
            return None if order == tuple(range(n)) else order
    raise InputError(
        f"--scores must be of the classes of {saved.path}, {', '.join(saved.classes or there)}, got "
        f"{', '.join(said or scores.classes)}: say --classes with the former, in the order of the columns"
    )
