"""How a kernel is declared, compiled, kept on disk, and run in threads.

A kernel is a function of one argument, the address of a record: what it reads, what it writes, and a
counter from which threads take parts of the rows until none is left. So the same machine code runs alone,
in threads of Python (it holds no lock of theirs) or in those of OpenMP. All memory that it works in is on
its stack or in the record of the call.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import struct
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cfunc, from_dtype, types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from refocal.kernels.entries import F32, SOME, entry

INT, REAL = "i8", "f8"
"""The fields of a record: addresses, sizes and marks are integers."""

ROWS = ("", "_outer", "_class", "_inner", "_step")
"""The fields of an array of rows, see `rows`: its address, four numbers that say where an entry is."""

HEAD = ("next", "parts", "count", "sums")
"""What every record begins with: the counter, how many parts and rows there are, where sums go."""

RESULTS = {"each": INT, "each_at": INT, "keep": INT, "kept": INT, "scale": REAL, "result": ROWS}
"""For losses: whether and where each is wanted; whether and where to keep numbers for the gradient.

For the gradient: whether and where each row has a factor of its own; the kept numbers; a factor for all;
where the gradient goes.
"""

BAD = 2
"""Where a part's sums hold the number of its first row with a bad label, from 1; 0 if there is none."""

ENOUGH = 1 << 16
"""From so many entries on threads share the work; a row counts for 16 more, for its logarithms."""

SOURCES = hashlib.sha256(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()[:16]

NONE_LEFT = 1 << 62

ENDLESS = 1 << 60
"""The size of an array of which only the address is known."""

OPTIONS = {"error_model": "numpy", "fastmath": {"contract"}}
"""Of every kernel: as those of `exactly`."""

LONG = 2.0
"""A compilation that takes more seconds than this is said."""

log = logging.getLogger("refocal")

PART = struct.Struct("3d")
"""The sums of a part."""

Team = Callable[[int, Any, int, object], None]
"""Runs a region in threads: the address of machine code, its record, how many threads, the owners."""


class Kernel:
    """A kernel: call it with its fields in the order of their declaration."""

    def __init__(self, function: Any, fields: dict[str, str]) -> None:
        kinds = [INT] * len(HEAD) + list(fields.values())
        self.function = function
        self.record = np.dtype(list(zip((*HEAD, *fields), kinds, strict=True)))
        self.layout = struct.Struct("".join("q" if kind == INT else "d" for kind in kinds))
        self.alone = ctypes.c_char * (self.layout.size + PART.size)
        """The memory of a record with sums for one part."""

    @functools.cached_property
    def code(self) -> Any:
        """The machine code, compiled at first use and kept on disk where there is a folder for it."""
        # Numba keeps code under this name, so what is kept for other sources is never taken.
        self.function.__qualname__ = f"{self.function.__name__}_{SOURCES}"
        signature = types.void(types.CPointer(from_dtype(self.record)))
        start = time.monotonic()
        try:
            compiled = cfunc(signature, **OPTIONS, cache=True)(self.function)
        except Exception:  # no folder to keep it in, no room, or what is kept is damaged
            compiled = cfunc(signature, **OPTIONS)(self.function)
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(compiled.address)
        call.compiled = compiled  # which owns the machine code
        if (seconds := time.monotonic() - start) > LONG:
            log.warning(
                "compiled %s in %.0f s (REFOCAL_KERNELS=off goes without)", self.function.__name__, seconds
            )
        return call

    def __call__(
        self, count: int, work: int, threads: int, team: Team | None, owners: object, *fields: float
    ) -> tuple[float, float]:
        """Run over all rows and return the two sums that the kernel adds up.

        Args:
            count: How many rows.
            work: How many entries they have.
            threads: How many may share the work.
            team: Who runs them; None for threads of Python.
            owners: Who has the memory behind the addresses: held until no thread uses it any more.
            *fields: The record, in the order of its declaration.

        Raises:
            BadLabel: If a label is none of the classes.
        """
        code = self.code
        if threads == 1 or work + 16 * count < ENOUGH:
            threads, parts = 1, 1
        else:
            parts = min(8 * threads, count)  # each thread takes the next one that is left
        size = self.layout.size
        record = self.alone() if parts == 1 else (ctypes.c_char * (size + PART.size * parts))()
        self.layout.pack_into(record, 0, 0, parts, count, ctypes.addressof(record) + size, *fields)
        if threads == 1:
            code(record)
        else:
            (team or in_python_threads)(code.compiled.address, record, threads, owners)
        if parts == 1:
            total, number, bad = PART.unpack_from(record, size)
        else:
            total, number, bad = 0.0, 0.0, 0.0
            for some, more, row in PART.iter_unpack(memoryview(record)[size:]):
                total, number, bad = total + some, number + more, bad or row
        if bad:
            raise BadLabel(int(bad) - 1)
        return total, number


class BadLabel(IndexError):
    """A row whose label is none of the classes; the argument is its number."""


def kernel(**fields: str | tuple[str, ...]) -> Callable[[Any], Kernel]:
    """Declare a kernel by the fields of its record: `INT`, `REAL`, or `ROWS` for an array of rows."""
    plain: dict[str, str] = {}
    for name, kind in fields.items():
        plain |= {name: kind} if isinstance(kind, str) else {name + part: INT for part in kind}
    return lambda function: Kernel(function, plain)


# Threads


def in_python_threads(address: int, record: Any, threads: int, owners: object) -> None:
    """Run a region in threads of Python, this one among them."""
    code = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)

    def take_parts(owners: object = owners) -> None:
        code(record)  # which holds record and owners: this thread may outlive an interrupted caller

    others: list[Future[None]] = []
    try:
        for _ in range(threads - 1):
            others.append(_pool(threads - 1).submit(take_parts))
    except RuntimeError:  # no thread starts any more when Python ends
        pass
    try:
        code(record)
    finally:
        ctypes.c_int64.from_buffer(record).value = NONE_LEFT  # after Ctrl-C nobody starts on another part
        wait(others)
    for other in others:
        other.result()


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="refocal")


