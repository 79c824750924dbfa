"""Arrays in NPY and NPZ files, read in parts of rows."""

from __future__ import annotations

import contextlib
import math
import zipfile
import zlib
from collections.abc import Collection, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy

from refocal.scoring.paths import InputError, Place, open_input, reading
from refocal.scoring.sources import Source, rows_of_batch

MATRIX = "score"
"""What the columns of a single array are called, with their number."""


class Header(NamedTuple):
    """What an array is."""

    shape: tuple[int, ...]
    dtype: Any

    @property
    def n_columns(self) -> int:
        return 1 if len(self.shape) == 1 else self.shape[1]

    def names(self, name: str) -> list[str]:
        """Return the columns of an array."""
        return [name] if len(self.shape) == 1 else [f"{name}_{k}" for k in range(self.shape[1])]


def read_header(file: Any, what: str) -> Header:
    """Return the header of an array, and leave the file at its first number.

    Raises:
        InputError: If it is no array of numbers or text in rows.
    """
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, SyntaxError, TypeError) as error:
        raise InputError(f"cannot read {what}: it is no NPY file ({error})") from error
    if len(shape) not in (1, 2) or dtype.kind not in "biufU" or 0 in shape[1:] or dtype.itemsize == 0:
        raise InputError(
            f"{what} must be an array of numbers or text with one or two axes, got {dtype} {shape}"
        )
    if fortran and len(shape) == 2 and min(shape) > 1:
        raise InputError(
            f"{what} must be stored row by row, got columns first: save numpy.ascontiguousarray of it"
        )
    return Header(shape, dtype)


def read_rows(file: Any, header: Header, n: int, what: str) -> np.ndarray[Any, Any]:
    """Return the next n rows of an array, shape (n,) or (n, K)."""
    shape = (n, *header.shape[1:])
    wanted = math.prod(shape) * header.dtype.itemsize
    data = file.read(wanted)
    if len(data) != wanted:
        raise InputError(f"cannot read {what}: it ends before its last row")
    rows = np.frombuffer(data, header.dtype).reshape(shape)
    return rows.astype(header.dtype.newbyteorder("="), copy=False)


def _columns(rows: np.ndarray[Any, Any]) -> list[pa.Array]:
    if rows.dtype.kind == "U":
        rows = rows.astype(object)
    return [pa.array(np.ascontiguousarray(c)) for c in (rows.T if rows.ndim == 2 else [rows])]


class _Arrays(Source):
    """Several arrays with the same number of rows, each behind an open file."""

    def __init__(self, path: str, opened: contextlib.ExitStack, files: dict[str, tuple[Any, Header]]) -> None:
        self._files = files
        groups = {name: header.names(name) for name, (_, header) in files.items()}
        n_rows = {header.shape[0] for _, header in files.values()}
        if len(n_rows) > 1:
            counts = ", ".join(f"{name} {header.shape[0]}" for name, (_, header) in files.items())
            raise InputError(f"arrays of {path} must have the same number of rows, got {counts}")
        super().__init__(path, opened, [c for names in groups.values() for c in names], n_rows.pop(), groups)

    def _batches(
        self, columns: Sequence[str] | None, floats: Collection[str], as_text: bool
    ) -> Generator[pa.RecordBatch, None, None]:
        wanted = list(self.names if columns is None else columns)
        files = {
            name: file for name, file in self._files.items() if not set(self.groups[name]).isdisjoint(wanted)
        }
        step = rows_of_batch(sum(len(self.groups[name]) for name in files))
        n = self.n_rows or 0
        for start in range(0, n, step):
            found: dict[str, pa.Array] = {}
            for name, (file, header) in files.items():
                rows = read_rows(file, header, min(step, n - start), self.path)
                found |= zip(self.groups[name], _columns(rows), strict=True)
            yield pa.record_batch([found[name] for name in wanted], names=wanted)

    def whole(self, columns: Sequence[str]) -> list[str]:
        """Return those of the columns that are of an array of integers."""
        arrays = [self.groups[name] for name, (_, header) in self._files.items() if header.dtype.kind in "iu"]
        found = {name for names in arrays for name in names}
        return [name for name in columns if name in found]


class NpySource(_Arrays):
    """One array, with a row for each row and a column for each class."""

    def __init__(self, path: str, place: Place, opened: contextlib.ExitStack) -> None:
        with reading(path):
            file = open_input(place, opened)
            header = read_header(file, path)
        super().__init__(path, opened, {MATRIX: (file, header)})


class NpzSource(_Arrays):
    """Several arrays with the same rows, each by its name."""

    def __init__(self, path: str, place: Place, opened: contextlib.ExitStack) -> None:
        files: dict[str, tuple[Any, Header]] = {}
        with reading(path):
            try:
                archive = zipfile.ZipFile(open_input(place, opened, seekable=True))
                for member in archive.namelist():
                    if member.endswith(".npy"):
                        file = opened.enter_context(archive.open(member))
                        files[member.removesuffix(".npy")] = (file, read_header(file, f"{path} ({member})"))
            except (zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error) as error:
                raise InputError(f"cannot read {path}: it is no NPZ file ({error})") from error
        if not files:
            raise InputError(f"cannot read {path}: it has no arrays")
        super().__init__(path, opened, files)

    def _batches(
        self, columns: Sequence[str] | None, floats: Collection[str], as_text: bool
    ) -> Generator[pa.RecordBatch, None, None]:
        try:
            yield from super()._batches(columns, floats, as_text)
        except (zipfile.BadZipFile, zlib.error) as error:
            raise InputError(f"cannot read {self.path}: {error}") from error
