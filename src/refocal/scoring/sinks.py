"""Record batches into a file of any format, which gets its name when all of it is written."""

from __future__ import annotations

import abc
import contextlib
import csv
import gzip
import io
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.lib import format as npy

from refocal.scoring.paths import STANDARD, InputError, Place, format_of, open_output, place_of

ZIP_TIME = (1980, 1, 1, 0, 0, 0)
"""Of every member of an archive, so that the same rows make the same bytes."""


class Sink(abc.ABC):
    """What takes the batches of a file, in order; `close` ends the file."""

    @abc.abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Write the next rows."""

    @abc.abstractmethod
    def close(self) -> None:
        """Write what stands at the end."""

    def abandon(self) -> None:
        """Let go of what an error has left; the file is thrown away."""
        return


class _Parquet(Sink):
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            # A dictionary of scores costs more than all the rest, and is thrown away in the end.
            columns = [f.name for f in batch.schema if not pa.types.is_floating(f.type)]
            self._writer = pa.parquet.ParquetWriter(self._file, batch.schema, use_dictionary=columns)
        self._writer.write_batch(batch)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def abandon(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()  # now, as it would try again when the file is closed
            self._writer.is_open = False


class _Arrow(Sink):
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = pa.ipc.new_file(self._file, batch.schema)
        self._writer.write_batch(batch)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Csv(Sink):
    def __init__(self, file: BinaryIO, delimiter: str) -> None:
        self._file, self._delimiter, self._is_first = file, delimiter, True

    def write(self, batch: pa.RecordBatch) -> None:
        if self._is_first:
            header = io.StringIO()
            csv.writer(header, delimiter=self._delimiter, lineterminator="\n").writerow(batch.schema.names)
            self._file.write(header.getvalue().encode())
            self._is_first = False
        try:
            text = self._text(batch, "none")
        except pa.ArrowInvalid:  # a value has a comma, a quote or an end of line
            text = self._text(batch, "needed")
        self._file.write(text)

    def _text(self, batch: pa.RecordBatch, quoting: str) -> memoryview:
        buffer = pa.BufferOutputStream()
        try:
            pa.csv.write_csv(
                batch,
                buffer,
                pa.csv.WriteOptions(include_header=False, delimiter=self._delimiter, quoting_style=quoting),
            )
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            nested = [f.name for f in batch.schema if pa.types.is_nested(f.type)]
            raise InputError(f"CSV cannot hold column {(nested or ['?'])[0]!r}: {error}") from error
        return memoryview(buffer.getvalue())

    def close(self) -> None:
        pass


class _Npy(Sink):
    """One array of some columns: a header with room for the number of rows, and the rows."""

    def __init__(self, file: BinaryIO, columns: Collection[str]) -> None:
        self._file, self._columns = file, tuple(columns)
        self._n_rows, self._dtype = 0, np.dtype(np.float64)

    def write(self, batch: pa.RecordBatch) -> None:
        arrays = [_plain(batch.column(name), name) for name in self._columns]
        block = np.stack(arrays, axis=1) if len(arrays) > 1 else arrays[0]
        if self._n_rows == 0:
            self._dtype = block.dtype
            self._file.write(self._header())
        self._n_rows += len(block)
        self._file.write(np.ascontiguousarray(block, self._dtype).data.cast("B"))

    def _header(self) -> bytes:
        shape = (self._n_rows, len(self._columns)) if len(self._columns) > 1 else (self._n_rows,)
        # NumPy leaves room in a header for the first number of a shape to grow.
        file = io.BytesIO()
        fields = {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(file, fields)
        return file.getvalue()

    def close(self) -> None:
        self._file.seek(0)
        self._file.write(self._header())


class _Npz(Sink):
    """Several arrays: each grows in a temporary file, all are put into the archive at the end."""

    def __init__(self, file: BinaryIO, groups: Mapping[str, Collection[str]]) -> None:
        self._file = file
        self._arrays: dict[str, tuple[BinaryIO, _Npy]] = {}
        for name, columns in groups.items():
            part = tempfile.TemporaryFile()  # closed with the archive
            self._arrays[name] = part, _Npy(part, columns)

    def write(self, batch: pa.RecordBatch) -> None:
        for _, array in self._arrays.values():
            array.write(batch)

    def abandon(self) -> None:
        for part, _ in self._arrays.values():
            part.close()

    def close(self) -> None:
        with zipfile.ZipFile(self._file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, (part, array) in self._arrays.items():
                array.close()
                part.seek(0)
                with archive.open(zipfile.ZipInfo(f"{name}.npy", ZIP_TIME), "w", force_zip64=True) as member:
                    shutil.copyfileobj(part, member)
                part.close()


def _plain(column: pa.Array, name: str) -> np.ndarray[Any, Any]:
    kind = column.type
    if column.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise InputError(f"NumPy files hold whole columns of numbers, got {name!r} of type {kind}")
    return np.asarray(column.to_numpy(zero_copy_only=False))


@contextlib.contextmanager
def open_sink(
    path: str,
    said: str | None,
    *,
    groups: Mapping[str, Collection[str]],
    made: str,
) -> Iterator[Sink]:
    """Open a file for batches; it gets its name at the end, and none if an error comes before.

    Args:
        path: A file, a URI, or "-" for standard output.
        said: Its format; None for the one that its name tells (CSV for standard output).
        groups: The arrays of an NPZ file and their columns.
        made: The group that an NPY file gets, which has room for one array.

    Raises:
        InputError: If the format is not known, or cannot hold a column.
        OSError: If the file cannot be written; the one of before is then as it was.
    """
    kind = format_of(path, said, what="the output")
    place = place_of(path)
    makers: dict[str, Callable[[BinaryIO], Sink]] = {
        "csv": lambda file: _Csv(file, ","),
        "tsv": lambda file: _Csv(file, "\t"),
        "parquet": _Parquet,
        "arrow": _Arrow,
        "npy": lambda file: _Npy(file, groups[made]),
        "npz": lambda file: _Npz(file, groups),
    }
    with open_output(place) as file:
        if kind.endswith(".gz"):
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as zipped:
                yield from _written(makers[kind.removesuffix(".gz")](zipped))  # type: ignore[arg-type]
        elif kind in ("npy", "npz") and not _can_seek(place):
            with tempfile.TemporaryFile() as whole:
                yield from _written(makers[kind](whole))
                whole.seek(0)
                shutil.copyfileobj(whole, file)
        else:
            yield from _written(makers[kind](file))


def _written(sink: Sink) -> Iterator[Sink]:
    try:
        yield sink
        sink.close()
    except BaseException:
        sink.abandon()
        raise


def _can_seek(place: Place) -> bool:
    return place.is_here and place.path != STANDARD
