"""Bins of confidences as machine code: one read of the probabilities, counted and summed in double precision.

Nothing is counted for a row that is no distribution; the caller is told how many there are.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from refocal.kernels import entries as e
from refocal.kernels.entries import SOME, ZERO, body, entry, exactly, in_any_order, larger
from refocal.kernels.machine import (
    ENDLESS,
    INT,
    REAL,
    ROWS,
    doubles,
    floats,
    integers,
    kernel,
    next_part,
    stack,
    stack_of_doubles,
    view,
)
from refocal.kernels.tiles import gathered, hold, memory, memory_of_doubles


@entry
def _index(value, asked, below, above, count):
    """Return the bin of a confidence, see `refocal.metrics.binning.Bins`: the product is at most one off."""
    i = min(int(value * asked), count - 1)
    return i + (1 if value > above[i] else 0) - (1 if value <= below[i] else 0)


@in_any_order
def _sum_and_least(row):
    total, most = ZERO, -row[0]
    for j in range(row.size):
        total += row[j]
        most = larger(most, -row[j])
    return total, -most


@exactly
def _add_first_bins(row, edge, counts, sums):
    """Count the classes whose probability is in the first bin; return how many are not."""
    others = 0
    for j in range(row.size):
        value = np.float64(row[j])
        inside = value <= edge
        counts[j] += 1.0 if inside else 0.0
        sums[j] += value if inside else 0.0
        others += 0 if inside else 1
    return others


@body
def _run(record, a, probs, run):
    c, parts, count, n_bins, width = a.c, a.parts, a.count, a.n_bins, 1 + a.classwise * a.c
    sums_of_part = carray(doubles(a.sums), (parts, 3))
    labels = carray(integers(a.labels), count)
    below, above = carray(doubles(a.below), n_bins), carray(doubles(a.above), n_bins)
    step = max(1, SOME // c)
    part, first, last = next_part(record, parts, count)
    # Each thread has numbers of its own, under that of the first part that it takes.
    mine = min(part, parts - 1)
    size = 3 * width * n_bins
    cells = carray(doubles(a.cells + 8 * mine * size), (3, width, n_bins))
    counts, hits, sums = cells[0], cells[1], cells[2]
    firsts = carray(doubles(a.firsts + 16 * mine * c), (2, c))
    while part < parts:
        bad = 0.0
        for start in range(first, last, step):
            stop = min(start + step, last)
            x = gathered(probs, a.p_outer, a.p_class, a.p_inner, a.p_step, c, start, stop, run)
            for r in range(start, stop):
                row, y = view(x, (r - start) * c, (r - start) * c + c), labels[r]
                total, least = _sum_and_least(row)
                if not (abs(np.float64(total) - 1.0) <= a.tolerance and least >= ZERO):
                    bad += 1.0
                    continue
                top = e.largest(row)
                hit = row[y] == top
                if hit:  # the first of several counts
                    for j in range(y):
                        if row[j] == top:
                            hit = False
                            break
                value = np.float64(top)
                i = _index(value, a.asked, below, above, n_bins)
                counts[0, i] += 1.0
                hits[0, i] += 1.0 if hit else 0.0
                sums[0, i] += value
                if not a.classwise:
                    continue
                value = np.float64(row[y])
                hits[1 + y, _index(value, a.asked, below, above, n_bins)] += 1.0
                others = _add_first_bins(row, above[0], firsts[0], firsts[1])
                j = 0
                while others > 0:
                    value = np.float64(row[j])
                    if not value <= above[0]:
                        i = _index(value, a.asked, below, above, n_bins)
                        counts[1 + j, i] += 1.0
                        sums[1 + j, i] += value
                        others -= 1
                    j += 1
        sums_of_part[part, 0] = bad
        part, first, last = next_part(record, parts, count)


FIELDS = {
    "c": INT,
    "p": ROWS,
    "labels": INT,
    "tolerance": REAL,
    "asked": REAL,
    "n_bins": INT,
    "below": INT,
    "above": INT,
    "classwise": INT,
    "cells": INT,
    "firsts": INT,
}
"""How many classes; probabilities and labels; how far a sum may be from 1; how many bins were asked for,
how many there are, and their edges; whether the classes have bins too; for each part counts, hits and sums of
all bins, and counts and sums of the first bin of each class."""


@kernel(**FIELDS)
def bins_of_floats(record):
    """Bins in single precision; the first sum is the number of rows that are no distribution."""
    a = carray(record, 1)[0]
    heap = np.empty(a.c if a.c > SOME else 0, np.float32)
    _run(record, a, carray(floats(a.p), ENDLESS), memory(stack(), heap.ctypes.data, 0, a.c))
    hold(heap)


@kernel(**FIELDS)
def bins_of_doubles(record):
    """Bins in double precision."""
    a = carray(record, 1)[0]
    heap = np.empty(a.c if a.c > SOME else 0, np.float64)
    at = heap.ctypes.data
    _run(record, a, carray(doubles(a.p), ENDLESS), memory_of_doubles(stack_of_doubles(), at, 0, a.c))
    hold(heap)
