"""Every Triton kernel, compiled for GPUs that are not there: no register spills, memory is read by vectors.

The launchers are called as for a device, with tensors of the CPU; Triton specialises and compiles as it
would, and launches nothing. REFOCAL_AOT=all compiles the whole list for every capability and dtype, which
takes many minutes.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from refocal.kernels.cuda import launch
from refocal.torch import cuda
from refocal.torch.eager import OF_ALL, OF_CLASSES, OF_ROWS, Sigmoid, Softmax

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="nothing is compiled by the interpreter"),
]

EVERYTHING = os.environ.get("REFOCAL_AOT") == "all"
CAPABILITIES = (80, 90, 100)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDEST = {"ld": r"\.v[48]\.b32|\.v[24]\.b64", "st": r"\.v[48]\.b32|\.v[24]\.b64"}
"""Sixteen bytes or more."""

Launch = Callable[[torch.dtype], Any]


def psi(k: int, gamma: Any = 2.0, *, rows: int = 64, classes: bool = False, **kwargs: Any) -> Launch:
    of_class = {"gamma": (gamma,) * k if classes else gamma, "log_weights": (0.5,) * k if classes else None}
    settings = {"logarithm": True, "scores": False} | of_class | kwargs
    return lambda dtype: launch.psi(torch.zeros(rows, k, dtype=dtype), axis=1, **settings)


def pixels(dtype: torch.dtype) -> Any:
    z = torch.zeros(2, 21, 16, 16, dtype=dtype)
    return launch.psi(z, 2.0, 1, logarithm=True, scores=False, log_weights=None)


def sigmoid(reduction: str, *, gradient: bool = False, gamma: Any = 2.0, alpha: Any = 0.25) -> Launch:
    def run(dtype: torch.dtype) -> Any:
        z, y = torch.zeros(64, 80, dtype=dtype), torch.zeros(64, 80, dtype=dtype)
        alphas = torch.full((80,), alpha) if isinstance(gamma, torch.Tensor) else alpha
        p = Sigmoid(z, y, gamma, alphas, 1 - alphas, None, 0.0)
        if gradient:
            return cuda.gradient(p, None, z.float() if reduction == "none" else z.new_ones(()))
        return cuda.losses(p, reduction)

    return run


def softmax(
    c: int, *, gradient: bool = False, hard: bool = True, kind: int = OF_ALL, gamma: float = 2.0
) -> Launch:
    def run(dtype: torch.dtype) -> Any:
        z = torch.zeros(64, c, dtype=dtype)
        gammas = {OF_ALL: None, OF_ROWS: torch.ones(64), OF_CLASSES: torch.ones(c)}[kind]
        weight = None if kind == OF_ALL else torch.ones(c)
        target = torch.zeros(64, dtype=torch.int64) if hard else torch.zeros(64, c)
        p = Softmax(z, target, gammas, weight, gamma, kind, -100, 0.0 if hard else 0.1, 1, hard)
        kept = torch.zeros(64, 3)
        return cuda.gradient(p, kept, torch.ones(64)) if gradient else cuda.losses(p)

    return run


ONE_OF_EACH: dict[str, Launch] = {
    "log psi": psi(1000),
    "log psi, other gamma": psi(1000, 2.5),
    "psi of scores": psi(1000, logarithm=False, scores=True),
    "log psi, long rows": psi(32000, rows=2),
    "log psi, long rows, gammas of classes": psi(32000, 2.5, rows=2, classes=True),
    "sigmoid, mean": sigmoid("mean"),
    "sigmoid, gradient": sigmoid("mean", gradient=True),
    "softmax, labels": softmax(1024),
    "softmax, gradient of labels": softmax(1024, gradient=True),
    "softmax, distributions": softmax(1024, hard=False),
    "softmax, gradient of distributions": softmax(1024, gradient=True, hard=False),
}

THE_OTHERS: dict[str, Launch] = {
    "log psi, few classes": psi(10),
    "log psi, the longest row at once": psi(launch.LONGEST),
    "log psi, the longest row at once, other gamma": psi(launch.LONGEST, 2.5),
    "log psi, gammas of classes": psi(1000, 2.5, classes=True),
    "log psi, the longest row at once, gammas of classes": psi(launch.LONGEST, 2.5, classes=True),
    "log psi, long rows, other gamma": psi(32000, 2.5, rows=2),
    "posterior": psi(1000, logarithm=False),
    "psi of scores, the longest row at once": psi(launch.LONGEST, 2.5, logarithm=False, scores=True),
    "psi of scores, long rows": psi(32000, rows=2, logarithm=False, scores=True),
    "log psi, pixels": pixels,
    "sigmoid, each": sigmoid("none"),
    "sigmoid, each, other gamma": sigmoid("none", gamma=2.5),
    "sigmoid, gammas of classes": sigmoid("mean", gamma=torch.ones(80)),
    "sigmoid, gradient, each": sigmoid("none", gradient=True),
    "sigmoid, gradient, gammas of classes": sigmoid("mean", gradient=True, gamma=torch.ones(80)),
    "softmax, few classes": softmax(10),
    "softmax, gradient, few classes": softmax(10, gradient=True),
    "softmax, labels, gammas of rows": softmax(1024, kind=OF_ROWS),
    "softmax, gradient, gammas of rows": softmax(1024, gradient=True, kind=OF_ROWS),
    "softmax, distributions, gammas of classes": softmax(1024, hard=False, kind=OF_CLASSES),
    "softmax, gradient of distributions, gammas": softmax(1024, gradient=True, hard=False, kind=OF_CLASSES),
    "softmax, labels, long rows": softmax(32000),
    "softmax, gradient, long rows": softmax(32000, gradient=True),
    "softmax, distributions, long rows": softmax(32000, hard=False, gamma=2.5),
    "softmax, gradient of distributions, long rows": softmax(32000, gradient=True, hard=False, gamma=2.5),
}


ALL = list(itertools.product([*ONE_OF_EACH, *THE_OTHERS], CAPABILITIES, DTYPES))


class NoDevice:
    """A driver for a GPU that is not there."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return int(self.target.arch)

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Return a function from a launch, a dtype and a capability to the kernels that it would run."""
    found: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        found.append(run(self, *args, grid=grid, warmup=True, **kwargs))

    def compile_all(launched: Launch, dtype: torch.dtype, capability: int) -> list[Any]:
        found.clear()
        monkeypatch.setattr(triton.runtime.driver, "_active", NoDevice(capability))
        launched(dtype)
        return list(found)

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(JITFunction, "run", compile_only)
    return compile_all


def memory(kernel: Any, tmp_path: Any) -> dict[str, int]:
    """Return what each thread of a kernel uses: registers, and memory for those that do not fit."""
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(cubin)]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    usage = re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said.stdout + said.stderr)
    return {name: int(number) for name, number in usage}


def accesses(kernel: Any, kind: str) -> set[str]:
    """Return the instructions that read (ld) or write (st) the memory of the device."""
    return set(re.findall(rf"\b{kind}\.global[.\w:]*", kernel.asm["ptx"]))


def check(kernels: list[Any], tmp_path: Any) -> None:
    assert kernels
    for kernel in kernels:
        used = memory(kernel, tmp_path)
        assert used.keys() == {"REG", "STACK", "LOCAL"}
        assert used["STACK"] == used["LOCAL"] == 0, used
        assert 8 < used["REG"] <= 255


def is_vectorised(kernel: Any, kind: str) -> bool:
    return any(re.search(WIDEST[kind], found) for found in accesses(kernel, kind))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_each_kernel(name, compiled, tmp_path):
    # Another dtype for each capability: few compilations that meet all of both.
    for capability, dtype in zip(CAPABILITIES, DTYPES, strict=True):
        kernels = compiled(ONE_OF_EACH[name], dtype, capability)
        check(kernels, tmp_path)
        (kernel,) = kernels
        assert is_vectorised(kernel, "ld"), accesses(kernel, "ld")
        if "psi" in name or "gradient" in name:  # the others write one number for many that they read
            assert is_vectorised(kernel, "st"), accesses(kernel, "st")
        if name.startswith("log psi") and "classes" not in name:  # it reads nothing but logits
            assert all(re.search(WIDEST["ld"], found) for found in accesses(kernel, "ld"))


def test_what_cannot_be_read_by_vectors_is_not(compiled):
    """The assertion above can fail: rows of 1001 classes do not begin at multiples of 16 bytes."""
    (kernel,) = compiled(psi(1001), torch.float32, 90)
    assert not is_vectorised(kernel, "ld")


@pytest.mark.parametrize("name, capability, dtype", ALL if EVERYTHING else [])
def test_all(name, capability, dtype, compiled, tmp_path):
    kernels = compiled((ONE_OF_EACH | THE_OTHERS)[name], dtype, capability)
    check(kernels, tmp_path)
    if "few" not in name:
        assert any(is_vectorised(kernel, "ld") for kernel in kernels)
