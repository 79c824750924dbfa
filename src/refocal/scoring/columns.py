"""Which columns are meant, and their values as arrays: scores with classes first, labels as codes."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from refocal.scoring.paths import InputError
from refocal.scoring.sources import Source

Floats = npt.NDArray[Any]
Codes = npt.NDArray[np.int64]


class Scores(NamedTuple):
    """The score columns of a file and the classes they are of.

    Attributes:
        columns: Their names, class by class.
        classes: What is left of the names without what all begin with, such as "cat" of "logit_cat".
    """

    columns: tuple[str, ...]
    classes: tuple[str, ...]


def find_columns(source: Source, patterns: Sequence[str], option: str) -> list[str]:
    """Return the columns that are named, or fit a pattern such as ``logit_*``, in the order of the file.

    Raises:
        InputError: If a pattern fits none.
    """
    found: list[str] = []
    for pattern in [part for text in patterns for part in text.split(",")]:
        names = [pattern] if pattern in source.names else source.groups.get(pattern, [])
        names = names or [name for name in source.names if fnmatch.fnmatchcase(name, pattern)]
        if not names:
            raise InputError(
                f"{option} must name columns of {source.path}, got {pattern!r}; it has {shown(source.names)}"
            )
        found += [name for name in names if name not in found]
    return found


def find_scores(
    source: Source, patterns: Sequence[str] | None, labels: Sequence[str] | None = None
) -> Scores:
    """Return the score columns.

    What a pattern takes, with names that end in numbers 0..K-1, comes in the order of these numbers, wherever
    they stand; names that are listed stay in their order.

    Args:
        source: The file.
        patterns: Names and patterns of the score columns.
        labels: Those of the label columns, which are no scores.

    Raises:
        InputError: If they are not said (a single array needs no words), or are not there, or a pattern takes
            a label or whole numbers too.
    """
    if patterns is None:
        if len(source.groups) != 1:
            raise InputError(
                f"--scores must name the score columns of {source.path}, such as --scores 'logit_*'; "
                f"it has {shown(source.names)}"
            )
        patterns = list(source.groups)
    columns = find_columns(source, patterns, "--scores")
    both = [name for name in find_columns(source, labels or [], "--label") if name in columns]
    if both:
        raise InputError(
            f"--scores {' '.join(patterns)} takes the label column {both[0]!r} too: name the score columns "
            f"alone, such as --scores 'logit_*'; {source.path} has {shown(source.names)}"
        )
    said = {
        name for text in patterns for part in text.split(",") for name in (part, *source.groups.get(part, ()))
    }
    _check_alike(source, [name for name in columns if name not in said], columns)
    classes = class_names(columns)
    numbers = {name: i for i, name in enumerate(map(str, range(len(columns))))}
    if set(classes) == set(numbers) and not said.issuperset(columns):
        columns = sorted(columns, key=lambda c: numbers[classes[columns.index(c)]])
        classes = class_names(columns)
    return Scores(tuple(columns), tuple(classes))


def named(scores: Scores, classes: Sequence[str]) -> Scores:
    """Return score columns with the classes that ``--classes`` names in their order.

    Raises:
        InputError: If there are not as many, two are the same, or the names of the columns are in another
            order; of one column the second of two is meant.
    """
    n = max(2, len(scores.columns))
    if len(classes) != n or len(set(classes)) != n:
        raise InputError(f"--classes must name {n} different classes, got {', '.join(classes)}")
    by_number = all(name.isdecimal() for name in scores.classes)
    if set(classes) == set(scores.classes) and tuple(classes) != scores.classes and not by_number:
        raise InputError(
            f"--classes must be in the order of the score columns, {', '.join(scores.classes)}, "
            f"got {', '.join(classes)}"
        )
    return scores._replace(classes=tuple(classes)[-len(scores.columns) :])


def _check_alike(source: Source, matched: Sequence[str], columns: Sequence[str]) -> None:
    """Raise where a pattern takes columns of whole numbers, such as an id, among others with fractions."""
    whole = set(source.whole(columns))
    odd = [name for name in matched if name in whole]
    if odd and len(whole) < len(columns):
        raise InputError(
            f"--scores takes {shown(odd)} too, which holds whole numbers and looks like no score, beside "
            f"{shown([name for name in columns if name not in whole])}: give a pattern such as 'logit_*', or "
            "each name, if it is one"
        )


def class_names(columns: Sequence[str]) -> list[str]:
    """Return column names without what all of them begin with, cut where a word ends.

    Example:
        >>> class_names(["logit_cat", "logit_cow"]), class_names(["p10", "p11"]), class_names(["yes", "no"])
        (['cat', 'cow'], ['10', '11'], ['yes', 'no'])
    """
    if len(columns) == 1:
        return ["1"]
    first, last = min(columns), max(columns)  # what these two share, all do
    common = first[
        : next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    ]
    end = max((match.end() for match in re.finditer(r"[^A-Za-z0-9]", common)), default=0)
    if end == 0 and all(name[len(common.rstrip("0123456789")) :].isdecimal() for name in columns):
        end = len(common.rstrip("0123456789"))
    classes = [name[end:] or name for name in columns]
    return classes if len(set(classes)) == len(columns) else list(columns)


def shown(names: Sequence[str], most: int = 12) -> str:
    """Return names for an error, not too many of them."""
    listed = ", ".join(repr(name if len(name) <= 40 else name[:37] + "...") for name in names[:most])
    return f"{listed} and {len(names) - most} more" if len(names) > most else listed or "no columns"


def score_block(batch: pa.RecordBatch, columns: Sequence[str], start: int) -> Floats:
    """Return the scores of a batch with classes first, shape (K, rows), in one floating point dtype.

    Args:
        batch: The rows.
        columns: The score columns.
        start: How many rows came before, to name a row in an error.

    Raises:
        InputError: If a column does not hold numbers, or one is missing.
    """
    arrays = [_numbers(batch.column(name), name, start) for name in columns]
    dtype = np.result_type(*{a.dtype for a in arrays})
    block = np.empty((len(columns), batch.num_rows), dtype)
    for row, a in zip(block, arrays, strict=True):
        row[...] = a
    return block


def _numbers(column: pa.Array, name: str, start: int) -> Floats:
    kind = column.type
    if isinstance(column, pa.DictionaryArray):
        column, kind = column.dictionary_decode(), kind.value_type
    if column.null_count and not pa.types.is_null(kind):
        row = pc.index(pc.is_null(column), True).as_py()
        raise InputError(f"column {name!r} must have a number in each row, got none in row {start + row}")
    if pa.types.is_floating(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _parsed(column, name, start)
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    raise InputError(f"column {name!r} must hold numbers, got {kind}")


def _parsed(column: pa.Array, name: str, start: int) -> Floats:
    column = pc.utf8_trim_whitespace(column)
    try:
        return np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid:
        for i, text in enumerate(column.to_pylist()):
            try:
                pc.cast(pa.array([text]), pa.float64())
            except pa.ArrowInvalid:
                raise InputError(
                    f"column {name!r} must hold numbers, got {text[:40]!r} in row {start + i}"
                ) from None
        raise


class Labels(NamedTuple):
    """How the values of label columns become codes 0..K-1.

    Attributes:
        columns: The label column, or one for each label of a multi-label task.
        classes: The K classes as they are written; None for labels that are the codes themselves.
        origin: Where the classes are from, in words.
    """

    columns: tuple[str, ...]
    classes: tuple[str, ...] | None
    origin: str

    def codes(self, batch: pa.RecordBatch, start: int, n_classes: int) -> Codes:
        """Return the labels of a batch: shape (rows,), or (labels, rows) for several columns.

        Raises:
            InputError: If a value is missing or is none of the classes.
        """
        found = [self._codes(batch.column(name), name, start, n_classes) for name in self.columns]
        return found[0] if len(found) == 1 else np.stack(found)

    def _codes(self, column: pa.Array, name: str, start: int, n_classes: int) -> Codes:
        if isinstance(column, pa.DictionaryArray):
            column = column.dictionary_decode()
        if column.null_count:
            row = pc.index(pc.is_null(column), True).as_py()
            raise InputError(f"label {name!r} must have a value in each row, got none in row {start + row}")
        if self.classes is None:
            codes = _integers(column, name, start)
            good = (codes >= 0) & (codes < n_classes)
            if not good.all():
                i = int(np.argmin(good))
                rule = f"within 0..{n_classes - 1}"
                raise InputError(f"label {name!r} must be {rule}, got {codes[i]} in row {start + i}")
            return codes
        values = as_text(column, name, start)
        codes = pc.index_in(values, value_set=pa.array(self.classes, values.type))
        if codes.null_count:
            i = pc.index(pc.is_null(codes), True).as_py()
            raise InputError(
                f"label {name!r} must be one of the classes {shown(self.classes)} ({self.origin}), got "
                f"{str(values[i].as_py())[:40]!r} in row {start + i}"
            )
        return np.asarray(codes.to_numpy(zero_copy_only=False), dtype=np.int64)


def _integers(column: pa.Array, name: str, start: int) -> Codes:
    kind = column.type
    if pa.types.is_boolean(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        values = np.asarray(column.to_numpy(zero_copy_only=False))
        with np.errstate(invalid="ignore"):
            whole = values.astype(np.int64)
        wrong = np.flatnonzero((whole != values) | ((whole < 0) & (values > 0)))
        if wrong.size:
            i = int(wrong[0])
            raise InputError(f"label {name!r} must be integers, got {values[i]} in row {start + i}")
        return whole
    if is_text(kind):  # of standard input, which cannot be looked at twice
        raise InputError(f"label {name!r} holds names: say --classes A,B,... in the order of the scores")
    raise InputError(f"label {name!r} must hold integers or text, got {kind}")


def as_text(column: pa.Array, name: str, start: int) -> pa.Array:
    """Return labels as they are written: text as it is, whole numbers without a point."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column
    if pa.types.is_boolean(kind):
        return pc.cast(column, pa.string())
    return pc.cast(pa.array(_integers(column, name, start)), pa.string())


def is_text(kind: Any) -> bool:
    """Return whether labels of a type are names rather than codes."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
