"""Intervals: their coverage, and the test of calibration against all outcomes counted."""

import itertools
import re

import numpy as np
import pytest
from scipy import optimize, special, stats

from refocal import adaptive_ece, calibration_test, classwise_ece, confidence_interval, ece
from refocal._rows import checked_rows
from refocal.metrics.cells import cells_of, likeliest
from refocal.metrics.measures import brier_rows, error_rows, folded_normal, nll_rows

BINNED = {"ece": ece, "adaptive_ece": adaptive_ece, "classwise_ece": classwise_ece}
SHARPNESS, SCALE = 1.5, 1.5


def drawn(rng, n, sharpness=SHARPNESS, scale=SCALE, k=3):
    """Return probabilities that are too sharp, the true ones, and labels drawn from those."""
    logits = rng.normal(size=(n, k)) * scale
    eta = special.softmax(logits, axis=1)
    labels = (eta.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return special.softmax(sharpness * logits, axis=1), eta, np.minimum(labels, k - 1)


def true_error(metric, sharpness, scale=SCALE):
    """Return the error on all data, from the true probabilities of many rows in place of labels."""
    probs, eta, _ = drawn(np.random.default_rng(99), 400_000, sharpness, scale)
    if metric == "classwise_ece":
        columns = [(probs[:, k], eta[:, k]) for k in range(probs.shape[1])]
    else:
        columns = [(probs.max(axis=1), np.take_along_axis(eta, probs.argmax(axis=1)[:, None], 1)[:, 0])]
    error = 0.0
    for q, p in columns:
        inner = np.quantile(q, np.arange(1, 10) / 10) if metric == "adaptive_ece" else np.arange(1, 10) / 10
        error += np.abs(np.bincount(np.searchsorted(inner, q), p - q)).sum() / len(q) / len(columns)
    return error


@pytest.mark.slow
@pytest.mark.parametrize(
    "metric, method, sharpness, n",
    [
        ("ece", "bootstrap", 1.5, 1000),
        ("ece", "bootstrap", 1.1, 2000),  # gaps about as large as their noise
        ("ece", "analytic", 1.5, 1000),
        ("ece", "analytic", 1.1, 2000),
        ("adaptive_ece", "analytic", 1.5, 1000),
        ("classwise_ece", "bootstrap", 1.5, 1000),
    ],
)
def test_coverage_of_calibration_errors(metric, method, sharpness, n):
    truth = true_error(metric, sharpness)
    rng = np.random.default_rng(0)
    held = 0
    for seed in range(200):
        probs, _, labels = drawn(rng, n, sharpness)
        found = confidence_interval(
            metric, probs, labels, level=0.9, method=method, n_resamples=150, seed=seed
        )
        held += found.low <= truth <= found.high
    assert 170 <= held <= 190


@pytest.mark.slow
@pytest.mark.parametrize(
    "metric, method",
    [("nll", "bootstrap"), ("nll", "analytic"), ("brier", "analytic"), ("error_rate", "analytic")],
)
def test_coverage_of_means(metric, method):
    probs, eta, _ = drawn(np.random.default_rng(99), 200_000)
    each = {
        "nll": -np.log(probs),
        "brier": (probs**2).sum(axis=1, keepdims=True) - 2 * probs + 1,
        "error_rate": 1.0 - (probs == probs.max(axis=1, keepdims=True)),
    }[metric]
    truth = (eta * each).sum(axis=1).mean()  # the expectation over the labels
    rng = np.random.default_rng(1)
    held = 0
    for seed in range(200):
        probs, _, labels = drawn(rng, 400)
        found = confidence_interval(
            metric, probs, labels, level=0.9, method=method, n_resamples=300, seed=seed
        )
        held += found.low <= truth <= found.high
    assert 170 <= held <= 190


@pytest.mark.parametrize("metric", ["ece", "adaptive_ece"])
def test_calibrated_probabilities_are_held_though_the_plug_in_error_is_far_above(metric):
    rng = np.random.default_rng(2)
    held, least = 0, np.inf
    for _ in range(200):
        probs, _, labels = drawn(rng, 500, sharpness=1)
        found = confidence_interval(metric, probs, labels, method="analytic")
        held += found.low == 0
        least = min(least, found.high)
    assert 180 <= held <= 199  # about 95 %: there is nothing below 0 to miss
    assert least > 0.005


@pytest.mark.parametrize("method", ["bootstrap", "analytic"])
def test_more_rows_narrower_higher_level_wider(method):
    rng = np.random.default_rng(3)
    probs, _, labels = drawn(rng, 8000)

    def width(n, level):
        found = confidence_interval("ece", probs[:n], labels[:n], level=level, method=method, n_resamples=300)
        return found.high - found.low

    assert width(8000, 0.9) == pytest.approx(width(500, 0.9) / 4, rel=0.3)
    assert width(2000, 0.5) < width(2000, 0.9) < width(2000, 0.99)


@pytest.mark.parametrize("metric", list(BINNED))
def test_value_is_the_metric(metric):
    probs, _, labels = drawn(np.random.default_rng(4), 700)
    for n_bins in (5, 20):
        found = confidence_interval(metric, probs, labels, n_bins=n_bins, n_resamples=20)
        assert found.value == pytest.approx(BINNED[metric](probs, labels, n_bins), abs=1e-13)
    logits = np.log(probs)
    again = confidence_interval(metric, logits, labels, n_bins=20, n_resamples=20, from_logits=True)
    assert (again.low, again.high) == pytest.approx((found.low, found.high), abs=1e-9)
    assert again.level == 0.95
    assert again.method == "bootstrap"


def test_both_methods_agree_on_many_rows():
    probs, _, labels = drawn(np.random.default_rng(5), 20_000)
    for metric in ("ece", "adaptive_ece", "nll", "brier", "error_rate"):
        a = confidence_interval(metric, probs, labels, n_resamples=400)
        b = confidence_interval(metric, probs, labels, method="analytic")
        assert a.value == b.value
        assert (a.low, a.high) == pytest.approx((b.low, b.high), abs=0.15 * (b.high - b.low))


def test_means_are_those_of_scipy():
    probs, _, labels = drawn(np.random.default_rng(6), 300)
    given = checked_rows(probs, labels)
    for metric, rows in (("nll", nll_rows(given)), ("brier", brier_rows(given))):
        found = confidence_interval(metric, probs, labels, level=0.95, method="analytic")
        low, high = stats.norm.interval(0.95, rows.mean(), stats.sem(rows))
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)
        found = confidence_interval(metric, probs, labels, level=0.95, n_resamples=4000)
        other = stats.bootstrap(
            (rows,),
            np.mean,
            confidence_level=0.95,
            n_resamples=4000,
            method="percentile",
            rng=np.random.default_rng(0),
        ).confidence_interval
        assert (found.low, found.high) == pytest.approx(
            (other.low, other.high), abs=0.1 * (other.high - other.low)
        )
    wrong = int(error_rows(checked_rows(probs, labels)).sum())
    expected = stats.binomtest(wrong, 300).proportion_ci(0.95, method="wilson")
    found = confidence_interval("error_rate", probs, labels, level=0.95, method="analytic")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_a_seed_fixes_the_interval():
    probs, _, labels = drawn(np.random.default_rng(7), 200)
    a, b, c = (confidence_interval("ece", probs, labels, n_resamples=50, seed=s) for s in (1, 1, 2))
    assert a == b
    assert a != c


