"""The figure of the proofs is that of the table in docs/theory.md."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from PIL import Image

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "results" / "theory" / "dependencies.py"

spec = importlib.util.spec_from_file_location("dependencies", SCRIPT)
dependencies = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dependencies)

PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
TABLE = dependencies.read_table(PAGE)


def test_every_result_of_the_page_has_a_row():
    """The paper's example: Thm. 3 is proved by Thm. 11 and Lemma 14."""
    section = PAGE.split("## The results and their tests")[1].split("\n## ")[0]
    named = set(re.findall(r"^\| ((?:Thm|Prop|Cor|Lemma)\.? \d+)", section, re.M))
    assert set(TABLE) == named | {"Alt-Cor. 9", "Alt-Cor. 10"}
    assert TABLE["Thm. 3"].named == ("Thm. 11", "Lemma 14")
    assert TABLE["Thm. 11"] == ((), ("Lemma 14",))


def test_a_proof_stands_behind_all_that_it_uses():
    depths = dependencies.depths(TABLE)
    assert (depths["Lemma 13"], depths["Lemma 14"]) == (0, 0)
    for name, uses in TABLE.items():
        assert all(depths[other] < depths[name] for other in (*uses.named, *uses.unnamed))


def test_the_figure_has_a_box_for_each_result_and_an_arrow_for_each_use():
    (ax,) = dependencies.draw(TABLE).axes
    texts = [text for text in ax.texts if text.get_text()]
    assert [text.get_text() for text in texts] == list(TABLE)
    assert len({text.get_position() for text in texts}) == len(TABLE)
    where = {text.get_position(): text.get_text() for text in texts}
    arrows = [text for text in ax.texts if not text.get_text()]
    drawn = {(where[a.xyann], where[a.xy], a.arrow_patch.get_linestyle()) for a in arrows}
    expected = {(other, name, "-") for name, uses in TABLE.items() for other in uses.named}
    expected |= {(other, name, "--") for name, uses in TABLE.items() for other in uses.unnamed}
    assert drawn == expected


def test_a_table_that_cannot_be_drawn():
    head = f"{dependencies.TITLE}\n\n| result | its proof uses | and, unsaid |\n|---|---|---|\n"
    with pytest.raises(ValueError, match=r"must have a row for 'Lemma 1', which 'Thm. 2' uses"):
        dependencies.read_table(f"{head}| Thm. 2 | Lemma 1 | - |\n")
    circle = dependencies.read_table(f"{head}| Thm. 1 | Thm. 2 | - |\n| Thm. 2 | - | Thm. 1 |\n")
    with pytest.raises(ValueError, match=r"has a circle: Thm. 1 <- Thm. 2 <- Thm. 1$"):
        dependencies.depths(circle)


@pytest.mark.slow
def test_the_stored_figure_is_that_of_the_page(tmp_path):
    """Pixel by pixel, by the matplotlib that drew it: another one may place a letter otherwise."""
    command = [sys.executable, SCRIPT, "--out", tmp_path]
    paths = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [Path(path).name for path in paths] == ["dependencies.png", "dependencies.pdf"]
    drawn, stored = (Path(folder) / "dependencies.png" for folder in (tmp_path, SCRIPT.parent))
    made_by = [Image.open(path).text["Software"] for path in (drawn, stored)]
    if made_by[0] != made_by[1]:
        pytest.skip(f"drawn with {made_by[1]}, here is {made_by[0]}")
    assert np.array_equal(imread(drawn), imread(stored))


def test_every_slip_has_its_test():
    section = PAGE.split("## Inside the proofs")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) == 13
    assert "Three of the thirteen" in (ROOT / "docs" / "explain" / "findings.md").read_text(encoding="utf-8")
    tests = set(re.findall(r"^def (test_\w+)", (ROOT / "tests" / "test_proofs.py").read_text(), re.M))
    for row in rows:
        (name,) = re.findall(r"`(\w+)` \|$", row)
        assert f"test_{name}" in tests
    listed = {f"test_{name}" for name in re.findall(r"`(\w+)` \|$", section, re.M)}
    assert {name for name in tests if "_slip_" in name} == listed
