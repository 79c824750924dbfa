"""Triton's kernels in its interpreter, which has to be chosen before Triton is imported: in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("cases", ["psi", "sigmoid"])
def test_by_the_interpreter(cases):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"interpreted_{cases}.py"]
    env = os.environ | {"TRITON_INTERPRET": "1", "REFOCAL_KERNELS": "cuda"}
    done = subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
