"""Independent labels: every metric, interval, test and stats object, with the row as what was drawn."""

import itertools
import json
import re

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as arrays
from scipy import special, stats
from sklearn.metrics import brier_score_loss, hamming_loss, log_loss
from torchmetrics.functional.classification import binary_calibration_error

import refocal
from refocal import (
    CalibrationStats,
    adaptive_ece,
    brier,
    calibration_test,
    classwise_ece,
    confidence_interval,
    debiased_ece,
    ece,
    error_rate,
    kl_divergence,
    mce,
    nll,
    smooth_ece,
)
from refocal._rows import checked_rows, logit_rows
from refocal.metrics.cells import cells_of
from refocal.metrics.measures import nll_rows
from refocal.metrics.stats import stats_of

WITH_TARGET = [ece, mce, adaptive_ece, debiased_ece, smooth_ece]
MEANS = [nll, brier, error_rate]


def made(seed=0, n=300, n_labels=4):
    """Return logits of independent labels, their probabilities, and labels drawn from flatter ones."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, n_labels)) - np.arange(n_labels)
    probs = special.expit(logits)
    return logits, probs, (rng.random(probs.shape) < special.expit(0.6 * logits)).astype(int)


@pytest.mark.parametrize("metric", [*WITH_TARGET, *MEANS])
def test_answers_are_those_of_binary_problems(metric):
    logits, probs, labels = made()
    given = {"target": "positive"} if metric in WITH_TARGET else {}
    each = [metric(probs[:, j], labels[:, j], **given) for j in range(4)]
    found = metric(probs, labels, task="multilabel", average="none")
    np.testing.assert_allclose(found, each, rtol=1e-13)
    assert len(set(each)) == 4
    assert metric(probs, labels, task="multilabel", average="macro") == pytest.approx(
        np.mean(each), rel=1e-13
    )
    pooled = metric(probs.ravel(), labels.ravel(), **given)
    assert metric(probs, labels, task="multilabel") == pytest.approx(pooled, rel=1e-13)
    assert metric(probs, labels == 1, task="multilabel", average="pooled") == pytest.approx(pooled, rel=1e-13)
    assert metric(logits, labels, task="multilabel", from_logits=True) == pytest.approx(pooled, rel=1e-9)
    if metric in WITH_TARGET:
        top = metric(probs, labels, task="multilabel", target="top")
        assert top == pytest.approx(metric(probs.ravel(), labels.ravel(), target="top"), rel=1e-13)


def test_answers_are_those_of_other_libraries():
    _, probs, labels = made(1)
    flat, y = probs.ravel(), labels.ravel()
    assert nll(probs, labels, task="multilabel") == pytest.approx(log_loss(y, flat), rel=1e-12)
    assert brier(probs, labels, task="multilabel") == pytest.approx(2 * brier_score_loss(y, flat), rel=1e-12)
    assert error_rate(probs, labels, task="multilabel") == hamming_loss(labels, probs > 0.5)
    p, t = torch.from_numpy(probs), torch.from_numpy(labels)
    for n_bins in (7, 15):
        options = {"n_bins": n_bins, "task": "multilabel", "convention": "torchmetrics"}
        expected = binary_calibration_error(p.flatten().float(), t.flatten(), n_bins).item()
        assert ece(p, t, **options) == pytest.approx(expected, abs=1e-6)
        each = [binary_calibration_error(p[:, j].float(), t[:, j], n_bins).item() for j in range(4)]
        np.testing.assert_allclose(ece(p, t, average="none", **options), each, atol=1e-6)
    loss = torch.nn.functional.binary_cross_entropy(p, t.double(), reduction="sum").item()
    assert nll(p, t, task="multilabel", reduction="sum") == pytest.approx(loss, rel=1e-12)


def test_classwise_is_the_mean_over_the_labels():
    _, probs, labels = made(2)
    assert classwise_ece(probs, labels, task="multilabel") == ece(
        probs, labels, task="multilabel", average="macro"
    )
    found = classwise_ece(probs, labels, task="multilabel", average="none")
    np.testing.assert_array_equal(found, ece(probs, labels, task="multilabel", average="none"))


def test_kl_of_labels_is_that_of_two_classes():
    _, probs, _ = made(3)
    eta = probs[::-1]
    each = [stats.entropy([e, 1 - e], [q, 1 - q]).mean() for e, q in zip(eta.T, probs.T, strict=True)]
    np.testing.assert_allclose(kl_divergence(eta, probs, task="multilabel", average="none"), each, rtol=1e-11)
    assert kl_divergence(eta, probs, task="multilabel") == pytest.approx(np.mean(each), rel=1e-11)
    assert kl_divergence(eta.T, probs.T, task="multilabel", axis=0) == pytest.approx(np.mean(each), rel=1e-11)


@given(
    arrays.arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        st.tuples(st.integers(1, 30), st.integers(1, 6)),
        elements=st.integers(0, 20).map(lambda i: i / 20),
    ),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["plain", "strided", "transposed", "expanded", "reversed"]),
    st.integers(1, 12),
)
def test_any_layout_is_counted_by_hand(probs, seed, layout, n_bins):
    labels = np.random.default_rng(seed).integers(2, size=probs.shape)
    if layout == "strided":
        probs = np.repeat(np.repeat(probs, 2, axis=0), 3, axis=1)[::2, ::3]
    elif layout == "transposed":
        probs, labels = probs.T, labels.T
    elif layout == "expanded":
        probs = np.broadcast_to(probs[:1], probs.shape)
    elif layout == "reversed":
        probs = probs[::-1, ::-1]
    expected = []
    edges = np.arange(1, n_bins) / n_bins
    for p, y in [(probs.ravel(), labels.ravel()), *zip(probs.T, labels.T, strict=True)]:
        index = np.searchsorted(edges, p.astype(np.float64))
        expected.append(np.abs(np.bincount(index, y - p.astype(np.float64))).sum() / len(p))
    assert ece(probs, labels, n_bins, task="multilabel") == pytest.approx(expected[0], abs=1e-12)
    found = ece(probs, labels, n_bins, task="multilabel", average="none")
    np.testing.assert_allclose(found, expected[1:], atol=1e-12)
    bins = CalibrationStats(n_bins, task="multilabel", n_labels=probs.shape[1]).update(probs, labels)
    np.testing.assert_allclose(bins.class_ece(), expected[1:], atol=1e-12)


def dependent(rng, n, n_labels=6, sharpness=1.6):
    """Return too sharp probabilities and labels of which nearly all in a row are the same draw."""
    z = rng.normal(size=(n, 1)) * 1.5 + 0.05 * rng.normal(size=(n, n_labels))
    eta = special.expit(z)
    return special.expit(sharpness * z), (rng.random((n, 1)) < eta).astype(int), eta


def test_intervals_hold_the_truth_for_labels_that_depend_on_each_other():
    rng = np.random.default_rng(5)
    probs, _, eta = dependent(rng, 400_000)
    index = np.minimum((probs * 10).astype(int), 9).ravel()
    truth = {
        "ece": np.abs(np.bincount(index, (eta - probs).ravel())).sum() / probs.size,
        "nll": -(eta * np.log(probs) + (1 - eta) * np.log1p(-probs)).mean(),
        "error_rate": np.where(probs > 0.5, 1 - eta, eta).mean(),
    }
    held = dict.fromkeys([*truth, "ece of entries"], 0)
    for seed in range(200):
        probs, labels, _ = dependent(rng, 400)
        options = {"level": 0.9, "n_resamples": 200, "seed": seed, "task": "multilabel"}
        for metric, value in truth.items():
            method = "bootstrap" if metric == "ece" else "analytic"
            found = confidence_interval(metric, probs, labels, method=method, **options)
            held[metric] += found.low <= value <= found.high
        flat = probs.ravel(), labels.ravel()
        found = confidence_interval("ece", *flat, level=0.9, task="binary", method="analytic")
        held["ece of entries"] += found.low <= truth["ece"] <= found.high
    assert held.pop("ece of entries") < 140  # what it would be if entries were taken for rows
    assert all(170 <= count <= 195 for count in held.values()), held


def test_noise_is_that_of_rows_drawn_by_hand():
    _, probs, labels = made(4, n=80)
    rows = checked_rows(probs, labels, task="multilabel")
    cells = cells_of("ece", rows, 7, None, "pooled")
    residual = (labels - probs) / probs.size
    number = (np.ceil(probs * 7).astype(int) - 1).clip(0)
    np.testing.assert_allclose(cells.gaps, np.bincount(number.ravel(), residual.ravel()), atol=1e-15)
    found = cells.noise(30, 3)
    draws, normal = np.random.default_rng(3), np.random.default_rng([3, 1]).normal(size=found.shape)
    for noise, extra in zip(found, normal * np.sqrt(cells.spare), strict=True):
        at = draws.integers(80, size=80)
        sums = np.bincount(number[at].ravel(), residual[at].ravel(), 7)
        np.testing.assert_allclose(noise, sums - cells.gaps + extra, atol=1e-15)


@pytest.mark.parametrize("metric", ["ece", "adaptive_ece", "classwise_ece", "nll", "brier", "error_rate"])
def test_the_value_of_an_interval_is_the_metric(metric):
    _, probs, labels = made(5)
    for average in ("pooled", "macro", "none"):
        if (metric, average) == ("classwise_ece", "pooled"):
            continue
        options = {"task": "multilabel", "average": average}
        found = confidence_interval(metric, probs, labels, n_resamples=20, **options)
        value = getattr(refocal, metric)(probs, labels, **options)
        if average == "none":
            assert [one.value for one in found] == pytest.approx(value.tolist(), abs=1e-13)
        else:
            assert found.value == pytest.approx(value, abs=1e-13)
            assert 0 <= found.low <= found.high


def test_noise_of_the_bootstrap_has_the_variance_that_is_computed():
    rng = np.random.default_rng(6)
    probs, labels, _ = dependent(rng, 400)
    labels = np.broadcast_to(labels, probs.shape)
    for average in ("pooled", "macro"):
        cells = cells_of("ece", checked_rows(probs, labels, task="multilabel"), 10, None, average)
        noise = cells.noise(4000, 0)
        np.testing.assert_allclose(noise.var(axis=0), cells.variance, rtol=0.15)


def test_p_values_of_calibrated_labels_that_depend_on_each_other():
    rng = np.random.default_rng(7)
    small = {"calibrated": 0, "entries": 0, "sharp": 0}
    for seed in range(200):
        options = {"n_simulations": 99, "seed": seed}
        probs, labels, _ = dependent(rng, 400, sharpness=1)
        labels = np.broadcast_to(labels, probs.shape)
        small["calibrated"] += calibration_test(probs, labels, task="multilabel", **options).p_value <= 0.1
        flat = calibration_test(probs.ravel(), labels.ravel(), task="binary", **options)
        small["entries"] += flat.p_value <= 0.1
        probs, labels, _ = dependent(rng, 400, sharpness=2)
        labels = np.broadcast_to(labels, probs.shape)
        small["sharp"] += calibration_test(probs, labels, task="multilabel", **options).p_value <= 0.1
    assert 8 <= small["calibrated"] <= 34  # 20 are expected
    assert small["entries"] > 100  # what it would be if entries were taken for rows
    assert small["sharp"] > 180


def test_p_value_of_signs_is_that_of_all_signs():
    _, probs, labels = made(8, n=9, n_labels=3)
    residual = np.zeros((9, 4))
    for i, j in itertools.product(range(9), range(3)):
        residual[i, max(0, int(np.ceil(probs[i, j] * 4)) - 1)] += (labels - probs)[i, j] / 27
    signs = np.array(list(itertools.product([-1, 1], repeat=9)))
    statistic = np.abs(residual.sum(axis=0)).sum()
    exact = (np.abs(signs @ residual).sum(axis=1) >= statistic - 1e-12).mean()
    found = calibration_test(probs, labels, 4, task="multilabel", n_simulations=20_000)
    assert found.statistic == pytest.approx(statistic, abs=1e-14)
    assert found.p_value == pytest.approx(exact, abs=0.015)
    each = calibration_test(probs, labels, 4, task="multilabel", average="none")
    assert each[1] == calibration_test(probs[:, 1], labels[:, 1], 4, task="binary")
    macro = calibration_test(probs, labels, 4, task="multilabel", average="macro")
    assert macro.statistic == pytest.approx(ece(probs, labels, 4, task="multilabel", average="macro"))


def test_stats_have_all_entries_and_each_label():
    _, probs, labels = made(9)
    whole = CalibrationStats(7, task="multilabel", n_labels=4).update(probs, labels)
    assert whole.n == 1200
    assert whole.target == "positive"
    assert whole.ece() == ece(probs, labels, 7, task="multilabel")
    assert whole.mce() == mce(probs, labels, 7, task="multilabel")
    np.testing.assert_allclose(whole.class_ece(), ece(probs, labels, 7, task="multilabel", average="none"))
    assert whole.classwise_ece() == pytest.approx(whole.class_ece().mean(), rel=1e-13)
    for j in range(4):
        alone = CalibrationStats(7, task="binary").update(probs[:, j], labels[:, j])
        one = whole.of_class(j)
        assert (one.task, one.target, one.n) == ("binary", "positive", 300)
        np.testing.assert_array_equal(one.counts, alone.counts)
        np.testing.assert_array_equal(one.hits, alone.hits)
        np.testing.assert_allclose(one.confidence, alone.confidence, rtol=1e-13)
        np.testing.assert_array_equal(whole.class_counts[j], alone.counts)
    a, b = (CalibrationStats(7, task="multilabel", n_labels=4) for _ in range(2))
    merged = a.update(probs[:100], labels[:100]).merge(b.update(probs[100:], labels[100:]))
    np.testing.assert_array_equal(merged.class_hits, whole.class_hits)
    assert merged.ece() == pytest.approx(whole.ece(), abs=1e-14)
    assert CalibrationStats.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole
    assert repr(whole) == (
        "CalibrationStats(n_bins=7, n_classes=None, convention='refocal', target='positive', "
        "task='multilabel', n_labels=4, n=1200)"
    )


def test_old_dictionaries_still_load():
    _, probs, labels = made(10)
    new = CalibrationStats(5, target="positive").update(probs[:, 0], labels[:, 0])
    old = {name: value for name, value in new.to_dict().items() if name not in ("task", "n_labels")}
    assert CalibrationStats.from_dict(old) == new


def test_log_probabilities_of_labels_keep_their_rows():
    logits, probs, labels = made(11)
    rows = logit_rows(logits, labels, task="multilabel")
    assert (rows.n_rows, rows.n_entries, rows.n_labels) == (300, 1200, 4)
    assert rows.z.shape == (1200, 2)
    held_out = rows.log_probs(special.log_softmax(rows.z, axis=1))
    found = np.concatenate([block for _, block in held_out.log_blocks()])
    np.testing.assert_allclose(found[:, 1], np.log(probs).ravel(), rtol=1e-12)
    np.testing.assert_allclose(found[:, 0], special.log_expit(-logits).ravel(), rtol=1e-12)
    assert held_out.n_rows == 300
    assert stats_of(held_out, 7).classwise_ece() == pytest.approx(
        classwise_ece(probs, labels, 7, task="multilabel"), rel=1e-9
    )
    sure = rows.log_probs(np.tile([[-np.inf, 0.0]], (1200, 1)))
    np.testing.assert_array_equal(np.isinf(nll_rows(sure)), labels.ravel() == 0)


GOOD = np.array([[0.5, 0.75], [0.25, 0.75], [1.0, 1.0]])
YES = np.array([[0, 1], [1, 1], [0, 0]])


@pytest.mark.parametrize(
    "call, error, text",
    [
        (
            lambda: ece(GOOD, YES),
            ValueError,
            "labels must have the shape (3,) of the rows of probs, got (3, 2) "
            "(independent labels need task='multilabel')",
        ),
        (
            lambda: ece(GOOD, [0, 1, 1]),
            ValueError,
            "rows of probs must sum to 1 within 0.001, got 1.25 in row 0 "
            "(logits need from_logits=True, independent labels task='multilabel')",
        ),
        (
            lambda: ece(GOOD, [0, 1, 1], task="multilabel"),
            ValueError,
            "labels must have the shape (3, 2) of probs, got (3,)",
        ),
        (
            lambda: ece(GOOD[:, 0], [0, 1, 1], task="multilabel"),
            ValueError,
            "probs must have shape (n, L) for task 'multilabel', got (3,)",
        ),
        (
            lambda: ece(GOOD[:, 0], [0, 1, 1], task="multiclass"),
            ValueError,
            "probs must have shape (n, K) for task 'multiclass', got (3,)",
        ),
        (
            lambda: nll(GOOD * [1, 2], YES, task="multilabel"),
            ValueError,
            "probs must be within 0..1, got 1.5 in row 0, label 1 (logits need from_logits=True)",
        ),
        (lambda: ece(GOOD, YES + 1, task="multilabel"), ValueError, "labels must be within 0..1, got 2"),
        (
            lambda: ece(GOOD, YES * 1.0, task="multilabel"),
            TypeError,
            "labels must hold integers, got dtype float64 (0 and 1 need an integer or boolean dtype)",
        ),
        (
            lambda: ece(GOOD, YES, task="labels"),
            ValueError,
            "task must be one of ('binary', 'multiclass', 'multilabel'), got 'labels'",
        ),
        (
            lambda: ece(GOOD, YES, task="multilabel", average="micro"),
            ValueError,
            "average must be one of ('pooled', 'macro', 'none'), got 'micro'",
        ),
        (
            lambda: ece(GOOD[:, 0], [0, 1, 1], task="binary", average="macro"),
            ValueError,
            "average must be None unless task is 'multilabel', got 'macro'",
        ),
        (
            lambda: classwise_ece(GOOD, YES, task="multilabel", average="pooled"),
            ValueError,
            "average must be 'macro' or 'none' for classwise_ece, got 'pooled'",
        ),
        (
            lambda: confidence_interval("classwise_ece", GOOD, YES, task="multilabel", average="pooled"),
            ValueError,
            "average must be 'macro' or 'none' for classwise_ece, got 'pooled'",
        ),
        (
            lambda: confidence_interval("ece", GOOD, YES, task="multilabel", method="analytic"),
            ValueError,
            "method must be 'bootstrap' for ece of several independent labels, got 'analytic'",
        ),
        (
            lambda: ece(GOOD, YES, task="multilabel", classes=["no", "yes"]),
            ValueError,
            "classes must be None for task 'multilabel', whose labels are 0 and 1",
        ),
        (
            lambda: ece(GOOD, [[0, -1], [1, 1], [0, 0]], task="multilabel", ignore_index=-1),
            ValueError,
            "labels of a row must be all ignore_index or none, got some in row 0",
        ),
        (
            lambda: CalibrationStats(task="multilabel"),
            TypeError,
            "n_labels must be an integer, got None",
        ),
        (
            lambda: CalibrationStats(n_labels=3),
            ValueError,
            "n_labels must be None unless task is 'multilabel', got 3",
        ),
        (
            lambda: CalibrationStats(n_classes=3, task="multilabel", n_labels=3),
            ValueError,
            "n_classes must be None for task 'multilabel', got 3",
        ),
        (
            lambda: CalibrationStats(task="multilabel", n_labels=3).update(GOOD, YES),
            ValueError,
            "probs must have the 3 labels of n_labels, got 2",
        ),
        (
            lambda: CalibrationStats(task="multilabel", n_labels=2).of_class(2),
            ValueError,
            "k must be within 0..1, got 2",
        ),
    ],
)
def test_refusals(call, error, text):
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        call()


def test_stats_refuse_labels_that_do_not_add_up():
    data = CalibrationStats(2, task="multilabel", n_labels=2).update(GOOD, YES).to_dict()
    hits = np.array(data["hits"])
    hits[1] = [0, 0]
    with pytest.raises(ValueError, match="counts and hits of the labels must add up to those of all entries"):
        CalibrationStats.from_dict(data | {"hits": hits.tolist()})
    with pytest.raises(
        ValueError, match="stats to merge must have the same task, got 'multilabel' and 'binary'"
    ):
        CalibrationStats.from_dict(data).merge(CalibrationStats(2, task="binary"))


def test_rows_of_ignored_labels_are_left_out_whatever_they_hold():
    _, probs, labels = made(12, n=20)
    bad, y = probs.copy(), labels.copy()
    bad[[3, 19]], y[[3, 19]] = np.nan, -1
    kept = np.delete(np.arange(20), [3, 19])
    for average in ("pooled", "none"):
        options = {"task": "multilabel", "average": average}
        np.testing.assert_array_equal(
            ece(bad, y, ignore_index=-1, **options), ece(probs[kept], labels[kept], **options)
        )
