"""`refocal report`: files in, one page out."""

from __future__ import annotations

import json

import numpy as np
import pytest

import refocal
from refocal.cli import main

pa = pytest.importorskip("pyarrow")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of three kinds of scores, each those of a minimiser of its focal loss."""
    from pyarrow import csv, parquet

    folder, rng = tmp_path_factory.mktemp("report"), np.random.default_rng(0)
    eta = rng.dirichlet([0.5] * 3, size=1200)
    y = (rng.random((1200, 1)) > eta.cumsum(axis=1)).sum(axis=1)
    z = refocal.Focal(2.0).logits(eta)
    table = pa.table({f"logit_{c}": z[:, i] for i, c in enumerate("abc")} | {"y": np.array(list("abc"))[y]})
    parquet.write_table(table, folder / "first.parquet")
    csv.write_csv(table.slice(0, 600), folder / "second.csv")
    spec = refocal.SigmoidFocal()
    p = rng.beta(0.5, 2.0, size=(1200, 3))
    one = (rng.random(p.shape) < p).astype(int)
    z = spec.logits(p)
    names = ["x", "y", "<b>"]
    columns = {f"z_{n}": z[:, i] for i, n in enumerate(names)} | {
        f"l_{n}": one[:, i] for i, n in enumerate(names)
    }
    parquet.write_table(pa.table(columns), folder / "labels.parquet")
    csv.write_csv(pa.table({"score": 1 / (1 + np.exp(-z[:, 0])), "hit": one[:, 0]}), folder / "binary.csv")
    return folder


CLASSES = ["--scores", "logit_*", "--logits", "--label", "y", "--gamma", "2"]
SIGMOID = ["--gamma", "2", "--alpha", "0.25", "--sigmoid"]


@pytest.mark.parametrize(
    ("words", "task"),
    [
        (["first.parquet", *CLASSES], "multiclass"),
        (["binary.csv", "--scores", "score", "--probs", "--label", "hit", *SIGMOID], "binary"),
        (["labels.parquet", "--scores", "z_*", "--logits", "--label", "l_*", *SIGMOID], "multilabel"),
    ],
)
def test_the_page_is_that_of_the_library(folder, monkeypatch, capsys, words, task):
    monkeypatch.chdir(folder)
    assert main(["report", *words, "-o", "page.html", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["task"] == task
    assert found["n_rows"] == 1200
    assert found["selection"]["winner"] == "psi"
    page = (folder / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "refocal apply" in page
    assert task != "multilabel" or ("&lt;b&gt;" in page and "<b>" not in page)


def test_several_files_make_one_page(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["report", "first.parquet", "second.csv", *CLASSES, "-o", "both.html"]) == 0
    out = capsys.readouterr().out
    assert "first: " in out
    assert "second: " in out
    assert out.endswith("saved: both.html\n")
    page = (folder / "both.html").read_text()
    assert page.index("first") < page.index("second")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["first.parquet", "--scores", "logit_*", "--label", "y"], "--logits or --probs must be said"),
        (["no.parquet", *CLASSES], "no.parquet"),
        (["first.parquet", "first.parquet", *CLASSES], "IN must be different files"),
        (["first.parquet", *CLASSES, "--rows", "1"], "--rows must be at least 2, got 1"),
        (["first.parquet", *CLASSES, "--bins", "0"], "n_bins must be"),
    ],
)
def test_what_is_refused_leaves_no_page(folder, monkeypatch, capsys, words, text):
    monkeypatch.chdir(folder)
    (folder / "old.html").write_text("old")
    assert main(["report", *words, "-o", "old.html"]) == 2
    assert text in capsys.readouterr().err
    assert (folder / "old.html").read_text() == "old"
