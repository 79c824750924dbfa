"""Who does the runs of a study, and that what is finished is reported."""

from dataclasses import replace

import pytest
import tasks
import torch

from refocal.experiments.sweeps import (
    NothingFinished,
    Run,
    SweepError,
    Workers,
    carry_out,
    devices,
    origin,
    origin_text,
    workers,
)


def test_the_default_number_of_jobs(monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 12)
    assert [Workers().options(threads)["jobs"] for threads in (0, 1, 5, 12, 13)] == [12, 12, 2, 1, 1]
    assert Workers().options(on_gpu=True) == {"jobs": 1}
    assert Workers(jobs=5, engine="local").options(3, on_gpu=True) == {"jobs": 5}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [devices.on_gpu(name) for name in ("auto", "cuda:1", "cpu")] == [True, True, False]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not devices.on_gpu("auto")


def test_what_a_run_of_ray_asks_for():
    options = {"jobs": None, "engine": "ray", "address": "auto", "resources": {"num_cpus": 3.0}}
    assert Workers(engine="ray", address="auto").options(threads=3) == options
    asked = Workers(engine="ray", cpus_per_run=0.5, gpus_per_run=0.25).options(threads=3)["resources"]
    assert asked == {"num_cpus": 0.5, "num_gpus": 0.25}


@pytest.mark.parametrize(
    "commits, said",
    [
        ("abb", "commit b (2 of 3 runs), a (1 of 3 runs). Machine: Z80, 1 core, CP/M (3 of 3 runs)."),
        (
            "-a-",
            "commit a (1 of 3 runs), not recorded (2 of 3 runs). "
            "Machine: Z80, 1 core, CP/M (1 of 3 runs), not recorded (2 of 3 runs).",
        ),
        ("---", "commit not recorded. Machine: not recorded."),
    ],
)
def test_the_origin_of_runs_is_said_with_their_number(commits, said):
    z80 = {"processor": "Z80", "cores": 1, "system": "CP/M"}
    old = Run("0", {}, {}, 1.0, None, {}, None)
    runs = [old if c == "-" else replace(old, versions={"commit": c}, machine=z80) for c in commits]
    assert origin_text(runs) == f"Source: {said}"


def test_processors_of_one_name_are_told_apart(monkeypatch):
    names = {"model name": "Z80", "cpu family": "25", "model": "17", "stepping": "1", "flags": "fpu"}
    monkeypatch.setattr(origin, "_cpuinfo", lambda: names)
    assert origin.processor_model() == "cpu family 25, model 17, stepping 1"
    monkeypatch.setattr(origin, "_cpuinfo", dict)  # not Linux
    assert origin.processor_model() is None


def test_what_is_finished_is_reported_before_the_failures_are_raised(tmp_path):
    told = []
    do = [[{"x": x} for x in range(3)], tasks.odd_fails, tmp_path]
    with pytest.raises(SweepError, match="1 of 3 runs failed"):
        carry_out(*do, lambda: [tmp_path / "a"], workers=Workers(jobs=1), tell=told.append)
    assert told == [tmp_path / "a"]


def test_nothing_to_report_hides_no_failure(tmp_path):
    def report():
        raise NothingFinished("no run is finished")

    with pytest.raises(SweepError, match="1 of 1 runs failed"):
        carry_out([{"x": 1}], tasks.odd_fails, tmp_path, report, workers=Workers(jobs=1))
    with pytest.raises(NothingFinished):
        carry_out([{"x": 2}], tasks.odd_fails, tmp_path, report, workers=Workers(jobs=1))


def test_a_report_that_fails_hides_no_failure(tmp_path):
    def report():
        raise ValueError("runs do not go together")

    with pytest.raises(
        SweepError, match=r"(?s)1 of 2 runs failed.*could not be made: runs do not go"
    ) as raised:
        carry_out([{"x": 1}, {"x": 2}], tasks.odd_fails, tmp_path, report, workers=Workers(jobs=1))
    assert len(raised.value.failures) == 1
    assert isinstance(raised.value.__cause__, ValueError)

    def unreadable():
        raise FileNotFoundError("a font is missing")

    with pytest.raises(SweepError, match="could not be made: a font is missing"):
        carry_out([{"x": 1}], tasks.odd_fails, tmp_path, unreadable, workers=Workers(jobs=1))
    with pytest.raises(ValueError, match=r"^runs do not go together$"):
        carry_out([{"x": 2}], tasks.odd_fails, tmp_path, report, workers=Workers(jobs=1))


@pytest.mark.parametrize(
    "names, said",
    [
        ({}, "no limit"),
        ({"ONEDNN_MAX_CPU_ISA": "all"}, "no limit"),
        ({"ONEDNN_MAX_CPU_ISA": "avx2"}, "AVX2"),
        ({"DNNL_MAX_CPU_ISA": "AVX512_CORE"}, "AVX512_CORE"),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "SSE41"}, "AVX2"),
    ],
)
def test_the_limit_of_onednn_is_recorded(monkeypatch, names, said):
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    assert devices.made_with(torch.device("cpu"), compile=False, loss="eager")["onednn"] == said


def test_the_gpu_that_trains_is_recorded(monkeypatch):
    """Of two kinds in one machine, as torch names them; the index is no part of the kind."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: f"kind of {device}")
    made = devices.made_with(torch.device("cuda:1"), compile=False, loss="triton")
    assert (made["device"], made["processor"], made["loss"]) == ("cuda", "kind of cuda:1", "triton")
