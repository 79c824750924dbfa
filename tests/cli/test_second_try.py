"""What a new user typed and was answered wrongly: each line as it was typed."""

import json

import numpy as np
import pytest

import refocal
from refocal.cli import main, options


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 3))
    y = (np.cumsum(refocal.Focal(2.0).posterior(z), axis=1) < rng.random((400, 1))).sum(axis=1)
    names = ["cat", "dog", "elk"]
    for path, order in (("v.csv", [0, 1, 2]), ("other.csv", [2, 0, 1])):
        head = [f"logit_{names[k]}" for k in order] + ["label"]
        lines = [[*map(repr, map(float, row[order])), names[k]] for row, k in zip(z, y, strict=True)]
        (tmp_path / path).write_text("\n".join(",".join(x) for x in [head, *lines]) + "\n")
    head = "logit_2,logit_0,logit_1\n"
    (tmp_path / "n.csv").write_text(
        head + "\n".join(",".join(map(repr, map(float, r[[2, 0, 1]]))) for r in z) + "\n"
    )
    return z


def column(path, name):
    return np.genfromtxt(path, delimiter=",", names=True, dtype=None, encoding="utf-8")[name]


def run(capsys, line):
    code = main(line.split())
    return code, *capsys.readouterr()


def test_listed_columns_stay_in_their_order(files, capsys):
    line = "apply n.csv out.csv --logits --gamma 0,2,4 --scores"
    assert run(capsys, f"{line} logit_2 logit_0 logit_1")[0] == 0
    expected = refocal.Focal((0.0, 2.0, 4.0)).posterior(files[:, [2, 0, 1]])
    np.testing.assert_allclose(column("out.csv", "prob_2"), expected[:, 0], rtol=1e-6)
    assert run(capsys, f"{line} logit_*")[0] == 0  # a pattern goes by the numbers
    expected = refocal.Focal((0.0, 2.0, 4.0)).posterior(files)
    np.testing.assert_allclose(column("out.csv", "prob_2"), expected[:, 2], rtol=1e-6)


def test_the_choice_of_a_report_goes_by_names(files, capsys, monkeypatch):
    from refocal.report import page

    kept = []
    monkeypatch.setattr(page, "_data_url", lambda text: kept.append(text) or "")
    line = "--scores logit_* --logits --gamma 0,2,4"
    assert run(capsys, f"report v.csv {line} --label label -o r.html")[0] == 0
    fields = json.loads(kept[0])
    assert fields["classes"] == ["cat", "dog", "elk"]
    fields["winner"] = "psi"
    for name in ("named.json", "nameless.json"):
        with open(name, "w") as file:
            json.dump(fields, file)
        fields.pop("classes", None)
    apply = "apply other.csv out.csv --scores logit_* --logits --calibration"
    assert run(capsys, f"{apply} named.json")[0] == 0
    expected = refocal.Focal((0.0, 2.0, 4.0)).posterior(files)
    np.testing.assert_allclose(column("out.csv", "prob_cat"), expected[:, 0], rtol=1e-6)
    code, _, err = run(capsys, f"{apply} nameless.json")
    assert code == 0
    assert "does not name its classes: the numbers of each are taken in the order of the columns" in err


def test_apply_says_by_what_and_that_no_alpha_was_said(files, capsys):
    code, out, err = run(capsys, "apply v.csv out.csv --scores logit_cat --logits --sigmoid --gamma 2")
    assert code == 0
    assert "by psi of SigmoidFocal(gamma=2.0, alpha=None, label_smoothing=0.0)" in out
    assert options.NO_ALPHA in err
    assert options.NO_ALPHA in run(capsys, "threshold --gamma 2")[2]
    assert run(capsys, "threshold --gamma 2 --alpha .25 --sigmoid")[2] == ""
    code, _, err = run(capsys, "threshold --gamma 1,2,3 --posterior .9")
    assert code == 2
    assert "--gamma must be one number, or say --sigmoid" in err


def test_a_file_that_is_not_there_or_another_one(files, capsys):
    err = run(capsys, "apply v.csv o.csv --scores logit_* --logits --calibration choice.json")[2]
    assert "`refocal choose -o` writes it" in err
    assert (
        run(capsys, "choose v.csv --scores logit_* --logits --label label --gamma 2 -o choice.json")[0] == 0
    )
    code, _, err = run(capsys, "threshold --objective choice.json")
    assert code == 2
    assert "this is a saved choice" in err


def test_what_is_chosen_may_still_not_be_calibrated():
    rng = np.random.default_rng(1)
    posterior = rng.dirichlet([0.6] * 3, size=4000) + 1e-6
    posterior /= posterior.sum(axis=1, keepdims=True)
    labels = (posterior.cumsum(axis=1) < rng.random((4000, 1))).sum(axis=1)
    spec = refocal.Focal(2.0, weight=(1.0, 1.0, 30.0))
    logits = spec.logits(posterior)
    forgotten = refocal.choose_calibration(logits, labels, refocal.Focal(2.0), n_resamples=50)
    assert "was the model trained with class weights, an alpha" in forgotten.sentence
    right = refocal.choose_calibration(logits, labels, spec, n_resamples=50)
    assert "Even so" not in right.sentence


def test_percentages_and_rounded_probabilities_are_called_what_they_are(files, capsys, tmp_path):
    probs = refocal.Focal(2.0).posterior(files)
    for name, rows in (("percent.csv", 100 * probs), ("rounded.csv", np.round(probs, 2))):
        np.savetxt(name, rows, "%.10g", ",", header="p_0,p_1,p_2", comments="")
    np.savetxt("one.csv", 100 * probs[:, 1], "%.10g", header="p_1", comments="")
    scores = "--scores p_0 p_1 p_2 --gamma 2"
    for said in ("", " --probs"):
        code, _, text = run(capsys, f"apply percent.csv out.csv {scores}{said}")
        assert code == 2
        assert "each row sums to about 100: these look like percentages, divide them by 100" in text
        assert "--logits" not in text.split(";")[-1]
    code, _, text = run(capsys, f"apply rounded.csv out.csv {scores} --probs")
    assert code == 2
    assert "sums to 1 within 0.0" in text
    assert "rounded probabilities, write them with more digits, or divide each row by its sum" in text
    code, _, text = run(capsys, "apply one.csv out.csv --scores p_1 --sigmoid --gamma 2 --probs")
    assert code == 2
    assert "look like percentages, divide them by 100, or like logits" in text
