"""The demo: the study in one short run, and its figure."""

import errno
import os
import struct
import sys

import pytest

from refocal import demo
from refocal.demo import run_demo
from refocal.experiments.synthetic import Settings, compute_synthetic
from refocal.plots import new_figure

TINY = Settings(n_train=1000, n_validation=500, n_test=1000, hidden=8, epochs=8, batch_size=100)

as_root = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.fixture
def tiny(monkeypatch):
    """Train next to nothing."""
    monkeypatch.setattr(Settings, "quick", classmethod(lambda cls: TINY))


@pytest.fixture
def no_drawing(monkeypatch):
    monkeypatch.setattr(demo, "draw_demo", lambda figure, study: None)  # drawing takes a second


@pytest.mark.slow
def test_demo_is_the_quick_study(tmp_path):
    result = run_demo(str(tmp_path))
    assert result.study.settings == Settings.quick()
    assert result.figure == tmp_path / demo.FILE_NAME
    assert [path.name for path in tmp_path.iterdir()] == [demo.FILE_NAME]
    content = result.figure.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", content[16:24])
    assert 1500 <= width <= 3000
    assert 1500 <= height <= 3000
    assert 50_000 < len(content) < 2_000_000
    raw, psi = (result.study.of(5.0, method) for method in ("raw", "psi"))
    assert raw.kld > 10 * psi.kld
    summary = result.summary()
    assert f"KLD {raw.kld:.4f}, ECE {raw.ece:.3f}" in summary
    assert f"nothing to fit, leaves {psi.kld:.4f}" in summary


def test_figure_has_the_functions_above_the_nine_panels():
    figure = new_figure(12, 12)
    demo.draw_demo(figure, compute_synthetic(TINY))
    titles = [(ax.get_title(loc="left").strip(), ax.get_title()) for ax in figure.axes]
    assert [letter for letter, _ in titles[3:]] == [f"({letter})" for letter in "adebfgchi"]
    assert [title for _, title in titles[1:3]] == ["$K = 2$ classes", "$K = 1000$ classes"]


@pytest.mark.parametrize("name", ["nowhere", "a-file"])
def test_output_folder_must_exist(tmp_path, name):
    (tmp_path / "a-file").write_text("kept")
    with pytest.raises(NotADirectoryError, match=f"output folder must be an existing folder, got '.*{name}'"):
        run_demo(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


@pytest.mark.skipif(as_root, reason="root may write everywhere")
def test_read_only_folder(tmp_path, tiny, no_drawing):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match=r"cannot write '.*refocal-demo\.png': Permission denied"):
        run_demo(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_failed_write_leaves_the_old_figure(tmp_path, monkeypatch, tiny, no_drawing, code):
    (tmp_path / demo.FILE_NAME).write_text("old")

    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match=f"cannot write '.*{demo.FILE_NAME}': {os.strerror(code)}"):
        run_demo(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {demo.FILE_NAME: "old"}


def test_missing_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"^the synthetic study needs torch: pip install torch$"):
        run_demo(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_missing_matplotlib(tmp_path, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"^a plot needs matplotlib: pip install matplotlib$"):
        run_demo(tmp_path)
    assert list(tmp_path.iterdir()) == []
