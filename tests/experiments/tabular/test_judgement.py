"""The judgement of the tabular study on small made-up tables with known answers."""

import csv
import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from refocal import Focal
from refocal.experiments.strict import PAPER_TRIALS, STRICT
from refocal.experiments.sweeps import read_runs
from refocal.experiments.tabular.claims import claims, temperature_against_psi
from refocal.experiments.tabular.explained import OPEN, explanation, is_default
from refocal.experiments.tabular.judgement import (
    SPLIT_ALONE,
    counts,
    groups_of,
    judge,
    judgement,
    nearer,
    verdict_of,
    verdicts,
    z_score,
)
from refocal.experiments.tabular.outputs import _boxes, _claims, _temperature
from refocal.experiments.tabular.study import BINS, Experiment, Recipe, experiments_of
from refocal.experiments.tabular.tables import (
    Cell,
    Published,
    Table,
    csv_header,
    csv_rows,
    gather,
    published,
    table_of,
)

RESULTS = Path(__file__).parents[3] / "results" / "tabular"


def cell(mean, sd, paper=None, paper_sd=0.0, *, bold=False, paper_bold=False, n=10):
    """A cell of n trials with exactly this mean and standard deviation."""
    steps = np.linspace(-1, 1, n)
    values = mean + sd * steps / steps.std(ddof=1)
    known = None if paper is None else Published(paper, paper_sd, paper_bold)
    return Cell(tuple(values.tolist()), mean, sd / math.sqrt(n), bold, known)


def table(rows, model="linear", metric="ece"):
    columns = tuple(dict.fromkeys(name for row in rows.values() for name in row))
    made = dict.fromkeys(rows, (10, 50, 0.0, "CE", "", ""))
    return Table(model, metric, 15, columns, rows, made)


def test_the_strict_rule_has_no_floor():
    # sqrt(0.3^2 / 10 + 0.4^2 / 10) = 0.158: three of them are 0.474.
    rows = {
        "banana": {"CE": cell(5.47, 0.3, 5.0, 0.4), "FL-1": cell(5.48, 0.3, 5.0, 0.4)},
        "splice": {"CE": cell(6.1, 0.3, 5.0, 0.4), "FL-1": cell(3.7, 0.3, 5.0, 0.4)},
    }
    found = judge(table(rows), rows)
    assert [c.strict for c in found] == [True, False, False, False]
    assert [c.floor for c in found] == [True, True, False, False]
    assert [c.printed for c in found] == [True, True, True, False]  # 3 sqrt(0.3^2 / 10 + 0.4^2) = 1.23
    assert found[3].z == pytest.approx(-1.3 / (0.5 / math.sqrt(10)))
    assert found[3].difference == pytest.approx(-1.3)
    number = counts(found)
    assert (number["cells"], number["strict"], number["floor"], number["printed"]) == (4, 1, 2, 3)
    expected = np.array([0.47, 0.48, 1.1, -1.3]) / (0.5 / math.sqrt(10))
    assert number["z_mean"] == pytest.approx(expected.mean(), abs=1e-3)
    assert number["z_rms"] == pytest.approx(np.sqrt((expected**2).mean()), abs=1e-3)


def test_our_own_number_of_trials_counts_and_ten_are_the_papers():
    assert z_score(cell(1.0, 0.6, 0.0, 0.0, n=4)) == pytest.approx(1.0 / 0.3)
    assert z_score(cell(1.0, 0.0, 0.0, 1.0, n=4)) == pytest.approx(math.sqrt(10))


def test_cells_that_do_not_vary():
    assert z_score(cell(0.5, 0.0, 0.5)) == 0
    assert z_score(cell(0.4, 0.0, 0.5)) == -math.inf
    rows = {"mushroom": {"CE": cell(0.5, 0.0, 0.5), "FL-1": cell(0.6, 0.0, 0.5)}}
    found = judge(table(rows), rows)
    assert [(c.strict, c.floor) for c in found] == [(True, True), (False, True)]
    assert counts(found)["z_mean"] == 0  # of the finite one
    single = Cell((1.0,), 1.0, math.nan, False, Published(1.0, 0.1, False))
    assert judge(table({"banana": {"CE": single}}), ["banana"]) == []
    with pytest.raises(ValueError, match=r"^a z-score needs a published value and at least 2 trials$"):
        z_score(single)


