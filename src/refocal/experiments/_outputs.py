"""The files of a study: figures, tables and numbers, each written whole."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refocal.experiments._files import write_atomic
from refocal.plots import figure_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_outputs(out: str | os.PathLike[str], contents: Mapping[str, bytes]) -> list[Path]:
    """Write files into a folder, which is made if it is missing, and return their paths.

    Args:
        out: The folder.
        contents: What is in each file, by name. A file from before is replaced in one step.

    Raises:
        OSError: If the folder cannot be made or a file not be written; it says which.
    """
    folder = Path(out)
    path = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            path = folder / name
            write_atomic(path, content, suffix=f".{os.getpid()}.tmp")
    except OSError as error:
        raise OSError(f"cannot write {str(path)!r}: {error.strerror}") from error
    return [folder / name for name in contents]


def figure_files(name: str, figure: Figure) -> dict[str, bytes]:
    """Return a figure as a PNG for the screen and a PDF for print."""
    return {f"{name}.png": figure_bytes(figure, "png"), f"{name}.pdf": figure_bytes(figure, "pdf")}


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Return a CSV file; floats with 10 digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([f"{cell:.10g}" if isinstance(cell, float) else cell for cell in row])
    return text.getvalue().encode()


def json_bytes(value: Any) -> bytes:
    """Return a JSON file for people and machines: indented, without NaN."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
