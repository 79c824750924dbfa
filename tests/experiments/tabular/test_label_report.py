"""Which runs by number of labels make one report, on made-up runs."""

import csv
import dataclasses
import json

import pytest

from refocal import Focal
from refocal.experiments.sweeps import sweep
from refocal.experiments.tabular import Experiment, Recipe, labelled, labels

VEHICLE = Experiment("vehicle", objectives=(Focal(2.0),), train_fraction=0.5, scaling="standard")
MNIST = dataclasses.replace(VEHICLE, dataset="mnist", train_fraction=None, scaling="pixels")
MINE = dataclasses.replace(VEHICLE, dataset="mine.npz")


def store(out, *experiments, n_test=100, sizes=(10, 30), partial=False, psi=2.0, sha256="ab"):
    """Write a run of each, in which psi has this ECE and the others 1."""

    def made(config):
        told = {"mean": [1.0] * len(sizes), "sd": [0.1] * len(sizes), "below_psi": [1.0] * len(sizes)}
        measures = {method: told for method in labelled.METHODS} | {
            "psi": told | {"mean": [psi] * len(sizes)}
        }
        return {
            "n_test": n_test,
            "labels": list(sizes),
            "partial": partial,
            "unfitted": {method: [0] * len(sizes) for method in labelled.LABELLED},
            "measures": dict.fromkeys(labelled.MEASURES, measures),
        }

    configs = [
        {"labels": [10, 30], "draws": 20, "model": experiment.config() | {"sha256": sha256}}
        for experiment in experiments
    ]
    sweep(configs, made, out / labels.FOLDER, progress=False)


@pytest.mark.parametrize(
    "other, name",
    [
        ({"objectives": (Focal(3.0),)}, "gamma"),
        ({"scaling": "whole"}, "scaling"),
        ({"train_fraction": 0.9}, "train_fraction"),
        ({"trials": (0,)}, "trials"),
        ({"recipe": Recipe(epochs=1)}, "epochs"),
        ({"seed": 1}, "seed"),
        ({"task": "original"}, "task"),
        ({"seed": 1, "objectives": (Focal(3.0),)}, "gamma, seed"),
    ],
)
@pytest.mark.parametrize("dataset", ["vehicle", "banana"])
def test_runs_of_different_settings_are_not_mixed(tmp_path, other, name, dataset):
    store(tmp_path, VEHICLE, dataclasses.replace(VEHICLE, dataset=dataset, **other))
    message = (
        "^the runs of a table by number of labels must differ in data set and model only, got different "
        rf"{name}; give each setting an --out of its own, or the options of one instead of --report "
        r"\(what is done is not done again\)$"
    )
    with pytest.raises(ValueError, match=message):
        labels.report(tmp_path)
    assert not (tmp_path / "labels.csv").exists()


def test_a_data_set_is_there_once(tmp_path):
    store(tmp_path, VEHICLE)
    store(tmp_path, VEHICLE, sha256="cd")
    with pytest.raises(ValueError, match="got different sha256;"):
        labels.report(tmp_path)
    store(tmp_path / "images", MNIST, dataclasses.replace(MNIST, scaling="standard"))
    with pytest.raises(ValueError, match="got different scaling;"):
        labels.report(tmp_path / "images")


def test_what_a_data_set_asks_for_may_differ(tmp_path):
    """Images have pixels and test rows of their own; the default scaling is "whole" for the paper's alone."""
    whole = dataclasses.replace(VEHICLE, scaling="whole")
    store(tmp_path, whole, dataclasses.replace(whole, model="mlp"), MNIST, MINE)
    labels.report(tmp_path)
    with open(tmp_path / "labels.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["dataset"], row["gamma"], row["scaling"]) for row in rows} == {
        ("vehicle", "2", "whole"),
        ("mnist", "2", "pixels"),
        ("mine.npz", "2", "standard"),
    }
    assert "Left out" not in (tmp_path / "labels.md").read_text()


def test_settings_are_compared_before_anything_is_trained(tmp_path, monkeypatch):
    def configs(experiments):
        return [{"labels": [10], "draws": 20, "model": e.config() | {"sha256": None}} for e in experiments]

    def never(*_, **__):
        raise AssertionError("trained")

    monkeypatch.setattr(labels, "label_configs", configs)
    monkeypatch.setattr(labels, "carry_out", never)
    with pytest.raises(ValueError, match="got different gamma;"):
        labels.run([VEHICLE, dataclasses.replace(VEHICLE, objectives=(Focal(1.0),))], tmp_path)


def test_an_incomplete_copy_is_left_out_and_named(tmp_path):
    store(tmp_path, VEHICLE)
    # Another setting, which does not matter for what is left out.
    store(tmp_path, dataclasses.replace(VEHICLE, dataset="w8a", seed=1), partial=True, psi=0.5)
    labels.report(tmp_path)
    summary = json.loads((tmp_path / "labels.json").read_text())
    assert summary["ece"]["all"]["ts_nll"] == {
        "models": 1,
        "median": 10,
        "never": 0,
        "each": {"vehicle, linear": 10},
    }
    assert "w8a" not in (tmp_path / "labels.csv").read_text()
    assert "\nLeft out: incomplete copies are not judged (w8a).\n" in (tmp_path / "labels.md").read_text()


def test_too_few_test_rows_are_named(tmp_path):
    store(tmp_path, MINE, n_test=12, sizes=())
    told = r"at least 20 test rows are needed, got 12 \(mine.npz\)"
    message = f"^no run by number of labels can be reported: {told}$"
    with pytest.raises(FileNotFoundError, match=message):
        labels.report(tmp_path)
    store(tmp_path, VEHICLE)
    labels.report(tmp_path)
    text = (tmp_path / "labels.md").read_text()
    assert "\nLeft out: at least 20 test rows are needed, got 12 (mine.npz).\n" in text
