"""The scores that minimise an expected loss, by an optimiser that knows nothing of refocal."""

import numpy as np
import scipy.optimize
import torch


def minimise(risk, n, start=0.0):
    """Return the n float64 scores with the smallest ``risk(scores)``, a differentiable PyTorch function."""

    def value_and_gradient(z):
        z = torch.tensor(z, requires_grad=True)
        value = risk(z)
        return value.item(), torch.autograd.grad(value, z)[0].numpy()

    x = np.full(n, start)
    for _ in range(2):
        x = scipy.optimize.minimize(value_and_gradient, x, jac=True, method="BFGS", options={"gtol": 1e-11}).x
    return x
