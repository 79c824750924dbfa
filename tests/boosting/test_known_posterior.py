"""On 200,000 rows with a known posterior: beside the engine's own log loss, and beside the raw scores."""

import numpy as np
import pytest
from known_posteriors import binary, classifier, five_classes, kl, log_loss

import refocal

CASES = {
    "1 % positives": (binary, {"n_estimators": 60, "learning_rate": 0.15, "max_depth": 4}),
    "5 classes": (five_classes, {"n_estimators": 30, "learning_rate": 0.15, "max_depth": 6}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_beside_the_log_loss(engine, case):
    make, options = CASES[case]
    X, y, _ = make(200_000, 0)
    unseen, labels, truth = make(50_000, 1)
    log_probs = log_loss(engine, **options).fit(X, y).predict_proba(unseen).astype(np.float64)
    model = classifier(engine, gamma=2.0, **options).fit(X, y)
    probs, raw = model.predict_proba(unseen), model.predict_raw_proba(unseen)

    assert kl(truth, probs) <= 1.2 * kl(truth, log_probs)
    assert kl(truth, probs) <= kl(truth, raw) / 3
    assert refocal.ece(probs, labels) <= refocal.ece(raw, labels) / 3
    assert (
        refocal.ece(probs, labels) <= 1.2 * refocal.ece(log_probs, labels) + 0.001
    )  # sampling noise: 50,000 rows
    rate = truth.mean(axis=0)
    own, engines = np.abs(probs.mean(axis=0) / rate - 1), np.abs(log_probs.mean(axis=0) / rate - 1)
    assert (own <= engines + 0.02).all()
