"""The compiled kernels: the same losses and gradients as float64, at every edge."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from kernel_problems import problem, reference, value_and_gradient
from numba import carray, njit

from refocal import kernels
from refocal.torch import FocalLoss, cpu, focal_loss, sigmoid_focal_loss, which_form

entries = pytest.importorskip("refocal.kernels.entries")
machine = pytest.importorskip("refocal.kernels.machine")

GAMMAS = [0.0, 0.3, 1.0, 2.0, 2.5, 3.0, 5.0]


def assert_as_in_double(loss, z, v, gamma, tolerance):
    """Compare with `reference`, for every reduction; v are the targets as distributions."""
    losses, gradients, size = reference(z, v, gamma)
    n, size = len(z), size.amax(1, keepdim=True)
    tiny = 1e-36  # single precision ends there
    for reduction, exact, by in (("none", losses, 1), ("sum", losses.sum(), 1), ("mean", losses.mean(), n)):
        value, gradient = value_and_gradient(lambda z, r=reduction: loss(z, reduction=r), z)
        torch.testing.assert_close(value, exact, rtol=tolerance, atol=tiny)
        assert bool(((gradient - gradients / by).abs() <= tolerance * size / by + tiny).all())


def used(monkeypatch):
    """Return a list that grows with the name of each kernel that is used."""
    names = []
    run = cpu._run

    def spy(record, fields):
        names.append(f"{record.kernel} {('losses', 'gradient', 'both')[int(fields[0])]}")
        return run(record, fields)

    monkeypatch.setattr(cpu, "_run", spy)
    return names


# Kernels call the entries; for Python they need a function around.
exp = njit(lambda x: entries.exp(x))
log1p = njit(lambda x: entries.log1p(x))
miss = njit(lambda x: entries.exp_and_miss(x)[1])
neg_log_miss = njit(lambda q, miss: entries.neg_log_miss(q, miss))


def kernels_for(kind, c):
    """Return what every reduction of a loss of so many classes uses, in `used`'s words."""
    if c > cpu.FEW:
        return {f"{kind} losses", f"{kind} gradient"}
    return {f"{kind}_columns {what}" for what in ("losses", "gradient", "both")}


def neg_log(q):
    return neg_log_miss(q, np.float32(1) - q)


@pytest.mark.parametrize(
    "function, exact, points",
    [
        (exp, mpmath.exp, -np.geomspace(1e-30, 87.2, 2000)),
        (miss, lambda x: -mpmath.expm1(x), -np.geomspace(1e-30, 1e9, 2000)),
        (log1p, mpmath.log1p, np.geomspace(1e-37, 1, 2000)),
        # 1 - q is exact in single precision for these
        (neg_log, lambda q: -mpmath.log1p(-q), np.round(np.geomspace(1e-5, 0.9999, 2000) * 2**24) / 2**24),
    ],
    ids=["exp", "miss", "log1p", "neg_log_miss"],
)
def test_entries_against_mpmath(function, exact, points):
    for x in points.astype(np.float32):
        got, true = mpmath.mpf(float(function(x))), exact(mpmath.mpf(float(x)))
        assert abs(got - true) <= 4e-7 * abs(true)


