"""Sweeps of image runs: their data, and what is checked before the first run."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from image_stand_in import experiment_of, swept

from refocal.cli import main
from refocal.experiments.images import data as image_data
from refocal.experiments.images import study
from refocal.experiments.images.training import run_config, run_experiment
from refocal.experiments.sweeps import SweepError, Workers, read_runs, sweep, workers

# The data of a run


def with_other_data(path, folder):
    """A file of the same name whose labels are turned round."""
    folder.mkdir()
    with np.load(path) as old:
        np.savez(folder / path.name, **dict(old) | {"y_train": 3 - old["y_train"]})
    return folder


def test_a_result_names_its_data(tiny, tmp_path):
    result, _ = run_experiment(experiment_of(tiny, epochs=1), checkpoints=tmp_path)
    assert result["data_sha256"] == hashlib.sha256(tiny.read_bytes()).hexdigest()
    (checkpoint,) = tmp_path.glob("*.pt")
    assert torch.load(checkpoint, weights_only=True)["data_sha256"] == result["data_sha256"]


def test_finished_runs_of_other_data_are_not_mixed_with_new_ones(tiny, tmp_path):
    first, second = experiment_of("tiny", epochs=1), experiment_of("tiny", epochs=1, seed=1)
    swept([first], tmp_path / "out", data=tiny.parent)
    other = with_other_data(tiny, tmp_path / "other")
    message = r"tiny\.npz is not the file that run \w+ in .*out was made from: .*; use another --out"
    for configs in ([first], [first, second], [second, first], [second]):
        with pytest.raises(ValueError, match=message):
            swept(configs, tmp_path / "out", data=other)
    assert [run.key for run in read_runs(tmp_path / "out")] == [first.key]
    assert len(swept([first], tmp_path / "new", data=other)) == 1


def test_finished_runs_need_no_data(tiny, tmp_path):
    shutil.copy(tiny, tmp_path / "mine.npz")
    config = experiment_of(tmp_path / "mine.npz", epochs=1)
    (run,) = swept([config], tmp_path / "out")
    (tmp_path / "mine.npz").unlink()
    assert swept([config], tmp_path / "out") == [run]


def test_runs_without_a_checksum_pass(tiny, tmp_path):
    config = experiment_of("tiny", epochs=1)

    def older(config):
        result, arrays = run_config(config, data=tiny.parent)
        del result["data_sha256"]
        return result, arrays

    (run,) = sweep([config.config()], older, tmp_path / "out", progress=False)
    assert swept([config], tmp_path / "out", data=with_other_data(tiny, tmp_path / "other")) == [run]


def test_a_checkpoint_of_an_earlier_version_counts_as_none(tiny, tmp_path, caplog):
    config = experiment_of(tiny, epochs=1)
    expected, _ = run_experiment(config, checkpoints=tmp_path)
    path = tmp_path / f"{config.key}.pt"
    state = torch.load(path, weights_only=True)
    del state["machines"]
    torch.save(state, path)
    assert run_experiment(config, checkpoints=tmp_path)[0]["train_loss"] == expected["train_loss"]
    assert "(it is of an earlier version); the run starts again" in caplog.text


def test_a_checkpoint_of_other_data_counts_as_none(tiny, tmp_path, caplog):
    config = experiment_of("tiny", epochs=2)
    run_experiment(config, data=tiny.parent, checkpoints=tmp_path)
    other = with_other_data(tiny, tmp_path / "other")
    result, _ = run_experiment(config, data=other, checkpoints=tmp_path)
    assert "it was made from another data file" in caplog.text
    assert result["train_loss"] == run_experiment(config, data=other)[0]["train_loss"]


# Before the first run


@pytest.mark.parametrize(
    "change, options, error, message",
    [
        ({"dataset": "cifar-11"}, {}, ValueError, "unknown data set 'cifar-11'"),
        ({"dataset": "missing.npz"}, {}, FileNotFoundError, r"missing\.npz is not there"),
        ({"dataset": "table"}, {}, ValueError, r"table\.npz must have the arrays X_train, "),
        ({"dataset": "flat"}, {}, ValueError, r"flat\.npz: X_train must be uint8 .* got uint8 \(8, 12\)"),
        ({"dataset": "labels"}, {}, ValueError, r"y_test must be within 0\.\.1, got 2"),
        ({"validation": 0.001}, {}, ValueError, r"too few images for a validation part of 0\.001"),
        ({}, {"threads": 0}, ValueError, "threads must be >= 1, got 0"),
        ({}, {"device": "warp"}, ValueError, "device must be one of this machine, got 'warp'"),
        ({}, {"device": "cuda:99"}, ValueError, "got 'cuda:99'; it has . CUDA devices"),
        ({}, {"device": "meta"}, ValueError, "device must be one of this machine, got 'meta'"),
        (
            {},
            {"device": "cuda", "workers": Workers(engine="ray")},
            ValueError,
            "'cuda' with engine 'ray' needs a GPU for each run",
        ),
        ({}, {"data": "no-such-folder"}, FileNotFoundError, "data must be a folder"),
    ],
)
def test_what_cannot_work_is_said_before_any_run(tiny, tmp_path, change, options, error, message):
    x, y = np.zeros((8, 8, 8, 3), np.uint8), np.arange(8) % 2
    shutil.copy(tiny, tmp_path)
    np.savez(tmp_path / "table.npz", X=np.eye(8), y=y)
    np.savez(
        tmp_path / "flat.npz",
        X_train=x[:, 0, :4].reshape(8, 12),
        y_train=y,
        X_test=x[:, 0, :4].reshape(8, 12),
        y_test=y,
    )
    np.savez(tmp_path / "labels.npz", X_train=x, y_train=y, X_test=x, y_test=y + 1)
    both = [experiment_of("tiny", epochs=1), experiment_of("tiny", **{"epochs": 1, "seed": 1} | change)]
    with pytest.raises(error, match=message) as raised:
        swept(both, tmp_path, **{"data": tmp_path} | options)
    assert not isinstance(raised.value, SweepError)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("gpus, device", [(None, "cpu"), (0, "cpu"), (0.5, "auto")])
def test_on_ray_a_run_that_asks_for_no_gpu_takes_none(tiny, tmp_path, monkeypatch, gpus, device):
    seen = []
    monkeypatch.setattr(
        workers, "sweep", lambda configs, run, *a, **o: seen.append((run.keywords["device"], o["resources"]))
    )
    asked = Workers(engine="ray", cpus_per_run=1, gpus_per_run=gpus)
    monkeypatch.setattr(study, "report", lambda out: [])
    study.run([], tmp_path, workers=asked)
    assert seen == [(device, {"num_cpus": 1} | ({} if gpus is None else {"num_gpus": gpus}))]


def test_data_are_fetched_once_and_here(tiny, tmp_path, monkeypatch):
    calls = []

    def fetch(name):
        calls.append(name)
        return shutil.copy(tiny, tmp_path / "svhn.npz")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("REFOCAL_DATA", raising=False)
    monkeypatch.setattr(image_data, "fetch", lambda name: Path(fetch(name)))
    configs = [experiment_of("svhn", epochs=1, seed=seed) for seed in (0, 1)]
    assert len(swept(configs, tmp_path / "out")) == 2
    assert calls == ["svhn"]


def test_relative_paths_reach_the_workers(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tiny.parent)
    both = [experiment_of("tiny", epochs=1), experiment_of("tiny.npz", epochs=1)]
    seen = []
    sweep_here = workers.sweep

    def spy(configs, run, out, **options):
        seen.append(run.keywords["data"])
        monkeypatch.chdir(tmp_path)  # where a worker may be
        return sweep_here(configs, run, out, **options)

    monkeypatch.setattr(workers, "sweep", spy)
    assert len(swept(both, tmp_path / "out", data=".")) == 2
    assert seen == [{"tiny": tiny, "tiny.npz": tiny}]


@pytest.mark.slow
def test_ray_trains_the_same_networks(tiny, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setattr(study, "report", lambda out: [])
    command = ["reproduce", "images", "--dataset", str(tiny), "--gamma", "0", "2", "--paradigm", "ls"]
    command += ["--trials", "1", "--epochs", "1", "--device", "cpu"]
    assert main([*command, "--jobs", "1", "--out", str(tmp_path / "local")]) == 0
    # Ray only counts GPUs: two runs of half a one go on at a time, and here they train on the CPU.
    ray.init(num_cpus=2, num_gpus=1, log_to_driver=False, logging_level="ERROR")
    try:
        ask = ["--engine", "ray", "--gpus-per-run", "0.5", "--cpus-per-run", "1"]
        assert main([*command, *ask, "--out", str(tmp_path / "ray")]) == 0
    finally:
        ray.shutdown()
    local, remote = (read_runs(tmp_path / name) for name in ("local", "ray"))
    assert [run.key for run in remote] == [run.key for run in local]
    for one, other in zip(local, remote, strict=True):
        assert one.result["train_loss"] == other.result["train_loss"]
        np.testing.assert_array_equal(one.arrays()["test_logits"], other.arrays()["test_logits"])
