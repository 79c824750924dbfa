"""What depth and number of images do, from runs whose numbers are known."""

import itertools
import json
import shlex

import numpy as np
import pytest
from image_stand_in import image_configs, minimiser_run, plain_ece, softmax

import refocal
from refocal.cli import parser
from refocal.experiments.images.groups import group_runs
from refocal.experiments.images.judge import judge_errors, summary_of, summary_text
from refocal.experiments.images.measures import measure_group
from refocal.experiments.images.tables import report_text
from refocal.experiments.images.trends import Comparison, Trend, trend_figure, trend_text, trends_of
from refocal.experiments.sweeps import read_runs, sweep


def test_the_best_gamma_by_depth_and_by_size(tmp_path):
    """Logits are sharper in deeper networks and with fewer images: then a larger gamma is best."""

    def run(config):
        result, arrays = minimiser_run(config | {"gamma": 0.0, "label_smoothing": 0.1})
        sharp = {"resnet8": 1.3, "resnet20": 2.0}[config["model"]] * (
            2000 / config.get("train_size", 2000)
        ) ** 0.2
        factor = sharp / (1 + 0.3 * config["gamma"])
        return result, arrays | {"test_logits": arrays["test_logits"] * np.float32(factor)}

    configs = []
    for model in ("resnet8", "resnet20"):
        configs += image_configs("mine", model, [0, 1, 2], ["standard"], 2, epochs=2)
    for size in (300, 2000):
        options = {"train_size": size, "test_size": 100}
        configs += image_configs("mine", "resnet8", [0, 1, 2], ["standard"], 1, epochs=2, **options)
    sweep(configs, run, tmp_path / "out", progress=False)
    groups = [measure_group(*item) for item in group_runs(read_runs(tmp_path / "out")).items()]
    assert trends_of(groups[:1]) == []
    depth, size = trends_of(groups)
    assert (depth.what, list(depth.raw)) == ("depth", [8, 20])
    assert (size.what, list(size.raw)) == ("training images", [300, 2000])
    assert depth.name == "depth-mine-2"
    assert size.name == "images-mine-resnet8-2-test_size-100"
    assert depth.best[8] < depth.best[20]
    assert size.best[300] > size.best[2000]
    (claim,) = depth.comparisons()
    counts = {"larger": 2, "same": 0, "smaller": 0, "less": 4, "pairs": 4, "surer": 6, "gaps": 6}
    assert claim == Comparison(8, 20, (0.0, 1.0, 2.0), **counts)
    (claim,) = size.comparisons()
    assert (claim.first, claim.last, claim.larger, claim.trials) == (2000, 300, 1, 1)
    assert (claim.surer, claim.gaps) == (3, 3)
    runs = [r for r in read_runs(tmp_path / "out") if "train_size" not in r.config]
    nlls = {}  # of Standard raw and with Psi, by no code of the report
    for r in runs:
        z, y = r.arrays()["test_logits"].astype(float), r.arrays()["test_labels"]
        both = (softmax(z), refocal.psi(softmax(z), r.config["gamma"]))
        key = (r.config["model"], r.config["gamma"], r.config["seed"])
        nlls[key] = [-np.log(probs[np.arange(len(y)), y]).mean() for probs in both]
    pairs = list(itertools.product((1.0, 2.0), (0, 1)))
    less = sum(
        np.diff(nlls["resnet20", *pair]).item() > np.diff(nlls["resnet8", *pair]).item() for pair in pairs
    )
    best = {
        depth_of: [min((0.0, 1.0, 2.0), key=lambda gamma: nlls[model, gamma, seed][0]) for seed in (0, 1)]
        for depth_of, model in ((8, "resnet8"), (20, "resnet20"))
    }
    larger = sum(after > before for before, after in zip(best[8], best[20], strict=True))
    summary = depth.summary()
    (claim,) = summary["comparisons_by_nll"]
    assert (claim["larger"], claim["trials"], claim["less"], claim["pairs"]) == (larger, 2, less, 4)
    assert [one["best_gamma_by_nll"] for one in summary["values"]] == [best[8][0], best[20][0]]
    left, between, middle, right = trend_figure(depth).axes
    assert [line.get_label() for line in left.lines] == ["8 (n = 2)", "20 (n = 2)"]
    assert [tuple(part.get_offsets()[0]) for part in middle.collections] == list(depth.best.items())
    for ax, gammas in ((left, [0, 1, 2]), (between, [0, 1, 2]), (right, [1, 2])):
        assert [list(line.get_xdata()) for line in ax.lines[:2]] == [gammas, gammas]
    for i, line in enumerate(right.lines[:2]):  # Psi's ECE minus the raw one, by the bins of the test
        runs = [r for r in read_runs(tmp_path / "out") if "train_size" not in r.config]
        runs = [r for r in runs if r.config["model"] == ("resnet8", "resnet20")[i] and r.config["gamma"] == 2]
        added, gaps = [], []
        for one in runs:
            z, y = one.arrays()["test_logits"].astype(float), one.arrays()["test_labels"]
            gaps.append((z.argmax(1) == y).mean() - softmax(z).max(1).mean())
            added.append(plain_ece(refocal.psi(softmax(z), 2.0), y) - plain_ece(softmax(z), y))
        assert len(added) == 2
        assert line.get_ydata()[1] == pytest.approx(np.mean(added), abs=1e-9)
        assert between.lines[i].get_ydata()[2] == pytest.approx(np.mean(gaps), abs=1e-9)
    text = "\n".join(trend_text([depth, size]))
    assert "| depth | number | gamma 0 | gamma 1 | gamma 2 | best gamma |" in text
    assert f"(n = 2) | {depth.best[20]:g} (the largest) |" in text
    assert f"(n = 2) | {depth.best[8]:g} |" in text
    line = (
        "- Accuracy minus confidence falls from depth 8 to 20, at the same gamma: in 6 of 6 pairs of trial "
    )
    assert line in text
    assert "- The best gamma (of 0, 1, 2) grows from depth 8 to 20: in 2 of 2 trials; the same in 0, " in text
    assert "](images-mine-resnet8-2-test_size-100.png)" in text
    said = list(summary_text(json.loads(json.dumps(summary_of(groups, [depth, size])))))
    line = "  The best gamma (of 0, 1, 2) grows from 2000 training images to 300: in 1 of 1 trials; the same "
    assert line in "\n".join(said)
    line = said[said.index("depth-mine-2: raw ECE of Standard") + 1]
    assert line.endswith(f"; best gamma {depth.best[8]:g}")
    (line,) = {
        line
        for group in groups
        for line in report_text(group)
        if line.startswith("refocal reproduce") and "--train-size 300 --test-size 100 " in line
    }
    args = parser().parse_args(shlex.split(line)[1:])
    assert (args.train_size, args.test_size) == (300, 100)
    assert all(cell.published is None for group in groups for cell in judge_errors(group))


