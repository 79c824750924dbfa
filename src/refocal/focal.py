"""The paper's functions: the focal loss, its risk, and the transformation that undoes its bias.

In the docstrings q is a vector of softmax scores, eta the true class posterior and K the number of
classes. Every function takes NumPy, PyTorch or JAX arrays and returns the same kind.
"""

from __future__ import annotations

import functools
import sys
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
    is_numpy,
    log1p,
    map_rows,
    namespace,
    quiet,
    shares,
    shares_of_probs,
    stop_gradient,
    top_ratio,
    total,
    working_dtype,
)
from refocal._checks import (
    check_flag,
    check_floats,
    check_gamma,
    check_probs,
    check_scores,
    warn_if_probs,
)

Gamma = Array | float


@overload
def phi(v: ArrayT, gamma: Numbers, *, check: bool = True) -> ArrayT: ...
@overload
def phi(v: Sequence[Any], gamma: Numbers, *, check: bool = True) -> NumPyArray: ...
def phi(v: Any, gamma: Numbers, *, check: bool = True) -> Any:
    r"""Return the paper's varphi, entry by entry.

    .. math:: \varphi^\gamma(v) = (1-v)^\gamma - \gamma (1-v)^{\gamma-1} v \log v

    It rises from phi(0) = 1 to its largest value at `tau_oc` and falls through 1 at `tau_uc` to
    phi(1) = 0 (for gamma = 0 it is 1 everywhere). It is also minus the derivative of the focal loss
    by log v. At 0 it rises infinitely steeply, so there it has no gradient under autograd.

    Args:
        v: Scores in [0, 1], of any shape.
        gamma: A number >= 0, or an array that broadcasts to v.
        check: Whether to look at the values, where they are at hand (not under tracing, nor on a GPU).

    Example:
        >>> phi([0.0, 0.1, 0.5, 1.0], gamma=2.0).round(4)
        array([1.    , 1.2245, 0.5966, 0.    ])
    """
    return _elementwise(_phi, v, gamma, check)


@overload
def h(v: ArrayT, gamma: Numbers, *, check: bool = True) -> ArrayT: ...
@overload
def h(v: Sequence[Any], gamma: Numbers, *, check: bool = True) -> NumPyArray: ...
def h(v: Any, gamma: Numbers, *, check: bool = True) -> Any:
    r"""Return the paper's h, entry by entry: the posterior up to a factor.

    .. math:: h^\gamma(v) = v / \varphi^\gamma(v)

    Strictly increasing, with h(0) = 0; h(1) is infinite for gamma > 0, and has no gradient there.

    Args:
        v: Scores in [0, 1], of any shape.
        gamma: A number >= 0, or an array that broadcasts to v.
        check: Whether to look at the values, where they are at hand (not under tracing, nor on a GPU).

    Example:
        >>> h([0.0, 0.1, 0.5], gamma=2.0).round(4)
        array([0.    , 0.0817, 0.8381])
    """
    return _elementwise(_h, v, gamma, check)


@overload
def psi(probs: ArrayT, gamma: Numbers, *, axis: int = -1, check: bool = True) -> ArrayT: ...
@overload
def psi(probs: Sequence[Any], gamma: Numbers, *, axis: int = -1, check: bool = True) -> NumPyArray: ...
def psi(probs: Any, gamma: Numbers, *, axis: int = -1, check: bool = True) -> Any:
    r"""Return the class posterior that belongs to the scores of a focal risk minimiser (Theorem 11).

    .. math:: \Psi^\gamma_i(q) = h^\gamma(q_i) / \sum_j h^\gamma(q_j)

    The order of the classes stays (Proposition 12), a zero stays zero and a one-hot row stays as it
    is. Start from logits if you have them: `log_psi` loses nothing to rounding where q is near 1.

    Args:
        probs: Softmax scores, K >= 2 of them along ``axis``, in [0, 1] and in each row with sum 1 (within
            0.001, in half precision 0.01). A row with a NaN gives NaN.
        gamma: The gamma of the training: a number >= 0, or an array that broadcasts over the rows.
        axis: The class axis.
        check: Whether to look at the values, where they are at hand (not under tracing, nor on a GPU).

    Returns:
        Probabilities of the same shape, dtype and library.

    Raises:
        ValueError: Where values are at hand and no probabilities; the message says what they look like.

    Example:
        >>> psi([0.5, 0.3, 0.2], gamma=2.0).round(3)
        array([0.639, 0.23 , 0.132])
    """
    probs, axis = check_scores("probs", probs, axis)
    gamma = check_gamma(gamma, probs, axis)
    check_flag(check)
    look = functools.partial(check_probs, "probs", probs, axis, check)
    if isinstance(gamma, float):
        plain = functools.partial(_rows_of, psi_body, gamma)
        found = compiled.psi(probs, gamma, axis, plain=plain, logarithm=False, check=look)
        if found is not None:
            return found
    look()
    return map_rows(psi_body, probs, gamma, axis=axis, kernel=_psi_kernel if _is_small(gamma) else None)


