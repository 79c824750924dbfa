"""A linear classifier with the focal loss."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import validate_data

from refocal.sklearn._base import FocalClassifier, as_softmax
from refocal.sklearn._gradients import Floats, kernels

MEMORY = 20
"""Steps that L-BFGS looks back on: twice the usual number, since a step costs more than its memory."""


class FocalLinearClassifier(FocalClassifier):
    r"""A linear model with the focal loss and an L2 penalty, whose ``predict_proba`` is the class posterior.

    .. math:: \min_{W, b} \; C \sum_i s_i w_{y_i} \ell(W x_i + b, y_i) + \tfrac{1}{2} \lVert W \rVert^2

    with the samples' weights s and the classes' weights w; the intercept b has no penalty. Two classes have
    one vector of coefficients. At gamma 0 it is ``sklearn.linear_model.LogisticRegression``. L-BFGS starts at
    W = 0 and the b that minimises the loss for the class prior. For gamma > 0 the loss is not convex in W: it
    ends in a local minimum.

    Args:
        gamma: The focal loss's, a number >= 0.
        alpha: With two classes the weight of the second against 1 - alpha for the first, in (0, 1), or None.
        class_weight: A dictionary, "balanced", or None. Weights change the decisions of ``predict``; the
            probabilities are those of the data as it is.
        C: The inverse of the penalty's strength, > 0.
        fit_intercept: Whether there is a b.
        tol: Stop once no entry of the gradient is larger than this part of the largest one at the start.
        max_iter: Steps at most.
        warm_start: Whether a second `fit` starts where the first one ended.

    Attributes:
        coef_: (1, n_features) with two classes, else (n_classes, n_features).
        intercept_: (1,) or (n_classes,).
        n_iter_: Steps that were taken.
        gradient_ratio_: The gradient's norm at the end, as a part of that at the start.
        objective_: What was trained with, `refocal.Focal`, or `refocal.SigmoidFocal` with two classes: its
            ``posterior`` of ``decision_function`` is the probability of each class, or of the second of two.
        classes_: The labels.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(4000, 2))
        >>> posterior = 1 / (1 + np.exp(3 - 2 * X[:, 0]))
        >>> y = rng.random(4000) < posterior
        >>> model = FocalLinearClassifier(gamma=2.0).fit(X, y)
        >>> bool(np.abs(model.predict_proba(X)[:, 1] - posterior).mean() < 0.02)
        True
        >>> bool(np.abs(model.predict_raw_proba(X)[:, 1] - posterior).mean() > 0.1)
        True
    """

    def __init__(
        self,
        gamma: float = 2.0,
        *,
        alpha: float | None = None,
        class_weight: Any = None,
        C: float = 1.0,
        fit_intercept: bool = True,
        tol: float = 1e-7,
        max_iter: int = 1000,
        warm_start: bool = False,
    ) -> None:
        self.gamma = gamma
        self.alpha = alpha
        self.class_weight = class_weight
        self.C = C
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit coefficients and intercept.

        Args:
            X: Features, dense or sparse; scaled ones need fewer steps.
            y: Labels.
            sample_weight: A number >= 0 for each row.

        Returns:
            The classifier itself.
        """
        if not (np.isfinite(self.C) and self.C > 0):
            raise ValueError(f"C must be finite and > 0, got {self.C!r}")
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        codes, weights, prior = self._start(X, y, sample_weight)
        k = 1 if len(prior) == 2 else len(prior)
        start = self._first(k, X.shape[1], prior)
        risk = _Risk(self, X, codes.astype(np.float64), weights, k)
        _, slope = risk(start.ravel())
        size = np.abs(slope).max()
        # ftol = 0: L-BFGS would stop where the loss falls too slowly, long before the gradient is small.
        found = minimize(
            risk,
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            options={
                "maxiter": self.max_iter,
                "maxfun": 10 * self.max_iter,
                "gtol": self.tol * size,
                "ftol": 0.0,
                "maxcor": MEMORY,
                "maxls": 50,
            },
        )
        self.n_iter_ = int(found.nit)
        self.gradient_ratio_ = float(np.linalg.norm(found.jac)) / max(float(np.linalg.norm(slope)), 1e-300)
        if found.status == 1:
            warnings.warn(
                f"L-BFGS took all {self.max_iter} steps of max_iter; the gradient fell to "
                f"{self.gradient_ratio_:.1e} of its norm at the start. Scale the data, or raise max_iter.",
                ConvergenceWarning,
                stacklevel=2,
            )
        solution = found.x.reshape(start.shape)
        self.coef_ = solution[:, :-1].copy()
        self.intercept_ = solution[:, -1].copy()
        return self

    def decision_function(self, X: Any) -> Floats:
        """Return the logits: one number for each row with two classes, else one for each class."""
        self._check_fitted()
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        scores: Floats = np.asarray(X @ self.coef_.T) + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def __sklearn_tags__(self) -> Any:
        """Say that sparse features are fine."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _first(self, k: int, n_features: int, prior: Floats) -> Floats:
        """Return where to start: a row for each score, the intercept last."""
        if self.warm_start and getattr(self, "coef_", np.empty(0)).shape == (k, n_features):
            return np.column_stack([self.coef_, self.intercept_])
        start = np.zeros((k, n_features + 1))
        if self.fit_intercept:
            logits = np.asarray(as_softmax(self.objective_).logits(prior))
            start[:, -1] = logits[1:] - logits[:1] if k == 1 else logits - logits.mean()
        return start


class _Risk:
    """The penalised mean loss and its gradient, as functions of all coefficients in one vector."""

    def __init__(self, model: FocalLinearClassifier, X: Any, y: Floats, weights: Floats, k: int) -> None:
        self.X, self.y, self.weights, self.k = X, y, weights, k
        self.gamma, self.class_weight = float(model.gamma), model.class_weight_
        self.fit_intercept = model.fit_intercept
        self.per_sample = 1 / (weights.sum() if weights.size else len(y))
        self.penalty = self.per_sample / model.C
        self.slopes = np.empty((len(y), k))
        self.unused = np.empty((len(y), k))  # the curvature, which comes for free

    def __call__(self, vector: Floats) -> tuple[float, Floats]:
        w = vector.reshape(self.k, -1)
        z = np.asarray(self.X @ w[:, :-1].T) + w[:, -1]
        if self.k == 1:
            of_zero, of_one = self.class_weight
            args: tuple[Any, ...] = (self.gamma, of_one, of_zero, self.per_sample, 0.0)
            z, grad, hess = z[:, 0], self.slopes[:, 0], self.unused[:, 0]
            loss = kernels().binary(z, self.y, self.weights, *args, grad, hess)
        else:
            args = (self.gamma, self.class_weight, self.per_sample, 1.0, 0.0)
            loss = kernels().softmax(z, self.y, self.weights, *args, self.slopes, self.unused)
        slope = np.empty_like(w)
        slope[:, :-1] = np.asarray(self.X.T @ self.slopes).T + self.penalty * w[:, :-1]
        slope[:, -1] = self.slopes.sum(axis=0) if self.fit_intercept else 0.0
        return loss + 0.5 * self.penalty * float((w[:, :-1] ** 2).sum()), slope.ravel()
