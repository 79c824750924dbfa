"""Which image runs are averaged: those of one setting, one kind of machine and one data file."""

import dataclasses
import json

import numpy as np
import pytest
from image_stand_in import VALIDATION, K, image_configs, minimiser_run

from refocal.experiments.images.groups import LONGEST, group_runs, machines_of
from refocal.experiments.images.measures import measure_group
from refocal.experiments.images.tables import report_text, write_report
from refocal.experiments.sweeps import read_runs, sweep


def empty_run(config):
    """What the first runs of all recorded of their machine."""
    return {"device": "cpu", "threads": 1}


CPU = {"device": "cpu", "threads": 1, "compile": False, "processes": 1}


def group_of_machines(out, *machines, run=empty_run, **options):
    """Runs of one setting, a trial for each list of machines, with no other record of them."""
    configs = image_configs("mine", "resnet8", [1], ["ls"], len(machines), epochs=4, **options)
    runs = []
    for config, some in zip(configs, machines, strict=True):
        (done,) = sweep(
            [config],
            lambda config, some=some: with_machines(run(config), some),
            out,
            progress=False,
        )
        runs.append(dataclasses.replace(done, machine={}, versions={}))
    return runs


def with_machines(done, machines):
    result, arrays = done if isinstance(done, tuple) else (done, {})
    return result | ({"machines": machines} if machines else {}), arrays


def test_runs_of_different_machines_are_not_mixed(tmp_path):
    one, other = CPU | {"processor": "Z80"}, CPU | {"processor": "6502"}
    runs = group_of_machines(tmp_path, [one], [other], [one], [CPU], None, [one, other])
    groups = group_runs(runs)
    trials = {name: [run.config["seed"] for run in some] for name, some in groups.items()}
    assert trials == {
        "mine-resnet8-4-processor-Z80": [0, 2],
        "mine-resnet8-4-processor-6502": [1],
        "mine-resnet8-4-processor-not_recorded": [3, 4],
        "mine-resnet8-4-processor-Z80_then_6502": [5],
    }


def test_what_is_not_recorded_does_not_part_what_is_of_one_kind(tmp_path):
    one = CPU | {
        "processor": "Z80",
        "instructions": "none",
        "torch": "2.13.0",
        "loss": "kernel",
        "commit": "abc",
    }
    runs = group_of_machines(tmp_path, [one], [CPU], None, [one | {"commit": "def"}])
    ((name, some),) = group_runs(runs).items()  # another commit is said, but it is no machine
    assert name == "mine-resnet8-4"
    assert len(some) == 4
    assert [str(machine) for machine in machines_of(runs[0])] == [
        "cpu with 1 thread (Z80, none, torch 2.13.0, loss by kernel)"
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"torch": "2.14.0"},
        {"threads": 2},
        {"instructions": "AVX2"},
        {"onednn": "AVX2"},
        {"loss": "eager"},
        {"model": "2"},
    ],
)
def test_every_part_of_a_machine_keeps_runs_apart(tmp_path, change):
    one = CPU | {"processor": "Z80", "instructions": "none", "torch": "2.13.0", "loss": "kernel"}
    one |= {"model": "1", "onednn": "no limit"}
    groups = group_runs(group_of_machines(tmp_path, [one], [one | change]))
    assert [len(some) for some in groups.values()] == [1, 1]
    ((name, value),) = change.items()
    assert f"mine-resnet8-4-{name}-{value}" in groups


def test_what_a_later_version_records_too_is_left_aside(tmp_path):
    runs = group_of_machines(tmp_path, [CPU | {"weather": "fair"}])
    assert machines_of(runs[0])[0].threads == CPU["threads"]


def test_the_report_shows_both_machines_and_averages_neither_with_the_other(tmp_path):
    one, other = CPU | {"processor": "Z80"}, CPU | {"processor": "6502"}
    runs = group_of_machines(tmp_path, [one], [other], [other], run=minimiser_run)
    groups = [measure_group(name, some) for name, some in group_runs(runs).items()]
    texts = {group.name: "\n".join(report_text(group, groups)) for group in groups}
    text = texts["mine-resnet8-4-processor-Z80"]
    assert "; 1 trial of each setting. SGD" in text
    assert "\n1 of the runs of this setting. Others were trained on cpu with 1 thread (6502" in text
    assert "so they are not averaged with these.\n" in text
    assert "; 2 trials of each setting. SGD" in texts["mine-resnet8-4-processor-6502"]
    alone = measure_group("it", runs[:1])
    assert "not averaged" not in "\n".join(report_text(alone, [alone]))


