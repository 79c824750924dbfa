"""The focal loss for ``xgboost.train`` and ``lightgbm.train``: objective, start and metric."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from refocal import Focal, SigmoidFocal
from refocal.sklearn._base import softmax_logits
from refocal.sklearn._gradients import Floats, kernels

NO_SHIFT, MOST_SHIFTS = 1e-4, 10
"""How close, relatively, the mean posterior is brought to the prior, and in how many steps at most."""

SMALL_SHIFT, ROWS_FOR_SLOPES = 1e-3, 10_000
"""How the derivatives of the mean posterior are found: by differences, on about so many rows."""

LONGEST_STEP = 2.0
"""Of 8, 4, 2 and no bound, the one with the least divergence from known posteriors: docs/boosting.md."""

SMALLEST_CURVATURE = 1e-16
"""What XGBoost's own losses have: a leaf of rows without curvature would divide by 0."""


@dataclasses.dataclass(frozen=True)
class FocalObjective:
    """What `focal_objective` returns: call it with scores and the engine's data for gradient and curvature.

    Attributes:
        objective: The loss, as a softmax over all classes; two classes have the logits (0, score).
        start: The scores before the first tree, those that minimise the loss for the class prior; one number
            with two classes, else one for each class.
        factor: Multiplies gradient and curvature, so that the curvature at the start is the log loss's.
        damping: Multiplies the curvature of several classes, whose trees all move at once.
        longest_step: The curvature is at least the gradient's size divided by this.
    """

    objective: Focal
    start: tuple[float, ...]
    factor: float
    damping: float
    longest_step: float

    def __call__(self, scores: Floats, data: Any) -> tuple[Floats, Floats]:
        """Return gradient and curvature in float32, with the shape of the scores.

        Args:
            scores: The model's, for each row, or for each row and class.
            data: An ``xgboost.DMatrix`` or ``lightgbm.Dataset`` with labels 0..K-1 and perhaps weights.
        """
        weight = data.get_weight()
        return self.gradients(scores, data.get_label(), np.empty(0) if weight is None else weight)

    def gradients(self, scores: Floats, labels: Floats, sample_weight: Floats) -> tuple[Floats, Floats]:
        """Return gradient and curvature for labels 0..K-1; an empty sample_weight is none."""
        if len(labels) != len(scores):
            raise ValueError(f"labels must be as many as scores, got {len(labels)} for {len(scores)}")
        k = self._n_classes
        if scores.shape[1:] != (() if k == 2 else (k,)):
            raise ValueError(
                f"scores must have {'one axis' if k == 2 else f'{k} columns'}, got shape {scores.shape}; "
                "num_class of the engine and the number of priors differ"
            )
        if not (labels.min() >= 0 and labels.max() <= k - 1):  # machine code would read beyond its arrays
            raise ValueError(f"labels must be within 0..{k - 1}, got {labels.min()}..{labels.max()}")
        order = "F" if scores.ndim == 2 and scores.flags.f_contiguous else "C"
        grad = np.empty(scores.shape, np.float32, order=order)  # type: ignore[call-overload]
        hess = np.empty(scores.shape, np.float32, order=order)  # type: ignore[call-overload]
        weights = np.ones(k) if self.objective.weight is None else np.array(self.objective.weight)
        gamma = self.objective.gamma
        options: tuple[Any, ...]
        if k == 2:
            options = (gamma, weights[1], weights[0], self.factor, 1 / self.longest_step)
            kernels().binary(scores, labels, sample_weight, *options, grad, hess)
        else:
            options = (gamma, weights, self.factor, self.damping, 1 / self.longest_step)
            kernels().softmax(scores, labels, sample_weight, *options, grad, hess)
        return grad, np.maximum(hess, np.float32(SMALLEST_CURVATURE), out=hess)

    @property
    def _n_classes(self) -> int:
        return max(2, len(self.start))


