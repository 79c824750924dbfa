"""Files of scores as a stream of record batches, whatever their format, in memory that does not grow."""

from __future__ import annotations

import abc
import contextlib
import csv
import io
import itertools
import re
from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Any, ClassVar, Self

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from refocal.scoring.paths import InputError, Place, format_of, open_input, place_of, reading

ENTRIES = 1 << 20
"""Entries of a batch: some megabytes, so that what follows stays in the cache."""

PIECE = 1 << 16
"""Bytes of each column of a Parquet file that are read at a time."""

BLOCK = 1 << 21
"""Bytes of a CSV file that are parsed at a time; no line may be longer."""


FIRST = 1000
"""Rows of a CSV file that are looked at for whole numbers."""

WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")


class Source(abc.ABC):
    """A file that is read in batches.

    Attributes:
        path: What the user called it.
        names: Its columns.
        groups: Columns that belong together under one name, as those of an array.
        n_rows: How many rows, where the file says so before it is read; None otherwise.
        schema: The types of its columns, where the file has them; None otherwise.
    """

    schema: Any = None

    text: ClassVar[bool] = False
    """Whether its values are text, whose types are found on the way."""

    def __init__(
        self,
        path: str,
        opened: contextlib.ExitStack,
        names: Sequence[str],
        n_rows: int | None,
        groups: dict[str, list[str]] | None = None,
    ) -> None:
        self.path, self.names, self.n_rows, self.groups = path, tuple(names), n_rows, groups or {}
        self._opened = opened
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"columns of {path} must have different names, got {twice[0]!r} twice")

    def batches(
        self, columns: Sequence[str] | None = None, *, floats: Collection[str] = (), as_text: bool = False
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows in order.

        Args:
            columns: Only these; None for all.
            floats: Columns that hold floating point numbers, where the file does not say.
            as_text: Leave all values as they are written, where they are text.

        Raises:
            InputError: If the file cannot be read to its end.
        """
        with reading(self.path):
            with contextlib.closing(self._batches(columns, floats, as_text)) as batches:
                for batch in batches:
                    yield from _in_parts(batch)

    @abc.abstractmethod
    def _batches(
        self, columns: Sequence[str] | None, floats: Collection[str], as_text: bool
    ) -> Generator[pa.RecordBatch, None, None]: ...

    def fraction(self) -> float | None:
        """Return how much of the file was read so far, where that is known without its rows."""
        return None

    def whole(self, columns: Sequence[str]) -> list[str]:
        """Return those of the columns that hold whole numbers, by their types or, of text, the first rows."""
        typed = {f.name for f in self.schema or () if pa.types.is_integer(f.type)}
        return [name for name in columns if name in typed]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()


def rows_of_batch(n_columns: int) -> int:
    """Return how many rows a batch should have."""
    return max(1024, min(1 << 16, ENTRIES // max(1, n_columns)))


def _in_parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in parts that are not too long."""
    step = rows_of_batch(batch.num_columns)
    if batch.num_rows <= 2 * step:
        yield batch
        return
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


class ParquetSource(Source):
    """A Parquet file."""

    def __init__(self, path: str, place: Place, opened: contextlib.ExitStack) -> None:
        with reading(path):
            # Far away many small reads are slow; here they keep a large row group out of the memory.
            how = {"pre_buffer": False, "buffer_size": PIECE} if place.is_here else {}
            self._file = pa.parquet.ParquetFile(open_input(place, opened, seekable=True), **how)
        self.schema = self._file.schema_arrow
        super().__init__(path, opened, self.schema.names, self._file.metadata.num_rows)

    def _batches(
        self, columns: Sequence[str] | None, floats: Collection[str], as_text: bool
    ) -> Generator[pa.RecordBatch, None, None]:
        rows = rows_of_batch(len(columns or self.names))
        # The reader takes dots for nesting, and finds a name before its parts.
        for batch in self._file.iter_batches(rows, columns=None if columns is None else list(columns)):
            yield batch if columns is None else batch.select(list(columns))

    def row_groups(self) -> list[int]:
        """Return the rows of each row group."""
        meta = self._file.metadata
        return [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]

    def row_group(self, i: int) -> pa.RecordBatch:
        """Return all rows of a row group."""
        with reading(self.path):
            return self._file.read_row_group(i).combine_chunks().to_batches()[0]


class ArrowSource(Source):
    """An Arrow file (Feather) or an Arrow stream."""

    def __init__(self, path: str, place: Place, opened: contextlib.ExitStack) -> None:
        with reading(path):
            file = open_input(place, opened, seekable=True)
            is_file = file.read(6) == b"ARROW1"
            file.seek(0)
            self._reader = pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
        self._is_file = is_file
        self.schema = self._reader.schema
        super().__init__(path, opened, self.schema.names, None)

    def _batches(
        self, columns: Sequence[str] | None, floats: Collection[str], as_text: bool
    ) -> Generator[pa.RecordBatch, None, None]:
        if self._is_file:
            every = (self._reader.get_batch(i) for i in range(self._reader.num_record_batches))
        else:
            every = iter(self._reader)
        for batch in every:
            batch.validate(full=True)  # what a file says of itself is not checked before
            yield batch if columns is None else batch.select(list(columns))


class CsvSource(Source):
    """A CSV file with a header, its text in UTF-8, compressed by gzip or not."""

    text = True

    def __init__(self, path: str, place: Place, opened: contextlib.ExitStack, kind: str) -> None:
        self._delimiter = "\t" if kind.startswith("tsv") else ","
        with reading(path):
            raw = open_input(place, opened)
            self._raw, self._size = raw, _size(raw)
            self._gzip = kind.endswith(".gz")
            self._stream = self._unpacked()
            self._head = self._stream.read(BLOCK)
        super().__init__(path, opened, self._header(path), None)

    def _unpacked(self) -> Any:
        return pa.CompressedInputStream(self._raw, "gzip") if self._gzip else self._raw

    def _header(self, path: str) -> list[str]:
        with reading(path):
            start = self._head[: BLOCK // 4]
            line = start.decode("utf-8-sig", errors="strict" if len(start) == len(self._head) else "ignore")
        try:
            names = next(csv.reader(io.StringIO(line), delimiter=self._delimiter), [])
        except csv.Error as error:
            raise InputError(f"cannot read {path}: its header is no line of CSV ({error})") from error
        other = {";": "write it with commas", "\t": "say --from tsv", ",": "say --from csv"}
        for sign, what in other.items():
            if len(names) == 1 and sign in names[0]:
                raise InputError(
                    f"cannot read {path}: its header is one column with {sign!r} in it, {names[0][:40]!r}: "
                    f"{what}"
                )
        if not names or "\x00" in line[:1000]:
            what = "is empty" if not self._head else "has no header that is text in UTF-8"
            raise InputError(f"cannot read {path}: it {what}")
        return names

    def _batches(
        self, columns: Sequence[str] | None, floats: Collection[str], as_text: bool
    ) -> Generator[pa.RecordBatch, None, None]:
        convert = pa.csv.ConvertOptions(
            column_types=(
                dict.fromkeys(self.names, pa.string()) if as_text else dict.fromkeys(floats, pa.float64())
            ),
            include_columns=list(columns) if columns is not None else None,
        )
        try:
            with self._reader(_Joined(self._head, self._stream), convert) as reader:
                yield from reader
        except pa.ArrowInvalid as error:
            # Several threads do not know which row is broken. One does, and reads once more to say it.
            if "Row #" in str(error) or not self._raw.seekable():
                raise
            self._raw.seek(0)
            with self._reader(_Joined(b"", self._unpacked()), convert, threads=False) as reader:
                for _ in reader:
                    pass
            raise

    def _reader(self, stream: _Joined, convert: pa.csv.ConvertOptions, *, threads: bool = True) -> Any:
        return pa.csv.open_csv(
            pa.PythonFile(stream, mode="r"),
            pa.csv.ReadOptions(block_size=BLOCK, use_threads=threads),
            pa.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
            convert,
        )

    def whole(self, columns: Sequence[str]) -> list[str]:
        """Return those of the columns whose first values are written as whole numbers."""
        text = self._head[: BLOCK // 4].decode("utf-8-sig", errors="ignore")
        if len(self._head) > BLOCK // 4:
            text = text[: text.rfind("\n") + 1]  # what is cut in the middle does not count
        with contextlib.suppress(csv.Error):
            lines = csv.reader(io.StringIO(text, newline=""), delimiter=self._delimiter)
            rows = [row for row in itertools.islice(lines, 1, FIRST + 1) if len(row) == len(self.names)]
            found = dict(zip(self.names, zip(*rows, strict=True), strict=False))
            return [c for c in columns if c in found and all(map(WHOLE.fullmatch, found[c]))]
        return []

    def fraction(self) -> float | None:
        """Return the share of the bytes that were read."""
        return min(1.0, self._raw.tell() / self._size) if self._size else None


class _Joined(io.RawIOBase):
    """What was read of a stream, and then the rest of it."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._head:
            start, self._head = self._head[:size], self._head[size:]
            return start
        return bytes(self._rest.read(size))


def _size(raw: Any) -> int | None:
    """Return the bytes of an open file, or None for a pipe."""
    if not raw.seekable():
        return None
    if hasattr(raw, "size"):
        return int(raw.size())
    end = raw.seek(0, io.SEEK_END)
    raw.seek(0)
    return int(end)


def open_source(path: str, said: str | None = None) -> Source:
    """Return a file of scores, ready to be read.

    Args:
        path: A file, a URI, a folder or pattern of Parquet files, or "-" for standard input.
        said: Its format; None for the one that its name tells (CSV for standard input).

    Raises:
        InputError: If it is none that can be read.
    """
    from refocal.scoring.folders import FolderSource, is_folder, is_pattern
    from refocal.scoring.numpy_files import NpySource, NpzSource

    with reading(path), contextlib.ExitStack() as opened:  # closes what is open if something goes wrong
        place = place_of(path)
        source: Source
        if is_pattern(path) or is_folder(place):
            source = FolderSource(path, place, opened)
        elif (kind := format_of(path, said)) == "parquet":
            source = ParquetSource(path, place, opened)
        elif kind == "arrow":
            source = ArrowSource(path, place, opened)
        elif kind == "npy":
            source = NpySource(path, place, opened)
        elif kind == "npz":
            source = NpzSource(path, place, opened)
        else:
            source = CsvSource(path, place, opened, kind)
        source._opened = opened.pop_all()
        return source
