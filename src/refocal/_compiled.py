"""Arrays to machine code and back: NumPy arrays and tensors on the CPU, where Numba is installed, and psi
of tensors on GPUs, where Triton is.

Each function returns None where there is no machine code for its arguments; the caller then computes in array
operations, which is exact to the same digits, except that machine code gives 0 for a result that is below the
smallest normal number. REFOCAL_KERNELS=off (or cuda) does without machine code.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from refocal import kernels
from refocal._arrays import Array, are_plain_tensors, is_numpy, is_torch, namespace, works_in_blocks
from refocal._checks import TOLERANCE
from refocal.kernels import cuda
from refocal.kernels.pages import in_large_pages

ENOUGH = 1 << 18
"""From so many entries on: array operations do fewer in some milliseconds, while Numba takes half a second to
import, and many seconds to compile a kernel where none is kept from before."""

LARGEST_GAMMA = 16.0
"""Beyond it 1 - q would have to be exact for small q."""

LARGEST_SPREAD = 16.0
"""How far logarithms of weights may be apart: products with them must stay normal numbers."""

LARGEST_BINS = 1 << 22
"""How many numbers all threads together may have bins in."""

LEAST_REST = {4: 1e-25, 8: 1e-280}
"""By the size of a number: what the other classes have, against the top, below which a row is left out."""

DOUBTFUL = 0.5 * TOLERANCE
"""How far from 1 the sum of a row may be before the values are checked: half of what the check lets pass, so
that no rounding of a sum in single precision, here or there, decides."""


def psi(
    x: Array,
    gamma: float | tuple[float, ...],
    axis: int,
    *,
    plain: Callable[[Array], Array],
    logarithm: bool = True,
    check: Callable[[], None] | None = None,
    log_weights: tuple[float, ...] | None = None,
) -> Array | None:
    """Return psi or its logarithm.

    Args:
        x: Logits, or the scores themselves if there is a ``check``.
        gamma: A number, or one for each class.
        axis: The class axis, >= 0.
        plain: The same in array operations, for rows (n, K) that machine code leaves out.
        logarithm: Whether the logarithm is wanted.
        check: Raises where scores are no probabilities; it is called where a row does not look like them.
        log_weights: What is subtracted from log h of each class, the least of them 0.
    """
    if _fits_gpu(x):
        from refocal.kernels.cuda import launch

        if check is not None:
            check()
        scores = check is not None
        return launch.psi(x, gamma, axis, logarithm=logarithm, scores=scores, log_weights=log_weights)
    own = log_weights is not None or isinstance(gamma, tuple)
    gammas = gamma if isinstance(gamma, tuple) else (gamma,)
    spread = 0.0 if log_weights is None else max(log_weights)
    if max(gammas) > LARGEST_GAMMA or spread > LARGEST_SPREAD or not _fits(x):
        return None
    module, k = kernels.load("psi"), x.shape[axis]
    where = _rows(x, axis)
    if module is None or where is None:
        return None
    of_class = np.zeros((2, k if own else 0))
    if own:
        of_class[0], of_class[1] = gammas, 0.0 if log_weights is None else -np.asarray(log_weights)
    out = _room_for(x)
    size = _size(x)
    run = module.psi_of_floats if size == 4 else module.psi_of_doubles
    first, at = (0.0, of_class.ctypes.data) if own else (gammas[0], 0)
    limits = (check is not None, DOUBTFUL, LEAST_REST[size])
    fields = (k, *where, *limits, first, own, at, logarithm, *_written(out, axis))
    return _run(run, x, out, axis, (x, out, of_class), fields, plain, check)


def minimizer(
    posterior: Array,
    gamma: float,
    axis: int,
    *,
    plain: Callable[[Array], Array],
    check: Callable[[], None],
    steps: int,
) -> Array | None:
    """Return `refocal.focal_minimizer`.

    Args:
        posterior: Class probabilities.
        gamma: A number.
        axis: The class axis, >= 0.
        plain: The same in array operations, for rows (n, K) that machine code leaves out.
        check: As of `psi`.
        steps: How many steps of Newton's method there may be.
    """
    module = None
    if gamma <= LARGEST_GAMMA and _fits(posterior):
        module, where = kernels.load("minimizer"), _rows(posterior, axis)
    if module is None or where is None:
        return None
    k, size = posterior.shape[axis], _size(posterior)
    out = _room_for(posterior)
    run = module.minimizer_of_floats if size == 4 else module.minimizer_of_doubles
    # Newton's error after a step goes with the step's square, and with the curvature, at most gamma.
    info = np.finfo(np.float32 if size == 4 else np.float64)
    tolerance = float(info.eps) ** 0.5 / (4 + 4 * gamma)
    limits = (DOUBTFUL, LEAST_REST[size])
    fields = (k, *where, *limits, gamma, tolerance, float(info.tiny), steps, *_written(out, axis))
    return _run(run, posterior, out, axis, (posterior, out), fields, plain, check)


def binary_posterior(z: Array, gamma: float, shift: float, *, logarithm: bool) -> Array | None:
    """Return the posterior of `refocal.SigmoidFocal`, or its logarithm.

    Args:
        z: Logits.
        gamma: A number.
        shift: What alpha adds to the log-odds.
        logarithm: Whether the logarithm is wanted.
    """
    module = None
    if gamma <= LARGEST_GAMMA and _fits(z):
        module = kernels.load("odds")
    if module is None or not (z.flags.c_contiguous if is_numpy(z) else z.is_contiguous()):
        return None
    size, out = _size(z), _room_for(z)
    numbers = np.zeros(2, np.float32 if size == 4 else np.float64)
    run = module.odds_of_floats if size == 4 else module.odds_of_doubles
    fields = (_address(z), gamma, shift, logarithm, _address(out), numbers.ctypes.data)
    run(_entries(z), _entries(z), _threads(z), _team(z), (z, out, numbers), *fields)
    return out


def moments(z: Array, b: float) -> Array | None:
    """Return, for each row of logits (n, K), the sums of e^t, t e^t and t^2 e^t: float64, (3, n).

    t is b times a logit minus the largest one of its row.
    """
    module = kernels.load("moments") if _fits(z) else None
    where = None if module is None else _rows(z, 1)
    if module is None or where is None:
        return None
    n, k = z.shape
    out = np.empty((3, n))
    run = module.moments_of_floats if _size(z) == 4 else module.moments_of_doubles
    run(n, n * k, _threads(z), _team(z), (z, out), k, *where, b, out.ctypes.data)
    return out


def psi_nll(z: Array, labels: Array, b: float, gamma: float) -> Array | None:
    """Return six sums over rows of logits (n, K) for psi after a temperature 1 / b.

    That are the NLL, its slopes by log b and gamma, and the Fisher information: of log b, of both, of gamma.
    """
    module = kernels.load("fits") if _fits(z) else None
    where = None if module is None else _rows(z, 1)
    if module is None or where is None or gamma > LARGEST_GAMMA:
        return None
    threads, labels = _threads(z), np.ascontiguousarray(labels)  # they may be those of every n-th row
    out = np.zeros((8 * threads, 6))
    run = module.fits_of_floats if _size(z) == 4 else module.fits_of_doubles
    fields = (z.shape[1], *where, _address(labels), b, gamma, out.ctypes.data)
    run(len(z), z.size, threads, _team(z), (z, labels, out), *fields)
    return out.sum(axis=0)


def bins(
    probs: Array,
    labels: Array,
    tolerance: float,
    n_bins: int,
    edges: tuple[Array, Array],
    *,
    classwise: bool,
) -> tuple[Array, Array, Array] | None:
    """Return counts, hits and sums of the bins of the largest class, and if asked for of every class.

    Args:
        probs: Shape (..., K).
        labels: One for each row, int64, within the classes.
        tolerance: How far the sum of a row may be from 1; where one is further, there is no result.
        n_bins: How many bins were asked for.
        edges: The lower and the upper edges of the bins that there are, (lo, hi], float64.
        classwise: See above.
    """
    module = kernels.load("bins") if _fits(probs) and labels.flags.c_contiguous else None
    where = None if module is None else _rows(probs, probs.ndim - 1)
    below, above = edges
    c, threads, slots = probs.shape[-1], _threads(probs), len(below)
    width, parts = 1 + classwise * c, 8 * threads
    if module is None or where is None or parts * width * slots > LARGEST_BINS:
        return None
    cells, firsts = np.zeros((parts, 3, width, slots)), np.zeros((parts, 2, c * classwise))
    run = module.bins_of_floats if _size(probs) == 4 else module.bins_of_doubles
    addresses = [_address(a) for a in (below, above, cells, firsts)]
    fields = (
        c,
        *where,
        _address(labels),
        tolerance,
        n_bins,
        slots,
        *addresses[:2],
        classwise,
        *addresses[2:],
    )
    owners = (probs, labels, below, above, cells, firsts)
    wrong, _ = run(len(labels), _entries(probs), threads, None, owners, *fields)
    if wrong:
        return None
    counts, hits, sums = cells.sum(axis=0)
    if classwise:
        counts[1:, 0] += firsts[:, 0].sum(axis=0)
        sums[1:, 0] += firsts[:, 1].sum(axis=0)
    return counts.astype(np.int64), hits.astype(np.int64), sums


def _run(
    kernel: Callable[..., tuple[float, float]],
    x: Array,
    out: Array,
    axis: int,
    owners: tuple[Any, ...],
    fields: tuple[Any, ...],
    plain: Callable[[Array], Array],
    check: Callable[[], None] | None,
) -> Array:
    """Return what a kernel wrote; rows that it left out, which are NaN, are computed plainly."""
    n = _entries(x) // x.shape[axis]
    left, doubtful = kernel(n, _entries(x), _threads(x), _team(x), owners, *fields)
    if doubtful and check is not None:
        check()
    if left:
        rows, result = (namespace(x).moveaxis(a, axis, -1) for a in (x, out))
        which = namespace(x).isnan(result[..., 0])
        result[which] = plain(rows[which])
    return out


def _room_for(x: Array) -> Array:
    """Return an array of the same shape, in one piece."""
    out = namespace(x).empty(x.shape, dtype=x.dtype)
    return out if is_numpy(out) else in_large_pages(out)  # NumPy asks for them itself


def _fits(x: Array) -> bool:
    if not works_in_blocks(x) or _entries(x) < ENOUGH:  # first: only such arrays can be looked at
        return False
    if is_numpy(x):
        return type(x) is np.ndarray and x.dtype.char in "fd" and x.dtype.isnative and x.flags.aligned
    torch = sys.modules["torch"]
    return x.dtype in (torch.float32, torch.float64) and not (x.is_neg() or x._is_zerotensor())


def _fits_gpu(x: Array) -> bool:
    """Whether Triton's kernels can compute with an array: not where somebody follows the operations."""
    if not is_torch(x) or not are_plain_tensors(x):
        return False
    torch = sys.modules["torch"]
    if (x.requires_grad and torch.is_grad_enabled()) or x.is_neg() or x._is_zerotensor():
        return False
    return x.dtype in (torch.float32, torch.float16, torch.bfloat16) and cuda.usable(x.device.type)