def test_entries_at_the_edges():
    inf, nan, zero, one = (np.float32(x) for x in (np.inf, np.nan, 0, 1))
    assert [exp(zero), exp(-inf)] == [1, 0]
    assert [miss(zero), miss(-inf), log1p(zero)] == [0, 1, 0]
    assert np.isnan([exp(nan), miss(nan), log1p(nan)]).all()
    assert neg_log_miss(zero, one) == 0
    assert 87 < neg_log_miss(one, zero) < 88


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("n, c", [(1, 2), (300, 2), (450, 10), (9, 32), (9, 33), (50, 100), (2, 1000)])
def test_integers(n, c, gamma, monkeypatch):
    names = used(monkeypatch)
    for scale in (0.01, 3.0, 30.0, 1e4):
        z, y, _ = problem(n, c, scale)
        y[: n // 2] = z[: n // 2].argmax(1)  # next to p = 1
        # A difference of logits is rounded: by up to 80 * 6e-8 where its exponential still counts.
        tolerance = 1e-6 * (1 + gamma) if scale <= 3 else 6e-6 * (1 + gamma)
        v = torch.nn.functional.one_hot(y, c)
        assert_as_in_double(functools.partial(focal_loss, target=y, gamma=gamma), z, v, gamma, tolerance)
    assert set(names) == kernels_for("hard", c)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("n, c", [(1, 2), (300, 2), (450, 10), (9, 32), (50, 100), (2, 1000)])
def test_distributions(n, c, gamma, monkeypatch):
    names = used(monkeypatch)
    for scale in (0.01, 3.0, 30.0, 1e4):
        z, y, soft = problem(n, c, scale)
        y[: n // 2] = z[: n // 2].argmax(1)
        tolerance = 2e-6 * (1 + gamma) if scale <= 3 else 1e-5 * (1 + gamma)
        for v in (soft, torch.nn.functional.one_hot(y, c).float()):
            assert_as_in_double(functools.partial(focal_loss, target=v, gamma=gamma), z, v, gamma, tolerance)
    assert set(names) == kernels_for("soft", c)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize(
    "alpha", [None, 0.25, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]], ids=["none", "one", "classes"]
)
def test_sigmoid(gamma, alpha, monkeypatch):
    names = used(monkeypatch)
    of_one = 1 if alpha is None else torch.tensor(alpha, dtype=torch.float64)
    of_zero = 1 if alpha is None else 1 - of_one
    for scale in (0.01, 3.0, 30.0, 1e4):
        z, _, v = problem(300, 7, scale)
        for y in (v, (v > 0.2).float()):
            # Two classes with the logits z and 0.
            pairs = torch.stack([z.view(-1), torch.zeros(2100)], 1)
            one, slope_one, _ = reference(pairs, torch.tensor([[1.0, 0.0]]), gamma)
            zero, slope_zero, _ = reference(pairs, torch.tensor([[0.0, 1.0]]), gamma)
            one, slope_one = (of_one * y.double() * x.view(300, 7) for x in (one, slope_one[:, 0]))
            zero, slope_zero = (of_zero * (1 - y.double()) * x.view(300, 7) for x in (zero, slope_zero[:, 0]))
            loss = functools.partial(sigmoid_focal_loss, target=y, gamma=gamma, alpha=alpha)
            value, gradient = value_and_gradient(lambda z, f=loss: f(z, reduction="none"), z)
            tolerance = 2e-6 * (1 + gamma) if scale <= 3 else 1e-5 * (1 + gamma)
            torch.testing.assert_close(value, one + zero, rtol=tolerance, atol=1e-36)
            size = slope_one.abs() + slope_zero.abs()  # they have different signs
            assert bool(((gradient - slope_one - slope_zero).abs() <= tolerance * size + 1e-36).all())
            for reduction, by in (("sum", 1), ("mean", 2100)):
                value, same = value_and_gradient(lambda z, f=loss, r=reduction: f(z, reduction=r), z)
                torch.testing.assert_close(value, (one + zero).sum() / by, rtol=tolerance, atol=1e-36)
                torch.testing.assert_close(same, gradient / by, rtol=1e-6, atol=1e-36)
    assert set(names) == {"sigmoid losses", "sigmoid gradient"}


def test_rows_with_nan_and_masked_classes():
    z = torch.tensor([[0.0, 1.0, 2.0], [torch.nan, 0.0, 1.0], [0.0, -torch.inf, 1.0]])
    y = torch.tensor([2, 1, 0])
    for target in (y, torch.nn.functional.one_hot(y, 3).float()):
        loss, gradient = value_and_gradient(lambda z, t=target: focal_loss(z, t, 2.0, reduction="none"), z)
        assert loss.isnan().tolist() == [False, True, False]
        assert gradient.isnan().any(1).tolist() == [False, True, False]
        assert gradient[2, 1] == 0
    everything = torch.full((1, 3), -torch.inf)
    assert focal_loss(everything, y[:1], 2.0).isnan()


@pytest.mark.parametrize("c", [3, 40])
@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0, 2.5])
@pytest.mark.parametrize("low", [-torch.inf, -3e38])
def test_a_masked_target_pushes_with_all_its_weight(c, gamma, low):
    z = torch.zeros(2, c)
    z[0, 1] = low
    z[0, 0] = 3e38 if low > -torch.inf else 0.0
    loss, gradient = value_and_gradient(
        lambda z: focal_loss(z, torch.tensor([1, 0]), gamma, reduction="none"), z
    )
    assert loss[0] == torch.inf
    q = z[0].double().softmax(0)
    q[1] -= 1
    torch.testing.assert_close(gradient[0], q, rtol=1e-6, atol=0)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_infinite_scores(y):
    target = torch.full((2,), y)
    z = torch.tensor([torch.inf, -torch.inf])
    right, wrong = (0, 1) if y else (1, 0)
    loss, gradient = value_and_gradient(lambda z: sigmoid_focal_loss(z, target, 2.0, None, "none"), z)
    assert loss[[right, wrong]].tolist() == [0, torch.inf]
    assert gradient[[right, wrong]].abs().tolist() == [0, 1]


