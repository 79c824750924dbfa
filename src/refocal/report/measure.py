"""From the gathered rows to the numbers of a report."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from refocal._rows import Floats, Integers
from refocal.calibration import Method, Selection, choose_calibration
from refocal.confidence import eta_confidence, tau_oc, tau_uc
from refocal.metrics import CalibrationStats
from refocal.objectives import Focal, Objective, SigmoidFocal, log_posterior_of
from refocal.report.gather import Gathered, Task, class_bins, class_errors, columns, hits_of
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
        logits: Shape (n, K); for "multilabel" (n, L), and for "binary" (n,), log odds of class 1.
        labels: Integers, (n,) or (n, L).
        task: What the logits are of.
    """

    logits: Floats
    labels: Integers
    task: Task

    @classmethod
    def of(cls, gathered: Gathered) -> Sampled:
        """Return the rows of the sample; of probabilities, the logarithm (of the odds) serves as logits."""
        scores, labels = gathered.sample.rows()
        x = scores.astype(np.float64 if scores.dtype.itemsize > 4 else np.float32, copy=False)
        if not gathered.from_logits:
            with np.errstate(divide="ignore"):
                x = np.log(x) if gathered.task == "multiclass" else np.log(x) - np.log1p(np.negative(x))
        return cls(x, labels, gathered.task)

    def some(self, n: int, seed: int) -> Sampled:
        """Return n of the rows, or all."""
        if n >= len(self.labels):
            return self
        at = np.sort(np.random.default_rng(seed).permutation(len(self.labels))[:n])
        return dataclasses.replace(self, logits=self.logits[at], labels=self.labels[at])

    @property
    def n_columns(self) -> int:
        """How many scores a row has."""
        return 1 if self.logits.ndim == 1 else int(self.logits.shape[1])

    def log_probs(self, temperature: float = 1.0, link: Objective | None = None) -> Floats:
        """Return log-probabilities of logits / T, by the posterior of an objective or as scores."""
        if link is None:  # gamma 0 gives the softmax, or the sigmoid
            link = Focal(0.0) if self.task == "multiclass" else SigmoidFocal(gamma=0.0, alpha=None)
        y: Floats = log_posterior_of(link, self.logits / self.logits.dtype.type(temperature))
        return y

    def probs(self, temperature: float = 1.0, link: Objective | None = None) -> Floats:
        """Return the probabilities."""
        return np.exp(self.log_probs(temperature, link))

    def of_classes(self, probs: Floats) -> Floats:
        """Return probabilities with all classes along the last axis: both, for class 1 of two."""
        return probs if self.task == "multiclass" else np.stack([1 - probs, probs], axis=-1)

    def stats(self, log_probs: Floats, n_bins: int) -> tuple[CalibrationStats, float]:
        """Return the bins and the mean NLL of log-probabilities, over all entries."""
        probs = np.exp(log_probs)
        if self.task == "multiclass":
            found = log_probs[np.arange(len(self.labels)), self.labels]
            stats = CalibrationStats(n_bins).update(probs, self.labels)
        else:
            found = np.where(self.labels == 1, log_probs, _log_complement(log_probs))
            stats = CalibrationStats(n_bins, target="positive")
            stats.update(probs.reshape(-1), self.labels.reshape(-1))
        return stats, 0.0 - float(found.mean(dtype=np.float64))


def _log_complement(l: Floats) -> Floats:
    """Return log(1 - e^l), by that of its two forms which keeps the digits."""
    near = l > -math.log(2)
    with np.errstate(divide="ignore"):  # log 0 is -inf
        return np.where(
            near, np.log(-np.expm1(np.where(near, l, -1))), np.log1p(-np.exp(np.minimum(l, -0.5)))
        )


def select(
    sampled: Sampled, objective: Objective | None, **options: Any
) -> tuple[Selection, None] | tuple[None, str]:
    """Return what the selector found, or why it refused; None for the objective that it assumes."""
    try:
        found = choose_calibration(sampled.logits, sampled.labels, objective, task=sampled.task, **options)
        return found, None
    except ValueError as error:
        return None, str(error)


