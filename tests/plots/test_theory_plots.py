"""The paper's functions as numbers, against mpmath, and their pictures."""

import io

import mpmath as mp
import numpy as np
import pytest
from matplotlib.image import imread

from refocal import tau_oc, tau_uc
from refocal.plots import (
    class_counts,
    figure_bytes,
    max_eta_curves,
    new_figure,
    phi_curves,
    plot_class_counts,
    plot_max_eta,
    plot_phi,
    plot_simplex,
    plot_taus,
    simplex_map,
    tau_curves,
)
from refocal.plots.theory import CORNERS

GAMMAS = (0.5, 1.0, 3.0, 5.0)


def largest_posterior(row, gamma):
    """Return max eta of a minimiser's scores by numerical derivatives of the loss: eta_i ~ -1 / l'(q_i)."""
    with mp.workdps(40):
        weights = {v: -1 / mp.diff(lambda u: -((1 - u) ** mp.mpf(gamma)) * mp.log(u), v) for v in set(row)}
        return max(weights.values()) / sum(weights[v] for v in row)


def is_over(row, gamma):
    return largest_posterior(row, gamma) < max(row)


def test_phi_curves():
    curves = phi_curves((0.0, 3.0), highlight=3.0)
    np.testing.assert_array_equal(curves.phi[0], 1)
    assert (curves.tau_oc, curves.tau_uc) == (tau_oc(3.0), tau_uc(3.0))
    assert abs(curves.v[curves.phi[1].argmax()] - curves.tau_oc) <= 1 / 400


@pytest.mark.parametrize("n_classes", [2, 7, 1000])
def test_max_eta_is_that_of_the_minimiser(n_classes):
    curves = max_eta_curves(n_classes, (0.5, 5.0), points=9)
    for gamma, values in zip(curves.gammas, curves.max_eta, strict=True):
        for m, eta in zip(curves.max_q[1:-1], values[1:-1], strict=True):
            rest = (1 - mp.mpf(m)) / (n_classes - 1)
            expected = largest_posterior([mp.mpf(m)] + [rest] * (n_classes - 1), gamma)
            assert eta == pytest.approx(float(expected), rel=1e-9)
    np.testing.assert_allclose(curves.max_eta[:, [0, -1]], [[1 / n_classes, 1]] * 2, rtol=1e-9)


def test_max_eta_has_both_sides_only_for_many_classes():
    binary = max_eta_curves(2, (0.5, 5.0))
    inside = slice(1, -1)
    assert np.all(binary.max_eta[:, inside] > binary.max_q[inside])  # Corollary 10
    many = max_eta_curves(1000, (1.0, 5.0))
    assert np.any(many.max_eta < many.max_q * 0.9)
    for gamma, row in zip(many.gammas, many.max_eta, strict=True):
        under = many.max_q >= tau_uc(gamma)
        assert np.all(row[under] >= many.max_q[under])


def test_tau_curves():
    curves = tau_curves(np.array([0.5, 2.0]))
    assert curves.tau_oc.tolist() == [tau_oc(0.5), tau_oc(2.0)]
    assert curves.tau_uc.tolist() == [tau_uc(0.5), tau_uc(2.0)]


@pytest.mark.parametrize("gamma", [0.01, 0.0293, 0.02935, 0.5, 1.0, 2.0, 5.0])
def test_class_counts_near_the_uniform_row(gamma):
    (k,) = class_counts(np.array([gamma])).near_uniform

    def near_uniform(k):
        step = mp.mpf(10) ** -12
        return [mp.mpf(1) / k + step, *[mp.mpf(1) / k - step / (k - 1)] * (k - 1)]

    with mp.workdps(40):
        assert is_over(near_uniform(k), gamma)
        assert not is_over(near_uniform(k - 1), gamma)


@pytest.mark.parametrize("gamma", [0.01, 1.0, 1.42, 1.44, 3.0, 3.1, 10.0])
def test_class_counts_of_a_crumb(gamma):
    (k,) = class_counts(np.array([gamma])).known

    def rows(k):
        for d in np.geomspace(1e-12, 0.99 / k, 60):
            yield [(1 - mp.mpf(d)) / (k - 1)] * (k - 1) + [mp.mpf(d)]

    with mp.workdps(40):
        assert any(is_over(row, gamma) for row in rows(k))
        assert not any(is_over(row, gamma) for row in rows(k - 1))


