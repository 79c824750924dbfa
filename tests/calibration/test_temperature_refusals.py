"""Temperature scaling: its files, and what it refuses."""

import json
import math
import os

import numpy as np
import pytest

import refocal
from refocal import Focal, FocalTemperatureScaling, TemperatureScaling
from refocal.calibration import _search


def made(n, k, *, temperature=1.0, dtype="float64"):
    """Return logits that are too sharp by the temperature, and labels drawn from what they should say."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, k)) * 2
    labels = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return (z * temperature).astype(dtype), labels


@pytest.mark.parametrize(
    "scaling",
    [
        TemperatureScaling(),
        TemperatureScaling("focal", gamma=2.0),
        TemperatureScaling("ece", n_bins=5),
        TemperatureScaling(Focal(2.0, weight=(1.0, 2.0, 3.0))),
        FocalTemperatureScaling(),
        FocalTemperatureScaling(gamma=2.0),
    ],
    ids=lambda s: json.dumps(s.to_dict()),
)
def test_save_and_load(scaling, tmp_path):
    logits, labels = made(300, 3)
    assert type(scaling).from_dict(scaling.to_dict()).to_dict() == scaling.to_dict()  # not fitted yet
    path = tmp_path / "scaling.json"
    path.write_text("older")
    scaling.fit(logits, labels).save(path)
    again = type(scaling).load(path)
    assert again.to_dict() == scaling.to_dict()
    np.testing.assert_array_equal(again.predict_proba(logits), scaling.predict_proba(logits))
    assert [p.name for p in tmp_path.iterdir()] == ["scaling.json"]


def test_a_failed_save_leaves_nothing(tmp_path):
    scaling = TemperatureScaling().fit(*made(300, 3))
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        scaling.save(tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_save_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    scaling = TemperatureScaling().fit(*made(300, 3))
    path = tmp_path / "scaling.json"
    path.write_text("older")

    def full(_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        scaling.save(path)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"scaling.json": "older"}


def test_from_dict_refuses():
    fields = TemperatureScaling().fit(*made(300, 3)).to_dict()
    with pytest.raises(
        ValueError, match="scaling must be 'FocalTemperatureScaling', got 'TemperatureScaling'"
    ):
        FocalTemperatureScaling.from_dict(fields)
    keys = r"must have the keys \['gamma', 'n_bins', 'objective', 'scaling', 'task'\] and all or none of"
    for change, error, text in (
        ({"temperature_": -1.0}, ValueError, r"temperature_ must be finite and > 0, got -1.0"),
        ({"temperature_": 0}, ValueError, r"temperature_ must be finite and > 0, got 0"),
        ({"temperature_": "1"}, TypeError, r"temperature_ must be a number, got '1'"),
        ({"n_iter_": 0}, ValueError, "n_iter_ must be at least 1, got 0"),
        ({"converged_": 1}, TypeError, "converged_ must be True or False, got 1"),
        ({"columns_": 0}, ValueError, "columns_ must be at least 1, got 0"),
        ({"extra": 1}, ValueError, keys),
        ({"objective": "loss"}, ValueError, "objective must be 'nll', 'focal', 'ece' or an objective"),
    ):
        with pytest.raises(error, match=text):
            TemperatureScaling.from_dict(fields | change)
    for name in set(fields) - {"task", "task_", "columns_"}:  # which the first files did not have
        with pytest.raises(ValueError, match="scaling must be" if name == "scaling" else keys):
            TemperatureScaling.from_dict({k: v for k, v in fields.items() if k != name})
    focal = FocalTemperatureScaling(2.0).fit(*made(300, 3)).to_dict()
    with pytest.raises(ValueError, match=r"gamma_ must be finite and >= 0, got -2.0"):
        FocalTemperatureScaling.from_dict(focal | {"gamma_": -2.0})


def test_load_refuses_what_is_no_dictionary(tmp_path):
    path = tmp_path / "scaling.json"
    path.write_text("[1]")
    with pytest.raises(TypeError, match="fields must be a dictionary, got list"):
        TemperatureScaling.load(path)


def test_only_a_plain_temperature_has_transform():
    assert not hasattr(FocalTemperatureScaling(2.0), "transform")  # its softmax is not predict_proba


ALL = [
    TemperatureScaling(),
    TemperatureScaling("focal", gamma=2.0),
    TemperatureScaling("ece"),
    FocalTemperatureScaling(),
    FocalTemperatureScaling(2.0),
]


@pytest.mark.parametrize("scaling", ALL, ids=lambda s: json.dumps(s.to_dict()))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_data_without_a_temperature_is_refused(scaling, dtype):
    logits, labels = made(500, 3, dtype=dtype)
    rng = np.random.default_rng(0)
    with pytest.raises(
        ValueError, match="labels must not all be at the largest logit of their row: the loss then"
    ):
        scaling.fit(logits, logits.argmax(axis=1))
    with pytest.raises(ValueError, match="logits must differ within a row: in every row they are constant"):
        scaling.fit(np.repeat(rng.normal(size=(500, 1)), 3, axis=1).astype(dtype), labels)
    with pytest.raises(
        ValueError, match="logits must tell more of the labels than chance: the loss falls all"
    ):
        scaling.fit(logits, logits.argmin(axis=1))
    # Every row comes with every label: chance exactly.
    with pytest.raises(ValueError, match="logits must tell more of the labels than chance"):
        scaling.fit(np.repeat(logits, 3, axis=0), np.tile(np.arange(3), 500))


@pytest.mark.parametrize(
    "logits, labels, error, message",
    [
        ([[1, 2]], [0], TypeError, "logits must hold floating point numbers, got dtype int64"),
        ([1.0, 2.0], 0, ValueError, r"labels must have the shape \(2,\) of the rows of logits"),
        ([[1.0], [2.0]], [0, 0], ValueError, r"logits must have at least 2 classes along axis 1"),
        ([[1.0, 2.0]], [0.0], TypeError, "labels must hold integers, got dtype float64"),
        (
            [[1.0, 2.0]],
            [0, 1],
            ValueError,
            r"labels must have the shape \(1,\) of the rows of logits, got \(2,\)",
        ),
        ([[1.0, 2.0]], [2], ValueError, r"labels must be within 0..1, got 2"),
        ([[1.0, 2.0]], [-1], ValueError, r"labels must be within 0..1, got -1"),
        (np.empty((0, 2)), np.empty(0, dtype=int), ValueError, r"at least 1 row, got shape \(0, 2\)"),
        (
            [[1.0, math.nan]],
            [0],
            ValueError,
            "logits must be finite or -inf, with a finite one in every row, got nan in row 0",
        ),
        (
            [[1.0, math.inf]],
            [0],
            ValueError,
            "logits must be finite or -inf, with a finite one in every row, got inf in row 0",
        ),
        ([[-math.inf] * 2], [0], ValueError, "with a finite one in every row, got -inf in row 0"),
        ([[1.0, 2.0], [1.0, -math.inf]], [0, 1], ValueError, "a finite logit, got one with -inf in row 1"),
    ],
)
@pytest.mark.parametrize("kind", [TemperatureScaling, FocalTemperatureScaling])
def test_bad_data(kind, logits, labels, error, message):
    with pytest.raises(error, match=message):
        kind().fit(np.asarray(logits), np.asarray(labels))


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: TemperatureScaling("loss"),
            ValueError,
            "objective must be 'nll', 'focal', 'ece' or an objective, got 'loss'",
        ),
        (lambda: TemperatureScaling("focal"), TypeError, "gamma must be a number, got None"),
        (lambda: TemperatureScaling("focal", gamma=-1), ValueError, "gamma must be finite and >= 0, got -1"),
        (
            lambda: TemperatureScaling("nll", gamma=2),
            ValueError,
            "gamma must be None unless objective is 'focal', got 2",
        ),
        (lambda: TemperatureScaling("ece", n_bins=0), ValueError, "n_bins must be"),
        (
            lambda: TemperatureScaling(refocal.SigmoidFocal(), task="multiclass"),
            ValueError,
            r"task must fit the objective, got 'multiclass' for SigmoidFocal \(sigmoid\): wrap it as One",
        ),
        (
            lambda: TemperatureScaling(refocal.Focal(), task="binary"),
            ValueError,
            r"task must fit the objective, got 'binary' for Focal \(softmax\)",
        ),
        (lambda: FocalTemperatureScaling(task="rank"), ValueError, r"task must be one of .*, got 'rank'"),
        (lambda: FocalTemperatureScaling(-1.0), ValueError, "gamma must be finite and >= 0, got -1.0"),
        (
            lambda: TemperatureScaling().transform(np.ones((1, 2))),
            ValueError,
            "TemperatureScaling must be fitted first",
        ),
        (
            lambda: FocalTemperatureScaling().save("x.json"),
            ValueError,
            "FocalTemperatureScaling must be fitted first",
        ),
    ],
)
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("scaling", [TemperatureScaling(), FocalTemperatureScaling()], ids=["nll", "focal"])
def test_no_convergence_is_not_silent(scaling, monkeypatch):
    logits, labels = made(300, 3, temperature=40.0)
    monkeypatch.setattr(_search, "MAX_STEPS", 1)
    with pytest.warns(RuntimeWarning, match="the fit did not converge: T = .* after 1 passes"):
        scaling.fit(logits, labels)
    assert not scaling.converged_
    assert scaling.temperature_ > 0
