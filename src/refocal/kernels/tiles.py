"""Rows in any order of memory as runs of numbers, some rows at a time: gathered, worked on, put back."""

from __future__ import annotations

from numba import carray

from refocal.kernels.entries import SOME, ZERO, body, exactly
from refocal.kernels.machine import doubles, floats, view


@exactly
def _copy_rows(x, outer, cls, inner, step, c, start, stop, run, into):
    """Gather the rows from start to stop into a run of numbers, or put them back from there."""
    n, s, r = start // inner, start % inner, 0
    while r < stop - start:
        m = min(inner - s, stop - start - r) if inner > 1 else stop - start
        hop = step if inner > 1 else outer
        at = n * outer + s * step
        for i in range(m if cls == 1 else c):
            for j in range(c if cls == 1 else m):
                t, k = (i, j) if cls == 1 else (j, i)
                if into:
                    run[(r + t) * c + k] = x[at + t * hop + k * cls]
                else:
                    x[at + t * hop + k * cls] = run[(r + t) * c + k]
        r, s, n = r + m, 0, n + 1


@body
def gathered(x, outer, cls, inner, step, c, start, stop, run):
    """Return rows as a run of numbers: where they are if they lie so, else a copy in ``run``."""
    if inner == 1 and outer == c and cls == 1:
        return view(x, start * c, stop * c)
    _copy_rows(x, outer, cls, inner, step, c, start, stop, run, True)
    return view(run, 0, (stop - start) * c)


@body
def put_back(a, result, c, start, stop, run):
    _copy_rows(
        result, a.result_outer, a.result_class, a.result_inner, a.result_step, c, start, stop, run, False
    )


@body
def memory(on_stack, heap, number, c):
    """Return memory for a run: on the stack, or for rows that are longer than that a part of the heap.

    By its address: of an array that Numba allocates it also counts the users, slice by slice.
    """
    return carray(on_stack, SOME) if c <= SOME else carray(floats(heap + 4 * number * c), c)


@body
def memory_of_doubles(on_stack, heap, number, c):
    """Return `memory` in double precision."""
    return carray(on_stack, SOME) if c <= SOME else carray(doubles(heap + 8 * number * c), c)


@exactly
def hold(heap):
    """Do nothing: a use at the end of a kernel, until which Numba does not free the memory."""
    if heap.size > 0:
        heap[0] = ZERO
