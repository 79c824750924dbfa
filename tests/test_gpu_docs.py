"""The page about GPUs: its example runs, and its table of bytes is what the script counts."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")


def test_the_table_is_what_the_script_counts():
    command = [sys.executable, str(ROOT / "benchmarks" / "roofline.py")]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert table.count("\n") == 20
    assert table in PAGE


def test_the_benchmark_says_that_there_is_no_device():
    import torch

    if torch.cuda.is_available():  # it would run
        return
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_gpu.py")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "no CUDA device here: nothing was measured\n"
