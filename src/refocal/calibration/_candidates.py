"""Every method that makes sense for an objective, fitted to labelled logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from refocal.calibration._fits import (
    Fit,
    fit_each_label,
    fit_focal_temperature,
    fit_link_temperature,
    fit_platt,
    fit_temperature,
    plain_gamma,
)
from refocal.calibration._links import Way, has_zeros
from refocal.calibration._problem import Problem
from refocal.objectives import Focal, Objective, SigmoidFocal


class Fitted(NamedTuple):
    """A method that was fitted: the way from logits to probabilities, and how the fit ended.

    Attributes:
        way: What it does.
        converged: Whether the search for its numbers ended with a small step.
        shared: The labels that have the pooled numbers, because they are too few for their own.
    """

    way: Way
    converged: bool = True
    shared: tuple[int, ...] = ()


Candidates: TypeAlias = dict[str, Fitted | str]
"""Each method by its name, or the reason why it cannot be fitted."""


def candidates(problem: Problem, objective: Objective, near: Candidates | None = None) -> Candidates:
    """Return every method that makes sense for the objective, fitted to a problem.

    ``near`` is what was fitted to these rows and some more. Searches begin there; they end at a minimum of
    these rows alone.
    """
    plain = objective.without_smoothing()
    found: Candidates = {"raw": Fitted(Way())}

    def attempt(names: tuple[str, ...], fit: Callable[[], dict[str, Fitted]]) -> None:
        try:
            found.update(fit())
        except ValueError as error:
            found.update(dict.fromkeys(names, str(error)))

    def begin(name: str) -> Fit | None:
        known = None if near is None else near.get(name)
        return None if known is None or isinstance(known, str) else _fit_of(known)

    attempt(("ts_nll",), lambda: {"ts_nll": _scaled(fit_temperature(problem, "nll", near=begin("ts_nll")))})

    def by(name: str, link: Objective) -> Way:
        """Return the way by a link that is not fitted, with a floor where the link has probabilities of 0.

        Of n rows none may have shown an outcome of share 1 / n, so a share of 1 / (n + 2) of the raw scores
        is mixed in: it costs log(1 + 1 / (n + 1)) nats at most, keeps the order, and no outcome has
        probability 0.
        """
        known = None if near is None else near.get(name)
        if isinstance(known, Fitted):  # of all rows: one answer for every part of them
            zeros = known.way.floor > 0
        else:
            zeros = has_zeros(problem.kind, link, problem.z)
        return Way(link=link, floor=1 / (problem.n_rows + 2) if zeros else 0.0)

    if plain_gamma(objective) != 0:
        links = {"": by("psi", plain)}
        if plain is not objective:
            links["_unsmoothed"] = by("psi_unsmoothed", objective)
        found |= {f"psi{suffix}": Fitted(way) for suffix, way in links.items()}

        def own_loss() -> dict[str, Fitted]:
            fit = fit_temperature(problem, objective, near=begin("ts_fl"))
            after = {f"psi_ts_fl{suffix}": _scaled(fit, way) for suffix, way in links.items()}
            return {"ts_fl": _scaled(fit), **after}

        attempt(("ts_fl", *(f"psi_ts_fl{suffix}" for suffix in links)), own_loss)
        # On a softmax this is for psi alone, with its exact derivatives.
        if problem.kind != "softmax" or plain.plain_gamma:
            way = links[""]
            attempt(("focal_ts",), lambda: {"focal_ts": _linked(problem, way, begin("focal_ts"))})
    if problem.kind != "one-vs-rest":
        attempt(("focal_ts_free",), lambda: {"focal_ts_free": _free(problem, plain, begin("focal_ts_free"))})
    if problem.kind == "sigmoid":
        attempt(("platt",), lambda: {"platt": _scaled(fit_platt(problem))})
    if problem.task == "multilabel" or problem.kind == "one-vs-rest":
        _add_each_label(problem, found)
    return found


def _add_each_label(problem: Problem, found: Candidates) -> None:
    """Add temperatures of each label, or of each class against the rest, to what was fitted for all."""
    plans: dict[str, Callable[[Problem, Way, int], Fit]] = {
        "ts_nll": lambda part, way, j: fit_temperature(part, "nll"),
    }
    if problem.kind == "sigmoid":
        plans["focal_ts"] = lambda part, way, j: fit_link_temperature(part, _of_label(way, j))
        plans["platt"] = lambda part, way, j: fit_platt(part)
    suffix = "_per_label" if problem.kind == "sigmoid" else "_per_class"
    for name, plan in plans.items():
        pooled = found.get(name)
        if isinstance(pooled, str):
            found[name + suffix] = pooled
        elif pooled is not None:
            found[name + suffix] = _each_label(problem, pooled, plan)


def _each_label(problem: Problem, pooled: Fitted, plan: Callable[[Problem, Way, int], Fit]) -> Fitted:
    way = pooled.way
    shared = _fit_of(pooled)
    fits, by_all = fit_each_label(problem, shared, lambda part, j: plan(part, way, j))
    temperature = tuple(fit.temperature for fit in fits)
    bias = tuple(fit.bias for fit in fits) if any(fit.bias for fit in fits) else 0.0
    return Fitted(way._replace(temperature=temperature, bias=bias), all(f.converged for f in fits), by_all)


def _scaled(fit: Fit, way: Way = Way()) -> Fitted:  # noqa: B008  (it is a constant)
    return Fitted(way._replace(temperature=fit.temperature, bias=fit.bias), fit.converged)


def _fit_of(pooled: Fitted) -> Fit:
    """Return the fit that a method of one temperature came from."""
    way, link = pooled.way, pooled.way.link
    assert isinstance(way.temperature, float)
    assert isinstance(way.bias, float)
    gamma = link.gamma if isinstance(link, Focal | SigmoidFocal) and isinstance(link.gamma, float) else 0.0
    return Fit.of(way.temperature, way.bias, pooled.converged)._replace(gamma=gamma)


def _linked(problem: Problem, way: Way, near: Fit | None) -> Fitted:
    return _scaled(fit_link_temperature(problem, way, near), way)


def _free(problem: Problem, plain: Objective, near: Fit | None) -> Fitted:
    if problem.kind != "sigmoid":
        fit = fit_focal_temperature(problem, near=near)
        return _scaled(fit, Way(link=Focal(fit.gamma)))
    alpha = plain.alpha if isinstance(plain, SigmoidFocal) else None
    fit = fit_focal_temperature(problem, alpha, near)
    return _scaled(fit, Way(link=SigmoidFocal(fit.gamma, alpha)))


def _of_label(way: Way, j: int) -> Way:
    """Return the way of one label, of a link that may have numbers for each label."""
    link: Any = way.link
    if not isinstance(link, SigmoidFocal):
        return way
    own = {f: v[j] for f in ("gamma", "alpha") if isinstance(v := getattr(link, f), tuple)}
    return way._replace(link=dataclasses.replace(link, **own))
