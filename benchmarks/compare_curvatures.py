"""What a curvature does to boosted trees: the divergence from known posteriors, by curvature and engine.

python benchmarks/compare_curvatures.py           # 100,000 x 20, 100 rounds, results/boosting/curvatures.*
python benchmarks/compare_curvatures.py --quick   # few rows and rounds, to see that it runs

The focal loss with gamma 2 by the engines' own training functions, on one thread, learning rate 0.1, default
options, start at the minimiser of the prior; only the curvature differs. Each one has the factor that makes
its mean at the start the log loss's. A value is the mean KL divergence of unseen rows from their posterior,
times that of the engine's own log loss at the same rounds.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import xgboost
from bench_boosting import made

import refocal
from refocal.boosting import (
    FocalLGBMClassifier,
    FocalObjective,
    FocalXGBClassifier,
    add_start,
    focal_objective,
)

GAMMA = 2.0
ENGINES = ("XGBoost", "LightGBM")
CURVATURES = ("expected", "Fisher", "phi p (1-p)")
USED = "the classifier"


@dataclasses.dataclass
class Curved:
    """The focal objective with another curvature."""

    found: FocalObjective
    kind: str
    longest_step: float
    factor: float = 1.0

    def __call__(self, scores: np.ndarray, data: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return gradient and curvature, as the engines want them."""
        grad, hess = self.unbounded(scores, np.asarray(data.get_label()))
        damping = self.found.damping if scores.ndim == 2 else 1.0
        hess = np.maximum(damping * hess, np.abs(grad) / self.longest_step)
        return self.factor * grad, np.maximum(self.factor * hess, 1e-16)

    def unbounded(self, scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return gradient and curvature without factor, damping and bound."""
        plain = dataclasses.replace(self.found, factor=1.0, damping=1.0, longest_step=np.inf)
        grad, expected = plain.gradients(scores, labels, np.empty(0))
        if self.kind == "expected":
            return grad, expected
        z = np.stack([np.zeros_like(scores), scores], axis=1) if scores.ndim == 1 else scores
        z = z.astype(np.float64)
        q = refocal.Focal(0.0).posterior(z)
        phi = np.asarray(refocal.phi(q, GAMMA))
        if self.kind == "Fisher":  # squared gradients, their mean over labels from psi
            mass = refocal.log_psi(z, GAMMA)
            mass = np.exp(mass) * phi**2
            hess = mass * (1 - q) ** 2 + q**2 * (mass.sum(axis=1, keepdims=True) - mass)
        else:
            hess = phi[np.arange(len(z)), labels.astype(int), None] * q * (1 - q)
        return grad, hess[:, 1] if scores.ndim == 1 else hess


def curved(prior: np.ndarray, engine: str, kind: str, longest_step: float) -> Curved:
    """Return an objective whose mean curvature at the start is that of the log loss."""
    k = len(prior)
    found = focal_objective(refocal.Focal(GAMMA), prior, damping=2.0 if engine == "XGBoost" else k / (k - 1))
    result = Curved(found, kind, longest_step)
    start = np.full(2, found.start[0]) if k == 2 else np.tile(found.start, (k, 1))
    _, hess = result.unbounded(start, np.arange(k, dtype=np.float32))
    wanted = prior[0] * prior[1] if k == 2 else (prior * (1 - prior)).sum()
    result.factor = float(wanted / (prior @ hess.reshape(k, -1)).sum())
    return result


def trained(engine: str, X: np.ndarray, y: np.ndarray, objective: Curved, rounds: int) -> Callable[..., Any]:
    """Return the logits of a model, as a function of features."""
    start, many = objective.found.start, len(objective.found.start) > 1
    classes = {"num_class": len(start)} if many else {}
    if engine == "XGBoost":
        params = {"learning_rate": 0.1, "nthread": 1, "disable_default_eval_metric": True, **classes}
        params["base_score"] = list(start) if many else start[0]
        booster = xgboost.train(params, xgboost.QuantileDMatrix(X, y), rounds, obj=objective)
        return lambda rows: booster.predict(xgboost.DMatrix(rows), output_margin=True)
    params = {"learning_rate": 0.1, "num_threads": 1, "verbosity": -1, "objective": objective, **classes}
    scores = np.tile(start, (len(y), 1)) if many else np.full(len(y), start[0])
    model = lightgbm.train(params, lightgbm.Dataset(X, y, init_score=scores), rounds)
    add_start(model, start)
    return lambda rows: model.predict(rows, raw_score=True)


def own(engine: str, rounds: int) -> Any:
    """Return the engine's own classifier, with its log loss."""
    options = {"n_estimators": rounds, "learning_rate": 0.1, "n_jobs": 1}
    if engine == "XGBoost":
        return xgboost.XGBClassifier(**options)
    return lightgbm.LGBMClassifier(verbosity=-1, **options)


def divergences(engine: str, k: int, n: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each curvature and bound, and for the classifier as it is."""
    X, y, _ = made(n, k)
    unseen, _, truth = made(n // 2, k, seed=1)
    prior = np.bincount(y) / len(y)
    floor = refocal.kl_divergence(
        truth, own(engine, rounds).fit(X, y).predict_proba(unseen).astype(np.float64)
    )
    rows = []

    def note(curvature: str, bound: Any, posterior: np.ndarray, raw: np.ndarray) -> None:
        row = {
            "classes": k,
            "share": round(float(prior[0]), 4),
            "engine": engine,
            "rows": n,
            "rounds": rounds,
        }
        row |= {"curvature": curvature, "longest step": bound, "KL of log loss": floor}
        row |= {"KL": refocal.kl_divergence(truth, posterior), "KL raw": refocal.kl_divergence(truth, raw)}
        row |= {"ratio": row["KL"] / floor, "ratio raw": row["KL raw"] / floor}
        rows.append(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)

    for kind in CURVATURES:
        for bound in (np.inf, 2.0):
            model = trained(engine, X, y, curved(prior, engine, kind, bound), rounds)
            logits = np.asarray(model(unseen), dtype=np.float64)
            logits = np.stack([np.zeros_like(logits), logits], axis=1) if k == 2 else logits
            note(kind, bound, refocal.Focal(GAMMA).posterior(logits), refocal.Focal(0.0).posterior(logits))
    focal = FocalXGBClassifier if engine == "XGBoost" else FocalLGBMClassifier
    model = focal(gamma=GAMMA, n_estimators=rounds, learning_rate=0.1, n_jobs=1).fit(X, y)
    note(USED, 2.0, model.predict_proba(unseen), model.predict_raw_proba(unseen))
    return rows


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """Return the ratios, a line for each curvature; in brackets those of the raw scores."""
    cases = list(dict.fromkeys((row["classes"], row["share"], row["engine"]) for row in rows))
    titles = [f"{f'{share:.1%}' if k == 2 else f'{k} classes'}, {engine}" for k, share, engine in cases]
    lines = ["| curvature | longest step | " + " | ".join(titles) + " |", "|---|---|" + "---|" * len(cases)]
    for kind, bound in dict.fromkeys((row["curvature"], row["longest step"]) for row in rows):
        found = {
            (row["classes"], row["share"], row["engine"]): f"{row['ratio']:.2f} ({row['ratio raw']:.1f})"
            for row in rows
            if (row["curvature"], row["longest step"]) == (kind, bound)
        }
        cells = [kind, "none" if bound == np.inf else f"{bound:g}", *(found[case] for case in cases)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "boosting")
    args = parser.parse_args()
    n, rounds = (5_000, 5) if args.quick else (100_000, 100)
    rows = [row for k in (2, 5) for engine in ENGINES for row in divergences(engine, k, n, rounds)]
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "curvatures.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (args.out / "curvatures.md").write_text(as_markdown(rows))


if __name__ == "__main__":
    main()
