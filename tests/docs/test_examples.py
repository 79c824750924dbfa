"""The scripts in examples run as a user runs them, and their pages show what they print."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from refocal.calibration.method import METHODS

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"text_classifier": ("accelerate", "transformers")}  # beyond the extra dev


def examples_to_run():
    """Return the examples; those that need the extra ``docs`` are run by ``make docs`` too."""
    return [
        pytest.param(path, id=path.stem, marks=[pytest.mark.docs] if path.stem in NEEDS else [])
        for path in EXAMPLES
    ]


def shape_of(text):
    """Return the lines of an output without numbers ("-" where there is none) and names of chosen methods."""
    names = "|".join(sorted(METHODS, key=len, reverse=True))
    plain = re.sub(rf"\b({names})\b", "METHOD", re.sub(r"[-+]?\d+(\.\d+)?%?|(?<= )-(?=\s)", "N", text))
    return {" ".join(line.split()) for line in plain.splitlines()}


@pytest.mark.parametrize("path", examples_to_run())
def test_examples_run_and_print_what_their_pages_show(path, tmp_path, monkeypatch, capsys):
    for module in NEEDS.get(path.stem, ()):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install -e '.[docs]'")
    monkeypatch.setattr(sys, "argv", [str(path), "--small", "--out", str(tmp_path / "figures")])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    page = (ROOT / "docs" / "examples" / f"{path.stem}.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```text\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert shape_of(printed) == shape_of(shown)
    assert "nan" not in printed
    (figure,) = (tmp_path / "figures").iterdir()
    assert figure.name == f"{path.stem}.png"
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert f"]({figure.name})" in page


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_has_a_page_with_its_code_and_figure(path):
    folder = ROOT / "docs" / "examples"
    page = (folder / f"{path.stem}.md").read_text(encoding="utf-8")
    assert f"```{{literalinclude}} ../../examples/{path.name}\n" in page
    assert f"python examples/{path.name} --out docs/examples\n" in page
    assert (folder / f"{path.stem}.png").read_bytes().startswith(b"\x89PNG")


def test_conformal_sets_cover_as_often_as_was_asked_for():
    example = runpy.run_path(str(ROOT / "examples" / "conformal.py"))
    rng = np.random.default_rng(0)
    n, k, covered = 99, 4, []
    for _ in range(400):
        probs, labels = rng.dirichlet(np.ones(k), size=2 * n), rng.integers(k, size=2 * n)
        scores = example["adaptive_scores"](probs, rng)  # of labels that have nothing to do with them
        sets = example["conformal_sets"](scores[:n], labels[:n], scores[n:])
        covered.append(sets[np.arange(n), labels[n:]].mean())
    # Vovk's guarantee: 0.9 exactly, for 99 held-out rows and scores without ties.
    assert abs(np.mean(covered) - 0.9) < 4 * np.std(covered) / 20


def test_adaptive_scores_are_uniform_for_true_probabilities():
    example = runpy.run_path(str(ROOT / "examples" / "conformal.py"))
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(5), size=20_000)
    labels = (probs.cumsum(axis=1) < rng.random((20_000, 1))).sum(axis=1)
    of_truth = example["adaptive_scores"](probs, rng)[np.arange(20_000), labels]
    shares = np.histogram(of_truth, bins=10, range=(0, 1))[0] / 20_000
    np.testing.assert_allclose(shares, 0.1, atol=4 * (0.1 * 0.9 / 20_000) ** 0.5)
