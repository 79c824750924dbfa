"""Temperatures and choices for sigmoid scores, of labels and of classes: against SciPy and the truth."""

import json
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import torch

import refocal
from refocal import (
    Asymmetric,
    Focal,
    FocalTemperatureScaling,
    OneVsRest,
    Selection,
    SigmoidFocal,
    TemperatureScaling,
    choose_calibration,
)
from refocal.calibration._fits import fit_focal_temperature, fit_link_temperature, fit_platt, sigmoid_psi
from refocal.calibration._links import Way, log_both
from refocal.calibration._problem import problem_of

DETECTOR = SigmoidFocal(2.0, 0.25)
ONE_VS_REST = OneVsRest(DETECTOR)


def binary(n, seed=0, shape=()):
    """Return probabilities of 1, and outcomes drawn from them."""
    rng = np.random.default_rng(seed)
    eta = np.clip(rng.beta(0.6, 1.5, size=(n, *shape)), 1e-6, 1 - 1e-6)
    return eta, (rng.random(eta.shape) < eta).astype(int)


def classes(n, k=4, seed=0):
    rng = np.random.default_rng(seed)
    eta = np.maximum(rng.dirichlet([0.5] * k, size=n), 1e-6)
    eta /= eta.sum(axis=1, keepdims=True)
    return eta, np.minimum((rng.random((n, 1)) > eta.cumsum(axis=1)).sum(axis=1), k - 1)


def choose(*arguments, **options):
    return choose_calibration(*arguments, **{"n_resamples": 100, **options})


def nll_of(probs, labels):
    return -np.where(labels == 1, np.log(probs), np.log1p(-probs)).mean()


def best_by_scipy(loss, low=-3.0, high=3.0):
    return scipy.optimize.minimize_scalar(
        loss, bounds=(low, high), method="bounded", options={"xatol": 1e-9}
    ).x


@pytest.mark.parametrize("shape", [(), (3,)], ids=["binary", "multilabel"])
@pytest.mark.parametrize("objective", ["nll", "focal", DETECTOR, Asymmetric(1.0, 4.0, 0.05)], ids=str)
def test_the_temperature_is_that_of_scipy(objective, shape):
    eta, labels = binary(800, shape=shape)
    logits = 2 * DETECTOR.logits(eta) + 0.5
    spec = {"nll": SigmoidFocal(0.0, None), "focal": SigmoidFocal(2.0, None)}.get(str(objective), objective)
    best = best_by_scipy(lambda u: spec.loss(logits * math.exp(-u), labels.astype(float)).mean())
    task = ("multilabel" if shape else "binary") if isinstance(objective, str) else None
    scaling = TemperatureScaling(objective, 2.0 if objective == "focal" else None, task=task)
    scaling.fit(logits, labels)
    assert scaling.temperature_ == pytest.approx(math.exp(best), rel=1e-4)
    assert scaling.converged_
    assert scaling.task_ == ("multilabel" if shape else "binary")
    np.testing.assert_allclose(
        scaling.predict_proba(logits), scipy.special.expit(logits / scaling.temperature_), rtol=1e-12
    )
    again = TemperatureScaling.from_dict(json.loads(json.dumps(scaling.to_dict())))
    np.testing.assert_array_equal(again.predict_proba(logits), scaling.predict_proba(logits))


def test_a_binary_task_is_the_softmax_of_two_classes():
    eta, labels = binary(500)
    z = 3 * np.log(eta / (1 - eta))
    two = np.stack([np.zeros_like(z), z], axis=1)
    for scaling in (TemperatureScaling, FocalTemperatureScaling):
        one = scaling(task="binary").fit(z, labels)
        both = scaling().fit(two, labels)
        assert one.temperature_ == pytest.approx(both.temperature_, rel=1e-4)
        np.testing.assert_allclose(one.predict_proba(z), both.predict_proba(two)[:, 1], atol=1e-4)
    found, other = choose(z, labels), choose(two, labels)
    assert found.task == "binary"
    assert found.assumed
    assert found.objective == SigmoidFocal(2.0, None)
    for name in ("raw", "psi", "ts_nll", "ts_fl", "psi_ts_fl", "focal_ts", "focal_ts_free"):
        a, b = found.method(name).nll, other.method(name).nll
        assert (a.value, a.low, a.high) == pytest.approx((b.value, b.low, b.high), abs=2e-5)


def test_the_ece_is_that_of_class_one():
    eta, labels = binary(600)
    z = 3 * np.log(eta / (1 - eta))
    scaling = TemperatureScaling("ece", task="binary").fit(z, labels)
    ours = refocal.ece(scaling.predict_proba(z), labels, target="positive")
    assert ours < refocal.ece(scipy.special.expit(z), labels, target="positive")
    assert ours <= refocal.ece(
        scipy.special.expit(z / scaling.temperature_ / 1.01), labels, target="positive"
    )