def test_verdicts_signs_and_the_baseline():
    def pair(before, after, paper_before, paper_after, sd=0.1):
        return {"FL-1": cell(before, 0.1, paper_before, sd), "FL-1-psi": cell(after, 0.1, paper_after, sd)}

    rows = {
        "banana": pair(9.0, 2.0, 8.0, 1.0),  # helps in both
        "splice": pair(2.0, 9.0, 8.0, 1.0),  # helps in the paper only
        "vehicle": pair(1.0, 3.0, 1.0, 2.0),  # hurts in both
        "phoneme": pair(3.0, 1.0, 1.2, 1.0),  # not clear in the paper: 0.2 < 2 sqrt(2) 0.1
    }
    found = {v.dataset: v for v in verdicts(table(rows), rows)}
    assert {name: (v.helps, v.clear, v.agrees) for name, v in found.items()} == {
        "banana": (True, True, True),
        "splice": (True, True, False),
        "vehicle": (False, True, True),
        "phoneme": (True, False, True),
    }
    whole = judgement([table(rows)], [table({}, metric="error")], list(rows))
    assert whole["signs"] == {"pairs": 4, "agree": 3, "psi_always_helps_would_agree": 3}
    assert whole["clear_verdicts"] == {"pairs": 3, "agree": 2, "psi_always_helps_would_agree": 2}
    assert whole["wrong_signs"] == ["splice, linear, FL-1"]
    assert whole["data_sets"] == list(rows)
    assert [(c["dataset"], c["method"]) for c in whole["far"]][:2] == [
        ("splice", "FL-1"),
        ("splice", "FL-1-psi"),
    ]


def test_boldface_and_errors_are_counted():
    rows = {
        "banana": {
            "CE": cell(1.0, 0.1, 1.0, 0.1, bold=True, paper_bold=True),
            "FL-1": cell(2.0, 0.1, 2.0, 0.1, bold=True),
            "FL-2": cell(3.0, 0.1, 3.0, 0.1),
            "FL-2-psi": cell(2.0, 0.1, 2.0, 0.1),  # the rule says bold, the paper does not
        }
    }
    errors = {"banana": {"CE": cell(10.0, 0.1, 12.0, 0.1)}}
    whole = judgement([table(rows)], [table(errors, metric="error")], ["banana", "letter"])
    assert whole["boldface"] == {"cells": 4, "agree": 3, "ce_and_psi_bold_would_agree": 3}
    assert (whole["error"]["cells"], whole["error"]["strict"]) == (1, 0)
    assert [c["metric"] for c in whole["far"]] == ["error"]
    assert whole["ece_by_row"]["banana, linear"]["strict"] == 4
    assert whole["data_sets"] == ["banana"]


def test_a_verdict_is_clear_above_two_combined_brackets():
    def clear(gap):
        pair = (Published(gap, 3.0, False), Published(0.0, 4.0, False))
        return verdict_of("vehicle", "linear", "FL-1", pair, 1.0).clear

    assert [clear(gap) for gap in (10.0, 10.01)] == [False, True]


def test_groups_tell_what_was_chosen_by_a_data_set():
    assert groups_of(["letter", "mnist", "adult", "banana", "magic"]) == {
        "scaling and weight decay chosen by it": ["letter"],
        "version, pixels or test rows chosen by it": ["mnist", "adult"],
        "bins found by it": ["banana"],
        "bins not found by it": ["letter", "mnist", "adult", "magic"],
        SPLIT_ALONE: ["magic"],
    }
    rows = {name: {"CE": cell(1.0, 0.1, 1.0, 0.1)} for name in ("banana", "magic", "letter", "coil20")}
    errors = {name: {"CE": cell(5.0, 0.1, 9.0, 0.1)} for name in ("magic", "letter")}
    found = judgement([table(rows)], [table(errors, metric="error")], list(rows))
    assert {name: of["cells"] for name, of in found["ece_by_group"].items() if "bins" in name} == {
        "bins found by it": 1,  # banana
        "bins not found by it": 3,
    }
    assert found["ece_by_group"][SPLIT_ALONE]["strict"] == 1
    assert (
        found["error_by_group"][SPLIT_ALONE]["cells"],
        found["error_by_group"][SPLIT_ALONE]["strict"],
    ) == (1, 0)
    assert found["error_by_row"].keys() == {"magic, linear", "letter, linear"}


