"""Time of a temperature fit, beside other libraries, as ratios to PyTorch's softmax, and its NLL.

python benchmarks/bench_temperature.py            # 50,000 x 100, float32
python benchmarks/bench_temperature.py --quick    # a hundredth of the rows, to see that it runs

`make bench` installs the peers; one that cannot be imported is left out and named.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special
import torch
from measure import best_of_each, installed, write_results

import refocal

SHAPES = [(50_000, 100)]
TEMPERATURES = [2.0, 0.05, 50.0]
"""True ones; times are measured for the first. The others show what a fit far from 1 is worth."""

Fit = Callable[[], float]


def made(shape: tuple[int, int], temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Return logits whose probabilities are true after division by the temperature, and labels."""
    rng = np.random.default_rng(0)
    z = 3 * rng.standard_normal(shape, dtype=np.float32)
    labels = (z + rng.gumbel(size=shape)).argmax(axis=1)  # a draw from softmax(z)
    return np.float32(temperature) * z, labels


def peers(z: np.ndarray, y: np.ndarray) -> dict[str, Fit]:
    """Return, for each library that can be imported, a call that fits and returns T."""
    logits, labels = torch.from_numpy(z), torch.from_numpy(y)

    def guo() -> Fit:
        def fit() -> float:  # as in the code of Guo et al.: LBFGS on T itself, from 1.5
            temperature = torch.nn.Parameter(torch.ones(1) * 1.5)
            optimizer = torch.optim.LBFGS([temperature], lr=0.01, max_iter=50)

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(logits / temperature, labels)
                loss.backward()
                return loss

            optimizer.step(closure)
            return temperature.item()

        return fit

    def sklearn() -> Fit:
        # The part of CalibratedClassifierCV(method="temperature") that fits, without its cross-validation.
        from sklearn.calibration import _TemperatureScaling

        return lambda: float(1 / _TemperatureScaling().fit(z, y).beta_)

    def probmetrics() -> Fit:
        from probmetrics.calibrators.temperature_scaling import TemperatureScalingCalibrator
        from probmetrics.distributions import CategoricalLogits

        def fit() -> float:
            model = TemperatureScalingCalibrator()
            model.fit_torch(CategoricalLogits(logits), labels)
            return float(1 / model.invtemp_)

        return fit

    def netcal() -> Fit:
        from netcal.scaling import TemperatureScaling

        probs = torch.softmax(logits.double(), -1).numpy()  # it takes no logits; in float32 it gives T = 1

        def fit() -> float:
            model = TemperatureScaling()
            model.fit(probs, y)
            return float(1 / np.asarray(model.temperature).reshape(-1)[0])

        return fit

    return installed({make.__name__: make for make in (guo, sklearn, probmetrics, netcal)})


def nll(z: np.ndarray, y: np.ndarray, temperature: float) -> float:
    """Return the mean NLL at T, in float64."""
    return float(
        -scipy.special.log_softmax(z.astype(np.float64) / temperature, axis=1)[np.arange(len(y)), y].mean()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # of what the other libraries import
    rows = []
    for n, k in SHAPES:
        shape = (n // 100 if args.quick else n, k)
        for temperature in TEMPERATURES:
            z, y = made(shape, temperature)
            rows += measure(z, y, temperature, args.repeats if temperature == TEMPERATURES[0] else 1)
    if not args.quick:
        write_results("temperature", rows)


def measure(z: np.ndarray, y: np.ndarray, temperature: float, repeats: int) -> list[dict[str, Any]]:
    """Return a row for every fit: its time, its T, and its NLL above the smallest one of all."""
    logits, labels = torch.from_numpy(z), torch.from_numpy(y)
    own: dict[str, Any] = {
        "torch softmax": lambda: torch.softmax(logits, -1),
        "refocal, numpy": lambda: refocal.TemperatureScaling().fit(z, y).temperature_,
        "refocal, torch": lambda: refocal.TemperatureScaling().fit(logits, labels).temperature_,
        "refocal, focal loss": lambda: refocal.TemperatureScaling("focal", gamma=2.0).fit(z, y).temperature_,
    }
    others = peers(z, y)
    seconds = best_of_each(own, repeats) | best_of_each(others, max(1, repeats // 5))
    fits = {
        name: call()
        for name, call in (own | others).items()
        if name not in ("torch softmax", "refocal, focal loss")
    }
    losses = {name: nll(z, y, t) if t > 0 else float("inf") for name, t in fits.items()}
    rows = []
    for name, value in seconds.items():
        row = {
            "shape": f"{z.shape[0]} x {z.shape[1]}",
            "true T": temperature,
            "what": name,
            "ms": round(1e3 * value, 2),
            "x softmax": round(value / seconds["torch softmax"], 2),
        }
        if name in fits:
            row |= {"T": round(fits[name], 5), "NLL above the best": losses[name] - min(losses.values())}
        rows.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return rows


if __name__ == "__main__":
    main()
