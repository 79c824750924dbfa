"""What the two engines share: parameters, checks of the data, files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_features,
    check_consistent_length,
    validate_data,
)

from refocal import objective_from_dict
from refocal._checks import check_count
from refocal.boosting.objective import FocalObjective, Metric, base_rate_shift, focal_metric, focal_objective
from refocal.files import write_atomic
from refocal.sklearn._base import FocalClassifier, as_sigmoid, as_softmax, codes_of
from refocal.sklearn._gradients import Floats

FORMAT = 1
"""The version of the side-car file."""


class Rows(NamedTuple):
    """Features, labels 0..K-1, and a weight for each row or None."""

    X: Any
    codes: Any
    weights: Floats | None


class FocalBoostingClassifier(FocalClassifier):
    """Boosted trees with a focal objective; a subclass knows its engine."""

    engine: ClassVar[str]
    ours: ClassVar[dict[str, str]]
    """Options of the engine that are decided here, each with the reason or with what to use instead."""
    aliases: ClassVar[dict[str, str]] = {}
    """Other names of these that the engine knows."""

    def __init__(
        self,
        gamma: float = 2.0,
        *,
        alpha: float | None = None,
        class_weight: Any = None,
        n_estimators: int = 100,
        early_stopping_rounds: int | None = None,
        eval_metric: str | Metric = "nll",
        categorical_features: Any = None,
        keep_base_rate: bool = True,
        **options: Any,
    ) -> None:
        self.gamma = gamma
        self.alpha = alpha
        self.class_weight = class_weight
        self.n_estimators = n_estimators
        self.early_stopping_rounds = early_stopping_rounds
        self.eval_metric = eval_metric
        self.categorical_features = categorical_features
        self.keep_base_rate = keep_base_rate
        for name, value in options.items():
            setattr(self, name, value)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, those of the engine too."""
        params: dict[str, Any] = super().get_params(deep)
        return params | self._options()

    def set_params(self, **params: Any) -> Self:
        """Set parameters; a name that is not the classifier's own goes to the engine."""
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        eval_set: Any = None,
        sample_weight_eval_set: Any = None,
        callbacks: Any = None,
    ) -> Self:
        """Train from the minimiser of the class prior on.

        Args:
            X: Features; NaN is a missing value. Columns of pandas' dtype category are categorical.
            y: Labels, of any type that scikit-learn takes.
            sample_weight: A number >= 0 for each row. These weights do change the probabilities, as a row of
                weight 10 counts as ten rows; to rebalance classes use `class_weight`, which is taken out of
                ``predict_proba`` again.
            eval_set: A list of (X, y). Their `eval_metric` is in ``evals_result_``; the last one decides
                about early stopping (`early_stopping_rounds`). It must not be rows that were trained on, nor
                those on which the model is judged in the end.
            sample_weight_eval_set: A list with the weights of each eval set, or None in place of any; None
                for none at all.
            callbacks: The engine's own.

        Returns:
            The classifier itself.
        """
        options = self._checked_options()
        check_count("n_estimators", self.n_estimators, 1)
        if hasattr(self, "best_iteration_"):  # of an earlier fit
            del self.best_iteration_
        X = self._checked(X, y, reset=True)
        check_consistent_length(X, y)
        codes, weights, prior = self._start(X, y, sample_weight)
        if (weights == 0).any():  # the engines would still lay bins by these rows
            kept = np.flatnonzero(weights)
            X, codes, weights = _safe_indexing(X, kept), codes[kept], weights[kept]
        objective = focal_objective(self.objective_, prior, damping=self._damping(len(prior)))
        evals = self._eval_sets(eval_set, sample_weight_eval_set)
        if self.early_stopping_rounds is not None and not evals:
            raise ValueError("eval_set must have at least one pair where early_stopping_rounds is given")
        self.evals_result_: dict[str, dict[str, list[float]]] = {}
        metric = focal_metric(self.objective_, self.eval_metric)
        rows = Rows(X, codes, weights if weights.size else None)
        booster, margins = self._train(options, rows, evals, objective, metric, callbacks)
        self.start_ = np.array(objective.start)
        if self.keep_base_rate:
            self.start_ += base_rate_shift(self.objective_, margins, prior, weights)
        self.booster_ = self._with_start(booster, self.start_)
        return self

    def decision_function(self, X: Any) -> Floats:
        """Return the margins: one number for each row with two classes, else one for each class."""
        self._check_fitted()
        margins: Floats = np.asarray(self._margins(self._checked(X, reset=False)), dtype=np.float64)
        return margins

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the engine's own model file, and beside it PATH.refocal.json with classes and objective.

        The model file alone gives the logits, start included, in every language that the engine speaks. A
        parameter that JSON cannot hold, such as a function, is at its default after `load`.
        """
        self._check_fitted()
        params = {name: _plain(value) for name, value in self.get_params().items()}
        params = {name: value for name, value in params.items() if _is_plain(value)}
        if isinstance(self.class_weight, dict):
            pairs = [[_plain(label), float(weight)] for label, weight in self.class_weight.items()]
            params["class_weight"] = {"pairs": pairs}
        fields = {
            "refocal": FORMAT,
            "engine": self.engine,
            "objective": as_softmax(self.objective_).to_dict(),  # the form that version 0.2 reads
            "start": self.start_.tolist(),
            "classes": {"dtype": self.classes_.dtype.str, "values": self.classes_.tolist()},
            "class_weight": self.class_weight_.tolist(),
            "n_features": int(self.n_features_in_),
            "feature_names": list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None,
            "params": params,
            "evals_result": getattr(self, "evals_result_", {}),
            "best_iteration": getattr(self, "best_iteration_", None),
        }
        text = json.dumps(fields, indent=1)  # before the model file: labels that JSON cannot hold
        self.booster_.save_model(str(path))
        write_atomic(_side_car(path), f"{text}\n".encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the classifier that `save` wrote."""
        name = _side_car(path).name
        try:
            fields = json.loads(_side_car(path).read_text(encoding="utf-8"))
            found = fields["refocal"], fields["engine"]
            if found == (FORMAT, cls.engine):
                return cls._from_fields(fields, str(path))
        except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{name} must be what {cls.__name__}.save wrote, got {type(error).__name__}: {error}"
            ) from error
        raise ValueError(
            f"{name} must be of format {FORMAT} and engine {cls.engine!r}, got format {found[0]!r} and "
            f"engine {found[1]!r}"
        )

    @classmethod
    def _from_fields(cls, fields: dict[str, Any], path: str) -> Self:
        params = fields["params"]
        if isinstance(params.get("class_weight"), dict):
            params["class_weight"] = {label: weight for label, weight in params["class_weight"]["pairs"]}
        model = cls(**params)
        model.classes_ = np.array(fields["classes"]["values"], dtype=np.dtype(fields["classes"]["dtype"]))
        trained: Any = objective_from_dict(fields["objective"])
        model.objective_ = as_sigmoid(trained) if len(model.classes_) == 2 else trained
        model.class_weight_ = np.array(fields["class_weight"])
        model.start_ = np.array(fields["start"])
        model.n_features_in_ = fields["n_features"]
        if fields["feature_names"] is not None:
            model.feature_names_in_ = np.array(fields["feature_names"], dtype=object)
        if "evals_result" in fields:  # which earlier versions did not write
            model.evals_result_ = fields["evals_result"]
        if fields.get("best_iteration") is not None:
            model.best_iteration_ = fields["best_iteration"]
        model.booster_ = cls._load_engine(path)
        return model

    def __sklearn_tags__(self) -> Any:
        """Say what the engine takes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.input_tags.categorical = True
        return tags

    def _damping(self, n_classes: int) -> float:
        raise NotImplementedError

    def _train(
        self,
        options: dict[str, Any],
        rows: Rows,
        evals: list[Rows],
        objective: FocalObjective,
        metric: Any,
        callbacks: Any,
    ) -> tuple[Any, Floats]:
        """Return the engine's model, cut at the best round, and its margins of the training data."""
        raise NotImplementedError

    def _with_start(self, booster: Any, start: Floats) -> Any:
        """Return the model that carries this start."""
        raise NotImplementedError

    def _margins(self, X: Any) -> Any:
        raise NotImplementedError

    @staticmethod
    def _load_engine(path: str) -> Any:
        raise NotImplementedError

    def _options(self) -> dict[str, Any]:
        own = self._get_param_names()
        return {k: v for k, v in vars(self).items() if k not in own and k[0] != "_" and k[-1] != "_"}

    def _checked_options(self) -> dict[str, Any]:
        options = {name: value for name, value in self._options().items() if value is not None}
        for name in options:
            reason = self.ours.get(self.aliases.get(name, name))
            if reason is not None:
                raise ValueError(f"{name} must not be given to {type(self).__name__}: {reason}")
        return options

    def _checked(self, X: Any, y: Any = None, *, reset: bool) -> Any:
        """Return features that the engine can take; a data frame stays one, for its categories."""
        y = "no_validation" if y is None and not reset else y
        if hasattr(X, "iloc"):
            checked: Any = validate_data(self, X, y, reset=reset, skip_check_array=True)
            X = checked if isinstance(y, str) else checked[0]
            columns = self._categorical_columns(_num_features(X))
            return X.astype({X.columns[i]: "category" for i in columns}) if columns else X
        rules: dict[str, Any] = {"accept_sparse": "csr", "ensure_all_finite": "allow-nan"}
        rules["dtype"] = [np.float64, np.float32]
        if isinstance(y, str):
            return validate_data(self, X, reset=reset, **rules)
        return validate_data(self, X, y, reset=reset, multi_output=False, y_numeric=False, **rules)[0]

    def _eval_sets(self, eval_set: Any, sample_weights: Any) -> list[Rows]:
        evals = list(eval_set or [])
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in evals):
            raise ValueError(f"eval_set must be a list of pairs (X, y), got {type(eval_set).__name__}")
        given = [None] * len(evals) if sample_weights is None else list(sample_weights)
        if len(given) != len(evals):
            raise ValueError(
                f"sample_weight_eval_set must have one entry for each of the {len(evals)} eval sets, "
                f"got {len(given)}"
            )
        checked = []
        for (X, y), weight in zip(evals, given, strict=True):
            X = self._checked(X, reset=False)
            check_consistent_length(X, y)
            if weight is not None:
                weight = _check_sample_weight(weight, X, dtype=np.float64, ensure_non_negative=True)
            checked.append(Rows(X, codes_of(self.classes_, y), weight))
        return checked

    def _categorical_columns(self, n_features: int) -> list[int]:
        """Return the numbers of the columns that `categorical_features` names."""
        chosen = self.categorical_features
        if chosen is None:
            return []
        names = getattr(self, "feature_names_in_", None)
        columns = np.flatnonzero(chosen) if np.asarray(chosen).dtype == bool else list(chosen)
        numbers = []
        for column in columns:
            if isinstance(column, str):
                if names is None or column not in names:
                    raise ValueError(f"categorical_features must name columns of X, got {column!r}")
                column = int(np.flatnonzero(names == column)[0])
            if not 0 <= column < n_features:
                raise ValueError(
                    f"categorical_features must be within the {n_features} columns, got {column}"
                )
            numbers.append(int(column))
        return numbers


def _side_car(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    return path.with_name(path.name + ".refocal.json")


def _plain(value: Any) -> Any:
    """Return NumPy's numbers and arrays, and tuples, as what JSON knows."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _is_plain(value: Any) -> bool:
    """Say whether JSON holds a parameter as it is."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False
