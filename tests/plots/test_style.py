"""What all pictures share: files, settings, colours."""

import io
import itertools
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
from drawn import make_stats
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from refocal import plots
from refocal.plots import (
    HATCHES,
    MARKERS,
    METHOD_COLORS,
    figure_bytes,
    new_figure,
    plot_boxes,
    plot_raw_psi,
    plot_reliability,
)


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
    for draw in (lambda: plot_reliability(make_stats()), lambda: new_figure(1, 1)):
        with pytest.raises(ImportError, match=r"^a plot needs matplotlib: pip install matplotlib$"):
            draw()


def test_pyplot_shows_a_figure_that_was_made_without_axes():
    ax = plot_reliability(make_stats())
    assert plt.figure(plt.get_fignums()[-1]) is ax.figure
    count = len(plt.get_fignums())
    plot_reliability(make_stats(), ax=new_figure(4, 5).subplots())
    assert len(plt.get_fignums()) == count


def test_matplotlibs_settings_are_left_alone():
    code = (
        "import matplotlib as m, sys, numpy as np\n"  # the backend is chosen when it is looked at
        "def settings(): return {k: m.rcParams[k] for k in m.rcParams if k != 'backend'}\n"
        "before = settings()\n"
        "from refocal import CalibrationStats, plots as p\n"
        "s = CalibrationStats().update(np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([0, 0]))\n"
        "axes = p.new_figure(5, 5).subplots(2, 2).flat\n"
        "p.plot_reliability(s, ax=axes[0])\n"
        "for f in ('png', 'pdf', 'svg'): p.figure_bytes(axes[0].figure, f)\n"
        "p.plot_phi(p.phi_curves((1.0,), 1.0), ax=axes[1]); p.plot_simplex(p.simplex_map(1.0), ax=axes[2])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"  # files need no pyplot
        "p.plot_reliability(s)\n"
        "assert settings() == before"
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
    [METHOD_COLORS, plots.CLASS_COLORS, plots.GAMMA_COLORS],
    ids=["methods", "classes", "gammas"],
)
def test_colours_differ_for_everyone(colors, vision):
    assert least_distance(colors, vision) > 15


def test_red_and_green_would_be_seen():
    assert least_distance(("#d62728", "#7f7f00"), "deutan") < 8


def test_colours_are_not_all_there_is():
    assert len(set(MARKERS)) == len(set(HATCHES)) == len(METHOD_COLORS) == len(set(METHOD_COLORS))
    assert plots.LINE_STYLES[0] != plots.LINE_STYLES[1]