def class_rows(
    gathered: Gathered, sampled: Sampled, names: tuple[str, ...], winner: Method | None
) -> tuple[ClassRow, ...]:
    """Return the table of classes: counts of all rows, calibration errors of the sample."""
    k, n = gathered.n_classes, gathered.n_rows
    _, rows, sums = gathered.by_class.sum(axis=2)
    hits = hits_of(sampled.labels, k, sampled.task)

    def of(probs: Floats) -> tuple[list[float], list[float]]:
        bins = class_bins(columns(np.asarray(probs, np.float64)), hits, gathered.n_bins)
        return class_errors(bins).tolist(), (bins[2].sum(axis=1) / len(hits)).tolist()

    before, _ = of(sampled.probs())
    after: tuple[list[Any], list[Any]] = ([None] * k, [None] * k)
    if winner is not None:
        after = of(winner.probs(sampled.logits))
    return tuple(
        ClassRow(
            name=names[i],
            rows=int(rows[i]),
            predicted=int(gathered.predicted[i]),
            recall=float(gathered.found[i] / rows[i]) if rows[i] else None,
            share=float(rows[i] / n),
            mean=float(sums[i] / n),
            mean_after=after[1][i],
            ece=before[i],
            ece_after=after[0][i],
        )
        for i in range(k)
    )


def eta_of(sampled: Sampled, objective: Objective) -> EtaConfidence:
    """Return how many rows have a largest score below, or above, the largest posterior."""
    q, link = sampled.of_classes(sampled.probs()), objective.without_smoothing()
    gamma, top = plain_gamma(link), q.max(axis=-1)
    if gamma is not None:
        codes = np.asarray(eta_confidence(q, gamma))
    else:
        gap = top - sampled.of_classes(sampled.probs(link=link)).max(axis=-1)
        codes = np.sign(np.where(np.abs(gap) <= 16 * np.finfo(q.dtype).eps, 0, gap))
    edges = np.arange(SCORE_BINS + 1) / SCORE_BINS
    under, equal, over = (tuple(np.histogram(top[codes == c], edges)[0].tolist()) for c in (-1, 0, 1))
    return EtaConfidence(
        gamma=gamma,
        tau_oc=tau_oc(gamma) if gamma else None,
        tau_uc=tau_uc(gamma) if gamma else None,
        under=sum(under) / top.size,
        equal=sum(equal) / top.size,
        over=sum(over) / top.size,
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
    fitted = None if winner is None else only_temperature(winner)
    temperatures = np.unique([*TEMPERATURES, fitted or 1.0])
    points = len(links) * len(temperatures)
    some = sampled.some(max(FEWEST_GRID_ROWS, GRID_ENTRIES // (points * sampled.n_columns)), seed)
    found: list[list[tuple[Any, ...]]] = []
    for link in links:
        found.append([])
        for temperature in temperatures:
            stats, nll = some.stats(some.log_probs(float(temperature), link), n_bins)
            mean = np.where(stats.counts > 0, stats.confidence, 0).round(6)
            numbers = (stats.counts.tolist(), stats.hits.tolist(), mean.tolist())
            found[-1].append((*map(tuple, numbers), stats.ece(), nll))
    counts, hits, confidence, ece, nlls = (
        tuple(tuple(point[i] for point in row) for row in found) for i in range(5)
    )

    def place(link: Objective | None, temperature: float) -> tuple[int, int] | None:
        at = [i for i, other in enumerate(links) if other == link]
        if link is None and plain_gamma(plain) is not None:
            at = [0]  # gamma 0 gives the scores themselves
        if not at:
            return None
        return at[0], int(np.searchsorted(temperatures, temperature))

    methods = [("raw", place(None, 1.0)), ("psi", place(plain, 1.0))]
    if winner is not None and winner.name not in ("raw", "psi") and fitted is not None:
        methods.append((winner.name, place(winner.link, fitted)))
    presets = tuple((name, position) for name, position in methods if position is not None)
    one = int(np.searchsorted(temperatures, 1.0))
    return Grid(
        n_rows=len(some.labels),
        gammas=tuple(gammas),
        temperatures=tuple(temperatures.tolist()),
        counts=counts,
        hits=hits,
        confidence=confidence,
        ece=ece,
        nll=nlls,
        start=dict(presets).get("psi", (0, one)),
        presets=presets,
    )


def only_temperature(method: Method) -> float | None:
    """Return T of a method that is link(logits / T), one T for all and nothing more; otherwise None."""
    extras = (getattr(method, name, 0.0) for name in ("bias", "floor"))
    return method.temperature if isinstance(method.temperature, float) and not any(extras) else None


def plain_gamma(link: Objective) -> float | None:
    """Return gamma, if this is the focal loss on a softmax or a sigmoid without further options."""
    if type(link) is SigmoidFocal and isinstance(link.gamma, float) and link.alpha is None:
        return link.gamma
    return link.plain_gamma


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
