"""The choice of a calibration: on data whose truth is known, and what it says of it."""

import functools
import json
import math
import re

import numpy as np
import pytest
import scipy.optimize
import scipy.special

import refocal
import refocal.calibration._search
from refocal import Focal, Objective, Selection, choose_calibration
from refocal.calibration.choose import decide, paired_means

FOCAL = Focal(2.0)
SMOOTHED = Focal(2.0, label_smoothing=0.1)
WEIGHTED = Focal(2.0, weight=(1.0, 2.0, 4.0, 8.0))


def made(n, k=4, seed=0):
    """Return a posterior, and labels drawn from it."""
    rng = np.random.default_rng(seed)
    posterior = np.maximum(rng.dirichlet([0.4] * k, size=n), 1e-9)
    posterior /= posterior.sum(axis=1, keepdims=True)
    labels = (rng.random((n, 1)) > posterior.cumsum(axis=1)).sum(axis=1)
    return posterior, np.minimum(labels, k - 1)


def choose(logits, labels, objective=FOCAL, **options):
    return choose_calibration(logits, labels, objective, **{"n_resamples": 200, **options})


CASES = {
    "focal minimiser": (FOCAL.logits, FOCAL, "psi"),
    "twice too sharp": (lambda eta: 2 * FOCAL.logits(eta), FOCAL, "psi_ts_fl"),
    "three times too flat": (lambda eta: FOCAL.logits(eta) / 3, FOCAL, "psi_ts_fl"),
    "cross entropy": (np.log, FOCAL, "raw"),
    "sharp cross entropy": (lambda eta: 3 * np.log(eta), FOCAL, "ts_nll"),
    "another gamma": (lambda eta: 2 * Focal(5.0).logits(eta), FOCAL, "focal_ts_free"),
    "smoothed": (SMOOTHED.logits, SMOOTHED, "psi_unsmoothed"),
    "weighted": (WEIGHTED.logits, WEIGHTED, "psi"),
    "weighted and sharp": (lambda eta: 2 * WEIGHTED.logits(eta), WEIGHTED, "psi_ts_fl"),
    "cross entropy, said so": (np.log, Focal(0.0), "raw"),
}


@functools.cache
def solved(case, seed):
    """Return what is chosen in a case, the logits and their posterior."""
    make, objective, _ = CASES[case]
    posterior, labels = made(10_000, seed=seed)
    logits = make(posterior)
    return choose(logits, labels, objective), logits, posterior


def check_winner(case, seed):
    found, logits, posterior = solved(case, seed)
    assert found.winner == CASES[case][-1]
    assert refocal.kl_divergence(posterior, found.apply(logits)) <= 0.001
    assert found.skipped == ()
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_winner_has_the_true_posterior(case):
    assert check_winner(case, seed=0).clear


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES)[:5])
def test_the_winner_has_the_true_posterior_on_other_data(case):
    check_winner(case, seed=1)


@pytest.fixture(scope="module")
def sharp():
    """The selection for logits that are twice too sharp, and some of the logits."""
    found, logits, _ = solved("twice too sharp", 0)
    return found, logits[:50]


def test_smoothing_is_taken_out_after_a_temperature_too():
    posterior, labels = made(6000)
    logits = 2 * SMOOTHED.logits(posterior)
    found = choose(logits, labels, SMOOTHED)
    assert found.winner == "psi_ts_fl_unsmoothed"
    assert refocal.kl_divergence(posterior, found.apply(logits)) < 0.002


def test_too_sharp_logits_make_psi_harmful_and_it_says_why(sharp):
    found, _ = sharp
    assert found.winner == "psi_ts_fl"
    assert found.psi_harms
    assert found.psi_gap.low > 0
    assert found.sentence.startswith("Use psi_ts_fl (psi after the temperature of ts_fl) with T = ")
    assert "psi alone would hurt: it changes the NLL by +" in found.sentence
    assert "the logits are sharper than those of the minimiser" in found.sentence
    assert found.method("ts_fl").temperature == pytest.approx(2.0, rel=0.05)


def test_psi_that_helps_is_not_called_harmful():
    found, _, _ = solved("focal minimiser", 0)
    assert not found.psi_harms
    assert found.psi_gap.high < 0
    assert "hurt" not in found.sentence
    assert found.sentence.startswith(
        "Use psi (the objective's posterior): against raw it changes the NLL by -0.0"
    )


def test_cross_entropy_logits_are_left_alone():
    found, _, _ = solved("cross entropy", 0)
    assert found.sentence.startswith("Keep raw, the softmax as it is: no other method lowers its NLL of ")
    assert found.psi_harms


