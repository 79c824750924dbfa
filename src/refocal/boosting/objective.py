"""The focal loss for ``xgboost.train`` and ``lightgbm.train``: objective, start and metric."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from refocal import Asymmetric, AsymmetricSingleLabel, Focal, Objective, OneVsRest, SigmoidFocal
from refocal.sklearn._base import softmax_logits
from refocal.sklearn._gradients import Floats, kernels
from refocal.sklearn._terms import CONVEX, sigmoid_gradients, softmax_gradients
from refocal.sklearn.posterior import log_posterior

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
        objective: The loss. If it is one on a softmax, two classes have the logits (0, score).
        start: The scores before the first tree, those that minimise the loss for the class prior; one number
            with two classes, else one for each class.
        factor: Multiplies gradient and curvature, so that the curvature at the start is the log loss's.
        damping: Multiplies the curvature of a softmax of several classes, whose trees all move at once.
        longest_step: The curvature is at least the gradient's size divided by this.
    """

    objective: Objective
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
        self._fill(scores, labels, sample_weight, grad, hess)
        return grad, np.maximum(hess, np.float32(SMALLEST_CURVATURE), out=hess)

    def _fill(self, z: Floats, y: Floats, sample_weight: Floats, grad: Floats, hess: Floats) -> None:
        """Fill gradient and curvature: in machine code, where there is some, for the plain focal loss."""
        spec: Any = self.objective
        factor, damping, bound = self.factor, self.damping, 1 / self.longest_step
        if spec.scores != "softmax":
            sigmoid_gradients(spec, z, y, sample_weight, factor, bound, grad, hess)
        elif isinstance(spec, Focal) and isinstance(spec.gamma, float) and not spec.label_smoothing:
            weights = np.ones(self._n_classes) if spec.weight is None else np.array(spec.weight)
            if z.ndim == 1:
                options: tuple[Any, ...] = (spec.gamma, weights[1], weights[0], factor, bound)
                kernels().binary(z, y, sample_weight, *options, grad, hess)
            else:
                options = (spec.gamma, weights, factor, damping, bound)
                kernels().softmax(z, y, sample_weight, *options, grad, hess)
        elif z.ndim == 2:
            softmax_gradients(spec, z, y, sample_weight, factor, damping, bound, grad, hess)
        else:  # the second of two classes: the first one's score is 0 and stays so
            both = np.empty((2, len(z), 2))
            softmax_gradients(spec, softmax_logits(z), y, sample_weight, factor, 1.0, bound, *both)
            grad[:], hess[:] = both[0, :, 1], both[1, :, 1]

    @property
    def _n_classes(self) -> int:
        return max(2, len(self.start))


