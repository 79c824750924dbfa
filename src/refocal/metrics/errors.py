"""Calibration errors: how far confidences are from the share of hits, by bins or without.

Input is checked and read as that of `refocal.metrics.measures`.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

import numpy as np

from refocal._rows import Booleans, Floats, RowOptions, Rows, Target, checked_rows, checked_target
from refocal.metrics.binning import Convention, bin_rows, equal_mass_edges, make_bins
from refocal.metrics.measures import Average, Options, averaged, bisect, checked_average, folded_normal

GRID = 1 << 13
"""Intervals of the grid of `smooth_ece`, a tenth of its kernel's width or less up to about 1e6 rows."""


class TargetOptions(Options, total=False):
    """What a calibration error takes beside scores, labels and bins."""

    target: Target | None


class ClassOptions(Options, total=False):
    """What classwise_ece takes."""

    convention: Convention


class BinOptions(TargetOptions, total=False):
    """The same, with whose bins."""

    convention: Convention


@overload
def ece(
    probs: Any, labels: Any, n_bins: int = 10, *, average: Literal["none"], **options: Unpack[BinOptions]
) -> Floats: ...


@overload
def ece(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    average: Literal["pooled", "macro"] | None = None,
    **options: Unpack[BinOptions],
) -> float: ...


def ece(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    from_logits: bool = False,
    target: Target | None = None,
    convention: Convention = "refocal",
    average: Average | None = None,
    **options: Unpack[RowOptions],
) -> float | Floats:
    r"""Return the expected calibration error of the largest class.

    .. math:: \mathrm{ECE} = \sum_j \frac{|B_j|}{n} |\mathrm{acc}(B_j) - \mathrm{conf}(B_j)|

    It is biased upward: of n rows of a calibrated model it is at most about
    :math:`\sqrt{n_{bins} / n} / 3`, as much where hits are as likely as misses.
    See `debiased_ece`, `refocal.confidence_interval` and `refocal.calibration_test`.

    Args:
        probs: Probabilities, shape (n, K), (n,) for class 1 of two, or with ``task="multilabel"`` (n, L) for
            independent labels. Of any array library, a frame or column of pandas or polars, or lists. The
            columns of a frame count by position, their names are not read.
        labels: Integers within 0..K-1, shape (n,); of independent labels 0 and 1, shape (n, L). With
            ``classes`` anything.
        n_bins: How many bins of equal width, (lo, hi]; see `refocal.CalibrationStats`.
        from_logits: Whether probs are logits; of shape (n,), log odds of class 1.
        target: Of two classes: "top" for the likelier one of a row, "positive" for class 1. Must be said for
            shape (n,), unless ``task`` is said too: then, and for independent labels, it is "positive".
        convention: Whose rule for the edges; see `refocal.CalibrationStats`.
        average: For independent labels. "pooled" (the default): all n L entries as one binary problem.
            "macro": the mean over the labels. "none": an array with one number for each label.
        task: "binary", "multiclass" or "multilabel". None: (n,) is binary, (n, K) multiclass. Must be said
            for independent labels, and for scores of class 1 in another shape than (n,).
        axis: Where the classes, or the independent labels, are: 1 for (N, C, H, W). Each pixel is then a row.
        ignore_index: A label whose rows are left out, before anything of them is looked at.
        classes: What the labels are, in the order of the columns; for labels that are not 0..K-1.

    Raises:
        TypeError: If probs are not floats or labels not integers.
        ValueError: If a shape or a value is wrong.

    Example:
        >>> ece(np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([0, 0]))
        0.25
        >>> ece([[0.75, 0.25], [0.25, 0.75]], ["cat", "cat"], classes=["cat", "dog"])
        0.25
        >>> ece([[0.75, 0.5], [0.25, 0.5]], [[1, 0], [0, 1]], task="multilabel", average="none")
        array([0.25, 0.  ])
    """
    bins = make_bins(n_bins, convention)
    rows = checked_rows(probs, labels, from_logits=from_logits, **options)
    return averaged(lambda some: bin_rows(some, bins, checked_target(target, some)).ece(), rows, average)


@overload
def mce(
    probs: Any, labels: Any, n_bins: int = 10, *, average: Literal["none"], **options: Unpack[BinOptions]
) -> Floats: ...


@overload
def mce(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    average: Literal["pooled", "macro"] | None = None,
    **options: Unpack[BinOptions],
) -> float: ...


