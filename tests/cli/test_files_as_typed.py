"""What a newcomer types with files of their own: no number that is silently wrong, and errors that help."""

import gzip
import io
import itertools
import json
import shutil
import sys

import numpy as np
import pandas
import pyarrow as pa
import pytest

import refocal
from refocal.cli import main

CLASSES = ["cat", "dog", "elk"]
COLUMNS = [f"logit_{name}" for name in CLASSES]
ROWS = 400


def table(seed=0, names=COLUMNS):
    """Return rows with an id, three logits with fractions, and labels in words and in numbers."""
    rng = np.random.default_rng(seed)
    posterior = rng.dirichlet([0.7] * 3, ROWS)
    labels = (rng.random((ROWS, 1)) > posterior.cumsum(axis=1)).sum(axis=1)
    logits = refocal.Focal((3.0, 2.0, 0.5)).logits(posterior)
    frame = pandas.DataFrame({"id": np.arange(ROWS)} | dict(zip(names, logits.T, strict=True)))
    return frame.assign(species=np.array(CLASSES)[labels], y=labels)


@pytest.fixture(scope="module")
def choice_file(tmp_path_factory):
    """What `choose` says of a loss with a gamma for each class, where the order of classes matters."""
    folder = tmp_path_factory.mktemp("choice")
    table().to_csv(folder / "val.csv", index=False)
    with pytest.MonkeyPatch.context() as there:
        there.chdir(folder)
        said = "choose val.csv --scores logit_* --logits --label species --gamma 3,2,0.5 -o choice.json"
        assert main(said.split()) == 0
    return folder / "choice.json"


@pytest.fixture
def here(tmp_path, monkeypatch, choice_file):
    """A folder with the choice and the file it was made from."""
    monkeypatch.chdir(tmp_path)
    for name in ("choice.json", "val.csv"):
        shutil.copy(choice_file.with_name(name), name)
    return tmp_path


def typed(line, capsys, code=0):
    """Return what a line prints, or the error that it ends with."""
    capsys.readouterr()
    assert main(line.split()) == code, capsys.readouterr().err
    out, err = capsys.readouterr()
    if code:
        assert (out, err.count("\n")) == ("", 1)
    return err if code else out


def saved():
    """Return the choice, one by which each class has a link of its own."""
    with open("choice.json", encoding="utf-8") as file:
        choice = refocal.Selection.from_dict(json.load(file))
    assert choice.winner.startswith("psi")
    return choice


def expected():
    """Return the probabilities of the choice by name, of arrays that no file has reordered."""
    choice = saved()
    return dict(zip(CLASSES, choice.apply(table(1)[COLUMNS].to_numpy()).T, strict=True))


@pytest.mark.parametrize("order", ["elk cat dog", "dog elk cat", "cat dog elk"])
def test_a_choice_goes_by_the_names_of_classes(order, here, capsys):
    columns = [f"logit_{name}" for name in order.split()]
    table(1)[["id", *columns]].to_csv("new.csv", index=False)
    typed("apply new.csv probs.csv --scores logit_* --logits --calibration choice.json", capsys)
    found = pandas.read_csv("probs.csv")
    assert list(found)[-3:] == [f"prob_{name}" for name in order.split()]
    for name, p in expected().items():
        np.testing.assert_allclose(found[f"prob_{name}"], p, atol=1e-12)


def test_a_choice_goes_by_names_in_metrics_too(here, capsys):
    frame = table(1)
    frame[["logit_elk", "logit_cat", "logit_dog", "species"]].to_csv("new.csv", index=False)
    given = "metrics new.csv --scores logit_* --logits --label species --calibration choice.json --json"
    found = json.loads(typed(given, capsys))["metrics"][saved().winner]
    probs = np.stack(list(expected().values()), axis=1)
    assert found["nll"] == pytest.approx(refocal.nll(probs, frame["y"]), rel=1e-12)


