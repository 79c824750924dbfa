"""The compiled kernels in many threads: shared batches, the user's own threads, forks, limits."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kernel_problems import problem, value_and_gradient

from refocal.torch import _fast, _team, focal_loss, sigmoid_focal_loss

entries = pytest.importorskip("refocal.torch._entries")
numba = pytest.importorskip("numba")


needs_openmp = pytest.mark.skipif(_team.openmp() is None, reason="PyTorch has no OpenMP library of GNU here")
kinds = pytest.mark.parametrize("kind", [pytest.param("openmp", marks=needs_openmp), "python"])


def output_of(code, *arguments):
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def share_all(monkeypatch, kind):
    """Let threads of this kind share every batch."""
    monkeypatch.setattr(_fast, "SOME", 1)
    monkeypatch.setattr(_fast, "MANY", 1)
    if kind == "python":
        monkeypatch.setattr(_team, "openmp", lambda: None)


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


def test_parts_stop_after_an_error_and_memory_outlives_the_caller(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    started, go, done = [], threading.Event(), []

    class Owner:
        def __del__(self):
            done.append("freed")

    def work(scratch, i):
        started.append(i)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        go.wait(10)
        done.append("written")
        return 0

    waits = []

    def interrupted(futures):
        waits.append(futures)
        raise KeyboardInterrupt  # a second Ctrl-C

    monkeypatch.setattr(_fast, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _fast._together(work, torch.zeros(1, 2), [(i,) for i in range(100)], Owner())
    assert len(started) <= 2
    go.set()
    for future in waits[0]:
        future.result(10)
    gc.collect()
    assert done in (["written", "freed"], ["freed"])


LATE = """
import sys, threading, torch
from refocal.torch import _fast, _team, focal_loss
_fast.SOME = _fast.MANY = 1
if "python" in sys.argv: _team.openmp = lambda: None
torch.set_num_threads(2)
z, y = torch.randn(100, 40), torch.zeros(100, dtype=torch.long)
focal_loss(z, y)
def late():
    threading.main_thread().join()
    print(float(focal_loss(z, y)) > 0, "python" in sys.argv or _team.openmp() is not None)
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
from refocal.torch import _fast, _team, focal_loss
_fast.SOME = _fast.MANY = 1
torch.set_num_threads(2)
z, y = torch.randn(100, 40), torch.zeros(100, dtype=torch.long)
expected = focal_loss(z, y)
child = os.fork()
if child == 0:
    os._exit(0 if torch.allclose(focal_loss(z, y), expected, rtol=1e-6) and not _team.openmp() else 1)
print(os.waitpid(child, 0)[1])
"""

FORKED_BEFORE = """
import os, torch
torch.set_num_threads(2)
torch.randn(1000, 1000).exp().sum()
child = os.fork()
if child == 0:
    from refocal.torch import _team, focal_loss
    focal_loss(torch.randn(4096, 100), torch.zeros(4096, dtype=torch.long))  # waits for ever in OpenMP
    os._exit(1 if _team.openmp() else 0)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("code", [FORK, pytest.param(FORKED_BEFORE, marks=needs_openmp)])
def test_a_forked_process_has_threads_of_its_own(code):
    assert output_of(code) == "0\n"


LIMITED = """
import torch
from refocal.torch import _fast, _team, focal_loss
torch.set_num_threads(3)
z, y = torch.randn(100, 40), torch.zeros(100, dtype=torch.long)
expected = focal_loss(z, y)
_fast.SOME = 1
print(torch.allclose(focal_loss(z, y), expected, rtol=1e-6, atol=0), _team.openmp() is not None)
"""


@needs_openmp
@pytest.mark.parametrize("limit", ["1", "2", "9"])
def test_fewer_threads_than_asked_for(limit, monkeypatch):
    monkeypatch.setenv("OMP_THREAD_LIMIT", limit)
    assert output_of(LIMITED) == "True True\n"


@needs_openmp
@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_team_gives_every_part_its_arguments(count):
    @entries.kernel("nxsn")
    def put(n, x, to_, i):
        numba.carray(to_, i + 1)[i] = x / n
        return 10 * i

    to = np.zeros(count)
    parts = [(i + 1, -0.5 * i, to.ctypes.data, i) for i in range(count)]
    assert _team.run(put(), parts) == [10 * i for i in range(count)]
    np.testing.assert_array_equal(to, [-0.5 * i / (i + 1) for i in range(count)])


@needs_openmp
def test_the_team_is_found_before_any_kernel():
    code = "from refocal.torch import _team; print(_team.openmp() is not None)"
    assert output_of(code) == "True\n"


@pytest.fixture
def look_again():
    """Let `openmp` look anew, now and after the test."""
    _team.openmp.cache_clear()
    _team.share.cache_clear()
    yield
    _team.openmp.cache_clear()
    _team.share.cache_clear()


@needs_openmp
def test_no_team_of_a_library_that_torch_does_not_use(look_again, monkeypatch):
    open_library = ctypes.CDLL
    other = SimpleNamespace(GOMP_parallel=ctypes.CFUNCTYPE(None)(lambda: None))
    monkeypatch.setattr(ctypes, "CDLL", lambda name, **how: open_library(name, **how) if name else other)
    assert _team.openmp() is None


@needs_openmp
def test_no_team_with_an_old_llvm(look_again, monkeypatch):
    from llvmlite import binding

    monkeypatch.setattr(binding, "llvm_version_info", (15, 0, 7))
    assert _team.openmp() is None
