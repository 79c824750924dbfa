"""The commands for files and numbers: what they print, in words and as JSON."""

import inspect
import io
import json
import re
import subprocess
import sys
import time

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import refocal
from refocal.cli import adapters, apply, choose, main, metrics, options, tau, threshold
from refocal.cli.printing import Progress, progress_line, to_json

COMMANDS = ("apply", "choose", "metrics", "tau", "threshold", "adapters")
CLASSES = ["ant", "bee", "cat"]
SCORES = ["--scores", "logit_*", "--logits"]


@pytest.fixture
def rows(tmp_path):
    """Logits of a focal minimiser with labels in words, as Parquet."""
    rng = np.random.default_rng(0)
    posterior = rng.dirichlet([0.7] * 3, 3000)
    labels = (rng.random((3000, 1)) > posterior.cumsum(axis=1)).sum(axis=1)
    logits = refocal.Focal(2.0).logits(posterior)
    columns = {f"logit_{c}": logits[:, k] for k, c in enumerate(CLASSES)}
    frame = pandas.DataFrame(columns | {"species": np.array(CLASSES)[labels], "y": labels})
    frame.to_parquet(tmp_path / "in.parquet")
    return tmp_path / "in.parquet", logits, labels


def printed(argv, capsys):
    assert main([str(word) for word in argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_tau(capsys):
    out = printed(["tau", "--gamma", "2"], capsys)
    assert [line.split()[:2] for line in out.splitlines()] == [["tau_oc", "0.104058"], ["tau_uc", "0.297637"]]
    found = json.loads(printed(["tau", "--gamma", "1", "--json"], capsys))
    assert found["tau_oc"] == pytest.approx(np.exp(-2), rel=1e-12)  # the paper's closed forms at gamma 1
    assert found["tau_uc"] == pytest.approx(np.exp(-1), rel=1e-12)
    assert main(["tau", "--gamma", "0"]) == 2
    assert capsys.readouterr().err == "refocal: gamma must be finite and > 0, got 0.0\n"


def test_threshold(capsys):
    out = printed(["threshold", "--gamma", "2", "--alpha", ".25", "--posterior", ".5"], capsys)
    assert out.splitlines()[1].split() == ["0.5", "0.398824", "-0.410367"]
    out = printed(
        ["threshold", "--gamma", "2", "--alpha", ".25", "--posterior", ".1", ".75", "--json"], capsys
    )
    found = json.loads(out)["thresholds"]
    assert [line["posterior"] for line in found] == [0.1, 0.75]
    assert found[1]["score"] == pytest.approx(0.5, abs=1e-9)  # the README's table
    copied = ["threshold", "--sigmoid", "--gamma", "2", "--alpha", ".25"]  # as for `refocal apply`
    assert printed(copied, capsys) == printed(["threshold", "--gamma", "2", "--alpha", ".25"], capsys)
    assert main(["threshold", "--posterior", ".5"]) == 2
    wanted = "--gamma, --objective or --calibration must say what the model was trained with"
    assert capsys.readouterr().err == f"refocal: {wanted}\n"


def test_adapters(capsys, tmp_path):
    out = printed(["adapters"], capsys)
    assert len(out.splitlines()) == len(refocal.adapters.__all__) + 1
    assert "torchvision" in out
    assert len(json.loads(printed(["adapters", "--json"], capsys))) == len(refocal.adapters.__all__)
    given = ["adapters", "--library", "torchvision", "--args", "alpha=0.25", "gamma=2"]
    assert printed(given, capsys) == "SigmoidFocal(gamma=2.0, alpha=0.25, label_smoothing=0.0)\n"
    spec = tmp_path / "spec.json"
    spec.write_text(printed([*given, "--json"], capsys))
    out = printed(["threshold", "--objective", spec], capsys)
    assert "0.398824" in out
    given = ["adapters", "--library", "kornia", "--args", "alpha=None", "gamma=2.0", "reduction=mean"]
    assert printed(given, capsys).startswith("Focal(gamma=2.0")


@pytest.mark.parametrize(
    "given, text",
    [
        (["--library", "tensorbored"], "--library must be one of "),
        (["--library", "torchvision", "--args", "beta=1"], "got an unexpected keyword argument 'beta'"),
        (["--library", "torchvision", "--args", "gamma"], "--args must be like gamma=2, got 'gamma'"),
        (["--library", "torchvision", "--args", "gamma=two"], "gamma must be a number"),
        (["--library", "ultralytics_varifocal"], "qualities of boxes"),
        (["--args", "gamma=2"], "--args: for --library only"),
    ],
)
def test_adapters_refuse(given, text, capsys):
    assert main(["adapters", *given]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert text in err


@pytest.mark.parametrize("label", ["species", "y"])
def test_metrics(label, rows, capsys):
    path, logits, labels = rows
    out = printed(["metrics", path, *SCORES, "--label", label, "--gamma", "2", "--json"], capsys)
    found = json.loads(out)
    assert (found["rows"], found["task"], found["classes"]) == (3000, "multiclass", CLASSES)
    for name, probs in {
        "raw": refocal.Focal(0.0).posterior(logits),
        "posterior": refocal.Focal(2.0).posterior(logits),
    }.items():
        measured = found["metrics"][name]
        assert measured["nll"] == pytest.approx(refocal.nll(probs, labels), rel=1e-9)
        assert measured["ece"] == pytest.approx(refocal.ece(probs, labels), rel=1e-9)
        assert measured["brier"] == pytest.approx(refocal.brier(probs, labels), rel=1e-9)
        assert measured["error_rate"] == pytest.approx(refocal.error_rate(probs, labels), rel=1e-9)
    text = printed(["metrics", path, *SCORES, "--label", label, "--gamma", "2"], capsys)
    origin = (
        "from the names of the score columns" if label == "species" else "labels are their numbers, 0 to 2"
    )
    columns = "scores: 'logit_ant', 'logit_bee', 'logit_cat'"
    assert text.startswith(f"3,000 rows; 3 classes: ant, bee, cat ({origin}); {columns}\n")
    assert f"{found['metrics']['posterior']['ece']:.6f}" in text
    out = printed(["metrics", path, *SCORES, "--label", label, "--classwise", "--json"], capsys)
    expected = refocal.classwise_ece(refocal.Focal(0.0).posterior(logits), labels)
    assert json.loads(out)["metrics"]["raw"]["classwise_ece"] == pytest.approx(expected, rel=1e-9)


def test_metrics_of_a_csv_file_are_those_of_parquet(rows, tmp_path, capsys):
    path, _, _ = rows
    pandas.read_parquet(path).to_csv(tmp_path / "in.csv", index=False)
    found = [
        json.loads(printed(["metrics", p, *SCORES, "--label", "species", "--json"], capsys))["metrics"]["raw"]
        for p in (path, tmp_path / "in.csv")
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_metrics_from_a_pipe(rows, tmp_path, capsys, monkeypatch):
    path, _, _ = rows
    text = pandas.read_parquet(path).to_csv(index=False)
    for label, classes in (("species", "ant,bee,cat"), ("species", None), ("y", "0,1,2")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        more = ["--classes", classes] if classes else []
        out = printed(["metrics", "-", *SCORES, "--label", label, *more], capsys)
        assert out.startswith("3,000 rows; 3 classes: ")


def test_classes_have_an_order(rows, capsys):
    """Names that are not those of the columns have no order that the file tells."""
    path, logits, labels = rows
    frame = pandas.read_parquet(path)
    frame["word"] = np.array(["zebra", "yak", "wolf"])[labels]
    frame.to_parquet(path)
    assert main(["metrics", str(path), *SCORES, "--label", "word"]) == 2
    assert capsys.readouterr().err == (
        "refocal: label 'word' holds names ('wolf', 'yak', 'zebra') that are not those of the score columns "
        "'logit_ant', 'logit_bee', 'logit_cat': say --classes wolf,yak,zebra (here in sorted order), "
        "in the order of these columns\n"
    )
    given = ["metrics", path, *SCORES, "--label", "word", "--classes", "zebra,yak,wolf", "--json"]
    found = json.loads(printed(given, capsys))
    raw = refocal.Focal(0.0).posterior(logits)
    assert found["metrics"]["raw"]["error_rate"] == pytest.approx(refocal.error_rate(raw, labels), rel=1e-9)


def test_binary(tmp_path, capsys):
    rng = np.random.default_rng(0)
    p = rng.random(2000)
    y = rng.random(2000) < p
    pq.write_table(pa.table({"p": p, "y": y, "word": np.where(y, "yes", "no")}), tmp_path / "in.parquet")
    expected = refocal.brier(np.stack([1 - p, p], axis=1), y.astype(int))
    for label, more in (("y", []), ("word", ["--classes", "no,yes"])):
        given = ["metrics", tmp_path / "in.parquet", "--scores", "p", "--probs", "--label", label, "--json"]
        found = json.loads(printed([*given, *more], capsys))
        assert found["task"] == "binary"
        assert found["metrics"]["raw"]["brier"] == pytest.approx(expected, rel=1e-9)
    choice = tmp_path / "choice.json"
    given = [
        "--scores",
        "p",
        "--probs",
        "--label",
        "word",
        "--classes",
        "no,yes",
        "--gamma",
        "2",
        "-o",
        choice,
    ]
    assert main(["choose", str(tmp_path / "in.parquet"), *map(str, given)]) == 0
    out, err = capsys.readouterr()
    assert "classes: no, yes (from --classes)" in out
    assert err == f"refocal: {options.ONE_COLUMN}\n"
    assert json.loads(choice.read_text())["winner"] == "raw"


@pytest.fixture
def labels_file(tmp_path):
    """Logits of a minimiser of a sigmoid focal loss for three independent labels."""
    rng = np.random.default_rng(0)
    posterior = rng.random((3000, 3))
    labels = (rng.random((3000, 3)) < posterior).astype(int)
    logits = refocal.SigmoidFocal(2.0, 0.25).logits(posterior)
    columns = {f"z_{c}": logits[:, k] for k, c in enumerate("abc")}
    pq.write_table(
        pa.table(columns | {f"y_{c}": labels[:, k] for k, c in enumerate("abc")}), tmp_path / "in.parquet"
    )
    return tmp_path / "in.parquet", posterior, labels


LABELS = ["--scores", "z_*", "--logits", "--label", "y_*", "--task", "multilabel"]
SIGMOID = ["--sigmoid", "--gamma", "2", "--alpha", ".25"]


def test_independent_labels(labels_file, capsys, tmp_path):
    path, posterior, labels = labels_file
    found = json.loads(printed(["metrics", path, *LABELS, *SIGMOID, "--json"], capsys))
    assert (found["task"], found["rows"], found["classes"]) == ("multilabel", 3000, ["a", "b", "c"])
    nll = -np.log(np.where(labels == 1, posterior, 1 - posterior)).mean()
    assert found["metrics"]["posterior"]["nll"] == pytest.approx(nll, rel=1e-6)
    assert found["metrics"]["raw"]["nll"] > nll + 0.05
    out = tmp_path / "out.parquet"
    printed(["apply", path, out, *LABELS[:3], *SIGMOID], capsys)
    table = pq.read_table(out)
    np.testing.assert_allclose(table.column("prob_b").to_numpy(), posterior[:, 1], rtol=1e-6)


@pytest.mark.parametrize("task", ["multilabel", "binary"])
def test_choose_for_sigmoids(task, labels_file, capsys, tmp_path):
    if "task" not in inspect.signature(refocal.choose_calibration).parameters:
        pytest.skip("choose_calibration is for a softmax alone")
    path, posterior, _ = labels_file
    given, choice, out = LABELS, tmp_path / "choice.json", tmp_path / "out.parquet"
    if task == "binary":
        given = ["--scores", "z_b", "--logits", "--label", "y_b"]
    printed(["choose", path, *given, *SIGMOID, "-o", choice], capsys)
    assert json.loads(choice.read_text())["winner"] == "psi"
    printed(["apply", path, out, *given[:3], "--calibration", choice], capsys)
    name = "prob_1" if task == "binary" else "prob_b"
    np.testing.assert_allclose(pq.read_table(out).column(name).to_numpy(), posterior[:, 1], rtol=1e-6)


@pytest.mark.parametrize(
    "given, text",
    [
        (LABELS[:5], "--label must name one column, or --task multilabel be said, got 3"),
        ([*LABELS[:4], "y_a", *LABELS[5:]], "--label must name one column for each of the 3 scores, got 1"),
        ([*LABELS, "--gamma", "2"], "--task multilabel needs a loss on a sigmoid: say --sigmoid"),
        ([*LABELS[:4], "y_a", "--task", "binary"], "--task binary needs one score column, got 3"),
        (
            [*LABELS[:4], "y_a", "--task", "multiclass", *SIGMOID],
            "--task must be multilabel for a loss on a sigm",
        ),
    ],
)
def test_tasks_that_do_not_fit(given, text, labels_file, capsys):
    assert main(["metrics", str(labels_file[0]), *given]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert text in err


def test_choose(rows, tmp_path, capsys):
    path, logits, labels = rows
    choice = tmp_path / "choice.json"
    given = ["choose", path, *SCORES, "--label", "species", "--gamma", "2"]
    out = printed([*given, "-o", choice], capsys)
    expected = refocal.choose_calibration(logits, labels, refocal.Focal(2.0))
    assert str(expected) in out
    assert out.startswith("3,000 rows; 3 classes: ant, bee, cat (from the names of the score columns); ")
    saved = refocal.Selection.from_dict(json.loads(choice.read_text()))
    assert saved.winner == expected.winner == "psi"
    out = printed([*given, "--rows", "500", "--seed", "4", "--json"], capsys)
    found = json.loads(out)
    assert (found["rows"], found["sampled"], found["seed"], found["n_rows"]) == (3000, 500, 4, 500)
    assert out == printed([*given, "--rows", "500", "--seed", "4", "--json"], capsys)
    text = printed([*given, "--rows", "500", "--seed", "4"], capsys)
    assert text.startswith("a random sample of 500 (seed 4) of 3,000 rows; ")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches(command, capsys):
    out = printed([command, "--help"], capsys)
    assert f"example:\n  refocal {command}" in out
    assert "--json" in out
    assert max(map(len, out.splitlines())) <= 110


def test_json_of_an_error(capsys):
    for argv in (["tau", "--gamma", "-1", "--json"], ["tau", "--json"], ["dance", "--json"]):
        assert main(argv) == 2
        out, err = capsys.readouterr()
        assert json.loads(out)["error"] in err
        assert err.count("\n") == 1


def test_debug_shows_where(capsys):
    assert main(["tau", "--gamma", "-1", "--debug"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("refocal: gamma must be finite and > 0, got -1.0\n")


def test_formats_are_those_that_can_be_read():
    from refocal.scoring.paths import ENDINGS

    assert set(options.FORMATS) == set(ENDINGS.values())


def test_json_holds_every_number():
    assert to_json({"a": [np.float64(1.5), float("nan"), -np.inf], "b": (1, None, "x")}) == (
        '{"a": [1.5, null, null], "b": [1, null, "x"]}'
    )


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_on_a_terminal(monkeypatch):
    now = iter([0.0, 0.1, 10.0, 10.1])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    stream = Terminal()
    with Progress(stream) as tell:
        tell(10, 0.1)  # too early
        tell(1000, 0.25)
        tell(1100, 0.26)  # too early again
    assert stream.getvalue().startswith("\r1,000 rows, 25 %, 100 rows/s, 30 s left\r ")
    assert stream.getvalue().endswith(" \r")
    assert progress_line(1000, None, 10.0) == "1,000 rows, 100 rows/s"
    assert progress_line(1000, 0.01, 10.0).endswith("16 min left")


def test_no_progress_in_a_pipe():
    stream = io.StringIO()
    with Progress(stream) as tell:
        tell.__dict__["_last"] = -1e9
        tell(10, 0.5)
    assert stream.getvalue() == ""


def test_modules_have_one_command_each():
    for module, name in zip((apply, choose, metrics, tau, threshold, adapters), COMMANDS, strict=True):
        assert re.match(rf"``refocal {name}``", module.__doc__)


def test_help_loads_no_pyarrow():
    code = "import sys; from refocal.cli import main; main(['--help']); sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


def test_a_missing_pyarrow_is_asked_for():
    code = (
        "import sys; sys.modules['pyarrow'] = None; from refocal.cli import main; "
        "sys.exit(main(['metrics', 'x.csv', '--label', 'y']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "refocal: a file of scores needs pyarrow: pip install pyarrow\n"
