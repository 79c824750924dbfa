"""A training epoch of a ResNet on the CPU, beside the plainest PyTorch script for the same network.

    python benchmarks/bench_images.py [--model resnet8] [--repeats 5]

The plain script: contiguous (NCHW) tensors, torch's own modules, a DataLoader whose data set pads, cuts,
mirrors and normalises one image at a time, and cross entropy times (1 - p)^gamma written out. Both train on
the same generated images with one thread. The time is that of the processor, so that others on the machine
disturb it less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import torch
import torch.nn.functional as F
from measure import write_results
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from refocal.experiments import data as datasets
from refocal.experiments.images import experiments_of
from refocal.experiments.images.data import PAD, augment, prepare
from refocal.experiments.images.resnet import MODELS, build_model
from refocal.experiments.images.training import train
from refocal.experiments.sweeps.devices import keep_freed_memory

N, BATCH, GAMMA = 1280, 128, 2.0


class PlainBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride, self.new = stride, channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.stride > 1:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.new))
        return F.relu(y + x)


class PlainResNet(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        n = (depth - 2) // 6
        self.conv, self.bn = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        blocks: list[nn.Module] = []
        for channels_in, channels, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2)):
            blocks.append(PlainBlock(channels_in, channels, stride))
            blocks += [PlainBlock(channels, channels, 1) for _ in range(n - 1)]
        self.blocks, self.linear = nn.Sequential(*blocks), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.linear(F.adaptive_avg_pool2d(y, 1).flatten(1))


class PlainImages(Dataset[tuple[Tensor, int]]):
    """One image at a time, as the usual transforms do it."""

    def __init__(self, x: np.ndarray, y: np.ndarray, mean: Tensor, std: Tensor) -> None:
        self.x, self.y = x, y
        self.mean, self.std = (mean / 255).view(3, 1, 1), (std / 255).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(self.x[i]).permute(2, 0, 1).contiguous().float().div(255)
        image = F.pad(image, (PAD, PAD, PAD, PAD))
        top, left = torch.randint(0, 2 * PAD + 1, (2,)).tolist()
        image = image[:, top : top + 32, left : left + 32]
        if torch.rand(1) < 0.5:
            image = image.flip(2)
        return (image - self.mean) / self.std, int(self.y[i])


def plain_epochs(depth: int, images: PlainImages, epochs: int) -> None:
    model = PlainResNet(depth)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    for _ in range(epochs):
        for x, y in DataLoader(images, BATCH, shuffle=True):
            log_p = F.log_softmax(model(x), 1).gather(1, y[:, None])
            loss = (-((1 - log_p.exp()) ** GAMMA) * log_p).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def seconds_of(what: str, model: str) -> float:
    """Return the processor's seconds of one epoch, after a first one that does not count."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (N + 10, 32, 32, 3), dtype=np.uint8), np.arange(N + 10) % 10
    data = prepare(datasets.Dataset("random", x, y, 10, x[:10], y[:10]), 10 / (N + 10), seed=0)
    plain = PlainImages(x[: len(data.train)], y, data.mean, data.std)
    (experiment,) = experiments_of("random", model, [GAMMA], ["standard"], 1, 1, batch_size=BATCH)
    rows, shift, mirror = torch.arange(BATCH), torch.full((BATCH, 2), 3), torch.arange(BATCH) % 2 == 0

    def augmentation() -> None:
        for _ in range(len(data.train) // BATCH):
            augment(data, rows, shift, mirror)

    if what != "plain script":
        keep_freed_memory()  # as run_experiment does
    call: Callable[[], object] = {
        "plain script": lambda: plain_epochs(MODELS[model], plain, 1),
        "refocal": lambda: train(build_model(model, 10), data, experiment),
        "refocal, bfloat16": lambda: train(
            build_model(model, 10), data, replace(experiment, precision="bfloat16")
        ),
        "augmentation of refocal": augmentation,
    }[what]
    call()
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet8", choices=MODELS)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    best = dict.fromkeys(
        ("plain script", "refocal", "refocal, bfloat16", "augmentation of refocal"), float("inf")
    )
    for _ in range(options.repeats):
        for what in best:
            # A process each: what one of them does to the C library's memory must not help another.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                best[what] = min(best[what], pool.submit(seconds_of, what, options.model).result())
    results = []
    for what, seconds in best.items():
        row = {
            "what": what,
            "model": options.model,
            "ms per step": round(1e3 * seconds * BATCH / N, 2),
            "x faster than the plain script": round(best["plain script"] / seconds, 2),
            "part of refocal's step": round(seconds / best["refocal"], 4),
        }
        results.append(row)
        print(row)
    write_results("images", results)


if __name__ == "__main__":
    main()