@pytest.mark.parametrize("seed", range(5))
def test_too_few_rows_say_that_nothing_is_clear(seed):
    posterior, labels = made(40, seed=seed)
    found = choose(FOCAL.logits(posterior), labels)
    assert not found.clear
    if found.winner == "raw":
        assert re.match("Nothing is clear.* with 40 rows. Keep the softmax as it is for now", found.sentence)
    else:
        assert "for now" in found.sentence
        assert "But its lead is not clear with 40 rows: they do not tell it from " in found.sentence


def test_a_lead_over_raw_that_is_not_one_over_all():
    posterior, labels = made(600)
    found = choose(3 * FOCAL.logits(posterior), labels)
    assert not found.clear
    assert found.winner != "raw"
    assert "for now" in found.sentence
    assert "its lead is not clear with 600 rows: they do not tell it from " in found.sentence


@pytest.mark.parametrize(
    "means, negligible, chosen",
    [
        ([0.5009, 0.5, 0.5], 0.001, 0),
        ([0.5011, 0.5, 0.5], 0.001, 1),
        ([0.5011, 0.5009, 0.5], 0.001, 1),
        ([0.5, 0.5, 0.6], 0.0, 0),
        ([np.inf, 0.5, 0.4], 0.001, 2),
    ],
)
def test_the_rule_is_the_simplest_that_is_negligibly_worse(means, negligible, chosen):
    losses = np.array([[0.3], [-0.3]]) + np.array(means)
    assert decide(losses, negligible) == chosen


def test_a_temperature_that_the_rows_speak_for_is_taken_on_few_rows():
    """It is likelier better than the softmax, though 400 rows do not show it clearly."""
    posterior, labels = made(400, seed=6)
    found = choose(0.75 * np.log(posterior), labels)
    assert found.winner != "raw"
    assert found.method("raw").behind.low < 0 < found.method("raw").behind.value
    assert not found.clear
    assert "they do not tell it from raw" in found.sentence


def test_metrics_of_the_softmax_are_the_plain_ones():
    posterior, labels = made(500)
    logits = FOCAL.logits(posterior)
    raw = choose(logits, labels).method("raw")
    for name in ("nll", "brier", "ece", "classwise_ece", "error_rate"):
        interval = getattr(raw, name)
        assert interval.value == pytest.approx(
            getattr(refocal, name)(logits, labels, from_logits=True), rel=1e-9
        )
        assert interval.low < interval.high
    assert raw.stats.ece() == pytest.approx(raw.ece.value)
    assert raw.stats.n == 500


def test_rows_are_measured_by_fits_that_have_not_seen_them():
    posterior, labels = made(300)
    logits = 3 * np.log(posterior)
    parts = np.array_split(np.random.default_rng(7).permutation(300), 4)
    losses = np.empty(300)
    for part in parts:
        rest = np.setdiff1d(np.arange(300), part)

        def loss(log_t, rows=rest):
            l = scipy.special.log_softmax(logits[rows] / math.exp(log_t), axis=1)
            return -l[np.arange(len(rows)), labels[rows]]

        best = scipy.optimize.minimize_scalar(lambda u: loss(u).mean(), bounds=(-2, 4), method="bounded")
        losses[part] = loss(best.x, part)
    method = choose(logits, labels, n_folds=4, seed=7).method("ts_nll")
    assert method.nll.value == pytest.approx(losses.mean(), abs=1e-6)
    on_all = refocal.nll(logits / method.temperature, labels, from_logits=True)
    assert method.nll.value > on_all


def test_intervals_are_paired():
    posterior, labels = made(2000)
    logits = FOCAL.logits(posterior)
    found = choose(logits, labels, level=0.9, n_resamples=800)
    raw, psi = (
        -scipy.special.log_softmax(z, axis=1)[np.arange(2000), labels]
        for z in (logits, FOCAL.log_posterior(logits))
    )
    rows = raw - psi
    behind = found.method("raw").behind
    reach = 1.645 * rows.std() / math.sqrt(2000)
    assert behind.value == pytest.approx(rows.mean(), rel=1e-9)
    assert behind.low == pytest.approx(rows.mean() - reach, abs=reach / 5)
    assert behind.high == pytest.approx(rows.mean() + reach, abs=reach / 5)
    raw = found.method("raw").nll
    assert behind.high - behind.low < 0.7 * (raw.high - raw.low)
    winner = found.method(found.winner).behind
    assert (winner.value, winner.low, winner.high) == (0, 0, 0)