def test_a_choice_needs_names_or_classes(here, capsys):
    """An array in the order elk, cat, dog: nobody can know, so it must be said, and its order stays."""
    np.save("new.npy", np.ascontiguousarray(table(1)[["logit_elk", "logit_cat", "logit_dog"]]))
    given = "apply new.npy probs.npy --logits --calibration choice.json"
    assert typed(given, capsys, 2) == (
        "refocal: --scores must be of the classes of choice.json, cat, dog, elk, got 0, 1, 2: "
        "say --classes with the former, in the order of the columns\n"
    )
    typed(f"{given} --classes elk,cat,dog", capsys)
    p = expected()
    np.testing.assert_allclose(np.load("probs.npy"), np.stack([p["elk"], p["cat"], p["dog"]], 1), atol=1e-12)


def test_numbered_columns_of_a_choice_stay_in_order(here, capsys):
    names = ["logit_0", "logit_1", "logit_2"]
    table(names=names).to_csv("val.csv", index=False)
    table(1, names).to_csv("new.csv", index=False)
    scores = "--scores logit_? --logits"
    typed(
        f"choose val.csv {scores} --label species --classes cat,dog,elk --gamma 3,2,0.5 -o own.json", capsys
    )
    typed(f"apply new.csv probs.csv {scores} --calibration own.json", capsys)
    found = pandas.read_csv("probs.csv")
    for k, p in enumerate(expected().values()):
        np.testing.assert_allclose(found[f"prob_{k}"], p, atol=1e-12)


def test_another_number_of_classes(here, capsys):
    given = "apply val.csv probs.csv --logits --calibration choice.json --scores logit_cat logit_dog"
    assert typed(given, capsys, 2) == "refocal: --scores names 2 columns, choice.json has 3 classes\n"


def test_labels_with_names_need_columns_with_names(here, capsys):
    table(names=["logit_0", "logit_1", "logit_2"]).to_csv("val.csv", index=False)
    for command in ("metrics", "choose"):
        given = f"{command} val.csv --scores logit_0 logit_1 logit_2 --logits --gamma 3,2,0.5 --label species"
        assert typed(given, capsys, 2) == (
            "refocal: label 'species' holds names ('cat', 'dog', 'elk') that are not those of the score "
            "columns 'logit_0', 'logit_1', 'logit_2': say --classes cat,dog,elk (here in sorted order), in "
            "the order of these columns\n"
        )
    out = typed(f"metrics {given.partition(' ')[2]} --classes cat,dog,elk", capsys)
    assert "3 classes: cat, dog, elk (from --classes); scores: 'logit_0', 'logit_1', 'logit_2'\n" in out


def test_classes_must_not_contradict_the_columns(here, capsys):
    given = "metrics val.csv --scores logit_* --logits --label species --classes elk,cat,dog"
    assert typed(given, capsys, 2) == (
        "refocal: --classes must be in the order of the score columns, cat, dog, elk, got elk, cat, dog\n"
    )


def test_names_from_a_pipe(here, capsys, monkeypatch):
    text = table(names=["logit_0", "logit_1", "logit_2"]).to_csv(index=False).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    given = "metrics - --scores logit_0 logit_1 logit_2 --logits --label species"
    assert "label 'species' holds names: say --classes A,B,... in the order of" in typed(given, capsys, 2)


def test_text_of_numbers_is_no_guess(here, capsys):
    frame = table()
    frame.assign(y=frame["y"].map("{}".format), one=(frame["y"] == 1).map("{:d}".format)).to_parquet(
        "v.parquet"
    )
    for scores, label in (("logit_cat logit_dog logit_elk --classes 0,1,2", "y"), ("logit_dog", "one")):
        typed(f"metrics v.parquet --scores {scores} --logits --label {label}", capsys)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_pattern_takes_no_label_and_no_id(kind, here, capsys):
    frame = table()
    frame.to_csv("all.csv", index=False)
    frame.drop(columns="species").to_csv("val.csv", index=False)
    frame.drop(columns="species").to_parquet("val.parquet")
    for command in ("metrics", "choose"):
        given = f"{command} val.{kind} --scores * --logits --label y --gamma 2"
        assert typed(given, capsys, 2) == (
            "refocal: --scores * takes the label column 'y' too: name the score columns alone, such as "
            f"--scores 'logit_*'; val.{kind} has 'id', 'logit_cat', 'logit_dog', 'logit_elk', 'y'\n"
        )
        given = f"{command} val.{kind} --scores logit_* i? --logits --label y --gamma 2"
        error = typed(given, capsys, 2)
        assert error.startswith(
            "refocal: --scores takes 'id' too, which holds whole numbers and looks like no"
        )
    error = typed(f"apply val.{kind} out.csv --scores * --logits --gamma 2", capsys, 2)
    assert "beside 'logit_cat', 'logit_dog', 'logit_elk': give a pattern such as 'logit_*'" in error
    # Who names a column means it.
    typed(f"apply val.{kind} out.csv --scores id,logit_dog --logits --gamma 2", capsys)
    out = typed(f"apply val.{kind} out.csv --scores logit_* --logits --gamma 2", capsys)
    assert out.startswith(
        "out.csv: 400 rows with prob_cat ... prob_elk, from 'logit_cat', 'logit_dog', 'logit_elk'"
    )


