"""``refocal data list | fetch | check``."""

from __future__ import annotations

import argparse


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
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
    listing.set_defaults(run=_list)
    fetching.set_defaults(run=_fetch)
    checking.set_defaults(run=_check)


def _list(args: argparse.Namespace) -> None:
    from refocal.experiments.data import REGISTRY, find, is_partial

    print(f"{'name':<22} {'kind':<8} {'classes':>7}  {'source':<13} {'here':<5} notes")
    for name, entry in REGISTRY.items():
        origin = "see notes" if entry.openml is None else f"OpenML {entry.openml}"
        path = find(name, args.data)
        here = "no" if path is None else "part" if is_partial(path) else "yes"
        notes = "; ".join(filter(None, ["" if entry.openml else entry.where, entry.notes]))
        line = f"{name:<22} {entry.kind:<8} {entry.n_classes:>7}  {origin:<13} {here:<5} {notes}"
        print(line.rstrip())


def _fetch(args: argparse.Namespace) -> None:
    from refocal.experiments.data import fetch, source

    for entry in [source(name) for name in args.names]:  # a wrong name stops before the first download
        print(f"{entry.name}: {fetch(entry.name)}")


def _check(args: argparse.Namespace) -> None:
    from refocal.experiments.data import check, names

    checks = [check(name, args.data) for name in args.names or names()]
    if not args.names:  # nobody needs all of them
        checks = [done for done in checks if done.state != "missing"]
    for done in checks:
        print(f"{done.name:<22} {done.state:<8} {done.message or done.path or ''}".rstrip())
    bad = [done.name for done in checks if done.state not in ("ok", "unknown")]
    if bad:
        raise ValueError(f"{len(bad)} of {len(checks)} data sets are not as expected: {', '.join(bad)}")
    print(f"{len(checks)} data sets checked")
