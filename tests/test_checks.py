"""Bad input: every error names the argument, the rule and what came. The texts are part of the interface."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import refocal
from refocal import Focal, SigmoidFocal

Z = np.zeros((2, 3))

CASES = [
    (lambda: refocal.log_psi(Z, -1.0), ValueError, "gamma must be finite and >= 0, got -1.0"),
    (lambda: refocal.psi(Z, np.nan), ValueError, "gamma must be finite and >= 0, got nan"),
    (lambda: refocal.phi([0.5], np.inf), ValueError, "gamma must be finite and >= 0, got inf"),
    (
        lambda: refocal.log_psi(Z, np.array([1.0, -2.0])),
        ValueError,
        "gamma must be finite and >= 0, got -2.0",
    ),
    (
        lambda: refocal.log_psi(Z, torch.tensor([1.0, torch.nan])),
        ValueError,
        "gamma must be finite and >= 0, got nan",
    ),
    (
        lambda: refocal.log_psi(jnp.zeros((2, 3)), jnp.array(-1.0)),
        ValueError,
        "gamma must be finite and >= 0, got -1.0",
    ),
    (lambda: refocal.log_psi(Z, "2"), TypeError, "gamma must be a number, got '2'"),
    (lambda: refocal.log_psi(Z, True), TypeError, "gamma must be a number, got True"),
    (lambda: refocal.log_psi(Z, None), TypeError, "gamma must be a number, got None"),
    (
        lambda: refocal.log_psi(Z, np.array([1j, 2j])),
        TypeError,
        "gamma must hold real numbers, got dtype complex128",
    ),
    (
        lambda: refocal.log_psi(Z, np.ones(3)),
        ValueError,
        "gamma must be a number or broadcast to the rows (2,), got shape (3,)",
    ),
    (
        lambda: refocal.focal_minimizer(torch.zeros(2, 3), np.ones((2, 3))),
        ValueError,
        "gamma must be a number or broadcast to the rows (2,), got shape (2, 3)",
    ),
    (lambda: refocal.tau_oc(0.0), ValueError, "gamma must be finite and > 0, got 0.0"),
    (lambda: refocal.tau_uc(np.array([1.0, 0.0])), ValueError, "gamma must be finite and > 0, got 0.0"),
    (
        lambda: refocal.tau_uc(np.array([1, 2])),
        TypeError,
        "gamma must hold floating point numbers, got dtype int64",
    ),
    (
        lambda: refocal.log_psi(np.zeros((2, 3), dtype=int), 2.0),
        TypeError,
        "logits must hold floating point numbers, got dtype int64",
    ),
    (
        lambda: refocal.psi(torch.zeros(2, 3, dtype=torch.int32), 2.0),
        TypeError,
        "probs must hold floating point numbers, got dtype torch.int32",
    ),
    (lambda: refocal.phi([1, 2], 2.0), TypeError, "v must hold floating point numbers, got dtype int64"),
    (
        lambda: refocal.log_psi(np.zeros((4, 1)), 2.0),
        ValueError,
        "logits must have at least 2 classes along axis 1, got shape (4, 1)",
    ),
    (
        lambda: refocal.psi(np.float64(0.5), 2.0),
        ValueError,
        "axis must be within the 0 axes of probs, got -1",
    ),
    (lambda: refocal.psi(Z, 2.0, axis=2), ValueError, "axis must be within the 2 axes of probs, got 2"),
    (lambda: refocal.psi(Z, 2.0, axis=0.5), TypeError, "axis must be an integer, got 0.5"),
    (
        lambda: refocal.conditional_risk(Z, np.zeros((3, 3)), 2.0),
        ValueError,
        "posterior must have the shape (2, 3) of probs, got (3, 3)",
    ),
    (
        lambda: refocal.focal_loss(Z, np.zeros(3, dtype=int), 2.0),
        ValueError,
        "labels must have the shape (2,) of the rows of logits, got (3,)",
    ),
    (
        lambda: refocal.focal_loss(Z, np.zeros(2), 2.0),
        ValueError,
        "labels must have the shape (2, 3) of logits, got (2,)",
    ),
    (lambda: refocal.focal_loss(Z, np.array([0, 3]), 2.0), ValueError, "labels must be within 0..2, got 3"),
    (lambda: refocal.focal_loss(Z, np.array([-1, 0]), 2.0), ValueError, "labels must be within 0..2, got -1"),
    (
        lambda: refocal.focal_loss(Z, Z > 0, 2.0),
        TypeError,
        "labels must hold floating point numbers, got dtype bool",
    ),
    (lambda: Focal(gamma=-1), ValueError, "gamma must be finite and >= 0, got -1"),
    (lambda: Focal(gamma=[1.0, np.nan]), ValueError, "gamma must be finite and >= 0, got nan"),
    (lambda: Focal(gamma="x"), TypeError, "gamma must be a number or one number for each class, got 'x'"),
    (lambda: Focal(gamma=[2.0]), TypeError, "gamma must be a number or one number for each class, got [2.0]"),
    (lambda: Focal(weight=[1.0, 0.0]), ValueError, "weight must be finite and > 0, got 0.0"),
    (lambda: Focal(weight=2.0), TypeError, "weight must hold one number for each class, got 2.0"),
    (lambda: Focal(label_smoothing=1.0), ValueError, "label_smoothing must be in [0, 1), got 1.0"),
    (lambda: Focal(label_smoothing=-0.1), ValueError, "label_smoothing must be in [0, 1), got -0.1"),
    (
        lambda: Focal(weight=[1.0, 2.0]).posterior(Z),
        ValueError,
        "weight must have one number for each of the 3 classes, got 2",
    ),
    (
        lambda: Focal(gamma=[1, 2]).loss(Z, [0, 1]),
        ValueError,
        "gamma must have one number for each of the 3 classes, got 2",
    ),
    (lambda: SigmoidFocal(alpha=1.0), ValueError, "alpha must be in (0, 1), or None, got 1.0"),
    (lambda: SigmoidFocal(alpha=[0.5, 0.0]), ValueError, "alpha must be in (0, 1), or None, got 0.0"),
    (
        lambda: SigmoidFocal().loss(Z, np.zeros(2)),
        ValueError,
        "targets must have the shape (2, 3) of logits, got (2,)",
    ),
    (
        lambda: SigmoidFocal().posterior(0.3),
        ValueError,
        "logits must have at least one axis, got a single number",
    ),
]


@pytest.mark.parametrize("call, kind, text", CASES, ids=[text for _, _, text in CASES])
def test_bad_input(call, kind, text):
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        call()


def test_values_of_gamma_are_not_looked_at_under_jit():
    assert jax.jit(refocal.log_psi)(jnp.zeros((2, 3)), jnp.array(2.0)).shape == (2, 3)


def test_array_likes_become_numpy():
    assert isinstance(refocal.psi([[0.5, 0.5]], 2), np.ndarray)
    assert refocal.psi((0.5, 0.5), np.float32(2)).tolist() == [0.5, 0.5]


def test_an_objective_that_does_not_exist(monkeypatch):
    ours = {
        name: kind for name, kind in refocal.Objective.kinds.items() if kind.__module__.startswith("refocal.")
    }
    monkeypatch.setattr(refocal.Objective, "kinds", ours)  # other tests define objectives of their own
    text = (
        "objective must be one of Focal, SigmoidFocal, GeneralizedCrossEntropy, Poly1Focal, "
        "AsymmetricSingleLabel, Asymmetric, OneVsRest, got 'Hinge'; "
        "if it is a class of your own, import the module that defines it first"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        refocal.objective_from_dict({"objective": "Hinge"})