def test_a_pattern_takes_no_integers_of_arrays_and_partitions(here, capsys):
    frame = table()
    np.savez("val.npz", logit=np.ascontiguousarray(frame[COLUMNS]), y=frame["y"].to_numpy())
    assert "--scores takes 'y' too" in typed("apply val.npz out.npz --scores * --logits --gamma 2", capsys, 2)
    (here / "in" / "day=1").mkdir(parents=True)
    frame[COLUMNS].to_parquet("in/day=1/part.parquet")
    assert "--scores takes 'day' too" in typed("apply in out --scores * --logits --gamma 2", capsys, 2)


def test_whole_numbers_everywhere_are_scores(here, capsys):
    (here / "val.csv").write_text("a,b\n1,2\n3,4\n")
    typed("apply val.csv out.csv --scores * --logits --gamma 2", capsys)


@pytest.mark.parametrize(
    "command", ["choose val.csv -o c.json", "metrics val.csv", "report val.csv -o r.html"]
)
def test_a_gamma_for_each_class(command, here, capsys):
    given = f"{command} --scores logit_* --logits --label species --gamma 3,2"
    assert typed(given, capsys, 2) == "refocal: gamma must have one number for each of the 3 classes, got 2\n"
    assert not (here / "c.json").exists()


def test_metrics_of_a_choice_say_what_they_are(here, capsys):
    given = "metrics val.csv --scores logit_* --logits --label species --calibration choice.json"
    out, winner = typed(given, capsys), saved().winner
    assert out.splitlines()[2].split() == ["raw", winner]
    assert f"{winner} is the choice of choice.json: " in out
    assert f"choice.json was made from these rows, so the numbers of {winner} are not held out" in out
    table(1).to_csv("test.csv", index=False)
    out = typed(given.replace("val.csv", "test.csv"), capsys)
    assert f"{winner} is the choice of choice.json: " in out
    assert "not held out" not in out
    notes = json.loads(typed(f"{given} --json", capsys))["notes"]
    assert notes[0].startswith("Calibration errors are biased upward")
    assert "not held out" in notes[-1]


def test_a_temperature_is_named(here, capsys):
    with open("choice.json", encoding="utf-8") as file:
        fields = json.load(file)
    t = next(m["temperature"] for m in fields["methods"] if m["name"] == "ts_nll")
    (here / "ts.json").write_text(json.dumps(fields | {"winner": "ts_nll"}))
    out = typed("metrics val.csv --scores logit_* --logits --label species --calibration ts.json", capsys)
    assert out.splitlines()[2].split() == ["raw", "ts_nll"]
    assert f"by the NLL, T = {t:.3g}." in out
    (here / "raw.json").write_text(json.dumps(fields | {"winner": "raw"}))
    out = typed("metrics val.csv --scores logit_* --logits --label species --calibration raw.json", capsys)
    assert out.splitlines()[2].split() == ["raw"]
    assert "held out" not in out


@pytest.mark.parametrize("out", ["val.csv", "./val.csv", "link.csv", "file://{here}/val.csv"])
def test_the_input_is_not_replaced(out, here, capsys):
    (here / "link.csv").symlink_to("val.csv")
    before, out = (here / "val.csv").read_bytes(), out.format(here=here)
    error = typed(f"apply val.csv {out} --scores logit_* --logits --gamma 2", capsys, 2)
    assert error == f"refocal: the output must be another file than the input, got '{out}' for both\n"
    assert (here / "val.csv").read_bytes() == before


