"""Broken files through each command: exit code 2, one clear line, no traceback, no output, valid JSON."""

import gzip
import io
import json
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from score_files import CLASSES, NAMES, made, table_of, write

from refocal.cli import main

KINDS = ("csv", "csv.gz", "tsv", "parquet", "arrow", "npy", "npz")
SAID = {"npy": [], "npz": ["--scores", "logit"]}
LABEL = {"npy": "score_0", "npz": "y"}


def commands(path, kind, out):
    """Return each command on a file, with the file it would write."""
    scores = [*SAID.get(kind, ["--scores", "logit_*"]), "--logits"]
    label = ["--label", LABEL.get(kind, "species"), "--classes", ",".join(CLASSES)]
    if kind in LABEL:
        label = label[:2]
    return [
        ["apply", path, out, *scores, "--gamma", "2"],
        ["metrics", path, *scores, *label, "--gamma", "2"],
        ["choose", path, *scores, *label, "-o", out],
    ]


def check(argv, out, capsys, rng, name):
    """Run a command that must fail, and look at all that it says."""
    as_json = bool(rng.integers(2))
    code = main([str(word) for word in argv] + ["--json"] * as_json)
    text, err = capsys.readouterr()
    said = (name, argv[0], text[:300], err[:600])
    assert code == 2, said
    assert err.startswith("refocal"), said
    assert err.count("\n") == 1, said
    assert len(err) < 800, said
    assert "Traceback" not in err, said
    assert "bug" not in err, said
    assert json.loads(text)["error"] in err if as_json else text == "", said
    assert not out.exists(), said
    assert not list(out.parent.glob(out.name + ".*")), said


def cut(rng, content):
    return content[: int(rng.integers(0, max(1, len(content) - 40)))]


def noise(rng, content):
    return rng.bytes(int(rng.integers(1, 2000)))


def changed(rng, logits, labels, how):
    """Return a table of which something is wrong."""
    table = table_of(logits, labels)
    row, name = int(rng.integers(len(labels))), str(rng.choice(NAMES))
    at = table.column_names.index(name)
    values = table.column(name).to_pylist()
    if how == "missing column":
        return table.drop_columns([*NAMES, "species"])
    if how == "empty":
        return table.slice(0, 0)
    if how == "nan":
        values[row] = [float("nan"), float("inf")][int(rng.integers(2))]
        return table.set_column(at, name, pa.array(values, pa.float32()))
    if how == "null":
        values[row] = None
        return table.set_column(at, name, pa.array(values, pa.float32()))
    if how == "text":
        texts = [str(v) for v in values]
        texts[row] = str(rng.choice(["abc", "1,5", "0x1", "", "--", "1.2.3", "\u0661\u0662", "⅓"]))
        return table.set_column(at, name, pa.array(texts))
    if how == "nested":
        return table.set_column(at, name, pa.array([[v] for v in values]))
    if how == "struct":
        return table.set_column(at, name, pa.array([{"a": v} for v in values]))
    if how == "dates":
        return table.set_column(at, name, pa.array(range(len(values)), pa.timestamp("s")))
    if how == "bytes":
        return table.set_column(at, name, pa.array([b"\xff"] * len(values)))
    if how == "huge":  # no float64 holds it: it is read as infinite, or not at all
        return table.set_column(at, name, pa.array(["9" * 400] * len(values)))
    assert how == "twice"
    return table.append_column(name, table.column(name))


TABLES = (
    "missing column",
    "empty",
    "nan",
    "null",
    "text",
    "nested",
    "struct",
    "dates",
    "bytes",
    "huge",
    "twice",
)


def quoted(value):
    if value is None:
        return ""
    return '"' + value.replace('"', '""') + '"' if isinstance(value, str) else str(value)


def text_of(table, delimiter):
    lines = [delimiter.join(table.column_names)]
    lines += [
        delimiter.join(map(quoted, row)) for row in zip(*(c.to_pylist() for c in table.columns), strict=True)
    ]
    return "\n".join(lines) + "\n"


def broken(rng, path, kind):
    """Write a broken file and return what is wrong with it."""
    n = int(rng.integers(2, 60))
    logits, labels = made(n, seed=int(rng.integers(1000)))
    write(path, logits, labels)
    content = path.read_bytes()
    text = kind.startswith(("csv", "tsv"))
    if kind in ("npy", "npz"):
        how = str(
            rng.choice(["cut", "noise", "dtype", "axes", "nan", "empty", "objects", "liar", "rows", "bomb"])
        )
        arrays(rng, path, kind, how, logits, labels, content)
        return how
    tables = [t for t in TABLES if not (text and t in ("nested", "struct", "dates", "bytes"))]
    how = str(rng.choice(["cut", "noise", "flip", "encoding", *tables]))
    if how == "encoding" and not text:
        how = "noise"
    if how == "cut" and text and kind != "csv.gz":
        how = "ragged"
    if how == "flip":
        how = "cut" if not text or kind == "csv.gz" else "ragged"
    if how == "cut":
        path.write_bytes(cut(rng, content))
    elif how == "noise":
        path.write_bytes(noise(rng, content))
    elif how == "ragged":
        lines = content.decode().splitlines()
        lines[int(rng.integers(1, len(lines)))] += "\t9,9"
        path.write_text("\n".join(lines) + "\n")
    elif how == "encoding":
        other = str(rng.choice(["utf-16", "utf-32", "latin-1", "cp1252"]))
        raw = content if kind != "csv.gz" else gzip.decompress(content)
        raw = raw.decode().replace("row 0000", "Zürich").replace("logit_ant", "logit_änt").encode(other)
        path.write_bytes(raw if kind != "csv.gz" else gzip.compress(raw))
    else:
        table = changed(rng, logits, labels, how)
        if text:
            raw = text_of(table, "\t" if kind == "tsv" else ",").encode()
            path.write_bytes(gzip.compress(raw) if kind == "csv.gz" else raw)
        elif kind == "parquet":
            pq.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
    return how


