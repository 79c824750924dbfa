"""Probabilities beside scores: every format, every row, every column, in order."""

import gzip
import io
import json
import os
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from score_files import CLASSES, FORMATS, NAMES, made, probs_of, read, table_of, write

import refocal
from refocal.cli import main
from refocal.scoring import sources

OPTIONS = ["--scores", "logit*", "--logits", "--gamma", "2"]


def scores_of(path):
    return (
        [] if path.name.endswith("npy") else ["--scores", "logit" if path.name.endswith("npz") else "logit_*"]
    )


def apply(path, out, *more):
    options = [*scores_of(path), "--logits", "--gamma", "2"] if not more else more
    return main(["apply", str(path), str(out), *options])


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_keeps_rows_columns_and_order(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "ENTRIES", 64)  # and so batches of 1024 rows
    logits, labels = made(3000, dtype=np.float32)
    path = write(tmp_path / f"in.{kind}", logits, labels)
    out = tmp_path / f"out.{kind}"
    assert apply(path, out) == 0
    before, after = read(path), read(out)
    for name in before:
        if kind != "npy":
            assert (before[name] == after[name]).all(), name
    tolerance = 1e-6 if kind in ("parquet", "arrow", "feather", "npy", "npz") else 1e-12
    expected = refocal.psi(
        np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(1, keepdims=True), 2.0
    )
    np.testing.assert_allclose(probs_of(after), expected, atol=tolerance)
    assert list(after)[-3:] == [f"prob_{name}" for name in CLASSES] or "prob" in after
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("kind", ["parquet", "arrow", "npy"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_dtype_stays(kind, dtype, tmp_path):
    logits, labels = made(50, dtype=dtype)
    path = write(tmp_path / f"in.{kind}", logits, labels)
    assert apply(path, tmp_path / f"out.{kind}") == 0
    assert probs_of(read(tmp_path / f"out.{kind}")).dtype == dtype


@pytest.mark.parametrize("kind", FORMATS)
def test_from_any_format_to_any_other(kind, tmp_path):
    logits, labels = made(100)
    path = write(tmp_path / "in.parquet", logits, labels)
    path_of_numbers = tmp_path / "numbers.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["id", "species"]), path_of_numbers)
    out = tmp_path / f"out.{kind}"
    assert apply(path_of_numbers if kind == "npz" else path, out) == 0
    np.testing.assert_allclose(
        probs_of(read(out)), refocal.Focal(2.0).posterior(logits.astype(float)), atol=1e-6
    )


def test_text_stays_as_it_is_written(tmp_path):
    text = 'id,logit_0,logit_1,note\n007,1.50,-0.0,"a, ""b""\nc"\n008,2e0,0,\n'
    path, out = tmp_path / "in.csv", tmp_path / "out.csv"
    path.write_text(text)
    assert apply(path, out) == 0
    rows = read(out)
    assert list(rows) == ["id", "logit_0", "logit_1", "note", "prob_0", "prob_1"]
    kept = out.read_text()
    assert '"007","1.50","-0.0","a, ""b""\nc"' in kept
    assert '"008","2e0","0",""' in kept
    plain = tmp_path / "plain.csv"
    plain.write_text("id,logit_0,logit_1\n007,1.50,-0.0\n")
    assert apply(plain, out) == 0
    assert out.read_text().splitlines()[1].startswith("007,1.50,-0.0,0.98")


def test_numbers_that_begin_as_integers(tmp_path):
    """The first block of a CSV file has whole numbers only, a later one has not."""
    path = tmp_path / "in.csv"
    many = "1,2\n" * 1_500_000
    path.write_text(f"a,b\n{many}0.5,0.25\n")
    assert path.stat().st_size > sources.BLOCK
    out = tmp_path / "out.parquet"
    assert main(["apply", str(path), str(out), "--scores", "a", "b", "--logits", "--gamma", "2"]) == 0
    assert pq.read_table(out).num_rows == 1_500_001


def test_pipes(monkeypatch, capfdbinary):
    logits, _ = made(20, dtype=float)
    lines = ["a,b,c", *(",".join(map(repr, map(float, row))) for row in logits)]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    assert main(["apply", "-", "-", "--scores", "a,b,c", "--logits", "--gamma", "2"]) == 0
    out, err = capfdbinary.readouterr()
    assert err == b""
    found = np.genfromtxt(io.BytesIO(out), delimiter=",", names=True)
    got = np.stack([found[f"prob_{c}"] for c in "abc"], axis=1)
    np.testing.assert_allclose(got, refocal.Focal(2.0).posterior(logits), rtol=1e-12)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "npy", "npz", "csv.gz"])
