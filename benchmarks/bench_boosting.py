"""Time of a fit with the focal loss, as ratios to the engines' own log loss in the same run.

python benchmarks/bench_boosting.py              # 200,000 x 20, 100 rounds, 1 thread: about five minutes
python benchmarks/bench_boosting.py --threads 2  # of the engines; gradients take one
python benchmarks/bench_boosting.py --quick      # 4,000 rows, 5 rounds, to see that it runs

Needs `pip install -e '.[dev]'`. "NumPy" is the same objective without machine code; "bokbokbok's way" is a
focal objective in the style of that library: NumPy, float64, second derivatives of the loss itself. "no
shift" leaves the base rate as the trees give it. These three are run once; the others take turns, and the
best time of each counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import lightgbm
import numpy as np
import xgboost
from measure import best_of_each, write_results
from sklearn.linear_model import LogisticRegression

from refocal.boosting import FocalLGBMClassifier, FocalXGBClassifier, objective
from refocal.sklearn import FocalLinearClassifier
from refocal.sklearn._gradients import in_numpy, kernels

Calls = dict[str, Callable[[], object]]


def made(n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return 20 features, labels and their posterior, of k classes; the first of two has 6.7 %."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 20)).astype(np.float32)
    z = X[:, :k] + X[:, 5 : 5 + k] * X[:, 10:11]
    z[:, 0] -= 3.97 if k == 2 else 0
    posterior = np.exp(z, dtype=np.float64)
    posterior /= posterior.sum(axis=1, keepdims=True)
    return X, (z + rng.gumbel(size=z.shape)).argmax(axis=1), posterior


def bokbokbok_way(scores: np.ndarray, data: Any, gamma: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Return gradient and second derivative of a binary focal loss in plain NumPy."""
    y = data.get_label()
    p = 1 / (1 + np.exp(-scores.astype(np.float64)))
    p = np.clip(p, 1e-15, 1 - 1e-15)
    t = np.where(y == 1, p, 1 - p)
    sign = 2 * y - 1
    first = (1 - t) ** gamma * (gamma * t * np.log(t) + t - 1)
    inner = gamma * t * np.log(t) + t - 1
    slope = -gamma * (1 - t) ** (gamma - 1) * inner + (1 - t) ** gamma * (gamma * np.log(t) + gamma + 1)
    return sign * first, slope * t * (1 - t)


def in_plain_numpy(call: Callable[[], object]) -> Callable[[], object]:
    """Return a call that computes its gradients without machine code."""

    def plain() -> None:
        objective.kernels = lambda: in_numpy  # type: ignore[attr-defined]
        try:
            call()
        finally:
            objective.kernels = kernels  # type: ignore[attr-defined]

    return plain


def boosting_calls(X: np.ndarray, y: np.ndarray, rounds: int, threads: int) -> dict[str, tuple[Calls, Calls]]:
    """Return the calls of each engine, the first one what the others are measured by; and those run once."""
    options = {"n_estimators": rounds, "learning_rate": 0.1, "n_jobs": threads}

    def xgb() -> None:
        params = {"learning_rate": 0.1, "base_score": -1.0, "nthread": threads}
        xgboost.train(params, xgboost.QuantileDMatrix(X, y, nthread=threads), rounds, obj=bokbokbok_way)

    def lgb() -> None:
        params = {"learning_rate": 0.1, "objective": bokbokbok_way, "verbosity": -1, "num_threads": threads}
        lightgbm.train(params, lightgbm.Dataset(X, y, init_score=np.full(len(y), -1.0)), rounds)

    found = {}
    for name, engine, focal, other in (
        ("XGBoost", xgboost.XGBClassifier(**options), FocalXGBClassifier, xgb),
        ("LightGBM", lightgbm.LGBMClassifier(verbosity=-1, **options), FocalLGBMClassifier, lgb),
    ):
        ours = focal(gamma=2.0, **options)
        unshifted = focal(gamma=2.0, keep_base_rate=False, **options)
        calls: Calls = {
            "log loss": lambda engine=engine: engine.fit(X, y),
            "focal": lambda ours=ours: ours.fit(X, y),
        }
        once: Calls = {"focal, NumPy": in_plain_numpy(lambda ours=ours: ours.fit(X, y))}
        if y.max() == 1:
            once["focal, no shift"] = lambda unshifted=unshifted: unshifted.fit(X, y)
            once["bokbokbok's way"] = other
        found[name] = calls, once
    return found


def linear_calls(X: np.ndarray, y: np.ndarray) -> Calls:
    """Return the fits of linear models."""
    X = X.astype(np.float64)
    return {
        "LogisticRegression": lambda: LogisticRegression().fit(X, y),
        "LogisticRegression, as exact": lambda: LogisticRegression(tol=1e-8, max_iter=1000).fit(X, y),
        "FocalLinearClassifier": lambda: FocalLinearClassifier(gamma=2.0).fit(X, y),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    n, rounds, repeats = (4_000, 5, 1) if args.quick else (200_000, 100, args.repeats)
    rows = []
    for k in (2, 5):
        X, y, _ = made(n, k)
        for model in (FocalXGBClassifier(n_estimators=1), FocalLGBMClassifier(n_estimators=1)):
            model.fit(X[:1000], y[:1000])  # compiles
        FocalLinearClassifier().fit(X[:1000].astype(np.float64), y[:1000])
        groups = boosting_calls(X, y, rounds, args.threads) | {"linear": (linear_calls(X, y), {})}
        for group, (calls, once) in groups.items():
            seconds = best_of_each(calls, repeats) | best_of_each(once, 1)
            first = next(iter(seconds.values()))
            for name, value in seconds.items():
                row = {"rows": n, "classes": k, "threads": args.threads, "what": f"{group}: {name}"}
                rows.append(row | {"s": round(value, 3), "ratio": round(value / first, 2)})
                print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if not args.quick:
        write_results("boosting", rows)


if __name__ == "__main__":
    main()
