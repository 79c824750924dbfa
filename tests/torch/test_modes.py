"""Every loss and posterior in every mode of PyTorch: equal to eager float64, or an error in plain words.

A mode takes a function of logits and targets and gives values, and derivatives where it has any. The bars are
those of float32 unless a mode says otherwise.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from refocal import Asymmetric, Focal, OneVsRest, SigmoidFocal
from refocal.torch import (
    AsymmetricLoss,
    FocalLoss,
    Poly1FocalLoss,
    Posterior,
    SigmoidFocalLoss,
    cpu,
    focal_loss,
    sigmoid_focal_loss,
    which_form,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own modules

C = 5
WEIGHT = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.0])
GAMMAS = [0.5, 1.0, 2.0, 3.0, 0.0]


def labels(v):
    return v.argmax(1)


LOSSES = {
    "hard": lambda z, v: focal_loss(z, labels(v), 2.0),
    "hard rows": lambda z, v: focal_loss(z, labels(v), 0.5, ignore_index=2, reduction="none"),
    "soft": lambda z, v: focal_loss(z, v.to(z.dtype), 2.0),
    "smoothed": lambda z, v: focal_loss(z, labels(v), 1.5, label_smoothing=0.1, reduction="sum"),
    "weighted": lambda z, v: focal_loss(z, labels(v), 2.0, WEIGHT.to(z.device)),
    "all": lambda z, v: focal_loss(z, v.to(z.dtype), GAMMAS, WEIGHT.to(z.device), label_smoothing=0.1),
    "gamma of classes": lambda z, v: focal_loss(z, labels(v), GAMMAS),
    "gamma of rows": lambda z, v: focal_loss(z, labels(v), 0.5 + labels(v) % 3),
    "sigmoid": lambda z, v: sigmoid_focal_loss(z, v.to(z.dtype)),
    "sigmoid classes": lambda z, v: sigmoid_focal_loss(z, v.to(z.dtype), GAMMAS, [0.1, 0.2, 0.3, 0.4, 0.5]),
    "sigmoid, some ignored": lambda z, v: sigmoid_focal_loss(
        z, torch.where(v > 0.3, -1, v.to(z.dtype)), 1.5, ignore_index=-1, pos_weight=3.0, label_smoothing=0.1
    ),
    "sigmoid, weights of classes": lambda z, v: sigmoid_focal_loss(
        z, v.to(z.dtype), 2.0, None, pos_weight=[0.5, 1.0, 2.0, 3.0, 4.0]
    ),
    "classes first": lambda z, v: focal_loss(z.movedim(1, 0), labels(v), 2.0, dim=0),
    "Poly-1": lambda z, v: Poly1FocalLoss(2.0, 1.0, ignore_index=2)(z, labels(v)),
    "ASL": lambda z, v: AsymmetricLoss(1.0, 2.0)(z, v.to(z.dtype)),
}
POSTERIORS = {
    "Focal": Focal(2.0),
    "Focal, weights, smoothing": Focal([*GAMMAS[:4], 0.7], [1.0, 0.5, 2.0, 0.3, 1.0], 0.1),
    "SigmoidFocal": SigmoidFocal(),
    "Asymmetric": Asymmetric(4.0, 1.0),
    "OneVsRest": OneVsRest(SigmoidFocal(2.0, 0.25)),
}


def problem(n=6, seed=0, scale=2.0, shape=()):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, C, *shape, generator=g) * scale
    return z, torch.rand(n, C, *shape, generator=g).mul(6).softmax(1)


def value_and_gradient(f, z, v):
    z = z.detach().clone().requires_grad_()
    value = f(z, v)
    (gradient,) = torch.autograd.grad(value.sum(), z)
    return value.detach(), gradient


def exact(f, z, v):
    return value_and_gradient(f, z.double(), v)


def close(got, expected, rtol=1e-5, atol=1e-6):
    torch.testing.assert_close(got.double(), expected.double(), rtol=rtol, atol=atol)


def check(got, expected, **bars):
    for a, b in zip(got, expected, strict=True):
        close(a, b, **bars)


MODES = {}


def mode(function):
    MODES[function.__name__] = function
    return function


@mode
def eager(f):
    z, v = problem()
    assert which_form(z, v) == "kernel"
    check(value_and_gradient(f, z, v), exact(f, z, v))


@mode
def without_kernels(f):
    z, v = problem()
    before, cpu._kernels = cpu.kernels(), {}
    try:
        assert which_form(z, v) == "eager"
        check(value_and_gradient(f, z, v), exact(f, z, v))
        check(value_and_gradient(f, z.double(), v), exact(f, z, v), rtol=1e-12, atol=1e-12)
    finally:
        cpu._kernels = before


@mode
def autocast(f):
    z, v = problem()
    z = z.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        got = value_and_gradient(f, z, v)
    assert got[0].dtype == F.cross_entropy(z.float(), labels(v)).dtype
    check(got, exact(f, z, v), rtol=1e-2, atol=1e-3)  # the gradient is in half precision


@mode
def inference(f):
    z, v = problem()
    for context in (torch.inference_mode(), torch.no_grad()):
        with context:
            value = f(z, v)
        assert not value.requires_grad
        close(value, exact(f, z, v)[0])


@mode
def functional(f):
    from torch.func import grad, hessian, jacfwd, jacrev, vmap

    z, v = problem()
    value, gradient = exact(f, z, v)

    def total(z):
        return f(z, v).sum()

    close(grad(total)(z), gradient)
    close(jacrev(total)(z), gradient)
    close(jacfwd(total)(z), gradient)
    zs, vs = torch.stack([z, 2 * z]), torch.stack([v, v.flip(0)])
    close(vmap(f)(zs, vs), torch.stack([exact(f, a, b)[0] for a, b in zip(zs, vs, strict=True)]))
    close(vmap(f, (0, None))(zs, v)[0], value)
    close(vmap(grad(total))(zs)[0], gradient)
    second = torch.autograd.functional.hessian(total, z.double())
    close(hessian(total)(z), second, rtol=1e-4, atol=1e-5)


@mode
def vectorised_jacobian(f):
    z, v = problem()
    _, gradient = exact(f, z, v)

    def total(z):
        return f(z, v).sum().expand(2)

    for strategy in ("reverse-mode", "forward-mode"):
        jacobian = torch.autograd.functional.jacobian(total, z, vectorize=True, strategy=strategy)
        close(jacobian, torch.stack([gradient] * 2))
    x = z.clone().requires_grad_()
    (batched,) = torch.autograd.grad(f(x, v).sum(), x, torch.tensor([1.0, -2.0]), is_grads_batched=True)
    assert not batched.requires_grad
    close(batched, torch.stack([gradient, -2 * gradient]))


@mode
def forward_derivatives(f):
    import torch.autograd.forward_ad as forward

    z, v = problem()
    _, gradient = exact(f, z, v)
    direction = torch.ones_like(z) * torch.arange(C)
    with forward.dual_level():
        _, slope = forward.unpack_dual(f(forward.make_dual(z, direction), v))
    close(slope.sum(), (gradient * direction).sum())


@mode
def double_backward(f):
    z, v = problem()
    seconds = []
    for x in (z, z.double()):
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(f(x, v).sum(), x, create_graph=True)
        assert first.requires_grad
        seconds.append(torch.autograd.grad(first.square().sum(), x)[0])
    close(*seconds, rtol=1e-4)


@mode
def checkpointed(f):
    from torch.utils.checkpoint import checkpoint

    z, v = problem()
    for reentrant in (True, False):
        x = z.clone().requires_grad_()
        value = checkpoint(f, x, v, use_reentrant=reentrant)
        value.sum().backward()
        check((value.detach(), x.grad), exact(f, z, v))


@mode
def fake_tensors(f):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    z, v = problem()
    expected = exact(f, z, v)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        x, w = fake.from_tensor(z).requires_grad_(), fake.from_tensor(v)
        value = f(x, w)
        (gradient,) = torch.autograd.grad(value.sum(), x)
    assert isinstance(value, FakeTensor)
    assert (value.shape, gradient.shape) == (expected[0].shape, expected[1].shape)


@mode
def meta_tensors(f):
    z, v = problem()
    expected = exact(f, z, v)
    got = value_and_gradient(f, z.to("meta"), v.to("meta"))
    assert [(x.device.type, x.shape) for x in got] == [("meta", x.shape) for x in expected]


@mode
def traced_by_fx(f):
    from torch.fx.experimental.proxy_tensor import make_fx

    z, v = problem()
    other, w = problem(seed=1)
    close(make_fx(f)(z, v)(other, w), exact(f, other, w)[0])


@mode
def default_device(f):
    z, v = problem()
    expected = exact(f, z, v)
    with torch.device("meta"):
        x = z.detach().requires_grad_()
        value = f(x, v)
        (gradient,) = torch.autograd.grad(value.sum(), x)
    check((value.detach(), gradient), expected)
    check(value_and_gradient(f, z, v), expected)  # and nothing of it is left behind
    check(value_and_gradient(f, z.double(), v), expected, rtol=1e-12, atol=1e-12)


@mode
def deterministic(f):
    z, v = problem()
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (value_and_gradient(f, z, v) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    check(first, exact(f, z, v))


@mode
def python_threads(f):
    z, v = problem(300)
    expected, wrong = value_and_gradient(f, z, v), []

    def work():
        for _ in range(5):
            if not all(torch.equal(a, b) for a, b in zip(value_and_gradient(f, z, v), expected, strict=True)):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@mode
def forked(f):
    z, v = problem(300)
    expected = value_and_gradient(f, z, v)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a process with threads forks
        child = os.fork()
    if child == 0:
        got = value_and_gradient(f, z, v)
        os._exit(0 if all(torch.equal(a, b) for a, b in zip(got, expected, strict=True)) else 1)
    assert os.waitpid(child, 0)[1] == 0


@mode
def traced_by_jit(f):
    z, v = problem()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # checks of shapes
        traced = torch.jit.trace(f, (z, v))
    other, w = problem(9, seed=1)
    check(value_and_gradient(traced, other, w), exact(f, other, w))
    close(traced(2 * z, v), exact(f, 2 * z, v)[0])


@mode
def hooks(f):
    """What DistributedDataParallel does: hooks on the parameters, gradients that arrive one by one."""
    z, v = problem()
    layer = nn.Linear(C, C)
    seen = []
    for parameter in layer.parameters():
        parameter.register_hook(lambda g: seen.append(g.shape) or 2 * g)
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append("done"))
    f(layer(z), v).sum().backward()
    other = copy.deepcopy(layer).double()
    for parameter in other.parameters():
        parameter.grad = None
    (weight, bias) = torch.autograd.grad(f(other(z.double()), v).sum(), list(other.parameters()))
    close(layer.weight.grad, 2 * weight)
    close(layer.bias.grad, 2 * bias)
    assert seen.count("done") == 2


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("mode", MODES)
def test_losses(mode, name):
    MODES[mode](LOSSES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_compiled_losses(name):
    f = LOSSES[name]
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True)
    for n in (6, 6, 9, 13):  # from the second size on with symbols for the sizes
        z, v = problem(n, seed=n)
        check(value_and_gradient(compiled, z, v), exact(f, z, v))
    z, v = problem()
    check(value_and_gradient(compiled, z.double(), v), exact(f, z, v), rtol=1e-12, atol=1e-12)
    expected, _ = exact(f, z, v)
    with torch.no_grad():
        close(compiled(z, v), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo looks at it
@pytest.mark.parametrize("name", LOSSES)
def test_compiled_autograd(name):
    f = LOSSES[name]
    torch._dynamo.reset()
    z, v = problem()
    with torch._dynamo.config.patch(compiled_autograd=True):
        back = torch.compile(lambda loss: loss.backward(), backend="eager")
        for _ in range(3):
            x = z.clone().requires_grad_()
            back(f(x, v).sum())
            close(x.grad, exact(f, z, v)[1])


def test_the_operators_keep_the_rules_of_pytorch():
    from refocal.torch import compiled

    z, v = problem(40)
    wide = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    z.requires_grad_()
    for args in (
        (z, labels(v), None, None, 2.0, 0, -100, 0.0, 1, True),
        (wide.requires_grad_(), labels(wide), None, None, 1.5, 0, 3, 0.0, 1, True),
        (z, v, None, WEIGHT, 2.0, 0, -100, 0.1, 1, False),
        (wide.detach()[None].mT.requires_grad_(), labels(wide)[None], None, None, 2.0, 0, 3, 0.0, 1, True),
    ):
        assert set(torch.library.opcheck(compiled.softmax_rows, args).values()) == {"SUCCESS"}
        if args[0] is z:
            for mean in (True, False):
                checks = torch.library.opcheck(compiled.softmax_total, (*args, mean))
                assert set(checks.values()) == {"SUCCESS"}
    some = torch.where(v > 0.3, -1, v)
    for args in ((z, v, 2.0, 0.25, 0.75, None, 0.0), (z, some, 1.5, 0.5, 0.75, -1.0, 0.1)):
        assert set(torch.library.opcheck(compiled.sigmoid_losses, args).values()) == {"SUCCESS"}
        for mean in (True, False):
            assert set(torch.library.opcheck(compiled.sigmoid_total, (*args, mean)).values()) == {"SUCCESS"}
    for name in ("hard rows", "soft", "sigmoid", "sigmoid, some ignored", "gamma of rows", "classes first"):
        f = LOSSES[name]
        vmapped = torch.compile(torch.func.vmap(f), backend="aot_eager", fullgraph=True)
        zs = torch.stack([z.detach(), 2 * z.detach()])
        vs = torch.stack([v, v])
        close(vmapped(zs, vs), torch.stack([exact(f, x, v)[0] for x in zs]))


def test_compiled_derivatives_of_torch_func():
    torch._dynamo.reset()  # all that is under vmap is one function to it, which it compiles a few times only
    z = torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(0))
    y = torch.arange(5)

    def loss(z):  # one for each operator
        sigmoid = sigmoid_focal_loss(z, torch.ones_like(z))
        return focal_loss(z[:, :6], y) + focal_loss(z, y, reduction="sum") + sigmoid

    gradients = torch.func.vmap(torch.func.grad(loss))
    compiled = torch.compile(gradients, backend="aot_eager", fullgraph=True)
    close(compiled(z), gradients(z.double()))


def test_a_compiled_ignore_index_that_changes():
    z, v = problem(12)
    y = labels(v)

    def loss(z, ignore):  # from the second value on, the compiler has a symbol for it
        entries = torch.where(v > 0.3, ignore, v)
        return focal_loss(z, y, ignore_index=ignore) + sigmoid_focal_loss(z, entries, ignore_index=ignore)

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for ignore in (-100, 2, 3):
        close(compiled(z, ignore), loss(z.double(), ignore))


def test_compiled_problems_side_by_side_without_rows():
    torch._dynamo.reset()
    total = torch.func.vmap(lambda z, y: focal_loss(z, y, 2.0, reduction="sum"))
    compiled = torch.compile(total, backend="aot_eager", fullgraph=True)
    assert compiled(torch.zeros(2, 0, 40), torch.zeros(2, 0, dtype=torch.int64)).tolist() == [0, 0]


def test_compiled_logits_whose_layout_changes_before_the_gradient():
    # Pixels keep nothing for it; rows of so many classes would.
    z = torch.randn(2, 40, 9, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = torch.arange(18).reshape(2, 9)

    def loss(z):
        return focal_loss(z, y, 2.0, reduction="none").sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t, lambda t: t.mT.contiguous().mT if t.ndim == 3 else t
    ):
        value = compiled(z)
    close(torch.autograd.grad(value, z)[0], exact(lambda z, _: loss(z), z, z)[1])


def test_compiled_means_of_ignored_rows_and_of_problems_side_by_side():
    z, v = problem(12)
    y, x = labels(v), z.clone().requires_grad_()
    none, some = torch.full_like(y, -100), torch.where(y == 0, -100, y)
    f = torch.compile(lambda z, y: focal_loss(z, y, 2.0), backend="aot_eager", fullgraph=True)
    assert bool(f(x, none).isnan())
    assert bool((torch.autograd.grad(f(x, none), x)[0] == 0).all())
    (gradient,) = torch.autograd.grad(f(x, some), x, torch.tensor(torch.inf))
    assert bool((gradient[y == 0] == 0).all())
    assert not bool(gradient[y != 0].isfinite().any())
    vmapped = torch.compile(
        torch.func.vmap(lambda z, y: focal_loss(z, y, 2.0)), backend="aot_eager", fullgraph=True
    )
    zs = torch.stack([z, 2 * z]).requires_grad_()
    means = vmapped(zs, torch.stack([y, some]))
    alone = [focal_loss(t.detach().double().requires_grad_(), u) for t, u in ((z, y), (2 * z, some))]
    close(means, torch.stack(alone))
    (gradients,) = torch.autograd.grad(means.sum(), zs)
    doubled = zs.detach().double().requires_grad_()
    total = focal_loss(doubled[0], y) + focal_loss(doubled[1], some)
    close(gradients, torch.autograd.grad(total, doubled)[0])


@pytest.mark.slow
def test_distributed_data_parallel():
    code = """
