"""Losses and psi on a CUDA device: time and peak memory, as ratios to PyTorch's own, beside other libraries.

    python benchmarks/bench_gpu.py [--repeats 50]

Where there is no CUDA device it says so and ends. Peers that are not installed are left out and named:
torchvision and kornia (focal losses), Liger (cross entropy by Triton). Times are of the device, by its own
clock, after runs that do not count; the calls take turns, and the median is kept.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from bench_losses import ALPHA, GAMMA, torchvision_formula
from measure import installed, write_results
from torch import Tensor

from refocal import log_psi, psi
from refocal.torch import focal_loss, sigmoid_focal_loss, which_form

SOFTMAX_SHAPES = [(65_536, 10), (65_536, 100), (16_384, 1000), (4096, 32_000), (2048, 128_256)]
SIGMOID_SHAPES = [(100_000, 80), (1_000_000, 80)]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WARM = 5
"""Runs that do not count: they compile."""

Loss = Callable[[Tensor, Tensor], Tensor]


def softmax_losses() -> dict[str, Loss]:
    def kornia() -> Loss:
        losses = importlib.import_module("kornia.losses")
        return lambda z, y: losses.focal_loss(z, y, alpha=None, gamma=GAMMA, reduction="mean")

    def liger() -> Loss:
        loss: Loss = importlib.import_module(
            "liger_kernel.transformers.cross_entropy"
        ).LigerCrossEntropyLoss()
        return lambda z, y: loss(z.clone(), y)  # it writes its gradient over the logits

    ours: dict[str, Loss] = {
        "cross_entropy": F.cross_entropy,
        "refocal": lambda z, y: focal_loss(z, y, GAMMA),
    }
    compiled = {
        "cross_entropy, compiled": torch.compile(F.cross_entropy),
        "refocal, compiled": torch.compile(lambda z, y: focal_loss(z, y, GAMMA)),
    }
    return ours | compiled | installed({"kornia": kornia, "Liger's cross entropy": liger})


def sigmoid_losses() -> dict[str, Loss]:
    def torchvision() -> Loss:
        ops = importlib.import_module("torchvision.ops")
        return lambda z, y: ops.sigmoid_focal_loss(z, y, alpha=ALPHA, gamma=GAMMA, reduction="mean")

    def kornia() -> Loss:
        losses = importlib.import_module("kornia.losses")
        return lambda z, y: losses.binary_focal_loss_with_logits(
            z, y, alpha=ALPHA, gamma=GAMMA, reduction="mean"
        )

    ours: dict[str, Loss] = {
        "bce_with_logits": F.binary_cross_entropy_with_logits,
        "refocal": lambda z, y: sigmoid_focal_loss(z, y, GAMMA, ALPHA),
        "torchvision's formula": torchvision_formula,
    }
    return ours | installed({"torchvision": torchvision, "kornia": kornia})


def step(loss: Loss, z: Tensor, y: Tensor) -> Callable[[], None]:
    def run() -> None:
        z.grad = None
        loss(z, y).backward()

    return run


def seconds_on_device(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each call; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(WARM + repeats):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            if turn >= WARM:
                times[name].append(start.elapsed_time(end) / 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def peak_mib(call: Callable[[], object]) -> float:
    """Return how much more memory a call takes at its peak, its results included."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was measured")
        return
    rows: list[dict[str, Any]] = []

    def record(what: str, z: Tensor, calls: dict[str, Callable[[], object]], floor: str) -> None:
        seconds = seconds_on_device(calls, args.repeats)
        for name, call in calls.items():
            z.grad = None
            row = {
                "device": torch.cuda.get_device_name(),
                "what": what,
                "shape": " x ".join(map(str, z.shape)),
                "dtype": str(z.dtype).removeprefix("torch."),
                "call": name,
                "ms": round(1e3 * seconds[name], 4),
                f"x {floor}": round(seconds[name] / seconds[floor], 2),
                "peak MiB": round(peak_mib(call), 1),
            }
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)

    for dtype in DTYPES.values():
        for shape in SOFTMAX_SHAPES:
            z = (torch.randn(shape, device="cuda") * 3).to(dtype).requires_grad_()
            y = torch.randint(shape[1], shape[:1], device="cuda")
            print(f"losses of {shape} run as {which_form(z, y)}")
            calls = {name: step(loss, z, y) for name, loss in softmax_losses().items()}
            record("softmax loss, forward and backward", z, calls, "cross_entropy")
            logits = z.detach()
            scores = logits.softmax(1)
            calls = {
                "softmax": lambda x=logits: x.softmax(1),
                "log_softmax": lambda x=logits: x.log_softmax(1),
                "log_psi": lambda x=logits: log_psi(x, GAMMA),
                "psi": lambda x=scores: psi(x, GAMMA),
                "log_psi, gamma 2.5": lambda x=logits: log_psi(x, 2.5),
            }
            record("posterior", logits, calls, "softmax")
        for shape in SIGMOID_SHAPES:
            z = (torch.randn(shape, device="cuda") * 3).to(dtype).requires_grad_()
            y = (torch.rand(shape, device="cuda") < 0.1).to(dtype)
            calls = {name: step(loss, z, y) for name, loss in sigmoid_losses().items()}
            record("sigmoid loss, forward and backward", z, calls, "bce_with_logits")
    write_results("gpu", rows)


if __name__ == "__main__":
    main()