def focal_objective(
    objective: Objective,
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
    The posterior is ``.objective.posterior`` of the logits; on a softmax, two classes have (0, score).
    The focal loss with one gamma is machine code where Numba is installed, the others are NumPy.

    Args:
        objective: `refocal.Focal`, `refocal.Poly1Focal` or `refocal.GeneralizedCrossEntropy`; for two classes
            also `refocal.SigmoidFocal` or `refocal.Asymmetric`, for more `refocal.OneVsRest`, whose sigmoids
            have trees of their own. `refocal.AsymmetricSingleLabel` without label smoothing only: with it
            the risk need not be convex, and the mean curvature can be negative.
        prior: The share of y = 1, or of each class, in the training data, with sample weights where there
            are some.
        damping: Multiplies the curvature of a softmax of three or more classes; None for K/(K-1), as
            LightGBM's has it. XGBoost's has 2.
        longest_step: No leaf moves a score further than this, before the learning rate: the curvature is at
            least the gradient's size divided by it. Where few rows are positive, a Newton step without a
            bound leaps: LightGBM, which has no lambda by default, diverges at 1 in 1000, with the log loss
            too. math.inf for no bound.

    Raises:
        TypeError: If the objective is another one, or of a binary problem and with numbers for each class.
        ValueError: If it is not for so many classes, or a prior is not within (0, 1).

    Example:
        >>> import refocal
        >>> found = focal_objective(refocal.SigmoidFocal(gamma=2.0, alpha=None), prior=0.01)
        >>> round(found.start[0], 3)  # the log loss would start at log(0.01 / 0.99) = -4.595
        -1.706
        >>> found.gradients(np.array(found.start), np.zeros(1), np.empty(0))[1].round(4)  # 0.01 * 0.99
        array([0.0099], dtype=float32)
    """
    shares = _shares(prior)
    k = len(shares)
    spec = _as_trained(objective, k)
    logits = np.asarray(spec.logits(shares[1:] if spec.scores == "sigmoid" else shares))
    if spec.scores == "softmax":
        logits = logits[1:] - logits[:1] if k == 2 else logits - logits.mean()
    if not np.isfinite(logits).all():
        raise ValueError(f"prior must have a finite minimiser of {spec!r}, got {prior!r}")
    unit = FocalObjective(spec, tuple(logits.tolist()), 1.0, 1.0, np.inf)
    _, hess = unit.gradients(logits if k == 2 else logits[None], np.zeros(1), np.empty(0))
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


def _as_trained(objective: Any, n_classes: int) -> Any:
    """Return an objective for so many classes whose mean curvature is positive; on a softmax if it can be."""
    kind = type(objective)
    if kind in (SigmoidFocal, Asymmetric) and n_classes != 2:
        raise ValueError(f"objective must be for {n_classes} classes, such as Focal, got {objective!r}")
    if kind is OneVsRest and n_classes == 2:
        raise ValueError(f"objective must be a binary one for 2 classes, not OneVsRest, got {objective!r}")
    if kind is AsymmetricSingleLabel:
        if objective.label_smoothing:
            raise ValueError(
                "label_smoothing of AsymmetricSingleLabel must be 0, since with it the mean curvature can be "
                f"negative, got {objective.label_smoothing}"
            )
        return Focal(objective.gamma_pos)
    if kind is SigmoidFocal:
        for name in ("gamma", "alpha"):
            value = getattr(objective, name)
            if isinstance(value, tuple):
                raise TypeError(f"{name} must be a number, got {value!r}")
        alpha = objective.alpha
        weight = None if alpha is None else (1 - alpha, alpha)
        return Focal(objective.gamma, weight, objective.label_smoothing)
    if kind not in (*CONVEX, Asymmetric, OneVsRest):
        raise TypeError(
            "objective must be a Focal, SigmoidFocal, Poly1Focal, GeneralizedCrossEntropy, Asymmetric, "
            f"OneVsRest or AsymmetricSingleLabel, got {objective!r}"
        )
    owner = objective.binary if kind is OneVsRest else objective
    for name in ("gamma", "weight", "alpha"):
        value = getattr(owner, name, None)
        if isinstance(value, tuple) and len(value) != n_classes:
            raise ValueError(
                f"{name} must have one number for each of the {n_classes} classes, got {len(value)}"
            )
    return objective


def base_rate_shift(objective: Objective, scores: Any, prior: Any, sample_weight: Any = None) -> Floats:
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
    spec, shares = _as_trained(objective, logits.shape[1]), _shares(prior)
    weight = None if sample_weight is None or not len(sample_weight) else sample_weight
    some = slice(None, None, max(1, len(logits) // ROWS_FOR_SLOPES))
    free = slice(1, None) if np.ndim(scores) == 1 else slice(None)  # of two classes the first logit stays 0

    def log_means(shift: Floats, rows: slice = slice(None)) -> Floats:
        probs = np.exp(log_posterior(spec, logits[rows] + shift))
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


def focal_metric(objective: Objective, metric: str | Metric = "nll") -> Callable[..., Any]:
    """Return a metric of the posterior, for ``custom_metric`` of XGBoost and ``feval`` of LightGBM.

    Smaller is better. Rows have the weights of the engine's data.

    Args:
        objective: What is trained with, as for `focal_objective`.
        metric: "nll", "brier", or a function of labels 0..K-1 and the posterior, a column for each class;
            of its values less is better.

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
        log_probs = log_posterior(_as_trained(objective, logits.shape[1]), logits)
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
