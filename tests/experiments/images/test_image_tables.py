import csv
import dataclasses
import io
import itertools
import json
import shlex
import shutil
import statistics
from importlib.metadata import version

import numpy as np
import pytest
from image_stand_in import K, image_configs, minimiser_run, plain_ece, softmax
from matplotlib.image import imread
from scipy.optimize import minimize_scalar
from scipy.stats import rankdata

import refocal
from refocal.cli import main, parser
from refocal.experiments.images import experiments_of, judge, tables
from refocal.experiments.images.figures import boxes_figure, reliability_figure
from refocal.experiments.images.groups import group_runs
from refocal.experiments.images.judge import (
    directions,
    directions_by_nll,
    judge_errors,
    published_errors,
    summary_of,
    summary_text,
)
from refocal.experiments.images.measures import measure_group
from refocal.experiments.images.tables import report_text, write_report
from refocal.experiments.sweeps import machine, read_runs, sweep
from refocal.experiments.sweeps.origin import machine_text
from refocal.plots import figure_bytes


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    configs = image_configs("cifar10-s", "resnet8", [0, 3], ["standard", "ls"], 2, epochs=60)
    sweep(configs, minimiser_run, folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def group(out):
    return measure_group("it", read_runs(out))


def the(group, paradigm, link, gamma, seed):
    (found,) = (
        m for m in group.measures if (m.paradigm, m.link, m.gamma, m.seed) == (paradigm, link, gamma, seed)
    )
    return found


def run_of(out, paradigm, gamma, seed):
    (run,) = (
        r
        for r in read_runs(out)
        if (r.config["paradigm"], r.config["gamma"], r.config["seed"]) == (paradigm, gamma, seed)
    )
    return run


def focal_mean(z, y, gamma):
    p = softmax(z)[np.arange(len(y)), y]
    return np.mean((1 - p) ** gamma * -np.log(p))


def test_measures_are_those_of_plain_formulas(out, group):
    arrays = run_of(out, "standard", 3.0, 1).arrays()
    z, y = arrays["test_logits"].astype(float), arrays["test_labels"]
    validation = arrays["validation_logits"].astype(float), arrays["validation_labels"].astype(int)
    temperatures = {
        "standard": 1.0,
        "ts_fl": np.exp(
            minimize_scalar(lambda u: focal_mean(validation[0] / np.exp(u), validation[1], 3.0)).x
        ),
        "ts_nll": np.exp(
            minimize_scalar(lambda u: focal_mean(validation[0] / np.exp(u), validation[1], 0.0)).x
        ),
    }
    for paradigm, temperature in temperatures.items():
        raw = softmax(z / temperature)
        for link, probs in (("raw", raw), ("psi", refocal.psi(raw, 3.0))):
            found = the(group, paradigm, link, 3.0, 1)
            assert found.temperature == pytest.approx(temperature, rel=1e-5)
            assert found.ece == pytest.approx(plain_ece(probs, y), abs=1e-5)
            assert found.nll == pytest.approx(-np.log(probs[np.arange(len(y)), y]).mean(), rel=1e-5)
            assert found.error == (probs.argmax(1) != y).mean()
            assert found.classwise_ece == pytest.approx(refocal.classwise_ece(probs, y.astype(int)), abs=1e-5)
    # The logits were made too sharp by 2, and the focal loss finds that.
    assert temperatures["ts_fl"] == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("seed", [0, 1])
def test_theory_shows_in_the_measures(group, seed):
    ece = {
        (paradigm, link): the(group, paradigm, link, 3.0, seed).ece
        for paradigm in ("standard", "ts_fl", "ls")
        for link in ("raw", "psi")
    }
    assert ece["ts_fl", "psi"] < 0.04 < 0.1 < ece["ts_fl", "raw"]
    assert ece["ls", "psi"] < 0.1 < 0.2 < ece["ls", "raw"]
    assert the(group, "focal_ts", "psi", 3.0, seed).ece < 0.04
    # Taking the smoothing out is what recovers the posterior.
    psi, unsmoothed = (the(group, "ls", link, 3.0, seed) for link in ("psi", "unsmoothed"))
    assert unsmoothed.ece < 0.04 < psi.ece
    assert unsmoothed.nll < psi.nll


def test_gamma_zero_has_nothing_to_repair(group):
    for paradigm in ("standard", "ts_fl", "ts_nll", "ls"):
        raw, psi = (the(group, paradigm, link, 0.0, 0) for link in ("raw", "psi"))
        assert (raw.ece, raw.nll) == pytest.approx((psi.ece, psi.nll), rel=1e-9)


def test_the_selector_advises_every_run(group):
    assert len(group.advice) == 8
    for advice in group.advice:
        if advice.gamma == 3:
            assert advice.winner != "raw"
            assert advice.nll_advised < advice.nll_raw - 0.01
            assert advice.ece_advised < 0.04


def test_published_errors():
    numbers = published_errors("cifar10-s", "resnet8")
    assert numbers["standard", 0.0] == (25.56, 0.63)
    assert numbers["standard", 2.0] == (26.45, 0.80)
    assert numbers["ls", 0.0] == (24.98, 0.82)
    assert numbers["ls", 2.0] == (26.16, 0.54)
    for dataset in ("svhn", "cifar10", "cifar10-s", "cifar100"):
        for model in ("resnet8", "resnet20", "resnet44", "resnet110"):
            assert len(published_errors(dataset, model)) == 8
    assert published_errors("svhn-s", "resnet8") == published_errors("my/file.npz", "resnet8") == {}


@pytest.mark.slow
def test_the_report(out, group, tmp_path):
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    files = write_report(tmp_path)
    names = ["README.md", "measures.csv", "advice.csv", "bins.csv"]
    names += [
        f"{kind}-cifar10-s-resnet8-60.{end}" for kind in ("reliability", "boxes") for end in ("png", "pdf")
    ]
    assert [path.name for path in files] == [*names, "summary.json"]
    text = (tmp_path / "README.md").read_text()
    errors = [100 * run_of(out, "standard", 3.0, seed).result["error"] for seed in (0, 1)]
    row = f"| Standard | 3 | 2 | {np.mean(errors):.2f} ({np.std(errors, ddof=1):.2f}) | - | - | - |"
    assert row in text  # the published numbers are of 200 epochs
    assert "![2 trials of each setting: points, or boxes from 5 trials on](boxes-cifar10-s" in text
    assert "; 2 trials of each setting. SGD on the focal loss, " in text
    assert (
        "batch 128, float32. Schedule: 60 epochs, learning rate 0.1 divided by 10 after epochs 24 and 45 "
        in text
    )
    assert "(the paper: 200 epochs, after 80 and 150)." in text
    command = (
        "refocal reproduce images --dataset cifar10-s --model resnet8 --gamma 0 3 --paradigm standard ls "
    )
    command += "--trials 2 --epochs 60 --validation 0.1 --precision float32 --device cpu --threads 1"
    assert f"```\n{command}\n```\n\n## Test error" in text
    assert "| LS: the raw ECE grows with gamma | 2 of 2 |" in text
    assert "| LS: Psi is better than raw, gamma 3 | 2 of 2 |" in text
    assert "| TS_FL with Psi is better than without, gamma 3 | 2 of 2 |" in text
    assert "yes |" not in text.split("## The directions")[1].split("## What the selector")[0]
    with open(tmp_path / "bins.csv", newline="") as file:
        bins = list(csv.DictReader(file))
    assert len(bins) == len(group.measures)
    arrays = run_of(out, "standard", 3.0, 1).arrays()
    (row,) = (row for row in bins if list(row.values())[1:5] == ["standard", "raw", "3", "1"])
    probs = softmax(arrays["test_logits"].astype(float))
    for n in (8, 10, 15, 25):
        assert float(row[f"bins_{n}"]) == pytest.approx(plain_ece(probs, arrays["test_labels"], n), abs=1e-8)
    eces = [the(group, "ls", "raw", 3.0, seed).ece for seed in (0, 1)]
    assert f"| {np.mean(eces):.4f} ({np.std(eces, ddof=1):.4f}) |" in text
    with open(tmp_path / "measures.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * (7 + 3)
    assert all(0 <= float(row["ece"]) <= 1 for row in rows)
    assert {(row["epochs"], row["weight_decay"]) for row in rows} == {("60", "0.0005")}
    assert {row["objective"] for row in rows} >= {"focal loss, gamma 3", "focal loss, gamma 0, smoothing 0.1"}
    assert {row["machine"] for row in rows} == {machine_text(machine())}


def test_the_command_is_that_of_the_runs(tmp_path):
    options = {"precision": "bfloat16", "lr": 0.05, "validation": 0.02}
    options |= {"shortcuts": "convolution", "first_weights": "outputs", "train_part": 0.25}
    configs = image_configs("my data/a.npz", "resnet8", [1], ["ls"], [0, 2], epochs=200, **options)
    configs += image_configs("my data/a.npz", "resnet8", [2], ["ls"], [2], epochs=200, **options)
    group = measure_group("it", sweep(configs, minimiser_run, tmp_path, progress=False))
    text = "\n".join(report_text(group))
    assert "; 1 to 2 trials of a setting, see the column trials. SGD" in text
    assert (
        "bfloat16. Schedule: 200 epochs, learning rate 0.05 divided by 10 after epochs 80 and 150. " in text
    )
    (line,) = (line for line in text.splitlines() if line.startswith("refocal reproduce images"))
    args = parser().parse_args(shlex.split(line)[1:])  # what the command would train
    made = image_configs(
        args.dataset,
        args.model,
        args.gamma,
        args.paradigm,
        args.trials,
        args.epochs,
        lr=args.lr,
        validation=args.validation,
        precision=args.precision,
        train_part=args.train_part,
        shortcuts=args.shortcuts,
        first_weights=args.first_weights,
    )
    assert all(config in made for config in configs)
    assert len(made) == 6
    assert "\nThe command makes 6 runs; 3 of them are finished and here.\n" in text
    assert "no option" not in text
    assert text.startswith(
        "# my data/a.npz, resnet8, 200 epochs, lr 0.05, validation 0.02, precision bfloat16, "
        "train_part 0.25, shortcuts convolution, first_weights outputs\n"
    )
    odd = measure_group(
        "it", sweep([configs[0] | {"batch_size": 64}], minimiser_run, tmp_path, progress=False)
    )
    assert "\nWith batch_size=64, for which the command has no option.\n" in "\n".join(report_text(odd))


def test_the_command_says_how_the_runs_were_trained(tmp_path):
    one = {"device": "cuda", "threads": 1, "compile": False, "processes": 1}
    four = one | {"compile": True, "processes": 4}
    machines = iter([[four], [one, four], [four]])

    def run(config):
        result, arrays = minimiser_run(config)
        return result | {"machines": next(machines)}, arrays

    configs = image_configs("svhn-s", "resnet8", [1], ["ls"], 3, epochs=2)
    text = "\n".join(report_text(measure_group("it", sweep(configs, run, tmp_path, progress=False))))
    assert "\ntorchrun --nproc-per-node 4 -m refocal reproduce images --dataset svhn-s " in text
    assert " --device cuda --threads 1 --compile\n" in text
    torch = f"(torch {version('torch')}, loss not recorded)"
    first = f"cuda with 1 thread, compiled, 4 processes {torch} (3 runs)"
    said = f"{first} or cuda with 1 thread (loss not recorded) (1 run). Source: "
    assert f"for an epoch on {said}" in text


def opposite_run(config):
    """Scores that are right as they are, so that Psi must hurt."""
    return minimiser_run(config | {"gamma": 0.0})


def test_a_direction_that_does_not_show_is_said(tmp_path):
    configs = image_configs("svhn-s", "resnet8", [0, 2], ["ls"], 1, epochs=2)
    group = measure_group("it", sweep(configs, opposite_run, tmp_path, progress=False))
    text = "\n".join(report_text(group))
    assert "| LS: the raw ECE grows with gamma | 0 of 1 |" in text
    assert "| LS: Psi is better than raw, gamma 2 | 0 of 1 |" in text
    assert "TS_FL" not in text
    error = 100 * group.measures[0].error
    assert f"| LS | 2 | 1 | {error:.2f} | - | - | - |" in text  # the paper has no such data set


def test_errors_are_judged_by_the_spread_of_both_sides(tmp_path):
    configs = image_configs("cifar10-s", "resnet8", [0, 1], ["standard"], 3)
    runs = sweep(configs, minimiser_run, tmp_path, progress=False)
    group = measure_group("it", [run for run in runs if run.config["gamma"] == 0 or run.config["seed"] == 0])
    several, single = judge_errors(group)
    errors = [100 * run.result["error"] for run in runs if run.config["gamma"] == 0]
    assert (several.trials, several.published, several.published_sd) == (3, 25.56, 0.63)
    assert several.sd == pytest.approx(statistics.stdev(errors))
    error_of_difference = (0.63**2 / 10 + statistics.variance(errors) / 3) ** 0.5
    assert several.z == pytest.approx((statistics.mean(errors) - 25.56) / error_of_difference)
    assert (single.trials, single.sd, single.z) == (1, None, None)
    assert single.difference == pytest.approx(single.mean - 26.10)
    found = summary_of([group])["groups"]["it"]["errors"]
    assert (found["published"], found["with_a_z"]) == (2, 1)
    assert found["strict"] == (abs(several.z) <= 3)
    assert found["within_1_point"] == sum(abs(c.difference) <= 1 for c in (several, single))
    lines = list(summary_text(json.loads(json.dumps(summary_of([group])))))
    (start,) = (i for i, line in enumerate(lines) if line.startswith("it: "))
    first, second, last = lines[start + 1 : start + 4]
    assert f"SD {several.sd:.2f}, n 3), published 25.56 (SD 0.63): " in first
    assert first.endswith(f" points, z {several.z:+.1f}")
    assert second.endswith(" points")
    assert last.startswith("  errors within 1 point: ")


def test_a_point_is_within_a_point_and_a_little_more_is_not():
    gaps = ((1.0, 3.0), (1.01, 3.01), (-1.0, -3.0))
    cells = [judge.ErrorCell("ls", 1.0, 2, 25.0 + gap, 0.1, 25.0, 0.1, z) for gap, z in gaps]
    found = judge._counts(cells)
    assert (found["within_1_point"], found["strict"]) == (2, 2)


def test_what_the_paper_says_is_said_of_findings_that_there_are(group):
    assert judge.PAPER_SAYS.keys() <= {d.finding for d in directions(group)}
    (line,) = (x for x in summary_text(summary_of([group])) if "Standard: Psi is better than raw" in x)
    assert "[the paper: on SVHN, not on CIFAR10]" in line


def test_half_of_the_images_are_not_most():
    (found,) = judge._most("most", {1.0: {0: 0.5, 1: 0.501, 2: 0.45}})
    assert (found.shows, found.trials) == (1, 3)


def test_directions_are_counted_in_trials(out, group):
    found = {(d.finding, d.gamma): d for d in directions(group)}
    ece = {
        (paradigm, link, seed): the(group, paradigm, link, 3.0, seed).ece
        for paradigm, link, seed in itertools.product(("standard", "ts_fl", "ls"), ("raw", "psi"), (0, 1))
    }
    counts = {
        "Standard: Psi is better than raw": sum(
            ece["standard", "psi", s] < ece["standard", "raw", s] for s in (0, 1)
        ),
        "LS: Psi is better than raw": sum(ece["ls", "psi", s] < ece["ls", "raw", s] for s in (0, 1)),
        "TS_FL without Psi is worse than Standard": sum(
            ece["ts_fl", "raw", s] > ece["standard", "raw", s] for s in (0, 1)
        ),
        "TS_FL with Psi is better than Standard": sum(
            ece["ts_fl", "psi", s] < ece["standard", "raw", s] for s in (0, 1)
        ),
    }
    for finding, count in counts.items():
        assert (found[finding, 3.0].shows, found[finding, 3.0].trials) == (count, 2)
    before = {
        key: the(group, *key[:2], 0.0, key[2]).ece for key in ece if key[0] == "standard" or key[1] == "psi"
    }
    for finding, count in {
        "LS: gamma moves the ECE less with Psi": 2,
        "Standard: a gamma > 0 has the smallest raw ECE": sum(
            ece["standard", "raw", s] < before["standard", "raw", s] for s in (0, 1)
        ),
        "LS: with Psi gamma moves the ECE by at most 1 point": sum(
            abs(ece["ls", "psi", s] - before["ls", "psi", s]) <= 0.01 for s in (0, 1)
        ),
    }.items():
        assert (found[finding, None].shows, found[finding, None].trials) == (count, 2)
    # Of each trial Standard, TS_FL and LS: at gamma 0 raw and Psi are one, at gamma 3 they are two.
    some = [m for m in group.measures if m.paradigm in ("standard", "ts_fl", "ls") and m.link != "unsmoothed"]
    pairs = {(m.paradigm, m.gamma, m.seed, round(m.ece, 12)): (m.ece, m.nll) for m in some}
    ranks = summary_of([group])["groups"]["it"]["rank_correlation_of_ece_and_nll"]
    assert ranks["scores"] == len(pairs) == 2 * 3 * (1 + 2)
    by_hand = np.corrcoef([rankdata(side) for side in zip(*pairs.values(), strict=True)])[0, 1]
    assert ranks["rho"] == pytest.approx(by_hand, abs=1e-9)
    with_15 = {(d.finding, d.gamma): d.means for d in directions(group, 15)}
    assert with_15.keys() == found.keys()
    assert with_15 != {key: d.means for key, d in found.items()}


def above_the_diagonal(probs, labels, bins):
    """The part of the rows whose bin (lo, hi] is right more often than its mean confidence, row by row."""
    rows = [(probs[i].max(), probs[i].argmax() == labels[i]) for i in range(len(labels))]
    some = [[row for row in rows if k / bins < row[0] <= (k + 1) / bins] for k in range(bins)]
    return sum(len(x) for x in some if x and sum(hit for _, hit in x) > sum(p for p, _ in x)) / len(rows)


def test_directions_are_counted_by_the_nll_too(out, group):
    """From the stored logits, by plain formulas."""
    found = {(d.finding, d.gamma): d for d in directions_by_nll(group)}
    losses = {"Standard": [], "LS": []}
    for run in read_runs(out):
        if run.config["gamma"] == 3:
            arrays = run.arrays()
            scores = softmax(arrays["test_logits"].astype(float))
            rows = np.arange(len(scores)), arrays["test_labels"]
            raw, psi = (-np.log(p[rows]).mean() for p in (scores, refocal.psi(scores, 3.0)))
            losses[{"standard": "Standard", "ls": "LS"}[run.config["paradigm"]]].append((psi, raw))
    for title, pairs in losses.items():
        one = found[f"{title}: Psi is better than raw", 3.0]
        assert (one.shows, one.trials) == (sum(psi < raw for psi, raw in pairs), 2)
        assert one.means == " against ".join(f"{mean:.4f}" for mean in np.mean(pairs, axis=0))
    summary = json.loads(json.dumps(summary_of([group])))
    total = summary["groups"][group.name]["counts_by_nll"]["LS: the raw NLL grows with gamma"]
    assert total["trials"] == 2
    (line,) = (x for x in summary_text(summary) if x.startswith("  LS: the raw ECE grows with gamma: "))
    assert line.endswith(f"trials; by the NLL {total['shows']} of 2")


def test_underconfident_bins_are_counted_by_their_images(tmp_path):
    """The stand-ins are too sharp by 2, which makes overconfident bins until gamma is large."""
    configs = image_configs("svhn-s", "resnet8", [0, 1, 3], ["standard"], 2, epochs=2)
    runs = sweep(configs, minimiser_run, tmp_path, progress=False)
    group = measure_group("it", runs)
    for run in runs:
        z, y = (run.arrays()[f"test_{name}"] for name in ("logits", "labels"))
        raw = np.exp(z - z.max(1, keepdims=True)).astype(np.float64)
        raw /= raw.sum(1, keepdims=True)
        measure = the(group, "standard", "raw", run.config["gamma"], run.config["seed"])
        for bins in (10, 15):
            assert measure.number(f"underconfident_{bins}") == above_the_diagonal(raw, y, bins)
        assert measure.gap == pytest.approx(np.mean(raw.argmax(1) == y) - raw.max(1).mean())
    found = {(d.finding, d.gamma): (d.shows, d.trials) for d in directions(group)}
    most = "{}: most test images are in underconfident bins"
    assert (found[most.format("Standard"), 1.0], found[most.format("Standard"), 3.0]) == ((0, 2), (2, 2))
    assert (most.format("Standard"), 0.0) not in found
    smoothed = image_configs("svhn-s", "resnet8", [0, 1, 3], ["ls"], 2, epochs=2)
    smoothed = measure_group("it", sweep(smoothed, minimiser_run, tmp_path, progress=False))
    found |= {(d.finding, d.gamma): (d.shows, d.trials) for d in directions(smoothed)}
    for name in ("Standard", "TS_FL", "LS"):
        assert found[most.format(name), 3.0] == (2, 2)
        assert found[f"{name}: accuracy minus confidence grows with gamma", None] == (2, 2)
    changed = [
        dataclasses.replace(m, underconfident=(0.4 + 0.2 * m.seed,) * len(m.underconfident))
        for m in group.measures
    ]
    half = directions(dataclasses.replace(group, measures=tuple(changed)))
    shown = {(d.finding, d.gamma): (d.shows, d.means) for d in half}
    assert shown[most.format("TS_FL"), 1.0] == (1, "50 % of them")  # 40 % are not most, 60 % are
    most = most.format("Standard")
    opposite = measure_group("it", sweep(configs[-1:], opposite_run, tmp_path / "other", progress=False))
    (other,) = (d for d in directions(opposite) if d.finding == most)
    assert (other.shows, other.trials, other.means) == (0, 1, "0 % of them")


def test_a_single_number_is_not_drawn_and_the_command_says_the_summary(tmp_path, capsys):
    configs = image_configs("cifar10-s", "resnet8", [0], ["ls"], 1)
    (run,) = sweep(configs, minimiser_run, tmp_path, progress=False)
    assert main(["reproduce", "images", "--report", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    error = 100 * run.result["error"]
    said = f"  LS, gamma 0: error {error:.2f} (n 1), published 24.98 (SD 0.82): {error - 24.98:+.2f} points"
    assert said in lines
    within = int(abs(error - 24.98) <= 1)
    assert lines[-1] == f"  errors within 1 point: {within} of 1; strict: 0 of 0 with two trials or more"
    # With gamma 0 alone, Psi would show the same bars again.
    assert not [*tmp_path.glob("boxes*"), *tmp_path.glob("reliability*")]
    text = (tmp_path / "README.md").read_text()
    assert "boxes-" not in text
    assert "reliability-" not in text


def test_trials_that_are_not_there_are_not_compared(tmp_path):
    configs = image_configs("svhn-s", "resnet8", [0, 2], ["ls"], 2, epochs=2)
    runs = sweep(configs, minimiser_run, tmp_path, progress=False)
    group = measure_group(
        "it", [run for run in runs if (run.config["gamma"], run.config["seed"]) != (2.0, 0)]
    )
    text = "\n".join(report_text(group))
    assert "1 to 2 trials of a setting" in text
    assert "| LS: the raw ECE grows with gamma | 1 of 1 |" in text
    (growth, *_) = directions(group)
    both = [m.ece for m in group.measures if (m.link, m.seed) == ("raw", 1)]
    assert growth.means == f"{both[0]:.4f} (gamma 0), {both[1]:.4f} (gamma 2)"  # of the trial that has both
    rows = {0.0: {0: 0.3}, 1.0: {0: 0.4, 1: 0.05}, 2.0: {1: 0.1}}
    (unequal,) = judge._growth("it grows", rows)
    assert (unequal.shows, unequal.trials) == (2, 2)
    assert unequal.means == "0.3000 (gamma 0, n = 1), 0.2250 (gamma 1), 0.1000 (gamma 2, n = 1)"
    alone = measure_group("it", [run for run in runs if run.config["gamma"] == 0.0])
    assert "directions" not in "\n".join(report_text(alone))


def wild_run(config):
    """Very large logits: Psi of a small probability is below the smallest number."""
    result, arrays = minimiser_run(config)
    return result, arrays | {"test_logits": 300 * arrays["test_logits"]}


def test_probabilities_that_round_to_zero_have_a_finite_loss(tmp_path):
    configs = image_configs("svhn-s", "resnet8", [3], ["standard"], 1, epochs=2)
    sweep(configs, wild_run, tmp_path / "out", progress=False)
    (run,) = read_runs(tmp_path / "out")
    assert np.ptp(run.arrays()["test_logits"], axis=1).max() > 1000
    group = measure_group("it", [run])
    assert all(np.isfinite(measure.nll) for measure in group.measures)
    assert any(measure.nll > 100 for measure in group.measures)
    (advice,) = group.advice
    assert advice.nll_raw == pytest.approx(the(group, "standard", "raw", 3.0, 0).nll, rel=1e-12)
    assert 100 < advice.nll_advised < np.inf
    assert write_report(tmp_path / "out")


def separable_run(config):
    result, arrays = minimiser_run(config)
    eye = np.eye(K, dtype=np.float32)
    arrays["validation_logits"] = eye[arrays["validation_labels"]]  # no temperature is small enough
    return result, arrays


def test_a_temperature_that_does_not_exist_is_left_out(tmp_path):
    configs = image_configs("svhn-s", "resnet8", [1], ["standard"], 1, epochs=2)
    group = measure_group("it", sweep(configs, separable_run, tmp_path, progress=False))
    assert {measure.paradigm for measure in group.measures} == {"standard"}
    text = "\n".join(report_text(group))
    assert "## Left out\n\n- TS_FL of gamma 1, trial 0: " in text
    assert "| Standard | raw" in text


def run_without_validation_images(config):
    result, arrays = minimiser_run(config)
    none = {name: array[:0] if name.startswith("validation") else array for name, array in arrays.items()}
    return result | {"n_validation": 0}, none


def test_without_validation_images_each_half_of_the_test_set_gets_the_temperature_of_the_other(tmp_path):
    configs = image_configs("mine", "resnet8", [3], ["standard"], 1, validation=0)
    group = measure_group("it", sweep(configs, run_without_validation_images, tmp_path, progress=False))
    arrays = run_without_validation_images(configs[0])[1]
    z, y = arrays["test_logits"].astype(float), arrays["test_labels"].astype(int)
    order = np.random.default_rng(0).permutation(len(y))
    fitted, scaled = [], np.empty_like(z)
    for mine, other in ((order[:1000], order[1000:]), (order[1000:], order[:1000])):
        temperature = np.exp(minimize_scalar(lambda u, t=other: focal_mean(z[t] / np.exp(u), y[t], 3.0)).x)
        fitted.append(temperature)
        scaled[mine] = z[mine] / temperature
    assert fitted[0] != pytest.approx(fitted[1], rel=1e-4)
    found = the(group, "ts_fl", "raw", 3.0, 0)
    assert found.temperature == pytest.approx(np.sqrt(np.prod(fitted)), rel=1e-5)
    assert found.nll == pytest.approx(focal_mean(scaled, y, 0.0), rel=1e-6)
    halves = order[:1000], order[1000:]
    repaired, probs = the(group, "ts_fl", "psi", 3.0, 0), refocal.psi(softmax(scaled), 3.0)
    by_half = np.mean([plain_ece(probs[rows], y[rows]) for rows in halves])
    assert repaired.ece == repaired.fair_ece == pytest.approx(by_half, abs=1e-5)
    assert by_half > plain_ece(probs, y) + 0.002  # in bins of both halves their errors cancel
    plain = the(group, "standard", "raw", 3.0, 0)  # nothing fitted: the whole test set, but for comparisons
    assert plain.ece == pytest.approx(plain_ece(softmax(z), y), abs=1e-5)
    apart = np.mean([plain_ece(softmax(z[rows]), y[rows]) for rows in halves])
    assert plain.fair_ece == pytest.approx(apart, abs=1e-5)
    assert plain.ece != pytest.approx(apart, abs=1e-4)
    (compared,) = (d for d in directions(group) if d.finding == "TS_FL without Psi is worse than Standard")
    assert compared.means == f"{plain.fair_ece:.4f} against {found.ece:.4f}"
    (advice,) = group.advice  # of one half, judged by the other
    assert advice.nll_raw == pytest.approx(focal_mean(z[order[1000:]], y[order[1000:]], 0.0), rel=1e-6)
    assert "## What the selector advises, from one half of the test set" in "\n".join(report_text(group))


def test_a_test_set_of_one_image_has_an_empty_half(tmp_path):
    def run(config):
        result, arrays = run_without_validation_images(config)
        return result, {name: array[:1] for name, array in arrays.items()}

    configs = image_configs("mine", "resnet8", [0, 3], ["standard"], 1, validation=0)
    group = measure_group("it", sweep(configs, run, tmp_path, progress=False))
    assert {m.paradigm for m in group.measures} == {"standard"}
    assert all(m.ece == m.fair_ece for m in group.measures)
    assert group.skipped


def run_with_few_validation_images(config):
    result, arrays = minimiser_run(config)
    few = {name: array[:3] if name.startswith("validation") else array for name, array in arrays.items()}
    return result, few


def test_too_few_validation_images_for_advice(tmp_path):
    configs = image_configs("svhn-s", "resnet8", [1], ["ls"], 2, epochs=2)
    group = measure_group("it", sweep(configs, run_with_few_validation_images, tmp_path, progress=False))
    text = "\n".join(report_text(group))
    assert "2 trials of each setting" in text
    assert "--gamma 1 --paradigm ls --trials 2" in text
    assert "| LS | Psi |" in text
    assert "selector" not in text
    assert "- advice for LS of gamma 1, trial 1: " in text


def test_no_runs(tmp_path):
    with pytest.raises(FileNotFoundError, match="no sweep has written"):
        write_report(tmp_path)
    sweep([{"x": 1}], lambda config: {}, tmp_path, progress=False)
    with pytest.raises(FileNotFoundError, match="no image run is finished"):
        write_report(tmp_path)


def test_runs_of_another_smoothing_or_training_stand_apart(tmp_path):
    """0 and 0.0 are one setting; another label smoothing is another one, and is not held to the paper.

    Other shortcuts, first weights and draws of CIFAR-10-s are other settings too, but the paper does not say
    what it has. A tenth of CIFAR-10 is CIFAR-10-s, a fifth is nothing that it has.
    """
    base = experiments_of("cifar10-s", "resnet8", [1], ["standard", "ls"], 1, validation=0.0)
    more = [
        dataclasses.replace(base[1], label_smoothing=0.3),
        dataclasses.replace(base[0], seed=1, validation=0),
    ]
    more.append(dataclasses.replace(base[0], lr=1e-4))
    more.append(dataclasses.replace(base[0], shortcuts="convolution"))
    more.append(dataclasses.replace(base[0], first_weights="outputs"))
    more.append(dataclasses.replace(base[0], dataset="cifar10", train_part=0.1))
    more.append(dataclasses.replace(base[0], dataset="cifar10", train_part=0.2))
    sweep([one.config() for one in base + more], minimiser_run, tmp_path, progress=False)
    groups = {name: measure_group(name, runs) for name, runs in group_runs(read_runs(tmp_path)).items()}
    names = {name.replace("validation-0.0", "validation-0"): group for name, group in groups.items()}
    usual = "cifar10-s-resnet8-200-validation-0"
    convolution, outputs = f"{usual}-shortcuts-convolution", f"{usual}-first_weights-outputs"
    drawn = "cifar10-resnet8-200-validation-0-train_part-0.1"
    assert set(names) == {
        usual,
        convolution,
        outputs,
        drawn,
        drawn.replace("0.1", "0.2"),
        "cifar10-s-resnet8-200-lr-0.0001-validation-0",
        "cifar10-s-resnet8-200-label_smoothing-0.3-validation-0",
    }
    settings = {name: sorted(group.settings) for name, group in names.items()}
    assert settings[usual] == [("ls", 1.0, 0), ("standard", 1.0, 0), ("standard", 1.0, 1)]
    assert all(
        (cell.published is not None) == (name in (usual, convolution, outputs, drawn))
        for name in names
        for cell in judge_errors(names[name])
    )
    (cell,) = judge_errors(names[drawn])
    assert cell.published == published_errors("cifar10-s", "resnet8")["standard", 1.0][0]


@pytest.mark.parametrize("gammas", [[2], [0, 2]])
def test_captions_have_room(tmp_path, gammas):
    """Narrow figures too, with the longest caption: that of temperatures by halves."""
    configs = image_configs("cifar10-s", "resnet8", gammas, ["standard"], 2, epochs=2, validation=0.0)
    group = measure_group("it", sweep(configs, run_without_validation_images, tmp_path, progress=False))
    for figure in (reliability_figure(group), boxes_figure(group)):
        assert "the mean of both halves" in figure.get_supxlabel().replace("\n", " ")
        assert figure.get_supxlabel().replace("\n", " ").startswith("it, 9 training images")
        picture = imread(io.BytesIO(figure_bytes(figure, dpi=60)))[..., :3]
        for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
            assert edge.min() == 1


def test_a_report_removes_figures_of_names_that_are_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "figure_files", lambda name, figure: {f"{name}.png": b"a picture"})
    sweep(
        image_configs("mine", "resnet8", [0, 1], ["standard"], 1, epochs=2),
        minimiser_run,
        tmp_path,
        progress=False,
    )
    (tmp_path / "boxes-of-mine.png").write_bytes(b"not of a report")
    write_report(tmp_path)
    assert (tmp_path / "boxes-mine-resnet8-2.png").exists()

    def two_threads(config):
        result, arrays = minimiser_run(config)
        return result | {"machines": [result["machines"][0] | {"threads": 2}]}, arrays

    sweep(
        image_configs("mine", "resnet8", [0, 1], ["standard"], [1], epochs=2),
        two_threads,
        tmp_path,
        progress=False,
    )
    write_report(tmp_path)
    boxes = sorted(path.name for path in tmp_path.glob("boxes-*.png"))
    assert boxes == [
        "boxes-mine-resnet8-2-threads-1.png",
        "boxes-mine-resnet8-2-threads-2.png",
        "boxes-of-mine.png",
    ]
