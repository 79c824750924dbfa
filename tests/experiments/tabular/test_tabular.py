"""The tabular study: its experiments, runs, tables and command."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats

from refocal import Focal, GeneralizedCrossEntropy, TemperatureScaling, ece, error_rate, focal_minimizer
from refocal.cli import main
from refocal.experiments.sweeps import Run, Workers, read_runs, run_key, sweep
from refocal.experiments.tabular import Experiment, Recipe, experiments_of, report, run, study, training
from refocal.experiments.tabular.study import METHODS, METRICS, PAPER_TASKS, configs_of
from refocal.experiments.tabular.tables import gather, p_value_greater, table_of, to_latex, to_markdown
from refocal.experiments.tabular.training import cross_fitted, measure, run_config, split
from refocal.objectives import Objective

HERE = Workers(jobs=1)
QUICK = Recipe(epochs=4)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder with a made problem under a name of the paper, and one under its own."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=300)
    x = (rng.standard_normal((300, 4)) + 1.5 * np.eye(4)[y]).astype(np.float32)
    for name in ("vehicle", "mine"):
        np.savez(tmp_path / f"{name}.npz", X=x, y=y)
    monkeypatch.setenv("REFOCAL_DATA", str(tmp_path))
    return tmp_path


def test_the_result_has_every_number(folder):
    result = Experiment("vehicle", trials=(0, 1), recipe=QUICK).run()
    assert (result["n_train"], result["n_test"], result["n_classes"]) == (150, 150, 3)
    for metric in METRICS:
        values = np.array(result["metrics"][metric])
        assert values.shape == (2, 4, len(METHODS))
        assert np.isfinite(values).all()
    raw, psi = (METHODS.index(m) for m in ("raw", "psi"))
    error = np.array(result["metrics"]["error"])
    np.testing.assert_array_equal(error[..., raw], error[..., psi])  # psi keeps the decision
    calibration = np.array(result["metrics"]["ece"])
    np.testing.assert_array_equal(calibration[:, 0, raw], calibration[:, 0, psi])  # gamma 0


def test_trials_do_not_depend_on_each_other(folder):
    both = Experiment("vehicle", "mlp", trials=(0, 1), recipe=QUICK).run()
    second = Experiment("vehicle", "mlp", objectives=(Focal(2.0),), trials=(1,), recipe=QUICK).run()
    for metric in METRICS:
        np.testing.assert_allclose(
            both["metrics"][metric][1][2], second["metrics"][metric][0][0], rtol=1e-3, atol=1e-4
        )


def test_config_and_back(folder):
    experiment = Experiment("vehicle", "mlp", objectives=(Focal(0.5),), trials=(3,), recipe=QUICK, seed=5)
    config = json.loads(json.dumps(experiment.config()))
    assert Experiment.from_config(config) == experiment


def test_the_paper_version_of_a_task(tmp_path, monkeypatch):
    monkeypatch.setenv("REFOCAL_DATA", str(tmp_path))
    y = np.arange(2000) % 26
    np.savez(tmp_path / "isolet.npz", X=np.ones((2000, 2), np.float32), y=y)
    _, data = Experiment("isolet").load()
    assert PAPER_TASKS["isolet"].rows == 1560
    assert data.n_classes == 2
    np.testing.assert_array_equal(data.y, y[:1560] == 0)
    _, original = Experiment("isolet", task="original").load()
    assert (original.n_classes, len(original.y)) == (26, 2000)


def test_rows_with_something_missing_are_not_in_the_paper_version(tmp_path, monkeypatch):
    monkeypatch.setenv("REFOCAL_DATA", str(tmp_path))
    x = np.random.default_rng(0).normal(size=(40, 60)).astype(np.float32)
    x[:, 51] = np.arange(40) < 10  # what says that a value is not known
    y = np.arange(40) % 2
    np.savez(tmp_path / "mushroom.npz", X=x, y=y)
    experiment, data = Experiment("mushroom").load()
    np.testing.assert_array_equal(data.X, np.delete(x[10:], 51, axis=1))
    np.testing.assert_array_equal(data.y, y[10:])
    assert Experiment("mushroom", task="original").load()[1].X.shape == (40, 60)
    # The first runs had all rows under the same name: they keep their identity, and mean what they did.
    config = experiment.config()
    old = {name: value for name, value in config.items() if name != "complete"}
    assert config["complete"] is True
    assert run_key(old) != run_key(config)
    assert Experiment.from_config(config) == experiment
    assert Experiment.from_config(old).load()[1].X.shape == (40, 60)


@pytest.mark.parametrize("scaling", ["standard", "minmax", "none"])
def test_features_are_scaled_by_the_training_part(folder, scaling):
    experiment, data = Experiment("vehicle", scaling=scaling).load()
    x = torch.from_numpy(data.X)
    x[:, 3] = 7.0  # constant
    trial, test = split(experiment, x, 0, None)
    assert set(trial.rows.tolist()).isdisjoint(test.tolist())
    assert len(trial.rows) + len(test) == len(x)
    scaled = ((x[trial.rows] - trial.center) / trial.scale).numpy()
    if scaling == "standard":
        np.testing.assert_allclose(scaled[:, :3].mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(scaled[:, :3].std(0), 1, rtol=1e-5)
    elif scaling == "minmax":
        assert (scaled[:, :3].min(), scaled[:, :3].max()) == (0, 1)
    else:
        np.testing.assert_array_equal(scaled, x[trial.rows].numpy())
    assert np.isfinite(scaled).all()


def test_the_published_scaling_is_by_all_rows_of_which_some_are_for_testing(folder):
    experiment, data = Experiment("vehicle").load()
    assert experiment.scaling == "whole"
    x = torch.from_numpy(data.X)
    trial, test = split(experiment, x, 0, None)
    scaled = ((x - trial.center) / trial.scale).numpy()
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(0), 1, rtol=1e-5)
    assert np.abs(scaled[trial.rows.numpy()].mean(0)).max() > 0.01  # which the training part alone is not
    assert len(test) == len(x) // 2
    own = Experiment(str(folder / "vehicle.npz")).load()[0]
    assert own.scaling == "standard"  # a look at the rows for testing is for the paper's data sets alone


def test_images_with_a_split_of_their_own(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.integers(256, size=(60, 2, 2), dtype=np.uint8), np.arange(60) % 2
    np.savez(tmp_path / "mnist.npz", X_train=x[:40], y_train=y[:40], X_test=x[40:], y_test=y[40:])
    monkeypatch.setenv("REFOCAL_DATA", str(tmp_path))
    experiment, _ = Experiment("mnist", trials=(0,), recipe=QUICK).load()
    assert (experiment.scaling, experiment.train_fraction) == ("pixels", None)
    trial, test = split(experiment, torch.zeros(60, 4), 0, 40)
    assert test.tolist() == list(range(40, 60))
    assert trial.scale.tolist() == [255.0] * 4
    assert experiment.run()["n_test"] == 20
    drawn, whole = Experiment("mnist", train_fraction=0.25).load()
    assert (drawn.train_fraction, len(whole.X)) == (0.25, 60)


def test_an_objective_of_ones_own(folder, monkeypatch):
    monkeypatch.setattr(Objective, "kinds", dict(Objective.kinds))  # a new class is added to them

    class Doubled(Objective):
        """Focal loss twice, whose posterior is the same."""

        inner = Focal(2.0)

        def loss(self, logits, target, axis=-1):
            return 2 * self.inner.loss(logits, target, axis=axis)

        def log_posterior(self, logits, axis=-1):
            return self.inner.log_posterior(logits, axis=axis)

    objectives = (Focal(2.0), GeneralizedCrossEntropy(0.7), Doubled())
    result = Experiment("mine", objectives=objectives, trials=(0,), recipe=QUICK).run()
    errors = np.array(result["metrics"]["ece"])[0]
    assert np.isfinite(errors[:, METHODS.index("psi")]).all()
    assert np.isnan(errors[1:, METHODS.index("ts_fl")]).all()  # no gamma, no focal temperature
    slower = dataclasses.replace(QUICK, lr=QUICK.lr / 2, weight_decay=2 * QUICK.weight_decay)
    same = Experiment("mine", objectives=(Doubled(),), trials=(0,), recipe=slower).run()
    np.testing.assert_allclose(same["metrics"]["nll"][0][0][1], result["metrics"]["nll"][0][0][1], rtol=1e-5)


def test_metrics_are_those_of_the_package(folder, monkeypatch):
    seen = []
    experiment = Experiment("vehicle", objectives=(Focal(1.0),), trials=(0,), recipe=QUICK)
    monkeypatch.setattr(training, "measure", lambda *args: seen.append(args) or measure(*args))
    result = experiment.run()
    logits, labels, objective, _ = seen[0]
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert result["metrics"]["ece"][0][0][0] == pytest.approx(ece(probs, labels, 15), abs=1e-9)
    assert result["metrics"]["error"][0][0][0] == error_rate(probs, labels)
    assert result["metrics"]["ece"][0][0][1] == pytest.approx(ece(objective.posterior(logits), labels, 15))


def test_a_large_experiment_is_several_runs(folder, monkeypatch):
    experiment = Experiment("vehicle", recipe=QUICK, trials=(0, 1, 2))
    assert len(configs_of([experiment])) == 1
    monkeypatch.setattr("refocal.experiments.tabular.study.WORK_PER_RUN", 1.0)
    configs = configs_of([experiment])
    assert [config["trials"] for config in configs] == [[0], [1], [2]]
    runs = sweep(configs, run_config, folder / "out", progress=False)
    table = table_of(gather(runs), "linear", "ece")
    assert len(table.rows["vehicle"]["CE"].values) == 3


def made_run(dataset, raw, psi, model="linear", partial=False):
    """A run of CE and FL-2 with these ECE in percent, one for each trial."""
    columns = np.zeros((len(raw), 2, len(METHODS)))
    columns[:, 0] = 0.02
    columns[:, 1, 0] = np.array(raw) / 100
    columns[:, 1, 1] = np.array(psi) / 100
    objectives = [Focal(0.0).to_dict(), Focal(2.0).to_dict()]
    config = {"dataset": dataset, "model": model, "objectives": objectives, "trials": list(range(len(raw)))}
    config |= {"recipe": {"epochs": 7, "weight_decay": 0.5}, "n_bins": 15}
    metrics = {name: columns.tolist() for name in METRICS}
    result = {"metrics": metrics, "methods": list(METHODS), "partial": partial}
    return Run("0" * 16, config, result, 1.0, None, {}, None)


def test_runs_that_do_not_belong_together_are_refused():
    one = made_run("australian", [1.0], [1.0])
    other = dataclasses.replace(one, config={**one.config, "seed": 1, "trials": [5]})
    message = "^runs of australian, linear must differ in their trials only, got different seed$"
    with pytest.raises(ValueError, match=message):
        table_of(gather([one, other]), "linear", "ece")


def test_a_trial_that_two_runs_have_is_that_of_the_larger_one():
    few, more = made_run("australian", [2.0], [2.0]), made_run("australian", [3.0, 4.0], [1.0, 1.0])
    for runs in ([few, more], [more, few]):
        assert table_of(gather(runs), "linear", "ece").rows["australian"]["FL-2"].values == (3.0, 4.0)


def test_the_loss_of_a_probability_that_rounds_to_zero_is_finite():
    labels = np.arange(40) % 2
    logits = 2000.0 * np.eye(2)[1 - labels]  # sure and wrong
    values = dict(zip(METHODS, measure(logits, labels, Focal(0.0), [10]), strict=True))
    assert values["raw"][METRICS.index("nll"), 0] == pytest.approx(2000.0)


def test_trials_and_seeds_have_splits_of_their_own(folder):
    x = torch.zeros(300, 4)
    rows = [
        tuple(split(Experiment("vehicle", seed=seed), x, trial, None)[0].rows.tolist())
        for seed, trial in ((0, 0), (0, 1), (1, 0), (1, 1))
    ]
    assert len(set(rows)) == 4
    assert rows[0] == tuple(split(Experiment("vehicle"), x, 0, None)[0].rows.tolist())
    seeds = {split(Experiment("vehicle", seed=s), x, t, None)[0].seed for s in (0, 1) for t in (0, 1)}
    assert len(seeds) == 4


def test_temperatures_are_those_of_the_other_half():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=400)
    logits = rng.normal(size=(400, 3)) + np.eye(3)[labels]
    logits[200:] *= 3  # the halves need different temperatures
    scaled = cross_fitted(logits, labels, TemperatureScaling(objective="nll"))

    def best(rows):
        def nll(log_t):
            z = logits[rows] / np.exp(log_t)
            return (special.logsumexp(z, axis=1) - z[np.arange(len(z)), labels[rows]]).mean()

        return np.exp(optimize.minimize_scalar(nll, bounds=(-5, 5), method="bounded").x)

    first, second = slice(200), slice(200, None)
    np.testing.assert_allclose(scaled[first], logits[first] / best(second), rtol=1e-4)
    np.testing.assert_allclose(scaled[second], logits[second] / best(first), rtol=1e-4)
    assert cross_fitted(10 * np.eye(3)[labels], labels, TemperatureScaling()) is None  # all right


def test_the_two_temperatures_are_told_apart():
    rng = np.random.default_rng(1)
    posterior = rng.dirichlet([1, 1, 1], size=2000)
    labels = (posterior.cumsum(1) < rng.random((2000, 1))).sum(1)
    logits = 1.7 * np.log(focal_minimizer(posterior, 3.0))
    errors = measure(logits, labels, Focal(3.0), [10])[:, METRICS.index("ece"), 0]
    values = dict(zip(METHODS, errors, strict=True))
    # A focal temperature makes the scores those of the minimiser, which psi needs; the NLL's does not.
    assert values["psi_ts_fl"] < min(values["ts_nll"], values["psi"])
    assert values["ts_nll"] < values["ts_fl"]


def test_other_data_are_another_run(folder):
    experiment = Experiment("mine", recipe=QUICK, trials=(0,))
    (before,) = configs_of([experiment])
    with np.load(folder / "mine.npz") as arrays:
        np.savez(folder / "mine.npz", X=arrays["X"] + 1, y=arrays["y"])
    (after,) = configs_of([experiment])
    assert run_key(before) != run_key(after)
    with pytest.raises(ValueError, match="is not the file that this run is for"):
        run_config(before)


def test_the_folder_of_an_experiment_reaches_its_runs(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("REFOCAL_DATA")
    experiment = Experiment("mine", objectives=(Focal(1.0),), trials=(0,), recipe=QUICK, data=str(folder))
    files = run([experiment], tmp_path / "study", workers=HERE)
    assert "mine" in next(p for p in files if p.name == "tables.md").read_text()
    with pytest.raises(ValueError, match="data must be one folder"):
        run([experiment, dataclasses.replace(experiment, data="other")], tmp_path / "no")


def test_names_of_the_paper_are_the_same_task():
    assert Experiment("USPS") == Experiment("usps")
    assert Experiment("Artificial-character").dataset == "artificial-characters"


def test_the_number_of_threads_is_restored(folder):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        Experiment("mine", objectives=(Focal(1.0),), trials=(0,), recipe=QUICK).run()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_welch_test_against_scipy():
    rng = np.random.default_rng(0)
    for shift in (0.0, 0.5, 3.0):
        a, b = rng.normal(shift, 1, 9), rng.normal(0, 3, 6)
        expected = stats.ttest_ind(a, b, equal_var=False, alternative="greater").pvalue
        assert p_value_greater(a, b) == pytest.approx(expected, rel=1e-10)
    assert p_value_greater(np.ones(3), np.zeros(3)) == 0
    assert p_value_greater(np.ones(3), np.ones(3)) == 1
    assert math.isnan(p_value_greater(np.ones(1), np.zeros(1)))
    assert math.isnan(p_value_greater(np.ones(3), np.zeros(1)))


def test_bold_is_the_best_and_what_is_not_worse():
    table = table_of(gather([made_run("australian", [15.0, 15.1, 14.9], [1.9, 2.0, 2.05])]), "linear", "ece")
    row = table.rows["australian"]
    assert {name for name, cell in row.items() if cell.bold} == {"CE", "FL-2-psi"}
    assert row["FL-2"].standard_error == pytest.approx(np.std([15.0, 15.1, 14.9], ddof=1) / math.sqrt(3))
    assert "**2.00 (0.00)** / 4.10 | 15.00 (0.06) / 15.47" in to_markdown(table)
    latex = to_latex(table)
    assert r"\textbf{2.00 (0.00)} & 15.00 (0.06)" in latex
    assert latex.count(r"\\") == 3


def test_the_study_from_the_command_line(folder, capsys, monkeypatch):
    out = folder / "out"
    command = [
        "reproduce",
        "tabular",
        "--dataset",
        "vehicle",
        str(folder / "mine.npz"),
        "--gamma",
        "0",
        "0.5",
    ]
    command += ["--trials", "2", "--epochs", "2", "--jobs", "1", "--out", str(out), "--task", "original"]
    command += ["--weight-decay", "0.25", "--scaling", "minmax", "--train-fraction", "0.75", "--seed", "9"]
    assert main(command) == 0
    first = capsys.readouterr().out.splitlines()
    for name in ("tables.md", "tables.csv", "summary.json", "linear-ece.tex", "mlp-boxes.png"):
        assert str(out / name) in first
        assert (out / name).stat().st_size > 0
    text = (out / "tables.md").read_text()
    assert "FL-0.5-psi" in text
    assert "vehicle" in text
    runs = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*.json")}
    assert len(runs) == 4
    for done in read_runs(out):
        config = done.config
        assert (config["task"], config["scaling"], config["train_fraction"]) == ("original", "minmax", 0.75)
        assert (config["recipe"]["weight_decay"], config["recipe"]["epochs"], config["seed"]) == (0.25, 2, 9)
        assert config["trials"] == [0, 1]
    assert "2 trials of 2 epochs, weight decay 0.25, objectives CE, FL-0.5 " in text
    assert "(4 of 4 runs)." in text
    assert "% 2 trials of 2 epochs, " in (out / "linear-ece.tex").read_text()
    before = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert main(["reproduce", "tabular", "--report", "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == first
    assert {path: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    monkeypatch.setattr(study, "report", lambda out, keys, bins: [])
    assert main(command) == 0  # nothing is trained again
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*.json")} == runs


def test_a_report_says_the_trials_that_there_are(folder, capsys):
    out = folder / "out"
    options = ["--gamma", "0", "2", "--model", "linear", "--epochs", "1", "--jobs", "1", "--out", str(out)]
    for dataset, trials in (("vehicle", "3"), (str(folder / "mine.npz"), "2")):
        command = ["reproduce", "tabular", "--dataset", dataset, "--trials", trials, *options]
        assert main(command) == 0
        text = (out / "tables.md").read_text()
        assert f"SD_ours^2 / {trials})" in text
        assert f"\n{trials} trials of 1 epochs" in text
    # Data of one's own have no published cells.
    assert "| ece cells, z: mean, rms | - | - |" in text
    assert "None" not in text + capsys.readouterr().out
    assert main(["reproduce", "tabular", "--report", "--out", str(out)]) == 0
    text = (out / "tables.md").read_text()
    assert "SD_ours^2 / trials)" in text
    assert "\n2 to 3 trials of 1 epochs" in text
    assert "open: no cause is known" not in text  # not the default protocol


@pytest.mark.parametrize(
    "options, message",
    [
        (["--dataset", "vehikle"], "did you mean vehicle"),
        (["--dataset", "vehicle", "--gamma", "-1"], "gamma must be"),
        (["--dataset", "vehicle", "--model", "tree"], "model must be one of linear, mlp, got 'tree'"),
        (["--dataset", "vehicle", "--scaling", "rank"], "scaling must be one of"),
        (["--dataset", "vehicle", "--trials", "0"], "trials and epochs must be at least 1"),
        (["--dataset", "vehicle", "--train-fraction", "1.5"], "train_fraction must be between 0 and 1"),
        (["--dataset", "missing.npz"], "missing.npz is not there"),
        (["--dataset", "vehicle", "--weight-decay", "-1"], "weight_decay must be >= 0"),
        (["--dataset", "vehicle", "--seed", "-1"], "seed must be >= 0, got -1"),
        (["--dataset", "vehicle", "--bins", "0"], "bins must be different numbers >= 1, got 0"),
        (["--dataset", "vehicle", "--bins", "15", "15"], "bins must be different numbers >= 1, got 15, 15"),
        (["--dataset", "vehicle", "--labels", "--gamma", "1", "2"], "objectives must be one for a table"),
        (["--dataset", "nan"], "NaN"),
        (["--dataset", "single"], "class"),
        (["--dataset", "few"], "class"),
        (["--dataset", "keys"], "keys"),
        (["--dataset", "vehicle", "--address", "somewhere"], "address"),
        (["--dataset", "vehicle", "--jobs", "0"], "jobs must be"),
    ],
)
def test_bad_input_stops_before_any_training(folder, capsys, monkeypatch, options, message):
    def never(*_):
        raise AssertionError("trained")

    monkeypatch.setattr("refocal.experiments.tabular.training.train", never)
    np.savez(folder / "nan.npz", X=np.full((9, 2), np.nan), y=np.arange(9) % 2)
    np.savez(folder / "single.npz", X=np.zeros((9, 2)), y=np.zeros(9, int))
    np.savez(folder / "few.npz", X=np.zeros((2, 2)), y=np.array([0, 5]))
    np.savez(folder / "keys.npz", data=np.zeros((9, 2)), labels=np.arange(9) % 2)
    out = folder / "out"
    assert main(["reproduce", "tabular", "--jobs", "1", "--out", str(out), *options]) == 2
    assert message in capsys.readouterr().err


def test_one_default_for_a_recipe_and_the_study():
    (experiment,) = experiments_of(["vehicle"], models=["linear"])
    assert experiment.recipe == Recipe() == Experiment("vehicle").recipe
    assert experiment.recipe.weight_decay == 0


def test_a_report_without_runs(tmp_path):
    sweep([{"x": 1}], lambda config: {}, tmp_path, progress=False)
    with pytest.raises(FileNotFoundError, match="no tabular run is finished in "):
        report(tmp_path)


def test_without_any_data(tmp_path, monkeypatch):
    monkeypatch.setenv("REFOCAL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="no data set is here"):
        experiments_of()


def test_all_sets_of_the_folder_are_the_default(folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    experiments = experiments_of(models=["linear"], trials=1)
    assert [experiment.dataset for experiment in experiments] == ["vehicle"]
    files = run(experiments_of(models=["linear"], trials=2, epochs=1), folder / "o", workers=HERE)
    assert all(path.is_file() for path in files)
