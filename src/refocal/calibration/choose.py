"""What to do with the logits of a model: nothing, a temperature, psi, or both, by held-out likelihood."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from refocal._checks import LEVEL, check_count, check_level, check_number
from refocal._rows import Floats, Task
from refocal.calibration._candidates import Candidates, Fitted, candidates
from refocal.calibration._measures import measure
from refocal.calibration._problem import Problem, problem_of
from refocal.calibration.method import METHODS, LabelGain, Method
from refocal.calibration.selection import Selection
from refocal.metrics.binning import check_n_bins
from refocal.metrics.cells import resample
from refocal.metrics.intervals import Interval
from refocal.objectives import Focal, Objective, SigmoidFocal, check_objective

N_FOLDS = 5


def choose_calibration(
    logits: Any,
    labels: Any,
    objective: Objective | None = None,
    *,
    task: Task | None = None,
    axis: int = -1,
    ignore_index: Hashable = None,
    classes: Sequence[Hashable] | None = None,
    n_folds: int | None = None,
    level: float = LEVEL,
    negligible: float = 0.001,
    n_bins: int = 10,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Selection:
    """Choose between no calibration, temperature scaling, `psi`, and both, on labelled held-out rows.

    Each method is fitted on all parts of the rows but one and measured on that one, in turn. The winner is
    the simplest method whose NLL is negligibly above the smallest one. It need not be clear that it is the
    best: where rows are few, a rule that asks for that keeps worse scores. ``clear`` says whether it is.
    A wrong gamma, an overfitted model or one trained with another loss shows in the table, whatever the
    theory says. What the choice costs against the best method is measured in ``results/selection``.

    The methods, from simple to complex: "raw", the scores as they are; "psi", the objective's posterior;
    "ts_nll" and "ts_fl", temperature scaling by the NLL and by the objective's own loss; "psi_ts_fl", psi
    after the latter; "focal_ts" and "focal_ts_free", focal temperature scaling with the given gamma (for
    sigmoid scores: any objective's posterior) and with a free one. For label smoothing, psi comes twice: as
    in the paper, and with the smoothing taken out ("..._unsmoothed"). For sigmoid scores also "platt", a
    temperature and a bias, which mends what a wrong prior or alpha did; with several labels "..._per_label",
    numbers of each label, and for one sigmoid for each class "ts_nll_per_class". A label that is 1 or 0 less
    than 20 times has the numbers of all, and the result says so.

    No method gives 0 to an outcome that the raw scores hold possible. `Asymmetric` has a posterior of 0 up to
    its clip, so a share of 1 / (n + 2) of the raw scores is mixed into it. So it is with an objective of your
    own whose posterior is 0 at some of these rows, or at logits between -20 and 20; every other one is taken
    as it is, and "psi" is its ``posterior``.

    Args:
        logits: Scores of rows that the model was not trained on: (n, K) before a softmax or, for `OneVsRest`,
            one sigmoid for each class; (n,) log odds of class 1 (binary); (n, L) before one sigmoid for each
            label (multilabel).
        labels: Integers 0..K-1, (n,); 0 or 1 of the shape of logits for binary and multilabel tasks.
        objective: What the model was trained with; None for ``Focal(2.0)``, and for sigmoid scores
            ``SigmoidFocal(2.0, alpha=None)``, which is the same for two classes. The result says so then.
        task: "binary", "multiclass" or "multilabel"; None for that of the objective: a sigmoid one is
            multilabel for logits (n, L) and binary for (n,), all others are multiclass. Without an objective,
            logits (n,) are binary and (n, K) multiclass. It is never guessed from values.
        axis: The axis of the classes or labels, 1 for (N, C, H, W); all others are rows.
        ignore_index: Rows with this label are left out, as for `refocal.ece`.
        classes: The label of each class in order, where labels are not 0..K-1.
        n_folds: Parts, at least 2; None for 5, or for as many as there are rows if those are fewer.
        level: Of the intervals, within (0, 1).
        negligible: The difference in NLL, in nats, that counts as none.
        n_bins: The number of bins of the calibration errors.
        n_resamples: Of the bootstrap, which draws rows, with all their labels.
        seed: Of the parts and of the bootstrap.

    Returns:
        A `Selection`.

    Raises:
        TypeError: If logits are not floats or labels not integers.
        ValueError: If an argument is wrong, or a task contradicts the objective or the shapes.

    Example:
        A detector, trained with the sigmoid focal loss at alpha 0.25 and gamma 2:

        >>> rng = np.random.default_rng(0)
        >>> posterior = rng.beta(0.5, 2.0, size=2000)  # what its scores should say
        >>> labels = (rng.random(2000) < posterior).astype(int)
        >>> spec = SigmoidFocal(gamma=2.0, alpha=0.25)
        >>> logits = spec.logits(posterior)
        >>> found = choose_calibration(logits, labels, spec)
        >>> found.winner, found.task
        ('psi', 'binary')
        >>> found.apply(logits[:3]).round(3), posterior[:3].round(3)
        (array([0.142, 0.198, 0.232]), array([0.142, 0.198, 0.232]))
        >>> round(found.threshold(0.5), 3)  # the raw score that means a probability of 0.5
        0.399
    """
    if objective is not None:
        check_objective(objective)
    problem = problem_of(logits, labels, task, objective, axis, ignore_index, classes)
    n = problem.n_rows
    if n < 2:
        raise ValueError(f"logits must have at least 2 rows, got {n}")
    n_folds = min(N_FOLDS, n) if n_folds is None else check_count("n_folds", n_folds, 2, n)
    level = check_level(level)
    check_count("n_resamples", n_resamples, 1)
    check_count("seed", seed, 0)
    negligible = check_number("negligible", negligible, low=0, rule="finite and >= 0")
    check_n_bins(n_bins)
    assumed = objective is None
    if objective is None:
        objective = SigmoidFocal(2.0, alpha=None) if problem.kind == "sigmoid" else Focal(2.0)
    parts = np.array_split(np.random.default_rng(seed).permutation(n), n_folds)
    fitted = candidates(problem, objective)
    folds = []
    for part in parts:
        rest = problem.take(np.delete(np.arange(n), part))
        folds.append(_Fold(part, problem.take(part), candidates(rest, objective, fitted)))
    # A part without a fit leaves the method out, with the reason: it could not be measured on all rows.
    every = (*(fold.fits for fold in folds), fitted)
    skipped = {name: fit for fits in every for name, fit in fits.items() if isinstance(fit, str)}
    columns, measured = {}, []
    for name in (name for name in METHODS if name in fitted and name not in skipped):
        try:
            probs, of_entries = _held_out(problem, folds, name)
        except ValueError as error:  # a row without an answer
            skipped[name] = str(error)
            continue
        columns[name] = of_entries.reshape(n, -1).mean(axis=1)
        measured.append(measure(problem.held_out(probs), columns[name], level, n_bins, n_resamples, seed))
    names, losses = list(columns), np.stack(list(columns.values()), axis=1)
    means, sampled = losses.mean(axis=0), paired_means(losses, n_resamples, seed)

    def gap(name: str, other: str) -> Interval:
        i, j = names.index(name), names.index(other)
        if means[i] == math.inf:
            return Interval(math.inf, math.inf, math.inf, level, "bootstrap")
        return _interval(means[i] - means[j], sampled[:, i] - sampled[:, j], level)

    at = decide(losses, negligible)
    behind = [gap(name, names[at]) for name in names]
    return Selection(
        objective=objective,
        n_rows=n,
        n_folds=n_folds,
        level=level,
        negligible=negligible,
        methods=tuple(
            _method(name, fitted[name], problem, fields | {"behind": interval})
            for name, fields, interval in zip(names, measured, behind, strict=True)
        ),
        skipped=tuple(skipped.items()),
        winner=names[at],
        clear=not skipped
        and all(b.low > 0 for b in behind[:at])
        and all(b.low >= -negligible for b in behind[at + 1 :]),
        psi_gap=gap("psi", "raw") if "psi" in names else None,
        task=problem.task,
        labels=_gains(problem, folds, names[at], level, n_resamples, seed),
        assumed=assumed,
    )


class _Fold(NamedTuple):
    """A part that is held out: where its rows are, its rows, and the methods fitted on all others."""

    at: npt.NDArray[np.intp]
    problem: Problem
    fits: Candidates


def decide(losses: Floats, negligible: float) -> int:
    """Return the method to use, from the losses of held-out rows (rows, methods), from simple to complex."""
    means = losses.mean(axis=0)
    return int(np.argmax(means <= means.min() + negligible))


def _held_out(problem: Problem, folds: list[_Fold], name: str) -> tuple[Floats, Floats]:
    """Return held-out probabilities of the shape of the logits, and the NLL of each row or entry."""
    probs = np.empty(problem.z.shape)
    losses = np.empty(problem.labels.shape)
    for fold in folds:
        way = _found(fold.fits[name]).way
        probs[fold.at], losses[fold.at] = fold.problem.answers(way)
    return probs, losses


def _gains(
    problem: Problem, folds: list[_Fold], winner: str, level: float, n_resamples: int, seed: int
) -> tuple[LabelGain, ...]:
    """Return for each label of a multilabel task what the winner changes."""
    if problem.task != "multilabel":
        return ()
    after, before = (_held_out(problem, folds, name)[1] for name in (winner, "raw"))
    sampled = paired_means(after - before, n_resamples, seed)
    positive = problem.one.sum(axis=0)
    return tuple(
        LabelGain(j, int(positive[j]), _interval(float((after - before)[:, j].mean()), sampled[:, j], level))
        for j in range(problem.z.shape[1])
    )


def _interval(value: float, sampled: Floats, level: float) -> Interval:
    low, high = np.quantile(sampled, ((1 - level) / 2, (1 + level) / 2))
    return Interval(float(value), float(low), float(high), level, "bootstrap")


def _method(name: str, fit: Fitted | str, problem: Problem, fields: dict[str, Any]) -> Method:
    way, converged, shared = _found(fit)
    numbers = way._asdict() | {"converged": converged, "shared": shared}
    return Method(name, **numbers, **fields, scores=problem.kind, columns=problem.columns)


def _found(fit: Fitted | str) -> Fitted:
    assert not isinstance(fit, str)  # those were left out
    return fit


def paired_means(losses: Floats, n_resamples: int, seed: int) -> Floats:
    """Return the means of resampled rows, the same ones for all columns: (n_resamples, columns)."""
    finite = np.where(np.isfinite(losses), losses, 0)
    return np.stack([weight @ finite / len(losses) for weight in resample(len(losses), n_resamples, seed)])
