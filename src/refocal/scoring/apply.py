"""Probabilities beside the scores of a file: the rows in order, all columns kept, memory constant."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from refocal.files import atomic_folder, own_suffix
from refocal.scoring.columns import Scores, score_block
from refocal.scoring.folders import FolderSource
from refocal.scoring.paths import SAME, InputError, format_of, is_same, place_of, writing
from refocal.scoring.recover import Kind, Recovery, look
from refocal.scoring.sinks import open_sink
from refocal.scoring.sources import ParquetSource, Source, open_source

PREFIX = "prob_"
"""What the new columns begin with; the name of the class follows."""

Tell: TypeAlias = Callable[[int, float | None], None]
"""Called now and then with the rows that are done, and the share of the whole where that is known."""

T = TypeVar("T")


def quiet(n_rows: int, fraction: float | None) -> None:
    """Tell nobody."""


class Job(NamedTuple):
    """What is done to each batch."""

    scores: Scores
    recovery: Recovery
    prefix: str = PREFIX

    @property
    def made(self) -> list[str]:
        """The names of the new columns."""
        return [self.prefix + name for name in self.scores.classes]

    def scored(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        """Return a batch with its probabilities."""
        block = score_block(batch, self.scores.columns, start)
        for name, values in zip(self.made, self.recovery.probs(block, start), strict=True):
            batch = batch.append_column(name, pa.array(values))
        return batch


def needed_kind(source: Source, scores: Scores, kind: Kind | None) -> Kind:
    """Return what the scores are, if that was said.

    Raises:
        InputError: If not; with what the first rows look like.
    """
    if kind is not None:
        return kind
    first = next(source.batches(scores.columns, floats=scores.columns), None)
    if first is None or not first.num_rows:
        raise InputError(f"cannot read {source.path}: it has no rows")
    block = score_block(first, scores.columns, 0)
    raise InputError(f"--logits or --probs must be said; in the first {block.shape[1]} rows {look(block)}")


def apply_file(
    path: str,
    out: str,
    make: Callable[[Source], Job],
    *,
    said: str | None = None,
    to: str | None = None,
    tell: Tell = quiet,
) -> int:
    """Write a file, or a folder of Parquet files, with probabilities, and return the number of rows.

    Args:
        path: What to read: see `open_source`.
        out: What to write; it gets its name when all of it is there. If its name is not that of a file, a
            folder becomes a folder, with the same names and partitions.
        make: Returns the job for what is read.
        said: The format of what is read.
        to: The format of what is written.
        tell: Called with the progress.

    Raises:
        InputError: If something cannot be read.
        OSError: If something cannot be written.
    """
    with open_source(path, said) as source:
        job = checked_job(source, out, make)
        if isinstance(source, FolderSource) and to is None and is_folder_name(out):
            return _apply_folder(source, out, job, tell)
        return apply_source(source, out, job, to=to, tell=tell)


def checked_job(source: Source, out: str, make: Callable[[Source], Job]) -> Job:
    """Return the job for what is read, after a check that its columns and its output are new.

    Raises:
        InputError: If a column is there already, or the output is what is read.
    """
    target = place_of(out)
    read = [p.place for p in source.parts] if isinstance(source, FolderSource) else [place_of(source.path)]
    if any(is_same(place, target) for place in read):
        raise InputError(SAME.format(out))
    job = make(source)
    taken = sorted(set(job.made) & set(source.names))
    if taken:
        raise InputError(f"--prefix must make new columns, but {source.path} has {taken[0]!r} already")
    return job


def is_folder_name(out: str) -> bool:
    """Return whether an output is meant as a folder: its name has no ending of a format."""
    try:
        format_of(out)
    except InputError:
        return True
    return False


def new_folder(out: str) -> contextlib.AbstractContextManager[str]:
    """Return the folder to write to: here one that gets its name at the end, elsewhere the folder itself.

    Raises:
        InputError: If there is one that is not empty.
    """
    place = place_of(out)
    if not place.is_here:  # no store of objects can rename a folder in one step
        return contextlib.nullcontext(out)
    folder = Path(place.path)
    if not folder.parent.is_dir():
        raise InputError(f"the output must be in a folder that is there, got {out!r}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"the output must be a new or an empty folder, got {out!r}")
    return _here(folder)


@contextlib.contextmanager
def _here(folder: Path) -> Iterator[str]:
    with writing(str(folder)), atomic_folder(folder, suffix=own_suffix(folder)) as temporary:
        yield str(temporary)


def _apply_folder(source: FolderSource, out: str, job: Job, tell: Tell) -> int:
    done, total = 0, source.n_rows or 0
    with new_folder(out) as folder:
        for part in source.parts:
            before = done

            def told(n: int, _: float | None, before: int = before) -> None:
                tell(before + n, (before + n) / total if total else None)

            with source.part(part) as opened:
                done += apply_part(opened, folder, part.name, job, told)
        if not done:
            raise InputError(f"cannot read {source.path}: it has no rows")
    return done


def apply_part(source: ParquetSource, folder: str, name: str, job: Job, tell: Tell = quiet) -> int:
    """Write a file of a folder under the same name into another folder; it may have no rows."""
    target = f"{folder.rstrip('/')}/{name}"
    if place_of(target).is_here:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
    return apply_source(source, target, job, to="parquet", tell=tell, may_be_empty=True)


def apply_source(
    source: Source,
    out: str,
    job: Job,
    *,
    to: str | None = None,
    tell: Tell = quiet,
    may_be_empty: bool = False,
) -> int:
    """Write what is read, with probabilities, to one file, and return the number of rows."""
    kind = format_of(out, to, what="the output")
    as_text = source.text and kind.startswith(("csv", "tsv"))
    batches = source.batches(floats=job.scores.columns, as_text=as_text)
    return write_batches(scored_batches(source, batches, job, tell, may_be_empty), source, out, job, kind)


def scored_batches(
    source: Source, batches: Generator[pa.RecordBatch, None, None], job: Job, tell: Tell, may_be_empty: bool
) -> Iterator[pa.RecordBatch]:
    """Yield batches with their probabilities.

    Raises:
        InputError: If there are no rows and there must be, or a value is wrong.
    """
    n = 0
    with in_file(source.path):
        for batch in ahead(batches):
            if batch.num_rows:
                yield job.scored(batch, n)
            n += batch.num_rows
            tell(n, n / source.n_rows if source.n_rows else source.fraction())
        if not n and not (may_be_empty and isinstance(source, ParquetSource)):
            raise InputError("it has no rows")
        if not n and isinstance(source, ParquetSource):
            empty = [pa.nulls(0, field.type) for field in source.schema]
            yield job.scored(pa.record_batch(empty, schema=source.schema), 0)


def write_batches(batches: Iterator[pa.RecordBatch], source: Source, out: str, job: Job, kind: str) -> int:
    """Write batches to a file by a thread of its own, and return the number of rows."""
    groups = source.groups or {name: [name] for name in source.names}
    made = job.prefix.rstrip("_") or "prob"
    sink = open_sink(out, kind, groups={**groups, made: job.made}, made=made)
    n = 0
    with sink as opened, _thread() as writer:
        waiting: Future[None] | None = None
        for batch in batches:
            if waiting is not None:
                waiting.result()
            waiting = writer.submit(opened.write, batch)
            n += batch.num_rows
        if waiting is not None:
            waiting.result()
    return n


@contextlib.contextmanager
def in_file(path: str) -> Iterator[None]:
    """Say in which file a value is wrong."""
    try:
        yield
    except InputError as error:
        if path in str(error):
            raise
        raise InputError(f"{path}: {error}") from error


@contextlib.contextmanager
def _thread() -> Iterator[ThreadPoolExecutor]:
    """Start a thread that is waited for at the end, whenever an interrupt comes."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # an interrupt while a thread starts would leave it alone with its work
        yield pool


def ahead(items: Generator[T, None, None]) -> Iterator[T]:
    """Yield items, the next one made by a thread meanwhile; the generator is closed at the end."""
    with contextlib.closing(items), _thread() as reader:
        coming = reader.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = reader.submit(next, items, None)
            yield item
