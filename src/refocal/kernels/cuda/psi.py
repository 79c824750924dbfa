"""psi and its logarithm on CUDA devices: the formulas of `refocal.focal`, in single precision.

A row that fits into the registers of a block of threads is read once. A longer one is read three times:
for the scores, which need the sum over all classes; for the sum of h, which needs the scores; and for the
result. Either way 1 - q of the top class is summed over the other classes, next to the largest of them, so
that any lead of the top is exact, and no row has to be done over by the host.
"""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.kernels.cuda.numbers import log1p, log_complement, softplus

INFINITY = tl.constexpr(float("inf"))
LOWEST = tl.constexpr(-3.4e38)
"""The log-odds of all others where every other class is masked."""


# Functions of tiles: of rows, and of classes along the second axis


@triton.jit
def _first(x, value, c, k):
    """Return where in each row a value first is, k where it is not."""
    return tl.min(tl.where(x == value, c, k), axis=1, keep_dims=True)


@triton.jit
def _of_classes(gammas_at, shifts_at, gamma, c, k, OWN: tl.constexpr):
    """Return gamma of classes, and what is added to their log h."""
    if OWN:
        gamma = tl.load(gammas_at + c, mask=c < k, other=0.0)
        shift = tl.load(shifts_at + c, mask=c < k, other=0.0)
    else:
        shift = 0.0
    return gamma, shift


@triton.jit
def _numbers_of_top(log_odds, gamma):
    """Return -log q and log phi of the top class, given log((1 - q) / q)."""
    neg_log_q = softplus(log_odds)
    odds = tl.exp(log_odds)
    large = odds > 1e-7
    ratio = tl.where(large, neg_log_q / tl.where(large, odds, 1.0), 1.0 - odds / 2.0)  # -q log q / (1 - q)
    return neg_log_q, gamma * (log_odds - neg_log_q) + log1p(gamma * ratio)


@triton.jit
def _log_phi(q, neg_log_q, gamma, WHOLE: tl.constexpr):
    """Return log phi of classes below the top, which have q <= 1/2."""
    hit = tl.where(q > 0.0, q * neg_log_q, 0.0)  # 0 for a masked class
    miss = 1.0 - q
    if WHOLE == 0:
        result = hit * 0.0
    elif WHOLE == 1:
        result = tl.log(miss + hit)
    elif WHOLE == 2:
        result = tl.log(miss * (miss + 2.0 * hit))
    elif WHOLE == 3:
        result = tl.log(miss * miss * (miss + 3.0 * hit))
    else:
        result = gamma * log_complement(q) + log1p(gamma * hit / miss)
    return result


@triton.jit
def _log_h(
    z,
    is_top,
    top,
    base,
    scale,
    neg_log_top,
    log_phi_top,
    gamma,
    shift,
    WHOLE: tl.constexpr,
    OWN: tl.constexpr,
):
    """Return log h of each class minus that of the top; q below the top is e^(z - base) times the scale."""
    q = tl.where(is_top, 0.0, tl.exp(z - base) * scale)
    t = z - top
    t = t - _log_phi(q, neg_log_top - t, gamma, WHOLE) + log_phi_top
    if OWN:
        t = tl.where(is_top, 0.0, t) + shift
    else:  # rounding must lift no class over the top, nor tell its equals apart
        t = tl.where((z == top) | (t > 0.0), 0.0, t)
    return t


@triton.jit
def _h(p, is_top, top, scale, log_phi_top, gamma, WHOLE: tl.constexpr):
    """Return h of each score against that of the top."""
    share = p / top
    q = tl.where(is_top, 0.0, share * scale)
    neg_log_q = -tl.log(tl.where(q > 0.0, q, 1.0))
    y = share * tl.exp(log_phi_top - _log_phi(q, neg_log_q, gamma, WHOLE))
    return tl.where((p == top) | (y > 1.0), 1.0, y)


# Rows that fit into registers


