"""Many small models trained at once: the trials and objectives of one data set as one batched model.

A trial has its own order of samples and initial weights, from its own random stream, and shares them
between its objectives. So the result of a model does not depend on what it is batched with, up to rounding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from refocal.experiments.tabular.study import Recipe
from refocal.objectives import Objective, losses_of
from refocal.torch import focal_gradient

Layers = tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True)
class Trial:
    """The training part of one trial: rows of X, how to scale them, and the seed of order and weights."""

    rows: Tensor
    center: Tensor
    scale: Tensor
    seed: int


@dataclass(frozen=True)
class Models:
    """The trained weights of every objective and trial.

    ``layers`` holds (weight, bias) pairs of shapes (G, T, inputs, outputs) and (G, T, 1, outputs).
    """

    layers: Layers

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits (T, G, n, K) of inputs (T, n, d), scaled as in training."""
        return _outputs(self.layers, x)[-1].transpose(0, 1)


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
    # All weights in one vector, and all gradients in another, so that a step takes few calls.
    layers = _initial_layers(sizes, len(objectives), streams, x.dtype)
    weights = torch.cat([part.flatten() for layer in layers for part in layer])
    gradient, velocity = torch.empty_like(weights), torch.zeros_like(weights)
    layers, gradients = _like(layers, weights), _like(layers, gradient)
    center = torch.stack([trial.center for trial in trials]).unsqueeze(1)
    scale = torch.stack([trial.scale for trial in trials]).unsqueeze(1)
    slopes = _Slopes(objectives)
    for _ in range(recipe.epochs):
        order = torch.stack([_shuffled(t.rows, s) for t, s in zip(trials, streams, strict=True)])
        for batch in torch.split(order, recipe.batch_size, dim=1):
            rows = batch.reshape(-1)
            inputs = x.index_select(0, rows).view(*batch.shape, -1).sub_(center).div_(scale)
            outputs = _outputs(layers, inputs)
            _backward(layers, inputs, outputs, slopes(outputs[-1], y.index_select(0, rows)), gradients)
            velocity.mul_(recipe.momentum).add_(gradient)
            if recipe.weight_decay:
                velocity.add_(weights, alpha=recipe.weight_decay)
            weights.sub_(velocity, alpha=recipe.lr)
    return Models(layers)


def _outputs(layers: Layers, x: Tensor) -> list[Tensor]:
    """Return what each layer gives (G, T, n, outputs) for inputs (T, n, d): rectified, but for the last."""
    (weight, bias), *rest = layers
    z = x.new_empty(*weight.shape[:2], x.shape[1], weight.shape[3])
    for g in range(len(z)):  # objectives share the input, which need not be copied for each
        torch.baddbmm(bias[g], x, weight[g], out=z[g])
    outputs = [z]
    for weight, bias in rest:
        z = torch.baddbmm(_models(bias), _models(outputs[-1].relu_()), _models(weight))
        outputs.append(z.view(*weight.shape[:2], *z.shape[1:]))
    return outputs


def _backward(layers: Layers, x: Tensor, outputs: list[Tensor], slopes: Tensor, gradients: Layers) -> None:
    """Write the gradients, given the slopes of the loss in the last outputs; autograd would be slower."""
    for i in reversed(range(1, len(layers))):
        hidden, (weight, bias) = outputs[i - 1], gradients[i]
        torch.sum(slopes, 2, keepdim=True, out=bias)
        torch.bmm(_models(hidden).mT, _models(slopes), out=_models(weight))
        slopes = torch.bmm(_models(slopes), _models(layers[i][0]).mT).view_as(hidden)
        slopes = torch.ops.aten.threshold_backward(slopes, hidden, 0)  # of rectified units
    weight, bias = gradients[0]
    torch.sum(slopes, 2, keepdim=True, out=bias)
    for g in range(len(slopes)):
        torch.bmm(x.mT, slopes[g], out=weight[g])


def _models(x: Tensor) -> Tensor:
    """Return (G, T, ...) as (G T, ...), for the batched products."""
    return x.flatten(0, 1)


class _Slopes:
    """The gradient in the logits of the sum over models of each one's mean loss."""

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self.objectives = objectives
        gammas = [objective.plain_gamma for objective in objectives]
        # Plain focal losses take one call for all.
        self.gamma = None if None in gammas else torch.tensor(gammas, dtype=torch.float64).reshape(-1, 1)

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the slopes of logits (G, T, n, K) for labels (T n,)."""
        g, _, n, k = logits.shape
        if self.gamma is not None:
            z, targets = logits.view(-1, k), labels.expand(g, -1).reshape(-1)
            gamma = self.gamma.expand(g, len(labels)).reshape(-1)
            return focal_gradient(z, targets, gamma).view_as(logits).div_(n)
        z = logits.view(g, -1, k).requires_grad_()
        losses = [losses_of(objective, z[i], labels).sum() for i, objective in enumerate(self.objectives)]
        (slopes,) = torch.autograd.grad(torch.stack(losses).sum(), z)
        return slopes.view_as(logits).div_(n)


def _shuffled(rows: Tensor, stream: torch.Generator) -> Tensor:
    return rows[torch.randperm(len(rows), generator=stream)]


def _initial_layers(
    sizes: Sequence[int], n_objectives: int, streams: Sequence[torch.Generator], dtype: torch.dtype
) -> Layers:
    """Return weights and biases uniform in +-1/sqrt(inputs), as `nn.Linear` has them."""
    layers = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        bound = 1 / math.sqrt(fan_in)
        drawn = [
            (torch.rand(fan_in, fan_out, generator=s) * 2 - 1, torch.rand(1, fan_out, generator=s) * 2 - 1)
            for s in streams
        ]
        weight, bias = (torch.stack(parts).to(dtype) * bound for parts in zip(*drawn, strict=True))
        layers.append((weight.expand(n_objectives, -1, -1, -1), bias.expand(n_objectives, -1, -1, -1)))
    return tuple(layers)


def _like(layers: Layers, vector: Tensor) -> Layers:
    """Return the entries of a vector in the shapes of layers."""
    parts = iter(torch.split(vector, [part.numel() for layer in layers for part in layer]))
    return tuple((next(parts).view(weight.shape), next(parts).view(bias.shape)) for weight, bias in layers)
