"""Folders and patterns of Parquet files; the keys of hive partitions become columns."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from refocal.scoring.paths import InputError, Place, reading
from refocal.scoring.sources import ParquetSource, Source

WILD = "*?["


class Part(NamedTuple):
    """A file of a folder: where it is, its name inside the folder, and the values of its partition."""

    place: Place
    name: str
    keys: dict[str, str]


def is_pattern(path: str) -> bool:
    """Return whether a path is a pattern of files rather than one that is there."""
    return any(c in path for c in WILD) and not Path(path).exists()


def is_folder(place: Place) -> bool:
    """Return whether there is a folder at a place."""
    if place.is_here:
        return Path(place.path).is_dir()
    with reading(place.path):
        return bool(place.system.get_file_info(place.path).type == fs.FileType.Directory)


class FolderSource(Source):
    """The Parquet files of a folder with all below it, or of a pattern, in the order of their names.

    Attributes:
        parts: The files.
        keys: The columns that only the names of folders have, as in ``year=2024``, and their types.
    """

    def __init__(self, path: str, place: Place, opened: contextlib.ExitStack) -> None:
        self.path = path
        self.parts = _parts(path, place)
        if not self.parts:
            raise InputError(f"cannot read {path}: it has no Parquet files")
        n_rows = 0
        schema: Any = None
        for part in self.parts:
            with self.part(part) as source:
                schema = schema or source.schema
                self._check(part, source.schema, schema)
                n_rows += source.n_rows or 0
        self.schema = schema
        self.keys = self._key_types(schema.names)
        super().__init__(path, opened, [*schema.names, *self.keys], n_rows)

    def _check(self, part: Part, schema: pa.Schema, first: pa.Schema) -> None:
        if not schema.equals(first):
            raise InputError(
                f"files of {self.path} must have the same columns and types, but {part.name} has "
                f"{_difference(schema, first)}, unlike {self.parts[0].name}"
            )
        if set(part.keys) != set(self.parts[0].keys):
            raise InputError(
                f"files of {self.path} must have the same partitions, got {sorted(part.keys)} for {part.name}"
            )

    def _key_types(self, own: Collection[str]) -> dict[str, Any]:
        keys = {}
        for key in self.parts[0].keys:
            if key in own:
                continue
            whole = all(part.keys[key].lstrip("-").isdecimal() for part in self.parts)
            keys[key] = pa.int64() if whole else pa.string()
        return keys

    def whole(self, columns: Sequence[str]) -> list[str]:
        """Return those of the columns that hold whole numbers, as the key of a partition may."""
        keys = [name for name, kind in self.keys.items() if pa.types.is_integer(kind) and name in columns]
        return super().whole(columns) + keys

    def part(self, part: Part) -> ParquetSource:
        """Return one of the files, without the columns of its partition."""
        return open_part(self.path, part)

    def _batches(
        self, columns: Sequence[str] | None, floats: Collection[str], as_text: bool
    ) -> Generator[pa.RecordBatch, None, None]:
        for part in self.parts:
            with self.part(part) as source:
                own = None if columns is None else [name for name in columns if name in source.names]
                for batch in source.batches(own):
                    batch = with_keys(batch, part, self.keys)
                    yield batch if columns is None else batch.select(list(columns))


def open_part(path: str, part: Part) -> ParquetSource:
    """Return a file of a folder, or of the pattern ``path``."""
    name = part.place.path if part.place.is_here else f"{path} ({part.name})"
    with contextlib.ExitStack() as opened:
        source = ParquetSource(name, part.place, opened)
        source._opened = opened.pop_all()
    return source


def with_keys(batch: pa.RecordBatch, part: Part, keys: Mapping[str, Any]) -> pa.RecordBatch:
    """Return a batch with the values of its partition, each in the type of its key."""
    for key, kind in keys.items():
        value = int(part.keys[key]) if kind == pa.int64() else part.keys[key]
        batch = batch.append_column(key, pa.repeat(pa.scalar(value, kind), batch.num_rows))
    return batch


def _parts(path: str, place: Place) -> list[Part]:
    """Return the files of a folder or a pattern, sorted."""
    base = place.path
    if is_pattern(path):
        steps = place.path.split("/")
        fixed = next(i for i, step in enumerate(steps) if any(c in step for c in WILD))
        base = "/".join(steps[:fixed]) or ("/" if place.path.startswith("/") else ".")
    names = sorted(_files_below(Place(base, place.system)))
    parts = []
    for name in names:
        whole = f"{base.rstrip('/')}/{name}" if base != "." or place.path.startswith("./") else name
        if is_pattern(path):
            if not fnmatch.fnmatchcase(whole, place.path):
                continue
        elif not name.lower().endswith((".parquet", ".pq")):
            continue
        folders = PurePosixPath(name).parts[:-1]
        if any(
            step[0] in "._" for step in PurePosixPath(name).parts
        ):  # such as _delta_log, .ipynb_checkpoints
            continue
        keys = dict(step.split("=", 1) for step in folders if "=" in step)
        parts.append(Part(Place(whole, place.system), name, {k: unquote(v) for k, v in keys.items()}))
    return parts


def _files_below(place: Place) -> list[str]:
    """Return the files below a folder, relative to it."""
    if place.is_here:
        root = Path(place.path)
        return [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()]
    with reading(place.path):
        found = place.system.get_file_info(fs.FileSelector(place.path, recursive=True))
    root_name = place.path.rstrip("/") + "/"
    return [f.path.removeprefix(root_name) for f in found if f.type == fs.FileType.File]


def _difference(schema: pa.Schema, other: pa.Schema) -> str:
    for field in schema:
        if field.name not in other.names:
            return f"a column {field.name!r}"
        if other.field(field.name).type != field.type:
            return f"{field.name!r} as {field.type}"
    missing = [name for name in other.names if name not in schema.names]
    return f"no column {missing[0]!r}" if missing else "its columns in another order or with other options"