@pytest.mark.slow
def test_paired_intervals_hold_the_truth_as_often_as_they_say():
    """200 samples of 400 rows; the truth is that of the large sample that they come from."""
    posterior, labels = made(100_000, seed=5)
    logits, each = FOCAL.logits(posterior), np.arange(100_000)
    losses = np.stack(
        [
            -scipy.special.log_softmax(logits, axis=1)[each, labels],
            -np.log(posterior)[each, labels],
        ],
        axis=1,
    )
    truth = losses[:, 0].mean() - losses[:, 1].mean()
    hits = 0
    for sample in np.split(np.random.default_rng(0).permutation(100_000)[:80_000], 200):
        means = paired_means(losses[sample], 300, seed=0)
        low, high = np.quantile(means[:, 0] - means[:, 1], (0.05, 0.95))
        hits += low <= truth <= high
    assert 170 <= hits <= 190


class Zeros(Objective):
    """An objective of somebody else, whose posterior is the softmax with small probabilities cut off."""

    def loss(self, logits, labels, *, axis=-1):
        return Focal(0.0).loss(logits, labels, axis=axis)

    def log_posterior(self, logits, *, axis=-1):
        p = scipy.special.softmax(logits, axis=axis)
        p = np.where(p < 0.2, 0, p)
        with np.errstate(divide="ignore"):
            return np.log(p / p.sum(axis=axis, keepdims=True))


def test_a_link_with_zeros_gets_a_floor():
    posterior, labels = made(400)
    logits = np.log(posterior)
    found = choose(logits, labels, Zeros())
    psi = found.method("psi")
    assert psi.floor == 1 / 402
    assert math.isfinite(psi.nll.value)
    wanted = (1 - psi.floor) * Zeros().posterior(logits) + psi.floor * scipy.special.softmax(logits, axis=1)
    np.testing.assert_allclose(psi.probs(logits), wanted, rtol=1e-12)
    assert psi.nll.value > found.method("raw").nll.value
    assert found.winner == "raw"


@pytest.mark.parametrize("noise", [0.05, 0.2, 3.0])
def test_the_choice_is_never_infinite_with_label_smoothing(noise):
    """It was in 25 of 72 such cases with 200 rows, as taking the smoothing out left zeros."""
    rng = np.random.default_rng(1)
    posterior, labels = made(200, 10, seed=3)
    found = choose(SMOOTHED.logits(posterior) + noise * rng.normal(size=posterior.shape), labels, SMOOTHED)
    posterior, _ = made(20_000, 10, seed=4)
    fresh = SMOOTHED.logits(posterior) + noise * rng.normal(size=posterior.shape)
    for method in found.methods:
        loss = -(posterior * method.log_probs(fresh)).sum(axis=1)
        assert np.isfinite(loss).all()
        assert math.isfinite(method.nll.value)


def test_methods_that_cannot_be_fitted_are_left_out_with_the_reason():
    posterior, _ = made(200)
    logits = FOCAL.logits(posterior)
    found = choose(logits, logits.argmax(axis=1))
    assert {m.name for m in found.methods} == {"raw", "psi"}
    assert dict(found.skipped).keys() == {"ts_nll", "ts_fl", "psi_ts_fl", "focal_ts", "focal_ts_free"}
    assert not found.clear
    assert "ts_nll could not be fitted" in found.sentence
    assert "ts_nll left out: labels must not all be at the largest logit of their row" in str(found)


def test_saturated_logits_that_are_all_right():
    labels = np.random.default_rng(0).integers(4, size=300)
    found = choose(1000.0 * np.eye(4)[labels], labels)
    assert found.winner == "raw"
    assert not found.clear
    assert found.method("raw").nll.value == 0
    assert 0 < found.method("raw").ece.high < 0.02
    assert Selection.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found


def test_masked_classes():
    posterior, labels = made(600)
    mask = np.random.default_rng(1).random(posterior.shape) < 0.3
    mask[np.arange(600), labels] = False
    logits = np.where(mask, -np.inf, np.log(posterior))
    found = choose(logits, labels)
    assert found.skipped == ()
    assert (found.apply(logits)[mask] == 0).all()
    json.dumps(found.to_dict(), allow_nan=False)
    smoothed = dict(choose(logits, labels, SMOOTHED).skipped)
    reason = "the loss is infinite at every T: label smoothing gives weight to a class with logit -inf"
    names = ("ts_fl", "psi_ts_fl", "psi_ts_fl_unsmoothed")
    assert smoothed == dict.fromkeys(names, reason)


