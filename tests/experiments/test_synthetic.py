"""The numerical illustration: the data against scipy, the claims of the paper on trained networks."""

import csv
import json
import sys

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from refocal import error_rate, focal_minimizer, psi
from refocal.experiments import synthetic
from refocal.experiments.mixture import (
    MEANS,
    PRIORS,
    SCALES,
    mixture_joint,
    mixture_posterior,
    sample_mixture,
)
from refocal.experiments.synthetic import (
    Settings,
    compute_synthetic,
    draw_synthetic,
    plot_posteriors,
    run_synthetic,
)
from refocal.plots import new_figure

TINY = Settings(n_train=1000, n_validation=500, n_test=1000, hidden=8, epochs=8, batch_size=100)
PANELS = [(0.0, "raw"), *((gamma, method) for gamma in (1.0, 5.0) for method in ("raw", "ts_nll", "psi"))]


@pytest.fixture(scope="module")
def result():
    return compute_synthetic(Settings.quick())


@pytest.fixture(scope="module")
def tiny():
    return compute_synthetic(TINY)


def test_joint_is_scipys_normal_densities():
    x = np.linspace(-6, 6, 50)
    for k in range(3):
        expected = PRIORS[k] * stats.norm(MEANS[k], SCALES[k]).pdf(x)
        np.testing.assert_allclose(mixture_joint(x)[:, k], expected, rtol=1e-12)
    np.testing.assert_allclose(mixture_posterior(x).sum(axis=1), 1, rtol=1e-14)


def test_sample_has_the_posterior_and_the_bayes_error():
    n = 400_000
    x, y = sample_mixture(n, np.random.default_rng(0))
    for at in (-1.0, 0.0, 1.5, 3.0):
        near = np.abs(x - at) < 0.05
        shares = np.bincount(y[near], minlength=3) / near.sum()
        truth = mixture_posterior(np.array([at]))[0]
        np.testing.assert_allclose(shares, truth, atol=4 * 0.5 / np.sqrt(near.sum()) + 0.002)
    right, _ = integrate.quad(lambda t: mixture_joint(np.array([t])).max(), -12, 12, limit=200)
    assert abs(error_rate(mixture_posterior(x), y) - (1 - right)) < 4 * 0.4 / np.sqrt(n)


@pytest.mark.slow
def test_the_papers_claims(result):
    assert [(e.gamma, e.method) for e in result.estimates] == PANELS
    raw, scaled, corrected = (result.of(5.0, method) for method in ("raw", "ts_nll", "psi"))
    assert raw.kld > 10 * corrected.kld
    for gamma in (1.0, 5.0):
        raw, scaled, corrected = (result.of(gamma, method) for method in ("raw", "ts_nll", "psi"))
        assert raw.kld > 3 * scaled.kld > 9 * corrected.kld
        assert raw.ece > scaled.ece > corrected.ece
        assert raw.error == scaled.error == corrected.error
        assert corrected.ece < 0.01
        assert corrected.kld < 0.002
        assert scaled.temperature < 1  # the scores are not sure enough
    assert result.of(5.0, "raw").kld > result.of(1.0, "raw").kld > 0.02
    assert result.of(0.0, "raw").kld < 0.002
    for e in result.estimates:
        assert abs(e.error - result.bayes_error) < 0.003


@pytest.mark.slow
def test_kld_and_err_by_quadrature(result):
    """The averages over test rows are the integrals over p(x) of what the figure shows."""
    weight = result.joint.sum(axis=1)
    weight /= weight.sum()
    for e in result.estimates:
        kld = weight @ stats.entropy(result.posterior, e.probs, axis=1)
        assert e.kld == pytest.approx(kld, rel=0.05, abs=2e-5)
        top = np.take_along_axis(result.posterior, e.probs.argmax(axis=1)[:, None], axis=1)[:, 0]
        assert abs(e.error - weight @ (1 - top)) < 0.005


@pytest.mark.slow
def test_networks_are_near_the_risk_minimiser(result):
    weight = result.joint.sum(axis=1)
    weight /= weight.sum()
    for gamma in (0.0, 1.0, 5.0):
        raw = result.of(gamma, "raw").probs
        gap = np.abs(raw - focal_minimizer(result.posterior, gamma)).max(axis=1)
        assert weight @ gap < 0.015
        if gamma:
            np.testing.assert_allclose(result.of(gamma, "psi").probs, psi(raw, gamma), rtol=1e-12)


def test_temperature_scaling_divides_the_logits(tiny):
    for gamma in (1.0, 5.0):
        raw, scaled = tiny.of(gamma, "raw"), tiny.of(gamma, "ts_nll")
        powered = raw.probs ** (1 / scaled.temperature)
        np.testing.assert_allclose(scaled.probs, powered / powered.sum(axis=1, keepdims=True), rtol=1e-9)
        assert raw.temperature is None


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError, match=r"^seed must be >= 0, got -1$"):
        Settings.quick(seed=-1)


