"""Numbers of the documents that stand for many runs, counted again from what is stored."""

import json
import re
from pathlib import Path

import numpy as np
from pages import DOCS, ROOT

NOT_JUDGED = {"kmnist", "gas-drift", "w8a"}  # incomplete copies: results/tabular/README.md
SAID = re.compile(r"(\d+) of (\d+)\s+comparisons")


def test_how_often_a_temperature_has_the_smaller_error():
    ece = {}  # of each data set, model and gamma: (trial, method)
    methods = None
    for path in (ROOT / "results" / "tabular" / "runs").glob("*.json"):
        stored = json.loads(path.read_text(encoding="utf-8"))
        config, result = stored["config"], stored["result"]
        methods = result["methods"]
        if config["dataset"] in NOT_JUDGED:
            continue
        for i, objective in enumerate(config["objectives"]):
            key = config["dataset"], config["model"], objective["gamma"]
            ece.setdefault(key, []).extend(trial[i] for trial in result["metrics"]["ece"])
    focal = [np.array(rows, dtype=float).mean(axis=0) for (*_, gamma), rows in ece.items() if gamma > 0]
    psi, temperature = methods.index("psi"), methods.index("ts_nll")
    fitted = [row for row in focal if np.isfinite(row[temperature])]
    smaller = sum(row[temperature] < row[psi] for row in fitted)
    pages = [ROOT / "README.md", DOCS / "start/which-correction.md", DOCS / "explain/comparison.md"]
    for page in pages:
        (said,) = SAID.findall(Path(page).read_text(encoding="utf-8"))
        assert said == (str(smaller), str(len(fitted)))


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
