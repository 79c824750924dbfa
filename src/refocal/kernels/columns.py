"""The softmax focal loss of few classes as machine code: class by class, many rows at a time, in float32.

A row of ten numbers fills no vector of a processor, and pixels have their classes far apart. So a tile of
rows is held with the rows of a class side by side, all steps run along them, and only the way in and out
depends on where the numbers are. The gradient can come with the loss: then there is one pass in all.
Long rows have the kernels of `refocal.kernels.softmax`.
"""

from __future__ import annotations

import numpy as np

from refocal.kernels.entries import (
    ONE,
    SOME,
    ZERO,
    F,
    body,
    entry,
    exactly,
    exp,
    in_any_order,
    larger,
    neg_log_miss,
    wide,
)

LOSSES, GRADIENT = 0, 1
"""What is wanted, in the field ``gradient``; with 2, both, the gradient is that of the sum of the losses."""

MOST = 256
"""Rows of a tile at most."""

TOGETHER = 16
"""So many classes are added up before their sum goes to the other sums: errors do not add up."""

U = np.uint64
"""For indices that are never negative: a loop that has to look is not vectorised."""


@entry
def rows_of_tile(c):
    return max(1, min(MOST, SOME // c // 16 * 16))


@entry
def place(memory, i, m):
    """Return one of the places for a number of each of m rows."""
    return memory[i * MOST : i * MOST + m]


# In and out


@exactly
def copy(x, result):
    for r in range(result.size):
        result[r] = x[r]


@exactly
def _gather(x, hop, result):
    for r in range(U(result.size)):
        result[r] = x[r * hop]


@exactly
def _scatter(result, hop, x):
    for r in range(U(x.size)):
        result[r * hop] = x[r]


@exactly
def move(x, outer, cls, inner, step, c, start, stop, tile, into):
    """Fill a tile with the rows from start to stop, or put them back from there.

    One function, not one for each way made by another: Numba may take the kept code of one closure for that
    of another with the same name, if two kernels use both.
    """
    m = stop - start
    n, s, r = start // inner, start % inner, 0
    while r < m:
        some = min(inner - s, m - r) if inner > 1 else m
        hop = step if inner > 1 else outer
        for k in range(c):
            at = n * outer + s * step + k * cls
            run = tile[k * m + r : k * m + r + some]
            if hop == 1 and into:
                copy(x[at : at + some], run)
            elif hop == 1:
                copy(run, x[at : at + some])
            elif into:
                _gather(x[at : at + hop * some], U(hop), run)
            else:
                _scatter(x[at : at + hop * some], U(hop), run)
        r, s, n = r + some, 0, n + 1


# What both kinds of targets share


@exactly
def _raise_tops(tops, x):
    wide()
    for r in range(tops.size):
        tops[r] = larger(tops[r], x[r])


@exactly
def find_tops(x, tops):
    m = tops.size
    copy(x, tops)
    for at in range(m, x.size, m):
        _raise_tops(tops, x[at : at + m])


@exactly
def _exponentials(x, tops, part, ties):
    wide()
    for r in range(x.size):
        e = exp(x[r] - tops[r])
        x[r] = e
        part[r] += e if e != ONE else ZERO
        ties[r] += ZERO if e != ONE else ONE


@exactly
def add(x, y):
    for r in range(x.size):
        x[r] += y[r]


@exactly
def to_exponentials(x, tops, part, ties, rest):
    """Turn x into exponentials of x - tops; fill rest with their sums without one of the largest: small ones
    lose no digits."""
    m = tops.size
    rest[:] = ZERO
    ties[:] = -ONE
    for start in range(0, x.size, TOGETHER * m):
        part[:] = ZERO
        for at in range(start, min(start + TOGETHER * m, x.size), m):
            _exponentials(x[at : at + m], tops, part, ties)
        add(rest, part)
    add(rest, ties)


@entry
def neg_log_share(miss, share):
    """Return -log of a share from that and 1 - share; NaN stays NaN."""
    return neg_log_miss(miss, share) if share == share else share


@in_any_order
def sum_of(x):
    result = 0.0
    for r in range(x.size):
        result += np.float64(x[r])
    return result


@exactly
def look_up(x, tops, c, y, ignore, weighted, weights, at, weight, gap):
    """Fill for each row where in the tile its target is (-1 to ignore it), its weight, its logit - top.

    Return the first row with a bad label + 1, or 0.
    """
    m = tops.size
    for r in range(m):
        k = y[r]
        if k == ignore:
            at[r], weight[r], gap[r] = -ONE, ZERO, ZERO
            continue
        if k < 0 or k >= c:
            return r + 1
        at[r] = F(k * m + r)
        weight[r] = weights[k] if weighted else ONE
        gap[r] = x[k * m + r] - tops[r]
    return 0


@exactly
def scale_by(by, scale):
    for r in range(by.size):
        by[r] *= scale


@exactly
def scale_by_each(by, each):
    for r in range(by.size):
        by[r] *= each[r]


@body
def fill_tile(a, z, c, start, stop, tile):
    """Fill a tile with logits."""
    move(z, a.z_outer, a.z_class, a.z_inner, a.z_step, c, start, stop, tile, True)


@body
def put_back(a, result, c, start, stop, tile):
    """Put a tile where the gradient goes."""
    move(result, a.result_outer, a.result_class, a.result_inner, a.result_step, c, start, stop, tile, False)


@body
def scale_gradient(a, by, each, start, stop):
    """Multiply what the rows of a gradient are multiplied by with the factor of all, and that of each."""
    scale_by(by, F(a.scale))
    if a.each:
        scale_by_each(by, each[start:stop])
