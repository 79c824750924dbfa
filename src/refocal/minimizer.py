"""The inverse of psi: the scores that minimise the focal risk for a given class posterior."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from refocal import _compiled as compiled
from refocal._arrays import (
    Array,
    ArrayT,
    Namespace,
    Numbers,
    NumPyArray,
    Shares,
    at_top,
    concrete,
    device,
    is_torch,
    log1p,
    log_softmax,
    map_rows,
    namespace,
    shares,
    stop_gradient,
    top_ratio,
    total,
    works_in_blocks,
)
from refocal._checks import check_flag, check_gamma, check_probs, check_scores
from refocal.focal import Gamma, gamma_of_top, log_phi

MAX_STEPS = 200
"""Far more Newton steps than needed: 3 to 7 up to gamma 10, some 50 at gamma 100 with 1000 classes."""

TRACED_STEPS = 16
"""Newton steps where the values cannot be looked at (`jit`, `vmap`)."""

FLOOR = -1e5
"""In place of log 0: finite, and exp of it is 0 in every precision."""


@overload
def focal_minimizer(posterior: ArrayT, gamma: Numbers, *, axis: int = -1, check: bool = True) -> ArrayT: ...
@overload
def focal_minimizer(
    posterior: Sequence[Any], gamma: Numbers, *, axis: int = -1, check: bool = True
) -> NumPyArray: ...
def focal_minimizer(posterior: Any, gamma: Numbers, *, axis: int = -1, check: bool = True) -> Any:
    r"""Return the scores q that minimise the expected focal loss for a class posterior eta.

    .. math:: q^{\gamma,*} = \arg\min_{q \in \Delta^K} -\sum_i \eta_i (1-q_i)^\gamma \log q_i

    It is the inverse of `psi`: the one q with h(q_i) proportional to eta_i. Newton's method solves
    for log q; its Jacobian is diagonal plus rank one, so a step costs about one `psi`. Gradients by
    autograd are those of the implicit function.

    Args:
        posterior: Class probabilities, K >= 2 of them along ``axis``, in [0, 1] and in each row with sum 1
            (within 0.001, in half precision 0.01). A row with a NaN gives NaN.
        gamma: A number >= 0, or an array that broadcasts over the rows.
        axis: The class axis.
        check: Whether to look at the values, where they are at hand (not under tracing, nor on a GPU).

    Returns:
        Scores of the same shape, dtype and library; 0 where the posterior is 0, without a gradient there.

    Example:
        >>> focal_minimizer([0.75, 0.25], gamma=2.0).round(4)
        array([0.6012, 0.3988])
    """
    posterior, axis = check_scores("posterior", posterior, axis)
    gamma = check_gamma(gamma, posterior, axis)
    check_flag(check)
    look = functools.partial(check_probs, "posterior", posterior, axis, check)
    xp = namespace(posterior)
    if isinstance(gamma, float):
        plain = functools.partial(_minimizer_of_rows, gamma)
        found = compiled.minimizer(posterior, gamma, axis, plain=plain, check=look, steps=MAX_STEPS)
        if found is not None:
            return found
    look()
    if not (
        isinstance(gamma, float)
        and works_in_blocks(posterior)
        and posterior.dtype in (xp.float32, xp.float64)
    ):
        return map_rows(_minimizer, posterior, gamma, axis=axis)
    # The kernel is NumPy's: with forty operations a step it is faster than PyTorch with its threads.
    values = posterior.detach().numpy() if is_torch(posterior) else posterior
    result = map_rows(_minimizer, values, gamma, axis=axis, kernel=_minimizer_kernel)
    return xp.asarray(result, device=device(posterior))


def _minimizer_of_rows(gamma: float, rows: Array) -> Array:
    values = rows.detach().numpy() if is_torch(rows) else rows
    found = map_rows(_minimizer, values, gamma, axis=1, kernel=_minimizer_kernel)
    return namespace(rows).asarray(found)


def _minimizer(xp: Namespace, posterior: Array, gamma: Gamma, axis: int) -> Array:
    return xp.exp(log_minimizer(xp, log_of(xp, posterior), gamma, axis))


def log_of(xp: Namespace, p: Array) -> Array:
    """Return log p, with `FLOOR` for log 0."""
    positive = p > 0
    y = xp.where(positive, xp.log(xp.where(positive, p, 1)), FLOOR)
    return xp.where(xp.isnan(p), p, y)


def log_minimizer(xp: Namespace, log_eta: Array, gamma: Gamma, axis: int) -> Array:
    """Return log q with log h(q) equal to ``log_eta`` (finite) up to one number for each row.

    gamma may also differ between the classes. What counts as log 0 (about `FLOOR`) stays so.
    """
    target, fixed_gamma = stop_gradient(log_eta), gamma
    if not isinstance(gamma, float):
        fixed_gamma = stop_gradient(gamma)
    s, masked = shares(xp, target, axis), target < FLOOR / 2
    # A large gamma makes scores of all classes alike, but not of those that never occur.
    x = xp.where(masked, FLOOR, _start(xp, s, fixed_gamma, axis))

    def step(x: Array) -> Array:
        return xp.where(masked, 0, _newton_step(xp, x, target, fixed_gamma, axis))

    # Newton's error after a step goes with the step's square, and with the curvature, at most gamma.
    x = newton(xp, step, x, 4 + 4 * fixed_gamma)
    if isinstance(gamma, float) or gamma.shape[axis] == 1:
        x_top = at_top(xp, s.top, x, axis)  # nothing goes above the top, and its equals stay so
        x = xp.where(s.equal | (x > x_top), x_top, x)
    if target is not log_eta or fixed_gamma is not gamma:
        # Two more steps with gradients make the first two derivatives those of the implicit function.
        for _ in range(2):
            x = x + xp.where(masked, 0, _newton_step(xp, x, log_eta, gamma, axis))
    return log_softmax(xp, x, axis)


def newton(xp: Namespace, step: Callable[[Array], Array], x: Array, curvature: Gamma) -> Array:
    """Return log-scores after steps, clipped where they would overshoot, until these are small."""
    tolerance = xp.finfo(x.dtype).eps ** 0.5 / curvature
    for count in range(MAX_STEPS):
        change = xp.clip(step(x), -1 - 0.5 * xp.abs(x), 1)
        x = x + change
        moving = concrete(xp.any(xp.abs(change) > tolerance * (1 + xp.abs(x))))
        if (count + 1 == TRACED_STEPS) if moving is None else not moving:
            break
    return x


def _minimizer_kernel(result: Array, scratch: list[Array], eta: Array, gamma: float, axis: int) -> None:
    """`_minimizer` in place, for one gamma, three times as fast.

    With one gamma the order of the classes is that of the posterior, so the top is known. x is log q
    minus that of the top; at the top itself it is kept so low that its q counts as 0.
    """
    total = functools.partial(np.sum, axis=axis, keepdims=True)
    x, f, o, r, g = scratch
    eps = np.finfo(x.dtype).eps
    top = eta.argmax(axis=axis, keepdims=True)
    eta_top = np.take_along_axis(eta, top, axis)
    a = np.log(eta / eta_top)
    np.put_along_axis(a, top, FLOOR, axis)
    np.maximum(a, FLOOR, out=a)
    np.exp(a, out=f)
    lift, slope = _limits(np, np.log(np.maximum(total(f), np.finfo(x.dtype).tiny)), eta.shape[axis], gamma)
    np.add(a, lift, out=x)
    np.divide(a, slope, out=r)
    np.maximum(x, r, out=x)
    np.minimum(x, 0, out=x)
    np.put_along_axis(x, top, FLOOR, axis)
    masked = eta == 0
    some_masked = bool(masked.any())
    x[masked] = FLOOR
    tolerance = eps**0.5 / (4 + 4 * gamma)
    for _ in range(MAX_STEPS):
        second = x.max(axis=axis, keepdims=True)
        np.subtract(x, second, out=f)
        np.exp(f, out=f)
        log_odds = np.log(total(f)) + second
        neg_log_top = np.logaddexp(log_odds, 0)
        odds = np.exp(log_odds)
        ratio_top = np.where(odds > eps, neg_log_top / odds, 1 - odds / 2)
        log_phi_top = gamma * (log_odds - neg_log_top) + np.log1p(gamma * ratio_top)
        g_top = _slope_of_top(np, odds, ratio_top, gamma)
        f *= np.exp(second - neg_log_top)  # q
        np.negative(f, out=g)
        np.log1p(g, out=r)
        r *= -gamma
        g += 1
        np.divide(f, g, out=o)  # q / (1 - q)
        np.subtract(neg_log_top, x, out=g)
        g *= o  # -q log q / (1 - q)
        np.multiply(g, gamma * (gamma - 1), out=result)
        result += 2 * gamma
        result *= o
        result += 1
        g *= gamma
        g += 1
        np.log(g, out=o)
        r -= o
        g /= result  # d log q / d log h
        r += x
        r -= a
        r += log_phi_top  # log h - log eta, both against the top
        f *= g
        weight = total(f) + g_top * np.exp(-neg_log_top)
        f *= r
        c = total(f) / np.where(weight > 0, weight, 1)
        np.subtract(c, r, out=r)
        r *= g
        r -= g_top * c
        np.put_along_axis(r, top, 0, axis)
        if some_masked:
            r[masked] = 0
        np.abs(x, out=o)
        np.multiply(o, -0.5, out=g)
        g -= 1
        np.maximum(r, g, out=r)
        np.minimum(r, 1, out=r)
        x += r
        np.abs(r, out=r)
        o += 1
        o *= tolerance
        if not (r > o).any():
            break
    np.minimum(x, 0, out=x)
    x[eta == eta_top] = 0
    np.put_along_axis(x, top, FLOOR, axis)
    np.exp(x, out=f)
    np.put_along_axis(f, top, 1, axis)
    np.divide(f, total(f), out=result)


def _limits(xp: Namespace, log_odds: Array, k: int, gamma: Gamma) -> tuple[Array, Gamma]:
    """Return the two limits of log q minus that of the top: log eta plus the first, log eta by the second.

    Sure label: as 1 - q -> 0 of the top, log h of it is -gamma log(1 - q) - log(1 + gamma) and h(q) = q
    of the others, so all others move up by the same amount. Near the uniform vector, log h is linear
    in log q, with a slope that grows with gamma.
    """
    log1p_gamma = math.log1p(gamma) if isinstance(gamma, float) else log1p(xp, gamma)
    lift = (-gamma * log_odds - log1p_gamma) / (1 + gamma)
    odds, ratio = 1 / (k - 1), math.log(k) / (k - 1)
    slope = (1 + 2 * gamma * odds + gamma * (gamma - 1) * odds * ratio) / (1 + gamma * ratio)
    return xp.where(lift > 0, lift, 0), slope


def _start(xp: Namespace, s: Shares, gamma: Gamma, axis: int) -> Array:
    """Return log q minus that of the top by the larger of its limits, from the `Shares` of eta."""
    lift, slope = _limits(xp, s.log_odds, s.q.shape[axis], gamma_of_top(xp, s.top, gamma, axis))
    gap = s.neg_log_top - s.neg_log_q
    x = xp.maximum(gap + lift, gap / slope)
    return xp.where(s.top, 0, xp.where(x < 0, x, 0))


def _newton_step(xp: Namespace, x: Array, log_eta: Array, gamma: Gamma, axis: int) -> Array:
    """Return the Newton step of log q towards log h(q) - log eta = constant, with sum q = 1.

    With G = d log q / d log h of a class and r its log h - log eta (against that of the top, to keep
    the numbers small), the step is G (c - r); c is the mean of r with weights q G, since the q must
    go on to sum to 1.
    """
    s = shares(xp, x, axis)
    below, top = log_phi(xp, s, gamma, axis)
    log_eta = log_eta - at_top(xp, s.top, log_eta, axis)
    r = xp.where(s.top, 0, (s.neg_log_top - s.neg_log_q) - below + top - log_eta)
    gamma_top = gamma_of_top(xp, s.top, gamma, axis)
    odds_q = s.q / (1 - s.q)
    ratio = odds_q * xp.where(s.top, 0, s.neg_log_q)
    g = (1 + gamma * ratio) / (1 + 2 * gamma * odds_q + gamma * (gamma - 1) * odds_q * ratio)
    odds, ratio_top = xp.exp(s.log_odds), top_ratio(xp, s)  # of the other classes against the top
    g_top = _slope_of_top(xp, odds, ratio_top, gamma_top)
    g = xp.where(s.top, g_top, g)
    weight = xp.where(s.top, xp.exp(-s.neg_log_top), s.q) * g
    sum_of_weights = total(xp, weight, axis)
    some = sum_of_weights > 0  # not so where all but one class are masked
    c = total(xp, weight * r, axis) / xp.where(some, sum_of_weights, 1)
    return xp.where(some, g * (c - r), 0)


def _slope_of_top(xp: Namespace, odds: Array, ratio: Array, gamma: Gamma) -> Array:
    """Return d log q / d log h of the top class, from the odds of the others and -q log q / (1 - q)."""
    steepness = odds + gamma * (2 + (gamma - 1) * ratio)
    sure = steepness == 0  # gamma 0, and all others masked
    return xp.where(sure, 1, odds * (1 + gamma * ratio) / xp.where(sure, 1, steepness))
