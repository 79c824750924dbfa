"""Where the focal risk minimiser is too sure, or not sure enough (the paper's Theorem 8).

"eta-underconfident" and "eta-overconfident" compare the minimiser's largest score with the largest
class posterior. They say nothing about a finite sample, unlike the usual over- and underconfidence.
"""

from __future__ import annotations

import enum
import numbers
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, overload

from refocal._arrays import (
    Array,
    ArrayT,
    Namespace,
    Numbers,
    NumPyArray,
    as_array,
    log1p,
    namespace,
    quiet,
    shares_of_probs,
    stop_gradient,
    working_dtype,
)
from refocal._checks import check_gamma, check_positive_gamma, check_probs, check_scores
from refocal.focal import log_phi

Function: TypeAlias = Callable[[Namespace, Array, Array], tuple[Array, Array]]
"""Of w = log v and gamma: a value and its derivative by w."""

BISECTIONS = 64
"""Halvings of the bracket of log tau: enough for every bit of float64."""


class Confidence(enum.IntEnum):
    """The codes of `confidence_region` and `eta_confidence`.

    Example:
        >>> Confidence(-1)
        <Confidence.UNDER: -1>
    """

    UNDER = -1
    """The largest score is below the largest posterior."""
    EQUAL = 0
    """The largest score is the largest posterior."""
    OVER = 1
    """The largest score is above the largest posterior."""
    AMBIGUOUS = 2
    """The largest score alone does not tell."""


@overload
def tau_oc(gamma: float) -> float: ...
@overload
def tau_oc(gamma: ArrayT) -> ArrayT: ...
@overload
def tau_oc(gamma: Sequence[float]) -> NumPyArray: ...
def tau_oc(gamma: Numbers) -> Any:
    r"""Return the score up to which the focal minimiser is always eta-overconfident.

    .. math:: \tau_{oc} = \arg\max_v \varphi^\gamma(v)

    It is the root of 2v - 2 - log v + gamma v log v in (0, 1/2), falls from 0.2032 as gamma grows, and
    is exp(-2) for gamma = 1.

    Args:
        gamma: A number > 0, or an array of any shape.

    Returns:
        A float for a number, an array of gamma's kind and shape otherwise, with the first two derivatives
        by gamma under autograd.

    Example:
        >>> round(tau_oc(2.0), 6)
        0.104058
    """
    return _taus(gamma)[0]


@overload
def tau_uc(gamma: float) -> float: ...
@overload
def tau_uc(gamma: ArrayT) -> ArrayT: ...
@overload
def tau_uc(gamma: Sequence[float]) -> NumPyArray: ...
def tau_uc(gamma: Numbers) -> Any:
    r"""Return the score from which on the focal minimiser is always eta-underconfident.

    .. math:: \varphi^\gamma(\tau_{uc}) = 1, \quad \tau_{oc} < \tau_{uc} < 1/2

    It falls from 1/2 as gamma grows, and is exp(-1) for gamma = 1.

    Args:
        gamma: A number > 0, or an array of any shape.

    Returns:
        A float for a number, an array of gamma's kind and shape otherwise, with the first two derivatives
        by gamma under autograd.

    Example:
        >>> round(tau_uc(2.0), 6)
        0.297637
    """
    return _taus(gamma)[1]


@overload
def eta_confidence(probs: ArrayT, gamma: Numbers, *, axis: int = -1, check: bool = True) -> ArrayT: ...
@overload
def eta_confidence(
    probs: Sequence[Any], gamma: Numbers, *, axis: int = -1, check: bool = True
) -> NumPyArray: ...
def eta_confidence(probs: Any, gamma: Numbers, *, axis: int = -1, check: bool = True) -> Any:
    r"""Return whether a focal minimiser is eta-under- or overconfident, by psi, for every row.

    .. math:: \mathrm{sign}\bigl(\max_i q_i - \max_i \Psi^\gamma_i(q)\bigr)

    computed as the sign of sum_j q_j (phi(q_top) / phi(q_j) - 1), which cancels nowhere.

    Args:
        probs: Softmax scores q of the minimiser, K >= 2 of them along ``axis``, in each row with sum 1.
        gamma: The gamma of the training: a number >= 0, or an array that broadcasts over the rows.
        axis: The class axis.
        check: Whether to look at the values, where they are at hand (not under tracing, nor on a GPU).

    Returns:
        Small integers, -1 (under), 0 (equal) or +1 (over), of probs' shape without the class axis.
        A difference within rounding counts as equal.

    Example:
        >>> eta_confidence([[0.8, 0.2], [0.5, 0.5]], gamma=2.0)
        array([-1,  0], dtype=int8)
    """
    probs, axis = check_scores("probs", probs, axis)
    gamma = check_gamma(gamma, probs, axis)
    check_probs("probs", probs, axis, check)
    xp = namespace(probs)
    q = xp.astype(probs, working_dtype(probs), copy=False)
    with quiet(q):
        s = shares_of_probs(xp, q, axis)
        below, top = log_phi(xp, s, gamma, axis)
    gain = xp.sum(s.q * xp.expm1(xp.where(s.top, 0, top - below)), axis=axis)
    noise = 16 * xp.finfo(q.dtype).eps * xp.sum(s.q * (1 + xp.abs(below)), axis=axis)
    code = xp.astype(gain > noise, xp.int8) - xp.astype(gain < -noise, xp.int8)
    return xp.astype(code, xp.int8, copy=False)


