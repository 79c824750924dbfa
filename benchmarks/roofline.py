"""Bytes that each form of a loss or of psi moves, in reads and writes of the logits: on paper, for any GPU.

    python benchmarks/roofline.py

Operations of PyTorch are counted as they run, on tensors without values: each reads its inputs from memory
once and writes its outputs once; views cost nothing, an entry that is read by index counts alone. Kernels of
refocal are counted from their code, see `KERNELS`. What a number for each row costs is left out for kernels
(at 1000 classes 0.4 % a number) and included for operations. The table is the one in docs/gpu.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_compat.torch as xp
import torch
import torch.nn.functional as F
from bench_losses import torchvision_formula
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from refocal.focal import _log_psi, psi_body
from refocal.torch.eager import OF_ALL, Sigmoid, Softmax

ROWS, CLASSES, GAMMA = 4096, 1000, 2.0

KERNELS = {
    "softmax, labels": (1, 2),  # reads z; reads z and writes the gradient
    "softmax, distributions": (2, 3),  # reads z and v; the same, and writes
    "softmax, distributions, more than 8192 classes": (3, 3),  # the sum of exponentials comes first
    "sigmoid": (2, 3),  # reads z and y; the same, and writes
    "log_psi, up to 8192 classes": (2, None),  # reads z, writes
    "log_psi, more classes": (4, None),  # reads z three times, of which a cache may have two, and writes
    "psi, up to 8192 classes": (2, None),
    "psi, more classes": (4, None),
}
"""Forward and backward of each, in units of the logits; targets in the dtype of the logits."""

BY_INDEX = ("gather", "nll_loss_forward")
"""Operations that read a few entries of their first input."""

MADE = (
    "fill_",
    "zero_",
    "zeros_like",
    "ones_like",
    "full_like",
    "full",
    "zeros",
    "ones",
    "arange",
    "new_full",
)
"""Operations that read nothing."""

FREE = ("detach", "alias", "empty")
"""Operations that move nothing, beside views."""


class Count(TorchDispatchMode):
    """Adds up the bytes that operations read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        name = op.overloadpacket.__name__
        if not op.is_view and not any(word in name for word in FREE):
            given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
            if name in BY_INDEX:
                given = given[1:] * 2  # the index, and as many entries
            elif name.startswith("scatter"):
                given, made = given[1:] * 2, []  # in place
            elif name == "nll_loss_backward":
                given = given[2:]  # of the log-probabilities only the shape counts
            elif name in MADE:
                given = []
            elif name == "binary_cross_entropy_with_logits":
                # In PyTorch's code: log_sigmoid (2), 1 - y (2), times z (3), minus the first (3), a mean (1).
                none = len(args) > 4 and args[4] == 0
                given, made = given[:1] * (10 if none else 11), []
            self.bytes += sum(map(size, given)) + sum(map(size, made))
        return result


def size(x: Tensor) -> int:
    """Return the bytes of a tensor in memory: an axis that was expanded has none."""
    count = 1
    for n, s in zip(x.shape, x.stride(), strict=True):
        count *= n if s else 1
    return count * x.element_size()


def logits() -> Tensor:
    return torch.zeros(ROWS, CLASSES, device="meta")


def passes(call: Callable[[], object]) -> float:
    """Return the bytes that a call moves, as a multiple of those of the logits."""
    with Count() as count:
        call()
    return count.bytes / size(logits())


def of_autograd(loss: Callable[[Tensor, Tensor], Tensor], y: Tensor) -> tuple[float, float]:
    z = logits().requires_grad_()
    values: list[Tensor] = []
    return passes(lambda: values.append(loss(z, y))), passes(lambda: values[0].backward())


def of_closed_form(p: Softmax | Sigmoid) -> tuple[float, float]:
    grad = torch.zeros((), device="meta")
    forward = passes(lambda: p.reduced(p.losses(), "mean"))
    return forward, passes(lambda: p.gradients(grad, (True, False)))


def table() -> list[tuple[str, str, float, float | None]]:
    """Return what is computed, by what, and the passes forward and backward."""
    z, labels = logits(), torch.zeros(ROWS, dtype=torch.int64, device="meta")
    rest = (None, None, GAMMA, OF_ALL, -100, 0.0, 1)
    hard, soft = Softmax(logits(), labels, *rest, True), Softmax(logits(), logits(), *rest, False)
    sigmoid = Sigmoid(logits(), logits(), GAMMA, 0.25, 0.75, None, 0.0)
    counted: list[tuple[str, str, tuple[float, float | None]]] = [
        ("softmax, labels", "F.cross_entropy", of_autograd(F.cross_entropy, labels)),
        ("softmax, labels", "refocal, eager", of_closed_form(hard)),
        ("softmax, distributions", "F.cross_entropy", of_autograd(F.cross_entropy, logits())),
        ("softmax, distributions", "refocal, eager", of_closed_form(soft)),
        (
            "sigmoid",
            "F.binary_cross_entropy_with_logits",
            of_autograd(F.binary_cross_entropy_with_logits, logits()),
        ),
        ("sigmoid", "torchvision's formula", of_autograd(torchvision_formula, logits())),
        ("sigmoid", "refocal, eager", of_closed_form(sigmoid)),
        ("log_psi, up to 8192 classes", "log_softmax", (passes(lambda: z.log_softmax(1)), None)),
        ("log_psi, up to 8192 classes", "refocal, eager", (passes(lambda: _log_psi(xp, z, GAMMA, 1)), None)),
        ("psi, up to 8192 classes", "refocal, eager", (passes(lambda: psi_body(xp, z, GAMMA, 1)), None)),
    ]
    rows = []
    for what, kernel in KERNELS.items():
        rows += [(what, by, *found) for where, by, found in counted if where == what]
        rows.append((what, "refocal, Triton", *kernel))
    return rows


def markdown() -> str:
    """Return the table."""
    lines = ["| what | by | forward | backward | together |", "|---|---|---|---|---|"]
    for what, by, forward, backward in table():
        together = forward + (backward or 0)
        parts = [f"{forward:.1f}", "" if backward is None else f"{backward:.1f}", f"{together:.1f}"]
        lines.append(f"| {what} | {by} | {' | '.join(parts)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