def mce(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    from_logits: bool = False,
    target: Target | None = None,
    convention: Convention = "refocal",
    average: Average | None = None,
    **options: Unpack[RowOptions],
) -> float | Floats:
    r"""Return the maximum calibration error of the largest class, over the bins that have rows.

    .. math:: \mathrm{MCE} = \max_j |\mathrm{acc}(B_j) - \mathrm{conf}(B_j)|

    Args and Raises: As for `ece`.

    Example:
        >>> mce(np.array([[0.75, 0.25], [0.125, 0.875]]), np.array([0, 0]))
        0.875
    """
    bins = make_bins(n_bins, convention)
    rows = checked_rows(probs, labels, from_logits=from_logits, **options)
    return averaged(lambda some: bin_rows(some, bins, checked_target(target, some)).mce(), rows, average)


@overload
def classwise_ece(
    probs: Any, labels: Any, n_bins: int = 10, *, average: Literal["none"], **options: Unpack[ClassOptions]
) -> Floats: ...


@overload
def classwise_ece(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    average: Literal["pooled", "macro"] | None = None,
    **options: Unpack[ClassOptions],
) -> float: ...


def classwise_ece(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    from_logits: bool = False,
    convention: Convention = "refocal",
    average: Average | None = None,
    **options: Unpack[RowOptions],
) -> float | Floats:
    r"""Return the expected calibration error of every class's own probability, averaged over the classes.

    .. math:: \frac{1}{K} \sum_k \sum_j \frac{|B_{j,k}|}{n}
        |\mathrm{prop}_k(B_{j,k}) - \mathrm{conf}_k(B_{j,k})|

    A class that is never the label counts like any other. Independent labels are the classes themselves, so
    theirs is `ece` with ``average="macro"``, the default here.

    Args and Raises: As for `ece`; shape (n,) is class 1 of two classes.

    Example:
        >>> classwise_ece(np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([0, 0]))
        0.5
    """
    bins = make_bins(n_bins, convention)
    rows = checked_rows(probs, labels, from_logits=from_logits, **options)
    if rows.task == "multilabel":
        if average == "pooled":
            raise ValueError("average must be 'macro' or 'none' for classwise_ece, got 'pooled'")
        average = average or "macro"
        return averaged(lambda some: bin_rows(some, bins, "positive").ece(), rows, average)
    checked_average(average, rows)
    return bin_rows(rows, bins, "top", classwise=True).classwise_ece()


@overload
def adaptive_ece(
    probs: Any, labels: Any, n_bins: int = 10, *, average: Literal["none"], **options: Unpack[TargetOptions]
) -> Floats: ...


@overload
def adaptive_ece(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    average: Literal["pooled", "macro"] | None = None,
    **options: Unpack[TargetOptions],
) -> float: ...


def adaptive_ece(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    from_logits: bool = False,
    target: Target | None = None,
    average: Average | None = None,
    **options: Unpack[RowOptions],
) -> float | Floats:
    r"""Return the expected calibration error over bins that hold about the same number of rows.

    The upper edge of bin j is the confidence of rank :math:`\lceil j n / n_{bins} \rceil`, and bins are
    (lo, hi]: equal confidences are never split, so there may be fewer bins.

    Args and Raises: As for `ece`.

    Example:
        >>> probs = np.array([[0.6, 0.4], [0.6, 0.4], [0.9, 0.1], [1.0, 0.0]])
        >>> round(adaptive_ece(probs, np.array([0, 1, 0, 0]), n_bins=2), 3)  # gaps 0.1 and 0.05
        0.075
    """

    def error(rows: Rows) -> float:
        confidence, hit = rows.confidence(checked_target(target, rows))
        index = np.searchsorted(equal_mass_edges(confidence, n_bins), confidence)
        return float(np.abs(np.bincount(index, hit - confidence)).sum() / len(hit))

    return averaged(error, checked_rows(probs, labels, from_logits=from_logits, **options), average)


@overload
def debiased_ece(
    probs: Any, labels: Any, n_bins: int = 10, *, average: Literal["none"], **options: Unpack[TargetOptions]
) -> Floats: ...


@overload
def debiased_ece(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    average: Literal["pooled", "macro"] | None = None,
    **options: Unpack[TargetOptions],
) -> float: ...