@overload
def confidence_region(probs: ArrayT, gamma: Numbers, *, axis: int = -1, check: bool = True) -> ArrayT: ...
@overload
def confidence_region(
    probs: Sequence[Any], gamma: Numbers, *, axis: int = -1, check: bool = True
) -> NumPyArray: ...
def confidence_region(probs: Any, gamma: Numbers, *, axis: int = -1, check: bool = True) -> Any:
    r"""Return what the largest score alone tells about a focal minimiser (Theorem 8).

    With q the largest score: OVER for q <= tau_oc, UNDER for q >= tau_uc, AMBIGUOUS between the two,
    where `eta_confidence` decides by all scores. EQUAL where the scores are a uniform vector over some
    of the classes and 0 elsewhere (the paper's set S^K, compared exactly), and everywhere if gamma is 0.

    Args:
        probs: Softmax scores of the minimiser, K >= 2 of them along ``axis``, in each row with sum 1.
        gamma: The gamma of the training: a number >= 0, or an array that broadcasts over the rows.
        axis: The class axis.
        check: Whether to look at the values, where they are at hand (not under tracing, nor on a GPU).

    Returns:
        Codes of `Confidence`, small integers, of probs' shape without the class axis.

    Example:
        >>> codes = confidence_region([[0.8, 0.2, 0.0], [0.5, 0.5, 0.0]], gamma=2.0)
        >>> [Confidence(code).name for code in codes]
        ['UNDER', 'EQUAL']
    """
    probs, axis = check_scores("probs", probs, axis)
    gamma = check_gamma(gamma, probs, axis)
    check_probs("probs", probs, axis, check)
    xp = namespace(probs)
    q = xp.astype(probs, working_dtype(probs), copy=False)
    largest = xp.max(q, axis=axis, keepdims=True)
    equal = xp.all((q == 0) | (q == largest), axis=axis, keepdims=True)
    if isinstance(gamma, float):
        gamma = xp.asarray(gamma, dtype=q.dtype)
    equal = equal | (gamma == 0)
    low, high = _roots(xp, stop_gradient(xp.where(gamma == 0, 1, gamma)))
    code = xp.full_like(largest, int(Confidence.AMBIGUOUS), dtype=xp.int8)
    code = xp.where(largest <= low, int(Confidence.OVER), code)
    code = xp.where(largest >= high, int(Confidence.UNDER), code)
    code = xp.where(equal, int(Confidence.EQUAL), code)
    return xp.squeeze(xp.astype(code, xp.int8, copy=False), axis=axis)


def _taus(gamma: Numbers) -> tuple[Array, Array]:
    given = as_array(check_positive_gamma(gamma))
    xp = namespace(given)
    low, high = _roots(xp, xp.astype(given, working_dtype(given), copy=False))
    if isinstance(gamma, numbers.Real):
        return float(low), float(high)
    return xp.astype(low, given.dtype, copy=False), xp.astype(high, given.dtype, copy=False)


def _roots(xp: Namespace, gamma: Array) -> tuple[Array, Array]:
    """Return tau_oc and tau_uc."""
    fixed = stop_gradient(gamma)
    # (1 + gamma) tau_oc grows from 0.2032 at gamma = 0 to 1 at infinity.
    low = _bisect(xp, _slope_of_phi, fixed, xp.log(0.2 / (1 + fixed)), xp.log(1 / (1 + fixed)))
    high = _bisect(xp, _excess_of_phi, fixed, low, xp.log(0.5 + 0 * fixed))
    if fixed is not gamma:
        low = _with_gradient(xp, _slope_of_phi, low, gamma)
        high = _with_gradient(xp, _excess_of_phi, high, gamma)
    return xp.exp(low), xp.exp(high)


def _slope_of_phi(xp: Namespace, w: Array, gamma: Array) -> tuple[Array, Array]:
    """Return a function of w = log v with the sign of phi's derivative, and its own derivative by w."""
    v = xp.exp(w)
    return 2 * v - 2 - w + gamma * v * w, 2 * v - 1 + gamma * v * (w + 1)


def _excess_of_phi(xp: Namespace, w: Array, gamma: Array) -> tuple[Array, Array]:
    """Return log(phi) / gamma, a function of w = log v, and its derivative by w."""
    v = xp.exp(w)
    odds = v / (1 - v)
    r = -w * odds
    return log1p(xp, -v) + r * _log1p_ratio(xp, gamma * r), -odds + (r / (1 - v) - odds) / (1 + gamma * r)


def _log1p_ratio(xp: Namespace, x: Array) -> Array:
    """Return log(1 + x) / x for x >= 0, by its series where derivatives of the quotient would cancel."""
    small = x < 1 / 16
    y = xp.where(small, x, 0)
    series = xp.zeros_like(y)
    for k in range(15, 0, -1):
        series = 1 / k - y * series
    x = xp.where(small, 1, x)
    return xp.where(small, series, log1p(xp, x) / x)


def _bisect(xp: Namespace, f: Function, gamma: Array, low: Array, high: Array) -> Array:
    """Return where f falls through 0, as w = log v, between two bounds of it."""
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        right = f(xp, middle, gamma)[0] > 0
        low, high = xp.where(right, middle, low), xp.where(right, high, middle)
    return 0.5 * (low + high)


def _with_gradient(xp: Namespace, f: Function, root: Array, gamma: Array) -> Array:
    """Return a root of f with the first two derivatives by gamma of the implicit function.

    Each Newton step with a fixed slope gives one more derivative; the value stays that of the root.
    """
    steepness = stop_gradient(f(xp, root, stop_gradient(gamma))[1])
    w = root
    for _ in range(2):
        step = f(xp, w, gamma)[0] / steepness
        w = w - (step - stop_gradient(step))
    return w
