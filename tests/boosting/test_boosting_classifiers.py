"""FocalXGBClassifier and FocalLGBMClassifier as scikit-learn estimators."""

import json
import warnings

import numpy as np
import pytest
import scipy.sparse
import sklearn
from known_posteriors import ENGINES, binary, classifier, five_classes, kl
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import refocal

SMALL = {"n_estimators": 15, "learning_rate": 0.3, "max_depth": 3}


def test_scikit_learn_s_own_checks(engine):
    model = type(classifier(engine))(n_estimators=20)  # no option of the engine: the checks want none set
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(model, on_fail=None, on_skip=None)
    failed = {r["check_name"]: str(r["exception"]) for r in results if r["status"] == "failed"}
    assert failed == {}
    assert sum(r["status"] == "passed" for r in results) > 40


def test_options_of_the_engine_are_parameters(engine):
    model = classifier(engine, gamma=1.0, max_depth=3)
    assert model.get_params()["max_depth"] == 3
    copy = clone(model.set_params(learning_rate=0.5))
    assert copy.get_params() == model.get_params()
    assert copy.learning_rate == 0.5
    X, y, _ = binary(500, 0, intercept=-1)
    trees = json.loads(copy.fit(X, y).booster_.save_config()) if engine == "xgboost" else None
    if trees is not None:
        assert trees["learner"]["gradient_booster"]["tree_train_param"]["max_depth"] == "3"
    else:
        assert "[max_depth: 3]" in copy.fit(X, y).booster_.model_to_string()


@pytest.mark.parametrize("many", [False, True])
def test_probabilities_logits_and_scores_belong_together(engine, many):
    X, y, posterior = five_classes(3000, 0) if many else binary(3000, 0, intercept=-2)
    labels = np.array(["a", "b", "c", "d", "e"])[y]
    model = classifier(engine, gamma=1.5, **SMALL).fit(X, labels)
    logits, raw, probs = model.decision_function(X), model.predict_raw_proba(X), model.predict_proba(X)
    assert logits.shape == ((3000, 5) if many else (3000,))
    if not many:
        np.testing.assert_allclose(raw[:, 1], 1 / (1 + np.exp(-logits)), rtol=1e-6)
    np.testing.assert_allclose(probs, refocal.psi(raw, 1.5), rtol=1e-6)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), probs)
    np.testing.assert_array_equal(model.predict(X), model.classes_[probs.argmax(axis=1)])
    assert kl(posterior, probs) < kl(posterior, raw)


def test_a_weight_changes_the_decision_and_not_the_probability(engine):
    X, y, posterior = binary(20_000, 1, intercept=-3)
    options = {"n_estimators": 40, "learning_rate": 0.1, "max_depth": 3}
    plain = classifier(engine, **options).fit(X, y)
    heavy = classifier(engine, class_weight={0: 1.0, 1: 9.0}, **options).fit(X, y)
    same = classifier(engine, alpha=0.9, **options).fit(X, y)
    np.testing.assert_allclose(same.decision_function(X), heavy.decision_function(X), atol=1e-4)
    assert kl(posterior, heavy.predict_proba(X)) < 1.5 * kl(posterior, plain.predict_proba(X))
    np.testing.assert_array_equal(heavy.predict(X), heavy.predict_proba(X)[:, 1] > 0.1)
    balanced = classifier(engine, class_weight="balanced", **options).fit(X, y)
    assert balanced.class_weight_ == pytest.approx(0.5 / np.array([1 - y.mean(), y.mean()]))


def test_sample_weights_change_the_probability(engine):
    X, y, _ = binary(5000, 2, intercept=-2)
    weight = np.where(y == 1, 4.0, 1.0)
    model = classifier(engine, **SMALL).fit(X, y, sample_weight=weight)
    share = np.average(y, weights=weight)
    assert np.average(model.predict_proba(X)[:, 1], weights=weight) == pytest.approx(share, rel=1e-3)


