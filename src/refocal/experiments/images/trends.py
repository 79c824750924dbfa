"""What depth and number of training images change: the best gamma, and what Psi does; from Standard."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal.experiments.files import markdown_table, put_caption
from refocal.experiments.images.groups import free_name, name_of
from refocal.experiments.images.measures import Group, Trials
from refocal.experiments.images.study import MODELS
from refocal.experiments.sweeps import run_key
from refocal.plots import LINE_STYLES, MARKERS, METHOD_COLORS, SMALL, label_axes, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWEST = 3
"""Gammas for a best one: of two, the better one says little of where the best is."""

SAME_IMAGES = {"cifar10-s": "cifar10"}
"""Data sets that are a part of the training images of another one, with the same test images."""


@dataclass(frozen=True)
class Comparison:
    """The paper's two claims between two depths, or two numbers of images, as counts.

    Attributes:
        first: Where the paper has the smaller best gamma: few layers, many images.
        last: The other one.
        gammas: That both have in some trial; each trial compares those that it has of both, three or more.
        larger: In how many trials the best gamma of ``last`` is the larger one, as the paper says.
        same: In how many it is the same.
        smaller: In how many it is smaller.
        less: In how many pairs of trial and gamma > 0 Psi helps less, or does more harm, with ``last``: what
            it adds to the ECE is larger.
        pairs: How many such pairs there are.
        surer: In how many pairs of trial and gamma accuracy minus mean confidence is smaller with ``last``,
            which is why a larger gamma would be best there. It can be told without that gamma.
        gaps: How many such pairs there are.
    """

    first: int
    last: int
    gammas: tuple[float, ...]
    larger: int
    same: int
    smaller: int
    less: int
    pairs: int
    surer: int
    gaps: int

    @property
    def trials(self) -> int:
        """In how many trials the best gammas could be compared."""
        return self.larger + self.same + self.smaller


@dataclass(frozen=True)
class Trend:
    """Standard for several depths, or for several numbers of training images: its ECEs, its confidence.

    Attributes:
        name: Of its files.
        what: "depth" or "training images".
        raw: ECEs of the softmax, by depth or number.
        psi: ECEs of its Psi, likewise.
        gap: Accuracy minus mean confidence of the softmax, likewise: below 0 where it is overconfident.
        machines: That trained, each once.
        by_nll: The same with the NLL in place of the ECE.
    """

    name: str
    what: str
    raw: dict[int, Trials]
    psi: dict[int, Trials]
    gap: dict[int, Trials]
    machines: tuple[str, ...] = ()
    by_nll: Trend | None = None

    @property
    def best(self) -> dict[int, float | None]:
        """The gamma with the smallest mean raw ECE for each depth or number, over trials with every gamma."""
        found: dict[int, float | None] = {}
        for value, eces in self.raw.items():
            seeds = _shared(eces) if len(eces) >= FEWEST else set()
            means = {gamma: float(np.mean([some[s] for s in seeds])) for gamma, some in eces.items() if seeds}
            found[value] = min(means, key=lambda gamma: means[gamma]) if means else None
        return found

    def at_the_edge(self, value: int) -> bool:
        """Return whether the best gamma is the largest that was run: a larger one may be better."""
        return self.best[value] == max(self.raw[value])

    def effect(self, value: int) -> Trials:
        """Return what Psi adds to the ECE of each trial, for each gamma > 0: below 0 where it helps."""
        return {
            gamma: {seed: self.psi[value][gamma][seed] - ece for seed, ece in some.items()}
            for gamma, some in self.raw[value].items()
            if gamma > 0
        }

    def comparisons(self) -> list[Comparison]:
        """Return the claims between neighbours, and between both ends."""
        order = sorted(self.raw, reverse=self.what != "depth")
        pairs = list(itertools.pairwise(order))
        if len(order) > 2:
            pairs.append((order[0], order[-1]))
        return [self._compare(first, last) for first, last in pairs]

    def _compare(self, first: int, last: int) -> Comparison:
        before, after = self.raw[first], self.raw[last]
        in_trial: dict[int, list[float]] = {}
        for gamma in sorted(before.keys() & after.keys()):
            for seed in before[gamma].keys() & after[gamma].keys():
                in_trial.setdefault(seed, []).append(gamma)
        signs = [
            np.sign(_best(after, seed, gammas) - _best(before, seed, gammas))
            for seed, gammas in in_trial.items()
            if len(gammas) >= FEWEST
        ]
        larger, same, smaller = (signs.count(sign) for sign in (1, 0, -1))
        shared = tuple(sorted({gamma for gammas in in_trial.values() for gamma in gammas}))
        added = _pairs(self.effect(first), self.effect(last))
        less = sum(after > before for before, after in added)
        gaps = _pairs(self.gap[first], self.gap[last])
        surer = sum(after < before for before, after in gaps)
        best = (shared, larger, same, smaller)
        return Comparison(first, last, *best, less, len(added), surer, len(gaps))

    def summary(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        other = self.by_nll
        return {
            "what": self.what,
            "machines": list(self.machines),
            "comparisons": _as_json(self.comparisons()),
            "comparisons_by_nll": _as_json(other.comparisons()) if other else [],
            "values": [
                {
                    "value": value,
                    "best_gamma": self.best[value],
                    "raw": [_row(gamma, some) for gamma, some in self.raw[value].items()],
                    "best_is_largest": self.at_the_edge(value),
                    "best_gamma_by_nll": other.best[value] if other else None,
                    "psi": [_row(gamma, some) for gamma, some in self.psi[value].items()],
                    "gap": [_row(gamma, some, "gap") for gamma, some in self.gap[value].items()],
                }
                for value in self.raw
            ],
        }


def _as_json(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    return [asdict(one) | {"trials": one.trials} for one in comparisons]


def _shared(eces: Trials) -> set[int]:
    """Return the trials that every gamma has."""
    return set.intersection(*(set(some) for some in eces.values())) if eces else set()


def _pairs(first: Trials, last: Trials) -> list[tuple[float, float]]:
    """Return the numbers of both, of each gamma and trial that both have."""
    return [
        (first[gamma][seed], last[gamma][seed])
        for gamma in first.keys() & last.keys()
        for seed in first[gamma].keys() & last[gamma].keys()
    ]


def _best(eces: Trials, seed: int, gammas: Iterable[float]) -> float:
    return min(gammas, key=lambda gamma: eces[gamma][seed])


def _row(gamma: float, some: dict[int, float], name: str = "ece") -> dict[str, Any]:
    return {"gamma": gamma, name: float(np.mean(list(some.values()))), "trials": len(some)}


def trends_of(groups: Iterable[Group]) -> list[Trend]:
    """Return the trends that groups show: those that differ in the model alone, or in the number of images.

    A group counts if it has two gammas or more of Standard; a trend has two groups or more. Where the runs of
    one setting are from several machines, the group with the most runs stands for it: trials of several
    machines are not averaged. CIFAR-10-s and CIFAR-10 are two numbers of images, as in the paper.
    """
    together: dict[tuple[str, str], dict[int, Group]] = {}
    for group in sorted(groups, key=lambda group: (-len(group.settings), group.name)):
        if len(group.trials("ece", "standard", "raw")) < 2:
            continue
        config = group.config
        rest = {key: value for key, value in config.items() if key not in ("model", "train_size")}
        by_depth = ("depth", run_key(rest | {"train_size": config.get("train_size")}))
        together.setdefault(by_depth, {}).setdefault(MODELS[config["model"]], group)
        pool = config["dataset"]
        if "train_size" not in config:  # else the test images are drawn too, each time from another pool
            pool = SAME_IMAGES.get(pool, pool)
        by_size = ("training images", run_key(rest | {"model": config["model"], "dataset": pool}))
        together.setdefault(by_size, {}).setdefault(config.get("train_size", sum(group.n[:2])), group)
    found = []
    for (what, _), by_value in together.items():
        if len(by_value) > 1:
            some = dict(sorted(by_value.items()))
            raw, psi, raw_nll, psi_nll, gap = (
                {value: group.trials(metric, "standard", link) for value, group in some.items()}
                for metric, link in (
                    *(("ece", "raw"), ("ece", "psi"), ("nll", "raw"), ("nll", "psi")),
                    ("gap", "raw"),
                )
            )
            machines = dict.fromkeys(str(machine) for group in some.values() for machine in group.machines)
            left_out = "model" if what == "depth" else "train_size"
            name = f"{what.split()[-1]}-{name_of(some[min(some)].config, left_out)}"
            by_nll = Trend(name, what, raw_nll, psi_nll, gap)
            found.append(Trend(name, what, raw, psi, gap, tuple(machines), by_nll))
    trends: dict[str, Trend] = {}
    for trend in sorted(found, key=lambda trend: trend.name):
        name = free_name(trend.name, trends)
        trends[name] = replace(trend, name=name)
    return list(trends.values())


def trend_text(trends: Sequence[Trend]) -> Iterator[str]:
    """Give the tables of trends, in Markdown."""
    for trend in trends:
        gammas = sorted({gamma for some in trend.raw.values() for gamma in some})
        rows = []
        for value in trend.raw:
            best = said_gamma(trend.best[value], trend.at_the_edge(value))
            other = trend.by_nll
            by_nll = said_gamma(other.best[value], other.at_the_edge(value)) if other else ""
            for number, numbers, chosen in (
                ("raw ECE", trend.raw, best),
                ("ECE of Psi", trend.psi, ""),
                *((("raw NLL", other.raw, by_nll), ("NLL of Psi", other.psi, "")) if other else ()),
                ("accuracy minus confidence, raw", trend.gap, ""),
            ):
                some = numbers[value]
                cells = (_cell(list(some[gamma].values())) if gamma in some else "-" for gamma in gammas)
                rows.append((value, number, *cells, chosen))
        yield from [f"# Best gamma by {trend.what}: {trend.name.partition('-')[2]}", ""]
        text = "Standard, ECE with 10 bins, means over the trials. The best gamma has the smallest mean raw "
        text += "ECE, or NLL, over the trials that have every gamma; where it is the largest that was run, a "
        text += "larger one may be better, and of two gammas none is called best. Accuracy minus mean "
        text += "confidence is below 0 where scores are overconfident."
        if len(trend.machines) > 1:
            text += f" Trained on {' or '.join(trend.machines)}."
        yield from [text, ""]
        head = [trend.what, "number", *(f"gamma {gamma:g}" for gamma in gammas), "best gamma"]
        yield from [*markdown_table(head, rows), ""]
        yield from [*(f"- {line}" for line in claim_text(trend.summary())), ""]
        yield from [f"![Best gamma by {trend.what}]({trend.name}.png)", ""]


def _cell(eces: Sequence[float]) -> str:
    return f"{np.mean(eces):.4f} (n = {len(eces)})"


def said_gamma(gamma: float | None, largest: bool = False) -> str:
    """Return a best gamma for people; there may be none, and it may be the largest that was run."""
    return "-" if gamma is None else f"{gamma:g} (the largest)" if largest else f"{gamma:g}"


def claim_text(summary: dict[str, Any]) -> Iterator[str]:
    """Give the paper's claims as sentences, from `Trend.summary`, by the ECE and by the NLL."""
    by_nll = {(one["first"], one["last"]): one for one in summary["comparisons_by_nll"]}
    for one in summary["comparisons"]:
        first, last = one["first"], one["last"]
        other = by_nll.get((first, last))
        by_depth = summary["what"] == "depth"
        between = f"from depth {first} to {last}" if by_depth else f"from {first} training images to {last}"
        gammas = ", ".join(f"{gamma:g}" for gamma in one["gammas"]) or "none"
        if one["trials"]:
            nll = other and " / ".join(str(other[name]) for name in ("larger", "same", "smaller"))
            yield (
                f"The best gamma (of {gammas}) grows {between}: in {one['larger']} of {one['trials']} "
                f"trials; the same in {one['same']}, smaller in {one['smaller']}"
                + (f". By the NLL it grows / is the same / is smaller in {nll}." if nll else ".")
            )
        else:
            yield (
                f"The best gamma {between} cannot be compared: no trial has {FEWEST} gammas of both; shared "
                f"gammas: {gammas}."
            )
        if one["pairs"]:
            nll = f"; by the NLL in {other['less']}" if other else ""
            yield (
                f"Psi helps less, or does more harm, {between}: in {one['less']} of {one['pairs']} pairs of "
                f"trial and gamma > 0{nll}."
            )
        if one["gaps"]:
            yield (
                f"Accuracy minus confidence falls {between}, at the same gamma: in {one['surer']} of "
                f"{one['gaps']} pairs of trial and gamma."
            )