@triton.jit
def psi_of_short_rows(
    z_at,
    out_at,
    gammas_at,
    shifts_at,
    gamma,
    k,
    inner,
    blocks,
    z_outer,
    z_step,
    z_class,
    out_outer,
    out_step,
    out_class,
    WHOLE: tl.constexpr,
    OWN: tl.constexpr,
    SCORES: tl.constexpr,
    LOGARITHM: tl.constexpr,
    CLASSES_LAST: tl.constexpr,
    VEC: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Psi, or if LOGARITHM its logarithm, of logits, or if SCORES of scores.

    Args:
        z_at: Logits or scores.
        out_at: Where the result goes.
        gammas_at: If OWN, gamma of each class, float32.
        shifts_at: If OWN, what is added to log h of each class, float32.
        gamma: If not OWN.
        k: How many classes.
        inner: How many rows come in a group, evenly spaced.
        blocks: How many programs a group takes.
        z_outer: How far it is from a group to the next, in entries.
        z_step: From a row to the next.
        z_class: From a class to the next.
        out_outer: The same three in the result.
        out_step: See above.
        out_class: See above.
        WHOLE: Gamma, if it is 0, 1, 2 or 3; otherwise -1.
        OWN: See above.
        SCORES: See above; never with OWN.
        LOGARITHM: See above; never with SCORES.
        CLASSES_LAST: Whether classes are neighbours in memory; if not, rows are, where anything is.
        VEC: Divides the number of neighbours, and every distance but that of 1: so many are read at once.
        ROWS: How many rows a program does.
        COLS: A power of 2 that is at least k.
    """
    if CLASSES_LAST:
        k, z_step, out_step = k // VEC * VEC, z_step // VEC * VEC, out_step // VEC * VEC
    else:
        inner, z_class, out_class = inner // VEC * VEC, z_class // VEC * VEC, out_class // VEC * VEC
    z_outer, out_outer = z_outer // VEC * VEC, out_outer // VEC * VEC
    group = (tl.program_id(0) // blocks).to(tl.int64)
    r = ((tl.program_id(0) % blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    c = tl.arange(0, COLS)[None, :]
    there = (r < inner) & (c < k)
    at = z_at + group * z_outer + r * z_step + c.to(tl.int64) * z_class
    if SCORES:
        z = tl.load(at, mask=there, other=0.0).to(tl.float32)
        z = tl.where(z < 0.0, float("nan"), z)
        top = tl.max(z, axis=1, keep_dims=True)
        top = tl.where(top > 0.0, top, float("nan"))
        is_top = c == _first(z, top, c, k)
        odds = tl.sum(tl.where(is_top, 0.0, z / top), axis=1, keep_dims=True)
        _, log_phi_top = _numbers_of_top(tl.where(odds == 0.0, LOWEST, tl.log(odds)), gamma)
        e = _h(z, is_top, top, 1.0 / (1.0 + odds), log_phi_top, gamma, WHOLE)
        rest = tl.sum(tl.where(is_top, 0.0, e), axis=1, keep_dims=True)
        result = e / (1.0 + rest)
    else:
        z = tl.load(at, mask=there, other=-INFINITY).to(tl.float32)
        top = tl.max(z, axis=1, keep_dims=True)
        top = tl.where(tl.abs(top) == INFINITY, float("nan"), top)
        first = _first(z, top, c, k)
        is_top = c == first
        second = tl.max(tl.where(is_top, -INFINITY, z), axis=1, keep_dims=True)
        second = tl.where(second == -INFINITY, top, second)
        rest = tl.sum(tl.where(is_top, 0.0, tl.exp(z - second)), axis=1, keep_dims=True)
        lead = top - second
        gamma_top, _ = _of_classes(gammas_at, shifts_at, gamma, first, k, OWN)
        of_class, shift = _of_classes(gammas_at, shifts_at, gamma, c, k, OWN)
        log_odds = tl.where(rest == 0.0, LOWEST, tl.log(rest) - lead)
        neg_log_top, log_phi_top = _numbers_of_top(log_odds, gamma_top)
        scale = tl.exp(-lead - neg_log_top)
        t = _log_h(z, is_top, top, second, scale, neg_log_top, log_phi_top, of_class, shift, WHOLE, OWN)
        if OWN:  # another class may have become the largest
            most = tl.max(t, axis=1, keep_dims=True)
            is_top = c == _first(t, most, c, k)
            t = t - most
        e = tl.exp(t)
        rest = tl.sum(tl.where(is_top, 0.0, e), axis=1, keep_dims=True)
        if LOGARITHM:
            result = t - log1p(rest)
        else:
            result = e / (1.0 + rest)
    at = out_at + group * out_outer + r * out_step + c.to(tl.int64) * out_class
    tl.store(at, result.to(out_at.dtype.element_ty), mask=there)


# Longer rows


@triton.jit
def _join(z, c, top, at_top, second, rest):
    """Return for each lane its top, where that is, the largest of its others, and their e^(z - second).

    One number comes to each lane; what joins the others is the lesser of it and the top.
    """
    up = z > top
    joins = tl.where(up, top, z)
    more = joins > second
    e = tl.where(joins == -INFINITY, 0.0, tl.exp(-tl.abs(joins - second)))
    rest = tl.where(more, rest * e + 1.0, rest + e)
    return tl.where(up, z, top), tl.where(up, c, at_top), tl.where(more, joins, second), rest


@triton.jit
def _all_lanes(top, at_top, second, rest, k):
    """Return the same four numbers of the whole row."""
    top_of_all = tl.max(top, axis=1, keep_dims=True)
    first = _first(top, top_of_all, at_top, k)
    others = tl.where((top == top_of_all) & (at_top == first), -INFINITY, top)
    base = tl.maximum(tl.max(others, axis=1, keep_dims=True), tl.max(second, axis=1, keep_dims=True))
    base = tl.where(base == -INFINITY, top_of_all, base)
    rest = rest * tl.exp(second - base) + tl.exp(others - base)
    return top_of_all, first, base, tl.sum(rest, axis=1, keep_dims=True)


@triton.jit
def psi_of_long_rows(
    z_at,
    out_at,
    gammas_at,
    shifts_at,
    gamma,
    k,
    z_step,
    out_step,
    WHOLE: tl.constexpr,
    OWN: tl.constexpr,
    SCORES: tl.constexpr,
    LOGARITHM: tl.constexpr,
    VEC: tl.constexpr,
    COLS: tl.constexpr,
):
    """The same of rows of any length whose classes are neighbours in memory, one for each program.

    The second read goes backwards: it begins with what a cache still has of the first, as the third does with
    what it has of the second.
    """
    k, z_step, out_step = k // VEC * VEC, z_step // VEC * VEC, out_step // VEC * VEC
    z_at += tl.program_id(0).to(tl.int64) * z_step
    out_at += tl.program_id(0).to(tl.int64) * out_step
    lanes = tl.arange(0, COLS)[None, :]
    last = (k - 1) // COLS * COLS
    zeros = tl.zeros([1, COLS], tl.float32)
    if SCORES:
        tops, at_top, sums = zeros, lanes, zeros
        for start in range(0, k, COLS):
            c = start + lanes
            z = tl.load(z_at + c, mask=c < k, other=0.0).to(tl.float32)
            z = tl.where(z < 0.0, float("nan"), z)
            up = z > tops
            sums += tl.where(up, tops, z)
            tops, at_top = tl.where(up, z, tops), tl.where(up, c, at_top)
        top = tl.max(tops, axis=1, keep_dims=True)
        top = tl.where(top > 0.0, top, float("nan"))
        first = _first(tops, top, at_top, k)
        sums += tl.where((tops == top) & (at_top == first), 0.0, tops)
        odds = tl.sum(sums / top, axis=1, keep_dims=True)
        _, log_phi_top = _numbers_of_top(tl.where(odds == 0.0, LOWEST, tl.log(odds)), gamma)
        scale = 1.0 / (1.0 + odds)
        sums = zeros
        for back in range(0, k, COLS):
            c = last - back + lanes
            z = tl.load(z_at + c, mask=c < k, other=0.0).to(tl.float32)
            is_top = c == first
            sums += tl.where(is_top, 0.0, _h(z, is_top, top, scale, log_phi_top, gamma, WHOLE))
        by = 1.0 / (1.0 + tl.sum(sums, axis=1, keep_dims=True))
        for start in range(0, k, COLS):
            c = start + lanes
            z = tl.load(z_at + c, mask=c < k, other=0.0).to(tl.float32)
            result = _h(z, c == first, top, scale, log_phi_top, gamma, WHOLE) * by
            tl.store(out_at + c, result.to(out_at.dtype.element_ty), mask=c < k)
    else:
        tops, at_top, seconds, rests = zeros - INFINITY, lanes, zeros - INFINITY, zeros
        for start in range(0, k, COLS):
            c = start + lanes
            z = tl.load(z_at + c, mask=c < k, other=-INFINITY).to(tl.float32)
            tops, at_top, seconds, rests = _join(z, c, tops, at_top, seconds, rests)
        top, first, second, rest = _all_lanes(tops, at_top, seconds, rests, k)
        top = tl.where(tl.abs(top) == INFINITY, float("nan"), top)
        lead = top - second
        gamma_top, _ = _of_classes(gammas_at, shifts_at, gamma, first, k, OWN)
        log_odds = tl.where(rest == 0.0, LOWEST, tl.log(rest) - lead)
        neg_log_top, log_phi_top = _numbers_of_top(log_odds, gamma_top)
        scale = tl.exp(-lead - neg_log_top)
        tops, at_top, seconds, rests = zeros - INFINITY, lanes, zeros - INFINITY, zeros
        for back in range(0, k, COLS):
            c = last - back + lanes
            z = tl.load(z_at + c, mask=c < k, other=-INFINITY).to(tl.float32)
            is_top = c == first
            of_class, shift = _of_classes(gammas_at, shifts_at, gamma, c, k, OWN)
            t = _log_h(z, is_top, top, second, scale, neg_log_top, log_phi_top, of_class, shift, WHOLE, OWN)
            if OWN:
                tops, at_top, seconds, rests = _join(t, c, tops, at_top, seconds, rests)
            else:
                rests += tl.where(is_top, 0.0, tl.exp(t))
        if OWN:
            most, _, base, rest = _all_lanes(tops, at_top, seconds, rests, k)
            rest = rest * tl.exp(base - most)
        else:
            most = 0.0
            rest = tl.sum(rests, axis=1, keep_dims=True)
        log_sum = log1p(rest)
        by = 1.0 / (1.0 + rest)
        for start in range(0, k, COLS):
            c = start + lanes
            z = tl.load(z_at + c, mask=c < k, other=-INFINITY).to(tl.float32)
            of_class, shift = _of_classes(gammas_at, shifts_at, gamma, c, k, OWN)
            is_top = c == first
            t = _log_h(z, is_top, top, second, scale, neg_log_top, log_phi_top, of_class, shift, WHOLE, OWN)
            if LOGARITHM:
                result = t - most - log_sum
            else:
                result = tl.exp(t - most) * by
            tl.store(out_at + c, result.to(out_at.dtype.element_ty), mask=c < k)
