"""Kernels for GPUs by Triton, for the rooms below: CUDA, ROCm and XPU.

Triton comes with PyTorch's builds for them. The modules of this package need it; the package itself does not.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from typing import Any

from refocal.kernels import wanted

__all__ = ["numbers_on", "usable"]

DEVICES = ("cuda", "xpu")
"""PyTorch calls ROCm cuda too."""

OLDEST = 70
"""Triton compiles for NVIDIA's compute capability 7.0 and later."""


@functools.cache
def usable(device: str) -> bool:
    """Look whether Triton is wanted and there, and has a driver and a compiler for a type of device."""
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


def numbers_on(values: tuple[float, ...], dtype: Any, device: Any) -> Any:
    """Return a tensor of numbers on a device. They are moved once: a move waits, and cannot be captured."""
    found = _moved(values, dtype, device)
    if device.type == "cuda" and sys.modules["torch"].cuda.is_current_stream_capturing():
        _captured.add(found)
    return found


_captured: set[Any] = set()
"""What CUDA graphs read: a graph knows the address alone, and would read whatever is there later."""


@functools.lru_cache(maxsize=64)
def _moved(values: tuple[float, ...], dtype: Any, device: Any) -> Any:
    torch = sys.modules["torch"]
    with torch.inference_mode(False):  # autograd may need them later
        return torch.tensor(values, dtype=dtype, device=device)