@pytest.mark.parametrize("many", [False, True])
def test_files(engine, many, tmp_path):
    X, y, _ = five_classes(1500, 0) if many else binary(1500, 0, intercept=-1)
    labels = np.array(["no", "yes", "x", "y", "z"])[y] if many else np.where(y, 7, -3)
    model = classifier(engine, class_weight={labels[0]: 2.0}, **SMALL).fit(X, labels)
    path = tmp_path / ("model.ubj" if engine == "xgboost" else "model.txt")
    model.save(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, f"{path.name}.refocal.json"]
    loaded = type(model).load(path)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.classes_.dtype == model.classes_.dtype
    assert loaded.get_params() == model.get_params()
    # The engine's model alone has the logits, start included.
    if engine == "xgboost":
        import xgboost

        alone = xgboost.Booster(model_file=path).predict(xgboost.DMatrix(X), output_margin=True)
    else:
        import lightgbm

        alone = lightgbm.Booster(model_file=path).predict(X, raw_score=True)
    np.testing.assert_allclose(alone, model.decision_function(X))
    side_car = json.loads((tmp_path / f"{path.name}.refocal.json").read_text())
    assert loaded.objective_ == model.objective_
    weight = model.class_weight_ if many else model.class_weight_ / 3
    written = refocal.objective_from_dict(side_car["objective"])  # on a softmax, as version 0.2 reads it
    assert written.weight == pytest.approx(tuple(weight), rel=1e-15)
    other = {"xgboost": "lightgbm", "lightgbm": "xgboost"}[engine]
    (tmp_path / f"{path.name}.refocal.json").write_text(json.dumps(side_car | {"engine": other}))
    with pytest.raises(
        ValueError, match=f"must be of format 1 and engine '{engine}', got format 1 and engine"
    ):
        type(model).load(path)


def test_early_stopping_looks_at_the_posterior(engine):
    X, y, _ = binary(3000, 3, intercept=-2)
    held_out = binary(3000, 4, intercept=-2)[:2]
    seen = []

    def log_loss(labels, posterior):
        seen.append(posterior[:, 1].mean())
        return refocal.nll(posterior, labels)

    options = {"n_estimators": 200, "learning_rate": 0.3, "early_stopping_rounds": 5}
    model = classifier(engine, eval_metric=log_loss, **options)
    model.fit(X, y, eval_set=[(X[:500], y[:500]), held_out])
    history = model.evals_result_["validation_1"]["log_loss"]
    assert len(history) == model.best_iteration_ + 6 < 200
    assert np.argmin(history) == model.best_iteration_
    assert np.mean(seen) < 0.3  # posteriors, not scores: those are 0.3 and more on average
    built_in = classifier(engine, **options).fit(X, y, eval_set=[held_out])
    assert built_in.best_iteration_ == model.best_iteration_
    np.testing.assert_allclose(built_in.evals_result_["validation_0"]["nll"], history, rtol=1e-5)
    short = classifier(engine, **options | {"n_estimators": model.best_iteration_ + 1})
    short.set_params(early_stopping_rounds=None).fit(X, y)
    np.testing.assert_allclose(model.decision_function(X), short.decision_function(X), atol=1e-5)


def test_categories(engine):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    codes = rng.integers(15, size=6000)
    rate = rng.permutation(
        np.linspace(0.02, 0.6, 15)
    )  # no order, so that a split by number needs many levels
    y = rng.random(6000) < rate[codes]
    names = np.array([f"level {i}" for i in range(15)])
    frame = pandas.DataFrame({"group": pandas.Categorical(names[codes]), "noise": rng.normal(size=6000)})
    options = {"n_estimators": 30, "learning_rate": 0.3, "max_depth": 3}
    model = classifier(engine, **options).fit(frame, y)
    assert model.feature_names_in_.tolist() == ["group", "noise"]
    probs = model.predict_proba(frame)[:, 1]
    assert np.abs(probs - rate[codes]).mean() < 0.05
    some = frame.iloc[:50].copy()
    some["group"] = some["group"].cat.remove_unused_categories()  # other codes for the same names
    np.testing.assert_allclose(model.predict_proba(some)[:, 1], probs[:50], atol=1e-6)
    array = np.column_stack([codes, frame["noise"]])
    numbers = classifier(engine, categorical_features=[0], **options).fit(array, y)
    as_number = classifier(engine, **options).fit(array, y)
    assert np.abs(numbers.predict_proba(array)[:, 1] - rate[codes]).mean() < 0.05
    assert not np.allclose(numbers.predict_proba(array), as_number.predict_proba(array), atol=0.05)
    with pytest.raises(ValueError, match="categorical_features must be within the 2 columns, got 2"):
        classifier(engine, categorical_features=[2]).fit(array, y)


def test_missing_values_and_sparse_features(engine):
    X, y, _ = binary(2000, 5, intercept=-1)
    X = np.where(np.abs(X) > 1, X, 0)
    dense = classifier(engine, **SMALL).fit(X, y)
    sparse = classifier(engine, **SMALL).fit(scipy.sparse.csr_matrix(X), y)
    assert roc_auc_score(y, sparse.predict_proba(scipy.sparse.csr_matrix(X))[:, 1]) == pytest.approx(
        roc_auc_score(y, dense.predict_proba(X)[:, 1]), abs=0.02
    )
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    probs = classifier(engine, **SMALL).fit(X, y).predict_proba(X)
    assert np.isfinite(probs).all()