def test_derivatives_of_psi_on_a_sigmoid():
    eta, labels = binary(50, shape=(2,))
    z = np.log(eta / (1 - eta))
    surface = sigmoid_psi(z, labels == 1, np.array([0.3, -1.0]))
    point = np.array([-0.4, 1.7])
    value, slope, _ = surface(point)
    p = [
        SigmoidFocal(1.7, 1 / (1 + math.exp(s))).posterior(z[:, j] * math.exp(-0.4))
        for j, s in ((0, 0.3), (1, -1.0))
    ]
    assert value == pytest.approx(nll_of(np.stack(p, axis=1), labels), rel=1e-12)
    numeric = scipy.optimize.approx_fprime(point, lambda x: surface(x)[0], 1e-7)
    np.testing.assert_allclose(slope, numeric, rtol=1e-5)


def test_links_after_a_temperature_are_those_of_scipy():
    eta, labels = binary(700, shape=(2,))
    logits = 2.5 * DETECTOR.logits(eta)
    for link in (DETECTOR, SigmoidFocal([1.0, 3.0], [0.2, 0.6]), Asymmetric(1.0, 2.0, 0.0)):
        problem = problem_of(logits, labels, None, link, -1)
        fit = fit_link_temperature(problem, Way(link=link))
        best = best_by_scipy(lambda u, link=link: nll_of(link.posterior(logits * math.exp(-u)), labels))
        assert fit.temperature == pytest.approx(math.exp(best), rel=1e-4)
    problem = problem_of(logits, labels, None, DETECTOR, -1)
    fit = fit_focal_temperature(problem, 0.25)

    def loss(x):
        return nll_of(SigmoidFocal(abs(x[1]), 0.25).posterior(logits * math.exp(-x[0])), labels)

    best = min(scipy.optimize.minimize(loss, [0.5, g], method="Nelder-Mead").fun for g in (0.5, 2.0, 6.0))
    assert loss([math.log(fit.temperature), fit.gamma]) <= best + 1e-7
    assert fit.converged


def test_platt_is_logistic_regression():
    linear = pytest.importorskip("sklearn.linear_model")
    eta, labels = binary(600)
    z = 2 * np.log(eta / (1 - eta)) + 3
    fit = fit_platt(problem_of(z, labels, "binary", None, -1))
    reference = linear.LogisticRegression(C=np.inf, tol=1e-10).fit(z[:, None], labels)
    assert 1 / fit.temperature == pytest.approx(reference.coef_[0, 0], rel=1e-4)
    assert fit.bias == pytest.approx(reference.intercept_[0], rel=1e-4)


def test_one_vs_rest_is_that_of_scipy():
    eta, labels = classes(600)
    logits = 2 * ONE_VS_REST.logits(eta)

    def loss(u):
        p = scipy.special.expit(logits * math.exp(-u))
        return -np.log(p / p.sum(axis=1, keepdims=True))[np.arange(600), labels].mean()

    found = choose(logits, labels, ONE_VS_REST)
    assert found.task == "multiclass"
    assert found.method("raw").nll.value == pytest.approx(loss(0.0), rel=1e-12)
    assert found.method("ts_nll").temperature == pytest.approx(math.exp(best_by_scipy(loss)), rel=1e-4)
    own = TemperatureScaling(ONE_VS_REST).fit(logits, labels)
    best = best_by_scipy(lambda u: ONE_VS_REST.loss(logits * math.exp(-u), labels).mean())
    assert own.temperature_ == pytest.approx(math.exp(best), rel=1e-4)
    np.testing.assert_allclose(own.predict_proba(logits).sum(axis=1), 1, rtol=1e-12)


