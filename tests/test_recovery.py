"""posterior_of: the posterior of any loss from its gradients. score_threshold: what a raw score means."""

from __future__ import annotations

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import torch
import torch.nn.functional as F

import refocal.recovery
from refocal import Focal, SigmoidFocal, check_inverse, focal_loss, log_psi, score_posterior, score_threshold
from refocal.objectives import Asymmetric, GeneralizedCrossEntropy, OneVsRest, Poly1Focal
from refocal.recovery import Recovered, posterior_of

ETA = np.random.default_rng(0).dirichlet(np.full(4, 3.0), size=5)


def cross_entropy(z, y):
    return F.cross_entropy(z, y, reduction="none")


def of_label(x, y):
    return x.gather(1, y[:, None])[:, 0]


def mean_absolute_error(z, y):
    return 1 - of_label(z.softmax(-1), y)


def generalized_cross_entropy(z, y, k=0.7):
    return (1 - of_label(z.softmax(-1), y) ** k) / k


def poly1(z, y, epsilon=2.0):
    nll = cross_entropy(z, y)
    return nll + epsilon * (1 - torch.exp(-nll))


def dual_focal(z, y, gamma=3.0):
    """Tao, Dong, Xu (2023): the focal loss with 1 - q_y + q_j, q_j the largest score below q_y."""
    q = z.softmax(-1)
    q_y = of_label(q, y)[:, None]
    q_j = torch.where(q < q_y, q, 0).max(-1).values
    return (1 - q_y[:, 0] + q_j) ** gamma * cross_entropy(z, y)


def brier(z, y):
    return ((z.softmax(-1) - F.one_hot(y, z.shape[1])) ** 2).sum(-1)


def one_vs_rest(z, y):
    """A sigmoid focal loss for every class: shifts of the logits do change it."""
    hit = F.one_hot(y, z.shape[1]).to(z.dtype)
    nll = F.binary_cross_entropy_with_logits(z, hit, reduction="none")
    return ((1 - torch.exp(-nll)) ** 2 * nll).sum(-1)


def squared_hinge(z, y):
    return F.multi_margin_loss(z, y, p=2, margin=4.0, reduction="none")


LOSSES = [
    cross_entropy,
    poly1,
    generalized_cross_entropy,
    dual_focal,
    brier,
    one_vs_rest,
    squared_hinge,
    lambda z, y: focal_loss(z, y, 2.0),
    lambda z, y: F.cross_entropy(z, y, weight=z.new_tensor([1, 2, 3, 0.5]), reduction="none"),
    lambda z, y: F.cross_entropy(z, y, label_smoothing=0.1, reduction="none"),
    lambda z, y: Focal(gamma=[0, 1, 2, 5], weight=[1, 2, 3, 0.5], label_smoothing=0.1).loss(z, y),
]


@pytest.mark.parametrize("loss_fn", LOSSES, ids=lambda f: f.__name__)
def test_at_the_minimiser_that_an_optimiser_finds_it_is_the_truth(loss_fn):
    for eta in ETA:
        p = torch.from_numpy(eta)

        def risk(z, p=p):  # and its gradient
            x = torch.tensor(z, requires_grad=True)
            value = (p * loss_fn(x.expand(4, 4), torch.arange(4))).sum()
            return value.item(), torch.autograd.grad(value, x)[0].numpy()

        z = scipy.optimize.minimize(risk, np.log(eta), jac=True, method="BFGS").x
        z = scipy.optimize.root(lambda z: risk(z)[1], z, method="lm", tol=1e-15).x  # the last digits
        assert np.abs(risk(z)[1]).max() < 1e-9
        recovered = posterior_of(loss_fn, torch.from_numpy(z), return_residual=True)
        np.testing.assert_allclose(recovered.posterior, eta, atol=1e-6)
        assert recovered.residual < 1e-6


