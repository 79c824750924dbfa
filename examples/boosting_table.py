"""An imbalanced table with XGBoost and LightGBM: which probabilities are true, and what a decision costs.

2 % of the rows of a generated table are positive, and their true probability is known. Four ways that people
take for such tables: the engine's own log loss, the same with `scale_pos_weight`, and the focal loss with its
raw scores and with Psi. Measured: log loss, calibration error, how well the rows are ranked, and the cost of
decisions, where a missed positive costs 20 times a false alarm, so act from a probability of 1/21 on.

Run: python examples/boosting_table.py [--small] [--out FOLDER]
"""

import argparse
from pathlib import Path

import numpy as np
from lightgbm import LGBMClassifier
from sklearn.metrics import average_precision_score
from xgboost import XGBClassifier

import refocal
from refocal.boosting import FocalLGBMClassifier, FocalXGBClassifier
from refocal.plots import figure_bytes, new_figure, plot_reliability

COST_OF_A_MISS = 20.0
ACT_FROM = 1 / (1 + COST_OF_A_MISS)
SHARED = {"n_estimators": 100, "learning_rate": 0.1, "max_depth": 4, "random_state": 0}
QUIET = {"verbose": -1}


def draw_table(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features (n, 10), labels and the true probability of each row."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 10))
    log_odds = -5.2 + 1.2 * X[:, 0] + np.sin(2 * X[:, 1]) + 0.8 * X[:, 2] * X[:, 3] + 0.8 * (X[:, 4] > 0.5)
    truth = 1 / (1 + np.exp(-log_odds))
    return X, (rng.random(n) < truth).astype(int), truth


def main(small: bool = False, out: str | Path = "out/examples") -> None:
    """Train, measure and draw."""
    X, y, _ = draw_table(5_000 if small else 60_000, seed=0)
    X_test, y_test, truth = draw_table(5_000 if small else 60_000, seed=1)
    shared = SHARED | {"n_estimators": 20} if small else SHARED
    ratio = (y == 0).sum() / (y == 1).sum()
    print(f"{y.mean():.1%} positive; the true probabilities have log loss {log_loss(truth, y_test):.4f}")
    print("engine    loss               log loss  ECE     average precision  cost per 1000 rows")
    stats = {}
    for engine, plain, focal, quiet in (
        ("XGBoost", XGBClassifier, FocalXGBClassifier, {}),
        ("LightGBM", LGBMClassifier, FocalLGBMClassifier, QUIET),
    ):
        focal_model = focal(gamma=2.0, **shared, **quiet).fit(X, y)
        weighted = plain(scale_pos_weight=ratio, **shared, **quiet).fit(X, y)
        ways = {
            "log loss": plain(**shared, **quiet).fit(X, y).predict_proba(X_test)[:, 1],
            "scale_pos_weight": weighted.predict_proba(X_test)[:, 1],
            "focal, raw scores": focal_model.predict_raw_proba(X_test)[:, 1],
            "focal, Psi": focal_model.predict_proba(X_test)[:, 1],
        }
        if engine == "LightGBM":
            ways["the true ones"] = truth
        for name, probs in ways.items():
            probs = np.asarray(probs, dtype=np.float64)
            stats[engine, name] = refocal.CalibrationStats(task="binary").update(probs, y_test)
            ece = stats[engine, name].ece()
            precision = average_precision_score(y_test, probs)
            acts = probs >= ACT_FROM
            cost = 1000 * np.where(y_test == 1, COST_OF_A_MISS * ~acts, acts).mean()
            nll = log_loss(probs, y_test)
            print(f"{engine:8}  {name:17}  {nll:.4f}    {ece:.4f}  {precision:.3f}              {cost:.0f}")

    figure = new_figure(9, 4.2)
    for ax, engine in zip(figure.subplots(1, 2), ("XGBoost", "LightGBM"), strict=True):
        drawn = {name: one for (of, name), one in stats.items() if of == engine and name != "the true ones"}
        plot_reliability(drawn, ax=ax, title=engine, histogram=False)
        ax.axvline(ACT_FROM, color="0.6", linewidth=1, linestyle=":")
    Path(out).mkdir(parents=True, exist_ok=True)
    (Path(out) / "boosting_table.png").write_bytes(figure_bytes(figure, dpi=110))


def log_loss(probs: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean negative log-likelihood of class 1's probabilities."""
    return refocal.nll(probs, labels, task="binary")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a few seconds, for a test: numbers mean little")
    parser.add_argument("--out", default="out/examples", help="folder for the figure")
    arguments = parser.parse_args()
    main(arguments.small, arguments.out)
