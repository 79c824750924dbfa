"""Asymmetric, Poly1Focal, GeneralizedCrossEntropy, OneVsRest: the posterior of what was trained with."""

from __future__ import annotations

import functools
import json
import re

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.optimize
import torch

from refocal import (
    Asymmetric,
    AsymmetricSingleLabel,
    Focal,
    GeneralizedCrossEntropy,
    OneVsRest,
    Poly1Focal,
    SigmoidFocal,
    objective_from_dict,
)

SOFTMAX = [
    Poly1Focal(),
    Poly1Focal(gamma=0.0, epsilon=2.0),
    Poly1Focal(gamma=2.0, epsilon=-1.0),
    Poly1Focal(gamma=0.5, epsilon=5.0),
    GeneralizedCrossEntropy(),
    GeneralizedCrossEntropy(k=0.1),
    AsymmetricSingleLabel(),
    AsymmetricSingleLabel(gamma_pos=1.0, gamma_neg=4.0, label_smoothing=0.1),
    AsymmetricSingleLabel(gamma_pos=2.0, gamma_neg=0.0, label_smoothing=0.3),
    AsymmetricSingleLabel(gamma_pos=2.0, gamma_neg=4.0, label_smoothing=0.0),
    OneVsRest(),
    OneVsRest(SigmoidFocal(gamma=1.0, alpha=None)),
    OneVsRest(Asymmetric(gamma_pos=1.0, gamma_neg=4.0, clip=0.05)),
]
SIGMOID = [
    Asymmetric(gamma_pos=1.0),
    Asymmetric(gamma_pos=0.0, gamma_neg=4.0, clip=0.0),
    Asymmetric(gamma_pos=0.5, gamma_neg=2.0, clip=0.2),
    Asymmetric(gamma_pos=2.0, gamma_neg=1.0, clip=0.0),
]
DETACHED = [
    Asymmetric(gamma_pos=1.0, detach_weights=True),
    Asymmetric(gamma_pos=0.0, gamma_neg=3.0, clip=0.0, detach_weights=True),
]
NAMES = {
    c.__name__: c
    for c in (
        Asymmetric,
        AsymmetricSingleLabel,
        GeneralizedCrossEntropy,
        OneVsRest,
        Poly1Focal,
        SigmoidFocal,
    )
}


def posteriors(n: int = 5, k: int = 3) -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.ones(k), size=n)


def meant(eta, spec):
    """Return the posterior of the minimiser: eta, but no class has less than about 1 % of its psi."""
    if not isinstance(spec, AsymmetricSingleLabel):
        return eta
    eps = spec.label_smoothing
    left = np.maximum(eta, 0.01 / (1 - eps) * Focal(spec.gamma_pos).posterior(spec.logits(eta)) if eps else 0)
    return left / left.sum(axis=1, keepdims=True)


def minimise(risk, n):
    """Minimise a risk of torch logits in float64, with its exact gradient."""

    def value_and_gradient(z):
        z = torch.tensor(z, requires_grad=True)
        value = risk(z)
        (gradient,) = torch.autograd.grad(value, z)
        return value.item(), gradient.numpy()

    best = None
    for tries in range(3):  # again from where the line search gave up
        start = np.zeros(n) if best is None else best.x
        options = {"gtol": 1e-12, "maxiter": 2000}
        best = scipy.optimize.minimize(value_and_gradient, start, jac=True, method="BFGS", options=options)
        if best.success or tries == 2:
            return best.x
    return best.x


@pytest.mark.parametrize("spec", SOFTMAX, ids=repr)
def test_an_optimiser_finds_the_scores_of_the_posterior(spec):
    for eta in 0.9 * posteriors() + 0.1 / 3:

        def risk(z, eta=eta):
            rows = z.expand(3, 3)
            return torch.sum(torch.from_numpy(eta) * spec.loss(rows, torch.arange(3)))

        z = minimise(risk, 3)
        np.testing.assert_allclose(spec.posterior(z), eta, atol=1e-6)
        ours = torch.from_numpy(spec.logits(eta))
        assert risk(ours) <= risk(torch.from_numpy(z)) + 1e-13


