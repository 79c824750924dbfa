"""The words of a report: the verdict, the warnings, and the code that applies the recommendation."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Sequence
from typing import Any

from refocal.calibration import Method, Selection
from refocal.objectives import Focal, Objective, SigmoidFocal
from refocal.report.gather import Gathered, Task
from refocal.report.measure import only_temperature
from refocal.report.numbers import ClassRow, Tone

FEW_ROWS, FEW_CLASS_ROWS = 1000, 10
ALWAYS_SAID = ("gamma", "alpha")
"""Arguments of objectives that are shown even where they have their default: all depends on them."""
NAMED = 5
"""So many classes are named in a warning, the others counted."""


def verdict(selection: Selection | None, refusal: str | None) -> tuple[Tone, str, str]:
    """Return what the verdict asks for, and the verdict in a few words and in a sentence or two."""
    if selection is None:
        return "none", "No advice for these rows.", f"The methods could not be compared: {refusal}."
    if selection.winner == "raw":
        if selection.clear:
            return "keep", "Keep the scores as they are.", selection.sentence
        return "unclear", "Nothing is clear yet: keep the scores, label more rows.", selection.sentence
    if selection.clear:
        return "act", f"These scores are not yet probabilities: use {selection.winner}.", selection.sentence
    return "act", f"Use {selection.winner} for now.", selection.sentence


def warnings_of(
    gathered: Gathered, classes: Sequence[ClassRow], selection: Selection | None, objective_given: bool
) -> tuple[str, ...]:
    """Return what a reader has to know about the data."""
    found = []
    if gathered.all_on_simplex:
        found.append(
            "The scores were said to be logits, but look like probabilities: all are within 0 and 1"
            f"{', and each row sums to 1' if gathered.task == 'multiclass' else ''}. If they are, say "
            "from_logits=False (--probs)."
        )
    if not objective_given:
        loss = "focal loss with gamma 2"
        if gathered.task != "multiclass":
            loss = "focal loss on a sigmoid with gamma 2 and without alpha"
        found.append(
            f"No objective was said, so the {loss} is assumed. Say what the model was trained with, since "
            "psi depends on it."
        )
    if gathered.n_rows < FEW_ROWS:
        found.append(
            f"{_count(gathered.n_rows, 'row')} only: the intervals are wide, and small differences between "
            "methods cannot be seen."
        )
    if math.isinf(gathered.nll):
        found.append("A label has probability 0, so the NLL of the scores is infinite.")
    what = "Labels" if gathered.task == "multilabel" else "Classes"
    unseen = [c.name for c in classes if c.rows == 0]
    if unseen:
        found.append(f"{what} that no row has: {_names(unseen)}. Nothing can be said about them.")
    few = [c.name for c in classes if 0 < c.rows < FEW_CLASS_ROWS]
    if few:
        found.append(f"{what} that fewer than {FEW_CLASS_ROWS} rows have: {_names(few)}.")
    missed = [c.name for c in classes if c.predicted == 0 and c.rows > 0]
    if missed:
        found.append(f"{what} that are never predicted, though rows have them: {_names(missed)}.")
    if len({c.name for c in classes}) < len(classes):
        found.append("Some classes have the same name.")
    if selection is not None:
        found += [f"{name} was left out: {reason}." for name, reason in selection.skipped]
    return tuple(found)


def python_code(method: Method, from_logits: bool, task: Task) -> str:
    """Return code that turns scores of the model into the probabilities of a method."""
    logits, imports = "logits", ["import refocal"]
    if not from_logits:
        imports.insert(0, "import numpy as np")
        logits = "np.log(scores)" if task == "multiclass" else "(np.log(scores) - np.log1p(-scores))"
    temperature = only_temperature(method)
    if temperature is None:
        read = 'choice = refocal.Selection.from_dict(json.loads(open("choice.json").read()))'
        return "\n".join(["import json", *imports, "", read, f"probs = choice.apply({logits})"])
    # Gamma 0 gives the softmax, or the sigmoid.
    link = method.link or (Focal(0.0) if task == "multiclass" else SigmoidFocal(0.0, alpha=None))
    if temperature != 1:
        logits += f" / {temperature!r}"
    elif not from_logits:
        call = f"{source_of(link)}.posterior_from_probs(scores)"
        return "probs = scores" if method.link is None else f"import refocal\n\nprobs = {call}"
    return "\n".join([*imports, "", f"probs = {source_of(link)}.posterior({logits})"])


def command_of(from_logits: bool, source: str | None, options: Sequence[str] = ()) -> str:
    """Return the command that applies a choice to a file.

    Example:
        >>> command_of(True, "rows.csv", ["--scores", "logit_*"])
        "refocal apply rows.csv rows-probs.csv --scores 'logit_*' --logits --calibration choice.json"
    """
    files = ["IN", "OUT"] if source is None else [source, _output(source, options)]
    kind = "--logits" if from_logits else "--probs"
    return shlex.join(["refocal", "apply", *files, *options, kind, "--calibration", "choice.json"])


def _output(source: str, options: Sequence[str]) -> str:
    """Return a name for the rows of a file with probabilities, of the same format; a folder has no ending."""
    name, dot, ending = source.rstrip("/").rpartition("/")[2].partition(".")
    if "--from" in options:
        dot, ending = ".", options[options.index("--from") + 1]
    elif source == "-":
        dot, ending = ".", "csv"
    has_no_name = name in ("", "-") or any(c in name for c in "*?[")
    return f"{'' if has_no_name else name + '-'}probs{dot}{ending}"


def source_of(objective: Objective) -> str:
    """Return the call that makes an objective, without arguments that have their default.

    Example:
        >>> from refocal import Focal
        >>> source_of(Focal(gamma=2.0, label_smoothing=0.1))
        'refocal.Focal(gamma=2.0, label_smoothing=0.1)'
    """
    kind = type(objective)
    room = "refocal." if kind.__module__.split(".")[0] == "refocal" else ""
    arguments = []
    fields = dataclasses.fields(objective) if dataclasses.is_dataclass(objective) else ()
    field: dataclasses.Field[Any]
    for field in fields:
        value = getattr(objective, field.name)
        if value != field.default or field.name in ALWAYS_SAID:
            text = source_of(value) if isinstance(value, Objective) else repr(value)
            arguments.append(f"{field.name}={text}")
    return f"{room}{kind.__name__}({', '.join(arguments)})"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED:,} more"
