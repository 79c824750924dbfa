"""Data sets: the registry, where they are looked for, what is refused, and `refocal data`."""

import hashlib
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from openml_stand_in import MIXED, register, serve

from refocal.cli import main
from refocal.experiments.data import datasets
from refocal.experiments.data.datasets import REGISTRY, find, load, names, source
from refocal.experiments.files import published_numbers

DATA = os.environ.get("REFOCAL_DATA")  # before the fixture below hides it
needs_data = pytest.mark.skipif(not DATA, reason="REFOCAL_DATA does not name the folder of the stored files")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, and no data folder from outside."""
    monkeypatch.delenv("REFOCAL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "refocal"


def save(path, **arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def table(n=6, k=2):
    return {"X": np.arange(3.0 * n).reshape(n, 3), "y": np.arange(n) % k}


def split(n=6, n_test=4):
    images = np.zeros((n + n_test, 2, 2), np.uint8)
    labels = np.arange(n + n_test, dtype=np.uint8) % 2
    return dict(zip(datasets.SPLIT, (images[:n], labels[:n], images[n:], labels[n:]), strict=True))


# --- the registry


def test_the_registry_has_every_row_name_of_the_papers_tables():
    rows = published_numbers()
    tabular = {row["dataset"] for row in rows if row["model"] in ("linear", "mlp")}
    image = {row["dataset"] for row in rows} - tabular
    assert len(tabular) == 30
    assert {entry.paper for entry in REGISTRY.values() if entry.kind == "tabular"} - {None} == tabular
    assert {entry.paper for entry in REGISTRY.values() if entry.kind == "image"} - {None} == image


@needs_data
def test_checksums_and_class_numbers_are_those_of_the_stored_files():
    here = {path.stem for path in Path(DATA).glob("*.npz")}
    assert here == {name for name, entry in REGISTRY.items() if entry.sha256 is not None}
    for name in sorted(here):
        path = Path(DATA) / f"{name}.npz"
        assert hashlib.sha256(path.read_bytes()).hexdigest() == REGISTRY[name].sha256, name
        if path.stat().st_size < 1_000_000:  # the others take seconds
            data = load(name, DATA)
            assert data.n_classes == REGISTRY[name].n_classes, name
            assert data.partial is (name == "w8a")


def test_partial_copies_are_known():
    assert [name for name, entry in REGISTRY.items() if entry.partial] == ["w8a", "gas-drift", "kmnist"]


def test_every_set_has_a_source():
    numbers = [entry.openml for entry in REGISTRY.values() if entry.openml is not None]
    assert len(set(numbers)) == len(numbers)
    assert all(bool(entry.where) is (entry.openml is None) for entry in REGISTRY.values())


def test_image_sets_of_openml_have_the_public_numbers_of_rows():
    rows = {e.name: (e.n_rows - e.n_test, e.n_test) for e in REGISTRY.values() if e.openml and e.shape}
    small = dict.fromkeys(("mnist", "kmnist", "fashion-mnist"), (60_000, 10_000))
    assert rows == small | {"svhn": (73_257, 26_032), "cifar10": (50_000, 10_000)}
    assert [entry.name for entry in REGISTRY.values() if entry.balanced] == ["cifar10"]


def test_names_and_kinds():
    assert len(names("tabular")) == 32
    assert names()[0] == "australian"
    assert set(names()) == set(names("tabular")) | set(names("image")) == set(REGISTRY)


@pytest.mark.parametrize(
    "name, found", [("usps", "usps"), ("USPS", "usps"), ("Japanesevowels", "japanese-vowels")]
)
def test_source_by_either_name(name, found):
    assert source(name).name == found


@pytest.mark.parametrize(
    "name, text",
    [
        ("lettr", "unknown data set 'lettr'; did you mean letter?"),
        ("mnis", "unknown data set 'mnis'; did you mean kmnist or mnist?"),
        ("qqqqqq", "unknown data set 'qqqqqq'; `refocal data list` shows all"),
    ],
)
def test_an_unknown_name_is_refused_with_near_ones(name, text):
    for function in (source, find, load):
        with pytest.raises(ValueError, match="unknown") as caught:
            function(name)
        assert str(caught.value) == text


# --- where it is looked for


def test_folder_then_cache(tmp_path, cache, monkeypatch):
    assert find("letter") is None
    cached = save(cache / "letter.npz", **table())
    assert find("letter") == cached
    own = save(tmp_path / "data" / "letter.npz", **table())
    assert find("letter", own.parent) == own
    assert find("Letter", str(own.parent)) == own
    monkeypatch.setenv("REFOCAL_DATA", str(own.parent))
    assert find("letter") == own
    other = save(tmp_path / "other" / "letter.npz", **table())
    assert find("letter", other.parent) == other  # the argument is stronger than the environment
    own.unlink()
    assert find("letter") == cached


def test_a_set_of_ones_own_by_name_and_by_path(tmp_path, monkeypatch):
    path = save(tmp_path / "mine.npz", **table(9, 3), feature_names=np.array(["a", "b", "c"]))
    for data in (load(path), load(str(path)), load("mine", tmp_path)):
        assert (data.name, data.n_classes, data.partial, data.path) == ("mine", 3, False, path)
        np.testing.assert_array_equal(data.X, table(9)["X"])
        assert data.y.dtype == np.int64
    monkeypatch.chdir(tmp_path)
    assert load("mine.npz").name == "mine"


def test_a_missing_file_or_folder(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"mine.npz is not there"):
        load(tmp_path / "mine.npz")
    with pytest.raises(FileNotFoundError, match=r"data must be a folder of .npz files, got .*nowhere"):
        load("letter", tmp_path / "nowhere")
    monkeypatch.setenv("REFOCAL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="REFOCAL_DATA must be a folder"):
        load("letter")


def test_split_data_keep_shape_and_dtype(tmp_path):
    data = load(save(tmp_path / "images.npz", **split()))
    assert data.X.shape == (6, 2, 2)
    assert data.X_test.shape == (4, 2, 2)
    assert data.X.dtype == data.X_test.dtype == np.uint8
    assert data.y.dtype == data.y_test.dtype == np.int64


# --- what is refused


def with_nan():
    arrays = table()
    arrays["X"][4, 1] = np.nan
    return arrays


@pytest.mark.parametrize(
    "arrays, text",
    [
        ({}, "must have the arrays X and y, or X_train, y_train, X_test, y_test; got none"),
        ({"data": np.eye(2), "y": [0, 1]}, "must have the arrays X and y, or .*; got data, y"),
        ({k: v for k, v in split().items() if k != "y_test"}, "; got X_train, y_train, X_test"),
        (with_nan(), "X must be finite, got NaN or infinity in row 4"),
        (table() | {"X": np.full((6, 1), np.inf, np.float32)}, "X must be finite, .* in row 0"),
        (table(k=1), "y must have at least 2 classes, got the label 0 only"),
        ({"X": np.eye(3), "y": [0, 5, 9]}, "y must have at least one row for each class, got 3 for 10"),
        ({"X": np.eye(4), "y": [0, 1, 3, 0]}, "y must hold each label of 0..3, got no row of 2"),
        ({"X": np.eye(3), "y": [1, 2, 3]}, "y must have at least one row for each class, got 3 for 4"),
        ({"X": np.eye(3), "y": [-1, 1, 1]}, "y must be within 0..K-1, got -1"),
        ({"X": np.eye(3), "y": [0, 1]}, "X must have a row for each label, got 3 rows and 2 labels"),
        ({"X": np.eye(2), "y": [0.0, 1.0]}, "y must be a row of integer labels, .*float64"),
        ({"X": np.eye(2), "y": [[0], [1]]}, r"y must be a row of integer labels, got shape \(2, 1\)"),
        (
            {"X": np.zeros((0, 2)), "y": np.zeros(0, int)},
            r"y must be a row of integer labels, got shape \(0,\)",
        ),
        ({"X": np.zeros(2), "y": [0, 1]}, r"X must be rows of numbers, got shape \(2,\)"),
        ({"X": np.zeros((2, 0)), "y": [0, 1]}, r"X must be rows of numbers, got shape \(2, 0\)"),
        ({"X": np.array([["a"], ["b"]]), "y": [0, 1]}, "X must be rows of numbers, .*<U1"),
        ({"X": np.eye(2, dtype=complex), "y": [0, 1]}, "X must be rows of numbers, .*complex128"),
        (split() | {"y_test": np.array([0, 1, 2, 0])}, "y_test must be within 0..1, got 2"),
        (split() | {"X_test": np.zeros((4, 2))}, r"X_test must have rows of shape \(2, 2\) as X_train"),
        (split() | {"X_test": np.zeros((3, 2, 2))}, "X_test must have a row for each label, got 3"),
        (split() | {"y_train": np.zeros(6, int)}, "y_train must have at least 2 classes"),
    ],
)
def test_bad_data_are_refused(arrays, text, tmp_path):
    path = save(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match=text) as caught:
        load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("damage", ["text", "cut", "flip", "npy", "objects"])
def test_a_file_that_cannot_be_read_is_refused(damage, tmp_path):
    path = save(tmp_path / "bad.npz", **table(300))
    content = bytearray(path.read_bytes())
    if damage == "text":
        path.write_text("X,y\n1,0\n")
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[len(content) // 3] ^= 1  # in the middle of X: the archive has a checksum of its own
        path.write_bytes(content)
    elif damage == "npy":
        buffer = io.BytesIO()
        np.save(buffer, np.eye(2))
        path.write_bytes(buffer.getvalue())
    else:
        np.savez(path, X=np.array([[None], [1]], dtype=object), y=[0, 1])
    with pytest.raises(ValueError, match=r"bad.npz cannot be read as an .npz file: "):
        load(path)


@pytest.mark.parametrize(
    "platform, variable, expected",
    [
        ("linux", None, "home/.cache/refocal"),
        ("darwin", None, "home/Library/Caches/refocal"),
        ("win32", "LOCALAPPDATA", "local/refocal"),
        ("linux", "XDG_CACHE_HOME", "local/refocal"),
    ],
)
def test_cache_folder(platform, variable, expected, monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "local"))
    assert datasets.cache_folder() == tmp_path / expected


# --- refocal data


def test_list(tmp_path, capsys):
    save(tmp_path / "letter.npz", **table())
    assert main(["data", "list", "--data", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "kind", "classes", "source", "here", "notes"]
    assert [line.split()[0] for line in lines[1:]] == list(REGISTRY)
    assert next(line for line in lines if line.startswith("letter")).split() == [
        "letter", "tabular", "26", "OpenML", "6", "yes",
    ]  # fmt: skip
    assert next(line for line in lines if line.startswith("vehicle ")).split()[-1] == "no"


def test_fetch_prints_the_file(monkeypatch, cache, capsys):
    register(monkeypatch, n_classes=3, openml=77)
    serve(monkeypatch, 77, MIXED)
    assert main(["data", "fetch", "stand-in"]) == 0
    assert capsys.readouterr().out == f"stand-in: {cache / 'stand-in.npz'}\n"
    assert main(["data", "fetch", "stand-in", "lettr"]) == 2
    assert capsys.readouterr() == ("", "refocal: unknown data set 'lettr'; did you mean letter?\n")


def test_check_of_a_fetched_file(monkeypatch, cache, capsys):
    register(monkeypatch, n_classes=3, openml=77)
    serve(monkeypatch, 77, MIXED)
    path = datasets.fetch("stand-in")
    assert main(["data", "check"]) == 0
    assert capsys.readouterr().out == f"stand-in               ok       {path}\n1 data sets checked\n"
    save(path, **table())
    assert main(["data", "check"]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("stand-in               differs  SHA-256 ")
    assert err == "refocal: 1 of 1 data sets are not as expected: stand-in\n"
    os.truncate(path, 100)
    assert main(["data", "check", "stand-in"]) == 2
    assert "stand-in               damaged" in capsys.readouterr().out


def test_check_of_a_folder(tmp_path, capsys):
    save(tmp_path / "letter.npz", **table())
    save(tmp_path / "gisette.npz", **table())
    assert main(["data", "check", "--data", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert [line.split()[:2] for line in out.splitlines()] == [["gisette", "unknown"], ["letter", "differs"]]
    assert "expected 9d7bb558ba82..." in out
    assert err == "refocal: 1 of 2 data sets are not as expected: letter\n"
    assert main(["data", "check", "vehicle", "--data", str(tmp_path)]) == 2
    assert "vehicle                missing" in capsys.readouterr().out


def test_a_full_copy_of_a_partial_set_is_not_partial(tmp_path):
    assert not load(save(tmp_path / "gas-drift.npz", **table())).partial


@needs_data
def test_check_of_the_stored_files(capsys):
    assert main(["data", "check", "--data", DATA]) == 0
    assert capsys.readouterr().out.endswith("34 data sets checked\n")


def test_listing_imports_no_learning_library():
    code = (
        "import sys, refocal.cli; refocal.cli.main(['data', 'list']); "
        "print({'torch', 'sklearn', 'ray', 'rich'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "set()\n"
