"""What is given to Triton's kernels, that they compile for GPUs, and where they are not used."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

triton = pytest.importorskip("triton")
ahead = pytest.importorskip("ahead")

from triton.backends.compiler import GPUTarget  # noqa: E402

from refocal.kernels import cuda as gpu  # noqa: E402
from refocal.kernels.cuda import launch as psi  # noqa: E402
from refocal.kernels.cuda.launch import on_device_of  # noqa: E402
from refocal.torch import cuda, focal_loss, which_form  # noqa: E402
from refocal.torch.cuda import sigmoid, softmax  # noqa: E402
from refocal.torch.eager import Sigmoid, Softmax  # noqa: E402
from refocal.torch.losses import _softmax  # noqa: E402

GAMMAS = {"number": 2.0, "classes": [1.0] * 40, "rows": "rows"}


@pytest.fixture
def launches(monkeypatch):
    found = ahead.Launches()
    monkeypatch.setattr(softmax, "launch", found)
    return found


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("soft", [False, True])
def test_nothing_waits_for_the_device_and_no_logits_are_copied(gamma, soft, launches):
    with FakeTensorMode():  # a look at a value raises
        z = torch.empty(2, 40, 3, 4, dtype=torch.float16)
        for x in (z, z.movedim(1, -1).contiguous().movedim(-1, 1), z[..., ::2], z[:1].expand_as(z)):
            rows = (2, *x.shape[2:])
            target = torch.empty_like(x) if soft else torch.empty(rows, dtype=torch.int64)
            of_rows = torch.empty(rows[1:]) if gamma == "rows" else GAMMAS[gamma]
            weight = torch.empty(40)
            p = _softmax(x, target, of_rows, weight, -100, 0.1, None)
            losses, kept = softmax.losses(p)
            mean = p.reduced(losses, "mean")
            slope = softmax.gradient(p, kept, mean.expand(rows))
            assert (losses.dtype, losses.shape, kept.shape) == (torch.float32, rows, (losses.numel(), 3))
            assert (slope.dtype, slope.shape) == (x.dtype, x.shape)
            assert all(args["z"] is x and args["grad_step"] == 0 for _, args in launches[1:])
            assert launches[0][1]["z"] is x
            launches.clear()


class Kernel(list):
    """Stands for a kernel: it keeps the tensors that it is launched with."""

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.append([x for x in args if isinstance(x, torch.Tensor)])

    def tensors(self):
        return list.__getitem__(self, -1)


def test_sigmoid_and_psi_wait_for_nothing_and_copy_no_logits(monkeypatch):
    kernel = Kernel()
    for module, names in (
        (sigmoid, ("sigmoid",)),
        (psi, ("psi_of_short_rows", "psi_of_long_rows")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, kernel)
    with FakeTensorMode():
        z = torch.empty(2, 40, 3, 4, dtype=torch.float16)
        for x in (z, z.to(memory_format=torch.channels_last)):
            y = torch.empty_like(x, dtype=torch.int64)
            p = Sigmoid(x, y, torch.empty(40, 1, 1), 0.25, 0.75, -1.0, 0.1)
            loss, kept = sigmoid.losses(p, "mean")
            assert kernel.tensors()[:2] == [x, y]
            slope = sigmoid.gradient(p, None, loss / kept)
            assert kernel.tensors()[:2] == [x, y]
            assert (loss.dtype, slope.dtype, slope.stride()) == (torch.float32, x.dtype, x.stride())
            found = psi.psi(x, 2.0, 1, logarithm=True, scores=False, log_weights=None)
            assert kernel.tensors()[0] is x
            assert (found.dtype, found.stride()) == (x.dtype, x.stride())
        rows = torch.empty(2, psi.LONGEST + 1)[:, 1:]
        psi.psi(rows, 2.0, 1, logarithm=True, scores=False, log_weights=None)
        assert kernel.tensors()[0] is rows


def test_gammas_of_classes_are_moved_once():
    z, y = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    with torch.inference_mode():
        first = _softmax(z, y, [0.0, 1.0, 2.0], None, -100, 0.0, None)
    second = _softmax(z.half(), y, (0.0, 1.0, 2.0), None, -100, 0.0, None)
    assert first.gammas is second.gammas
    assert first.gammas.tolist() == [0.0, 1.0, 2.0]
    focal_loss(z.requires_grad_(), y, [0.0, 1.0, 2.0]).backward()


def test_numbers_that_a_cuda_graph_reads_are_never_freed(monkeypatch):
    device = torch.device("cuda", 0)
    monkeypatch.setattr(gpu, "_captured", set())
    monkeypatch.setattr(gpu, "_moved", functools.lru_cache(2)(lambda values, *_: torch.tensor(values)))

    def is_freed(capturing):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
        found = weakref.ref(gpu.numbers_on((float(capturing), 2.0), torch.float32, device))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        for i in range(2):
            gpu.numbers_on((float(i), 7.0), torch.float32, device)
        return found() is None

    assert is_freed(False)
    assert not is_freed(True)


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_kernels_compile(capability, launches):
    z = torch.zeros(16, 2048, dtype=torch.bfloat16)
    p = _softmax(z, torch.zeros(16, dtype=torch.int64), 2.0, None, -100, 0.0, None)
    softmax.gradient(p, softmax.losses(p)[1], torch.ones(()))
    for kernel, args in launches:
        machine_code = ahead.compiled(kernel, args, capability)
        assert machine_code.asm["cubin"]
        assert "ld.global.v4.b32" in machine_code.asm["ptx"]  # eight numbers at a time


def test_a_launch_is_on_the_device_of_the_logits(monkeypatch):
    assert on_device_of(torch.zeros(1)).__enter__() is None
    entered = []
    monkeypatch.setattr(torch.cuda, "device", lambda d: entered.append(d) or contextlib.nullcontext())
    with FakeTensorMode():
        z = torch.empty(2, device="cuda:3")
    with on_device_of(z):
        pass
    assert entered == [torch.device("cuda", 3)]


# Where they are used


@pytest.fixture
def _another_look():
    gpu.usable.cache_clear()
    yield
    gpu.usable.cache_clear()


@pytest.mark.usefixtures("_another_look")
def test_a_driver_that_is_not_there_is_said_once(recwarn):
    if torch.cuda.is_available():
        pytest.skip("there is a driver")
    with FakeTensorMode():
        z = torch.empty(2, 3, device="cuda")
    with pytest.warns(RuntimeWarning, match=r"^refocal goes without Triton's kernels: 0 active drivers"):
        assert not cuda.serves(Softmax, z)
    assert not cuda.serves(Softmax, z)
    assert not recwarn.list


@pytest.mark.usefixtures("_another_look")
@pytest.mark.parametrize("arch, expected", [(61, False), (70, True), (90, True)])
def test_gpus_that_triton_compiles_for(arch, expected, monkeypatch):
    class Driver:
        def get_current_target(self):
            return GPUTarget("cuda", arch, 32)

    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    with FakeTensorMode():
        z = torch.empty(2, 3, device="cuda")
    assert cuda.serves(Softmax, z) is cuda.serves(Softmax, z.bfloat16()) is expected
    assert not cuda.serves(Softmax, z.double())
    assert not cuda.serves(Softmax, z.to("meta"))
    assert not cuda.serves(Sigmoid, z.double())


@pytest.mark.usefixtures("_another_look")
@pytest.mark.parametrize("without", ["triton", "switch"])
def test_without_triton(without, monkeypatch):
    if without == "triton":
        monkeypatch.setitem(sys.modules, "triton", None)
    else:
        monkeypatch.setattr(gpu, "wanted", lambda kind: kind == "cpu")
    with FakeTensorMode():
        z = torch.empty(2, 3, device="cuda")
    assert not cuda.serves(Softmax, z)


@pytest.mark.usefixtures("_another_look")
def test_the_interpreter_is_not_for_users(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert not cuda.serves(Softmax, torch.zeros(2, 3))
    assert which_form(torch.zeros(2, 3), torch.tensor([0, 1])) == "kernel"


def test_nothing_of_triton_is_imported_for_the_cpu():
    code = """
import sys, torch
from refocal.torch import focal_loss
focal_loss(torch.zeros(2, 3), torch.tensor([0, 1]))
print([m for m in sys.modules if m in ("triton", "torch._dynamo") or m.startswith("refocal.torch.cuda.")])
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "[]\n"
