"""What a cross-fitted temperature's ECE is worth: it beats even the exact posterior.

    python results/tabular/crossfit.py

Scores of two classes whose posterior is known, and which are the minimiser of the focal loss of gamma 2, so
that Psi is the posterior itself and nothing can be better calibrated. Each half of the rows gets the
temperature of the other half, as in the tables. Counted is how often the mean ECE of ten trials is below that
of the posterior: in bins of all rows, and in bins of each half, whose two ECEs are averaged; and the NLL.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from refocal import Focal, TemperatureScaling, ece, nll

SIZES, REPEATS, TRIALS, BINS = (350, 700, 1500, 2500), 40, 10, 15


def trial(n: int, rng: np.random.Generator) -> tuple[list[float], list[float]]:
    """Return ECE in common bins, ECE by halves and NLL: of the temperature, then of the posterior."""
    one = rng.beta(0.7, 0.7, size=n) * 0.98 + 0.01
    posterior = np.stack([1 - one, one], 1)
    labels = (rng.random(n) < one).astype(int)
    logits = Focal(2.0).logits(posterior)
    halves = np.arange(n) < n // 2, np.arange(n) >= n // 2
    scaled = np.empty_like(posterior)
    for fit, use in (halves, halves[::-1]):
        scaled[use] = TemperatureScaling("nll").fit(logits[fit], labels[fit]).predict_proba(logits[use])
    found = []
    for probs in (scaled, posterior):
        apart = [ece(probs[half], labels[half], BINS) for half in halves]
        found.append([ece(probs, labels, BINS), float(np.mean(apart)), nll(probs, labels)])
    return found[0], found[1]


def main() -> None:
    """Count, print, and write crossfit.json beside this file."""
    rng = np.random.default_rng(0)
    counts = {}
    for n in SIZES:
        means = np.array([[trial(n, rng) for _ in range(TRIALS)] for _ in range(REPEATS)]).mean(1)
        below = (means[:, 0] < means[:, 1]).sum(0)
        counts[n] = dict(zip(("common_bins", "by_halves", "nll"), map(int, below), strict=True))
        print(f"{n} rows: below the posterior's in {counts[n]} of {REPEATS}", flush=True)
    found = {"repeats": REPEATS, "trials": TRIALS, "bins": BINS, "temperature_below_posterior": counts}
    path = Path(__file__).with_name("crossfit.json")
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
