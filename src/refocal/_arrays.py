"""Arrays of any library: their namespace, the exact softmax, and work in row blocks.

Everything here is written against the array API standard, so that one body serves NumPy, PyTorch,
JAX and whatever else array-api-compat knows, under autograd, ``jit`` and ``vmap``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import array_api_compat as aac
import numpy as np

Array: TypeAlias = Any
"""An array of any library (the array API standard has no type for it)."""


class HasShape(Protocol):
    """What a type checker takes for an array: NumPy's, PyTorch's and JAX's have it, lists have not."""

    @property
    def shape(self) -> Any:
        """The lengths of the axes."""


ArrayT = TypeVar("ArrayT", bound=HasShape)
"""An array whose library is that of the result, too."""

Numbers: TypeAlias = float | Iterable[float] | HasShape
"""A number, or a list or an array of numbers."""

NumPyArray: TypeAlias = np.ndarray[Any, Any]

Namespace: TypeAlias = Any

BLOCK, TORCH_BLOCK = 1 << 16, 3 << 18
"""Entries worked on at a time: temporaries then stay in the L2 cache. A kernel of PyTorch, which has no
temporaries but starts its threads anew for each operation, does better with more at a time."""

FEW_CLASSES = 32
"""Up to here NumPy reduces faster over the first axis than over the last, by up to six times."""


def as_array(x: object, name: str = "an array") -> Array:
    """Return an array as it is, and anything else (lists, numbers, data frames) as a NumPy array."""
    if isinstance(x, np.ma.MaskedArray):  # most functions would compute with what the mask hides
        raise TypeError(f"{name} must not be a masked array: fill it first, -inf masks a class")
    return x if is_torch(x) or aac.is_array_api_obj(x) else np.asarray(x)


def is_numpy(x: object) -> bool:
    """Whether it is a NumPy array or number. (array-api-compat's own tests go through a cache, of which
    `torch.compile` warns.)"""
    return isinstance(x, (np.ndarray, np.generic))


def is_torch(x: object) -> bool:
    """Whether it is a tensor of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_jax(x: object) -> bool:
    """Whether it is an array of JAX, traced or not."""
    return not (is_numpy(x) or is_torch(x)) and aac.is_jax_array(x)


def namespace(x: Array) -> Namespace:
    """Return the array API namespace of an array."""
    if is_torch(x):
        import array_api_compat.torch as xp

        return xp
    return aac.array_namespace(x)


def device(x: Array) -> Any:
    """Return where an array is."""
    return x.device if is_torch(x) else aac.device(x)


def quiet(x: Array) -> AbstractContextManager[Any]:
    """Return a context in which NumPy does not warn: masked classes and NaN are to go through."""
    return nullcontext() if is_torch(x) else np.errstate(all="ignore")


def is_float(x: Array) -> bool:
    """Whether an array holds real floating point numbers."""
    if is_numpy(x):  # ml_dtypes' bfloat16 is a float that NumPy does not know
        return bool(x.dtype.kind == "f" or x.dtype.name in {"bfloat16", "float8_e4m3fn", "float8_e5m2"})
    return bool(namespace(x).isdtype(x.dtype, "real floating"))


def is_integer(x: Array) -> bool:
    """Whether an array holds integers."""
    if is_numpy(x):
        return bool(x.dtype.kind in "iu")
    return bool(namespace(x).isdtype(x.dtype, "integral"))


def working_dtype(x: Array) -> Any:
    """Return the dtype to compute in: float32 for half precision, otherwise the array's own."""
    xp = namespace(x)
    bits = 8 * x.dtype.itemsize if is_numpy(x) else xp.finfo(x.dtype).bits
    return xp.float32 if bits < 32 else x.dtype


def concrete(x: Array) -> np.ndarray[Any, Any] | None:
    """Return the values as a NumPy array, or None where they cannot be looked at without harm.

    That is under ``jit``, ``vmap`` or ``torch.compile``, and on an accelerator, where a look waits
    for the device.
    """
    if is_numpy(x):
        return np.asarray(x)
    if is_torch(x):
        torch = sys.modules["torch"]
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return None
        x = x.detach()
    try:
        return np.asarray(x)
    except Exception:  # each library has its own refusal for a traced array
        return None


