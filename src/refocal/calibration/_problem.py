"""Labelled logits of a task: which task it is, and the rows that fits and choices work on."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from refocal._rows import (
    SUM_TOLERANCE,
    Booleans,
    Floats,
    Integers,
    RowOptions,
    Rows,
    Task,
    checked_rows,
    label_array,
    logit_rows,
    same_order,
    score_array,
)
from refocal.calibration._links import Way, log_both, log_probs_of
from refocal.objectives import Focal, Objective
from refocal.objectives.base import ScoreKind, is_ours, scores_hint


def check_task(task: object, objective: Objective | None = None) -> None:
    """Raise where it is no task, or contradicts an objective."""
    if task is None:
        return
    if task not in get_args(Task):
        raise ValueError(f"task must be one of {get_args(Task)} or None, got {task!r}")
    if objective is not None and (objective.scores == "sigmoid") == (task == "multiclass"):
        name = type(objective).__name__
        help = f"wrap it as OneVsRest({name}(...))" if task == "multiclass" else for_log_odds(objective)
        raise ValueError(f"task must fit the objective, got {task!r} for {name} ({objective.scores}): {help}")


def for_log_odds(objective: Objective) -> str:
    """Return what to do where an objective that is not one on a sigmoid meets log odds."""
    if not is_ours(type(objective)):
        return scores_hint(objective)
    if type(objective) is Focal and isinstance(objective.gamma, float):
        smoothing = f", label_smoothing={objective.label_smoothing}" if objective.label_smoothing else ""
        alpha = "None" if objective.weight is None else "w1 / (w0 + w1)"
        same = f"SigmoidFocal({objective.gamma}, alpha={alpha}{smoothing})"
        return f"log odds need {same}, which is the same loss for two classes"
    return "log odds need an objective on a sigmoid, such as SigmoidFocal"


def task_of(task: Task | None, objective: Objective | None, ndim: int) -> Task:
    """Return the task that was said, that of the objective, or that of the shape: never by the values."""
    check_task(task, objective)
    if task is not None:
        return task
    if objective is not None and objective.scores != "sigmoid":
        return "multiclass"
    if ndim == 1:
        return "binary"
    return "multiclass" if objective is None else "multilabel"


@dataclass(frozen=True, eq=False)
class Problem:
    """Logits with their labels, every value checked.

    Attributes:
        task: What is predicted.
        kind: What turns logits into scores.
        z: Logits, (n, K) for classes, (n, L) for labels, (n, 1) for a binary task.
        labels: Of the shape (n,) for classes, and of the shape of z otherwise.
        rows: What the searches for T take: the rows of a softmax, or each entry of sigmoid scores as two
            classes with the logits 0 and z; for one sigmoid for each class, the rows as if of a softmax.
        given: All rows as they came, for the names of rows in errors.
        at: Which of those rows these are; None for all in their order.
    """

    task: Task
    kind: ScoreKind
    z: Floats
    labels: Integers
    rows: Rows
    given: Rows
    at: npt.NDArray[np.intp] | None = None

    @property
    def n_rows(self) -> int:
        """How many rows."""
        return len(self.z)

    @property
    def columns(self) -> int | None:
        """How many classes or labels each row has; None for a binary task."""
        return None if self.task == "binary" else self.z.shape[1]

    @cached_property
    def one(self) -> Booleans:
        """Where the outcome is 1, of the shape of z."""
        if self.labels.ndim == 2:
            return np.asarray(self.labels == 1)
        return np.asarray(self.labels[:, None] == np.arange(self.z.shape[1]))

    def take(self, index: npt.NDArray[np.intp]) -> Problem:
        """Return some of the rows."""
        at = index if self.at is None else self.at[index]
        if self.kind != "sigmoid":
            rows = self.rows.take(index)
            return replace(self, z=rows.z, labels=rows.labels, rows=rows, at=at)
        width = self.z.shape[1]
        entries = (index[:, None] * width + np.arange(width)).reshape(-1)
        rows = self.rows.take(entries)
        return replace(self, z=self.z[index], labels=self.labels[index], rows=rows, at=at)

    def label(self, j: int) -> Problem:
        """Return the binary task of one label, or of one class against the rest."""
        z = np.ascontiguousarray(self.z[:, j : j + 1])
        return replace(_entries("binary", z, self.one[:, j : j + 1], self.given), at=self.at)

    def held_out(self, probs: Floats) -> Rows:
        """Return rows with the same labels and these probabilities, (n, K) or of y = 1 for each entry."""
        labels, task = self.labels.reshape(-1), None if self.kind != "sigmoid" else self.task
        values = probs[:, 0] if task == "binary" else probs
        return Rows("probs", values, "probs", SUM_TOLERANCE, labels, task=task)

    def nll(self, way: Way) -> Floats:
        """Return the NLL of each row (n,), or of each entry (n, L) for sigmoid scores, in float64."""
        if self.kind != "sigmoid":
            return self._nll_of(self._log_probs(way))
        one, zero = log_both(self.z, way)
        self._check_answers(np.isnan(one + zero).any(axis=1))
        return -np.where(self.one, one, zero)

    def answers(self, way: Way) -> tuple[Floats, Floats]:
        """Return the probabilities of the shape of the logits, in float64, and the `nll`."""
        if self.kind != "sigmoid":
            log_probs = self._log_probs(way)
            return np.exp(log_probs), self._nll_of(log_probs)
        nll = self.nll(way)
        return np.minimum(np.exp(log_probs_of(self.kind, self.z, way, 1)), 1), nll

    def _log_probs(self, way: Way) -> Floats:
        """Return log-probabilities of classes, scaled to sum 1 in float64."""
        log_probs = log_probs_of(self.kind, self.z, way, 1)
        self._check_answers(~np.isfinite(log_probs.max(axis=1)))
        return self.rows.log_probs(log_probs).values

    def _nll_of(self, log_probs: Floats) -> Floats:
        return -log_probs[np.arange(self.n_rows), self.labels]

    def _check_answers(self, missing: Booleans) -> None:
        if missing.any():
            i = int(np.argmax(missing))
            row = i if self.at is None else int(self.at[i])
            raise ValueError(f"it has no answer for {_name(self.given, row)}")


def problem_of(
    logits: Any,
    labels: Any,
    task: Task | None,
    objective: Objective | None,
    axis: int,
    ignore_index: Hashable = None,
    classes: Iterable[Hashable] | None = None,
) -> Problem:
    """Return the problem that logits and labels are, by the task or the objective."""
    classes = same_order(logits, labels, classes)
    values, _ = score_array("logits", logits)
    task = task_of(task, objective, values.ndim)
    options: RowOptions = {"task": task, "axis": axis, "ignore_index": ignore_index, "classes": classes}
    if task == "multiclass":
        if values.ndim == 1:
            help = "log odds of class 1 need task='binary', or an objective on a sigmoid"
            if objective is not None:
                help = for_log_odds(objective)
            raise ValueError(f"logits must have rows and classes, got shape {values.shape}; {help}")
        return _of_classes(values, labels, "softmax" if objective is None else objective.scores, options)
    y = label_array(labels)
    if task == "multilabel" and values.ndim > 1 and y.shape == values.shape[:-1]:
        raise ValueError(
            f"labels must have the shape {values.shape} of logits for a multilabel task, got {y.shape}: "
            "labels that name one class of each row need OneVsRest(...) as the objective"
        )
    rows = checked_rows(values, y, from_logits=True, **options)
    z = np.concatenate([block for _, block in rows.raw_blocks()]).astype(np.float64)
    shape = rows.n_rows, rows.n_labels
    return _entries(task, z.reshape(shape), rows.labels.reshape(shape) == 1, rows)


def _of_classes(values: Floats, labels: Any, kind: ScoreKind, options: RowOptions) -> Problem:
    rows = logit_rows(values, labels, **options)
    if kind == "one-vs-rest" and np.isinf(rows.z).any():
        raise ValueError("logits must be finite for one sigmoid for each class, got -inf")
    return Problem("multiclass", kind, rows.z, rows.labels, rows, rows)


def _entries(task: Task, z: Floats, one: Booleans, given: Rows) -> Problem:
    """Return the problem of sigmoid logits (n, L)."""
    if np.isnan(z).any():
        row = int(np.argmax(np.isnan(z).any(axis=1)))
        raise ValueError(f"logits must not be NaN, got one in {_name(given, row)}")
    wrong = np.where(one, z == -math.inf, z == math.inf)
    if wrong.any():
        raise ValueError(
            "labels must be possible, got a logit of -inf for a 1 or of inf for a 0 "
            f"in {_name(given, int(np.argmax(wrong.any(axis=1))))}"
        )
    flat, labels = z.reshape(-1), one.reshape(-1).astype(np.int64)
    pairs = np.stack([np.where(flat > 0, -flat, 0), np.where(flat > 0, 0, flat)], axis=-1)
    rows = Rows("logits", pairs, "logits", SUM_TOLERANCE, labels)
    return Problem(task, "sigmoid", z, one.astype(np.int64), rows, given)


def _name(given: Rows, row: int) -> str:
    """Return what the caller knows a row as, by its number among those that count."""
    return given.row_name(row if given.kept is None else int(np.flatnonzero(given.kept)[row]))
