"""Gradient and curvature of every objective, beside autograd of the public losses in float64."""

import dataclasses

import numpy as np
import pytest
import torch
from known_posteriors import binary, five_classes, kl

import refocal
from refocal.boosting import base_rate_shift, focal_metric, focal_objective

ON_SOFTMAX = [
    refocal.Focal(2.0, weight=(0.2, 1.0, 3.0, 0.7)),
    refocal.Focal((0.0, 0.5, 2.0, 3.0)),
    refocal.Focal((0.0, 0.5, 2.0, 3.0), weight=(0.2, 1.0, 3.0, 0.7)),
    refocal.Focal(2.0, label_smoothing=0.1),
    refocal.Focal((1.0, 0.5, 2.0, 3.0), weight=(0.2, 1.0, 3.0, 0.7), label_smoothing=0.2),
    refocal.Poly1Focal(2.0, 1.0),
    refocal.Poly1Focal(0.0, -1.0),
    refocal.Poly1Focal(1.5, -0.7),
    refocal.GeneralizedCrossEntropy(0.7),
    refocal.GeneralizedCrossEntropy(0.1),
    refocal.AsymmetricSingleLabel(1.5, 4.0, label_smoothing=0.0),
]
ON_SIGMOIDS = [
    refocal.OneVsRest(refocal.SigmoidFocal(2.0, 0.25)),
    refocal.OneVsRest(refocal.SigmoidFocal((0.0, 0.5, 2.0, 3.0), (0.2, 0.5, 0.7, 0.9), label_smoothing=0.1)),
    refocal.OneVsRest(refocal.Asymmetric(1.0, 4.0, 0.05)),
    refocal.OneVsRest(refocal.Asymmetric(0.5, 2.0, 0.0)),
]
OF_TWO = [
    refocal.SigmoidFocal(2.0, 0.25, label_smoothing=0.1),
    refocal.Asymmetric(1.0, 4.0, 0.05),
    refocal.Asymmetric(2.0, 3.0, 0.0),
    refocal.Asymmetric(0.0, 0.0, 0.2),
    refocal.Focal((0.5, 2.0), weight=(1.0, 3.0), label_smoothing=0.05),
    refocal.Poly1Focal(1.0, 2.0),
    refocal.GeneralizedCrossEntropy(0.4),
]


def gradients(spec, scores, labels, weight):
    """Return gradient and curvature without factor, damping and bound, in float64."""
    k = 2 if scores.ndim == 1 else scores.shape[1]
    found = focal_objective(spec, np.full(k, 1 / k))
    plain = dataclasses.replace(found, factor=1.0, damping=1.0, longest_step=np.inf)
    grad, hess = np.empty(scores.shape), np.empty(scores.shape)
    plain._fill(scores, labels, weight, grad, hess)
    return grad, hess


def autograd(losses, scores):
    """Return first and second derivatives of each row's loss by each of its scores."""
    (first,) = torch.autograd.grad(losses.sum(), scores, create_graph=True)
    columns = first.reshape(len(scores), -1).unbind(dim=1)
    second = [torch.autograd.grad(column.sum(), scores, retain_graph=True)[0] for column in columns]
    second = torch.stack([s.reshape(len(scores), -1)[:, i] for i, s in enumerate(second)], dim=1)
    return first.detach().numpy(), second.reshape(scores.shape).detach().numpy()


def undoes_smoothing(spec, z):
    """Where the posterior is that of smoothed labels without a floor; elsewhere it is not their mean."""
    s = np.asarray(spec.without_smoothing().posterior(z))
    if spec.without_smoothing() is spec:
        return np.isfinite(s)
    if spec.scores == "sigmoid":
        return np.minimum(s, 1 - s) > 1.02 * spec.label_smoothing / 2
    return s > 1.02 * spec.label_smoothing / s.shape[-1]


