"""The device, the threads and the memory of a run that uses PyTorch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch

from refocal.experiments.sweeps.origin import NOT_RECORDED, machine, processor_model, versions
from refocal.experiments.sweeps.together import agreed, from_all, place, process_group
from refocal.experiments.sweeps.workers import Workers


@contextlib.contextmanager
def together_on(device: str, threads: int, workers: Workers | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Join the processes of torchrun, if it has started several: all that it and devices ask of a study.

    Gives the device of this process, and how `carry_out` has to do the runs.

    Raises:
        ValueError: If there is no such device, or an option was given that torchrun has decided.
    """
    if workers is not None:
        workers.check_together()  # before anybody waits for the others
    with process_group(device) as (_, processes):
        with agreed():
            device = device_of(device, workers, processes)
        yield device, {"threads": threads, "on_gpu": on_gpu(device), "together": processes > 1}


def device_of(name: str, workers: Workers | None, processes: int = 1) -> str:
    """Return the device for the runs of this process, after a look whether it is there.

    A Ray run takes a GPU only if it asks for one, and its workers have devices of their own. Processes that
    do each run together take a GPU each.

    Raises:
        ValueError: If there is no such device, or a Ray run would have no GPU.
    """
    if workers is not None and workers.engine == "ray":
        if workers.gpus_per_run:
            return name
        if name.startswith("cuda"):
            raise ValueError(
                f"device {name!r} with engine 'ray' needs a GPU for each run: --gpus-per-run, for example 1 "
                "or 0.5"
            )
        return "cpu" if name == "auto" else name
    if processes > 1 and name in ("auto", "cuda") and on_gpu(name):
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    if name != "auto":
        _check_device(name)
    if processes > 1 and name.startswith("cuda:"):
        torch.cuda.set_device(name)
    return name


def on_gpu(name: str) -> bool:
    """Return whether a run with this device takes the GPU of this machine."""
    return name.startswith("cuda") or (name == "auto" and torch.cuda.is_available())


def _check_device(name: str) -> None:
    try:
        device = torch.device(name)
        here = device.type != "cuda" or (device.index or 0) < torch.cuda.device_count()
        if device.type not in ("cpu", "cuda"):
            torch.zeros(1, device=device).cpu()
    except Exception as error:  # each kind of device has errors of its own
        raise ValueError(f"device must be one of this machine, got {name!r} ({error})") from None
    if not here:
        count = torch.cuda.device_count()
        raise ValueError(f"device must be one of this machine, got {name!r}; it has {count} CUDA devices")


def made_with(device: torch.device, compile: bool, loss: str) -> dict[str, Any]:
    """Return what the last bits of a training depend on, beside its config and its data.

    ``processor`` is the kind of the processor or of the GPU, ``model`` the numbers that tell processors of
    one name apart (empty where the system does not say), ``instructions`` the largest vector instructions
    that PyTorch uses on the processor, ``onednn`` the limit that the environment sets on those of its
    convolutions, ``loss`` the form of the loss that `refocal.torch.which_form` names (with Numba installed
    another one than without), ``commit`` the source of refocal. Where the processes of torchrun differ, each
    value is named.
    """
    gpu = device.type == "cuda"
    found: dict[str, Any] = {
        "device": device.type,
        "threads": torch.get_num_threads(),
        "compile": compile,
        "processes": place()[1],
        "processor": torch.cuda.get_device_name(device) if gpu else machine()["processor"],
        "model": "" if gpu else processor_model() or "",
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "onednn": _onednn_limit(),
        "torch": str(torch.__version__),
        "loss": loss,
        "commit": versions().get("commit", NOT_RECORDED),
    }
    everywhere = from_all(found)
    for name in ("processor", "model", "instructions", "onednn", "torch", "loss", "commit"):
        found[name] = " and ".join(sorted({one[name] for one in everywhere}))
    return found


def _onednn_limit() -> str:
    """Return the largest vector instructions that oneDNN may use; it reads the older name after the newer."""
    limit = (os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "").upper()
    return "no limit" if limit in ("", "ALL", "DEFAULT") else limit


@contextlib.contextmanager
def torch_threads(n: int) -> Iterator[None]:
    """Let PyTorch use n threads on the CPU inside: sums, so all numbers, depend on it in the last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Let the C library keep the memory that a training step frees, up to 2 GiB, for the next step.

    By default glibc gives buffers of many megabytes back to the system, which has to clear and map their
    pages again in the next step. Kept memory has far fewer of these page faults. Other C libraries are left
    as they are.
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # the names of the options in malloc.h
            mallopt(mmap_threshold, 32 << 20)
            mallopt(trim_threshold, (2 << 30) - 1)
            mallopt(top_pad, 64 << 20)
