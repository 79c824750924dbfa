"""Sweeps: nothing is lost or done twice, whatever is killed, interrupted, shared, full or read-only."""

import contextlib
import errno
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tasks
from tasks import PROGRAM, files, started

from refocal.experiments.sweeps import read_runs, run_key, sweep
from refocal.experiments.sweeps import runs as runs_module
from refocal.experiments.sweeps import store as store_module
from refocal.experiments.sweeps.engines import execute
from refocal.experiments.sweeps.store import Store
from refocal.files import write_atomic

CONFIG = {"x": 3, "seed": 21}


@pytest.fixture
def start():
    """Start `tasks.py`; what a failed test leaves behind is ended."""
    processes = []

    def start_program(*arguments, **options):
        processes.append(tasks.start(*arguments, **options))
        return processes[-1]

    yield start_program
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_file_changes_at_one_moment(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomic(path, b"old")
    seen = []

    def fail_at_the_end(descriptor):
        seen.append((path.read_bytes(), os.fstat(descriptor).st_size))
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", fail_at_the_end)
    with pytest.raises(OSError, match="full"):
        write_atomic(path, b"content")
    assert seen == [(b"old", 7)]  # all of it was written, and nobody could see it
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("file", b"old")]
    monkeypatch.undo()
    write_atomic(path, b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("file", b"new")]


def test_two_machines_whose_processes_have_one_number_can_open_a_folder(tmp_path, monkeypatch):
    """As in containers: both look at the same moment whether the folder takes a file."""
    write = store_module.write_atomic
    opened = []

    def and_the_other_one(path, content):
        write(path, content)
        if not opened:
            opened.append(path)
            with Store(tmp_path):
                pass

    monkeypatch.setattr(store_module, "write_atomic", and_the_other_one)
    with Store(tmp_path):
        assert [path.name for path in (tmp_path / "runs").iterdir()] == [".lock"]


@pytest.mark.slow
@pytest.mark.parametrize("jobs, kills", [(1, 20), (2, 6)])
def test_kill_9_at_random_moments(jobs, kills, tmp_path, start):
    out, log, n = tmp_path / "out", tmp_path / "log", 200
    configs = tasks.logged_configs(log, n)
    random = np.random.default_rng(jobs)
    finished: set[int] = set()
    for _ in range(kills):
        begun = len(started(log))
        process = start("logged", out, log, n, jobs)
        for _ in range(random.integers(1, 8)):  # it says "ready", and then each run that it starts
            assert process.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(random.uniform(0, 0.03))  # in the middle of a run, of a write, or between
        assert process.poll() is None, "the sweep was over before it could be killed: give it more runs"
        process.kill()
        process.wait()
        process.stdout.read()  # to its end: then the workers, who hold it too, are gone and log no more
        assert not finished & set(started(log)[begun:]), "a finished run was done again"
        if (out / "runs").is_dir():
            now = {run.config["x"] for run in read_runs(out)}
            assert finished <= now, "a finished run was lost"
            whole = {f"{run_key(configs[x])}.json" for x in now}
            assert {name for name in files(out) if name.endswith(".json")} == whole, "a file is not whole"
            finished = now
    assert kills < len(finished) < n - 10
    begun = len(started(log))
    configs = configs[: len(finished) + 10]  # all n would only take time
    runs = sweep(configs, tasks.logged, out)
    assert sorted(started(log)[begun:]) == sorted({config["x"] for config in configs} - finished)
    for run in runs:
        outcome = execute(tasks.logged, run.config)
        assert run.result == json.loads(outcome.result)
        np.testing.assert_array_equal(run.arrays()["values"], outcome.arrays["values"])
    keys = {run.key for run in runs}
    assert not [name for name in files(out) if name[:16] in keys and name.endswith(".tmp")]


@pytest.mark.slow
def test_two_processes_share_a_sweep(tmp_path, start):
    out, log, n = tmp_path / "out", tmp_path / "log", 60
    both = [start("logged", out, log, n, 1) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert sorted(started(log)) == list(range(n))  # each once, by one of the two
    assert len(read_runs(out)) == n


def test_a_run_of_another_process_is_waited_for_and_taken_over_if_that_is_killed(tmp_path, start):
    begun, never = tmp_path / "begun", tmp_path / "never"
    os.mkfifo(begun)
    os.mkfifo(never)
    configs = tasks.blocks_configs(tmp_path, begun, never)
    other = start("blocks", tmp_path, begun, never, 1)
    begun.read_bytes()  # the other process is inside of run 1
    with Store(tmp_path) as store:
        assert not store.claim(run_key(configs[1]))
        assert store.claim(run_key(configs[0]))
    looks = []

    def kill_after_two_looks(seconds):
        looks.append(seconds)
        if len(looks) == 2:
            other.kill()
            other.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_module.time, "sleep", kill_after_two_looks)
        runs = sweep(configs, lambda config: {"x": config["x"], "here": True}, tmp_path)
    assert len(looks) >= 2
    assert [run.result for run in runs] == [{"x": 0}, {"x": 1, "here": True}]