@pytest.mark.parametrize(
    "library, k, scale",
    [*(("torch", k, scale) for k in (2, 3, 100) for scale in (0.0, 1.0, 30.0)), ("jax", 3, 30.0)],
)
def test_closed_forms(library, k, scale):
    z = np.random.default_rng(k).normal(size=(20, k)) * scale
    z = torch.from_numpy(z) if library == "torch" else jnp.asarray(z)
    weighted = Focal(gamma=np.linspace(0, 5, k), weight=np.linspace(0.5, 3, k))
    for spec in [Focal(gamma=0), Focal(), Focal(gamma=5.0), weighted][0 if library == "torch" else 3 :]:
        loss_fn = spec.loss if library == "torch" else jax.jit(spec.loss)
        p, residual = posterior_of(loss_fn, z, return_residual=True)
        assert type(p) is type(z)
        assert p.dtype == z.dtype
        assert residual.shape == (20,)
        np.testing.assert_allclose(p, spec.posterior(z), rtol=1e-12, atol=1e-300)
        assert np.asarray(residual).max() < 1e-14


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("scale", [3.0, 30.0, 100.0])
def test_losses_as_people_write_them_stay_accurate_on_sure_rows(k, scale):
    def naive_focal(z, y):
        nll = cross_entropy(z, y)
        return (1 - torch.exp(-nll)) ** 2 * nll  # the bracket is 0 beyond a gap of 37

    z = torch.from_numpy(np.random.default_rng(k).normal(size=(50, k)) * scale)
    for loss_fn, expected in [
        (cross_entropy, z.softmax(-1)),
        (naive_focal, log_psi(z, 2.0).exp()),
        (generalized_cross_entropy, (0.3 * z.log_softmax(-1)).softmax(-1)),
    ]:
        torch.testing.assert_close(posterior_of(loss_fn, z), expected, rtol=0, atol=1e-12)
        if loss_fn in (cross_entropy, generalized_cross_entropy):
            torch.testing.assert_close(posterior_of(loss_fn, z), expected, rtol=1e-11, atol=0)


def test_so_sure_that_every_gradient_underflows():
    z = torch.tensor([[2000.0, 0.0], [-300.0, 300.0]])
    assert posterior_of(lambda z, y: focal_loss(z, y, 2.0), z).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("scale", [10.0, 30.0, 100.0])
def test_where_gradients_are_lost_there_is_an_error_or_the_truth(k, scale):
    """The Brier score's cancel; the loss of an unlikely label is cut off."""

    def cut_off(z, y):
        return -of_label(z.softmax(-1), y).clamp(min=1e-7).log()

    z = torch.from_numpy(np.random.default_rng(k).normal(size=(60, k)) * scale)
    right = {brier: 0, cut_off: 0}
    for loss_fn in right:
        for row in z:
            try:
                p = posterior_of(loss_fn, row)
            except ValueError:
                continue
            torch.testing.assert_close(p, row.softmax(-1), rtol=0, atol=1e-7)
            right[loss_fn] += 1
    assert right[brier] > 0
    if scale == 10:
        assert right[brier] > 50
        assert right[cut_off] > 0


def test_reversed_logits():
    """Which class is the surest is read from the gradients, not from the logits."""
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 5)) * 20)
    expected = (-z).softmax(-1)
    p = posterior_of(lambda z, y: cross_entropy(-z, y), z)
    torch.testing.assert_close(p, expected, rtol=1e-11, atol=0)