def focal_objective(
    objective: Focal | SigmoidFocal,
    prior: Any,
    *,
    damping: float | None = None,
    longest_step: float = LONGEST_STEP,
) -> FocalObjective:
    r"""Return the focal loss as an objective for ``xgboost.train`` and ``lightgbm.train``.

    The curvature is the second derivative of the loss, averaged over labels drawn from the posterior that
    belongs to the scores: positive, and exact on average where the model is right. Loss and curvature are
    multiplied by one number, which moves no minimiser, such that the curvature at the start is
    prior (1 - prior), as for the log loss: ``min_child_weight``, ``min_sum_hessian_in_leaf`` and ``lambda``
    keep their meaning, up to what `longest_step` adds to rows of a rare class.

    Training has to begin at ``start``: give it to XGBoost as ``base_score``, to LightGBM as ``init_score``.
    The posterior is ``.objective.posterior`` of the logits, for two classes those of (0, score).

    Args:
        objective: `refocal.SigmoidFocal` for two classes, or `refocal.Focal`; gamma one number, no label
            smoothing.
        prior: The share of y = 1, or of each class, in the training data, with sample weights where there
            are some.
        damping: Multiplies the curvature of three or more classes; None for K/(K-1), as LightGBM's softmax
            has it. XGBoost's has 2.
        longest_step: No leaf moves a score further than this, before the learning rate: the curvature is at
            least the gradient's size divided by it. Where few rows are positive, a Newton step without a
            bound leaps: LightGBM, which has no lambda by default, diverges at 1 in 1000, with the log loss
            too. math.inf for no bound.

    Raises:
        TypeError: If the objective is another one, or has a gamma for each class.
        ValueError: If it smooths labels, or a prior is not within (0, 1).

    Example:
        >>> import refocal
        >>> found = focal_objective(refocal.SigmoidFocal(gamma=2.0, alpha=None), prior=0.01)
        >>> round(found.start[0], 3)  # the log loss would start at log(0.01 / 0.99) = -4.595
        -1.706
        >>> found.gradients(np.array(found.start), np.zeros(1), np.empty(0))[1].round(4)  # 0.01 * 0.99
        array([0.0099], dtype=float32)
    """
    shares = _shares(prior)
    softmax = _as_softmax(objective, len(shares))
    logits = np.asarray(softmax.logits(shares))
    k = len(shares)
    start = logits[1:] - logits[:1] if k == 2 else logits - logits.mean()
    unit = FocalObjective(softmax, tuple(start.tolist()), 1.0, 1.0, np.inf)
    _, hess = unit.gradients(start if k == 2 else start[None], np.zeros(1), np.empty(0))
    wanted = shares[0] * shares[1] if k == 2 else (shares * (1 - shares)).sum()
    return dataclasses.replace(
        unit,
        factor=float(wanted / hess.sum()),
        damping=k / (k - 1) if damping is None else damping,
        longest_step=longest_step,
    )


def _shares(prior: Any) -> Floats:
    shares = np.asarray(prior, dtype=np.float64)
    shares = np.array([1 - shares, shares]) if shares.ndim == 0 else shares
    if shares.ndim != 1 or len(shares) < 2 or not ((shares > 0) & (shares < 1)).all():
        raise ValueError(f"prior must be within (0, 1), for y = 1 or for each class, got {prior!r}")
    total: Floats = shares / shares.sum()
    return total


def _as_softmax(objective: Any, n_classes: int) -> Focal:
    if isinstance(objective, SigmoidFocal):
        if n_classes != 2:
            raise ValueError(f"objective must be a Focal for {n_classes} classes, got {objective!r}")
        alpha = objective.alpha
        if alpha is not None and not isinstance(alpha, float):
            raise TypeError(f"alpha must be a number, got {alpha!r}")
        weight = None if alpha is None else (1 - alpha, alpha)
        objective = Focal(objective.gamma, weight, objective.label_smoothing)
    if not isinstance(objective, Focal):
        raise TypeError(f"objective must be a Focal or SigmoidFocal, got {objective!r}")
    if not isinstance(objective.gamma, float):
        raise TypeError(f"gamma must be a number, got {objective.gamma!r}")
    if objective.label_smoothing:
        raise ValueError(f"label_smoothing must be 0, got {objective.label_smoothing}")
    if objective.weight is not None and len(objective.weight) != n_classes:
        raise ValueError(
            f"weight must have one number for each of the {n_classes} classes, got {len(objective.weight)}"
        )
    return objective


