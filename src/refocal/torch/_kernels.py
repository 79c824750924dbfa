"""The focal losses as machine code, one pass over the logits: float32, contiguous, on the CPU.

Numba compiles these functions the first time and keeps the code on disk. They take addresses, know nothing of
PyTorch, and hold no lock of Python, so that several threads can work on parts of a batch, see
`refocal.torch._fast`. What is done once a row is in double precision.

What is dear is done over all entries of several rows at a time, since the end of a short row would not be
vectorised.
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray

from refocal.torch._entries import (
    DONE,
    ONE,
    ZERO,
    F,
    any_power,
    entry,
    exactly,
    exp,
    exp_and_miss,
    in_any_order,
    kernel,
    larger,
    log1p,
    neg_log_miss,
    whole_power,
    wide,
)

__all__ = [
    "DONE",
    "binary_gradient",
    "binary_rows",
    "hard_gradient",
    "hard_rows",
    "scratch_size",
    "soft_gradient",
    "soft_rows",
]

SOME = 4096
"""Entries worked on at a time: they stay in the cache, and sums of so many may be in single precision."""

LOWEST = F(np.finfo(F).min / 4)
"""In place of log 0, so that 0 log 0 is 0."""


def scratch_size(c: int) -> int:
    """Return how many numbers of memory a kernel needs for its work on rows of c entries."""
    return 2 * max(SOME, c) + SOME


# Rows


@entry
def _scratch(work_, c):
    """Return the memory for the entries of some rows, twice, and for a number a row.

    It comes from outside: what Numba allocates itself it also counts the users of, slice by slice.
    """
    size = max(SOME, c)
    work = carray(work_, 2 * size + SOME)
    return work[:size], work[size : 2 * size], work[2 * size :]


@exactly
def _largest(z):
    largest = z[0]
    for j in range(z.size):
        largest = larger(largest, z[j])
    return largest


@exactly
def _subtract(x, shift, result):
    for j in range(x.size):
        result[j] = x[j] - shift


@exactly
def _multiply(x, by):
    for j in range(x.size):
        x[j] *= by


@exactly
def _multiply_each(x, by):
    for j in range(x.size):
        x[j] *= by[j]


@exactly
def _exps(x, result):
    """Fill result, which must be another array: a loop over two that overlap is not vectorised."""
    wide()
    for j in range(x.size):
        result[j] = exp(x[j])


@exactly
def _exps_in_place(x):
    wide()
    for j in range(x.size):
        x[j] = exp(x[j])


@in_any_order
def _sum_of_some(x):
    total = ZERO
    for j in range(x.size):
        total += x[j]
    return total


@in_any_order
def _rest_of_some(exps):
    total, ties = ZERO, ZERO
    for j in range(exps.size):
        total += exps[j] if exps[j] != ONE else ZERO
        ties += ZERO if exps[j] != ONE else ONE
    return total, ties


@exactly
def _sum_of_many(x):
    total = 0.0
    for start in range(0, x.size, SOME):
        total += np.float64(_sum_of_some(x[start : start + SOME]))
    return total


@entry
def _sum(x):
    return _sum_of_many(x) if x.size > SOME else np.float64(_sum_of_some(x))


@exactly
def _rest_of_many(exps):
    rest, ties = 0.0, -1.0
    for start in range(0, exps.size, SOME):
        some, more = _rest_of_some(exps[start : start + SOME])
        rest += np.float64(some)
        ties += np.float64(more)
    return rest + ties


@entry
def _rest(exps):
    """Return the sum of exp(z - largest) over a row without one of the largest: small ones lose no digits."""
    if exps.size > SOME:
        return _rest_of_many(exps)
    some, more = _rest_of_some(exps)
    return np.float64(some) + (np.float64(more) - 1.0)


# Integer targets


@exactly
def _power(x, gamma):
    """Return x^gamma: powers by multiplication are the faster ones."""
    if gamma == 0.0:
        return 1.0
    if gamma == 1.0:
        return x
    if gamma == 3.0:
        return x * x * x
    return x**gamma


@entry
def _numbers(z, exps, largest, k, gamma):
    """Return the loss of a row, and for its gradient phi / sum of exponentials, and phi (1 - p)."""
    rest = _rest(exps)
    share = 1.0 / (1.0 + rest)
    # log1p in double precision, but faster, and exact enough for single
    log_sum = math.log(1.0 + rest) if rest > 1e-6 else rest - 0.5 * rest * rest
    neg_log_p = log_sum - (np.float64(z[k]) - np.float64(largest))
    # Next to p = 1 nothing of 1 - p is lost: the sum was taken without this entry.
    miss = rest * share if exps[k] == ONE else 1.0 - np.float64(exps[k]) * share
    hit = neg_log_p * (1.0 - miss) if miss < 1.0 else 0.0  # -p log p, also where the logit is -inf
    if gamma == 2.0:
        power = miss * miss
        phi = miss * (miss + 2.0 * hit)
    else:
        power = _power(miss, gamma)
        phi = power * (1.0 + gamma * (hit / miss if miss > 0.0 else 1.0))
    return power * neg_log_p, F(phi * share), F(phi * miss)


@kernel("zzynnnxnsnnnznzs")
def hard_rows(
    work_, z_, y_, first, last, c, gamma, of_rows, gammas_, some, ignore, each, loss_, keep, kept_, sums_
):
    """Fill loss if ``each``, and three numbers a row for the gradient if ``keep``.

    The three are the largest logit, phi / sum of exponentials, and phi (1 - p). ``sums`` has the sum of the
    losses and how many rows count: those whose label is not ``ignore``, if there are ``some``. Rows are those
    from first to last. gamma is a number, or one a row if ``of_rows``.
    """
    z, y, gammas, loss = carray(z_, last * c), carray(y_, last), carray(gammas_, last), carray(loss_, last)
    kept, sums = carray(kept_, (last, 3)), carray(sums_, 2)
    step = max(1, SOME // c)
    exps, _, tops = _scratch(work_, c)
    total, count = 0.0, 0
    for start in range(first, last, step):
        stop = min(start + step, last)
        for i in range(start, stop):
            row, r = z[i * c : i * c + c], i - start
            tops[r] = _largest(row)
            _subtract(row, tops[r], exps[r * c : r * c + c])
        _exps_in_place(exps[: (stop - start) * c])
        for i in range(start, stop):
            k, r = y[i], i - start
            if some and k == ignore:
                if each:
                    loss[i] = ZERO
                continue
            if k < 0 or k >= c:
                return i + 1
            this, factor, at_target = _numbers(
                z[i * c : i * c + c], exps[r * c : r * c + c], tops[r], k, gammas[i] if of_rows else gamma
            )
            if keep:
                kept[i, 0], kept[i, 1], kept[i, 2] = tops[r], factor, at_target
            if each:
                loss[i] = F(this)
            total += this
            count += 1
    sums[0], sums[1] = total, count
    return DONE


@kernel("zzynnnxnsnnnzxnzz")
def hard_gradient(
    work_,
    z_,
    y_,
    first,
    last,
    c,
    gamma,
    of_rows,
    gammas_,
    some,
    ignore,
    keep,
    kept_,
    scale,
    each,
    grad_,
    result_,
):
    """Fill the gradient by the logits, times ``scale``, and times ``grad``, one number a row, if ``each``."""
    z, y, gammas, kept = (
        carray(z_, last * c),
        carray(y_, last),
        carray(gammas_, last),
        carray(kept_, (last, 3)),
    )
    grad, result = carray(grad_, last), carray(result_, last * c)
    step = max(1, SOME // c)
    _, _, tops = _scratch(work_, c)
    for start in range(first, last, step):
        stop = min(start + step, last)
        for i in range(start, stop):
            row, r = z[i * c : i * c + c], i - start
            tops[r] = kept[i, 0] if keep else _largest(row)
            _subtract(row, tops[r], result[i * c : i * c + c])
        _exps_in_place(result[start * c : stop * c])
        for i in range(start, stop):
            k, row = y[i], result[i * c : i * c + c]
            if some and k == ignore:
                row[:] = ZERO
                continue
            if k < 0 or k >= c:  # changed since the loss was computed
                return i + 1
            if keep:
                factor, at_target = kept[i, 1], kept[i, 2]
            else:
                _, factor, at_target = _numbers(
                    z[i * c : i * c + c], row, tops[i - start], k, gammas[i] if of_rows else gamma
                )
            by = F(scale) * (grad[i] if each else ONE)
            _multiply(row, factor * by)
            row[k] = -at_target * by
    return DONE


# Loops over entries with a power of theirs


@entry
def _binary(z):
    """Return p and 1 - p of p = sigmoid(z), and -log p and -log(1 - p)."""
    e = exp(-abs(z))
    log = log1p(e)
    near = ONE / (ONE + e)
    far = e * near
    p = near if z > ZERO else far
    miss = far if z > ZERO else near
    return p, miss, log + (-z if z < ZERO else ZERO), log + (z if z > ZERO else ZERO)


def _loops(power):
    """Return the loops for a kind of power: with a choice inside, a loop would not be vectorised."""

    @exactly
    def soft_terms(log_q, v, odd, two, rest, result):
        """Fill result with the terms of the loss."""
        wide()
        for j in range(log_q.size):
            q, miss = exp_and_miss(log_q[j])
            result[j] = -power(miss, neg_log_miss(q, miss), odd, two, rest) * log_q[j] * v[j]

    @exactly
    def soft_slopes(log_q, v, odd, two, rest, result, q):
        """Fill result with v phi(q), which is -d loss / d log q; fill q, and log_q with 1 - q."""
        wide()
        gamma = F(odd + two) + rest
        for j in range(log_q.size):
            x = log_q[j]
            this, miss = exp_and_miss(x)
            ratio = x / (miss if miss > ZERO else ONE)
            ratio = ratio if miss > ZERO else -ONE
            factor = power(miss, neg_log_miss(this, miss), odd, two, rest)
            result[j] = v[j] * factor * (ONE - gamma * this * ratio)
            q[j] = this
            log_q[j] = miss

    @exactly
    def binary_losses(z, y, odd, two, rest, of_one, of_zero, loss):
        wide()
        for i in range(z.size):
            p, miss, neg_log_p, neg_log_q = _binary(z[i])
            one = of_one * y[i] * power(miss, neg_log_q, odd, two, rest) * neg_log_p
            zero = of_zero * (ONE - y[i]) * power(p, neg_log_p, odd, two, rest) * neg_log_q
            # A logit may be infinite: nothing of the target that it excludes may be left.
            one = one if y[i] != ZERO else ZERO
            zero = zero if y[i] != ONE else ZERO
            loss[i] = one + zero

    @exactly
    def binary_slopes(z, y, odd, two, rest, of_one, of_zero, scale, result):
        wide()
        gamma = F(odd + two) + rest
        for i in range(z.size):
            p, miss, neg_log_p, neg_log_q = _binary(z[i])
            # p log p is 0 at p = 0, also where the logit is infinite
            hit = p * neg_log_p if p > ZERO else ZERO
            other = miss * neg_log_q if miss > ZERO else ZERO
            one = of_one * y[i] * power(miss, neg_log_q, odd, two, rest) * (miss + gamma * hit)
            zero = of_zero * (ONE - y[i]) * power(p, neg_log_p, odd, two, rest) * (p + gamma * other)
            one = one if y[i] != ZERO else ZERO
            zero = zero if y[i] != ONE else ZERO
            result[i] = scale * (zero - one)

    return soft_terms, soft_slopes, binary_losses, binary_slopes


_soft_terms, _soft_slopes, _binary_losses, _binary_slopes = _loops(any_power)
_whole_soft_terms, _whole_soft_slopes, _whole_binary_losses, _whole_binary_slopes = _loops(whole_power)


# Distributions


@exactly
def _log_softmax(z, c, log_q, exps):
    """Fill log_q of whole rows of z, with a large number for log 0; exps is overwritten."""
    for i in range(0, z.size, c):
        _subtract(z[i : i + c], _largest(z[i : i + c]), log_q[i : i + c])
    _exps(log_q[: z.size], exps)
    for i in range(0, z.size, c):
        _shift_down(log_q[i : i + c], F(math.log1p(_rest(exps[i : i + c]))))


@exactly
def _shift_down(row, log_sum):
    for j in range(row.size):
        x = row[j] - log_sum
        row[j] = LOWEST if x < LOWEST else x  # and not `larger`: a NaN must stay one


@kernel("zzznnnnnxnzs")
def soft_rows(work_, z_, v_, first, last, c, odd, two, rest, each, loss_, sums_):
    """Fill loss if ``each``, for distributions v; gamma = odd + two + rest, see `any_power`."""
    z, v, losses, sums = carray(z_, last * c), carray(v_, last * c), carray(loss_, last), carray(sums_, 2)
    step = max(1, SOME // c)
    log_q, terms, _ = _scratch(work_, c)
    total = 0.0
    for start in range(first, last, step):
        stop = min(start + step, last)
        _log_softmax(z[start * c : stop * c], c, log_q, terms)
        x, t = log_q[: (stop - start) * c], v[start * c : stop * c]
        if rest:
            _soft_terms(x, t, odd, two, F(rest), terms)
        else:
            _whole_soft_terms(x, t, odd, two, ZERO, terms)
        for i in range(start, stop):
            r = i - start
            loss = _sum(terms[r * c : r * c + c])
            if each:
                losses[i] = F(loss)
            total += loss
    sums[0], sums[1] = total, last - first
    return DONE


@kernel("zzznnnnnxxnzz")
def soft_gradient(work_, z_, v_, first, last, c, odd, two, rest, scale, each, grad_, result_):
    """Fill the gradient by the logits, see `hard_gradient`."""
    z, v = carray(z_, last * c), carray(v_, last * c)
    grad, result = carray(grad_, last), carray(result_, last * c)
    step = max(1, SOME // c)
    log_q, q, _ = _scratch(work_, c)
    for start in range(first, last, step):
        stop = min(start + step, last)
        _log_softmax(z[start * c : stop * c], c, log_q, q)
        x, t, slopes = log_q[: (stop - start) * c], v[start * c : stop * c], result[start * c : stop * c]
        if rest:
            _soft_slopes(x, t, odd, two, F(rest), slopes, q)
        else:
            _whole_soft_slopes(x, t, odd, two, ZERO, slopes, q)
        for i in range(start, stop):
            r, row = i - start, result[i * c : i * c + c]
            by = F(scale) * (grad[i] if each else ONE)
            _soft_row(row, q[r * c : r * c + c], log_q[r * c : r * c + c], F(_sum(row)), by)
    return DONE


@exactly
def _soft_row(slopes, q, miss, total, by):
    """Turn the slopes by log q into those by z: d log q_j / d z_k = [j = k] - q_k."""
    for j in range(slopes.size):
        # Not q total - slope, which cancels where q is next to 1.
        slopes[j] = by * (q[j] * (total - slopes[j]) - slopes[j] * miss[j])


# Binary problems


@kernel("zzznnnnxxxnzs")
def binary_rows(work_, z_, y_, first, last, odd, two, rest, of_one, of_zero, each, loss_, sums_):
    """Fill loss if ``each``, for targets y in [0, 1] with the weights of y = 1 and of y = 0."""
    z, y, losses, sums = carray(z_, last), carray(y_, last), carray(loss_, last), carray(sums_, 2)
    one, zero = F(of_one), F(of_zero)
    scratch = carray(work_, SOME)
    total = 0.0
    for i in range(first, last, SOME):
        j = min(i + SOME, last)
        loss = losses[i:j] if each else scratch[: j - i]
        if rest:
            _binary_losses(z[i:j], y[i:j], odd, two, F(rest), one, zero, loss)
        else:
            _whole_binary_losses(z[i:j], y[i:j], odd, two, ZERO, one, zero, loss)
        total += np.float64(_sum_of_some(loss))
    sums[0], sums[1] = total, last - first
    return DONE


@kernel("zzznnnnxxxxnzz")
def binary_gradient(work_, z_, y_, first, last, odd, two, rest, of_one, of_zero, scale, each, grad_, result_):
    """Fill the gradient by the logits, see `hard_gradient`; ``grad`` has one number an entry."""
    z, y, grad, result = carray(z_, last), carray(y_, last), carray(grad_, last), carray(result_, last)
    one, zero, by = F(of_one), F(of_zero), F(scale)
    for i in range(first, last, SOME):
        j = min(i + SOME, last)
        slopes = result[i:j]
        if rest:
            _binary_slopes(z[i:j], y[i:j], odd, two, F(rest), one, zero, by, slopes)
        else:
            _whole_binary_slopes(z[i:j], y[i:j], odd, two, ZERO, one, zero, by, slopes)
        if each:
            _multiply_each(slopes, grad[i:j])
    return DONE
