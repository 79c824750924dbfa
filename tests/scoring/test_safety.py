"""What a crash, a kill or a full disk leaves: the old output or the new one, never a part of one."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from score_files import made, write

from refocal.cli import main

OPTIONS = ["--scores", "logit_*", "--logits", "--gamma", "2"]
NAMESPACE = ["unshare", "-Urm"]

needs_namespace = pytest.mark.skipif(
    shutil.which("unshare") is None or bool(subprocess.run([*NAMESPACE, "true"], stderr=-3).returncode),
    reason="this system lets nobody make a mount namespace",
)


def command(path, out):
    return [sys.executable, "-m", "refocal", "apply", str(path), str(out), *OPTIONS]


def contents(path):
    """Return all that is under a name: bytes of a file, or of the files of a folder."""
    if not path.exists():
        return None
    if path.is_file():
        return path.read_bytes()
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def large(tmp_path, kind):
    logits, labels = made(60_000 if kind == "csv" else 200_000)
    if kind != "folder":
        return write(tmp_path / f"in.{kind}", logits, labels), tmp_path / f"out.{kind}"
    for i in range(4):
        part = tmp_path / "in" / f"day={i}" / "part.parquet"
        part.parent.mkdir(parents=True)
        write(part, logits[i::4], labels[i::4])
    return tmp_path / "in", tmp_path / "out"


def kill_often(path, out, times, seed):
    """Kill runs at random moments; return how many were killed while they wrote."""
    start = time.perf_counter()
    assert subprocess.run(command(path, out), stdout=subprocess.DEVNULL).returncode == 0
    seconds = time.perf_counter() - start
    whole = contents(out)
    is_folder = out.is_dir()
    rng, writing = random.Random(seed), 0
    for _ in range(times):
        if is_folder:
            shutil.rmtree(out, ignore_errors=True)
            old = None
        else:
            out.write_bytes(b"old")
            old = b"old"
        process = subprocess.Popen(command(path, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(rng.uniform(0.2, 1) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert contents(out) in (old, whole)
        writing += any(out.parent.glob(f"{out.name}.*.tmp"))
    assert subprocess.run(command(path, out), stdout=subprocess.DEVNULL).returncode in (0, 2)
    if is_folder:
        shutil.rmtree(out)
        assert main(["apply", str(path), str(out), *OPTIONS]) == 0
    assert contents(out) == whole
    assert not list(out.parent.glob("*.tmp"))  # what killed runs have left is gone too
    return writing


def test_a_few_kills(tmp_path):
    kill_often(*large(tmp_path, "parquet"), times=3, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "csv", "folder"])
def test_many_kills(kind, tmp_path):
    assert kill_often(*large(tmp_path, kind), times=10, seed=1) > 0


def test_an_interrupt_leaves_nothing(tmp_path):
    path, out = large(tmp_path, "csv")
    process = subprocess.Popen(command(path, out), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out.csv.*.tmp")) and time.monotonic() < deadline:
        os.sched_yield()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err) == (130, "refocal: interrupted\n")
    assert [p.name for p in tmp_path.iterdir()] == ["in.csv"]


@needs_namespace
@pytest.mark.parametrize("kind", ["parquet", "csv", "arrow", "npy"])
def test_a_full_disk(kind, tmp_path):
    logits, labels = made(200_000)
    path, disk = write(tmp_path / f"in.{kind}", logits, labels), tmp_path / "disk"
    disk.mkdir()
    script = """
        mount -t tmpfs -o size=1m none "$1" || exit 99
        out="$2"; shift 2
        printf old > "$out"
        "$@"; code=$?
        [ "$(cat "$out")" = old ] || exit 97
        [ "$(ls "$(dirname "$out")" | wc -l)" = 1 ] || exit 98
        exit $code
    """
    out = disk / f"out.{kind}"
    words = command(path, out)
    if kind == "npy":
        words = [word for word in words if word not in ("--scores", "logit_*")]
    done = subprocess.run(
        [*NAMESPACE, "sh", "-c", script, "sh", str(disk), str(out), *words], capture_output=True, text=True
    )
    assert done.stderr == f"refocal: cannot write {out}: No space left on device; the old file is as it was\n"
    assert done.returncode == 1
