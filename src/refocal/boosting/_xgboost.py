"""XGBoost with a focal objective."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import _num_features

from refocal.boosting._base import FocalBoostingClassifier, Rows
from refocal.boosting.objective import FocalObjective
from refocal.extras import needs
from refocal.sklearn._gradients import Floats

with needs("FocalXGBClassifier", "xgboost"):
    import xgboost


class FocalXGBClassifier(FocalBoostingClassifier):
    r"""XGBoost with the focal loss, whose ``predict_proba`` is the class posterior.

    Training starts at the scores that minimise the loss for the class prior, and uses the curvature of
    `focal_objective`. The engine's model carries the start as its ``base_score``.

    Args:
        gamma: The focal loss's, a number >= 0. XGBoost's option of this name is its ``min_split_loss``.
        alpha: With two classes the weight of the second against 1 - alpha for the first, in (0, 1), or None.
        class_weight: A dictionary, "balanced", or None. Weights change the decisions of ``predict``; the
            probabilities are those of the data as it is.
        n_estimators: Rounds of boosting.
        early_stopping_rounds: Stop after so many rounds without a better `eval_metric`; the best round
            is kept.
        eval_metric: Of the posterior: "nll", "brier", or a function of labels 0..K-1 and the posterior,
            of which less is better (give -auc, not auc).
        categorical_features: Names or numbers of columns, or a mask; pandas' categories need no mention.
        keep_base_rate: Whether the start is moved after training so that the mean of ``predict_proba`` on the
            training data is the base rate, as it is for the log loss; see `base_rate_shift`.
        **options: Every other option of ``xgboost.train``: max_depth, learning_rate, reg_lambda,
            device="cuda", ...

    Attributes:
        booster_: The ``xgboost.Booster``; it predicts the logits.
        start_: The logits of a model without trees: what the engine's model adds to those of the trees.
        objective_: What was trained with, `refocal.Focal`, or `refocal.SigmoidFocal` with two classes: its
            ``posterior`` of ``decision_function`` is the probability of each class, or of the second of two.
        classes_: The labels.
        evals_result_: The metric of each round for each eval set: ``["validation_0"]["nll"]``, ...
        best_iteration_: The round that early stopping kept, from 0 on; only with early stopping.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(2000, 3))
        >>> y = np.where(rng.random(2000) < 1 / (1 + np.exp(4 - 2 * X[:, 0])), "ill", "well")
        >>> model = FocalXGBClassifier(gamma=2.0, n_estimators=20, max_depth=2).fit(X, y)
        >>> share = (y == "ill").mean()
        >>> bool(abs(model.predict_proba(X)[:, 0].mean() - share) < 0.01)
        True
        >>> bool(model.predict_raw_proba(X)[:, 0].mean() > 2 * share)
        True
    """

    engine: ClassVar[str] = "xgboost"
    ours: ClassVar[dict[str, str]] = {
        "objective": "it is the focal loss",
        "num_class": "it follows from y",
        "base_score": "training starts at the minimiser of the class prior",
        "scale_pos_weight": "use class_weight or alpha",
        "disable_default_eval_metric": "use eval_metric",
    }

    def _checked_options(self) -> dict[str, Any]:
        options = super()._checked_options()
        if options.get("booster") == "gblinear" and self.early_stopping_rounds is not None:
            raise ValueError("early_stopping_rounds must be None for booster 'gblinear', which cannot be cut")
        return options

    def _damping(self, n_classes: int) -> float:
        return 2.0  # that of its own softmax, so that a learning rate means the same

    def _train(
        self,
        options: dict[str, Any],
        rows: Rows,
        evals: list[Rows],
        objective: FocalObjective,
        metric: Any,
        callbacks: Any,
    ) -> tuple[Any, Floats]:
        params = {**options, **start_params(objective)}
        train = self._data(rows, options)
        sets = [(self._data(part, options, train), f"validation_{i}") for i, part in enumerate(evals)]
        booster = xgboost.train(
            params,
            train,
            self.n_estimators,
            evals=sets,
            obj=objective,
            custom_metric=metric if sets else None,
            maximize=False if sets else None,
            early_stopping_rounds=self.early_stopping_rounds,
            evals_result=self.evals_result_,
            verbose_eval=False,
            callbacks=callbacks,
        )
        if self.early_stopping_rounds is not None:
            self.best_iteration_ = booster.best_iteration
            booster = booster[: booster.best_iteration + 1]
        return booster, booster.predict(train, output_margin=True)

    def _with_start(self, booster: Any, start: Floats) -> Any:
        booster.set_param({"base_score": start.tolist() if len(start) > 1 else float(start[0])})
        return booster

    def _data(self, rows: Rows, options: dict[str, Any], ref: Any = None) -> Any:
        """Return the data in bins, or as it is for the tree methods that make their own."""
        described = {"label": rows.codes, "weight": rows.weights, **self._description(rows.X)}
        described["nthread"] = options.get("nthread", options.get("n_jobs"))
        if options.get("tree_method", "auto") not in ("auto", "hist") or "booster" in options:
            return xgboost.DMatrix(rows.X, **described)
        max_bin = options.get("max_bin") if ref is None else None
        return xgboost.QuantileDMatrix(rows.X, ref=ref, max_bin=max_bin, **described)

    def _description(self, X: Any) -> dict[str, Any]:
        if hasattr(X, "iloc"):
            return {"enable_categorical": True}
        columns, names = self._categorical_columns(_num_features(X)), getattr(self, "feature_names_in_", None)
        types = np.full(_num_features(X), "q", dtype=object)
        types[columns] = "c"
        return {
            "enable_categorical": True,
            "feature_types": types.tolist() if columns else None,
            "feature_names": None if names is None else list(names),  # which an array has lost
        }

    def _margins(self, X: Any) -> Any:
        data = xgboost.DMatrix(X, **self._description(X))
        return self.booster_.predict(data, output_margin=True)

    @staticmethod
    def _load_engine(path: str) -> Any:
        return xgboost.Booster(model_file=path)


def start_params(objective: FocalObjective) -> dict[str, Any]:
    """Return the parameters of XGBoost by which training starts where the objective does."""
    params: dict[str, Any] = {"disable_default_eval_metric": True}
    if len(objective.start) == 1:
        return params | {"base_score": objective.start[0]}
    if tuple(int(part) for part in xgboost.__version__.split(".")[:2]) < (3, 1):
        raise ImportError(f"3 or more classes need XGBoost 3.1 or newer, found {xgboost.__version__}")
    return params | {"base_score": list(objective.start), "num_class": len(objective.start)}
