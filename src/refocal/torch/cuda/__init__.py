"""Kernels for GPUs, by Triton: CUDA, ROCm, and XPU. Triton comes with PyTorch's wheels for them.

This package is the one door: `serves` says whether there is a kernel for a loss of some logits, `losses` and
`gradient` compute by it. Triton is imported when logits on such a device ask for it. They may be in half
precision, and are read as they are; arithmetic is in float32. No value is ever looked at from Python, so
nothing waits for the device and CUDA graphs can capture every step.

For tests alone, Triton's interpreter runs the same kernels on tensors of the CPU: REFOCAL_KERNELS=cuda and
TRITON_INTERPRET=1 together.
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

import torch
from torch import Tensor

from refocal.kernels import wanted
from refocal.torch.eager import Loss, Softmax

__all__ = ["gradient", "losses", "serves"]

MODULES: dict[type[Loss], str] = {Softmax: "softmax"}
"""The losses that have kernels, and the module of each: it has the functions `losses` and `gradient`."""

DEVICES = ("cuda", "xpu")
"""PyTorch calls ROCm cuda too."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

OLDEST = 70
"""Triton compiles for NVIDIA's compute capability 7.0 and later."""

_usable_on: dict[str, bool] = {}


def serves(loss: type[Loss], z: Tensor) -> bool:
    """Whether there is a kernel for a loss of logits of this dtype on this device."""
    return loss in MODULES and z.dtype in DTYPES and _usable(z.device.type)


def losses(p: Loss) -> tuple[Tensor, Tensor | None]:
    """Return losses in float32, not reduced, and what is kept for the gradient."""
    found: tuple[Tensor, Tensor | None] = _module(p).losses(p)
    return found


def gradient(p: Loss, kept: Tensor | None, grad: Tensor) -> Tensor:
    """Return the gradient by the logits, in their dtype, of losses times grad: a number or one for each."""
    found: Tensor = _module(p).gradient(p, kept, grad)
    return found


def _module(p: Loss) -> Any:
    return importlib.import_module(f"refocal.torch.cuda.{MODULES[type(p)]}")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _usable(device: str) -> bool:
    if device not in _usable_on:
        _usable_on[device] = _look(device)
    return _usable_on[device]


def _look(device: str) -> bool:
    """Look whether Triton is there, and has a driver and a compiler for a type of device."""
    # Who debugs kernels of their own with the interpreter does not ask for a slow loss on the CPU.
    interpreted = device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1" and not wanted("cpu")
    if not wanted("cuda") or not (device in DEVICES or interpreted):
        return False
    try:
        import triton

        if not interpreted:
            target = triton.runtime.driver.active.get_current_target()
            if target.backend == "cuda" and target.arch < OLDEST:
                return False
    except Exception as error:  # no C compiler, a Triton for another driver, ...
        if not (isinstance(error, ModuleNotFoundError) and error.name == "triton"):
            warnings.warn(f"refocal goes without Triton's kernels: {error}", RuntimeWarning, stacklevel=6)
        return False
    return True
