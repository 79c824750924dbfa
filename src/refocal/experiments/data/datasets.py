"""Data sets by name or by file, checked before anything is trained on them.

A data set is a NumPy archive ``<name>.npz``: ``X`` (rows, features) and ``y``, or ``X_train``, ``y_train``,
``X_test``, ``y_test`` where the test rows are given. Labels are the integers 0..K-1. A name is looked up in
the folder ``data`` or ``$REFOCAL_DATA``, then in the cache; what is in neither is fetched from OpenML.
"""

from __future__ import annotations

import dataclasses
import difflib
import io
import lzma
import os
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from refocal.experiments.data.openml import SPLIT, TABLE, Numbers, fetch_arrays
from refocal.experiments.data.registry import REGISTRY, Source
from refocal.experiments.files import sha256_of
from refocal.files import write_atomic

Folder: TypeAlias = str | os.PathLike[str]

CHECKSUM = ".sha256"
"""What is added to the name of a fetched file for the file with its checksum."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """The rows of a data set, as they are stored: not shuffled, not scaled, not flattened.

    Attributes:
        name: Of the registry, or of the file.
        X: Features, one row for each sample: (n, features), or images (n, height, width[, 3]).
        y: Labels 0..n_classes-1, int64.
        n_classes: At least 2; each has a row in ``y``.
        X_test: Rows that are for testing only; None if the data come without a split.
        y_test: Their labels.
        partial: This is the incomplete copy of the registry: show results, but do not judge them.
        path: The file that they were read from; None if there is none.

    Example:
        >>> Dataset("tiny", np.zeros((2, 3)), np.array([0, 1]), 2).X_test is None
        True
    """

    name: str
    X: Numbers
    y: Numbers
    n_classes: int
    X_test: Numbers | None = None
    y_test: Numbers | None = None
    partial: bool = False
    path: Path | None = None


def names(kind: Literal["tabular", "image"] | None = None) -> list[str]:
    """Return the names of the registry in the order of the paper's tables, variants last.

    Example:
        >>> names("image")
        ['svhn', 'cifar10', 'cifar10-s', 'cifar100', 'svhn-s', 'cifar100-s']
    """
    return [entry.name for entry in REGISTRY.values() if kind is None or entry.kind == kind]


def source(name: str) -> Source:
    """Return what the registry knows about a data set.

    Args:
        name: As in the registry or in the paper's tables; capitals do not matter.

    Raises:
        ValueError: If there is no such name; the text has the nearest ones.

    Example:
        >>> source("Artificial-character").name
        'artificial-characters'
    """
    known = {entry.paper.lower(): entry for entry in REGISTRY.values() if entry.paper is not None} | REGISTRY
    if name.lower() in known:
        return known[name.lower()]
    near = sorted({known[word].name for word in difflib.get_close_matches(name.lower(), known)})
    hint = f"did you mean {' or '.join(near)}?" if near else "`refocal data list` shows all"
    raise ValueError(f"unknown data set {name!r}; {hint}")


def find(name: Folder, data: Folder | None = None) -> Path | None:
    """Return the file that `load` would read; None if it would have to be fetched.

    Raises:
        ValueError: If the name is neither in the registry nor a file of the folder.
        FileNotFoundError: If a path or the folder is not there.

    Example:
        >>> find("no-such-file.npz")
        Traceback (most recent call last):
        FileNotFoundError: no-such-file.npz is not there
    """
    if _is_path(name):
        path = Path(name)
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there")
        return path
    name = str(name)
    try:
        stems, unknown = [name, source(name).name], None
    except ValueError as error:
        stems, unknown = [name], error  # a file of the user's own may still have this name
    for folder in (_data_folder(data), cache_folder()):
        for stem in stems:
            if folder is not None and (path := folder / f"{stem}.npz").is_file():
                return path
    if unknown is not None:
        raise unknown
    return None


def load(name: Folder, data: Folder | None = None) -> Dataset:
    """Return a data set by name or by file.

    Args:
        name: A name of the registry, a file of the folder without ``.npz``, or the path of an ``.npz`` file.
        data: A folder of ``.npz`` files; ``$REFOCAL_DATA`` by default. What it does not have is taken from
            the cache, or fetched from OpenML into the cache.

    Returns:
        The rows, checked: numbers that are finite, labels 0..K-1 with K >= 2 and a row for each.

    Raises:
        ValueError: If the name is not known, or the data break one of these rules.
        FileNotFoundError: If a path or the folder is not there.
        OSError: If OpenML cannot be reached.
        ImportError: If data have to be fetched and scikit-learn is not installed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(folder + "/mine.npz", X=np.eye(4), y=[0, 1, 1, 0])
        ...     data = load(folder + "/mine.npz")
        >>> data.name, data.X.shape, data.n_classes
        ('mine', (4, 4), 2)
    """
    path = find(name, data)
    if path is None:
        path = fetch(str(name))
    return dataclasses.replace(_checked(path, *_read(path)), partial=is_partial(path))


def is_partial(path: Path) -> bool:
    """Return whether a file is one of the incomplete copies that the registry knows."""
    entry = REGISTRY.get(path.stem)
    return entry is not None and entry.partial and sha256_of(path) == entry.sha256


def fetch(name: str) -> Path:
    """Fetch a data set from OpenML into the cache and return the file, which is there whole or not at all.

    Categorical columns become one-hot (a missing value is a level of its own), after the numeric ones.

    Raises:
        ValueError: If the registry has no OpenML number for it; the text says where to get it.
        OSError: If OpenML cannot be reached or the cache cannot be written to.
        ImportError: If scikit-learn is not installed.
    """
    entry = source(name)
    if entry.openml is None:
        raise ValueError(
            f"{entry.name} cannot be fetched from OpenML; its source: {entry.where}. Put {entry.name}.npz "
            "into a folder that you name with --data or REFOCAL_DATA"
        )
    arrays = fetch_arrays(entry)
    path = cache_folder() / f"{entry.name}.npz"
    keys = TABLE if "X" in arrays else SPLIT
    _checked(path, *(arrays[key] for key in keys))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = f".{os.getpid()}.tmp"
    write_atomic(path, buffer.getvalue(), suffix=suffix)
    write_atomic(path.with_name(path.name + CHECKSUM), f"{sha256_of(path)}\n".encode(), suffix=suffix)
    return path


class Check(NamedTuple):
    """What is known about the file of a data set, None if there is none, and why."""

    name: str
    path: Path | None
    state: Literal["ok", "differs", "unknown", "damaged", "missing"]
    """ "unknown": sound, but no checksum to compare with; "damaged": it cannot be used."""
    message: str = ""


def check(name: str, data: Folder | None = None) -> Check:
    """Compare the file of a data set with the checksum of the registry, or of the time it was fetched."""
    entry = source(name)
    path = find(entry.name, data)
    if path is None:
        return Check(entry.name, None, "missing")
    expected = entry.sha256
    beside = path.with_name(path.name + CHECKSUM)
    if beside.is_file():
        expected = beside.read_text(encoding="ascii").strip()
    actual = sha256_of(path)
    if actual == expected:
        return Check(entry.name, path, "ok")
    try:
        load(path)
    except ValueError as error:
        return Check(entry.name, path, "damaged", str(error))
    if expected is None:
        return Check(entry.name, path, "unknown", "no checksum is known; the data are sound")
    message = f"SHA-256 {actual[:12]}..., expected {expected[:12]}...; the data are sound"
    return Check(entry.name, path, "differs", message)


def cache_folder() -> Path:
    """Return where fetched data are kept, by the convention of the platform."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "refocal"
    if sys.platform == "win32" and (base := os.environ.get("LOCALAPPDATA")):
        return Path(base) / "refocal"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "refocal"
    return Path.home() / ".cache" / "refocal"


