"""Sweeps: what a run is, resuming, failures, progress; the same numbers everywhere."""

import contextlib
import json
import os
import pty
import shutil
import sys

import numpy as np
import pytest
import tasks
from tasks import files, started

from refocal.experiments.sweeps import SweepError, machine, read_runs, run_key, sweep
from refocal.experiments.sweeps.engines import RETRIES, Processes

CONFIGS = [{"x": x, "seed": 7 * x} for x in range(5)]


# --- what a run is


def test_key_is_the_hash_of_the_canonical_json():
    # sha256 of the text, taken with coreutils: printf '{"gamma":2,"seed":0}' | sha256sum
    assert run_key({"seed": 0, "gamma": 2.0}) == "24c188028b4a9b84"


@pytest.mark.parametrize(
    "a, b, same",
    [
        ({"g": 1, "s": 0}, {"s": 0, "g": 1.0}, True),
        ({"g": [0, 1.5]}, {"g": (0.0, np.float64(1.5))}, True),
        ({"n": np.int64(3)}, {"n": 3}, True),
        ({"g": {"a": 2.0}}, {"g": {"a": 2}}, True),
        ({"g": 0.1}, {"g": np.nextafter(0.1, 1)}, False),
        ({"g": "1"}, {"g": 1}, False),
        ({"g": True}, {"g": 1}, False),
        ({"g": None}, {}, False),
    ],
)
def test_equal_configs_have_equal_keys(a, b, same):
    assert (run_key(a) == run_key(b)) is same


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), np.zeros(2), {1, 2}])
def test_a_config_must_be_json(value, tmp_path):
    with pytest.raises(ValueError, match="a config must be a dict of JSON values, got"):
        sweep([{"x": value}], tasks.square, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_results_in_the_order_of_the_configs_with_all_that_belongs_to_a_run(tmp_path):
    order = [CONFIGS[i] for i in (3, 0, 4, 0)]  # one of them twice
    runs = sweep(order, tasks.square, tmp_path)
    assert [run.config for run in runs] == order
    assert [run.result["x"] for run in runs] == [9, 0, 16, 0]
    values = np.random.default_rng(21).normal(size=1000)
    np.testing.assert_array_equal(runs[0].arrays()["values"], values)
    assert runs[0].result["sum"] == values.sum()  # to the last bit, through the file
    assert runs[0].result["third"] == [1 / 3, None, "é"]
    assert runs[0].seed == 21
    assert runs[0].seconds >= 0
    assert runs[0].versions["numpy"] == np.__version__
    record = json.loads(runs[0].path.read_text(encoding="utf-8"))
    origin = {"versions", "machine", "seconds", "checksum"}
    assert set(record) == {"config", "result", "arrays_sha256", "seed"} | origin
    assert runs[0].machine == record["machine"] == dict(machine())
    assert files(tmp_path) == sorted(f"{run_key(c)}.{e}" for c in order[:3] for e in ("json", "npz"))
    assert read_runs(tmp_path) == sorted(runs[:3], key=lambda run: run.key)


def test_nan_is_a_result_and_numpy_numbers_are_numbers(tmp_path):
    def diverged(config):
        return {"loss": float("nan"), "n": np.int32(3), "ok": np.bool_(True)}

    (run,) = sweep([{"x": 1}], diverged, tmp_path)
    assert np.isnan(run.result.pop("loss"))
    assert run.result == {"n": 3, "ok": True}
    assert run.arrays() == {}
    (again,) = sweep([{"x": 1}], tasks.always_dies, tmp_path)  # read, not done
    assert np.isnan(again.result["loss"])


def test_read_runs_of_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match="no sweep has written to"):
        read_runs(tmp_path)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"jobs": 0}, "jobs must be a whole number >= 1, got 0"),
        ({"jobs": True}, "jobs must be a whole number >= 1, got True"),
        ({"engine": "spark"}, "engine must be 'local' or 'ray', got 'spark'"),
        ({"address": "auto"}, "address and resources are for engine='ray' only"),
        ({"resources": {"num_gpus": 1}}, "address and resources are for engine='ray' only"),
    ],
)
def test_wrong_options_stop_before_anything(options, text, tmp_path):
    with pytest.raises(ValueError, match=text):
        sweep(CONFIGS, tasks.square, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_lambda_cannot_go_to_other_processes(tmp_path):
    with pytest.raises(ValueError, match="run must be a function of a module when jobs > 1"):
        sweep(CONFIGS, lambda config: {}, tmp_path, jobs=2)


# --- resume


def test_finished_runs_are_not_done_again(tmp_path):
    log = tmp_path / "log"
    configs = tasks.logged_configs(log, 6)
    first = sweep(configs[:4], tasks.logged, tmp_path)
    assert sweep(configs, tasks.logged, tmp_path)[:4] == first
    assert started(log) == [0, 1, 2, 3, 4, 5]


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def empty(path):
    path.write_bytes(b"")


def change_a_digit(path):
    text = path.read_text(encoding="utf-8")
    assert text.count('"x": 4') == 1  # of the result; the config has 2
    path.write_text(text.replace('"x": 4', '"x": 5'), encoding="utf-8")


def replace_by_a_list(path):
    path.write_text("[1, 2]")


def cut_arrays(path):
    cut(path.with_suffix(".npz"))


def remove_arrays(path):
    path.with_suffix(".npz").unlink()


@pytest.mark.parametrize(
    "damage",
    [cut, empty, change_a_digit, replace_by_a_list, cut_arrays, remove_arrays],
)
def test_a_damaged_file_is_seen_and_its_run_done_again(damage, tmp_path, caplog):
    before = sweep(CONFIGS, tasks.square, tmp_path)
    path = before[2].path
    damage(path)
    assert path.stem not in [run.key for run in read_runs(tmp_path)]
    after = sweep(CONFIGS, tasks.square, tmp_path)
    assert caplog.messages == [f"{path} is damaged; its run is done again"]
    assert [run.result for run in after] == [run.result for run in before]
    np.testing.assert_array_equal(after[2].arrays()["values"], np.random.default_rng(14).normal(size=1000))


def test_a_run_that_is_done_again_without_arrays_has_none(tmp_path):
    """Not those of the file that was damaged."""
    (run,) = sweep(CONFIGS[:1], tasks.square, tmp_path)
    cut(run.path)
    (again,) = sweep(CONFIGS[:1], lambda config: {"x": 2}, tmp_path)
    assert (again.result, again.arrays()) == ({"x": 2}, {})


def test_the_file_of_another_run_does_not_count(tmp_path):
    one, other = sweep([{"x": 2}, {"x": 4}], tasks.odd_fails, tmp_path)
    shutil.copy(one.path, other.path)
    assert read_runs(tmp_path) == [one]
    assert sweep([{"x": 4}], tasks.odd_fails, tmp_path)[0].result == {"x": 4}


# --- failures


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failing_run_is_reported_and_the_others_go_on(jobs, tmp_path, caplog):
    configs = [{"x": x} for x in range(4)]
    with pytest.raises(SweepError) as caught:
        sweep(configs, tasks.odd_fails, tmp_path, jobs=jobs)
    assert set(caught.value.failures) == {run_key({"x": 1}), run_key({"x": 3})}
    assert str(caught.value).startswith(
        f"2 of 4 runs failed (finished ones are kept in {tmp_path / 'runs'}); "
    )
    assert "is odd" in str(caught.value)
    assert f'run {run_key({"x": 3})} failed: {{"x":3}}\nTraceback' in caplog.text
    assert "ArithmeticError: 3 is odd" in caplog.text
    assert [run.result["x"] for run in sweep(configs[::2], tasks.always_dies, tmp_path)] == [0, 2]


@pytest.mark.parametrize(
    "returned, text",
    [
        (3, "a run must return a dict, or a dict and a dict of arrays, got <class 'int'>"),
        (({}, [1]), "a run must return a dict, or a dict and a dict of arrays, got <class 'tuple'>"),
        ({"a": {1}}, "set is not a JSON value"),
        (({}, {"a": [object()]}), "the array a holds Python objects"),
    ],
)
def test_what_cannot_be_kept_is_a_failure(returned, text, tmp_path):
    with pytest.raises(SweepError, match=text):
        sweep([{"x": 1}], lambda config: returned, tmp_path)
    assert files(tmp_path) == []


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_run_tried_again(tmp_path):
    runs = sweep(marked(tmp_path), tasks.dies_once, tmp_path / "dying", jobs=2)
    assert (tmp_path / "mark").exists()
    assert_same(runs, tmp_path)


@pytest.mark.slow
def test_a_run_that_always_kills_its_worker_fails_alone(tmp_path):
    with pytest.raises(SweepError, match=f"1 of 4 runs failed.* died {RETRIES + 1} times"):
        sweep([{"x": x} for x in range(4)], tasks.always_dies, tmp_path, jobs=2)
    assert sorted(run.result["x"] for run in read_runs(tmp_path)) == [0, 2, 3]


def test_a_worker_that_is_killed_while_idle_is_replaced():
    with Processes(1) as engine:
        assert engine.submit(tasks.square, CONFIGS[0]).result().error is None
        pool = engine._lanes[0][0]
        (worker,) = pool._processes.values()
        worker.kill()  # after its run, as a system without memory does
        pool._executor_manager_thread.join()
        assert engine.submit(tasks.square, CONFIGS[1]).result().error is None
        assert engine._lanes[0][0] is not pool


# --- progress


def test_progress_is_shown_on_a_terminal_only(tmp_path, capsys):
    sweep(CONFIGS, tasks.square, tmp_path)
    assert capsys.readouterr() == ("", "")
    primary, secondary = pty.openpty()
    process = tasks.start("logged", tmp_path, tmp_path / "log", 3, 1, stderr=secondary)
    os.close(secondary)
    shown = b""
    with contextlib.suppress(OSError):  # what Linux says at the end of a terminal
        while block := os.read(primary, 4096):
            shown += block
    os.close(primary)
    assert process.wait() == 0
    assert process.stdout.read() == b"ready\n0\n1\n2\n"  # what the runs print, and nothing of the bar
    process.stdout.close()
    assert b"3/3" in shown
    assert b"left" in shown


# --- the same numbers everywhere


@pytest.mark.slow
def test_processes_give_the_same_numbers(tmp_path):
    assert_same(sweep(CONFIGS, tasks.square, tmp_path / "many", jobs=3), tmp_path)


@pytest.mark.slow
def test_ray_gives_the_same_numbers_and_tries_again_when_a_worker_is_killed(tmp_path):
    ray = pytest.importorskip("ray")
    assert not ray.is_initialized()
    runs = sweep(
        marked(tmp_path), tasks.dies_once, tmp_path / "ray", engine="ray", resources={"num_cpus": 0.5}
    )
    assert not ray.is_initialized()  # started for the sweep, and ended with it
    assert (tmp_path / "mark").exists()
    assert_same(runs, tmp_path)


def test_without_ray_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"^engine 'ray' needs ray: pip install ray$"):
        sweep(CONFIGS, tasks.square, tmp_path, engine="ray")


def marked(folder):
    return [{**config, "mark": str(folder / "mark")} for config in CONFIGS]


def assert_same(runs, folder):
    """The runs are what `square` gives in this process, to the last bit."""
    local = sweep([run.config for run in runs], tasks.square, folder / "local")
    assert [(run.key, run.result, run.seed) for run in runs] == [(r.key, r.result, r.seed) for r in local]
    for run, other in zip(runs, local, strict=True):
        np.testing.assert_array_equal(run.arrays()["values"], other.arrays()["values"])