def test_pipes_of_formats_that_are_read_from_their_end(kind, tmp_path, monkeypatch, capfdbinary):
    logits, labels = made(50)
    path = write(tmp_path / f"in.{kind}", logits, labels)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    options = [*scores_of(path), "--logits", "--gamma", "2"]
    assert main(["apply", "-", "-", "--from", kind, "--to", kind, *options]) == 0
    piped, _ = capfdbinary.readouterr()
    assert apply(path, tmp_path / f"out.{kind}") == 0
    assert piped == (tmp_path / f"out.{kind}").read_bytes()


def test_sigmoid_with_alpha(tmp_path):
    path, out = tmp_path / "boxes.csv", tmp_path / "out.csv"
    path.write_text("box,score\n1,0.1\n2,0.3\n3,0.5\n")
    options = ["--scores", "score", "--probs", "--sigmoid", "--gamma", "2", "--alpha", "0.25"]
    assert main(["apply", str(path), str(out), *options]) == 0
    np.testing.assert_allclose(read(out)["prob_1"], [0.008, 0.236, 0.75], atol=5e-4)  # the README's table


def test_one_column_of_a_softmax_is_class_1_of_two(tmp_path):
    path, out = tmp_path / "in.csv", tmp_path / "out.csv"
    path.write_text("z\n-1.5\n0\n2\n")
    assert main(["apply", str(path), str(out), "--scores", "z", "--logits", "--gamma", "2"]) == 0
    two = refocal.Focal(2.0).posterior(np.array([[0, -1.5], [0, 0], [0, 2]], float))
    np.testing.assert_allclose(read(out)["prob_1"], two[:, 1], rtol=1e-12)


