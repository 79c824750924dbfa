"""The theory study: its numbers against mpmath, its files whole."""

import csv
import errno
import json
import os
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

from refocal.cli import main
from refocal.experiments import files, theory
from refocal.experiments.theory import known_limit, near_uniform_limit, overconfident_row, run_theory

pytestmark = pytest.mark.slow  # drawing five figures twice takes some seconds

NAMES = ("phi", "max_eta", "taus", "class_counts", "simplex")


def exact_phi(v, gamma):
    """Return phi as minus the derivative of the loss by log v, at 30 digits."""
    with mp.workdps(30):
        v, gamma = mp.mpf(v), mp.mpf(gamma)
        return -v * mp.diff(lambda u: -((1 - u) ** gamma) * mp.log(u), v)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("theory") / "made" / "here"
    files = run_theory(out)
    assert sorted(files) == sorted(out.iterdir())
    return out


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_files(folder):
    expected = {f"{name}.{ending}" for name in NAMES for ending in ("png", "pdf", "csv")} | {"theory.json"}
    assert {path.name for path in folder.iterdir()} == expected
    for name in NAMES:
        assert (folder / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert (folder / f"{name}.pdf").read_bytes().rstrip().endswith(b"%%EOF")


def test_phi_table(folder):
    rows = rows_of(folder / "phi.csv")
    assert {float(row["gamma"]) for row in rows} == set(theory.GAMMAS)
    assert len(rows) == 4 * 401
    for row in rows[7::97]:
        assert float(row["phi"]) == pytest.approx(float(exact_phi(row["v"], row["gamma"])), rel=1e-8)


def test_max_eta_table(folder):
    rows = rows_of(folder / "max_eta.csv")
    assert {int(row["n_classes"]) for row in rows} == {2, 1000}
    for row in rows[5::53]:
        k, m, gamma = int(row["n_classes"]), mp.mpf(row["max_q"]), row["gamma"]
        if m == 1:
            continue
        rest = (1 - m) / (k - 1)
        odds = (k - 1) * (rest / exact_phi(rest, gamma)) / (m / exact_phi(m, gamma))
        assert float(row["max_eta"]) == pytest.approx(float(1 / (1 + odds)), rel=1e-7)


def test_tau_table(folder):
    rows = rows_of(folder / "taus.csv")
    for row in rows[::40]:
        low, high, gamma = mp.mpf(row["tau_oc"]), mp.mpf(row["tau_uc"]), row["gamma"]
        assert float(exact_phi(high, gamma)) == pytest.approx(1, abs=1e-8)
        top = exact_phi(low, gamma)
        assert top > exact_phi(low * (1 - mp.mpf("1e-4")), gamma)
        assert top > exact_phi(low * (1 + mp.mpf("1e-4")), gamma)


def test_class_table_has_the_footnote(folder):
    """5 classes up to gamma = 0.0293 and no fewer, near the uniform row; 4 elsewhere."""
    rows = rows_of(folder / "class_counts.csv")
    gammas = np.array([float(row["gamma"]) for row in rows])
    near = np.array([int(row["near_uniform"]) for row in rows])
    assert near.min() == 5
    assert gammas[near == 5].max() <= 0.0293206 < gammas[near == 6].min()
    assert {int(row["known"]) for row in rows if float(row["gamma"]) < 1.42} == {4}


def test_simplex_table(folder):
    rows = rows_of(folder / "simplex.csv")
    for row in rows[11::211]:
        h = [mp.mpf(row[f"q_{k}"]) / exact_phi(row[f"q_{k}"], theory.SIMPLEX_GAMMA) for k in (1, 2, 3)]
        for k in (1, 2, 3):
            assert float(row[f"psi_{k}"]) == pytest.approx(float(h[k - 1] / sum(h)), rel=1e-7)


def test_summary(folder):
    numbers = json.loads((folder / "theory.json").read_text())
    assert {"python", "numpy", "refocal"} <= set(numbers["versions"])
    table = {row["gamma"]: row for row in numbers["gammas"]}
    assert table[1.0]["tau_oc"] == pytest.approx(np.exp(-2))
    assert table[1.0]["tau_uc"] == pytest.approx(np.exp(-1))
    assert (table[0.02]["least_classes_near_uniform"], table[0.03]["least_classes_near_uniform"]) == (5, 6)
    for row in numbers["gammas"]:
        example = row["overconfident_row"]
        assert example["n_classes"] == row["least_classes_known"]
        assert example["max_q"] > example["max_eta"]
    limits = {row["n_classes"]: row for row in numbers["classes"]}
    assert limits[4]["near_uniform_below_gamma"] is None
    assert limits[4]["known_below_gamma"] == pytest.approx(1.428852, abs=1e-6)


@pytest.mark.parametrize("k", [5, 6, 10, 100])
def test_near_uniform_limit_is_where_phi_has_its_maximum_at_1_over_k(k):
    def rises(gamma):
        step = mp.mpf(10) ** -10
        return exact_phi(mp.mpf(1) / k + step, gamma) > exact_phi(mp.mpf(1) / k - step, gamma)

    with mp.workdps(30):
        assert rises(near_uniform_limit(k) * (1 - 1e-6))
        assert not rises(near_uniform_limit(k) * (1 + 1e-6))


@pytest.mark.parametrize("k", [4, 5, 6, 10, 100])
def test_known_limit_is_where_phi_is_1_at_1_over_k_minus_1(k):
    assert float(exact_phi(mp.mpf(1) / (k - 1), known_limit(k))) == pytest.approx(1, abs=1e-10)


def test_limits_of_too_few_classes():
    with pytest.raises(ValueError, match=r"^n_classes must be at least 5, got 4$"):
        near_uniform_limit(4)
    with pytest.raises(ValueError, match=r"^n_classes must be at least 4, got 3$"):
        known_limit(3)


def test_overconfident_row():
    row = overconfident_row(0.34, 4)
    u, d = mp.mpf(row.max_q), mp.mpf(row.d)
    h = [u / exact_phi(u, 0.34)] * 3 + [d / exact_phi(d, 0.34)]
    assert row.max_eta == pytest.approx(float(h[0] / sum(h)), rel=1e-12)
    assert row.max_q - row.max_eta == pytest.approx(1e-4, rel=0.1)  # as docs/theory.md says
    below = overconfident_row(2.0, 4)  # above the limit 1.43 there is none
    assert below.max_q <= below.max_eta


def test_the_command_gives_the_same_bytes(folder, tmp_path, capsys):
    assert main(["reproduce", "theory", "--out", str(tmp_path)]) == 0
    paths = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert set(paths) == set(tmp_path.iterdir())
    assert {path.name for path in paths} == {path.name for path in folder.iterdir()}
    for path in paths:
        assert path.read_bytes() == (folder / path.name).read_bytes()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch, code):
    (tmp_path / "b.csv").write_text("old")

    def fail(source, target):
        raise OSError(code, os.strerror(code))

    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (fail if Path(b).name == "b.csv" else replace)(a, b))
    with pytest.raises(OSError, match=f"^cannot write '.*b.csv': {os.strerror(code)}$"):
        files.write_outputs(tmp_path, {"a.csv": b"new", "b.csv": b"new", "c.csv": b"new"})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.csv": "new", "b.csv": "old"}


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(OSError, match=r"^cannot write '.*file': File exists$"):
        files.write_outputs(tmp_path / "file", {})
