"""Numbers of the documents that stand for many runs, counted again from what is stored."""

import csv
import json
import re
from pathlib import Path

import numpy as np
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
    """ResNet-8, CIFAR-10-s, 200 epochs, gamma > 0, of every group; counted from the table of all runs."""
    with open(ROOT / "results" / "images" / "measures.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["group"].startswith("cifar10-s-resnet8-200")]
    ece = {
        (row["paradigm"], row["link"], row["group"], row["gamma"], row["seed"]): float(row["fair_ece"])
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
    names = ("-validation-0.0-precision-bfloat16", "-validation-0.0", "", "-validation-0.01")
    whole, narrow, held_out, nearly = (
        summary["groups"][f"cifar10-s-resnet8-200{name}"]["errors"]["cells"] for name in names
    )
    for cells, words in (
        (whole, "by {:.2f} points in the mean"),
        (narrow, "one trial, by {:.2f}"),
        (held_out, "held out by {:.2f}"),
    ):
        gaps = [cell["difference"] for cell in cells]
        assert min(gaps) > 0
        assert f"{words.format(np.mean(gaps))} ({min(gaps):.2f} to {max(gaps):.2f}" in text
    above, below = (cell["difference"] for cell in nearly)
    assert f"are {above:.2f} above and {-below:.2f} below" in text
    held = {(cell["paradigm"], cell["gamma"]): cell["mean"] for cell in held_out}
    costs = [held[cell["paradigm"], cell["gamma"]] - cell["mean"] for cell in narrow]
    assert f"costs {np.mean(costs):.2f} points (float32, the seven settings" in text
    assert len(costs) == 7
    deep = summary["groups"]["cifar10-s-resnet20-200-validation-0.0-precision-bfloat16"]["errors"]["cells"]
    *first, last = (f"{cell['difference']:.2f}" for cell in deep)
    assert f"is above by {', '.join(first)} and {last} points with gamma 0 to 3" in text
    deep = summary["groups"]["cifar10-s-resnet44-200-validation-0.0-precision-bfloat16"]["errors"]["cells"]
    errors, gaps = (" and ".join(f"{cell[name]:.2f}" for cell in deep) for name in ("mean", "difference"))
    assert f"{errors} % with gamma 0 and 2, above by {gaps}" in text
    wanted = {
        "precision": "bfloat16",
        "paradigm": "standard",
        "seed": 0,
        "train_size": None,
        "shortcuts": None,
    }
    study = {}
    for path in (ROOT / "results" / "images" / "runs").glob("*.json"):
        run = json.loads(path.read_text(encoding="utf-8"))
        if all(run["config"].get(name) == value for name, value in wanted.items()):
            study[run["config"]["model"], run["config"]["gamma"]] = run["result"]
    losses = (study[f"resnet{depth}", 0.0]["train_loss"] for depth in (8, 20, 44))
    (eight, _), (twenty, mid), (first, late) = ([f"{some[i]:.2f}" for i in (0, 79)] for some in losses)
    assert f"the first epoch is {first} (gamma 0;" in text
    assert (
        f"ResNet-8 {eight}, ResNet-20 {twenty}), and after 80 epochs it is {late}, that of ResNet-20 {mid}"
        in text
    )
    stored = json.loads((ROOT / "results" / "images" / "networks.json").read_text(encoding="utf-8"))
    plain, two = (
        f"{run['error']:.2f}"
        for run in stored
        if run["start"] == "inputs" and run["shortcuts"] == "convolution"
    )
    assert f"are {plain} instead of 26.33 % (gamma 0) and {two} instead of 27.36 % (gamma 2)" in text
    for run in (run for run in stored if run["start"] == "outputs"):
        assert (
            f" {run['error']:.2f} instead of {study[run['model'], run['gamma']]['error']:.2%}".replace(
                "%", " % ("
            )
            in text
        )
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
