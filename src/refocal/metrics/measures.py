"""How good class probabilities are: proper scores, and what they share with the calibration errors.

Input of every function is checked value by value. It is probabilities, or logits where the caller says
``from_logits=True``; nothing is guessed from the values. Numbers are computed in float64, in blocks, by
pure functions on `refocal._rows.Rows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, Unpack, get_args, overload

import numpy as np

from refocal._rows import Floats, RowOptions, Rows, Scores, Task, checked_rows, checked_scores

Average: TypeAlias = Literal["pooled", "macro", "none"]


class Options(RowOptions, total=False):
    """What a metric takes beside scores and labels."""

    from_logits: bool


@overload
def nll(
    probs: Any,
    labels: Any,
    *,
    reduction: Literal["mean", "sum"] = "mean",
    average: Literal["none"],
    **options: Unpack[Options],
) -> Floats: ...


@overload
def nll(
    probs: Any,
    labels: Any,
    *,
    reduction: Literal["mean", "sum"] = "mean",
    average: Literal["pooled", "macro"] | None = None,
    **options: Unpack[Options],
) -> float: ...


def nll(
    probs: Any,
    labels: Any,
    *,
    from_logits: bool = False,
    reduction: Literal["mean", "sum"] = "mean",
    average: Average | None = None,
    **options: Unpack[RowOptions],
) -> float | Floats:
    r"""Return the negative log-likelihood of the labels in nats.

    .. math:: -\frac{1}{n} \sum_i \log q_{y_i}(x_i)

    It is infinite where a label has probability 0, and slightly negative where a row that sums to a little
    more than 1, within the tolerance, gives its label more than 1.

    Args:
        probs: As for `ece`; shape (n,) is class 1 of two classes.
        labels: As for `ece`.
        from_logits: As for `ece`. Logits are the better input: they do not round to 0.
        reduction: "mean" over the rows (of independent labels, over their entries), or their "sum" as in
            the paper.
        average: As for `ece`.
        **options: ``task``, ``axis``, ``ignore_index`` and ``classes``, as for `ece`.

    Raises:
        TypeError: If probs are not floats or labels not integers.
        ValueError: If a shape, a value or reduction is wrong.

    Example:
        >>> round(nll(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 1])), 4)
        0.4904
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
    rows = checked_rows(probs, labels, from_logits=from_logits, **options)
    total: Callable[[Floats], Any] = np.mean if reduction == "mean" else np.sum
    return averaged(lambda some: float(total(nll_rows(some))), rows, average)


@overload
def brier(probs: Any, labels: Any, *, average: Literal["none"], **options: Unpack[Options]) -> Floats: ...


@overload
def brier(
    probs: Any, labels: Any, *, average: Literal["pooled", "macro"] | None = None, **options: Unpack[Options]
) -> float: ...


def brier(
    probs: Any,
    labels: Any,
    *,
    from_logits: bool = False,
    average: Average | None = None,
    **options: Unpack[RowOptions],
) -> float | Floats:
    r"""Return the Brier score: the squared error over all classes, averaged over the rows.

    .. math:: \frac{1}{n} \sum_i \sum_k (q_k(x_i) - 1[y_i = k])^2

    It is within 0..2; of two classes, and of an independent label, it is twice the squared error of class 1.

    Args and Raises: As for `nll`.

    Example:
        >>> brier(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 1]))
        0.3125
    """
    rows = checked_rows(probs, labels, from_logits=from_logits, **options)
    return averaged(lambda some: float(brier_rows(some).mean()), rows, average)


@overload
def error_rate(
    probs: Any, labels: Any, *, average: Literal["none"], **options: Unpack[Options]
) -> Floats: ...


@overload
def error_rate(
    probs: Any, labels: Any, *, average: Literal["pooled", "macro"] | None = None, **options: Unpack[Options]
) -> float: ...


def error_rate(
    probs: Any,
    labels: Any,
    *,
    from_logits: bool = False,
    average: Average | None = None,
    **options: Unpack[RowOptions],
) -> float | Floats:
    """Return the share of rows whose largest class (the first of several) is not the label.

    Of independent labels, the share of entries on the wrong side of 1/2, which is the Hamming loss.

    Args and Raises: As for `nll`.

    Example:
        >>> error_rate(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([1, 1]))
        0.5
    """
    rows = checked_rows(probs, labels, from_logits=from_logits, **options)
    return averaged(lambda some: float(error_rows(some).mean()), rows, average)