CASES = {
    "detector": (DETECTOR, lambda eta: DETECTOR.logits(eta), "psi"),
    "sharp detector": (DETECTOR, lambda eta: 2 * DETECTOR.logits(eta), "psi_ts_fl"),
    "log odds, said to be a detector's": (DETECTOR, lambda eta: np.log(eta / (1 - eta)), "raw"),
    "another prior": (DETECTOR, lambda eta: np.log(eta / (1 - eta)) + 1.5, "platt"),
    "asymmetric": (Asymmetric(1.0, 4.0, 0.05), lambda eta: Asymmetric(1.0, 4.0, 0.05).logits(eta), "psi"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", [(), (3,)], ids=["binary", "multilabel"])
def test_the_winner_has_the_true_posterior(case, shape):
    objective, make, winner = CASES[case]
    eta, labels = binary(4000, shape=shape)
    found = choose(make(eta), labels, objective)
    assert found.winner == winner
    p = found.apply(make(eta))
    kl = (eta * np.log(eta / p) + (1 - eta) * np.log((1 - eta) / (1 - p))).mean()
    assert 0 <= kl < 0.001


def test_a_label_of_its_own_temperature():
    eta, labels = binary(3000, shape=(3,))
    logits = np.log(eta / (1 - eta)) * np.array([1.0, 3.0, 0.4])
    found = choose(logits, labels, task="multilabel")
    assert found.winner == "ts_nll_per_label"
    np.testing.assert_allclose(found.method("ts_nll_per_label").temperature, [1.0, 3.0, 0.4], rtol=0.1)
    assert [x.gains for x in found.labels] == [False, True, True]
    assert [x.n_positive for x in found.labels] == labels.sum(axis=0).tolist()
    winner, raw = (found.method(name) for name in (found.winner, "raw"))
    assert np.mean([x.gap.value for x in found.labels]) == pytest.approx(winner.nll.value - raw.nll.value)
    assert "By ts_nll_per_label, against raw, labels 1, 2 gain clearly." in str(found)
    again = Selection.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert again == found
    np.testing.assert_array_equal(again.apply(logits), found.apply(logits))
    np.testing.assert_allclose(found.apply(logits.T, axis=0), found.apply(logits).T, rtol=1e-14)
    with pytest.raises(ValueError, match=r"the 3 labels of the fit along axis -1, got shape \(3000, 2\)"):
        found.apply(logits[:, :2])


def test_rare_labels_share_the_numbers_of_all():
    eta, labels = binary(500, shape=(3,))
    labels[:, 1] = 0
    labels[:5, 1] = 1
    found = choose(2 * np.log(eta / (1 - eta)), labels, task="multilabel")
    method = found.method("ts_nll_per_label")
    assert method.shared == (1,)
    assert method.temperature[1] == found.method("ts_nll").temperature
    assert "ts_nll_per_label: labels 1 have the numbers of all labels" in str(found)


def test_metrics_of_labels_are_pooled_and_macro():
    eta, labels = binary(300, shape=(2,))
    z = 2 * np.log(eta / (1 - eta))
    raw = choose(z, labels, task="multilabel").method("raw")
    p = scipy.special.expit(z)
    pooled, macro = (p.reshape(-1), labels.reshape(-1)), [(p[:, j], labels[:, j]) for j in range(2)]
    assert raw.ece.value == pytest.approx(refocal.ece(*pooled, target="positive"))
    assert raw.classwise_ece.value == pytest.approx(
        np.mean([refocal.ece(*x, target="positive") for x in macro])
    )
    assert raw.nll.value == pytest.approx(nll_of(p, labels))
    assert raw.brier.value == pytest.approx(refocal.brier(*pooled))
    assert raw.error_rate.value == pytest.approx(((p > 0.5) != labels).mean())
    for name in ("nll", "brier", "error_rate", "ece", "classwise_ece"):
        assert getattr(raw, name).low < getattr(raw, name).high


def test_intervals_draw_rows_and_not_entries():
    """With every label twice, nothing is learnt: the intervals stay."""
    eta, labels = binary(400)
    z = 2 * np.log(eta / (1 - eta))
    once = choose(z[:, None], labels[:, None], task="multilabel").method("raw")
    twice = choose(np.stack([z, z], axis=1), np.stack([labels] * 2, axis=1), task="multilabel").method("raw")
    for name in ("nll", "brier", "error_rate"):
        a, b = getattr(once, name), getattr(twice, name)
        assert (a.low, a.high) == pytest.approx((b.low, b.high), rel=1e-9)


def test_both_probabilities_are_exact():
    z = np.array([[-400.0, -40.0, 0.0, 40.0, 400.0]])
    one, zero = log_both(z, Way(link=DETECTOR))
    assert np.isfinite(one).all()
    assert np.isfinite(zero).all()
    assert zero[0, -1] == pytest.approx(-1200, abs=1e-9)
    for way in (Way(), Way(2.0, bias=0.5), Way(link=Asymmetric(1.0, 4.0, 0.0))):
        one, zero = log_both(z / 20, way)
        np.testing.assert_allclose(np.exp(one) + np.exp(zero), 1, rtol=1e-13)


@pytest.mark.parametrize("floor", [0.0, 1 / 802])
def test_scores_below_the_clip_keep_a_probability(floor):
    spec = Asymmetric(1.0, 4.0, 0.05 if floor else 0.0)
    eta, labels = binary(800)
    rng = np.random.default_rng(1)
    logits = spec.logits(eta) + rng.normal(size=800)
    found = choose(logits, labels, spec)
    psi = found.method("psi")
    assert psi.floor == floor
    assert math.isfinite(psi.nll.value)
    p = psi.probs(np.linspace(-9, 9, 200))
    assert (np.diff(p) > 0).all()  # the order stays, below the clip too
    if floor:
        wanted = (1 - floor) * spec.posterior(logits) + floor * scipy.special.expit(logits)
        np.testing.assert_allclose(psi.probs(logits), wanted, rtol=1e-9)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (
            ((30,), (30,), Focal()),
            ValueError,
            r"logits must have rows and classes, got shape \(30,\); log odds",
        ),
        (((30, 4), (30, 4), None), ValueError, r"labels must have the shape .* need task='multilabel'"),
        (((30, 4), (30,), DETECTOR), ValueError, r"need OneVsRest\(...\) as the objective"),
        (((30, 4), (30, 3), DETECTOR), ValueError, r"labels must have the shape \(30, 4\) of logits"),
        (
            ((30,), (30, 1), DETECTOR),
            ValueError,
            r"labels must have the shape \(30,\) of the rows of logits",
        ),
    ],
)
def test_shapes_that_contradict(arguments, error, message):
    logits, labels, objective = arguments
    with pytest.raises(error, match=message):
        choose(np.zeros(logits), np.zeros(labels, dtype=int), objective)