def test_claims_are_counted():
    rising = {
        "CE": cell(1.0, 0.1, 1.0, 0.1),
        "FL-1": cell(2.0, 0.1, 2.0, 0.1),
        "FL-2": cell(3.0, 0.1, 1.5, 0.1),
        "FL-1-psi": cell(0.5, 0.1, 1.0, 0.1),
        "FL-2-psi": cell(1.01, 0.1, 3.0, 0.1),
    }
    dip = rising | {"FL-2": cell(1.5, 0.1, 3.0, 0.1), "FL-1-psi": cell(4.0, 0.1, 1.0, 0.1)}
    rows = {"banana": rising, "splice": dip}
    scaled = {
        "banana": {"FL-1-TS-NLL": cell(0.4, 0.1), "FL-2-TS-NLL": cell(2.0, 0.1)},
        "splice": {"FL-1-TS-NLL": cell(math.nan, 0.1), "FL-2-TS-NLL": cell(1.0, 0.1)},
    }
    found = claims([table(rows)], ["banana", "splice", "adult"])
    linear = found["linear"]
    assert linear["data_sets"] == 2
    assert linear["ece_rises_with_every_gamma"] == 1  # banana here
    assert linear["ece_rises_with_every_gamma_published"] == 1  # splice there
    assert linear["data_sets_with_two_gammas"] == 2
    assert linear["largest_gamma_above_ce"] == 2
    assert linear["raw_above_ce"] == {
        "FL-1": {"data_sets": 2, "above": 2, "published": {"data_sets": 2, "above": 2}},
        "FL-2": {"data_sets": 2, "above": 2, "published": {"data_sets": 2, "above": 2}},
    }
    # Not below: splice FL-1 here, and FL-2 of banana as published; 3.0 of splice is equal there.
    below = {"pairs": 4, "below": 3, "published": {"pairs": 4, "below": 2}}
    assert found["psi_below_raw"] == linear["psi_below_raw"] == below
    against = linear["psi_against_ce"]
    # banana FL-1 better, splice FL-1 worse, the two of FL-2 within 0.01.
    assert [against[k] for k in ("clearly_better", "no_clear_difference", "clearly_worse")] == [1, 2, 1]
    assert (against["pairs"], against["within_1_point"]) == (4, 3)
    assert list(against["published"].values()) == [4, 0, 2, 2]
    counts = temperature_against_psi([table(rows)], [table(scaled)], ["banana", "splice", "adult"])
    # Of splice FL-1, which has no temperature, the raw score is below psi.
    assert counts == {"pairs": 4, "compared": 3, "smaller": 2, "smaller_with_1": 3}
    line, more = _temperature(counts)
    assert line.endswith("in 2 of the 3 comparisons in which it could be fitted in every trial.")
    assert more.endswith(" an error to fit it to; with a temperature of 1 there it is 3 of 4.")
    assert len(list(_temperature({"pairs": 2, "compared": 2, "smaller": 2, "smaller_with_1": 2}))) == 1
    assert not list(_temperature(temperature_against_psi([table({})], [table({})], ["banana"])))


def test_claims_do_not_depend_on_the_order_of_gammas():
    names = ("FL-3", "CE", "FL-10", "FL-0.5")
    row = {name: cell(mean, 0.1, mean, 0.1) for name, mean in zip(names, (3.0, 0.1, 10.0, 0.5), strict=True)}
    other = Focal(2.0, label_smoothing=0.1)  # has no gamma that could be compared
    linear = claims([table({"banana": row | {str(other): cell(99.0, 0.1)}})], ["banana"])["linear"]
    assert linear["ece_rises_with_every_gamma"] == linear["ece_rises_with_every_gamma_published"] == 1
    assert linear["largest_gamma_above_ce"] == 1
    assert list(linear["raw_above_ce"]) == ["FL-0.5", "FL-3", "FL-10"]


