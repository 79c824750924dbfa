"""What studies put into files, and how they write them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from refocal.files import write_atomic
from refocal.plots import FEWEST, SMALL, figure_bytes, new_figure, plot_boxes, share_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


class BoxPanel(NamedTuple):
    """One axes of `box_figure`: series and the paper's values as for `plot_boxes`."""

    title: str
    series: Mapping[str, Mapping[str, Sequence[float]]]
    published: Mapping[str, Mapping[str, float]] = {}
    from_zero: bool = True


def box_figure(
    panels: Sequence[BoxPanel], columns: int, *, xlabel: str = "", ylabel: str = "", note: str = ""
) -> Figure:
    """Return the numbers over trials in a grid of at most so many columns, with one legend for all.

    Under the panels stands the note, and how many trials there are.

    Raises:
        ValueError: If there is no panel: an empty figure says nothing.
    """
    if not panels:
        raise ValueError("panels must hold at least one, got none")
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(2.9 * columns, 2.2 * rows + 0.35)
    axes = figure.subplots(rows, columns, squeeze=False)
    drawn = axes.flat[: len(panels)]
    for ax, panel in zip(drawn, panels, strict=True):
        texts: dict[str, Any] = {"xlabel": xlabel, "ylabel": ylabel, "title": panel.title}
        texts["from_zero"] = panel.from_zero
        plot_boxes(panel.series, published=panel.published, ax=ax, legend=False, **texts)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    share_legend(drawn)
    put_caption(figure, f"{note}\n{trials_caption(panels)}")
    return figure


def put_caption(figure: Figure, text: str) -> None:
    """Put a text under a figure, in lines that it has room for."""
    letters = int(figure.get_figwidth() / (0.52 * SMALL / 72))  # a letter is about half as wide as it is high
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, letters)]
    figure.supxlabel("\n".join(lines), fontsize=SMALL)


def trials_caption(panels: Iterable[BoxPanel]) -> str:
    """Say how many trials panels have, and what is drawn of them.

    Example:
        >>> trials_caption([BoxPanel("ECE", {"raw": {"0": [1.0, 2.0], "1": [3.0]}})])
        'n = 1 to 2 trials; every trial is a point'
        >>> trials_caption([BoxPanel("ECE", {"raw": {"0": [1.0, 2.0, 3.0, 4.0, 5.0]}})])
        'n = 5 trials; box: middle half and median; whiskers: trials within 1.5 box lengths; points: others'
    """
    counts = {
        len(numbers) for panel in panels for groups in panel.series.values() for numbers in groups.values()
    }
    least, most = min(counts), max(counts)
    n = f"n = {least}" if least == most else f"n = {least} to {most}"
    drawn = "box: middle half and median; whiskers: trials within 1.5 box lengths; points: others"
    if least < FEWEST:
        drawn += f"; of fewer than {FEWEST} trials each is a point"
    drawn = "every trial is a point" if most < FEWEST else drawn
    return f"{n} trial{'s' if most > 1 else ''}; {drawn}"


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


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a table in Markdown.

    Example:
        >>> print(*markdown_table(["gamma", "ECE"], [(0, "0.02"), (2, "0.11")]), sep="\\n")
        | gamma | ECE |
        |---|---|
        | 0 | 0.02 |
        | 2 | 0.11 |
    """
    first, *rest = (f"| {' | '.join(map(str, row))} |" for row in [header, *rows])
    return [first, "|" + "---|" * len(header), *rest]


def published_numbers(metric: str | None = None) -> list[dict[str, str]]:
    """Return the rows of published.csv, the paper's tables, or those of one metric: "ece" or "error"."""
    text = resources.files("refocal.experiments").joinpath("published.csv").read_text(encoding="utf-8")
    return [row for row in csv.DictReader(text.splitlines()) if metric in (None, row["metric"])]
