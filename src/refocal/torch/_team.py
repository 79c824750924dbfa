"""Kernels in the threads that PyTorch has already, where it brings GNU's OpenMP library (wheels for Linux).

After its own work PyTorch's threads stay awake for some milliseconds and hold the cores: other threads would
wait for that long, and threads of Python for each other's lock too. So the parts of a batch are given to
PyTorch's team, by the function that compiled C code calls for a parallel region. What runs in the threads is
made here as well: a few instructions that read the arguments of a part and call the kernel.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

KINDS = {ctypes.c_void_p: ("ptr", "q"), ctypes.c_int64: ("i64", "q"), ctypes.c_double: ("double", "d")}
"""The arguments of kernels: LLVM's name, and how `struct` packs them in eight bytes."""

HEAD = 4
"""Words before the arguments: the kernel, the two functions that say who is asking, how many parts."""


def _has_not_started_a_program() -> bool:
    """Return whether this process is the copy of another one: forked, without a program of its own since."""
    try:
        flags = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[6])
    except (OSError, ValueError, IndexError):
        return False
    return bool(flags & 0x40)  # PF_FORKNOEXEC of Linux


_forked = _has_not_started_a_program()  # PyTorch may have had threads there, before this module was imported


@functools.cache
def openmp() -> ctypes.CDLL | None:
    """Return the library whose threads PyTorch uses, or None where there is none to use.

    In a forked process there is none: the library would wait for threads that this process does not have.
    """
    for file in [] if _forked else sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        try:
            library = ctypes.CDLL(str(file), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            # Another OpenMP library may have been loaded before PyTorch's and taken its place.
            used = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
            if used is not None and _address(used) != _address(library.GOMP_parallel):
                continue
            library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            library.GOMP_parallel.restype = None
            share((ctypes.c_int64,))
        except Exception:  # not loaded, or an LLVM that reads another language
            continue
        return library
    return None


def _forget() -> None:
    global _forked
    _forked = True
    openmp.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def run(code: Any, parts: Sequence[tuple[Any, ...]]) -> list[int]:
    """Call a kernel with the arguments of each part, a thread a part; return what it returned for each."""
    library = openmp()
    assert library is not None, "the caller has to look"
    words = "q" + "".join(KINDS[kind][1] for kind in code.argtypes)  # first what is returned
    head = (_address(code), _address(library.omp_get_thread_num), _address(library.omp_get_num_threads))
    packed = bytearray(
        struct.pack(
            f"{HEAD}q{words * len(parts)}", *head, len(parts), *(w for part in parts for w in (0, *part))
        )
    )
    data = (ctypes.c_char * len(packed)).from_buffer(packed)
    library.GOMP_parallel(share(tuple(code.argtypes)), ctypes.addressof(data), len(parts), 0)
    return [part[0] for part in struct.iter_unpack(words, packed[8 * HEAD :])]


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_alive: list[Any] = []
"""What owns the machine code."""


@functools.cache
def share(kinds: tuple[Any, ...]) -> int:
    """Return the address of what each thread runs: every part that falls to it, by its number in the team.

    A team can be smaller than was asked for, so a thread goes on with the part that is a team further.
    """
    from llvmlite import binding as llvm

    if llvm.llvm_version_info[0] < 16:
        raise ImportError("LLVM before 16 does not read the type ptr")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    names = [KINDS[kind][0] for kind in kinds]
    loads = "\n".join(
        f"%a{i} = getelementptr i64, ptr %part, i64 {i + 1}\n%v{i} = load {name}, ptr %a{i}"
        for i, name in enumerate(names)
    )
    module = llvm.parse_assembly(f"""
        define void @share(ptr %data) {{
            %kernel = load ptr, ptr %data
            %number_at = getelementptr i64, ptr %data, i64 1
            %number_of = load ptr, ptr %number_at
            %size_at = getelementptr i64, ptr %data, i64 2
            %size_of = load ptr, ptr %size_at
            %count_at = getelementptr i64, ptr %data, i64 3
            %count = load i64, ptr %count_at
            %number32 = call i32 %number_of()
            %number = sext i32 %number32 to i64
            %size32 = call i32 %size_of()
            %size = sext i32 %size32 to i64
            br label %test
        test:
            %i = phi i64 [%number, %0], [%next, %body]
            %more = icmp slt i64 %i, %count
            br i1 %more, label %body, label %end
        body:
            %words = mul i64 %i, {len(kinds) + 1}
            %first = add i64 %words, {HEAD}
            %part = getelementptr i64, ptr %data, i64 %first
            {loads}
            %returned = call i64 %kernel({", ".join(f"{name} %v{i}" for i, name in enumerate(names))})
            store i64 %returned, ptr %part
            %next = add i64 %i, %size
            br label %test
        end:
            ret void
        }}
    """)
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _alive.append(engine)
    address: int = engine.get_function_address("share")
    return address
