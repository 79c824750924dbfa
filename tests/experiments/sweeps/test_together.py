"""Image runs that two processes do together, as under torchrun."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from image_stand_in import swept

from refocal import kernels
from refocal.cli import main
from refocal.experiments.images import experiments_of
from refocal.experiments.sweeps import Workers, read_runs, run_key, workers
from refocal.experiments.sweeps.store import Store
from refocal.experiments.sweeps.together import process_group

SHARED = """
import os, sys
from pathlib import Path
os.environ["REFOCAL_KERNELS"] = {"0": "cpu", "1": "off"}[os.environ["RANK"]]
from refocal.experiments.images import experiments_of, study
study.report = lambda out: []
options = {"batch_size": 13, "validation": 0.15}
grid = experiments_of(sys.argv[1], "resnet8", [2], ["ls"], 1, 1, **options)
study.run(grid * 2, sys.argv[2], device="cpu")  # the second time it is done, and nobody waits
names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
left = [name for name in names if "gloo" in name]
assert not left, f"threads that can abort the interpreter at its end: {left}"
"""

DIVERGING = """
import sys
from dataclasses import replace
from refocal.cli import main
from refocal.experiments import images
grid = images.experiments_of
def wild(*arguments, **options):  # the first run cannot be trained, the second can
    first, second = grid(*arguments, **options)
    return [replace(first, lr=1e30), second]
images.experiments_of = wild
sys.exit(main(["reproduce", "images", "--dataset", sys.argv[1], "--gamma", "0", "2", "--paradigm", "ls",
               "--trials", "1", "--epochs", "2", "--device", "cpu", "--out", sys.argv[2]]))
"""

ALONE = """
import os, sys
from refocal.experiments.images import experiments_of, study, training
augment = training.augment
study.report = lambda out: []
def fail(*arguments):
    if os.environ["RANK"] == "1":
        raise MemoryError("no more")
    return augment(*arguments)
training.augment = fail
study.run(experiments_of(sys.argv[1], "resnet8", [2], ["ls"], 1, 1), sys.argv[2], device="cpu")
"""

PLAIN = """
import os, sys, time
from pathlib import Path
from torch import distributed as dist
from refocal.experiments.sweeps.together import process_group, sweep_together
folder = Path(sys.argv[1])
log = open(folder / f"log{os.environ['RANK']}", "w", buffering=1)
def run(config):
    print("run", config["x"], file=log)
    while (folder / f"hold{config['x']}").exists():
        time.sleep(0.01)
    return {"x": config["x"]}
def broadcast(box, src, original=dist.broadcast_object_list):
    original(box, src=src)
    print("heard", file=log)
dist.broadcast_object_list = broadcast
try:
    with process_group("cpu"):
        sweep_together([{"x": x} for x in range(3)], run, folder)
except KeyboardInterrupt:
    sys.exit(130)
"""


@contextlib.contextmanager
def started(code, *arguments):
    """Start a program in two processes, as torchrun would; they end with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stderr.close()


def ended(processes):
    """Wait for the end; return the exit codes and what was written to stderr."""
    errors = [process.communicate(timeout=300)[1] for process in processes]
    return [process.returncode for process in processes], errors


def two_processes(code, *arguments):
    """Run a program as torchrun would; return the exit codes and what was written to stderr."""
    with started(code, *arguments) as processes:
        return ended(processes)


def wait_for(lines, path):
    """Wait until a log has these lines, with others between them."""
    deadline = time.monotonic() + 60
    while True:
        logged = iter(path.read_text().splitlines() if path.exists() else [])
        if all(line in logged for line in lines):
            return
        assert time.monotonic() < deadline, f"{path} has not all of {lines}: {path.read_text()}"
        time.sleep(0.05)


def runs_in(path):
    return [line for line in path.read_text().splitlines() if line.startswith("run")]


@pytest.mark.slow
def test_two_processes_train_as_one(tiny, tmp_path):
    grid = experiments_of(str(tiny), "resnet8", [2], ["ls"], 1, 1, batch_size=13, validation=0.15)
    alone = swept(grid, tmp_path / "alone")
    codes, errors = two_processes(SHARED, tiny, tmp_path / "shared")
    assert codes == [0, 0], errors
    shared = {run.key: run for run in read_runs(tmp_path / "shared")}
    assert len(shared) == 1
    for run in alone:
        together = shared[run.key]
        (made,) = together.result["machines"]
        assert made["loss"] == ("eager and kernel" if kernels.load("machine") else "eager")
        np.testing.assert_allclose(together.result["train_loss"], run.result["train_loss"], rtol=1e-4)
        np.testing.assert_allclose(
            together.arrays()["test_logits"], run.arrays()["test_logits"], rtol=1e-2, atol=1e-3
        )
    assert not Path(tmp_path / "shared" / "checkpoints").exists()