import os, torch, torch.distributed as dist
import torch.distributed.nn
from refocal.torch import FocalLoss
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", GLOO_SOCKET_IFNAME="lo")
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
torch.manual_seed(0)
layer = torch.nn.Linear(4, 3)
x, y = torch.randn(8, 4), torch.arange(8) % 3
FocalLoss()(layer(x), y).backward()
plain = layer.weight.grad.clone()
layer.zero_grad()
FocalLoss()(torch.nn.parallel.DistributedDataParallel(layer)(x), y).backward()
print(torch.equal(plain, layer.weight.grad))
dist.destroy_process_group()
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert run.stdout == "True\n", run.stderr


@pytest.mark.parametrize(
    "criterion", [FocalLoss(2.0, WEIGHT, label_smoothing=0.1), SigmoidFocalLoss()], ids=repr
)
def test_copies_of_modules(criterion):
    z, v = problem()
    target = v if isinstance(criterion, SigmoidFocalLoss) else labels(v)
    other = copy.deepcopy(criterion)
    other.load_state_dict(criterion.state_dict())
    buffer = io.BytesIO()
    torch.save(criterion, buffer)
    buffer.seek(0)
    for copied in (other, pickle.loads(pickle.dumps(criterion)), torch.load(buffer, weights_only=False)):
        assert repr(copied) == repr(criterion)
        assert torch.equal(copied(z, target), criterion(z, target))