def at_hand(x: Array) -> Array | None:
    """Return the values, as a plain tensor or a NumPy array, or None where a look would wait or do harm.

    Unlike `concrete` it copies nothing, and leaves tensors alone whose operations somebody follows.
    """
    if is_torch(x):
        return x.detach() if x.device.type == "cpu" and are_plain_tensors(x) else None
    if is_jax(x):
        jax = sys.modules["jax"]
        if isinstance(x, jax.core.Tracer) or any(d.platform != "cpu" for d in x.devices()):
            return None
    return concrete(x)


def stop_gradient(x: Array) -> Array:
    """Return the same values with no gradient through them."""
    if is_torch(x):
        return x.detach()
    if is_jax(x):
        return sys.modules["jax"].lax.stop_gradient(x)
    return x


def one_hot(xp: Namespace, index: Array, n: int, axis: int) -> Array:
    """Return a boolean array that is True at ``index``, which has length 1 along ``axis``."""
    shape = [1] * index.ndim
    shape[axis] = n
    return index == xp.reshape(xp.arange(n, dtype=index.dtype, device=device(index)), tuple(shape))


def log1p(xp: Namespace, x: Array) -> Array:
    """Return log(1 + x). JAX's own loses two digits in float64 on the CPU."""
    if not (is_jax(x) and xp.finfo(x.dtype).bits == 64):
        return xp.log1p(x)
    u = sys.modules["jax"].lax.optimization_barrier(1 + x)  # or jit would take (1 + x) - 1 for x
    regular = (u > 0) & (u < xp.inf)
    return xp.log(u) + xp.where(regular, (x - (u - 1)) / xp.where(regular, u, 1), 0)


def softplus(xp: Namespace, x: Array) -> Array:
    """Return log(1 + e^x)."""
    if is_numpy(x):
        return xp.logaddexp(x, 0)
    # By `where`: |x| and max(x, 0) have no derivative at 0, and logaddexp's second one overflows.
    up = x > 0
    y = log1p(xp, xp.exp(xp.where(up, -x, x)))
    return xp.where(up, x + y, y)


def at_most(xp: Namespace, x: Array, bound: float) -> Array:
    """Return x, but no more than a bound. (Clip and minimum break graphs of `torch.compile`.)"""
    return xp.where(x > bound, bound, x)


def total(xp: Namespace, x: Array, axis: int) -> Array:
    """Return the sum along an axis, which is kept with length 1."""
    return xp.sum(x, axis=axis, keepdims=True)


class Shares(NamedTuple):
    """Softmax scores kept so that both log q and log(1 - q) are exact for every class.

    The largest class (`top`, the first of several) is kept by its odds: 1 - q cancels when q is near
    1, the sum over the OTHER classes does not. Every other class has q <= 1/2, where log1p(-q) is
    exact. Arrays of a row have length 1 along the class axis.
    """

    top: Array
    """True at the largest class, once a row."""
    equal: Array
    """True at other classes that are as large."""
    q: Array
    """The scores of the other classes; 0 at the top."""
    neg_log_q: Array
    """-log q of the other classes; infinite at the top."""
    log_odds: Array
    """A row: log((1 - q_top) / q_top)."""
    neg_log_top: Array
    """A row: -log q_top."""


