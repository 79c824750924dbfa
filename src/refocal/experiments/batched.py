"""Many small models trained at once: the trials and objectives of one data set as one batched model.

A trial has its own order of samples and initial weights, from its own random stream, and shares them
between its objectives. So the result of a model does not depend on what it is batched with, up to rounding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from refocal import Focal
from refocal.objectives import Objective
from refocal.torch import focal_loss

MODELS = ("linear", "mlp")


@dataclass(frozen=True)
class Recipe:
    """How to train. The defaults are the paper's."""

    hidden: int = 64
    epochs: int = 50
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-3

    def __post_init__(self) -> None:
        for name, least in (
            ("hidden", 1),
            ("epochs", 0),
            ("batch_size", 1),
            ("momentum", 0),
            ("weight_decay", 0),
        ):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}")
        if not self.lr > 0:
            raise ValueError(f"lr must be > 0, got {self.lr}")


@dataclass(frozen=True)
class Trial:
    """The training part of one trial: rows of X, how to scale them, and the seed of order and weights."""

    rows: Tensor
    center: Tensor
    scale: Tensor
    seed: int


@dataclass(frozen=True)
class Models:
    """The trained weights of every trial and objective.

    ``layers`` holds (weight, bias) pairs. The first reads the shared input: (T, d, G, H) and (T, 1, G, H).
    A second belongs to one model alone: (T, G, H, K) and (T, G, 1, K).
    """

    layers: tuple[tuple[Tensor, Tensor], ...]

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits (T, G, n, K) of inputs (T, n, d), scaled as in training."""
        (weight, bias), *rest = self.layers
        t, _, g, h = weight.shape
        # One product for all objectives, and the passes over its large result kept few.
        z = torch.baddbmm(bias.flatten(2), x, weight.flatten(2))
        if not rest:
            return z.reshape(t, -1, g, h).transpose(1, 2)
        # Rectified after the copy: before it, the gradient would come in another layout than the values.
        hidden = z.reshape(t, -1, g, h).transpose(1, 2).reshape(t * g, -1, h).relu_()
        ((weight, bias),) = rest
        z = torch.baddbmm(bias.flatten(0, 1), hidden, weight.flatten(0, 1))
        return z.reshape(t, g, *z.shape[1:])


def train(
    x: Tensor,
    y: Tensor,
    trials: Sequence[Trial],
    objectives: Sequence[Objective],
    n_classes: int,
    model: str,
    recipe: Recipe,
) -> Models:
    """Train a model for every trial and objective by stochastic gradient descent.

    Args:
        x: Inputs (n, d), floating point.
        y: Labels (n,), integers below ``n_classes``.
        trials: Of equal numbers of rows.
        objectives: What is minimised; objectives of one trial share order and initial weights.
        n_classes: K.
        model: "linear" in the input, or "mlp" with one hidden layer of rectified units.
        recipe: How to train.
    """
    streams = [torch.Generator().manual_seed(trial.seed) for trial in trials]
    sizes = [x.shape[1], n_classes] if model == "linear" else [x.shape[1], recipe.hidden, n_classes]
    models = Models(_initial_layers(sizes, len(objectives), streams, x.dtype))
    parameters = [p.requires_grad_() for layer in models.layers for p in layer]
    velocities = [torch.zeros_like(p) for p in parameters]
    center = torch.stack([trial.center for trial in trials]).unsqueeze(1)
    scale = torch.stack([trial.scale for trial in trials]).unsqueeze(1)
    criterion = _Criterion(objectives, x.dtype)
    for _ in range(recipe.epochs):
        order = torch.stack([_shuffled(t.rows, s) for t, s in zip(trials, streams, strict=True)])
        for batch in torch.split(order, recipe.batch_size, dim=1):
            inputs = (x[batch] - center) / scale
            grads = torch.autograd.grad(criterion(models.logits(inputs), y[batch]), parameters)
            with torch.no_grad():
                for p, v, grad in zip(parameters, velocities, grads, strict=True):
                    v.mul_(recipe.momentum).add_(grad)
                    if recipe.weight_decay:
                        v.add_(p, alpha=recipe.weight_decay)
                    p.sub_(v, alpha=recipe.lr)
    for p in parameters:
        p.requires_grad_(False)
    return models


class _Criterion:
    """The sum over models of each one's mean loss, so that no model's gradient depends on another."""

    def __init__(self, objectives: Sequence[Any], dtype: torch.dtype) -> None:
        self.objectives = objectives
        gammas = [gamma_of(objective) for objective in objectives]
        self.gamma: Tensor | None = None
        if None not in gammas:  # one call for all
            self.gamma = torch.tensor(gammas, dtype=dtype).reshape(1, -1, 1)

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        t, g, n, k = logits.shape
        if self.gamma is not None:
            gamma = self.gamma.expand(t, g, n).reshape(-1)
            targets = labels.unsqueeze(1).expand(t, g, n).reshape(-1)
            return focal_loss(logits.reshape(-1, k), targets, gamma, reduction="sum") / n
        losses = [
            objective.loss(logits[:, i].reshape(-1, k), labels.reshape(-1)).sum()
            for i, objective in enumerate(self.objectives)
        ]
        return torch.stack(losses).sum() / n


def gamma_of(objective: Objective) -> float | None:
    """Return gamma of a plain focal loss, None for anything else."""
    if isinstance(objective, Focal) and isinstance(objective.gamma, float):
        return objective.gamma if objective == Focal(objective.gamma) else None
    return None


def _shuffled(rows: Tensor, stream: torch.Generator) -> Tensor:
    return rows[torch.randperm(len(rows), generator=stream)]


def _initial_layers(
    sizes: Sequence[int], n_objectives: int, streams: Sequence[torch.Generator], dtype: torch.dtype
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return weights and biases uniform in +-1/sqrt(inputs), as `nn.Linear` has them."""
    layers = []
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        bound = 1 / math.sqrt(fan_in)
        drawn = [
            (torch.rand(fan_in, fan_out, generator=s) * 2 - 1, torch.rand(1, fan_out, generator=s) * 2 - 1)
            for s in streams
        ]
        weight = torch.stack([w for w, _ in drawn]).to(dtype) * bound
        bias = torch.stack([b for _, b in drawn]).to(dtype) * bound
        # Objectives share the input of the first layer and have their own of the second.
        copies = (-1, -1, n_objectives, -1) if i == 0 else (-1, n_objectives, -1, -1)
        weight = weight.unsqueeze(2 if i == 0 else 1).expand(copies).clone()
        bias = bias.unsqueeze(2 if i == 0 else 1).expand(copies).clone()
        layers.append((weight, bias))
    return tuple(layers)
