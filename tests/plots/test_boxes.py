"""Box plots: every box and mark is where the numbers are."""

import itertools

import numpy as np
import pytest
from drawn import legend_of
from matplotlib import colors as mpl_colors

from refocal import plots
from refocal.plots import new_figure, plot_boxes


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


def test_fewer_than_5_numbers_are_points_in_the_colour_of_their_series():
    ax = plots.plot_boxes({"raw": {0: [1.0], 1: [2.0, 4.0, 3.0, 2.0]}, "psi": {0: [1.5], 1: [3.0]}})
    assert not ax.patches
    raw, psi = ax.collections
    assert sorted(raw.get_offsets()[:, 1]) == [1.0, 2.0, 2.0, 3.0, 4.0]
    assert sorted(psi.get_offsets()[:, 1]) == [1.5, 3.0]
    for points, color in zip((raw, psi), plots.METHOD_COLORS, strict=False):
        assert mpl_colors.same_color(points.get_facecolor()[0][:3], color)
    (x, _), (_, _) = psi.get_offsets()
    assert 0 < x < 0.5  # where its box would be
    assert legend_of(ax) == ["raw", "psi"]


def test_boxes_begin_with_5_numbers():
    ax = plots.plot_boxes({"raw": {0: [1.0, 2.0, 3.0, 4.0, 5.0], 1: [2.0, 2.0, 3.0, 4.0]}})
    (box,) = ax.patches
    assert box.get_path().get_extents().y1 == 4.0
    (points,) = ax.collections
    places = points.get_offsets()[:, 0]
    assert len(set(places)) == 4  # two of the numbers are equal, and both show
    assert (places.mean(), places.min() > 0.75, places.max() < 1.25) == (pytest.approx(1.0), True, True)
    assert legend_of(ax) == ["raw"]  # once, although it is drawn in two ways


def test_an_axis_need_not_start_at_0():
    numbers = {0: [25.0, 26.0], 1: [26.5, 27.0]}
    assert plots.plot_boxes({"raw": numbers}, from_zero=False).get_ylim()[0] > 20
    assert plots.plot_boxes({"raw": numbers}).get_ylim()[0] == 0


def test_the_legend_of_boxes_covers_no_box():
    numbers = {group: [1.0, 2.0, 3.0] for group in range(4)}
    ax = plots.plot_boxes(dict.fromkeys("abcde", numbers))
    ax.figure.canvas.draw()
    legend = ax.get_legend().get_window_extent()
    highest = ax.transData.transform((0, 3.0))[1]
    assert legend.y0 > highest


def test_boxes_start_at_0_unless_a_number_is_negative():
    numbers = {0: [0.5, 0.6, 0.7]}
    assert plot_boxes({"raw": numbers}).get_ylim()[0] == 0
    low = plot_boxes({"raw": numbers, "psi": {0: [-0.1, 0.2]}}).get_ylim()[0]
    assert low <= -0.1


def test_a_marker_at_the_top_is_not_cut():
    """Numbers that lie close together, far above 0."""
    ax = plot_boxes({"raw": {0: [0.99, 1.0]}}, published={"raw": {0: 1.001}}, legend=False)
    ax.figure.canvas.draw()
    radius = 6.0 / 2 * ax.figure.dpi / 72  # of a marker of 30 square points, a little more than half of it
    (top,) = ax.transData.transform([(0, 1.001)])
    assert top[1] + radius < ax.bbox.y1


def test_published_numbers_are_marks_in_their_box():
    numbers = {0: [1.0, 2.0, 3.0, 4.0, 5.0], 1: [2.0, 2.5, 2.0, 2.5, 2.2]}
    ax = plot_boxes({"raw": numbers, "psi": numbers}, published={"psi": {1: 2.2, 7: 9.0}, "LS": {0: 1.0}})
    (marks,) = ax.collections
    ((x, y),) = marks.get_offsets()
    assert y == 2.2
    box = ax.patches[3].get_path().get_extents()  # that of psi in group 1
    assert box.x0 < x < box.x1
    assert legend_of(ax) == ["raw", "psi", "published"]


def test_boxes_without_a_legend_keep_no_room_for_it():
    numbers = {0: [1.0, 2.0, 3.0]}
    ax, with_legend = (plot_boxes({"raw": numbers}, legend=legend) for legend in (False, True))
    assert ax.get_legend() is None
    assert 3 < ax.get_ylim()[1] < 3.2 < with_legend.get_ylim()[1]
