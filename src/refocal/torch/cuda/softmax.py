"""The softmax focal loss and its gradient as Triton kernels.

A program works on R rows, in blocks of C columns, so that a row of any length is read once and need not fit
into registers. As in `refocal.kernels.softmax`, integer targets have kernels of their own, since their
gradient is that of cross entropy times one number; distributions and smoothed targets share others.

Both forward kernels can keep three numbers of each row, with which a gradient is one read and one write; rows
of fewer than `KEEP` classes are one block, and their gradient computes the numbers again. The loss of a
distribution needs the sum of exponentials first: rows longer than a block are read twice by its forward pass.

Of the constants, ONE says that a block holds whole rows; SKIP, that rows to ignore are not read, where that
does not keep neighbours in memory from being read together.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from refocal._checks import LARGEST_GAMMA
from refocal.torch.cuda import entries as e
from refocal.torch.cuda.entries import base
from refocal.torch.cuda.launch import as_rows, in_order, launch, of_rows, result_like
from refocal.torch.cuda.tiles import (
    INF,
    gamma_at,
    keep,
    read,
    rows_of,
    top_and_rest,
    what_was_kept,
    write,
)
from refocal.torch.eager import KEEP, OF_ALL, OF_ROWS, Softmax

ENTRIES, IN_IMAGES = 1024, 2048
"""How many entries a program works on at a time, if a row has fewer. The second is for images (N, C, H, W):
neighbours in memory are the same class of different rows, and more rows are longer stretches of memory."""

LONGEST, LONGEST_SOFT, LONGEST_IN_IMAGES = 4096, 8192, 32
"""How many entries of one row at a time. Distributions up to this length are read once."""

ENDLESS = constexpr(8.5e37)
"""It stands for -log 0, so that 0 log 0 is 0."""

ALL, ROWS = constexpr(OF_ALL), constexpr(OF_ROWS)
"""What gamma differs between; otherwise it is classes."""


# Integer targets


@triton.jit
def hard_numbers(x, rows, label, counts, reads, r, c, of_class, gamma, gammas, weights,
                 KIND: constexpr, POWER: constexpr, WEIGHTED: constexpr,
                 ONE: constexpr, C: constexpr):  # fmt: skip
    """Return the losses of rows whose first tile is x, and what the gradient needs.

    That is the largest logit, phi / sum of exponentials, and phi (1 - p), the last two times the weight.
    """
    top, rest = top_and_rest(x, rows, reads, c, of_class, ONE, C)
    known = counts & (label >= 0) & (label < c)
    z_y = tl.load(rows + label * of_class, mask=known, other=float("nan")).to(tl.float32)  # no class: no loss
    if KIND == ROWS:
        gamma = gamma_at(gammas, r, counts)
    elif KIND != ALL:
        gamma = gamma_at(gammas, label, known)
    share = 1 / (1 + rest)
    p = tl.exp(z_y - top) * share
    # Next to p = 1 nothing of 1 - p is lost: the sum was taken without the largest.
    miss = tl.where(z_y == top, rest * share, 1 - p)
    neg_log_p = e.log1p(rest) + (top - z_y)
    hit = tl.where(p == 0, 0.0, p * neg_log_p)  # also where the logit is -inf
    power = e.power(p, miss, gamma, POWER)
    phi = power * (1 + gamma * tl.where(miss == 0, 1.0, hit / miss))
    loss, factor, at_target = power * neg_log_p, phi * share, phi * miss
    if WEIGHTED:
        weight = tl.load(weights + label, mask=known, other=1.0)
        loss = tl.where((weight == 0) & (loss == INF), 0.0, weight * loss)
        factor *= weight
        at_target *= weight
    return loss, top, factor, at_target


@triton.jit
def hard_losses(losses, kept, z, target, gammas, weights, n, c, outer, of_class, inner, step, gamma, ignore,
                KIND: constexpr, POWER: constexpr, WEIGHTED: constexpr, KEPT: constexpr,
                ONE: constexpr, SKIP: constexpr, R: constexpr, C: constexpr):  # fmt: skip
    """Fill losses for labels, and what is kept for the gradient."""
    r, k = rows_of(R), tl.arange(0, C)
    label = tl.load(target + r, mask=r < n, other=ignore)
    counts = label != ignore
    reads = counts if SKIP else r < n
    rows = z + base(r, outer, inner, step)
    x = read(rows, k, of_class, reads[:, None] & (k < c)[None, :], -INF)
    loss, top, factor, at_target = hard_numbers(
        x, rows, label, counts, reads, r, c, of_class, gamma, gammas, weights, KIND, POWER, WEIGHTED, ONE, C
    )
    tl.store(losses + r, tl.where(counts, loss, 0.0), mask=r < n)
    if KEPT:
        keep(kept, r, n, top, factor, at_target)


@triton.jit
def hard_gradient(result, kept, grad, z, target, gammas, weights, n, c, outer, of_class, inner, step,
                  to_outer, to_class, to_inner, to_step, grad_step, gamma, ignore,
                  KIND: constexpr, POWER: constexpr, WEIGHTED: constexpr, KEPT: constexpr,
                  ONE: constexpr, SKIP: constexpr, R: constexpr, C: constexpr):  # fmt: skip
    """Fill the gradient by the logits: that of cross entropy, times phi."""
    r, columns = rows_of(R), tl.arange(0, C)
    label = tl.load(target + r, mask=r < n, other=ignore)
    counts = label != ignore
    reads = counts if SKIP else r < n
    rows, to = z + base(r, outer, inner, step), result + base(r, to_outer, to_inner, to_step)
    by = tl.load(grad + r * grad_step, mask=counts, other=0.0)
    if ONE:
        x = read(rows, columns, of_class, reads[:, None] & (columns < c)[None, :], -INF)
    if KEPT:
        top, factor, at_target = what_was_kept(kept, r, counts)
    else:
        _, top, factor, at_target = hard_numbers(
            x,
            rows,
            label,
            counts,
            reads,
            r,
            c,
            of_class,
            gamma,
            gammas,
            weights,
            KIND,
            POWER,
            WEIGHTED,
            ONE,
            C,
        )
    for first in range(0, C if ONE else c, C):
        k = first + columns
        inside = (k < c)[None, :]
        if not ONE:
            x = read(rows, k, of_class, reads[:, None] & inside, -INF)
        slope = tl.exp(x - top[:, None]) * (factor * by)[:, None]
        slope = tl.where(k[None, :] == label[:, None], -(at_target * by)[:, None], slope)
        write(to, k, to_class, tl.where(counts[:, None], slope, 0.0), (r < n)[:, None] & inside)


# Distributions, and smoothed integer targets


@triton.jit
def targets(v_rows, v_class, label, counts, k, c, weights, smoothing,
            HARD: constexpr, WEIGHTED: constexpr):  # fmt: skip
    """Return a tile of targets: weights[k] ((1 - smoothing) v[k] + smoothing / c)."""
    inside = (k < c)[None, :]
    if HARD:
        v = tl.where(k[None, :] == label[:, None], 1.0, 0.0)
        v = tl.where(((label >= 0) & (label < c))[:, None], v, float("nan"))  # no class: no loss
    else:
        v = read(v_rows, k, v_class, counts[:, None] & inside, 0.0)
    v = tl.where(inside, (1 - smoothing) * v + smoothing / c, 0.0)
    if WEIGHTED:
        v *= tl.load(weights + k, mask=k < c, other=0.0)[None, :]
    return v


@triton.jit
def parts(x, v, top, rest, gamma, gammas, r, counts, k, c, KIND: constexpr, POWER: constexpr):
    """Return tiles of the terms of the loss, of v phi(q), which is -d loss / d log q, of q and of 1 - q."""
    if KIND == ROWS:
        gamma = gamma_at(gammas, r, counts)[:, None]
    elif KIND != ALL:
        gamma = gamma_at(gammas, k, k < c)[None, :]
    share = 1 / (1 + rest)
    q = tl.exp(x - top[:, None]) * share[:, None]
    # As above: only the largest can be next to q = 1.
    miss = tl.where(x == top[:, None], (rest * share)[:, None], 1 - q)
    neg_log = e.log1p(rest)[:, None] + (top[:, None] - x)
    neg_log = tl.where(neg_log > ENDLESS, ENDLESS, neg_log)  # and not `minimum`: a NaN must stay one
    power = e.power(q, miss, gamma, POWER)
    term = tl.where((neg_log == ENDLESS) & (v > 0), INF, v * power * neg_log)
    slope = v * power * (1 + gamma * q * tl.where(miss == 0, 1.0, neg_log / miss))
    return term, slope, q, miss


@triton.jit
def soft_losses(losses, kept, z, target, gammas, weights, n, c, outer, of_class, inner, step,
                v_outer, v_class, v_inner, v_step, gamma, smoothing, ignore,
                HARD: constexpr, KIND: constexpr, POWER: constexpr, WEIGHTED: constexpr,
                KEPT: constexpr, ONE: constexpr, SKIP: constexpr, R: constexpr, C: constexpr):  # fmt: skip
    """Fill losses for distributions or smoothed labels, and what is kept for the gradient.

    That is the largest logit, the sum of the other exponentials, and the sum of v phi(q).
    """
    r, columns = rows_of(R), tl.arange(0, C)
    rows = z + base(r, outer, inner, step)
    if HARD:
        label = tl.load(target + r, mask=r < n, other=ignore)
        counts, v_rows = label != ignore, rows
    else:
        label, counts, v_rows = r, r < n, target + base(r, v_outer, v_inner, v_step)
    reads = counts if SKIP else r < n
    x = read(rows, columns, of_class, reads[:, None] & (columns < c)[None, :], -INF)
    top, rest = top_and_rest(x, rows, reads, c, of_class, ONE, C)
    loss, total = tl.zeros_like(top), tl.zeros_like(top)
    for first in range(0, C if ONE else c, C):
        k = first + columns
        if not ONE:
            x = read(rows, k, of_class, reads[:, None] & (k < c)[None, :], -INF)
        v = targets(v_rows, v_class, label, counts, k, c, weights, smoothing, HARD, WEIGHTED)
        term, slope, _, _ = parts(x, v, top, rest, gamma, gammas, r, counts, k, c, KIND, POWER)
        loss += tl.sum(term, 1)
        total += tl.sum(slope, 1)
    tl.store(losses + r, tl.where(counts, loss, 0.0), mask=r < n)
    if KEPT:
        keep(kept, r, n, top, rest, total)


@triton.jit
def soft_gradient(result, kept, grad, z, target, gammas, weights, n, c, outer, of_class, inner, step,
                  v_outer, v_class, v_inner, v_step, to_outer, to_class, to_inner, to_step, grad_step,
                  gamma, smoothing, ignore,
                  HARD: constexpr, KIND: constexpr, POWER: constexpr, WEIGHTED: constexpr,
                  KEPT: constexpr, ONE: constexpr, SKIP: constexpr, R: constexpr, C: constexpr):  # fmt: skip
    """Fill the gradient by the logits."""
    r, columns = rows_of(R), tl.arange(0, C)
    rows, to = z + base(r, outer, inner, step), result + base(r, to_outer, to_inner, to_step)
    if HARD:
        label = tl.load(target + r, mask=r < n, other=ignore)
        counts, v_rows = label != ignore, rows
    else:
        label, counts, v_rows = r, r < n, target + base(r, v_outer, v_inner, v_step)
    reads = counts if SKIP else r < n
    by = tl.load(grad + r * grad_step, mask=counts, other=0.0)
    if ONE:
        x = read(rows, columns, of_class, reads[:, None] & (columns < c)[None, :], -INF)
    if KEPT:
        top, rest, total = what_was_kept(kept, r, counts)
    else:
        top, rest = top_and_rest(x, rows, reads, c, of_class, ONE, C)
    for first in range(0, C if ONE else c, C):
        k = first + columns
        inside = (k < c)[None, :]
        if not ONE:
            x = read(rows, k, of_class, reads[:, None] & inside, -INF)
        v = targets(v_rows, v_class, label, counts, k, c, weights, smoothing, HARD, WEIGHTED)
        _, slope, q, miss = parts(x, v, top, rest, gamma, gammas, r, counts, k, c, KIND, POWER)
        if not KEPT:
            total = tl.sum(slope, 1)
        # d log q_j / d z_k = [j = k] - q_k; not q total - slope, which cancels where q is next to 1
        slope = (q * (total[:, None] - slope) - slope * miss) * by[:, None]
        write(to, k, to_class, tl.where(counts[:, None], slope, 0.0), (r < n)[:, None] & inside)


# Launches


def losses(p: Softmax) -> tuple[Tensor, Tensor | None]:
    """Return the losses of rows in float32, and what is kept for the gradient."""
    hard, n, args = _arguments(p)
    found = args["z"].new_empty(p.rows, dtype=torch.float32)
    kept = found.new_empty(n, 3) if args["KEPT"] else None
    launch(hard_losses if hard else soft_losses, n, losses=found, kept=kept, **args)
    return found, kept


def gradient(p: Softmax, kept: Tensor | None, grad: Tensor) -> Tensor:
    """Return the gradient by the logits of losses times grad, which is a number or one for each row."""
    hard, n, args = _arguments(p)
    by, grad_step = of_rows(grad)
    result = result_like(args["z"], p.dim)
    to = dict(zip(("to_outer", "to_class", "to_inner", "to_step"), result.where, strict=True))
    if kept is None and not args["ONE"]:
        _, kept = losses(p)
    kept = None if kept is None else in_order(kept, torch.float32)
    args["KEPT"] = kept is not None
    args |= {"result": result.tensor, "kept": kept, "grad": by, "grad_step": grad_step} | to
    launch(hard_gradient if hard else soft_gradient, n, **args)
    return result.tensor


def _arguments(p: Softmax) -> tuple[bool, int, dict[str, Any]]:
    """Return whether targets are labels as they are, the number of rows, and what all kernels are given."""
    hard, c = p.hard and not p.smoothing, p.z.shape[p.dim]
    z = as_rows(p.z, p.dim)
    n = p.z.numel() // c
    args: dict[str, Any] = {"z": z.tensor, "n": n, "c": c}
    args |= zip(("outer", "of_class", "inner", "step"), z.where, strict=True)
    args |= {"gamma": min(p.gamma, LARGEST_GAMMA), "ignore": p.ignore, "KIND": p.kind, "gammas": None}
    args["POWER"] = int(p.gamma) if p.gammas is None and p.gamma in (0.0, 1.0, 2.0, 3.0) else -1
    if p.gammas is not None:
        gammas = p.gammas.broadcast_to(p.rows) if p.kind == OF_ROWS else p.gammas
        args["gammas"] = in_order(gammas, torch.float32)
    args["WEIGHTED"] = p.weight is not None
    args["weights"] = None if p.weight is None else in_order(p.weight, torch.float32)
    if p.hard:
        args["target"] = in_order(p.target, torch.int64)
    if not hard:
        v = as_rows(p.z if p.hard else p.target, p.dim)  # only for its types, if there are labels
        args |= zip(("v_outer", "v_class", "v_inner", "v_step"), v.where, strict=True)
        args |= {"HARD": p.hard, "smoothing": p.smoothing}
        args.setdefault("target", v.tensor)
    return hard, n, args | _tile(c, z.where[1] != 1, hard)


def _tile(c: int, images: bool, hard: bool) -> dict[str, Any]:
    """Return how c classes are divided between programs."""
    longest = LONGEST_IN_IMAGES if images else LONGEST if hard else LONGEST_SOFT
    width = max(2, min(triton.next_power_of_2(c), longest))
    rows = max(1, (IN_IMAGES if images else ENTRIES) // width)
    # Of 32 threads. With more entries each, short rows would need more registers than there are.
    warps = max(4, rows * width // (512 if rows == 1 else 256 if images else 128))
    choices = {"KEPT": c >= KEEP, "ONE": c <= width, "SKIP": not images}
    return choices | {"R": rows, "C": width, "num_warps": warps}
