"""What the documents promise: code blocks that run, with what they print and what their comments say.

A page is run from top to bottom in one namespace. What a ``python`` block prints stands in the ``text`` block
after it, word for word. A comment that stands behind an expression and begins with a value is its value, in
as many digits as are written: ``refocal.score_threshold(spec, 0.5)  # 0.399: the score that means 1/2``.
A page that needs packages outside the extra ``dev`` says so: ``<!-- needs: lightning, transformers -->``.
A block that a test of its own runs names it before: ``<!-- run by tests/boosting/test_boosting_ray.py -->``.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

FENCE = re.compile(r"^```([^`\n]*)\n(.*?)^```\n", flags=re.MULTILINE | re.DOTALL)
RUN_BY = re.compile(r"<!-- run by (\S+) -->\s*\Z")
NEEDS = re.compile(r"<!-- needs: (.*?) -->")


@dataclass(frozen=True)
class Block:
    """One block of Python: its code, what it prints, its first line, and the test that runs it instead."""

    code: str
    prints: str
    line: int
    run_by: str | None


def name_of(page: Path) -> str:
    """Return the path of a page as the documents write it."""
    return page.relative_to(ROOT).as_posix()


def needs(page: Path) -> list[str]:
    """Return the modules that a page needs beyond the extra ``dev``."""
    found = NEEDS.search(page.read_text(encoding="utf-8"))
    return found[1].split(", ") if found else []


def blocks(text: str) -> list[Block]:
    """Return the blocks of Python of a page, each with the output that follows it."""
    fences = list(FENCE.finditer(text))
    found = []
    for i, fence in enumerate(fences):
        if fence[1] != "python":
            continue
        after = fences[i + 1] if i + 1 < len(fences) else None
        follows = after and after[1] == "text" and not text[fence.end() : after.start()].strip()
        elsewhere = RUN_BY.search(text[: fence.start()])
        line = text.count("\n", 0, fence.start(2)) + 1
        found.append(Block(fence[2], after[2] if follows else "", line, elsewhere and elsewhere[1]))
    return found


def run(page: Path) -> int:
    """Run a page, compare what it prints and says, and return how many values were compared."""
    names: dict[str, Any] = {"__name__": "__main__"}
    compared = 0
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.run_by:
            assert (ROOT / block.run_by).exists(), block.run_by
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            compared += run_block(block, name_of(page), names)
        assert printed.getvalue() == block.prints, f"{name_of(page)}, line {block.line}"
        compared += bool(block.prints)
    return compared


def run_block(block: Block, name: str, names: dict[str, Any]) -> int:
    """Run one block statement by statement, and compare values with the comments behind them."""
    tree = ast.parse("\n" * (block.line - 1) + block.code, name)
    said = comments("\n" * (block.line - 1) + block.code)
    compared = 0
    for node in tree.body:
        if not isinstance(node, ast.Expr):
            exec(compile(ast.Module([node], []), name, "exec"), names)
            continue
        value = eval(compile(ast.Expression(node.value), name, "eval"), names)
        expected = value_said(said.get(node.end_lineno or 0, ""))
        if expected and not ast.unparse(node).startswith("print("):  # whose comment is of what it prints
            compare(value, expected, f"{name}, line {node.lineno}")
            compared += 1
    return compared


def comments(code: str) -> dict[int, str]:
    """Return the comments of some code by their lines."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def value_said(comment: str) -> str:
    """Return the value that a comment begins with, as it is written, or nothing."""
    for end in [m.start() for m in re.finditer("[;:]", comment)] + [len(comment)]:
        with contextlib.suppress(ValueError, SyntaxError):
            ast.literal_eval(comment[:end].strip())
            return comment[:end].strip()
    return ""


def compare(value: Any, said: str, where: str) -> None:
    """Compare a value with what is said of it, numbers in the digits that are written."""
    expected = ast.literal_eval(said)
    if not isinstance(expected, (int, float, tuple, list)) or isinstance(expected, bool):
        assert value == expected, where
        return
    written = re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", said)
    got = np.asarray(value, dtype=float).ravel()
    assert len(got) == len(written), where
    for number, text in zip(got, written, strict=True):
        mantissa, _, exponent = text.partition("e")
        digit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        assert abs(number - float(text)) <= 0.5001 * digit, f"{where}: {number} is not {text}"
