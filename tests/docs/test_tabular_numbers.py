"""Numbers that pages say of the tabular study, counted again from the stored tables."""

import csv
import json
import math
import re
import shutil
from functools import cache

import numpy as np
import pytest
from pages import DOCS, ROOT
from scipy import stats

from refocal.experiments.sweeps import read_runs
from refocal.experiments.tabular import report
from refocal.experiments.tabular.judgement import SPLIT_ALONE
from refocal.experiments.tabular.tables import gather, table_of

FOLDER = ROOT / "results" / "tabular"
FOUND = (
    *("australian", "vehicle", "phoneme", "banknote", "phishing", "spambase"),
    *("twonorm", "ringnorm", "banana", "splice", "satimage", "mushroom"),
)
LITTLE_USED = ("magic", "artificial-characters", "adult", "fashion-mnist")
"""The first two by the split alone; of the others a version and the test rows were chosen."""


def flat(path):
    return " ".join(path.read_text(encoding="utf-8").split())


PAGE, PROTOCOL = flat(FOLDER / "README.md"), flat(DOCS / "reproduce.md")
RESULTS = flat(ROOT / "results" / "README.md")
LISTED = flat(FOLDER / "tables.md")
FIRST, ADVICE = flat(ROOT / "README.md"), flat(DOCS / "start" / "which-correction.md")


