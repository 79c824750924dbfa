"""Files as people have them, from the tools that wrote them, through the commands they would type."""

from __future__ import annotations

import json

import numpy as np
import pandas
import pytest
import torch

import refocal
from refocal.cli import main


def problem(n=1500, seed=0):
    """Return logits of a focal minimiser (gamma 2), the true probabilities, and labels."""
    rng = np.random.default_rng(seed)
    posterior = rng.dirichlet([0.6] * 4, n)
    labels = (rng.random((n, 1)) > posterior.cumsum(axis=1)).sum(axis=1)
    return refocal.Focal(2.0).logits(posterior), posterior, labels


def pandas_csv(folder, logits, labels):
    """`DataFrame.to_csv` with its index, columns numbered from 0."""
    pandas.DataFrame(logits).add_prefix("logit_").assign(y=labels).to_csv(folder / "val.csv")
    return "val.csv", ["--scores", "logit_*"]


def excel_export(folder, logits, labels):
    """Exported by a spreadsheet: a byte order mark, CRLF, quotes."""
    frame = pandas.DataFrame(logits, columns=list("abcd")).assign(y=labels)
    frame.to_csv(folder / "val.csv", index=False, encoding="utf-8-sig", lineterminator="\r\n", quoting=1)
    return "val.csv", ["--scores", "a", "b", "c", "d"]


def torch_npz(folder, logits, labels):
    """What an evaluation loop saves: `np.savez` of tensors."""
    np.savez(folder / "val.npz", logits=torch.from_numpy(logits).float().numpy(), y=labels)
    return "val.npz", ["--scores", "logits"]


def feather(folder, logits, labels):
    """`DataFrame.to_feather`, float32, labels as a category of text."""
    frame = pandas.DataFrame(logits.astype(np.float32), columns=[f"score.{c}" for c in "abcd"])
    frame["y"] = pandas.Categorical(np.array(list("abcd"))[labels])
    frame.to_feather(folder / "val.feather")
    return "val.feather", ["--scores", "score.*"]


def parquet_with_dots(folder, logits, labels):
    """Columns with dots, and an index that pandas writes as a column."""
    frame = pandas.DataFrame(logits, columns=[f"model.logit.{k}" for k in range(4)]).assign(y=labels)
    frame.set_index(np.arange(len(labels))[::-1]).to_parquet(folder / "val.parquet")
    return "val.parquet", ["--scores", "model.logit.*"]


def one_based(folder, logits, labels):
    """Classes numbered from 1, in columns and in labels."""
    frame = pandas.DataFrame(logits, columns=[f"class_{k}" for k in (1, 2, 3, 4)]).assign(y=labels + 1)
    frame.to_parquet(folder / "val.parquet")
    return "val.parquet", ["--scores", "class_*"]


def float_labels(folder, logits, labels):
    """Labels that pandas has made floats."""
    pandas.DataFrame(logits).add_prefix("z").assign(y=labels.astype(float)).to_csv(
        folder / "val.csv", index=False
    )
    return "val.csv", ["--scores", "z*"]


def hugging_face_shards(folder, logits, labels):
    """Shards of one table in a folder."""
    frame = pandas.DataFrame(logits).add_prefix("logit_").assign(y=labels)
    (folder / "val").mkdir()
    for i in range(3):
        frame[i * 500 : (i + 1) * 500].to_parquet(folder / "val" / f"train-0000{i}-of-00003.parquet")
    return "val", ["--scores", "logit_*"]


ROWS = [
    pandas_csv,
    excel_export,
    torch_npz,
    feather,
    parquet_with_dots,
    one_based,
    float_labels,
    hugging_face_shards,
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_metrics_and_apply(row, tmp_path, monkeypatch, capsys):
    logits, posterior, labels = problem()
    monkeypatch.chdir(tmp_path)
    name, scores = row(tmp_path, logits, labels)
    given = [name, *scores, "--logits", "--gamma", "2"]
    assert main(["metrics", *given, "--label", "y", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    measured = json.loads(out)["metrics"]
    assert measured["posterior"]["nll"] == pytest.approx(refocal.nll(posterior, labels), rel=1e-4)
    assert measured["raw"]["nll"] > measured["posterior"]["nll"]
    assert main(["apply", name, "out.npy", *given[1:]]) == 0
    np.testing.assert_allclose(np.load("out.npy"), posterior, atol=1e-5)


def test_the_wrong_way_round(tmp_path, monkeypatch, capsys):
    """Logits given as probabilities are seen; nothing could see it the other way round."""
    logits, _, labels = problem()
    monkeypatch.chdir(tmp_path)
    name, scores = pandas_csv(tmp_path, logits, labels)
    assert main(["metrics", name, *scores, "--probs", "--label", "y"]) == 2
    assert "these look like logits, say --logits" in capsys.readouterr().err
