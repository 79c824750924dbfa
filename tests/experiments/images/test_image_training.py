import contextlib
import dataclasses
import errno
import functools
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from image_stand_in import SIZE, experiment_of, swept
from torch.nn import functional as F

from refocal.cli import main
from refocal.experiments import images
from refocal.experiments.data import load
from refocal.experiments.images import Experiment, checkpoints, experiments_of, study, training
from refocal.experiments.images.data import PAD, augment, prepare
from refocal.experiments.images.resnet import MODELS, build_model
from refocal.experiments.images.training import run_config, run_experiment
from refocal.experiments.sweeps import SweepError, machine, read_runs, run_key, sweep, versions
from refocal.experiments.sweeps.origin import processor_model
from refocal.files import write_atomic
from refocal.torch import which_form

# Configs


def test_the_papers_schedule():
    (cifar,) = experiments_of("CIFAR10", "resnet110", [2], ["ls"], 1)
    assert (cifar.dataset, cifar.epochs, cifar.milestones) == ("cifar10", 200, (80, 150))
    assert (cifar.lr, cifar.momentum, cifar.weight_decay, cifar.batch_size) == (0.1, 0.9, 5e-4, 128)
    assert cifar.label_smoothing == 0.1
    (svhn,) = experiments_of("SVHN", "resnet8", [2], ["standard"], 1)
    assert (svhn.dataset, svhn.epochs, svhn.milestones) == ("svhn", 50, (25, 40))
    assert svhn.label_smoothing == 0.0
    assert experiments_of("svhn", epochs=10)[0].milestones == (5, 8)
    assert experiments_of("cifar10", epochs=1)[0].milestones == (1, 1)  # no epoch begins with a lower rate


def test_config_and_back_and_the_key_of_a_stored_run():
    (experiment,) = experiments_of("svhn-s", "resnet8", [0], ["ls"], 1)
    config = json.loads(json.dumps(experiment.config()))
    assert study.Experiment.from_config(config) == experiment
    assert experiment.key == run_key(config) == "01654c62d1b3c774"  # of results/images


