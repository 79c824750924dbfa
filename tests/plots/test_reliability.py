"""Calibration pictures: every bar, line and box is where the numbers are."""

import io
import itertools
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from scipy import stats as scipy_stats

from refocal import CalibrationStats, plots, theory_plots
from refocal.plots import (
    HATCHES,
    MARKERS,
    METHOD_COLORS,
    accuracy_interval,
    figure_bytes,
    new_figure,
    plot_boxes,
    plot_raw_psi,
    plot_reliability,
)


def make_stats(seed=0, n=500, bias=0.1, n_bins=10, **options):
    """Return stats of two-class rows whose accuracy is not their confidence, some bins empty."""
    rng = np.random.default_rng(seed)
    top = rng.uniform(0.55, 0.95, n)
    labels = (rng.random(n) > top + bias * rng.random(n)).astype(int)
    return CalibrationStats(n_bins, **options).update(np.stack([top, 1 - top], axis=1), labels)


def bars(container):
    """Return the left ends, widths, lower ends and heights of bars, one row each."""
    return np.array([(b.get_x(), b.get_width(), b.get_y(), b.get_height()) for b in container])


def legend_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


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
    low, high = accuracy_interval(stats, 0.9)
    segments = np.array(errors.lines[2][0].get_segments())
    np.testing.assert_allclose(segments[:, :, 0], np.stack([(left + right) / 2] * 2, axis=1)[full])
    np.testing.assert_allclose(segments[:, :, 1], np.stack([low, high], axis=1)[full])
    assert set(legend_of(ax)) == {"calibrated", "accuracy", "gap to confidence", "90 % interval"}
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
    assert set(legend_of(ax)) == {
        "calibrated",
        f"ECE-raw {raw.ece():.3f}",
        rf"ECE-$\Psi$ {psi.ece():.3f}",
    }
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


def test_targets_are_not_mixed():
    top = make_stats()
    positive = CalibrationStats(target="positive").update(np.array([0.1, 0.9]), np.array([0, 1]))
    for call in (lambda: plot_reliability({"a": top, "b": positive}), lambda: plot_raw_psi(top, positive)):
        with pytest.raises(ValueError, match="methods must have the same target, got 'positive' and 'top'"):
            call()
    plot_raw_psi(top, make_stats(target="top"))


def test_label_of_a_level():
    assert "99.9 % interval" in legend_of(plot_reliability(make_stats(), level=0.999))


def test_boxes_are_the_quartiles():
    rng = np.random.default_rng(0)
    series = {name: {gamma: rng.normal(size=11).tolist() for gamma in (0, 1, 2)} for name in ("raw", "psi")}
    series["psi"] = dict(reversed(series["psi"].items()))  # the order is that of the first
    ax = new_figure(5, 3).subplots()
    assert plot_boxes(series, ax=ax, xlabel="gamma", ylabel="ECE", title="t") is ax
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "1", "2"]
    np.testing.assert_array_equal(ax.get_xticks(), [0, 1, 2])
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("gamma", "ECE", "t")
    assert legend_of(ax) == ["raw", "psi"]
    boxes = [patch.get_path().get_extents() for patch in ax.patches]
    medians = [line for line in ax.lines if line.get_linewidth() == 1.4]
    for i, (name, gamma) in enumerate(itertools.product(series, (0, 1, 2))):
        values = series[name][gamma]
        quarter, half, three = np.quantile(values, [0.25, 0.5, 0.75])
        assert (boxes[i].y0, boxes[i].y1) == pytest.approx((quarter, three))
        assert medians[i].get_ydata()[0] == pytest.approx(half)
        assert (boxes[i].x1 < gamma) == (name == "raw")
        assert (boxes[i].x0 > gamma) == (name == "psi")


@pytest.mark.parametrize(
    "series, text",
    [
        ({}, r"series must be 1 to 7, got 0"),
        (
            {"raw": {0: [1.0]}, "psi": {1: [1.0]}},
            r"series must have the same groups, got \[0\] and, in 'psi', \[1\]",
        ),
        ({"raw": {0: []}}, r"series must have finite numbers in every group, not so 'raw' in 0"),
        ({"raw": {0: [0.1, np.nan]}}, r"series must have finite numbers in every group, not so 'raw' in 0"),
    ],
)
def test_bad_boxes(series, text):
    with pytest.raises(ValueError, match=f"^{text}$"):
        plot_boxes(series)


