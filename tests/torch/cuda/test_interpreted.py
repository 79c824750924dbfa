"""Triton's kernels without a GPU: their cases run in Triton's interpreter, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("cases", ["psi_cases.py", "sigmoid_cases.py", "softmax_cases.py"])
def test_cases(cases):
    tests = HERE.parents[1]
    paths = [tests, tests / "kernels", HERE, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables = {
        "PYTHONPATH": os.pathsep.join(str(p) for p in paths if str(p)),
        "TRITON_INTERPRET": "1",  # read when a kernel is decorated
        "REFOCAL_KERNELS": "cuda",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--noconftest",
        "-p",
        "no:cacheprovider",
    ]
    run = subprocess.run(
        [*command, "--rootdir", str(HERE), str(HERE / cases)],
        capture_output=True,
        text=True,
        env=os.environ | variables,
    )
    assert run.returncode == 0, run.stdout[-20000:] + run.stderr[-2000:]
    assert "skipped" not in run.stdout
