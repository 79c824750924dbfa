"""What the shortcuts of the network do to its error: with parameters, or without as in the study.

    python results/images/shortcuts.py --data DATA --gamma 2 --trial 0

He et al. (2016) use shortcuts without parameters for CIFAR-10 (option A), many implementations a 1 x 1
convolution with normalisation where a block halves the image (option B). The paper does not say which. One
training of ResNet-8 on CIFAR-10-s with option B, all else as the runs in mixed precision with all images: its
error is printed and kept in shortcuts.json beside this file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from refocal.experiments.images import Experiment, training
from refocal.experiments.images.resnet import BasicBlock, BatchNorm, ResNet, build_model


class Projected(BasicBlock):
    """A block whose shortcut is a convolution where it halves the image."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__(channels_in, channels, stride)
        self.conv3 = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
        self.norm3 = BatchNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(f(x) + shortcut(x))."""
        y = F.relu_(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu_(y + self.norm3(self.conv3(x)))


def build_projected(name: str, n_classes: int, *, device: str = "cpu") -> ResNet:
    """Return the network of the study, with parameters in its shortcuts."""
    model = build_model(name, n_classes, device=device)
    for i, block in enumerate(model.blocks):
        if isinstance(block, BasicBlock) and block.stride > 1:
            projected = Projected(block.conv1.in_channels, block.conv1.out_channels, block.stride)
            for module in projected.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight)
            model.blocks[i] = projected.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def main() -> None:
    """Train, print the error, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", help="a folder of .npz files")
    parser.add_argument("--gamma", type=float, default=2.0)
    parser.add_argument("--trial", type=int, default=0)
    args = parser.parse_args()
    training.build_model = build_projected
    experiment = Experiment(
        "cifar10-s", gamma=args.gamma, seed=args.trial, validation=0.0, precision="bfloat16"
    )
    result, _ = training.run_experiment(experiment, data=args.data, device="cpu", compile=True)
    path = Path(__file__).with_name("shortcuts.json")
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    error = round(100 * result["error"], 2)
    found.append({"gamma": args.gamma, "trial": args.trial, "error": error, "machines": result["machines"]})
    print(f"gamma {args.gamma:g}, trial {args.trial}: error {error:.2f}")
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