def test_confidently_wrong():
    z = torch.tensor([[80.0, 0.0]], requires_grad=True)
    focal_loss(z, torch.tensor([1]), 2.0).backward()
    assert z.grad.tolist() == [[1.0, -1.0]]


def test_ignored_rows():
    z, y, _ = problem(6, 40, 1.0)
    y[::2] = -100
    z[2] = torch.nan
    loss, gradient = value_and_gradient(lambda z: focal_loss(z, y, 2.0), z)
    kept, kept_gradient = value_and_gradient(lambda z: focal_loss(z, y[1::2], 2.0), z[1::2])
    assert loss == kept
    torch.testing.assert_close(gradient[1::2], kept_gradient, rtol=1e-6, atol=1e-9)
    assert not gradient[::2].any()
    assert focal_loss(z, torch.full((6,), -100), 2.0).isnan()
    assert focal_loss(z, torch.full((6,), -100), 2.0, reduction="sum") == 0


@pytest.mark.parametrize("c", [10, 40])
def test_labels_that_change_after_the_loss(c):
    # Memory that NumPy shares: autograd does not notice.
    labels = np.zeros(6, dtype=np.int64)
    z = torch.randn(6, c, requires_grad=True)
    losses = focal_loss(z, torch.from_numpy(labels), 2.0, reduction="none")
    total = focal_loss(z, torch.from_numpy(labels), 2.0, reduction="sum")
    (expected,) = torch.autograd.grad(focal_loss(z, torch.zeros(6, dtype=torch.int64), reduction="sum"), z)
    labels[3] = 10**12
    for loss in (losses.sum(), total):
        if loss is total and c <= cpu.FEW:  # of a few rows the gradient is there already
            assert torch.equal(torch.autograd.grad(loss, z)[0], expected)
            continue
        with pytest.raises(IndexError, match=r"^Target 1000000000000 is out of bounds\.$"):
            loss.backward()


@pytest.mark.parametrize(
    "unpack",
    [
        lambda t: t.t().contiguous().t() if t.ndim == 2 else t,
        lambda t: t.double() if t.is_floating_point() else t.int(),
        lambda t: torch.complex(0 * t, -t).conj().imag if t.is_floating_point() else t,  # the sign is a mark
    ],
    ids=["transposed", "other types", "signs elsewhere"],
)
def test_hooks_may_give_the_same_numbers_in_another_form(unpack):
    z, y, v = problem(5, 40, 1.0)
    for loss in (
        lambda z: focal_loss(z, y, 2.0),
        lambda z: focal_loss(z, v, 2.0),
        lambda z: sigmoid_focal_loss(z, v),
    ):
        x = z.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            value = loss(x)
        (gradient,) = torch.autograd.grad(value, x)
        torch.testing.assert_close(gradient.double(), value_and_gradient(loss, z)[1], rtol=1e-5, atol=1e-7)


