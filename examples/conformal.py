"""Prediction sets from raw and from corrected scores: what correction does to their size and coverage.

A conformal set holds the classes whose score is not too unusual, by a cut that held-out rows set. It covers
the truth with the probability that was asked for whatever the scores are, so raw focal scores are allowed.
What correction can change is the size of the sets, and who gets the coverage: the rows that are easy or
those that are hard. Two ways are compared, each ten lines:

- threshold sets (Sadinle et al., 2019): all classes with a probability of at least the cut; the smallest
  sets on average where the probabilities are true;
- adaptive sets (Romano et al., 2020): the likeliest classes until their sum passes the cut; made so that
  hard rows are covered as often as easy ones, where the probabilities are true.

The network is trained on a mixture of Gaussians, so that the truth is known too.

Run: python examples/conformal.py [--small] [--out FOLDER]
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

import refocal
from refocal.plots import figure_bytes, new_figure
from refocal.torch import FocalLoss

COVERAGE = 0.9
N_CLASSES = 10
GAMMA = 3.0


def draw_rows(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return points (n, 2) of ten Gaussians of different widths, their labels and their true posterior."""
    angle = 2 * np.pi * np.arange(N_CLASSES) / N_CLASSES
    radius = np.where(np.arange(N_CLASSES) % 2, 1.0, 2.0)
    centres = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    widths = np.linspace(0.25, 0.8, N_CLASSES)
    labels = rng.integers(N_CLASSES, size=n)
    points = centres[labels] + widths[labels, None] * rng.normal(size=(n, 2))
    squared = ((points[:, None] - centres) ** 2).sum(-1)
    density = np.exp(-squared / (2 * widths**2)) / widths**2
    return points, labels, density / density.sum(axis=1, keepdims=True)


def train(points: np.ndarray, labels: np.ndarray, n_steps: int) -> nn.Module:
    """Train a small network with the focal loss."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, N_CLASSES))
    x, y = torch.tensor(points, dtype=torch.float32), torch.tensor(labels)
    criterion = FocalLoss(gamma=GAMMA)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=n_steps)
    for _ in range(n_steps):
        rows = torch.randint(len(x), (256,))
        optimizer.zero_grad()
        criterion(net(x[rows]), y[rows]).backward()
        optimizer.step()
        schedule.step()
    return net


def threshold_scores(probs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return how unusual each class would be: 1 - p."""
    return 1 - probs


def adaptive_scores(probs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return how unusual each class would be: the sum of all likelier ones, and a random part of its own."""
    order = np.argsort(-probs, axis=1)
    ranked = np.take_along_axis(probs, order, axis=1)
    before = np.cumsum(ranked, axis=1) - ranked * rng.random((len(probs), 1))
    scores = np.empty_like(probs)
    np.put_along_axis(scores, order, before, axis=1)
    return scores


def conformal_sets(held_out: np.ndarray, labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return which classes are in the set of each row: those at or below the quantile of held-out truths."""
    of_truth = np.sort(held_out[np.arange(len(labels)), labels])
    rank = int(np.ceil((len(labels) + 1) * COVERAGE))
    cut = of_truth[rank - 1] if rank <= len(labels) else np.inf
    return scores <= cut


def main(small: bool = False, out: str | Path = "out/examples") -> None:
    """Train, build sets, measure and draw."""
    n_train, n_steps, n_rows, n_splits = (2000, 300, 4000, 3) if small else (10000, 1500, 20000, 20)
    rng = np.random.default_rng(0)
    points, labels, _ = draw_rows(n_train, rng)
    net = train(points, labels, n_steps)
    points, labels, truth = draw_rows(n_rows, rng)
    with torch.no_grad():
        logits = net(torch.tensor(points, dtype=torch.float32)).double().numpy()
    spec = refocal.Focal(GAMMA)
    hard = truth.max(axis=1) < 0.6  # known here, as the mixture is
    ways = {"threshold": threshold_scores, "adaptive": adaptive_scores}
    # The temperature has its own rows; the others are split again and again, so that luck shows.
    fit, rest = np.split(rng.permutation(n_rows), [n_rows // 5])
    splits = [np.array_split(rng.permutation(rest), 2) for _ in range(n_splits)]
    temperature = refocal.TemperatureScaling(objective="nll").fit(logits[fit], labels[fit])
    probs_of = {
        "raw": refocal.Focal(0.0).posterior(logits),
        "temperature": temperature.predict_proba(logits),
        "psi": spec.posterior(logits),
        "truth": truth,
    }
    print(f"{n_rows} rows, {hard.mean():.0%} of them hard; asked for coverage {COVERAGE}")
    print("sets       scores       ECE    size            coverage  of easy rows  of hard rows")
    results = {}
    for way, scores_of in ways.items():
        for name, probs in probs_of.items():
            found = []
            for held_out, test in splits:
                scores = scores_of(probs, rng)
                sets = conformal_sets(scores[held_out], labels[held_out], scores[test])
                covered = sets[np.arange(len(test)), labels[test]]
                parts = (covered, covered[~hard[test]], covered[hard[test]])
                found.append([sets.sum(axis=1).mean(), *(part.mean() for part in parts)])
            results[way, name] = np.array(found)  # one row for each split: size, and three coverages
            size, coverage, easy, difficult = results[way, name].mean(axis=0)
            spread, ece = results[way, name][:, 0].std(), refocal.ece(probs[rest], labels[rest])
            print(
                f"{way:9}  {name:11}  {ece:.3f}  {size:.3f} +- {spread:.3f}  {coverage:.3f}     {easy:.3f}"
                f"         {difficult:.3f}"
            )

    figure = new_figure(9, 3.6)
    left, right = figure.subplots(1, 2)
    names, at = list(probs_of), np.arange(len(probs_of))
    for i, (way, color) in enumerate(zip(ways, ("#0072B2", "#E69F00"), strict=True)):
        shift, hatch = 0.4 * (i - 0.5), ("", "////")[i]
        mean = np.array([results[way, name].mean(axis=0) for name in names])
        spread = [results[way, name][:, 0].std() for name in names]
        look = {"color": color, "hatch": hatch, "edgecolor": "white", "label": way}
        left.bar(at + shift, mean[:, 0], 0.36, yerr=spread, **look)
        for column, part, marker in ((2, "easy", "o"), (3, "hard", "X")):
            right.plot(at + shift / 2, mean[:, column], marker, color=color, label=f"{way}, {part} rows")
    left.set(xticks=at, xticklabels=names, ylabel="classes in a set", title="mean size")
    right.axhline(COVERAGE, color="0.35", linestyle="--", linewidth=1)
    right.set(xticks=at, xticklabels=names, ylabel="share of rows covered", title="coverage")
    left.legend(fontsize=8, loc="lower right")
    right.legend(fontsize=8)
    Path(out).mkdir(parents=True, exist_ok=True)
    (Path(out) / "conformal.png").write_bytes(figure_bytes(figure, dpi=110))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a few seconds, for a test: numbers mean little")
    parser.add_argument("--out", default="out/examples", help="folder for the figure")
    arguments = parser.parse_args()
    main(arguments.small, arguments.out)