@pytest.mark.parametrize("spec", ON_SOFTMAX, ids=repr)
def test_softmax_objectives(spec):
    rng = np.random.default_rng(1)
    z, y, weight = 1.5 * rng.normal(size=(40, 4)), rng.integers(4, size=40), rng.random(40)
    z[0], z[1], y[0] = [9.0, 0.0, 0.0, 1.0], 0.0, 1
    z[20:] = spec.logits(rng.dirichlet(np.ones(4), size=20))  # where smoothed labels have a posterior too
    grad, hess = gradients(spec, z, y.astype(np.float32), weight)
    scores = torch.tensor(z, requires_grad=True)
    first, _ = autograd(torch.tensor(weight) * spec.loss(scores, torch.tensor(y)), scores)
    np.testing.assert_allclose(grad, first, rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(grad.sum(axis=1), 0, atol=1e-14)

    eta = np.asarray(spec.posterior(z))
    within = undoes_smoothing(spec, z).all(axis=1)
    assert within.sum() > 10
    second = [autograd(spec.loss(scores, torch.full((40,), k)), scores)[1] for k in range(4)]
    mean = weight[:, None] * sum(eta[:, k, None] * second[k] for k in range(4))
    np.testing.assert_allclose(hess[within], mean[within], rtol=1e-8, atol=1e-10)
    assert (hess > 0).all()


@pytest.mark.parametrize("spec", ON_SIGMOIDS, ids=repr)
def test_one_sigmoid_for_each_class(spec):
    rng = np.random.default_rng(2)
    z, y, weight = 2 * rng.normal(size=(40, 4)), rng.integers(4, size=40), rng.random(40)
    grad, hess = gradients(spec, z, y.astype(np.float32), weight)
    scores = torch.tensor(z, requires_grad=True)
    first, _ = autograd(torch.tensor(weight) * spec.loss(scores, torch.tensor(y)), scores)
    np.testing.assert_allclose(grad, first, rtol=1e-8, atol=1e-11)
    # Each sigmoid is a problem of its own, with a posterior of its own.
    eta = np.asarray(spec.binary.posterior(z))
    within = undoes_smoothing(spec.binary, z)
    one, zero = (autograd(spec.binary.loss(scores, torch.full_like(scores, v)), scores)[1] for v in (1, 0))
    mean = weight[:, None] * (eta * one + (1 - eta) * zero)
    np.testing.assert_allclose(hess[within], mean[within], rtol=1e-8, atol=1e-10)
    assert (hess >= 0).all()
    assert (hess[eta > 0] > 0).all()


@pytest.mark.parametrize("spec", OF_TWO, ids=repr)
def test_two_classes(spec):
    rng = np.random.default_rng(3)
    z = np.concatenate([2.5 * rng.normal(size=40), [0.0, 12.0, -12.0]])
    y, weight = rng.integers(2, size=z.size), rng.random(z.size)
    grad, hess = gradients(spec, z, y.astype(np.float32), weight)
    scores = torch.tensor(z, requires_grad=True)

    def loss(labels):
        if spec.scores == "sigmoid":
            return spec.loss(scores, torch.tensor(labels, dtype=torch.float64))
        return spec.loss(torch.stack([torch.zeros_like(scores), scores], dim=1), torch.tensor(labels))

    first, _ = autograd(torch.tensor(weight) * loss(y), scores)
    np.testing.assert_allclose(grad, first, rtol=1e-8, atol=1e-11)
    if spec.scores == "sigmoid":
        eta, within = np.asarray(spec.posterior(z)), undoes_smoothing(spec, z)
    else:
        pairs = np.stack([0 * z, z], axis=1)
        eta, within = np.asarray(spec.posterior(pairs))[:, 1], undoes_smoothing(spec, pairs).all(axis=1)
    one, zero = (autograd(loss(np.full(z.size, v)), scores)[1] for v in (1, 0))
    mean = weight * (eta * one + (1 - eta) * zero)
    np.testing.assert_allclose(hess[within], mean[within], rtol=1e-8, atol=1e-10)
    assert (hess >= 0).all()
    assert (hess[(eta > 0) & (np.abs(z) < 10)] > 0).all()


def test_detached_weights_have_the_field_that_is_trained():
    """No loss has these slopes: the powers count as constants, in the derivative of the mean slope too."""
    spec, z = refocal.Asymmetric(1.0, 3.0, 0.05, detach_weights=True), np.linspace(-2.5, 4, 30)
    pulls = []
    for label in (1.0, 0.0):
        scores = torch.tensor(z, requires_grad=True)
        (slope,) = torch.autograd.grad(spec.loss(scores, torch.full_like(scores, label)).sum(), scores)
        np.testing.assert_allclose(
            gradients(spec, z, np.full(30, label), np.empty(0))[0], slope.numpy(), rtol=1e-8, atol=1e-11
        )
        step = 1e-5
        near = [gradients(spec, z + d, np.full(30, label), np.empty(0))[0] for d in (step, -step)]
        pulls.append((near[0] - near[1]) / (2 * step))
    eta = np.asarray(spec.posterior(z))
    hess = gradients(spec, z, np.zeros(30), np.empty(0))[1]
    np.testing.assert_allclose(hess, eta * pulls[0] + (1 - eta) * pulls[1], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("spec", [*ON_SOFTMAX, *ON_SIGMOIDS], ids=repr)
def test_far_scores_are_finite(spec):
    far = np.array([0.0, 30.0, 1e3, 1e30])
    z = np.stack([far, -far, 0 * far, far / 2], axis=1)
    for label in range(4):
        grad, hess = gradients(spec, z, np.full(4, label), np.empty(0))
        assert np.isfinite(grad).all()
        assert np.isfinite(hess).all()
        assert (hess >= 0).all()


def test_why_smoothed_asl_is_refused():
    """Its risk need not be convex: the mean second derivative is then negative, so no rule covers it all."""
    spec = refocal.AsymmetricSingleLabel(4.0, 0.5, label_smoothing=0.5)
    rng = np.random.default_rng(4)
    scores = torch.tensor(2 * rng.normal(size=(500, 3)), requires_grad=True)
    eta = np.asarray(spec.posterior(scores.detach().numpy()))
    second = [autograd(spec.loss(scores, torch.full((500,), k)), scores)[1] for k in range(3)]
    within = (eta > 0).all(axis=1)
    assert sum(eta[:, k, None] * second[k] for k in range(3))[within].min() < -1e-3
    with pytest.raises(ValueError, match="label_smoothing of AsymmetricSingleLabel must be 0, since with it"):
        focal_objective(spec, [0.5, 0.3, 0.2])


MANY = [refocal.Focal(2.0, label_smoothing=0.05), refocal.Poly1Focal(1.0, 1.0), ON_SIGMOIDS[2]]


@pytest.mark.parametrize("spec", [*MANY, refocal.Asymmetric(1.0, 2.0, 0.0)], ids=repr)
def test_trees_find_the_posterior(spec):
    """With the engine's own training function, and the shift to the base rate."""
    xgboost = pytest.importorskip("xgboost")
    many = spec.scores != "sigmoid"
    make = five_classes if many else lambda n, seed: binary(n, seed, intercept=-2.5)
    X, y, _ = make(10_000, 0)
    unseen, _, truth = make(4000, 1)
    prior = np.bincount(y) / len(y)
    objective = focal_objective(spec, prior)
    params = {"nthread": 1, "learning_rate": 0.3, "max_depth": 4, "disable_default_eval_metric": True}
    params |= {"base_score": list(objective.start) if many else objective.start[0]}
    params |= {"num_class": 5} if many else {}
    data, record = xgboost.QuantileDMatrix(X, y), {}
    model = xgboost.train(
        params,
        data,
        25,
        obj=objective,
        custom_metric=focal_metric(spec),
        evals=[(data, "train")],
        evals_result=record,
        verbose_eval=False,
    )
    nll = record["train"]["nll"]
    assert nll[-1] < nll[0]
    shift = base_rate_shift(spec, model.predict(data, output_margin=True), prior)
    logits = model.predict(xgboost.DMatrix(unseen), output_margin=True).astype(np.float64) + shift
    probs = np.asarray(spec.posterior(logits))
    probs = probs if many else np.stack([1 - probs, probs], axis=1)
    even = np.tile(prior, (len(truth), 1))
    assert kl(truth, np.maximum(probs, 1e-9)) < kl(truth, even) / 2
    np.testing.assert_allclose(probs.mean(axis=0), truth.mean(axis=0), rtol=0.15)


@pytest.mark.parametrize(
    "spec, prior, error, message",
    [
        (refocal.Asymmetric(), [0.5, 0.2, 0.3], ValueError, "objective must be for 3 classes, such as Focal"),
        (ON_SIGMOIDS[0], 0.5, ValueError, "objective must be a binary one for 2 classes, not OneVsRest"),
        (
            refocal.Focal((1.0, 2.0)),
            [0.5, 0.2, 0.3],
            ValueError,
            "gamma must have one number for each of the 3",
        ),
        (
            ON_SIGMOIDS[1],
            [0.5, 0.2, 0.3],
            ValueError,
            "gamma must have one number for each of the 3 classes, got 4",
        ),
        (
            refocal.Asymmetric(0.0, 2.0, 0.3),
            0.99,
            ValueError,
            "prior must have a finite minimiser of Asymmetric",
        ),
    ],
)
def test_refusals(spec, prior, error, message):
    with pytest.raises(error) as caught:
        focal_objective(spec, prior)
    assert message in str(caught.value)
