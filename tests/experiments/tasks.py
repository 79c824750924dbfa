"""Small runs for the tests of sweeps, and a program that sweeps over them: it is there to be killed."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from refocal.experiments.sweeps import run_key, sweep

PROGRAM = [sys.executable, __file__]


def start(*arguments, **options):
    """Start this file as a program."""
    return subprocess.Popen([*PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, **options)


def started(log):
    """The runs of `logged` in the order in which they were started."""
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def files(out):
    """The names in the runs folder, without the lock."""
    return sorted(path.name for path in (out / "runs").iterdir() if path.name != ".lock")


def square(config):
    """Numbers that need every bit of a float, and an array."""
    rng = np.random.default_rng(config["seed"])
    values = rng.normal(size=1000)
    return {"x": config["x"] ** 2, "sum": values.sum(), "third": [1 / 3, None, "é"]}, {"values": values}


def logged(config):
    """Write down that the run was started, then work for some milliseconds and return 100 kB."""
    line = b"%d\n" % config["x"]
    with open(config["log"], "ab", buffering=0) as log:
        log.write(line)
    os.write(sys.__stdout__.fileno(), line)
    values = np.random.default_rng(config["x"]).normal(size=12_500)
    for _ in range(60):
        values = np.sort(np.sin(values))
    return {"x": config["x"], "sum": float(values.sum())}, {"values": values}


def odd_fails(config):
    if config["x"] % 2:
        raise ArithmeticError(f"{config['x']} is odd")
    return {"x": config["x"]}


def dies_once(config):
    """Kill the process of the run with x = 1, the first time only; give what `square` gives."""
    mark = Path(config["mark"])
    if config["x"] == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return square(config)


def always_dies(config):
    if config["x"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"x": config["x"]}


def blocks(config):
    """Say on a pipe that the run has begun, and wait on another one for a word that never comes."""
    if config["x"] == 0:
        return {"x": 0}
    first = Path(config["out"], "runs", f"{run_key({**config, 'x': 0})}.json")
    while not first.exists():  # the first run is done elsewhere at the same time
        os.sched_yield()
    with open(config["begun"], "wb") as begun:
        begun.write(b"%d\n" % os.getpid())
    with open(config["never"], "rb") as never:
        never.read()
    raise AssertionError("somebody wrote to the pipe")


def blocks_configs(out, begun, never):
    return [{"x": x, "out": str(out), "begun": str(begun), "never": str(never)} for x in range(2)]


def logged_configs(log, n):
    return [{"x": x, "log": str(log)} for x in range(n)]


def main(command, out, *rest):
    """Sweep as a program: `python tasks.py COMMAND OUT ...`."""
    if command == "logged":
        log, n, jobs = rest
        print("ready", flush=True)
        sweep(logged_configs(log, int(n)), logged, out, jobs=int(jobs))
    elif command == "blocks":
        begun, never, jobs = rest
        sweep(blocks_configs(out, begun, never), blocks, out, jobs=int(jobs))
    elif command == "limited":  # no file of more than 50 kB: the system refuses the write in the middle
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        sweep([{"x": 2, "seed": 0}], square, out)
        sweep(logged_configs(rest[0], 1), logged, out)
    elif command == "fill":
        sweep(logged_configs(rest[0], 100), logged, out)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(f"{type(error).__name__}: {error}")
