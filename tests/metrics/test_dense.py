"""Dense scores, (N, C, H, W): the same numbers as of rows made by hand, without a copy of the whole."""

import re
import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from scipy import special

import refocal
from refocal import CalibrationStats, _rows, classwise_ece, confidence_interval, ece, kl_divergence, nll
from refocal._rows import checked_rows, logit_rows

METRICS = ["ece", "mce", "classwise_ece", "adaptive_ece", "debiased_ece", "smooth_ece"]
METRICS += ["nll", "brier", "error_rate"]
VOID = 255


def made(shape=(2, 5, 6, 7), seed=0, ignored=0.2, dtype=np.float32):
    """Return logits with classes along axis 1, labels of which some are void, and NaN under those."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=shape).astype(dtype)
    labels = rng.integers(shape[1], size=(shape[0], *shape[2:]))
    void = rng.random(labels.shape) < ignored
    labels[void] = VOID
    np.moveaxis(logits, 1, -1)[void] = np.nan
    return logits, labels


def by_hand(scores, labels, axis=1):
    flat = np.moveaxis(scores, axis, -1).reshape(-1, scores.shape[axis])
    kept = labels.reshape(-1) != VOID
    return np.ascontiguousarray(flat[kept]), labels.reshape(-1)[kept]


@pytest.mark.parametrize("metric", METRICS)
def test_metrics_are_those_of_rows_made_by_hand(metric, monkeypatch):
    monkeypatch.setattr(_rows.scores, "BLOCK", 60)  # several blocks
    logits, labels = made()
    function = getattr(refocal, metric)
    flat, y = by_hand(logits, labels)
    expected = function(flat, y, from_logits=True)
    options = {"axis": 1, "ignore_index": VOID}
    assert function(logits, labels, from_logits=True, **options) == pytest.approx(expected, rel=1e-12)
    tensors = torch.from_numpy(logits), torch.from_numpy(labels)
    assert function(*tensors, from_logits=True, **options) == pytest.approx(expected, rel=1e-12)
    last = np.moveaxis(logits, 1, -1)
    assert function(last, labels, from_logits=True, ignore_index=VOID) == pytest.approx(expected, rel=1e-12)
    probs = special.softmax(np.where(np.isnan(logits), 0, logits).astype(np.float64), axis=1)
    assert function(probs, labels, **options) == pytest.approx(expected, rel=1e-6)


def test_intervals_tests_and_stats():
    logits, labels = made(seed=1)
    probs = special.softmax(logits.astype(np.float64), axis=1)
    flat, y = by_hand(probs, labels)
    options = {"axis": 1, "ignore_index": VOID}
    for metric in ("ece", "classwise_ece", "nll"):
        found = confidence_interval(metric, probs, labels, n_resamples=50, **options)
        expected = confidence_interval(metric, flat, y, n_resamples=50)
        assert (found.value, found.low, found.high) == pytest.approx(
            (expected.value, expected.low, expected.high), rel=1e-9
        )
    test = refocal.calibration_test(probs, labels, n_simulations=50, **options)
    assert test == refocal.calibration_test(flat, y, n_simulations=50)
    stats = CalibrationStats(10, 5).update(probs, labels, **options)
    expected = CalibrationStats(10, 5).update(flat, y)
    np.testing.assert_array_equal(stats.class_counts, expected.class_counts)
    assert stats.classwise_ece() == pytest.approx(expected.classwise_ece(), rel=1e-12)
    whole = np.where(np.isnan(probs), 0.2, probs)
    eta = np.roll(whole, 1, axis=0)
    assert kl_divergence(eta, whole, axis=1) == pytest.approx(
        kl_divergence(np.moveaxis(eta, 1, -1).reshape(-1, 5), np.moveaxis(whole, 1, -1).reshape(-1, 5)),
        rel=1e-12,
    )


LAYOUTS = {
    "plain": lambda x: x,
    "cropped": lambda x: np.pad(x, [(1, 2)] * x.ndim, constant_values=9)[(slice(1, -2),) * x.ndim],
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "fortran": np.asfortranarray,
    "reversed": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
    "swapped": lambda x: np.ascontiguousarray(x.swapaxes(0, -1)).swapaxes(0, -1),
}


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=4),
    st.data(),
    st.sampled_from(list(LAYOUTS)),
    st.sampled_from([np.float16, np.float32, np.float64]),
    st.integers(1, 40),
)
def test_any_shape_axis_and_layout_is_read_in_order(shape, data, layout, dtype, size):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    shape[axis] = max(2, shape[axis])
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(dtype)
    x[rng.random(shape) < 0.1] = -np.inf
    rows = np.moveaxis(x, axis, -1)
    rows[..., 0] = 1.0
    y = rng.integers(2, size=rows.shape[:-1]) * VOID
    y.flat[0] = 0
    y.flat[1:][rng.random(y.size - 1) < 0.3] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_rows.scores, "BLOCK", size)
        found = logit_rows(LAYOUTS[layout](x), y, axis, ignore_index=VOID)
        blocks = list(found.raw_blocks())
        flat, labels = by_hand(x, y, axis)
        np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), flat)
        np.testing.assert_array_equal(found.labels, labels)
        assert [at.start for at, _ in blocks[1:]] == [at.stop for at, _ in blocks[:-1]]
        assert found.n_rows == len(flat) == blocks[-1][0].stop
        np.testing.assert_array_equal(found.z, flat)
        np.testing.assert_array_equal(found.largest[:, 0], flat.max(axis=1))
        index = rng.permutation(len(flat))[: len(flat) // 2 + 1]
        np.testing.assert_array_equal(found.take(index).z, flat[index])
        np.testing.assert_array_equal(found.take(index).gap, found.gap[index])
        np.testing.assert_array_equal(found.take(slice(None, None, 2)).labels, labels[::2])


def test_expanded_tensors():
    row = torch.rand(1, 3, 1, 1, dtype=torch.float64).softmax(1)
    labels = torch.zeros(2, 4, 4, dtype=torch.long)
    assert ece(row.expand(2, 3, 4, 4), labels, axis=1) == pytest.approx(ece(row.reshape(1, 3), [0]))


def test_scores_of_class_1_in_any_shape():
    rng = np.random.default_rng(2)
    probs, labels = rng.random((2, 5, 6)), rng.integers(2, size=(2, 5, 6))
    labels[0, 0] = VOID
    kept = labels != VOID
    found = ece(probs, labels, task="binary", ignore_index=VOID)
    assert found == ece(probs[kept], labels[kept], task="binary")
    assert found == ece(probs[kept], labels[kept], target="positive")


def test_independent_labels_of_pixels():
    rng = np.random.default_rng(3)
    probs, labels = rng.random((2, 3, 5, 6)), rng.integers(2, size=(2, 3, 5, 6))
    flat, y = (np.moveaxis(x, 1, -1).reshape(-1, 3) for x in (probs, labels))
    for average in ("pooled", "none"):
        options = {"task": "multilabel", "average": average}
        np.testing.assert_allclose(ece(probs, labels, axis=1, **options), ece(flat, y, **options), rtol=1e-13)
    found = confidence_interval("ece", probs, labels, axis=1, task="multilabel", n_resamples=20)
    expected = confidence_interval("ece", flat, y, task="multilabel", n_resamples=20)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)


CALLS = {
    "ece": lambda x, y, o: ece(x, y, from_logits=True, **o),
    "classwise_ece": lambda x, y, o: classwise_ece(x, y, from_logits=True, **o),
    "nll": lambda x, y, o: nll(x, y, from_logits=True, **o),
    "stats": lambda x, y, o: CalibrationStats(10, 21).update(x, y, **o),
    "rows": lambda x, y, o: checked_rows(x, y, from_logits=True, **o),
    "logit rows": lambda x, y, o: logit_rows(x, y, **o),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_copied_as_a_whole(name):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(4, 21, 256, 256)).astype(np.float32)
    x = special.softmax(x, axis=1) if name == "stats" else x
    labels = rng.integers(21, size=(4, 256, 256))
    labels[rng.random(labels.shape) < 0.1] = VOID
    options = {"axis": 1, "ignore_index": VOID}
    CALLS[name](x, labels, options)  # what is loaded once is not counted
    tracemalloc.start()
    result = CALLS[name](x, labels, options)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result is not None
    assert peak < labels.nbytes + 4e6 < x.nbytes / 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_tensors_are_read_where_they_are(dtype):
    x = torch.zeros(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last)[..., 1:]
    rows = checked_rows(x, torch.zeros(2, 4, 4, dtype=torch.long), from_logits=True, axis=1)
    assert np.shares_memory(rows.values, x.numpy())


@pytest.mark.parametrize(
    "call, text",
    [
        (
            lambda x, y: ece(x, y, from_logits=True, axis=1),
            "labels must be within 0..4, got 255",
        ),
        (
            lambda x, y: ece(x, y, from_logits=True, ignore_index=VOID),
            "labels must have the shape (2, 5, 6) of the rows of logits, got (2, 6, 7)",
        ),
        (
            lambda x, y: ece(x, y % 5, from_logits=True, axis=1),
            "logits must be finite or -inf, with a finite one in every row, got nan in row (0, 0, 1)",
        ),
        (
            lambda x, y: ece(x, np.full(y.shape, VOID), from_logits=True, axis=1, ignore_index=VOID),
            "labels must have at least 1 that is not ignore_index, got only 255",
        ),
        (lambda x, y: ece(x, y, axis=4), "axis must be within the 4 axes of probs, got 4"),
        (
            lambda x, y: ece(x[0, 0], y[0], task="binary", axis=1),
            "axis must be -1 for scores of class 1, which have no axis of classes, got 1",
        ),
        (
            lambda x, y: ece(x[:, :1], y, axis=1),
            "probs must have at least 2 classes along axis 1, or shape (n,), got shape (2, 1, 6, 7)",
        ),
        (
            lambda x, y: ece(x[:, :, :0], y[:, :0], axis=1),
            "probs must have at least 1 row, got shape (2, 5, 0, 7)",
        ),
    ],
)
def test_refusals(call, text):
    logits, labels = made()
    assert labels[0, 0, 1] == VOID
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        call(logits, labels)


def test_a_bad_row_is_named_by_its_place_among_all():
    logits, labels = made()
    at = tuple(np.argwhere(labels != VOID)[-1])
    logits[(at[0], slice(None), *at[1:])] = np.nan
    text = f"got nan in row {tuple(int(i) for i in at)}"
    with pytest.raises(ValueError, match=re.escape(text)):
        nll(logits, labels, from_logits=True, axis=1, ignore_index=VOID)
