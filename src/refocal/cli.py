"""The command line: ``refocal COMMAND`` or ``python -m refocal COMMAND``.

Exit codes: 0 done, 1 the work failed or a value is not allowed, 2 an unknown option or a missing optional
dependency, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from refocal import __version__

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: The words after ``refocal``; those of the process by default.

    Example:
        >>> main(["--version"])
        refocal 0.1.0
        0
    """
    try:
        args = _parser().parse_args(argv)
    except SystemExit as stop:  # argparse has printed what there was to say
        return stop.code if isinstance(stop.code, int) else 0
    try:
        args.run(args)
    except ImportError as error:
        return _fail(2, str(error))
    except (OSError, ValueError) as error:
        return _fail(1, str(error))
    except KeyboardInterrupt:
        return _fail(130, "interrupted")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="refocal",
        description="Train with focal loss, get true probabilities.",
        epilog="example:\n  refocal demo --out .",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"refocal {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_data(commands)
    _add_reproduce(commands)
    return parser


# A command is a function that adds its parser and sets `run`. What it needs is imported when it runs,
# so that help is quick and a missing library stops only the commands that use it.


def _add_demo(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        help="train on a known problem: focal scores are wrong, psi corrects them",
        description=(
            "Three classes on a line with a known posterior: small networks trained with cross entropy\n"
            "and with focal loss, gamma 1 and 5; their scores raw, after temperature scaling, after psi.\n"
            "Takes some seconds, prints a table and writes refocal-demo.png.\n"
            "Needs PyTorch and matplotlib: pip install 'refocal[torch,plots]'."
        ),
        epilog="example:\n  refocal demo --out figures",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", metavar="DIR", default=".", help="an existing folder for the figure (default: .)"
    )
    parser.set_defaults(run=_demo)


def _demo(args: argparse.Namespace) -> None:
    from refocal.demo import run_demo

    result = run_demo(args.out)
    print("Networks on a three-class mixture with a known posterior; KLD is the distance to it:\n")
    print(result.study.table(), result.summary(), f"figure: {result.figure}", sep="\n\n")


def _add_data(commands: Commands) -> None:
    parser = commands.add_parser(
        "data",
        help="list, fetch and check the data sets of the paper",
        description=(
            "The data sets of the paper. A set is a file NAME.npz in the folder of --data or of the\n"
            "environment variable REFOCAL_DATA, or in the cache, where `fetch` puts it from OpenML."
        ),
        epilog="example:\n  refocal data list\n  refocal data fetch vehicle letter\n  refocal data check",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="show every set, its source, and whether it is here")
    fetching = actions.add_parser("fetch", help="fetch sets from OpenML into the cache")
    checking = actions.add_parser("check", help="compare the files that are here with their checksums")
    for action in (listing, checking):
        action.add_argument("--data", metavar="DIR", help="a folder of .npz files (default: $REFOCAL_DATA)")
    fetching.add_argument("names", nargs="+", metavar="NAME", help="a set, as `refocal data list` shows it")
    checking.add_argument("names", nargs="*", metavar="NAME", help="only these sets (default: all)")
    listing.set_defaults(run=_data_list)
    fetching.set_defaults(run=_data_fetch)
    checking.set_defaults(run=_data_check)


def _data_list(args: argparse.Namespace) -> None:
    from refocal.experiments.datasets import REGISTRY, find, is_partial

    print(f"{'name':<22} {'kind':<8} {'classes':>7}  {'source':<13} {'here':<5} notes")
    for name, entry in REGISTRY.items():
        origin = "see notes" if entry.openml is None else f"OpenML {entry.openml}"
        path = find(name, args.data)
        here = "no" if path is None else "part" if is_partial(path) else "yes"
        notes = "; ".join(filter(None, ["" if entry.openml else entry.where, entry.notes]))
        line = f"{name:<22} {entry.kind:<8} {entry.n_classes:>7}  {origin:<13} {here:<5} {notes}"
        print(line.rstrip())


def _data_fetch(args: argparse.Namespace) -> None:
    from refocal.experiments.datasets import fetch, source

    for entry in [source(name) for name in args.names]:  # a wrong name stops before the first download
        print(f"{entry.name}: {fetch(entry.name)}")


