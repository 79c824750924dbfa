"""The first page of the results: its files are there, its counts are those of the summaries."""

import csv
import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest

from refocal.experiments.tabular.explained import TRIED

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "results"
TEXT = (FOLDER / "README.md").read_text(encoding="utf-8")

spec = importlib.util.spec_from_file_location("page", FOLDER / "page.py")
page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(page)


def test_every_count_is_that_of_its_summary():
    found = list(page.COUNT.finditer(TEXT))
    assert len(found) == TEXT.count("<!-- end -->") > 30
    for match in found:
        assert match["text"] == page.said(match["file"], match["place"], match["form"]), match[0]
    assert page.updated(TEXT) == TEXT


def test_counts_in_words_of_their_own():
    """Not by the code of page.py."""
    judged = json.loads((FOLDER / "tabular" / "summary.json").read_text())["judgement"]
    for bins in ("10", "15"):
        ece = judged[bins]["ece"]
        assert f">{ece['strict']} of {ece['cells']}<" in TEXT
    groups = json.loads((FOLDER / "images" / "summary.json").read_text())["groups"]
    column = 1 + list(page.COLUMNS).index("held out")
    group = groups["cifar10-s-resnet8-200"]

    def cell(start):
        (line,) = (line for line in TEXT.splitlines() if line.startswith(f"| {start}"))
        return line.split(" | ")[column].strip(" |*")

    rows = [d for d in group["directions"] if d["finding"] == "TS_FL with Psi is better than Standard"]
    assert cell("TS_FL with Psi is better than") == (
        f"{sum(d['shows'] for d in rows)} of {sum(d['trials'] for d in rows)}"
    )
    within = sum(abs(cell["difference"]) <= 1 + 1e-9 for cell in group["errors"]["cells"])
    assert cell("errors of the appendix") == f"{within} of {len(group['errors']['cells'])}"
    with open(FOLDER / "images" / "measures.csv", newline="", encoding="utf-8") as file:
        measured = [row for row in csv.DictReader(file) if row["group"] == "cifar10-s-resnet8-200"]
    ece = {
        (row["link"], row["gamma"], row["seed"]): float(row["ece"])
        for row in measured
        if row["paradigm"] == "standard" and float(row["gamma"]) > 0
    }
    pairs = {(gamma, seed) for _, gamma, seed in ece}
    worse = sum(ece["psi", *pair] > ece["raw", *pair] for pair in pairs)
    assert cell("Psi alone worsens Standard") == f"{worse} of {len(pairs)}"


def test_the_difference_of_bins_is_that_of_the_table():
    rows = [row.split(",") for row in (FOLDER / "images" / "bins.csv").read_text().splitlines()]
    ten, fifteen = rows[0].index("bins_10"), rows[0].index("bins_15")
    gaps = np.array([100 * (float(row[fifteen]) - float(row[ten])) for row in rows[1:]])
    for which, number in (("mean", gaps.mean()), ("min", gaps.min()), ("max", gaps.max())):
        assert f"15 bins/{which}; +.2f -->{number:+.2f}<" in TEXT
    assert 0 < gaps.mean() < 0.1  # as docs/reproduce-images.md says


def test_a_count_that_is_wrong_is_found_and_mended():
    wrong = "<!-- tabular/summary.json; runs; - -->98<!-- end --> runs"
    assert page.updated(wrong) == "<!-- tabular/summary.json; runs; - -->99<!-- end --> runs"
    with pytest.raises(KeyError):
        page.updated("<!-- tabular/summary.json; nothing; - -->98<!-- end -->")


def test_files_and_commands_are_there():
    links = re.findall(r"\]\(([^)#]+)", TEXT)
    assert len(links) > 20
    for link in links:
        assert (FOLDER / link).exists(), link
    for path in re.findall(r"(?:results|tests)/[\w/]+\.py", TEXT):
        assert (ROOT / path).is_file(), path
    for study in re.findall(r"refocal reproduce (\w+)", TEXT):
        assert (FOLDER / study).is_dir(), study


def test_sections_of_other_pages_are_there():
    for path, section in re.findall(r"\]\(([^)#]+)#([\w-]+)\)", TEXT):
        titles = re.findall(r"^#+ (.*)$", (FOLDER / path).read_text(encoding="utf-8"), re.M)
        assert section in {re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles}, section


def test_theory_counts_are_those_of_its_page():
    theory = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    table = theory.split("## The results and their tests")[1].split("\n## ")[0]
    results = set(re.findall(r"^\| ((?:Thm|Prop|Cor|Lemma)\.? \d+)", table, re.M))
    assert f"| no counterexample to any of the {len(results)} |" in TEXT
    slips = theory.split("## Inside the proofs")[1].split("\n## ")[0].count("_slip_")
    assert f"; {slips} slips in the proofs" in TEXT


