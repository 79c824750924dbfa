"""The first page of the results: its files are there, its counts are those of the summaries."""

import csv
import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
from sentences import NUMBERS, together

import refocal
from refocal.experiments.images.judge import published_errors
from refocal.experiments.tabular.explained import TRIED

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "results"
TEXT = (FOLDER / "README.md").read_text(encoding="utf-8")

spec = importlib.util.spec_from_file_location("page", FOLDER / "page.py")
page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(page)

spec = importlib.util.spec_from_file_location("versions", FOLDER / "tabular" / "versions.py")
versions = importlib.util.module_from_spec(spec)
spec.loader.exec_module(versions)


def test_every_count_is_that_of_its_summary():
    found = list(page.COUNT.finditer(TEXT))
    assert len(found) == TEXT.count("<!-- end -->") > 30
    for match in found:
        assert match["text"] == page.said(match["file"], match["place"], match["form"]), match[0]
    assert page.updated(TEXT) == TEXT


def test_counts_in_words_of_their_own():
    """Not by the code of page.py."""
    judged = json.loads((FOLDER / "tabular" / "summary.json").read_text())["judgement"]
    for bins in ("10", "15"):
        ece = judged[bins]["ece"]
        assert f">{ece['strict']} of {ece['cells']}<" in TEXT
    groups = json.loads((FOLDER / "images" / "summary.json").read_text())["groups"]
    claims = (FOLDER / "images" / "claims.md").read_text(encoding="utf-8")
    by_ece, by_nll = claims.split("## By the NLL")
    column = 1 + list(page.COLUMNS).index("held out")
    group = groups["cifar10-s-resnet8-200"]

    def cell(start, text=by_ece, at=column):
        (line,) = (line for line in text.splitlines() if line.startswith(f"| {start}"))
        return line.split(" | ")[at].strip(" |*")

    rows = [d for d in group["directions"] if d["finding"] == "TS_FL with Psi is better than Standard"]
    assert cell("TS_FL with Psi is better than") == (
        f"{sum(d['shows'] for d in rows)} of {sum(d['trials'] for d in rows)}"
    )
    within = sum(abs(cell["difference"]) <= 1 + 1e-9 for cell in group["errors"]["cells"])
    assert cell("errors of the appendix") == f"{within} of {len(group['errors']['cells'])}"
    with open(FOLDER / "images" / "measures.csv", newline="", encoding="utf-8") as file:
        measured = list(csv.DictReader(file))
    for title, name in page.COLUMNS.items():
        for metric, text in (("ece", by_ece), ("nll", by_nll)):
            number = {
                (row["link"], row["gamma"], row["seed"]): float(row[metric])
                for row in measured
                if (row["group"], row["paradigm"]) == (name, "standard") and float(row["gamma"]) > 0
            }
            pairs = {(gamma, seed) for _, gamma, seed in number}
            worse = sum(number["psi", *pair] > number["raw", *pair] for pair in pairs)
            said = f"{worse} of {len(pairs)}"
            assert cell("Psi alone worsens Standard", text, 1 + list(page.COLUMNS).index(title)) == said
            if title in page.SHORT:
                at = 1 + 2 * page.SHORT.index(title) + (metric == "nll")
                assert cell("Psi alone worsens Standard", TEXT, at) == said


def test_the_page_of_all_groups_is_that_of_the_summary():
    lines = page.claims_page(page.image_summary())
    assert "".join(f"{line}\n" for line in lines) == (FOLDER / "images" / "claims.md").read_text()


def test_an_entry_of_a_list_is_found_by_its_values():
    some = [{"first": 8, "last": 20}, {"first": 20, "last": 44}]
    assert page._entry(some, "first=20,last=44") is some[1]
    assert page._entry(some, "0") is some[0]
    with pytest.raises(KeyError, match="0 entries have first=8,last=44"):
        page._entry(some, "first=8,last=44")


ALL = "cifar10-s-resnet8-200-validation-0.0-precision-bfloat16"
MAIN = (ALL, ALL.replace("resnet8", "resnet20"), ALL.replace("resnet8", "resnet44"))
PAIRS = [(gamma, seed) for gamma in ("1", "2", "3") for seed in ("0", "1", "2")]


