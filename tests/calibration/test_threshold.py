"""The raw score that means a probability, by the method that was chosen; and the floor under each outcome."""

import math

import mpmath
import numpy as np
import pytest

from refocal import Asymmetric, Focal, OneVsRest, SigmoidFocal, choose_calibration, score_threshold
from refocal.calibration._links import Way, log_both
from refocal.objectives import Objective

DETECTOR = SigmoidFocal(2.0, 0.25)
TAGS = Asymmetric(1.0, 4.0, 0.05)


def drawn(shape, seed=0):
    rng = np.random.default_rng(seed)
    eta = rng.beta(0.5, 2.0, size=shape)
    return eta, (rng.random(shape) < eta).astype(int)


def logit(p):
    return np.log(p) - np.log1p(-np.asarray(p))


def test_the_winner_need_not_be_psi():
    eta, hit = drawn(1500)
    logits = 2 * DETECTOR.logits(eta)  # of an overfitted detector
    found = choose_calibration(logits, hit, DETECTOR, n_resamples=50)
    assert found.winner == "psi_ts_fl"
    threshold = found.threshold(0.5)
    assert found.apply(logit(threshold)) == pytest.approx(0.5, abs=1e-12)
    np.testing.assert_array_equal(1 / (1 + np.exp(-logits)) >= threshold, found.apply(logits) >= 0.5)
    assert found.threshold(0.5, method="psi") == pytest.approx(score_threshold(DETECTOR, 0.5), abs=1e-12)
    assert threshold < 0.35 < found.threshold(method="psi")
    assert found.threshold(0.3, method="raw") == pytest.approx(0.3, abs=1e-15)


CASES = {
    "a detector": (DETECTOR, (600,), {}),
    "smoothed": (SigmoidFocal(2.0, 0.25, label_smoothing=0.1), (600,), {}),
    "tags by ASL": (TAGS, (600, 3), {}),
    "one alpha for each": (SigmoidFocal(2.0, (0.25, 0.5, 0.75)), (600, 3), {}),
    "no objective": (None, (600, 3), {"task": "multilabel"}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("posterior", [0.003, 0.3, 0.5, 0.97])
def test_every_method_reaches_the_posterior_there(case, posterior):
    objective, shape, options = CASES[case]
    eta, hit = drawn(shape)
    logits = (objective or DETECTOR).logits(eta) * 1.5
    found = choose_calibration(logits, hit, objective, **options, n_resamples=5)
    assert {m.name for m in found.methods} >= {"raw", "psi", "ts_nll", "platt"}
    for method in found.methods:
        threshold = found.threshold(posterior, method=method.name)
        several = "per_label" in method.name or (case == "one alpha for each" and method.link is not None)
        assert isinstance(threshold, tuple if several else float)
        at = np.broadcast_to(logit(threshold), shape[1:] or (1,))
        np.testing.assert_allclose(method.probs(at), posterior, rtol=0, atol=1e-9, err_msg=method.name)


def test_the_ends():
    eta, hit = drawn((600,))
    bounded = Asymmetric(0.0, 4.0, 0.05)  # whose odds stay below a bound
    psi = choose_calibration(DETECTOR.logits(eta), hit, bounded, n_resamples=5).method("psi")
    assert float(psi.probs(np.array(700.0))) < 0.999
    assert psi.threshold(0.999) == 1
    assert psi.threshold(1.0) == 1
    assert psi.threshold(0.0) == 0


def test_two_classes_of_a_softmax():
    eta, hit = drawn((600,))
    focal = Focal(2.0, weight=(1.0, 3.0))
    found = choose_calibration(focal.logits(np.stack([1 - eta, eta], axis=1)), hit, focal, n_resamples=5)
    for method in found.methods:
        t = logit(method.threshold(0.3))
        assert method.probs(np.array([5.0, 5.0 + t]))[1] == pytest.approx(0.3, abs=1e-9)
    assert found.threshold(0.3, method="psi") == pytest.approx(score_threshold(focal, 0.3), abs=1e-12)


def test_refusals():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(300, 3)), rng.integers(0, 3, 300)
    for objective, kind in ((Focal(2.0), "softmax"), (OneVsRest(), "one-vs-rest")):
        found = choose_calibration(logits, labels, objective, n_resamples=5)
        with pytest.raises(ValueError, match=rf"depends on all scores of a row, got 3 classes \({kind}\)"):
            found.threshold(0.5)
    eta, hit = drawn((100,))
    found = choose_calibration(DETECTOR.logits(eta), hit, DETECTOR, n_resamples=5)
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=rf"posterior must be in \[0, 1\], got {wrong}"):
            found.threshold(wrong)


