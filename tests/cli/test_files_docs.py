"""Each command of the documents, of the README and of the help texts runs as it is written."""

import io
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

import refocal
from refocal.cli import main

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
OTHERS = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name != "files.md"),
]
COMMANDS = ("apply", "metrics", "choose", "report", "tau", "threshold", "adapters")


def lines_of(text):
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.match(rf"(cat \S+ \| )?refocal ({'|'.join(COMMANDS)})\b", line)]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The files that the documents speak of, in a folder of their own."""
    rng = np.random.default_rng(0)
    posterior = rng.dirichlet([0.7] * 3, 900)
    y = (rng.random((900, 1)) > posterior.cumsum(axis=1)).sum(axis=1)
    logits, names = refocal.Focal(2.0).logits(posterior), np.array(["ant", "bee", "cat"])
    frame = pandas.DataFrame({f"logit_{c}": logits[:, k] for k, c in enumerate(names)})
    frame["species"], frame["y"] = names[y], y
    monkeypatch.chdir(tmp_path)
    frame.to_parquet("scores.parquet")
    frame.to_csv("scores.csv", index=False)
    probs = pandas.DataFrame(posterior, columns=[f"p_{c}" for c in names]).assign(species=names[y])
    probs.to_csv("probs.csv", index=False)
    for day in (1, 2):
        Path(f"scores/day={day}").mkdir(parents=True)
        frame[day::2].to_parquet(f"scores/day={day}/part.parquet")
    matched = rng.random(900) < posterior[:, 0]
    score = refocal.score_threshold(refocal.SigmoidFocal(2.0, 0.25), posterior[:, 0])
    pandas.DataFrame({"score": score, "matched": matched.astype(int)}).to_csv("detections.csv", index=False)
    pandas.DataFrame({"box": [1, 2, 3], "score": [0.1, 0.3, 0.5]}).to_csv("boxes.csv", index=False)


def run(line, monkeypatch, capfd):
    """Do what a shell would do with a line, and return what it printed."""
    piped = re.match(r"cat (\S+) \| (.*)", line)
    if piped:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(piped[1]).read_bytes())))
        line = piped[2]
    line, _, target = line.partition(" > ")
    words = shlex.split(line)
    assert words[0] == "refocal"
    assert main(words[1:]) == 0, line
    out, err = capfd.readouterr()
    assert err == "", line
    if target:
        Path(target).write_text(out)
    return out


@pytest.mark.usefixtures("files")
def test_commands_of_the_documents(monkeypatch, capfd):
    lines = lines_of(DOC)
    assert {line.split("refocal ")[1].split()[0] for line in lines} == set(COMMANDS)
    for line in lines:
        out = run(line, monkeypatch, capfd)
        if "threshold --gamma" in line:
            assert "0.398824" in out
    boxes = pandas.read_csv("boxes-true.csv")
    assert boxes["prob_1"].round(3).tolist() == [0.008, 0.236, 0.75]


@pytest.mark.usefixtures("files")
def test_commands_of_the_other_pages(monkeypatch, capfd):
    lines = [line for page in OTHERS for line in lines_of(page.read_text(encoding="utf-8"))]
    assert len(lines) >= 8
    for line in lines:
        run(line, monkeypatch, capfd)


@pytest.mark.usefixtures("files")
def test_examples_of_the_help_texts(monkeypatch, capfd):
    for command in COMMANDS[2:] + COMMANDS[:2]:  # what one writes, another reads
        text = run(f"refocal {command} --help", monkeypatch, capfd)
        examples = [line.strip() for line in text.split("example:\n")[1].splitlines()]
        assert examples
        for line in examples:
            run(line, monkeypatch, capfd)
