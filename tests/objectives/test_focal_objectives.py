"""Focal and SigmoidFocal: the posterior of what was trained with, whatever the options."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import torch
from exact import without_smoothing

import refocal
from refocal import Focal, SigmoidFocal, objective_from_dict

FOCALS = [
    Focal(),
    Focal(gamma=0.5),
    Focal(gamma=2.0, weight=[1.0, 3.0, 0.2]),
    Focal(gamma=[0.0, 1.0, 4.0]),
    Focal(gamma=3.0, label_smoothing=0.1),
    Focal(gamma=(0.5, 2.0, 3.0), weight=(1.0, 2.0, 0.5), label_smoothing=0.2),
]
SIGMOIDS = [
    SigmoidFocal(),
    SigmoidFocal(gamma=0.5, alpha=None),
    SigmoidFocal(gamma=[0.0, 2.0, 5.0], alpha=[0.1, 0.5, 0.9]),
    SigmoidFocal(gamma=2.0, alpha=0.75, label_smoothing=0.1),
]
IDS = [repr(x) for x in FOCALS + SIGMOIDS]


def posteriors(n: int = 6) -> np.ndarray:
    return 0.97 * np.random.default_rng(0).dirichlet(np.ones(3), size=n) + 0.01


@pytest.mark.parametrize("spec", FOCALS, ids=repr)
def test_an_optimiser_finds_the_scores_of_the_posterior(spec):
    for eta in posteriors():

        def risk(z, eta=eta):
            return sum(eta[y] * spec.loss(z, np.int64(y)) for y in range(3))

        z = scipy.optimize.minimize(risk, np.zeros(3), method="BFGS", options={"gtol": 1e-9}).x
        np.testing.assert_allclose(spec.posterior(z), eta, atol=1e-6)
        ours = spec.logits(eta)
        np.testing.assert_allclose(z - z.max(), ours - ours.max(), atol=1e-4)
        assert risk(ours) <= risk(z) + 1e-12


@pytest.mark.parametrize("spec", SIGMOIDS, ids=repr)
def test_an_optimiser_finds_the_logits_of_every_binary_problem(spec):
    for eta in posteriors(3):

        def risk(z, eta=eta):
            return np.sum(eta * spec.loss(z, np.ones(3)) + (1 - eta) * spec.loss(z, np.zeros(3)))

        z = scipy.optimize.minimize(risk, np.zeros(3), method="BFGS", options={"gtol": 1e-10}).x
        np.testing.assert_allclose(spec.posterior(z), eta, atol=1e-5)
        np.testing.assert_allclose(spec.logits(eta), z, atol=1e-4)


@pytest.mark.parametrize("spec", FOCALS + SIGMOIDS, ids=IDS)
def test_logits_and_posterior_are_inverse(spec, backend):
    eta = np.concatenate([posteriors(), [[1, 0, 0], [0.5, 0.5, 0], [0.999, 5e-4, 5e-4]]])
    x = backend.array(eta)
    back = backend.check(spec.posterior(spec.logits(x)), x)
    tolerance = 5e-6 if backend.dtype == "float32" else 1e-13
    np.testing.assert_allclose(back, without_smoothing(eta, spec), atol=tolerance)


@pytest.mark.parametrize("spec", FOCALS + SIGMOIDS, ids=IDS)
def test_from_probs_equals_from_logits(spec):
    z = np.random.default_rng(1).normal(size=(20, 3)) * 3
    softmax = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    probs = softmax if isinstance(spec, Focal) else 1 / (1 + np.exp(-z))
    np.testing.assert_allclose(spec.posterior_from_probs(probs), spec.posterior(z), rtol=1e-9, atol=1e-13)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(np.exp(spec.log_posterior(z)), spec.posterior(z), rtol=1e-13)


@pytest.mark.parametrize("spec", FOCALS + SIGMOIDS, ids=IDS)
def test_axis(spec):
    z = np.random.default_rng(2).normal(size=(4, 3, 5))
    expected = spec.posterior(np.moveaxis(z, 1, -1))
    np.testing.assert_allclose(np.moveaxis(spec.posterior(z, axis=1), 1, -1), expected, rtol=1e-13)
    t = torch.from_numpy(z)
    np.testing.assert_allclose(np.moveaxis(spec.posterior(t, axis=1).numpy(), 1, -1), expected, rtol=1e-12)
    eta = np.moveaxis(0.97 * expected + 0.01, -1, 1)
    np.testing.assert_allclose(spec.posterior(spec.logits(eta, axis=1), axis=1), eta, atol=1e-13)


@pytest.mark.parametrize("spec", FOCALS + SIGMOIDS, ids=IDS)
def test_dictionaries_reprs_and_hashes(spec):
    fields = json.loads(json.dumps(spec.to_dict()))
    assert objective_from_dict(fields) == spec
    assert hash(objective_from_dict(fields)) == hash(spec)
    assert eval(repr(spec), {"Focal": Focal, "SigmoidFocal": SigmoidFocal}) == spec
    with pytest.raises(AttributeError):
        spec.gamma = 1.0


def test_focal_loss_with_gamma_zero_is_torch_s_cross_entropy():
    g = torch.Generator().manual_seed(0)
    z = torch.randn(10, 3, generator=g, dtype=torch.float64)
    labels, soft = torch.arange(10) % 3, torch.rand(10, 3, generator=g, dtype=torch.float64).softmax(-1)
    weight = torch.tensor([1.0, 3.0, 0.2], dtype=torch.float64)
    for smoothing in (0.0, 0.1, 0.9):
        for w in (None, weight):
            spec = Focal(gamma=0, weight=w, label_smoothing=smoothing)
            for target in (labels, soft):
                expected = torch.nn.functional.cross_entropy(
                    z, target, weight=w, label_smoothing=smoothing, reduction="none"
                )
                torch.testing.assert_close(spec.loss(z, target), expected, rtol=1e-12, atol=1e-14)


def test_sigmoid_loss_by_its_definition():
    z = np.random.default_rng(3).normal(size=50) * 3
    y = (np.arange(50) % 2).astype(float)
    p = 1 / (1 + np.exp(-z))
    ce = -(y * np.log(p) + (1 - y) * np.log1p(-p))
    p_t = p * y + (1 - p) * (1 - y)
    expected = (0.25 * y + 0.75 * (1 - y)) * ce * (1 - p_t) ** 2
    np.testing.assert_allclose(SigmoidFocal().loss(z, y), expected, rtol=1e-10)
    np.testing.assert_allclose(SigmoidFocal().loss(z, y.astype(int)), expected, rtol=1e-10)


def test_the_setting_of_retinanet():
    p = SigmoidFocal(gamma=2.0, alpha=0.25).posterior_from_probs([0.1, 0.2, 0.3, 0.4, 0.5, 0.7])
    assert np.round(p, 3).tolist() == [0.008, 0.067, 0.236, 0.503, 0.75, 0.967]


def test_two_classes_and_a_sigmoid_are_the_same_problem():
    z = np.linspace(-800, 800, 201)
    two = Focal(gamma=2.0, weight=[0.75, 0.25]).log_posterior(np.stack([0 * z, z], axis=-1))[:, 1]
    np.testing.assert_allclose(
        SigmoidFocal(gamma=2.0, alpha=0.25).log_posterior(z), two, rtol=1e-13, atol=1e-300
    )


def test_sigmoid_at_the_ends():
    z = np.array([-np.inf, -1e4, 0.0, 1e4, np.inf, np.nan])
    p = SigmoidFocal().posterior(z)
    assert p[:2].tolist() == [0, 0]
    assert p[2] == pytest.approx(0.75)
    assert p[3:5].tolist() == [1, 1]
    assert np.isnan(p[5])
    assert SigmoidFocal().logits(np.array([0.0, 1.0])).tolist() == [-np.inf, np.inf]
    loss = SigmoidFocal().loss(np.array([-1e4, 1e4, -np.inf, np.inf]), np.array([0, 1, 0, 1]))
    assert loss.tolist() == [0, 0, 0, 0]


def test_smoothing_leaves_a_probability_to_every_class():
    """No class loses more than 99 %, whatever the logits, so that no loss is infinite."""
    z = np.array([[50.0, 0.0, 0.0], [3.0, -9.0, 2.0], [0.1, 0.0, -0.2]])
    smoothed, taken_out = Focal(gamma=2.0), Focal(gamma=2.0, label_smoothing=0.1)
    s, p = smoothed.posterior(z), taken_out.posterior(z)
    left = np.maximum(s - 0.1 / 3, 0.01 * s)
    np.testing.assert_allclose(p, left / left.sum(axis=1, keepdims=True), rtol=1e-12)
    assert (p > 0).all()
    np.testing.assert_allclose(np.log(p), taken_out.log_posterior(z), rtol=1e-12, atol=1e-15)
    assert p[2] == pytest.approx((s[2] - 0.1 / 3) / 0.9, abs=1e-14)  # all above: nothing but the formula
    loss, bound = -taken_out.log_posterior(z), -smoothed.log_posterior(z) + np.log(100) + 0.01 * 0.1 / 0.9
    assert (loss <= bound).all()
    assert taken_out.posterior(np.array([0.0, -np.inf, 1.0]))[1] == 0  # a masked class stays out
    q = SigmoidFocal(label_smoothing=0.1).log_posterior(np.array([-50.0, 50.0, -5000.0]))
    np.testing.assert_allclose(q, SigmoidFocal().log_posterior(np.array([-50.0, 50.0, -5000.0])), atol=4.7)
    assert np.isfinite(q).all()
    assert np.isnan(Focal(label_smoothing=0.1).posterior(np.array([np.nan, 0.0]))).all()


@pytest.mark.parametrize("eps", [0.05, 0.1, 0.3])
def test_the_bias_of_what_is_left_stays_within_its_bound(eps):
    eta = np.random.default_rng(0).dirichlet([0.05] * 10, size=2000)  # most classes below the exact part
    spec = Focal(gamma=2.0, label_smoothing=eps)
    log_p = spec.log_posterior(spec.logits(eta))
    worst = (np.log(np.maximum(eta, 1e-300)) - log_p).max()
    assert 0 < worst <= 0.0102 * eps / (1 - eps)


def test_weights_can_change_the_most_probable_class():
    spec = Focal(gamma=2.0, weight=[1.0, 10.0])
    assert spec.posterior(np.array([0.0, 0.5])).argmax() == 0


def test_gradients_at_zero_logits():
    """sigmoid's log-odds are smooth at 0, where a formula by |z| would not be."""
    z = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    for spec in SIGMOIDS:
        assert torch.autograd.gradcheck(spec.log_posterior, z)
    z = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    for spec in FOCALS:
        assert torch.autograd.gradcheck(spec.log_posterior, z)
        assert torch.autograd.gradcheck(lambda x, s=spec: s.loss(x, torch.tensor([0, 2])), z)


def test_jax_and_half_precision():
    z = jnp.asarray([[2.0, 1.0, 0.0]], dtype=jnp.bfloat16)
    spec = FOCALS[-1]
    assert spec.posterior(z).dtype == jnp.bfloat16
    assert spec.logits(spec.posterior(torch.zeros(2, 3, dtype=torch.float16))).dtype == torch.float16
    assert SigmoidFocal().posterior(z).dtype == jnp.bfloat16
    assert refocal.Focal().posterior(np.zeros((0, 3))).shape == (0, 3)
