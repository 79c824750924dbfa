"""`Report`: labelled scores in, one page out."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from refocal._arrays import as_array
from refocal._checks import LEVEL, check_count, check_level
from refocal.files import write_atomic
from refocal.metrics.binning import check_n_bins
from refocal.objectives import Focal, Objective, SigmoidFocal, check_objective
from refocal.report import curves, measure, words
from refocal.report.gather import Gathered, Task
from refocal.report.numbers import Diagram, Numbers


class _Page:
    """What a report and a comparison share: the ways out."""

    def html(self) -> str:
        """Return the page: one file that needs neither a network nor JavaScript.

        Raises:
            ImportError: If jinja2 is missing; it says how to install it.
        """
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return every number as a dictionary that JSON can hold; what is not finite is None."""
        raise NotImplementedError

    def json(self) -> str:
        """Return every number as JSON; what is not finite is null."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, whole or not at all."""
        write_atomic(Path(path), self.html().encode())

    def _repr_html_(self) -> str:
        """Return the page for a notebook, in a frame of its own so that neither changes the other."""
        page = html.escape(self.html())
        return (
            '<iframe title="refocal report" sandbox="allow-scripts allow-downloads" '
            f'style="width:100%;height:720px;border:0" srcdoc="{page}"></iframe>'
        )


