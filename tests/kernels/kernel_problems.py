"""What the tests of the kernels share."""

import numpy as np
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


def reference(z, v, gamma):
    """Return losses (n,), gradients (n, c) and what cancels in them, in double precision, without refocal."""
    z, v = z.double().numpy(), v.double().numpy()
    # log q_j = -log sum_i exp(z_i - z_j), the sum without i = j by log1p: no digit is lost next to q = 1
    gaps = z[:, None, :] - z[:, :, None]
    others = np.where(np.eye(z.shape[1], dtype=bool), -np.inf, gaps)
    largest = np.maximum(others.max(2, keepdims=True), 0)
    with np.errstate(divide="ignore", under="ignore"):
        rest = np.exp(others - largest).sum(2)
        top = largest[..., 0]
        neg_log = np.where(top == 0, np.log1p(rest), top + np.log(rest + np.exp(-top)))
        q, miss = np.exp(-neg_log), -np.expm1(-neg_log)
        ratio = np.where(miss > 0, neg_log / np.where(miss > 0, miss, 1), 1)
        phi = miss**gamma * (1 + gamma * q * ratio)
    slopes = v * phi  # -d loss / d log q
    # d log q_j / d z_k = [j = k] - q_k: summed so that nothing cancels, since 1 - q_k is known
    plus, minus = q * (slopes.sum(1, keepdims=True) - slopes), slopes * miss
    losses = (v * miss**gamma * neg_log).sum(1)
    return tuple(torch.from_numpy(x) for x in (losses, plus - minus, plus + minus))