def shares(xp: Namespace, logits: Array, axis: int) -> Shares:
    """Return the `Shares` of ``softmax(logits)`` along an axis (not negative); NaN if its top is infinite."""
    smallest = xp.finfo(logits.dtype).min
    top = one_hot(xp, xp.argmax(logits, axis=axis, keepdims=True), logits.shape[axis], axis)
    others = xp.where(top, -xp.inf, logits)
    # A shift changes nothing, so no gradient through it: ties would split it wrongly.
    z_top = at_top(xp, top, logits, axis)
    z_top = xp.where(xp.abs(z_top) == xp.inf, xp.nan, z_top)
    z_next = xp.max(others, axis=axis, keepdims=True)
    z_next = stop_gradient(xp.where(z_next == -xp.inf, smallest, z_next))
    gap = others - z_next
    f = xp.exp(gap)
    rest = total(xp, f, axis)
    lead = z_top - z_next
    alone = (rest == 0) & (lead == lead)  # every other class is masked
    log_odds = xp.where(alone, smallest, xp.log(xp.where(alone, 1, rest)) - lead)
    neg_log_top = softplus(xp, log_odds)
    q = f * xp.exp(-lead - neg_log_top)
    return Shares(top, others == z_top, q, lead + neg_log_top - gap, log_odds, neg_log_top)


def shares_of_probs(xp: Namespace, probs: Array, axis: int) -> Shares:
    """Return the `Shares` of scores along an axis (not negative), scaled to sum 1.

    -log q is 0 where q is 0, so that q log q and its gradient are finite there.
    """
    top = one_hot(xp, xp.argmax(probs, axis=axis, keepdims=True), probs.shape[axis], axis)
    q_top = at_top(xp, top, probs, axis)
    others = xp.where(top, 0, probs)
    rest = total(xp, others, axis)
    alone = rest == 0
    log_odds = xp.where(alone, xp.finfo(probs.dtype).min, xp.log(xp.where(alone, 1, rest)) - xp.log(q_top))
    q = others / (q_top + rest)
    equal = others == q_top
    return Shares(top, equal, q, -xp.log(xp.where(q == 0, 1, q)), log_odds, log1p(xp, rest / q_top))


def at_top(xp: Namespace, top: Array, x: Array, axis: int) -> Array:
    """Return a row: the entry of x where top is True."""
    return total(xp, xp.where(top, x, 0), axis)


def top_ratio(xp: Namespace, s: Shares) -> Array:
    """Return a row: -q log q / (1 - q) of the top, which is log(1 + odds) / odds and 1 at odds 0."""
    odds = xp.exp(s.log_odds)
    large = odds > xp.finfo(odds.dtype).eps
    return xp.where(large, s.neg_log_top / xp.where(large, odds, 1), 1 - odds / 2)


def log_complement(xp: Namespace, s: Shares) -> Array:
    """Return log(1 - q) of every class, exact where q is near 1."""
    return xp.where(s.top, s.log_odds - s.neg_log_top, log1p(xp, -s.q))


def neg_log(xp: Namespace, s: Shares) -> Array:
    """Return -log q of every class."""
    return xp.where(s.top, s.neg_log_top, s.neg_log_q)


def log_softmax(xp: Namespace, logits: Array, axis: int) -> Array:
    """Return log q of every class, exact where q is near 1."""
    return -neg_log(xp, shares(xp, logits, axis))


def works_in_blocks(*arrays: Any) -> bool:
    """Whether results may be written into a buffer block by block: plain values, on the CPU."""
    arrays = tuple(x for x in arrays if not isinstance(x, float))
    if all(is_numpy(x) for x in arrays):
        return True
    if not all(is_torch(x) for x in arrays):
        return False
    torch = sys.modules["torch"]
    return all(
        are_plain_tensors(x) and x.device.type == "cpu" and not (x.requires_grad and torch.is_grad_enabled())
        for x in arrays
    )


def are_plain_tensors(*tensors: Any) -> bool:
    """Whether tensors have values and nobody follows what is done with them; None counts as plain.

    Somebody does under `torch.compile`, `export`, `torch.func`, forward-mode derivatives, tracers
    (`make_fx`, `torch.jit.trace`, the ONNX exporters) and every other mode of dispatch. PyTorch has no
    public word for most of these.
    """
    torch = sys.modules["torch"]
    if (
        torch.compiler.is_compiling()  # first: it cannot read the rest
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack()
        or torch._ops._len_torch_dispatch_stack_pre_dispatch()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    ):
        return False
    for x in tensors:
        if x is None:
            continue
        if type(x) is not torch.Tensor and type(x) is not torch.nn.Parameter:
            return False
        if x.layout is not torch.strided:
            return False
        try:
            if not x.data_ptr() and x.numel():  # meta tensors
                return False
        except RuntimeError:  # gradients that come in batches
            return False
    return True


