"""The paper's theory as figures and numbers: nothing is trained, all follows from phi and psi."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refocal import psi, tau_oc, tau_uc
from refocal.experiments.files import csv_bytes, figure_files, json_bytes, write_outputs
from refocal.experiments.sweeps import machine, versions
from refocal.metrics import bisect
from refocal.plots import (
    MaxEtaCurves,
    PhiCurves,
    class_counts,
    max_eta_curves,
    new_figure,
    phi_curves,
    plot_class_counts,
    plot_max_eta,
    plot_phi,
    plot_simplex,
    plot_taus,
    simplex_map,
    tau_curves,
)

GAMMAS = (0.5, 1.0, 3.0, 5.0)
HIGHLIGHT = 3.0
"""The gammas of the curves, and the one whose regions are shaded, as in the paper."""

CLASSES = (2, 1000)
SIMPLEX_GAMMA = 2.0
TAU_GAMMAS = np.geomspace(0.01, 100, 401)
COUNT_GAMMAS = np.geomspace(0.005, 20, 2001)
TABLE_GAMMAS = (0.01, 0.02, 0.03, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)


@dataclass(frozen=True)
class OverconfidentRow:
    """Scores (u, ..., u, d) of n_classes classes that are eta-overconfident: max_q > max_eta."""

    gamma: float
    n_classes: int
    d: float
    max_q: float
    max_eta: float


def near_uniform_limit(n_classes: int) -> float:
    r"""Return the gamma below which scores of K classes near the uniform ones are eta-overconfident.

    .. math:: \tau_{oc}(\gamma) = 1/K \iff \gamma = \frac{2/K - 2 + \log K}{(\log K) / K}

    Args:
        n_classes: K >= 5; with fewer classes there is no such gamma.

    Example:
        >>> round(near_uniform_limit(5), 5)  # the footnote's 0.03
        0.02932
    """
    if n_classes < 5:
        raise ValueError(f"n_classes must be at least 5, got {n_classes}")
    log_k = math.log(n_classes)
    return (2 / n_classes - 2 + log_k) / (log_k / n_classes)


def known_limit(n_classes: int) -> float:
    r"""Return the gamma below which scores (u, ..., u, d) of K classes, d small, are eta-overconfident.

    .. math:: \tau_{uc}(\gamma) = 1/(K-1)

    Args:
        n_classes: K >= 4; with fewer classes there is no such gamma.

    Example:
        >>> round(known_limit(4), 5)
        1.42885
    """
    if n_classes < 4:
        raise ValueError(f"n_classes must be at least 4, got {n_classes}")
    largest = math.log(1000.0 * n_classes)  # of log gamma; tau_uc falls as gamma grows
    low, high = bisect(lambda x: tau_uc(math.exp(x)) > 1 / (n_classes - 1), -20.0, largest, 64)
    return math.exp((low + high) / 2)


def overconfident_row(gamma: float, n_classes: int) -> OverconfidentRow:
    """Return the scores (u, ..., u, d) with the largest max q - max eta, by psi, among many d.

    Args:
        gamma: A number > 0.
        n_classes: K >= 2.

    Example:
        >>> row = overconfident_row(0.5, 4)
        >>> row.max_q > row.max_eta
        True
    """
    d = np.geomspace(1e-9, 1 / n_classes, 2000, endpoint=False)
    q = np.repeat((1 - d[:, None]) / (n_classes - 1), n_classes, axis=1)
    q[:, -1] = d
    eta = psi(q, gamma)[:, 0]
    best = int(np.argmax(q[:, 0] - eta))
    return OverconfidentRow(gamma, n_classes, float(d[best]), float(q[best, 0]), float(eta[best]))


def run_theory(out: str | os.PathLike[str]) -> list[Path]:
    """Draw the paper's figures of phi and of max eta, those of the thresholds, and write their numbers.

    Returns:
        The files: of each figure a PNG, a PDF and a CSV, and theory.json.
    """
    phis = phi_curves(GAMMAS, HIGHLIGHT)
    etas = [max_eta_curves(k, GAMMAS) for k in CLASSES]
    taus = tau_curves(TAU_GAMMAS)
    counts = class_counts(COUNT_GAMMAS)
    simplex = simplex_map(SIMPLEX_GAMMA)
    figures = {name: new_figure(5.2, 4.0) for name in ("phi", "taus", "class_counts", "simplex")}
    figures["max_eta"] = new_figure(9.5, 4.3)
    plot_phi(phis, ax=figures["phi"].subplots())
    plot_taus(taus, ax=figures["taus"].subplots())
    plot_class_counts(counts, ax=figures["class_counts"].subplots())
    plot_simplex(simplex, ax=figures["simplex"].subplots())
    for curves, ax in zip(etas, figures["max_eta"].subplots(1, 2), strict=True):
        plot_max_eta(curves, ax=ax)
    tables: dict[str, tuple[Sequence[str], Iterable[Sequence[Any]]]] = {
        "phi": (("gamma", "v", "phi"), _phi_rows(phis)),
        "max_eta": (("n_classes", "gamma", "max_q", "max_eta"), _max_eta_rows(etas)),
        "taus": (("gamma", "tau_oc", "tau_uc"), _columns(taus.gamma, taus.tau_oc, taus.tau_uc)),
        "class_counts": (
            ("gamma", "near_uniform", "known"),
            _columns(counts.gamma, counts.near_uniform, counts.known),
        ),
        "simplex": (
            ("q_1", "q_2", "q_3", "psi_1", "psi_2", "psi_3"),
            np.hstack([simplex.q, simplex.psi]).tolist(),
        ),
    }
    contents: dict[str, bytes] = {}
    for name, (header, rows) in tables.items():
        contents |= figure_files(name, figures[name])
        contents[f"{name}.csv"] = csv_bytes(header, rows)
    contents["theory.json"] = json_bytes(
        {**_summary(), "versions": dict(versions()), "machine": dict(machine())}
    )
    return write_outputs(out, contents)


def _columns(*arrays: np.ndarray[Any, Any]) -> Iterable[Sequence[Any]]:
    return zip(*(array.tolist() for array in arrays), strict=True)


def _phi_rows(curves: PhiCurves) -> Iterator[Sequence[float]]:
    for gamma, row in zip(curves.gammas, curves.phi, strict=True):
        yield from ((gamma, *pair) for pair in _columns(curves.v, row))


def _max_eta_rows(several: Iterable[MaxEtaCurves]) -> Iterator[Sequence[float]]:
    for curves in several:
        for gamma, row in zip(curves.gammas, curves.max_eta, strict=True):
            yield from ((curves.n_classes, gamma, *pair) for pair in _columns(curves.max_q, row))


def _summary() -> dict[str, Any]:
    """Return the thresholds and the numbers of classes of some gammas, and the gammas of some classes."""
    counts = class_counts(np.array(TABLE_GAMMAS))
    table = [
        {
            "gamma": gamma,
            "tau_oc": tau_oc(gamma),
            "tau_uc": tau_uc(gamma),
            "least_classes_near_uniform": near,
            "least_classes_known": known,
            "overconfident_row": vars(overconfident_row(gamma, known)),
        }
        for gamma, near, known in zip(
            TABLE_GAMMAS, counts.near_uniform.tolist(), counts.known.tolist(), strict=True
        )
    ]
    limits = [
        {
            "n_classes": k,
            "near_uniform_below_gamma": near_uniform_limit(k) if k > 4 else None,
            "known_below_gamma": known_limit(k),
        }
        for k in range(4, 11)
    ]
    return {"gammas": table, "classes": limits}
