"""Draw which proof of the paper uses which result, from the table in docs/theory.md.

    python results/theory/dependencies.py        # writes dependencies.png and .pdf beside this file

An arrow goes from a result to the proof that uses it, as in the paper's figure; a dashed one is used without
being said.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from refocal.experiments.files import figure_files, write_outputs
from refocal.plots import NORMAL, SMALL, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"
TITLE = "## Which proof uses what"
COLORS = {"Lemma": "#E4E4E4", "Thm.": "#D3E7F3", "Prop.": "#DDF0E8", "Cor.": "#F9E0D0", "Alt-Cor.": "#FFFFFF"}
"""Of the boxes, by the kind of result."""
STRETCH = np.array([1.67, 1.17])
"""Inches for a step to the right, and for one upwards, about."""
ROOM = np.array([0.27, 0.18])
"""Half of a box and a little, in steps."""


class Uses(NamedTuple):
    """The results that a proof uses: those that it names, and those that it does not."""

    named: tuple[str, ...]
    unnamed: tuple[str, ...]


def read_table(text: str) -> dict[str, Uses]:
    """Return what each proof uses, from the text of docs/theory.md.

    Raises:
        ValueError: If a proof uses a result that has no row.
    """
    section = text.split(TITLE, 1)[1].split("\n## ", 1)[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*$", section, re.M)
    ]

    def names(cell: str) -> tuple[str, ...]:
        return () if cell == "-" else tuple(name.strip() for name in cell.split(","))

    table = {name: Uses(names(named), names(unnamed)) for name, named, unnamed, *_ in rows[2:]}
    for name, uses in table.items():
        for other in (*uses.named, *uses.unnamed):
            if other not in table:
                raise ValueError(f"{TITLE!r} must have a row for {other!r}, which {name!r} uses")
    return table


def depths(table: Mapping[str, Uses]) -> dict[str, int]:
    """Return the length of the longest chain of proofs below each result.

    Raises:
        ValueError: If a proof uses itself, through others.
    """
    found: dict[str, int] = {}

    def depth(name: str, below: tuple[str, ...] = ()) -> int:
        if name in below:
            raise ValueError(f"{TITLE!r} has a circle: {' <- '.join((*below, name))}")
        if name not in found:
            uses = (*table[name].named, *table[name].unnamed)
            found[name] = 1 + max((depth(other, (*below, name)) for other in uses), default=-1)
        return found[name]

    return {name: depth(name) for name in table}


def places(table: Mapping[str, Uses]) -> dict[str, tuple[float, float]]:
    """Return where each box stands: a column for each depth, each column around the middle."""
    columns: dict[int, list[str]] = {}
    for name, depth in depths(table).items():
        columns.setdefault(depth, []).append(name)
    return {
        name: (float(depth), (len(names) - 1) / 2 - i)
        for depth, names in columns.items()
        for i, name in enumerate(names)
    }


def bend(where: Mapping[str, tuple[float, float]], start: str, end: str) -> float:
    """Return how much an arrow has to bend, as matplotlib counts it, so that it crosses no other box.

    Raises:
        ValueError: If every bend that is tried crosses one.
    """
    others = np.array([place for name, place in where.items() if name not in (start, end)])
    first, last = np.array(where[start]), np.array(where[end])
    across = (last - first) * STRETCH
    t = np.linspace(0, 1, 50)[:, None]
    for rad in (0.0, -0.2, 0.2, -0.35, 0.35):
        middle = (first + last) / 2 + rad * np.array([across[1], -across[0]]) / STRETCH
        curve = (1 - t) ** 2 * first + 2 * t * (1 - t) * middle + t**2 * last
        if not (np.abs(curve[:, None] - others) < ROOM).all(axis=2).any():
            return rad
    raise ValueError(f"no arrow from {start} to {end} keeps clear of the other boxes")


def draw(table: Mapping[str, Uses]) -> Figure:
    """Return the figure."""
    where = places(table)
    figure = new_figure(10.5, 5.2)
    ax = figure.subplots()
    ax.set_axis_off()
    boxes = {
        name: ax.text(
            *where[name],
            name,
            ha="center",
            va="center",
            fontsize=NORMAL,
            bbox={"boxstyle": "round,pad=0.5", "facecolor": COLORS[name.split()[0]], "edgecolor": "black"},
            zorder=3,
        )
        for name in table
    }
    for name, uses in table.items():
        for other in (*uses.named, *uses.unnamed):
            look: dict[str, Any] = {
                "arrowstyle": "-|>",
                "linestyle": "--" if other in uses.unnamed else "-",
                "connectionstyle": f"arc3,rad={bend(where, other, name)}",
                "patchA": boxes[other].get_bbox_patch(),
                "patchB": boxes[name].get_bbox_patch(),
                "color": "0.3",
            }
            ax.annotate("", where[name], where[other], arrowprops=look)
    xs, ys = zip(*where.values(), strict=True)
    ax.set_xlim(min(xs) - 0.6, max(xs) + 0.6)
    ax.set_ylim(min(ys) - 0.6, max(ys) + 0.6)
    figure.supxlabel("A -> B: the proof of B uses A; dashed: without saying so", fontsize=SMALL)
    return figure


def main() -> None:
    """Draw the table of the page into a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", default=Path(__file__).parent, type=Path)
    args = parser.parse_args()
    figure = draw(read_table(PAGE.read_text(encoding="utf-8")))
    print(*write_outputs(args.out, figure_files("dependencies", figure)), sep="\n")


if __name__ == "__main__":
    main()
