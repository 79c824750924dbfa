"""The compiled kernels in many threads: shared batches, the user's own threads, forks, limits."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from kernel_problems import problem, value_and_gradient

from refocal.torch import cpu, focal_loss, sigmoid_focal_loss

machine = pytest.importorskip("refocal.kernels.machine")

needs_openmp = pytest.mark.skipif(
    machine.openmp(cpu.FOLDER) is None, reason="PyTorch has no OpenMP library of GNU here"
)
kinds = pytest.mark.parametrize("kind", [pytest.param("openmp", marks=needs_openmp), "python"])


def output_of(code, *arguments):
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def share_all(monkeypatch, kind):
    """Let threads of this kind share every batch."""
    monkeypatch.setattr(machine, "ENOUGH", 1)
    if kind == "python":
        monkeypatch.setattr(machine, "openmp", lambda folder: None)


@kinds
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_the_rows(threads, kind, monkeypatch):
    z, y, v = problem(301, 40, 3.0)
    losses = (
        lambda z: focal_loss(z, y, 2.0, reduction="none"),
        lambda z: focal_loss(z, v, 2.0, reduction="none"),
        lambda z: sigmoid_focal_loss(z, v, reduction="none"),
    )
    alone = [value_and_gradient(loss, z) for loss in losses]
    total = focal_loss(z, y, 2.0)
    share_all(monkeypatch, kind)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for loss, expected in zip(losses, alone, strict=True):
        for got, same in zip(value_and_gradient(loss, z), expected, strict=True):
            torch.testing.assert_close(got, same, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(focal_loss(z, y, 2.0), total, rtol=1e-7, atol=0)
    y[200] = 40
    with pytest.raises(IndexError, match=r"^Target 40 is out of bounds\.$"):
        focal_loss(z, y, 2.0)


def test_no_part_is_started_after_an_error_and_memory_outlives_the_caller(monkeypatch):
    started, go, done = threading.Event(), threading.Event(), []

    class Owner:
        def __del__(self):
            done.append("freed")

    def region(address):
        record = (ctypes.c_int64 * 1).from_address(address)
        if threading.current_thread() is threading.main_thread():
            started.wait(10)
            raise KeyboardInterrupt
        started.set()
        go.wait(10)
        done.append(record[0])

    # A function of Python in place of machine code; ctypes would print the exception and go on.
    monkeypatch.setattr(
        machine.ctypes, "CFUNCTYPE", lambda *_: lambda address: lambda r: region(ctypes.addressof(r))
    )
    waits = []

    def interrupted(futures):
        waits.append(futures)
        raise KeyboardInterrupt  # a second Ctrl-C

    monkeypatch.setattr(machine, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        machine.in_python_threads(0, (ctypes.c_char * 8)(), 2, Owner())
    assert done == []
    go.set()
    for future in waits[0]:
        future.result(10)
    waits.clear()
    gc.collect()
    assert done == [machine.NONE_LEFT, "freed"]


LATE = """
import sys, threading, torch
from refocal.kernels import machine
from refocal.torch import cpu, focal_loss
machine.ENOUGH = 1
if "python" in sys.argv: machine.openmp = lambda folder: None
torch.set_num_threads(2)
z, y = torch.randn(100, 40), torch.zeros(100, dtype=torch.long)
focal_loss(z, y)
def late():
    threading.main_thread().join()
    print(float(focal_loss(z, y)) > 0, "python" in sys.argv or machine.openmp(cpu.FOLDER) is not None)
threading.Thread(target=late).start()
"""


@kinds
def test_a_thread_that_outlives_the_main_one(kind):
    assert output_of(LATE, kind) == "True True\n"


@kinds
def test_many_threads_of_the_user(kind, monkeypatch):
    share_all(monkeypatch, kind)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    problems = [problem(64, 33, 2.0, seed) for seed in range(8)]
    expected = [value_and_gradient(lambda z, y=y: focal_loss(z, y, 2.0), z) for z, y, _ in problems]
    wrong = []

    def work(i):
        z, y, _ = problems[i]
        for _ in range(20):
            loss, gradient = value_and_gradient(lambda z: focal_loss(z, y, 2.0), z)
            if loss != expected[i][0] or not torch.equal(gradient, expected[i][1]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


FORK = """
import os, torch
from refocal.kernels import machine
from refocal.torch import cpu, focal_loss
machine.ENOUGH = 1
torch.set_num_threads(2)
z, y = torch.randn(100, 40), torch.zeros(100, dtype=torch.long)
expected = focal_loss(z, y)
child = os.fork()
if child == 0:
    same = torch.allclose(focal_loss(z, y), expected, rtol=1e-6)
    os._exit(0 if same and not machine.openmp(cpu.FOLDER) else 1)
