"""True probabilities from a classifier that was trained with a focal loss elsewhere."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    MethodMapping,
    _routing_enabled,
    process_routing,
)
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from refocal import OneVsRest
from refocal._checks import known_log_odds
from refocal.sklearn._base import softmax_logits
from refocal.sklearn._gradients import Floats


class WrappedClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier around another one that changes its probabilities; a subclass says how."""

    estimator: Any

    def predict_proba(self, X: Any) -> Floats:
        """Return the class probabilities."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithm of `predict_proba`."""
        raise NotImplementedError

    def predict(self, X: Any) -> Any:
        """Return the most probable class for each row."""
        probs = self.predict_log_proba(X)
        return self.classes_[probs.argmax(axis=1)]

    def __sklearn_tags__(self) -> Any:
        """Say what the wrapped classifier takes."""
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.input_tags.allow_nan = inner.input_tags.allow_nan
        return tags

    def get_metadata_routing(self) -> Any:
        """Return the router of scikit-learn: what `fit` gets goes to the wrapped classifier's `fit`."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        return MetadataRouter(owner=self).add(estimator=self.estimator, method_mapping=mapping)

    def _fit_arguments(self, sample_weight: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return what the wrapped classifier's `fit` gets beside X and y."""
        if sample_weight is not None:
            arguments = arguments | {"sample_weight": sample_weight}
        if _routing_enabled():
            routed: dict[str, Any] = process_routing(self, "fit", **arguments).estimator.fit
            return routed
        if sample_weight is not None and not has_fit_parameter(self.estimator, "sample_weight"):
            raise TypeError(f"sample_weight must be None: {type(self.estimator).__name__}.fit takes none")
        return arguments


class PosteriorClassifier(WrappedClassifier):
    r"""The class posterior of a classifier that was trained with a focal loss.

    The scores come from ``decision_function``, as logits, where the classifier has one, else from its
    ``predict_log_proba`` or ``predict_proba``, as softmax or sigmoid scores. ``predict`` is the most probable
    class.

    Args:
        estimator: A classifier whose scores minimise the objective's loss, like a network in skorch, CatBoost
            with its focal loss, or LightGBM with an objective of one's own.
        objective: What it was trained with: a softmax objective such as `refocal.Focal`, for two classes also
            a sigmoid one such as `refocal.SigmoidFocal`, or `refocal.OneVsRest`.
        prefit: Whether the classifier is already fitted; then `fit` only looks at its classes.

    Attributes:
        estimator_: The fitted classifier.
        classes_: Its labels.

    Example:
        >>> import refocal
        >>> from sklearn.linear_model import LogisticRegression
        >>> X = np.array([[-1.0], [0.0], [1.0], [2.0]])
        >>> focal = LogisticRegression().fit(X, [0, 1, 0, 1])  # stands for one with a focal loss
        >>> model = PosteriorClassifier(focal, refocal.Focal(2.0), prefit=True).fit(X, [0, 1, 0, 1])
        >>> expected = refocal.psi(focal.predict_proba(X), 2.0)
        >>> bool(np.allclose(model.predict_proba(X), expected))
        True
    """

    def __init__(self, estimator: Any, objective: Any, *, prefit: bool = False) -> None:
        self.estimator = estimator
        self.objective = objective
        self.prefit = prefit

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Fit the classifier, or take it as it is where it is prefit.

        Args:
            X: Features.
            y: Labels.
            sample_weight: A number >= 0 for each row, where the classifier takes some.
            **fit_params: For the classifier's own `fit`.

        Returns:
            The classifier itself.
        """
        check_objective(self.objective)
        arguments = self._fit_arguments(sample_weight, fit_params)
        if self.prefit:
            check_is_fitted(self.estimator)
            self.estimator_ = self.estimator
        else:
            self.estimator_ = clone(self.estimator).fit(X, y, **arguments)
        self.classes_ = self.estimator_.classes_
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def decision_function(self, X: Any) -> Floats:
        """Return the logits: with two classes the second one's lead, else one for each class."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict_raw_proba(self, X: Any) -> Floats:
        """Return the classifier's own scores, which are no probabilities."""
        logits = self._logits(X)
        if is_one_vs_rest(self.objective):
            return 1 / (1 + np.exp(-logits))
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        raw: Floats = scores / scores.sum(axis=1, keepdims=True)
        return raw

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithm of `predict_proba`."""
        return log_posterior(self.objective, self._logits(X))

    def _logits(self, X: Any) -> Floats:
        check_is_fitted(self)
        return logits_of(self.estimator_, X, is_one_vs_rest(self.objective))


def check_objective(objective: Any) -> None:
    """Raise if an objective has no posterior for rows of classes."""
    if not hasattr(objective, "log_posterior"):
        raise TypeError(f"objective must be one of refocal's, such as Focal(2.0), got {objective!r}")


def is_sigmoid(objective: Any) -> bool:
    """Say whether an objective is for one binary problem in each entry."""
    return getattr(objective, "scores", "softmax") == "sigmoid"


def is_one_vs_rest(objective: Any) -> bool:
    """Say whether an objective reads sigmoids, one for each class, as a row."""
    return isinstance(objective, OneVsRest)


def log_posterior(objective: Any, logits: Floats) -> Floats:
    """Return log-probabilities, a column for each class, of logits with a column for each class."""
    if not is_sigmoid(objective):
        with known_log_odds():
            rows: Floats = objective.log_posterior(logits)
        return rows
    if logits.shape[1] != 2:
        raise ValueError(
            f"objective must be a softmax one or OneVsRest for {logits.shape[1]} classes, got {objective!r}"
        )
    with known_log_odds():
        of_one: Floats = objective.posterior(logits[:, 1] - logits[:, 0])
    with np.errstate(divide="ignore"):
        return np.log(np.stack([1 - of_one, of_one], axis=1))


def logits_of(estimator: Any, X: Any, sigmoid: bool = False) -> Floats:
    """Return a fitted classifier's logits, a column for each class."""
    if hasattr(estimator, "decision_function"):
        return softmax_logits(np.asarray(estimator.decision_function(X), dtype=np.float64))
    with np.errstate(divide="ignore"):
        probs = np.asarray(estimator.predict_proba(X), dtype=np.float64)
        return np.log(probs) - np.log1p(-probs) if sigmoid else np.log(probs)