@pytest.mark.parametrize("command", ["choose", "report"])
def test_the_input_is_not_replaced_by_what_is_said_of_it(command, here, capsys):
    before = (here / "val.csv").read_bytes()
    given = f"{command} val.csv --scores logit_* --logits --label species --gamma 2 -o ./val.csv"
    assert "the output must be another file than the input, got './val.csv'" in typed(given, capsys, 2)
    assert (here / "val.csv").read_bytes() == before


def test_a_file_of_a_pattern_is_not_replaced(here, capsys):
    table().to_parquet("a.parquet")
    error = typed("apply *.parquet a.parquet --scores logit_* --logits --gamma 2", capsys, 2)
    assert "the output must be another file than the input, got 'a.parquet' for both" in error


@pytest.mark.parametrize("command", ["apply", "choose"])
def test_help_says_what_is_replaced(command, capsys):
    assert "replaced if it is there" in " ".join(typed(f"{command} --help", capsys).split())


def test_formats_are_asked_for_by_option(here, capsys):
    given = "--scores logit_* --logits --gamma 2"
    assert "or --to must say its format, got 'out.txt'" in typed(f"apply val.csv out.txt {given}", capsys, 2)
    (here / "val.csv").rename("val.txt")
    assert "or --from must say its format, got 'val.txt'" in typed(
        f"apply val.txt out.csv {given}", capsys, 2
    )


@pytest.fixture(params=[1, 2])
def threads(request):
    """The threads of pyarrow: as many as cores, unless OMP_NUM_THREADS says another number."""
    before = pa.cpu_count()
    pa.set_cpu_count(request.param)
    yield request.param
    pa.set_cpu_count(before)


@pytest.mark.parametrize("row", [0, 7, 250_000])
def test_rows_are_counted_from_0_in_each_error(row, threads, here, capsys):
    """A short line is found by another library, which counts in its own way, and with one thread only."""
    good = "0.5,0.25\n"
    for bad, end in itertools.product(("1.5\n", "word,1.5\n"), ("csv", "csv.gz")):
        content = f"a,b\n{good * row}{bad}{good}".encode()
        (here / f"new.{end}").write_bytes(gzip.compress(content) if end == "csv.gz" else content)
        error = typed(f"apply new.{end} out.csv --scores a b --logits --gamma 2", capsys, 2)
        assert f"row {row}" in error
        assert "#" not in error.replace("column #", "")


@pytest.mark.parametrize(
    "name, sign, text",
    [
        ("new.csv", ";", "write it with commas"),
        ("new.csv", "\t", "say --from tsv"),
        ("new.tsv", ",", "say --from csv"),
    ],
)
def test_another_sign_between_columns(name, sign, text, here, capsys):
    (here / name).write_text(f"a{sign}b\n0.5{sign}0.25\n")
    error = typed(f"apply {name} out.csv --scores a b --logits --gamma 2", capsys, 2)
    header = f"a{sign}b"
    assert error == (
        f"refocal: cannot read {name}: its header is one column with {sign!r} in it, {header!r}: {text}\n"
    )


def test_classes_that_are_never_a_label(here, capsys):
    frame = table()
    frame[frame["species"] != "elk"].to_csv("some.csv", index=False)
    given = "choose some.csv --scores logit_* --logits --label species --gamma 3,2,0.5 -o some.json"
    assert main(given.split()) == 0
    assert "never a label in the rows that were compared: 'elk'" in capsys.readouterr().err
    with open("some.json", encoding="utf-8") as file:
        assert any(text.startswith("never a label in the rows") for text in json.load(file)["warnings"])


@pytest.mark.parametrize(
    "scores, label, text",
    [
        ("logit_*", "y", "3 classes: cat, dog, elk (labels are their numbers, 0 to 2)"),
        ("logit_dog", "is_dog", "2 classes: 0, 1 (labels are their numbers, 0 to 1)"),
        (
            "logit_dog logit_elk --sigmoid --gamma 2",
            "is_dog is_elk",
            "2 labels: dog, elk (0 and 1 in their label",
        ),
    ],
)
def test_classes_in_plain_words(scores, label, text, here, capsys):
    frame = table()
    frame.assign(is_dog=frame["y"] == 1, is_elk=frame["y"] == 2).to_parquet("val.parquet")
    assert text in typed(f"metrics val.parquet --scores {scores} --logits --label {label}", capsys)