@cache
def rows(name):
    with open(FOLDER / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def log(**wanted):
    """Rows of the log of the search with these values."""
    return [row for row in rows("search.csv") if all(row[name] == value for name, value in wanted.items())]


def strict(some):
    return sum(row["strict"] == "1" for row in some)


def rms(some):
    return math.sqrt(np.mean([float(row["z"]) ** 2 for row in some]))


def mean_z(some):
    return np.mean([float(row["z"]) for row in some])


def scan(bins, *, inside=None, outside=()):
    """Cells of the study with so many bins."""
    of = log(runs="study", n_bins=str(bins))
    return [row for row in of if (not inside or row["dataset"] in inside) and row["dataset"] not in outside]


def summary():
    return json.loads((FOLDER / "summary.json").read_text(encoding="utf-8"))


def test_the_log_of_bins_is_that_of_the_summary():
    for bins in (10, 15):
        assert strict(scan(bins)) == summary()["judgement"][str(bins)]["ece"]["strict"]


def test_the_data_sets_that_little_was_chosen_by():
    rows_of, words = {}, {}
    for n in (2, 3, 4):
        some = LITTLE_USED[:n]
        of = [
            scan(15, inside=some),
            scan(10, inside=some),
            [row for row in log(runs="study", metric="error") if row["dataset"] in some],
        ]
        words[n] = [f"{strict(cells)} of {len(cells)}" for cells in of]
        rows_of[n] = f" | {' | '.join(words[n])} |"
    for n, start in ((2, "magic, artificial-characters"), (3, "and adult"), (4, "and fashion-mnist")):
        (line,) = re.findall(rf"\| {start}: [^|]*(\|[^|]*\|[^|]*\|[^|]*\|)", PAGE)
        assert f" {line}" == rows_of[n]
    of = summary()["judgement"]["15"]
    for metric, at in (("ece", 0), ("error", 2)):
        group = of[f"{metric}_by_group"][SPLIT_ALONE]
        assert f"{group['strict']} of {group['cells']}" == words[2][at]
    assert f"used a little (Adult, Fashion-MNIST) {words[4][0]} and {words[4][2]}." in RESULTS
    assert f"with Adult and Fashion-MNIST {words[4][0]}. Taken" in RESULTS
    assert f"{words[4][2]} with Adult and Fashion-MNIST |" in RESULTS


def test_how_many_cells_would_miss_by_chance():
    """By Student's t with the degrees of freedom of two means of ten trials of equal spread."""
    tail = 2 * stats.t.sf(3, 18)
    assert f"About {tail * 364:.0f} of 364 would miss by chance" in PAGE
    assert f"where about {tail * 208:.0f} would miss by chance" in PAGE
    assert f"by chance about {tail * 364:.0f} and {tail * 208:.0f} would miss" in RESULTS
    assert f"the rms z would be {math.sqrt(18 / 16):.2f}" in PAGE


def test_bins_where_they_were_found_and_elsewhere():
    ten, fifteen = scan(10, inside=FOUND), scan(15, inside=FOUND)
    said = f"{strict(ten)} of 168 cells agree with 10 bins (rms z {rms(ten):.2f}) and "
    assert said + f"all {strict(fifteen)} with 15 ({rms(fifteen):.2f})" in PAGE
    assert f"found by ({strict(ten)} and {strict(fifteen)} of 168)" in PROTOCOL
    ten, fifteen = scan(10, outside=FOUND), scan(15, outside=FOUND)
    assert len(ten) == len(fifteen) == 196
    said = f"{strict(ten)} of 196 agree with 10 bins (mean z {mean_z(ten):.2f}, rms {rms(ten):.2f}) and "
    assert said + f"{strict(fifteen)} with 15 ({mean_z(fifteen):.2f}, {rms(fifteen):.2f})" in PAGE
    assert strict(ten) == strict(fifteen)
    assert f"15 is no better than 10 ({strict(ten)} of 196 with both)" in RESULTS
    said = f"on the other fourteen it is {strict(ten)} of 196 with both, so by this count they do "
    assert said + f"not confirm it (the rms z is {rms(ten):.2f} and {rms(fifteen):.2f};" in PROTOCOL
    counts = [strict(scan(bins, outside=FOUND)) for bins in range(10, 21)]
    assert f"every number from 10 to 20 gives {min(counts)} to {max(counts)}" in PAGE


def test_what_each_criterion_says_of_the_bins():
    every = {bins: scan(bins) for bins in range(8, 26)}
    assert max(every, key=lambda n: strict(every[n])) == min(every, key=lambda n: rms(every[n])) == 15
    distance = {n: np.mean([abs(float(r["difference"])) for r in some]) for n, some in every.items()}
    assert min(distance, key=distance.get) == 13
    assert f"smallest with 13 ({distance[13]:.3f} points, {distance[15]:.3f} with 15)" in PAGE
    assert mean_z(every[10]) < mean_z(every[9])  # more bins usually raise the ECE, not here
    ten, fifteen = every[10], every[15]
    counts = f"{strict(ten)} of 364 cells meet the strict rule with 10 bins"
    assert f"{counts} (mean z {mean_z(ten):.2f}, rms {rms(ten):.2f}), {strict(fifteen)} with 15 " in PAGE
    assert f"({mean_z(fifteen):.2f}, {rms(fifteen):.2f}), the most of" in PAGE
    assert f"{counts} and {strict(fifteen)} with 15." in PROTOCOL
    for share, some in (("15 bins, the best", fifteen), ("the 10 of the text.**", ten)):
        percent = f"{strict(some) / len(some):.1%}".replace("%", " %")
        assert f"{percent} of the ECE cells agree with {share}" in PAGE or f"{percent} with {share}" in PAGE
    below = [sum(float(row["difference"]) < 0 for row in some) for some in (ten, fifteen)]
    said = f"in {below[0]} of 364 cells (mean z {mean_z(ten):.2f}), with 15 in {below[1]} "
    assert said + f"({mean_z(fifteen):.2f})" in PROTOCOL

    def signs(some):
        mean = {
            (r["dataset"], r["model"], r["method"]): (float(r["mean"]), float(r["published"])) for r in some
        }
        pairs = [(mean[d, m, g], mean[d, m, f"{g}-psi"]) for d, m, g in mean if (d, m, f"{g}-psi") in mean]
        return sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in pairs)

    by_bins = {n: signs(some) for n, some in every.items()}
    assert max(by_bins, key=by_bins.get) == 13
    assert f"most signs with 13 ({by_bins[13]}; {by_bins[15]})" in PAGE


def test_tables_that_are_nearer_with_15_bins():
    every = {bins: scan(bins) for bins in (10, 15)}
    tables = sorted({(row["dataset"], row["model"]) for row in every[15]})

    def of(bins, table):
        return rms([row for row in every[bins] if (row["dataset"], row["model"]) == table])

    with15 = [table for table in tables if of(15, table) < of(10, table)]
    found = [table for table in with15 if table[0] in FOUND]
    counts = (len(with15), len(tables), len(found), 2 * len(FOUND), len(with15) - len(found))
    words = "smaller with 15 than with 10 in {} of {} tables (a data set and a model), "
    words += "in {} of {} where 15 was found and in {} of {} elsewhere"
    assert words.format(*counts, len(tables) - 2 * len(FOUND)) in PAGE
    stored = summary()["nearer"]["15 than 10"]
    assert [stored[name]["nearer"] for name in stored] == [counts[0], counts[2], counts[4]]


