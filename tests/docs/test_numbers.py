"""Numbers of the documents that stand for many runs, counted again from what is stored."""

import json
import re
from pathlib import Path

from pages import DOCS, ROOT

SAID = re.compile(r"(\d+) of (\d+)\s+comparisons")


def test_how_often_a_temperature_has_the_smaller_error():
    summary = json.loads((ROOT / "results" / "tabular" / "summary.json").read_text(encoding="utf-8"))
    found = summary["claims"]["15"]["temperature_against_psi"]
    pages = [ROOT / "README.md", DOCS / "start/which-correction.md", DOCS / "explain/comparison.md"]
    for page in pages:
        (said,) = SAID.findall(Path(page).read_text(encoding="utf-8"))
        assert said == (str(found["smaller_ece_by_temperature"]), str(found["compared"]))


def test_the_stored_picture_is_that_of_the_first_page():
    """The calibration errors that the README says of the picture are those of the network that is drawn."""
    (errors,) = re.findall(
        r"calibration error (\d\.\d+) raw,\s+(\d\.\d+) after Psi", (ROOT / "README.md").read_text()
    )
    first = (DOCS / "start" / "first.md").read_text(encoding="utf-8")
    printed = re.findall(r"calibration error (\d\.\d+)$", first, flags=re.MULTILINE)
    assert [f"{float(error):.2f}" for error in errors] == printed
    for mode in ("light", "dark"):
        assert (DOCS / "images" / f"reliability-{mode}.svg").read_bytes().startswith(b"<?xml")
