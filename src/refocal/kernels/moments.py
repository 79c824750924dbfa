"""What a temperature fit needs of each row, as machine code: sums of e^t, t e^t and t^2 e^t over its classes.

t is b times a logit minus the largest one of its row.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from refocal.kernels import entries as e
from refocal.kernels import real
from refocal.kernels.entries import SOME, ZERO, F, body, exactly, in_any_order
from refocal.kernels.machine import (
    ENDLESS,
    INT,
    REAL,
    ROWS,
    doubles,
    floats,
    kernel,
    next_part,
    stack,
    stack_of_doubles,
    view,
)
from refocal.kernels.tiles import gathered, hold, memory, memory_of_doubles

LOWEST = F(-1e3)
"""In place of a t below it: e^t is 0 all the same, and t e^t too, even if t was -inf (a masked class)."""


@exactly
def _scaled(row, top, b, t):
    for j in range(row.size):
        x = (row[j] - top) * b
        t[j] = LOWEST if x < LOWEST else x


@in_any_order
def _sums(t, f):
    zeroth, first, second = ZERO, ZERO, ZERO
    for j in range(t.size):
        x = t[j] * f[j]
        zeroth += f[j]
        first += x
        second += t[j] * x
    return zeroth, first, second


@body
def _run(record, a, z, run, t, f, numbers):
    c, parts, count = a.c, a.parts, a.count
    out = carray(doubles(a.out), (3, count))
    numbers[0] = a.b
    step = max(1, SOME // c)
    part, first, last = next_part(record, parts, count)
    while part < parts:
        for start in range(first, last, step):
            stop = min(start + step, last)
            x = gathered(z, a.z_outer, a.z_class, a.z_inner, a.z_step, c, start, stop, run)
            n = x.size
            for i in range(0, n, c):
                _scaled(view(x, i, i + c), e.largest(view(x, i, i + c)), numbers[0], view(t, i, i + c))
            real.exps(view(t, 0, n), f)
            for row in range(start, stop):
                i = (row - start) * c
                zeroth, one, two = 0.0, 0.0, 0.0
                for k in range(i, i + c, SOME):  # sums of so many may be in single precision
                    m = min(k + SOME, i + c)
                    some, more, most = _sums(view(t, k, m), view(f, k, m))
                    zeroth, one, two = zeroth + some, one + more, two + most
                out[0, row], out[1, row], out[2, row] = zeroth, one, two
        part, first, last = next_part(record, parts, count)


FIELDS = {"c": INT, "z": ROWS, "b": REAL, "out": INT}
"""How many classes, the logits, b, and where the sums go: three numbers in double precision for each row."""


@kernel(**FIELDS)
def moments_of_floats(record):
    """The sums of logits in single precision."""
    a = carray(record, 1)[0]
    heap = np.empty(3 * a.c if a.c > SOME else 0, np.float32)
    at = heap.ctypes.data
    _run(
        record,
        a,
        carray(floats(a.z), ENDLESS),
        memory(stack(), at, 0, a.c),
        memory(stack(), at, 1, a.c),
        memory(stack(), at, 2, a.c),
        carray(stack(), SOME),
    )
    hold(heap)


@kernel(**FIELDS)
def moments_of_doubles(record):
    """The sums of logits in double precision."""
    a = carray(record, 1)[0]
    heap = np.empty(3 * a.c if a.c > SOME else 0, np.float64)
    at = heap.ctypes.data
    _run(
        record,
        a,
        carray(doubles(a.z), ENDLESS),
        memory_of_doubles(stack_of_doubles(), at, 0, a.c),
        memory_of_doubles(stack_of_doubles(), at, 1, a.c),
        memory_of_doubles(stack_of_doubles(), at, 2, a.c),
        carray(stack_of_doubles(), SOME),
    )
    hold(heap)
