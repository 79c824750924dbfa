"""The study of what the choice costs, at a small size."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).parents[2] / "results" / "selection" / "study.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("study", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("family", ["softmax", "sigmoid", "multilabel", "one-vs-rest"])
def test_a_small_study(study, family, tmp_path):
    out = tmp_path / "found.json"
    arguments = ["--family", family, "--sets", "1", "--rows", "200", "--fresh", "300", "--out", str(out)]
    text = study.main(arguments)
    (found,) = json.loads(out.read_text())
    assert found["kind"] == "minimiser"
    assert min(found["worth"].values()) == pytest.approx(found["worth"]["psi"], abs=0.003)  # it is exact here
    assert all(np.isfinite(x) for x in found["worth"].values())
    assert text.count(f"| {family} | 200 | ") == len(study.RULES)
    assert study.main(["--tables", str(out)]) == text


def test_the_expected_loss_of_the_posterior_is_its_entropy(study):
    _, told, make = study.drawn("sigmoid", 0)
    eta, logits, labels = make(2000, 0)
    found = study.choose.choose_calibration(logits, labels, told, n_resamples=5)
    entropy = -(eta * np.log(eta) + (1 - eta) * np.log1p(-eta)).mean()
    assert study.expected_nll(found.method("psi"), eta, logits) == pytest.approx(entropy, rel=1e-6)
