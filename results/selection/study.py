"""How much is lost by the choice of `choose_calibration`: its regret on data whose posterior is known.

    python results/selection/study.py                       # all of it, in about half an hour
    python results/selection/study.py --family sigmoid --sets 3 --fresh 2000

Each data set is drawn with its own settings (classes, how sure the posterior is, gamma, noise, sharpness).
The choice sees n labelled rows of it. Then every method, as it was fitted on these, gets its expected NLL on
fresh rows: over the posterior, not over drawn labels. Regret is the NLL of the method chosen minus the
smallest one.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from refocal import Asymmetric, Focal, GeneralizedCrossEntropy, Objective, OneVsRest, SigmoidFocal
from refocal.calibration import choose
from refocal.metrics.intervals import resample

ROWS = (300, 500, 1000, 2000)
KINDS = ("minimiser", "sharp", "noisy", "other loss", "smoothed")
FAMILIES = {"softmax": 100, "sigmoid": 60, "multilabel": 19, "one-vs-rest": 39}
"""How many data sets each has."""

Make = Callable[[int, int], tuple[Any, Any, Any]]
"""Posterior, logits and labels of n rows, drawn with a seed."""


def drawn(family: str, number: int) -> tuple[str, Objective, Make]:
    """Return what a data set is: its kind, the objective that the choice is told, and its rows."""
    rng = np.random.default_rng([number, sorted(FAMILIES).index(family)])
    kind = KINDS[number % (5 if family in ("softmax", "sigmoid") else 4)]
    gamma, noise = float(rng.choice([1.0, 2.0, 3.0])), float(rng.choice([0.3, 0.6, 1.0]))
    sharp = float(np.exp(rng.uniform(-1, 1)))
    smoothing = float(rng.choice([0.05, 0.1])) if kind == "smoothed" else 0.0
    k = int(rng.choice([2, 3, 5, 10, 20])) if family == "softmax" else int(rng.choice([3, 5, 10]))
    sure = float(rng.choice([0.2, 0.5, 1.0]))
    alpha = float(rng.choice([0.25, 0.5, 0.75]))
    spread = rng.normal(size=k) * float(rng.choice([0.0, 0.5]))  # of the labels' own temperatures
    told: Objective
    if family == "softmax":
        told = Focal(gamma, label_smoothing=smoothing)
    elif family == "sigmoid":
        told = SigmoidFocal(gamma, alpha, smoothing)
    elif family == "multilabel":
        told = Asymmetric(float(rng.choice([0.0, 1.0])), 4.0, 0.05)
    else:
        told = OneVsRest(SigmoidFocal(gamma, alpha))
    scale = sharp if kind in ("sharp", "noisy", "other loss") else 1.0
    noise = {"noisy": noise, "smoothed": 0.1}.get(kind, 0.0)

    def make(n: int, seed: int) -> tuple[Any, Any, Any]:
        rng = np.random.default_rng([number, seed])
        if family in ("softmax", "one-vs-rest"):
            eta = np.maximum(rng.dirichlet(np.full(k, sure), size=n), 1e-9)
            eta /= eta.sum(axis=1, keepdims=True)
            labels = np.minimum((rng.random((n, 1)) > eta.cumsum(axis=1)).sum(axis=1), k - 1)
        else:
            eta = np.clip(rng.beta(sure, 3 * sure, size=n if family == "sigmoid" else (n, k)), 1e-9, 1 - 1e-9)
            labels = (rng.random(eta.shape) < eta).astype(np.int64)
        logits = told.logits(eta)
        if kind == "other loss":
            other = GeneralizedCrossEntropy(0.5) if number % 2 else Focal(0.0)
            odds = np.log(eta) - np.log1p(-eta)
            logits = other.logits(eta) if family == "softmax" else odds * (2.0 if number % 2 else 1.0)
        logits = scale * logits + noise * rng.normal(size=logits.shape)
        if family == "multilabel":
            logits = logits * np.exp(spread)
        return eta, np.clip(logits, -30, 30), labels  # some minimisers are infinite, no model is

    return kind, told, make


def expected_nll(method: Any, eta: Any, logits: Any) -> float:
    """Return the NLL of a method, expected over the posterior."""
    log_p = method.log_probs(logits)
    if method.scores != "sigmoid":
        return float(-(eta * log_p).sum(axis=-1).mean())
    with np.errstate(divide="ignore"):
        rest = np.log(-np.expm1(np.minimum(log_p, -1e-300)))
    return float(-(eta * log_p + (1 - eta) * rest).mean())


def clearly_better(losses: Any, negligible: float) -> int:
    """Return the choice by the rule of before: the simplest not clearly worse, if shown to beat raw."""
    draws = np.stack([w @ np.where(np.isfinite(losses), losses, 0) for w in resample(len(losses), 200, 0)])
    draws, means = draws / len(losses), losses.mean(axis=0)
    best = int(np.argmin(means))

    def low(i: int, j: int) -> float:
        return math.inf if means[i] == math.inf else float(np.quantile(draws[:, i] - draws[:, j], 0.025))

    def may_win(i: int) -> bool:
        shown = i == 0 or low(0, i) > 0
        return shown and (low(i, best) <= 0 or means[i] - means[best] <= negligible)

    return next(i for i in range(len(means)) if may_win(i))


RULES: dict[str, Callable[[Any, float], int]] = {
    "now": choose.decide,
    "before: clearly better than raw": clearly_better,
    "smallest held-out NLL": lambda losses, negligible: int(np.argmin(losses.mean(axis=0))),
}


def chosen_by_rules(logits: Any, labels: Any, told: Objective) -> tuple[dict[str, str], Any, Any]:
    """Return the method that each rule chooses, the selection, and the held-out losses of its methods."""
    kept: list[Any] = []

    def decide(losses: Any, negligible: float) -> int:
        kept.append((losses, {rule: f(losses, negligible) for rule, f in RULES.items()}))
        return int(kept[0][1]["now"])

    original, choose.decide = choose.decide, decide
    try:
        selection = choose.choose_calibration(logits, labels, told, n_resamples=100)
    finally:
        choose.decide = original
    losses, chosen = kept[0]
    return {rule: selection.methods[i].name for rule, i in chosen.items()}, selection, losses


def solved(
    family: str, number: int, rows: tuple[int, ...], fresh: int, keep: Path | None = None
) -> list[dict[str, Any]]:
    """Return what every rule chooses in a data set, and what every method is worth there."""
    kind, told, make = drawn(family, number)
    eta, logits, _ = make(fresh, 1)
    found = []
    for n in rows:
        _, z, labels = make(n, 1000 + n)
        chosen, selection, losses = chosen_by_rules(z, labels, told)
        worth = {m.name: expected_nll(m, eta, logits) for m in selection.methods}
        found.append(
            {"family": family, "kind": kind, "set": number, "n": n, "worth": worth, "chosen": chosen}
        )
        if keep is not None:
            np.savez_compressed(keep / f"{family}-{number}-{n}", losses=losses, worth=list(worth.values()))
    return found


def images(folder: Path) -> str:
    """Return what every rule chooses for stored logits of image models, and the test NLL of that."""
    lines = [
        "| run | rows | " + " | ".join(f"{rule}: regret" for rule in RULES) + " | best |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob("*.json")):
        config, arrays = json.loads(path.read_text())["config"], np.load(path.with_suffix(".npz"))
        n = len(arrays["validation_labels"])
        if n < 300:
            continue
        told = Focal(config["gamma"], label_smoothing=config["label_smoothing"])
        parts = [(f"{p}_logits", f"{p}_labels") for p in ("validation", "test")]
        (z, y), (test_z, test_y) = [(arrays[a].astype(float), arrays[b].astype(int)) for a, b in parts]
        chosen, selection, _ = chosen_by_rules(z, y, told)
        each = np.arange(len(test_y))
        worth = {m.name: -m.log_probs(test_z)[each, test_y].mean() for m in selection.methods}
        best = min(worth, key=lambda name: worth[name])
        cells = [f"{name} {worth[name] - worth[best]:.4f}" for name in chosen.values()]
        name = (
            f"{config['dataset']}, {config['epochs']} epochs, {config['paradigm']}, gamma {config['gamma']:g}"
        )
        lines.append("| " + " | ".join([name, str(n), *cells, f"{best} {worth[best]:.4f}"]) + " |")
    return "\n".join(lines)


def tables(found: list[dict[str, Any]]) -> str:
    """Return the regrets as tables in Markdown."""
    head = "| scores | n | choice | mean | 95 % | worst | within 0.01 | above raw by at most |"
    lines = [head, "|" + "---|" * head.count("| ")]
    for family in dict.fromkeys(x["family"] for x in found):
        for n in sorted({x["n"] for x in found}):
            part = [x for x in found if (x["family"], x["n"]) == (family, n)]
            for rule in part[0]["chosen"]:
                worth = [x["worth"][x["chosen"][rule]] for x in part]
                lines.append(_row(part, worth, [family, str(n), rule]))
    lines += ["", "Always the same method, where the objective has it (n = 1000):", ""]
    lines += ["| scores | method | data sets | mean regret | 95 % | worst |", "|---|---|---|---|---|---|"]
    for family in dict.fromkeys(x["family"] for x in found):
        part = [x for x in found if x["family"] == family and x["n"] == 1000]
        for name in dict.fromkeys(name for x in part for name in x["worth"]):
            regrets = [x["worth"][name] - min(x["worth"].values()) for x in part if name in x["worth"]]
            mean, high, worst = np.mean(regrets), np.quantile(regrets, 0.95), max(regrets)
            lines.append(f"| {family} | {name} | {len(regrets)} | {mean:.4f} | {high:.4f} | {worst:.4f} |")
    return "\n".join(lines)


def _row(part: list[dict[str, Any]], worth: list[float], cells: list[str]) -> str:
    regret = np.array([w - min(x["worth"].values()) for x, w in zip(part, worth, strict=True)])
    harm = max(w - x["worth"]["raw"] for x, w in zip(part, worth, strict=True))
    within = f"{int((regret <= 0.01).sum())} of {len(regret)}"
    numbers = [f"{x:.4f}" for x in (regret.mean(), np.quantile(regret, 0.95), regret.max())]
    return "| " + " | ".join([*cells, *numbers, within, f"{max(harm, 0):.4f}"]) + " |"


def main(arguments: list[str] | None = None) -> str:
    """Run the study and return its tables."""
    parser = argparse.ArgumentParser(description="The regret of choose_calibration.")
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--sets", type=int, help="data sets of each family; all by default")
    parser.add_argument("--first", type=int, default=0, help="number of the first data set")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--fresh", type=int, default=20_000, help="rows on which methods are compared")
    parser.add_argument("--out", type=Path, help="a JSON file for what was found, to be read by --tables")
    parser.add_argument("--tables", type=Path, nargs="+", help="make the tables again, of such files")
    parser.add_argument("--keep", type=Path, help="a folder for held-out losses, to try other rules on")
    parser.add_argument("--images", type=Path, help="a folder of stored runs of the image study, instead")
    options = parser.parse_args(arguments)
    warnings.simplefilter("error")
    if options.images:
        return images(options.images)
    found: list[dict[str, Any]] = []
    if options.tables:
        found = [x for path in options.tables for x in json.loads(path.read_text())]
    else:
        for family in options.family:
            for number in range(options.first, options.first + (options.sets or FAMILIES[family])):
                found += solved(family, number, tuple(options.rows), options.fresh, options.keep)
                if options.out:
                    options.out.write_text(json.dumps(found, indent=0) + "\n")
    return tables(found)


if __name__ == "__main__":
    print(main())
