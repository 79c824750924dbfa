"""Results as files: a run is its config's hash, and its file is either whole or not there.

``<out>/runs/<key>.json`` holds the config, the result, versions, machine, seed, seconds and a checksum of all
of it; arrays of a run are in ``<key>.npz`` beside it. A file that was cut or changed fails its checksum and
counts as missing.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from refocal.experiments.files import sha256_of
from refocal.files import write_atomic

try:
    import fcntl
except ImportError:  # not a POSIX system: then a folder must not be shared by two processes
    fcntl = None  # type: ignore[assignment]

KEY_DIGITS = 16
"""Hexadecimal digits of a key: 64 bits, a clash among a million runs has probability 3e-8."""


class NothingFinished(FileNotFoundError):
    """There is no run that could be read or reported."""


@dataclass(frozen=True)
class Run:
    """A finished run, as it stands in its file.

    Attributes:
        key: The hash of the config, see `run_key`.
        config: What was run.
        result: What came out.
        seconds: Time of the run itself.
        seed: ``config["seed"]``; None if there is none.
        versions: Of Python and of the libraries that the numbers may depend on, and the commit of the source.
        path: The JSON file.
        machine: Processor, cores and system; empty in runs of before these were recorded.

    Example:
        >>> run = Run("00", {"gamma": 2}, {"ece": 0.1}, 3.0, None, {}, Path("runs/00.json"))
        >>> run.result["ece"]
        0.1
    """

    key: str
    config: dict[str, Any]
    result: dict[str, Any]
    seconds: float
    seed: Any
    versions: dict[str, str]
    path: Path
    machine: dict[str, Any] = field(default_factory=dict)

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the arrays that the run gave back beside its result; none is an empty dict."""
        path = self.path.with_suffix(".npz")
        if not path.is_file():
            return {}
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)


@dataclass(frozen=True)
class Outcome:
    """What a worker sends back: a result as JSON and arrays, or else the text of the error."""

    result: str
    arrays: dict[str, np.ndarray[Any, Any]]
    seconds: float
    versions: dict[str, str]
    machine: dict[str, Any]
    error: str | None = None


def run_key(config: Mapping[str, Any]) -> str:
    """Return the name of a run: the first 16 hexadecimal digits of SHA-256(config as canonical JSON).

    Neither the order of the entries nor 1 against 1.0 makes a difference; True against 1 does.

    Args:
        config: JSON-able entries: strings, finite numbers, booleans, None, lists and dicts of these.

    Raises:
        ValueError: If the config is not such a dict.

    Example:
        >>> run_key({"gamma": 1, "seed": 0}) == run_key({"seed": 0, "gamma": 1.0})
        True
        >>> run_key({"gamma": 2.0, "seed": 0})
        '24c188028b4a9b84'
    """
    try:
        text = canonical(_whole_as_int(config), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a config must be a dict of JSON values, got {config!r} ({error})") from None
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def canonical(value: Any, *, allow_nan: bool = True) -> str:
    """Return the one JSON text of a value; NumPy's numbers count as Python's."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), default=_python_number, allow_nan=allow_nan
    )


def read_runs(out: str | os.PathLike[str]) -> list[Run]:
    """Return every sound run of a folder that `sweep` wrote to, in the order of their keys.

    Raises:
        FileNotFoundError: If the folder has no runs.
    """
    folder = Path(out) / "runs"
    if not folder.is_dir():
        raise NothingFinished(f"{folder} is not there: no sweep has written to {out}")
    runs = (_read(path) for path in sorted(folder.glob("*.json")))
    return [run for run in runs if run is not None]


class Store:
    """The folder of a sweep, opened for writing. A process opens a folder once.

    A run that is being worked on is claimed by a lock on one byte of ``runs/.lock``, at the offset that its
    key names. The system drops the locks of a process that ends, however it ends: there are no stale claims.
    """

    def __init__(self, out: str | os.PathLike[str]) -> None:
        self.folder = Path(out) / "runs"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # A folder that takes no file must be found before hours of training, not after.
            # Processes of several machines may have the same number.
            probe = self.folder / f".probe-{secrets.token_hex(8)}"
            write_atomic(probe, bytes(4096))
            probe.unlink()
            self._lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OSError(
                error.errno, f"cannot write to {self.folder}: {error.strerror}; nothing was started"
            ) from error

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._lock)

    def path(self, key: str) -> Path:
        """Return the JSON file of a run."""
        return self.folder / f"{key}.json"

    def read(self, key: str) -> Run | None:
        """Return a finished run; None if its file is missing or not sound."""
        return _read(self.path(key))

    def write(self, key: str, config: Mapping[str, Any], outcome: Outcome) -> Run:
        """Write a run and return it as a reader sees it. The claim on the key has to be held."""
        path = self.path(key)
        try:
            digest = None
            if outcome.arrays:
                buffer = io.BytesIO()
                np.savez_compressed(buffer, **outcome.arrays)  # type: ignore[arg-type]
                digest = hashlib.sha256(buffer.getvalue()).hexdigest()
                # First the arrays: a run counts as finished when its JSON file is there.
                write_atomic(path.with_suffix(".npz"), buffer.getvalue())
            else:  # those of a run that was damaged, and is done again
                path.with_suffix(".npz").unlink(missing_ok=True)
            record = {
                "config": config,
                "result": json.loads(outcome.result),
                "arrays_sha256": digest,
                "seed": config.get("seed"),
                "seconds": outcome.seconds,
                "versions": outcome.versions,
                "machine": outcome.machine,
            }
            record["checksum"] = _checksum(record)
            text = json.dumps(record, indent=1, default=_python_number) + "\n"
            write_atomic(path, text.encode())
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot write {path}: {error.strerror}; the runs that were finished before are kept",
            ) from error
        run = self.read(key)
        if run is None:
            raise OSError(f"{path} is not what was written to it; the disk may be damaged")
        return run

    def claim(self, key: str) -> bool:
        """Take a run for this process; False if another process has it."""
        if fcntl is None:
            return True
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _offset(key))
        except (BlockingIOError, PermissionError):  # EAGAIN on some systems, EACCES on others
            return False
        return True

    def release(self, key: str) -> None:
        """Give a claimed run back."""
        if fcntl is not None:
            fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, _offset(key))


def _read(path: Path) -> Run | None:
    try:
        record = json.loads(path.read_bytes())
        if record.pop("checksum") != _checksum(record):
            return None
        config, digest = record["config"], record["arrays_sha256"]
        if path.stem != run_key(config):
            return None
        if digest is not None and digest != sha256_of(path.with_suffix(".npz")):
            return None
    except (FileNotFoundError, ValueError, KeyError, AttributeError, TypeError):
        return None  # missing, cut in the middle, or JSON that is not such a record
    result, seconds, seed, versions = (record[name] for name in ("result", "seconds", "seed", "versions"))
    return Run(path.stem, config, result, seconds, seed, versions, path, record.get("machine", {}))


def _checksum(record: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(record).encode()).hexdigest()


def _offset(key: str) -> int:
    return int(key[:15], 16)  # 60 bits: file offsets are signed 64-bit numbers


def _python_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _whole_as_int(value: Any) -> Any:
    """Replace 1.0 by 1, at any depth."""
    if isinstance(value, Mapping):
        return {key: _whole_as_int(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_whole_as_int(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    return int(value) if isinstance(value, float) and value.is_integer() else value
