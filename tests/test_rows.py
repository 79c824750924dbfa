"""Checked rows: one form for probabilities, logits and log-probabilities, checked once."""

import numpy as np
import pytest
from scipy import special

from refocal import _rows
from refocal._rows import checked_rows, logit_rows


def made(n=50, k=4, seed=0):
    rng = np.random.default_rng(seed)
    return 2 * rng.normal(size=(n, k)), rng.integers(k, size=n)


def joined(blocks):
    return np.concatenate([block for _, block in blocks])


def test_three_kinds_say_the_same(monkeypatch):
    monkeypatch.setattr(_rows.scores, "BLOCK", 40)  # several blocks
    logits, labels = made()
    probs = special.softmax(logits, axis=1)
    rows = logit_rows(logits, labels)
    kinds = checked_rows(probs, labels), rows, rows.log_probs(np.log(probs) + 1e-7)
    assert [r.kind for r in kinds] == ["probs", "logits", "log_probs"]
    for r in kinds:
        np.testing.assert_allclose(joined(r.blocks()), probs, rtol=1e-13)
        np.testing.assert_allclose(joined(r.log_blocks()), np.log(probs), rtol=1e-13, atol=1e-13)
        confidence, hit = r.confidence("top")
        np.testing.assert_allclose(confidence, probs.max(axis=1), rtol=1e-13)
        np.testing.assert_array_equal(hit, probs.argmax(axis=1) == labels)


def test_log_probabilities_are_not_put_through_a_softmax_again(monkeypatch):
    logits, labels = made()
    rows = logit_rows(logits, labels).log_probs(special.log_softmax(logits, axis=1))
    monkeypatch.setattr(_rows.Scores, "_log_softmax", None)
    assert rows.confidence("top")[0].shape == (50,)
    assert rows.confidence("top")[0] is rows.confidence("top")[0]  # computed once


def test_what_is_known_of_rows_goes_with_some_of_them(monkeypatch):
    logits, labels = made()
    rows = logit_rows(logits, labels)
    monkeypatch.setattr(_rows.Scores, "_check_largest", None)  # nothing is checked again
    index = np.array([3, 1, 40])
    for part, expected in ((rows.take(index), index), (rows.some(20), np.arange(0, 50, 3))):
        np.testing.assert_array_equal(part.z, logits[expected])
        np.testing.assert_array_equal(part.labels, labels[expected])
        np.testing.assert_array_equal(part.largest, logits[expected].max(axis=1, keepdims=True))
        np.testing.assert_array_equal(part.gap, logits[expected, labels[expected]] - part.largest[:, 0])
    assert rows.some(50) is rows


@pytest.mark.parametrize("axis", [1, -3])
def test_a_class_axis_elsewhere(axis):
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(2, 4, 3, 5)), rng.integers(4, size=(2, 3, 5))
    rows = logit_rows(logits, labels, axis)
    np.testing.assert_array_equal(rows.z, logits.transpose(0, 2, 3, 1).reshape(30, 4))
    np.testing.assert_array_equal(rows.labels, labels.reshape(30))
    text = r"^labels must have the shape \(2, 3, 5\) of the rows of logits, got \(30,\)$"
    with pytest.raises(ValueError, match=text):
        logit_rows(logits, labels.reshape(30), axis)