@overload
def log_psi(logits: ArrayT, gamma: Numbers, *, axis: int = -1, check: bool = True) -> ArrayT: ...
@overload
def log_psi(logits: Sequence[Any], gamma: Numbers, *, axis: int = -1, check: bool = True) -> NumPyArray: ...
def log_psi(logits: Any, gamma: Numbers, *, axis: int = -1, check: bool = True) -> Any:
    r"""Return the logarithm of `psi` of ``softmax(logits)``, exact for any finite logits.

    .. math::

        \log\Psi^\gamma = \log\mathrm{softmax}(\log h), \quad
        \log h = \log q - \gamma \log(1-q) - \log\Bigl(1 + \gamma \frac{-q \log q}{1-q}\Bigr)

    No term cancels, and 1 - q of the largest class is summed over the other classes.
    A logit of -inf (a masked class) gives -inf. A NaN stays in its own row, and a row with inf, or with
    nothing but -inf, is NaN.

    Args:
        logits: Scores before the softmax, K >= 2 of them along ``axis``.
        gamma: The gamma of the training: a number >= 0, or an array that broadcasts over the rows.
        axis: The class axis.
        check: Whether to warn (`refocal.SuspiciousInputWarning`) of logits that look like probabilities.

    Returns:
        Log-probabilities of the same shape, dtype and library.

    Example:
        >>> log_psi(np.array([1000.0, 0.0, -1000.0]), gamma=2.0).round(1)
        array([    0. , -2998.9, -3998.9])
    """
    logits, axis = check_scores("logits", logits, axis)
    gamma = check_gamma(gamma, logits, axis)
    if check:
        warn_if_probs("logits", logits, axis)
    if isinstance(gamma, float):
        found = compiled.psi(logits, gamma, axis, plain=functools.partial(_rows_of, _log_psi, gamma))
        if found is not None:
            return found
    return map_rows(_log_psi, logits, gamma, axis=axis, kernel=_log_psi_kernel if _is_small(gamma) else None)


def _rows_of(body: Callable[..., Array], gamma: float, rows: Array) -> Array:
    """Return what ``body`` makes of rows (n, K)."""
    return map_rows(body, rows, gamma, axis=1)


def log_phi(xp: Namespace, s: Shares, gamma: Gamma, axis: int) -> tuple[Array, Array]:
    """Return log phi of the classes below the top, and for each row that of the top."""
    ratio = s.q * xp.where(s.neg_log_q == xp.inf, 0, s.neg_log_q) / (1 - s.q)  # 0 at q = 0
    below = gamma * log1p(xp, -s.q) + log1p(xp, gamma * ratio)
    gamma_top = gamma_of_top(xp, s.top, gamma, axis)
    top = gamma_top * (s.log_odds - s.neg_log_top) + log1p(xp, gamma_top * top_ratio(xp, s))
    if gamma_top is gamma:  # equals of the top get its very number, or rounding would rank them
        below = below + stop_gradient(xp.where(s.equal, top - below, 0))
    return below, top


def gamma_of_top(xp: Namespace, top: Array, gamma: Gamma, axis: int) -> Gamma:
    """Return the top class's gamma of every row, where gamma differs between the classes."""
    return gamma if isinstance(gamma, float) or gamma.shape[axis] == 1 else at_top(xp, top, gamma, axis)


def log_h(xp: Namespace, logits: Array, gamma: Gamma, axis: int) -> tuple[Array, Array]:
    """Return which class is the top, and log h below it minus log h of the top (-inf at the top)."""
    s = shares(xp, logits, axis)
    below, top = log_phi(xp, s, gamma, axis)
    return s.top, (s.neg_log_top - s.neg_log_q) - below + top


def _log_psi(xp: Namespace, logits: Array, gamma: Gamma, axis: int) -> Array:
    top, gap = log_h(xp, logits, gamma, axis)
    gap = gap - stop_gradient(xp.where(gap > 0, gap, 0))  # rounding must not lift a class over the top
    rest = total(xp, xp.exp(gap), axis)
    return xp.where(top, 0, gap) - log1p(xp, rest)


def _is_small(gamma: Gamma) -> bool:
    return isinstance(gamma, float) and gamma <= 16