def exact_log_zero(z, floor):
    """Return log P(0) of TAGS with a floor, from the derivatives of its two losses."""
    with mpmath.workdps(60):

        def loss(zz, one):
            p = 1 / (1 + mpmath.exp(-zz))
            if one:
                return -(1 - p) * mpmath.log(p)
            shifted = p - mpmath.mpf(0.05)
            return -(shifted**4) * mpmath.log(1 - shifted)

        odds = -mpmath.diff(lambda t: loss(t, False), z) / mpmath.diff(lambda t: loss(t, True), z)
        zero = (1 - mpmath.mpf(floor)) / (1 + odds) + mpmath.mpf(floor) / (1 + mpmath.exp(z))
        return float(mpmath.log(zero))


@pytest.mark.parametrize("z", [-1.0, 3.0, 20.0, 36.0, 37.0, 40.0, 90.0])
def test_the_floor_is_exact_for_large_logits(z):
    floor = 1 / 502
    one, zero = log_both(np.array([[z]]), Way(link=TAGS, floor=floor))
    assert zero[0, 0] == pytest.approx(exact_log_zero(z, floor), rel=1e-9)
    assert one[0, 0] == pytest.approx(math.log1p(-math.exp(zero[0, 0])), rel=1e-9, abs=1e-16)


def test_a_wrong_and_certain_row_has_a_finite_nll():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 3)) * 3
    y = (rng.random(z.shape) < 1 / (1 + np.exp(-z))).astype(int)
    z[0], y[0] = 40, 0
    found = choose_calibration(z, y, TAGS, n_resamples=5)
    assert all(math.isfinite(m.nll.value) for m in found.methods)


class Halting(Objective):
    """An objective of one's own, without an answer for some logits."""

    scores = "sigmoid"

    def loss(self, logits, labels, *, axis=-1):
        return DETECTOR.loss(logits, labels, axis=axis)

    def log_posterior(self, logits, *, axis=-1):
        return np.where(logits == 7.0, np.nan, DETECTOR.log_posterior(logits, axis=axis))


def test_a_row_without_an_answer_is_named_as_the_user_knows_it():
    eta, hit = drawn((300,))
    logits = DETECTOR.logits(eta)
    logits[123] = 7.0
    labels = hit.copy()
    labels[:20] = -1
    found = choose_calibration(logits, labels, Halting(), ignore_index=-1, n_resamples=5)
    assert dict(found.skipped)["psi"] == "it has no answer for row 123"
    assert "psi left out: it has no answer for row 123." in str(found)
    assert found.psi_gap is None
    Objective.kinds.pop("Halting")


def test_a_row_where_nothing_can_be_has_the_raw_scores():
    rng = np.random.default_rng(0)
    posterior = rng.dirichlet([0.5, 0.5, 0.5], size=300)
    labels = np.minimum((rng.random((300, 1)) > posterior.cumsum(axis=1)).sum(axis=1), 2)
    objective = OneVsRest(TAGS)
    logits = objective.logits(posterior)
    logits[0] = -10.0, -9.0, -8.0  # below the clip, all of them
    found = choose_calibration(logits, labels, objective, n_resamples=5)
    assert not dict(found.skipped).get("psi")
    np.testing.assert_allclose(found.apply(logits[:1], method="psi"), found.apply(logits[:1], method="raw"))
    np.testing.assert_allclose(found.apply(logits, method="psi").sum(axis=1), 1)
