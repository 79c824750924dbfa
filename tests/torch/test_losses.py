"""FocalLoss, SigmoidFocalLoss, Posterior: cross entropy's manners, exact gradients, true probabilities."""

from __future__ import annotations

import io
import itertools
import re
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import refocal
from refocal import Focal, SigmoidFocal
from refocal.torch import (
    FocalLoss,
    Posterior,
    SigmoidFocalLoss,
    cpu,
    focal_gradient,
    focal_loss,
    sigmoid_focal_loss,
)

GAMMAS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0]


@pytest.fixture(autouse=True, params=["with kernels", "without"])
def _kernels(request, monkeypatch):
    """Every test runs both ways: what kernels do not take, and where Numba is missing, must be the same."""
    if request.param == "without":
        monkeypatch.setattr(cpu, "_kernels", {})


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SHAPES = [(5,), (7, 5), (2000, 5), (3, 5, 4), (2, 5, 3, 2), (200, 70)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_gamma_zero_is_cross_entropy(shape, dtype, tolerance):
    g = seeded()
    axis = 1 if len(shape) > 1 else 0
    c = shape[axis]
    rows = shape[:axis] + shape[axis + 1 :]
    weights = torch.rand(c, generator=g, dtype=dtype) + 0.1
    labels = torch.randint(c, rows, generator=g)
    some = torch.where(torch.rand(rows, generator=g) < 0.3, -100, labels)
    soft = torch.rand(shape, generator=g, dtype=dtype).softmax(axis)
    for reduction, weight, smoothing, target in itertools.product(
        ("mean", "sum", "none"),
        (None, weights),
        (0.0, 0.1, 0.9),
        (labels, some, torch.full(rows, -100), soft),
    ):
        a = (torch.randn(shape, generator=seeded(1), dtype=dtype) * 3).requires_grad_()
        b = a.detach().clone().requires_grad_()
        options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
        ours, theirs = focal_loss(a, target, 0.0, **options), F.cross_entropy(b, target, **options)
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
        ours.sum().backward()
        theirs.sum().backward()
        # with everything ignored the mean is 0/0, and its gradient of no use
        if not theirs.isnan().any():
            torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance)


def test_ignored_rows_have_no_gradient():
    z = torch.randn(4, 3, generator=seeded(), requires_grad=True)
    focal_loss(z, torch.tensor([0, 7, 2, 7]), 2.0, ignore_index=7, label_smoothing=0.1).backward()
    assert (z.grad[[1, 3]] == 0).all()
    assert (z.grad[[0, 2]] != 0).all()


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("shape", [(6, 4), (1500, 6), (40, 70)], ids=str)
def test_values_and_gradients_are_the_core_s(gamma, shape):
    g = seeded(2)
    z = torch.randn(shape, generator=g, dtype=torch.float64) * 4
    labels, soft = (
        torch.randint(shape[1], shape[:1], generator=g),
        torch.rand(shape, generator=g).double().softmax(1),
    )
    for target in (labels, soft):
        a, b = z.clone().requires_grad_(), z.clone().requires_grad_()
        ours, core = focal_loss(a, target, gamma, reduction="none"), refocal.focal_loss(b, target, gamma)
        torch.testing.assert_close(ours, core, rtol=1e-9, atol=1e-13)
        weights = torch.randn(shape[0], generator=g, dtype=torch.float64)
        (ours * weights).sum().backward()
        (core * weights).sum().backward()
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-13)
    a, b = z.clone().requires_grad_(), z.clone().requires_grad_()
    spec = SigmoidFocal(gamma, 0.3)
    for target in ((soft > 0.2).double(), soft):
        for reduction in ("none", "sum", "mean"):
            ours = sigmoid_focal_loss(a, target, gamma, 0.3, reduction)
            core = spec.loss(b, target)
            core = {"none": core, "sum": core.sum(), "mean": core.mean()}[reduction]
            torch.testing.assert_close(ours, core, rtol=1e-9, atol=1e-13)
            torch.testing.assert_close(
                torch.autograd.grad(ours.sum(), a)[0],
                torch.autograd.grad(core.sum(), b)[0],
                rtol=1e-9,
                atol=1e-13,
            )