# Posteriors


def exported_by_dynamo(model, z, path):
    import onnxruntime

    batch = torch.export.Dim("batch", min=2, max=1 << 20)
    shapes = ({0: batch} | {i: torch.export.Dim(f"d{i}", min=2, max=4096) for i in range(2, z.ndim)},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        torch.onnx.export(
            model, (z,), path, dynamo=True, dynamic_shapes=shapes, opset_version=18, verbose=False
        )
    return onnxruntime.InferenceSession(str(path))


def exported_by_tracing(model, z, path):
    import onnxruntime

    axes = {"x": {0: "n"} | {i: f"d{i}" for i in range(2, z.ndim)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (z,), path, dynamo=False, opset_version=17, input_names=["x"], dynamic_axes=axes
        )
    return onnxruntime.InferenceSession(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.parametrize("export", [exported_by_dynamo, exported_by_tracing])
def test_onnx(export, name, tmp_path):
    """The answers of the file equal eager ones at every scale of logits."""
    for shape in ((), (4, 3)):
        model = Posterior(POSTERIORS[name])
        z, _ = problem(3, shape=shape)
        session = export(model, z, tmp_path / f"{len(shape)}.onnx")
        (given,) = session.get_inputs()
        for n, scale in ((2, 1.0), (17, 30.0), (40, 1000.0)):
            z, _ = problem(n, n, scale, tuple(s + 1 for s in shape))
            (got,) = session.run(None, {given.name: z.numpy()})
            np.testing.assert_allclose(got, model(z).numpy(), atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("export", [exported_by_dynamo, exported_by_tracing])
def test_onnx_of_a_network(export, frozen, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(C, 3), Posterior(Focal(2.0))).eval().requires_grad_(not frozen)
    z, _ = problem(4)
    session = export(model, z, tmp_path / "m.onnx")
    (given,) = session.get_inputs()
    for n in (2, 9):
        z, _ = problem(n, n, 5.0)
        (got,) = session.run(None, {given.name: z.numpy()})
        np.testing.assert_allclose(got, model(z).detach().numpy(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", POSTERIORS)
def test_posteriors(name):
    model = Posterior(POSTERIORS[name])
    z, _ = problem(7, scale=3.0)
    expected = model(z.double())
    close(model(z), expected)
    with torch.autocast("cpu", torch.bfloat16):
        close(model(z), expected)
    for context in (torch.inference_mode(), torch.no_grad(), torch.device("meta")):
        with context:
            close(model(z), expected)
    traced = torch.jit.trace(model, torch.randn(2, C, 40, 50))
    for other in (problem(3, 1, 30.0, (7, 5))[0], problem(2, 2, 3.0, (300, 20))[0]):
        close(traced(other), model(other.double()))
        close(traced(other), model(other), atol=1e-6, rtol=0)
    close(torch.func.vmap(model)(torch.stack([z, 2 * z]))[1], model(2 * z.double()))
    close(torch.func.jacrev(model)(z), torch.func.jacfwd(model)(z), atol=1e-5)
    x = z.clone().requires_grad_()
    y = z.double().requires_grad_()
    close(torch.autograd.grad(model(x)[:, 0].sum(), x)[0], torch.autograd.grad(model(y)[:, 0].sum(), y)[0])
    assert model(z.to("meta")).shape == z.shape
    close(torch.fx.experimental.proxy_tensor.make_fx(model)(z)(2 * z), model(2 * z.double()))
    assert torch.equal(pickle.loads(pickle.dumps(model))(z), model(z))
    with torch._subclasses.fake_tensor.FakeTensorMode() as fake:
        assert model(fake.from_tensor(z)).shape == z.shape


@pytest.mark.slow
@pytest.mark.parametrize("name", POSTERIORS)
def test_compiled_and_exported_posteriors(name):
    model = Posterior(POSTERIORS[name])
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    batch = torch.export.Dim("batch", min=2, max=1 << 20)
    exported = torch.export.export(model, (problem(3)[0],), dynamic_shapes=({0: batch},)).module()
    for n, scale in ((3, 1.0), (17, 30.0), (100, 1000.0)):
        z, _ = problem(n, n, scale)
        close(compiled(z), model(z), atol=1e-6, rtol=0)
        close(exported(z), model(z), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "module",
    [Posterior(Focal(2.0)), FocalLoss(), SigmoidFocalLoss(), nn.Sequential(nn.ReLU(), Posterior(Focal(2.0)))],
)
def test_scripting_says_what_to_do_instead(module):
    with pytest.raises(RuntimeError, match=r"cannot be scripted by TorchScript; use torch\.jit\.trace or"):
        torch.jit.script(module)


def test_the_operator_is_used_where_it_can_be():
    z, v = problem()
    seen = []

    def f(z, v):
        seen.append(which_form(z, v))
        return focal_loss(z, v)

    torch.compile(f, backend="eager", fullgraph=True)(z, v)
    torch.export.export(Posterior(Focal(2.0)), (z,))
    assert seen[0] == "operator"
