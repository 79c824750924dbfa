"""A detector's file with one score: what the commands assume, what they say of it, and where to cut."""

import base64
import html
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
from scipy import special

import refocal
from refocal.cli import main
from refocal.cli.options import NO_ALPHA, ONE_COLUMN

FILE = ["detections.csv", "--scores", "score"]
GIVEN = [*FILE, "--probs", "--label", "matched"]
SIGMOID = ["--sigmoid", "--gamma", "2", "--alpha", ".25"]
NOTE = f"refocal: {ONE_COLUMN}\n"
LOOK = "refocal: warning: the scores look like probabilities, but were used as logits; say --probs if so\n"


@pytest.fixture(autouse=True, scope="module")
def detections(tmp_path_factory):
    """Scores of a sigmoid head whose posterior is off by a slope and a bias, in the folder of the tests."""
    rng = np.random.default_rng(0)
    eta = rng.beta(0.6, 2.0, size=1500)
    matched = (rng.random(1500) < eta).astype(int)
    z = refocal.SigmoidFocal(2.0, 0.25).logits(eta) * 1.4 - 0.8
    table = {"image": np.arange(1500) // 10, "score": special.expit(z), "matched": matched}
    folder = tmp_path_factory.mktemp("detections")
    pandas.DataFrame(table).to_csv(folder / "detections.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield pandas.read_csv("detections.csv")


def ran(words, capsys, err=""):
    assert main([str(word) for word in words]) == 0
    found = capsys.readouterr()
    assert found.err == err
    return found.out


def by_python(table, objective=None):
    p = table["score"].to_numpy()
    z, y = np.log(p) - np.log1p(-p), table["matched"].to_numpy()
    return refocal.choose_calibration(z, y, objective)


@pytest.mark.parametrize("more", [[], ["--task", "binary"], ["--sigmoid"]])
def test_choose_assumes_what_python_assumes(more, detections, capsys):
    expected = by_python(detections)
    out = ran(["choose", *GIVEN, *more], capsys)
    assert str(expected) in out
    assert (
        "No objective was given: SigmoidFocal(gamma=2.0, alpha=None, label_smoothing=0.0) is assumed." in out
    )
    assert "trained with" not in out
    found = json.loads(ran(["choose", *GIVEN, *more, "--json"], capsys))
    assert (found["assumed"], found["task"], found["winner"]) == (True, "binary", "platt")
    assert found["warnings"] == [expected.assumption]
    assert found["methods"] == json.loads(json.dumps(expected.to_dict()["methods"]))


@pytest.mark.parametrize("more", [[], ["--sigmoid"]])
def test_report_assumes_what_python_assumes(more, detections, capsys):
    found = json.loads(ran(["report", *GIVEN, *more, "-o", "page.html", "--json"], capsys))
    assert (found["task"], found["objective_given"]) == ("binary", False)
    expected = by_python(detections)
    assert found["selection"]["methods"] == json.loads(json.dumps(expected.to_dict()["methods"]))
    assert (found["selection"]["winner"], found["selection"]["assumed"]) == ("platt", True)
    assert found["objective"] == refocal.SigmoidFocal(2.0, None).to_dict()
    assert any("on a sigmoid with gamma 2 and without alpha is assumed" in w for w in found["warnings"])


def test_several_columns_with_sigmoid_alone_are_labels(detections, capsys):
    score, matched = detections["score"], detections["matched"]
    pandas.DataFrame({"s_a": score, "s_b": score, "y_a": matched, "y_b": matched}).to_csv("two.csv")
    given = ["two.csv", "--scores", "s_*", "--probs", "--label", "y_*", "--sigmoid"]
    found = json.loads(ran(["choose", *given, "--json"], capsys))
    assert (found["assumed"], found["task"]) == (True, "multilabel")
    assert found["objective"] == refocal.SigmoidFocal(2.0, None).to_dict()
    measured = json.loads(ran(["metrics", *given, "--json"], capsys))
    assert (measured["task"], list(measured["metrics"])) == ("multilabel", ["raw"])


@pytest.mark.parametrize(
    "words, text",
    [
        (["choose", *GIVEN, "--sigmoid", "--alpha", ".25"], "--gamma must be said with --alpha"),
        (
            ["apply", *FILE[:1], "out.csv", *FILE[1:], "--probs", "--sigmoid"],
            "--gamma, --objective or --calibration must say what the model was trained with",
        ),
    ],
)
def test_what_still_has_to_be_said(words, text, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err == f"refocal: {text}\n"


def test_gamma_without_sigmoid_is_noted_once(capsys):
    ran(["apply", *FILE[:1], "out.csv", *FILE[1:], "--probs", "--gamma", "2"], capsys, NOTE)
    ran(["metrics", *GIVEN, "--gamma", "2"], capsys, NOTE)
    found = json.loads(ran(["choose", *GIVEN, "--gamma", "2", "--json"], capsys, NOTE))
    assert (found["warnings"], found["assumed"]) == ([ONE_COLUMN], False)
    pandas.read_csv("detections.csv").to_parquet("again.parquet")
    both = ["report", "detections.csv", "again.parquet", *GIVEN[1:], "--rows", "300", "-o", "page.html"]
    ran([*both, "--gamma", "2"], capsys, NOTE)
    assert NOTE.count("\n") == 1


def test_no_note_where_nothing_is_unclear(capsys):
    ran(["apply", *FILE[:1], "out.csv", *FILE[1:], "--probs", *SIGMOID], capsys)
    ran(["metrics", *GIVEN], capsys)


def test_what_the_note_says_differs_is_alpha_alone(detections, capsys):
    """Softmax of two and sigmoid without alpha are one loss; alpha changes the probabilities."""
    words = ["apply", *FILE[:1], "out.csv", *FILE[1:], "--probs", "--gamma", "2"]
    found, said = {}, {"softmax": NOTE, "sigmoid": f"refocal: {NO_ALPHA}\n", "alpha": ""}
    for name, more in {
        "softmax": [],
        "sigmoid": ["--sigmoid"],
        "alpha": ["--sigmoid", "--alpha", ".25"],
    }.items():
        ran([*words, *more], capsys, said[name])
        found[name] = pandas.read_csv("out.csv")["prob_1"].to_numpy()
    np.testing.assert_allclose(found["softmax"], found["sigmoid"], rtol=1e-12)
    odds = special.logit(found["alpha"]) - special.logit(found["sigmoid"])
    np.testing.assert_allclose(odds, np.log(3), rtol=1e-6)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_platt_competes_and_the_other_methods_keep_their_numbers(gamma, detections, capsys):
    """The same rows as two columns of a softmax in Python: the numbers are those, and platt is new."""
    found = json.loads(ran(["choose", *GIVEN, "--gamma", gamma, "--json"], capsys, NOTE))
    p = detections["score"].to_numpy()
    logits, labels = np.log(np.stack([1 - p, p], axis=1)), detections["matched"].to_numpy()
    softmax = refocal.choose_calibration(logits, labels, refocal.Focal(gamma))
    methods = {m["name"]: m for m in found["methods"]}
    assert set(methods) - {m.name for m in softmax.methods} == {"platt"}
    for method in softmax.methods:
        one = methods[method.name]
        assert one["temperature"] == pytest.approx(method.temperature, rel=1e-4)
        for metric in ("nll", "brier", "error_rate"):
            assert one[metric]["value"] == pytest.approx(getattr(method, metric).value, rel=1e-6)
            assert one[metric]["high"] == pytest.approx(getattr(method, metric).high, rel=1e-6)
        # The ECE is that of class 1, as `refocal metrics` has it, which is each class's own.
        assert one["ece"]["value"] == pytest.approx(method.classwise_ece.value, rel=1e-4)


def test_a_gamma_for_each_of_two_classes_stays_a_softmax(detections, capsys):
    found = json.loads(ran(["choose", *GIVEN, "--gamma", "1,2", "--json"], capsys))
    assert (found["task"], found["objective"]["gamma"]) == ("multiclass", [1.0, 2.0])
    assert "platt" not in {m["name"] for m in found["methods"]}


def test_threshold_of_a_choice(detections, capsys):
    ran(["choose", *GIVEN, *SIGMOID, "-o", "choice.json"], capsys)
    choice = by_python(detections, refocal.SigmoidFocal(2.0, 0.25))
    assert choice.winner == "platt"
    words = ["threshold", "--calibration", "choice.json", "--posterior", ".1", ".5"]
    found = json.loads(ran([*words, "--json"], capsys))
    assert (found["method"], len(found["thresholds"])) == ("platt", 2)
    slope, bias = 1 / choice.method("platt").temperature, choice.method("platt").bias
    for line in found["thresholds"]:
        assert line["logit"] == pytest.approx((special.logit(line["posterior"]) - bias) / slope, abs=1e-6)
    text = ran(words, capsys)
    assert f"{choice.threshold(0.5):.6f}" in text
    assert text.endswith("\nby platt: a temperature and a bias by the NLL\n")
    assert main([*words, "--gamma", "2"]) == 2
    assert capsys.readouterr().err == "refocal: --calibration says it all: leave out --gamma\n"


@pytest.mark.parametrize("more", [[], SIGMOID])
def test_the_copied_command_of_a_report_runs(more, detections, capsys):
    ran(["report", *GIVEN, *more, "-o", "page.html"], capsys)
    page = Path("page.html").read_text(encoding="utf-8")
    copied = html.unescape(re.search(r'<pre id="command"[^>]*>(.*?)</pre>', page, re.DOTALL)[1])
    assert copied == (
        "refocal apply detections.csv detections-probs.csv --scores score --probs --calibration choice.json"
    )
    saved = re.search(r'href="data:application/json;base64,([^"]*)" download="choice.json"', page)[1]
    Path("choice.json").write_bytes(base64.b64decode(saved))
    assert "detections-probs.csv: 1,500 rows" in ran(shlex.split(copied)[1:], capsys)
    p = detections["score"].to_numpy()
    choice = by_python(detections, refocal.SigmoidFocal(2.0, 0.25) if more else None)
    wanted = choice.apply(np.log(p) - np.log1p(-p))
    np.testing.assert_allclose(pandas.read_csv("detections-probs.csv")["prob_1"], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "words",
    [
        ["apply", *FILE[:1], "out.csv", *FILE[1:], "--logits", *SIGMOID],
        ["apply", *FILE[:1], "out.csv", *FILE[1:], "--logits", "--gamma", "2"],
        ["metrics", *FILE, "--logits", "--label", "matched"],
        ["choose", *FILE, "--logits", "--label", "matched"],
        ["report", *FILE, "--logits", "--label", "matched", "-o", "page.html"],
    ],
    ids=lambda words: " ".join(words[:1] + words[-2:]),
)
def test_probabilities_said_to_be_logits_are_noticed_in_the_commands_words(words, capsys):
    ran(words, capsys, (NOTE if "--gamma" in words and "--sigmoid" not in words else "") + LOOK)


def test_the_warning_of_a_process_is_one_line():
    words = ["apply", *FILE[:1], "out.csv", *FILE[1:], "--logits", *SIGMOID]
    done = subprocess.run([sys.executable, "-m", "refocal", *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, LOOK)


def test_logits_said_to_be_probabilities_are_refused_in_the_commands_words(detections, capsys):
    table = detections.assign(score=special.logit(detections["score"]))
    table.to_csv("logits.csv", index=False)
    words = ["apply", "logits.csv", "out.csv", *FILE[1:], "--probs", *SIGMOID]
    assert main(words) == 2
    assert capsys.readouterr().err.endswith(": these look like logits, say --logits\n")


def test_what_is_shown_of_the_brier_score_and_of_what_was_fitted(detections, capsys):
    from sklearn.metrics import brier_score_loss

    found = json.loads(ran(["report", *GIVEN, "-o", "page.html", "--json"], capsys))
    theirs = brier_score_loss(detections["matched"], detections["score"])
    assert found["metrics"]["brier"] == pytest.approx(2 * theirs, rel=1e-9)
    page = html.unescape(Path("page.html").read_text(encoding="utf-8"))
    assert page.count("Brier: the sum over both classes, twice what scikit-learn's binary") == 2
    methods = {m["name"]: m for m in found["selection"]["methods"]}
    assert f"<small>bias {methods['platt']['bias']:.4g}</small>" in page
    assert f"<small>gamma {methods['focal_ts_free']['link']['gamma']:.4g}</small>" in page
    assert "Measured on 1,500 rows, held out in 5 parts." in page


def test_help_of_adapters_says_what_fills_the_rest(capsys):
    out = " ".join(ran(["adapters", "--help"], capsys).split())
    assert "arguments of its loss, as you gave them; the rest have the defaults of that library" in out