def trend_figure(trend: Trend) -> Figure:
    """Return raw ECE, accuracy minus confidence and what Psi adds against gamma; and the best gamma.

    Each depth or number has a line. A best gamma that is the largest that was run has an open marker.
    """
    figure = new_figure(14.0, 3.4)
    left, between, middle, right = figure.subplots(1, 4)
    for i, value in enumerate(trend.raw):
        color, marker = METHOD_COLORS[i % len(METHOD_COLORS)], MARKERS[i % len(MARKERS)]
        look: dict[str, Any] = {"color": color, "marker": marker}
        label = f"{value} (n = {_n(trend.raw[value])})"
        line = look | {"label": label, "linestyle": LINE_STYLES[i % len(LINE_STYLES)]}
        for ax, some in ((left, trend.raw[value]), (between, trend.gap[value]), (right, trend.effect(value))):
            order = sorted(some)
            ax.plot(order, [float(np.mean(list(some[gamma].values()))) for gamma in order], **line)
            points = [(gamma, number) for gamma in order for number in some[gamma].values()]
            ax.scatter(*np.reshape(points, (-1, 2)).T, s=9, alpha=0.6, **look)
        if (best := trend.best[value]) is not None:
            face = "none" if trend.at_the_edge(value) else color
            middle.scatter([value], [best], s=40, marker=marker, edgecolors=color, facecolors=face)
    gammas = sorted({gamma for eces in trend.raw.values() for gamma in eces})
    positive = [gamma for gamma in gammas if gamma > 0]
    for ax, shown in ((left, gammas), (between, gammas), (right, positive)):
        ax.set_xticks(shown, [f"{gamma:g}" for gamma in shown])
    left.set_ylim(bottom=0)
    left.legend(fontsize=SMALL, frameon=False, title=trend.what, title_fontsize=SMALL)
    label_axes(left, r"$\gamma$", "raw ECE of Standard", "")
    middle.set_xscale("log")
    middle.set_xticks(list(trend.raw), [str(value) for value in trend.raw])
    middle.minorticks_off()
    middle.set_yticks(gammas, [f"{gamma:g}" for gamma in gammas])
    middle.set_xlim(min(trend.raw) / 1.2, max(trend.raw) * 1.2)  # markers at the ends are not cut
    middle.set_ylim(gammas[0] - 0.25, gammas[-1] + 0.25)
    label_axes(middle, trend.what, r"best $\gamma$", "")
    for ax in (between, right):
        ax.axhline(0, color="black", linewidth=0.8)
    label_axes(between, r"$\gamma$", "accuracy minus confidence, raw", "")
    label_axes(right, r"$\gamma$", r"ECE-$\Psi$ minus ECE-raw", "")
    text = "n: trials of each gamma, every one a point; lines: means"
    if any(trend.at_the_edge(value) for value in trend.raw):
        text += "; open marker: the largest gamma that was run, a larger one may be better"
    if None in trend.best.values():
        text += f"; no best gamma: fewer than {FEWEST} were run, or no trial has all of them"
    put_caption(figure, text)
    return figure


def _n(eces: Trials) -> str:
    """Say how many trials the gammas have."""
    counts = sorted({len(some) for some in eces.values()})
    return " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))