def test_the_grid_is_whole_and_temperature_scaling_trains_nothing():
    configs = experiments_of("cifar10", "resnet20", [0, 1, 2, 3], ["standard", "ts_fl", "ts_nll", "ls"], 10)
    assert len({config.key for config in configs}) == len(configs) == 4 * 2 * 10
    assert [config.seed for config in configs] == sorted(config.seed for config in configs)
    assert [c.seed for c in experiments_of(gammas=[0], paradigms=["ls"], trials=[4, 7])] == [4, 7]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model": "vgg"}, "model must be one of resnet8, resnet20, resnet44, resnet110, got 'vgg'"),
        ({"paradigms": ["mixup"]}, "paradigm must be one of standard, ts_fl, ts_nll, ls, got 'mixup'"),
        ({"gammas": [-1]}, "gamma must be finite and >= 0, got -1.0"),
        ({"gammas": [float("nan")]}, "gamma must be finite and >= 0, got nan"),
        ({"epochs": 0}, "epochs must be >= 1, got 0"),
        ({"trials": 0}, "trials must be >= 1, got 0"),
        ({"batch_size": 1}, "batch_size must be >= 2, got 1"),
        ({"lr": 0.0}, "lr must be finite and > 0, got 0.0"),
        ({"validation": 1.0}, r"validation must be in \[0, 1\), got 1.0"),
        ({"precision": "int8"}, "precision must be 'float32' or 'bfloat16', got 'int8'"),
        ({"shortcuts": "none"}, "shortcuts must be one of plain, convolution, got 'none'"),
        ({"train_part": 1.0}, r"train_part must be None or in \(0, 1\), and None with a train_size, got 1.0"),
        (
            {"train_part": 0.1, "train_size": 9, "test_size": 9},
            r"train_part must be None or in \(0, 1\), and None with a train_size, got 0.1",
        ),
        ({"first_weights": "zeros"}, "first_weights must be one of inputs, outputs, got 'zeros'"),
    ],
)
def test_bad_options(changes, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        experiments_of(**changes)


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"paradigm": "ts_fl"},
            r"paradigm must be 'standard' or 'ls' \(TS is made from 'standard'\), got 'ts_fl'",
        ),
        ({"label_smoothing": 1.0}, r"label_smoothing must be in \[0, 1\), got 1.0"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
    ],
)
def test_an_experiment_that_cannot_be_trained_or_reported(changes, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Experiment("mine", **changes)


# Training


def test_bad_files(tmp_path, tiny):
    with pytest.raises(FileNotFoundError, match=r"missing\.npz is not there"):
        run_experiment(experiment_of(tmp_path / "missing.npz"))
    (tmp_path / "cut.npz").write_bytes(tiny.read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"cut\.npz"):
        run_experiment(experiment_of(tmp_path / "cut.npz"))


@pytest.mark.parametrize(
    "name, flip", [("svhn", False), ("svhn-s", False), ("cifar10", True), ("mine", True)]
)
def test_digits_are_not_mirrored(name, flip, monkeypatch, tmp_path):
    seen = []

    def spy(data, rows, shift, mirror):
        seen.append(mirror)
        return augment(data, rows, shift, mirror)

    monkeypatch.setattr(training, "augment", spy)
    x, y = np.zeros((200, SIZE, SIZE, 3), np.uint8), np.arange(200) % 4
    np.savez(tmp_path / f"{name}.npz", X_train=x, y_train=y, X_test=x[:4], y_test=y[:4])
    run_experiment(experiment_of(name, epochs=1, batch_size=200), data=tmp_path)
    assert bool(torch.cat(seen).any()) is flip
    assert not torch.cat(seen).all()


def test_a_run_without_a_validation_part(tiny, tmp_path):
    configs = experiments_of(str(tiny), "resnet8", [2], ["standard"], 1, 1, batch_size=64, validation=0)
    (run,) = swept(configs, tmp_path)
    assert (run.result["n_train"], run.result["n_validation"]) == (52, 0)
    assert run.arrays()["validation_logits"].shape == (0, 4)


@pytest.mark.slow
@pytest.mark.parametrize("model, paradigm", list(zip(MODELS, ["standard", "ls"] * 2, strict=True)))
def test_every_model(tiny, tmp_path, model, paradigm):
    configs = experiments_of(str(tiny), model, [3], [paradigm], 1, 1, batch_size=64)
    for run in swept(configs, tmp_path):
        assert run.result["n_train"] + run.result["n_validation"] == 52
        assert np.isfinite(run.result["train_loss"]).all()
        arrays = run.arrays()
        assert arrays["test_logits"].shape == (20, 4)
        assert arrays["validation_logits"].shape == (run.result["n_validation"], 4)
        wrong = arrays["test_logits"].argmax(1) != np.arange(20) % 4
        assert run.result["error"] == wrong.mean()
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_training_is_that_of_a_plain_script(tiny, tmp_path, smoothing):
    config = experiment_of(tiny, gamma=0.0, label_smoothing=smoothing, seed=5, lr=0.01)
    result, _ = run_experiment(config, checkpoints=tmp_path)
    trained = torch.load(tmp_path / f"{config.key}.pt", weights_only=True)["model"]

    data = prepare(load(tiny), config.validation, 5)
    torch.manual_seed(5)
    model = build_model("resnet8", 4).to(memory_format=torch.contiguous_format)
    generator = torch.Generator().manual_seed(5)
    momentum = [torch.zeros_like(p) for p in model.parameters()]
    for epoch, lr in enumerate([0.01, 0.01, 0.001, 0.0001]):
        order = torch.randperm(44, generator=generator)
        shift = torch.randint(0, 2 * PAD + 1, (44, 2), generator=generator)
        mirror = torch.rand(44, generator=generator) < 0.5
        mean = 0.0
        for rows, s, m in zip(order.split(13), shift.split(13), mirror.split(13), strict=True):
            logits = model(augment(data, rows, s, m).contiguous())
            loss = F.cross_entropy(logits, data.train_labels[rows], label_smoothing=smoothing)
            mean += loss.item() * len(rows) / 44
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for p, g, v in zip(model.parameters(), gradients, momentum, strict=True):
                    v.mul_(0.9).add_(g + 5e-4 * p)
                    p.sub_(lr * v)
        assert result["train_loss"][epoch] == pytest.approx(mean, rel=1e-5)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-5)


