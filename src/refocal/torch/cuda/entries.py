"""Functions of numbers for Triton's kernels, which are compiled into them.

Triton has no log1p, expm1 or pow that its interpreter knows too. These are made of exp, log and arithmetic so
that nothing cancels where it matters. NaN stays NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr

from refocal import _checks
from refocal.kernels.cuda.numbers import log1p

TINY = constexpr(1.1754943508222875e-38)
"""The smallest normal number."""

LARGEST_GAMMA = constexpr(_checks.LARGEST_GAMMA)


@triton.jit
def base(r, outer, inner, step):
    """Return where rows r begin, see `refocal.kernels.rows`; a tensor may have more than 2^31 entries."""
    return (r // inner).to(tl.int64) * outer + (r % inner).to(tl.int64) * step


@triton.jit
def log_miss(q, miss):
    """Return log(1 - q) from q and 1 - q, of which the smaller one says more; for q = 1 a finite number."""
    return tl.where(q < miss, log1p(-q), tl.log(tl.where(miss < TINY, TINY, miss)))


@triton.jit
def power(q, miss, gamma, POWER: constexpr):
    """Return (1 - q)^gamma from q and 1 - q; for POWER = 0 to 3, which is gamma then, by multiplication."""
    if POWER == 0:
        result = tl.where(miss == miss, 1.0, miss)
    elif POWER == 1:
        result = miss
    elif POWER == 2:
        result = miss * miss
    elif POWER == 3:
        result = miss * miss * miss
    else:
        result = tl.exp(gamma * log_miss(q, miss))
    return result