@overload
def kl_divergence(
    posterior: Any,
    probs: Any,
    *,
    from_logits: bool = False,
    task: Task | None = None,
    axis: int = -1,
    average: Literal["none"],
) -> Floats: ...


@overload
def kl_divergence(
    posterior: Any,
    probs: Any,
    *,
    from_logits: bool = False,
    task: Task | None = None,
    axis: int = -1,
    average: Literal["pooled", "macro"] | None = None,
) -> float: ...


def kl_divergence(
    posterior: Any,
    probs: Any,
    *,
    from_logits: bool = False,
    task: Task | None = None,
    axis: int = -1,
    average: Average | None = None,
) -> float | Floats:
    r"""Return how far probabilities are from the true posterior, in nats, averaged over the rows.

    .. math:: \frac{1}{n} \sum_i \sum_k \eta_k(x_i) \log \frac{\eta_k(x_i)}{q_k(x_i)}

    A class of true probability 0 counts 0; it is infinite where q is 0 and eta is not. Rows whose sums are
    not exactly 1, but within the tolerance, may make it slightly negative.

    Args:
        posterior: The truth eta, shape (n, K), (n,) for class 1 of two, or (n, L) for independent labels.
        probs: The estimate q, of the same shape.
        from_logits: Whether probs are logits.
        task: As for `ece`.
        axis: As for `ece`.
        average: As for `ece`.

    Raises:
        TypeError: If one of the two is not floats.
        ValueError: If a shape or a value is wrong.

    Example:
        >>> round(kl_divergence(np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]])), 4)
        0.1438
    """
    truth = checked_scores(posterior, name="posterior", task=task, axis=axis)
    scores = checked_scores(probs, from_logits=from_logits, task=task, axis=axis)
    if truth.values.shape != scores.values.shape:
        raise ValueError(
            f"{scores.name} must have the shape {truth.values.shape} of posterior, got {scores.values.shape}"
        )
    average = checked_average(average, scores)
    total = np.zeros(scores.n_labels)
    for (_, eta), (_, log_q) in zip(truth.blocks(), scores.log_blocks(), strict=True):
        eta = eta.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(eta > 0, eta * (np.log(eta) - log_q), 0).sum(axis=1)
        total += terms.reshape(-1, scores.n_labels).sum(axis=0)
    each: Floats = total / truth.n_rows
    return each if average == "none" else float(each.mean())


def nll_rows(rows: Rows) -> Floats:
    """Return the negative log-likelihood of each entry."""
    found, from_probs = np.empty(rows.n_entries), rows.kind == "probs"
    for at, block in rows.blocks() if from_probs else rows.log_blocks():
        found[at] = block[np.arange(len(block)), rows.labels[at]]
    if from_probs:
        with np.errstate(divide="ignore"):  # log 0 is -inf
            np.log(found, out=found)
    return np.subtract(0, found, out=found)  # not -found: a loss of -0.0 would look odd


def brier_rows(rows: Rows) -> Floats:
    """Return the Brier score of each entry."""
    found = np.empty(rows.n_entries)
    for at, block in rows.blocks():
        error = np.array(block, dtype=np.float64)
        error[np.arange(len(block)), rows.labels[at]] -= 1
        found[at] = np.einsum("ij,ij->i", error, error)
    return found


def error_rows(rows: Rows) -> Floats:
    """Return 1.0 for each entry whose largest class is not the label, and 0.0 for the others."""
    return 1.0 - rows.confidence("top")[1]


def checked_average(average: object, scores: Scores) -> Average:
    """Return how the independent labels make one number, or many."""
    if average not in (None, *get_args(Average)):
        raise ValueError(f"average must be one of {get_args(Average)}, got {average!r}")
    if average is not None and scores.task != "multilabel":
        raise ValueError(f"average must be None unless task is 'multilabel', got {average!r}")
    found: Average = average or "pooled"  # type: ignore[assignment]  # one of them
    return found


def averaged(metric: Callable[[Rows], float], rows: Rows, average: Average | None) -> float | Floats:
    """Return a metric of all entries; or of each independent label, or their mean."""
    average = checked_average(average, rows)
    if average == "pooled":
        return metric(rows)
    each = np.array([metric(rows.label(j)) for j in range(rows.n_labels)])
    return each if average == "none" else float(each.mean())


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
