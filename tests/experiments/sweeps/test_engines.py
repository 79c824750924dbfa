"""What a result says about its source; Ray: one of the caller, errors, requests no node can meet."""

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import tasks

from refocal.experiments.sweeps import SweepError, engines, origin, sweep
from refocal.experiments.sweeps import runs as runs_module
from refocal.experiments.sweeps.engines import RayCluster


@pytest.fixture(scope="module")
def ray():
    """A Ray of two cores and no GPU that was not started by a sweep."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=2, num_gpus=0, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.mark.slow
def test_a_ray_of_the_caller_is_used_and_left_alone(ray, tmp_path):
    with pytest.raises(SweepError, match=r"2 of 4 runs failed.*ArithmeticError: . is odd"):
        sweep([{"x": x} for x in range(4)], tasks.odd_fails, tmp_path, engine="ray", jobs=3)
    assert ray.is_initialized()
    assert [run.result["x"] for run in sweep([{"x": 0}, {"x": 2}], tasks.always_dies, tmp_path)] == [0, 2]


@pytest.mark.slow
def test_ctrl_c_cancels_every_task_of_ray(ray, tmp_path, monkeypatch, caplog):
    submitted = []

    def interrupt(flying, **options):
        submitted.extend(flying)
        raise KeyboardInterrupt

    monkeypatch.setattr(runs_module, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sweep([{"x": x} for x in range(400)], lambda config: time.sleep(3600), tmp_path, engine="ray")
    assert caplog.messages[-1].startswith("stopped; 0 of 400 runs are finished")
    assert len(submitted) == 400
    assert not concurrent.futures.wait(submitted, timeout=60).not_done
    assert {type(future.exception()) for future in submitted} == {ray.exceptions.TaskCancelledError}
    assert ray.is_initialized()


@pytest.mark.slow
@pytest.mark.parametrize(
    "resources, asked, has",
    [
        ({"num_cpus": 1, "num_gpus": 0.5}, "1 CPU, 0.5 GPU", "2 CPU, 0 GPU"),
        ({"num_gpus": 1}, "1 CPU, 1 GPU", "2 CPU, 0 GPU"),
        ({"num_cpus": 2.5}, "2.5 CPU", "2 CPU"),
        ({"num_cpus": 0, "resources": {"TPU": 1}}, "1 TPU", "0 TPU"),
    ],
)
def test_what_no_node_of_ray_has_is_said(resources, asked, has, ray, caplog):
    RayCluster(None, resources, None)
    assert caplog.messages == [
        f"a run asks for {asked}, and the nodes of the Ray cluster have {has}; nothing starts until a node "
        "with that much joins"
    ]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with two packages, of which one is tracked."""
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)  # a hook of git points to its own repository
    for key, value in {"user.name": "a", "user.email": "a@b", "commit.gpgsign": "false"}.items():
        count = int(os.environ.get("GIT_CONFIG_COUNT", 0))
        monkeypatch.setenv("GIT_CONFIG_COUNT", str(count + 1))
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{count}", key)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{count}", value)
    for name in ("tracked", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    for command in (["init", "-q"], ["add", "tracked"], ["commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_a_result_names_the_commit_of_its_source(repository, monkeypatch):
    commit = origin._commit(repository / "tracked")
    assert re.fullmatch("[0-9a-f]{12}", commit)
    (repository / "results.csv").write_text("new")
    assert origin._commit(repository / "tracked") == commit
    (repository / "tracked" / "__init__.py").write_text("changed")
    assert origin._commit(repository / "tracked") == f"{commit} with changes"
    assert origin._commit(repository / "other") is None  # installed into a folder of another project
    monkeypatch.setenv("PATH", "")
    assert origin._commit(repository / "tracked") is None


def test_the_source_is_that_of_the_start(monkeypatch):
    sources = iter([{"commit": "before"}, {"commit": "after"}])
    monkeypatch.setattr(engines, "versions", lambda: next(sources))
    assert engines.execute(lambda config: next(sources), {}).versions == {"commit": "before"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_cores_are_those_of_this_process():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert origin.cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert origin.cores() == len(allowed)


# --- without a cluster: what a Ray is told that a sweep has started


@pytest.fixture
def told(monkeypatch):
    """What the engine says to a stand-in of Ray, with nodes of two sizes and one that is gone."""
    told = []

    def cancel(future, force):
        told.append("cancel")
        if told.count("cancel") == 3:
            raise RuntimeError("the cluster is gone")
        future.cancel()

    def submit(*arguments):
        future = concurrent.futures.Future()
        future.future = lambda: future
        return future

    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}},
        {"Alive": True, "Resources": {"CPU": 16.0}},
        {"Alive": True, "Resources": {"CPU": 16.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    stand_in = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **options: told.append("init"),
        nodes=lambda: nodes,
        remote=lambda **options: lambda function: SimpleNamespace(remote=submit),
        cloudpickle=SimpleNamespace(dumps=lambda run: b""),
        cancel=cancel,
        shutdown=lambda: told.append("shutdown"),
    )
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    return told


def leave_by_an_error(n_tasks):
    with RayCluster(None, None, None) as engine:
        for x in range(n_tasks):
            engine.submit(tasks.odd_fails, {"x": x})
        raise KeyboardInterrupt


def test_a_task_that_is_cancelled_is_forgotten_while_others_are_still_to_be_cancelled(told):
    with pytest.raises(KeyboardInterrupt):
        leave_by_an_error(2)
    assert told == ["init", "cancel", "cancel", "shutdown"]


def test_ray_is_ended_if_a_task_cannot_be_cancelled(told):
    with pytest.raises(RuntimeError, match="the cluster is gone"):
        leave_by_an_error(3)
    assert told == ["init", "cancel", "cancel", "cancel", "shutdown"]


def test_a_run_has_to_fit_on_one_node_that_is_alive(told, caplog):
    RayCluster(None, {"num_cpus": 16}, None)
    RayCluster(None, {"num_cpus": 4, "num_gpus": 1}, None)
    assert caplog.messages == []
    RayCluster(None, {"num_cpus": 8, "num_gpus": 1}, None)
    message = "asks for 8 CPU, 1 GPU, and the nodes of the Ray cluster have 4 CPU, 1 GPU or 16 CPU, 0 GPU; "
    assert message in caplog.text
