"""Time of a choice between all calibrations, with their intervals, as ratios to PyTorch's softmax.

python benchmarks/bench_selection.py            # 50,000 x 100, float32
python benchmarks/bench_selection.py --quick    # a hundredth of the rows, to see that it runs
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from bench_temperature import made
from measure import best_of_each, write_results

import refocal
from refocal import _compiled

SHAPE = (50_000, 100)


def without_machine_code(call: Callable[[], object]) -> Callable[[], object]:
    """Return the call in array operations."""

    def plain() -> object:
        enough, _compiled.ENOUGH = _compiled.ENOUGH, 1 << 60
        try:
            return call()
        finally:
            _compiled.ENOUGH = enough

    return plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    z, y = made((SHAPE[0] // 100 if args.quick else SHAPE[0], SHAPE[1]), 2.0)
    logits = torch.from_numpy(z)
    calls: dict[str, Callable[[], object]] = {
        "fit of T and gamma": lambda: refocal.FocalTemperatureScaling().fit(z, y),
        "choose_calibration": lambda: refocal.choose_calibration(z, y, refocal.Focal(2.0)),
    }
    calls |= {f"{name}, without machine code": without_machine_code(call) for name, call in calls.items()}
    seconds = best_of_each({"torch softmax": lambda: torch.softmax(logits, -1), **calls}, args.repeats)
    rows = []
    for name, value in seconds.items():
        row = {
            "shape": f"{z.shape[0]} x {z.shape[1]}",
            "what": name,
            "ms": round(1e3 * value, 2),
            "x softmax": round(value / seconds["torch softmax"], 2),
        }
        rows.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if not args.quick:
        write_results("selection", rows)


if __name__ == "__main__":
    main()
