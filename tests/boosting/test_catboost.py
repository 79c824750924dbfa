"""CatBoost's own focal loss: its scores, and the objective that gives their posterior."""

import numpy as np
import pytest
from known_posteriors import binary, kl

import refocal
from refocal.adapters import from_catboost
from refocal.sklearn import PosteriorClassifier


@pytest.mark.slow
@pytest.mark.parametrize("alpha, gamma", [(0.25, 2.0), (0.5, 1.0)])
def test_the_posterior_of_catboost_s_focal_loss(alpha, gamma):
    catboost = pytest.importorskip("catboost")
    X, y, _ = binary(40_000, 0, intercept=-2.5)
    unseen, _, truth = binary(20_000, 1, intercept=-2.5)
    loss = f"Focal:focal_alpha={alpha};focal_gamma={gamma}"
    model = catboost.CatBoostClassifier(
        iterations=300,
        depth=4,
        loss_function=loss,
        verbose=False,
        thread_count=1,
        random_seed=0,
        allow_writing_files=False,
    )
    model.fit(X, y)
    spec = from_catboost(focal_alpha=alpha, focal_gamma=gamma)
    wrapped = PosteriorClassifier(model, spec, prefit=True).fit(X, y)
    probs, raw = wrapped.predict_proba(unseen), model.predict_proba(unseen)
    np.testing.assert_allclose(wrapped.predict_raw_proba(unseen), raw, rtol=1e-6)
    assert kl(truth, probs) < kl(truth, raw) / 5
    assert probs[:, 1].mean() == pytest.approx(truth[:, 1].mean(), rel=0.1)
    other = refocal.SigmoidFocal(gamma, 0.35)
    assert kl(truth, probs) < kl(
        truth, PosteriorClassifier(model, other, prefit=True).fit(X, y).predict_proba(unseen)
    )
