"""How hard are the 5,000 images of this CIFAR-10-s to learn from, beside other draws of 5,000?

    python results/images/subset.py --data DATA
    python results/images/subset.py --data DATA --write 0 1 2

DATA needs cifar10-s.npz and the complete cifar10.npz (`refocal data fetch cifar10`). The second line writes
other draws as cifar10-draw-0.npz, ... to DATA, for networks: `refocal reproduce images --dataset
cifar10-draw-0`. The error of a network varies with its seed too. Ridge regression on fixed features has no
seed: whitened random patches as a convolution, both signs rectified, pooled to 2 x 2. Its error on the test
set is measured for the stored draw and for 30 others, 500 images of each class.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

Floats = np.ndarray[Any, np.dtype[np.float32]]

FILTERS, PATCH, PENALTY, DRAWS = 160, 6, 3000.0, 30


def filters(images: torch.Tensor) -> torch.Tensor:
    """Return whitened patches of images (n, 3, height, width), as the weights of a convolution."""
    patches = F.unfold(images, PATCH)[:, :, ::37].transpose(1, 2).reshape(-1, 3 * PATCH**2)
    patches = patches - patches.mean(1, keepdim=True)
    values, vectors = torch.linalg.eigh(torch.cov(patches.T))
    whitening = vectors @ torch.diag((values + 0.01 * values.mean()).rsqrt()) @ vectors.T
    chosen = patches[torch.randperm(len(patches))[:FILTERS]] @ whitening
    weights = F.normalize(chosen) @ whitening  # a patch of one colour is 0 and stays 0
    return weights.reshape(FILTERS, 3, PATCH, PATCH)


def features(images: np.ndarray[Any, Any], weights: torch.Tensor) -> Floats:
    """Return the pooled responses of uint8 images (n, height, width, 3)."""
    blocks = []
    for block in torch.split(torch.from_numpy(images), 50):
        response = F.conv2d(block.float().permute(0, 3, 1, 2), weights)
        both = torch.cat([F.relu(response - 0.5), F.relu(-response - 0.5)], 1)
        blocks.append(F.adaptive_avg_pool2d(both, 2).flatten(1))
    found: Floats = torch.cat(blocks).numpy()
    return found


def error(x: Floats, y: np.ndarray[Any, Any], x_test: Floats, y_test: np.ndarray[Any, Any]) -> float:
    """Return the test error of ridge regression, in percent."""
    mean, scale = x.mean(0), x.std(0) + 1e-3
    x, x_test = (x - mean) / scale, (x_test - mean) / scale
    gram = x.T @ x + PENALTY * np.eye(x.shape[1])
    weights = np.linalg.solve(gram, x.T @ (np.eye(10)[y] - 0.1))
    return 100 * float(((x_test @ weights).argmax(1) != y_test).mean())


def draw(labels: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """Return the rows of a draw, 500 of each class."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(np.flatnonzero(labels == k))[:500] for k in range(10)])


def main() -> None:
    """Measure, print, and write subset.json beside this file; or write draws to the folder of the data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="a folder with both .npz files")
    parser.add_argument("--write", type=int, nargs="+", metavar="SEED", help="write these draws, no more")
    args = parser.parse_args()
    folder = args.data
    torch.manual_seed(0)
    whole, part = np.load(folder / "cifar10.npz"), np.load(folder / "cifar10-s.npz")
    images, labels, stored = whole["X_train"], whole["y_train"].astype(int), part["train_index"]
    if not (images[stored] == part["X_train"]).all():
        raise ValueError("cifar10-s.npz must hold the images of cifar10.npz that its train_index says")
    if args.write is not None:
        test = {name: whole[name] for name in ("X_test", "y_test")}
        for seed in args.write:
            rows = draw(labels, seed)
            path = folder / f"cifar10-draw-{seed}.npz"
            np.savez_compressed(path, X_train=images[rows], y_train=labels[rows], train_index=rows, **test)
        return
    weights = filters(torch.from_numpy(images[:1000]).float().permute(0, 3, 1, 2))
    x, x_test = features(images, weights), features(whole["X_test"], weights)
    y_test = whole["y_test"].astype(int)
    here = error(x[stored], labels[stored], x_test, y_test)
    others = []
    for seed in range(DRAWS):
        rows = draw(labels, seed)
        others.append(error(x[rows], labels[rows], x_test, y_test))
    found = {
        "stored_draw": here,
        "other_draws": others,
        "mean": float(np.mean(others)),
        "sd": float(np.std(others, ddof=1)),
        "easier_draws": sum(other < here for other in others),
        "draws": DRAWS,
    }
    print({name: value for name, value in found.items() if name != "other_draws"})
    path = Path(__file__).with_name("subset.json")
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
