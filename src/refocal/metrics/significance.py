"""A test of calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Unpack, overload

import numpy as np

from refocal._checks import check_count
from refocal._rows import Booleans, Floats, RowOptions, Rows, Target, checked_rows, checked_target
from refocal.metrics.binning import make_bins
from refocal.metrics.cells import cells_of
from refocal.metrics.errors import TargetOptions
from refocal.metrics.measures import Average, checked_average


class Options(TargetOptions, total=False):
    """What the test takes beside scores, labels, bins and average."""

    n_simulations: int
    seed: int


@dataclass(frozen=True)
class CalibrationTest:
    """Whether calibrated probabilities would show such a calibration error.

    Attributes:
        statistic: The expected calibration error of the rows.
        p_value: How often labels drawn from the probabilities give at least as much.
        n_simulations: How often labels were drawn.

    Example:
        >>> CalibrationTest(0.01, 0.4, 1000).p_value
        0.4
    """

    statistic: float
    p_value: float
    n_simulations: int


@overload
def calibration_test(
    probs: Any, labels: Any, n_bins: int = 10, *, average: Literal["none"], **options: Unpack[Options]
) -> list[CalibrationTest]: ...


@overload
def calibration_test(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    average: Literal["pooled", "macro"] | None = None,
    **options: Unpack[Options],
) -> CalibrationTest: ...


def calibration_test(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    from_logits: bool = False,
    target: Target | None = None,
    n_simulations: int = 1000,
    seed: int = 0,
    average: Average | None = None,
    **options: Unpack[RowOptions],
) -> CalibrationTest | list[CalibrationTest]:
    r"""Test whether the confidences are calibrated, that is, P(hit | confidence) = confidence.

    If they are, hits are independent draws with the confidences as probabilities. Such hits are drawn
    :math:`R` times, and with :math:`r` of the drawn expected calibration errors at least as large as the
    observed one, the p-value is :math:`(1 + r) / (1 + R)`. It is exact for any number of rows: of
    calibrated models at most a share p has a p-value of p or less.

    Independent labels of a row may depend on each other in a way that nobody knows, so hits cannot be drawn.
    Under calibration the residuals of a row, hit minus confidence summed over each bin, have expectation 0:
    their signs are drawn instead, one for each row, which keeps the dependence. This holds for many rows with
    hits and misses in the bins, not for few. (With ``average="none"`` each label has the exact test.)

    A large p-value is no proof of calibration: the rows may be too few, or gaps may cancel within a bin.

    Args:
        probs: As for `refocal.ece`.
        labels: As for `refocal.ece`.
        n_bins: How many bins of equal width.
        from_logits: Whether probs are logits.
        target: As for `refocal.ece`.
        n_simulations: R.
        seed: Of the draws.
        average: As for `refocal.ece`.
        **options: ``task``, ``axis``, ``ignore_index`` and ``classes``, as for `refocal.ece`.

    Returns:
        A `CalibrationTest`; with ``average="none"`` a list of them, one for each independent label.

    Raises:
        TypeError: If probs are not floats or labels not integers.
        ValueError: If an argument is wrong.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> p = rng.uniform(0.5, 1, size=1000)
        >>> probs, u = np.stack([p, 1 - p], axis=1), rng.random(1000)
        >>> calibration_test(probs, (u > p).astype(int)).p_value > 0.05
        True
        >>> calibration_test(probs, (u > p - 0.1).astype(int)).p_value < 0.01
        True
    """
    make_bins(n_bins)  # which checks it
    check_count("n_simulations", n_simulations, 1)
    check_count("seed", seed, 0)
    rows = checked_rows(probs, labels, from_logits=from_logits, **options)
    average = checked_average(average, rows)
    if average == "none":
        each = (rows.label(j) for j in range(rows.n_labels))
        return [_draw_hits(one, n_bins, target, n_simulations, seed) for one in each]
    if rows.n_labels == 1:
        return _draw_hits(rows, n_bins, target, n_simulations, seed)
    cells, rng = cells_of("ece", rows, n_bins, target, average), np.random.default_rng(seed)
    signs = (rng.integers(2, size=rows.n_rows) * 2.0 - 1 for _ in range(n_simulations))
    drawn = np.abs(cells.weighted(signs, n_simulations)).sum(axis=1)
    return _tested(float(np.abs(cells.gaps).sum()), drawn)


def _draw_hits(
    rows: Rows, n_bins: int, target: Target | None, n_simulations: int, seed: int
) -> CalibrationTest:
    """Return the test of independent entries, by hits drawn from the confidences."""
    confidence, hit = rows.confidence(checked_target(target, rows))
    index = make_bins(n_bins).index(confidence)
    expected = np.bincount(index, confidence, n_bins)

    def error(hits: Booleans) -> float:
        found = np.bincount(index[hits], minlength=n_bins)
        return float(np.abs(found - expected).sum() / len(hits))

    rng = np.random.default_rng(seed)
    return _tested(
        error(hit), np.array([error(rng.random(len(hit)) < confidence) for _ in range(n_simulations)])
    )


def _tested(statistic: float, drawn: Floats) -> CalibrationTest:
    reached = int((drawn >= statistic - 1e-12).sum())  # equal up to the rounding of the sums counts as equal
    return CalibrationTest(statistic, (1 + reached) / (1 + len(drawn)), len(drawn))
