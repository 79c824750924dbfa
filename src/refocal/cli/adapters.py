"""``refocal adapters``."""

from __future__ import annotations

import argparse
import ast
import inspect
from typing import Any

from refocal.cli.options import add_command
from refocal.cli.printing import table, to_json


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "adapters",
        "which loss do I have: the objective of another library's loss",
        "Without options: the libraries whose losses are known, with their arguments and defaults. With\n"
        "--library: the objective of that loss, from the arguments that you trained with; --json prints\n"
        "it as `refocal apply --objective FILE` reads it.",
        "  refocal adapters\n"
        "  refocal adapters --library torchvision --args alpha=0.25 gamma=2\n"
        "  refocal adapters --library torchvision --args alpha=0.25 gamma=2 --json > spec.json",
    )
    parser.add_argument("--library", metavar="NAME", help="one of the names in the table")
    text = "arguments of its loss, as you gave them; the rest have the defaults of that library"
    parser.add_argument("--args", nargs="*", default=[], metavar="NAME=VALUE", help=text)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from refocal import adapters

    known = {name.removeprefix("from_"): getattr(adapters, name) for name in adapters.__all__}
    if args.library is None:
        if args.args:
            raise ValueError("--args: for --library only")
        _list(known, args.json)
        return
    if args.library not in known:
        raise ValueError(f"--library must be one of {', '.join(known)}, got {args.library!r}")
    given = dict(_argument(text) for text in args.args)
    function = known[args.library]
    try:
        inspect.signature(function).bind(**given)
    except TypeError as error:
        raise ValueError(f"--args must fit {args.library}{_signature(function)}: {error}") from None
    try:
        objective = function(**given)
    except TypeError as error:
        raise ValueError(str(error)) from error
    print(to_json(objective.to_dict()) if args.json else objective)


def _list(known: dict[str, Any], as_json: bool) -> None:
    described = [
        {"library": name, "signature": _signature(f), "what": (inspect.getdoc(f) or "").splitlines()[0]}
        for name, f in known.items()
    ]
    if as_json:
        print(to_json(described))
        return
    print(table([["library", "arguments"], *([d["library"], d["signature"]] for d in described)]))


def _signature(function: Any) -> str:
    parameters = inspect.signature(function).parameters.values()
    return f"({', '.join(str(p.replace(annotation=p.empty)) for p in parameters)})"


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--args must be like gamma=2, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return name, value  # a word
