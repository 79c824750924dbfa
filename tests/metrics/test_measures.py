"""The metrics against brute force, scipy and scikit-learn, and what they refuse."""

import itertools
import math
import re

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from scipy import integrate, optimize, special, stats
from sklearn.metrics import log_loss

import refocal
from refocal import (
    adaptive_ece,
    brier,
    classwise_ece,
    debiased_ece,
    ece,
    error_rate,
    kl_divergence,
    mce,
    nll,
    smooth_ece,
)
from refocal.metrics.binning import equal_mass_edges

WITH_BINS = [ece, mce, classwise_ece, adaptive_ece, debiased_ece]
OF_LABELS = [*WITH_BINS, smooth_ece, nll, brier, error_rate]
WITH_TARGET = [ece, mce, adaptive_ece, debiased_ece, smooth_ece]


def made(seed, n=400, k=4, scale=2.0):
    """Return logits, their softmax and labels drawn from a flatter one."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * scale
    labels = np.array([rng.choice(k, p=row) for row in special.softmax(0.6 * logits, axis=1)])
    return logits, special.softmax(logits, axis=1), labels


def test_binned_errors_are_those_of_the_stats():
    _, probs, labels = made(0)
    for n_bins, convention in itertools.product([1, 10, 15], ["refocal", "torchmetrics"]):
        whole = refocal.CalibrationStats(n_bins, 4, convention).update(probs, labels)
        assert ece(probs, labels, n_bins, convention=convention) == whole.ece()
        assert mce(probs, labels, n_bins, convention=convention) == whole.mce()
        assert classwise_ece(probs, labels, n_bins, convention=convention) == whole.classwise_ece()


def test_proper_scores_are_those_of_other_libraries():
    _, probs, labels = made(1)
    assert nll(probs, labels) == pytest.approx(log_loss(labels, probs), rel=1e-13)
    assert nll(probs, labels, reduction="sum") == pytest.approx(400 * log_loss(labels, probs), rel=1e-13)
    assert brier(probs, labels) == pytest.approx(
        ((probs - np.eye(4)[labels]) ** 2).sum(axis=1).mean(), rel=1e-13
    )
    assert error_rate(probs, labels) == np.mean(probs.argmax(axis=1) != labels)
    eta = special.softmax(np.random.default_rng(2).normal(size=probs.shape), axis=1)
    assert kl_divergence(eta, probs) == pytest.approx(stats.entropy(eta, probs, axis=1).mean(), rel=1e-12)


@pytest.mark.parametrize("metric", OF_LABELS)
@pytest.mark.parametrize("shape", [(400, 4), (3000, 40)])
def test_logits_give_what_their_softmax_gives(metric, shape):
    logits, probs, labels = made(3, *shape)
    assert metric(logits, labels, from_logits=True) == pytest.approx(
        metric(probs, labels), rel=1e-9, abs=1e-12
    )


@pytest.mark.parametrize("shape", [(400, 4), (20_000, 40)])
def test_kl_of_logits(shape):
    logits = np.random.default_rng(4).normal(size=shape) * 2
    probs = special.softmax(logits, axis=1)
    eta = special.softmax(0.5 * logits, axis=1)
    assert kl_divergence(eta, logits, from_logits=True) == pytest.approx(kl_divergence(eta, probs), rel=1e-12)


@pytest.mark.parametrize("metric", OF_LABELS)
def test_every_array_library_gives_the_same(metric, backend):
    logits, probs, labels = made(5, n=50)
    y = backend.integers(labels)
    assert metric(backend.array(probs), y) == metric(probs.astype(backend.dtype), labels)
    assert metric(backend.array(logits), y, from_logits=True) == metric(
        logits.astype(backend.dtype), labels, from_logits=True
    )


def test_gradients_do_not_matter():
    _, probs, labels = made(6)
    assert ece(torch.tensor(probs, requires_grad=True), torch.tensor(labels)) == ece(probs, labels)


def test_nll_of_huge_logits_and_masked_classes():
    z = np.array([[1e4, 0.0, -np.inf], [0.0, -1e4, 3e38]], dtype=np.float32)
    assert nll(z[:1], [1], from_logits=True) == 1e4
    assert nll(z[1:], [2], from_logits=True) == 0
    assert nll(z[:1], [2], from_logits=True) == math.inf
    assert nll(np.array([[1e308, -1e308]]), [0], from_logits=True) == 0  # their difference is beyond float64
    assert math.copysign(1, nll(np.array([[1.0, 0.0]]), [0])) == 1  # 0.0, not -0.0
    assert nll(np.array([[1.0, 0.0]]), [1]) == math.inf
    assert brier(z[:1], [0], from_logits=True) == 0
    assert ece(z, [0, 2], from_logits=True) == 0


def test_kl_at_zero_probabilities():
    one_hot, half = np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]])
    assert kl_divergence(one_hot, one_hot) == 0
    assert kl_divergence(one_hot, half) == pytest.approx(math.log(2), rel=1e-15)
    assert kl_divergence(half, one_hot) == math.inf
    assert kl_divergence(np.array([0.0]), np.array([0.5])) == pytest.approx(math.log(2), rel=1e-15)


def test_scores_of_one_class_are_those_of_two():
    rng = np.random.default_rng(7)
    z = rng.normal(size=200) * 2
    p = special.expit(z)
    y = (rng.random(200) < 0.5).astype(int)
    two = np.stack([1 - p, p], axis=1)
    for metric in (nll, brier, error_rate, classwise_ece):
        assert metric(p, y) == metric(two, y)
        assert metric(z, y, from_logits=True) == pytest.approx(metric(p, y), rel=1e-12)
    for metric in WITH_TARGET:
        assert metric(p, y, target="top") == metric(two, y)
        assert metric(p, y.astype(bool), target="positive") != metric(p, y, target="top")
        assert metric(z, y, from_logits=True, target="positive") == pytest.approx(
            metric(p, y, target="positive"), rel=1e-9
        )
    assert brier(p, y) == pytest.approx(2 * np.mean((p - y) ** 2), rel=1e-13)


@given(
    st.lists(st.tuples(st.integers(10, 20), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 12),
)
def test_adaptive_bins_by_hand(rows, n_bins):
    """Walk through the sorted rows; a bin ends at the first change of value after its share of rows."""
    c = np.array([value / 20 for value, _ in rows])
    hit = np.array([right for _, right in rows])
    ordered = sorted(zip(c, hit, strict=True))
    bins, done = [], 0
    for j in range(1, n_bins + 1):
        end = max(done, math.ceil(j * len(rows) / n_bins))
        while 0 < end < len(rows) and ordered[end][0] == ordered[end - 1][0]:
            end += 1
        bins.append(ordered[done:end])
        done = end
    assert done == len(rows)
    expected = sum(abs(sum(h - v for v, h in inside)) for inside in bins) / len(rows)
    found = adaptive_ece(np.stack([c, 1 - c], axis=1), np.where(hit, 0, 1), n_bins)
    assert found == pytest.approx(expected, abs=1e-12)


def test_adaptive_bins_hold_equally_many_rows_without_ties():
    c = np.random.default_rng(8).permutation(np.linspace(0.5, 0.99, 100))
    edges = equal_mass_edges(c, 10)
    assert np.bincount(np.searchsorted(edges, c)).tolist() == [10] * 10


def test_debiased_is_the_plug_in_error_less_the_excess_of_folded_normals():
    _, probs, labels = made(9, n=300)
    s = refocal.CalibrationStats(10).update(probs, labels)
    full = s.counts > 0
    a, c, n = s.accuracy[full], s.confidence[full], s.counts[full]
    expected = 0.0
    for j in range(len(n)):
        scale = math.sqrt(a[j] * (1 - a[j]) / n[j])
        gap = abs(a[j] - c[j])
        mean = stats.foldnorm.mean(gap / scale, scale=scale) if scale else gap
        expected += n[j] / 300 * (2 * gap - mean)
    assert debiased_ece(probs, labels) == pytest.approx(expected, rel=1e-10)
    assert 0 < expected < s.ece()


def test_debiased_has_less_bias_and_no_sign():
    rng = np.random.default_rng(10)
    plain, debiased = [], []
    for _ in range(200):
        p = rng.uniform(0.5, 1, size=300)
        probs, y = np.stack([p, 1 - p], axis=1), (rng.random(300) > p).astype(int)
        plain.append(ece(probs, y))
        debiased.append(debiased_ece(probs, y))
    assert np.mean(debiased) < 0.65 * np.mean(plain)  # the truth is 0; for one bin it would be 0.59
    assert min(debiased) == 0


def reflected(sigma, t, c):
    """Return the normal density around c at t, with all that leaves [0, 1] reflected back into it."""
    images = [m + s * c for m in range(-6, 7, 2) for s in (1, -1)]
    return sum(stats.norm.pdf(t, loc=x, scale=sigma) for x in images)


@pytest.mark.parametrize("seed, n", [(11, 3), (12, 8), (13, 12)])
def test_smooth_error_by_quadrature(seed, n):
    _, probs, labels = made(seed, n=n, k=3, scale=3)
    c = probs.max(axis=1)
    gap = (probs.argmax(axis=1) == labels) - c
    t = np.linspace(0, 1, 10_001)

    def excess(sigma):
        r = sum(g * reflected(sigma, t, x) for g, x in zip(gap, c, strict=True)) / n
        return integrate.trapezoid(np.abs(r), t) - sigma

    expected = optimize.brentq(excess, 1e-3, 1, xtol=1e-10)
    assert smooth_ece(probs, labels) == pytest.approx(expected, abs=1e-6)


def test_smooth_error_moves_little_where_the_binned_one_jumps():
    p = np.array([0.7 - 1e-9, 0.7 + 1e-9])
    y = np.array([0, 1])
    for shift in (0.0, 1e-8):
        probs = np.stack([p + shift, 1 - p - shift], axis=1)
        assert smooth_ece(probs, y) == pytest.approx(0.2, abs=1e-6)
    assert ece(np.stack([p, 1 - p], axis=1), y) == pytest.approx(0.5)


def test_smooth_error_at_the_ends():
    assert smooth_ece(np.array([[1.0, 0.0]] * 3), [0, 0, 0]) < 1e-9
    assert smooth_ece(np.array([[1.0, 0.0]]), [1]) == pytest.approx(1, abs=1e-9)
    assert smooth_ece(np.array([0.0, 0.0]), [1, 1], target="positive") == pytest.approx(1, abs=1e-9)


GOOD = np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])
HINT = "(logits need from_logits=True)"
SUM_HINT = "(logits need from_logits=True, independent labels task='multilabel')"


def with_row(row, values):
    """Return GOOD with other values in a row."""
    probs = GOOD.copy()
    probs[row] = values
    return probs


@pytest.mark.parametrize("metric", OF_LABELS)
@pytest.mark.parametrize(
    "row, values, text",
    [
        (1, [0.275, 0.825], "rows of probs must sum to 1 within 0.001, got 1.1 in row 1"),
        (0, [0.0, 0.0], "rows of probs must sum to 1 within 0.001, got 0 in row 0"),
        (2, [1.002, -0.002], "probs must be within 0..1, got 1.002 in row 2"),
        (2, [1.0, -0.0002], "probs must be within 0..1, got -0.0002 in row 2"),
        (1, [np.nan, 0.5], "probs must be within 0..1, got nan in row 1"),
        (0, [0.5, np.inf], "probs must be within 0..1, got inf in row 0"),
        (1, [3.25, -2.25], "probs must be within 0..1, got 3.25 in row 1"),
    ],
)
def test_bad_values(metric, row, values, text):
    hint = SUM_HINT if "sum" in text else HINT
    with pytest.raises(ValueError, match=f"^{re.escape(f'{text} {hint}')}$"):
        metric(with_row(row, values), [0, 1, 0])


@pytest.mark.parametrize("metric", OF_LABELS)
@pytest.mark.parametrize(
    "probs, labels, error, text",
    [
        (
            GOOD,
            [0.0, 1.0, 0.0],
            TypeError,
            "labels must hold integers, got dtype float64 (others need classes=)",
        ),
        (GOOD, [0, 2, 0], ValueError, "labels must be within 0..1, got 2"),
        (GOOD, [0, -1, 0], ValueError, "labels must be within 0..1, got -1"),
        (GOOD, [0, 1], ValueError, "labels must have the shape (3,) of the rows of probs, got (2,)"),
        (
            GOOD,
            [[0], [1], [0]],
            ValueError,
            "labels must have the shape (3,) of the rows of probs, got (3, 1)",
        ),
        (GOOD.astype(int), [0, 1, 0], TypeError, "probs must hold floating point numbers, got dtype int64"),
        (GOOD[:0], np.zeros(0, int), ValueError, "probs must have at least 1 row, got shape (0, 2)"),
        (
            GOOD[:, :1],
            [0] * 3,
            ValueError,
            "probs must have at least 2 classes along axis 1, or shape (n,), got shape (3, 1)",
        ),
        (GOOD[None], [0], ValueError, "labels must have the shape (1, 3) of the rows of probs, got (1,)"),
        (
            GOOD,
            GOOD.astype(int),
            ValueError,
            "labels must have the shape (3,) of the rows of probs, got (3, 2) "
            "(independent labels need task='multilabel')",
        ),
        (
            np.float64(0.5),
            0,
            ValueError,
            "probs must have shape (n, K), or (n,) for class 1 of two, got ()",
        ),
    ],
)
def test_bad_labels_and_shapes(metric, probs, labels, error, text):
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        metric(probs, labels)


@pytest.mark.parametrize("metric", OF_LABELS)
@pytest.mark.parametrize("bad", [[0.0, np.nan], [0.0, np.inf], [-np.inf, -np.inf]])
def test_bad_logits(metric, bad):
    text = f"logits must be finite or -inf, with a finite one in every row, got {bad[1]} in row 1"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        metric(np.array([[0.0, 1.0], bad]), [0, 1], from_logits=True)


def test_bad_scores_of_one_class():
    for value in (-0.1, 1.5, np.nan):
        text = f"probs must be within 0..1, got {value} in row 1 {HINT}"
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            nll(np.array([0.5, value]), [0, 1])


def test_row_of_an_error_counts_from_the_start():
    _, probs, labels = made(14, n=2)
    probs, labels = np.tile(probs, (50_000, 1)), np.tile(labels, 50_000)
    probs[77_777, 0] = -1
    with pytest.raises(ValueError, match="in row 77777 "):
        ece(probs, labels)


@pytest.mark.parametrize("metric", WITH_TARGET)
def test_what_is_measured_must_be_said(metric):
    p, y = np.array([0.5, 0.25]), np.array([0, 1])
    with pytest.raises(ValueError, match=r"target must be said for probs of shape \(n,\)") as said:
        metric(p, y)
    assert str(said.value).endswith("'positive' for class 1; or say task='binary', which means 'positive'")
    assert metric(p, y, task="binary") == metric(p, y, target="positive")
    with pytest.raises(ValueError, match=r"target must be one of \('top', 'positive'\), got 'negative'"):
        metric(p, y, target="negative")
    with pytest.raises(ValueError, match=r"target 'positive' needs probs of shape \(n,\)"):
        metric(GOOD, [0, 1, 0], target="positive")
    assert metric(GOOD, [0, 1, 0], target="top") == metric(GOOD, [0, 1, 0])


@pytest.mark.parametrize("metric", WITH_BINS)
def test_bins_are_checked(metric):
    with pytest.raises(ValueError, match=r"n_bins must be within 1\.\.100000, got 0"):
        metric(GOOD, [0, 1, 0], 0)
    with pytest.raises(TypeError, match=r"n_bins must be an integer, got 10\.0"):
        metric(GOOD, [0, 1, 0], 10.0)


def test_other_arguments_are_checked():
    with pytest.raises(ValueError, match="reduction must be 'mean' or 'sum', got 'none'"):
        nll(GOOD, [0, 1, 0], reduction="none")
    with pytest.raises(ValueError, match=r"probs must have the shape \(3, 2\) of posterior, got \(2, 2\)"):
        kl_divergence(GOOD, GOOD[:2])
    with pytest.raises(ValueError, match="rows of posterior must sum to 1"):
        kl_divergence(GOOD * 0.9, GOOD)
    with pytest.raises(ValueError, match="rows of probs must sum to 1"):
        kl_divergence(GOOD, GOOD * 0.9)


def test_tolerance_of_sums():
    assert ece(GOOD * (1 + 9e-4), [0, 1, 0]) >= 0
    with pytest.raises(ValueError, match=r"must sum to 1 within 0\.001"):
        ece(GOOD[:2].astype(np.float32) * np.float32(1.0011), [0, 1])
    half = (GOOD * 1.005).astype(np.float16)
    assert ece(half, [0, 1, 0]) >= 0
    with pytest.raises(ValueError, match=r"must sum to 1 within 0\.01"):
        ece((GOOD[:2] * 1.02).astype(np.float16), [0, 1])