def test_the_scaling_by_the_training_part_and_by_all_rows():
    half = {"train_fraction": "0.5", "weight_decay": "0", "task": "paper"}
    sides = [{"runs": "search", "scaling": "standard"}, {"runs": "study", "scaling": "whole"}]
    cells, errors = (
        [log(**half, **side, **what) for side in sides] for what in ({"n_bins": "15"}, {"metric": "error"})
    )
    assert len({row["dataset"] for row in cells[0]}) == 24
    total = [f"{strict(some)} of 336, {rms(some):.2f}" for some in cells]
    assert f"| all 24 data sets | {total[0]} | {total[1]} |" in PAGE
    assert (
        f"{strict(cells[1])} of 336 ECE cells of the 24 data sets of tables meet the strict rule, "
        f"{strict(cells[0])} with" in PROTOCOL
    )
    three = ("basehock", "isolet", "coil20")
    rest = [[row for row in some if row["dataset"] not in three] for some in cells]
    assert f"cannot tell ({strict(rest[0])} and {strict(rest[1])} of {len(rest[0])} cells)" in PAGE
    assert f"the errors of all 24 ({strict(errors[0])} and {strict(errors[1])} of {len(errors[0])})" in PAGE
    for name in three:
        told = []
        for some in cells:
            of = [
                [row for row in some if (row["dataset"], row["model"]) == (name, m)]
                for m in ("linear", "mlp")
            ]
            told.append("; ".join(f"{strict(x)} of 7, {rms(x):.2f}" for x in of))
        assert f"| {name}, linear; network | {told[0]} | {told[1]} |" in PAGE
    told = [
        [row for row in some if (row["dataset"], row["model"]) == ("coil20", "linear")] for some in errors
    ]
    assert (
        f"| coil20, linear: errors | {' | '.join(f'{strict(x)} of 4, {rms(x):.2f}' for x in told)} |" in PAGE
    )


def test_the_table_of_splits_and_weight_decays():
    small = {row["dataset"] for row in log(runs="search", train_fraction="0.9")}
    assert len(small) == 10
    told = re.findall(
        r"\| (0\.\d) \| ([\d.]+) \| (\d+ of 140), ([\d.]+) \| (\d+ of 140), ([\d.]+) "
        r"\| (\d+ of 80), ([\d.]+) \|",
        PAGE,
    )
    assert len(told) == 7
    for part, decay, *said in told:
        of = [
            r
            for r in log(runs="search", train_fraction=part, weight_decay=decay, scaling="standard")
            if r["dataset"] in small and r["task"] == "paper"
        ]
        sums = [
            [r for r in of if r["n_bins"] == "10"],
            [r for r in of if r["n_bins"] == "15"],
            [r for r in of if r["metric"] == "error"],
        ]
        assert said == [x for some in sums for x in (f"{strict(some)} of {len(some)}", f"{rms(some):.2f}")]


def test_the_weight_decay_of_the_text():
    half = {"runs": "search", "train_fraction": "0.5", "scaling": "standard", "task": "paper"}
    sets = {row["dataset"] for row in log(**half, weight_decay="0.001")}
    assert len(sets) == 16
    count = {}
    for decay, name in (("0", "0"), ("0.001", "0.001, as the text says")):
        for bins in ("10", "15"):
            of = [row for row in log(**half, weight_decay=decay, n_bins=bins) if row["dataset"] in sets]
            count[decay, bins] = strict(of)
            assert f"| {name} | {bins} | {strict(of)} of {len(of)} | {rms(of):.2f} | 87 of 87 |" in PAGE
    assert f"{count['0.001', '15']} strict cells of 224 against {count['0', '15']}" in PROTOCOL
    assert (
        f"{count['0.001', '15']} of 224 strict cells against {count['0', '15']}, the same 87 of 87 verdicts"
        in RESULTS
    )