class Report(_Page):
    """Whether scores are probabilities, what is wrong with them, and what to do: a page with pictures.

    The rows should be ones that the model was not trained on. Counts, metrics and the first diagram are of
    all rows; methods are fitted and compared on a random sample of them, whose size the page says.

    Args:
        scores: Probabilities, shape (n, K); (n,) for class 1 of two; (n, L) for independent labels. NumPy,
            PyTorch, JAX.
        labels: Integers within 0..K-1, or names of ``classes``, shape (n,); for independent labels 0 and 1,
            shape (n, L).
        objective: What the model was trained with; None for gamma 2, and the page says so.
        task: "multiclass", "binary" for scores (n,), or "multilabel"; None if the objective says it: a loss
            on a softmax is "multiclass", one on a sigmoid one of the others, by the shape.
        classes: The names of the classes (for "binary" both) or labels; None for "0", "1", ...
        name: Of the model, for the title.
        from_logits: Whether scores are logits. Nothing is guessed from the values.
        n_bins: Of the diagrams and calibration errors.
        level: Of all intervals.
        sample: The largest number of rows to fit and compare methods on; None for up to 50,000, fewer for
            many classes.
        seed: Of the sample and of the selector.
        source: The file that the scores came from, for the command that the page shows.
        options: What that command needs besides, such as ``("--scores", "logit_*")``.

    Attributes:
        numbers: All that the page shows.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If a shape or a value is wrong.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> posterior = rng.dirichlet([0.5, 0.5, 0.5], size=3000)
        >>> labels = (rng.random((3000, 1)) > posterior.cumsum(axis=1)).sum(axis=1)
        >>> logits = Focal(2.0).logits(posterior)  # of a model that minimises the focal loss
        >>> report = Report(logits, labels, objective=Focal(2.0), from_logits=True)
        >>> report
        Report('model', 3000 rows: These scores are not yet probabilities: use psi.)
        >>> report.html()[:15]
        '<!doctype html>'
    """

    numbers: Numbers

    def __init__(
        self,
        scores: Any,
        labels: Any,
        *,
        objective: Objective | None = None,
        task: Task | None = None,
        classes: Sequence[Any] | None = None,
        name: str = "model",
        from_logits: bool = False,
        n_bins: int = 10,
        level: float = LEVEL,
        sample: int | None = None,
        seed: int = 0,
        source: str | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.numbers = _numbers(
            [(scores, labels)],
            objective,
            task,
            classes,
            name,
            from_logits,
            n_bins,
            level,
            sample,
            seed,
            source,
            options,
        )

    @classmethod
    def from_stream(
        cls,
        batches: Iterable[tuple[Any, Any]],
        *,
        objective: Objective | None = None,
        task: Task | None = None,
        classes: Sequence[Any] | None = None,
        name: str = "model",
        from_logits: bool = False,
        n_bins: int = 10,
        level: float = LEVEL,
        sample: int | None = None,
        seed: int = 0,
        source: str | None = None,
        options: Sequence[str] = (),
    ) -> Report:
        """Return the report of scores and labels that come in batches, each read once.

        Memory does not grow with the rows. The batches do not matter: the sample is the same, and the numbers
        are, up to rounding.

        Args:
            batches: Pairs of scores and labels.
            objective: As for `Report`. So are the others.
            task: See above.
            classes: See above.
            name: See above.
            from_logits: See above.
            n_bins: See above.
            level: See above.
            sample: See above.
            seed: See above.
            source: See above.
            options: See above.

        Raises:
            ValueError: If a shape or a value is wrong, or there are no rows.

        Example:
            >>> scores, labels = np.array([[0.9, 0.1], [0.3, 0.7]] * 50), np.array([0, 1] * 45 + [1, 0] * 5)
            >>> Report.from_stream((scores[i : i + 10], labels[i : i + 10]) for i in range(0, 100, 10))
            Report('model', 100 rows: Nothing is clear yet: keep the scores, label more rows.)
        """
        report = cls.__new__(cls)
        report.numbers = _numbers(
            batches, objective, task, classes, name, from_logits, n_bins, level, sample, seed, source, options
        )
        return report

    @staticmethod
    def compare(reports: Mapping[str, Report]) -> Comparison:
        """Return one page for several models, or epochs of one, by their names."""
        return Comparison(reports)

    def html(self) -> str:
        """Return the page: one file that needs neither a network nor JavaScript.

        Raises:
            ImportError: If jinja2 is missing; it says how to install it.
        """
        from refocal.report.page import report_page

        return report_page(self.numbers)

    def to_dict(self) -> dict[str, Any]:
        """Return every number as a dictionary that JSON can hold; what is not finite is None."""
        return self.numbers.to_dict()

    def __repr__(self) -> str:
        numbers = self.numbers
        return f"Report({numbers.name!r}, {numbers.n_rows} rows: {numbers.headline})"


class Comparison(_Page):
    """Several reports on one page: a table and small diagrams, then each report in full.

    Args:
        reports: By name. They should be of the same labelled rows; where the numbers of rows differ, the page
            says so.

    Raises:
        ValueError: If there are no reports.

    Example:
        >>> scores, labels = np.array([[0.9, 0.1], [0.3, 0.7]] * 50), np.array([0, 1] * 45 + [1, 0] * 5)
        >>> Report.compare({"epoch 1": Report(scores, labels), "epoch 2": Report(scores**2 / (scores**2).sum(
        ...     axis=1, keepdims=True), labels)})
        Comparison(['epoch 1', 'epoch 2'])
    """

    def __init__(self, reports: Mapping[str, Report]) -> None:
        if not reports:
            raise ValueError("reports must hold at least one, got none")
        for name, report in reports.items():
            if not isinstance(report, Report):
                raise TypeError(f"reports must hold a Report for each name, got {report!r} for {name!r}")
        self.reports = {str(name): report for name, report in reports.items()}

    def html(self) -> str:
        """Return the page."""
        from refocal.report.page import comparison_page

        return comparison_page({name: report.numbers for name, report in self.reports.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of each report under its name."""
        return {name: report.to_dict() for name, report in self.reports.items()}

    def __repr__(self) -> str:
        return f"Comparison({list(self.reports)!r})"


def _numbers(
    batches: Iterable[tuple[Any, Any]],
    objective: Objective | None,
    task: Task | None,
    classes: Sequence[Any] | None,
    name: str,
    from_logits: bool,
    n_bins: int,
    level: float,
    sample: int | None,
    seed: int,
    source: str | None,
    options: Sequence[str],
) -> Numbers:
    check_n_bins(n_bins)
    level, seed = check_level(level), check_count("seed", seed, 0)
    if sample is not None:
        check_count("sample", sample, 2)
    given, gathered, names = objective is not None, None, None
    for scores, labels in batches:
        if gathered is None:
            scores = as_array(scores)
            objective, task = _said(objective, task, tuple(scores.shape))
            gathered = Gathered(
                task, from_logits=from_logits, n_bins=n_bins, sample=sample, seed=seed, classes=classes
            )
        gathered.add(scores, labels)
        if names is None and gathered.n_rows:
            names = _class_names(classes, gathered.n_classes, gathered.task)
    if gathered is None or names is None:
        raise ValueError("scores must have at least 1 row, got none")
    assert objective is not None  # as that of the first batch
    task = gathered.task
    sampled = measure.Sampled.of(gathered)
    said = objective if given else None  # so that the choice says what was assumed, too
    selection, refusal = measure.select(sampled, said, level=level, n_bins=n_bins, seed=seed)
    winner = None if selection is None else selection.method(selection.winner)
    rows = measure.class_rows(gathered, sampled, names, winner)
    tone, headline, sentence = words.verdict(selection, refusal)
    after = winner
    if selection is not None and selection.winner == "raw":
        after = next((m for m in selection.methods if m.name == "psi"), winner)
    stats = gathered.stats
    return Numbers(
        name=str(name),
        task=task,
        objective=objective,
        objective_given=given,
        from_logits=from_logits,
        n_rows=gathered.n_rows,
        n_sample=len(sampled.labels),
        seed=seed,
        level=level,
        metrics={
            "nll": gathered.nll / gathered.n_entries,
            "brier": gathered.brier / gathered.n_entries,
            "ece": stats.ece(),
            "mce": stats.mce(),
            "classwise_ece": gathered.classwise_ece(),
            "error_rate": gathered.wrong / gathered.n_entries,
        },
        selection=selection,
        refusal=refusal,
        tone=tone,
        headline=headline,
        sentence=sentence,
        warnings=words.warnings_of(gathered, rows, selection, given),
        before=Diagram.of(stats, level),
        after=None if after is None else Diagram.of(after.stats, level),
        after_name=None if after is None else after.name,
        classes=rows,
        eta=measure.eta_of(sampled, objective),
        thresholds=curves.thresholds_of(sampled, objective, selection, seed),
        grid=measure.grid_of(sampled, objective, selection, n_bins, seed),
        python="" if winner is None else words.python_code(winner, from_logits, task),
        command=words.command_of(from_logits, source, options),
    )


def _said(objective: Objective | None, task: Task | None, shape: tuple[int, ...]) -> tuple[Objective, Task]:
    """Return objective and task: what was said of one tells the other, and the shape decides nothing else."""
    if task not in (None, *get_args(Task)):
        raise ValueError(f"task must be one of {get_args(Task)}, got {task!r}")
    if objective is None and task is None and len(shape) == 1:
        raise ValueError("task or objective must be said for scores of shape (n,), got neither")
    if objective is None:
        objective = Focal(2.0) if task in (None, "multiclass") else SigmoidFocal(2.0, alpha=None)
    kind = check_objective(objective).scores
    if kind == "one-vs-rest":
        raise ValueError(f"objective must be a loss on a softmax or a sigmoid, got {objective!r}")
    on_sigmoid: Task = "binary" if len(shape) == 1 else "multilabel"
    task = task or ("multiclass" if kind == "softmax" else on_sigmoid)
    if (kind == "softmax") != (task == "multiclass"):
        wanted = "softmax" if task == "multiclass" else "sigmoid"
        raise ValueError(f"objective must be a loss on a {wanted} for task {task!r}, got {objective!r}")
    return objective, task


def _class_names(classes: Sequence[Any] | None, k: int, task: Task) -> tuple[str, ...]:
    """Return the name of each class or label; for "binary", of both classes, that of class 1."""
    n = 2 if task == "binary" else k
    if classes is None:
        classes = range(n)
    if isinstance(classes, (str, bytes)):
        raise TypeError(f"classes must be a sequence of names, got {classes!r}")
    if len(classes) != n:
        what = "labels" if task == "multilabel" else "classes"
        raise ValueError(f"classes must have one name for each of the {n} {what}, got {len(classes)}")
    return tuple(map(str, classes))[-k:]