def test_it_learns(tiny):
    result, _ = run_experiment(experiment_of(tiny, epochs=10, milestones=[8, 9], lr=0.01))
    assert result["train_loss"][-1] < 0.2 * result["train_loss"][0]
    assert result["error"] == 0


def test_threads_and_random_state_are_given_back(tiny):
    before, state = torch.get_num_threads(), torch.get_rng_state()
    run_experiment(experiment_of(tiny, epochs=1), threads=before + 1)
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), state)


KILLED = """
import os, signal, sys
from refocal.experiments.images import experiments_of, training
step = 0
augment = training.augment
def count(*arguments):
    global step
    step += 1
    if step == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return augment(*arguments)
training.augment = count
config, = experiments_of(sys.argv[1], "resnet8", [2], ["ls"], 1, 4, batch_size=13, validation=0.15)
training.run_experiment(config, checkpoints=sys.argv[2])
"""


SAME = """
import sys
import numpy as np
from refocal.experiments.images import experiments_of
from refocal.experiments.images.training import run_experiment
(config,) = experiments_of(sys.argv[1], "resnet8", [2], ["ls"], 1, 2, batch_size=13, validation=0.15)
result, arrays = run_experiment(config)
np.savez(sys.argv[2], train_loss=result["train_loss"], **arrays)
"""


@pytest.mark.slow
def test_a_run_on_the_same_machine_is_the_same_run(tiny, tmp_path):
    """Every bit: again in this process, and in another one that was asked for nothing before."""
    (config,) = experiments_of(str(tiny), "resnet8", [2], ["ls"], 1, 2, batch_size=13, validation=0.15)
    result, arrays = run_experiment(config)
    again, others = run_experiment(config)
    subprocess.run([sys.executable, "-c", SAME, str(tiny), str(tmp_path / "a.npz")], check=True)
    elsewhere = dict(np.load(tmp_path / "a.npz"))
    assert again["train_loss"] == result["train_loss"] == elsewhere.pop("train_loss").tolist()
    assert again["machines"] == result["machines"]
    assert arrays.keys() == others.keys() == elsewhere.keys()
    for name, array in arrays.items():
        assert array.tobytes() == others[name].tobytes() == elsewhere[name].tobytes()


def test_training_on_a_part_of_the_pool(tiny):
    """52 training and 20 test images are one pool of 72; a config without sizes keeps its key."""
    whole = experiment_of(tiny, epochs=1)
    part = dataclasses.replace(whole, train_size=24, test_size=40, validation=0.0)
    result, arrays = run_experiment(part)
    assert (result["n_train"], result["n_validation"], result["n_test"]) == (24, 0, 40)
    assert arrays["test_logits"].shape == (40, 4)
    assert "train_size" not in whole.config()
    assert part.config() == whole.config() | {"train_size": 24, "test_size": 40, "validation": 0.0}
    assert type(part).from_config(part.config()) == part


def test_sizes_that_are_none():
    with pytest.raises(ValueError, match=r"^train_size must be None or >= 1, got 0$"):
        experiments_of("mine", train_size=0, test_size=3)
    with pytest.raises(ValueError, match=r"^test_size must be a number exactly if train_size is one, got 3$"):
        experiments_of("mine", test_size=3)


