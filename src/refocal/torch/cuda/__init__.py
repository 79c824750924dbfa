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
from typing import Any

import torch
from torch import Tensor

from refocal.kernels.cuda import usable
from refocal.torch.eager import Loss, Sigmoid, Softmax

__all__ = ["gradient", "losses", "serves"]

MODULES: dict[type[Loss], str] = {Softmax: "softmax", Sigmoid: "sigmoid"}
"""The losses that have kernels, and the module of each: it has the functions `losses` and `gradient`."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def serves(loss: type[Loss], z: Tensor) -> bool:
    """Whether there is a kernel for a loss of logits of this dtype on this device."""
    return loss in MODULES and z.dtype in DTYPES and _usable(z.device.type)


def losses(p: Loss, reduction: str = "none") -> tuple[Tensor, Tensor | None]:
    """Return a loss in float32, and what is kept for the gradient.

    Only a sigmoid loss can be reduced here, where what is kept is the number that a mean was divided by: to
    write each of its losses would cost as much as to read its logits.
    """
    found: tuple[Tensor, Tensor | None]
    found = _module(p).losses(p, reduction) if isinstance(p, Sigmoid) else _module(p).losses(p)
    return found


def gradient(p: Loss, kept: Tensor | None, grad: Tensor) -> Tensor:
    """Return the gradient by the logits, in their dtype, of losses times grad: a number or one for each."""
    found: Tensor = _module(p).gradient(p, kept, grad)
    return found


def _module(p: Loss) -> Any:
    return importlib.import_module(f"refocal.torch.cuda.{MODULES[type(p)]}")


def _usable(device: str) -> bool:
    return usable(device)


# All that `torch.compiler.assume_constant_result` does, but for its import of the compiler and of Triton,
# which takes more than a second.
_usable._dynamo_marked_constant = True  # type: ignore[attr-defined]