def test_what_the_page_says_of_the_main_group():
    """From the stored measures and logits, by no code of the report."""
    text = " ".join(TEXT.split())
    with open(FOLDER / "images" / "measures.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["group"] == ALL and float(row["gamma"]) > 0]
    ece = {
        tuple(row[name] for name in ("paradigm", "link", "gamma", "seed")): float(row["fair_ece"])
        for row in rows
        if row["paradigm"] in ("standard", "ts_fl", "ls") and row["link"] in ("raw", "psi")
    }
    assert len(ece) == 2 * 27
    better = {
        paradigm: sum(ece[paradigm, "psi", *pair] < ece[paradigm, "raw", *pair] for pair in PAIRS)
        for paradigm in ("standard", "ts_fl", "ls")
    }
    assert better == {"standard": 0, "ts_fl": 9, "ls": 9}
    assert f"Psi has the smaller ECE in {sum(better.values())}: none of Standard, all of TS_FL and LS" in text
    beats = [pair for pair in PAIRS if ece["ts_fl", "psi", *pair] < ece["standard", "raw", *pair]]
    assert beats == [pair for pair in PAIRS if pair[0] == "1"]
    assert "is 3 of 3 at gamma 1 and 0 of 6 at gamma 2 and 3" in text
    cells = json.loads((FOLDER / "images" / "summary.json").read_text())["groups"][ALL]["errors"]["cells"]
    gaps = [cell["mean"] - cell["published"] for cell in cells]
    above = (
        f'**"all" in {sum(gap > 0 for gap in gaps)} of 8, by {np.mean(gaps):.2f}; "all, public" in 8 of 8, '
    )
    assert above in text
    groups = json.loads((FOLDER / "images" / "summary.json").read_text())["groups"]
    public = groups[f"{ALL}-shortcuts-convolution-first_weights-outputs"]["errors"]["cells"]
    gaps = [cell["difference"] for cell in public]
    assert min(gaps) > 0
    assert len(gaps) == 8
    assert f"{above}by {np.mean(gaps):.2f}; ResNet-20 in 4 of 4" in text
    drawn = groups[page.COLUMNS["drawn"]]["errors"]["cells"]
    assert len({cell["trials"] for cell in drawn}) == 1
    gaps = [cell["mean"] - cell["published"] for cell in drawn]
    told = (
        f'"drawn" in {sum(gap > 0 for gap in gaps)} of 8, by {np.mean(gaps):.2f} points in the mean (by its'
    )
    assert told in text
    within = sum(abs(gap) <= 1 for gap in gaps)
    assert f"{within} of 8<!-- end --> within 1 point, {np.mean(gaps):.2f} above in the mean)" in text
    better = {
        d["gamma"]: (d["shows"], d["trials"])
        for d in groups[page.COLUMNS["drawn"]]["directions"]
        if d["finding"] == "TS_FL with Psi is better than Standard"
    }
    assert better == {1: (5, 5), 2: (0, 5), 3: (0, 5)}  # "all at gamma 1"
    assert "<!-- end -->**, all at gamma 1." in TEXT
    twenty = [cell["difference"] for cell in groups[MAIN[1]]["errors"]["cells"]]
    assert f"ResNet-20 in 4 of 4, by {min(twenty):.2f} to {max(twenty):.2f}, and with own draws" in text
    assert len(twenty) == 4
    assert f"(`--dataset cifar10 --train-part 0.1`), {NUMBERS[drawn[0]['trials']]} trials." in text
    first, second = (cell["difference"] for cell in groups[MAIN[2]]["errors"]["cells"])
    others = groups[f"{MAIN[2]}-shortcuts-convolution"]["errors"]["cells"]
    other = " and ".join(f"{cell['difference']:.2f}" for cell in others)
    said = f"ResNet-44 by {first:.2f} and {second:.2f}, with convolutions in its shortcuts, which the paper"
    assert f"{said} does not mention, by {other}.**" in text


def test_the_best_gamma_of_other_resnet_8():
    """That the depth row is said with: of every trial with all four gammas."""
    best = {}
    with open(FOLDER / "images" / "measures.csv", newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if (r["paradigm"], r["link"]) == ("standard", "raw")]
    for title in ("all", "drawn", "all, public", "all, float32", "held out"):
        some = [row for row in rows if row["group"] == page.COLUMNS[title]]
        for seed in {row["seed"] for row in some}:
            curve = {row["gamma"]: float(row["ece"]) for row in some if row["seed"] == seed}
            if len(curve) == 4:
                best.setdefault(title, []).append(min(curve, key=curve.get))
    plain = best.pop("all") + best.pop("drawn")
    others = [gamma for some in best.values() for gamma in some]
    assert (set(plain), set(others)) == ({"2"}, {"3"})
    said = f"by the ECE it is 2 in {len(plain)} of {len(plain)} trials"
    said += f' of "all" and "drawn", 3 in {len(others)} of {len(others)} of'
    assert said in TEXT


def test_what_psi_adds_with_convolutions_in_the_shortcuts():
    with open(FOLDER / "images" / "measures.csv", newline="", encoding="utf-8") as file:
        rows = [
            r
            for r in csv.DictReader(file)
            if (r["paradigm"], r["gamma"], r["seed"]) == ("standard", "2", "0")
        ]
    added = []
    for group in (f"{MAIN[2]}-shortcuts-convolution", MAIN[1]):
        ece = {r["link"]: float(r["ece"]) for r in rows if r["group"] == group}
        added.append(f"{ece['psi'] - ece['raw']:.3f}")
    assert added[0] == added[1]
    assert f"with convolutions Psi adds {added[0]} to the ECE at gamma 2, as with -20" in TEXT


def test_psi_changes_no_prediction_of_any_run():
    """Of the raw logits and of their Psi."""
    for path in (FOLDER / "images/runs").glob("*.json"):
        gamma = json.loads(path.read_text())["config"]["gamma"]
        z = np.load(path.with_suffix(".npz"))["test_logits"].astype(np.float64)
        assert (refocal.log_psi(z, gamma).argmax(1) == z.argmax(1)).all(), path
    assert "Psi changed no prediction of any run" in " ".join(TEXT.split())


def test_underconfident_bins_on_the_page_are_those_of_the_logits():
    few = 0
    runs = [json.loads(path.read_text()) | {"path": path} for path in (FOLDER / "images/runs").glob("*.json")]
    wanted = {
        "precision": "bfloat16",
        "paradigm": "standard",
        "dataset": "cifar10-s",
        "model": "resnet8",
        "train_size": None,
        "shortcuts": None,
    }
    for run in runs:
        config = run["config"]
        if config["gamma"] > 0 and all(config.get(name) == value for name, value in wanted.items()):
            arrays = np.load(run["path"].with_suffix(".npz"))
            z, y = arrays["test_logits"].astype(np.float64), arrays["test_labels"]
            probs = np.exp(z - z.max(1, keepdims=True))
            confidence = 1 / probs.sum(1)
            bins = np.ceil(10 * confidence)
            hits = z.argmax(1) == y
            above = [b for b in np.unique(bins) if hits[bins == b].mean() > confidence[bins == b].mean()]
            few += np.isin(bins, above).mean() <= 0.5
    (line,) = (
        line for line in TEXT.splitlines() if line.startswith("| Standard: most test images are *not*")
    )
    assert line.split(" | ")[1].strip(" |*") == f"{few} of 9"


def measured(group):
    """The numbers of a group with one trial, by paradigm, link and gamma."""
    with open(FOLDER / "images" / "measures.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["group"] == group]
    assert {row["seed"] for row in rows} == {"0"}
    return {(row["paradigm"], row["link"], int(row["gamma"])): row for row in rows}


def told(number):
    return f"{float(number):.3f}"


def test_what_the_page_says_of_cifar_100():
    (line,) = (line for line in TEXT.splitlines() if line.startswith("| CIFAR-100 (the appendix)"))
    found = measured("cifar100-s-resnet8-200-validation-0.0-precision-bfloat16")
    gammas = sorted({key[2] for key in found})
    assert gammas == [0, 1, 2, 3]
    paper = published_errors("cifar100", "resnet8")
    published = []
    for name, title in (("standard", "Standard"), ("ls", "LS")):
        errors = [f"{100 * float(found[name, 'raw', gamma]['error']):.2f}" for gamma in gammas]
        assert f" {together(errors)} % ({title})" in line
        published.append(together(f"{paper[name, gamma][0]:.2f}" for gamma in gammas))
    assert f"the paper has {published[0]} %, and {published[1]} % |" in line
    ece, fair, nll = (
        {key: float(row[name]) for key, row in found.items()} for name in ("ece", "fair_ece", "nll")
    )
    for name, words in (("standard", "Standard {} to {}, "), ("ls", "**LS too**, {} to {} (elsewhere")):
        curve = [ece[name, "raw", gamma] for gamma in gammas]
        assert curve == sorted(curve, reverse=True)
        assert words.format(told(curve[0]), told(curve[-1])) in line
        for number in (ece, nll):  # "worsens Standard in 3 of 3 and LS in 3 of 3"
            assert all(number[name, "psi", gamma] > number[name, "raw", gamma] for gamma in (1, 2, 3))
    assert "Psi worsens Standard in 3 of 3 and, **against what it does elsewhere, LS in 3 of 3**" in line
    better = [
        sum(number["ts_fl", "psi", gamma] < number["ts_fl", "raw", gamma] for gamma in (1, 2, 3))
        for number in (fair, nll)
    ]
    assert f"After TS_FL it improves the ECE in {better[0]} of 3, the NLL in {better[1]} of 3" in line
    advice = " ".join((ROOT / "docs" / "start" / "which-correction.md").read_text(encoding="utf-8").split())
    change = f"{told(ece['ls', 'raw', 2])} to {told(ece['ls', 'psi', 2])}"
    assert f"(one trial) Psi alone made that worse too, with gamma 1, 2 and 3 (gamma 2: {change})." in advice


def test_what_the_page_says_of_svhn():
    (line,) = (line for line in TEXT.splitlines() if line.startswith("| SVHN: Psi helps"))
    found = measured("svhn-s-resnet8-715-validation-0.0-precision-bfloat16")
    gammas = sorted({key[2] for key in found})
    assert gammas == [0, 1, 2, 3]
    errors = [f"{100 * float(found['standard', 'raw', gamma]['error']):.2f}" for gamma in gammas]
    published = [f"{published_errors('svhn', 'resnet8')['standard', gamma][0]:.2f}" for gamma in gammas]
    assert f"errors {together(errors)} %, the paper has {together(published)}. The digits" in line
    worse = {
        metric: [
            gamma
            for gamma in gammas[1:]
            if float(found["standard", "psi", gamma][metric]) > float(found["standard", "raw", gamma][metric])
        ]
        for metric in ("ece", "nll")
    }
    assert worse == {"nll": [1, 2, 3], "ece": [1, 2]}
    ece = {key: told(row["ece"]) for key, row in found.items()}
    said = f"in 2 of 3 (gamma 3: {ece['standard', 'raw', 3]} to {ece['standard', 'psi', 3]})"
    assert f"by the NLL Psi does harm in 3 of 3, by the ECE {said}" in line
    raw = [ece["standard", "raw", gamma] for gamma in gammas]
    assert f"The raw ECE is {together(raw)}: gamma 1 and 2 beat cross entropy" in line
    assert [gamma for gamma in gammas if raw[gamma] < raw[0]] == [1, 2]
    short = {
        (row["link"], row["gamma"]): row
        for row in measured("svhn-s-resnet8-50").values()
        if row["paradigm"] == "standard"
    }
    ece, nll = (
        [told(short[key][name]) for key in (("raw", "2"), ("psi", "2"), ("raw", "0"))]
        for name in ("ece", "nll")
    )
    said = f"Psi brings the ECE from {ece[0]} to {ece[1]} and the NLL from {nll[0]} to {nll[1]}, and cross "
    assert said + f"entropy has {ece[2]}" in line
    assert 715 * -(-5000 // 128) == pytest.approx(50 * -(-73257 // 128), rel=0.01)  # steps


def test_the_difference_of_bins_is_that_of_the_table():
    rows = [row.split(",") for row in (FOLDER / "images" / "bins.csv").read_text().splitlines()]
    ten, fifteen = rows[0].index("bins_10"), rows[0].index("bins_15")
    gaps = np.array([100 * (float(row[fifteen]) - float(row[ten])) for row in rows[1:]])
    for which, number in (("mean", gaps.mean()), ("min", gaps.min()), ("max", gaps.max())):
        assert f"15 bins/{which}; +.2f -->{number:+.2f}<" in TEXT
    said = f"it is {gaps.mean():.2f} points larger in the mean than with 10"
    assert said in (FOLDER.parent / "docs" / "reproduce-images.md").read_text(encoding="utf-8")


def test_a_count_that_is_wrong_is_found_and_mended():
    wrong = "<!-- tabular/summary.json; runs; - -->98<!-- end --> runs"
    assert page.updated(wrong) == "<!-- tabular/summary.json; runs; - -->99<!-- end --> runs"
    with pytest.raises(KeyError):
        page.updated("<!-- tabular/summary.json; nothing; - -->98<!-- end -->")


def test_files_and_commands_are_there():
    links = re.findall(r"\]\(([^)#]+)", TEXT)
    assert len(links) > 20
    for link in links:
        assert (FOLDER / link).exists(), link
    for path in re.findall(r"(?:results|tests)/[\w/]+\.py", TEXT):
        assert (ROOT / path).is_file(), path
    for study in re.findall(r"refocal reproduce (\w+)", TEXT):
        assert (FOLDER / study).is_dir(), study


def test_sections_of_other_pages_are_there():
    for path, section in re.findall(r"\]\(([^)#]+)#([\w-]+)\)", TEXT):
        titles = re.findall(r"^#+ (.*)$", (FOLDER / path).read_text(encoding="utf-8"), re.M)
        assert section in {re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles}, section


def test_theory_counts_are_those_of_its_page():
    theory = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    table = theory.split("## The results and their tests")[1].split("\n## ")[0]
    results = set(re.findall(r"^\| ((?:Thm|Prop|Cor|Lemma)\.? \d+)", table, re.M))
    assert f"| no counterexample to any of the {len(results)} |" in TEXT
    slips = theory.split("## Inside the proofs")[1].split("\n## ")[0].count("_slip_")
    assert f"; {slips} slips in the proofs" in TEXT


def test_what_was_not_run_is_said():
    summary = json.loads((FOLDER / "images" / "summary.json").read_text())
    groups = summary["groups"].values()
    models = {group["config"]["model"] for group in groups}
    sets = {group["config"]["dataset"] for group in groups}
    (missing,) = (line for line in TEXT.splitlines() if "| **nothing was run** |" in line)
    assert missing.startswith("| CIFAR-10 and CIFAR-100 with all images, ResNet-110 |")
    assert models == {"resnet8", "resnet20", "resnet44"}
    assert sets == {"cifar10-s", "cifar10", "cifar100-s", "svhn-s"}
    parts = {group["config"].get("train_part") for group in groups if group["config"]["dataset"] == "cifar10"}
    assert parts == {0.1}  # a tenth, and not all images
    trained = sum(len(group["errors"]["cells"]) for name, group in summary["groups"].items() if name in MAIN)
    assert f"{trained} of the 128 cells of the appendix were trained" in " ".join(TEXT.split())
    # What the page says of each trend is what was run.
    for trend in summary["trends"].values():
        gammas = {value["value"]: [cell["gamma"] for cell in value["raw"]] for value in trend["values"]}
        cells = {value["value"]: {cell["trials"] for cell in value["raw"]} for value in trend["values"]}
        if trend["what"] == "depth" and 44 not in gammas:
            assert (gammas, cells) == ({8: [0, 1, 2, 3], 20: [0, 1, 2, 3]}, {8: {5}, 20: {2}})
            said = "own draws: ResNet-8 (five), -20 (**two**)"
        elif trend["what"] == "depth":
            assert gammas == {8: [0, 1, 2, 3], 20: [0, 1, 2, 3], 44: [0, 2]}
            assert cells == {8: {3}, 20: {2}, 44: {1}}
            said = "ResNet-8 (three trials, gamma 0 to 3), -20 (**two**, gamma 0 to 3), "
            said += "-44 (**one**, gamma 0 and 2)"
        else:
            more = [0, 1, 2, 3, 4, 5]
            assert gammas == {1200: more, 4500: more, 12000: more[:4]}
            assert cells == {1200: {2}, 4500: {2}, 12000: {1}}
            (largest,) = (value for value in trend["values"] if value["value"] == 1200)
            assert largest["best_is_largest"]
            first, second = trend["values"][2]["raw"][1:3]
            assert abs(first["ece"] - second["ece"]) < 0.001  # "gamma 1 is nearly as good as 2"
            said = "12,000 (**one trial**, gamma 0 to 3), 4,500 and 1,200 (**two trials**, gamma 0 to 5)"
        assert said in TEXT


def test_the_tabular_page_has_the_counts_of_its_summary():
    page_text = (FOLDER / "tabular" / "README.md").read_text(encoding="utf-8")
    judged = json.loads((FOLDER / "tabular" / "summary.json").read_text())["judgement"]
    fifteen, ten = judged["15"], judged["10"]
    for metric in ("ece", "error"):
        told = [f"{of[metric]['strict']} of {of[metric]['cells']}" for of in (fifteen, ten)]
        assert f"| {metric} cells, strict | {told[0]} | {told[1]} |" in page_text
        told = [f"{of[metric]['z_mean']}, {of[metric]['z_rms']}" for of in (fifteen, ten)]
        assert f"| {metric} cells, z: mean, rms | {told[0]} | {told[1]} |" in page_text
    share = fifteen["ece"]["strict"] / fifteen["ece"]["cells"]
    assert f"{share:.1%} of the ECE cells".replace("%", " %") in page_text
    assert share >= 0.95
    misses = [(cell["dataset"], cell["model"]) for cell in fifteen["not_strict"] if cell["metric"] == "ece"]
    assert sum(name == "usps" for name, _ in misses) == 6
    assert misses.count(("adult", "mlp")) == 6
    assert f"12 of the {len(misses)} misses" in page_text
    scaling = (FOLDER / "tabular" / "search.md").read_text(encoding="utf-8").split("## The scaling of")[1]
    (line,) = (line for line in scaling.splitlines() if line.startswith("| all |"))
    _, _, standard, standard_z, _, _, whole, whole_z, *_ = (x.strip() for x in line.split("|")[1:-1])
    assert f"| all 24 data sets | {standard}, {standard_z} | {whole}, {whole_z} |" in page_text
    assert f"{standard} by the training part, {whole.split()[0]} by all rows" in TEXT


def test_explanations_are_those_of_the_versions():
    with open(FOLDER / "tabular" / "versions.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    def strict(dataset, version, model, metric="ece"):
        of = [r for r in rows if (r["dataset"], r["version"], r["model"]) == (dataset, version, model)]
        found = [r["strict"] == "1" for r in of if r["metric"] == metric]
        assert found
        return sum(found)

    def both(dataset, version):
        """Cells of ECE and errors that meet the rule, linear and network."""
        return [[strict(dataset, version, model, m) for model in ("linear", "mlp")] for m in ("ece", "error")]

    ten = {(r["dataset"], r["version"]) for r in rows if r["trials"] == "10"}
    three = {(r["dataset"], r["version"]) for r in rows if r["trials"] == "3"}
    assert not ten & three
    assert ten == {
        (r["dataset"], r["version"])
        for r in rows
        if r["dataset"] in ("Waveform", "Adult") or (r["dataset"], r["version"]) in versions.DIGITS
    }
    fitting = [k for k in range(10) if strict("USPS", f"class {k}", "linear", "error") == 4]
    assert fitting == [6]  # 0 did with 3 trials
    assert both("USPS", "class 6") == [[6, 7], [4, 4]]
    assert both("USPS", "class 0") == [[3, 5], [2, 1]]
    assert both("Adult", "numbers, all rows") == [[7, 1], [1, 1]]
    assert both("Adult", "numbers, complete rows") == [[6, 0], [4, 1]]
    assert both("Adult", "five levels, complete rows") == [[5, 6], [1, 2]]
    page_text = " ".join((FOLDER / "tabular" / "README.md").read_text(encoding="utf-8").split())
    adult = [
        [float(r["z"]) for r in rows if (r["version"], r["model"], r["metric"]) == (version, "mlp", "ece")]
        for version in ("five levels, complete rows", "numbers, complete rows", "numbers, all rows")
    ]
    told = [f"{np.sqrt(np.mean(np.square(z))):.1f}" for z in adult]
    said = f"(rms z {told[0]}; {told[1]} with the complete rows as they are, {told[2]} with all rows)"
    assert said in page_text
    waveform = page_text.split("- **Waveform:")[1].split("- **Adult")[0]
    for version, words in (
        ("waveform-21, 21 features, class 1", "meets {} of 14 ECE cells and {} of 8 errors (rms z"),
        ("waveform-21, 21 features, class 2", "with 10 that class meets {} of 14 and {} of 8, so"),
        ("waveform, 21 features, class 1", "that is here meets {} of 14 and {} of 8:"),
    ):
        assert words.format(*map(sum, both("Waveform", version))) in waveform
    digits = page_text.split("- **USPS (")[1].split("- **Japanese")[0]
    said = "digit 6 meets {} of 14 ECE cells and {} of 8 errors, digit 0 meets {} of 14 and {} of 8."
    assert said.format(*map(sum, (*both("USPS", "class 6"), *both("USPS", "class 0")))) in digits
    adult = page_text.split("- **Adult, network")[1].split("- **USPS")[0]
    all_rows, complete, levels = (
        both("Adult", version)
        for version in ("numbers, all rows", "numbers, complete rows", "five levels, complete rows")
    )
    assert f"errors fit ({complete[1][0]} of 4 instead of {all_rows[1][0]})" in adult
    assert f"does not: {complete[0][1]} of 7 ECE cells, {all_rows[0][1]} with all rows" in adult
    assert f"{levels[0][1]} of the network's 7 ECE cells agree" in adult
    said = f"but only {levels[1][1]} of its 4 errors, and the linear model fits worse: {levels[0][0]} of 7 "
    assert said + f"ECE cells and {levels[1][0]} of 4 errors." in adult
    assert both("Waveform", "waveform-21, 21 features, class 1") == [[7, 7], [4, 4]]
    assert both("Waveform", "waveform-21, 21 features, class 2") == [[5, 7], [0, 2]]
    assert both("Waveform", "waveform, 21 features, class 1") == [[7, 7], [0, 1]]
    listed = (FOLDER / "tabular" / "tables.md").read_text(encoding="utf-8")
    assert all(text in listed for text in TRIED.values())
    two = [
        [
            float(r["mean"])
            for r in rows
            if (r["version"], r["model"], r["metric"]) == (name, "linear", "error")
        ]
        for name in ("waveform-21, 21 features, class 1", "waveform, 21 features, class 1")
    ]
    gaps = np.subtract(*two)
    assert f"its linear errors are {gaps.min():.1f} to {gaps.max():.1f} points lower" in page_text
    # The study is one of these versions, trained for as many trials: the same numbers.
    with open(FOLDER / "tabular" / "tables.csv", newline="", encoding="utf-8") as file:
        study = {
            (r["model"], r["metric"], r["method"]): float(r["mean"])
            for r in csv.DictReader(file)
            if r["dataset"] == "waveform"
        }
    for r in rows:
        if r["version"] == "waveform-21, 21 features, class 1":
            assert study[r["model"], r["metric"], r["method"]] == pytest.approx(float(r["mean"]), abs=1e-4)