def test_the_command_draws_a_part(tiny, tmp_path, capsys):
    command = f"reproduce images --dataset {tiny} --gamma 1 --paradigm ls --trials 1 --epochs 1 --jobs 1"
    out = ["--out", str(tmp_path)]
    assert main([*command.split(), "--train-size", "30", "--test-size", "42", "--validation", "0", *out]) == 0
    (run,) = read_runs(tmp_path)
    assert (run.result["n_train"], run.config["test_size"]) == (30, 42)
    assert main([*command.split(), "--train-size", "30", *out]) == 2
    assert "train_size and test_size must be at most 72 together" in capsys.readouterr().err


RERUN = Path(__file__).parents[3] / "results" / "images" / "rerun.py"


def test_stored_runs_are_begun_again_and_compared(tiny, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("rerun", RERUN)
    rerun = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rerun)
    config = experiment_of(tiny, epochs=2).config()
    (run,) = sweep([config], run_config, tmp_path, progress=False)
    assert rerun.main(["--runs", str(tmp_path), "--epochs", "1"]) == 0
    assert capsys.readouterr().out.endswith(": the same bits\n")

    def other(config):
        result, arrays = run_config(config)
        return result | {"train_loss": [1.0, 2.0]}, arrays

    sweep([config | {"seed": 1}], other, tmp_path, progress=False)
    assert rerun.main(["--runs", str(tmp_path), "--epochs", "1", run_key(config | {"seed": 1})]) == 1
    text = capsys.readouterr().out
    assert "other bits: [" in text
    assert text.endswith("] now, [1.0] stored\n")
    assert run.key not in text
    assert rerun.main(["--runs", str(tmp_path), "--epochs", "9", run.key]) == 0  # it has two
    with pytest.raises(SystemExit, match="2"):
        rerun.main(["--runs", str(tmp_path), "deadbeef"])
    assert f"KEY must be a run in {tmp_path}, got deadbeef" in capsys.readouterr().err


@pytest.mark.slow
def test_a_checkpoint_that_records_less_goes_on_and_says_what_was_not_known(
    tiny, tmp_path, monkeypatch, caplog
):
    config = experiment_of(tiny, epochs=2)
    with stopped_after_an_epoch(monkeypatch):
        run_experiment(config, checkpoints=tmp_path)
    path = tmp_path / f"{config.key}.pt"
    state = torch.load(path, weights_only=True)
    old = {name: state["machines"][0][name] for name in ("device", "threads", "compile", "processes")}
    torch.save(state | {"machines": [old]}, path)
    result, _ = run_experiment(config, checkpoints=tmp_path)
    (message,) = caplog.messages
    assert f"goes on with processor not recorded -> {machine()['processor']}, " in message
    assert result["machines"][0] == old
    assert result["machines"][1] == state["machines"][0]


WITHOUT = """
import json, sys
from refocal.experiments.images import experiments_of
from refocal.experiments.images.training import run_experiment
(config,) = experiments_of(sys.argv[1], "resnet8", [2], ["standard"], 1, 1, batch_size=13, validation=0.15)
print(json.dumps(run_experiment(config)[0]["machines"]))
"""


@pytest.mark.slow
def test_the_form_of_the_loss_is_recorded(tiny):
    """Its sums are rounded in another order with Numba than without, which the last bits show."""
    pytest.importorskip("numba")
    for switch, form in (("off", "eager"), ("cpu", "kernel")):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, str(tiny)],
            env=os.environ | {"REFOCAL_KERNELS": switch},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        assert [machine["loss"] for machine in json.loads(done.stdout)] == [form]