def test_a_bin_of_hits_alone_is_not_without_noise():
    probs, labels = np.tile([[0.97, 0.03]], (50, 1)), np.zeros(50, int)
    for method in ("bootstrap", "analytic"):
        found = confidence_interval("ece", probs, labels, method=method)
        assert found.low < 0.02 < 0.03 < found.high


@pytest.mark.parametrize("method", ["bootstrap", "analytic"])
def test_hits_alone_at_certainty_have_an_interval(method):
    """Each gap is exactly 0. Of 100 rows with a share of 0.01 misses 37 % have none, so 0.01 must be held."""
    for n in (2, 50, 100):
        probs, labels = np.tile([[1.0, 0.0]], (n, 1)), np.zeros(n, int)
        for metric in ("ece", "adaptive_ece"):
            found = confidence_interval(metric, probs, labels, method=method)
            assert found.value == found.low == 0
            assert 0 < 1 / n < found.high <= 1
    found = confidence_interval("classwise_ece", probs, labels)
    assert found.value == found.low == 0 < found.high < 0.1


def test_noise_is_that_of_rows_drawn_by_hand():
    """The sums of first bins are a product of matrices, others are added: together a sum over all."""
    rng = np.random.default_rng(11)
    probs, labels = rng.dirichlet(np.full(6, 0.2), size=90), rng.integers(6, size=90)
    cells = cells_of("classwise_ece", checked_rows(probs, labels), 7, None, "pooled")
    residual = (np.eye(6)[labels] - probs) / (90 * 6)
    number = (np.ceil(probs * 7).astype(int) - 1).clip(0) + 7 * np.arange(6)
    used = np.unique(number)
    np.testing.assert_allclose(cells.gaps, np.bincount(number.ravel(), residual.ravel())[used], atol=1e-15)
    found = cells.noise(40, 3)
    draws, normal = np.random.default_rng(3), np.random.default_rng([3, 1]).normal(size=found.shape)
    for noise, extra in zip(found, normal * np.sqrt(cells.spare), strict=True):
        rows = draws.integers(90, size=90)
        sums = np.bincount(number[rows].ravel(), residual[rows].ravel(), 42)[used]
        np.testing.assert_allclose(noise, sums - cells.gaps + extra, atol=1e-15)