def test_pipelines_searches_and_routing(engine):
    pandas = pytest.importorskip("pandas")
    X, y, _ = binary(800, 6, intercept=-1)
    frame = pandas.DataFrame(X, columns=[f"f{i}" for i in range(20)])
    pipeline = make_pipeline(StandardScaler(), classifier(engine, **SMALL)).set_output(transform="pandas")
    name = pipeline.steps[-1][0]
    search = GridSearchCV(pipeline, {f"{name}__gamma": [0.0, 2.0]}, scoring="neg_log_loss", cv=2).fit(
        frame, y
    )
    assert search.best_estimator_[-1].gamma == search.best_params_[f"{name}__gamma"]
    assert search.best_estimator_[-1].feature_names_in_.tolist() == list(frame.columns)
    weight = np.random.default_rng(0).random(len(y))
    with sklearn.config_context(enable_metadata_routing=True):
        routed = classifier(engine, **SMALL).set_fit_request(sample_weight=True)
        probs = cross_val_predict(
            routed, X, y, cv=2, method="predict_proba", params={"sample_weight": weight}
        )
    plain = cross_val_predict(classifier(engine, **SMALL), X, y, cv=2, method="predict_proba")
    assert not np.allclose(probs, plain)


@pytest.mark.parametrize(
    "options, change, message",
    [
        ({"gamma": -1.0}, {}, "gamma must be finite and >= 0, got -1.0"),
        ({"alpha": 0.25, "class_weight": "balanced"}, {}, "alpha must be None where class_weight is given"),
        ({"alpha": 1.5}, {}, "alpha must be in (0, 1), or None, got 1.5"),
        ({"class_weight": {5: 1.0}}, {}, "class_weight"),
        ({"objective": "x"}, {}, "objective must not be given to"),
        ({"scale_pos_weight": 3}, {}, "use class_weight or alpha"),
        (
            {},
            {"y": np.zeros(40)},
            "needs samples of at least 2 classes in the data, but the data contains only one",
        ),
        (
            {},
            {"y": np.arange(39) % 2},
            "Found input variables with inconsistent numbers of samples: [40, 39]",
        ),
        ({}, {"sample_weight": np.ones(3)}, "sample_weight.shape == (3,), expected (40,)!"),
        ({}, {"sample_weight": -np.ones(40)}, "Negative values in data passed to `sample_weight`"),
        ({}, {"sample_weight": np.arange(40) % 2}, "only one class"),
        ({}, {"eval_set": [(np.zeros((2, 3)), [0, 2])]}, "y contains previously unseen labels: [2]"),
        ({}, {"eval_set": [(np.zeros((2, 3)), [0])]}, "inconsistent numbers of samples: [2, 1]"),
        ({}, {"eval_set": [(np.zeros((2, 4)), [0, 1])]}, "X has 4 features, but"),
        (
            {},
            {"eval_set": [], "sample_weight_eval_set": [[1.0]]},
            "must have one entry for each of the 0 eval sets",
        ),
        ({}, {"eval_set": (np.zeros((2, 3)), [0, 1])}, "eval_set must be a list of pairs (X, y), got tuple"),
        ({}, {"eval_set": [(np.zeros((2, 3)), ["a", 1])]}, "y contains previously unseen labels: ['1', 'a']"),
        ({"early_stopping_rounds": 3}, {}, "eval_set must have at least one pair"),
        ({"n_estimators": 0}, {}, "n_estimators must be at least 1, got 0"),
        ({"class_weight": {0: -1.0}}, {}, "class_weight must be finite and > 0, got {0: -1.0}"),
        ({}, {"sample_weight": np.zeros(40)}, "must contain at least one non-zero"),
        ({"eval_metric": "auc"}, {}, "metric must be one of nll, brier, or callable, got 'auc'"),
    ],
)
def test_bad_input(engine, options, change, message):
    arguments = {"X": np.random.default_rng(0).normal(size=(40, 3)), "y": np.arange(40) % 2} | change
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is checked below
        classifier(engine, **options).fit(**arguments)
    assert message in str(caught.value)


def test_what_an_earlier_fit_left_is_gone(engine):
    X, y, _ = binary(600, 3, intercept=-1)
    model = classifier(engine, early_stopping_rounds=2, n_estimators=20).fit(X, y, eval_set=[(X, y)])
    assert hasattr(model, "best_iteration_")
    assert not hasattr(model.set_params(early_stopping_rounds=None).fit(X, y), "best_iteration_")


