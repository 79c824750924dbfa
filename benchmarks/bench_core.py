"""Time and memory of log_psi, psi and focal_minimizer, as ratios to the same library's softmax.

python benchmarks/bench_core.py            # all shapes
python benchmarks/bench_core.py --quick    # a hundredth of the rows, to see that it runs
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import numpy as np
import scipy.special
import torch
from measure import best_of_each, write_results

import refocal

SHAPES = [(1_000_000, 10), (100_000, 100), (20_000, 1000)]
GAMMA = 2.0


def measure_times(shape: tuple[int, int], repeats: int) -> dict[str, float]:
    logits = (np.random.default_rng(0).normal(size=shape) * 3).astype(np.float32)
    probs = scipy.special.softmax(logits, axis=-1)
    t_logits, t_probs = torch.from_numpy(logits), torch.from_numpy(probs)
    seconds = best_of_each(
        {
            "numpy softmax": lambda: scipy.special.softmax(logits, axis=-1),
            "numpy log_psi": lambda: refocal.log_psi(logits, GAMMA),
            "numpy psi": lambda: refocal.psi(probs, GAMMA),
            "numpy psi without check": lambda: refocal.psi(probs, GAMMA, check=False),
            "torch softmax": lambda: torch.softmax(t_logits, -1),
            "torch log_psi": lambda: refocal.log_psi(t_logits, GAMMA),
            "torch psi": lambda: refocal.psi(t_probs, GAMMA),
            "torch psi without check": lambda: refocal.psi(t_probs, GAMMA, check=False),
        },
        repeats,
    )
    seconds |= best_of_each(
        {
            "numpy focal_minimizer": lambda: refocal.focal_minimizer(probs, GAMMA),
            "torch focal_minimizer": lambda: refocal.focal_minimizer(t_probs, GAMMA),
        },
        max(2, repeats // 4),
    )
    return seconds


def peak_extra_mib(shape: tuple[int, int], library: str) -> float:
    """Return the growth of a fresh process's peak memory by one log_psi, output included."""
    code = f"""
import numpy as np
import refocal
def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) / 1024
z = np.random.default_rng(0).standard_normal({shape}, dtype=np.float32)
if {library!r} == "torch":
    import torch
    z = torch.from_numpy(z)
refocal.log_psi(z[:30000], {GAMMA})  # the kernels are loaded by now
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
before = status("VmRSS")
y = refocal.log_psi(z, {GAMMA})
print(status("VmHWM") - before)
"""
    return float(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    rows = []
    for n, k in SHAPES:
        shape = (n // 100 if args.quick else n, k)
        seconds = measure_times(shape, args.repeats)
        for name, value in seconds.items():
            library, what = name.split(" ", 1)
            row = {
                "shape": f"{shape[0]} x {k}",
                "library": library,
                "what": what,
                "ms": round(1e3 * value, 2),
                "x softmax": round(value / seconds[f"{library} softmax"], 2),
            }
            if what == "log_psi":
                row["output MiB"] = round(shape[0] * k * 4 / 2**20, 1)
                row["peak extra MiB"] = round(peak_extra_mib(shape, library), 1)
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if not args.quick:
        write_results("core", rows)


if __name__ == "__main__":
    main()