def test_files_repeat_and_fonts_are_truetype():
    def draw():
        return plot_reliability({"raw": make_stats(0), "psi": make_stats(1)}).figure

    for format, start in (("png", b"\x89PNG\r\n"), ("pdf", b"%PDF-"), ("svg", b"<?xml")):
        content = figure_bytes(draw(), format)
        assert content.startswith(start)
        assert content == figure_bytes(draw(), format)
        assert b"CreationDate" not in content
    assert b"/FontFile2" in figure_bytes(draw(), "pdf")
    with pytest.raises(ValueError, match=r"^format must be one of \('png', 'pdf', 'svg'\), got 'jpg'$"):
        figure_bytes(draw(), "jpg")


def test_nothing_is_cut_off():
    """A margin of white stays around everything, the histogram above the axes included."""
    axes = new_figure(9, 8).subplots(2, 2)
    plot_reliability(make_stats(), ax=axes[0, 0], title="a title")
    plot_reliability({"raw": make_stats(), "psi": make_stats(1)}, ax=axes[0, 1], title="a title")
    plot_raw_psi(make_stats(), make_stats(1), ax=axes[1, 0], histogram=True, title="a title")
    plot_boxes({"raw": {0: [0.1, 0.2]}}, ax=axes[1, 1], xlabel="gamma", ylabel="ECE", title="a title")
    picture = imread(io.BytesIO(figure_bytes(axes[0, 0].figure, dpi=60)))[..., :3]
    assert picture.min() == 0
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert edge.min() == 1
    for ax in axes[0]:
        (strip,) = ax.child_axes
        assert ax.title.get_window_extent().y0 > strip.get_window_extent().y1


def test_missing_matplotlib(monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"^plots need matplotlib: pip install 'refocal\[plots\]'$"):
        plot_reliability(make_stats())


def test_matplotlibs_global_state_is_left_alone():
    code = (
        "import matplotlib as m, sys, numpy as np\n"  # the backend is chosen when it is looked at
        "def settings(): return {k: m.rcParams[k] for k in m.rcParams if k != 'backend'}\n"
        "before = settings()\n"
        "from refocal import CalibrationStats, plots, theory_plots as t\n"
        "s = CalibrationStats().update(np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([0, 0]))\n"
        "for f in ('png', 'pdf', 'svg'): plots.figure_bytes(plots.plot_reliability(s).figure, f)\n"
        "t.plot_phi(t.phi_curves((1.0,), 1.0)); t.plot_simplex(t.simplex_map(1.0))\n"
        "assert settings() == before; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    assert mpl.rcParams["pdf.fonttype"] == 3


# What people without one kind of cone see, on linear RGB: Machado, Oliveira, Fernandes (2009), severity 1.
VISION = {
    "normal": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}


def cielab(color, vision):
    """Return CIE L*a*b* (D65) of a colour as somebody sees it."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.asarray(VISION[vision]) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.asarray(to_xyz) @ linear / [0.9505, 1.0, 1.089]
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def least_distance(colors, vision):
    seen = [cielab(color, vision) for color in colors]
    return min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2))


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(
    "colors",
    [METHOD_COLORS, theory_plots.CLASS_COLORS, theory_plots.GAMMA_COLORS],
    ids=["methods", "classes", "gammas"],
)
def test_colours_differ_for_everyone(colors, vision):
    assert least_distance(colors, vision) > 15


def test_red_and_green_would_be_seen():
    assert least_distance(("#d62728", "#7f7f00"), "deutan") < 8


def test_colours_are_not_all_there_is():
    assert len(set(MARKERS)) == len(set(HATCHES)) == len(METHOD_COLORS) == len(set(METHOD_COLORS))
    assert plots.LINE_STYLES[0] != plots.LINE_STYLES[1]


def test_single_trials_are_lines_in_the_colour_of_their_series():
    ax = plots.plot_boxes({"raw": {0: [1.0], 1: [2.0]}, "psi": {0: [1.5], 1: [3.0]}})
    medians = [line for line in ax.lines if line.get_linewidth() == 3.0]
    assert [line.get_color() for line in medians] == [c for c in plots.METHOD_COLORS[:2] for _ in range(2)]


def test_the_legend_of_boxes_covers_no_box():
    numbers = {group: [1.0, 2.0, 3.0] for group in range(4)}
    ax = plots.plot_boxes(dict.fromkeys("abcde", numbers))
    ax.figure.canvas.draw()
    legend = ax.get_legend().get_window_extent()
    highest = ax.transData.transform((0, 3.0))[1]
    assert legend.y0 > highest