@pytest.mark.slow
def test_a_run_that_fails_in_two_processes_stops_no_other(tiny, tmp_path):
    with started(DIVERGING, tiny, tmp_path) as processes:
        processes[1].wait(300)
        # torchrun ends the other processes now; the report is there already.
        assert "| LS | 2 | 1 |" in (tmp_path / "README.md").read_text()
        codes, errors = ended(processes)
    assert codes == [1, 1], errors
    (run,) = read_runs(tmp_path)
    assert run.config["gamma"] == 2
    for text in errors:
        last = text.strip().splitlines()[-1]
        assert last.startswith("refocal: 1 of 2 runs failed (finished ones are kept in ")
        assert "FloatingPointError: the training loss is nan in epoch 2; lower lr" in last
    assert "Traceback" not in errors[1]


@pytest.mark.slow
def test_a_process_that_fails_alone_ends_all(tiny, tmp_path):
    codes, errors = two_processes(ALONE, tiny, tmp_path)
    assert codes == [1, 1], errors
    assert "process 1 cannot go on in " in errors[1]
    assert "MemoryError: no more" in errors[1]
    assert "process 0 cannot go on in " in errors[0]
    assert "Traceback" not in "".join(errors)
    assert read_runs(tmp_path) == []


@pytest.mark.slow
def test_a_run_that_another_sweep_has_claimed_holds_up_no_other_run(tmp_path):
    with Store(tmp_path) as store:
        assert store.claim(run_key({"x": 0}))
        with started(PLAIN, tmp_path) as processes:
            # All that is left is claimed then, and still the second process hears of the first.
            wait_for(["run 1", "run 2", "heard", "heard", "heard"], tmp_path / "log1")
            store.release(run_key({"x": 0}))
            codes, errors = ended(processes)
    assert codes == [0, 0], errors
    for rank in range(2):
        assert runs_in(tmp_path / f"log{rank}") == ["run 1", "run 2", "run 0"]
    assert sorted(run.result["x"] for run in read_runs(tmp_path)) == [0, 1, 2]


@pytest.mark.slow
def test_ctrl_c_in_two_processes_counts_the_runs_of_the_whole_sweep(tmp_path):
    (tmp_path / "hold1").touch()
    with started(PLAIN, tmp_path) as processes:
        for rank in range(2):
            wait_for(["run 1"], tmp_path / f"log{rank}")
        for process in processes:
            process.send_signal(signal.SIGINT)
        codes, errors = ended(processes)
    assert codes == [130, 130], errors
    stopped = f"stopped; 1 of 3 runs are finished and kept in {tmp_path / 'runs'}\n"
    assert errors == [stopped, ""]


@pytest.mark.slow
def test_a_folder_that_cannot_be_used_is_said_by_every_process(tmp_path):
    (tmp_path / "runs").touch()
    codes, errors = two_processes(PLAIN, tmp_path)
    assert codes == [1, 1], errors
    for text in errors:
        assert "together.GroupError: [Errno 17] cannot write to " in text
        assert text.endswith("File exists; nothing was started\n")


@pytest.mark.slow
def test_bad_data_are_said_by_every_process(tmp_path):
    np.savez(tmp_path / "table.npz", X=np.eye(4), y=[0, 1, 0, 1])
    code = "import sys; from refocal.cli import main; sys.exit(main(['reproduce', 'images', *sys.argv[1:]]))"
    codes, errors = two_processes(
        code, "--dataset", tmp_path / "table.npz", "--device", "cpu", "--out", tmp_path / "out"
    )
    assert codes == [2, 2]
    message = (
        f"refocal: {tmp_path / 'table.npz'} must have the arrays X_train, y_train, X_test, y_test; got X and "
        "y, which are read as one table without a test set\n"
    )
    assert errors == [message] * 2


@pytest.mark.parametrize(
    "given, names",
    [
        (["--jobs", "2"], "--jobs"),
        (["--address", "auto", "--engine", "ray"], "--engine, --address"),
        (["--engine", "ray", "--gpus-per-run", "0.5"], "--engine, --gpus-per-run"),
    ],
)
def test_torchrun_and_an_engine_are_refused_by_the_command(given, names, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["reproduce", "images", "--out", str(tmp_path), *given]) == 2
    assert capsys.readouterr() == ("", f"refocal: under torchrun there is no choice of {names}\n")


def test_one_rule_says_whether_torchrun_has_started_several(monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 4)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")  # torchrun --nproc-per-node 1: a process like any other
    Workers(jobs=3).check_together()
    assert Workers().options() == {"jobs": 4}
    with process_group("cpu") as place:
        assert place == (0, 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"^under torchrun there is no choice of --engine$"):
        Workers(engine="ray").check_together()
    # Where each process does runs of its own there is a choice, and by default nobody takes all cores.
    assert Workers().options() == {"jobs": 1}
    assert Workers(jobs=3).options() == {"jobs": 3}
