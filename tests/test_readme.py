"""The README tells the truth: its code runs, its numbers are right, its links lead somewhere."""

import re
from pathlib import Path

import numpy as np
import pytest

import refocal

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
ROWS = re.findall(r"^\| (0\.\d+) \| (0\.\d+) \|$", README, flags=re.MULTILINE)
LINKS = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]


def test_blocks_and_rows_were_found():
    assert len(BLOCKS) >= 1
    assert len(ROWS) == 6


def test_code_runs():
    names = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
    assert names["choice"].winner == "psi"  # the example is made for it


@pytest.mark.parametrize("score, probability", ROWS)
def test_table_of_probabilities(score, probability):
    spec = refocal.SigmoidFocal(gamma=2.0, alpha=0.25)
    posterior = float(spec.posterior_from_probs(np.asarray([float(score)]))[0])
    digits = len(probability.partition(".")[2])
    assert f"{posterior:.{digits}f}" == probability


@pytest.mark.parametrize("link", LINKS)
def test_links_lead_to_files(link):
    assert (ROOT / link).exists()