def test_what_was_not_run_is_said():
    summary = json.loads((FOLDER / "images" / "summary.json").read_text())
    groups = summary["groups"].values()
    models = {group["config"]["model"] for group in groups}
    sets = {group["config"]["dataset"] for group in groups}
    assert ("best gamma grows with depth (ResNet-20, -44, -110) | **not run**" in TEXT) == (
        models == {"resnet8"}
    )
    by_size = [trend for trend in summary["trends"].values() if trend["what"] == "training images"]
    assert ("Psi helps less with fewer data | **not run**" in TEXT) == (not by_size)
    assert ("| CIFAR-100 | **not run**" in TEXT) == (not any(name.startswith("cifar100") for name in sets))


def test_the_tabular_page_has_the_counts_of_its_summary():
    page_text = (FOLDER / "tabular" / "README.md").read_text(encoding="utf-8")
    judged = json.loads((FOLDER / "tabular" / "summary.json").read_text())["judgement"]
    fifteen, ten = judged["15"], judged["10"]
    for metric in ("ece", "error"):
        told = [f"{of[metric]['strict']} of {of[metric]['cells']}" for of in (fifteen, ten)]
        assert f"| {metric} cells, strict | {told[0]} | {told[1]} |" in page_text
        told = [f"{of[metric]['z_mean']}, {of[metric]['z_rms']}" for of in (fifteen, ten)]
        assert f"| {metric} cells, z: mean, rms | {told[0]} | {told[1]} |" in page_text
    share = fifteen["ece"]["strict"] / fifteen["ece"]["cells"]
    assert f"{share:.1%} of the ECE cells".replace("%", " %") in page_text
    assert share >= 0.95
    misses = [(cell["dataset"], cell["model"]) for cell in fifteen["not_strict"] if cell["metric"] == "ece"]
    assert sum(name == "usps" for name, _ in misses) == 6
    assert misses.count(("adult", "mlp")) == 6
    assert f"12 of the {len(misses)} misses" in page_text
    scaling = (FOLDER / "tabular" / "search.md").read_text(encoding="utf-8").split("## The scaling of")[1]
    (line,) = (line for line in scaling.splitlines() if line.startswith("| all |"))
    _, _, standard, standard_z, _, _, whole, whole_z, *_ = (x.strip() for x in line.split("|")[1:-1])
    assert f"| all 24 tables | {standard}, {standard_z} | {whole}, {whole_z} |" in page_text
    assert f"{standard} by the training part, {whole.split()[0]} by all rows" in TEXT


def test_explanations_are_those_of_the_versions():
    with open(FOLDER / "tabular" / "versions.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    def strict(dataset, version, model, metric="ece"):
        of = [r for r in rows if (r["dataset"], r["version"], r["model"]) == (dataset, version, model)]
        found = [r["strict"] == "1" for r in of if r["metric"] == metric]
        assert found
        return sum(found)

    assert [strict("USPS", "class 6", model) for model in ("linear", "mlp")] == [6, 7]
    fitting = [k for k in range(10) if strict("USPS", f"class {k}", "linear", "error") == 4]
    assert fitting == [0, 6]
    assert [strict("Adult", "five levels, complete rows", model) for model in ("linear", "mlp")] == [7, 7]
    errors = [strict("Adult", "five levels, complete rows", model, "error") for model in ("linear", "mlp")]
    assert sum(errors) == 6
    assert strict("Adult", "numbers, complete rows", "linear", "error") == 4
    assert strict("Adult", "numbers, complete rows", "mlp") == 3
    second = "waveform-21, 21 features, class 1"
    assert sum(strict("Waveform", second, model, "error") for model in ("linear", "mlp")) == 8
    assert sum(strict("Waveform", second, model) for model in ("linear", "mlp")) == 11
    for digit, z in ((0, 2.1), (6, 1.6)):
        of = [
            r for r in rows if (r["dataset"], r["version"], r["metric"]) == ("USPS", f"class {digit}", "ece")
        ]
        assert len(of) == 14
        assert np.sqrt(np.mean([float(r["z"]) ** 2 for r in of])) == pytest.approx(z, abs=0.05)
    listed = (FOLDER / "tabular" / "tables.md").read_text(encoding="utf-8")
    assert all(text in listed for text in TRIED.values())
    two = [
        float(r["mean"])
        for r in rows
        if r["version"] in ("waveform-21, 21 features, class 1", "waveform, 21 features, class 1")
        and (r["model"], r["metric"], r["method"]) == ("linear", "error", "CE")
    ]
    assert abs(two[0] - two[1]) == pytest.approx(0.8, abs=0.05)