def test_a_claim_needs_what_it_is_about():
    """One gamma cannot rise, and without cross entropy nothing is above it."""
    pair = {"FL-2": cell(2.0, 0.1, 2.0, 0.1), "FL-2-psi": cell(1.0, 0.1, 1.0, 0.1)}
    alone = claims([table({"banana": pair})], ["banana"])
    assert alone["linear"]["data_sets"] == 1
    assert alone["linear"]["data_sets_with_two_gammas"] == alone["linear"]["ece_rises_with_every_gamma"] == 0
    two = claims([table({"banana": pair | {"FL-1": cell(1.0, 0.1)}})], ["banana"])
    assert two["linear"]["ece_rises_with_every_gamma"] == two["linear"]["data_sets_with_two_gammas"] == 1
    for found in (alone, two):
        assert (found["linear"]["largest_gamma_above_ce"], found["linear"]["raw_above_ce"]) == (0, {})
        assert found["linear"]["psi_against_ce"]["pairs"] == 0
    text = "\n".join(_claims({15: alone}))
    assert text == (
        "- 15 bins, linear: pairs in which psi has a smaller mean ECE than raw: 1 of 1 (published: 1 of 1)."
    )
    assert "the raw ECE rises with every step of gamma: 1 of 1.\n" in "\n".join(_claims({15: two}))


def test_data_sets_of_different_gammas_count_by_their_own():
    rows = {
        "banana": {"CE": cell(1.0, 0.1), "FL-1": cell(2.0, 0.1), "FL-1-psi": cell(1.0, 0.1)},
        "splice": {"CE": cell(3.0, 0.1), "FL-2": cell(2.0, 0.1), "FL-2-psi": cell(1.0, 0.1)},
    }
    linear = claims([table(rows)], list(rows))["linear"]
    assert (linear["ece_rises_with_every_gamma"], linear["data_sets_with_two_gammas"]) == (1, 2)
    assert (linear["largest_gamma_above_ce"], linear["psi_against_ce"]["pairs"]) == (1, 2)
    assert {name: (of["above"], of["data_sets"]) for name, of in linear["raw_above_ce"].items()} == {
        "FL-1": (1, 1),
        "FL-2": (0, 1),
    }


def test_one_trial_says_nothing_of_a_difference():
    one = {
        name: Cell((mean,), mean, math.nan, False, None)
        for name, mean in (("CE", 1.0), ("FL-1", 2.0), ("FL-1-psi", 0.5))
    }
    linear = claims([table({"banana": one})], ["banana"])["linear"]
    against = linear["psi_against_ce"]
    assert [against[k] for k in ("pairs", "clearly_better", "no_clear_difference", "clearly_worse")] == [
        0
    ] * 4
    text = "\n".join(_claims({15: {"linear": linear}}))
    assert "psi against cross entropy" not in text
    assert "None" not in text


def test_the_table_of_cells_has_both_numbers_of_bins_beside_each_other():
    many = table({"banana": {"CE": cell(2.0, 0.0, 1.5, 0.1, bold=True)}})
    few = dataclasses.replace(
        many,
        n_bins=10,
        rows={"banana": {"CE": cell(1.0, 0.0, 1.5, 0.1)}, "old": {"CE": cell(3.0, 0.0)}},
        made=many.made | {"old": (10, 50, 0.0, "CE", "", "")},
    )
    header = csv_header([10])
    first, second = (dict(zip(header, row, strict=True)) for row in csv_rows([many, few], 1))
    assert (first["n_bins"], first["mean"], first["bold"], first["mean_10_bins"]) == (15, 2.0, 1, 1.0)
    assert (first["paper_mean"], first["paper_spread"], first["paper_bold"]) == (1.5, 0.1, 0)
    # A data set that was measured with 10 bins only: nothing stands in the columns of 15.
    assert (second["dataset"], second["mean"], second["se"], second["mean_10_bins"]) == ("old", "", "", 3.0)
    (error,) = csv_rows([dataclasses.replace(many, metric="error", n_bins=None)], 1)
    assert dict(zip(header, error, strict=True))["mean_10_bins"] == ""