@pytest.mark.parametrize("gamma", GAMMAS)
def test_gradcheck_and_gradgradcheck(gamma):
    z = (torch.randn(5, 3, generator=seeded(3), dtype=torch.float64) * 2).requires_grad_()
    soft = torch.rand(5, 3, generator=seeded(4), dtype=torch.float64).softmax(1)
    weight = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    cases = [
        lambda x: focal_loss(x, torch.tensor([0, 1, 2, -100, 1]), gamma, weight, label_smoothing=0.1),
        lambda x: focal_loss(x, torch.tensor([0, 1, 2, 0, 1]), gamma, reduction="none"),
        lambda x: focal_loss(x, soft, gamma, weight),
        lambda x: sigmoid_focal_loss(x, soft, gamma),
        lambda x: sigmoid_focal_loss(x, (soft > 0.3).double(), gamma, reduction="none"),
    ]
    for f in cases:
        assert torch.autograd.gradcheck(f, z)
        assert torch.autograd.gradgradcheck(f, z)


def test_gradients_of_soft_targets():
    z = torch.randn(4, 3, generator=seeded(), dtype=torch.float64, requires_grad=True)
    v = torch.rand(4, 3, generator=seeded(1), dtype=torch.float64).softmax(1).requires_grad_()
    assert torch.autograd.gradcheck(lambda z, v: focal_loss(z, v, 1.5), (z, v))
    assert torch.autograd.gradcheck(lambda z, v: sigmoid_focal_loss(z, v, 1.5), (z, v))


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize(
    "dtype, largest",
    [(torch.float32, 1e4), (torch.float64, 1e4), (torch.float16, 6e4), (torch.bfloat16, 6e4)],
)
def test_first_and_second_derivatives_are_finite(gamma, dtype, largest):
    g = seeded(5)
    scales = torch.tensor([0.0, 1.0, 10.0, 30.0, 80.0, 100.0, 1000.0, largest])
    z = torch.randn(64, 4, generator=g).clamp(-1, 1) * scales.repeat(8)[:, None]
    labels, soft = torch.arange(64) % 4, torch.eye(4).repeat(16, 1).to(dtype)
    for f in (
        lambda x: focal_loss(x, labels, gamma),
        lambda x: focal_loss(x, soft, gamma, label_smoothing=0.1),
        lambda x: sigmoid_focal_loss(x, soft, gamma),
    ):
        x = z.to(dtype).requires_grad_()
        plain = torch.autograd.grad(f(x), x)[0]
        assert torch.isfinite(plain).all()
        first = torch.autograd.grad(f(x), x, create_graph=True)[0]
        torch.testing.assert_close(first, plain, rtol=1e-2 if dtype.itemsize == 2 else 1e-4, atol=1e-6)
        second = torch.autograd.grad(first.float().square().sum(), x)[0]
        assert torch.isfinite(second).all()


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("n", [1, 1000])
def test_a_confidently_wrong_sample_gets_its_full_gradient(gamma, n):
    z = torch.tensor([[80.0, 0.0, 0.0]]).repeat(n, 1).requires_grad_()
    focal_loss(z, torch.ones(n, dtype=torch.long), gamma, reduction="sum").backward()
    torch.testing.assert_close(z.grad[0], torch.tensor([1.0, -1.0, 0.0]))
    s = torch.full((n,), 80.0, requires_grad=True)
    sigmoid_focal_loss(s, torch.zeros(n), gamma, None, "sum").backward()
    torch.testing.assert_close(s.grad, torch.ones(n))


def test_masked_classes():
    z = torch.tensor([[1.0, -torch.inf, 2.0], [0.0, -torch.inf, -torch.inf]], requires_grad=True)
    loss = focal_loss(z, torch.tensor([0, 0]), 2.0, reduction="none")
    torch.testing.assert_close(loss[0], focal_loss(torch.tensor([1.0, 2.0]), torch.tensor(0), 2.0))
    assert loss[1] < 1e-30
    loss.sum().backward()
    assert torch.isfinite(z.grad).all()
    v = torch.tensor([[0.5, 0.0, 0.5], [1.0, 0.0, 0.0]])
    assert torch.isfinite(focal_loss(z, v, 2.0))


