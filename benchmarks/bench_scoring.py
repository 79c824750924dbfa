"""Speed and memory of `refocal apply` and `refocal metrics` on files, beside pyarrow.

python benchmarks/bench_scoring.py                      # 500,000 rows x 10 classes, some seconds
python benchmarks/bench_scoring.py --rows 20000000      # the size of the bars; needs some 6 GB of disk

Aims: apply at least 70 % of the speed of pyarrow reading and writing the file plus a softmax in the same
process, metrics at least 80 % of reading plus an argmax, peak memory below 1 GB and the same at a tenth of
the rows. "plain" is how one writes it, with pyarrow's defaults; "tuned" writes no dictionaries and works on
whole columns. The bars are against "plain".
"""

from __future__ import annotations

import argparse
import contextlib
import io
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from measure import best_of_each, write_results

from refocal.cli import main as refocal

K = 10
CHUNK = 250_000
BATCH = 1 << 16
LOGITS = [f"logit_{k}" for k in range(K)]
PROBS = [f"p_{k}" for k in range(K)]


def make(folder: Path, n: int) -> None:
    """Write the files: logits and probabilities as Parquet, and a tenth of the logits as CSV."""
    rng = np.random.default_rng(0)
    writers: dict[str, Any] = {}
    with contextlib.ExitStack() as opened:
        for start in range(0, n, CHUNK):
            m = min(CHUNK, n - start)
            z = (2 * rng.standard_normal((m, K))).astype(np.float32)
            p = softmax(z)
            y = (p.cumsum(axis=1) < rng.random((m, 1))).sum(axis=1).clip(0, K - 1)
            ids = np.arange(start, start + m)
            for name, columns, values in (("logits", LOGITS, z), ("probs", PROBS, p)):
                table = pa.table({"id": ids, **dict(zip(columns, values.T, strict=True)), "y": y})
                if name not in writers:
                    path = folder / f"{name}.parquet"
                    writers[name] = opened.enter_context(pq.ParquetWriter(path, table.schema))
                writers[name].write_table(table)
                if name == "logits" and start < n // 10:
                    if "csv" not in writers:
                        path = folder / "logits.csv"
                        writers["csv"] = opened.enter_context(pa.csv.CSVWriter(path, table.schema))
                    writers["csv"].write_table(table.slice(0, n // 10 - start))


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def plain_apply(path: Path, out: Path) -> None:
    """Read, softmax, write: as one does it."""
    writer = None
    for batch in pq.ParquetFile(path).iter_batches(BATCH):
        p = softmax(np.stack([batch.column(name).to_numpy() for name in LOGITS], axis=1))
        for k in range(K):
            batch = batch.append_column(f"prob_{k}", pa.array(p[:, k]))
        writer = writer or pq.ParquetWriter(out, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()


def tuned_apply(path: Path, out: Path) -> None:
    """The same on whole columns, and without dictionaries."""
    writer = None
    for batch in pq.ParquetFile(path).iter_batches(BATCH):
        z = np.stack([batch.column(name).to_numpy() for name in LOGITS])
        z -= z.max(axis=0)
        np.exp(z, out=z)
        z /= z.sum(axis=0)
        for k in range(K):
            batch = batch.append_column(f"prob_{k}", pa.array(z[k]))
        writer = writer or pq.ParquetWriter(out, batch.schema, use_dictionary=False)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()


def plain_metrics(path: Path, names: list[str]) -> int:
    """Read, argmax, count the hits."""
    hits = 0
    for batch in pq.ParquetFile(path).iter_batches(BATCH, columns=[*names, "y"]):
        p = np.stack([batch.column(name).to_numpy() for name in names], axis=1)
        hits += int((p.argmax(axis=1) == batch.column("y").to_numpy()).sum())
    return hits


def plain_csv(path: Path, out: Path) -> None:
    """Read a CSV file, softmax, write it."""
    writer = None
    for batch in pa.csv.open_csv(path):
        p = softmax(np.stack([batch.column(name).to_numpy() for name in LOGITS], axis=1))
        for k in range(K):
            batch = batch.append_column(f"prob_{k}", pa.array(p[:, k]))
        writer = writer or pa.csv.CSVWriter(out, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()


def command(*words: object) -> None:
    """Run the command line in this process, without its words."""
    with contextlib.redirect_stdout(io.StringIO()):
        if refocal([str(word) for word in words]) != 0:
            raise SystemExit(f"failed: refocal {' '.join(map(str, words))}")


def commands(folder: Path) -> dict[str, list[object]]:
    """Return the commands that are measured."""
    given = ["--scores", "logit_*", "--logits", "--gamma", "2"]
    return {
        "apply": ["apply", folder / "logits.parquet", folder / "out.parquet", *given],
        "apply, CSV": ["apply", folder / "logits.csv", folder / "out.csv", *given],
        "metrics of probs": [
            "metrics",
            folder / "probs.parquet",
            "--scores",
            "p_*",
            "--probs",
            "--label",
            "y",
        ],
        "metrics of logits": [
            *("metrics", folder / "logits.parquet", "--scores", "logit_*", "--logits", "--label", "y"),
        ],
    }


def peak(words: list[object]) -> float:
    """Return the peak memory of a command in a process of its own, in MB.

    The process reads it itself: what the system tells of a child's peak has that of its parent in it.
    """
    code = (
        "import sys; from refocal.cli import main; code = main(sys.argv[1:]); "
        "print(next(line for line in open('/proc/self/status') if 'VmHWM' in line), file=sys.stderr); "
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stderr.split()[1]) / 1024


def times(folder: Path, n: int, repeats: int) -> list[dict[str, Any]]:
    """Return the speed of each command beside its floors."""
    ours = {name: lambda words=words: command(*words) for name, words in commands(folder).items()}
    out, logits, probs = folder / "plain.parquet", folder / "logits.parquet", folder / "probs.parquet"
    floors: dict[str, dict[str, Callable[[], object]]] = {
        "apply": {"plain": lambda: plain_apply(logits, out), "tuned": lambda: tuned_apply(logits, out)},
        "apply, CSV": {"plain": lambda: plain_csv(folder / "logits.csv", folder / "plain.csv")},
        "metrics of probs": {"plain": lambda: plain_metrics(probs, PROBS)},
        "metrics of logits": {"plain": lambda: plain_metrics(logits, LOGITS)},
    }
    rows = []
    for name, call in ours.items():
        size = n // 10 if "CSV" in name else n
        seconds = best_of_each({"refocal": call, **floors[name]}, repeats)
        row: dict[str, Any] = {"what": name, "rows": size}
        row |= {f"{who}, s": round(value, 3) for who, value in seconds.items()}
        row["rows/s"] = round(size / seconds["refocal"])
        for who in floors[name]:
            row[f"speed of {who}"] = round(seconds[who] / seconds["refocal"], 2)
        rows.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where to put the files (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folders = {n: Path(name, str(n)) for n in (max(1000, args.rows // 10), args.rows)}
        for n, folder in folders.items():
            folder.mkdir()
            make(folder, n)
        rows = times(folders[args.rows], args.rows, args.repeats)
        for row in rows:
            words = {n: commands(folder)[row["what"]] for n, folder in folders.items()}
            few, many = (peak(words[n]) for n in folders)
            row["peak, MB"], row["peak at a tenth, MB"] = round(many), round(few)
            print(f"{row['what']}: peak {many:.0f} MB, at a tenth of the rows {few:.0f} MB", flush=True)
    write_results("scoring", rows)


if __name__ == "__main__":
    main()
