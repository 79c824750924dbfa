"""How good class probabilities are: calibration errors and proper scores.

Input of every function is checked value by value. It is probabilities, or logits where the caller says
``from_logits=True``; nothing is guessed from the values. Numbers are computed in float64, in row blocks, by
pure functions on `refocal._rows.Rows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from refocal._rows import Floats, Rows, Target, checked_rows, checked_scores, checked_target
from refocal.metrics.binning import Binned, Convention, bin_rows, equal_mass_edges, make_bins

GRID = 1 << 13
"""Intervals of the grid of `smooth_ece`, a tenth of its kernel's width or less up to about 1e6 rows."""


def ece(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    from_logits: bool = False,
    target: Target | None = None,
    convention: Convention = "refocal",
) -> float:
    r"""Return the expected calibration error of the largest class.

    .. math:: \mathrm{ECE} = \sum_j \frac{|B_j|}{n} |\mathrm{acc}(B_j) - \mathrm{conf}(B_j)|

    It is biased upward: of n rows of a calibrated model it is at most about
    :math:`\sqrt{n_{bins} / n} / 3`, as much where hits are as likely as misses.
    See `debiased_ece`, `refocal.confidence_interval` and `refocal.calibration_test`.

    Args:
        probs: Probabilities, shape (n, K), or (n,) for class 1 of two; NumPy, PyTorch, JAX.
        labels: Integers within 0..K-1, shape (n,).
        n_bins: How many bins of equal width, (lo, hi]; see `refocal.CalibrationStats`.
        from_logits: Whether probs are logits; of shape (n,), log odds of class 1.
        target: For shape (n,): "top" for the likelier class of a row, "positive" for class 1. Must be said.
        convention: Whose rule for the edges; see `refocal.CalibrationStats`.

    Raises:
        TypeError: If probs are not floats or labels not integers.
        ValueError: If a shape or a value is wrong.

    Example:
        >>> ece(np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([0, 0]))
        0.25
    """
    return _binned(probs, labels, n_bins, from_logits, target, convention).ece()


def mce(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    from_logits: bool = False,
    target: Target | None = None,
    convention: Convention = "refocal",
) -> float:
    r"""Return the maximum calibration error of the largest class, over the bins that have rows.

    .. math:: \mathrm{MCE} = \max_j |\mathrm{acc}(B_j) - \mathrm{conf}(B_j)|

    Args and Raises: As for `ece`.

    Example:
        >>> mce(np.array([[0.75, 0.25], [0.125, 0.875]]), np.array([0, 0]))
        0.875
    """
    return _binned(probs, labels, n_bins, from_logits, target, convention).mce()


def classwise_ece(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    from_logits: bool = False,
    convention: Convention = "refocal",
) -> float:
    r"""Return the expected calibration error of every class's own probability, averaged over the classes.

    .. math:: \frac{1}{K} \sum_k \sum_j \frac{|B_{j,k}|}{n}
        |\mathrm{prop}_k(B_{j,k}) - \mathrm{conf}_k(B_{j,k})|

    A class that is never the label counts like any other.

    Args and Raises: As for `ece`; shape (n,) is class 1 of two classes.

    Example:
        >>> classwise_ece(np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([0, 0]))
        0.5
    """
    rows = checked_rows(probs, labels, from_logits=from_logits)
    return bin_rows(rows, make_bins(n_bins, convention), "top", classwise=True).classwise_ece()


def adaptive_ece(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    from_logits: bool = False,
    target: Target | None = None,
) -> float:
    r"""Return the expected calibration error over bins that hold about the same number of rows.

    The upper edge of bin j is the confidence of rank :math:`\lceil j n / n_{bins} \rceil`, and bins are
    (lo, hi]: equal confidences are never split, so there may be fewer bins.

    Args and Raises: As for `ece`.

    Example:
        >>> probs = np.array([[0.6, 0.4], [0.6, 0.4], [0.9, 0.1], [1.0, 0.0]])
        >>> round(adaptive_ece(probs, np.array([0, 1, 0, 0]), n_bins=2), 3)  # gaps 0.1 and 0.05
        0.075
    """
    rows = checked_rows(probs, labels, from_logits=from_logits)
    confidence, hit = rows.confidence(checked_target(target, rows))
    index = np.searchsorted(equal_mass_edges(confidence, n_bins), confidence)
    return float(np.abs(np.bincount(index, hit - confidence)).sum() / len(hit))


def debiased_ece(
    probs: Any,
    labels: Any,
    n_bins: int = 10,
    *,
    from_logits: bool = False,
    target: Target | None = None,
) -> float:
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
    binned = _binned(probs, labels, n_bins, from_logits, target, "refocal")
    n, hits, sums = (x[0][binned.counts[0] > 0] for x in binned)
    a, c = hits / n, sums / n
    mean, _ = folded_normal(a - c, np.sqrt(a * (1 - a) / n))
    return max(0.0, float(n @ (2 * np.abs(a - c) - mean)) / binned.n)


def smooth_ece(
    probs: Any,
    labels: Any,
    *,
    from_logits: bool = False,
    target: Target | None = None,
) -> float:
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
    rows = checked_rows(probs, labels, from_logits=from_logits)
    confidence, hit = rows.confidence(checked_target(target, rows))
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


