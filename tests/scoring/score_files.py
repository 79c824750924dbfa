"""Small files of scores in every format, and what is in them."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

CLASSES = ("ant", "bee", "cat")
NAMES = tuple(f"logit_{name}" for name in CLASSES)
FORMATS = ("csv", "csv.gz", "tsv", "parquet", "arrow", "feather", "npy", "npz")


def made(n=500, seed=0, dtype=np.float32):
    """Return logits (n, 3) of a focal minimiser, and labels drawn from the true probabilities."""
    import refocal

    rng = np.random.default_rng(seed)
    posterior = rng.dirichlet([0.7, 0.7, 0.7], n)
    labels = (rng.random((n, 1)) > posterior.cumsum(axis=1)).sum(axis=1)
    return refocal.Focal(2.0).logits(posterior).astype(dtype), labels


def table_of(logits, labels):
    """Return a table with an id, the scores, a label in words and one in numbers."""
    columns = {"id": [f"row {i:04d}" for i in range(len(labels))]}
    columns |= {name: logits[:, k] for k, name in enumerate(NAMES)}
    columns |= {"species": [CLASSES[y] for y in labels], "y": labels}
    return pa.table(columns)


def write(path: Path, logits, labels) -> Path:
    """Write a file of the format of its name; NPY and NPZ have numbers alone."""
    table, kind = table_of(logits, labels), path.name.partition(".")[2]
    if kind == "npy":
        np.save(path, logits)
    elif kind == "npz":
        np.savez(path, logit=logits, y=labels)
    elif kind == "parquet":
        pa.parquet.write_table(table, path, row_group_size=max(1, len(labels) // 3))
    elif kind in ("arrow", "feather"):
        pa.feather.write_feather(table, path, chunksize=max(1, len(labels) // 3))
    else:
        opened = gzip.open if kind.endswith("gz") else open
        with opened(path, "wt", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, delimiter="\t" if kind.startswith("tsv") else ",", lineterminator="\n")
            rows.writerow(table.column_names)
            rows.writerows(zip(*(c.to_pylist() for c in table.columns), strict=True))
    return path


def read(path: Path) -> dict[str, np.ndarray]:
    """Return the columns of a file by readers that refocal does not use; an array by its name."""
    kind = path.name.partition(".")[2]
    if kind == "npy":
        return {"prob": np.load(path)}
    if kind == "npz":
        with np.load(path) as arrays:
            return dict(arrays)
    import pandas

    if kind == "parquet":
        frame = pandas.read_parquet(path)
    elif kind in ("arrow", "feather"):
        frame = pandas.read_feather(path)
    else:
        frame = pandas.read_csv(path, sep="\t" if kind.startswith("tsv") else ",")
    return {name: frame[name].to_numpy() for name in frame}


def probs_of(columns):
    """Return the probabilities that were written."""
    if "prob" in columns:
        return columns["prob"]
    return np.stack([columns[name] for name in columns if name.startswith("prob_")], axis=1)
