"""What the tests of the kernels share."""

import torch


def problem(n, c, scale, seed=0):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, c, generator=g) * scale
    return z, torch.randint(c, (n,), generator=g), torch.rand(n, c, generator=g).mul(4).softmax(1)


def value_and_gradient(loss, z):
    z = z.detach().clone().requires_grad_()
    value = loss(z)
    (gradient,) = torch.autograd.grad(value.sum(), z)
    return value.detach().double(), gradient.double()
