"""Scores, targets and masks that people mix up, handed to objectives: a warning, an error, or rows of NaN."""

from __future__ import annotations

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import torch

import refocal
from refocal import (
    Asymmetric,
    AsymmetricSingleLabel,
    Focal,
    GeneralizedCrossEntropy,
    OneVsRest,
    Poly1Focal,
    SigmoidFocal,
    SuspiciousInputWarning,
)
from refocal.torch import AsymmetricLoss, FocalLoss, SigmoidFocalLoss

SPEC = SigmoidFocal(2.0, 0.25)
RNG = np.random.default_rng(0)
ETA = RNG.beta(0.5, 2.0, 2000)
Y = (RNG.random(2000) < ETA).astype(int)
S = scipy.special.expit(SPEC.logits(ETA))
"""Sigmoid scores, of which somebody forgot that they are no logits."""

BY_FOUR = S.reshape(-1, 4)
INF = np.inf


@pytest.mark.parametrize(
    "call",
    [
        lambda: SPEC.posterior(S),
        lambda: SPEC.log_posterior(S),
        lambda: SPEC.posterior(BY_FOUR.T, axis=0),
        lambda: SPEC.posterior(np.tile(S, 40)),  # more than are looked at
        lambda: SPEC.posterior(np.tile(BY_FOUR, (3, 30)).T),
        lambda: SPEC.posterior(np.append(np.nan, S)),
        lambda: SPEC.posterior(np.append(S, [0.0, 1.0]).astype(np.float16)),
        lambda: SigmoidFocal([1.0, 2.0, 2.0, 3.0]).posterior(BY_FOUR),
        lambda: Asymmetric().posterior(S),
        lambda: OneVsRest().posterior(BY_FOUR),
        lambda: SPEC.posterior(jnp.asarray(S)),
        lambda: SPEC.posterior(torch.tensor(S, dtype=torch.bfloat16)),
        lambda: SigmoidFocalLoss().posterior(torch.tensor(S)),
        lambda: AsymmetricLoss().log_posterior(torch.tensor(S, requires_grad=True)),
        lambda: refocal.choose_calibration(S, Y, SPEC),
        lambda: refocal.nll(S, Y, task="binary", from_logits=True),
        lambda: refocal.brier(BY_FOUR, Y.reshape(-1, 4), task="multilabel", from_logits=True),
    ],
)
def test_sigmoid_scores_as_logits_warn_once(call):
    with pytest.warns(SuspiciousInputWarning) as caught:
        call()
    assert [str(w.message) for w in caught] == [
        "logits look like probabilities, as every entry is in [0, 1]: give the scores before the sigmoid, or "
        "say that they are probabilities (posterior_from_probs, from_logits=False)"
    ]
    assert caught[0].filename == __file__


def test_log_odds_that_are_none_of_these_do_not_warn():
    weak = np.linspace(0.01, 0.99, 1000)
    eta = SPEC.posterior_from_probs(scipy.special.expit(weak))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for z in (
            SPEC.logits(ETA),
            S[:99],  # too few to say
            np.full(1000, 0.5),
            np.arange(1000.0) % 2,
            np.append(S, -0.1),
            np.append(S, 1.1),
            np.insert(np.tile(S, 40), 12345, -3.0),  # between those that are looked at
            np.full(1000, np.nan),
        ):
            SPEC.posterior(z)
            SPEC.posterior(torch.tensor(z))
        SPEC.posterior_from_probs(S)
        OneVsRest().posterior_from_probs(BY_FOUR)
        refocal.nll(S, Y, task="binary")
        # A temperature, or a bias, that is tried may bring true log-odds between 0 and 1.
        labels = (RNG.random(1000) < eta).astype(int)
        refocal.choose_calibration(10 * weak, labels, SPEC)


