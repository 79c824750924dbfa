"""Log loss, focal loss and reweighting on imbalanced tables: which probabilities are true?

REFOCAL_DATA=folder python benchmarks/compare_boosting.py    # all data sets, results/boosting/
python benchmarks/compare_boosting.py --quick --out folder   # made data only, few rows and rounds

Each method is fitted on 60 % of the rows, with default options of its engine, 100 rounds at learning rate
0.1 and depth 4, and measured on the other 40 %. Intervals are the middle 95 % of 100 bootstraps of the test
rows.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import xgboost
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import train_test_split

import refocal
from refocal.boosting import FocalLGBMClassifier, FocalXGBClassifier

OPTIONS = {"n_estimators": 100, "learning_rate": 0.1, "max_depth": 4, "n_jobs": 1}
GAMMA = 2.0
POSITIVE: dict[str, Callable[[Any], Any]] = {
    "adult": lambda y: y == 1,
    "w8a": lambda y: y == 1,
    "letter, A": lambda y: y == 0,
    "satimage, damp grey soil": lambda y: y == 3,
}
"""What counts as y = 1 in each file; the name of the file ends at the comma."""

METRICS: dict[str, Callable[[Any, Any], float]] = {
    "log loss": lambda y, p: refocal.nll(np.stack([1 - p, p], axis=1), y),
    "Brier": lambda y, p: float(np.mean((p - y) ** 2)),
    "ECE": lambda y, p: positive_ece(y, p),
    "AUC": roc_auc_score,
    "AP": average_precision_score,
}


def positive_ece(y: Any, p: Any, n_bins: int = 15) -> float:
    """Return the calibration error of P(y = 1) in bins with as many rows each: most rows are near 0."""
    parts = np.array_split(np.argsort(p, kind="stable"), n_bins)
    return float(sum(abs(y[at].mean() - p[at].mean()) * len(at) for at in parts) / len(y))


def made(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return made data with 1 % positives."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 20)).astype(np.float32)
    z = -6.35 + 1.2 * X[:, 0] + 0.8 * X[:, 1] * X[:, 2] + 0.7 * np.abs(X[:, 3]) + 0.5 * X[:, 4]
    return X, (rng.random(n) < 1 / (1 + np.exp(-z))).astype(np.int64)


def tables(folder: str | None, quick: bool) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Return the data sets in turn."""
    yield "made, 1 %", *made(20_000 if quick else 100_000)
    for name, is_positive in POSITIVE.items() if folder and not quick else ():
        with np.load(Path(folder) / f"{name.split(',')[0]}.npz") as data:
            yield name, data["X"], is_positive(data["y"]).astype(np.int64)


def methods(X: Any, y: Any, unseen: Any, options: dict[str, Any]) -> Iterator[tuple[str, str, np.ndarray]]:
    """Return engine, method and P(y = 1) of the test rows, in turn."""
    ratio = float((y == 0).sum() / (y == 1).sum())
    quiet = options | {"verbosity": -1}
    for engine, own, focal in (
        ("XGBoost", lambda **more: xgboost.XGBClassifier(**options, **more), FocalXGBClassifier),
        ("LightGBM", lambda **more: lightgbm.LGBMClassifier(**quiet, **more), FocalLGBMClassifier),
    ):
        yield engine, "log loss", own().fit(X, y).predict_proba(unseen)[:, 1].astype(np.float64)
        weighted = own(scale_pos_weight=ratio).fit(X, y)
        yield engine, "scale_pos_weight", weighted.predict_proba(unseen)[:, 1].astype(np.float64)
        model = focal(gamma=GAMMA, **options).fit(X, y)
        yield engine, "focal, raw", model.predict_raw_proba(unseen)[:, 1]
        yield engine, "focal, Psi", model.predict_proba(unseen)[:, 1]
        model = focal(gamma=GAMMA, class_weight="balanced", **options).fit(X, y)
        yield engine, "focal balanced, Psi", model.predict_proba(unseen)[:, 1]


def measured(y: np.ndarray, p: np.ndarray, n_resamples: int) -> dict[str, float]:
    """Return each metric, and the ends of its interval."""
    rng = np.random.default_rng(0)
    draws = [rng.integers(len(y), size=len(y)) for _ in range(n_resamples)]
    draws = [at for at in draws if 0 < y[at].sum() < len(y)]
    found = {}
    for name, metric in METRICS.items():
        low, high = np.quantile([metric(y[at], p[at]) for at in draws], [0.025, 0.975])
        found |= {name: metric(y, p), f"{name} low": float(low), f"{name} high": float(high)}
    return found


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table of all results."""
    head = ["data", "positive", "engine", "method", *METRICS]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [row["data"], f"{row['positive']:.2%}", row["engine"], row["method"]]
        cells += [f"{row[m]:.4f} ({row[m + ' low']:.4f}, {row[m + ' high']:.4f})" for m in METRICS]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "boosting")
    args = parser.parse_args()
    options = OPTIONS | ({"n_estimators": 10} if args.quick else {})
    rows = []
    for name, X, y in tables(os.environ.get("REFOCAL_DATA"), args.quick):
        X, unseen, y, labels = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)
        for engine, method, p in methods(X, y, unseen, options):
            row = {"data": name, "positive": labels.mean(), "engine": engine, "method": method}
            rows.append(row | measured(labels, p, 20 if args.quick else 100))
            print(name, engine, method, *(f"{m} {rows[-1][m]:.4f}" for m in METRICS), flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "comparison.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (args.out / "comparison.md").write_text(as_markdown(rows))


if __name__ == "__main__":
    main()