def test_every_cell_has_a_word_on_what_was_tried():
    assert explanation("usps", "linear", "ece", 5.0).startswith("open: the version")
    assert explanation("vehicle", "linear", "ece", -2.9).startswith("within the strict rule")
    assert (
        explanation("vehicle", "linear", "error", 3.1)
        == explanation("vehicle", "linear", "ece", None)
        == OPEN
    )
    assert "6 of 28,220" in explanation("mushroom", "mlp", "error", -3.2)
    # A cause that was looked for by one model says nothing of the other.
    assert explanation("banana", "linear", "error", 3.1) == OPEN != explanation("banana", "mlp", "error", 3.1)
    assert explanation("mushroom", "mlp", "ece", -3.2) == OPEN
    # Under another protocol nobody looked for a cause.
    assert explanation("usps", "linear", "ece", 5.0, default=False) == explanation(
        "vehicle", "linear", "ece", 5.0, default=False
    )
    assert explanation("usps", "linear", "ece", 5.0, default=False) == "-"
    assert explanation("usps", "linear", "ece", 1.0, default=False).startswith("within the strict rule")


def test_a_chance_of_1_in_130_is_that_of_two_means_of_ten_trials():
    assert 1 / (2 * stats.t.sf(STRICT, 2 * PAPER_TRIALS - 2)) == pytest.approx(130, abs=0.5)


@pytest.mark.parametrize(
    "other",
    [
        {"scaling": "standard"},
        {"scaling": "pixels"},
        {"train_fraction": 0.9},
        {"task": "original"},
        {"objectives": (Focal(0.0),)},
        {"recipe": Recipe(epochs=1)},
        {"trials": (0,)},
    ],
)
def test_explanations_are_of_the_default_protocol(other):
    as_loaded = Experiment("usps", seed=7, n_bins=(10, 15), train_fraction=0.5, scaling="whole")
    assert is_default(as_loaded.config(), 10)
    changed = dataclasses.replace(as_loaded, **other)
    assert not is_default(changed.config(), len(changed.trials))
    assert is_default(Experiment("mnist", scaling="pixels").config(), 10)


def test_every_cell_that_misses_the_strict_rule_is_listed():
    rows = {"banana": {"CE": cell(5.0, 0.1, 5.0, 0.1), "FL-1": cell(5.5, 0.1, 5.0, 0.1)}}
    errors = {"banana": {"CE": cell(10.0, 0.1, 10.0, 0.1), "FL-1": cell(10.9, 0.1, 10.0, 0.1)}}
    whole = judgement([table(rows)], [table(errors, metric="error")], ["banana"])
    assert [(c["metric"], c["method"]) for c in whole["not_strict"]] == [("ece", "FL-1"), ("error", "FL-1")]


def test_published_numbers_have_their_boldface():
    assert published()["Australian", "linear", "CE", "ece"] == (4.10, 1.40, True)
    assert published()["Australian", "linear", "FL-1", "ece"] == (8.83, 2.37, False)


def test_runs_of_before_keep_their_identity_and_are_read():
    (experiment,) = experiments_of(["vehicle"], models=["linear"])
    assert set(BINS) < set(experiment.n_bins)
    assert experiment.config()["n_bins"] == list(range(8, 26))
    assert Experiment.from_config(experiment.config()) == experiment
    (more,) = experiments_of(["vehicle"], models=["linear"], bins=[30])
    assert more.n_bins == (*experiment.n_bins, 30)
    old = dataclasses.replace(experiment, n_bins=10)
    assert old.config()["n_bins"] == 10
    assert Experiment.from_config(old.config()) == old


