"""Large pages for results that kernels write into memory of PyTorch."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from typing import Any

LARGE = 1 << 22
"""From so many bytes on memory is asked for in large pages. NumPy does so too, from the same size on."""


def in_large_pages(x: Any) -> Any:
    """Return a new tensor on the CPU, with large pages behind it where Linux has them to give.

    PyTorch does not ask for them, and to be given memory by 4 KiB takes longer than to compute what goes
    there. NUMPY_MADVISE_HUGEPAGE=0, NumPy's switch for the same, does without.
    """
    if x.nbytes >= LARGE and (advise := _advise()) is not None:
        start = -(-x.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        pages = (x.data_ptr() + x.nbytes - start) // mmap.PAGESIZE
        advise(start, pages * mmap.PAGESIZE, mmap.MADV_HUGEPAGE)
    return x


@functools.cache
def _advise() -> Any:
    if not hasattr(mmap, "MADV_HUGEPAGE") or os.environ.get("NUMPY_MADVISE_HUGEPAGE") == "0":
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise
