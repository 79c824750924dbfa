"""Reliability diagrams: every bar and line is where the numbers are."""

import numpy as np
import pytest
from drawn import bars, legend_of, make_stats
from scipy import stats as scipy_stats

from refocal import CalibrationStats
from refocal.plots import (
    HATCHES,
    accuracy_interval,
    figure_bytes,
    new_figure,
    plot_raw_psi,
    plot_reliability,
    share_legend,
)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_interval_is_scipys_wilson(level):
    stats = make_stats(n=60, n_bins=25)
    low, high = accuracy_interval(stats, level)
    assert (stats.counts == 0).any()
    assert (stats.hits == stats.counts)[stats.counts > 0].any()  # the interval of 1.0 too
    for j in range(25):
        if stats.counts[j] == 0:
            assert np.isnan(low[j])
            assert np.isnan(high[j])
            continue
        test = scipy_stats.binomtest(int(stats.hits[j]), int(stats.counts[j]))
        expected = test.proportion_ci(level, method="wilson")
        assert (low[j], high[j]) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("level", [0, 1, 90, -0.1, float("nan")])
def test_level_must_be_a_fraction(level):
    with pytest.raises(ValueError, match=rf"^level must be within \(0, 1\), got {level}$"):
        plot_reliability(make_stats(), level=level)


def test_bars_gaps_and_intervals_of_one_method():
    stats = make_stats()
    full = stats.counts > 0
    assert 0 < full.sum() < 10
    ax = new_figure(4, 5).subplots()
    assert plot_reliability(stats, ax=ax, title="net") is ax
    accuracy, gap, errors = ax.containers
    left, right, acc, conf = stats.edges[:-1], stats.edges[1:], stats.accuracy, stats.confidence
    np.testing.assert_allclose(bars(accuracy), np.stack([left, right - left, 0 * left, acc], axis=1)[full])
    np.testing.assert_allclose(bars(gap), np.stack([left, right - left, acc, conf - acc], axis=1)[full])
    low, high = accuracy_interval(stats, 0.95)
    segments = np.array(errors.lines[2][0].get_segments())
    np.testing.assert_allclose(segments[:, :, 0], np.stack([(left + right) / 2] * 2, axis=1)[full])
    np.testing.assert_allclose(segments[:, :, 1], np.stack([low, high], axis=1)[full])
    assert set(legend_of(ax)) == {"calibrated", "accuracy", "gap to confidence", "95 % interval"}
    assert ax.get_legend().get_title().get_text() == f"ECE {stats.ece():.3f}"
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("confidence", "accuracy", "net")


def test_histogram_of_one_method():
    stats = make_stats()
    (strip,) = plot_reliability(stats).child_axes
    (stairs,) = strip.patches
    np.testing.assert_allclose(stairs.get_data().values, stats.counts / 500)
    np.testing.assert_array_equal(stairs.get_data().edges, stats.edges)
    assert strip.get_ylim()[1] > stats.counts.max() / 500
    assert plot_reliability(stats, histogram=False).child_axes == []


def test_lines_of_several_methods():
    methods = {"raw": make_stats(0), "TS": make_stats(1, bias=-0.2), "psi": make_stats(2, bias=0.0)}
    ax = plot_reliability(methods, level=0.8)
    diagonal = ax.lines[-1]
    for (name, stats), line in zip(methods.items(), ax.lines[:-1][::3], strict=True):  # 2 caps each follow
        full = stats.counts > 0
        np.testing.assert_allclose(line.get_xdata(), stats.confidence[full])
        np.testing.assert_allclose(line.get_ydata(), stats.accuracy[full])
        assert line.get_label() == f"{name}, ECE {stats.ece():.3f}"
    np.testing.assert_array_equal(diagonal.get_xydata(), [[0, 0], [1, 1]])
    assert len(ax.containers) == 3
    (strip,) = ax.child_axes
    assert len(strip.patches) == 3
    assert len(plot_reliability(methods, level=None).containers) == 0


def test_most_methods_are_told_apart():
    methods = {f"method {i}": make_stats(i) for i in range(7)}
    lines = [line for line in plot_reliability(methods, level=None).lines if line.get_label()[0] == "m"]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 7
    for count in (0, 8):
        with pytest.raises(ValueError, match=f"^methods must be 1 to 7, got {count}$"):
            plot_reliability({f"{i}": make_stats() for i in range(count)})


def test_no_rows():
    for call in (
        lambda: plot_reliability(CalibrationStats()),
        lambda: plot_reliability({"raw": make_stats(), "psi": CalibrationStats()}),
        lambda: plot_raw_psi(make_stats(), CalibrationStats()),
    ):
        with pytest.raises(ValueError, match="stats must have at least 1 row"):
            call()


def test_positive_class():
    stats = CalibrationStats(target="positive").update(np.array([0.1, 0.9, 0.4]), np.array([0, 1, 0]))
    ax = plot_reliability(stats)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("probability of class 1", "share of class 1")


def test_the_extra_bin_of_torchmetrics_can_be_drawn():
    stats = CalibrationStats(convention="torchmetrics")
    stats.update(np.array([[1.0, 0.0], [0.7, 0.3]]), np.array([0, 1]))
    assert len(bars(plot_reliability(stats).containers[0])) == 2
    assert len(figure_bytes(plot_raw_psi(stats, stats).figure)) > 1000


