"""Many runs of one function, each done once, whatever happens in between. No module here but two needs torch.

A study describes its runs as configs and calls `carry_out`; tables call `read_runs`.
"""

from refocal.experiments.sweeps.origin import cores, machine, origin_of, origin_text, versions
from refocal.experiments.sweeps.runs import SweepError, sweep
from refocal.experiments.sweeps.store import NothingFinished, Run, read_runs, run_key
from refocal.experiments.sweeps.workers import Workers, carry_out

__all__ = [
    "NothingFinished",
    "Run",
    "SweepError",
    "Workers",
    "carry_out",
    "cores",
    "machine",
    "origin_of",
    "origin_text",
    "read_runs",
    "run_key",
    "sweep",
    "versions",
]
