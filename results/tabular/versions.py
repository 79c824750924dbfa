"""Train versions of the data sets of which the paper does not say which one it took.

    python results/tabular/versions.py --data DATA

Every cell of every version, with its distance from the published one, is a row of ``versions.csv``; the
protocol is that of the study. Versions that a sentence of the pages rests on have the 10 trials of the study:
with 3 the strict rule is wider, and chose wrongly both ways. The others, which sort out classes that are far
off, have 3.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from refocal.experiments.strict import STRICT, z_of
from refocal.experiments.tabular import Experiment
from refocal.experiments.tabular.tables import published

HERE = Path(__file__).parent
Version = tuple[str, str, np.ndarray[Any, Any], np.ndarray[Any, Any], tuple[str, ...]]
"""Published name, version, X, y, models."""
BOTH, LINEAR = ("linear", "mlp"), ("linear",)
MANY, FEW = 10, 3
DIGITS = (("USPS", "class 0"), ("USPS", "class 6"))
"""Those whose published linear errors fit with 3 trials."""
HEADER = ("dataset", "version", "model", "trials", "metric", "method", "mean", "published", "z", "strict")


def one_against_the_rest(folder: Path) -> Iterator[Version]:
    """Give each class of the sets whose published errors are those of two classes."""
    for name, first in (("USPS", None), ("Coil20", None), ("Isolet", 1560)):
        with np.load(folder / f"{name.lower()}.npz") as file:
            x, y = file["X"][:first], file["y"][:first]
        for k in range(y.max() + 1):
            models = BOTH if k == 0 or (name, k) == ("USPS", 6) else LINEAR
            yield name, f"class {k}", x, y == k, models
    with np.load(folder / "usps.npz") as file:
        x, y = file["X"], file["y"]
    least = np.bincount(y).min()
    order = np.random.default_rng(0).permutation(len(y))
    rows = np.concatenate([order[y[order] == k][:least] for k in range(10)])
    yield "USPS", "class 0, classes of equal size", x[rows], y[rows] == 0, LINEAR


def waveforms(folder: Path) -> Iterator[Version]:
    """Give each class of two samples of the generator, and of the one with 19 features of noise."""
    for file_name, columns in (("waveform-21", 21), ("waveform", 21), ("waveform", 40)):
        with np.load(folder / f"{file_name}.npz") as file:
            x, y = file["X"], file["y"]
        for k in range(3):
            yield "Waveform", f"{file_name}, {columns} features, class {k}", x[:, :columns], y == k, BOTH


def adults(folder: Path) -> Iterator[Version]:
    """Give all rows and those in which nothing is missing, with numbers as they are and cut into levels."""
    with np.load(folder / "adult.npz") as file:
        x, y, names = file["X"], file["y"], [str(name) for name in file["feature_names"]]
    known = (x[:, [i for i, name in enumerate(names) if name.endswith("=?")]] == 0).all(axis=1)
    cut = []
    for i, name in enumerate(names):
        column = x[:, i]
        if name in ("age", "hours-per-week"):
            level = np.searchsorted(np.quantile(column, [0.2, 0.4, 0.6, 0.8]), column)
        elif name in ("capital-gain", "capital-loss"):
            edges = np.quantile(column[column > 0], [0.25, 0.5, 0.75])
            level = np.where(column == 0, 0, 1 + np.searchsorted(edges, column))
        else:
            cut.append(column)
            continue
        cut += [level == k for k in range(5)]
    for coding, features in (("numbers", x), ("five levels", np.column_stack(cut))):
        for which, rows in (("all rows", slice(None)), ("complete rows", known)):
            some = features[rows]
            yield "Adult", f"{coding}, {which}", some[:, np.ptp(some, axis=0) > 0], y[rows], BOTH


def trials_of(version: Version) -> int:
    """Return how many trials a version is trained for."""
    name, what = version[:2]
    return MANY if name in ("Waveform", "Adult") or (name, what) in DIGITS else FEW


def cells(version: Version, trials: int, folder: Path) -> Iterator[tuple[Any, ...]]:
    """Train a version and give its rows of the table."""
    name, what, x, y, models = version
    path = folder / "version.npz"
    np.savez(path, X=x.astype(np.float32), y=y.astype(np.int64))
    for model in models:
        result = Experiment(str(path), model, trials=tuple(range(trials)), scaling="whole").run()
        for metric, methods in (("ece", ("raw", "psi")), ("error", ("raw",))):
            values = 100 * np.array(result["metrics"][metric])
            for g, loss in enumerate(("CE", "FL-1", "FL-2", "FL-3")):
                for method in methods[: 1 if g == 0 else None]:
                    ours = values[:, g, result["methods"].index(method)]
                    named = loss if method == "raw" else f"{loss}-{method}"
                    paper = published()[name, model, named, metric]
                    error = ours.std(ddof=1) / math.sqrt(trials)
                    z = z_of(float(ours.mean()), error, paper.mean, paper.spread)
                    yield (
                        *(name, what, model, trials, metric, named, round(ours.mean(), 4), paper.mean),
                        *(round(z, 3), int(abs(z) <= STRICT)),
                    )


def main() -> None:
    """Train every version and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", required=True, type=Path, help="a folder of .npz files")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="train these data sets, keep other rows")
    parser.add_argument("--out", type=Path, default=HERE / "versions.csv")
    args = parser.parse_args()
    kept: list[list[str]] = []
    if args.only:
        with open(args.out, newline="", encoding="utf-8") as file:
            kept = list(csv.reader(file))[1:]
    every = list(itertools.chain(*(of(args.data) for of in (one_against_the_rest, waveforms, adults))))
    names = sorted({version[0] for version in every})
    if unknown := set(args.only or ()) - {*names}:
        parser.error(f"--only must be among {', '.join(names)}, got {', '.join(sorted(unknown))}")
    rows: list[Sequence[Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for version in every:
            if args.only and version[0] not in args.only:
                rows += [row for row in kept if tuple(row[:2]) == version[:2]]
                continue
            found = list(cells(version, trials_of(version), Path(folder)))
            for model in version[4]:
                told = [row[-1] for row in found if (row[2], row[4]) == (model, "ece")]
                print(f"{version[0]}, {version[1]}, {model}: {sum(told)} of {len(told)}", flush=True)
            rows += found
    with open(args.out, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])


if __name__ == "__main__":
    main()
