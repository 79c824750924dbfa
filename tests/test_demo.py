"""The demo's numbers against independent ones, and its figure."""

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from refocal import demo, plots, tau_oc, tau_uc
from refocal.demo import DemoResult, compute_demo, exact_ece, mixture_joint, run_demo
from refocal.plots import max_eta_curves, new_figure, phi_curves, plot_max_eta, plot_phi, plot_posteriors

as_root = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.fixture(scope="module")
def result() -> DemoResult:
    return compute_demo()


def by_name(result: DemoResult) -> dict:
    return {(e.gamma, e.scores): e for e in result.estimates}


def test_joint_is_scipys_normal_densities(result: DemoResult) -> None:
    for k in range(3):
        expected = demo.PRIORS[k] * stats.norm(demo.MEANS[k], demo.SCALES[k]).pdf(result.x)
        np.testing.assert_allclose(result.joint[:, k], expected, rtol=1e-12)
    np.testing.assert_allclose(result.posterior.sum(axis=1), 1, rtol=1e-14)
    step = result.x[1] - result.x[0]
    assert abs(result.joint.sum() * step - 1) < 1e-3  # the grid holds nearly all of the mass


def test_posterior_and_error_by_monte_carlo(result: DemoResult) -> None:
    rng = np.random.default_rng(0)
    n = 400_000
    y = rng.choice(3, size=n, p=demo.PRIORS)
    x = rng.normal(demo.MEANS[y], demo.SCALES[y])
    for at in (-1.0, 0.0, 1.5, 3.0):
        near = np.abs(x - at) < 0.05
        shares = np.bincount(y[near], minlength=3) / near.sum()
        truth = result.posterior[np.argmin(np.abs(result.x - at))]
        np.testing.assert_allclose(shares, truth, atol=4 * 0.5 / np.sqrt(near.sum()) + 0.002)
    wrong = np.mean(mixture_joint(x).argmax(axis=1) != y)
    assert abs(wrong - result.estimates[0].err) < 4 * 0.4 / np.sqrt(n)


def test_bayes_error_by_quadrature(result: DemoResult) -> None:
    right, _ = integrate.quad(lambda t: mixture_joint(np.array([t])).max(), -12, 12, limit=200)
    for estimate in result.estimates:
        assert abs(estimate.err - (1 - right)) < 2e-4


def test_raw_scores_are_wrong_and_psi_of_them_is_right(result: DemoResult) -> None:
    table = by_name(result)
    assert set(table) == {(1.0, "raw"), (1.0, "psi"), (5.0, "raw"), (5.0, "psi")}
    assert table[1.0, "raw"].max_error > 0.1
    assert table[5.0, "raw"].max_error > 0.3
    assert table[5.0, "raw"].kl > table[1.0, "raw"].kl > 0.02
    assert table[5.0, "raw"].ece > table[1.0, "raw"].ece > 0.05
    for gamma in (1.0, 5.0):
        psi = table[gamma, "psi"]
        assert psi.max_error < 1e-12
        assert abs(psi.kl) < 1e-12
        assert psi.ece < 1e-12
        assert psi.err == table[gamma, "raw"].err


def test_kl_is_scipys(result: DemoResult) -> None:
    weight = result.joint.sum(axis=1)
    for estimate in result.estimates:
        kl = stats.entropy(result.posterior, estimate.probs, axis=1)
        assert estimate.kl == pytest.approx(np.average(kl, weights=weight), abs=1e-15)


def test_raw_scores_minimise_the_sampled_risk(result: DemoResult) -> None:
    """No move towards or away from the truth lowers the focal risk of the raw scores."""
    for gamma in (1.0, 5.0):
        q, eta = by_name(result)[gamma, "raw"].probs, result.posterior

        def risk(p: np.ndarray, gamma: float = gamma, eta: np.ndarray = eta) -> np.ndarray:
            return -(eta * (1 - p) ** gamma * np.log(p)).sum(axis=1)

        for t in (-1e-3, 1e-3):
            assert np.all(risk(q + t * (eta - q)) >= risk(q) - 1e-15)


def test_exact_ece_by_hand() -> None:
    probs = np.array([[0.8, 0.2], [0.25, 0.75], [0.6, 0.4], [0.6, 0.4]])
    posterior = np.array([[0.9, 0.1], [0.5, 0.5], [0.7, 0.3], [0.5, 0.5]])
    weight = np.array([0.2, 0.3, 0.25, 0.25])
    # 0.8 and 0.75 share the bin (0.7, 0.8]; the errors of the last two points cancel
    assert exact_ece(probs, posterior, weight) == pytest.approx(abs(0.2 * 0.1 - 0.3 * 0.25), abs=1e-15)


@pytest.mark.parametrize(("confidence", "same_bin"), [(0.7, True), (np.nextafter(0.7, 1), False)])
def test_bins_hold_their_upper_edge(confidence: float, same_bin: bool) -> None:
    probs = np.array([[0.65, 0.35], [confidence, 1 - confidence]])
    gap = np.array([0.1, -0.1])
    posterior = np.column_stack([probs[:, 0] + gap, probs[:, 1] - gap])
    expected = 0.0 if same_bin else 0.1  # opposite errors cancel only within a bin
    assert exact_ece(probs, posterior, np.array([0.5, 0.5])) == pytest.approx(expected, abs=1e-12)


def test_one_hot_is_in_the_last_bin() -> None:
    assert exact_ece(np.array([[0.0, 1.0]]), np.array([[0.25, 0.75]]), np.array([1.0])) == 0.25


