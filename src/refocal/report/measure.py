"""From the gathered rows to the numbers of a report."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from refocal._rows import Floats, Integers
from refocal.calibration import Method, Selection, choose_calibration
from refocal.calibration.temperature import log_probs_of
from refocal.confidence import eta_confidence, tau_oc, tau_uc
from refocal.metrics import CalibrationStats
from refocal.objectives import Objective
from refocal.report.gather import Gathered
from refocal.report.numbers import ClassRow, EtaConfidence, Grid

GAMMAS = np.arange(0, 5.5, 0.5)
TEMPERATURES = 2.0 ** (np.arange(-8, 9) / 4)
GRID_ENTRIES, FEWEST_GRID_ROWS = 150_000_000, 1000
"""How many entries all points of the grid may have together: some seconds of work."""

SCORE_BINS = 40


@dataclasses.dataclass(frozen=True, eq=False)
class Sampled:
    """The rows of the sample.

    Attributes:
        logits: Shape (n, K), or (n,) for log odds of class 1.
        labels: Integers.
    """

    logits: Floats
    labels: Integers

    @classmethod
    def of(cls, gathered: Gathered) -> Sampled:
        """Return the rows of the sample; of probabilities, the logarithm serves as logits."""
        scores, labels = gathered.sample.rows()
        if not gathered.from_logits:
            p = scores.astype(np.float64 if scores.dtype.itemsize > 4 else np.float32, copy=False)
            with np.errstate(divide="ignore"):
                scores = np.log(p) if p.ndim > 1 else np.log(p) - np.log1p(-p)
        return cls(scores, labels)

    def some(self, n: int, seed: int) -> Sampled:
        """Return n of the rows, or all."""
        if n >= len(self.labels):
            return self
        at = np.sort(np.random.default_rng(seed).permutation(len(self.labels))[:n])
        return Sampled(self.logits[at], self.labels[at])

    def log_probs(self, temperature: float = 1.0, link: Objective | None = None) -> Floats:
        """Return log-probabilities of logits / T, by the posterior of an objective or the softmax."""
        y: Floats = log_probs_of(self.logits, temperature, link, self.logits.ndim - 1)
        return y

    def probs(self, temperature: float = 1.0, link: Objective | None = None) -> Floats:
        """Return the probabilities."""
        return np.exp(self.log_probs(temperature, link))


def select(
    sampled: Sampled, objective: Objective, **options: Any
) -> tuple[Selection, None] | tuple[None, str]:
    """Return what the selector found, or why it refused."""
    try:
        return choose_calibration(sampled.logits, sampled.labels, objective, **options), None
    except ValueError as error:
        return None, str(error)


def class_rows(
    gathered: Gathered, sampled: Sampled, names: tuple[str, ...], winner: Method | None
) -> tuple[ClassRow, ...]:
    """Return the table of classes: counts of all rows, calibration errors of the sample."""
    k, n, n_bins = gathered.n_classes, gathered.n_rows, gathered.n_bins
    rows = gathered.stats.class_hits.sum(axis=1)
    mean = _class_sums(gathered.stats) / n
    before, _ = _class_errors(sampled.probs(), sampled.labels, n_bins)
    after: list[Any] = [None] * k
    mean_after = after
    if winner is not None:
        after, mean_after = _class_errors(winner.probs(sampled.logits), sampled.labels, n_bins)
    return tuple(
        ClassRow(
            name=names[i],
            rows=int(rows[i]),
            predicted=int(gathered.predicted[i]),
            recall=float(gathered.found[i] / rows[i]) if rows[i] else None,
            share=float(rows[i] / n),
            mean=float(mean[i]),
            mean_after=mean_after[i],
            ece=before[i],
            ece_after=after[i],
        )
        for i in range(k)
    )


def _class_sums(stats: CalibrationStats) -> Floats:
    """Return the sum of each class's probability."""
    sums = np.where(stats.class_counts > 0, stats.class_confidence, 0) * stats.class_counts
    return np.asarray(sums.sum(axis=1))


def _class_errors(probs: Floats, labels: Integers, n_bins: int) -> tuple[list[Any], list[Any]]:
    """Return the calibration error and the mean probability of each class."""
    stats = CalibrationStats(n_bins, probs.shape[-1]).update(probs, labels)
    gaps = np.where(stats.class_counts > 0, stats.class_accuracy - stats.class_confidence, 0)
    errors = (np.abs(gaps) * stats.class_counts).sum(axis=1) / stats.n
    return errors.tolist(), (_class_sums(stats) / stats.n).tolist()


