"""The first page of the results: its files are there, its counts are those of the summaries."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest

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
    group = groups["cifar10-s-resnet8-200-validation-0.0"]
    rows = [d for d in group["directions"] if d["finding"] == "TS_FL with Psi is better than Standard"]
    shows, trials = (sum(d[name] for d in rows) for name in ("shows", "trials"))
    (line,) = (
        line for line in TEXT.splitlines() if line.startswith("| TS_FL with Psi is better than Standard")
    )
    assert f"-->{shows} of {trials}<!--" in line
    within = sum(abs(cell["difference"]) <= 1 + 1e-9 for cell in group["errors"]["cells"])
    (line,) = (line for line in TEXT.splitlines() if line.startswith("| errors of the appendix"))
    assert f"-->{within} of {len(group['errors']['cells'])}<!--" in line


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
    assert f"| {len(results)} of {len(results)} hold |" in TEXT
    slips = theory.split("## Inside the proofs")[1].split("\n## ")[0].count("_slip_")
    assert f"; {slips} slips in the proofs" in TEXT


def test_what_was_not_run_is_said():
    groups = json.loads((FOLDER / "images" / "summary.json").read_text())["groups"].values()
    models = {group["config"]["model"] for group in groups}
    sets = {group["config"]["dataset"] for group in groups}
    assert ("best gamma grows with depth (ResNet-20, -44, -110) | **not run**" in TEXT) == (
        models == {"resnet8"}
    )
    assert ("| CIFAR-100 | **not run**" in TEXT) == (not any(name.startswith("cifar100") for name in sets))
