"""Which kernel does psi of a tensor, on which grid, with what numbers. PyTorch is whoever made the tensor."""

from __future__ import annotations

import math
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import triton

from refocal.kernels import rows
from refocal.kernels.cuda import numbers_on
from refocal.kernels.cuda.psi import psi_of_long_rows, psi_of_short_rows

Tensor = Any

LONGEST = 8192
"""How many classes a row has at most that is read once."""

SOME = 1024
"""How many entries a program works on at a time, at least, where there are so many."""

AT_A_TIME = 2048
"""How many classes of a longer row a program reads at a time."""

VECTOR = 16
"""How many bytes a thread reads at once, where they are neighbours."""


class Rows(NamedTuple):
    """Where the rows of a tensor are: groups of so many, evenly spaced; distances in entries."""

    inner: int
    outer: int
    step: int
    of_class: int


def psi(
    x: Tensor,
    gamma: float | tuple[float, ...],
    axis: int,
    *,
    logarithm: bool,
    scores: bool,
    log_weights: tuple[float, ...] | None,
) -> Tensor:
    """Return psi of a tensor or its logarithm, see `refocal._compiled.psi`; nothing waits for the device."""
    k = x.shape[axis]
    n = x.numel() // k
    out = sys.modules["torch"].empty_like(x)
    places = _places(x, out, axis)
    if places is None or (k > LONGEST and any(p.inner != n or p.of_class != 1 for p in places)):
        x = x.movedim(axis, -1).contiguous().movedim(-1, axis)
        out = sys.modules["torch"].empty_like(x)
        places = _places(x, out, axis)
        assert places is not None  # both are in one piece
    if not n:
        return out
    at, to = places
    own = log_weights is not None or isinstance(gamma, tuple)
    gammas = shifts = None
    if own:
        of_class = gamma if isinstance(gamma, tuple) else (gamma,) * k
        minus_logs = (0.0,) * k if log_weights is None else tuple(-w for w in log_weights)
        single = sys.modules["torch"].float32
        gammas, shifts = (numbers_on(values, single, x.device) for values in (of_class, minus_logs))
    number = 0.0 if isinstance(gamma, tuple) else gamma
    meta = {
        "WHOLE": int(number) if not own and number in (0.0, 1.0, 2.0, 3.0) else -1,
        "OWN": own,
        "SCORES": scores,
        "LOGARITHM": logarithm,
    }
    size = x.element_size()
    with on_device_of(x):
        if k > LONGEST:
            psi_of_long_rows[(n,)](
                x,
                out,
                gammas,
                shifts,
                number,
                k,
                at.step,
                to.step,
                **meta,
                VEC=_vector(size, k, at.step, to.step),
                COLS=AT_A_TIME,
                num_warps=8,
            )
            return out
        cols = max(2, triton.next_power_of_2(k))
        rows_at_once = min(max(1, SOME // cols), triton.next_power_of_2(at.inner))
        blocks = -(-at.inner // rows_at_once)
        last = at.of_class == 1 and to.of_class == 1
        spaced = (k, at.step, to.step) if last else (at.inner, at.of_class, to.of_class)
        psi_of_short_rows[(blocks * (n // at.inner),)](
            x,
            out,
            gammas,
            shifts,
            number,
            k,
            at.inner,
            blocks,
            at.outer,
            at.step,
            at.of_class,
            to.outer,
            to.step,
            to.of_class,
            **meta,
            CLASSES_LAST=last,
            VEC=_vector(size, *spaced, at.outer, to.outer),
            ROWS=rows_at_once,
            COLS=cols,
            num_warps=min(16, max(4, rows_at_once * cols // 256)),
        )
    return out


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which a kernel runs where a tensor is."""
    if x.device.type == "cpu":  # Triton's interpreter
        return nullcontext()
    context: AbstractContextManager[Any] = getattr(sys.modules["torch"], x.device.type).device(x.device)
    return context


def _places(x: Tensor, out: Tensor, axis: int) -> tuple[Rows, Rows] | None:
    """Return where rows are read and written; None if they are not in groups of the same size."""
    n = x.numel() // x.shape[axis]
    found = [rows(y.shape, y.stride(), axis) for y in (x, out)]
    if found[0] is None or found[1] is None:
        return None
    sizes = {where[2] for where in found if where} - {1} or {n}
    if len(sizes) > 1:
        return None
    (inner,) = sizes
    # A group of one row, of which `rows` speaks where all rows are evenly spaced, is a part of any other.
    at, to = (
        Rows(inner, outer * inner, outer, of_class) if size == 1 else Rows(inner, outer, step, of_class)
        for outer, of_class, size, step in (where for where in found if where)
    )
    return at, to


def _vector(size: int, *distances: int) -> int:
    """Return how many entries, a power of 2, are read at once where all distances are multiples of that."""
    return math.gcd(VECTOR // size, *distances)