def arrays(rng, path, kind, how, logits, labels, content):
    """Write NPY and NPZ files that are wrong."""
    if how == "cut":
        path.write_bytes(cut(rng, content))
        return
    if how == "noise":
        path.write_bytes(noise(rng, content))
        return
    array = logits
    if how == "dtype":
        array = logits.astype([complex, "S8", "M8[s]"][int(rng.integers(3))])
    elif how == "axes":
        array = [logits[None], logits[0, 0], np.asfortranarray(logits)][int(rng.integers(3))]
    elif how == "nan":
        array = logits.copy()
        array[int(rng.integers(len(array))), 1] = np.nan
    elif how == "empty":
        array = [logits[:0], logits[:, :0]][int(rng.integers(2))]
    elif how == "objects":
        array = logits.astype(object)
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    raw = buffer.getvalue()
    if how == "liar":  # says that it has more rows than any disk
        raw = lying(logits)
    if how == "bomb":  # as many rows as it says, all of them zeros but the last one, which is NaN
        zeros = np.zeros((200_000, 3))
        zeros[-1] = np.nan
        buffer = io.BytesIO()
        np.save(buffer, zeros)
        raw = buffer.getvalue()
    if kind == "npy":
        path.write_bytes(raw)
        return
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logit.npy", raw)
        buffer = io.BytesIO()
        np.save(
            buffer,
            labels[: len(labels) // 2]
            if how == "rows"
            else np.resize(labels, len(array) if np.ndim(array) else 1),
        )
        archive.writestr("y.npy", buffer.getvalue())


def lying(logits):
    buffer = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**15, 3)}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + logits.tobytes()


def table(**columns):
    return pa.table({"logit_a": [1.0, 2.0], "logit_b": [0.0, 0.5], "y": [0, 1]} | columns)


WRONG_LABELS = {
    "huge": (table(y=[0, 2**60]), "label 'y' must be within 0..1, got 1152921504606846976 in row 1"),
    "beyond int64": (
        table(y=pa.array([0, 2**64 - 1], pa.uint64())),
        "label 'y' must be integers, got 184467",
    ),
    "negative": (table(y=[0, -1]), "label 'y' must be within 0..1, got -1 in row 1"),
    "halves": (table(y=[0.0, 0.5]), "label 'y' must be integers, got 0.5 in row 1"),
    "nan": (table(y=[0.0, np.nan]), "label 'y' must be integers, got nan in row 1"),
    "null": (table(y=[0, None]), "label 'y' must have a value in each row, got none in row 1"),
    "lists": (table(y=[[0], [1]]), "label 'y' must hold integers or text, got list"),
    "one word": (table(y=["no", "no"]), "say --classes A,B,... with 2 names, in the order of these columns"),
}


@pytest.mark.parametrize("name", WRONG_LABELS)
def test_labels_that_are_wrong(name, tmp_path, capsys):
    content, text = WRONG_LABELS[name]
    pq.write_table(content, tmp_path / "in.parquet")
    given = [str(tmp_path / "in.parquet"), "--scores", "logit_*", "--logits", "--label", "y"]
    for command in ("metrics", "choose"):
        assert main([command, *given]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert text in err


@pytest.mark.parametrize("header", ["", "logit_a,logit_b\n"])
def test_a_bomb_of_one_line(header, tmp_path, capsys):
    """A quarter of a gigabyte without an end of line, in 250 kB: it is not unpacked into memory."""
    import tracemalloc

    path = tmp_path / "in.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header.encode())
        for _ in range(16):
            file.write(b"0" * (1 << 24))
    before = pa.default_memory_pool().max_memory()
    tracemalloc.start()
    given = ["--scores", "logit_*", "--logits", "--gamma", "2"]
    assert main(["apply", str(path), str(tmp_path / "out.csv"), *given]) == 2
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64e6
    assert pa.default_memory_pool().max_memory() < max(before, 128e6)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert len(err) < 500
    assert [p.name for p in tmp_path.iterdir()] == ["in.csv.gz"]


def test_a_column_that_changes_its_mind(tmp_path, capsys):
    """A column of a CSV file that begins with numbers and goes on with words, into a file with types."""
    path = tmp_path / "in.csv"
    path.write_text("id,logit_a,logit_b\n" + "1,0.5,0.25\n" * 500_000 + "one,0.5,0.25\n")
    given = ["--scores", "logit_*", "--logits", "--gamma", "2"]
    assert main(["apply", str(path), str(tmp_path / "out.parquet"), *given]) == 2
    assert "CSV conversion error to int64: invalid value 'one'" in capsys.readouterr().err
    assert (
        main(["apply", str(path), str(tmp_path / "out.csv"), *given]) == 0
    )  # text to text: as it is written


def run_many(n, seed, tmp_path, capsys):
    rng = np.random.default_rng(seed)
    for i in range(n):
        kind = KINDS[i % len(KINDS)]
        path, out = tmp_path / f"in.{kind}", tmp_path / f"out.{kind}"
        how = broken(rng, path, kind)
        if kind == "npy" and how == "rows":
            continue  # one array has nothing to disagree with
        argv = commands(path, kind, out)[int(rng.integers(3)) if kind != "npy" else 0]
        check(argv, out, capsys, rng, f"{i} {kind} {how}")


def test_broken_files(tmp_path, capsys):
    run_many(200, 0, tmp_path, capsys)


@pytest.mark.slow
def test_many_broken_files(tmp_path, capsys):
    run_many(2000, 1, tmp_path, capsys)