def test_a_weak_classifier_of_scikit_learn_does_not_warn():
    from sklearn.dummy import DummyClassifier

    from refocal.sklearn import PosteriorClassifier

    class Weak(DummyClassifier):
        def predict_proba(self, X):
            of_one = np.linspace(0.51, 0.7, len(X))
            return np.stack([1 - of_one, of_one], axis=1)

    x, y = np.zeros((500, 1)), np.arange(500) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = PosteriorClassifier(Weak(), SigmoidFocal(0.0, None)).fit(x, y).predict_proba(x)
    np.testing.assert_allclose(p[:, 1], np.linspace(0.51, 0.7, 500), rtol=1e-12)


def test_nothing_is_looked_at_under_tracing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(SPEC.posterior)(jnp.asarray(S))
        graph = torch.compile(SPEC.posterior, backend="eager", fullgraph=True)
        assert graph(torch.tensor(S)).shape == S.shape
        loss = torch.compile(SPEC.loss, backend="eager", fullgraph=True)
        assert loss(torch.zeros(3), torch.tensor([0.0, 1.0, 2.0])).shape == (3,)
        jax.jit(SPEC.loss)(jnp.zeros(3), jnp.array([0.0, 1.0, 2.0]))


def test_a_nan_in_the_first_row_hides_no_softmax_scores():
    p = scipy.special.softmax(np.random.default_rng(1).normal(size=(5, 3)), axis=1)
    p[0, 1] = np.nan
    for x in (p, torch.tensor(p)):
        with pytest.warns(SuspiciousInputWarning, match="as every row is in"):
            Focal(2.0).posterior(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for z in (p[:1], np.array([[np.nan, 0.0], [0.5, 0.5]]), np.append(p, [[2.0, 0.0, 0.0]], axis=0)):
            Focal(2.0).posterior(z)


ON_SOFTMAX = [
    Focal(0.0),
    Focal(0.5),
    Focal(2.0),
    Focal(20.0),
    Focal([0.0, 1.0, 2.0]),
    Focal(2.0, weight=[1.0, 2.0, 3.0]),
    Focal(2.0, label_smoothing=0.1),
    GeneralizedCrossEntropy(),
    Poly1Focal(),
    AsymmetricSingleLabel(),
    AsymmetricSingleLabel(label_smoothing=0.0),
]


@pytest.mark.parametrize("rows", [1, 30_000])
@pytest.mark.parametrize("spec", ON_SOFTMAX, ids=repr)
def test_rows_without_a_softmax_are_nan_in_every_objective(spec, rows):
    z = np.array([[INF, 0.0, 0.0], [-INF, -INF, -INF], [INF, INF, 0.0], [INF, -INF, -INF], [-INF, 0.0, -INF]])
    with np.errstate(invalid="ignore"):
        nan = np.isnan(scipy.special.softmax(z, axis=1)).any(axis=1)
    assert nan.tolist() == [True, True, True, True, False]
    z = np.tile(z, (rows, 1))
    for x in (z, torch.tensor(z), torch.tensor(z, requires_grad=True), jnp.asarray(z)):
        for f in (spec.posterior, lambda x: np.e ** spec.log_posterior(x)):
            p = f(x)
            p = np.asarray(p.detach() if isinstance(p, torch.Tensor) else p)
            assert np.isnan(p[:4]).all()
            assert np.isnan(p[-5:-1]).all()
            assert p[4].tolist() == p[-1].tolist() == [0, 1, 0]


@pytest.mark.parametrize("make", [np.asarray, torch.tensor, jnp.asarray])
def test_one_vs_rest_of_zeros_is_nan_in_the_whole_row(make):
    spec = OneVsRest(Asymmetric(1.0, 4.0, 0.05))  # 0 up to a score of 0.05
    z = make(np.array([[-4.0, -4.0, -4.0], [-4.0, 1.0, -4.0], [-INF, -INF, -INF]]))
    expected = [[np.nan] * 3, [0, 1, 0], [np.nan] * 3]
    np.testing.assert_array_equal(np.asarray(spec.posterior(z)), expected)
    scores = make(np.array([[0.01, 0.02, 0.05], [0.01, 0.7, 0.05], [0.0, 0.0, 0.0]]))
    np.testing.assert_array_equal(np.asarray(spec.posterior_from_probs(scores)), expected)


SOFT = [[2.0, 0.3, 0.5], [1.0, 0.0, 0.0]]
Z3, Z23 = np.zeros(3), np.zeros((2, 3))

REFUSED = [
    (lambda: SPEC.loss(Z3, np.array([0, 1, 2])), "targets must be within 0..1, got 2"),
    (lambda: SPEC.loss(Z3, [0.0, -1.0, 1.0]), "targets must be within 0..1, got -1.0"),
    (lambda: SPEC.loss(torch.zeros(3), torch.tensor([0, 1, -100])), "targets must be within 0..1, got -100"),
    (lambda: SPEC.loss(jnp.zeros(3), jnp.array([0, 1, 2])), "targets must be within 0..1, got 2"),
    (lambda: SPEC.loss(Z3, [0.0, np.nan, 1.0]), "targets must be within 0..1, got nan"),
    (lambda: Asymmetric().loss(Z3, np.array([0, 1, -1])), "targets must be within 0..1, got -1"),
    (lambda: OneVsRest().loss(Z23, SOFT), "labels must be within 0..1, got 2.0"),
    (lambda: refocal.focal_loss(Z23, SOFT, 2.0), "labels must be within 0..1, got 2.0"),
    (lambda: Focal(2.0).loss(torch.tensor(Z23), torch.tensor(SOFT)), "labels must be within 0..1, got 2.0"),
    (lambda: Poly1Focal().loss(Z23, -np.array(SOFT)), "labels must be within 0..1, got -2.0"),
    (lambda: GeneralizedCrossEntropy().loss(Z23, SOFT), "labels must be within 0..1, got 2.0"),
]


@pytest.mark.parametrize("call, text", REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_targets_that_are_none(call, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        call()


def test_targets_that_are_some():
    for y in (np.array([0, 1, 1]), np.array([True, False, True]), [0.3, 1.0, 0.0], [-1e-3, 1.001, 0.5]):
        assert SPEC.loss(Z3, y).shape == (3,)
        assert SPEC.loss(torch.tensor(Z3), torch.tensor(y)).shape == (3,)
    assert SPEC.loss(np.zeros((0, 3)), np.zeros((0, 3))).shape == (0, 3)
    # PyTorch takes targets that sum to something else, as a sum over the classes.
    z, v = torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([[0.5, 0.2, 0.0]])
    expected = torch.nn.functional.cross_entropy(z, v, reduction="none")
    torch.testing.assert_close(refocal.focal_loss(z, v, 0.0), expected)


MASKED = np.ma.masked_array(Z23, mask=Z23 == 1)


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: Focal(2.0).posterior(MASKED), "logits"),
        (lambda: SPEC.posterior(MASKED), "logits"),
        (lambda: refocal.psi(MASKED, 2.0), "probs"),
        (lambda: refocal.log_psi(MASKED, 2.0), "logits"),
        (lambda: refocal.focal_loss(Z23, np.ma.masked_array([0, 1], mask=[True, False]), 2.0), "labels"),
        (lambda: SPEC.loss(Z3, np.ma.masked_array([0, 1, 1], mask=[True, False, False])), "targets"),
    ],
)
def test_masked_arrays_are_refused(call, name):
    text = f"{name} must not be a masked array: fill it first, -inf masks a class"
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        call()


def test_masked_arrays_are_refused_by_metrics_too():
    with pytest.raises(TypeError, match="must not be a masked array"):
        refocal.nll(MASKED, np.array([0, 1]), from_logits=True)


def test_a_loss_of_pytorch_still_takes_what_it_ignores():
    z, y = torch.zeros(1, 3), torch.tensor([[1, 0, -1]])
    assert torch.isfinite(AsymmetricLoss(ignore_index=-1)(z, y))
    assert torch.isfinite(FocalLoss(ignore_index=-1)(z.expand(2, 3), torch.tensor([0, -1])))