def test_label_smoothing_is_taken_out_and_clipped_on_request():
    spec = Focal(gamma=2.0, label_smoothing=0.2)
    z = torch.from_numpy(spec.logits(ETA))
    np.testing.assert_allclose(posterior_of(spec.loss, z), ETA, atol=1e-12)
    sure = torch.tensor([[0.0, 0.1, 0.2, 0.3], [9.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    text = "in 1 of 2 rows, the first of them row 1, no posterior makes the logits stationary (residual"
    with pytest.raises(ValueError, match=re.escape(text)):
        posterior_of(spec.loss, sure)
    p, residual = posterior_of(spec.loss, sure, rtol=math.inf, return_residual=True)
    np.testing.assert_allclose(p, spec.posterior(sure), atol=1e-12)
    assert residual[0] < 1e-14
    assert residual[1] > 0.1


def test_precision_is_float64_where_the_loss_allows_it():
    z = torch.from_numpy(np.random.default_rng(1).normal(size=(50, 5)) * 10).float()
    exact = z.double().softmax(-1)
    torch.testing.assert_close(posterior_of(cross_entropy, z), exact.float(), rtol=2e-7, atol=0)
    weight = torch.ones(5)  # float32, so PyTorch refuses float64 logits

    def weighted(z, y):
        return F.cross_entropy(z, y, weight=weight, reduction="none")

    torch.testing.assert_close(posterior_of(weighted, z), exact.float(), rtol=1e-5, atol=0)
    half = z.to(torch.bfloat16)
    p = posterior_of(cross_entropy, half)
    assert p.dtype == torch.bfloat16
    torch.testing.assert_close(p, half.double().softmax(-1).to(torch.bfloat16))


def test_jax_without_float64():
    z = np.random.default_rng(2).normal(size=(20, 5)) * 10
    with jax.enable_x64(False):
        x = jnp.asarray(z)
        assert x.dtype == jnp.float32
        p = posterior_of(lambda z, y: -jax.nn.log_softmax(z)[jnp.arange(len(y)), y], x)
        assert p.dtype == jnp.float32
        np.testing.assert_allclose(p, jax.nn.softmax(x), rtol=1e-4, atol=1e-7)


def test_shapes_blocks_and_nan(monkeypatch):
    z = torch.from_numpy(np.random.default_rng(3).normal(size=(2, 7, 3)))
    expected = z.softmax(-1)
    p, residual = posterior_of(cross_entropy, z, return_residual=True)
    assert residual.shape == (2, 7)
    torch.testing.assert_close(p, expected)
    torch.testing.assert_close(posterior_of(cross_entropy, z[0, 0]), expected[0, 0])
    assert posterior_of(cross_entropy, z[:, :0]).shape == (2, 0, 3)
    empty = posterior_of(lambda z, y: focal_loss(z, y, 2.0), jnp.zeros((0, 3)), return_residual=True)
    assert empty.posterior.shape == (0, 3)
    assert empty.residual.shape == (0,)
    rows = []

    def counted(z, y):
        rows.append(len(z))
        return cross_entropy(z, y)

    monkeypatch.setattr(refocal.recovery, "BLOCK", 4 * 9)
    torch.testing.assert_close(posterior_of(counted, z), p)
    assert max(rows) == 4 * 3
    z[1, 2, 0] = torch.nan
    with_nan = posterior_of(cross_entropy, z)
    assert with_nan[1, 2].isnan().all()
    with_nan[1, 2] = p[1, 2]
    torch.testing.assert_close(with_nan, p)


def test_a_thousand_classes():
    z = torch.from_numpy(np.random.default_rng(4).normal(size=(2, 1000)))
    p = posterior_of(lambda z, y: focal_loss(z, y, 2.0), z)
    torch.testing.assert_close(p, log_psi(z, 2.0).exp(), rtol=1e-11, atol=0)


def test_no_gradient_goes_in_or_out():
    z = torch.zeros(1, 3, requires_grad=True)
    assert not posterior_of(cross_entropy, z).requires_grad
    with torch.no_grad():
        assert posterior_of(cross_entropy, z).shape == (1, 3)
    with torch.inference_mode():
        assert posterior_of(cross_entropy, z + 1).shape == (1, 3)
    assert z.grad is None
    assert Recovered._fields == ("posterior", "residual")


def test_one_vs_rest_scores_that_no_posterior_explains():
    def binary(z, y):
        hit = F.one_hot(y, z.shape[1]).to(z.dtype)
        return F.binary_cross_entropy_with_logits(z, hit, reduction="none").sum(-1)

    scores = torch.tensor([[0.2, 0.3, 0.5], [0.2, 0.3, 0.6]], dtype=torch.float64)
    with pytest.raises(ValueError, match="in 1 of 2 rows, the first of them row 1, no posterior makes"):
        posterior_of(binary, scores.logit())
    p, residual = posterior_of(binary, scores.logit(), rtol=0.2, return_residual=True)
    torch.testing.assert_close(p[0], scores[0])
    assert residual[0] < 1e-14 < 0.05 < residual[1]


Z = torch.from_numpy(np.random.default_rng(5).normal(size=(6, 4)))
FLAT = "the expected loss is flat or not smallest there, so it says nothing about the posterior"
OPEN = "more than one posterior fits (the gradients of the classes have a rank below K - 1)"


def pairs_of_classes(z, y):
    """Cross entropy that does not tell 0 from 1, nor 2 from 3."""
    q = z.softmax(-1).reshape(-1, 2, 2).sum(-1)
    return -torch.log(of_label(q, y // 2))


def noisy_labels(z, y):
    """Two of the four classes are mixtures of the others, up to rounding."""
    ends = z.new_tensor([[0.6, 0.2, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4]])
    share = z.new_tensor([0, 1, 0.3, 0.6])[:, None]
    mixtures = share * ends[0] + (1 - share) * ends[1]
    return F.cross_entropy(z, mixtures[y], reduction="none")


@pytest.mark.parametrize(
    "loss_fn, scale, reason",
    [
        (mean_absolute_error, 1, FLAT),
        (mean_absolute_error, 10, FLAT),
        (lambda z, y: F.multi_margin_loss(z, y, reduction="none"), 0.1, FLAT),
        (lambda z, y: F.multi_margin_loss(z, y, reduction="none"), 100, FLAT),
        (lambda z, y: -(of_label(z.softmax(-1), y) ** 2), 1, FLAT),  # a maximum
        (pairs_of_classes, 1, OPEN),
        (noisy_labels, 1, OPEN),
        (lambda z, y: cross_entropy(z, y) * (y < 2), 1, OPEN),
        (lambda z, y: 0 * z.sum(-1), 1, OPEN),
    ],
)
def test_losses_without_a_posterior(loss_fn, scale, reason):
    for z in (Z, Z.float()):
        text = f"logits must determine the posterior; in 6 of 6 rows, the first of them row 0, {reason}"
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            posterior_of(loss_fn, scale * z)


SIGMOIDS = [
    SigmoidFocal(),
    SigmoidFocal(gamma=0.5, alpha=None),
    SigmoidFocal(gamma=3.0, alpha=0.9, label_smoothing=0.1),
    SigmoidFocal(gamma=[0.0, 2.0, 5.0], alpha=[0.1, 0.5, 0.9]),
    Asymmetric(clip=0.0),
]
TWO_CLASSES = [
    Focal(),
    Focal(gamma=[0.5, 3.0], weight=[1.0, 10.0]),
    Focal(gamma=0.0, label_smoothing=0.1),
    Focal(weight=[100.0, 1.0], label_smoothing=0.5),
    GeneralizedCrossEntropy(),
    Poly1Focal(),
]


def test_the_setting_of_retinanet():
    spec = SigmoidFocal(gamma=2.0, alpha=0.25)
    scores = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.7])
    assert score_posterior(spec, scores).round(3).tolist() == [0.008, 0.067, 0.236, 0.503, 0.75, 0.967]
    assert [round(score_posterior(spec, s), 3) for s in scores.tolist()] == [
        0.008,
        0.067,
        0.236,
        0.503,
        0.75,
        0.967,
    ]
    threshold = score_threshold(spec)
    assert type(threshold) is float
    found = scipy.optimize.brentq(lambda s: spec.posterior_from_probs(np.array([s]))[0] - 0.5, 0.1, 0.9)
    assert threshold == pytest.approx(found, abs=1e-10)
    assert threshold == pytest.approx(0.3988, abs=5e-5)


@pytest.mark.parametrize("spec", SIGMOIDS + TWO_CLASSES, ids=repr)
def test_thresholds_and_their_meaning_are_inverse(spec):
    smoothed = bool(getattr(spec, "label_smoothing", 0))  # then a probability of 0 is never said
    x = np.linspace(0.01 * smoothed, 1 - 0.01 * smoothed, 99).reshape(33, 3)
    np.testing.assert_allclose(score_posterior(spec, score_threshold(spec, x)), x, atol=1e-12)


@pytest.mark.parametrize("spec", [SigmoidFocal(gamma=[0.5, 2, 2]), Focal(weight=[1, 10])], ids=repr)
def test_every_array_library(spec, backend):
    x = backend.array(np.linspace(0.02, 0.98, 21).reshape(7, 3))
    scores = score_threshold(spec, x)
    backend.check(scores, x)
    back = backend.check(score_posterior(spec, scores), x)
    np.testing.assert_allclose(back, np.asarray(x), atol=2e-5 if backend.dtype == "float32" else 1e-12)


@pytest.mark.parametrize("spec", [*SIGMOIDS[:3], *TWO_CLASSES], ids=repr)
def test_numbers_give_floats(spec):
    for value in (0, 0.25, np.float32(0.75), 1):
        score = score_threshold(spec, value)
        assert type(score) is float
        assert score == score_threshold(spec, np.array([value], dtype=float))[0]
        meaning = score_posterior(spec, score)
        assert type(meaning) is float
        smoothed = getattr(spec, "label_smoothing", 0) and value in (0, 1)
        assert meaning == pytest.approx(float(value), abs=0.011 if smoothed else 1e-12)


def test_two_classes_and_a_sigmoid_have_the_same_threshold():
    two = Focal(gamma=2.0, weight=[0.75, 0.25])
    for eta in (0.01, 0.5, 0.9):
        assert score_threshold(two, eta) == pytest.approx(score_threshold(SigmoidFocal(), eta), abs=1e-14)


def test_parameters_of_the_classes_give_a_threshold_each():
    spec = SigmoidFocal(gamma=[0.0, 2.0, 5.0], alpha=[0.1, 0.5, 0.9])
    alone = [SigmoidFocal(gamma=g, alpha=a) for g, a in zip(spec.gamma, spec.alpha, strict=True)]
    expected = [score_threshold(one, 0.3) for one in alone]
    np.testing.assert_allclose(score_threshold(spec, 0.3), expected, rtol=1e-13)
    np.testing.assert_allclose(score_posterior(spec, np.array(expected)), 0.3, rtol=1e-13)
    assert score_posterior(spec, 0.3).shape == (3,)


def test_the_ends():
    ends = np.array([0.0, 1.0])
    for spec in [*SIGMOIDS[:2], *TWO_CLASSES[:2]]:
        assert score_threshold(spec, ends).tolist() == [0, 1]
        assert score_posterior(spec, ends).tolist() == [0, 1]
        assert score_posterior(spec, jnp.asarray(ends)).tolist() == [0, 1]


LOGITS = "; these look like logits: use posterior(logits)"

CASES = [
    (
        lambda: check_inverse(OneVsRest(SigmoidFocal(gamma=1.0))),
        ValueError,
        "objective must be a loss on a sigmoid or a softmax, since of a row of sigmoids the gradients "
        "determine no distribution, got OneVsRest(binary="
        "SigmoidFocal(gamma=1.0, alpha=0.25, label_smoothing=0.0))",
    ),
    (
        lambda: posterior_of(cross_entropy, Z.numpy()),
        TypeError,
        "logits must be a PyTorch or JAX array, by which loss_fn can be differentiated, got ndarray",
    ),
    (
        lambda: posterior_of(cross_entropy, [[1.0, 2.0]]),
        TypeError,
        "logits must be a PyTorch or JAX array, by which loss_fn can be differentiated, got list",
    ),
    (
        lambda: posterior_of(F.cross_entropy, Z),
        ValueError,
        'loss_fn must return one loss for each row, shape (4,), got shape () (in PyTorch: reduction="none")',
    ),
    (
        lambda: posterior_of(lambda z, y: focal_loss(z, y, 2.0).mean(), jnp.zeros((2, 3))),
        ValueError,
        'loss_fn must return one loss for each row, shape (3,), got shape () (in PyTorch: reduction="none")',
    ),
    (
        lambda: posterior_of(lambda z, y: z.log_softmax(-1), Z),
        ValueError,
        "loss_fn must return one loss for each row, shape (4,), got shape (4, 4)",
    ),
    (
        lambda: posterior_of(lambda z, y: cross_entropy(z, y).detach(), Z),
        ValueError,
        "loss_fn must be differentiable, but its result has no gradient",
    ),
    (
        lambda: posterior_of(cross_entropy, Z[:, :1]),
        ValueError,
        "logits must have at least 2 classes along axis 1, got shape (6, 1)",
    ),
    (
        lambda: posterior_of(cross_entropy, torch.tensor(1.0)),
        ValueError,
        "axis must be within the 0 axes of logits, got -1",
    ),
    (
        lambda: posterior_of(cross_entropy, Z.long()),
        TypeError,
        "logits must hold floating point numbers, got dtype torch.int64",
    ),
    (lambda: posterior_of(cross_entropy, Z, rtol=-1), ValueError, "rtol must be >= 0, got -1"),
    (lambda: posterior_of(cross_entropy, Z, rtol=math.nan), ValueError, "rtol must be >= 0, got nan"),
    (lambda: posterior_of(cross_entropy, Z, rtol="1"), TypeError, "rtol must be a number, got '1'"),
    (
        lambda: score_threshold(SigmoidFocal(), 1.5),
        ValueError,
        "posterior must be in [0, 1], got 1.5" + LOGITS,
    ),
    (lambda: score_threshold(SigmoidFocal(), math.nan), ValueError, "posterior must be in [0, 1], got nan"),
    (lambda: score_threshold(SigmoidFocal(), True), TypeError, "posterior must be a number, got True"),
    (
        lambda: score_threshold(SigmoidFocal(), np.array([1, 0])),
        TypeError,
        "posterior must hold floating point numbers, got dtype int64",
    ),
    (
        lambda: score_posterior(SigmoidFocal(), torch.tensor([0.5, -0.5])),
        ValueError,
        "score must be in [0, 1], got -0.5 in row 1" + LOGITS,
    ),
    (
        lambda: score_threshold(Focal(weight=[1.0, 2.0, 3.0])),
        ValueError,
        "objective must have two classes, since with more the probability depends on the scores of all "
        "classes, got 3",
    ),
    (
        lambda: score_threshold(SigmoidFocal(gamma=[1.0, 2.0, 3.0]), np.array([0.5, 0.5])),
        ValueError,
        "posterior must have the 3 classes of the objective along its last axis, or length 1 there, "
        "got shape (2,)",
    ),
    (
        lambda: score_posterior(2.0, 0.5),
        TypeError,
        "objective must be an objective such as Focal(2.0), got 2.0",
    ),
]


@pytest.mark.parametrize("call, kind, text", CASES, ids=[text for _, _, text in CASES])
def test_bad_input(call, kind, text):
    with pytest.raises(kind) as error:
        call()
    assert str(error.value) == text
