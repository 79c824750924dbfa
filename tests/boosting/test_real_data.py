"""Public data: psi's calibration error is below half the raw one's, and the order of rows is the same."""

import os
from pathlib import Path

import numpy as np
import pytest
from known_posteriors import classifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

import refocal

FOLDER = os.environ.get("REFOCAL_DATA")

OPTIONS = {"n_estimators": 60, "learning_rate": 0.1, "max_depth": 4}


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason="REFOCAL_DATA does not name a folder with adult, spambase and letter")
@pytest.mark.parametrize("name", ["adult", "spambase", "letter"])
def test_the_calibration_error_is_halved(engine, name):
    with np.load(Path(FOLDER) / f"{name}.npz") as data:
        X, y = data["X"], data["y"]
    X, unseen, y, labels = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)
    model = classifier(engine, gamma=2.0, **OPTIONS).fit(X, y)
    probs, raw = model.predict_proba(unseen), model.predict_raw_proba(unseen)
    assert refocal.ece(probs, labels) < refocal.ece(raw, labels) / 2
    if len(model.classes_) == 2:
        assert roc_auc_score(labels, probs[:, 1]) == pytest.approx(
            roc_auc_score(labels, raw[:, 1]), abs=1e-12
        )
