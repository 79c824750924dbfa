"""Bins of all processes of torch.distributed, added up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np

from refocal._rows import Target, Task
from refocal.metrics.binning import Binned, Convention


def all_reduced(settings: Mapping[str, Any], binned: Binned, group: Any) -> tuple[Binned, Target | None]:
    """Return the sums over all processes, and the target of all of them.

    Raises:
        RuntimeError: If torch.distributed is not initialised.
        ValueError: In every process, if a setting differs between them.
    """
    import torch
    from torch import distributed

    if not distributed.is_initialized():
        raise RuntimeError("all_reduce needs torch.distributed.init_process_group to be called before")
    device = "cuda" if distributed.get_backend(group) == "nccl" else "cpu"
    target = _common_target(settings, lambda x, op: distributed.all_reduce(x, op, group=group), device)
    whole = torch.from_numpy(np.stack(binned[:2])).to(device)
    sums = torch.from_numpy(binned.sums.copy()).to(device)
    distributed.all_reduce(whole, group=group)
    distributed.all_reduce(sums, group=group)
    counts, hits = whole.cpu().numpy()
    return Binned(counts, hits, sums.cpu().numpy()), target


def _common_target(
    settings: Mapping[str, Any], reduce: Callable[[Any, Any], Any], device: str
) -> Target | None:
    """Return the target of all processes, after a check that their settings are the same."""
    import torch
    from torch.distributed import ReduceOp

    words = {"convention": get_args(Convention), "target": (None, *get_args(Target))}
    words["task"] = (None, *get_args(Task))
    mine = [words[name].index(x) if name in words else x or 0 for name, x in settings.items()]
    # One reduction for both ends: the largest of -x is minus the smallest.
    both = torch.tensor([mine, [-x for x in mine]], dtype=torch.int64, device=device)
    reduce(both, ReduceOp.MAX)
    most = dict(zip(settings, both[0].tolist(), strict=True))
    least = dict(zip(settings, (-both[1]).tolist(), strict=True))
    top = words["target"].index("top")
    for name, value in settings.items():
        if most[name] != least[name] and not (name == "target" and most[name] == top):
            raise ValueError(
                f"stats to reduce must have the same {name} in every process, got {value!r} in this one and "
                "another elsewhere"
            )
    target: Target | None = words["target"][most["target"]]
    return target
