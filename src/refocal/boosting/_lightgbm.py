"""LightGBM with a focal objective."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import _num_features

from refocal.boosting._base import FocalBoostingClassifier, Rows
from refocal.boosting.objective import FocalObjective
from refocal.extras import needs
from refocal.sklearn._gradients import Floats

with needs("FocalLGBMClassifier", "lightgbm"):
    import lightgbm


class FocalLGBMClassifier(FocalBoostingClassifier):
    r"""LightGBM with the focal loss, whose ``predict_proba`` is the class posterior.

    Training starts at the scores that minimise the loss for the class prior, and uses the curvature of
    `focal_objective`. The engine's model carries the start in the leaves of its first trees.

    Args:
        gamma: The focal loss's, a number >= 0.
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
        **options: Every other option of ``lightgbm.train``: num_leaves, learning_rate, device="gpu", ...
            ``verbosity`` is -1 unless given.

    Attributes:
        booster_: The ``lightgbm.Booster``; it predicts the logits.
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
        >>> model = FocalLGBMClassifier(gamma=2.0, n_estimators=20, num_leaves=4).fit(X, y)
        >>> share = (y == "ill").mean()
        >>> bool(abs(model.predict_proba(X)[:, 0].mean() - share) < 0.01)
        True
        >>> bool(model.predict_raw_proba(X)[:, 0].mean() > 2 * share)
        True
    """

    engine: ClassVar[str] = "lightgbm"
    ours: ClassVar[dict[str, str]] = {
        "objective": "it is the focal loss",
        "num_class": "it follows from y",
        "boost_from_average": "training starts at the minimiser of the class prior",
        "scale_pos_weight": "use class_weight or alpha",
        "is_unbalance": "use class_weight='balanced'",
        "metric": "use eval_metric",
        "linear_tree": "its leaves cannot carry the start",
        "num_iterations": "use n_estimators",
        "categorical_feature": "use categorical_features",
    }
    aliases: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("objective_type", "app", "application", "loss"), "objective"),
        **dict.fromkeys(("num_classes",), "num_class"),
        **dict.fromkeys(("unbalance", "unbalanced_sets"), "is_unbalance"),
        **dict.fromkeys(("metrics", "metric_types"), "metric"),
        **dict.fromkeys(("linear_trees",), "linear_tree"),
        **dict.fromkeys(("num_iteration", "n_iter", "num_tree", "num_trees", "num_round"), "num_iterations"),
        **dict.fromkeys(("num_rounds", "nrounds", "num_boost_round", "max_iter"), "num_iterations"),
        **dict.fromkeys(("cat_feature", "categorical_column", "cat_column"), "categorical_feature"),
    }

    def _checked_options(self) -> dict[str, Any]:
        options = super()._checked_options()
        if options.get("boosting", options.get("boosting_type")) in ("rf", "random_forest"):
            raise ValueError("boosting must not be 'rf': an average of trees cannot carry the start")
        if options.get("boosting", options.get("boosting_type")) == "dart":
            raise ValueError("boosting must not be 'dart': it scales trees down, the start with them")
        return options

    def _damping(self, n_classes: int) -> float:
        return n_classes / (n_classes - 1)  # that of its own softmax, so that a learning rate means the same

    def _train(
        self,
        options: dict[str, Any],
        rows: Rows,
        evals: list[Rows],
        objective: FocalObjective,
        metric: Any,
        callbacks: Any,
    ) -> tuple[Any, Floats]:
        # With the pre-filter a table too small for any split is an error, not a model of the start alone.
        quiet = {"verbosity": -1, "feature_pre_filter": False}
        params = {**quiet, **options, "objective": objective, "metric": "None"}
        if len(objective.start) > 1:
            params["num_class"] = len(objective.start)
        train = self._data(rows, objective)
        sets = [self._data(part, objective, train) for part in evals]
        hooks = [lightgbm.record_evaluation(self.evals_result_)] if sets else []
        if self.early_stopping_rounds is not None:
            hooks.append(lightgbm.early_stopping(self.early_stopping_rounds, verbose=False))
        booster = lightgbm.train(
            params,
            train,
            self.n_estimators,
            valid_sets=sets,
            valid_names=[f"validation_{i}" for i in range(len(sets))],
            feval=metric if sets else None,
            callbacks=[*hooks, *(callbacks or [])],
            keep_training_booster=True,
        )
        if self.early_stopping_rounds is not None:
            self.best_iteration_ = booster.best_iteration - 1
            return booster, booster.predict(rows.X, raw_score=True) + start_scores(objective.start, 1)
        return booster, _training_scores(booster)

    def _with_start(self, booster: Any, start: Floats) -> Any:
        add_start(booster, start)
        return lightgbm.Booster(model_str=booster.model_to_string())  # without the training data

    def _data(self, rows: Rows, objective: FocalObjective, ref: Any = None) -> Any:
        is_frame = hasattr(rows.X, "iloc")  # whose categories LightGBM finds itself
        columns = [] if is_frame else self._categorical_columns(_num_features(rows.X))
        return lightgbm.Dataset(
            rows.X,
            rows.codes,
            weight=rows.weights,
            reference=ref,
            init_score=start_scores(objective.start, len(rows.codes)),
            categorical_feature=columns or "auto",
        )

    def _margins(self, X: Any) -> Any:
        return self.booster_.predict(X, raw_score=True)

    @staticmethod
    def _load_engine(path: str) -> Any:
        return lightgbm.Booster(model_file=path)


def start_scores(start: tuple[float, ...], n_rows: int) -> Floats:
    """Return the start of each row, as LightGBM takes an ``init_score``."""
    return np.full(n_rows, start[0]) if len(start) == 1 else np.tile(start, (n_rows, 1))


def _training_scores(booster: Any) -> Floats:
    """Return the scores of the training data, which the engine has, without a pass over the trees."""
    found: list[Floats] = []

    def read(scores: Floats, data: Any) -> tuple[str, float, bool]:
        found.append(scores.copy())
        return "", 0.0, False

    booster.eval_train(read)
    return found[0]


def add_start(booster: Any, start: Any) -> None:
    """Add the start to the leaves of a LightGBM model's first trees, as its own losses do.

    For models trained with ``init_score``, which the model does not hold. Call it once, after training.

    Args:
        booster: A ``lightgbm.Booster``.
        start: A number for each class, or one with two classes.

    Example:
        >>> data = lightgbm.Dataset(np.arange(40.0)[:, None], np.arange(40) % 2, init_score=np.full(40, -1.5))
        >>> model = lightgbm.train({"verbosity": -1}, data, 1)
        >>> before = model.predict([[0.0]])[0]
        >>> add_start(model, [-1.5])
        >>> round(float(model.predict([[0.0]])[0] - before), 3)
        -1.5
    """
    for tree in booster.dump_model(num_iteration=1)["tree_info"]:
        at = tree["tree_index"]
        for leaf in range(tree["num_leaves"]):
            booster.set_leaf_output(at, leaf, booster.get_leaf_output(at, leaf) + start[at])