def _log_psi_kernel(out: Array, scratch: list[Array], z: Array, gamma: float, axis: int) -> None:
    """`_log_psi` in place, without `where`, whose branches would cost more than everything else here.

    Only for one small gamma, so that 1 - q need not be exact for small q. The rows it cannot do (one
    class more than 57 ahead of all others, a masked class, NaN) it leaves to `_log_psi`.
    """
    lib: Any = np if is_numpy(z) else sys.modules["torch"]
    fma, scaled_add = (_fma, _scaled_add) if lib is np else (lib.addcmul, lib.add)
    gap, minus_q, phi_q, below, _ = scratch
    other = out  # one buffer less in the cache
    one = lib.ones_like(z[0, 0])
    lib.subtract(z, lib.amax(z, axis, keepdims=True), out=gap)
    lib.less(gap, 0, out=below)  # 1 for the classes below the top, 0 for the top and its equals
    lib.exp(gap, out=minus_q)
    minus_q *= below
    equals = z.shape[axis] - 1 - lib.sum(below, axis, keepdims=True)
    odds = lib.sum(minus_q, axis, keepdims=True) + equals
    neg_log_top = lib.log1p(odds)
    minus_q /= -1 - odds
    scaled_add(1 - gamma * neg_log_top, gap, alpha=gamma, out=other)
    fma(one, minus_q, other, out=phi_q)  # 1 - q - gamma q log q, to be multiplied by (1 - q)^(gamma - 1)
    if gamma in (1.0, 2.0, 3.0, 4.0):
        for _ in range(int(gamma) - 1):
            fma(phi_q, phi_q, minus_q, out=other)
            phi_q, other = other, phi_q
    else:
        lib.add(minus_q, one, out=other)
        lib.log(other, out=other)
        other *= gamma - 1
        lib.exp(other, out=other)
        phi_q *= other
    minus_q /= phi_q
    log_phi_top = gamma * (lib.log(odds) - neg_log_top) + lib.log1p(gamma * (neg_log_top / odds))
    rest = equals - lib.exp(log_phi_top) * (1 + odds) * lib.sum(minus_q, axis, keepdims=True)
    lib.log(phi_q, out=phi_q)
    gap -= phi_q
    fma(gap, below, log_phi_top, out=minus_q)
    lib.subtract(minus_q, lib.log1p(rest), out=out)
    odd = (~((odds > 1e-25) & (rest < lib.inf))).reshape(-1)
    if odd.any():
        rows = (slice(None), odd) if axis == 0 else (odd,)
        out[rows] = _log_psi(namespace(z), z[rows], gamma, axis)


def _fma(a: Array, b: Array, c: Array, *, out: Array) -> None:
    """NumPy's `torch.addcmul`: out = a + b c."""
    np.multiply(b, c, out=out)
    out += a


def _scaled_add(a: Array, b: Array, *, alpha: float, out: Array) -> None:
    """NumPy's `torch.add` with alpha: out = a + alpha b."""
    np.multiply(b, alpha, out=out)
    out += a


def psi_body(xp: Namespace, probs: Array, gamma: Gamma, axis: int) -> Array:
    """Return `psi` of a block of rows."""
    s = shares_of_probs(xp, probs, axis)
    below, top = log_phi(xp, s, gamma, axis)
    ratio = s.q * xp.exp(s.neg_log_top + top - below)  # h(q) / h(q of the top)
    ratio = ratio - stop_gradient(xp.where(s.equal | (ratio > 1), ratio - 1, 0))
    return xp.where(s.top, 1, ratio) / (1 + total(xp, ratio, axis))


def _psi_kernel(out: Array, scratch: list[Array], probs: Array, gamma: float, axis: int) -> None:
    xp = namespace(probs)
    _log_psi_kernel(out, scratch, xp.log(probs), gamma, axis)
    (np if is_numpy(out) else sys.modules["torch"]).exp(out, out=out)


def _elementwise(body: Callable[..., Array], v: Any, gamma: object, check: bool) -> Array:
    v = check_floats("v", v)
    check_probs("v", v, None, check)
    gamma = check_gamma(gamma, v)
    xp = namespace(v)
    with quiet(v):
        y = body(xp, xp.astype(v, working_dtype(v), copy=False), gamma)
    return xp.astype(y, v.dtype, copy=False)


def _phi(xp: Namespace, v: Array, gamma: Gamma) -> Array:
    inside = (v > 0) & (v < 1)
    u = xp.where(inside, v, 0.5)
    ratio = xp.where(inside, -u * xp.log(u) / (1 - u), v)  # its limits at 0 and 1 are 0 and 1
    constant = (v == 1) & (gamma == 0)  # 0^0 is 1, but its derivative would be NaN
    return xp.where(constant, 1, 1 - v) ** gamma * (1 + gamma * ratio)


def _h(xp: Namespace, v: Array, gamma: Gamma) -> Array:
    y = _phi(xp, xp.where(v == 1, stop_gradient(v), v), gamma)  # no derivative at the pole
    pole = y == 0
    return xp.where(pole, xp.inf, v / xp.where(pole, 1, y))
