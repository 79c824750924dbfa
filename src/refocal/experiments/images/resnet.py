"""Residual networks for 32 x 32 images: ResNet-8, -20, -44 and -110."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from refocal.experiments.images.study import FIRST_WEIGHTS, MODELS, SHORTCUTS


class _Sum(torch.autograd.Function):
    """The sum of a tensor over all processes, in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def _sum(x: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(x)  # type: ignore[no-untyped-call]
    return total


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation with the statistics of the whole batch, also when processes share it.

    That is what makes a distributed training the same as one in a single process. torch's SyncBatchNorm does
    it on GPUs only.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (n, channels, height, width)."""
        if not (self.training and dist.is_initialized() and dist.get_world_size() > 1):
            return super().forward(x)
        y = x.float()
        rows = y.new_full((1,), x.numel() / x.shape[1])
        total = _sum(torch.cat([y.sum((0, 2, 3)), rows]))
        mean, count = total[:-1] / total[-1], total[-1]
        y = y - mean[:, None, None]
        var = _sum(y.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            for so_far, new in ((self.running_mean, mean), (self.running_var, var * (count / (count - 1)))):
                assert so_far is not None
                so_far.lerp_(new, self.momentum or 0.0)
        scale = self.weight * torch.rsqrt(var + self.eps)
        return (y * scale[:, None, None] + self.bias[:, None, None]).to(x.dtype)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut.

    Where the block halves the image, a plain shortcut takes every other pixel and fills the new channels with
    zeros (option A of He et al., 2016); the other one is a convolution of one pixel with normalisation (B).
    """

    def __init__(self, channels_in: int, channels: int, stride: int, shortcuts: str = "plain") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = BatchNorm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = BatchNorm(channels)
        self.stride = stride
        self.new_channels = channels - channels_in
        self.convolved = stride > 1 and shortcuts == "convolution"
        if self.convolved:
            self.conv3 = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.norm3 = BatchNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(f(x) + shortcut(x))."""
        y = F.relu_(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.convolved:
            x = self.norm3(self.conv3(x))
        elif self.stride > 1:
            # Pooling over one pixel is slicing, but its gradient stays channels-last.
            x = F.pad(F.avg_pool2d(x, 1, self.stride), (0, 0, 0, 0, 0, self.new_channels))
        return F.relu_(y.add_(x))


class ResNet(nn.Module):
    """A residual network for small images: a convolution, three stages of n blocks, a linear layer.

    The stages have 16, 32 and 64 channels; the second and the third halve the image. Weights are drawn from
    torch's global generator, as in He et al. (2015), by inputs or by outputs.

    Args:
        depth: Layers with weights, 6 n + 2.
        n_classes: How many logits.
        shortcuts: "plain" or "convolution", see `BasicBlock`.
        first_weights: "inputs" or "outputs", see `refocal.experiments.images.Experiment`.

    Raises:
        ValueError: If the depth is not 6 n + 2 with n >= 1, there are fewer than two classes, or no such
            shortcuts or first weights.

    Example:
        >>> model = ResNet(20, 10)
        >>> sum(parameter.numel() for parameter in model.parameters())
        269722
        >>> model(torch.zeros(5, 3, 32, 32)).shape
        torch.Size([5, 10])
    """

    def __init__(
        self, depth: int, n_classes: int, shortcuts: str = "plain", first_weights: str = "inputs"
    ) -> None:
        super().__init__()
        n, rest = divmod(depth - 2, 6)
        if n < 1 or rest:
            raise ValueError(f"depth must be 6 n + 2 with n >= 1, got {depth}")
        if n_classes < 2:
            raise ValueError(f"n_classes must be at least 2, got {n_classes}")
        if shortcuts not in SHORTCUTS:
            raise ValueError(f"shortcuts must be one of {', '.join(SHORTCUTS)}, got {shortcuts!r}")
        if first_weights not in FIRST_WEIGHTS:
            raise ValueError(
                f"first_weights must be one of {', '.join(FIRST_WEIGHTS)}, got {first_weights!r}"
            )
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = BatchNorm(16)
        widths = [16] * (n + 1) + [32] * n + [64] * n
        steps = itertools.pairwise(widths)
        self.blocks = nn.Sequential(*(BasicBlock(w0, w1, w1 // w0, shortcuts) for w0, w1 in steps))
        self.linear = nn.Linear(64, n_classes)
        for module in self.modules():
            if first_weights == "inputs" and isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (n, n_classes) of normalised images (n, 3, height, width)."""
        x = F.relu_(self.norm(self.conv(images)))
        logits: Tensor = self.linear(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))
        return logits


def build_model(
    name: str,
    n_classes: int,
    *,
    shortcuts: str = "plain",
    first_weights: str = "inputs",
    device: str = "cpu",
) -> ResNet:
    """Return a network of the paper in the channels-last layout, with its weights on a device.

    Raises:
        ValueError: If the name is not one of `MODELS`.

    Example:
        >>> build_model("resnet8", 10).linear.out_features
        10
    """
    if name not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}")
    model = ResNet(MODELS[name], n_classes, shortcuts, first_weights)
    return model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
