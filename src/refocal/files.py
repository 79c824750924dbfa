"""Files and folders that are either whole or not there: the one way to write them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def write_atomic(path: Path, content: bytes, *, suffix: str = ".tmp") -> None:
    """Write a file so that a reader, or a crash at any moment, sees the old content or the new one.

    Args:
        path: The file.
        content: All of it.
        suffix: Of the temporary file beside it; different for writers of one path at the same time.
    """
    with atomic_file(path, suffix=suffix) as file:
        file.write(content)


@contextlib.contextmanager
def atomic_file(path: Path, *, suffix: str = ".tmp") -> Iterator[BinaryIO]:
    """Open a file that gets its name when all of it is written, and never if an error comes before.

    Args:
        path: The file.
        suffix: Of the temporary file beside it; see `write_atomic` and `own_suffix`.
    """
    temporary = path.with_name(path.name + suffix)
    try:
        with open(temporary, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # before the rename: the name must never point to missing data
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


@contextlib.contextmanager
def atomic_folder(path: Path, *, suffix: str = ".tmp") -> Iterator[Path]:
    """Make a folder that gets its name when all that is in it was written.

    Args:
        path: The folder; one that is there already must be empty.
        suffix: Of the temporary folder beside it.
    """
    temporary = path.with_name(path.name + suffix)
    try:
        temporary.mkdir()
        yield temporary
        os.replace(temporary, path)  # an empty folder is replaced, another one is not
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync_folder(path.parent)


def own_suffix(path: Path) -> str:
    """Return the suffix of this process's temporary file, and remove those of processes that were killed.

    A process of another machine that writes the same path may lose its temporary file by this; it then fails,
    and leaves no half of a file under the name.
    """
    for stale in path.parent.glob(f"{_escaped(path.name)}.*.tmp"):
        pid = stale.name[len(path.name) + 1 : -len(".tmp")]
        if pid.isdecimal() and not _is_running(int(pid)):
            shutil.rmtree(stale) if stale.is_dir() else stale.unlink(missing_ok=True)
    return f".{os.getpid()}.tmp"


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _is_running(pid: int) -> bool:
    if os.name == "nt":  # there, signal 0 would end the process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
