"""Forward and backward of the focal losses, as ratios to PyTorch's cross entropies, beside other libraries.

    python benchmarks/bench_losses.py [--repeats 40]

`make bench` installs the peers; one that cannot be imported is left out and named. torchvision is its
published formula, since its package brings other builds of PyTorch.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import best_of_each, installed, write_results
from torch import Tensor

from refocal.torch import focal_loss, sigmoid_focal_loss

SHAPES = [(128, 10), (65_536, 10), (8192, 100), (8192, 1000)]
SIGMOID_SHAPE = (100_000, 80)
DENSE_SHAPE = (8, 21, 256, 256)
IGNORED = 255
GAMMA, ALPHA = 2.0, 0.25


def torchvision_formula(z: Tensor, y: Tensor) -> Tensor:
    p = torch.sigmoid(z)
    ce = F.binary_cross_entropy_with_logits(z, y, reduction="none")
    p_t = p * y + (1 - p) * (1 - y)
    return ((ALPHA * y + (1 - ALPHA) * (1 - y)) * (ce * (1 - p_t) ** GAMMA)).mean()


def peers() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Return the losses of the libraries that are there."""

    def kornia() -> Callable[[Tensor, Tensor], Tensor]:
        losses = importlib.import_module("kornia.losses")
        return lambda z, y: losses.focal_loss(z, y, alpha=None, gamma=GAMMA, reduction="mean")

    def monai() -> Callable[[Tensor, Tensor], Tensor]:
        softmax = importlib.import_module("monai.losses").FocalLoss(
            gamma=GAMMA, use_softmax=True, to_onehot_y=True
        )
        return lambda z, y: softmax(z, y.unsqueeze(1))

    return installed({"kornia": kornia, "MONAI": monai})


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


def softmax_losses(kind: str) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    ours = {"cross_entropy": F.cross_entropy, "refocal": lambda z, y: focal_loss(z, y, GAMMA)}
    return ours | (peers() if kind == "integers" else {})


def binary_losses() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    return {
        "bce_with_logits": F.binary_cross_entropy_with_logits,
        "refocal": lambda z, y: sigmoid_focal_loss(z, y, GAMMA, ALPHA),
        "torchvision's formula": torchvision_formula,
    }


def dense_losses() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    return {
        "cross_entropy": lambda z, y: F.cross_entropy(z, y, ignore_index=IGNORED),
        "refocal": lambda z, y: focal_loss(z, y, GAMMA, ignore_index=IGNORED),
    }


def compiled(losses: dict[str, Callable[[Tensor, Tensor], Tensor]]) -> dict[str, Callable]:
    """Return the first two losses under `torch.compile`."""
    return {name: torch.compile(losses[name]) for name in list(losses)[:2]}


def generated_kernels(loss: Callable[[Tensor, Tensor], Tensor], z: Tensor, y: Tensor) -> int:
    """Return how many kernels Inductor generates for a step; an operator that it calls is none of them."""
    metrics = importlib.import_module("torch._inductor.metrics")
    torch.compiler.reset()
    metrics.reset()
    with torch._inductor.config.patch(force_disable_caches=True):  # or code of before would not be counted
        step(loss, z, y)()
    return int(metrics.generated_kernel_count)


def losses_of(kind: str) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    by_kind = {"sigmoid": binary_losses, "pixels, some ignored": dense_losses}
    return by_kind[kind]() if kind in by_kind else softmax_losses(kind)


def problem(kind: str, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return logits and targets."""
    generator = torch.Generator().manual_seed(0)
    z = (torch.randn(shape, generator=generator) * 3).requires_grad_()
    if kind in ("integers", "pixels, some ignored"):
        y = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
        if kind != "integers":
            y[:, : shape[2] // 10] = IGNORED
        return z, y
    u = torch.rand(shape, generator=generator)
    return z, u.softmax(1) if kind == "distributions" else (u < 0.1).float()


def peak_mib(kind: str, shape: tuple[int, int], name: str) -> float:
    """Return the growth of a fresh process's peak memory by one step, the gradient included."""
    command = [sys.executable, str(Path(__file__)), "--peak", kind, *map(str, shape), name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(kind: str, n: str, c: str, name: str) -> None:
    def status(key: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024

    loss = losses_of(kind)[name]
    z, y = problem(kind, (int(n), int(c)))
    step(loss, *problem(kind, (5000, 2)))()  # what is loaded once does not count, threads included
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status("VmRSS")
    step(loss, z, y)()
    print(status("VmHWM") - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak:
        print_peak(*args.peak)
        return
    rows = []

    def record(
        kind: str, shape: tuple[int, ...], floor: str, calls: dict, repeats: int, how: str = ""
    ) -> None:
        z, y = problem(kind, shape)
        kernels = {name: generated_kernels(loss, z, y) for name, loss in calls.items()} if how else {}
        seconds = best_of_each({name: step(loss, z, y) for name, loss in calls.items()}, repeats)
        for name, loss in calls.items():
            row = {
                "targets": kind,
                "shape": " x ".join(map(str, shape)),
                "loss": name + how,
                "ms": round(1e3 * seconds[name], 3),
                f"x {floor}": round(seconds[name] / seconds[floor], 2),
                "saved x logits": round(saved_bytes(loss, z, y) / z.nbytes, 3),
            }
            if how:
                row["generated kernels"] = kernels[name]
            if z.nbytes > 1 << 20 and z.ndim == 2 and not how:
                row["peak MiB"] = round(peak_mib(kind, shape, name), 1)
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)

    for shape in SHAPES:
        repeats = args.repeats * (50 if shape[0] < 1000 else 1)
        for kind in ("integers", "distributions"):
            record(kind, shape, "cross_entropy", softmax_losses(kind), repeats)
    few = max(5, args.repeats // 4)
    record("sigmoid", SIGMOID_SHAPE, "bce_with_logits", binary_losses(), few)
    record("pixels, some ignored", DENSE_SHAPE, "cross_entropy", dense_losses(), few)
    for kind, shape in (("integers", SHAPES[1]), ("distributions", SHAPES[1]), ("integers", SHAPES[2])):
        record(kind, shape, "cross_entropy", compiled(softmax_losses(kind)), args.repeats, ", compiled")
    record("sigmoid", SIGMOID_SHAPE, "bce_with_logits", compiled(binary_losses()), few, ", compiled")
    write_results("losses", rows)


if __name__ == "__main__":
    main()