@pytest.mark.slow
def test_a_killed_training_resumes_to_the_same_bits(tiny, tmp_path):
    (config,) = experiments_of(str(tiny), "resnet8", [2], ["ls"], 1, 4, batch_size=13, validation=0.15)
    step = int(np.random.default_rng(7).integers(5, 17))  # 4 epochs of 4 steps; the first epoch is over
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.run([sys.executable, "-c", KILLED, str(tiny), str(killed), str(step)], check=False)
    assert process.returncode == -signal.SIGKILL
    name = f"{config.key}.pt"
    epochs = len(torch.load(killed / name, weights_only=True)["losses"])
    assert epochs == (step - 1) // 4

    result, arrays = run_experiment(config, checkpoints=killed)
    expected, expected_arrays = run_experiment(config, checkpoints=whole)
    assert result["train_loss"] == expected["train_loss"]
    for key, value in expected_arrays.items():
        assert np.array_equal(arrays[key], value)
    a, b = (torch.load(folder / name, weights_only=True) for folder in (killed, whole))
    assert all(torch.equal(a["model"][key], value) for key, value in b["model"].items())
    for old, new in zip(a["optimizer"]["state"].values(), b["optimizer"]["state"].values(), strict=True):
        assert torch.equal(old["momentum_buffer"], new["momentum_buffer"])
    assert a["optimizer"]["param_groups"] == b["optimizer"]["param_groups"]
    # The finished training is not done again, and another one is not the same.
    assert run_experiment(config, checkpoints=killed)[0] == result
    other, _ = run_experiment(dataclasses.replace(config, seed=1))
    assert other["train_loss"] != expected["train_loss"]