def debiased_ece(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    from_logits: bool = False,
    target: Target | None = None,
    average: Average | None = None,
    **options: Unpack[RowOptions],
) -> float | Floats:
    r"""Return the expected calibration error less an estimate of its upward bias, but at least 0.

    Noise makes the gap of a bin larger: where the accuracy a of :math:`n_j` rows has the standard error
    :math:`s_j = \sqrt{a (1 - a) / n_j}`, a gap :math:`g_j` becomes on average
    :math:`m(g_j, s_j) = E|g_j + s_j Z|`, Z standard normal. What is returned is

    .. math:: \sum_j \frac{n_j}{n} \bigl( 2 |g_j| - m(g_j, s_j) \bigr)

    (Kumar et al., 2019, here in closed form). Part of the bias stays where gaps are smaller than noise.

    Args and Raises: As for `ece`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> p = rng.uniform(0.5, 1, size=1000)
        >>> y = (rng.random(1000) > p).astype(int)  # calibrated: the truth is 0
        >>> probs = np.stack([p, 1 - p], axis=1)
        >>> ece(probs, y) > 0.02 > debiased_ece(probs, y)
        True
    """
    bins = make_bins(n_bins)

    def error(rows: Rows) -> float:
        binned = bin_rows(rows, bins, checked_target(target, rows))
        n, hits, sums = (x[0][binned.counts[0] > 0] for x in binned)
        a, c = hits / n, sums / n
        mean, _ = folded_normal(a - c, np.sqrt(a * (1 - a) / n))
        return max(0.0, float(n @ (2 * np.abs(a - c) - mean)) / binned.n)

    return averaged(error, checked_rows(probs, labels, from_logits=from_logits, **options), average)


@overload
def smooth_ece(
    probs: Any, labels: Any, *, average: Literal["none"], **options: Unpack[TargetOptions]
) -> Floats: ...


@overload
def smooth_ece(
    probs: Any,
    labels: Any,
    *,
    average: Literal["pooled", "macro"] | None = None,
    **options: Unpack[TargetOptions],
) -> float: ...


def smooth_ece(
    probs: Any,
    labels: Any,
    *,
    from_logits: bool = False,
    target: Target | None = None,
    average: Average | None = None,
    **options: Unpack[RowOptions],
) -> float | Floats:
    r"""Return the smooth calibration error: no bins, and no jumps when a confidence moves a little.

    The residuals of the rows, hit or not minus confidence, are smoothed by a normal kernel of width
    :math:`\sigma`, reflected at 0 and 1, and the width is the error itself:

    .. math:: \sigma = \int_0^1 \Bigl| \frac{1}{n} \sum_i (a_i - c_i) K_\sigma(t, c_i) \Bigr| dt

    (Blasiok and Nakkiran, 2023). The right side falls in sigma, so there is one solution.

    Args and Raises: As for `ece`.

    Example:
        >>> probs = np.array([[0.75, 0.25]] * 4)
        >>> [round(smooth_ece(probs, np.array(y)), 4) for y in ([0, 0, 0, 1], [0, 0, 0, 0])]
        [0.0, 0.25]
    """
    rows = checked_rows(probs, labels, from_logits=from_logits, **options)
    return averaged(lambda some: _smoothed(*some.confidence(checked_target(target, some))), rows, average)


def _smoothed(confidence: Floats, hit: Booleans) -> float:
    """Return the width of the kernel that is the error of the smoothed residuals."""
    # Each residual is shared by the two nodes of the grid beside it, in proportion to nearness.
    position = np.clip(confidence, 0, 1) * GRID
    node = np.minimum(position.astype(np.intp), GRID - 1)
    share, residual = position - node, (hit - confidence) / len(hit)
    mass = np.bincount(node, residual * (1 - share), GRID + 1)
    mass += np.bincount(node + 1, residual * share, GRID + 1)
    # A normal kernel that is reflected at both ends damps the cosine of frequency pi k by its
    # characteristic function, so one transform serves all widths.
    coefficients = np.fft.rfft(mass, 2 * GRID).real
    frequency = np.pi * np.arange(GRID + 1)
    ends = np.full(GRID + 1, 1.0)
    ends[[0, -1]] = 0.5

    def smoothed(sigma: float) -> float:
        damped = coefficients * np.exp(-0.5 * (frequency * sigma) ** 2)
        return float(np.abs(np.fft.irfft(damped, 2 * GRID)[: GRID + 1] * 2) @ ends)

    return bisect(lambda sigma: smoothed(sigma) > sigma, 0.0, 1.0, 40)[0]