def trend(raw, what="depth"):
    psi = {
        v: {g: {s: ece / 2 for s, ece in some.items()} for g, some in eces.items()} for v, eces in raw.items()
    }
    gap = {
        value: {g: {s: 0.1 - ece for s, ece in e.items()} for g, e in some.items()}
        for value, some in raw.items()
    }
    return Trend("it", what, raw, psi, gap)


def test_trials_that_a_gamma_lacks_do_not_make_another_one_best():
    """Trial 0 is easy; gamma 1 was not run in it, but is better in the trial that has every gamma."""
    some = {0.0: {0: 0.05, 1: 0.21}, 1.0: {1: 0.19}, 2.0: {0: 0.06, 1: 0.3}}
    it = trend({8: some, 20: {0.0: {0: 0.1}, 1.0: {1: 0.1}, 2.0: {0: 0.1, 1: 0.1}}})
    assert it.best == {8: 1.0, 20: None}
    assert (
        trend_figure(it)
        .get_supxlabel()
        .replace("\n", " ")
        .endswith("; no best gamma: fewer than 3 were run, or no trial has all of them")
    )
    assert it.comparisons()[0].trials == 0
    text = "\n".join(trend_text([it]))
    assert "| 20 | raw ECE | 0.1000 (n = 1) | 0.1000 (n = 1) | 0.1000 (n = 2) | - |" in text
    assert "The best gamma from depth 8 to 20 cannot be compared: no trial has 3 gammas of both" in text


def test_a_trial_counts_with_the_gammas_that_it_has():
    """Trial 1 lacks gamma 3, which trial 0 has: it is compared by the three others."""
    first = {0.0: {0: 0.1, 1: 0.1}, 1.0: {0: 0.2, 1: 0.2}, 2.0: {0: 0.3, 1: 0.3}, 3.0: {0: 0.4}}
    last = {0.0: {0: 0.4, 1: 0.4}, 1.0: {0: 0.3, 1: 0.1}, 2.0: {0: 0.2, 1: 0.2}, 3.0: {0: 0.1}}
    it = trend({8: first, 20: last})
    (claim,) = it.comparisons()
    assert (claim.gammas, claim.larger, claim.trials) == ((0.0, 1.0, 2.0, 3.0), 2, 2)
    assert it.best == {8: 0.0, 20: 3.0}  # of trial 0, which has every gamma
    assert trend_figure(it).axes[0].lines[1].get_label() == "20 (n = 1 to 2)"


