"""Files that are either whole or not there: the one way to write them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomic(path: Path, content: bytes, *, suffix: str = ".tmp") -> None:
    """Write a file so that a reader, or a crash at any moment, sees the old content or the new one.

    Args:
        path: The file.
        content: All of it.
        suffix: Of the temporary file beside it; different for writers of one path at the same time.
    """
    temporary = path.with_name(path.name + suffix)
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # before the rename: the name must never point to missing data
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