def test_a_gradient_with_its_sign_elsewhere():
    z, y, _ = problem(3, 4, 1.0)
    upstream = torch.complex(torch.zeros(3), torch.ones(3)).conj().imag
    assert upstream.is_neg()
    x = z.requires_grad_()
    (gradient,) = torch.autograd.grad(focal_loss(x, y, 2.0, reduction="none"), x, upstream)
    (same,) = torch.autograd.grad(focal_loss(x, y, 2.0, reduction="none"), x, -torch.ones(3))
    assert torch.equal(gradient, same)


def test_one_gamma_a_row_or_a_class(monkeypatch):
    names = used(monkeypatch)
    z, y, _ = problem(40, 5, 2.0)
    rows = torch.rand(40, generator=torch.Generator().manual_seed(1)) * 4
    rows[:4] = torch.arange(4)
    per_class = [0.0, 1.0, 2.0, 3.0, 1.5]
    for gamma, of_row in ((rows, rows), (per_class, torch.tensor(per_class)[y])):
        loss, gradient = value_and_gradient(lambda z, g=gamma: focal_loss(z, y, g, reduction="none"), z)
        for i in range(40):
            v = torch.nn.functional.one_hot(y[i : i + 1], 5)
            exact, exact_gradient, _ = reference(z[i : i + 1], v, float(of_row[i]))
            torch.testing.assert_close(loss[i], exact[0], rtol=1e-5, atol=0)
            torch.testing.assert_close(gradient[i], exact_gradient[0], rtol=1e-5, atol=1e-9)
    assert set(names) == {"hard_columns losses", "hard_columns gradient"}


def test_a_sum_beyond_single_precision():
    z = torch.zeros(6, 2)
    z[:, 0] = -torch.inf
    v = torch.tensor([[1.0, 0.0]]).repeat(6, 1)
    assert focal_loss(z, v, 2.0, reduction="sum") == torch.inf


def test_a_long_row_adds_up_in_double():
    c = 1_000_000
    z = torch.zeros(1, c)
    torch.testing.assert_close(
        focal_loss(z, torch.tensor([0]), 0.0).double(), torch.tensor(float(c)).double().log()
    )
    total = sigmoid_focal_loss(z, torch.zeros(1, c), 2.5, None, "sum").double()
    torch.testing.assert_close(total, torch.tensor(c * 0.5**2.5 * np.log(2)), rtol=2e-6, atol=0)


def test_tracers_and_transforms_see_the_operations():
    from torch.fx.experimental.proxy_tensor import make_fx

    z, y, v = problem(3, 4, 1.0)
    traced = make_fx(lambda z, v: focal_loss(z, v, 2.0))(z, v)
    torch.testing.assert_close(traced(2 * z, v), focal_loss(2 * z, v, 2.0))
    slope = torch.func.grad(lambda a: focal_loss(z, y, 2.0) * a)(torch.tensor(1.0))
    torch.testing.assert_close(slope, focal_loss(z, y, 2.0))


def test_a_damaged_cache_is_not_used(monkeypatch):
    def fails_with_cache(*args, cache=False, **options):
        if cache:
            raise EOFError("Ran out of input")
        return cfunc(*args, **options)

    cfunc = machine.cfunc
    monkeypatch.setattr(machine, "cfunc", fails_with_cache)
    to = np.zeros(3)
    put(3, 3, 1, None, to, 0.5, to.ctypes.data)
    assert to.tolist() == [0.5, 1.5, 2.5]


@machine.kernel(x=machine.REAL, to=machine.INT)
def put(record):
    a = carray(record, 1)[0]
    to = carray(machine.doubles(a.to), a.count)
    part, first, last = machine.next_part(record, a.parts, a.count)
    while part < a.parts:
        for i in range(first, last):
            to[i] = i + a.x
        part, first, last = machine.next_part(record, a.parts, a.count)


