"""What Triton's kernels of rows share: tiles of R rows and C columns, and the sum of a row's exponentials."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr

from refocal.torch.cuda import entries as e

INF = constexpr(float("inf"))


@triton.jit
def rows_of(R: constexpr):
    """Return the numbers of the rows that a program works on."""
    return tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)


@triton.jit
def read(rows, k, of_class, mask, other):
    """Return a tile in float32, from where its rows begin and the classes k."""
    return tl.load(rows[:, None] + k.to(tl.int64)[None, :] * of_class, mask=mask, other=other).to(tl.float32)


@triton.jit
def write(to, k, to_class, x, mask):
    """Store a tile, in the dtype that is there."""
    tl.store(to[:, None] + k.to(tl.int64)[None, :] * to_class, x.to(to.dtype.element_ty), mask=mask)


@triton.jit
def joined(x, top, less, ties):
    """Add a tile to what is known of its rows.

    That is the largest logit, the sum of exp(z - largest) where it is less than 1, and how often it is 1.
    """
    new = tl.maximum(top, tl.max(x, 1))
    shift = tl.where(new == -INF, 0.0, new)  # nothing but masked classes so far
    higher = new > top
    less = tl.where(higher, (less + ties) * tl.exp(top - shift), less)
    ties = tl.where(higher, 0.0, ties)
    at_top = x == new[:, None]
    less += tl.sum(tl.where(at_top, 0.0, tl.exp(x - shift[:, None])), 1)
    ties += tl.sum(tl.where(at_top, 1.0, 0.0), 1)
    return new, less, ties


@triton.jit
def top_and_rest(x, rows, reads, c, of_class, ONE: constexpr, C: constexpr):
    """Return the largest logit of rows whose first tile is x, and the sum of the other exponentials.

    One of the largest is left out, so that next to q = 1 the small ones lose no digits.
    """
    zeros = tl.sum(tl.zeros_like(x), 1)
    top, less, ties = joined(x, zeros - INF, zeros, zeros)
    if not ONE:
        for first in range(C, c, C):
            k = first + tl.arange(0, C)
            more = read(rows, k, of_class, reads[:, None] & (k < c)[None, :], -INF)
            top, less, ties = joined(more, top, less, ties)
    return top, less + (ties - 1)


@triton.jit
def gamma_at(gammas, at, mask):
    """Return gammas from memory, as large as they may be."""
    gamma = tl.load(gammas + at, mask=mask, other=0.0)
    return tl.where(gamma > e.LARGEST_GAMMA, e.LARGEST_GAMMA, gamma)


@triton.jit
def keep(kept, r, n, first, second, third):
    """Store three numbers of each row for the gradient."""
    at = kept + 3 * r
    tl.store(at, first, mask=r < n)
    tl.store(at + 1, second, mask=r < n)
    tl.store(at + 2, third, mask=r < n)


@triton.jit
def what_was_kept(kept, r, counts):
    """Return the three numbers of each row."""
    at = kept + 3 * r
    first, second = tl.load(at, mask=counts, other=0.0), tl.load(at + 1, mask=counts, other=0.0)
    return first, second, tl.load(at + 2, mask=counts, other=0.0)