def test_a_run_that_another_process_finishes_is_read(tmp_path, monkeypatch):
    # The lock is held by a child that forked before the sweep; it lets go after the file is there.
    key = run_key(CONFIG)
    with Store(tmp_path) as store:
        (reader, writer), (done_reader, done_writer) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.close(done_writer)
            with open(tmp_path / "runs" / ".lock", "r+b") as lock:
                fcntl.lockf(lock, fcntl.LOCK_EX, 1, int(key[:15], 16))
                os.write(writer, b"1")
                os.read(done_reader, 1)
            os._exit(0)
        os.read(reader, 1)

        def finish_elsewhere(seconds):
            store.write(key, CONFIG, execute(tasks.square, CONFIG))
            os.write(done_writer, b"1")
            os.waitpid(child, 0)

        monkeypatch.setattr(runs_module.time, "sleep", finish_elsewhere)
        (run,) = sweep([CONFIG], tasks.always_dies, tmp_path)
    for descriptor in (reader, writer, done_reader, done_writer):
        os.close(descriptor)
    assert run.result["x"] == 9


# --- interrupted


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_keeps_what_is_finished_and_leaves_no_process(jobs, tmp_path, start):
    begun, never = tmp_path / "begun", tmp_path / "never"
    os.mkfifo(begun)
    os.mkfifo(never)
    process = start("blocks", tmp_path, begun, never, jobs, stderr=subprocess.PIPE, start_new_session=True)
    worker = int(begun.read_bytes())
    if jobs > 1:  # a worker leaves Ctrl-C to its parent, and prints no traceback of its own
        assert int(status(worker)["SigIgn"], 16) & 1 << (signal.SIGINT - 1)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.decode() == f"stopped; 1 of 2 runs are finished and kept in {tmp_path / 'runs'}\n"
    assert [run.result["x"] for run in read_runs(tmp_path)] == [0]
    assert_ended(worker)


def test_workers_end_when_their_parent_is_killed(tmp_path, start):
    begun, never = tmp_path / "begun", tmp_path / "never"
    os.mkfifo(begun)
    os.mkfifo(never)
    process = start("blocks", tmp_path, begun, never, 2)
    with open(begun, "rb") as pipe:
        worker = int(pipe.readline())
        descriptor = os.pidfd_open(worker)
        process.kill()
        process.wait()
    assert_ended(worker, descriptor)


def status(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines)


def assert_ended(pid, descriptor=None):
    """Wait for the end of a process that is not a child of this one."""
    if descriptor is None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
    ended, _, _ = select.select([descriptor], [], [], 30)
    os.close(descriptor)
    assert ended, f"process {pid} is still there"


# --- the disk


NAMESPACE = ["unshare", "-Urm"]
"""A mount namespace of its own for one command: what it mounts is gone with it."""

needs_namespace = pytest.mark.skipif(
    shutil.which("unshare") is None or bool(subprocess.run([*NAMESPACE, "true"], stderr=-3).returncode),
    reason="this system lets nobody make a mount namespace",
)


@needs_namespace
def test_a_read_only_folder_is_an_error_before_anything_starts(tmp_path):
    out, log = tmp_path / "out", tmp_path / "log"
    out.mkdir()
    script = 'mount -t tmpfs -o ro none "$1" && shift && "$@"'
    command = [
        *NAMESPACE,
        "sh",
        "-c",
        script,
        "sh",
        str(out),
        *PROGRAM,
        "logged",
        str(out),
        str(log),
        "3",
        "1",
    ]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 1
    assert process.stderr == (
        f"OSError: [Errno 30] cannot write to {out / 'runs'}: Read-only file system; nothing was started\n"
    )
    assert started(log) == []


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(OSError, match=r"cannot write to .*: Not a directory; nothing was started"):
        sweep([CONFIG], tasks.square, tmp_path / "out")


def test_a_write_that_the_system_cuts_off_loses_nothing(tmp_path, start):
    process = start("limited", tmp_path, tmp_path / "log", stderr=subprocess.PIPE)
    _, err = process.communicate()
    assert process.returncode == 1
    assert "File too large; the runs that were finished before are kept" in err.decode()
    (kept,) = read_runs(tmp_path)
    assert kept.result["x"] == 4
    assert files(tmp_path) == [f"{kept.key}.json", f"{kept.key}.npz"]  # and no half-written file
    assert started(tmp_path / "log") == [0]
    assert len(sweep(tasks.logged_configs(tmp_path / "log", 1), tasks.logged, tmp_path)) == 1


@needs_namespace
def test_a_full_disk_loses_nothing(tmp_path):
    disk, log = tmp_path / "disk", tmp_path / "log"
    disk.mkdir()
    # The second sweep starts on a disk with no room at all. The results are copied before the disk is gone.
    script = """
        mount -t tmpfs -o size=1m none "$1" || exit 99
        "$4" "$5" fill "$1" "$2"; code=$?
        cp -r "$1" "$3"
        dd if=/dev/zero of="$1/rest" bs=4k 2>/dev/null
        "$4" "$5" fill "$1" "$2" && exit 98
        exit $code
    """
    command = [*NAMESPACE, "sh", "-c", script, "sh", str(disk), str(log), str(tmp_path / "kept"), *PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert "No space left on device; the runs that were finished before are kept" in first
    assert second.endswith("No space left on device; nothing was started")
    kept = read_runs(tmp_path / "kept")
    assert [run.config["x"] for run in kept if run.arrays()["values"].size == 12_500]
    assert len(kept) == len(started(log)) - 1  # all but the one that found the disk full
    assert not [name for name in files(tmp_path / "kept") if "tmp" in name]
    # With room again, the sweep goes on with the run that could not be kept.
    sweep(tasks.logged_configs(log, len(kept) + 2), tasks.logged, tmp_path / "kept")
    assert started(log)[len(kept) + 1 :] == [len(kept), len(kept) + 1]
