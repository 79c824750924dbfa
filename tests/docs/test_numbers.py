"""Numbers of the documents that stand for many runs, counted again from what is stored."""

import csv
import itertools
import json
import re
from pathlib import Path

from pages import DOCS, ROOT

SAID = re.compile(r"(\d+) of (\d+)\s+comparisons")


def test_how_often_a_temperature_has_the_smaller_nll():
    summary = json.loads((ROOT / "results" / "tabular" / "summary.json").read_text(encoding="utf-8"))
    found = summary["temperature_against_psi"]
    pages = [ROOT / "README.md", DOCS / "reproduce.md", ROOT / "results" / "tabular" / "README.md"]
    for page in [*pages, DOCS / "start/which-correction.md", DOCS / "explain/comparison.md"]:
        (said,) = SAID.findall(Path(page).read_text(encoding="utf-8"))
        assert said == (str(found["smaller"]), str(found["compared"]))


def test_what_the_ece_of_a_cross_fitted_temperature_is_worth():
    stored = json.loads((ROOT / "results" / "tabular" / "crossfit.json").read_text(encoding="utf-8"))
    text = " ".join((ROOT / "results" / "tabular" / "README.md").read_text(encoding="utf-8").split())
    for name, words in {
        "common_bins": "in bins of all rows in {} of {}",
        "by_halves": "in bins of each half in {}",
        "nll": "by the NLL in {}",
    }.items():
        counts = [of[name] for of in stored["temperature_below_posterior"].values()]
        assert words.format(sum(counts), len(counts) * stored["repeats"]) in text


def test_how_often_each_correction_helped_image_networks():
    """ResNet-8, a tenth of CIFAR-10, 200 epochs, gamma > 0, of every group; from the table of all runs."""
    tenths = ("cifar10-s-resnet8-200", "cifar10-resnet8-200-validation-0.0-precision-bfloat16-train_part-0.1")
    with open(ROOT / "results" / "images" / "measures.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["group"].startswith(tenths)]
    ece, nll = (
        {
            (row["paradigm"], row["link"], row["group"], row["gamma"], row["seed"]): float(row[metric])
            for row in rows
            if "train_size" not in row["group"] and float(row["gamma"]) > 0
        }
        for metric in ("fair_ece", "nll")
    )

    def helped(paradigm, link, before):
        counts = []
        for gamma, number in itertools.product(("1", "2", "3"), (ece, nll)):
            runs = [key[2:] for key in number if key[:2] == (paradigm, link) and key[3] == gamma]
            smaller = sum(number[paradigm, link, *run] < number[before, "raw", *run] for run in runs)
            counts.append(f"{smaller} of {len(runs)}")
        return " | ".join(counts)

    text = (DOCS / "start" / "which-correction.md").read_text(encoding="utf-8")
    for done, count in {
        "plain labels: Psi alone": helped("standard", "psi", "standard"),
        "plain labels: a temperature by the NLL": helped("ts_nll", "raw", "standard"),
        "plain labels: a temperature by the focal loss, then Psi": helped("ts_fl", "psi", "standard"),
        "label smoothing: Psi alone": helped("ls", "psi", "ls"),
    }.items():
        assert f"| {done} | {count} |" in text, (done, count)
    for paradigm in ("standard", "ls"):
        held_out = [key for key in ece if key[:2] == (paradigm, "raw") and key[2] == "cifar10-s-resnet8-200"]
        assert len(held_out) == 5


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
