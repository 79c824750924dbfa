"""The same work by Ray Data on a cluster: the same rows, in the same order."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from refocal.extras import needs
from refocal.scoring.apply import (
    Job,
    Tell,
    apply_part,
    checked_job,
    in_file,
    is_folder_name,
    new_folder,
    quiet,
    write_batches,
)
from refocal.scoring.folders import FolderSource, Part, open_part, with_keys
from refocal.scoring.paths import InputError, format_of, place_of
from refocal.scoring.sources import ParquetSource, Source, open_source, rows_of_batch

with needs("--engine ray", "ray"):
    import ray
    import ray.data

Work: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

STOP = "_stop"
"""A file in the new folder that tells tasks which have not begun to do nothing: the folder will go."""


def apply_by_ray(
    path: str,
    out: str,
    make: Callable[[Source], Job],
    *,
    address: str | None = None,
    said: str | None = None,
    to: str | None = None,
    tell: Tell = quiet,
) -> int:
    """Do what `apply_file` does by Ray Data, and return the number of rows.

    From a folder to a folder, each file is read, scored and written by a task of the cluster, which must see
    both folders. Into one file, tasks read and score row groups, and this process writes them in order.

    Args:
        path: A Parquet file, or a folder or pattern of them, where the cluster sees it.
        out: As for `apply_file`.
        make: As for `apply_file`.
        address: Of a cluster; None for the one that Ray finds, or one on this machine.
        said: The format of what is read.
        to: The format of what is written.
        tell: Called with the progress.

    Raises:
        InputError: If something cannot be read, or is no Parquet file.
        OSError: If something cannot be written.
    """
    with open_source(path, said) as source:
        if not isinstance(source, (FolderSource, ParquetSource)) or path == "-":
            raise InputError(f"--engine ray reads files of Parquet, got {path!r}: use --engine local")
        job = checked_job(source, out, make)
        if not source.n_rows:
            raise InputError(f"cannot read {path}: it has no rows")
        with _cluster(address):
            if isinstance(source, FolderSource) and to is None and is_folder_name(out):
                return _folder_to_folder(source, out, job, tell)
            kind = format_of(out, to, what="the output")
            return write_batches(_batches(source, job, tell), source, out, job, kind)


@contextlib.contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """Use a cluster: one that is there already, or one that is shut down at the end."""
    started, level = not ray.is_initialized(), logging.root.manager.disable
    context = ray.data.DataContext.get_current()
    before = context.execution_options.preserve_order, context.enable_progress_bars
    logging.disable(logging.CRITICAL)  # Ray's lines are of its insides; what goes wrong is raised
    try:
        if started:
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
        context.execution_options.preserve_order, context.enable_progress_bars = True, False
        yield
    finally:
        context.execution_options.preserve_order, context.enable_progress_bars = before
        if started:
            ray.shutdown()
        logging.disable(level)


def _done(items: list[dict[str, Any]], work: Work, stop: Callable[[], None] | None = None) -> Iterator[Any]:
    """Yield what a function makes of items, each by a task, in their order.

    Args:
        items: What to do.
        work: Does one.
        stop: Called at the first error; then the other tasks are waited for, as they may be writing.

    Raises:
        InputError: Of the first item that had one; what is wrong comes back as text, not as a traceback.
        OSError: The same.
    """
    rows = ray.data.from_items(items, override_num_blocks=len(items)).map(partial(_safely, work))
    wrong: Exception | None = None
    for row in rows.iter_rows():
        if row["error"] and wrong is None:
            wrong = {"InputError": InputError, "OSError": OSError}[row["kind"]](row["error"])
            if stop is None:
                break
            stop()
        if wrong is None:
            yield row
    if wrong is not None:
        raise wrong


def _safely(work: Work, item: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"error": "", "kind": "", "data": b"", **work(item)}
    except InputError as error:
        return {"error": str(error), "kind": "InputError", "data": b"", "n": 0}
    except OSError as error:
        return {"error": str(error), "kind": "OSError", "data": b"", "n": 0}


def _parts(source: FolderSource | ParquetSource) -> tuple[list[Part], dict[str, Any]]:
    """Return the files of what is read, and the types of the keys of their partitions."""
    if isinstance(source, FolderSource):
        return source.parts, source.keys
    return [Part(place_of(source.path), source.path, {})], {}


def _folder_to_folder(source: FolderSource, out: str, job: Job, tell: Tell) -> int:
    done, total, path, parts = 0, source.n_rows or 0, source.path, source.parts
    with new_folder(out) as folder:
        stop = Path(folder, STOP) if place_of(folder).is_here else None

        def work(item: dict[str, Any]) -> dict[str, Any]:
            if stop is not None and stop.exists():
                return {"n": 0}
            part = parts[item["part"]]
            with open_part(path, part) as opened:
                return {"n": apply_part(opened, folder, part.name, job)}

        for row in _done([{"part": i} for i in range(len(parts))], work, stop.touch if stop else None):
            done += row["n"]
            tell(done, done / total)
    return done


def _batches(source: FolderSource | ParquetSource, job: Job, tell: Tell) -> Iterator[pa.RecordBatch]:
    """Yield the batches of row groups, scored by tasks."""
    done, total, path = 0, source.n_rows or 0, source.path
    parts, keys = _parts(source)
    items, start = [], 0
    for i, part in enumerate(parts):
        with open_part(path, part) as opened:
            for group, n_rows in enumerate(opened.row_groups()):
                items.append({"part": i, "group": group, "start": start})
                start += n_rows

    def work(item: dict[str, Any]) -> dict[str, Any]:
        part = parts[item["part"]]
        with open_part(path, part) as opened:
            batch = with_keys(opened.row_group(item["group"]), part, keys)
        with in_file(path):
            scored = job.scored(batch, item["start"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, scored.schema) as writer:
            writer.write_batch(scored)
        return {"n": scored.num_rows, "data": sink.getvalue().to_pybytes()}

    for row in _done(items, work):
        done += row["n"]
        tell(done, done / total)
        for batch in pa.ipc.open_stream(row["data"]):
            step = rows_of_batch(batch.num_columns)
            yield from (batch.slice(i, step) for i in range(0, batch.num_rows, step))
