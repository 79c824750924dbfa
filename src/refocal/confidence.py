"""Where the focal risk minimiser is too sure, or not sure enough (the paper's Theorem 8).

"eta-underconfident" and "eta-overconfident" compare the minimiser's largest score with the largest
class posterior. They say nothing about a finite sample, unlike the usual over- and underconfidence.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from refocal._arrays import (
    Array,
    Namespace,
    as_array,
    log1p,
    namespace,
    quiet,
    shares_of_probs,
    working_dtype,
)
from refocal._checks import check_gamma, check_positive_gamma, check_scores
from refocal.focal import Gamma, log_phi

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


def tau_oc(gamma: Gamma) -> Array:
    r"""Return the score up to which the focal minimiser is always eta-overconfident.

    .. math:: \tau_{oc} = \arg\max_v \varphi^\gamma(v)

    It is the root of 2v - 2 - log v + gamma v log v in (0, 1/2), falls from 0.2032 as gamma grows, and
    is exp(-2) for gamma = 1.

    Args:
        gamma: A number > 0, or an array of any shape.

    Returns:
        A float for a number, an array of gamma's kind and shape otherwise.

    Example:
        >>> round(tau_oc(2.0), 6)
        0.104058
    """
    return _taus(gamma)[0]


def tau_uc(gamma: Gamma) -> Array:
    r"""Return the score from which on the focal minimiser is always eta-underconfident.

    .. math:: \varphi^\gamma(\tau_{uc}) = 1, \quad \tau_{oc} < \tau_{uc} < 1/2

    It falls from 1/2 as gamma grows, and is exp(-1) for gamma = 1.

    Args:
        gamma: A number > 0, or an array of any shape.

    Returns:
        A float for a number, an array of gamma's kind and shape otherwise.

    Example:
        >>> round(tau_uc(2.0), 6)
        0.297637
    """
    return _taus(gamma)[1]


def eta_confidence(probs: Array, gamma: Gamma, *, axis: int = -1) -> Array:
    r"""Return whether a focal minimiser is eta-under- or overconfident, by psi, for every row.

    .. math:: \mathrm{sign}\bigl(\max_i q_i - \max_i \Psi^\gamma_i(q)\bigr)

    computed as the sign of sum_j q_j (phi(q_top) / phi(q_j) - 1), which cancels nowhere.

    Args:
        probs: Softmax scores q of the minimiser, K >= 2 of them along ``axis``.
        gamma: The gamma of the training: a number >= 0, or an array that broadcasts over the rows.
        axis: The class axis.

    Returns:
        Small integers, -1 (under), 0 (equal) or +1 (over), of probs' shape without the class axis.
        A difference within rounding counts as equal.

    Example:
        >>> eta_confidence([[0.8, 0.2], [0.5, 0.5]], gamma=2.0)
        array([-1,  0], dtype=int8)
    """
    probs, axis = check_scores("probs", probs, axis)
    gamma = check_gamma(gamma, probs, axis)
    xp = namespace(probs)
    q = xp.astype(probs, working_dtype(probs), copy=False)
    with quiet(q):
        s = shares_of_probs(xp, q, axis)
        below, top = log_phi(xp, s, gamma, axis)
    gain = xp.sum(s.q * xp.expm1(xp.where(s.top, 0, top - below)), axis=axis)
    noise = 16 * xp.finfo(q.dtype).eps * xp.sum(s.q * (1 + xp.abs(below)), axis=axis)
    code = xp.astype(gain > noise, xp.int8) - xp.astype(gain < -noise, xp.int8)
    return xp.astype(code, xp.int8, copy=False)


def confidence_region(probs: Array, gamma: Gamma, *, axis: int = -1) -> Array:
    r"""Return what the largest score alone tells about a focal minimiser (Theorem 8).

    With q the largest score: OVER for q <= tau_oc, UNDER for q >= tau_uc, AMBIGUOUS between the two,
    where `eta_confidence` decides by all scores. EQUAL where the scores are a uniform vector over some
    of the classes and 0 elsewhere (the paper's set S^K, compared exactly), and everywhere if gamma is 0.

    Args:
        probs: Softmax scores of the minimiser, K >= 2 of them along ``axis``.
        gamma: The gamma of the training: a number >= 0, or an array that broadcasts over the rows.
        axis: The class axis.

    Returns:
        Codes of `Confidence`, small integers, of probs' shape without the class axis.

    Example:
        >>> codes = confidence_region([[0.8, 0.2, 0.0], [0.5, 0.5, 0.0]], gamma=2.0)
        >>> [Confidence(code).name for code in codes]
        ['UNDER', 'EQUAL']
    """
    probs, axis = check_scores("probs", probs, axis)
    gamma = check_gamma(gamma, probs, axis)
    xp = namespace(probs)
    q = xp.astype(probs, working_dtype(probs), copy=False)
    largest = xp.max(q, axis=axis, keepdims=True)
    equal = xp.all((q == 0) | (q == largest), axis=axis, keepdims=True)
    if isinstance(gamma, float):
        gamma = xp.asarray(gamma, dtype=q.dtype)
    equal = equal | (gamma == 0)
    low, high = _bisect_taus(xp, xp.where(gamma == 0, 1, gamma))
    code = xp.full_like(largest, int(Confidence.AMBIGUOUS), dtype=xp.int8)
    code = xp.where(largest <= low, int(Confidence.OVER), code)
    code = xp.where(largest >= high, int(Confidence.UNDER), code)
    code = xp.where(equal, int(Confidence.EQUAL), code)
    return xp.squeeze(xp.astype(code, xp.int8, copy=False), axis=axis)


def _taus(gamma: Gamma) -> tuple[Array, Array]:
    given = as_array(check_positive_gamma(gamma))
    xp = namespace(given)
    low, high = _bisect_taus(xp, xp.astype(given, working_dtype(given), copy=False))
    if isinstance(gamma, (int, float)):
        return float(low), float(high)
    return xp.astype(low, given.dtype, copy=False), xp.astype(high, given.dtype, copy=False)


def _bisect_taus(xp: Namespace, gamma: Array) -> tuple[Array, Array]:
    def slope(v: Array, log_v: Array) -> Array:  # has the sign of phi's derivative
        return 2 * v - 2 - log_v + gamma * v * log_v

    def excess(v: Array, log_v: Array) -> Array:  # log phi / gamma
        return log1p(xp, -v) + log1p(xp, gamma * (-v * log_v / (1 - v))) / gamma

    # (1 + gamma) tau_oc grows from 0.2032 at gamma = 0 to 1 at infinity.
    low = _bisect(xp, slope, xp.log(0.2 / (1 + gamma)), xp.log(1 / (1 + gamma)))
    high = _bisect(xp, excess, low, xp.log(0.5 + 0 * gamma))
    return xp.exp(low), xp.exp(high)


def _bisect(xp: Namespace, f: Callable[[Array, Array], Array], low: Array, high: Array) -> Array:
    """Return where f(v, log v) falls through 0, as log v, between two bounds of log v."""
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        right = f(xp.exp(middle), middle) > 0
        low, high = xp.where(right, middle, low), xp.where(right, high, middle)
    return 0.5 * (low + high)
