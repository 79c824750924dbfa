"""The batched trainer against PyTorch's own modules and optimiser, and against itself alone."""

import numpy as np
import pytest
import torch
from torch import nn

from refocal import Focal, Poly1Focal
from refocal.experiments.tabular import Recipe
from refocal.experiments.tabular.batched import Models, Trial, train
from refocal.torch import FocalLoss, cpu

N, D, K = 70, 5, 3
RECIPE = Recipe(hidden=7, epochs=3, batch_size=16, weight_decay=1e-3)
OBJECTIVES = [Focal(0.0), Focal(0.5), Focal(2.0), Focal(5.0)]


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.standard_normal((N, D)) * [1, 2, 3, 4, 5] + 1)
    y = torch.tensor(rng.integers(K, size=N))
    return x, y


def make_trials(x, count):
    trials = []
    for t in range(count):
        rows = torch.randperm(N, generator=torch.Generator().manual_seed(t))[:50]
        trials.append(Trial(rows, x[rows].mean(0), x[rows].std(0), seed=100 + t))
    return trials


def only(models, t, g):
    return Models(tuple((w[g : g + 1, t : t + 1], b[g : g + 1, t : t + 1]) for w, b in models.layers))


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_model_alone_is_the_same_as_in_a_batch_of_40(problem, model):
    x, y = problem
    trials = make_trials(x, 10)
    together = train(x, y, trials, OBJECTIVES, K, model, RECIPE)
    for t, g in ((0, 0), (3, 2), (9, 3)):
        alone = train(x, y, [trials[t]], [OBJECTIVES[g]], K, model, RECIPE)
        for got, expected in zip(only(together, t, g).layers, alone.layers, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_equals_pytorch_with_the_same_start_and_order(problem, model, gamma):
    x, y = problem
    (trial,) = make_trials(x, 1)
    # No epoch at all gives the initial weights; the stream then goes on with the orders.
    start = train(x, y, [trial], [Focal(gamma)], K, model, Recipe(hidden=7, epochs=0))
    weights = [(w[0, 0], b[0, 0, 0]) for w, b in start.layers]
    net = nn.Sequential()
    for i, (w, b) in enumerate(weights):
        linear = nn.Linear(*w.shape, dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(w.T)
            linear.bias.copy_(b)
        net.extend([linear] if i == len(weights) - 1 else [linear, nn.ReLU()])
    stream = torch.Generator().manual_seed(trial.seed)
    for w, b in weights:  # as many draws as the weights took
        torch.rand(*w.shape, generator=stream)
        torch.rand(1, len(b), generator=stream)
    optimizer = torch.optim.SGD(
        net.parameters(), RECIPE.lr, RECIPE.momentum, weight_decay=RECIPE.weight_decay
    )
    criterion = FocalLoss(gamma)
    inputs = (x - trial.center) / trial.scale
    for _ in range(RECIPE.epochs):
        order = trial.rows[torch.randperm(len(trial.rows), generator=stream)]
        for batch in order.split(RECIPE.batch_size):
            optimizer.zero_grad()
            criterion(net(inputs[batch]), y[batch]).backward()
            optimizer.step()
    trained = train(x, y, [trial], [Focal(gamma)], K, model, RECIPE)
    torch.testing.assert_close(
        trained.logits(inputs.unsqueeze(0))[0, 0], net(inputs).detach(), rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("compiled", [True, False])
def test_single_precision_is_close_to_double(problem, model, compiled, monkeypatch):
    x, y = problem
    trials = make_trials(x, 2)
    exact = train(x, y, trials, OBJECTIVES, K, model, RECIPE)
    if not compiled:
        monkeypatch.setattr(cpu, "_kernels", {})
    trials = [Trial(t.rows, t.center.float(), t.scale.float(), t.seed) for t in trials]
    close = train(x.float(), y.int(), trials, OBJECTIVES, K, model, RECIPE)  # labels of any integer type
    torch.testing.assert_close(close.layers, exact.layers, rtol=1e-4, atol=1e-5, check_dtype=False)
    close = train(x.float(), y, trials, OBJECTIVES, K, model, RECIPE)
    torch.testing.assert_close(close.layers, exact.layers, rtol=1e-4, atol=1e-5, check_dtype=False)


def test_any_objective_can_be_trained(problem):
    x, y = problem
    trials = make_trials(x, 2)
    mixed = train(x, y, trials, [Focal(2.0), Poly1Focal(2.0, 1.0)], K, "linear", RECIPE)
    plain = train(x, y, trials, [Focal(2.0)], K, "linear", RECIPE)
    torch.testing.assert_close(only(mixed, 1, 0).layers, only(plain, 1, 0).layers, rtol=1e-9, atol=1e-11)
    difference = only(mixed, 1, 1).layers[0][0] - only(plain, 1, 0).layers[0][0]
    assert difference.abs().max() > 1e-3


def test_training_lowers_the_loss(problem):
    x, _ = problem
    y = (x[:, 0] > 1).long()
    (trial,) = make_trials(x, 1)
    models = train(x, y, [trial], [Focal(2.0)], 2, "mlp", Recipe(epochs=200))
    logits = models.logits(((x - trial.center) / trial.scale).unsqueeze(0))[0, 0]
    assert (logits.argmax(1) == y)[trial.rows].double().mean() > 0.95
