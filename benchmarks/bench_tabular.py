"""The batched trainer of the tabular study against a plain loop over PyTorch modules.

    REFOCAL_DATA=folder python benchmarks/bench_tabular.py [--epochs 50] [--plain-runs 4]

The plain loop trains one `nn.Sequential` after another with `torch.optim.SGD` and the loss written out. Both
use one thread, the same splits, scaling and recipe. Seconds are per model, the best of a few: a batch has 10
trials and 4 gammas.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from measure import write_results
from torch import nn

from refocal import Focal
from refocal.experiments.tabular import Experiment, Recipe
from refocal.experiments.tabular.batched import Models, train
from refocal.experiments.tabular.training import split

DATASETS = ("vehicle", "banknote", "pendigits")
GAMMAS = (0.0, 1.0, 2.0, 3.0)


def plain(x, y, trial, gamma: float, n_classes: int, model: str, recipe: Recipe) -> nn.Module:
    """Train one model as most scripts do."""
    d = x.shape[1]
    layers = [nn.Linear(d, recipe.hidden), nn.ReLU(), nn.Linear(recipe.hidden, n_classes)]
    net = nn.Sequential(*(layers if model == "mlp" else [nn.Linear(d, n_classes)]))
    optimizer = torch.optim.SGD(
        net.parameters(), recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay
    )
    inputs, labels = (x[trial.rows] - trial.center) / trial.scale, y[trial.rows]
    for _ in range(recipe.epochs):
        for batch in torch.randperm(len(labels)).split(recipe.batch_size):
            log_p = F.log_softmax(net(inputs[batch]), 1).gather(1, labels[batch, None])
            loss = (-((1 - log_p.exp()) ** gamma) * log_p).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--plain-runs", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for dataset in DATASETS:
        for model in ("linear", "mlp"):
            experiment, data = Experiment(dataset, model).load()
            recipe = Recipe(epochs=args.epochs)
            x, y = torch.from_numpy(data.X), torch.from_numpy(data.y)
            trials, tests = zip(*(split(experiment, x, t, None) for t in range(10)), strict=True)
            seconds = []
            for _ in range(3):  # the first one loads the kernels
                start = time.perf_counter()
                models = train(x, y, trials, [Focal(g) for g in GAMMAS], data.n_classes, model, recipe)
                seconds.append(time.perf_counter() - start)
            batched = min(seconds) / (len(trials) * len(GAMMAS))
            single, errors, their_errors = [], [], []
            for i in range(args.plain_runs):
                t, g = i % 10, i % len(GAMMAS)
                start = time.perf_counter()
                net = plain(x, y, trials[t], GAMMAS[g], data.n_classes, model, recipe)
                single.append(time.perf_counter() - start)
                inputs = (x[tests[t]] - trials[t].center) / trials[t].scale
                with torch.no_grad():
                    their_errors.append((net(inputs).argmax(1) != y[tests[t]]).double().mean())
                one = Models(tuple((w[:, t : t + 1], b[:, t : t + 1]) for w, b in models.layers))
                ours = one.logits(inputs.unsqueeze(0))[0, g]
                errors.append((ours.argmax(1) != y[tests[t]]).double().mean())
            row = {
                "dataset": dataset,
                "model": model,
                "plain s per model": round(min(single), 3),
                "batched s per model": round(batched, 4),
                "ratio": round(min(single) / batched, 1),
                "plain error %": round(100 * float(np.mean(their_errors)), 2),
                "batched error %": round(100 * float(np.mean(errors)), 2),
            }
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    write_results("tabular", rows)


if __name__ == "__main__":
    main()
