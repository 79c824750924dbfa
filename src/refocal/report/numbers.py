"""The numbers of a report, frozen: all that a page shows, and what JSON holds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, TypeAlias

import numpy as np

from refocal.calibration import Selection
from refocal.metrics import CalibrationStats
from refocal.metrics.intervals import wilson
from refocal.objectives import Objective

Numbers1: TypeAlias = tuple[float, ...]
Tone: TypeAlias = Literal["keep", "act", "unclear", "none"]


@dataclasses.dataclass(frozen=True)
class Diagram:
    """A reliability diagram: for each bin the rows, their mean confidence, and the share of hits.

    Attributes:
        edges: Of the bins, one more than bins.
        counts: Rows.
        confidence: Mean confidence; NaN without rows. So are the next three.
        accuracy: Share of hits.
        low: Lower end of Wilson's interval of that share.
        high: Upper end.
        ece: The expected calibration error.

    Example:
        >>> stats = CalibrationStats(n_bins=2).update(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 0]))
        >>> Diagram.of(stats, 0.95).accuracy
        (nan, 0.5)
    """

    edges: Numbers1
    counts: tuple[int, ...]
    confidence: Numbers1
    accuracy: Numbers1
    low: Numbers1
    high: Numbers1
    ece: float

    @classmethod
    def of(cls, stats: CalibrationStats, level: float) -> Diagram:
        """Return the diagram of stats, with intervals of a level."""
        accuracy = stats.accuracy
        low, high = wilson(accuracy, np.maximum(stats.counts, 1), level)
        return cls(
            edges=_tuple(stats.edges),
            counts=_tuple(stats.counts),
            confidence=_tuple(stats.confidence),
            accuracy=_tuple(accuracy),
            low=_tuple(low),
            high=_tuple(high),
            ece=stats.ece(),
        )

    @property
    def n_rows(self) -> int:
        """How many rows."""
        return sum(self.counts)


@dataclasses.dataclass(frozen=True)
class ClassRow:
    """One class, or one label.

    Attributes:
        name: As given.
        rows: How often it is the label.
        predicted: How often its score is the largest (for labels: at least 0.5).
        recall: The share of its rows in which it is predicted; None without rows.
        share: The share of all rows that have it.
        mean: Its mean score.
        mean_after: Its mean probability after the recommended method, on the sample; None without one.
        ece: The calibration error of its score, on the sample.
        ece_after: The same after the recommended method; None without one.
    """

    name: str
    rows: int
    predicted: int
    recall: float | None
    share: float
    mean: float
    mean_after: float | None
    ece: float
    ece_after: float | None


@dataclasses.dataclass(frozen=True)
class EtaConfidence:
    """Where the scores are below or above what the objective says they mean (the paper's Theorem 8).

    Attributes:
        gamma: The one gamma of the objective; None where it has none, or further options.
        tau_oc: Scores up to it are eta-overconfident; None without a gamma > 0.
        tau_uc: Scores from it on are eta-underconfident; None without a gamma > 0.
        under: The share of rows whose largest score is below the largest posterior.
        equal: The share where both are the same.
        over: The share where it is above.
        edges: Of a histogram of the largest score.
        counts_under: Eta-underconfident rows in each of its bins.
        counts_equal: Rows where both are the same.
        counts_over: Eta-overconfident rows.
    """

    gamma: float | None
    tau_oc: float | None
    tau_uc: float | None
    under: float
    equal: float
    over: float
    edges: Numbers1
    counts_under: tuple[int, ...]
    counts_equal: tuple[int, ...]
    counts_over: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Curve:
    """What a raw score means: probability by score.

    Attributes:
        name: The class, or how the other classes share the rest.
        score: Raw scores.
        probability: What they mean.
        method: By which method.
    """

    name: str
    score: Numbers1
    probability: Numbers1
    method: str


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """What the recommended method does to thresholds, and psi beside it if that is another one.

    Attributes:
        exact: Whether the score alone tells the probability: for two classes, and for sigmoids.
        curves: Of each method one if exact; otherwise one for each way in which the other classes can share
            the rest. None of a method that has numbers for each class or label.
        points: Score and probability of some rows by the recommended method, for the largest class.
        wanted: Probabilities.
        scores: For each of the curves, the scores that mean the probabilities wanted; NaN for none.
        method: The recommended method; psi where none could be compared.
    """

    exact: bool
    curves: tuple[Curve, ...]
    points: tuple[tuple[float, float], ...]
    wanted: Numbers1
    scores: tuple[Numbers1, ...]
    method: str


@dataclasses.dataclass(frozen=True)
class Grid:
    """The diagram of a sample for each gamma and each temperature.

    Attributes:
        n_rows: Rows of the sample that it was computed from.
        gammas: Empty where the objective has no single gamma; then there is one row, its posterior.
        temperatures: The divisors of the logits.
        counts: Rows in each bin, by gamma and temperature. So are the next two.
        hits: Hits in each bin.
        confidence: Mean confidence in each bin, rounded to 6 digits; 0 without rows.
        ece: By gamma and temperature.
        nll: By gamma and temperature.
        start: Where the sliders begin: positions in gammas and temperatures.
        presets: Names of methods with their positions.
    """

    n_rows: int
    gammas: Numbers1
    temperatures: Numbers1
    counts: tuple[tuple[tuple[int, ...], ...], ...]
    hits: tuple[tuple[tuple[int, ...], ...], ...]
    confidence: tuple[tuple[Numbers1, ...], ...]
    ece: tuple[Numbers1, ...]
    nll: tuple[Numbers1, ...]
    start: tuple[int, int]
    presets: tuple[tuple[str, tuple[int, int]], ...]


@dataclasses.dataclass(frozen=True)
class Numbers:
    """All numbers of a report.

    Attributes:
        name: Of the model.
        task: "binary", "multiclass" or "multilabel".
        objective: What the model was said to be trained with.
        objective_given: Whether that was said, or is the default.
        from_logits: Whether the scores are logits.
        n_rows: Rows seen.
        n_sample: Rows that methods were fitted and compared on.
        seed: Of the sample and of the selector.
        level: Of all intervals.
        metrics: Of the scores as they are, on all rows: nll, brier, ece, mce, classwise_ece, error_rate.
        selection: What the selector found; None where it refused.
        refusal: Why; None where it did not.
        tone: What the verdict asks for: "keep", "act", "unclear", or "none".
        headline: The verdict in a few words.
        sentence: The verdict in a sentence or two.
        warnings: What to know about the data.
        before: The diagram of the scores as they are, all rows.
        after: The held-out diagram of the method ``after_name``; None without a selection.
        after_name: The recommended method, or if that is "raw", psi to compare with.
        classes: A row for each class or label.
        eta: Where the scores are below or above what they mean.
        thresholds: What scores mean.
        grid: The diagram for each gamma and temperature.
        python: Code that applies the recommendation.
        command: The command that does so.
    """

    name: str
    task: str
    objective: Objective
    objective_given: bool
    from_logits: bool
    n_rows: int
    n_sample: int
    seed: int
    level: float
    metrics: dict[str, float]
    selection: Selection | None
    refusal: str | None
    tone: Tone
    headline: str
    sentence: str
    warnings: tuple[str, ...]
    before: Diagram
    after: Diagram | None
    after_name: str | None
    classes: tuple[ClassRow, ...]
    eta: EtaConfidence
    thresholds: Thresholds
    grid: Grid
    python: str
    command: str

    @property
    def n_classes(self) -> int:
        """How many classes or labels."""
        return len(self.classes)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary that JSON can hold; what is not finite is None."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields["objective"] = self.objective.to_dict()
        fields["selection"] = None if self.selection is None else self.selection.to_dict()
        plain: dict[str, Any] = _plain(fields)
        return plain


def _tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x.tolist())


def _plain(x: Any) -> Any:
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {f.name: _plain(getattr(x, f.name)) for f in dataclasses.fields(x)}
    if isinstance(x, dict):
        return {key: _plain(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_plain(value) for value in x]
    if isinstance(x, float):
        return x if math.isfinite(x) else None
    return x