def test_raw_and_psi_stand_side_by_side_in_their_bin():
    raw, psi = make_stats(0), make_stats(1, bias=0.0)
    ax = plot_raw_psi(raw, psi, title="Fig. 4")
    containers = ax.containers
    assert len(containers) == 2
    for i, (stats, container) in enumerate(zip((raw, psi), containers, strict=True)):
        full = stats.counts > 0
        left, width, bottom, height = bars(container).T
        np.testing.assert_allclose(height, stats.accuracy[full])
        np.testing.assert_array_equal(bottom, 0)
        middle = ((stats.edges[:-1] + stats.edges[1:]) / 2)[full]
        if i == 0:
            np.testing.assert_allclose(left, stats.edges[:-1][full])
            assert np.all(left + width < middle)
        else:
            np.testing.assert_allclose(left, middle)
            assert np.all(left + width <= stats.edges[1:][full])
        assert container[0].get_hatch() == HATCHES[i]
    assert set(legend_of(ax)) == {"calibrated", "raw", r"$\Psi$"}
    errors = rf"ECE-raw {raw.ece():.3f}, ECE-$\Psi$ {psi.ece():.3f}"
    assert ax.get_legend().get_title().get_text() == errors
    full = plot_raw_psi(raw, psi, level=0.9, histogram=True)
    assert len(full.containers) == 4
    assert len(full.child_axes) == 1


def test_raw_and_psi_need_the_same_bins():
    with pytest.raises(ValueError, match=r"^raw and psi must have the same bins, got 10 and 15$"):
        plot_raw_psi(make_stats(), make_stats(n_bins=15))
    with pytest.raises(
        ValueError, match=r"^raw and psi must have bins of the same convention, got 'refocal' and 'guo'$"
    ):
        plot_raw_psi(make_stats(), make_stats(convention="guo"))


def test_independent_labels():
    rng = np.random.default_rng(0)
    probs, labels = rng.random((90, 3)), rng.integers(2, size=(90, 3))
    stats = CalibrationStats(4, task="multilabel", n_labels=3).update(probs, labels)
    ax = plot_reliability(stats)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("probability of the labels", "share of the labels")
    np.testing.assert_allclose(bars(ax.containers[0])[:, 3], stats.accuracy)
    one = plot_reliability({"first": stats.of_class(0), "last": stats.of_class(2)}, level=None)
    alone = CalibrationStats(4, task="binary").update(probs[:, 2], labels[:, 2])
    np.testing.assert_allclose(one.lines[1].get_ydata(), alone.accuracy)
    assert one.get_xlabel() == "probability of class 1"
    # Entries of a row may all be the same draw, so an interval counts a third of them.
    low, high = accuracy_interval(stats, 0.9)
    for j in range(4):
        n, p, z = stats.counts[j] / 3, stats.accuracy[j], scipy_stats.norm.ppf(0.95)
        # Wilson's ends are where the score test just rejects: (p - e)^2 = z^2 e (1 - e) / n.
        for end in (low[j], high[j]):
            assert (p - end) ** 2 == pytest.approx(z**2 * end * (1 - end) / n, rel=1e-9)


def test_targets_are_not_mixed():
    top = make_stats()
    positive = CalibrationStats(target="positive").update(np.array([0.1, 0.9]), np.array([0, 1]))
    for call in (lambda: plot_reliability({"a": top, "b": positive}), lambda: plot_raw_psi(top, positive)):
        with pytest.raises(ValueError, match="methods must have the same target, got 'positive' and 'top'"):
            call()
    plot_raw_psi(top, make_stats(target="top"))


def test_label_of_a_level():
    assert "99.9 % interval" in legend_of(plot_reliability(make_stats(), level=0.999))


def test_panels_share_a_legend_that_has_no_numbers_of_one_of_them():
    figure = new_figure(6, 4)
    for i, ax in enumerate(figure.subplots(1, 2)):
        plot_raw_psi(make_stats(i), make_stats(i + 2), ax=ax)
    share_legend(figure.axes)
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"calibrated", "raw", r"$\Psi$"}
    assert [ax.get_legend() for ax in figure.axes] == [None, None]


def test_a_legend_of_no_axes():
    with pytest.raises(ValueError, match=r"^axes must hold at least one, got none$"):
        share_legend([])


@pytest.mark.parametrize("title", ["", "a title", "a title\nof two lines"])
@pytest.mark.parametrize("histogram", [True, False])
@pytest.mark.parametrize("draw", ["one", "several", "raw and psi"])
def test_a_new_figure_shows_all_that_is_drawn(draw, histogram, title):
    """Nothing that is drawn, labels and ticks too, lies outside what `savefig` writes."""
    stats = make_stats()
    options = {"histogram": histogram, "title": title}
    if draw == "raw and psi":
        ax = plot_raw_psi(stats, stats, **options)
    else:
        ax = plot_reliability(stats if draw == "one" else {"raw": stats, "TS": stats}, **options)
    figure = ax.figure
    figure.canvas.draw()
    drawn = figure.get_tightbbox(figure.canvas.get_renderer())  # in inches
    width, height = figure.get_size_inches()
    assert 0 < drawn.x0 < drawn.x1 < width
    assert 0 < drawn.y0 < drawn.y1 < height
