"""The bare objective, metric and start, with the engines' own training functions."""

import mpmath
import numpy as np
import pytest
from known_posteriors import binary, five_classes

import refocal
from refocal.boosting import add_start, base_rate_shift, focal_metric, focal_objective

PLAIN = refocal.SigmoidFocal(2.0, alpha=None)


class Data:
    """What the objective needs of an engine's data."""

    def __init__(self, label, weight=None):
        self.label, self.weight = np.asarray(label, np.float32), weight

    def get_label(self):
        return self.label

    def get_weight(self):
        return self.weight


@pytest.mark.parametrize("gamma", [0.5, 2.0, 3.0])
@pytest.mark.parametrize("prior", [0.5, 0.01, 0.001])
def test_it_starts_at_the_minimiser_of_the_prior(gamma, prior):
    """The start is where the derivative of the prior's focal risk, taken by mpmath, is 0."""
    (start,) = focal_objective(refocal.SigmoidFocal(gamma, alpha=0.3), prior).start

    def risk(z):
        p = 1 / (1 + mpmath.exp(-z))
        of_one, of_zero = -((1 - p) ** gamma) * mpmath.log(p), -(p**gamma) * mpmath.log(1 - p)
        return 0.3 * prior * of_one + 0.7 * (1 - prior) * of_zero

    with mpmath.workdps(30):
        assert abs(mpmath.diff(risk, mpmath.mpf(start))) < 1e-12
        assert mpmath.diff(risk, mpmath.mpf(start), 2) > 0


def test_gamma_0_is_the_log_loss():
    found = focal_objective(refocal.Focal(0.0), 0.2, longest_step=np.inf)
    assert found.start[0] == pytest.approx(np.log(0.2 / 0.8))
    z = np.array([-2.0, 0.3, 1.0])
    grad, hess = found(z, Data([0, 1, 1], np.array([1.0, 2.0, 0.5])))
    p = 1 / (1 + np.exp(-z))
    np.testing.assert_allclose(grad, [p[0], 2 * (p[1] - 1), 0.5 * (p[2] - 1)], rtol=1e-6)
    np.testing.assert_allclose(hess, p * (1 - p) * [1, 2, 0.5], rtol=1e-6)


@pytest.mark.parametrize("prior", [0.3, 0.001, [0.5, 0.3, 0.15, 0.05]])
@pytest.mark.parametrize("gamma", [0.5, 2.0, 3.0])
def test_the_curvature_at_the_start_is_the_log_loss_s(gamma, prior):
    found = focal_objective(refocal.Focal(gamma), prior, damping=1.0, longest_step=np.inf)
    start = np.array(found.start)
    scores = start if start.size == 1 else start[None]
    _, hess = found(scores, Data([0]))
    shares = np.atleast_1d(prior)
    assert hess.sum() == pytest.approx((shares * (1 - shares)).sum(), rel=1e-5)
    # A regularised Newton step moves the log-odds of the posterior as it would for the log loss.
    if start.size == 1:
        grad, _ = found(scores, Data([1]))
        step = -grad[0] / (hess[0] + 1.0)

        def log_odds(z):
            row = np.asarray(refocal.Focal(gamma).log_posterior(np.array([0.0, z])))
            return row[1] - row[0]

        slope = (log_odds(start[0] + 1e-5) - log_odds(start[0] - 1e-5)) / 2e-5
        assert slope * step == pytest.approx((1 - prior) / (prior * (1 - prior) + 1.0), rel=1e-4)


def test_results_are_float32_in_the_order_of_the_scores():
    found = focal_objective(refocal.Focal(2.0), [0.5, 0.3, 0.2])
    for order in "CF":
        scores = np.asarray(np.random.default_rng(0).normal(size=(7, 3)), order=order)
        for result in found(scores, Data(np.arange(7) % 3)):
            assert result.dtype == np.float32
            assert result.flags[f"{order}_CONTIGUOUS"]


def test_xgboost_trains_with_it():
    xgboost = pytest.importorskip("xgboost")
    X, y, _ = binary(4000, 0, intercept=-3)
    objective = focal_objective(PLAIN, y.mean())
    data = xgboost.DMatrix(X, y)
    record = {}
    params = {"base_score": objective.start[0], "disable_default_eval_metric": True, "nthread": 1}
    model = xgboost.train(
        params,
        data,
        5,
        obj=objective,
        custom_metric=focal_metric(PLAIN),
        evals=[(data, "train")],
        evals_result=record,
        verbose_eval=False,
    )
    probs = PLAIN.posterior(model.predict(data).astype(np.float64))
    assert record["train"]["nll"][-1] == pytest.approx(
        refocal.nll(np.stack([1 - probs, probs], 1), y), rel=1e-5
    )
    assert record["train"]["nll"][-1] < record["train"]["nll"][0]


