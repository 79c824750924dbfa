"""The choice between nothing, a temperature, psi and both, as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_samples,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)

from refocal import Focal, Objective, choose_calibration
from refocal.sklearn._base import as_softmax, codes_of
from refocal.sklearn._gradients import Floats
from refocal.sklearn.posterior import WrappedClassifier, check_objective, logits_of


class CalibratedPosterior(WrappedClassifier):
    """A classifier with the probabilities that held-out rows speak for, used like ``CalibratedClassifierCV``.

    The classifier is fitted on all folds but one in turn; `refocal.choose_calibration` compares, on the
    logits of the rows left out, the softmax, a temperature, psi, and psi after a temperature. What is chosen
    is applied to the logits of the classifier fitted on all rows.

    Args:
        estimator: A classifier.
        objective: What its loss was: a softmax objective such as `refocal.Focal`, or `refocal.SigmoidFocal`
            with two classes. None for the ``objective_`` of refocal's classifiers, also at the end of a
            pipeline or in a search, and for the log loss elsewhere.
        method: "auto" for the choice, or one of the names that `refocal.Selection` gives its methods: "raw",
            "psi", "ts_nll" for temperature scaling, as ``CalibratedClassifierCV(method="temperature")`` does
            it, "psi_ts_fl", ... One that has no answer for the rows, as a temperature for logits that know
            nothing, is left out with a warning.
        cv: A number of folds, a splitter of scikit-learn, or "prefit": then the classifier is fitted already,
            and `fit` gets rows that it has not seen. A ``FrozenEstimator`` is taken as it is, too.
        n_resamples: Of the rows, for the intervals in ``selection_``.
        random_state: Of these resamples.

    Attributes:
        estimator_: The classifier, fitted on all rows.
        selection_: What was found: print it for the table and the advice.
        method_: The name of the method that is applied.
        temperature_: Its temperature; 1 where it has none.
        classes_: The labels.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> from refocal.sklearn import FocalLinearClassifier
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(3000, 2))
        >>> y = rng.random(3000) < 1 / (1 + np.exp(2 - 2 * X[:, 0]))
        >>> model = CalibratedPosterior(FocalLinearClassifier(gamma=2.0)).fit(X, y)
        >>> model.method_  # the linear model minimises the focal loss: psi alone
        'psi'
        >>> CalibratedPosterior(LogisticRegression()).fit(X, y).method_
        'raw'
    """

    def __init__(
        self,
        estimator: Any,
        objective: Any = None,
        *,
        method: str = "auto",
        cv: Any = 5,
        n_resamples: int = 1000,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.objective = objective
        self.method = method
        self.cv = cv
        self.n_resamples = n_resamples
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Fit the classifier on the folds and on all rows, and choose.

        Args:
            X: Features.
            y: Labels.
            sample_weight: A number >= 0 for each row, for the classifier's `fit`; the choice counts each
                row once.
            **fit_params: For the classifier's own `fit`.

        Returns:
            The classifier itself.
        """
        check_consistent_length(X, y)
        check_classification_targets(y)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X)
        arguments = self._fit_arguments(sample_weight, fit_params)
        labels = column_or_1d(y, warn=True)
        if isinstance(self.cv, str):
            if self.cv != "prefit":
                raise ValueError(f"cv must be 'prefit', a number of folds or a splitter, got {self.cv!r}")
            check_is_fitted(self.estimator)
            self.estimator_ = self.estimator
            logits = logits_of(self.estimator_, X)
        else:
            self.estimator_ = clone(self.estimator).fit(X, y, **arguments)
            logits = self._held_out(X, labels, arguments)
        self.classes_ = self.estimator_.classes_
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        codes = codes_of(self.classes_, labels)
        objective = objective_of(self.estimator_) if self.objective is None else self.objective
        check_objective(objective)
        self.selection_ = choose_calibration(
            logits,
            codes,
            objective=as_softmax(objective),
            n_resamples=self.n_resamples,
            seed=self.random_state,
        )
        self.method_ = self.selection_.winner if self.method == "auto" else self.method
        found = {method.name: method for method in self.selection_.methods}
        skipped = dict(self.selection_.skipped)
        if self.method_ in skipped:  # one fold of a search must not end it
            warnings.warn(
                f"{self.method_} has no answer for these rows, so the softmax is taken as it is: "
                f"{skipped[self.method_]}",
                ConvergenceWarning,
                stacklevel=2,
            )
            self.method_ = "raw"
        if self.method_ not in found:
            raise ValueError(
                f"method must be 'auto' or one of {', '.join(found)}, got {self.method!r}: unknown here"
            )
        self._method = found[self.method_]
        self.temperature_ = self._method.temperature
        return self

    def decision_function(self, X: Any) -> Floats:
        """Return the classifier's logits: with two classes the second one's lead, else one for each class."""
        check_is_fitted(self)
        logits = logits_of(self.estimator_, X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithm of `predict_proba`."""
        check_is_fitted(self)
        log_probs: Floats = self._method.log_probs(logits_of(self.estimator_, X))
        return log_probs

    def predict_raw_proba(self, X: Any) -> Floats:
        """Return the softmax scores of the classifier's logits."""
        check_is_fitted(self)
        raw: Floats = Focal(0.0).posterior(logits_of(self.estimator_, X))
        return raw

    def _held_out(self, X: Any, labels: Any, arguments: dict[str, Any]) -> Floats:
        """Return logits of all rows, each from a classifier that has not seen it."""
        n = _num_samples(X)
        logits = np.empty((n, len(self.estimator_.classes_)))
        X = X if hasattr(X, "iloc") or hasattr(X, "tocsr") else np.asarray(X)
        X = X.tocsr() if hasattr(X, "tocsr") else X
        for seen, held_out in check_cv(self.cv, labels, classifier=True).split(X, labels):
            part = {
                name: _safe_indexing(value, seen) if np.ndim(value) and len(value) == n else value
                for name, value in arguments.items()
            }
            model = clone(self.estimator).fit(_safe_indexing(X, seen), labels[seen], **part)
            if len(model.classes_) != logits.shape[1]:
                raise ValueError(f"cv must leave rows of all {logits.shape[1]} classes in each fold")
            logits[held_out] = logits_of(model, _safe_indexing(X, held_out))
        return logits


def objective_of(estimator: Any) -> Objective:
    """Return what a fitted classifier was trained with: its own objective, or the log loss."""
    found = getattr(estimator, "objective_", None)  # LightGBM's classifier has a word there
    if isinstance(found, Objective):
        return found
    inner = getattr(estimator, "best_estimator_", None)  # of a search
    inner = estimator.steps[-1][1] if inner is None and hasattr(estimator, "steps") else inner
    return Focal(0.0) if inner is None else objective_of(inner)