def eta_of(sampled: Sampled, objective: Objective) -> EtaConfidence:
    """Return how many rows have a largest score below, or above, the largest posterior."""
    q, link = sampled.probs(), objective.without_smoothing()
    gamma, top = link.plain_gamma, q.max(axis=-1)
    if gamma is not None:
        codes = np.asarray(eta_confidence(q, gamma))
    else:
        gap = top - sampled.probs(link=link).max(axis=-1)
        codes = np.sign(np.where(np.abs(gap) <= 16 * np.finfo(q.dtype).eps, 0, gap))
    edges = np.arange(SCORE_BINS + 1) / SCORE_BINS
    under, equal, over = (tuple(np.histogram(top[codes == c], edges)[0].tolist()) for c in (-1, 0, 1))
    return EtaConfidence(
        gamma=gamma,
        tau_oc=tau_oc(gamma) if gamma else None,
        tau_uc=tau_uc(gamma) if gamma else None,
        under=sum(under) / len(top),
        equal=sum(equal) / len(top),
        over=sum(over) / len(top),
        edges=tuple(edges.tolist()),
        counts_under=under,
        counts_equal=equal,
        counts_over=over,
    )


def grid_of(
    sampled: Sampled, objective: Objective, selection: Selection | None, n_bins: int, seed: int
) -> Grid:
    """Return the diagram for each gamma and temperature of a grid that holds the recommended ones."""
    plain = objective.without_smoothing()
    winner = None if selection is None else selection.method(selection.winner)
    gammas = _gammas(plain, winner)
    links: list[Objective | None] = [_with_gamma(plain, g) for g in gammas] or [plain]
    temperatures = np.unique([*TEMPERATURES, winner.temperature if winner else 1.0])
    points = len(links) * len(temperatures)
    k = sampled.logits.shape[-1]
    some = sampled.some(max(FEWEST_GRID_ROWS, GRID_ENTRIES // (points * k)), seed)
    each = np.arange(len(some.labels))
    found: list[list[tuple[Any, ...]]] = []
    for link in links:
        found.append([])
        for temperature in temperatures:
            log_probs = some.log_probs(float(temperature), link)
            stats = CalibrationStats(n_bins).update(np.exp(log_probs), some.labels)
            mean = np.where(stats.counts > 0, stats.confidence, 0).round(6)
            nll = -float(log_probs[each, some.labels].mean(dtype=np.float64))
            numbers = (stats.counts.tolist(), stats.hits.tolist(), mean.tolist())
            found[-1].append((*map(tuple, numbers), stats.ece(), nll))
    columns = [tuple(tuple(point[i] for point in row) for row in found) for i in range(5)]

    def place(link: Objective | None, temperature: float) -> tuple[int, int] | None:
        at = [i for i, other in enumerate(links) if other == link]
        if link is None and plain.plain_gamma is not None:
            at = [0]  # gamma 0 is the softmax
        if not at:
            return None
        return at[0], int(np.searchsorted(temperatures, temperature))

    methods = [("raw", place(None, 1.0)), ("psi", place(plain, 1.0))]
    if winner is not None and winner.name not in ("raw", "psi"):
        methods.append((winner.name, place(winner.link, winner.temperature)))
    presets = tuple((name, position) for name, position in methods if position is not None)
    return Grid(
        len(some.labels),
        tuple(gammas),
        tuple(temperatures.tolist()),
        *columns,
        start=next((p for name, p in presets if name == "psi"), (0, int(np.searchsorted(temperatures, 1.0)))),
        presets=presets,
    )


def _gammas(plain: Objective, winner: Method | None) -> list[float]:
    """Return the gammas of the grid, with that of the objective and of the winner; none if it has no one."""
    own = getattr(plain, "gamma", None)
    if not dataclasses.is_dataclass(plain) or not isinstance(own, float):
        return []
    fitted = getattr(winner.link, "gamma", own) if winner is not None and winner.link is not None else own
    return sorted({*GAMMAS.tolist(), own, fitted})


def _with_gamma(plain: Objective, gamma: float) -> Objective:
    changed: Objective = dataclasses.replace(plain, gamma=gamma)  # type: ignore[type-var]
    return changed