def test_lightgbm_trains_with_it():
    lightgbm = pytest.importorskip("lightgbm")
    X, y, _ = five_classes(4000, 0)
    weight = np.random.default_rng(1).random(4000)
    spec = refocal.Focal(2.0, weight=(1.0, 2.0, 1.0, 0.5, 1.0))
    objective = focal_objective(spec, np.bincount(y, weight) / weight.sum())
    data = lightgbm.Dataset(X, y, weight=weight, init_score=np.tile(objective.start, (4000, 1)))
    record = {}
    model = lightgbm.train(
        {"objective": objective, "num_class": 5, "verbosity": -1, "metric": "None", "num_threads": 1},
        data,
        5,
        feval=focal_metric(spec, "brier"),
        valid_sets=[data],
        callbacks=[lightgbm.record_evaluation(record)],
    )
    add_start(model, objective.start)
    errors = spec.posterior(model.predict(X, raw_score=True))
    errors[np.arange(4000), y] -= 1
    expected = np.average((errors**2).sum(axis=1), weights=weight)
    assert record["training"]["brier"][-1] == pytest.approx(expected, rel=1e-5)


def test_a_metric_of_one_s_own_sees_the_posterior():
    def mean_of_first(labels, posterior):
        assert labels.tolist() == [0, 1]
        return posterior[:, 0].mean()

    scores = np.array([0.5, -0.5], np.float32)
    name, value = focal_metric(PLAIN, mean_of_first)(scores, Data([0, 1]))
    assert name == "mean_of_first"
    assert value == pytest.approx(1 - PLAIN.posterior(scores).mean())


@pytest.mark.parametrize("weights", [None, np.linspace(0, 1, 5000)])
def test_the_shift_brings_the_base_rate_back(weights):
    rng = np.random.default_rng(3)
    spec = refocal.Focal(2.0)
    posterior = rng.dirichlet([0.3, 0.5, 2.0], size=5000)
    prior = np.average(posterior, axis=0, weights=weights)
    scores = np.asarray(spec.logits(posterior))
    moved = scores + np.array([0.3, -0.2, 0.1])
    shift = base_rate_shift(spec, moved, prior, weights)
    np.testing.assert_allclose(spec.posterior(moved + shift), posterior, atol=1e-3)


def test_no_shift_for_scores_that_no_shift_helps():
    shift = base_rate_shift(PLAIN, np.array([-500.0, 500.0]), 0.3)
    assert np.isfinite(shift).all()


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ((PLAIN, 0.0), ValueError, "prior must be within (0, 1), for y = 1 or for each class, got 0.0"),
        (
            (PLAIN, [0.5, 0.2, 0.3]),
            ValueError,
            "objective must be for 3 classes, such as Focal, got SigmoidFocal",
        ),
        (
            (refocal.SigmoidFocal([1.0, 2.0], None), 0.5),
            TypeError,
            "gamma must be a number, got (1.0, 2.0)",
        ),
        ((refocal.SigmoidFocal(2.0, [0.1, 0.2]), 0.5), TypeError, "alpha must be a number, got (0.1, 0.2)"),
        (
            (refocal.Focal(2.0, weight=[1.0, 2.0, 3.0]), 0.5),
            ValueError,
            "weight must have one number for each of the 2 classes, got 3",
        ),
        (("focal", 0.5), TypeError, "objective must be a Focal, SigmoidFocal, "),
    ],
)
def test_refusals(arguments, error, message):
    with pytest.raises(error) as caught:
        focal_objective(*arguments)
    assert message in str(caught.value)


def test_scores_and_labels_that_do_not_fit():
    found = focal_objective(refocal.Focal(2.0), [0.5, 0.3, 0.2])
    with pytest.raises(ValueError, match="labels must be as many as scores, got 2 for 3"):
        found(np.zeros((3, 3)), Data([0, 1]))
    for wrong, text in ((3, "0.0..3.0"), (-1, "-1.0..0.0"), (np.nan, "nan..nan")):
        with pytest.raises(ValueError, match=f"labels must be within 0..2, got {text}"):
            found(np.zeros((2, 3)), Data([0, wrong]))
    with pytest.raises(ValueError, match=r"scores must have 3 columns, got shape \(2,\)"):
        found(np.zeros(2), Data([0, 1]))
    with pytest.raises(ValueError, match="metric must be one of nll, brier, or callable, got 'auc'"):
        focal_metric(PLAIN, "auc")