@pytest.mark.parametrize("spec", SIGMOID, ids=repr)
def test_an_optimiser_finds_the_logits_of_every_binary_problem(spec):
    for eta in posteriors():
        y = torch.from_numpy(eta)
        z = minimise(
            lambda z, y=y: torch.sum(y * spec.loss(z, torch.ones(3)) + (1 - y) * spec.loss(z, 0 * z)), 3
        )
        np.testing.assert_allclose(spec.posterior(z), eta, atol=1e-6)
        np.testing.assert_allclose(spec.logits(eta), z, atol=1e-3)


@pytest.mark.parametrize("spec", DETACHED, ids=repr)
def test_detached_weights_stop_where_the_gradient_field_is_zero(spec):
    """What a training with constant weights does: p and p_m are constants in the powers."""

    def field(z, eta):
        z = torch.tensor(z, dtype=torch.float64, requires_grad=True)
        p = torch.sigmoid(z)
        m = torch.clamp(p - spec.clip, min=0)
        hit = (1 - p.detach()) ** spec.gamma_pos * -torch.log(p)
        miss = m.detach() ** spec.gamma_neg * -torch.log(1 - m)
        return torch.autograd.grad(eta * hit + (1 - eta) * miss, z)[0].item()

    for eta in (0.01, 0.2, 0.5, 0.9):
        z = scipy.optimize.brentq(field, -8, 12, args=(eta,), xtol=1e-13)
        np.testing.assert_allclose(spec.posterior(np.array([z])), eta, atol=1e-9)
        np.testing.assert_allclose(spec.logits(np.array([eta])), z, atol=1e-9)
        t = torch.tensor([z], requires_grad=True, dtype=torch.float64)
        loss = eta * spec.loss(t, torch.ones(1)) + (1 - eta) * spec.loss(t, torch.zeros(1))
        assert abs(torch.autograd.grad(loss.sum(), t)[0].item()) < 1e-9


def test_asl_posterior_by_many_digits():
    """The odds are -L_-' / L_+', by mpmath's derivative of the two terms."""

    def p(x):
        return 1 / (1 + mpmath.exp(-x))

    def hit(x):
        return (1 - p(x)) ** mpmath.mpf(1.5) * -mpmath.log(p(x))

    def miss(x):
        m = p(x) - mpmath.mpf(0.05)
        return m**3 * -mpmath.log(1 - m)

    spec = Asymmetric(gamma_pos=1.5, gamma_neg=3.0, clip=0.05)
    for z in (-2.9, -2.0, 0.0, 3.0, 30.0, 200.0):
        with mpmath.workdps(300):
            up, down = mpmath.diff(miss, z), -mpmath.diff(hit, z)
            expected = float(mpmath.log(up / (up + down)))
        np.testing.assert_allclose(spec.log_posterior(np.array([z])), expected, rtol=1e-11, atol=1e-300)


def test_poly1_posterior_by_many_digits():
    z = [0.0, -3.0, -60.0]
    for gamma, epsilon in [(2.0, 1.0), (2.0, -1.0), (0.0, -1.0), (0.5, -0.999), (3.0, 10.0)]:
        for scale in (0.1, 1.0, 5.0):
            with mpmath.workdps(300):
                e = [mpmath.exp(mpmath.mpf(x * scale)) for x in z]
                q = [x / sum(e) for x in e]
                g, c = mpmath.mpf(gamma), mpmath.mpf(epsilon)
                steep = [
                    (1 - x) ** g / x - g * (1 - x) ** (g - 1) * mpmath.log(x) + c * (g + 1) * (1 - x) ** g
                    for x in q
                ]
                total = sum(1 / x for x in steep)
                expected = [float(mpmath.log(1 / x / total)) for x in steep]
            got = Poly1Focal(gamma, epsilon).log_posterior(np.array(z) * scale)
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("spec", SOFTMAX + SIGMOID + DETACHED, ids=repr)
def test_logits_and_posterior_are_inverse(spec, backend):
    eta = np.concatenate([posteriors(20), [[0.5, 0.5, 0], [0.9, 0.05, 0.05], [0.999, 5e-4, 5e-4]]])
    x = backend.array(eta)
    back = backend.check(spec.posterior(spec.logits(x)), x)
    np.testing.assert_allclose(back, meant(eta, spec), atol=1e-5 if backend.dtype == "float32" else 1e-10)


