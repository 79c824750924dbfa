"""Where files are and how they are opened: here, elsewhere by a URI, or standard input and output."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
from pyarrow import fs

from refocal.files import atomic_file, own_suffix

STANDARD = "-"
"""The path that means standard input or output."""

ENDINGS = {
    ".csv": "csv",
    ".csv.gz": "csv.gz",
    ".tsv": "tsv",
    ".tsv.gz": "tsv.gz",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".npy": "npy",
    ".npz": "npz",
}
"""Formats by how a name ends."""


SAME = "the output must be another file than the input, got {!r} for both"


class InputError(ValueError):
    """What was given cannot be used: a file, a column, a value."""


class Place(NamedTuple):
    """A path and the file system it is on; None for the one of this machine."""

    path: str
    system: Any = None

    @property
    def is_here(self) -> bool:
        """Whether it is a path of this machine."""
        return self.system is None


def place_of(path: str) -> Place:
    """Return where a path or URI leads to.

    Raises:
        InputError: If there is no file system for the URI.
    """
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path):
        return Place(path)
    with reading(path):
        system, inner = _from_uri(path)
    return Place(inner) if isinstance(system, fs.LocalFileSystem) else Place(inner, system)


def _from_uri(uri: str) -> tuple[Any, str]:
    system, path = fs.FileSystem.from_uri(uri)
    return system, str(path)


def format_of(path: str, said: str | None = None, *, what: str = "the input") -> str:
    """Return the format of a file: the one that was said, or the one of its name.

    Raises:
        InputError: If its name does not tell.
    """
    if said is not None:
        return said
    if path == STANDARD:
        return "csv"
    name = PurePosixPath(path).name.lower()
    for ending in sorted(ENDINGS, key=len, reverse=True):
        if name.endswith(ending):
            return ENDINGS[ending]
    known = " ".join(ENDINGS)
    option = "--to" if what == "the output" else "--from"
    raise InputError(f"{what} must end in one of {known}, or {option} must say its format, got {path!r}")


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Say in one line what is wrong with a file, whichever library found it."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"cannot read {path}: there is no such file") from None
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError, MemoryError) as error:
        raise InputError(f"cannot read {path}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """Return what an error says, in one line of readable length."""
    strerror = getattr(error, "strerror", None)
    text = strerror if isinstance(strerror, str) else str(error)
    # pyarrow counts the header as row 1; all other errors count the rows below it from 0.
    text = re.sub(r"\bRow #(\d+)", lambda found: f"row {int(found[1]) - 2}", text)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return (text if len(text) <= 300 else text[:297] + "...") or type(error).__name__


def open_input(place: Place, opened: contextlib.ExitStack, *, seekable: bool = False) -> Any:
    """Open a file to read it from its beginning.

    Args:
        place: The file; "-" for standard input.
        opened: What closes it later.
        seekable: Whether it must be possible to jump; standard input then becomes a file that nobody sees.
    """
    if place.path == STANDARD and place.is_here:
        if not seekable:
            return sys.stdin.buffer
        spooled = opened.enter_context(tempfile.TemporaryFile())
        shutil.copyfileobj(sys.stdin.buffer, spooled)
        spooled.seek(0)
        return spooled
    if place.is_here:
        return opened.enter_context(open(place.path, "rb"))
    return opened.enter_context(place.system.open_input_file(place.path))


def check_output(path: str, *inputs: str) -> None:
    """Raise where a file of this machine could not or should not be written, before any work is done.

    Raises:
        InputError: If its folder is not there, or it is a folder itself, or one of the inputs.
    """
    if any(is_same(place_of(name), Place(path)) for name in inputs):
        raise InputError(SAME.format(path))
    folder = Path(path).parent
    if not folder.is_dir():
        raise InputError(f"the output must be in a folder that is there, got {path!r}")
    if Path(path).is_dir():
        raise InputError(f"the output must be a file, got the folder {path!r}")


def is_same(a: Place, b: Place) -> bool:
    """Return whether two places are one file."""
    if not (a.is_here and b.is_here):
        return a.is_here == b.is_here and a.path == b.path and a.system.equals(b.system)
    if STANDARD in (a.path, b.path):
        return False
    return Path(b.path).exists() and Path(a.path).exists() and os.path.samefile(a.path, b.path)


@contextlib.contextmanager
def open_output(place: Place) -> Iterator[BinaryIO]:
    """Open a file that gets its name when all of it is written; standard output is written as it comes.

    A file elsewhere is written under another name and moved then. What can be sought in, is.
    """
    if place.path == STANDARD and place.is_here:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if place.is_here:
        check_output(place.path)
        path = Path(place.path)
        with writing(place.path), atomic_file(path, suffix=own_suffix(path)) as file:
            yield file
        return
    temporary = f"{place.path}.{os.getpid()}.tmp"
    try:
        with writing(place.path), _stream_to(place.system, temporary) as stream:
            yield stream
        place.system.move(temporary, place.path)
    except BaseException:
        with contextlib.suppress(OSError):
            place.system.delete_file(temporary)
        raise


def _stream_to(system: Any, path: str) -> Any:
    try:
        return system.open_output_stream(path)
    except FileNotFoundError:  # stores of objects need no folders, others do
        system.create_dir(str(PurePosixPath(path).parent), recursive=True)
        return system.open_output_stream(path)


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Say which file could not be written, and that the one of before is still there."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        old = "; the old file is as it was" if Path(path).exists() else ""
        raise OSError(f"cannot write {path}: {one_line(error)}{old}") from error
