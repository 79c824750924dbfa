"""What people write to get a report: pasted from the documentation, and in their own ways."""

import json
import re
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from refocal import Focal, SigmoidFocal
from refocal.report import Report

DOCS = Path(__file__).parents[2] / "docs"


def test_the_code_of_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "report.md").read_text(encoding="utf-8")
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "report.md", "exec"), names)
    assert names["report"].numbers.headline == "These scores are not yet probabilities: use psi."
    assert (names["streamed"].numbers.n_rows, names["streamed"].numbers.n_sample) == (3000, 1000)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["comparison.html", "report.html"]


def labelled(n=200, k=3):
    rng = np.random.default_rng(0)
    labels = rng.integers(k, size=n)
    return 2 * np.eye(k)[labels] + rng.normal(size=(n, k)), labels


SCORES, LABELS = labelled()
PROBS = np.exp(SCORES) / np.exp(SCORES).sum(axis=1, keepdims=True)

CALLS = {
    "logits": lambda: Report(SCORES, LABELS, from_logits=True),
    "probabilities": lambda: Report(PROBS, LABELS),
    "float32": lambda: Report(SCORES.astype(np.float32), LABELS, from_logits=True),
    "lists": lambda: Report(PROBS.tolist(), LABELS.tolist()),
    "tensors": lambda: Report(torch.tensor(SCORES), torch.tensor(LABELS), from_logits=True),
    "class 1 of two": lambda: Report(PROBS[:, 1], (LABELS == 1).astype(int), task="binary"),
    "yes and no": lambda: Report(PROBS[:, 1], LABELS == 1, task="binary", classes=["no", "yes"]),
    "independent labels": lambda: Report(
        SCORES, np.eye(3, dtype=int)[LABELS], objective=SigmoidFocal(2.0, alpha=0.25), from_logits=True
    ),
    "labels by name": lambda: Report(PROBS, np.array(["a", "b", "c"])[LABELS], classes=["a", "b", "c"]),
    "a column of pandas": lambda: Report(
        pandas.DataFrame(PROBS), pandas.Series(LABELS).map({0: "a", 1: "b", 2: "c"}), classes=["a", "b", "c"]
    ),
    "names of any kind": lambda: Report(PROBS, LABELS, classes=[0.5, None, ("a", "b")]),
    "batches": lambda: Report.from_stream([(PROBS[:100], LABELS[:100]), (PROBS[100:], LABELS[100:])]),
    "weights": lambda: Report(SCORES, LABELS, objective=Focal(2.0, weight=[1, 2, 3]), from_logits=True),
    "label smoothing": lambda: Report(
        SCORES, LABELS, objective=Focal(2.0, label_smoothing=0.1), from_logits=True
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_it_makes_a_page(call):
    made = call()
    assert made.numbers.n_rows == 200
    assert made.numbers.headline in made.html()
    assert json.loads(made.json())["n_rows"] == 200


def test_labels_by_name_are_those_by_number():
    named = CALLS["labels by name"]().to_dict()
    numbered = Report(PROBS, LABELS, classes=["a", "b", "c"]).to_dict()
    assert named == numbered
    with pytest.raises(ValueError, match=r"^labels must be among classes, got 'c'$"):
        Report(
            PROBS[:, :2] / PROBS[:, :2].sum(axis=1, keepdims=True),
            np.array(["a", "c"] * 100),
            classes=["a", "b"],
        )