def test_table_and_summary(result: DemoResult) -> None:
    lines = result.table().splitlines()
    assert lines[0].split() == ["gamma", "scores", "max", "error", "KL", "ECE", "ERR"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["1", "raw"],
        ["1", "psi"],
        ["5", "raw"],
        ["5", "psi"],
    ]
    assert len({len(line) for line in lines}) == 1
    assert "eta-underconfident at 100% of the points" in result.summary()


def test_figure_is_a_png_and_repeats(tmp_path: Path) -> None:
    result = run_demo(tmp_path)
    assert result.figure == tmp_path / demo.FILE_NAME
    content = result.figure.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", content[16:24])
    assert 1500 <= width <= 3000
    assert 1200 <= height <= 3000
    assert 50_000 < len(content) < 2_000_000
    assert run_demo(str(tmp_path)).figure.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == [demo.FILE_NAME]


@pytest.mark.parametrize("name", ["nowhere", "a-file"])
def test_output_folder_must_exist(tmp_path: Path, name: str) -> None:
    (tmp_path / "a-file").write_text("kept")
    with pytest.raises(NotADirectoryError, match=f"output folder must be an existing folder, got '.*{name}'"):
        run_demo(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


@pytest.mark.skipif(as_root, reason="root may write everywhere")
def test_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "png_bytes", lambda figure: bytes(1000))
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match=r"cannot write '.*refocal-demo\.png': Permission denied"):
        run_demo(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES])
def test_failed_write_leaves_the_old_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    (tmp_path / demo.FILE_NAME).write_text("old")
    monkeypatch.setattr(plots, "png_bytes", lambda figure: bytes(1000))  # drawing takes a second

    def fail(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:100])
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match=f"cannot write '.*{demo.FILE_NAME}': {os.strerror(error)}"):
        run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [demo.FILE_NAME]
    assert (tmp_path / demo.FILE_NAME).read_text() == "old"


def test_missing_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"^plots need matplotlib: pip install 'refocal\[plots\]'$"):
        new_figure(4, 3)


def test_phi_curves() -> None:
    curves = phi_curves((0.0, 3.0), highlight=3.0)
    np.testing.assert_array_equal(curves.phi[0], 1)
    assert (curves.tau_oc, curves.tau_uc) == (tau_oc(3.0), tau_uc(3.0))
    assert abs(curves.v[curves.phi[1].argmax()] - curves.tau_oc) <= 1 / 400


def test_max_eta_curves() -> None:
    binary = max_eta_curves(2, (0.5, 5.0))
    inside = slice(1, -1)
    assert np.all(binary.max_eta[:, inside] > binary.max_q[inside])  # Corollary 10
    many = max_eta_curves(1000, (1.0, 5.0))
    assert np.any(many.max_eta < many.max_q * 0.9)
    for gamma, row in zip(many.gammas, many.max_eta, strict=True):
        under = many.max_q >= tau_uc(gamma)
        assert np.all(row[under] >= many.max_q[under])
    for curves in (binary, many):
        np.testing.assert_allclose(curves.max_eta[:, [0, -1]], [[1 / curves.n_classes, 1]] * 2, rtol=1e-9)


def test_plots_say_eta() -> None:
    axes = new_figure(9, 3).subplots(1, 3)
    plot_phi(axes[0])
    plot_max_eta(axes[1], n_classes=2)
    plot_max_eta(axes[2], n_classes=1000)
    for ax in axes:
        texts = [text.get_text() for text in ax.texts]
        assert {"η-overconfident", "η-underconfident"} <= set(texts)
    assert (axes[1].get_xscale(), axes[2].get_xscale()) == ("linear", "log")


def test_no_curve_is_dropped() -> None:
    gammas = (0.5, 1.0, 2.0, 3.0, 5.0, 100.0)
    axes = new_figure(6, 3).subplots(1, 2)
    plot_phi(axes[0], gammas)
    plot_max_eta(axes[1], n_classes=3, gammas=gammas)
    for ax in axes:
        assert len(ax.get_legend().get_texts()) == 6
    assert axes[0].get_ylim()[1] > phi_curves(gammas, 3.0).phi.max()
    seven = np.full((2, 7), 1 / 7)
    ax = new_figure(3, 3).subplots()
    plot_posteriors(ax, np.array([0.0, 1.0]), seven, None, "seven classes")
    assert len(ax.lines) == 7


def test_truth_is_dashed_and_estimate_solid(result: DemoResult) -> None:
    ax = new_figure(4, 3).subplots()
    estimate = result.estimates[0].probs
    plot_posteriors(ax, result.x, result.posterior, estimate, "title")
    for line in ax.lines[:6]:
        wanted = result.posterior if line.is_dashed() else estimate
        assert any(np.array_equal(line.get_ydata(), column) for column in wanted.T)
    assert sum(line.is_dashed() for line in ax.lines[:6]) == 3
    assert ax.get_title() == "title"


def test_matplotlibs_global_state_is_left_alone(tmp_path: Path) -> None:
    code = (
        "import sys, matplotlib as m\n"  # the backend is chosen when it is looked at
        "def settings(): return {k: m.rcParams[k] for k in m.rcParams if k != 'backend'}\n"
        "before = settings()\n"
        "from refocal.demo import run_demo; run_demo(sys.argv[1])\n"
        "assert settings() == before; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(tmp_path)], check=True)
