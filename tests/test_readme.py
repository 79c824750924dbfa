"""The table of the README is right; tests/docs and tests/cli run its code and its commands."""

import re
from pathlib import Path

import numpy as np
import pytest

import refocal

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (0\.\d+) \| (0\.\d+) \|$", README, flags=re.MULTILINE)


def test_rows_were_found():
    assert len(ROWS) == 6


@pytest.mark.parametrize("score, probability", ROWS)
def test_table_of_probabilities(score, probability):
    spec = refocal.SigmoidFocal(gamma=2.0, alpha=0.25)
    posterior = float(spec.posterior_from_probs(np.asarray([float(score)]))[0])
    digits = len(probability.partition(".")[2])
    assert f"{posterior:.{digits}f}" == probability