@pytest.mark.parametrize("n, c", [(2, 3), (4000, 3), (20, 70), (20_000, 70)])
def test_a_masked_target_and_a_masked_class_in_an_ignored_row(n, c):
    z = torch.tensor([[-torch.inf, 1.0, 2.0, *[-torch.inf] * (c - 3)]]).repeat(n, 1).requires_grad_()
    labels = torch.zeros(n, dtype=torch.long)
    assert focal_loss(z, labels, 2.0) == torch.inf
    labels[0], labels[1:] = -100, 1
    loss = focal_loss(z, labels, 2.0)
    torch.testing.assert_close(loss, focal_loss(torch.tensor([1.0, 2.0]), torch.tensor(0), 2.0))
    loss.backward()
    assert torch.isfinite(z.grad).all()
    assert (z.grad[0] == 0).all()


def test_gamma_of_classes_and_of_rows():
    g = seeded(6)
    z = torch.randn(6, 3, 4, generator=g, dtype=torch.float64)
    labels = torch.randint(3, (6, 4), generator=g)
    soft = torch.rand(6, 3, 4, generator=g, dtype=torch.float64).softmax(1)
    per_class = [0.5, 2.0, 3.0]
    expected = Focal(per_class).loss(z, labels, axis=1)
    torch.testing.assert_close(focal_loss(z, labels, per_class, reduction="none"), expected)
    torch.testing.assert_close(
        focal_loss(z, soft, per_class, reduction="none"), Focal(per_class).loss(z, soft, axis=1)
    )
    per_row = torch.rand(6, 1, generator=g, dtype=torch.float64) * 3
    rows = per_row.expand(6, 4)
    torch.testing.assert_close(
        focal_loss(z, labels, per_row, reduction="none"), refocal.focal_loss(z, labels, rows, axis=1)
    )
    torch.testing.assert_close(
        focal_loss(z, soft, per_row, reduction="none"), refocal.focal_loss(z, soft, rows, axis=1)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_autocast(dtype):
    z = (torch.randn(8, 5, generator=seeded(7)) * 20).to(dtype)
    labels = torch.arange(8) % 5
    assert focal_loss(z, labels).dtype == dtype
    torch.testing.assert_close(focal_loss(z, labels), focal_loss(z.float(), labels).to(dtype))
    assert sigmoid_focal_loss(z, torch.ones_like(z)).dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = torch.randn(8, 5, generator=seeded(8)).requires_grad_()
        logits = x @ torch.eye(5)
        assert logits.dtype == torch.bfloat16
        loss = focal_loss(logits, labels)
        assert loss.dtype == F.cross_entropy(logits, labels).dtype == torch.float32
        torch.testing.assert_close(loss, focal_loss(logits.float(), labels))
    loss.backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.func's own imports
def test_functional_transforms():
    z = torch.randn(6, 4, generator=seeded(9), dtype=torch.float64)
    labels = torch.arange(6) % 4
    soft = torch.rand(6, 4, generator=seeded(10), dtype=torch.float64).softmax(1)
    for f in (
        lambda x: focal_loss(x, labels, 1.5),
        lambda x: focal_loss(x, soft, 1.5),
        lambda x: sigmoid_focal_loss(x, soft, 1.5),
    ):
        leaf = z.clone().requires_grad_()
        torch.testing.assert_close(torch.func.grad(f)(z), torch.autograd.grad(f(leaf), leaf)[0])
        torch.testing.assert_close(torch.func.jacrev(f)(z), torch.func.grad(f)(z))
        torch.testing.assert_close(
            torch.func.hessian(f)(z), torch.autograd.functional.hessian(f, z), rtol=1e-9, atol=1e-12
        )
    rows = torch.func.vmap(lambda x, y: focal_loss(x, y, 1.5))(z, labels)
    torch.testing.assert_close(rows, focal_loss(z, labels, 1.5, reduction="none"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compile_in_one_graph():
    z = torch.randn(6, 4, generator=seeded(11), requires_grad=True)
    labels = torch.tensor([0, 1, 2, 3, -100, 1])
    soft = torch.rand(6, 4, generator=seeded(12)).softmax(1)
    for f in (
        FocalLoss(2.0, torch.tensor([1.0, 2.0, 0.5, 1.0]), label_smoothing=0.1),
        FocalLoss(0.5),
        SigmoidFocalLoss(),
        Posterior(Focal(2.0)),
    ):
        args = (z,) if isinstance(f, Posterior) else (z, soft if isinstance(f, SigmoidFocalLoss) else labels)
        torch._dynamo.reset()
        compiled = torch.compile(f, fullgraph=True)
        torch.testing.assert_close(compiled(*args), f(*args))
        torch.testing.assert_close(
            torch.autograd.grad(compiled(*args).sum(), z)[0],
            torch.autograd.grad(f(*args).sum(), z)[0],
            atol=1e-6,
            rtol=1e-4,
        )


def saved_beyond(inputs: tuple[torch.Tensor, ...], call) -> int:
    """Return the bytes that autograd keeps of a call, besides its inputs."""
    saved: dict[int, int] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        saved[t.data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        call(*inputs)
    known = {x.data_ptr() for x in inputs}
    return sum(size for pointer, size in saved.items() if pointer not in known)


@pytest.mark.parametrize("shape", [(65536, 10), (4096, 100)])
def test_little_is_saved_for_the_backward_pass(shape):
    z = torch.randn(shape, generator=seeded(), requires_grad=True)
    labels = torch.randint(shape[1], shape[:1], generator=seeded())
    soft = torch.rand(shape, generator=seeded()).softmax(1)
    for call, target in ((focal_loss, labels), (focal_loss, soft), (sigmoid_focal_loss, soft)):
        assert saved_beyond((z, target), call) <= 0.1 * z.nbytes + 64
    assert saved_beyond((z, labels), F.cross_entropy) > z.nbytes  # the measure works


def minimise(risk, shape: tuple[int, ...]) -> torch.Tensor:
    z = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [z], max_iter=300, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        loss = risk(z)
        loss.backward()
        return loss

    optimiser.step(closure)
    return z.detach()


@pytest.mark.parametrize(
    "criterion",
    [
        FocalLoss(3.0, reduction="none"),
        FocalLoss([0.5, 2.0, 1.0], [1.0, 2.0, 0.5], reduction="none", label_smoothing=0.1),
        FocalLoss(torch.tensor(2.0), reduction="none"),
    ],
    ids=repr,
)
def test_posterior_whatever_the_options(criterion):
    eta = torch.tensor([[0.7, 0.2, 0.1], [0.05, 0.15, 0.8]], dtype=torch.float64)
    z = minimise(
        lambda z: sum((eta[:, k] * criterion(z, torch.full((2,), k))).sum() for k in range(3)), (2, 3)
    )
    torch.testing.assert_close(criterion.posterior(z), eta, atol=1e-6, rtol=0)
    torch.testing.assert_close(criterion.log_posterior(z).exp(), eta, atol=1e-6, rtol=0)


def test_sigmoid_posterior_by_an_optimiser():
    criterion = SigmoidFocalLoss(2.0, 0.25, reduction="sum")
    eta = torch.tensor([0.01, 0.2, 0.5, 0.9], dtype=torch.float64)
    z = minimise(lambda z: criterion(z, eta), (4,))
    torch.testing.assert_close(criterion.posterior(z), eta, atol=1e-6, rtol=0)


def test_posterior_takes_the_second_axis():
    z = torch.randn(2, 3, 4, 5, generator=seeded())
    p = FocalLoss(2.0).posterior(z)
    torch.testing.assert_close(p.sum(1), torch.ones(2, 4, 5))
    torch.testing.assert_close(Posterior(Focal(2.0))(z), p)
    torch.testing.assert_close(Posterior(Focal(2.0))(z[0, :, 0, 0]), p[0, :, 0, 0])


def test_training_gives_the_truth_back():
    """A small network on data with a known posterior: psi is what the raw scores lack."""
    torch.manual_seed(0)
    x = torch.rand(20_000, 1) * 6 - 3
    truth = torch.cat([1.5 * x, 0.3 * x**2 - 1, -1.5 * x], 1).softmax(1)
    labels = torch.multinomial(truth, 1).squeeze(1)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 3))
    criterion = FocalLoss(gamma=3.0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(6):
        for rows in torch.randperm(len(x)).split(500):
            optimiser.zero_grad()
            criterion(model(x[rows]), labels[rows]).backward()
            optimiser.step()
    with torch.no_grad():
        logits = model(x)

    def kl(log_probs):
        return (truth * (truth.log() - log_probs)).sum(1).mean().item()

    raw, recovered = kl(logits.log_softmax(1)), kl(criterion.log_posterior(logits))
    assert raw > 10 * recovered
    assert recovered < 0.01


def test_state_dict_device_and_repr():
    criterion = FocalLoss(2.0, weight=[1.0, 2.0], label_smoothing=0.1, reduction="sum", ignore_index=5)
    assert repr(criterion) == (
        "FocalLoss(gamma=2.0, weight=[1.0, 2.0], ignore_index=5, reduction='sum', label_smoothing=0.1)"
    )
    other = FocalLoss(2.0, weight=[1.0, 1.0])
    other.load_state_dict(criterion.state_dict())
    assert other.objective.weight == (1.0, 2.0)
    assert criterion.double().weight.dtype == torch.float64
    assert criterion.to("meta").weight.device.type == "meta"
    assert repr(SigmoidFocalLoss()) == "SigmoidFocalLoss(gamma=2.0, alpha=0.25, reduction='mean')"
    assert SigmoidFocalLoss(alpha=None).objective == SigmoidFocal(alpha=None)
    assert repr(Posterior(Focal())) == "Posterior(Focal(gamma=2.0, weight=None, label_smoothing=0.0))"
    buffer = io.BytesIO()
    torch.save(Posterior(Focal(3.0)), buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=False).objective == Focal(3.0)


Z = torch.zeros(2, 3)
CASES = [
    (
        lambda: focal_loss(Z, torch.zeros(3, dtype=torch.long)),
        ValueError,
        "target must have the shape (2,) (class indices), got (3,)",
    ),
    (
        lambda: focal_loss(Z, torch.zeros(2)),
        ValueError,
        "target must have the shape (2, 3) (probabilities), got (2,)",
    ),
    (
        lambda: focal_loss(Z.long(), torch.zeros(2, dtype=torch.long)),
        TypeError,
        "logits must hold floating point numbers, got dtype torch.int64",
    ),
    (
        lambda: focal_loss(torch.tensor(1.0), torch.tensor(0)),
        ValueError,
        "logits must have a class axis, got a single number",
    ),
    (
        lambda: focal_loss(Z, torch.zeros(2, dtype=torch.long), reduction="avg"),
        ValueError,
        "reduction must be one of mean, sum, none, got 'avg'",
    ),
    (lambda: FocalLoss(reduction="avg"), ValueError, "reduction must be one of mean, sum, none, got 'avg'"),
    (
        lambda: FocalLoss(weight=[1.0, -1.0]),
        ValueError,
        "weight must hold one finite number >= 0 for each class, got [1.0, -1.0]",
    ),
    (
        lambda: focal_loss(Z, torch.zeros(2, dtype=torch.long), weight=torch.ones(2)),
        ValueError,
        "weight must have one number for each of the 3 classes, got shape (2,)",
    ),
    (lambda: FocalLoss(gamma=-1), ValueError, "gamma must be finite and >= 0, got -1"),
    (
        lambda: FocalLoss(torch.tensor(1.0, requires_grad=True)),
        ValueError,
        "gamma must not require a gradient, got a tensor that does",
    ),
    (
        lambda: FocalLoss(torch.tensor([1.0, -1.0])),
        ValueError,
        "gamma must be finite and >= 0, got a tensor with other values",
    ),
    (
        lambda: focal_loss(Z, torch.zeros(2, dtype=torch.long), [1.0, 2.0]),
        ValueError,
        "gamma must have one number for each of the 3 classes, got 2",
    ),
    (
        lambda: focal_loss(Z, torch.zeros(2, dtype=torch.long), torch.ones(3)),
        ValueError,
        "gamma must broadcast to the rows (2,), got shape (3,)",
    ),
    (
        lambda: FocalLoss(torch.ones(2)).objective,
        ValueError,
        "gamma must be a number or one for each class to have a posterior, got one for each row",
    ),
    (
        lambda: focal_loss(Z, torch.tensor([0, 1]), weight=torch.ones(3, requires_grad=True)),
        ValueError,
        "weight must not require a gradient, got a tensor that does",
    ),
    (
        lambda: focal_loss(Z, torch.tensor([0, 1]), ignore_index=1.5),
        TypeError,
        "ignore_index must be an integer, got 1.5",
    ),
    (lambda: FocalLoss(label_smoothing=1.0), ValueError, "label_smoothing must be in [0, 1), got 1.0"),
    (
        lambda: sigmoid_focal_loss(Z, torch.zeros(2)),
        ValueError,
        "target must have the shape (2, 3) of logits, got (2,)",
    ),
    (
        lambda: sigmoid_focal_loss(Z.long(), Z),
        TypeError,
        "logits must hold floating point numbers, got dtype torch.int64",
    ),
    (lambda: SigmoidFocalLoss(alpha=2.0), ValueError, "alpha must be in (0, 1), or None, got 2.0"),
    (lambda: Posterior("focal"), TypeError, "objective must be an objective of refocal, got 'focal'"),
]


@pytest.mark.parametrize("call, kind, text", CASES, ids=[text for _, _, text in CASES])
def test_bad_input(call, kind, text):
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        call()


@pytest.mark.parametrize("n", [2, 4000])
def test_labels_out_of_range_raise(n):
    labels = torch.zeros(n, dtype=torch.long)
    labels[-1] = 3
    with pytest.raises(IndexError, match=r"^Target 3 is out of bounds\.$"):
        focal_loss(torch.zeros(n, 3), labels)


def test_no_rows():
    z = torch.zeros(0, 3, requires_grad=True)
    loss = focal_loss(z, torch.zeros(0, dtype=torch.long), reduction="sum")
    loss.backward()
    assert loss == 0
    assert z.grad.shape == (0, 3)
    assert focal_loss(z, z.detach(), reduction="none").shape == (0,)
    assert sigmoid_focal_loss(z, z.detach(), reduction="sum") == 0
    assert torch.isnan(focal_loss(z, torch.zeros(0, dtype=torch.long)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", [Focal(2.0), Focal([0.5, 1.0, 2.0, 3.0], [1.0, 2.0, 0.5, 1.0], 0.1), SigmoidFocal()], ids=repr
)
def test_export_and_onnx(spec, tmp_path):
    import onnxruntime

    model = Posterior(spec)
    batch = torch.export.Dim("batch", min=2, max=1 << 20)
    example = (torch.randn(3, 4, generator=seeded()),)
    exported = torch.export.export(model, example, dynamic_shapes=({0: batch},))
    path = tmp_path / "posterior.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        torch.onnx.export(model, example, path, dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
    session = onnxruntime.InferenceSession(str(path))
    name = session.get_inputs()[0].name
    for n, scale in ((2, 1.0), (17, 30.0), (1000, 1000.0)):
        z = torch.randn(n, 4, generator=seeded(n)) * scale
        torch.testing.assert_close(exported.module()(z), model(z), atol=1e-6, rtol=1e-5)
        (got,) = session.run(None, {name: z.numpy()})
        np.testing.assert_allclose(got, model(z).numpy(), atol=1e-6)


def test_training_after_inference_mode():
    """A validation step first, as trainers do, must not leave anything that training cannot use."""
    z = torch.randn(2000, 10, generator=seeded())
    labels, soft = torch.arange(2000) % 10, torch.rand(2000, 10, generator=seeded()).softmax(1)

    def losses(x):
        return focal_loss(x, labels) + focal_loss(x, soft) + sigmoid_focal_loss(x, soft)

    with torch.inference_mode():
        before = losses(z)
    x = z.clone().requires_grad_()
    loss = losses(x)
    loss.backward()
    torch.testing.assert_close(loss.detach(), before)
    assert torch.isfinite(x.grad).all()


def test_the_gradient_alone():
    z = torch.randn(7, 5, 3, generator=seeded())
    labels = torch.randint(5, (7, 3), generator=seeded())
    labels[0] = -100
    weight = torch.rand(5, generator=seeded())
    for options in ({}, {"weight": weight, "gamma": [0.5, 1.0, 2.0, 3.0, 1.5]}, {"label_smoothing": 0.1}):
        x = z.clone().requires_grad_()
        focal_loss(x, labels, reduction="sum", **options).backward()
        torch.testing.assert_close(focal_gradient(z, labels, **options), x.grad)


def test_gradients_need_no_gradient_themselves():
    z = torch.randn(6, 5, generator=seeded(), requires_grad=True)
    v = torch.rand(6, 5, generator=seeded()).softmax(1).requires_grad_()
    for loss in (focal_loss, sigmoid_focal_loss):
        for gradient in torch.autograd.grad(loss(z, v), (z, v)):
            assert not gradient.requires_grad


@pytest.mark.parametrize("changed", ["weight", "gamma"])
def test_a_change_in_place_before_the_backward_pass_is_an_error(changed):
    z = torch.randn(6, 5, generator=seeded(), requires_grad=True)
    options = {"weight": torch.ones(5), "gamma": torch.full((6,), 2.0)}
    loss = focal_loss(z, torch.arange(6) % 5, **options)
    options[changed].mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_weight_keeps_its_precision():
    third = torch.tensor([1 / 3, 1.0], dtype=torch.float64)
    criterion = FocalLoss(weight=third, reduction="sum")
    assert criterion.weight.dtype == torch.float64
    z = torch.zeros(1, 2, dtype=torch.float64)
    exact = 0.25 * np.log(2) / 3
    assert criterion(z, torch.tensor([0])).item() == pytest.approx(exact, rel=1e-14)


@pytest.mark.parametrize("c", [5, 100])
def test_minus_hundred_is_a_label_like_any_other_if_another_one_is_ignored(c):
    with pytest.raises(IndexError, match=r"^Target -100 is out of bounds\.$"):
        focal_loss(torch.zeros(3, c), torch.tensor([0, -100, 1]), ignore_index=1)


def test_mass_on_a_masked_class_is_infinitely_bad():
    z = torch.tensor([[0.0, 1.0, -torch.inf]])
    for v in (torch.tensor([[0.5, 0.4, 0.1]]), torch.tensor([[0.0, 1.0, 1e-30]])):
        assert focal_loss(z, v) == F.cross_entropy(z, v) == torch.inf


@pytest.mark.parametrize("alpha", [1e-3, 1e-6, 1e-8])
def test_small_weights_of_the_sigmoid_loss(alpha):
    z = torch.linspace(-3, 3, 7)
    p = torch.sigmoid(z.double())
    exact = alpha * (1 - p) ** 2 * -torch.log(p)
    loss = sigmoid_focal_loss(z, torch.ones(7), 2.0, alpha, "none")
    torch.testing.assert_close(loss.double(), exact, rtol=2e-6, atol=0)


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_infinite_scores_of_the_sigmoid_loss(gamma):
    z, y = torch.tensor([torch.inf, -torch.inf, torch.inf, -torch.inf]), torch.tensor([1.0, 0.0, 0.0, 1.0])
    expected = [0.0, 0.0, torch.inf, torch.inf]
    assert sigmoid_focal_loss(z, y, gamma, reduction="none").tolist() == expected
    assert SigmoidFocal(gamma).loss(z, y).tolist() == expected
    assert SigmoidFocal(gamma).loss(z.numpy(), y.numpy()).tolist() == expected


def test_the_default_device_is_not_looked_at():
    posterior = torch.tensor([[0.6, 0.3, 0.1]])
    expected = refocal.focal_minimizer(posterior, 2.0)
    with torch.device("meta"):
        assert torch.equal(refocal.focal_minimizer(posterior, 2.0), expected)