print(os.waitpid(child, 0)[1])
"""

FORKED_BEFORE = """
import os, torch
torch.set_num_threads(2)
torch.randn(1000, 1000).exp().sum()
child = os.fork()
if child == 0:
    from refocal.kernels import machine
    from refocal.torch import cpu, focal_loss
    focal_loss(torch.randn(4096, 100), torch.zeros(4096, dtype=torch.long))  # waits for ever in OpenMP
    os._exit(1 if machine.openmp(cpu.FOLDER) else 0)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("code", [FORK, pytest.param(FORKED_BEFORE, marks=needs_openmp)])
def test_a_forked_process_has_threads_of_its_own(code):
    assert output_of(code) == "0\n"


LIMITED = """
import torch
from refocal.kernels import machine
from refocal.torch import cpu, focal_loss
torch.set_num_threads(3)
z, y = torch.randn(100, 40), torch.zeros(100, dtype=torch.long)
expected = focal_loss(z, y)
machine.ENOUGH = 1
same = torch.allclose(focal_loss(z, y), expected, rtol=1e-6, atol=0)
print(same, machine.openmp(cpu.FOLDER) is not None)
"""


@needs_openmp
@pytest.mark.parametrize("limit", ["1", "2", "9"])
def test_fewer_threads_than_asked_for(limit, monkeypatch):
    monkeypatch.setenv("OMP_THREAD_LIMIT", limit)
    assert output_of(LIMITED) == "True True\n"


@needs_openmp
@pytest.mark.parametrize("switch, found", [("openmp", True), ("python", False)])
def test_the_switch(switch, found, monkeypatch):
    monkeypatch.setenv("REFOCAL_THREADS", switch)
    code = "from refocal.torch import cpu; from refocal.kernels import machine\n"
    assert output_of(code + "print(machine.openmp(cpu.FOLDER) is not None)") == f"{found}\n"


def test_a_switch_that_does_not_exist(monkeypatch):
    monkeypatch.setenv("REFOCAL_THREADS", "many")
    machine.openmp.cache_clear()
    with pytest.raises(ValueError, match=r"^REFOCAL_THREADS must be 'openmp' or 'python', got 'many'$"):
        machine.openmp(cpu.FOLDER)


@needs_openmp
def test_no_team_of_a_library_that_torch_does_not_use(monkeypatch):
    machine.openmp.cache_clear()
    open_library = ctypes.CDLL
    other = SimpleNamespace(GOMP_parallel=ctypes.CFUNCTYPE(None)(lambda: None))
    monkeypatch.setattr(ctypes, "CDLL", lambda name, **how: open_library(name, **how) if name else other)
    try:
        assert machine.openmp(cpu.FOLDER) is None
    finally:
        machine.openmp.cache_clear()


STEPS = """
import resource, torch
from refocal.torch import focal_loss, sigmoid_focal_loss
z = torch.randn(32, 40, requires_grad=True)
y, v = torch.randint(40, (32,)), torch.rand(32, 40).softmax(1)
losses = [
    lambda: focal_loss(z, y),
    lambda: focal_loss(z, v),
    lambda: sigmoid_focal_loss(z, v),
    lambda: focal_loss(z, y, 1.5, label_smoothing=0.1),
]
def steps(n):
    for i in range(n):
        torch.autograd.grad(losses[i % 4](), z)
steps(2000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
steps(20_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_in_twenty_thousand_steps():
    assert int(output_of(STEPS)) < 4096  # KiB


COMPILING = """
import os, sys, torch
from refocal.torch import focal_loss
z, y = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
print(round(float(focal_loss(z, y)), 4))
"""


def said(process):
    """Return what a process said, but for how long it took to compile."""
    out, err = process.communicate(timeout=300)
    return out, [line for line in err.splitlines() if not line.startswith("compiled hard_columns in ")]


@pytest.mark.slow
def test_two_processes_compile_at_once_and_a_cache_that_cannot_be_used(tmp_path):
    def started(folder):
        variables = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
        return subprocess.Popen(
            [sys.executable, "-c", COMPILING], env=variables, stdout=-1, stderr=-1, text=True
        )

    pairs = [started(tmp_path / "shared") for _ in range(2)]
    assert [said(process) for process in pairs] == [("0.0875\n", [])] * 2
    for file in (tmp_path / "shared").rglob("*.nb?"):
        file.write_bytes(b"damaged")
    (tmp_path / "file").write_text("in the way")
    pairs = [started(folder) for folder in (tmp_path / "shared", tmp_path / "file")]
    assert [said(process) for process in pairs] == [("0.0875\n", [])] * 2