def test_class_counts_begin_at_5_and_4():
    counts = class_counts(np.geomspace(1e-4, 100, 500))
    assert (counts.near_uniform.min(), counts.known.min()) == (5, 4)
    assert np.all(np.diff(counts.near_uniform) >= 0)
    assert np.all(counts.known < counts.near_uniform)


def test_simplex_map():
    map_ = simplex_map(2.0, side=13)
    assert map_.q.shape == map_.psi.shape == (13 * 14 // 2, 3)
    np.testing.assert_allclose(map_.q.sum(axis=1), 1)
    assert map_.q.min() > 0
    assert len(np.unique(map_.q.round(12), axis=0)) == len(map_.q)
    assert np.all(
        map_.psi.max(axis=1) >= map_.q.max(axis=1) - 1e-15
    )  # three classes: never eta-overconfident
    for q, eta in list(zip(map_.q, map_.psi, strict=True))[::17]:
        assert eta.max() == pytest.approx(float(largest_posterior([mp.mpf(v) for v in q], 2.0)), rel=1e-9)


def test_arrows_lead_from_q_to_psi():
    map_ = simplex_map(3.0)
    ax = plot_simplex(map_)
    arrows = next(c for c in ax.collections if hasattr(c, "U"))
    assert 30 < len(arrows.U) < 120
    start = arrows.get_offsets()
    np.testing.assert_allclose(start, map_.q[map_.arrow] @ CORNERS)
    np.testing.assert_allclose(
        start + np.stack([arrows.U, arrows.V], axis=1), map_.psi[map_.arrow] @ CORNERS, atol=1e-12
    )
    # the triangle's three symmetries move arrows onto arrows
    rounded = {tuple(row) for row in map_.q[map_.arrow].round(9)}
    assert {(b, c, a) for a, b, c in rounded} == rounded


def test_plots_say_eta():
    axes = new_figure(9, 6).subplots(2, 2)
    plot_phi(phi_curves(GAMMAS, 3.0), ax=axes[0, 0])
    plot_max_eta(max_eta_curves(2, GAMMAS), ax=axes[0, 1])
    plot_max_eta(max_eta_curves(1000, GAMMAS), ax=axes[1, 0])
    plot_taus(tau_curves(np.geomspace(0.1, 10, 20)), ax=axes[1, 1])
    for ax in axes.flat:
        assert {"η-overconfident", "η-underconfident"} <= {text.get_text() for text in ax.texts}
    assert (axes[0, 1].get_xscale(), axes[1, 0].get_xscale()) == ("linear", "log")


def test_no_curve_is_dropped():
    gammas = (0.5, 1.0, 2.0, 3.0, 5.0, 100.0)
    phis, etas = phi_curves(gammas, 3.0), max_eta_curves(3, gammas)
    axes = [plot_phi(phis), plot_max_eta(etas)]
    for ax, rows in zip(axes, (phis.phi, etas.max_eta), strict=True):
        assert len(ax.get_legend().get_texts()) == 6
        lines = [line for line in ax.lines if "gamma" in str(line.get_label())]
        np.testing.assert_array_equal([line.get_ydata() for line in lines], rows)
    assert axes[0].get_ylim()[1] > phis.phi.max()


def test_lines_are_the_numbers():
    taus = tau_curves(np.geomspace(0.1, 10, 20))
    high, low = plot_taus(taus).lines
    np.testing.assert_array_equal(high.get_ydata(), taus.tau_uc)
    np.testing.assert_array_equal(low.get_ydata(), taus.tau_oc)
    counts = class_counts(np.geomspace(0.1, 10, 20))
    near, known = plot_class_counts(counts).lines
    np.testing.assert_array_equal(near.get_ydata(), counts.near_uniform)
    np.testing.assert_array_equal(known.get_ydata(), counts.known)


def test_nothing_is_cut_off():
    axes = new_figure(9, 8).subplots(2, 2)
    plot_phi(phi_curves(GAMMAS, 3.0), ax=axes[0, 0])
    plot_max_eta(max_eta_curves(1000, GAMMAS), ax=axes[0, 1])
    plot_simplex(simplex_map(2.0), ax=axes[1, 0])
    plot_class_counts(class_counts(np.geomspace(0.1, 10, 20)), ax=axes[1, 1])
    picture = imread(io.BytesIO(figure_bytes(axes[0, 0].figure, dpi=60)))[..., :3]
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert edge.min() == 1
