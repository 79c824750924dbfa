"""Studies from the command line: exit code 0, and each file that is printed is there."""

import json
from pathlib import Path

import numpy as np
import pytest

from refocal.cli import main
from refocal.experiments.synthetic import Settings


def files_of(argv, out, capsys):
    """Run a study; return the names of its files, after a look at what was printed."""
    assert main(["reproduce", *argv, "--out", str(out)]) == 0
    text, errors = capsys.readouterr()
    # A kernel that no test has compiled before takes long enough to be told.
    assert not [line for line in errors.splitlines() if not line.startswith("refocal: compiled ")]
    paths = [Path(line) for line in text.splitlines()]
    assert all(path.parent == out and path.stat().st_size > 0 for path in paths)
    assert {path for path in out.iterdir() if path.is_file()} == set(paths)
    return {path.name for path in paths}


def test_synthetic(tmp_path, capsys, monkeypatch):
    def quick(cls, seed=0):
        return cls(1000, 500, 1000, hidden=8, epochs=8, batch_size=100, seed=seed)

    monkeypatch.setattr(Settings, "quick", classmethod(quick))
    names = files_of(["synthetic", "--quick", "--seed", "3"], tmp_path / "synthetic", capsys)
    assert names == {f"synthetic.{end}" for end in ("csv", "json", "pdf", "png")}
    settings = json.loads((tmp_path / "synthetic" / "synthetic.json").read_text())["settings"]
    assert (settings["n_train"], settings["seed"]) == (1000, 3)


@pytest.mark.slow
def test_images(tmp_path, capsys):
    rng = np.random.default_rng(0)
    y = np.arange(100) % 4
    x = (rng.integers(0, 150, (100, 8, 8, 3)) + 100 * np.eye(4, 3, dtype=int)[y][:, None, None]).astype(
        np.uint8
    )
    data = tmp_path / "colours.npz"
    np.savez(data, X_train=x, y_train=y, X_test=x[:20], y_test=y[:20])
    argv = ["images", "--dataset", str(data), "--model", "resnet8", "--epochs", "1", "--trials", "1"]
    argv += ["--gamma", "1", "--paradigm", "standard", "--device", "cpu", "--jobs", "1"]
    out = tmp_path / "images"
    expected = {"README.md", "advice.csv", "bins.csv", "measures.csv", "summary.json"}
    expected |= {f"reliability-colours-resnet8-1.{end}" for end in ("pdf", "png")}  # no box of one number
    assert files_of(argv, out, capsys) == expected
    (run,) = (out / "runs").glob("*.json")
    before = run.stat().st_mtime_ns
    assert files_of(argv, out, capsys) == expected
    assert run.stat().st_mtime_ns == before  # the second time nothing is trained


@pytest.mark.parametrize(
    "study, option",
    [
        ("theory", "--out"),
        ("synthetic", "--quick"),
        ("tabular", "--train-fraction"),
        ("images", "--paradigm"),
    ],
)
def test_help(study, option, capsys):
    assert main(["reproduce", study, "--help"]) == 0
    text, errors = capsys.readouterr()
    assert text.startswith(f"usage: refocal reproduce {study} ")
    assert option in text
    assert f"folder (default: out/{study})" in " ".join(text.split())
    assert errors == ""


@pytest.mark.parametrize(
    "given, names",
    [
        (["images", "--gpus-per-run", "0.5"], "--gpus-per-run"),
        (["images", "--engine", "local", "--address", "auto"], "--address"),
        (["tabular", "--cpus-per-run", "2"], "--cpus-per-run"),
    ],
)
def test_options_of_ray_are_refused_without_ray(given, names, tmp_path, capsys):
    assert main(["reproduce", *given, "--out", str(tmp_path)]) == 2
    assert capsys.readouterr() == ("", f"refocal: {names}: for --engine ray only\n")
