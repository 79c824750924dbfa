"""Metrics as their users call them: what they have in hand, and what has to come out.

Each row is a line that somebody writes; what it must equal is written with NumPy or scikit-learn alone.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.datasets import make_classification, make_multilabel_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, hamming_loss, log_loss
from sklearn.multiclass import OneVsRestClassifier

import refocal

X, Y = make_classification(400, 8, n_informative=6, n_classes=3, random_state=0)
NAMES = np.array(["high", "low", "mid"])  # as scikit-learn sorts them
MODEL = LogisticRegression(max_iter=500).fit(X, NAMES[Y])
PROBS = MODEL.predict_proba(X)
FRAME = pd.DataFrame(PROBS, columns=MODEL.classes_).assign(truth=NAMES[Y])

TWO = LogisticRegression().fit(X, Y == 1)
ONE = TWO.predict_proba(X)[:, 1]

X_TAGS, TAGS = make_multilabel_classification(300, 10, n_classes=4, random_state=0)
TAG_MODEL = OneVsRestClassifier(LogisticRegression(max_iter=500)).fit(X_TAGS, TAGS)
TAG_PROBS = TAG_MODEL.predict_proba(X_TAGS)

torch.manual_seed(0)
PIXELS = torch.randn(2, 5, 8, 9)
MASK = torch.randint(5, (2, 8, 9))
MASK[:, :2] = 255
HEAT, CHANGED = torch.sigmoid(PIXELS[:, 0]), MASK == 1


def binned(confidence, hit, n_bins=10):
    """The expected calibration error, by its definition."""
    confidence, hit = np.asarray(confidence, float).ravel(), np.asarray(hit).ravel()
    index = np.clip(np.ceil(confidence * n_bins) - 1, 0, n_bins - 1).astype(int)
    inside = [index == j for j in range(n_bins)]
    return sum(abs(hit[b].sum() - confidence[b].sum()) for b in inside) / len(hit)


def kept_pixels():
    """Softmax and labels of the pixels that are not void."""
    kept = MASK.ravel() != 255
    return PIXELS.movedim(1, -1).reshape(-1, 5).softmax(1)[kept].double(), MASK.ravel()[kept]


def top(probs, labels):
    probs, labels = np.asarray(probs), np.asarray(labels)
    return binned(probs.max(axis=1), probs.argmax(axis=1) == labels)


# What the user writes: what it must be.
ROWS = {
    "a scikit-learn model with names for classes": (
        lambda: refocal.ece(MODEL.predict_proba(X), NAMES[Y], classes=MODEL.classes_),
        lambda: top(PROBS, Y),
    ),
    "its log loss": (
        lambda: refocal.nll(PROBS, NAMES[Y], classes=MODEL.classes_),
        lambda: log_loss(NAMES[Y], PROBS, labels=MODEL.classes_),
    ),
    "columns of a frame": (
        lambda: refocal.ece(FRAME[["high", "low", "mid"]], FRAME["truth"], classes=["high", "low", "mid"]),
        lambda: top(PROBS, Y),
    ),
    "columns in another order": (
        lambda: refocal.ece(FRAME[["low", "mid", "high"]], FRAME["truth"], classes=["low", "mid", "high"]),
        lambda: top(PROBS, Y),
    ),
    "columns of polars": (
        lambda: refocal.ece(
            pl.DataFrame(FRAME[["high", "low", "mid"]].to_dict("list")),
            pl.Series(FRAME["truth"].tolist()),
            classes=["high", "low", "mid"],
        ),
        lambda: top(PROBS, Y),
    ),
    "lists from a JSON file": (
        lambda: refocal.ece(PROBS.tolist(), Y.tolist()),
        lambda: top(PROBS, Y),
    ),
    "scores of the positive class, booleans": (
        lambda: refocal.ece(ONE, Y == 1, task="binary"),
        lambda: binned(ONE, Y == 1),
    ),
    "scores of the positive class, answers": (
        lambda: refocal.ece(ONE, np.where(Y == 1, "yes", "no"), task="binary", classes=["no", "yes"]),
        lambda: binned(ONE, Y == 1),
    ),
    "both columns of predict_proba": (
        lambda: refocal.ece(TWO.predict_proba(X), Y == 1),
        lambda: binned(np.maximum(ONE, 1 - ONE), (ONE > 0.5) == (Y == 1)),
    ),
    "a binary Brier score": (
        lambda: refocal.brier(ONE, Y == 1) / 2,
        lambda: brier_score_loss(Y == 1, ONE),
    ),
    "a column of Keras": (
        lambda: refocal.ece(ONE[:, None].astype(np.float32), (Y == 1)[:, None], task="binary"),
        lambda: binned(ONE.astype(np.float32), Y == 1),
    ),
    "tags, all of them together": (
        lambda: refocal.ece(TAG_PROBS, TAGS, task="multilabel"),
        lambda: binned(TAG_PROBS, TAGS),
    ),
    "tags, the mean over them": (
        lambda: refocal.ece(TAG_PROBS, TAGS, task="multilabel", average="macro"),
        lambda: np.mean([binned(p, y) for p, y in zip(TAG_PROBS.T, TAGS.T, strict=True)]),
    ),
    "tags, each of them": (
        lambda: refocal.ece(TAG_PROBS, TAGS, task="multilabel", average="none"),
        lambda: [binned(p, y) for p, y in zip(TAG_PROBS.T, TAGS.T, strict=True)],
    ),
    "tags, how many are wrong": (
        lambda: refocal.error_rate(TAG_PROBS, TAGS, task="multilabel"),
        lambda: hamming_loss(TAGS, TAG_PROBS > 0.5),
    ),
    "tags from logits of a network": (
        lambda: refocal.nll(
            torch.logit(torch.from_numpy(TAG_PROBS)),
            torch.from_numpy(TAGS),
            task="multilabel",
            from_logits=True,
        ),
        lambda: log_loss(TAGS.ravel(), TAG_PROBS.ravel()),
    ),
    "pixels of a segmentation, void left out": (
        lambda: refocal.ece(PIXELS, MASK, from_logits=True, axis=1, ignore_index=255),
        lambda: top(*kept_pixels()),
    ),
    "pixels, channels last": (
        lambda: refocal.ece(PIXELS.movedim(1, -1), MASK, from_logits=True, ignore_index=255),
        lambda: top(*kept_pixels()),
    ),
    "a map of changes": (
        lambda: refocal.ece(HEAT, CHANGED, task="binary"),
        lambda: binned(HEAT, CHANGED),
    ),
    "batches of pixels, added up": (
        lambda: sum_of_batches().ece(),
        lambda: top(*kept_pixels()),
    ),
    "an interval of tags": (
        lambda: refocal.confidence_interval("ece", TAG_PROBS, TAGS, task="multilabel", n_resamples=50).value,
        lambda: binned(TAG_PROBS, TAGS),
    ),
    "bins as a table": (
        lambda: refocal.CalibrationStats(5).update(PROBS, Y).to_frame()["count"].to_numpy(),
        lambda: np.histogram(PROBS.max(axis=1), bins=5, range=(0, 1))[0],
    ),
}


def sum_of_batches():
    stats = refocal.CalibrationStats(10)
    for logits, mask in zip(PIXELS, MASK, strict=True):
        stats.update(logits.softmax(0), mask, axis=0, ignore_index=255)
    return stats


@pytest.mark.parametrize("row", ROWS)
def test_a_line_gives_what_it_says(row):
    write, expected = ROWS[row]
    np.testing.assert_allclose(write(), expected(), rtol=1e-6)


# What the user writes by mistake: what the answer says.
MISTAKES = {
    "tags without a word": (lambda: refocal.ece(TAG_PROBS, TAGS), "task='multilabel'"),
    "tags for classes": (lambda: refocal.ece(TAG_PROBS, TAGS[:, 0]), "task='multilabel'"),
    "names without classes": (lambda: refocal.ece(PROBS, NAMES[Y]), "classes="),
    "logits for probabilities": (
        lambda: refocal.ece(3 * PIXELS[:, :, 0, 0], MASK[:, 5, 5]),
        "from_logits=True",
    ),
    "void in the mask": (
        lambda: refocal.ece(PIXELS, MASK, from_logits=True, axis=1),
        "labels must be within",
    ),
    "one column, nothing said": (lambda: refocal.ece(ONE, Y == 1), "target must be said"),
}


@pytest.mark.parametrize("row", MISTAKES)
def test_a_mistake_is_answered_with_what_helps(row):
    write, text = MISTAKES[row]
    with pytest.raises((TypeError, ValueError), match=text):
        write()
