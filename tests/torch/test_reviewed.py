"""What hostile trials of the losses found, each as it was found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.two_tensor import TwoTensor

from refocal.torch import focal_gradient, focal_loss, sigmoid_focal_loss, which_form

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own modules


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hooks_on_the_logits_run_once(dtype):
    z = torch.randn(4, 3, generator=seeded(), dtype=dtype, requires_grad=True)
    z.register_hook(lambda g: 2 * g)
    y = torch.tensor([0, 1, 2, 0])
    (plain,) = torch.autograd.grad(focal_loss(z, y), z)
    (again,) = torch.autograd.grad(focal_loss(z, y), z, create_graph=True)
    torch.testing.assert_close(again, plain)


@pytest.mark.parametrize("loss", [focal_loss, sigmoid_focal_loss])
def test_targets_made_of_the_logits(loss):
    """Distillation from oneself: first derivatives are the same with and without a graph of their own."""
    z = torch.randn(4, 3, generator=seeded(), dtype=torch.float64, requires_grad=True)
    (plain,) = torch.autograd.grad(loss(z, z.softmax(1)), z)
    (again,) = torch.autograd.grad(loss(z, z.softmax(1)), z, create_graph=True)
    torch.testing.assert_close(again, plain)
    assert torch.autograd.gradcheck(lambda z: loss(z, z.softmax(1)), z)
    assert torch.autograd.gradgradcheck(lambda z: loss(z, z.softmax(1)), z)
    rows = torch.autograd.functional.jacobian(lambda z: loss(z, z.softmax(1)).expand(2), z, vectorize=True)
    torch.testing.assert_close(rows[1], plain)


def test_tensors_without_memory_of_their_own_as_weight_or_gamma():
    z, y = torch.randn(4, 3, generator=seeded()), torch.tensor([0, 1, 2, 0])
    weight, gamma = torch.tensor([1.0, 2.0, 0.5]), torch.tensor([0.0, 1.0, 2.0, 3.0])
    expected = focal_loss(z, y, gamma, weight)
    for options in (
        {"weight": TwoTensor(weight, weight.clone()), "gamma": gamma},
        {"weight": weight, "gamma": TwoTensor(gamma, gamma.clone())},
    ):
        assert torch.allclose(torch.as_tensor(focal_loss(z, y, **options)), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x,
        lambda x: x.transpose(2, 3),
        lambda x: x.permute(3, 1, 0, 2),
        lambda x: x[:, :, ::2].permute(2, 1, 3, 0),
        lambda x: x.contiguous(memory_format=torch.channels_last),
    ],
    ids=["plain", "transposed", "permuted", "with gaps", "channels last"],
)
def test_compiled_losses_of_every_layout(layout):
    z = layout(torch.randn(4, 5, 6, 3, generator=seeded()))
    y = torch.randint(5, (z.shape[0], *z.shape[2:]), generator=seeded())
    v = torch.rand(z.shape, generator=seeded()).softmax(1)
    torch._dynamo.reset()
    for f in (
        lambda z: focal_loss(z, y),
        lambda z: focal_loss(z, v, 1.5),
        lambda z: sigmoid_focal_loss(z, v),
    ):
        a, b = z.detach().requires_grad_(), z.detach().requires_grad_()
        got, expected = torch.compile(f, fullgraph=True)(a), f(b)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(torch.autograd.grad(got, a)[0], torch.autograd.grad(expected, b)[0])


def test_tracing_before_dispatch_follows_the_operations():
    from torch.fx.experimental.proxy_tensor import make_fx

    z, y = torch.randn(4, 3, generator=seeded()), torch.tensor([0, 1, 2, 0])
    traced = make_fx(lambda z: focal_loss(z, y), pre_dispatch=True)(z)
    torch.testing.assert_close(traced(3 * z), focal_loss(3 * z, y))


def test_labels_that_are_no_class():
    y = torch.tensor([0, 7])
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(IndexError, match=r"^Target 7 is out of bounds\.$"):
            focal_gradient(torch.zeros(2, 3, dtype=dtype), y)
    gradient = torch.func.grad(lambda z: focal_loss(z, y))(torch.zeros(2, 3))
    assert gradient[1].isnan().all()


def test_the_mean_over_weights_that_sum_to_nothing():
    for dtype in (torch.float32, torch.float64):
        z = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
        loss = focal_loss(z, torch.tensor([0, 0]), weight=torch.tensor([0.0, 1.0, 1.0]))
        assert loss.isnan()
        assert torch.autograd.grad(loss, z)[0].isnan().all()


@pytest.mark.parametrize("gamma", [np.float32(2), np.array(2.0), np.array([2.0, 2.0, 2.0]), 2, (2.0, 2, 2)])
def test_numbers_of_every_kind(gamma):
    z, y = torch.randn(4, 3, generator=seeded()), torch.tensor([0, 1, 2, 0])
    torch.testing.assert_close(focal_loss(z, y, gamma), focal_loss(z, y, 2.0))


def test_the_gradient_alone_needs_no_gradient():
    v = torch.rand(4, 3, generator=seeded()).softmax(1).requires_grad_()
    for dtype in (torch.float32, torch.float64):
        assert not focal_gradient(torch.zeros(4, 3, dtype=dtype), v).requires_grad


def test_lists_as_weights_and_complex_targets():
    z, y = torch.randn(4, 3, generator=seeded()), torch.tensor([0, 1, 2, 0])
    with pytest.raises(TypeError, match=r"^weight must be a tensor, got \[1\.0, 2\.0, 0\.5\]$"):
        focal_loss(z, y, weight=[1.0, 2.0, 0.5])
    with pytest.raises(TypeError, match=r"^target must hold real numbers, got dtype torch\.complex64$"):
        sigmoid_focal_loss(z, z.to(torch.complex64))


def test_strides_that_count_downwards():
    from refocal.kernels import rows

    assert rows((3, 4), (-4, 1), 1) is None
    assert rows((3, 4), (4, 1), 1) == (4, 1, 1, 0)
    assert rows((2, 4, 3), (12, 3, 1), 1) == (12, 3, 3, 1)
    assert rows((1, 4, 3), (12, 3, 1), 1) == (1, 3, 1, 0)


def test_no_rows_by_machine_code():
    for shape in ((0, 40), (0, 40, 2, 2), (3, 40, 0)):
        z = torch.zeros(shape, requires_grad=True)
        y = torch.zeros((shape[0], *shape[2:]), dtype=torch.long)
        assert which_form(z, y) == "kernel"
        assert focal_loss(z, y).isnan()
        assert F.cross_entropy(z, y).isnan()
        (gradient,) = torch.autograd.grad(focal_loss(z, y, reduction="sum"), z)
        assert gradient.shape == shape
