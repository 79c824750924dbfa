"""The table of docs/adapters.md: each call is made, and every adapter has a row."""

import re
from pathlib import Path

import pytest

import refocal
from refocal import adapters

TEXT = (Path(__file__).parents[1] / "docs" / "adapters.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| [^|]+ \| [^|]+ \| `(from_[^`]+)` \| ([^|]+) \|$", TEXT, flags=re.MULTILINE)


@pytest.mark.parametrize("call, objective", ROWS, ids=[call for call, _ in ROWS])
def test_rows_are_true(call, objective):
    if objective.startswith("none: "):
        with pytest.raises(ValueError, match=re.escape(objective.removeprefix("none: "))):
            eval(call, vars(adapters))
    else:
        assert eval(call, vars(adapters)) == eval(objective.strip("`"), vars(refocal))


def test_every_adapter_has_a_row():
    assert {call.partition("(")[0] for call, _ in ROWS} == set(adapters.__all__)
    table = [line for line in TEXT.splitlines() if line.startswith("| ")]
    assert len(ROWS) == len(table) - 1  # the head