def _entries(x: Array) -> int:
    return int(x.size) if is_numpy(x) else int(x.numel())


def _size(x: Array) -> int:
    return int(x.dtype.itemsize)


def _rows(x: Array, axis: int) -> tuple[int, int, int, int, int] | None:
    """Return the fields that say where the rows of an array are; None if machine code cannot read it."""
    size = _size(x)
    strides = x.strides if is_numpy(x) else x.stride()
    if is_numpy(x):
        if any(s % size for s in strides):
            return None
        strides = tuple(s // size for s in strides)
    where = kernels.rows(x.shape, strides, axis)
    return None if where is None else (_address(x), *where)


def _written(out: Array, axis: int) -> tuple[int, int, int, int, int]:
    where = _rows(out, axis)
    assert where is not None  # it is in one piece
    return where


def _address(x: Array) -> int:
    return int(x.__array_interface__["data"][0] if is_numpy(x) else x.data_ptr())


def _threads(x: Array) -> int:
    if not is_numpy(x):
        return int(sys.modules["torch"].get_num_threads())
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) else _cores()


@functools.cache
def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _team(x: Array) -> Any:
    """Return who runs the threads: next to PyTorch its own, which would hold the cores otherwise."""
    if is_numpy(x):
        return None
    folder = Path(str(sys.modules["torch"].__file__)).parent / "lib"
    return kernels.load("machine").openmp(str(folder))
