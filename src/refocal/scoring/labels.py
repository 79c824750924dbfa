"""Which classes labels are of, and rows of scores with labels from a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from refocal.scoring.apply import Tell, ahead, in_file, quiet
from refocal.scoring.columns import (
    Codes,
    Floats,
    Labels,
    Scores,
    as_text,
    find_columns,
    is_text,
    named,
    score_block,
    shown,
)
from refocal.scoring.measure import Task
from refocal.scoring.paths import STANDARD, InputError
from refocal.scoring.sources import Source

NAMED = "from the names of the score columns"
"""Where classes are from."""

MOST_SHOWN = 20
"""Classes that an example of ``--classes`` lists."""

MOST_CLASSES = 1 << 16
"""Distinct labels beyond which a column is taken for something else."""


class Labelled(NamedTuple):
    """A stream of scores with labels.

    Attributes:
        source: What is read.
        scores: The score columns.
        labels: The label columns and their classes.
        task: What the columns are.
    """

    source: Source
    scores: Scores
    labels: Labels
    task: Task

    @property
    def n_classes(self) -> int:
        """How many values a label can have."""
        return len(self.scores.columns) if self.task == "multiclass" else 2

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes in words."""
        if self.task == "multilabel":
            return self.scores.classes
        if self.labels.classes is not None:
            return self.labels.classes
        return self.scores.classes if self.task == "multiclass" else ("0", "1")

    def blocks(self, tell: Tell = quiet) -> Iterator[tuple[Floats, Codes, int]]:
        """Yield scores with classes first, labels with rows last, and how many rows came before.

        Raises:
            InputError: If a value is missing or wrong, or there are no rows.
        """
        columns = list(dict.fromkeys([*self.scores.columns, *self.labels.columns]))
        n = 0
        with in_file(self.source.path):
            for batch in ahead(self.source.batches(columns, floats=self.scores.columns)):
                if batch.num_rows:
                    block = score_block(batch, self.scores.columns, n)
                    yield block, self.labels.codes(batch, n, self.n_classes), n
                n += batch.num_rows
                tell(n, n / self.source.n_rows if self.source.n_rows else self.source.fraction())
            if not n:
                raise InputError("it has no rows")


def labelled(
    source: Source,
    reopen: Callable[[], Source],
    scores: Scores,
    patterns: Sequence[str],
    task: Task | None,
    classes: Sequence[str] | None,
) -> Labelled:
    """Return scores and labels of a file, after a look at what the labels are.

    Args:
        source: The file.
        reopen: Opens it again, where labels have to be looked at first; not called for standard input.
        scores: The score columns.
        patterns: The label columns.
        task: What was said; None for "binary" with one score column and "multiclass" with several.
        classes: The classes in the order of the score columns; None to find them.

    Raises:
        InputError: If the columns do not fit the task, or the classes cannot be found.
    """
    k = len(scores.columns)
    task = task or ("binary" if k == 1 else "multiclass")
    if (task == "binary") != (k == 1) and task != "multilabel":
        raise InputError(f"--task {task} needs {'one score column' if k > 1 else 'several'}, got {k}")
    columns = find_columns(source, patterns, "--label")
    if task != "multilabel" and len(columns) > 1:
        raise InputError(f"--label must name one column, or --task multilabel be said, got {len(columns)}")
    if task == "multilabel":
        if len(columns) != k:
            raise InputError(f"--label must name one column for each of the {k} scores, got {len(columns)}")
        return Labelled(source, scores, Labels(tuple(columns), None, "0 and 1 in their label columns"), task)
    return Labelled(source, scores, _classes(source, reopen, scores, columns[0], task, classes), task)


def _classes(
    source: Source,
    reopen: Callable[[], Source],
    scores: Scores,
    column: str,
    task: Task,
    said: Sequence[str] | None,
) -> Labels:
    n = len(scores.columns) if task == "multiclass" else 2
    if said is not None:
        named(scores, said)
        return Labels((column,), tuple(said), "from --classes")
    if source.path == STANDARD:
        # Nothing can be looked at twice.
        numbered = task != "multiclass" or all(name.isdecimal() for name in scores.classes)
        return Labels((column,), None, _numbered(n)) if numbered else Labels((column,), scores.classes, NAMED)
    with reopen() as again:
        first = next(again.batches([column]), None)
    if first is None or not is_text(first.schema.field(0).type):
        numbered = task == "multiclass" and all(name.isdecimal() for name in scores.classes)
        if numbered and set(scores.classes) != set(map(str, range(n))):
            return Labels((column,), scores.classes, NAMED)
        return Labels((column,), None, _numbered(n))
    with reopen() as again:
        found = _distinct(again, column)
    if task == "multiclass" and set(found) <= set(scores.classes):
        return Labels((column,), scores.classes, NAMED)
    if task == "binary" and set(found) <= {"0", "1"}:
        return Labels((column,), ("0", "1"), _numbered(n))
    raise InputError(_ask_for_classes(scores, column, task, found))


def _numbered(n: int) -> str:
    return f"labels are their numbers, 0 to {n - 1}"


def _ask_for_classes(scores: Scores, column: str, task: Task, found: Sequence[str]) -> str:
    """Return what to type where labels are names that the score columns do not have."""
    n = len(scores.columns) if task == "multiclass" else 2
    if task == "binary":
        where, order = f"the score column {scores.columns[0]!r}", "with the class of the score last"
    else:
        where, order = f"the score columns {shown(scores.columns)}", "in the order of these columns"
    if len(found) == n <= MOST_SHOWN:
        example = f"{','.join(found)} (here in sorted order)"
    else:
        example = f"A,B,... with {n} names"
    return (
        f"label {column!r} holds names ({shown(found)}) that are not those of {where}: "
        f"say --classes {example}, {order}"
    )


def _distinct(source: Source, column: str) -> list[str]:
    """Return the distinct values of a column of text, sorted."""
    found: set[str] = set()
    n = 0
    for batch in source.batches([column]):
        values = batch.column(0)
        if isinstance(values, pa.DictionaryArray):
            values = values.dictionary_decode()
        found |= set(pc.unique(as_text(values.drop_null(), column, n)).to_pylist())
        n += batch.num_rows
        if len(found) > MOST_CLASSES:
            raise InputError(f"label {column!r} must hold classes, got more than {MOST_CLASSES} values")
    return sorted(found)