@functools.cache
def openmp(folder: str) -> Team | None:
    """Return the threads of GNU's OpenMP library in a folder, if this process uses it; None otherwise.

    A library that is built with OpenMP keeps its threads awake for some milliseconds after its own work, and
    they hold the cores: other threads would wait for that long. So the parts of a batch go to the same team,
    by the function that compiled C code calls for a parallel region. REFOCAL_THREADS=python does without.
    In a forked process there is no team: the library would wait for threads that this process does not have.
    """
    switch = os.environ.get("REFOCAL_THREADS", "openmp")
    if switch not in ("openmp", "python"):
        raise ValueError(f"REFOCAL_THREADS must be 'openmp' or 'python', got {switch!r}")
    for file in [] if _forked or switch == "python" else sorted(Path(folder).glob("libgomp*.so*")):
        try:
            region = ctypes.CDLL(str(file), mode=os.RTLD_NOW | os.RTLD_NOLOAD).GOMP_parallel
            # Another OpenMP library may have been loaded before this one and taken its place.
            used = getattr(ctypes.CDLL(None), "GOMP_parallel", region)
        except (OSError, AttributeError):  # not loaded
            continue
        if ctypes.cast(used, ctypes.c_void_p).value == ctypes.cast(region, ctypes.c_void_p).value:
            region.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            region.restype = None
            return lambda address, record, threads, owners: region(address, record, threads, 0)
    return None


def _has_not_started_a_program() -> bool:
    """Return whether this process is the copy of another one: forked, without a program of its own since."""
    try:
        flags = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[6])
    except (OSError, ValueError, IndexError):
        return False
    return bool(flags & 0x40)  # PF_FORKNOEXEC of Linux


_forked = _has_not_started_a_program()  # others may have had threads there, before this module was imported


def _forget_threads() -> None:
    global _forked
    _forked = True
    _pool.cache_clear()
    openmp.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


# What kernels call


def _pointer(kind: Any) -> Any:
    @intrinsic
    def at(typingctx: Any, address: Any) -> Any:
        """Return an address as a pointer."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), codegen

    return at


@intrinsic
def view(typingctx: Any, x: Any, start: Any, stop: Any) -> Any:
    """Return x[start:stop] for bounds that are within x.

    Numba's own slices allow for all others and count users of the memory, which is most of what is compiled.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        source = context.make_array(kind)(context, builder, args[0])
        result = context.make_array(kind)(context, builder)
        size = context.get_constant(types.intp, kind.dtype.bitwidth // 8)
        populate_array(
            result,
            data=builder.gep(source.data, [args[1]]),
            shape=(builder.sub(args[2], args[1]),),
            strides=(size,),
            itemsize=size,
            meminfo=None,
        )
        return result._getvalue()

    return x(x, types.intp, types.intp), codegen


floats, doubles, integers = _pointer(types.float32), _pointer(types.float64), _pointer(types.int64)


def _stack(kind: Any, word: ir.Type) -> Any:
    @intrinsic
    def stack(typingctx: Any) -> Any:
        """Return memory for `SOME` numbers on the stack of the function that calls it, a kernel."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            # Not by Numba's own function, which fills it with zeros: LLVM takes seconds for each of them.
            with builder.goto_entry_block():
                memory = builder.alloca(ir.ArrayType(word, SOME))
            memory.align = 64
            return builder.bitcast(memory, word.as_pointer())

        return types.CPointer(kind)(), codegen

    return stack


stack, stack_of_doubles = _stack(types.float32, F32), _stack(types.float64, ir.DoubleType())


@intrinsic
def _take(typingctx: Any, record: Any) -> Any:
    """Return the counter of a record and add one, as one step for all threads."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        return builder.atomic_rmw("add", builder.bitcast(args[0], word.as_pointer()), word(1), "monotonic")

    return types.int64(record), codegen


@entry
def next_part(record, parts, count):
    """Return the number of a part that nobody has yet, its first row and the one after its last."""
    part = _take(record)
    return part, count * part // parts, count * (part + 1) // parts