def test_kernels_share_no_closures():
    # Compiled in two processes, code of closures with one name is taken for one another: gradients were
    # loaded where they should have been stored.
    columns = kernels.load("columns")
    shared = {name: x.py_func.__qualname__ for name, x in vars(columns).items() if hasattr(x, "py_func")}
    assert "move" in shared
    assert not [name for name, qualified in shared.items() if "<locals>" in qualified]


def test_code_is_kept_under_the_hash_of_all_sources():
    from refocal.kernels import softmax

    softmax.hard.code  # noqa: B018
    assert softmax.hard.function.__qualname__ == f"hard_{machine.SOURCES}"
    kept = list(Path(softmax.__file__).parent.glob(f"__pycache__/*{machine.SOURCES}*.nbi"))
    assert kept or os.environ.get("NUMBA_CACHE_DIR")


def test_the_defaults_of_torch_do_not_matter():
    z, y, _ = problem(5, 40, 1.0)
    expected = value_and_gradient(lambda z: focal_loss(z, y, 2.0), z)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            loss = focal_loss(z, y, 2.0)
            assert (loss.dtype, loss.device.type) == (torch.float32, "cpu")
            for got, same in zip(
                value_and_gradient(lambda z: focal_loss(z, y, 2.0), z), expected, strict=True
            ):
                assert torch.equal(got, same)
    finally:
        torch.set_default_dtype(torch.float32)


class Wrapped(torch.Tensor):
    pass


def test_what_machine_code_is_not_used_for():
    z, y, _ = problem(4, 6, 1.0)
    assert which_form(z, y) == which_form(torch.nn.Parameter(z), y) == "kernel"
    assert which_form(z.double(), y) == "eager"
    for x in (z.to_sparse(), z.to("meta"), z.as_subclass(Wrapped)):
        assert which_form(x, y) == "formula"
    for logits, target in ((z, y.int()), (z.as_subclass(Wrapped), y), (z.double(), y)):
        torch.testing.assert_close(focal_loss(logits, target, 2.0).float(), focal_loss(z, y, 2.0))


LAYOUTS = {
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "classes last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "every other": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x[:1].expand_as(x),
    "reversed axes": lambda x: (
        x.permute(*reversed(range(x.ndim))).contiguous().permute(*reversed(range(x.ndim)))
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize(
    "shape",
    [(9, 7), (1, 7), (5, 7, 3), (1, 7, 4, 6), (2, 7, 4, 6), (9, 100), (2, 100, 19), (3, 5000), (2, 5000, 3)],
)
def test_every_layout_of_logits_and_targets(layout, shape, monkeypatch):
    names = used(monkeypatch)
    g = torch.Generator().manual_seed(0)
    plain = torch.randn(shape, generator=g) * 3
    y = torch.randint(shape[1], (shape[0], *shape[2:]), generator=g)
    v = layout(torch.rand(shape, generator=g).mul(4).softmax(1))
    z = layout(plain)
    for target in (y, layout(y.unsqueeze(1)).squeeze(1), v):
        for loss in (
            lambda z, t=target: focal_loss(z, t, 2.0, reduction="none"),
            lambda z, t=target: focal_loss(z, t, 1.5, label_smoothing=0.1),
        ):
            x = z.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(x).sum(), x)
            expected, expected_gradient = value_and_gradient(loss, z.contiguous())
            torch.testing.assert_close(loss(z).double(), expected, rtol=1e-6, atol=1e-12)
            # With 100 classes the layout decides between two kernels: what cancels differs within a row.
            atol = 1e-12 if shape[1] != 100 else 1e-6 * expected_gradient.abs().max()
            torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-6, atol=atol)
    x = z.detach().requires_grad_()
    for reduction in ("none", "mean"):
        (gradient,) = torch.autograd.grad(sigmoid_focal_loss(x, v, reduction=reduction).sum(), x)
        expected = value_and_gradient(
            lambda z, r=reduction: sigmoid_focal_loss(z, v, reduction=r), z.contiguous()
        )
        torch.testing.assert_close(gradient.double(), expected[1], rtol=1e-6, atol=1e-12)
    assert {name.split("_")[0].split()[0] for name in names} == {"hard", "soft", "sigmoid"}