def test_every_row_of_the_short_table_is_that_of_the_summary():
    judged = [summary()["judgement"][bins] for bins in ("15", "10")]
    rules = {
        "strict": "strict",
        "floor": "strict or within 1 point",
        "printed": "strict with brackets as standard errors",
    }
    lines = {}
    for metric in ("ece", "error"):
        for rule, title in rules.items():
            lines[f"{metric} cells, {title}"] = [
                f"{of[metric][rule]} of {of[metric]['cells']}" for of in judged
            ]
        of_unused = [of[f"{metric}_by_group"][SPLIT_ALONE] for of in judged]
        lines[f"{metric} cells, strict, data sets that only the split was chosen by"] = [
            f"{of['strict']} of {of['cells']}" for of in of_unused
        ]
    printed = [of["ece"]["printed"] for of in judged]
    assert printed[0] == printed[1]
    assert f"**taken as printed, {printed[0]} of 364 ECE cells agree with 15 bins, and as many" in PAGE
    assert f"by which {printed[0]} of 364 ECE cells agree with 10 bins and with 15" in PROTOCOL
    far = [sum(cell["metric"] == "ece" for cell in of["far"]) for of in judged]
    assert f"| ECE cells off by more than 1 point | {far[0]} | {far[1]} |" in PAGE
    helps = [
        [f"{of[name]['psi_always_helps_would_agree']} of {of[name]['pairs']}" for of in judged]
        for name in ("clear_verdicts", "signs")
    ]
    bold = [f"{of['boldface']['ce_and_psi_bold_would_agree']} of {of['boldface']['cells']}" for of in judged]
    lines["clear verdicts on psi"] = [
        f"{of['clear_verdicts']['agree']} of {of['clear_verdicts']['pairs']}" for of in judged
    ]
    lines["all signs of psi"] = [f"{of['signs']['agree']} of {of['signs']['pairs']}" for of in judged]
    lines["boldface as published"] = [
        f"{of['boldface']['agree']} of {of['boldface']['cells']}" for of in judged
    ]
    for title, (fifteen, ten) in lines.items():
        assert f"| {title} | {fifteen} | {ten} |" in PAGE
    for fifteen, ten in helps:
        assert f"| ... that 'psi always helps' would meet | {fifteen} | {ten} |" in PAGE
    assert f"| ... that 'CE and psi bold' would meet | {bold[0]} | {bold[1]} |" in PAGE
    agree = judged[0]["signs"]["agree"]
    assert f"nearly all signs ({helps[1][0]}, we have {agree})" in PROTOCOL
    assert f'cell bold" {bold[0]} boldfaces (we have {judged[0]["boldface"]["agree"]})' in PROTOCOL


def test_the_baselines_are_those_of_the_published_numbers():
    with open(ROOT / "src/refocal/experiments/published.csv", newline="", encoding="utf-8") as file:
        of = [row for row in csv.DictReader(file) if (row["paradigm"], row["metric"]) == ("standard", "ece")]
    alias = {"artificial-character": "artificial-characters", "japanesevowels": "japanese-vowels"}
    names = {row["dataset"]: alias.get(row["dataset"].lower(), row["dataset"].lower()) for row in of}
    judged = {row["dataset"] for row in scan(15)}
    cells = {(names[r["dataset"]], r["model"], r["method"]): r for r in of if names[r["dataset"]] in judged}
    found = summary()["judgement"]["15"]
    by_rule = [(m == "CE" or m.endswith("psi")) == (row["bold"] == "1") for (_, _, m), row in cells.items()]
    assert (sum(by_rule), len(by_rule)) == (
        found["boldface"]["ce_and_psi_bold_would_agree"],
        found["boldface"]["cells"],
    )
    pairs = [
        (row, cells[d, m, f"{g}-psi"]) for (d, m, g), row in cells.items() if (d, m, f"{g}-psi") in cells
    ]
    helps = sum(float(raw["mean"]) > float(psi["mean"]) for raw, psi in pairs)
    assert (helps, len(pairs)) == (found["signs"]["psi_always_helps_would_agree"], found["signs"]["pairs"])


def table(metric):
    """Cells of the judged tables."""
    judged = {row["dataset"] for row in scan(15)}
    return [row for row in rows("tables.csv") if row["metric"] == metric and row["dataset"] in judged]