@pytest.mark.parametrize("spec", SOFTMAX, ids=repr)
@pytest.mark.parametrize("k", [2, 1000])
def test_two_and_a_thousand_classes(spec, k):
    eta = np.random.default_rng(3).dirichlet(np.full(k, 0.5), size=4)
    np.testing.assert_allclose(spec.posterior(spec.logits(eta)), meant(eta, spec), atol=1e-10)


@pytest.mark.parametrize("spec", SOFTMAX + SIGMOID + DETACHED, ids=repr)
def test_from_probs_equals_from_logits(spec):
    z = np.random.default_rng(1).normal(size=(20, 3)) * 2
    softmax = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    probs = 1 / (1 + np.exp(-z)) if isinstance(spec, (Asymmetric, OneVsRest)) else softmax
    np.testing.assert_allclose(spec.posterior_from_probs(probs), spec.posterior(z), rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(np.exp(spec.log_posterior(z)), spec.posterior(z), rtol=1e-13)


@pytest.mark.parametrize("spec", SOFTMAX + SIGMOID + DETACHED, ids=repr)
def test_axis_and_blocks(spec):
    z = np.random.default_rng(2).normal(size=(4, 3, 5))
    expected = spec.posterior(np.moveaxis(z, 1, -1))
    np.testing.assert_allclose(np.moveaxis(spec.posterior(z, axis=1), 1, -1), expected, rtol=1e-12)
    t = torch.from_numpy(z)
    np.testing.assert_allclose(np.moveaxis(spec.posterior(t, axis=1).numpy(), 1, -1), expected, rtol=1e-11)
    eta = 0.97 * spec.posterior(z, axis=1) + 0.01
    np.testing.assert_allclose(spec.posterior(spec.logits(eta, axis=1), axis=1), eta, atol=1e-10)


@pytest.mark.parametrize("spec", SOFTMAX + SIGMOID + DETACHED, ids=repr)
def test_edges(spec):
    z = np.array([[1e4, 0.0, -1e4], [np.nan, 0.0, 1.0], [1.0, 2.0, 3.0]])
    for dtype in (np.float32, np.float64):
        p = spec.posterior(z.astype(dtype))
        assert np.isfinite(p[[0, 2]]).all()
        assert p.dtype == dtype
        if isinstance(spec, Asymmetric):
            assert np.isnan(p[1]).tolist() == [True, False, False]
            assert p[0, 2] == 0
        else:
            assert np.isnan(p[1]).all()
            np.testing.assert_allclose(p[[0, 2]].sum(axis=1), 1, rtol=1e-6)
    assert spec.posterior(np.zeros((0, 3))).shape == (0, 3)
    assert spec.logits(np.zeros((0, 3))).shape == (0, 3)
    masked = spec.posterior(np.array([1.0, -np.inf, 0.5]))
    assert masked[1] == 0
    assert np.isfinite(masked).all()
    assert np.isnan(spec.logits(np.array([[np.nan, 0.5, 0.5], [0.2, 0.3, 0.5]]))).any(axis=1).tolist() == [
        True,
        False,
    ]


@pytest.mark.parametrize("spec", SOFTMAX + SIGMOID + DETACHED, ids=repr)
def test_half_precision(spec):
    z = torch.tensor([[2.0, 1.0, 0.0], [60.0, -60.0, 0.0]], dtype=torch.float16)
    p = spec.posterior(z)
    assert p.dtype == torch.float16
    np.testing.assert_allclose(p.numpy(), spec.posterior(z.double().numpy()), atol=1e-3)
    assert spec.logits(p).dtype == torch.float16
    assert spec.posterior(jnp.zeros((2, 3), dtype=jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("spec", SOFTMAX + SIGMOID + DETACHED, ids=repr)
def test_gradients(spec):
    z = torch.tensor([[0.3, -0.2, 0.4], [0.5, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 2])
    targets = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    eta = torch.from_numpy(posteriors(2) * 0.85 + 0.05).requires_grad_()
    assert torch.autograd.gradcheck(spec.log_posterior, z)
    assert torch.autograd.gradcheck(functools.partial(spec.logits, check=False), eta)  # of any sum
    if spec not in DETACHED:
        of = targets if isinstance(spec, Asymmetric) else labels
        assert torch.autograd.gradcheck(lambda x: spec.loss(x, of), z)
    large = torch.tensor([[1e4, -1e4, 0.0], [90.0, 0.0, 0.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(spec.posterior(large).sum(), large)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("spec", [SOFTMAX[0], SOFTMAX[7], SIGMOID[0]], ids=repr)
def test_jit(spec):
    eta = posteriors(4)
    traced = jax.jit(lambda x: spec.posterior(spec.logits(x)))(jnp.asarray(eta))
    np.testing.assert_allclose(traced, eta, atol=1e-10)


@pytest.mark.parametrize("spec", SOFTMAX + SIGMOID + DETACHED, ids=repr)
def test_dictionaries_reprs_and_hashes(spec):
    fields = json.loads(json.dumps(spec.to_dict()))
    assert objective_from_dict(fields) == spec
    assert hash(objective_from_dict(fields)) == hash(spec)
    assert eval(repr(spec), NAMES) == spec
    with pytest.raises(AttributeError):
        spec.gamma = 1.0


def test_limits_that_are_known_losses():
    z = np.random.default_rng(4).normal(size=(50, 3)) * 3
    labels = np.arange(50) % 3
    focal = Focal(gamma=2.0)
    for same in (Poly1Focal(2.0, 0.0), AsymmetricSingleLabel(2.0, 4.0, 0.0)):
        np.testing.assert_allclose(same.loss(z, labels), focal.loss(z, labels), rtol=1e-12)
        np.testing.assert_allclose(same.log_posterior(z), focal.log_posterior(z), rtol=1e-12, atol=1e-14)
    smooth = Focal(gamma=0.0, label_smoothing=0.2)
    same = AsymmetricSingleLabel(0.0, 0.0, 0.2)
    np.testing.assert_allclose(same.loss(z, labels), smooth.loss(z, labels), rtol=1e-12)
    np.testing.assert_allclose(same.posterior(z), smooth.posterior(z), atol=1e-13)
    binary = SigmoidFocal(gamma=3.0, alpha=None)
    same = Asymmetric(3.0, 3.0, 0.0)
    y = (z > 0.3).astype(float)
    np.testing.assert_allclose(same.loss(z, y), binary.loss(z, y), rtol=1e-12)
    np.testing.assert_allclose(same.log_posterior(z), binary.log_posterior(z), rtol=1e-11)


def test_losses_by_their_definitions():
    z = np.random.default_rng(5).normal(size=(30, 3)) * 2
    labels, rows = np.arange(30) % 3, np.arange(30)
    q = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    q_y = q[rows, labels]
    poly = (1 - q_y) ** 2 * -np.log(q_y) + 1.5 * (1 - q_y) ** 3
    np.testing.assert_allclose(Poly1Focal(2.0, 1.5).loss(z, labels), poly, rtol=1e-11)
    np.testing.assert_allclose(GeneralizedCrossEntropy(0.7).loss(z, labels), (1 - q_y**0.7) / 0.7, rtol=1e-11)
    p, y = 1 / (1 + np.exp(-z)), np.eye(3)[labels]
    m = np.maximum(p - 0.05, 0)
    asl = y * (1 - p) * -np.log(p) + (1 - y) * m**4 * -np.log(1 - m)
    np.testing.assert_allclose(Asymmetric(1.0, 4.0, 0.05).loss(z, y), asl, rtol=1e-9, atol=1e-18)
    one_vs_rest = OneVsRest(Asymmetric(1.0, 4.0, 0.05))
    np.testing.assert_allclose(one_vs_rest.loss(z, labels), asl.sum(axis=1), rtol=1e-9)
    soft = np.random.default_rng(6).dirichlet(np.ones(3), size=30)
    each = np.stack([Poly1Focal().loss(z, np.full(30, i)) for i in range(3)], axis=1)
    np.testing.assert_allclose(Poly1Focal().loss(z, soft), (soft * each).sum(axis=1), rtol=1e-12)


@pytest.mark.parametrize("spec", SOFTMAX, ids=repr)
def test_a_label_out_of_range_and_a_masked_class(spec):
    assert torch.isnan(spec.loss(torch.zeros(1, 3), torch.tensor([3]))).all()
    loss = spec.loss(np.array([0.0, -np.inf, 1.0]), np.array([0.5, 0.0, 0.5]))
    assert np.isfinite(loss) or spec.to_dict().get("gamma_neg") == 0  # where every class has a share


def test_scores_up_to_the_clip_mean_zero():
    spec = Asymmetric(gamma_pos=1.0, gamma_neg=4.0, clip=0.05)
    assert spec.posterior_from_probs(np.array([0.0, 0.01, 0.0499])).tolist() == [0, 0, 0]
    assert spec.posterior(np.array([-np.inf, np.inf])).tolist() == [0, 1]
    np.testing.assert_allclose(spec.logits(np.array([0.0, 1.0])), [np.log(0.05 / 0.95), np.inf])
    loss = spec.loss(np.array([-np.inf, -5.0, np.inf]), np.array([0, 0, 1]))
    assert loss.tolist() == [0, 0, 0]


def test_a_clip_without_gamma_pos_bounds_the_odds():
    """The loss of y = 1 then falls no faster than that of y = 0 rises: larger posteriors go to infinity."""
    spec = Asymmetric(gamma_pos=0.0, gamma_neg=4.0, clip=0.05)
    bound = 0.95**4 / 0.05 + 4 * 0.95**3 * -np.log(0.05)
    np.testing.assert_allclose(spec.posterior(np.array([np.inf, 1e4])), bound / (1 + bound), rtol=1e-12)
    assert spec.logits(np.array([0.97, 1.0])).tolist() == [np.inf, np.inf]
    eta = np.array([bound / (1 + bound) - 1e-9, 0.96])
    np.testing.assert_allclose(spec.posterior(spec.logits(eta)), eta, atol=1e-12)


def test_the_posterior_rises_with_the_logit():
    z = np.linspace(-40, 40, 4001)
    for gamma_pos in (0.0, 0.3, 1.0, 5.0):
        for gamma_neg in (0.0, 0.3, 1.0, 5.0):
            for clip in (0.0, 0.05, 0.5):
                for detach in (False, True):
                    y = Asymmetric(gamma_pos, gamma_neg, clip, detach).log_posterior(z)
                    step = np.diff(y[np.isfinite(y)])
                    assert (step >= -1e-14).all()


BAD = [
    (lambda: Asymmetric(gamma_pos=-1.0), ValueError, "gamma_pos must be finite and >= 0, got -1.0"),
    (lambda: Asymmetric(gamma_neg=np.nan), ValueError, "gamma_neg must be finite and >= 0, got nan"),
    (lambda: Asymmetric(clip=1.0), ValueError, "clip must be in [0, 1), got 1.0"),
    (lambda: Asymmetric(detach_weights=1), TypeError, "detach_weights must be True or False, got 1"),
    (lambda: AsymmetricSingleLabel(gamma_pos="1"), TypeError, "gamma_pos must be a number, got '1'"),
    (
        lambda: AsymmetricSingleLabel(label_smoothing=1.0),
        ValueError,
        "label_smoothing must be in [0, 1), got 1.0",
    ),
    (lambda: Poly1Focal(gamma=-0.5), ValueError, "gamma must be finite and >= 0, got -0.5"),
    (lambda: Poly1Focal(epsilon=-1.5), ValueError, "epsilon must be finite and >= -1, got -1.5"),
    (
        lambda: GeneralizedCrossEntropy(k=1.0),
        ValueError,
        "k must be in (0, 1): at 1 the loss has no posterior, got 1.0",
    ),
    (
        lambda: GeneralizedCrossEntropy(k=0),
        ValueError,
        "k must be in (0, 1): at 1 the loss has no posterior, got 0",
    ),
    (lambda: OneVsRest(2.0), TypeError, "binary must be a SigmoidFocal or an Asymmetric, got 2.0"),
    (
        lambda: Poly1Focal().posterior(np.zeros((4, 1))),
        ValueError,
        "logits must have at least 2 classes along axis 1, got shape (4, 1)",
    ),
    (
        lambda: Poly1Focal().loss(np.zeros((2, 3)), np.array([0, 3])),
        ValueError,
        "labels must be within 0..2, got 3",
    ),
    (
        lambda: Asymmetric().loss(np.zeros((2, 3)), np.zeros(2)),
        ValueError,
        "targets must have the shape (2, 3) of logits, got (2,)",
    ),
    (
        lambda: Asymmetric().posterior(0.3),
        ValueError,
        "logits must have at least one axis, got a single number",
    ),
]


@pytest.mark.parametrize("call, kind, text", BAD, ids=[text for _, _, text in BAD])
def test_bad_input(call, kind, text):
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        call()
