"""The compiled core where things go wrong: threads, forks, Ctrl-C, caches, old processors, many calls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("numba")


def started(code, *arguments, **variables):
    command = [sys.executable, "-c", code, *arguments]
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    return subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True)


def said(process):
    """Return what a process that ended well said, without how long it compiled."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out, [line for line in err.splitlines() if not line.startswith("compiled ")]


MANY_CALLS = """
import os, resource, sys, threading
import numpy as np
import refocal
from refocal import _compiled
from refocal.kernels import machine

_compiled.ENOUGH, machine.ENOUGH = 0, 1  # machine code, and threads, for every size
z = np.random.default_rng(0).normal(size=(48, 10)).astype(np.float32)
p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
y = p.argmax(axis=1)
calls = [
    lambda: refocal.log_psi(z, 2.0),
    lambda: refocal.psi(p, 1.5),
    lambda: refocal.focal_minimizer(p, 2.0),
    lambda: refocal.SigmoidFocal().posterior(z),
    lambda: refocal.ece(p, y),
    lambda: _compiled.moments(z, 0.5),
    lambda: _compiled.psi_nll(z, y, 0.5, 2.0),
]
expected = [call() for call in calls]

def same():
    return all(np.allclose(call(), known, rtol=1e-5) for call, known in zip(calls, expected))

found = []
threads = [threading.Thread(target=lambda: found.extend(same() for _ in range(20))) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("threads", len(found), all(found))

child = os.fork()
if child == 0:
    os._exit(0 if same() else 1)
print("fork", os.waitpid(child, 0)[1])

def many(n):
    for i in range(n):
        calls[i % len(calls)]()

many(2000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
many(20_000)
growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print("growth", growth if growth >= 4096 else "small")  # KiB
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_forks_and_twenty_thousand_calls(threads):
    out, err = said(started(MANY_CALLS, OMP_NUM_THREADS=threads, PYTHONWARNINGS="ignore"))
    assert out.splitlines() == ["threads 80 True", "fork 0", "growth small"]
    assert err == []


ENDLESS = """
import numpy as np
import refocal

z = np.random.default_rng(0).normal(size=(100_000, 10)).astype(np.float32)
expected = refocal.log_psi(z, 2.0)
try:
    print("ready", flush=True)
    while True:
        refocal.log_psi(z, 2.0)
except KeyboardInterrupt:
    print("interrupted", np.array_equal(refocal.log_psi(z, 2.0), expected))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupted_call_leaves_everything_in_order(threads):
    process = started(ENDLESS, OMP_NUM_THREADS=threads)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert said(process) == ("interrupted True\n", [])


COMPILING = """
import sys
import numpy as np
import scipy.special
import refocal
from refocal import _compiled
from refocal.kernels import machine

_compiled.ENOUGH, machine.LONG = 0, 0.0  # any compilation is long
z = 5 * np.random.default_rng(0).normal(size=(500, 7)).astype(np.float32)
close = [np.allclose(refocal.SigmoidFocal(0.0, None).posterior(z), scipy.special.expit(z), rtol=2e-6)]
if "psi" in sys.argv:
    wide = scipy.special.log_softmax(z.astype(np.float64), axis=1)
    close.append(np.allclose(refocal.log_psi(z, 0.0), wide, rtol=2e-6, atol=2e-6))
    expected = np.log(refocal.h(np.exp(wide), 2.0))
    expected -= scipy.special.logsumexp(expected, axis=1, keepdims=True)
    close.append(np.allclose(refocal.log_psi(z, 2.0), expected, rtol=2e-6, atol=2e-6))
print(*close)
"""


@pytest.mark.slow
def test_two_processes_compile_at_once_and_caches_that_cannot_be_written(tmp_path):
    read_only, in_the_way = tmp_path / "read only", tmp_path / "file"
    read_only.mkdir()
    read_only.chmod(0o500)
    in_the_way.write_text("")
    for folders in ([tmp_path / "shared"] * 2, [read_only, in_the_way]):
        processes = [started(COMPILING, NUMBA_CACHE_DIR=folder) for folder in folders]
        assert [said(process) for process in processes] == [("True\n", [])] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["generic"])
def test_a_processor_without_wide_vectors(name, tmp_path):
    """And a line on standard error for each compilation that takes long."""
    process = started(
        COMPILING, "psi", NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES="", NUMBA_CACHE_DIR=tmp_path / "cache"
    )
    out, err = process.communicate(timeout=300)
    assert out == "True True True\n", err
    lines = [line.split(" in ")[0] for line in err.splitlines()]
    assert lines == ["compiled odds_of_floats", "compiled psi_of_floats"]
    assert err.endswith(" s (REFOCAL_KERNELS=off goes without)\n")