@pytest.mark.parametrize("stretch", [-8.0, -3.0, 2.0, 10.0])
def test_no_other_gaps_of_the_same_sum_are_likelier(stretch):
    gaps, variance = np.array([0.3, -0.05, 0.1, -0.6]), np.array([0.01, 0.02, 0.04, 0.03])
    found = likeliest(gaps, variance, stretch)

    def misfit(x):
        return ((x - gaps) ** 2 / variance).sum()

    sign = np.sign(gaps)
    best = optimize.minimize(
        lambda size: misfit(sign * size),
        np.full(4, np.abs(found).sum() / 4),
        bounds=[(0, None)] * 4,
        constraints={"type": "eq", "fun": lambda size: size.sum() - np.abs(found).sum()},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert best.success
    np.testing.assert_allclose(found, sign * best.x, atol=1e-6)


def test_folded_normal_is_scipys():
    mean, sd = np.array([0, 0.3, -0.2, 1.5, 0.4]), np.array([1, 0.2, 0.5, 0.01, 0])
    found, variance = folded_normal(mean, sd)
    for i in range(4):
        expected = stats.foldnorm(abs(mean[i]) / sd[i], scale=sd[i])
        assert found[i] == pytest.approx(expected.mean(), rel=1e-12)
        assert variance[i] == pytest.approx(expected.var(), rel=1e-9)
    assert (found[4], variance[4]) == pytest.approx((0.4, 0))


def test_noise_of_the_bootstrap_has_the_variance_that_is_computed():
    probs, _, labels = drawn(np.random.default_rng(8), 400)
    for metric in BINNED:
        cells = cells_of(metric, checked_rows(probs, labels), 10, None, "pooled")
        noise = cells.noise(4000, 0)
        np.testing.assert_allclose(noise.var(axis=0), cells.variance, rtol=0.15)
        assert np.abs(noise.mean(axis=0) / np.sqrt(cells.variance)).max() < 0.1


@pytest.mark.parametrize("target", ["top", "positive"])
def test_p_value_is_that_of_all_outcomes(target):
    p, y = np.array([0.9, 0.8, 0.65, 0.3, 0.55, 0.05, 0.15]), np.array([1, 0, 0, 1, 1, 0, 1])
    confidence = np.maximum(p, 1 - p) if target == "top" else p
    index = np.ceil(confidence * 4 - 1e-12).astype(int) - 1
    hit = y == (p > 0.5) if target == "top" else y == 1

    def error(hits):
        return np.abs(np.bincount(index, hits - confidence)).sum() / 7

    exact = sum(
        np.prod(np.where(outcome, confidence, 1 - confidence))
        for outcome in itertools.product([0, 1], repeat=7)
        if error(np.array(outcome)) >= error(hit) - 1e-9
    )
    found = calibration_test(p, y, 4, target=target, n_simulations=20_000)
    assert found.statistic == pytest.approx(error(hit), abs=1e-14)
    assert found.p_value == pytest.approx(exact, abs=0.015)
    assert 0.05 < exact < 0.95


@pytest.mark.slow
def test_p_values_of_calibrated_models_are_uniform_and_small_for_others():
    rng = np.random.default_rng(9)
    p_values = {}
    for sharpness in (1, 1.5):
        p_values[sharpness] = []
        for seed in range(200):
            probs, _, labels = drawn(rng, 600, sharpness)
            p_values[sharpness].append(calibration_test(probs, labels, n_simulations=199, seed=seed).p_value)
    assert stats.kstest(p_values[1], "uniform").pvalue > 0.05
    assert np.mean(np.array(p_values[1.5]) < 0.05) > 0.9
    assert min(p_values[1.5]) == 1 / 200


def test_the_same_from_logits_and_by_seed():
    probs, _, labels = drawn(np.random.default_rng(10), 300)
    a = calibration_test(probs, labels, n_simulations=50)
    assert a == calibration_test(probs, labels, n_simulations=50)
    b = calibration_test(np.log(probs), labels, n_simulations=50, from_logits=True)
    assert (b.statistic, b.p_value) == pytest.approx((a.statistic, a.p_value))
    assert a.n_simulations == 50


GOOD = np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        (
            {"metric": "mce"},
            ValueError,
            "metric must be one of ('ece', 'adaptive_ece', 'classwise_ece', 'nll', 'brier', 'error_rate'), "
            "got 'mce'",
        ),
        ({"method": "exact"}, ValueError, "method must be 'bootstrap' or 'analytic', got 'exact'"),
        (
            {"metric": "classwise_ece", "method": "analytic"},
            ValueError,
            "method must be 'bootstrap' for classwise_ece, got 'analytic'",
        ),
        ({"level": 1.0}, ValueError, "level must be within (0, 1), got 1.0"),
        ({"level": "0.9"}, ValueError, "level must be within (0, 1), got '0.9'"),
        ({"n_resamples": 0}, ValueError, "n_resamples must be at least 1, got 0"),
        ({"n_resamples": 10.0}, TypeError, "n_resamples must be an integer, got 10.0"),
        ({"n_resamples": "x"}, TypeError, "n_resamples must be an integer, got 'x'"),
        ({"seed": None}, TypeError, "seed must be an integer, got None"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"n_bins": 0}, ValueError, "n_bins must be within 1..100000, got 0"),
        ({"metric": "nll", "n_bins": 10}, ValueError, "n_bins must be None for nll, which has none, got 10"),
        (
            {"metric": "brier", "target": "top"},
            ValueError,
            "target must be None for brier, which has none, got 'top'",
        ),
        (
            {"metric": "classwise_ece", "target": "top"},
            ValueError,
            "target must be None for classwise_ece, which has none, got 'top'",
        ),
        (
            {"probs": GOOD[:1], "labels": [0]},
            ValueError,
            "probs must have at least 2 rows for an interval, got 1",
        ),
        ({"labels": [0, 1]}, ValueError, "labels must have the shape (3,) of the rows of probs, got (2,)"),
        (
            {"metric": "nll", "labels": [0, 1, 1]},
            ValueError,
            "nll must be finite for an interval: a label has probability 0",
        ),
    ],
)
def test_arguments_of_an_interval(arguments, error, text):
    given = {"metric": "ece", "probs": GOOD, "labels": [0, 1, 0]} | arguments
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        confidence_interval(**given)


def test_arguments_of_the_test():
    with pytest.raises(ValueError, match="n_simulations must be at least 1, got 0"):
        calibration_test(GOOD, [0, 1, 0], n_simulations=0)
    with pytest.raises(TypeError, match="seed must be an integer, got None"):
        calibration_test(GOOD, [0, 1, 0], seed=None)
    with pytest.raises(ValueError, match="target must be said"):
        calibration_test(GOOD[:, 1], [0, 1, 0])
    with pytest.raises(ValueError, match=r"n_bins must be within 1\.\.100000, got 0"):
        calibration_test(GOOD, [0, 1, 0], 0)