def nll(
    probs: Any, labels: Any, *, from_logits: bool = False, reduction: Literal["mean", "sum"] = "mean"
) -> float:
    r"""Return the negative log-likelihood of the labels in nats.

    .. math:: -\frac{1}{n} \sum_i \log q_{y_i}(x_i)

    It is infinite where a label has probability 0, and slightly negative where a row that sums to a little
    more than 1, within the tolerance, gives its label more than 1.

    Args:
        probs: As for `ece`; shape (n,) is class 1 of two classes.
        labels: As for `ece`.
        from_logits: As for `ece`. Logits are the better input: they do not round to 0.
        reduction: "mean" over the rows, or their "sum" as in the paper.

    Raises:
        TypeError: If probs are not floats or labels not integers.
        ValueError: If a shape, a value or reduction is wrong.

    Example:
        >>> round(nll(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 1])), 4)
        0.4904
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
    losses = nll_rows(checked_rows(probs, labels, from_logits=from_logits))
    return float(losses.mean() if reduction == "mean" else losses.sum())


def brier(probs: Any, labels: Any, *, from_logits: bool = False) -> float:
    r"""Return the Brier score: the squared error over all classes, averaged over the rows.

    .. math:: \frac{1}{n} \sum_i \sum_k (q_k(x_i) - 1[y_i = k])^2

    It is within 0..2; of two classes it is twice the squared error of class 1.

    Args and Raises: As for `nll`.

    Example:
        >>> brier(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 1]))
        0.3125
    """
    return float(brier_rows(checked_rows(probs, labels, from_logits=from_logits)).mean())


def error_rate(probs: Any, labels: Any, *, from_logits: bool = False) -> float:
    """Return the share of rows whose largest class (the first of several) is not the label.

    Args and Raises: As for `nll`.

    Example:
        >>> error_rate(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([1, 1]))
        0.5
    """
    return float(error_rows(checked_rows(probs, labels, from_logits=from_logits)).mean())


def kl_divergence(posterior: Any, probs: Any, *, from_logits: bool = False) -> float:
    r"""Return how far probabilities are from the true posterior, in nats, averaged over the rows.

    .. math:: \frac{1}{n} \sum_i \sum_k \eta_k(x_i) \log \frac{\eta_k(x_i)}{q_k(x_i)}

    A class of true probability 0 counts 0; it is infinite where q is 0 and eta is not. Rows whose sums are
    not exactly 1, but within the tolerance, may make it slightly negative.

    Args:
        posterior: The truth eta, shape (n, K), or (n,) for class 1 of two.
        probs: The estimate q, of the same shape.
        from_logits: Whether probs are logits.

    Raises:
        TypeError: If one of the two is not floats.
        ValueError: If a shape or a value is wrong.

    Example:
        >>> round(kl_divergence(np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]])), 4)
        0.1438
    """
    truth = checked_scores(posterior, name="posterior")
    scores = checked_scores(probs, from_logits=from_logits)
    if truth.values.shape != scores.values.shape:
        raise ValueError(
            f"{scores.name} must have the shape {truth.values.shape} of posterior, got {scores.values.shape}"
        )
    total = 0.0
    for (_, eta), (_, log_q) in zip(truth.blocks(), scores.log_blocks(), strict=True):
        some = eta > 0
        eta = eta[some].astype(np.float64)
        total += float(eta @ (np.log(eta) - log_q[some]))
    return total / truth.n_rows


def nll_rows(rows: Rows) -> Floats:
    """Return the negative log-likelihood of each row."""
    found, from_probs = np.empty(rows.n_rows), rows.kind == "probs"
    for at, block in rows.blocks() if from_probs else rows.log_blocks():
        found[at] = block[np.arange(len(block)), rows.labels[at]]
    if from_probs:
        with np.errstate(divide="ignore"):  # log 0 is -inf
            np.log(found, out=found)
    return np.subtract(0, found, out=found)  # not -found: a loss of -0.0 would look odd


def brier_rows(rows: Rows) -> Floats:
    """Return the Brier score of each row."""
    found = np.empty(rows.n_rows)
    for at, block in rows.blocks():
        error = np.array(block, dtype=np.float64)
        error[np.arange(len(block)), rows.labels[at]] -= 1
        found[at] = np.einsum("ij,ij->i", error, error)
    return found


def error_rows(rows: Rows) -> Floats:
    """Return 1.0 for each row whose largest class is not the label, and 0.0 for the others."""
    return 1.0 - rows.confidence("top")[1]


def folded_normal(mean: Floats, sd: Floats) -> tuple[Floats, Floats]:
    """Return mean and variance of |X| for normal X."""
    t = mean / np.where(sd > 0, sd, 1)
    erf = np.array([math.erf(x / math.sqrt(2)) for x in t])
    folded = np.where(sd > 0, sd * math.sqrt(2 / math.pi) * np.exp(-0.5 * t * t) + mean * erf, np.abs(mean))
    return folded, np.maximum(mean**2 + sd**2 - folded**2, 0)


def bisect(is_above: Callable[[float], bool], low: float, high: float, steps: int) -> tuple[float, float]:
    """Return the bracket, halved again and again, of the point up to which a condition holds."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if is_above(middle) else (low, middle)
    return low, high


def _binned(
    probs: Any, labels: Any, n_bins: int, from_logits: bool, target: Target | None, convention: Convention
) -> Binned:
    rows = checked_rows(probs, labels, from_logits=from_logits)
    return bin_rows(rows, make_bins(n_bins, convention), checked_target(target, rows))
