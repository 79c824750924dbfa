"""The search behind the protocol and the study of labels, each on one small data set."""

import csv
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, special

from refocal import ece
from refocal.cli import main
from refocal.experiments.sweeps import read_runs
from refocal.experiments.tabular import Experiment, Recipe, labelled, labels, run, search
from refocal.experiments.tabular.tables import published


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder with a small problem under a name of the paper."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=240)
    x = (rng.standard_normal((240, 4)) + 1.2 * np.eye(4)[y]).astype(np.float32)
    np.savez(tmp_path / "vehicle.npz", X=x, y=y)
    monkeypatch.setenv("REFOCAL_DATA", str(tmp_path))
    return tmp_path


def test_a_search_logs_every_configuration_and_cell(folder, capsys, monkeypatch):
    monkeypatch.setattr(search, "FRACTIONS", (0.5, 0.9))
    monkeypatch.setattr(search, "DECAYS", (0.0, 0.001))
    out, search_files = folder / "out", ("search.csv", "search.md", "search.json")
    command = ["reproduce", "tabular", "--search", "--dataset", "vehicle", "--trials", "2", "--epochs", "1"]
    command += ["--gamma", "0", "2", "--jobs", "1", "--out", str(out)]
    assert main([*command, "--train-fraction", "0.5"]) == 0
    assert len(list((out / "search" / "runs").glob("*.json"))) == 4  # 2 weight decays, 2 models
    with open(out / "search.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    # 2 decays x 2 models x (18 numbers of bins x 3 cells of ECE + 2 of errors).
    assert len(rows) == 2 * 2 * (18 * 3 + 2)
    assert {row["weight_decay"] for row in rows} == {"0", "0.001"}
    assert {(row["dataset"], row["task"], row["scaling"]) for row in rows} == {("vehicle", "paper", "whole")}
    assert None not in rows[0]  # as many names as values
    row = next(r for r in rows if (r["model"], r["n_bins"], r["method"]) == ("mlp", "17", "FL-2-psi"))
    (run,) = (
        r
        for r in read_runs(out / "search")
        if r.config["model"] == "mlp" and r.config["recipe"]["weight_decay"] == 0
    )
    ours = 100 * run.arrays()["ece"][:, 1, 1, run.config["n_bins"].index(17)].astype(float)
    paper = published()["Vehicle", "mlp", "FL-2-psi", "ece"]
    z = (ours.mean() - paper.mean) / math.sqrt(ours.var(ddof=1) / 2 + paper.spread**2 / 10)
    assert float(row["z"]) == pytest.approx(z, abs=1e-3)
    assert float(row["difference"]) == pytest.approx(ours.mean() - paper.mean, abs=1e-4)
    assert row["strict"] == str(int(abs(z) <= 3))
    text = (out / "search.md").read_text()
    assert "## Split and weight decay" not in text  # other parts for training are not done yet
    capsys.readouterr()
    assert main(command) == 0  # the others; what was done is not done again
    assert capsys.readouterr().out.splitlines() == [str(out / name) for name in search_files]
    assert len(list((out / "search" / "runs").glob("*.json"))) == 8
    text = (out / "search.md").read_text()
    assert "4 configurations on the 1 data sets of which all of them are done (vehicle)" in text
    assert "| 0.9 | 0.001 | " in text
    assert "## The weight decay of the text, half split, scaling whole" in text
    assert "## The scaling of the features" not in text  # there is one only
    assert main(["reproduce", "tabular", "--search", "--report", "--out", str(out)]) == 0
    assert (out / "search.md").read_text() == text
    # Without its runs the log makes the same files.
    alone = folder / "alone"
    alone.mkdir()
    for name in ("search.csv", "search.json"):
        shutil.copy(out / name, alone)
    assert main(["reproduce", "tabular", "--search", "--report", "--out", str(alone)]) == 0
    for name in search_files:
        assert (alone / name).read_bytes() == (out / name).read_bytes()
    (alone / "search" / "runs").mkdir(parents=True)  # as a search leaves it that failed at once
    assert main(["reproduce", "tabular", "--search", "--report", "--out", str(alone)]) == 0
    capsys.readouterr()
    assert main([*command[:-1], str(alone)]) == 2  # its report would replace the log
    assert "out must be another folder: the runs of " in capsys.readouterr().err
    assert (alone / "search.csv").read_bytes() == (out / "search.csv").read_bytes()
    one = ["--train-fraction", "0.5", "--weight-decay", "0", "--scaling", "standard"]
    assert main([*command, *one]) == 0
    text = (out / "search.md").read_text()
    (line,) = (
        line for line in text.split("## The scaling of the features")[1].splitlines() if line[:6] == "| all "
    )
    with open(out / "search.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["weight_decay"] + row["train_fraction"] == "00.5"]
    told = line.split("|")[3:-1]
    for scaling, (cells, _, error, _) in (("standard", told[:4]), ("whole", told[4:])):
        of = [row for row in rows if row["scaling"] == scaling]
        ours = [row["strict"] == "1" for row in of if row["n_bins"] == "15"]
        assert cells.strip() == f"{sum(ours)} of {len(ours)}"
        ours = [row["strict"] == "1" for row in of if row["metric"] == "error"]
        assert error.strip() == f"{sum(ours)} of {len(ours)}"
    assert (
        main([*command, *one, "--seed", "1"]) == 0
    )  # a command is reported, though most runs are of another
    assert "\nLeft out: 10 runs with different seed of the search.\n" in (out / "search.md").read_text()


def test_the_bins_of_a_run_are_those_of_the_metric(folder):
    few = Experiment("vehicle", trials=(0,), n_bins=(4, 15)).run()["metrics"]["ece"]
    one = Experiment("vehicle", trials=(0,), n_bins=4).run()["metrics"]["ece"]
    np.testing.assert_allclose(np.array(few)[..., 0], one, rtol=1e-12)
    assert not np.allclose(np.array(few)[..., 1], one)


def test_runs_without_the_published_bins_are_judged_by_what_they_have(folder):
    """No cell of theirs agrees with bins that it was not measured with, and their errors count."""
    shutil.copy(folder / "vehicle.npz", folder / "australian.npz")
    short = {"trials": (0, 1), "recipe": Recipe(epochs=1)}
    experiments = [
        Experiment("vehicle", n_bins=(10, 15), **short),
        Experiment("australian", n_bins=10, **short),
    ]
    run(experiments, folder / "out")
    text = (folder / "out" / "tables.md").read_text()
    assert "Not measured with 15 bins, so not in those tables: australian." in text
    judged = json.loads((folder / "out" / "summary.json").read_text())["judgement"]
    assert [of["ece"]["cells"] for of in judged.values()] == [7, 14]
    assert [of["error"]["cells"] for of in judged.values()] == [8, 8]
    misses = text.split("Cells (ECE with 10 bins) that do not meet the strict rule")[1].split("\n### ")[0]
    listed = [line.split(" | ") for line in misses.splitlines() if "| ece |" in line]
    strict = {c["method"] for c in judged["15"]["not_strict"] if c["metric"] == "ece"}
    for name, _, method, *_, told in listed:
        agrees = name.endswith("vehicle, linear") and method not in strict
        assert told.startswith("agrees with 15 bins") == agrees
    assert any(name.endswith("australian, linear") for name, *_ in listed)
    own = folder / "own"
    shutil.copy(folder / "vehicle.npz", folder / "mine.npz")
    run([Experiment("mine", **short)], own)
    assert "### " not in (own / "tables.md").read_text().split("## linear-in-input")[0].split("### What")[0]


def test_methods_by_number_of_labels(folder, capsys):
    out = folder / "out"
    command = ["reproduce", "tabular", "--labels", "--dataset", "vehicle", "--trials", "2", "--epochs", "5"]
    command += ["--model", "linear", "--jobs", "1", "--out", str(out)]
    assert main(command) == 0
    names = ["labels.csv", "labels.md", "labels.json", "labels.png", "labels.pdf"]
    assert capsys.readouterr().out.splitlines() == [str(out / name) for name in names]
    (run,) = read_runs(out / "labels")
    assert run.result["labels"] == [10, 30]  # 120 test rows: at most half of them
    found = run.result["measures"]["ece"]
    assert all(len(found[method]["mean"]) == 2 for method in labelled.METHODS)
    assert found["psi"]["below_psi"] == [0, 0]
    summary = json.loads((out / "labels.json").read_text())
    point = labelled.crossing(found["ts_nll"]["mean"], found["psi"]["mean"], [10, 30])
    assert summary["ece"]["all"]["ts_nll"]["each"]["vehicle, linear"] == (
        None if math.isinf(point) else point
    )
    files = {name: (out / name).read_bytes() for name in names[:3]}
    assert main(["reproduce", "tabular", "--labels", "--report", "--out", str(out)]) == 0
    assert {name: (out / name).read_bytes() for name in names[:3]} == files


def test_a_draw_is_fitted_on_its_rows_and_measured_on_the_others(folder, monkeypatch):
    """The temperature of the first draw against SciPy's, on the rows that the draw's own stream names."""
    seen = []
    fitted = labels._fitted
    monkeypatch.setattr(labels, "_fitted", lambda *args: seen.append(args) or fitted(*args))
    (config,) = labels.label_configs(
        [Experiment("vehicle", objectives=Experiment("vehicle").objectives[2:3], trials=(0,))], [30], 1
    )
    with np.errstate(invalid="ignore"), pytest.warns(RuntimeWarning, match="Degrees of freedom"):
        result = labels.run_labels(config)
    _, _, logits, y, others = next(args for args in seen if args[0] == "ts_nll")
    assert (len(y), len(others)) == (30, 90)

    def nll(log_t):
        z = logits / np.exp(log_t)
        return (special.logsumexp(z, axis=1) - z[np.arange(len(z)), y]).mean()

    temperature = np.exp(optimize.minimize_scalar(nll, bounds=(-5, 5), method="bounded").x)
    from refocal.experiments.tabular.training import experiment_of, train_experiment

    trained = train_experiment(*experiment_of(config["model"]).load())
    order = np.random.default_rng([0, 0]).permutation(120)
    np.testing.assert_array_equal(trained.labels[0][order[:30]], y)
    probs = special.softmax(trained.logits[0][0][order[30:]] / temperature, axis=1)
    expected = 100 * ece(probs, trained.labels[0][order[30:]], 15)
    assert result["measures"]["ece"]["ts_nll"]["mean"][0] == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(
    "means, point",
    [
        ([5.0, 2.0, 1.0], 30),
        ([1.0, 2.0, 1.0], 10),
        ([1.0, 3.0, 1.0], 100),  # below, above, below: from 100 on
        ([1.0, 1.0, 2.5], math.inf),  # equal is not below
    ],
)
def test_the_crossing_point(means, point):
    assert labelled.crossing(means, [2.5, 2.5, 2.5], [10, 30, 100]) == point


def test_reports_without_runs(tmp_path):
    for module in (search, labels):
        with pytest.raises(FileNotFoundError, match="is not there: no sweep has written to"):
            module.report(tmp_path)


STORED = Path(__file__).parents[3] / "results" / "tabular"


def test_the_plan_is_the_stored_search():
    """Which configurations are in the log, but for those of the study; waveform's were of another class."""
    with open(STORED / "search.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["runs"] == "search"]
    names = ("dataset", "model", "train_fraction", "weight_decay", "scaling", "trials")
    stored = {
        (*(row[name] for name in names), "paper" if row["task"] == "earlier" else row["task"]) for row in rows
    }
    assert {row["dataset"] for row in rows if row["task"] == "earlier"} == {"waveform"}
    planned = [
        (
            *(e.dataset, e.model, str(e.train_fraction), f"{e.recipe.weight_decay:g}", e.scaling),
            *(str(len(e.trials)), e.task),
        )
        for e in search.plan()
    ]
    assert len(planned) == len(set(planned))
    assert set(planned) == stored


@pytest.mark.parametrize(
    "options, planned",
    [
        ([], True),
        (["--trials", "2", "--model", "linear"], True),
        (["--weight-decay", "0"], False),
        (["--task", "original"], False),
    ],
)
def test_a_search_without_options_is_the_plan(monkeypatch, options, planned):
    seen = []
    monkeypatch.setattr(search, "run", lambda experiments, *_, **__: seen.extend(experiments))
    assert main(["reproduce", "tabular", "--search", *options]) == 0
    trials = 2 if "--trials" in options else None
    models = ("linear",) if "--model" in options else ("linear", "mlp")
    assert (seen == search.plan(trials=trials, models=models)) is planned


def test_the_stored_summary_of_the_search_is_made_of_the_stored_log(tmp_path):
    for name in ("search.csv", "search.json"):
        shutil.copy(STORED / name, tmp_path)
    search.report(tmp_path)
    for name in ("search.md", "search.csv", "search.json"):
        assert (tmp_path / name).read_bytes() == (STORED / name).read_bytes()


@pytest.mark.parametrize("study", ["--search", "--labels"])
def test_bins_are_of_the_tables(folder, capsys, study):
    assert main(["reproduce", "tabular", study, "--bins", "20", "--out", str(folder / "out")]) == 2
    assert "--bins must not go with --search or --labels, got 20" in capsys.readouterr().err


def test_a_log_with_other_columns(tmp_path):
    (tmp_path / "search.csv").write_text("dataset,z\nvehicle,1\n")
    (tmp_path / "search.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"search.csv must have the columns runs, dataset, .*, got dataset, z$"
    ):
        search.report(tmp_path)
