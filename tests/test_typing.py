"""What a type checker says about code that uses refocal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SNIPPET = """
from typing import assert_type, Any
import jax
import jax.numpy as jnp
import numpy as np
import torch
import refocal
from refocal import Focal, SigmoidFocal

a: np.ndarray[tuple[int, int], np.dtype[np.float32]] = np.ones((2, 2), np.float32)
t = torch.ones(2, 2)
j: jax.Array = jnp.ones((2, 2))
Floats = np.ndarray[tuple[int, int], np.dtype[np.float32]]

assert_type(refocal.psi(a, 2.0), Floats)
assert_type(refocal.psi(t, 2.0), torch.Tensor)
assert_type(refocal.psi(j, gamma=2), jax.Array)
assert_type(refocal.psi([0.5, 0.5], 2.0), np.ndarray[Any, Any])
assert_type(refocal.log_psi(t, t[0], axis=1), torch.Tensor)
assert_type(refocal.focal_minimizer(a, [1.0, 2.0], check=False), Floats)
assert_type(refocal.focal_loss(t, t, 2.0), torch.Tensor)
assert_type(refocal.eta_confidence(t, 2.0), torch.Tensor)
assert_type(refocal.tau_oc(2.0), float)
assert_type(refocal.tau_uc(t), torch.Tensor)
assert_type(refocal.score_posterior(SigmoidFocal(), t), torch.Tensor)
assert_type(Focal(weight=t).posterior(t), torch.Tensor)
assert_type(Focal(gamma=[1, 2]).posterior(a), Floats)
assert_type(SigmoidFocal(alpha=None).logits(t), torch.Tensor)

Focal(gamma="2")
Focal(weight="abc")
Focal(gamma=2j)
SigmoidFocal(alpha="0.25")
refocal.psi(t, "2")
refocal.psi(t, 2.0, 1)
"""


@pytest.mark.slow
def test_the_kind_of_array_stays_and_wrong_arguments_are_found(tmp_path):
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET)
    wrong = [
        n for n, line in enumerate(SNIPPET.splitlines(), 1) if line.startswith(("Focal", "Sigm", "refocal."))
    ]
    root = Path(__file__).parents[1]
    # With the options and the cache of `mypy src`, since PyTorch alone takes mypy half a minute.
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", str(file)],
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "MYPYPATH": str(root / "src")},
        check=False,
    )
    lines = [line for line in found.stdout.splitlines() if ": error:" in line]
    assert [int(line.split(":")[1]) for line in lines] == wrong, found.stdout + found.stderr
