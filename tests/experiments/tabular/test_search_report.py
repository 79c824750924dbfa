"""Which runs of a search make one report, on made-up runs."""

import csv
import dataclasses

import numpy as np
import pytest

from refocal.experiments.sweeps import read_runs, sweep
from refocal.experiments.tabular import Experiment, Recipe, search
from refocal.experiments.tabular.study import BINNED, METHODS, SCANNED

VEHICLE = Experiment("vehicle", train_fraction=0.5, scaling="whole", trials=(0, 1), n_bins=SCANNED)


def store(folder, *experiments, partial=False, value=0.05, sha256="ab"):
    """Write a run of each, in which every number is about this one, and return their keys."""

    def made(config):
        shape = (len(config["trials"]), len(config["objectives"]), len(METHODS))
        noise = np.random.default_rng(0).normal(0, 0.001, shape)
        numbers = {name: (value + noise).tolist() for name in ("error", "nll")}
        bins = len(config["n_bins"])
        arrays = {name: np.repeat((value + noise)[..., None], bins, axis=-1) for name in BINNED}
        return {"metrics": numbers, "methods": list(METHODS), "partial": partial}, arrays

    configs = [experiment.config() | {"sha256": sha256} for experiment in experiments]
    return [run.key for run in sweep(configs, made, folder, progress=False)]


def report(out, keys=()):
    search.report(out, keys)
    with open(out / "search.csv", newline="") as file:
        return list(csv.DictReader(file)), (out / "search.md").read_text()


@pytest.mark.parametrize(
    "other, name",
    [
        ({"recipe": Recipe(epochs=1)}, "epochs"),
        ({"seed": 1}, "seed"),
        ({"objectives": VEHICLE.objectives[:2]}, "objectives"),
        ({"n_bins": (*SCANNED, 30)}, "n_bins"),
    ],
)
def test_runs_of_another_setting_are_left_out_and_counted(tmp_path, other, name):
    decays = [dataclasses.replace(VEHICLE, recipe=Recipe(weight_decay=decay)) for decay in (0.0, 0.1)]
    store(tmp_path / "search", *decays)
    alone, text = report(tmp_path)
    assert "Left out" not in text
    # Its number of trials is greater, but most runs are of the first setting.
    new = store(tmp_path / "search", dataclasses.replace(VEHICLE, trials=(0, 1, 2), **other), value=0.2)
    rows, text = report(tmp_path)
    assert rows == alone
    assert f"\nLeft out: 1 run with different {name} of the search.\n" in text
    # The runs of a command decide what its report is of.
    rows, text = report(tmp_path, new)
    assert {row["trials"] for row in rows} == {"3"}
    assert f"\nLeft out: 2 runs with different {name} of the search.\n" in text


def test_another_file_of_a_data_set_is_left_out(tmp_path):
    store(tmp_path / "search", VEHICLE, dataclasses.replace(VEHICLE, model="mlp"))
    alone, _ = report(tmp_path)
    store(tmp_path / "search", VEHICLE, sha256="cd", value=0.2)
    rows, text = report(tmp_path)
    assert rows == alone
    assert "\nLeft out: 1 run with another file or version of vehicle of the search.\n" in text
    # Not in another configuration either, nor from the study.
    decay = dataclasses.replace(VEHICLE, recipe=Recipe(weight_decay=0.1))
    store(tmp_path / "search", decay, sha256="ef", value=0.2)
    store(tmp_path, VEHICLE, sha256="ef", value=0.2)
    rows, text = report(tmp_path)
    assert rows == alone
    assert "2 runs with another file or version of vehicle of the search" in text
    assert "1 run with another file or version of vehicle of the study" in text


def test_the_study_is_scanned_where_it_was_trained_alike(tmp_path):
    store(tmp_path / "search", VEHICLE)
    store(
        tmp_path, dataclasses.replace(VEHICLE, dataset="banana", n_bins=(*SCANNED, 30))
    )  # more bins are no harm
    store(tmp_path, dataclasses.replace(VEHICLE, dataset="splice", seed=1))
    rows, text = report(tmp_path)
    assert {row["dataset"] for row in rows} == {"vehicle", "banana"}
    assert "\nLeft out: 1 run with different n_bins, seed of the study.\n" in text
    assert "## Number of bins, all data sets of the study: 1\n\nbanana.\n" in text


def test_each_model_has_its_own_number_of_trials(tmp_path):
    store(tmp_path / "search", VEHICLE, dataclasses.replace(VEHICLE, model="mlp", trials=(0, 1, 2)))
    rows, _ = report(tmp_path)
    assert {(row["model"], row["trials"]) for row in rows} == {("linear", "2"), ("mlp", "3")}


def test_an_incomplete_copy_is_left_out_and_named(tmp_path):
    store(tmp_path / "search", dataclasses.replace(VEHICLE, dataset="w8a"), partial=True)
    with pytest.raises(
        FileNotFoundError, match=r"^no run of a search can be judged: incomplete copies of w8a$"
    ):
        search.report(tmp_path)
    store(tmp_path / "search", VEHICLE)
    assert len(read_runs(tmp_path / "search")) == 2
    rows, text = report(tmp_path)
    assert {row["dataset"] for row in rows} == {"vehicle"}
    assert "\nLeft out: incomplete copies of w8a.\n" in text
