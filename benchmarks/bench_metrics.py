"""Time of the expected calibration error, beside other libraries, as ratios to PyTorch's softmax.

python benchmarks/bench_metrics.py            # 1,000,000 x 10 and 50,000 x 1000, float32
python benchmarks/bench_metrics.py --quick    # a hundredth of the rows, to see that it runs

`make bench` installs the peers; one that cannot be imported is left out and named.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import torch
from measure import best_of_each, installed, write_results

import refocal

SHAPES = [(1_000_000, 10), (50_000, 1000)]
N_BINS = 15


def made(shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax scores and labels drawn from them."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.softmax(3 * torch.randn(shape, generator=generator), dim=-1)
    labels = torch.cat(
        [torch.multinomial(part, 1, generator=generator)[:, 0] for part in probs.split(10_000)]
    )
    return probs, labels


def peers(probs: torch.Tensor, labels: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Return a call of each library that can be imported."""
    p, y, k = probs.numpy(), labels.numpy(), probs.shape[1]

    def torchmetrics() -> Callable[[], Any]:
        from torchmetrics.functional.classification import multiclass_calibration_error

        return lambda: multiclass_calibration_error(probs, labels, k, N_BINS)

    def netcal() -> Callable[[], Any]:
        from netcal.metrics import ECE

        return lambda: ECE(N_BINS).measure(p, y)

    def sklearn() -> Callable[[], Any]:
        from sklearn.calibration import calibration_curve

        # It has no multiclass form: the largest class and its hits have to be found before.
        return lambda: calibration_curve(p.argmax(axis=1) == y, p.max(axis=1), n_bins=N_BINS)

    def probmetrics() -> Callable[[], Any]:
        from probmetrics.metrics import Metrics

        metric = Metrics.from_names([f"ece-{N_BINS}"])
        return lambda: metric.compute_all_from_labels_probs(labels, probs)

    def uncertainty_calibration() -> Callable[[], Any]:
        import calibration

        return lambda: calibration.get_ece(p, y, num_bins=N_BINS)

    makers = (torchmetrics, netcal, sklearn, probmetrics, uncertainty_calibration)
    return installed({make.__name__.replace("_", "-"): make for make in makers})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # of what the other libraries import
    rows = []
    for n, k in SHAPES:
        shape = (n // 100 if args.quick else n, k)
        probs, labels = made(shape)
        p, y = probs.numpy(), labels.numpy()
        others = peers(probs, labels)
        seconds = best_of_each(
            {
                "torch softmax": lambda probs=probs: torch.softmax(probs, -1),
                "refocal, torch": lambda probs=probs, labels=labels: refocal.ece(probs, labels, N_BINS),
                "refocal, numpy": lambda p=p, y=y: refocal.ece(p, y, N_BINS),
                "refocal classwise": lambda p=p, y=y: refocal.classwise_ece(p, y, N_BINS),
                **others,
            },
            args.repeats,
        )
        values = {name: _number(call()) for name, call in others.items() if name != "sklearn"}
        values["refocal, torch"] = refocal.ece(probs, labels, N_BINS)
        for name, value in seconds.items():
            row = {
                "shape": f"{shape[0]} x {k}",
                "what": name,
                "ms": round(1e3 * value, 2),
                "x softmax": round(value / seconds["torch softmax"], 2),
            }
            if name in values:
                row["ece"] = round(values[name], 7)
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if not args.quick:
        write_results("metrics", rows)


def _number(result: Any) -> float:
    return float(next(iter(result.values())) if isinstance(result, dict) else result)


if __name__ == "__main__":
    main()