def _data_check(args: argparse.Namespace) -> None:
    from refocal.experiments.datasets import check, names

    checks = [check(name, args.data) for name in args.names or names()]
    if not args.names:  # nobody needs all of them
        checks = [done for done in checks if done.state != "missing"]
    for done in checks:
        print(f"{done.name:<22} {done.state:<8} {done.message or done.path or ''}".rstrip())
    bad = [done.name for done in checks if done.state not in ("ok", "unknown")]
    if bad:
        raise ValueError(f"{len(bad)} of {len(checks)} data sets are not as expected: {', '.join(bad)}")
    print(f"{len(checks)} data sets checked")


def _add_reproduce(commands: Commands) -> None:
    parser = commands.add_parser(
        "reproduce",
        help="make the paper's figures and tables again",
        description=(
            "The experiments of the paper. Runs are kept in --out as they finish; a study that was\n"
            "stopped goes on where it was. Needs pip install 'refocal[experiments]'."
        ),
        epilog=(
            "example:\n  refocal reproduce theory --out results/theory\n"
            "  refocal reproduce tabular --dataset vehicle banknote --trials 3 --out results/tabular"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    studies = parser.add_subparsers(title="studies", metavar="STUDY", required=True)
    theory = studies.add_parser("theory", help="the figures of phi, of max eta, and of the thresholds")
    theory.set_defaults(run=_reproduce_theory)
    synthetic = studies.add_parser("synthetic", help="networks on three classes with a known posterior")
    synthetic.add_argument("--quick", action="store_true", help="fewer samples and steps")
    synthetic.add_argument("--seed", type=int, default=0)
    synthetic.set_defaults(run=_reproduce_synthetic)
    tabular = studies.add_parser("tabular", help="30 data sets, linear models and small networks")
    _add_tabular_options(tabular)
    tabular.set_defaults(run=_reproduce_tabular)
    images = studies.add_parser("images", help="ResNets on CIFAR-10, CIFAR-100 and SVHN")
    _add_images_options(images)
    images.set_defaults(run=_reproduce_images)
    for study in (theory, synthetic, tabular, images):
        name = study.prog.split()[-1]
        default = f"results/{name}"
        study.add_argument("--out", metavar="DIR", default=default, help=f"folder (default: {default})")


def _add_tabular_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dataset", nargs="+", metavar="NAME", help="names or .npz files (default: all that are here)")
    add("--model", nargs="+", default=["linear", "mlp"], metavar="MODEL", help="linear, mlp (default: both)")
    add("--gamma", nargs="+", type=float, default=[0.0, 1.0, 2.0, 3.0], help="(default: 0 1 2 3)")
    add("--trials", type=int, default=10, metavar="N", help="(default: 10)")
    add("--epochs", type=int, default=50, metavar="N", help="(default: 50)")
    add("--task", default="paper", help="paper: as published; original: the files as they are")
    add("--train-fraction", type=float, metavar="P", help="(default: the given split, or 0.5)")
    add("--scaling", default="auto", help="of the features: auto, standard, minmax, pixels or none")
    add("--weight-decay", type=float, default=0.0, metavar="W", help="(default: 0; the paper's text: 0.001)")
    add("--seed", type=int, default=0)
    add("--data", metavar="DIR", help="a folder of .npz files (default: $REFOCAL_DATA)")
    _add_engine_options(parser)


def _add_images_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dataset", default="cifar10-s", metavar="NAME", help="a name or .npz file (default: cifar10-s)")
    add("--model", default="resnet8", help="resnet8, resnet20, resnet44 or resnet110 (default: resnet8)")
    add("--gamma", nargs="+", type=float, default=[0.0, 1.0, 2.0, 3.0], help="(default: 0 1 2 3)")
    add("--paradigm", nargs="+", default=["standard", "ls"], help="standard, ls (default: both)")
    add("--trials", type=int, default=10, metavar="N", help="(default: 10)")
    add("--epochs", type=int, metavar="N", help="(default: the paper's; the rate falls in proportion)")
    add(
        "--validation",
        type=float,
        default=0.1,
        metavar="PART",
        help="of each class, held out (default: 0.1); 0: the temperature is cross-fitted on the test set",
    )
    add("--lr", type=float, default=0.1, help="learning rate at the start (default: 0.1)")
    add("--precision", default="float32", help="float32, or bfloat16 for mixed precision")
    add("--device", default="auto", help="cpu, cuda, ... (default: auto)")
    add("--threads", type=int, default=1, metavar="N", help="of a run; --jobs is cores / N, 1 on CUDA")
    add("--compile", action="store_true", help="use torch.compile")
    add("--report", action="store_true", help="train nothing: tables and figures of what is in --out")
    add("--data", metavar="DIR", help="a folder of .npz files (default: $REFOCAL_DATA)")
    add("--gpus-per-run", type=float, metavar="N", help="what a Ray run asks for (default: 0)")
    _add_engine_options(parser)


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--jobs", type=int, metavar="N", help="runs at a time (default: what the cores allow)")
    add("--engine", help="local, or ray for a Ray cluster (default: local)")
    add("--address", help="of the Ray cluster (default: start one here)")
    add("--cpus-per-run", type=float, metavar="N", help="what a Ray run asks for (default: its threads)")


def _engine(args: argparse.Namespace, threads: int = 1) -> dict[str, Any]:
    from refocal.experiments.engines import cores

    if args.engine != "ray" and (names := _given(args, "address", "cpus_per_run", "gpus_per_run")):
        raise ValueError(f"{names}: for --engine ray only")
    if args.engine in (None, "local"):
        return {"jobs": cores() if args.jobs is None else args.jobs}
    asked = {"num_cpus": args.cpus_per_run, "num_gpus": getattr(args, "gpus_per_run", None)}
    resources = {"num_cpus": float(threads)} | {
        name: value for name, value in asked.items() if value is not None
    }
    return {"jobs": args.jobs, "engine": args.engine, "address": args.address, "resources": resources}


def _given(args: argparse.Namespace, *names: str) -> str:
    """Return those of the options that were given, as they are typed."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names if getattr(args, name, None) is not None)


def _reproduce_theory(args: argparse.Namespace) -> None:
    from refocal.experiments.theory import run_theory

    _print_files(run_theory(args.out))


def _reproduce_synthetic(args: argparse.Namespace) -> None:
    from refocal.experiments.synthetic import run_synthetic

    _print_files(run_synthetic(args.out, quick=args.quick, seed=args.seed))


def _reproduce_tabular(args: argparse.Namespace) -> None:
    from refocal.experiments.tabular_report import experiments_of, run_tabular_study

    options = _engine(args)
    experiments = experiments_of(
        args.dataset,
        models=args.model,
        gammas=args.gamma,
        trials=args.trials,
        epochs=args.epochs,
        weight_decay=args.weight_decay,
        task=args.task,
        train_fraction=args.train_fraction,
        scaling=args.scaling,
        seed=args.seed,
        data=args.data,
    )
    _print_files(run_tabular_study(experiments, args.out, **options))


def _reproduce_images(args: argparse.Namespace) -> None:
    from refocal.experiments.image_tables import write_image_report
    from refocal.experiments.images import default_jobs, image_configs, sweep_images
    from refocal.experiments.runs import SweepError
    from refocal.experiments.together import from_first, process_group

    if args.report:
        _print_files(write_image_report(args.out))
        return
    configs = image_configs(
        args.dataset,
        args.model,
        args.gamma,
        args.paradigm,
        args.trials,
        args.epochs,
        lr=args.lr,
        validation=args.validation,
        precision=args.precision,
    )
    options: dict[str, Any] = {}
    if "RANK" in os.environ:  # started by torchrun: its processes do each run together
        names = _given(args, "jobs", "engine", "address", "cpus_per_run", "gpus_per_run")
        if names:
            raise ValueError(f"under torchrun there is no choice of {names}")
    else:
        if args.engine in (None, "local") and args.jobs is None:
            args.jobs = default_jobs(args.device, args.threads)
        options = _engine(args, args.threads)
    failed: SweepError | None = None

    def report() -> list[Path]:
        try:
            return write_image_report(args.out)
        except FileNotFoundError:
            if failed is None:
                raise
            return []

    # torchrun ends all processes as soon as one fails: none may leave before the report is written.
    with process_group(args.device) as (rank, _):
        try:
            sweep_images(
                configs,
                args.out,
                data=args.data,
                device=args.device,
                threads=args.threads,
                compile=args.compile,
                **options,
            )
        except SweepError as error:  # the others are reported all the same
            failed = error
        paths = from_first(report)
        if rank == 0:
            _print_files(paths)
        if failed is not None:
            raise failed


def _print_files(paths: Sequence[Path]) -> None:
    for path in paths:
        print(path)


def _fail(code: int, message: str) -> int:
    print(f"refocal: {message}", file=sys.stderr)
    return code
