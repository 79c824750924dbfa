"""What a search found, in Markdown: splits, weight decays, scalings and bins beside each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refocal.experiments.files import markdown_table
from refocal.experiments.tabular.judgement import Verdict, bins_groups
from refocal.experiments.tabular.log import EARLIER, Config, Found, Logged
from refocal.experiments.tabular.study import MODELS, SCANNED

PROTOCOL = Config(0.5, 0.0, "whole")
CLEAN = PROTOCOL._replace(scaling="standard")
"""The same without a look at the rows for testing."""
TEXT_DECAY = 0.001


def search_text(
    found: Sequence[Found],
    scan: Sequence[Found],
    grid: Sequence[tuple[float, float]],
    made: str,
    left_out: Sequence[str] = (),
) -> str:
    """Return ``search.md``.

    Args:
        found: Of the search.
        scan: Of the study, whose numbers of bins are compared.
        grid: Each part for training with each weight decay.
        made: Where the runs come from.
        left_out: What does not count, and why.
    """
    done: dict[str, set[tuple[Config, str]]] = {}
    for f in found:
        for cell in f.cells:
            done.setdefault(cell.dataset, set()).add((f.config, cell.model))
    text = [
        "# The search behind the tabular protocol",
        "",
        "Strict: |difference| <= 3 sqrt(SD_paper^2 / 10 + SD_ours^2 / trials). z: difference over that root. "
        "Points: mean absolute difference. Clear verdicts: whether psi helps, where the paper is clear about "
        f"it. `search.csv` has every cell of every configuration, with {SCANNED[0]} to {SCANNED[-1]} bins. "
        'Features have mean 0 and variance 1 by the training part ("standard") or by all rows ("whole"). '
        f'Task "{EARLIER}": a version of before, not compared with the present one. {made}',
        "",
        *(line for told in left_out for line in (f"Left out: {told}.", "")),
    ]
    for around in (PROTOCOL, CLEAN):
        configs = [around._replace(train_fraction=p, weight_decay=w) for p, w in grid]
        # A data set of which some configurations are missing would tilt the comparison.
        whole = [d for d, of in done.items() if all((c, model) in of for c in configs for model in MODELS)]
        if not whole:
            continue
        trials = sorted(
            {cell.trials for f in found if f.config in configs for cell in f.cells if cell.dataset in whole}
        )
        text += [
            f"## Split and weight decay, scaling {around.scaling}",
            "",
            f"{len(configs)} configurations on the {len(whole)} data sets of which all of them are done "
            f"({', '.join(whole)}), linear and one hidden layer, {' or '.join(map(str, trials))} trials.",
            "",
            *_grid_table({c: {f.n_bins: _within(f, whole) for f in found if f.config == c} for c in configs}),
            "",
            "### Number of bins, half split, no weight decay, the same data sets",
            "",
            *_bins_table([_within(f, whole) for f in found if f.config == around]),
            "",
        ]
    every = _by_data_set([*scan, *found])
    text += _scaling_table(every)
    for around in (PROTOCOL, CLEAN):
        text += _text_table(found, around)
    if scan:
        here = list(dict.fromkeys(cell.dataset for f in scan for cell in f.cells))
        parts = {
            "Number of bins, all data sets of the study": here,
            "Number of bins, data sets that the 15 was not found by": bins_groups(here)[
                "bins not found by it"
            ],
        }
        for title, sets in parts.items():
            text += [f"## {title}: {len(sets)}", "", ", ".join(sets) + ".", ""]
            text += [*_bins_table(_joined(scan, sets)), ""]
    text += ["## The best configuration of each data set, ECE with 15 bins", ""]
    text += ["The best of many, and fewer trials make z smaller: it is a hint, not a finding.", ""]
    text += [*_best_table(every), ""]
    return "\n".join(text)


def _grid_table(found: Mapping[Config, Mapping[int | None, Found]]) -> list[str]:
    rows = []
    for config, of in found.items():
        best = min((n for n in of if n is not None), key=lambda n: _rms(of[n].cells))
        rows.append(
            (
                *(config.train_fraction, f"{config.weight_decay:g}", *_told(of[10]), *_told(of[15])),
                *(f"{best}: {_fraction(of[best].cells)}, {_rms(of[best].cells):.2f}",),
                *(_clear(of[10]), _clear(of[15]), _fraction(of[None].cells), f"{_rms(of[None].cells):.2f}"),
            )
        )
    header = [
        *("training part", "weight decay", "ECE, 10 bins: strict", "mean z", "rms z", "points"),
        *("ECE, 15 bins: strict", "mean z", "rms z", "points", "best bins: strict, rms z"),
        *("clear verdicts, 10 bins", "15 bins", "errors: strict", "rms z"),
    ]
    return markdown_table(header, rows)


Cells = dict[tuple[str, str], dict[Config, dict[int | None, list[Logged]]]]


def _by_data_set(found: Sequence[Found]) -> Cells:
    """Return the cells by data set and model, then by configuration and number of bins.

    Of two that are equal, as the study and a search with fewer trials, the first counts.
    """
    result: Cells = {}
    for f in found:
        cells: dict[tuple[str, str], list[Logged]] = {}
        for cell in f.cells:
            cells.setdefault((cell.dataset, cell.model), []).append(cell)
        for key, some in cells.items():
            result.setdefault(key, {}).setdefault(f.config, {}).setdefault(f.n_bins, some)
    return dict(sorted(result.items()))


def _scaling_table(of: Cells) -> list[str]:
    """Compare features scaled by the training part with those scaled by all rows, half split."""
    of = {key: by_config for key, by_config in of.items() if {CLEAN, PROTOCOL} <= by_config.keys()}
    if not of:
        return []
    which = [(config, n) for config in (CLEAN, PROTOCOL) for n in (15, None)]
    rows: list[tuple[Any, ...]] = []
    for key, keys in [*((key, [key]) for key in of), (("all", ""), list(of))]:
        parts = [[cell for k in keys for cell in of[k][config][n]] for config, n in which]
        rows.append((*key, *(told for part in parts for told in (_fraction(part), f"{_rms(part):.2f}"))))
    names = [f"{config.scaling}: {'ECE' if n else 'errors'} strict, rms z" for config, n in which]
    return [
        "## The scaling of the features, half split, no weight decay, 15 bins",
        "",
        *markdown_table(["data set", "model", *(n for name in names for n in name.split(", "))], rows),
        "",
    ]


def _text_table(found: Sequence[Found], around: Config) -> list[str]:
    """Compare the weight decay of the text with none, on all data sets that were trained with it."""
    both = []
    for config in (around, around._replace(weight_decay=TEXT_DECAY)):
        of: dict[tuple[Any, ...], tuple[Logged, list[Verdict]]] = {}
        for f in (f for f in found if f.config == config and f.n_bins is not None):
            for cell in f.cells:
                signs = [v for v in f.verdicts if (v.dataset, v.model, v.method) == cell[:3]]
                of[f.n_bins, cell.dataset, cell.model, cell.method] = (cell, signs)
        both.append(of)
    shared = both[0].keys() & both[1].keys()
    if not shared:
        return []
    rows = []
    for decay, one in zip((0.0, TEXT_DECAY), both, strict=True):
        for n in (10, 15):
            picked = [value for key, value in one.items() if key in shared and key[0] == n]
            cells, signs = [cell for cell, _ in picked], [v for _, some in picked for v in some]
            whole = Found(around, n, cells, signs)
            rows.append((f"{decay:g}", n, *_told(whole), _clear(whole)))
    names = sorted({key[1] for key in shared})
    header = ["weight decay", "bins", "strict", "mean z", "rms z", "points", "clear verdicts"]
    return [
        f"## The weight decay of the text, half split, scaling {around.scaling}",
        "",
        f"{len(names)} data sets: {', '.join(names)}.",
        "",
        *markdown_table(header, rows),
        "",
    ]


def _best_table(of: Cells) -> list[str]:
    """Compare, for each data set and model, the protocol with the nearest of all configurations."""
    rows = []
    for (dataset, model), by_config in of.items():
        if len(by_config) < 2:
            continue
        nearest = min(by_config, key=lambda c: math.hypot(_rms(by_config[c][15]), _rms(by_config[c][None])))
        told = [
            f"{_fraction(by_config[c][15])}, {_rms(by_config[c][15]):.2f}, {_rms(by_config[c][None]):.2f} "
            f"({by_config[c][15][0].trials})"
            if c in by_config
            else "–"
            for c in (PROTOCOL, nearest)
        ]
        name = f"{nearest.train_fraction or 'given'}, {nearest.weight_decay:g}, {nearest.scaling}"
        name += {PROTOCOL.task: "", EARLIER: ", earlier version"}.get(nearest.task, ", all rows")
        rows.append((dataset, model, len(by_config), told[0], name, told[1]))
    header = [
        *("data set", "model", "configurations", "protocol: strict, rms z of ECE, of errors (trials)"),
        *("nearest (part, decay, scaling)", "its strict, rms z of ECE, of errors (trials)"),
    ]
    return markdown_table(header, rows)


def _joined(scan: Sequence[Found], datasets: Sequence[str]) -> list[Found]:
    """Return all configurations of the study (its splits and scalings differ by data set) as one."""
    result = []
    for n in SCANNED:
        some = [_within(f, datasets) for f in scan if f.n_bins == n]
        cells = [cell for f in some for cell in f.cells]
        result.append(some[0]._replace(cells=cells, verdicts=[v for f in some for v in f.verdicts]))
    return result


def _within(found: Found, datasets: Sequence[str]) -> Found:
    return found._replace(
        cells=[cell for cell in found.cells if cell.dataset in datasets],
        verdicts=[v for v in found.verdicts if v.dataset in datasets],
    )


def _bins_table(found: Sequence[Found]) -> list[str]:
    rows = [(f.n_bins, *_told(f), _clear(f)) for f in found if f.n_bins is not None]
    return markdown_table(["bins", "strict", "mean z", "rms z", "points", "clear verdicts"], rows)


def _told(found: Found) -> tuple[str, str, str, str]:
    if not found.cells:
        return _fraction([]), "-", "-", "-"
    z = np.array([cell.z for cell in found.cells if math.isfinite(cell.z)])
    mean, rms = (f"{round(float(number), 3)}" for number in (z.mean(), np.sqrt((z**2).mean())))
    points = np.mean([abs(cell.difference) for cell in found.cells])
    return _fraction(found.cells), mean, rms, f"{points:.3f}"


def _fraction(cells: Sequence[Logged]) -> str:
    return f"{sum(cell.strict for cell in cells)} of {len(cells)}"


def _rms(cells: Sequence[Logged]) -> float:
    return float(np.sqrt(np.mean([cell.z**2 for cell in cells]))) if cells else float("nan")


def _clear(found: Found) -> str:
    clear = [v for v in found.verdicts if v.clear]
    return f"{sum(v.agrees for v in clear)} of {len(clear)}"