def test_an_array_after_a_data_frame(engine):
    pandas = pytest.importorskip("pandas")
    X, y, _ = binary(600, 3, intercept=-1)
    frame = pandas.DataFrame(X, columns=[f"f{i}" for i in range(20)])
    model = classifier(engine, **SMALL).fit(frame, y)
    with pytest.warns(UserWarning, match="X does not have valid feature names, but"):
        probs = model.predict_proba(X)
    np.testing.assert_array_equal(probs, model.predict_proba(frame))


def test_side_cars_that_save_did_not_write(engine, tmp_path):
    X, y, _ = binary(300, 3, intercept=-1)
    options = {"gamma": np.float32(0.5), "monotone_constraints": tuple([1] + 19 * [0])}
    model = classifier(engine, **SMALL, **options).fit(X, y)
    path = tmp_path / ("model.ubj" if engine == "xgboost" else "model.txt")
    model.save(path)
    loaded = type(model).load(path)
    assert loaded.gamma == 0.5
    assert loaded.monotone_constraints == [1] + 19 * [0]
    side_car = tmp_path / f"{path.name}.refocal.json"
    whole = side_car.read_text()
    for text in (whole[:100], "", "[]", "null", json.dumps({"refocal": 1, "engine": engine})):
        side_car.write_text(text)
        with pytest.raises(
            ValueError, match=rf"{path.name}.refocal.json must be what Focal\w+.save wrote, got"
        ):
            type(model).load(path)
    side_car.unlink()
    with pytest.raises(FileNotFoundError, match=r"refocal\.json"):
        type(model).load(path)


def test_other_names_of_options_that_lightgbm_cannot_have():
    for name, reason in (("num_boost_round", "use n_estimators"), ("loss", "it is the focal loss")):
        with pytest.raises(ValueError, match=f"{name} must not be given to FocalLGBMClassifier: {reason}"):
            classifier("lightgbm", **{name: 7}).fit([[0.0], [1.0]], [0, 1])


def test_options_that_lightgbm_cannot_have():
    for options in ({"boosting": "rf"}, {"linear_tree": True}):
        with pytest.raises(ValueError, match="cannot carry the start"):
            classifier("lightgbm", **options).fit([[0.0], [1.0]], [0, 1])


def staged_margins(model, X):
    """Return the margins after each round."""
    if model.engine == "xgboost":
        import xgboost

        data = xgboost.DMatrix(X)
        each = [
            model.booster_.predict(data, output_margin=True, iteration_range=(i, i + 1)) for i in range(50)
        ]
        return np.cumsum(np.array(each, dtype=np.float64) - model.start_[0], axis=0) + model.start_[0]
    each = [model.booster_.predict(X, raw_score=True, start_iteration=i, num_iteration=1) for i in range(50)]
    return np.cumsum(each, axis=0)


def test_one_positive_in_a_thousand(engine):
    """The first trees split, no leaf explodes, and the focal loss falls in each of the first 50 rounds."""
    X, y, _ = binary(100_000, 7, intercept=-8.9)
    assert 0.0005 < y.mean() < 0.0015
    model = classifier(engine, n_estimators=50, learning_rate=0.1, keep_base_rate=False).fit(X, y)
    losses = [refocal.SigmoidFocal(2.0, None).loss(z, y).mean() for z in staged_margins(model, X)]
    assert len(losses) == 50
    assert losses[0] < refocal.SigmoidFocal(2.0, None).loss(np.full(len(y), model.start_[0]), y).mean()
    assert (np.diff(losses) < 0).all()
    first = type(model)(n_jobs=1, n_estimators=1, learning_rate=0.1, keep_base_rate=False).fit(X, y)
    lead = first.decision_function(X) - first.start_
    assert len(np.unique(lead)) > 1
    assert np.abs(lead).max() < 1
    assert np.isfinite(model.decision_function(X)).all()
    assert model.predict_proba(X)[:, 1].mean() == pytest.approx(y.mean(), rel=0.3)


def test_each_engine_is_asked_for_alone():
    assert set(ENGINES.values()) <= set(refocal.boosting.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'FocalCatBoostClassifier'"):
        _ = refocal.boosting.FocalCatBoostClassifier


def test_engines_that_change_trees_later_or_cannot_be_cut_are_refused():
    X, y, _ = binary(200, 0, intercept=-1)
    with pytest.raises(
        ValueError, match="boosting must not be 'dart': it scales trees down, the start with them"
    ):
        classifier("lightgbm", boosting="dart").fit(X, y)
    linear = classifier("xgboost", booster="gblinear", early_stopping_rounds=2)
    with pytest.raises(ValueError, match="early_stopping_rounds must be None for booster 'gblinear'"):
        linear.fit(X[:100], y[:100], eval_set=[(X[100:], y[100:])])