@pytest.mark.parametrize(
    "options, error, message",
    [
        (
            {"task": "multiclass"},
            ValueError,
            r"got 'multiclass' for SigmoidFocal \(sigmoid\): wrap it as OneVs",
        ),
        (
            {"task": "ranking"},
            ValueError,
            r"task must be one of \('binary', 'multiclass', 'multilabel'\) or None",
        ),
        ({"labels": np.full(30, 2)}, ValueError, "labels must be within 0..1, got 2"),
        ({"labels": np.full(30, -1)}, ValueError, "labels must be within 0..1, got -1"),
        ({"labels": np.zeros(30)}, TypeError, "labels must hold integers, got dtype float64"),
        ({"logits": np.full(30, np.nan)}, ValueError, "logits must not be NaN, got one in row 0"),
        ({"logits": np.full(30, np.inf)}, ValueError, "a logit of -inf for a 1 or of inf for a 0 in row 0"),
        ({"logits": np.zeros(0), "labels": np.zeros(0, dtype=int)}, ValueError, "at least 1 row"),
    ],
)
def test_bad_values(options, error, message):
    arguments = {"logits": np.ones(30), "labels": np.zeros(30, dtype=int), "objective": DETECTOR} | options
    with pytest.raises(error, match=message):
        choose(**arguments)


def test_data_without_a_temperature_are_refused():
    z = np.linspace(-2, 2, 100)
    for scaling in (TemperatureScaling(task="binary"), FocalTemperatureScaling(task="binary")):
        with pytest.raises(ValueError, match="must not all be what the sign of the logit says"):
            scaling.fit(z, (z > 0).astype(int))
        with pytest.raises(ValueError, match="logits must tell more of the labels than chance"):
            scaling.fit(z, (z < 0).astype(int))
        with pytest.raises(ValueError, match="logits must not all be 0: they are, and T is arbitrary"):
            scaling.fit(np.zeros(100), (z > 0).astype(int))
    found = choose(z, (z > 0).astype(int), DETECTOR)
    assert {m.name for m in found.methods} == {"raw", "psi"}
    assert "platt" in dict(found.skipped)


layouts = st.sampled_from(["C", "F", "reversed", "strided", "torch"])


@hypothesis.settings(max_examples=25)
@hypothesis.given(
    st.sampled_from(["binary", "multilabel", "one-vs-rest"]),
    st.sampled_from([np.float16, np.float32, np.float64]),
    layouts,
    st.integers(0, 5),
    st.booleans(),
)
def test_any_layout_gives_finite_probabilities(task, dtype, layout, seed, masked):
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(60, 3)) * 10.0 ** rng.integers(-1, 2)).astype(dtype)
    labels = (rng.random((60, 3)) < 0.4).astype(int)
    if task == "one-vs-rest":
        labels = rng.integers(3, size=60)
    elif masked:
        logits[:4] = np.where(labels[:4] == 1, np.inf, -np.inf)
    if task == "binary":
        logits, labels = logits[:, 0], labels[:, 0]
    given = {
        "C": lambda x: x,
        "F": np.asfortranarray,
        "reversed": lambda x: x[::-1].copy()[::-1],
        "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
        "torch": torch.from_numpy,
    }[layout](logits)
    objective = ONE_VS_REST if task == "one-vs-rest" else DETECTOR
    found = choose(given, labels, objective, n_folds=2, n_resamples=5)
    for method in found.methods:
        probs = method.probs(given)
        assert probs.dtype == given.dtype
        p = np.asarray(probs, dtype=float)
        assert ((p >= 0) & (p <= 1)).all()
        assert math.isfinite(method.nll.value)
    assert Selection.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found
