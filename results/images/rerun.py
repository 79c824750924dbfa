"""Begin stored image runs again, and see whether this machine makes the same bits.

    python results/images/rerun.py --data DATA [--epochs 2] [KEY ...]

The first epochs of a run do not depend on how many follow, and the mean loss of each is stored with all its
digits: runs of the same machine, libraries and source have the same ones.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from refocal.experiments.data import find
from refocal.experiments.files import sha256_of
from refocal.experiments.images import Experiment
from refocal.experiments.images.groups import machines_of
from refocal.experiments.images.training import run_experiment
from refocal.experiments.sweeps import Run, read_runs


def begin_again(run: Run, epochs: int, data: str | None) -> list[float]:
    """Return the losses of the first epochs, trained again with the threads of the run.

    Raises:
        SystemExit: If the data file is another one than that of the run.
    """
    path, before = find(run.config["dataset"], data), run.result.get("data_sha256")
    if path is not None and before not in (None, sha256_of(path)):
        raise SystemExit(
            f"{path} must be the file of run {run.key} (SHA-256 {before[:8]}...), got another one"
        )
    experiment = dataclasses.replace(Experiment.from_config(run.config), epochs=epochs)
    machine = machines_of(run)[0]
    result, _ = run_experiment(
        experiment, data=data, device=machine.device, threads=machine.threads, compile=machine.compile
    )
    losses: list[float] = result["train_loss"]
    return losses


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare runs, print a line for each, and return 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("keys", nargs="*", metavar="KEY", help="of runs (default: all)")
    parser.add_argument("--runs", default=Path(__file__).parent, type=Path, help="the folder with runs/")
    parser.add_argument("--data", help="a folder of .npz files")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args(arguments)
    runs = {run.key: run for run in read_runs(args.runs)}
    missing = [key for key in args.keys if key not in runs]
    if missing:
        parser.error(f"KEY must be a run in {args.runs}, got {', '.join(missing)}")
    different = 0
    for key in args.keys or runs:
        run = runs[key]
        before = run.result["train_loss"][: args.epochs]
        now = begin_again(run, len(before), args.data)
        different += now != before
        machine = machines_of(run)[0]
        print(
            f"{run.key} ({machine}, commit {machine.commit}): "
            + ("the same bits" if now == before else f"other bits: {now} now, {before} stored"),
            flush=True,
        )
    return int(different > 0)


if __name__ == "__main__":
    raise SystemExit(main())
