"""Results as tables: HTML for a notebook, and data frames where pandas is installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from refocal.extras import needs


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """Return a table; every text is escaped, a float has four digits.

    Example:
        >>> html_table(["a<b"], [(0.25,)])
        '<table><tr><th>a&lt;b</th></tr><tr><td>0.2500</td></tr></table>'
    """
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(x)}</td>" for x in row) + "</tr>" for row in rows)
    return f"<table>{title}<tr>{head}</tr>{body}</table>"


def data_frame(columns: Mapping[str, Any]) -> Any:
    """Return a frame of pandas with these columns.

    Raises:
        ImportError: If pandas is missing; it says how to install it.
    """
    with needs("to_frame", "pandas"):
        import pandas
    return pandas.DataFrame(dict(columns))


def _cell(x: object) -> str:
    return escape(f"{x:.4f}" if isinstance(x, float) else str(x))
