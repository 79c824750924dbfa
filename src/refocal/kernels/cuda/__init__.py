"""Kernels for GPUs by Triton, for the rooms below: CUDA, ROCm and XPU.

Triton comes with PyTorch's builds for them. The modules of this package need it; the package itself does not.
"""

from __future__ import annotations

import functools
import os
import warnings

from refocal.kernels import wanted

__all__ = ["DEVICES", "usable"]

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