@pytest.mark.parametrize("metric, words", [("ece", "{} (ECE)"), ("error", "{} (error)")])
def test_published_brackets_are_standard_deviations(metric, words):
    logs = []
    for row in table(metric):
        sd, bracket = float(row["se"]) * math.sqrt(10), float(row["paper_spread"] or "nan")
        if sd > 0 and bracket > 0:
            logs.append(math.log(sd / bracket))
    assert words.format(f"{math.exp(np.mean(logs)):.2f}") in PROTOCOL


def test_by_how_much_a_temperature_has_the_smaller_nll():
    of = {(r["dataset"], r["model"], r["method"]): float(r["mean"] or "nan") for r in table("nll")}
    gaps = {
        (d, m, name): of[d, m, name.replace("-psi", "-TS-NLL")] - value
        for (d, m, name), value in of.items()
        if re.fullmatch(r"FL-\d-psi", name)
    }
    fitted = {key: gap for key, gap in gaps.items() if math.isfinite(gap)}
    assert (len(gaps), len(fitted)) == (156, 142)
    middle = np.median(list(fitted.values()))
    assert f"the median difference is only {middle:.3f}" in ADVICE
    assert f"120 of 142 comparisons, by {-middle:.3f} in the median" in FIRST
    rest = [key for key in gaps if key not in fitted]
    assert len(rest) == 14
    assert "with a temperature of 1 there, psi has the smaller NLL in all of them: 120 of 156" in PAGE
    assert summary()["temperature_against_psi"] == {
        "pairs": 156,
        "compared": 142,
        "smaller": sum(gap < 0 for gap in fitted.values()),
        "smaller_with_1": 120,
    }
    n_test = {run.config["dataset"]: run.result["n_test"] for run in study()}
    used = np.median([n_test[dataset] / 2 for dataset, _, _ in fitted])
    assert f"half of the test part, {10 * round(used / 10):,} in the median" in ADVICE


@cache
def study():
    return [run for run in read_runs(FOLDER) if not run.result["partial"]]


def test_a_temperature_that_cannot_be_fitted_counts_as_1():
    """From the trials: the raw NLL where half of the test rows had no error."""
    of = {
        (metric, model): table_of(gather(study()), model, "nll", n_bins=15, extra=metric == "ts")
        for metric in ("nll", "ts")
        for model in ("linear", "mlp")
    }
    psi_smaller = few = 0
    for model in ("linear", "mlp"):
        for dataset, row in of["nll", model].rows.items():
            for gamma in (1, 2, 3):
                ts = np.array(of["ts", model].rows[dataset][f"FL-{gamma}-TS-NLL"].values)
                if missing := int(np.isnan(ts).sum()):
                    filled = np.where(np.isnan(ts), row[f"FL-{gamma}"].values, ts)
                    psi_smaller += np.mean(row[f"FL-{gamma}-psi"].values) < filled.mean()
                    few += missing <= 3
    assert (psi_smaller, few) == (14, 5)
    assert "(in five of them 1 to 3 of the 10)" in PAGE


LABELS = ("10", "30", "100", "300", "1000", "3000")


def label_means(measure):
    """Mean of each method by data set and model, then number of labels and method."""
    found = {}
    for row in rows("labels.csv"):
        if row["measure"] == measure:
            of = found.setdefault((row["dataset"], row["model"]), {}).setdefault(row["labels"], {})
            of[row["method"]] = float(row["mean"])
    return found


def test_the_temperature_by_number_of_labels():
    of = label_means("ece")
    below, gaps = [], []
    for n in LABELS:
        pairs = [means[n] for means in of.values() if n in means]
        below.append(f"{sum(pair['ts_nll'] < pair['psi'] for pair in pairs)} of {len(pairs)}")
        gaps.append(f"{np.median([pair['ts_nll'] - pair['psi'] for pair in pairs]):.1f}")
    assert f"| temperature (NLL) has the smaller mean ECE | {' | '.join(below)} |" in PAGE
    assert f"| its ECE minus that of psi, median, in points | {' | '.join(gaps)} |" in PAGE
    assert f"with 1,000 labels in {below[4]} models" in PROTOCOL
    assert f"smaller ECE in {below[4]} models, with 100 labels in {below[2]}. Fitted" in FIRST
    assert (
        f"With 100 labels its ECE was the smaller one in {below[2]} models, with 1,000 in {below[4]}, and"
        in ADVICE
    )
    chosen = [
        sum(means[n]["chosen"] < means[n]["psi"] for means in of.values() if n in means)
        for n in ("100", "1000")
    ]
    said = f"what `choose_calibration` takes in {chosen[0]} of 52 and {chosen[1]} of 36:"
    assert said in ADVICE
    said = f"With 100 labels a fitted temperature has the smaller ECE in {below[2]} models, with 1,000 in "
    assert said + f"{below[4]}:" in RESULTS
    last = [list(means.values())[-1] for means in of.values()]
    assert f"ECE in {sum(x['ts_nll'] < x['psi'] for x in last)} of {len(last)} (next section)" in PAGE


