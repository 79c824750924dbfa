"""What to do with the logits of a model: nothing, a temperature, psi, or both, by held-out likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from refocal._arrays import Array
from refocal._checks import LEVEL, check_count, check_level, check_number
from refocal._rows import Floats, Rows, logit_rows
from refocal.calibration.selection import METHODS, METRICS, Method, Selection
from refocal.calibration.temperature import Fit, fit_focal_temperature, fit_temperature, log_probs_of
from refocal.metrics.binning import check_n_bins
from refocal.metrics.intervals import Interval, interval_of, resample
from refocal.metrics.measures import nll_rows
from refocal.metrics.stats import stats_of
from refocal.objectives import Focal, Objective, check_objective

RESAMPLED_ENTRIES, FEWEST_RESAMPLES = 5 * 10**7, 100
"""The interval of the classwise ECE, a slow one, gets fewer resamples where there are many entries."""

Link: TypeAlias = Objective | None
Fitted: TypeAlias = tuple[float, Link] | str
"""T and link of a method, or the reason why it has none."""


def choose_calibration(
    logits: Array,
    labels: Array,
    objective: Objective | None = None,
    *,
    n_folds: int = 5,
    level: float = LEVEL,
    negligible: float = 0.001,
    n_bins: int = 10,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Selection:
    """Choose between no calibration, temperature scaling, `psi`, and both, on labelled held-out rows.

    Each method is fitted on all parts of the rows but one and measured on that one, in turn. The winner is
    the simplest method whose NLL is not clearly above the smallest one: the interval of their difference,
    by a bootstrap that draws the same rows for both, reaches 0, or the difference is negligible. Unless it
    is the softmax, it must be clearly better than that. A wrong gamma, an overfitted model or one trained
    with another loss shows in the table, whatever the theory says.

    The methods, from simple to complex: "raw", the softmax as it is; "psi", the objective's posterior;
    "ts_nll" and "ts_fl", temperature scaling by the NLL and by the objective's own loss; "psi_ts_fl", psi
    after the latter; "focal_ts" and "focal_ts_free", focal temperature scaling with the given gamma and with
    a free one. For label smoothing, psi comes twice: as in the paper, and with the smoothing taken out
    ("..._unsmoothed"), which may leave a probability of 0: one such label makes the NLL infinite.

    Args:
        logits: Scores before the softmax, (n, K), of rows that the model was not trained on.
        labels: Integers 0..K-1, (n,).
        objective: What the model was trained with; None for ``Focal(2.0)``.
        n_folds: Parts, at least 2.
        level: Of the intervals, within (0, 1).
        negligible: The difference in NLL, in nats, that counts as none.
        n_bins: The number of bins of the calibration errors.
        n_resamples: Of the bootstrap.
        seed: Of the parts and of the bootstrap.

    Returns:
        A `Selection`.

    Raises:
        TypeError: If logits are not floats or labels not integers.
        ValueError: If an argument is wrong.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.integers(3, size=40)
        >>> logits = rng.normal(size=(40, 3)) + np.eye(3)[labels]
        >>> found = choose_calibration(logits, labels)
        >>> found.winner, found.clear, found.sentence[:29]
        ('raw', False, 'Nothing is clear with 40 rows')
    """
    objective = check_objective(Focal(2.0) if objective is None else objective, softmax=True)
    rows = logit_rows(logits, labels)
    n, k = rows.z.shape
    if n < 2:
        raise ValueError(f"logits must have at least 2 rows, got {n}")
    n_folds, level = check_count("n_folds", n_folds, 2, n), check_level(level)
    check_count("n_resamples", n_resamples, 1)
    check_count("seed", seed, 0)
    negligible = check_number("negligible", negligible, low=0, rule="finite and >= 0")
    check_n_bins(n_bins)
    parts = np.array_split(np.random.default_rng(seed).permutation(n), n_folds)
    fitted = _fit(rows, objective)
    fits = [_fit(rows.take(np.delete(np.arange(n), part)), objective) for part in parts]
    # A part without a fit leaves the method out, with the reason: it could not be measured on all rows.
    skipped = {name: fit for every in (*fits, fitted) for name, fit in every.items() if isinstance(fit, str)}
    names = [name for name in METHODS if name in fitted and name not in skipped]
    losses, measured = np.empty((n, len(names))), []
    resamples = min(n_resamples, max(FEWEST_RESAMPLES, RESAMPLED_ENTRIES // (n * k)))
    for i, name in enumerate(names):
        log_probs = np.empty_like(rows.z)
        for part, fit in zip(parts, fits, strict=True):
            log_probs[part] = log_probs_of(rows.z[part], *_found(fit[name]), 1)
        held_out = rows.log_probs(log_probs)
        losses[:, i] = nll_rows(held_out)
        measured.append(_measure(held_out, losses[:, i], level, n_bins, resamples, seed))
    means, sampled = losses.mean(axis=0), paired_means(losses, n_resamples, seed)

    def gap(name: str, other: str) -> Interval:
        i, j = names.index(name), names.index(other)
        if means[i] == math.inf:
            return Interval(math.inf, math.inf, math.inf, level, "bootstrap")
        low, high = np.quantile(sampled[:, i] - sampled[:, j], ((1 - level) / 2, (1 + level) / 2))
        return Interval(float(means[i] - means[j]), float(low), float(high), level, "bootstrap")

    best = names[int(np.argmin(means))]
    to_best = [gap(name, best) for name in names]

    def may_win(i: int) -> bool:
        shown = i == 0 or gap("raw", names[i]).low > 0
        return shown and (to_best[i].low <= 0 or to_best[i].value <= negligible)

    # The best one may: if the softmax may not, it is clearly worse than that.
    at = next(i for i in range(len(names)) if may_win(i))
    behind = [gap(name, names[at]) for name in names]
    return Selection(
        objective=objective,
        n_rows=n,
        n_folds=n_folds,
        level=level,
        negligible=negligible,
        methods=tuple(
            Method(name, *_found(fitted[name]), **fields | {"behind": interval})
            for name, fields, interval in zip(names, measured, behind, strict=True)
        ),
        skipped=tuple(skipped.items()),
        winner=names[at],
        clear=not skipped
        and all(b.low > 0 for b in behind[:at])
        and all(b.low >= -negligible for b in behind[at + 1 :]),
        psi_gap=gap("psi", "raw") if "psi" in names else None,
    )


def _fit(rows: Rows, objective: Objective) -> dict[str, Fitted]:
    """Return every method that makes sense for the objective, fitted to rows."""
    plain = objective.without_smoothing()
    smoothed, gamma = plain is not objective, plain.plain_gamma
    fits: dict[str, Fitted] = {"raw": (1.0, None)}
    plan: list[tuple[Callable[[], Fit], dict[str, Link]]] = []
    plan.append((lambda: fit_temperature(rows, "nll"), {"ts_nll": None}))
    if objective.plain_gamma != 0:
        fits["psi"] = (1.0, plain)
        plan.append((lambda: fit_temperature(rows, objective), {"ts_fl": None, "psi_ts_fl": plain}))
        if smoothed:
            fits["psi_unsmoothed"] = (1.0, objective)
            plan[-1][1]["psi_ts_fl_unsmoothed"] = objective
    if gamma:
        plan.append((lambda: fit_focal_temperature(rows, gamma), {"focal_ts": plain}))
    plan.append((lambda: fit_focal_temperature(rows), {"focal_ts_free": None}))
    for search, links in plan:
        try:
            fit = search()
        except ValueError as error:
            fits |= dict.fromkeys(links, str(error))
            continue
        fit.warn()
        if "focal_ts_free" in links:
            links["focal_ts_free"] = Focal(fit.gamma)
        fits |= {name: (fit.temperature, link) for name, link in links.items()}
    return fits


def _found(fit: Fitted) -> tuple[float, Link]:
    assert not isinstance(fit, str)  # those were left out
    return fit


def _measure(
    held_out: Rows, losses: Floats, level: float, n_bins: int, n_resamples: int, seed: int
) -> dict[str, Any]:
    """Return every metric of held-out rows with its interval, and the bins."""
    found: dict[str, Any] = {"stats": stats_of(held_out, n_bins)}
    for name in METRICS:
        if name == "nll" and np.isinf(losses).any():
            found[name] = Interval(math.inf, math.inf, math.inf, level, "analytic")
        elif name == "classwise_ece":
            found[name] = interval_of(name, held_out, level, "bootstrap", n_bins, None, n_resamples, seed)
        else:
            found[name] = interval_of(name, held_out, level, "analytic", n_bins)
    return found


def paired_means(losses: Floats, n_resamples: int, seed: int) -> Floats:
    """Return the means of resampled rows, the same ones for all columns: (n_resamples, columns)."""
    finite = np.where(np.isfinite(losses), losses, 0)
    return np.stack([weight @ finite / len(losses) for weight in resample(len(losses), n_resamples, seed)])