def _is_path(name: Folder) -> bool:
    return not isinstance(name, str) or name.endswith(".npz") or os.sep in name


def _data_folder(data: Folder | None) -> Path | None:
    given = data if data is not None else os.environ.get("REFOCAL_DATA") or None
    if given is None:
        return None
    if not Path(given).is_dir():
        origin = "data" if data is not None else "REFOCAL_DATA"
        raise FileNotFoundError(f"{origin} must be a folder of .npz files, got {given}")
    return Path(given)


def _read(path: Path) -> list[Numbers]:
    """Return X and y of a file, or its X_train, y_train, X_test and y_test."""
    try:
        with open(path, "rb") as file:  # numpy.load leaves a file open that is not an archive
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array, not an archive")
            for keys in (TABLE, SPLIT):
                if set(keys) <= set(archive.files):
                    return [archive[key] for key in keys]
            found = ", ".join(archive.files) or "none"
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path} cannot be read as an .npz file: {error}") from error
    raise ValueError(f"{path} must have the arrays X and y, or {', '.join(SPLIT)}; got {found}")


def _checked(
    path: Path, X: Numbers, y: Numbers, X_test: Numbers | None = None, y_test: Numbers | None = None
) -> Dataset:
    X_name, y_name = TABLE if X_test is None else SPLIT[:2]
    y = _checked_labels(path, y_name, y)
    _check_features(path, X_name, X, y)
    n_classes = int(y.max()) + 1
    if n_classes < 2:
        raise ValueError(f"{path}: {y_name} must have at least 2 classes, got the label 0 only")
    if len(y) < n_classes:
        raise ValueError(
            f"{path}: {y_name} must have at least one row for each class, got {len(y)} for {n_classes}"
        )
    absent = np.flatnonzero(np.bincount(y, minlength=n_classes) == 0)
    if absent.size:
        raise ValueError(
            f"{path}: {y_name} must hold each label of 0..{n_classes - 1}, got no row of {absent[0]}"
        )
    if X_test is not None and y_test is not None:
        y_test = _checked_labels(path, "y_test", y_test)
        _check_features(path, "X_test", X_test, y_test)
        if y_test.max() >= n_classes:
            raise ValueError(f"{path}: y_test must be within 0..{n_classes - 1}, got {y_test.max()}")
        if X_test.shape[1:] != X.shape[1:]:
            raise ValueError(
                f"{path}: X_test must have rows of shape {X.shape[1:]} as X_train, got {X_test.shape[1:]}"
            )
    return Dataset(path.stem, X, y, n_classes, X_test, y_test, path=path)


def _checked_labels(path: Path, name: str, y: Numbers) -> Numbers:
    if y.ndim != 1 or not y.size or y.dtype.kind not in "biu":
        raise ValueError(
            f"{path}: {name} must be a row of integer labels, got shape {y.shape} and dtype {y.dtype}"
        )
    if y.min() < 0:
        raise ValueError(f"{path}: {name} must be within 0..K-1, got {y.min()}")
    return y.astype(np.int64)


def _check_features(path: Path, name: str, X: Numbers, y: Numbers) -> None:
    if X.ndim < 2 or X.dtype.kind not in "biuf" or not X[:1].size:
        raise ValueError(f"{path}: {name} must be rows of numbers, got shape {X.shape} and dtype {X.dtype}")
    if len(X) != len(y):
        raise ValueError(
            f"{path}: {name} must have a row for each label, got {len(X)} rows and {len(y)} labels"
        )
    if X.dtype.kind == "f" and not np.isfinite(X).all():
        row = int(np.flatnonzero(~np.isfinite(X).reshape(len(X), -1).all(axis=1))[0])
        raise ValueError(f"{path}: {name} must be finite, got NaN or infinity in row {row}")
