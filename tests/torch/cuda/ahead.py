"""Compile Triton's kernels for a GPU that is not there, as a launch with the same arguments would."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import BaseBackend, GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import native_specialize_impl

WARP = 32


class Launches(list):
    """Stands for `launch` of a module of kernels: it keeps (kernel, arguments) and launches nothing."""

    def __call__(self, kernel: Any, rows: int, **args: Any) -> None:
        self.append((kernel, args))


def compiled(kernel: Any, args: dict[str, Any], capability: int) -> Any:
    """Return a kernel for a compute capability (90 is 9.0): `.asm` has its PTX, `.metadata` the rest."""
    signature, constants, attributes = {}, {}, {}
    options = {"num_warps": args["num_warps"]} if "num_warps" in args else {}
    for at, parameter in enumerate(kernel.params):
        value = args[parameter.name]
        if parameter.is_constexpr:
            kind, key = "constexpr", None
        else:  # Triton's own rule: numbers that are 1 are constants, multiples of 16 are known to be some
            kind, key = native_specialize_impl(BaseBackend, value, False, True, True)
        signature[parameter.name] = kind
        if kind == "constexpr":
            constants[parameter.name] = value
        elif key:
            attributes[(at,)] = BaseBackend.parse_attr(key)
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, WARP), options=options)