def test_numbered_columns_in_the_order_of_letters(tmp_path):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(5, 12))
    order = sorted(range(12), key=str)  # 0, 1, 10, 11, 2, ...
    pq.write_table(pa.table({f"z{k}": z[:, k] for k in order}), tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    assert (
        main(["apply", str(tmp_path / "in.parquet"), str(out), "--scores", "z*", "--logits", "--gamma", "1"])
        == 0
    )
    found = read(out)
    assert list(found)[-12:] == [f"prob_{k}" for k in range(12)]
    expected = refocal.Focal(1.0).posterior(z)
    np.testing.assert_allclose(found["prob_11"], expected[:, 11], rtol=1e-12)


def test_a_saved_choice(tmp_path):
    logits, labels = made(2000, dtype=float)
    path = write(tmp_path / "in.parquet", logits, labels)
    choice, out = tmp_path / "choice.json", tmp_path / "out.parquet"
    rows = ["--scores", "logit_*", "--logits"]
    assert main(["choose", str(path), *rows, "--label", "species", "--gamma", "2", "-o", str(choice)]) == 0
    assert main(["apply", str(path), str(out), *rows, "--calibration", str(choice)]) == 0
    found = refocal.choose_calibration(logits, labels, refocal.Focal(2.0))
    assert found.winner == "psi"
    np.testing.assert_allclose(probs_of(read(out)), found.apply(logits), rtol=1e-9)


def hive(root, n=300):
    """Write a folder with partitions and return what is in it, in the order of the names."""
    logits, labels = made(n)
    table = table_of(logits, labels)
    for i, name in enumerate(["day=1/a.parquet", "day=1/b.parquet", "day=2/a.parquet"]):
        path = root / "place=Bad%20Ems" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.slice(i * n // 3, n // 3), path)
    (root / "_SUCCESS").touch()
    (root / "readme.txt").write_text("not a table")
    return logits, labels


def test_a_folder_keeps_its_names_and_partitions(tmp_path):
    logits, _ = hive(tmp_path / "in")
    out = tmp_path / "out"
    assert apply(tmp_path / "in", out, *OPTIONS) == 0
    names = [p.relative_to(out).as_posix() for p in sorted(out.rglob("*.parquet"))]
    assert names == [f"place=Bad%20Ems/day={d}" for d in ("1/a.parquet", "1/b.parquet", "2/a.parquet")]
    table = pq.read_table(out)
    assert table.column("day").to_pylist() == [1] * 200 + [2] * 100
    assert table.column("place").unique().to_pylist() == ["Bad Ems"]
    found = np.stack([table.column(f"prob_{c}").to_numpy() for c in CLASSES], axis=1)
    np.testing.assert_allclose(found, refocal.Focal(2.0).posterior(logits.astype(float)), atol=1e-6)


def test_a_folder_into_one_file_has_its_partitions_as_columns(tmp_path):
    hive(tmp_path / "in")
    assert apply(tmp_path / "in", tmp_path / "out.parquet", *OPTIONS) == 0
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column("day").to_pylist() == [1] * 200 + [2] * 100
    assert table.column("place").to_pylist() == ["Bad Ems"] * 300


@pytest.mark.parametrize("relative", [False, True])
def test_a_pattern(relative, tmp_path, monkeypatch):
    hive(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    pattern = "in/*/day=1/*.parquet" if relative else f"{tmp_path}/in/*/day=1/*.parquet"
    assert apply(pattern, tmp_path / "out.parquet", *OPTIONS) == 0
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 200


def test_a_folder_with_an_empty_file(tmp_path):
    hive(tmp_path / "in")
    first = tmp_path / "in" / "place=Bad%20Ems" / "day=1" / "a.parquet"
    pq.write_table(pq.read_table(first, partitioning=None).slice(0, 0), first)
    assert apply(tmp_path / "in", tmp_path / "out", *OPTIONS) == 0
    assert pq.read_table(tmp_path / "out").num_rows == 200
    empty = pq.read_table(tmp_path / "out" / "place=Bad%20Ems" / "day=1" / "a.parquet", partitioning=None)
    assert (empty.num_rows, empty.schema.field("prob_ant").type) == (0, pa.float32())


def test_a_folder_that_is_there_is_not_written_into(tmp_path, capsys):
    hive(tmp_path / "in")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    assert apply(tmp_path / "in", tmp_path / "out", *OPTIONS) == 2
    expected = f"refocal: the output must be a new or an empty folder, got '{tmp_path / 'out'}'\n"
    assert capsys.readouterr().err == expected
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["old"]


def test_files_of_a_folder_must_be_alike(tmp_path, capsys):
    hive(tmp_path / "in")
    last = tmp_path / "in" / "place=Bad%20Ems" / "day=2" / "a.parquet"
    pq.write_table(pq.read_table(last, partitioning=None).drop_columns(["y"]), last)
    assert apply(tmp_path / "in", tmp_path / "out", *OPTIONS) == 2
    assert "must have the same columns and types, but place=Bad%20Ems/day=2/a.parquet has no column 'y'" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


def test_uris(tmp_path):
    write(tmp_path / "in.parquet", *made(50))
    here, out = f"file://{tmp_path}/in.parquet", f"file://{tmp_path}/out.parquet"
    assert main(["apply", here, out, *OPTIONS]) == 0
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 50


def test_other_file_systems(tmp_path, monkeypatch):
    """A file system that is not this machine's own, as pyarrow sees it: all goes through its interface."""
    from pyarrow import fs

    from refocal.scoring import paths

    system = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(paths, "_from_uri", lambda uri: (system, uri.removeprefix("far://")))
    hive(tmp_path / "in")
    write(tmp_path / "in.csv", *made(50))
    assert main(["apply", "far://in.csv", "far://out.csv", *OPTIONS]) == 0
    assert len(read(tmp_path / "out.csv")["id"]) == 50
    assert main(["apply", "far://in", "far://out.parquet", *OPTIONS]) == 0
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 300
    assert main(["apply", "far://in", "far://folder", *OPTIONS]) == 0
    assert pq.read_table(tmp_path / "folder").num_rows == 300
    assert main(["apply", "far://in/*/day=2/*", "far://part.parquet", *OPTIONS]) == 0
    assert pq.read_table(tmp_path / "part.parquet").num_rows == 100
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_failed_run_leaves_the_old_output(tmp_path, capsys):
    logits, labels = made(5000)
    logits[4321, 1] = np.nan
    path, out = write(tmp_path / "in.parquet", logits, labels), tmp_path / "out.parquet"
    out.write_text("old")
    assert apply(path, out) == 2
    rule = "scores must be finite or -inf, with a finite one in each row"
    assert capsys.readouterr().err == f"refocal: {path}: {rule}, got nan in row 4321\n"
    assert out.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.parquet", "out.parquet"]


def test_temporary_files_of_killed_runs_go(tmp_path):
    path = write(tmp_path / "in.parquet", *made(50))
    mine = tmp_path / f"out.parquet.{os.getppid()}.tmp"
    mine.touch()
    (tmp_path / "out.parquet.999999999.tmp").touch()  # beyond any process number
    assert apply(path, tmp_path / "out.parquet") == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.parquet", "out.parquet", mine.name]


def test_two_runs_have_the_same_bytes(tmp_path):
    logits, labels = made(2000)
    for kind in ("csv", "csv.gz", "parquet", "arrow", "npy", "npz"):
        path = write(tmp_path / f"in.{kind}", logits, labels)
        outs = [tmp_path / f"{i}.{kind}" for i in range(2)]
        assert [apply(path, out) for out in outs] == [0, 0]
        assert outs[0].read_bytes() == outs[1].read_bytes()


def test_gzip_is_gzip(tmp_path):
    path = write(tmp_path / "in.csv", *made(50))
    assert apply(path, tmp_path / "out.csv.gz") == 0
    assert apply(path, tmp_path / "out.csv") == 0
    assert gzip.decompress((tmp_path / "out.csv.gz").read_bytes()) == (tmp_path / "out.csv").read_bytes()


def test_masked_classes(tmp_path):
    pq.write_table(pa.table({"a": [0.0, 1.0], "b": [-np.inf, 0.0], "c": [1.0, 2.0]}), tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    assert apply(tmp_path / "in.parquet", out, "--scores", "?", "--logits", "--gamma", "2") == 0
    assert probs_of(read(out))[0, 1] == 0


GIVEN = ["--scores", *NAMES, "--logits"]
GAMMA = ["--gamma", "2"]
REFUSED = {
    "not said": (
        ["--scores", *NAMES, *GAMMA],
        "--logits or --probs must be said; in the first 50 rows values",
    ),
    "no columns": (["--logits", *GAMMA], "--scores must name the score columns of "),
    "unknown column": (["--scores", "z_*", "--logits", *GAMMA], "--scores must name columns of "),
    "text": ([*GAMMA, "--logits", "--scores", "species", "y"], "column 'species' must hold numbers, got '"),
    "logits as probs": (["--scores", *NAMES, "--probs", *GAMMA], "these look like logits, say --logits"),
    "no loss": (GIVEN, "--gamma, --objective or --calibration must say"),
    "alpha": (
        [*GIVEN, *GAMMA, "--alpha", ".25"],
        "--alpha belongs to the loss on a sigmoid: say --sigmoid too",
    ),
    "gamma": ([*GIVEN, "--gamma", "-1"], "gamma must be finite and >= 0, got -1.0"),
    "gammas": ([*GIVEN, "--gamma", "1,2"], "gamma must have one number for each of the 3 classes, got 2"),
    "no gamma": ([*GIVEN, "--gamma", "two"], "argument --gamma: must be a number, got 'two'"),
    "prefix": ([*GIVEN, *GAMMA, "--prefix", "logit_"], "--prefix must make new columns, but "),
    "twice": ([*GIVEN, "--probs", *GAMMA], "not allowed with argument"),
    "address": ([*GIVEN, *GAMMA, "--address", "auto"], "--address: for --engine ray only"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name, tmp_path, capsys):
    options, text = REFUSED[name]
    path = write(tmp_path / "in.parquet", *made(50))
    assert main(["apply", str(path), str(tmp_path / "out.parquet"), *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert text in err
    assert not (tmp_path / "out.parquet").exists()


def test_what_values_look_like(tmp_path, capsys):
    path = tmp_path / "in.csv"
    for rows, text in [
        ("0.5,0.5\n0.25,0.75\n", "0.75 and each row sums to 1: these look like probabilities, say --probs"),
        ("-8.1,12.3\n", "values lie between -8.1 and 12.3: these look like logits, say --logits"),
        ("0.9,0.8\n0.5,0.5\n", "50% of the rows sum to 1: these look like probabilities of single labels"),
    ]:  # fmt: skip
        path.write_text("a,b\n" + rows)
        assert main(["apply", str(path), "-", "--scores", "a", "b", "--gamma", "2"]) == 2
        assert text in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_one_loss_for_each_class(kind, tmp_path, capsys):
    """Sigmoids of a one-vs-rest loss do not sum to 1 in a row; their posterior does."""
    rng = np.random.default_rng(0)
    posterior = rng.dirichlet([0.7] * 3, 400)
    spec = refocal.OneVsRest(refocal.SigmoidFocal(2.0))
    logits = spec.logits(posterior)
    scores = logits if kind == "logits" else 1 / (1 + np.exp(-logits))
    labels = (rng.random((400, 1)) > posterior.cumsum(axis=1)).sum(axis=1)
    path, out, given = tmp_path / "in.parquet", tmp_path / "out.parquet", tmp_path / "spec.json"
    pq.write_table(table_of(scores, labels), path)
    given.write_text(json.dumps(spec.to_dict()))
    options = ["--scores", "logit_*", f"--{kind}", "--objective", str(given)]
    assert main(["apply", str(path), str(out), *options]) == 0
    np.testing.assert_allclose(probs_of(read(out)), posterior, atol=1e-6)
    capsys.readouterr()
    assert main(["metrics", str(path), *options, "--label", "species", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["metrics"]
    assert found["posterior"]["nll"] == pytest.approx(refocal.nll(posterior, labels), rel=1e-5)
    assert found["raw"]["nll"] > found["posterior"]["nll"]


@pytest.mark.parametrize("name", ["no/out.parquet", "no/folder", "there.parquet"])
def test_an_output_that_cannot_be(name, tmp_path, capsys):
    hive(tmp_path / "in")
    (tmp_path / "there.parquet").mkdir()
    out = tmp_path / name
    assert apply(tmp_path / "in", out, *OPTIONS) == 2
    rule = "must be a file, got the folder" if "there" in name else "must be in a folder that is there, got"
    assert capsys.readouterr().err == f"refocal: the output {rule} '{out}'\n"
    given = ["--scores", "logit_*", "--logits", "--label", "y", "-o", str(tmp_path / "no" / "choice.json")]
    assert main(["choose", str(tmp_path / "in"), *given]) == 2
    assert "must be in a folder that is there" in capsys.readouterr().err


def test_a_partition_can_be_the_label(tmp_path, capsys):
    hive(tmp_path / "in")
    given = ["--scores", "logit_*", "--logits", "--label", "day", "--json"]
    assert main(["metrics", str(tmp_path / "in"), *given]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 300
    given[-2] = "place"
    assert main(["metrics", str(tmp_path / "in"), *given[:-1]]) == 2
    assert "say --classes A,B,... with 3 names, in the order of these columns" in capsys.readouterr().err


def test_names_that_are_left_must_differ(tmp_path):
    pq.write_table(pa.table({"z_": [0.0, 1.0], "z_z_": [1.0, 0.0]}), tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    assert apply(tmp_path / "in.parquet", out, "--scores", "z*", "--logits", "--gamma", "2") == 0
    assert list(read(out))[2:] == ["prob_z_", "prob_z_z_"]