def base_rate_shift(
    objective: Focal | SigmoidFocal, scores: Any, prior: Any, sample_weight: Any = None
) -> Floats:
    """Return what to add to all scores so that the mean posterior is the class prior.

    The log loss keeps the base rate by itself, as its gradients are the residuals, which sum to 0 at the end.
    Those of the focal loss are residuals with weights, and a few hundred trees leave the mean posterior some
    percent off. The shift is a change of the start; it keeps the order of rows.

    Args:
        objective: What was trained with, as for `focal_objective`.
        scores: The model's, on its training data.
        prior: The share of y = 1, or of each class, as for `focal_objective`.
        sample_weight: A number >= 0 for each row, or None.

    Returns:
        One number with two classes, else one for each class, as an array.

    Example:
        >>> import refocal
        >>> spec, posterior = refocal.SigmoidFocal(2.0, alpha=None), np.array([0.1, 0.2, 0.3])
        >>> base_rate_shift(spec, spec.logits(posterior) - 0.5, 0.2).round(3)
        array([0.5])
    """
    logits = softmax_logits(np.asarray(scores, dtype=np.float64))
    softmax, shares = _as_softmax(objective, logits.shape[1]), _shares(prior)
    weight = None if sample_weight is None or not len(sample_weight) else sample_weight
    some = slice(None, None, max(1, len(logits) // ROWS_FOR_SLOPES))
    free = slice(1, None) if np.ndim(scores) == 1 else slice(None)  # of two classes the first logit stays 0

    def log_means(shift: Floats, rows: slice = slice(None)) -> Floats:
        probs = np.exp(softmax.log_posterior(logits[rows] + shift))
        means: Floats = np.log(np.average(probs, axis=0, weights=None if weight is None else weight[rows]))
        return means

    shift = np.zeros(logits.shape[1])
    gap = np.log(shares) - log_means(shift)
    for _ in range(MOST_SHIFTS):
        if np.abs(gap).max() < NO_SHIFT:
            break
        moves = SMALL_SHIFT * np.eye(len(shift))[free]
        slopes = np.array([log_means(shift + move, some) - log_means(shift - move, some) for move in moves])
        step = np.zeros_like(shift)
        step[free] = np.linalg.lstsq(slopes.T / (2 * SMALL_SHIFT), gap, rcond=1e-6)[0]
        step = np.clip(step, -1, 1)
        new_gap = np.log(shares) - log_means(shift + step)
        if not np.abs(new_gap).max() < np.abs(gap).max():
            break  # scores so extreme that no shift helps
        shift, gap = shift + step, new_gap
    return shift[free]


Metric = Callable[[Any, Floats], float]
METRICS = ("nll", "brier")


def focal_metric(objective: Focal | SigmoidFocal, metric: str | Metric = "nll") -> Callable[..., Any]:
    """Return a metric of the posterior, for ``custom_metric`` of XGBoost and ``feval`` of LightGBM.

    Smaller is better. Rows have the weights of the engine's data.

    Args:
        objective: What is trained with, as for `focal_objective`.
        metric: "nll", "brier", or a function of labels 0..K-1 and the posterior, a column for each class.

    Returns:
        A function of scores and data. It answers as the engine wants that the data is of: (name, value) for
        XGBoost, (name, value, False) for LightGBM.

    Example:
        >>> import refocal
        >>> metric = focal_metric(refocal.Focal(2.0), "brier")
        >>> metric.__name__
        'brier'
    """
    if not callable(metric) and metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, or callable, got {metric!r}")
    name = getattr(metric, "__name__", type(metric).__name__) if callable(metric) else metric

    def measure(scores: Floats, data: Any) -> tuple[Any, ...]:
        logits = softmax_logits(np.asarray(scores, dtype=np.float64))
        log_probs = np.asarray(_as_softmax(objective, logits.shape[1]).log_posterior(logits))
        labels = np.asarray(data.get_label()).astype(np.int64)
        if callable(metric):
            value = float(metric(labels, np.exp(log_probs)))
        else:
            weight = data.get_weight()
            weight = weight if weight is not None and len(weight) else None
            value = float(np.average(_row_losses(metric, log_probs, labels), weights=weight))
        is_lightgbm = type(data).__module__.split(".")[0] == "lightgbm"
        return (name, value, False) if is_lightgbm else (name, value)

    measure.__name__ = name
    return measure


def _row_losses(metric: str, log_probs: Floats, labels: Any) -> Floats:
    rows = np.arange(len(labels))
    if metric == "nll":
        nll: Floats = -log_probs[rows, labels]
        return nll
    probs = np.exp(log_probs)
    probs[rows, labels] -= 1
    squares: Floats = (probs**2).sum(axis=1)
    return squares
