"""The comparison and the benchmark run on a small scale."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_the_comparison_runs(tmp_path):
    pytest.importorskip("xgboost")
    pytest.importorskip("lightgbm")
    command = [sys.executable, str(FOLDER / "compare_boosting.py"), "--quick", "--out", str(tmp_path)]
    subprocess.run(command, check=True, stdout=subprocess.PIPE)
    with (tmp_path / "comparison.csv").open() as file:
        rows = {(row["engine"], row["method"]): row for row in csv.DictReader(file)}
    assert len(rows) == 10
    for engine in ("XGBoost", "LightGBM"):
        true, raw = rows[engine, "focal, Psi"], rows[engine, "focal, raw"]
        assert float(true["ECE"]) < float(raw["ECE"]) / 5
        assert float(true["AUC"]) == pytest.approx(float(raw["AUC"]), abs=1e-12)
    assert (tmp_path / "comparison.md").read_text().count("\n") == 12


@pytest.mark.slow
def test_the_comparison_of_curvatures_runs(tmp_path):
    pytest.importorskip("xgboost")
    pytest.importorskip("lightgbm")
    command = [sys.executable, str(FOLDER / "compare_curvatures.py"), "--quick", "--out", str(tmp_path)]
    subprocess.run(command, check=True, stdout=subprocess.PIPE)
    with (tmp_path / "curvatures.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 7
    assert all(float(row["KL"]) < float(row["KL raw"]) for row in rows)
    assert (tmp_path / "curvatures.md").read_text().count("\n") == 9