@pytest.mark.skipif(not (RESULTS / "runs").is_dir(), reason="the results are not part of an installation")
def test_the_stored_runs_give_the_stored_tables():
    runs = [run for run in read_runs(RESULTS) if run.config["dataset"] in ("vehicle", "banknote")]
    assert len(runs) == 4
    stored = (RESULTS / "tables.csv").read_text().splitlines()
    names = stored[0].split(",")
    for n_bins, column in ((15, "mean"), (10, "mean_10_bins")):
        found = table_of(gather(runs), "linear", "ece", n_bins=n_bins).rows["vehicle"]["FL-2-psi"]
        (row,) = (line.split(",") for line in stored if line.startswith("vehicle,linear,ece,FL-2-psi,"))
        assert float(row[names.index(column)]) == pytest.approx(found.mean, rel=1e-9)


@pytest.mark.skipif(not (RESULTS / "runs").is_dir(), reason="the results are not part of an installation")
def test_the_stored_list_has_every_cell_that_misses_the_strict_rule():
    summary = json.loads((RESULTS / "summary.json").read_text())
    for found in summary["judgement"].values():
        for metric in ("ece", "error"):
            misses = sum(c["metric"] == metric for c in found["not_strict"])
            assert misses == found[metric]["cells"] - found[metric]["strict"] > 0
    text = (RESULTS / "tables.md").read_text().split("do not meet the strict rule: ")[1].split("\n### ")[0]
    listed = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    for metric in ("ece", "error"):
        found = summary["judgement"]["15"][metric]
        assert sum(row[1] == metric for row in listed) == found["cells"] - found["strict"]
    assert all(row[-1].startswith("open: ") for row in listed)


@pytest.mark.skipif(not (RESULTS / "runs").is_dir(), reason="the results are not part of an installation")
def test_the_stored_claims_are_those_of_the_stored_table():
    """Counted again from the cells of tables.csv."""
    with open(RESULTS / "tables.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "ece"]
    summary = json.loads((RESULTS / "summary.json").read_text())
    for bins, column in (("15", "mean"), ("10", "mean_10_bins")):
        judged = summary["judgement"][bins]["data_sets"]
        below = {"ours": 0, "published": 0}
        for model in ("linear", "mlp"):
            claim = summary["claims"][bins][model]
            for name, ours in (("ours", column), ("published", "paper_mean")):
                mean = {(r["dataset"], r["method"]): r[ours] for r in rows if r["model"] == model}
                pairs = [(float(mean[d, "CE"]), float(mean[d, "FL-3"])) for d in judged]
                said = claim["raw_above_ce"]["FL-3"]
                said = said["published"] if name == "published" else said
                assert (said["above"], said["data_sets"]) == (sum(ce < fl for ce, fl in pairs), len(judged))
                below[name] += sum(
                    float(mean[d, f"FL-{g}-psi"]) < float(mean[d, f"FL-{g}"])
                    for d in judged
                    for g in (1, 2, 3)
                )
        said = summary["claims"][bins]["psi_below_raw"]
        assert (said["below"], said["published"]["below"]) == (below["ours"], below["published"])
        assert said["pairs"] == said["published"]["pairs"] == 2 * 3 * len(judged)


def test_tables_that_are_nearer_by_one_of_two_judgements():
    first = {"ece_by_row": {"a, linear": {"z_rms": 1.0}, "a, mlp": {"z_rms": 2.0}, "b, mlp": {"z_rms": None}}}
    second = {"ece_by_row": {"a, linear": {"z_rms": 1.5}, "a, mlp": {"z_rms": 2.0}, "b, mlp": {"z_rms": 1.0}}}
    found = nearer(first, second, {"all": ["a", "b"], "b": ["b"]})
    assert found == {"all": {"tables": 2, "nearer": 1}, "b": {"tables": 0, "nearer": 0}}


def test_the_boxes_of_psi_are_those_after_psi():
    row = {"CE": cell(1.0, 0.1), "FL-1": cell(2.0, 0.1), "FL-1-psi": cell(9.0, 0.1)}
    (ax,) = _boxes(table({"mine": row})).axes
    assert ax.get_ylim()[1] > 9
