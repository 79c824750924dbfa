"""What a choice refuses: files with wrong numbers, logits of another shape."""

import json

import numpy as np
import pytest

from refocal import (
    Focal,
    FocalTemperatureScaling,
    Selection,
    SigmoidFocal,
    TemperatureScaling,
    choose_calibration,
)
from refocal.calibration.method import Method

RNG = np.random.default_rng(0)
CLASSES = RNG.normal(size=(200, 4)) * 2
CLASS = (CLASSES + RNG.gumbel(size=CLASSES.shape)).argmax(axis=1)
LABELS = RNG.random((200, 4)) < 1 / (1 + np.exp(-CLASSES))
FOUND = choose_calibration(CLASSES, CLASS, n_resamples=5)
TAGGED = choose_calibration(CLASSES, LABELS, task="multilabel", n_resamples=5)
BINARY = choose_calibration(CLASSES[:, 0], LABELS[:, 0], n_resamples=5)


@pytest.mark.parametrize(
    "change, error, text",
    [
        ({"temperature": -1.0}, ValueError, "temperature must be finite and > 0, got -1.0"),
        ({"temperature": 0}, ValueError, "temperature must be finite and > 0, got 0"),
        ({"temperature": "1"}, TypeError, "temperature must be a number, got '1'"),
        (
            {"temperature": [1.0, 2.0]},
            ValueError,
            "temperature must have one number for each of the 4 columns",
        ),
        ({"temperature": [1.0, 2.0, 0.0, 1.0]}, ValueError, "temperature must be finite and > 0, got 0.0"),
        ({"bias": float("nan")}, ValueError, "bias must be finite, got nan"),
        ({"floor": 1.0}, ValueError, r"floor must be in \[0, 1\), got 1.0"),
        ({"scores": "sigmoide"}, ValueError, "scores must be one of .*, got 'sigmoide'"),
        (
            {"link": SigmoidFocal().to_dict()},
            ValueError,
            "link must be one on scores 'softmax', got SigmoidFocal",
        ),
        ({"converged": 1}, TypeError, "converged must be True or False, got 1"),
        ({"shared": [-1]}, ValueError, "shared must be at least 0, got -1"),
        ({"columns": 0}, ValueError, "columns must be at least 1, got 0"),
        ({"name": "psy"}, ValueError, "name must be one of .*, got 'psy'"),
    ],
)
def test_a_method_of_wrong_numbers(change, error, text):
    fields = json.loads(json.dumps(FOUND.method("psi").to_dict()))
    assert Method.from_dict(fields) == FOUND.method("psi")
    with pytest.raises(error, match=text):
        Method.from_dict(fields | change)


@pytest.mark.parametrize(
    "change, error, text",
    [
        ({"task": "multiclas"}, ValueError, "task must be one of .*, got 'multiclas'"),
        ({"task": None}, ValueError, "task must be a task, got None"),
        ({"task": "binary"}, ValueError, r"task must fit the objective, got 'binary' for Focal \(softmax\)"),
        ({"winner": "psy"}, ValueError, "methods must have raw and the winner 'psy', got .*'raw'"),
        ({"methods": []}, ValueError, r"methods must have raw and the winner .*, got \[\]"),
        ({"n_rows": 0}, ValueError, "n_rows must be at least 2, got 0"),
        ({"n_folds": 1}, ValueError, "n_folds must be at least 2, got 1"),
        ({"level": 2}, ValueError, r"level must be within \(0, 1\), got 2"),
        ({"negligible": -1}, ValueError, "negligible must be finite and >= 0, got -1"),
        ({"clear": "yes"}, TypeError, "clear must be True or False, got 'yes'"),
        ({"objective": {"objective": "Fokal"}}, ValueError, "objective must be one of .*, got 'Fokal'"),
        (
            {"methods": [m.to_dict() for m in BINARY.methods], "winner": "raw"},
            ValueError,
            "scores of raw must be those of the task 'multiclass', got 'sigmoid'",
        ),
    ],
)
def test_a_choice_of_wrong_numbers(change, error, text):
    fields = json.loads(json.dumps(FOUND.to_dict()))
    assert Selection.from_dict(fields) == FOUND
    with pytest.raises(error, match=text):
        Selection.from_dict(fields | change)


def test_what_is_no_choice():
    for kind in (Selection, Method):
        with pytest.raises(TypeError, match="fields must be a dictionary, got list"):
            kind.from_dict([])
        with pytest.raises(ValueError, match=r"fields must have the keys \[.*'\] too, got \[\]"):
            kind.from_dict({})
    fields = FOUND.to_dict()
    assert Selection.from_dict(fields | {"input": "scores.csv"}) == FOUND  # as `refocal choose` writes
    del fields["winner"]
    with pytest.raises(ValueError, match=r"fields must have the keys \['winner'\] too, got"):
        Selection.from_dict(fields)


def test_files_from_before_the_number_of_columns_load():
    fields = json.loads(json.dumps(FOUND.to_dict()))
    for method in fields["methods"]:
        del method["columns"]
    old = Selection.from_dict(fields)
    assert old.apply(CLASSES[:, :2]).shape == (200, 2)  # nothing is known of the shape
    fields = TemperatureScaling().fit(CLASSES, CLASS).to_dict()
    del fields["columns_"]
    assert TemperatureScaling.from_dict(fields).predict_proba(CLASSES[:, :2]).shape == (200, 2)


def test_another_number_of_classes():
    text = r"logits must have the 4 classes of the fit along axis -1, got shape \(200, 2\)"
    scalings = [s.fit(CLASSES, CLASS) for s in (TemperatureScaling(), FocalTemperatureScaling(2.0))]
    for call in (FOUND.apply, FOUND.method("raw").log_probs, *(s.predict_proba for s in scalings)):
        with pytest.raises(ValueError, match=text):
            call(CLASSES[:, :2])
    with pytest.raises(ValueError, match=r"4 classes of the fit along axis 0, got shape \(200, 4\)"):
        FOUND.apply(CLASSES, axis=0)
    assert FOUND.apply(CLASSES[0]).shape == (4,)


def test_another_number_of_labels():
    for logits in (CLASSES[:, :2], CLASSES[:, 0], np.array(0.5)):
        with pytest.raises(ValueError, match="logits must have the 4 labels of the fit along axis -1, got"):
            TAGGED.apply(logits)
    assert TAGGED.apply(CLASSES.T, axis=0).shape == (4, 200)


def test_log_odds_of_any_shape_are_entries():
    together = BINARY.apply(CLASSES)
    np.testing.assert_allclose(together[:, 1], BINARY.apply(CLASSES[:, 1]), rtol=1e-14)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_few_rows_have_fewer_parts(n):
    found = choose_calibration(CLASSES[:n], CLASS[:n], Focal(2.0), n_resamples=5)
    assert found.n_folds == n
    with pytest.raises(ValueError, match=rf"n_folds must be within 2..{n}, got 5"):
        choose_calibration(CLASSES[:n], CLASS[:n], Focal(2.0), n_folds=5)