def test_runs_of_other_schedules_are_not_mixed(tmp_path):
    for epochs, lr, part in ((2, 0.1, 0.1), (4, 0.1, 0.1), (4, 0.05, 0.1), (4, 0.1, 0.02)):
        options = {"epochs": epochs, "lr": lr, "validation": part}
        configs = image_configs("a/mine.npz", "resnet8", [1, 2], ["ls"], 2, **options)
        sweep(configs, empty_run, tmp_path, progress=False)
    sweep([{"x": 1}], lambda config: {}, tmp_path, progress=False)
    groups = group_runs(read_runs(tmp_path))
    assert sorted(groups) == [
        "mine-resnet8-2",
        "mine-resnet8-4",
        "mine-resnet8-4-lr-0.05",
        "mine-resnet8-4-validation-0.02",
    ]
    for runs in groups.values():
        assert len(runs) == 4
        assert len({tuple(run.config[key] for key in ("epochs", "lr", "validation")) for run in runs}) == 1


def test_group_names_are_names_of_files(tmp_path):
    (config,) = image_configs("a/my [own] set.npz", "resnet8", [1], ["ls"], 1, epochs=4)
    configs = [config | {"milestones": [1, 1]}, config | {"note": "a/b"}]
    runs = sweep(configs, empty_run, tmp_path, progress=False)
    assert set(group_runs(runs)) == {"my_own_set-resnet8-4-milestones-_1_1_", "my_own_set-resnet8-4-note-a_b"}


def test_a_run_that_went_on_with_a_record_is_of_the_one_kind_that_is_recorded(tmp_path):
    """It began with a version that did not write the form of the loss down, and ended with one that does."""
    old = CPU | {"processor": "Z80", "torch": "2.13.0", "commit": "abc"}
    new = old | {"loss": "kernel", "commit": "def"}
    runs = group_of_machines(tmp_path, [old], [old, new], [new], run=minimiser_run)
    ((name, some),) = group_runs(runs).items()
    assert (name, len(some)) == ("mine-resnet8-4", 3)
    text = "\n".join(report_text(measure_group(name, some)))
    assert "cpu with 1 thread (Z80, torch 2.13.0, loss not recorded) (2 runs)" in text
    assert "cpu with 1 thread (Z80, torch 2.13.0, loss by kernel) (2 runs)" in text
    assert "Source: commit abc (1 of 3 runs), abc then def (1 of 3 runs), def (1 of 3 runs). " in text


def test_what_finished_a_run_tells_nothing_of_how_it_began(tmp_path):
    other = CPU | {"processor": "6502", "torch": "2.14.0", "commit": "new"}
    (run,) = group_of_machines(tmp_path, [CPU, other])
    finished = {"machine": {"processor": "6502"}, "versions": {"torch": "2.14.0", "commit": "new"}}
    first, last = machines_of(dataclasses.replace(run, **finished))
    assert (first.processor, first.torch, first.commit) == (None, None, None)
    assert (last.processor, last.torch, last.commit) == ("6502", "2.14.0", "new")


def test_runs_of_other_data_are_not_mixed(tmp_path):
    """Two machines began in one folder, each with a file of its own; the oldest runs have no checksum."""
    contents = iter([("aaaaaaaaaa", 9), ("bbbbbbbbbb", 9), (None, 9), (None, 8)])

    def run(config):
        result, arrays = minimiser_run(config)
        sha256, n = next(contents)
        return result | {"n_train": n} | ({"data_sha256": sha256} if sha256 else {}), arrays

    configs = image_configs("mine", "resnet8", [1], ["ls"], 4, epochs=4)
    groups = group_runs(sweep(configs, run, tmp_path, progress=False))
    images = 9 + VALIDATION
    assert {name: len(some) for name, some in groups.items()} == {
        f"mine-resnet8-4-data-aaaaaaaa-images-{images}": 1,
        f"mine-resnet8-4-data-bbbbbbbb-images-{images}": 1,
        f"mine-resnet8-4-data-not_recorded-images-{images}": 1,
        f"mine-resnet8-4-data-not_recorded-images-{images - 1}": 1,
    }


def test_a_long_name_still_is_the_name_of_a_file(tmp_path):
    one = CPU | {"processor": "A" * 80, "instructions": "AVX512", "torch": "2.13.0", "loss": "kernel"}
    two = one | {"processor": "B" * 80, "instructions": "AVX2", "torch": "2.14.0", "loss": "eager"}
    runs = group_of_machines(tmp_path / "out", [one, two], [two, one], [one], run=minimiser_run)
    names = list(group_runs(runs))
    assert len(set(names)) == 3
    assert max(map(len, names)) == LONGEST
    assert write_report(tmp_path / "out")


def saturated_run(config):
    result, arrays = minimiser_run(config)
    for part in ("validation", "test"):
        sure = np.eye(K, dtype=np.float32)[arrays[f"{part}_logits"].argmax(1)]
        arrays[f"{part}_logits"] = 1e4 * sure
    return result, arrays


def test_scores_that_are_all_zero_or_one_are_reported(tmp_path):
    configs = image_configs("mine", "resnet8", [1, 2, 3], ["ls"], 1, epochs=4)
    sweep(configs, saturated_run, tmp_path, progress=False)
    assert write_report(tmp_path)
    (group,) = json.loads((tmp_path / "summary.json").read_text())["groups"].values()
    # Of LS with gamma 1, 2 and 3, raw and with Psi.
    assert group["rank_correlation_of_ece_and_nll"] == {"rho": None, "scores": 6}