def test_a_depth_that_has_just_begun_hides_no_other():
    full = {0.0: {0: 0.1, 1: 0.1}, 1.0: {0: 0.2, 1: 0.2}, 2.0: {0: 0.3, 1: 0.05}}
    deep = {0.0: {0: 0.3, 1: 0.3}, 1.0: {0: 0.2, 1: 0.2}, 2.0: {0: 0.1, 1: 0.1}}
    it = trend({8: full, 20: deep, 44: {0.0: {0: 0.3}, 1.0: {0: 0.1}}})
    claims = [(c.first, c.last, c.gammas, c.larger, c.same, c.smaller) for c in it.comparisons()]
    assert claims == [
        (8, 20, (0.0, 1.0, 2.0), 1, 1, 0),
        (20, 44, (0.0, 1.0), 0, 0, 0),  # two gammas do not tell which is best
        (8, 44, (0.0, 1.0), 0, 0, 0),
    ]
    assert it.best[44] is None
    # Psi halves every ECE here, so it helps more where the raw ECE is larger.
    first = it.comparisons()[0]
    assert (first.less, first.pairs) == (1, 4)
    # The gap is 0.1 minus the raw ECE: it falls at gamma 0 and, in trial 1, at gamma 2.
    assert (first.surer, first.gaps) == (3, 6)
    markers = trend_figure(it).axes[2].collections
    assert [len(marker.get_facecolor()) == 0 for marker in markers] == [
        False,
        True,
    ]  # open: the largest
    sizes = trend({100: full, 900: deep}, "training images").comparisons()
    assert [(c.first, c.last, c.larger, c.same, c.smaller) for c in sizes] == [(900, 100, 0, 1, 1)]


def test_a_trend_is_of_one_data_set_and_needs_no_second_machine(tmp_path):
    """Two files of one name are two data sets; a run with more threads leaves the trend where it was."""

    def run(config):
        result, arrays = minimiser_run(config)
        threads = 2 if (config["model"], config["seed"]) == ("resnet8", 2) else 1
        return result | {"machines": [result["machines"][0] | {"threads": threads}]}, arrays

    configs = image_configs("a/mine.npz", "resnet8", [0, 1], ["standard"], [0, 1], epochs=2)
    configs += image_configs("b/mine.npz", "resnet20", [0, 1], ["standard"], [0, 1], epochs=2)
    sweep(configs, run, tmp_path / "two", progress=False)
    groups = [measure_group(*item) for item in group_runs(read_runs(tmp_path / "two")).items()]
    assert len(groups) == 2
    assert trends_of(groups) == []
    configs = image_configs("mine", "resnet8", [0, 1], ["standard"], [0, 1, 2], epochs=2)
    configs += image_configs("mine", "resnet20", [0, 1], ["standard"], [0, 1], epochs=2)
    sweep(configs, run, tmp_path / "one", progress=False)
    groups = [measure_group(*item) for item in group_runs(read_runs(tmp_path / "one")).items()]
    assert len(groups) == 3
    (found,) = trends_of(groups)
    assert {value: sorted(eces[0.0]) for value, eces in found.raw.items()} == {8: [0, 1], 20: [0, 1]}
    configs = image_configs("cifar10", "resnet8", [0, 1], ["standard"], 1)
    configs += image_configs("cifar10-s", "resnet8", [0, 1], ["standard"], 1)

    def sized(config):
        result, arrays = minimiser_run(config)
        return result | {"n_train": 45000 if config["dataset"] == "cifar10" else 4500}, arrays

    sweep(configs, sized, tmp_path / "part", progress=False)
    groups = [measure_group(*item) for item in group_runs(read_runs(tmp_path / "part")).items()]
    (found,) = trends_of(groups)
    assert (found.what, list(found.raw)) == ("training images", [5000, 45500])
    # With a size, test images are drawn from the pool of each: not the same ones.
    sizes = {"cifar10": 300, "cifar10-s": 200}
    configs = [config | {"train_size": sizes[config["dataset"]], "test_size": 100} for config in configs]
    sweep(configs, sized, tmp_path / "pools", progress=False)
    groups = [measure_group(*item) for item in group_runs(read_runs(tmp_path / "pools")).items()]
    assert (len(groups), trends_of(groups)) == (2, [])