def test_methods_that_make_sense_for_the_objective():
    posterior, labels = made(300)
    logits = np.log(posterior)

    def names(objective):
        return [m.name for m in choose(logits, labels, objective).methods]

    assert names(Focal(0.0)) == ["raw", "ts_nll", "focal_ts_free"]
    of_focal = ["raw", "psi", "ts_nll", "ts_fl", "psi_ts_fl", "focal_ts", "focal_ts_free"]
    assert names(None) == names(FOCAL) == of_focal
    assert names(WEIGHTED) == [name for name in of_focal if name != "focal_ts"]
    assert names(refocal.GeneralizedCrossEntropy(0.7)) == [name for name in of_focal if name != "focal_ts"]
    assert "psi_ts_fl_unsmoothed" in names(SMOOTHED)
    assert choose(logits, labels).method("focal_ts").link == FOCAL


def test_the_same_seed_gives_the_same_selection():
    posterior, labels = made(300)
    first, second, third = (choose(np.log(posterior), labels, seed=s) for s in (1, 1, 2))
    assert first.to_dict() == second.to_dict()
    assert first.to_dict() != third.to_dict()


@pytest.mark.parametrize(
    "options, error, message",
    [
        (
            {"objective": "focal"},
            TypeError,
            r"objective must be an objective such as Focal\(2.0\), got 'focal'",
        ),
        (
            {"objective": refocal.SigmoidFocal()},
            ValueError,
            r"labels must have the shape \(30, 4\) of logits for a multilabel task, got .*: .* OneVsRest",
        ),
        ({"n_folds": 1}, ValueError, r"n_folds must be within 2\.\.30, got 1"),
        ({"n_folds": 31}, ValueError, r"n_folds must be within 2\.\.30, got 31"),
        ({"n_folds": 5.0}, TypeError, r"n_folds must be an integer, got 5\.0"),
        ({"level": 1.0}, ValueError, r"level must be within \(0, 1\), got 1.0"),
        ({"seed": None}, TypeError, "seed must be an integer, got None"),
        ({"n_resamples": "x"}, TypeError, "n_resamples must be an integer, got 'x'"),
        (
            {"logits": np.zeros((1, 4)), "labels": np.zeros(1, dtype=int)},
            ValueError,
            "logits must have at least 2 rows, got 1",
        ),
        ({"level": 0.0}, ValueError, r"level must be within \(0, 1\), got 0.0"),
        ({"negligible": -1.0}, ValueError, "negligible must be finite and >= 0, got -1.0"),
        ({"n_bins": 0}, ValueError, "n_bins must be"),
        ({"n_resamples": 0}, ValueError, "n_resamples must be at least 1, got 0"),
        ({"labels": np.zeros(30)}, TypeError, "labels must hold integers, got dtype float64"),
        ({"labels": np.zeros(29, dtype=int)}, ValueError, r"labels must have the shape \(30,\)"),
        ({"labels": np.full(30, 4)}, ValueError, "labels must be within 0..3, got 4"),
        ({"logits": np.full((30, 4), np.nan)}, ValueError, "logits must be finite or -inf"),
        ({"logits": np.zeros((30, 4), dtype=int)}, TypeError, "logits must hold floating point numbers"),
    ],
)
def test_bad_input(options, error, message):
    posterior, labels = made(30)
    arguments = {"logits": np.log(posterior), "labels": labels, "objective": FOCAL} | options
    with pytest.raises(error, match=message):
        choose_calibration(**arguments)


@pytest.mark.parametrize(
    ("objective", "task"),
    [
        (refocal.Focal(2.0), "multiclass"),
        (refocal.Focal(2.0, label_smoothing=0.1), "multiclass"),
        (refocal.SigmoidFocal(2.0, 0.25), "binary"),
        (refocal.OneVsRest(refocal.SigmoidFocal(2.0, 0.25)), "multiclass"),
    ],
)
def test_where_a_search_begins_does_not_show_where_it_ends(objective, task):
    from refocal.calibration._candidates import candidates
    from refocal.calibration._problem import problem_of

    posterior, labels = made(600, k=2 if task == "binary" else 4, seed=3)
    z = 1.4 * np.log(posterior) + np.random.default_rng(0).normal(size=posterior.shape)
    problem = problem_of(z[:, 1] - z[:, 0] if task == "binary" else z, labels, task, objective, -1)
    some = problem.take(np.arange(400))
    alone, begun = candidates(some, objective), candidates(some, objective, candidates(problem, objective))
    assert list(alone) == list(begun)
    nll = {name: [some.nll(f.way).mean() for f in (alone[name], begun[name])] for name in alone}
    for name, (one, other) in nll.items():
        assert other == pytest.approx(one, abs=1e-9), name
        assert begun[name].way.temperature == pytest.approx(alone[name].way.temperature, rel=1e-3), name