@pytest.mark.parametrize(
    "damage", [lambda old: old[: len(old) // 2], lambda old: b"", lambda old: b"x" * 999]
)
def test_a_damaged_checkpoint_counts_as_none(tiny, tmp_path, damage, caplog):
    config = experiment_of(tiny, epochs=1)
    expected, _ = run_experiment(config, checkpoints=tmp_path)
    path = tmp_path / f"{config.key}.pt"
    path.write_bytes(damage(path.read_bytes()))
    result, _ = run_experiment(config, checkpoints=tmp_path)
    assert result["train_loss"] == expected["train_loss"]
    assert f"{path} is no checkpoint" in caplog.text


def test_a_checkpoint_of_another_run_counts_as_none(tiny, tmp_path, caplog):
    config, other = experiment_of(tiny, epochs=1), experiment_of(tiny, epochs=1, gamma=0.0)
    run_experiment(config, checkpoints=tmp_path)
    shutil.copy(tmp_path / f"{config.key}.pt", tmp_path / f"{other.key}.pt")
    assert (
        run_experiment(other, checkpoints=tmp_path)[0]["train_loss"] == run_experiment(other)[0]["train_loss"]
    )
    assert "it belongs to another run" in caplog.text


def test_a_run_trains_on_the_part_of_its_trial(tiny, monkeypatch):
    seen = []

    def prepared(part, *arguments):
        seen.append(part)
        return prepare(part, *arguments)

    monkeypatch.setattr(training, "prepare", prepared)
    trials = [experiment_of(tiny, train_part=0.5, seed=seed, epochs=1) for seed in (0, 1, 0)]
    results = [run_experiment(one)[0] for one in trials]
    assert {(result["n_train"], result["n_validation"], result["n_test"]) for result in results} == {
        (20, 4, 20)
    }
    first, other, again = (part.X for part in seen)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert results[0]["train_loss"] == results[2]["train_loss"]


def test_options_reach_the_network(tiny, monkeypatch):
    seen = []

    class Enough(Exception):
        pass

    def compiled(model, dynamic):
        assert dynamic is False

        def network(x):
            seen.append(
                (
                    torch.is_autocast_enabled("cpu"),
                    hasattr(model.blocks[1], "conv3"),
                    bool(model.linear.weight.abs().max() > 1 / 8),
                )
            )
            raise Enough

        return network

    monkeypatch.setattr(torch, "compile", compiled)
    for options in ({"precision": "bfloat16"}, {"shortcuts": "convolution"}, {"first_weights": "outputs"}):
        with pytest.raises(Enough):
            run_experiment(experiment_of(tiny, **options), compile=True)
    assert seen == [(True, False, True), (False, True, True), (False, False, False)]


@contextlib.contextmanager
def stopped_after_an_epoch(monkeypatch):
    """Let the training inside be stopped, as by Ctrl-C, once its first checkpoint is written."""
    save = checkpoints.Progress.save

    def stop(progress, path):
        save(progress, path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.Progress, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # of the compiler's own
def test_a_compiled_training_resumes_to_the_same_bits(tiny, tmp_path, monkeypatch):
    config = experiment_of(tiny, epochs=3)
    expected, arrays = run_experiment(config, compile=True)
    with stopped_after_an_epoch(monkeypatch):
        run_experiment(config, checkpoints=tmp_path, compile=True)
    torch.compiler.reset()  # as in a new process
    result, resumed = run_experiment(config, checkpoints=tmp_path, compile=True)
    assert result["train_loss"] == expected["train_loss"]
    assert np.array_equal(resumed["test_logits"], arrays["test_logits"])
    plain, _ = run_experiment(config)
    assert result["train_loss"][0] == pytest.approx(plain["train_loss"][0], rel=1e-3)  # later they drift
    assert [machine["compile"] for machine in result["machines"] + plain["machines"]] == [True, False]


def test_a_change_of_threads_between_epochs_is_said_and_kept(tiny, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    config = experiment_of(tiny, epochs=2)
    with stopped_after_an_epoch(monkeypatch):
        run_experiment(config, checkpoints=tmp_path)
    result, _ = run_experiment(config, checkpoints=tmp_path, threads=2)
    said = [f"run {config.key} goes on with threads 1 -> 2; the last bits depend on that"]
    assert caplog.messages == said
    one = {
        "device": "cpu",
        "threads": 1,
        "compile": False,
        "loss": which_form(torch.zeros(2, 3), torch.tensor([0, 1])),
        "processes": 1,
        "processor": machine()["processor"],
        "model": processor_model() or "",
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "onednn": "AVX2",
        "torch": torch.__version__,
        "commit": versions().get("commit", "not recorded"),
    }
    assert result["machines"] == [one, one | {"threads": 2}]
    # Nothing is left to train, so nothing is trained otherwise.
    assert run_experiment(config, checkpoints=tmp_path, threads=3)[0] == result
    assert caplog.messages == said


FAULTS = """
import resource
from refocal.experiments.sweeps.devices import keep_freed_memory
import torch

def faults():
    counts = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        buffers = [torch.ones(1 << 21) for _ in range(10)]
        del buffers
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return counts[-1]

keep_freed_memory()
print(faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_freed_memory_is_kept():
    command = [sys.executable, "-c", FAULTS]
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert int(process.stdout) < 200  # of the 20,000 pages of the buffers


# Failures keep what is finished


def test_a_diverging_run_fails_alone(tiny, tmp_path, caplog):
    good, bad = experiment_of(tiny, epochs=1), experiment_of(tiny, epochs=1, lr=1e30)
    with pytest.raises(
        SweepError, match=r"1 of 2 runs failed.*the training loss is nan in epoch 1; lower lr"
    ):
        swept([bad, good], tmp_path)
    assert [run.key for run in read_runs(tmp_path)] == [good.key]
    assert "FloatingPointError" in caplog.text


def test_a_last_step_that_diverges_is_no_result(tiny, tmp_path):
    # One batch is one step: the loss is of the weights before it.
    with pytest.raises(
        FloatingPointError, match="the logits of the trained network are not finite; lower lr"
    ):
        run_experiment(experiment_of(tiny, epochs=1, batch_size=64, lr=1e30))


def test_the_command_reports_what_is_finished_although_a_run_failed(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        images,
        "experiments_of",
        lambda *a, **o: [
            dataclasses.replace(e, lr=1e30 if e.gamma else 0.1) for e in experiments_of(*a, **o)
        ],
    )
    command = ["reproduce", "images", "--dataset", str(tiny), "--epochs", "2", "--trials", "1"]
    command += ["--device", "cpu", "--paradigm", "ls", "--jobs", "1", "--out", str(tmp_path)]
    assert main([*command, "--gamma", "2"]) == 1
    assert capsys.readouterr().out == ""  # nothing to report
    assert main([*command, "--gamma", "0", "2"]) == 1
    output = capsys.readouterr()
    assert output.out.startswith(str(tmp_path / "README.md"))
    assert "refocal: 1 of 2 runs failed" in output.err.splitlines()[-1]
    (run,) = read_runs(tmp_path)
    assert f"{run.key}.pt" not in os.listdir(tmp_path / "checkpoints")
    # And again, without training or looking at the device.
    (tmp_path / "README.md").unlink()
    assert main([*command, "--report", "--device", "cuda:99"]) == 0
    assert (tmp_path / "README.md").is_file()


def test_the_checkpoint_of_a_run_that_is_done_again_stays(tiny, tmp_path, monkeypatch, caplog):
    config = experiment_of(tiny, epochs=2)
    (run,) = swept([config], tmp_path)
    run.path.write_text("damaged")
    with stopped_after_an_epoch(monkeypatch):
        swept([config], tmp_path)
    assert os.listdir(tmp_path / "checkpoints") == [f"{run.key}.pt"]
    assert "is damaged; its run is done again" in caplog.text


def test_a_folder_of_checkpoints_that_another_sweep_removes(tiny, tmp_path, monkeypatch):
    folder = tmp_path / "checkpoints"

    def removing(*arguments):
        if folder.exists() and not os.listdir(folder):
            folder.rmdir()
        return augment(*arguments)

    monkeypatch.setattr(training, "augment", removing)
    assert len(swept([experiment_of(tiny, epochs=1)], tmp_path)) == 1
    assert not folder.exists()


def test_no_room_for_checkpoints(tiny, tmp_path, monkeypatch):
    first, second = experiment_of(tiny, epochs=1), experiment_of(tiny, epochs=1, gamma=1.0)
    swept([first], tmp_path)
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(OSError, match=r"checkpoints need \d+ bytes in .*, and 1000000 are free") as error:
        run_experiment(second, checkpoints=tmp_path / "checkpoints")
    assert error.value.errno == errno.ENOSPC
    with pytest.raises(SweepError, match="1 of 2 runs failed"):
        swept([first, second], tmp_path)
    assert [run.key for run in read_runs(tmp_path)] == [first.key]
    size = (tmp_path / "big.pt").write_bytes(checkpoint_bytes(tiny, first, tmp_path))
    assert 2 * size <= 1_400_000  # what a checkpoint takes is what was asked for


def checkpoint_bytes(tiny, config, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**12))
        run_experiment(config, checkpoints=folder / "again")
    return (folder / "again" / f"{config.key}.pt").read_bytes()


def test_a_full_disk_in_the_middle_keeps_the_last_checkpoint(tiny, tmp_path, monkeypatch):
    config = experiment_of(tiny, epochs=2)
    sizes = []

    def full(path, content):
        if sizes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sizes.append(len(content))
        write_atomic(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_atomic", full)
        with pytest.raises(OSError, match=r"cannot write the checkpoint .*: No space left.* is kept"):
            run_experiment(config, checkpoints=tmp_path)
    assert len(torch.load(tmp_path / f"{config.key}.pt", weights_only=True)["losses"]) == 1
    assert (
        run_experiment(config, checkpoints=tmp_path)[0]["train_loss"]
        == run_experiment(config)[0]["train_loss"]
    )


def test_the_run_function_can_be_sent_to_another_process(tmp_path):
    import pickle

    run = functools.partial(run_config, checkpoints=tmp_path, device="cpu")
    assert pickle.loads(pickle.dumps(run)).func is run_config
