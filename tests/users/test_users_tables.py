"""Tables as people bring them: frames, labels of any kind, missing values, categories, searches."""

from __future__ import annotations

import importlib
import os

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import refocal
from refocal.sklearn import CalibratedPosterior, FocalLinearClassifier, FocalMLPClassifier

pandas = pytest.importorskip("pandas")

MODELS = ["FocalLinearClassifier", "FocalMLPClassifier", "FocalXGBClassifier", "FocalLGBMClassifier"]


def made(name):
    """Return a small classifier of this name, or skip the test where its engine is absent."""
    if name == "FocalLinearClassifier":
        return FocalLinearClassifier(gamma=2.0)
    if name == "FocalMLPClassifier":
        pytest.importorskip("torch")
        return FocalMLPClassifier(gamma=2.0, max_iter=3, random_state=0)
    pytest.importorskip("xgboost" if "XGB" in name else "lightgbm")
    return getattr(importlib.import_module("refocal.boosting"), name)(
        gamma=2.0, n_estimators=8, learning_rate=0.3, n_jobs=1
    )


@pytest.fixture
def model(request):
    return made(request.param)


every = pytest.mark.parametrize("model", MODELS, indirect=True)
trees = pytest.mark.parametrize("model", MODELS[2:], indirect=True)


def customers(n=600, seed=0):
    """Return a table of customers who left or stayed, and P(left)."""
    rng = np.random.default_rng(seed)
    frame = pandas.DataFrame({"age": rng.integers(18, 80, size=n), "spent": rng.exponential(100, size=n)})
    rate = 1 / (1 + np.exp(2 - 0.02 * frame["spent"].to_numpy()))
    return frame, rng.random(n) < rate, rate


LABELS = {
    "booleans": lambda y: y,
    "words": lambda y: np.where(y, "left", "stayed"),
    "objects": lambda y: np.where(y, "left", "stayed").astype(object),
    "a column of pandas": lambda y: pandas.Series(np.where(y, "left", "stayed")),
    "categories of pandas": lambda y: pandas.Series(np.where(y, "left", "stayed")).astype("category"),
    "-1 and 1": lambda y: np.where(y, 1, -1),
    "1.0 and 2.0": lambda y: np.where(y, 2.0, 1.0),
    "a list": lambda y: y.tolist(),
}


@every
@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_any_kind(model, kind):
    frame, y, rate = customers()
    labels = LABELS[kind](y)
    model = make_pipeline(StandardScaler(), model).fit(frame, labels)
    assert set(model.predict(frame)) <= set(np.unique(np.asarray(labels)))
    left = list(model.classes_).index(np.asarray(labels)[np.argmax(y)])
    assert np.corrcoef(model.predict_proba(frame)[:, left], rate)[0, 1] > 0.6


@every
def test_polars_and_lists_and_integers(model):
    polars = pytest.importorskip("polars")
    frame, y, _ = customers(200)
    fitted = clone(model).fit(polars.from_pandas(frame), y)
    assert fitted.feature_names_in_.tolist() == ["age", "spent"]
    lists = clone(model).fit(frame.to_numpy().tolist(), y.tolist())
    np.testing.assert_allclose(
        fitted.predict_proba(polars.from_pandas(frame)),
        lists.predict_proba(frame.to_numpy().tolist()),
        rtol=1e-5,
    )


@trees
def test_missing_values_words_as_categories_and_nullable_numbers(model, tmp_path, monkeypatch):
    frame, y, rate = customers()
    frame["city"] = np.where(rate > 0.5, "north", "south")
    frame["visits"] = pandas.array([None if i % 7 == 0 else i % 5 for i in range(len(frame))], dtype="Int64")
    frame.loc[::9, "spent"] = np.nan
    model = clone(model).set_params(categorical_features=["city"]).fit(frame, y)
    probs = model.predict_proba(frame)[:, 1]
    assert np.isfinite(probs).all()
    assert np.corrcoef(probs, rate)[0, 1] > 0.6
    monkeypatch.chdir(tmp_path)  # saved here by a relative name, read from elsewhere
    name = "model.ubj" if model.engine == "xgboost" else "model.txt"
    model.save(name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = type(model).load(os.path.join("..", name))
    np.testing.assert_array_equal(again.predict_proba(frame)[:, 1], probs)
    some = frame.head(5)[::-1]  # other categories may be missing there
    np.testing.assert_allclose(again.predict_proba(some)[:, 1], probs[:5][::-1], rtol=1e-6)


@trees
def test_sparse_words_of_a_column_transformer(model):
    frame, y, _ = customers()
    frame["city"] = np.array(["a", "b", "c", "d"])[np.arange(len(frame)) % 4]
    columns = make_column_transformer(
        (OneHotEncoder(), ["city"]), remainder="passthrough", sparse_threshold=1.0
    )
    assert scipy.sparse.issparse(columns.fit_transform(frame))
    probs = cross_val_predict(make_pipeline(columns, model), frame, y, cv=3, method="predict_proba")
    assert refocal.nll(probs, y.astype(int)) < refocal.nll(
        np.tile([1 - y.mean(), y.mean()], (600, 1)), y.astype(int)
    )


@every
def test_a_search_over_gamma_and_a_temperature_behind_it(model):
    frame, y, _ = customers(300)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), model).set_output(transform="pandas"),
        {f"{type(model).__name__.lower()}__gamma": [0.5, 2.0]},
        scoring="neg_log_loss",
        cv=2,
    )
    calibrated = CalibratedPosterior(search, method="ts_nll", cv=2, n_resamples=50).fit(frame, y)
    best = calibrated.estimator_.best_estimator_[-1]
    assert best.feature_names_in_.tolist() == ["age", "spent"]
    assert calibrated.selection_.objective == refocal.Focal(best.gamma)
    assert 0.1 < calibrated.temperature_ < 10


@every
@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"y": ["same"] * 600},
            "at least 2 classes in the data, but the data contains only one class: 'same'",
        ),
        ({"y": np.linspace(0, 1, 600)}, "Unknown label type"),
        ({"y": np.arange(599) % 2}, "inconsistent numbers of samples"),
        ({"sample_weight": np.zeros(600)}, "at least one non-zero"),
        ({"sample_weight": np.full(600, -1.0)}, "Negative values in data passed to `sample_weight`"),
        ({"sample_weight": np.ones(3)}, "sample_weight"),
    ],
)
def test_what_cannot_be_learned_from(model, change, message):
    frame, y, _ = customers()
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is checked below
        model.fit(**{"X": frame, "y": y} | change)
    assert message in str(caught.value)


@every
def test_columns_in_another_order(model):
    frame, y, _ = customers(200)
    model.fit(frame, y)
    with pytest.raises(ValueError, match="Feature names must be in the same order as they were in fit"):
        model.predict_proba(frame[["spent", "age"]])
