"""Forward and backward of the focal losses, as ratios to PyTorch's cross entropies, beside other libraries.

    python benchmarks/bench_losses.py [--repeats 40]

The peers are used if they are installed (pip install --no-deps kornia kornia_rs monai); torchvision is its
published formula, since its package brings other builds of PyTorch.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measure import best_of_each, write_results
from torch import Tensor

from refocal.torch import focal_loss, sigmoid_focal_loss

SHAPES = [(128, 10), (65_536, 10), (8192, 100), (8192, 1000)]
SIGMOID_SHAPE = (100_000, 80)
GAMMA, ALPHA = 2.0, 0.25


def torchvision_formula(z: Tensor, y: Tensor) -> Tensor:
    p = torch.sigmoid(z)
    ce = F.binary_cross_entropy_with_logits(z, y, reduction="none")
    p_t = p * y + (1 - p) * (1 - y)
    return ((ALPHA * y + (1 - ALPHA) * (1 - y)) * (ce * (1 - p_t) ** GAMMA)).mean()


def peers(kind: str) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Return the losses of the libraries that are there."""
    found: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
    try:
        kornia = importlib.import_module("kornia.losses")
        if kind == "hard":
            found["kornia"] = lambda z, y: kornia.focal_loss(z, y, alpha=None, gamma=GAMMA, reduction="mean")
    except ImportError:
        pass
    try:
        monai = importlib.import_module("monai.losses")
        if kind == "hard":
            softmax = monai.FocalLoss(gamma=GAMMA, use_softmax=True, to_onehot_y=True)
            found["MONAI"] = lambda z, y: softmax(z, y.unsqueeze(1))
    except ImportError:
        pass
    return found


def step(loss: Callable[[Tensor, Tensor], Tensor], z: Tensor, y: Tensor) -> Callable[[], None]:
    def run() -> None:
        z.grad = None
        loss(z, y).backward()

    return run


def saved_bytes(loss: Callable[[Tensor, Tensor], Tensor], z: Tensor, y: Tensor) -> int:
    """Return what autograd keeps beyond the inputs."""
    seen: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        seen[t.data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss(z, y)
    known = {z.data_ptr(), y.data_ptr()}
    return sum(size for pointer, size in seen.items() if pointer not in known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    rows = []

    def record(
        kind: str, shape: tuple[int, int], floor: str, calls: dict, z: Tensor, y: Tensor, repeats: int
    ) -> None:
        seconds = best_of_each({name: step(loss, z, y) for name, loss in calls.items()}, repeats)
        for name, loss in calls.items():
            row = {
                "targets": kind,
                "shape": f"{shape[0]} x {shape[1]}",
                "loss": name,
                "ms": round(1e3 * seconds[name], 3),
                f"x {floor}": round(seconds[name] / seconds[floor], 2),
                "saved x logits": round(saved_bytes(loss, z, y) / z.nbytes, 3),
            }
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)

    for shape in SHAPES:
        z = (torch.randn(shape, generator=generator) * 3).requires_grad_()
        labels = torch.randint(shape[1], shape[:1], generator=generator)
        soft = torch.rand(shape, generator=generator).softmax(1)
        repeats = args.repeats * (50 if shape[0] < 1000 else 1)
        hard = {
            "cross_entropy": F.cross_entropy,
            "refocal": lambda z, y: focal_loss(z, y, GAMMA),
            **peers("hard"),
        }
        record("integers", shape, "cross_entropy", hard, z, labels, repeats)
        both = {"cross_entropy": F.cross_entropy, "refocal": lambda z, y: focal_loss(z, y, GAMMA)}
        record("distributions", shape, "cross_entropy", both, z, soft, repeats)
    z = (torch.randn(SIGMOID_SHAPE, generator=generator) * 3).requires_grad_()
    y = (torch.rand(SIGMOID_SHAPE, generator=generator) < 0.1).float()
    binary = {
        "bce_with_logits": F.binary_cross_entropy_with_logits,
        "refocal": lambda z, y: sigmoid_focal_loss(z, y, GAMMA, ALPHA),
        "torchvision's formula": torchvision_formula,
    }
    record("sigmoid", SIGMOID_SHAPE, "bce_with_logits", binary, z, y, max(5, args.repeats // 4))
    write_results("losses", rows)


if __name__ == "__main__":
    main()
