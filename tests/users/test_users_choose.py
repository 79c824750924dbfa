"""The choice between calibrations as users write it: a line for each task, with what comes out."""

import numpy as np
import pytest
import torch

import refocal
from refocal import Asymmetric, Focal, OneVsRest, SigmoidFocal, choose_calibration

RNG = np.random.default_rng(0)
ETA = RNG.beta(0.5, 2.0, size=1500)
HIT = (RNG.random(1500) < ETA).astype(int)
ETAS = RNG.beta(0.5, 2.0, size=(800, 3))
HITS = (RNG.random((800, 3)) < ETAS).astype(int)
SIMPLEX = RNG.dirichlet([0.5, 0.5, 0.5], size=1000)
CLASS = np.minimum((RNG.random((1000, 1)) > SIMPLEX.cumsum(axis=1)).sum(axis=1), 2)

DETECTOR = SigmoidFocal(gamma=2.0, alpha=0.25)
PER_CLASS = SigmoidFocal(gamma=2.0, alpha=[0.25, 0.5, 0.75])
TAGS = Asymmetric(gamma_pos=1.0, gamma_neg=4.0, clip=0.05)
RETINA = OneVsRest(DETECTOR)

ROWS = {
    "a detector": (DETECTOR, ETA, HIT, "binary"),
    "tags, by ASL": (TAGS, ETAS, HITS, "multilabel"),
    "tags, alpha of each": (PER_CLASS, ETAS, HITS, "multilabel"),
    "one sigmoid for each class": (RETINA, SIMPLEX, CLASS, "multiclass"),
    "a softmax": (Focal(2.0), SIMPLEX, CLASS, "multiclass"),
    "a smoothed softmax": (Focal(2.0, label_smoothing=0.1), SIMPLEX, CLASS, "multiclass"),
    "smoothed tags": (SigmoidFocal(2.0, None, label_smoothing=0.1), ETAS, HITS, "multilabel"),
}


@pytest.mark.parametrize("row", ROWS)
def test_rows(row):
    objective, eta, labels, task = ROWS[row]
    logits = objective.logits(eta)
    found = choose_calibration(logits, labels, objective, n_resamples=50)
    assert found.task == task
    assert not found.assumed
    probs = found.apply(logits)
    assert probs.shape == eta.shape
    assert np.abs(probs - eta).mean() < 0.03
    assert np.abs(probs - eta).mean() < np.abs(found.apply(logits, method="raw") - eta).mean()


def test_the_detector_of_the_readme():
    """Scores of a detector become probabilities, and a threshold on them one on its scores."""
    logits = torch.tensor(DETECTOR.logits(ETA), dtype=torch.float32)
    found = choose_calibration(logits, torch.tensor(HIT), DETECTOR)
    assert found.winner == "psi"
    probs = found.apply(logits)
    assert probs.dtype == torch.float32
    threshold = found.threshold(0.5)
    assert threshold == pytest.approx(refocal.score_threshold(DETECTOR, 0.5))
    assert threshold == pytest.approx(0.3988, abs=1e-4)
    np.testing.assert_array_equal(torch.sigmoid(logits) > threshold, probs > 0.5)
    print(found)  # the table, for people


def test_without_an_objective_it_is_said_what_is_assumed():
    found = choose_calibration(DETECTOR.logits(ETA), HIT, task="binary", n_resamples=50)
    assert "No objective was given: SigmoidFocal(gamma=2.0, alpha=None" in str(found)
    assert found.winner in ("platt", "focal_ts_free")  # a bias mends the alpha that was not told
    assert np.abs(found.apply(DETECTOR.logits(ETA)) - ETA).mean() < 0.03


def test_masks_of_any_shape():
    eta = RNG.beta(0.5, 1.0, size=(4, 8, 8))
    labels = RNG.random(eta.shape) < eta
    found = choose_calibration(DETECTOR.logits(eta), labels, DETECTOR, task="binary", n_resamples=50)
    assert found.n_rows == 256
    assert found.apply(DETECTOR.logits(eta)).shape == (4, 8, 8)


def test_a_single_number():
    found = choose_calibration(DETECTOR.logits(ETA), HIT, DETECTOR, n_resamples=50)
    assert float(found.apply(np.float64(0.0))) == pytest.approx(0.75, abs=0.05)


def test_scores_given_to_a_choice_of_logits_are_noticed():
    rng = np.random.default_rng(0)
    eta = rng.beta(0.5, 2.0, size=1000)
    spec = refocal.SigmoidFocal(gamma=2.0, alpha=0.25)
    found = refocal.choose_calibration(spec.logits(eta), (rng.random(1000) < eta).astype(int), spec)
    scores = 1 / (1 + np.exp(-spec.logits(eta)))
    with pytest.warns(refocal.SuspiciousInputWarning, match="look like probabilities"):
        found.apply(scores)
