"""Two classes by classifiers with the focal loss, as people go on with them: their objective, their files."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import refocal
from refocal import Objective, SigmoidFocal, choose_calibration, score_threshold
from refocal.sklearn import (
    CalibratedPosterior,
    FocalLinearClassifier,
    FocalMLPClassifier,
    PosteriorClassifier,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(1500, 3))
Y = (RNG.random(1500) < 1 / (1 + np.exp(3 - 2 * X[:, 0]))).astype(int)

ENGINES = {
    "linear": FocalLinearClassifier,
    "mlp": lambda **options: FocalMLPClassifier(max_iter=2, random_state=0, **options),
    "xgboost": lambda **options: boosted("xgboost", **options),
    "lightgbm": lambda **options: boosted("lightgbm", **options),
}


def boosted(engine, **options):
    pytest.importorskip(engine)
    from refocal import boosting

    kind = {"xgboost": "FocalXGBClassifier", "lightgbm": "FocalLGBMClassifier"}[engine]
    return getattr(boosting, kind)(n_estimators=15, max_depth=2, **options)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "options, alpha",
    [
        ({}, None),
        ({"alpha": 0.75}, 0.75),
        ({"class_weight": {0: 1.0, 1: 7.0}}, 7 / 8),
        ({"class_weight": "balanced"}, 1 - Y.mean()),
    ],
)
def test_the_objective_of_two_classes_takes_the_decisions(engine, options, alpha):
    model = ENGINES[engine](**options).fit(X, Y)
    assert isinstance(model.objective_, SigmoidFocal)
    assert (model.objective_.gamma, model.objective_.alpha) == (
        2.0,
        alpha and pytest.approx(alpha, rel=1e-15),
    )
    decisions, probs = model.decision_function(X), model.predict_proba(X)
    assert decisions.shape == (1500,)
    np.testing.assert_allclose(model.objective_.posterior(decisions), probs[:, 1], rtol=1e-12)
    np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-12)
    # a threshold by costs, on the raw score and on the probability: the same rows
    raw, limit = model.predict_raw_proba(X)[:, 1], score_threshold(model.objective_, 1 / 11)
    np.testing.assert_array_equal(raw >= limit, probs[:, 1] >= 1 / 11)


def test_the_choice_takes_decisions_and_objective():
    model = FocalLinearClassifier(class_weight="balanced").fit(X, Y)
    decisions = model.decision_function(X)
    found = choose_calibration(decisions, Y, objective=model.objective_, n_resamples=20)
    assert (found.task, found.winner) == ("binary", "psi")
    np.testing.assert_allclose(found.apply(decisions), model.predict_proba(X)[:, 1], rtol=1e-12)
    assert CalibratedPosterior(model, n_resamples=20).fit(X, Y).method_ == "psi"
    for options, said in (({}, "alpha=None"), ({"weight": (1.0, 3.0)}, "alpha=w1 / (w0 + w1)")):
        for task in (None, "binary"):
            told = re.escape(
                f"log odds need SigmoidFocal(2.0, {said}), which is the same loss for two classes"
            )
            with pytest.raises(ValueError, match=f"{told}$"):
                choose_calibration(decisions, Y, objective=refocal.Focal(2.0, **options), task=task)


def test_class_weights_that_no_alpha_holds():
    with pytest.raises(ValueError, match="class_weight must differ by less than a factor of 1e16"):
        FocalLinearClassifier(class_weight={0: 1.0, 1: 1e20}).fit(X, Y)


def test_an_own_objective_on_a_sigmoid_around_a_classifier():
    """It was read as one on a softmax: of both columns by themselves."""

    class Mine(Objective):
        scores = "sigmoid"

        def loss(self, logits, labels, *, axis=-1):
            return SigmoidFocal(2.0, 0.25).loss(logits, labels, axis=axis)

        def log_posterior(self, logits, *, axis=-1):
            return SigmoidFocal(2.0, 0.25).log_posterior(logits, axis=axis)

    model = FocalLinearClassifier().fit(X, Y)
    one = SigmoidFocal(2.0, 0.25).posterior(model.decision_function(X))
    probs = PosteriorClassifier(model, Mine(), prefit=True).fit(X, Y).predict_proba(X)
    np.testing.assert_allclose(probs, np.stack([1 - one, one], axis=1), rtol=1e-12)
    del Objective.kinds["Mine"]


@pytest.mark.parametrize("engine", ["xgboost", "lightgbm"])
def test_what_a_file_keeps(engine, tmp_path):
    model = boosted(engine, class_weight={0: 1.0, 1: 3.0}, early_stopping_rounds=3)
    model.fit(X[:1000], Y[:1000], eval_set=[(X[1000:], Y[1000:])])
    path = tmp_path / "model.json"
    model.save(path)
    loaded = type(model).load(path)
    assert loaded.best_iteration_ == model.best_iteration_
    assert loaded.evals_result_ == model.evals_result_
    assert len(loaded.evals_result_["validation_0"]["nll"]) > loaded.best_iteration_
    assert loaded.objective_ == model.objective_ == SigmoidFocal(2.0, alpha=0.75)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    loaded.save(tmp_path / "again.json")
    assert type(model).load(tmp_path / "again.json").evals_result_ == model.evals_result_
    # version 0.2 wrote the loss on a softmax with its weights, and nothing of the evaluation
    side_car = tmp_path / "model.json.refocal.json"
    fields = json.loads(side_car.read_text())
    del fields["evals_result"], fields["best_iteration"]
    fields["objective"] = {"objective": "Focal", "gamma": 2.0, "weight": [1.0, 3.0], "label_smoothing": 0.0}
    side_car.write_text(json.dumps(fields))
    old = type(model).load(path)
    assert old.objective_ == model.objective_
    np.testing.assert_array_equal(old.predict_proba(X), model.predict_proba(X))
    assert not hasattr(old, "best_iteration_")
    old.save(tmp_path / "old.json")
