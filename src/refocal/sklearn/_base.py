"""What classifiers that train with a focal loss share: labels, weights, and the way back to probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d

from refocal import Focal, SigmoidFocal
from refocal._checks import check_number
from refocal.sklearn._gradients import Floats


class FocalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier with a focal objective; a subclass fits and has a ``decision_function``.

    ``decision_function`` gives the logits: with two classes one number for each row, positive for the second
    class, otherwise one number for each class. ``objective_.posterior`` of it is P(second class), or the
    distribution of each row. ``predict`` is their largest entry. With class weights w this
    is the class with the largest w times probability, the decision that the weights ask for, and may differ
    from the most probable class of ``predict_proba``.
    """

    gamma: float
    alpha: float | None
    class_weight: Any
    objective_: Any

    def predict(self, X: Any) -> Any:
        """Return the class with the largest logit for each row."""
        scores = self.decision_function(X)
        codes = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[codes]

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithm of `predict_proba`."""
        logits = softmax_logits(self.decision_function(X))
        log_probs: Floats = as_softmax(self.objective_).log_posterior(logits)
        return log_probs

    def predict_proba(self, X: Any) -> Floats:
        """Return the class probabilities: the posterior that belongs to the logits."""
        return np.exp(self.predict_log_proba(X))

    def predict_raw_proba(self, X: Any) -> Floats:
        """Return the softmax scores that the focal loss was trained on, which are no probabilities."""
        logits = softmax_logits(self.decision_function(X))
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        probs: Floats = scores / scores.sum(axis=1, keepdims=True)
        return probs

    def decision_function(self, X: Any) -> Floats:
        """Return the logits."""
        raise NotImplementedError

    def __sklearn_is_fitted__(self) -> bool:
        """Say whether `fit` or `load` was called."""
        return hasattr(self, "objective_")

    def _check_fitted(self) -> None:
        check_is_fitted(self)

    def _start(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Floats, Floats]:
        """Set classes and objective; return labels 0..K-1, weights (empty if none) and the class prior."""
        Focal(self.gamma)  # before any work: a wrong gamma
        if np.ndim(self.gamma) > 0:
            raise TypeError(f"gamma must be a number, got {self.gamma!r}")
        check_classification_targets(y)
        classes, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        weights = np.empty(0)
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        mass = np.bincount(codes, weights if weights.size else None).astype(np.float64)
        if (mass > 0).sum() < 2:
            raise ValueError(
                f"{type(self).__name__} needs samples of at least 2 classes in the data, but the data "
                f"contains only one class: {classes.tolist()[mass.argmax()]!r}"
            )
        if (mass == 0).any():
            raise ValueError(
                f"sample_weight must be positive for at least one sample of each class, but is 0 for all "
                f"samples of class {classes.tolist()[mass.argmin()]!r}"
            )
        self.classes_ = classes
        self.class_weight_ = self._weights(mass)
        even = (self.class_weight_ == self.class_weight_[0]).all()
        trained = Focal(self.gamma, None if even else self.class_weight_)
        self.objective_ = as_sigmoid(trained) if len(classes) == 2 else trained
        return codes, weights, mass / mass.sum()

    def _weights(self, mass: Floats) -> Floats:
        """Return the weight of each class, whose samples have these weights together."""
        classes = self.classes_
        if self.alpha is None:
            if isinstance(self.class_weight, str) and self.class_weight == "balanced":
                balanced: Floats = mass.sum() / (len(classes) * mass)
                return balanced
            weights: Floats = compute_class_weight(self.class_weight, classes=classes, y=classes)
            given: Floats = np.asarray(weights, dtype=np.float64)
            if not ((given > 0) & np.isfinite(given)).all():
                raise ValueError(f"class_weight must be finite and > 0, got {self.class_weight!r}")
            return given
        if self.class_weight is not None:
            raise ValueError(f"alpha must be None where class_weight is given, got {self.alpha!r}")
        if len(classes) != 2:
            raise ValueError(f"alpha must be None for {len(classes)} classes, got {self.alpha!r}")
        alpha = check_number("alpha", self.alpha, rule="in (0, 1), or None")
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must be in (0, 1), or None, got {self.alpha!r}")
        return np.array([1 - alpha, alpha])


def as_sigmoid(objective: Focal) -> SigmoidFocal:
    """Return the loss on one logit that a focal loss on the softmax of two classes is, up to a factor."""
    alpha = None
    if objective.weight is not None:
        of_zero, of_one = objective.weight
        alpha = of_one / (of_zero + of_one)
        if not 0 < alpha < 1:
            raise ValueError(
                "class_weight must differ by less than a factor of 1e16 between two classes, "
                f"got {list(objective.weight)}"
            )
    return SigmoidFocal(objective.gamma, alpha, objective.label_smoothing)


def as_softmax(objective: Any) -> Any:
    """Return the softmax objective over the logits (0, z) that a binary sigmoid one is."""
    if type(objective) is not SigmoidFocal:  # a subclass may have another posterior
        return objective
    alpha = objective.alpha
    return Focal(objective.gamma, None if alpha is None else (1 - alpha, alpha), objective.label_smoothing)


def softmax_logits(scores: Any) -> Floats:
    """Return logits with a column for each class; one number for each row is the second class's lead."""
    logits: Floats = np.asarray(scores)
    if logits.ndim == 2:
        return logits
    return np.stack([np.zeros_like(logits), logits], axis=1)


def codes_of(classes: Any, y: Any) -> Any:
    """Return labels as numbers 0..K-1 of known classes."""
    labels = column_or_1d(y, warn=True)
    unseen = sorted(set(labels.tolist()) - set(classes.tolist()), key=str)
    if unseen:
        raise ValueError(f"y contains previously unseen labels: {unseen}")
    return np.searchsorted(classes, labels)