def map_rows(
    body: Callable[..., Array],
    x: Array,
    *params: Array | float,
    axis: int,
    kernel: Callable[..., None] | None = None,
) -> Array:
    """Return ``body(xp, x, *params, axis)``, computed in row blocks where the values are at hand.

    ``x`` is computed in its `working_dtype` and the result, of the same shape, is cast back. Each of
    ``params`` is a number, an array of a row (x's shape with length 1 along the class axis) or an
    array of a class (length 1 along all others).

    In blocks ``kernel(out, scratch, x, *params, axis)`` takes the place of ``body``: it fills ``out``,
    may use the five buffers of its shape in ``scratch``, and leaves its other arguments as they are.
    Fresh temporaries would cost more than the arithmetic, in page faults.
    """
    xp = namespace(x)
    dtype = working_dtype(x)
    arrays: list[Any] = [x, *params]
    with quiet(x):
        if works_in_blocks(*arrays):
            return _map_blocks(body, kernel, arrays, axis, dtype)
        args = [a if isinstance(a, float) else xp.astype(a, dtype, copy=False) for a in arrays]
        return xp.astype(body(xp, *args, axis), x.dtype, copy=False)


def _map_blocks(
    body: Callable[..., Array],
    kernel: Callable[..., None] | None,
    arrays: list[Any],
    axis: int,
    dtype: Any,
) -> Array:
    x = arrays[0]
    xp = namespace(x)
    flat = [a if isinstance(a, float) else _three_axes(xp, a, axis) for a in arrays]
    result = xp.empty_like(flat[0])
    lead, k, trail = result.shape
    if 0 in result.shape:
        return xp.reshape(result, x.shape)
    # NumPy is slow to reduce a short last axis, and sums a long first axis inexactly.
    classes_first = k <= FEW_CLASSES if is_numpy(x) else trail > 1
    order, class_axis = ((1, 0, 2), 0) if classes_first else ((0, 2, 1), 1)
    in_result = dtype == x.dtype and trail == 1 and not classes_first
    size = TORCH_BLOCK if kernel and not is_numpy(x) else BLOCK
    columns = max(1, min(trail, size // k))
    rows = max(1, min(lead, size // (k * columns)))
    shape = (k, rows * columns) if classes_first else (rows * columns, k)
    buffers = [xp.empty(shape, dtype=dtype, device=device(x)) for _ in range(6 if kernel else 0)]
    for i in range(0, lead, rows):
        for j in range(0, trail, columns):
            here = (slice(i, i + rows), slice(None), slice(j, j + columns))
            args: list[Any] = []
            for a in flat:
                if not isinstance(a, float):
                    a = a[tuple(c if m > 1 else slice(None) for c, m in zip(here, a.shape, strict=True))]
                    a = xp.permute_dims(xp.astype(a, dtype, copy=False), order)
                    a = xp.reshape(a, (a.shape[0], -1) if classes_first else (-1, a.shape[2]))
                args.append(a)
            target = xp.permute_dims(result[here], order)
            if kernel is None:
                target[...] = xp.reshape(body(xp, *args, class_axis), target.shape)
                continue
            n = math.prod(target.shape) // k
            out, *scratch = (b[:n] if class_axis else b[:, :n] for b in buffers)
            if in_result:
                out = target[:, 0, :]
            kernel(out, scratch, *args, class_axis)
            if not in_result:
                target[...] = xp.reshape(out, target.shape)
    return xp.reshape(result, x.shape)


def _three_axes(xp: Namespace, a: Array, axis: int) -> Array:
    """Join the axes before the class axis into one, and those after it."""
    return xp.reshape(a, (math.prod(a.shape[:axis]), a.shape[axis], math.prod(a.shape[axis + 1 :])))
