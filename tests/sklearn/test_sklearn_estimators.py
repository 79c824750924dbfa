"""The estimators of refocal.sklearn, beside scikit-learn's own and beside known posteriors."""

import warnings

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import refocal
from refocal.sklearn import (
    CalibratedPosterior,
    FocalLinearClassifier,
    FocalMLPClassifier,
    PosteriorClassifier,
)

ONE_ROW = "the choice counts each held-out row once, and repeated rows lie in other folds"
BATCHES = "mini-batches of repeated rows are other batches, as in scikit-learn's MLPClassifier"
WEIGHTS = [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")]

ESTIMATORS = {
    "linear": (FocalLinearClassifier(), {}),
    "posterior": (PosteriorClassifier(LogisticRegression(), refocal.Focal(2.0)), {}),
    "calibrated": (
        CalibratedPosterior(LogisticRegression(), cv=2, n_resamples=100),
        dict.fromkeys(WEIGHTS, ONE_ROW),
    ),
    "temperature": (
        CalibratedPosterior(LogisticRegression(), method="ts_nll", cv=2, n_resamples=100),
        dict.fromkeys(WEIGHTS, ONE_ROW),
    ),
    "mlp": (FocalMLPClassifier(solver="adam", learning_rate=0.02, max_iter=20), {WEIGHTS[0]: BATCHES}),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_scikit_learn_s_own_checks(name):
    estimator, expected = ESTIMATORS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, on_fail=None, on_skip=None, expected_failed_checks=expected)
    failed = {r["check_name"]: str(r["exception"]) for r in results if r["status"] == "failed"}
    assert failed == {}
    assert sum(r["status"] == "passed" for r in results) > 40
    assert {r["check_name"] for r in results if r["status"] == "xfail"} == set(expected)


def draws(n, k, seed=0, scale=1.0):
    """Return features, labels and posterior of a linear softmax model with k classes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    z = scale * X @ np.random.default_rng(9).normal(size=(6, k)) - np.arange(k)
    posterior = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return X, (z + rng.gumbel(size=z.shape)).argmax(axis=1), posterior


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("options", [{}, {"C": 0.01, "class_weight": "balanced"}, {"fit_intercept": False}])
def test_gamma_0_is_logistic_regression(k, options):
    X, y, _ = draws(800, k)
    weight = np.random.default_rng(1).random(800)
    ours = FocalLinearClassifier(gamma=0.0, **options).fit(X, y)
    theirs = LogisticRegression(tol=1e-10, max_iter=5000, **options).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(
        ours.intercept_, theirs.intercept_ * options.get("fit_intercept", True), atol=1e-5
    )
    if "class_weight" not in options:  # scikit-learn balances without a look at the weights
        ours.fit(X, y, sample_weight=weight)
        theirs.fit(X, y, sample_weight=weight)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 3.0])
def test_the_linear_gradient_vanishes(k, gamma):
    X, y, _ = draws(3000, k, scale=2.0)
    model = FocalLinearClassifier(gamma, C=10.0).fit(X, y)
    assert model.gradient_ratio_ < 1e-6

    # Independently: no direction in the coefficients lowers the penalised loss of the public objective.
    def risk(vector):
        w = vector.reshape(model.coef_.shape[0], -1)
        z = X @ w[:, :-1].T + w[:, -1]
        z = np.column_stack([np.zeros(len(z)), z]) if k == 2 else z
        return 10.0 * refocal.Focal(gamma).loss(z, y).sum() + 0.5 * (w[:, :-1] ** 2).sum()

    end = np.column_stack([model.coef_, model.intercept_]).ravel()
    slope = scipy.optimize.approx_fprime(end, risk, 1e-6)
    first = np.zeros_like(end)
    assert np.linalg.norm(slope) < 1e-3 * np.linalg.norm(scipy.optimize.approx_fprime(first, risk, 1e-6))


def test_the_linear_model_finds_the_posterior():
    """Two classes with one feature: a polynomial of it can be the minimiser, which is no linear function."""
    rng = np.random.default_rng(2)
    x = rng.uniform(-3, 3, size=40_000)
    posterior = 1 / (1 + np.exp(2 - 1.5 * x))
    y = np.where(rng.random(40_000) < posterior, "ill", "well")
    X = np.column_stack([x**i for i in range(1, 6)])
    model = make_pipeline(StandardScaler(), FocalLinearClassifier(gamma=2.0, C=100.0)).fit(X, y)
    assert np.abs(model.predict_proba(X)[:, 0] - posterior).mean() < 0.01
    assert np.abs(model[-1].predict_raw_proba(model[0].transform(X))[:, 0] - posterior).mean() > 0.05


def test_linear_weights_sparse_and_warm_start():
    X, y, _ = draws(2000, 3)
    dense = FocalLinearClassifier(class_weight={0: 2.0}).fit(X, y)
    sparse = FocalLinearClassifier(class_weight={0: 2.0}).fit(scipy.sparse.csr_matrix(X), y)
    np.testing.assert_allclose(sparse.coef_, dense.coef_, atol=1e-6)
    weighted = FocalLinearClassifier(class_weight={0: 1.0, 1: 0.5, 2: 0.5}, C=2.0).fit(X, y)
    np.testing.assert_allclose(weighted.coef_, dense.coef_, atol=1e-5)
    again = FocalLinearClassifier(warm_start=True).fit(X, y)
    steps = again.n_iter_
    assert again.fit(X, y).n_iter_ < steps / 2
    with pytest.warns(ConvergenceWarning, match="L-BFGS took all 2 steps of max_iter; the gradient fell to"):
        FocalLinearClassifier(max_iter=2).fit(X, y)
    with pytest.raises(ValueError, match=r"C must be finite and > 0, got 0"):
        FocalLinearClassifier(C=0).fit(X, y)


def test_posterior_of_a_classifier_with_logits_or_scores_only():
    X, y, _ = draws(500, 3)
    spec = refocal.Focal(2.0, weight=(1.0, 2.0, 3.0))
    inner = LogisticRegression().fit(X, y)

    class Scores(ClassifierMixin, BaseEstimator):
        """A classifier without logits."""

        def fit(self, X, y):
            self.classes_ = np.unique(y)
            return self

        def predict_proba(self, X):
            return inner.predict_proba(X)

    model = PosteriorClassifier(inner, spec, prefit=True).fit(X, y)
    expected = spec.posterior_from_probs(inner.predict_proba(X))
    np.testing.assert_allclose(model.predict_proba(X), expected, rtol=1e-9)
    np.testing.assert_allclose(model.predict_raw_proba(X), inner.predict_proba(X))
    np.testing.assert_array_equal(model.predict(X), expected.argmax(axis=1))
    only = PosteriorClassifier(Scores(), spec).fit(X, y)
    np.testing.assert_allclose(only.predict_proba(X), expected, rtol=1e-9)
    assert PosteriorClassifier(inner, spec).fit(X, y).estimator_ is not inner
    with pytest.raises(NotFittedError):
        PosteriorClassifier(LogisticRegression(), spec, prefit=True).fit(X, y)
    with pytest.raises(TypeError, match=r"objective must be one of refocal's, such as Focal\(2.0\), got 2"):
        PosteriorClassifier(inner, 2).fit(X, y)


def test_posterior_of_sigmoid_objectives():
    X, y, _ = draws(500, 2)
    inner = LogisticRegression().fit(X, y)
    z = inner.decision_function(X)
    spec = refocal.SigmoidFocal(2.0, 0.25)
    model = PosteriorClassifier(inner, spec, prefit=True).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], spec.posterior(z))
    np.testing.assert_allclose(model.decision_function(X), z)
    X, y, _ = draws(500, 3)
    many = PosteriorClassifier(LogisticRegression(), spec).fit(X, y)
    with pytest.raises(ValueError, match="objective must be a softmax one or OneVsRest for 3 classes, got"):
        many.predict_proba(X)
    rest = RidgeClassifier().fit(X, y)
    spec = refocal.OneVsRest(refocal.SigmoidFocal(2.0, None))
    wrapped = PosteriorClassifier(rest, spec, prefit=True).fit(X, y)
    np.testing.assert_allclose(wrapped.predict_proba(X), spec.posterior(rest.decision_function(X)))
    np.testing.assert_allclose(wrapped.predict_raw_proba(X), 1 / (1 + np.exp(-rest.decision_function(X))))


def test_the_selector_chooses_what_the_data_says():
    X, y, posterior = draws(6000, 3, scale=1.5)
    model = CalibratedPosterior(FocalLinearClassifier(gamma=2.0, C=10.0)).fit(X, y)
    assert model.selection_.objective == refocal.Focal(2.0)
    assert model.method_ == model.selection_.winner != "raw"
    raw = refocal.kl_divergence(posterior, model.predict_raw_proba(X))
    assert refocal.kl_divergence(posterior, model.predict_proba(X)) < raw / 2
    assert CalibratedPosterior(LogisticRegression()).fit(X, y).method_ == "raw"
    # A classifier twice too sharp, fitted elsewhere: a temperature of 2.
    sharp = LogisticRegression().fit(X[:3000], y[:3000])
    sharp.coef_, sharp.intercept_ = 2 * sharp.coef_, 2 * sharp.intercept_
    found = CalibratedPosterior(sharp, cv="prefit").fit(X[3000:], y[3000:])
    assert found.method_ == "ts_nll"
    assert found.selection_.method("ts_nll").temperature == pytest.approx(2, abs=0.2)
    theirs = CalibratedClassifierCV(sklearn.frozen.FrozenEstimator(sharp), method="temperature")
    theirs.fit(X[3000:], y[3000:])
    np.testing.assert_allclose(found.predict_proba(X), theirs.predict_proba(X), atol=0.02)


def test_a_temperature_as_scikit_learn_has_it():
    """By folds, prefit and frozen, at the end of a pipeline; CalibratedClassifierCV finds the same T."""
    X, y, _ = draws(3000, 3)
    sharp = LogisticRegression().fit(X[:1500], y[:1500])
    sharp.coef_, sharp.intercept_ = 2 * sharp.coef_, 2 * sharp.intercept_
    frozen = sklearn.frozen.FrozenEstimator(sharp)
    theirs = CalibratedClassifierCV(frozen, method="temperature").fit(X[1500:], y[1500:])
    expected = 1 / theirs.calibrated_classifiers_[0].calibrators[0].beta_
    for model in (
        CalibratedPosterior(sharp, method="ts_nll", cv="prefit"),
        CalibratedPosterior(frozen, method="ts_nll"),
    ):
        assert model.fit(X[1500:], y[1500:]).temperature_ == pytest.approx(expected, rel=1e-3)
        np.testing.assert_allclose(model.predict_proba(X), theirs.predict_proba(X), atol=1e-3)
    pipeline = make_pipeline(
        StandardScaler(), CalibratedPosterior(LogisticRegression(), method="ts_nll", cv=3)
    ).fit(X, y)
    assert pipeline[-1].temperature_ == pytest.approx(1, abs=0.1)
    assert cross_val_score(pipeline, X, y, scoring="neg_log_loss", cv=2).min() > -1


def test_a_temperature_without_an_answer():
    X, y, _ = draws(400, 2)
    y = np.random.default_rng(5).permutation(y)
    inner = LogisticRegression().fit(X, y)
    with pytest.warns(ConvergenceWarning, match="ts_nll has no answer for these rows, so the softmax is"):
        model = CalibratedPosterior(inner, method="ts_nll", cv="prefit").fit(X, 1 - y)
    assert (model.method_, model.temperature_) == ("raw", 1.0)


def test_the_objective_is_found_inside():
    X, y, _ = draws(600, 2)
    inner = FocalLinearClassifier(1.5)
    for estimator in (
        make_pipeline(StandardScaler(), inner),
        GridSearchCV(inner, {"C": [1.0]}, cv=2),
        sklearn.frozen.FrozenEstimator(make_pipeline(StandardScaler(), inner).fit(X, y)),
    ):
        model = CalibratedPosterior(estimator, cv=2, n_resamples=100).fit(X, y)
        assert model.selection_.objective == refocal.Focal(1.5)


def test_a_word_for_an_objective_is_the_log_loss():
    lightgbm = pytest.importorskip("lightgbm")
    X, y, _ = draws(600, 2)
    theirs = lightgbm.LGBMClassifier(n_estimators=5, verbosity=-1, n_jobs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LightGBM's, about names that it made up itself
        model = CalibratedPosterior(theirs, cv=2, n_resamples=100).fit(X, y)
    assert model.estimator_.objective_ == "binary"
    assert model.selection_.objective == refocal.Focal(0.0)


def test_labels_that_a_prefit_classifier_does_not_know():
    X, y, _ = draws(300, 2)
    inner = LogisticRegression().fit(X, y)
    with pytest.raises(ValueError, match=r"y contains previously unseen labels: \['a', 'b'\]"):
        CalibratedPosterior(inner, cv="prefit").fit(X, np.array(["a", "b"])[y])


def test_a_method_by_name():
    X, y, _ = draws(1000, 2)
    model = CalibratedPosterior(LogisticRegression(), refocal.SigmoidFocal(2.0, None), method="ts_nll", cv=2)
    model = make_pipeline(StandardScaler(), model).fit(X, y)
    assert model[-1].method_ == "ts_nll"
    assert model[-1].selection_.objective == refocal.Focal(2.0)
    for options, message in (
        (
            {"method": "isotonic"},
            "method must be 'auto' or one of raw, ts_nll, .*, got 'isotonic': unknown here",
        ),
        ({"cv": "postfit"}, "cv must be 'prefit', a number of folds or a splitter, got 'postfit'"),
    ):
        with pytest.raises(ValueError, match=message):
            CalibratedPosterior(LogisticRegression(), **options).fit(X, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        CalibratedPosterior(LogisticRegression()).fit(X, y[1:])


@pytest.mark.filterwarnings(
    "ignore:the fit did not converge"
)  # of a gamma that these logits do not determine
def test_weights_are_routed_to_the_inner_classifier():
    X, y, _ = draws(600, 2)
    weight = np.where(y == 1, 5.0, 1.0)
    for make in (
        lambda inner: PosteriorClassifier(inner, refocal.Focal(2.0)),
        lambda inner: CalibratedPosterior(inner, cv=3),
    ):
        plain = make(LogisticRegression()).fit(X, y)
        given = make(LogisticRegression()).fit(X, y, sample_weight=weight)
        assert given.estimator_.intercept_ > plain.estimator_.intercept_ + 0.5
        with sklearn.config_context(enable_metadata_routing=True):
            routed = make(LogisticRegression().set_fit_request(sample_weight=True)).fit(
                X, y, sample_weight=weight
            )
        np.testing.assert_allclose(routed.predict_proba(X), given.predict_proba(X))
        with pytest.raises(
            TypeError, match=r"sample_weight must be None: KNeighborsClassifier.fit takes none"
        ):
            make(sklearn.neighbors.KNeighborsClassifier()).fit(X, y, sample_weight=weight)


def test_the_network_finds_the_posterior():
    X, y, posterior = draws(6000, 3)
    weight = np.where(y == 2, 3.0, 1.0)
    options = {"max_iter": 15, "random_state": 0}
    model = FocalMLPClassifier(gamma=2.0, class_weight="balanced", **options).fit(X, y)
    assert [layer.out_features for layer in model.network_[::2]] == [64, 3]
    assert refocal.kl_divergence(posterior, model.predict_proba(X)) < 0.03
    assert refocal.kl_divergence(posterior, model.predict_raw_proba(X)) > 0.06
    heavy = FocalMLPClassifier(solver="adam", **options).fit(X, y, sample_weight=weight)
    expected = posterior * [1, 1, 3] / (posterior * [1, 1, 3]).sum(axis=1, keepdims=True)
    assert refocal.kl_divergence(expected, heavy.predict_proba(X)) < 0.03
    again = clone(model).fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_the_network_stops_early():
    X, y, _ = draws(300, 2)
    options = {"early_stopping": True, "n_iter_no_change": 3, "learning_rate": 0.1, "random_state": 1}
    model = FocalMLPClassifier(max_iter=200, validation_fraction=0.3, **options).fit(X, y)
    assert model.n_iter_ < 200
    shorter = FocalMLPClassifier(max_iter=model.n_iter_ - 3, validation_fraction=0.3, **options).fit(X, y)
    assert shorter.validation_nll_ == model.validation_nll_
    np.testing.assert_array_equal(shorter.predict_proba(X), model.predict_proba(X))
    with pytest.raises(ValueError, match="solver must be 'sgd' or 'adam', got 'lbfgs'"):
        FocalMLPClassifier(solver="lbfgs").fit(X, y)


def test_searches_over_gamma():
    X, y, _ = draws(1000, 2)
    search = GridSearchCV(
        FocalLinearClassifier(), {"gamma": [0.0, 1.0, 2.0]}, scoring="neg_log_loss", cv=3
    ).fit(X, y)
    assert search.best_score_ == pytest.approx(
        cross_val_score(search.best_estimator_, X, y, scoring="neg_log_loss", cv=3).mean()
    )


@pytest.mark.parametrize(
    "options, y, message",
    [
        ({"gamma": -1.0}, [0, 1, 0, 1], "gamma must be finite and >= 0, got -1.0"),
        ({}, [1, 1, 1, 1], "FocalLinearClassifier needs samples of at least 2 classes in the data"),
        ({"alpha": 0.25}, [0, 1, 2, 1], "alpha must be None for 3 classes, got 0.25"),
        ({}, [0, 1, 0], "Found input variables with inconsistent numbers of samples: [4, 3]"),
        ({}, [0.1, 0.2, 0.3, 0.4], "Unknown label type: continuous"),
    ],
)
def test_bad_input(options, y, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is checked below
        FocalLinearClassifier(**options).fit([[0.0], [1.0], [2.0], [3.0]], y)
    assert message in str(caught.value)
    with pytest.raises(TypeError, match="alpha must be a number, got 'a'"):
        FocalLinearClassifier(alpha="a").fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(TypeError, match=r"gamma must be a number, got \[1.0, 2.0\]"):
        FocalLinearClassifier([1.0, 2.0]).fit([[0.0], [1.0]], [0, 1])
