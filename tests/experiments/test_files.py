"""What studies put into files: the box plots of trials."""

import pytest

from refocal.experiments.files import BoxPanel, box_figure

SERIES = {"raw": {"CE": [3.0, 4.0], "FL-2": [9.0, 10.0]}, "psi": {"CE": [3.0, 4.0], "FL-2": [1.0, 2.0]}}


def labels(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_one_data_set_alone_fills_the_figure():
    figure = box_figure([BoxPanel("vehicle", SERIES)], columns=5)
    (ax,) = figure.axes
    assert ax.get_subplotspec().get_geometry()[:2] == (1, 1)
    assert figure.get_figwidth() < 4
    assert ax.get_ylim()[0] == 0 < 10 < ax.get_ylim()[1] < 11  # the legend is above, and takes no room inside
    assert labels(figure) == ["raw", "psi"]


def test_published_values_are_marked_where_they_belong_and_one_legend_serves_all():
    published = {"raw": {"FL-2": 20.0}, "psi": {"FL-2": 1.5, "FL-3": 9.0}}  # of FL-3 there is no box
    panels = [BoxPanel("a", SERIES), BoxPanel("b", SERIES, published), BoxPanel("c", SERIES)]
    figure = box_figure(panels, columns=2)
    a, b, c, empty = figure.axes
    assert labels(figure) == ["raw", "psi", "published"]
    assert [ax.get_legend() for ax in (a, b, c)] == [None] * 3
    assert not empty.axison
    (marks,) = (part for part in b.collections if part.get_label() == "published")
    assert marks.get_offsets().tolist() == [[pytest.approx(0.8), 20.0], [pytest.approx(1.2), 1.5]]
    assert b.get_ylim()[1] > 20
    assert "published" not in {part.get_label() for part in a.collections}


BOX = "box: middle half and median; whiskers: trials within 1.5 box lengths; points: others"


@pytest.mark.parametrize(
    "counts, said",
    [
        ((1, 1), "n = 1 trial; every trial is a point"),
        ((3, 1), "n = 1 to 3 trials; every trial is a point"),
        ((3, 10), f"n = 3 to 10 trials; {BOX}; of fewer than 5 trials each is a point"),
        ((10, 10), f"n = 10 trials; {BOX}"),
    ],
)
def test_the_number_of_trials_stands_under_the_panels(counts, said):
    panels = [BoxPanel("a", {"raw": {"CE": [1.0] * n}}) for n in counts]
    assert box_figure(panels, columns=2).get_supxlabel().replace("\n", " ") == said


def test_no_empty_figure():
    with pytest.raises(ValueError, match=r"^panels must hold at least one, got none$"):
        box_figure([], columns=2)