def test_the_gradient_by_the_targets():
    z, _, v = problem(4, 6, 1.0)
    for loss in (focal_loss, sigmoid_focal_loss):
        (got,) = torch.autograd.grad(loss(z, v.requires_grad_()), v)
        w = v.detach().double().requires_grad_()
        (exact,) = torch.autograd.grad(loss(z.double(), w), w)
        torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-7)


def test_second_derivatives():
    z, y, v = problem(4, 6, 1.0)
    for loss in (
        lambda z: focal_loss(z, y, 2.0),
        lambda z: focal_loss(z, v.to(z.dtype), 2.0, reduction="none").square().sum(),
        lambda z: sigmoid_focal_loss(z, v.to(z.dtype)),
    ):
        hessians = []
        for x in (z, z.double()):
            x = x.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(x), x, create_graph=True)
            (second,) = torch.autograd.grad(gradient.square().sum(), x)
            hessians.append(second.double())
        torch.testing.assert_close(*hessians, rtol=1e-4, atol=1e-7)


def test_what_is_kept():
    # The gradient of up to 64 KiB; of more logits nothing, or three numbers of a long row.
    for n, c, most in ((64, 10, 1), (1639, 10, 0), (513, 32, 0), (512, 33, 3 / 33), (64, 1000, 3 / 1000)):
        z, y, _ = problem(n, c, 1.0)
        sizes, known = [], {z.data_ptr(), y.data_ptr()}

        def pack(t, known=known, sizes=sizes):
            if t.data_ptr() not in known:
                sizes.append(t.numel())
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            focal_loss(z.requires_grad_(), y, 2.0)
        assert sum(sizes) <= most * z.numel()


WITHOUT = """
import sys
if "broken" in sys.argv: sys.modules["numba"] = None
import torch
from refocal.torch import focal_loss, which_form
z, y = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
print(which_form(z, y), round(float(focal_loss(z, y)), 4))
"""


@pytest.mark.parametrize(
    "args, variables",
    [
        (["broken"], {}),
        ([], {"NUMBA_DISABLE_JIT": "1"}),
        ([], {"REFOCAL_KERNELS": "off"}),
        ([], {"REFOCAL_KERNELS": "cuda"}),
    ],
)
def test_without_numba(args, variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-W", "error", "-c", WITHOUT, *args]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "eager 0.0875\n"


def test_numba_that_cannot_be_loaded_is_said_once(tmp_path):
    (tmp_path / "llvmlite.py").write_text(
        "raise ModuleNotFoundError('No module named llvmlite', name='llvmlite')"
    )
    code = "import torch; from refocal.torch import focal_loss; z = torch.zeros(1, 2)\n"
    code += "for _ in range(2): print(round(float(focal_loss(z, torch.tensor([0]))), 4))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )
    assert run.stdout == "0.1733\n0.1733\n"
    assert run.stderr.count("refocal goes without compiled kernels: No module named llvmlite") == 1


def test_a_switch_that_does_not_exist(monkeypatch):
    monkeypatch.setattr(cpu, "_kernels", None)
    monkeypatch.setattr(kernels, "_usable", kernels._usable.__wrapped__)
    monkeypatch.setattr(kernels, "wanted", kernels.wanted.__wrapped__)
    monkeypatch.setenv("REFOCAL_KERNELS", "on")
    with pytest.raises(
        ValueError, match=r"^REFOCAL_KERNELS must be 'off', 'cpu', 'cuda' or 'all', got 'on'$"
    ):
        focal_loss(torch.zeros(1, 2), torch.tensor([0]))


def test_training_with_and_without_kernels_is_the_same(monkeypatch):
    def weights(kernels):
        monkeypatch.setattr(cpu, "_kernels", kernels)
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        x, y = torch.randn(50, 5), torch.arange(50) % 3
        for _ in range(30):
            optimizer.zero_grad()
            FocalLoss(2.0)(model(x), y).backward()
            optimizer.step()
        return model.weight.detach()

    torch.testing.assert_close(weights(cpu.kernels()), weights({}), rtol=1e-5, atol=1e-6)