def test_crossing_points_can_be_read_from_each_row():
    """By the numbers of the file: "temperature / psi" for each number of labels."""
    text = (FOLDER / "labels.md").read_text(encoding="utf-8")
    for measure, digits, part in (
        ("ece", 2, text.split("## Each data set")[1]),
        ("nll", 3, text.split("## Each data set")[2]),
    ):
        for (dataset, model), means in label_means(measure).items():
            (line,) = (line for line in part.splitlines() if line.startswith(f"| {dataset}, {model} |"))
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            for n, cell in zip(LABELS, cells[3:9], strict=True):
                pair = means.get(n)
                assert cell == (f"{pair['ts_nll']:.{digits}f} / {pair['psi']:.{digits}f}" if pair else "–")
            below = [(n, pair["ts_nll"] < pair["psi"]) for n, pair in means.items()]
            point = "never"
            for n, is_below in reversed(below):
                if not is_below:
                    break
                point = n
            assert cells[9] == point


def test_the_medians_of_the_crossing_points():
    for models, title in (
        (("linear",), "linear"),
        (("mlp",), "one hidden layer"),
        (("linear", "mlp"), "both"),
    ):
        told = []
        for method in ("ts_nll", "focal_ts", "chosen"):
            points = []
            for (_, model), means in label_means("ece").items():
                if model in models:
                    point = math.inf
                    for n, pair in reversed(means.items()):
                        if not pair[method] < pair["psi"]:
                            break
                        point = int(n)
                    points.append(point)
            middle = sorted(points)[len(points) // 2]
            told.append(f"{middle:,} (never: {sum(map(math.isinf, points))} of {len(points)})")
        assert f"| {title}: median | {' | '.join(told)} |" in PAGE
    never = [
        list(means)[-1]
        for means in label_means("ece").values()
        if list(means.values())[-1]["ts_nll"] >= list(means.values())[-1]["psi"]
    ]
    counts = [never.count(n) for n in ("100", "300", "1000", "3000")]
    assert sum(counts) == len(never)
    words = "Of the {} models that is 100 labels for {}, 300 for {}, 1,000 for {} and 3,000 for {};"
    assert words.format(len(never), *counts) in PAGE


DECAYS = ("0", "0.0001", "0.0005", "0.001")
SHIFTED = (
    *((dataset, "linear") for dataset in ("satimage", "pendigits", "japanese-vowels", "image")),
    ("banana", "mlp"),
)


def test_what_the_log_says_of_errors_that_miss():
    satimage, banana = {"dataset": "satimage", "model": "linear"}, {"dataset": "banana", "model": "mlp"}
    few = {"runs": "search", "metric": "error", "trials": "5"}
    text = rms(log(**satimage, **few, weight_decay="0.001"))
    cells = table_of(gather(study()), "linear", "error", n_bins=15).rows["satimage"].values()
    first = [
        (np.mean(cell.values[:5]) - cell.published.mean)
        / math.hypot(np.std(cell.values[:5], ddof=1) / math.sqrt(5), cell.published.spread / math.sqrt(10))
        for cell in cells
    ]
    first = math.sqrt(np.mean(np.square(first)))
    assert f"(rms z {text:.2f}, but the first five trials of the study have {first:.2f})" in PAGE
    assert f"5 trials (rms z {text:.2f}), but so do the first 5 trials of the study ({first:.2f};" in LISTED
    other, half = (
        sorted(rms(log(**banana, **few, train_fraction=part, weight_decay=decay)) for decay in DECAYS)
        for part in ("0.6", "0.5")
    )
    words = "{:.2f} to {:.2f}{} with half of the rows and 5 trials {:.2f} to {:.2f})"
    assert words.format(other[0], other[-1], ",", half[0], half[-1]) in PAGE
    assert words.format(other[0], other[-1], ";", half[0], half[-1]) in LISTED
    of = {key: mean_z(log(runs="study", metric="error", dataset=key[0], model=key[1])) for key in SHIFTED}
    words = "{:.1f} on satimage, {:.1f} on pendigits, {:.1f} on japanese-vowels and {:.1f} on image, of the "
    assert words.format(*list(of.values())[:4]) + f"network {of['banana', 'mlp']:.1f} on banana" in PAGE
    vowels = [row for row in scan(15, inside=("japanese-vowels",)) if row["model"] == "linear"]
    assert all(float(row["z"]) < 0 for row in vowels)
    assert f"all seven ECEs are lower (mean z {mean_z(vowels):.1f}) and all four errors higher (2.5)" in PAGE
    usps = {"dataset": "usps", "model": "linear", "n_bins": "15"}
    assert strict(log(**usps, runs="search", trials="5", train_fraction="0.3")) == 7
    isolet = {"dataset": "isolet", "n_bins": "15", "runs": "search", "train_fraction": "0.5"}
    by_part = [strict(log(**isolet, model=model, scaling="standard")) for model in ("mlp", "linear")]
    assert by_part == [7, 1]
    mushroom = {"dataset": "mushroom", "metric": "error", "runs": "search", "task": "paper"}
    assert strict(log(**mushroom, model="linear", scaling="standard")) == 4
    misses = [c for c in summary()["judgement"]["15"]["not_strict"] if c["metric"] == "error"]
    sets = [c["dataset"] for c in misses]
    assert f"All but 1 of the {len(misses)} misses are within 1 point" in PAGE
    assert [abs(c["mean"] - c["published"]) > 1 for c in misses].count(True) == 1
    both, mushroom = sets.count("usps") + sets.count("adult"), sets.count("mushroom")
    assert f"{both} are of USPS and Adult, {mushroom} of mushroom" in PAGE
    rest = [name for name in sets if name not in ("usps", "adult", "mushroom")]
    assert f"the other {len(rest)} are too many for chance" in PAGE
    assert rest.count("satimage") + rest.count("banana") == 4


def test_what_the_tables_show():
    claims = summary()["claims"]["15"]
    linear, mlp = (claims[model]["psi_against_ce"] for model in ("linear", "mlp"))
    assert (
        f"in {linear['within_1_point']} of 78 (linear) and {mlp['within_1_point']} of 78 (one hidden" in PAGE
    )
    medians = {f"{abs(of['median_difference']):.2f}" for of in (linear, mlp)}
    assert f"the median difference is {medians.pop()} points for both." in PAGE
    assert not medians
    names = ("clearly_better", "no_clear_difference", "clearly_worse")
    better, none, worse = (linear[name] for name in names)
    said = f"linear, clearly smaller in {better} of 78, no clear difference in {none}, "
    assert (
        said + f"clearly larger in {worse}; one hidden layer {', '.join(str(mlp[name]) for name in names)}."
        in PAGE
    )
    for n, of in summary()["claims"].items():
        rises = [of[model]["ece_rises_with_every_gamma"] for model in ("linear", "mlp")]
        assert (
            f"in {rises[0]} of 26 (linear) and {rises[1]} of 26 (one hidden layer), with 10 and with 15"
            in PAGE
        ), n


def test_boldface_by_number_of_bins():
    """The Welch tests are those of the report, checked elsewhere; the counts are made here."""
    gathered = gather(study())
    agree = {}
    for bins in range(8, 26):
        tables = [table_of(gathered, model, "ece", n_bins=bins) for model in ("linear", "mlp")]
        cells = [cell for table in tables for row in table.rows.values() for cell in row.values()]
        agree[bins] = sum(cell.bold == cell.published.bold for cell in cells)
    assert max(agree, key=agree.get) == 11
    assert f"boldface agrees with 11 bins ({agree[11]}; {agree[15]} with 15)" in PAGE


def test_the_stored_tables_are_made_of_the_stored_runs(tmp_path):
    shutil.copytree(FOLDER / "runs", tmp_path / "runs")
    report(tmp_path)
    made = [path for path in tmp_path.iterdir() if path.suffix in (".md", ".csv", ".json", ".tex")]
    assert len(made) == 3 + 2 * 6
    for path in made:
        assert path.read_bytes() == (FOLDER / path.name).read_bytes(), path.name