def test_seed_is_all_that_is_random(tiny):
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        torch.manual_seed(7)
        other_state = torch.get_rng_state()
        again = compute_synthetic(TINY)
        assert torch.equal(torch.get_rng_state(), other_state)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
    for e, f in zip(tiny.estimates, again.estimates, strict=True):
        np.testing.assert_array_equal(e.probs, f.probs)
        assert (e.error, e.kld, e.ece, e.temperature) == (f.error, f.kld, f.ece, f.temperature)
    other = compute_synthetic(Settings(**{**vars(TINY), "seed": 1}))
    assert other.of(5.0, "raw").kld != tiny.of(5.0, "raw").kld


def test_table(tiny):
    lines = tiny.table().splitlines()
    assert lines[0].split() == ["loss", "scores", "ERR", "KLD", "ECE", "T"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["CE", "raw"],
        *([loss, scores] for loss in ("FL-1", "FL-5") for scores in ("raw", "TS_NLL", "psi")),
    ]
    e = tiny.of(5.0, "ts_nll")
    assert lines[6].split()[2:] == [f"{e.error:.4f}", f"{e.kld:.5f}", f"{e.ece:.4f}", f"{e.temperature:.3f}"]


def test_panels_a_to_i(tiny):
    axes = new_figure(9, 9).subplots(3, 3)
    draw_synthetic(axes.tolist(), tiny)
    letters = {ax.get_title(loc="left").strip(): ax for ax in axes.flat}
    assert sorted(letters) == [f"({letter})" for letter in "abcdefghi"]
    np.testing.assert_array_equal(letters["(a)"].lines[0].get_ydata(), tiny.joint.sum(axis=1))
    order = dict(zip("cdefghi", [PANELS[i] for i in (0, 1, 4, 2, 5, 3, 6)], strict=True))  # the paper's
    for letter, key in order.items():
        e, ax = tiny.of(*key), letters[f"({letter})"]
        assert ax.get_title().startswith(e.loss)
        assert ax.get_title().endswith(f"ERR {e.error:.3f}   KLD {e.kld:.4f}   ECE {e.ece:.3f}")
        np.testing.assert_array_equal([line.get_ydata() for line in ax.lines[1:6:2]], e.probs.T)
    assert r"TS$_\mathrm{NLL}$" in letters["(g)"].get_title()
    assert r"$\Psi^\gamma$" in letters["(i)"].get_title()


def test_truth_is_dashed_and_estimate_solid(tiny):
    estimate = tiny.of(5.0, "raw").probs
    ax = plot_posteriors(tiny.x, tiny.posterior, estimate, title="title")
    for line in ax.lines[:6]:
        wanted = tiny.posterior if line.is_dashed() else estimate
        assert any(np.array_equal(line.get_ydata(), column) for column in wanted.T)
    assert sum(line.is_dashed() for line in ax.lines[:6]) == 3
    assert ax.get_title() == "title"
    seven = np.full((2, 7), 1 / 7)
    assert len(plot_posteriors(np.array([0.0, 1.0]), seven).lines) == 7


@pytest.mark.slow
def test_files(tmp_path, monkeypatch):
    monkeypatch.setattr(
        Settings, "quick", classmethod(lambda cls, seed: Settings(**{**vars(TINY), "seed": seed}))
    )
    files = run_synthetic(tmp_path / "new", quick=True, seed=3)
    assert [path.name for path in files] == [f"synthetic.{e}" for e in ("png", "pdf", "csv", "json")]
    assert sorted((tmp_path / "new").iterdir()) == sorted(files)
    numbers = json.loads(files[3].read_text())
    assert numbers["settings"] == {**vars(TINY), "seed": 3}
    assert {"python", "torch", "numpy"} <= set(numbers["versions"])
    result = compute_synthetic(Settings(**{**vars(TINY), "seed": 3}))
    assert numbers["bayes_error"] == result.bayes_error
    for row, e in zip(numbers["estimates"], result.estimates, strict=True):
        assert (row["error"], row["kld"], row["ece"], row["temperature"]) == (
            e.error,
            e.kld,
            e.ece,
            e.temperature,
        )
    with open(files[2], newline="") as file:
        header, *rows = csv.reader(file)
    column = header.index("FL-5 psi 2")
    np.testing.assert_allclose(
        [float(row[column]) for row in rows], result.of(5.0, "psi").probs[:, 1], rtol=1e-9
    )


def test_a_folder_that_cannot_be_made_costs_no_training(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("kept")
    monkeypatch.setattr(synthetic, "compute_synthetic", lambda *_: pytest.fail("trained"))
    with pytest.raises(OSError, match=r"^cannot write '.*file': File exists$"):
        run_synthetic(tmp_path / "file", quick=True)


def test_missing_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    text = r"^the synthetic study needs torch: pip install torch$"
    with pytest.raises(ImportError, match=text):
        compute_synthetic(TINY)
