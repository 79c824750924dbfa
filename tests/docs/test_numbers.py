"""Numbers of the documents that stand for many runs, counted again from what is stored."""

import csv
import json
import re
from pathlib import Path

import numpy as np
from pages import DOCS, ROOT
from scipy.stats import f

SAID = re.compile(r"(\d+) of (\d+)\s+comparisons")


def test_how_often_a_temperature_has_the_smaller_error():
    summary = json.loads((ROOT / "results" / "tabular" / "summary.json").read_text(encoding="utf-8"))
    found = summary["claims"]["15"]["temperature_against_psi"]
    pages = [ROOT / "README.md", DOCS / "start/which-correction.md", DOCS / "explain/comparison.md"]
    for page in pages:
        (said,) = SAID.findall(Path(page).read_text(encoding="utf-8"))
        assert said == (str(found["smaller_ece_by_temperature"]), str(found["compared"]))


def test_how_often_each_correction_helped_image_networks():
    """ResNet-8, CIFAR-10-s, 200 epochs, gamma > 0, of every group; counted from the table of all runs."""
    with open(ROOT / "results" / "images" / "measures.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["group"].startswith("cifar10-s-resnet8-200")]
    ece = {
        (row["paradigm"], row["link"], row["group"], row["gamma"], row["seed"]): float(row["ece"])
        for row in rows
        if "train_size" not in row["group"] and float(row["gamma"]) > 0
    }

    def helped(paradigm, link, before):
        runs = [key[2:] for key in ece if key[:2] == (paradigm, link)]
        return f"{sum(ece[paradigm, link, *run] < ece[before, 'raw', *run] for run in runs)} of {len(runs)}"

    text = (DOCS / "start" / "which-correction.md").read_text(encoding="utf-8")
    for done, count in {
        "plain labels: Psi alone": helped("standard", "psi", "standard"),
        "plain labels: a temperature by the NLL": helped("ts_nll", "raw", "standard"),
        "plain labels: a temperature by the focal loss, then Psi": helped("ts_fl", "psi", "standard"),
        "label smoothing: Psi alone": helped("ls", "psi", "ls"),
    }.items():
        assert f"| {done} | {count} |" in text, (done, count)


def test_how_far_errors_of_images_are_above_the_published_ones():
    summary = json.loads((ROOT / "results" / "images" / "summary.json").read_text(encoding="utf-8"))
    text = " ".join((DOCS / "reproduce-images.md").read_text(encoding="utf-8").split())
    whole, held_out = (
        summary["groups"][f"cifar10-s-resnet8-200{name}"]["errors"]["cells"]
        for name in ("-validation-0.0-precision-bfloat16", "")
    )
    for cells, words in ((whole, "by {:.2f} points in the mean"), (held_out, "held out by {:.2f}")):
        gaps = [cell["difference"] for cell in cells]
        assert f"{words.format(np.mean(gaps))} ({min(gaps):.2f} to {max(gaps):.2f}" in text
    ours, published = (np.sqrt(np.mean([cell[sd] ** 2 for cell in whole])) for sd in ("sd", "published_sd"))
    chance = f.sf((published / ours) ** 2, 8 * 9, sum(cell["trials"] - 1 for cell in whole))
    assert f"have the rms {ours:.2f}, the published ones {published:.2f}, which chance alone" in text
    assert f"gives in {100 * chance:.0f} % (F test)" in text
    draws = json.loads((ROOT / "results" / "images" / "subset.json").read_text(encoding="utf-8"))
    told = (
        f"{draws['stored_draw']:.1f} % with the stored draw and {draws['mean']:.1f} % (SD {draws['sd']:.1f})"
    )
    assert f"{told} with {draws['draws']} others, and none" in text
    assert draws["easier_draws"] == draws["draws"]


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
