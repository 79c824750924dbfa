"""The command line: what it prints, and its exit codes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import refocal
from refocal import demo
from refocal.cli import main
from refocal.experiments.synthetic import Settings


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train next to nothing and draw nothing: both take seconds."""
    tiny = Settings(n_train=1000, n_validation=500, n_test=1000, hidden=8, epochs=8, batch_size=100)
    monkeypatch.setattr(Settings, "quick", classmethod(lambda cls: tiny))
    monkeypatch.setattr(demo, "draw_demo", lambda figure, study: None)


@pytest.mark.usefixtures("small_demo")
def test_demo_prints_the_table_and_where_the_figure_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    result = demo.run_demo(tmp_path)
    assert result.study.table() in out
    assert result.summary() in out
    assert out.endswith(f"figure: {tmp_path / demo.FILE_NAME}\n")
    assert (tmp_path / demo.FILE_NAME).is_file()
    assert [line for line in err.splitlines() if not line.startswith("refocal: compiled ")] == []


@pytest.mark.usefixtures("small_demo")
def test_demo_writes_here_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    assert (tmp_path / demo.FILE_NAME).is_file()


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"refocal {refocal.__version__}\n"


@pytest.mark.parametrize("argv", [["--help"], ["demo", "--help"]])
def test_help_has_an_example(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    assert "example:\n  refocal demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "refocal: error: the following arguments are required: COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["demo", "--out"], "refocal demo: error: argument --out: expected one argument"),
        (["demo", "--size", "3"], "unrecognized arguments: --size 3"),
    ],
)
def test_wrong_usage_is_2(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err


def test_missing_folder_is_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "nowhere")
    assert main(["demo", "--out", folder]) == 2
    assert capsys.readouterr().err == f"refocal: output folder must be an existing folder, got {folder!r}\n"


@pytest.mark.usefixtures("small_demo")
def test_failed_write_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", fail)
    assert main(["demo", "--out", str(tmp_path)]) == 1
    path = str(tmp_path / demo.FILE_NAME)
    assert capsys.readouterr().err == f"refocal: cannot write {path!r}: Permission denied\n"
    assert list(tmp_path.iterdir()) == []


def test_missing_matplotlib_is_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["demo", "--out", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "refocal: a plot needs matplotlib: pip install matplotlib\n"
    assert list(tmp_path.iterdir()) == []


def test_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run_demo", interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "refocal: interrupted\n"


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(demo, "run_demo", broken)
    assert main(["demo"]) == 1
    line = "refocal: RuntimeError: a bug (this is a bug of refocal"
    assert capsys.readouterr().err == f"{line}: refocal --debug shows where)\n"
    assert main(["--debug", "demo"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith(f"{line})\n")


def test_python_m() -> None:
    done = subprocess.run([sys.executable, "-m", "refocal", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"refocal {refocal.__version__}\n", "")
    done = subprocess.run([sys.executable, "-m", "refocal", "dance"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_import_does_not_import_matplotlib() -> None:
    code = "import sys, refocal.cli, refocal.demo; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = [sys.executable, "-m", "refocal", "data", "list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()  # as `head` does, only earlier
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_another_broken_pipe_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(demo, "run_demo", broken)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == "refocal: [Errno 32] Broken pipe\n"


@pytest.mark.parametrize("study", ["tabular", "images"])
def test_tables_need_no_torch(study: str, tmp_path: Path) -> None:
    code = (
        "import sys; from refocal.cli import main; "
        f"code = main(['reproduce', '{study}', '--report', '--out', sys.argv[1]]); "
        f"import refocal.experiments.{study}.tables; sys.exit('torch' if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [f"refocal: {tmp_path / 'runs'} is not there: no sweep has written to {tmp_path}"],
    )
