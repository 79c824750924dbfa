"""The contract of objectives: what a class of one's own has to give, and what is said where it does not."""

import dataclasses
import re

import array_api_compat
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy import optimize, special

import refocal
from refocal import Focal, Objective, TemperatureScaling, choose_calibration
from refocal.experiments.tabular import Recipe, batched
from refocal.experiments.tabular.training import measure
from refocal.torch import Posterior


def squared():
    """Return a class that meets the contract for every array library: the Brier loss."""

    class Squared(Objective):
        def loss(self, logits, labels, *, axis=-1):
            xp = array_api_compat.array_namespace(logits)
            probs = self.posterior(logits, axis=axis)
            nll = Focal(0.0).loss(logits, labels, axis=axis)
            return xp.sum(probs**2, axis=axis) - 2 * xp.exp(-nll)

        def log_posterior(self, logits, *, axis=-1):
            return Focal(0.0).log_posterior(logits, axis=axis)

    return Squared


def made(n=400, k=3):
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(n, k))
    return 3 * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


def test_a_class_of_ones_own_goes_everywhere():
    logits, labels = made()
    own = squared()()

    def brier(log_t):
        return ((special.softmax(logits / np.exp(log_t), axis=1) - np.eye(3)[labels]) ** 2).sum(axis=1).mean()

    best = optimize.minimize_scalar(brier, bounds=(-1, 3), method="bounded", options={"xatol": 1e-8})
    assert TemperatureScaling(own).fit(logits, labels).temperature_ == pytest.approx(np.exp(best.x), rel=1e-4)
    found = choose_calibration(logits, labels, own, n_resamples=50)
    assert {m.name for m in found.methods} == {"raw", "psi", "ts_nll", "ts_fl", "psi_ts_fl", "focal_ts_free"}
    probs = special.softmax(logits, axis=1)
    np.testing.assert_allclose(own.posterior_from_probs(probs), probs, rtol=1e-12)
    np.testing.assert_allclose(Posterior(own)(torch.tensor(logits)).numpy(), probs, rtol=1e-12)
    assert refocal.score_posterior(own, 0.3) == pytest.approx(0.3)
    assert refocal.objective_from_dict(own.to_dict()).to_dict() == {"objective": "Squared"}
    assert (own.plain_gamma, own.without_smoothing()) == (None, own)


def test_missing_methods_are_named():
    class Half(Objective):
        def loss(self, logits, labels, *, axis=-1): ...

    class Nothing(Objective): ...

    with pytest.raises(TypeError, match=r"^Half must define log_posterior to be an objective$"):
        Half()
    with pytest.raises(TypeError, match=r"^Nothing must define log_posterior and loss to be an objective$"):
        Nothing()
    text = r"^Squared must define logits\(posterior, \*, axis=-1\), its inverse, for this$"
    with pytest.raises(NotImplementedError, match=text):
        refocal.score_threshold(squared()(), 0.5)


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda loss: loss.mean(), r"return one number for each row, shape (400,), got shape ()"),
        (lambda loss: loss[:, None], r"return one number for each row, shape (400,), got shape (400, 1)"),
        (lambda loss: loss.tolist(), r"return the kind of array that it got, ndarray, got list"),
        (torch.tensor, r"return the kind of array that it got, ndarray, got Tensor"),
    ],
)
def test_a_loss_that_returns_something_else(change, text):
    class Wrong(squared()):
        def loss(self, logits, labels, *, axis=-1):
            return change(super().loss(logits, labels, axis=axis))

    logits, labels = made()
    for use in (TemperatureScaling(Wrong()).fit, lambda z, y: choose_calibration(z, y, Wrong(), n_folds=2)):
        with pytest.raises(
            TypeError, match=rf"^loss of Wrong must {re.escape(text).replace('400', '[0-9]+')}$"
        ):
            use(logits, labels)


def test_the_kind_of_array_is_not_asked_of_tracers():
    scaling = refocal.FocalTemperatureScaling(2.0).fit(*made())
    logits = jnp.asarray(made()[0][:2])
    slope = jax.jit(jax.grad(lambda z: scaling.predict_proba(z)[0, 0]))(logits)
    assert np.isfinite(np.asarray(slope)).all()


def test_a_posterior_that_returns_something_else():
    class Wrong(squared()):
        def log_posterior(self, logits, *, axis=-1):
            return super().log_posterior(logits, axis=axis)[..., :2]

        def loss(self, logits, labels, *, axis=-1):
            return Focal(2.0).loss(logits, labels, axis=axis)

    text = r"^log_posterior of Wrong must return the shape of logits \(400, 3\), got shape \(400, 2\)$"
    with pytest.raises(TypeError, match=text):
        choose_calibration(*made(), Wrong(), n_resamples=50)


def test_a_loss_for_one_library_alone():
    class OfTorch(squared()):
        def loss(self, logits, labels, *, axis=-1):
            return logits.softmax(axis).square().sum(axis)

    text = (
        "^loss of OfTorch must take arrays of any library, but fails on ndarray: .* no attribute 'softmax'$"
    )
    with pytest.raises(TypeError, match=text):
        TemperatureScaling(OfTorch()).fit(*made())


def test_what_cannot_be_stored_says_so():
    class WithState(squared()):
        def __init__(self):
            self.width = 2.0

    with pytest.raises(TypeError, match=r"^WithState must be a dataclass, or define to_dict, to be stored$"):
        WithState().to_dict()


@pytest.mark.parametrize(
    "objective, gamma",
    [
        (Focal(2.0), 2.0),
        (Focal(0.0), 0.0),
        (Focal((2.0, 2.0)), None),
        (Focal(2.0, weight=(1.0, 1.0)), None),
        (Focal(2.0, label_smoothing=0.1), None),
        (refocal.SigmoidFocal(2.0), None),
        (refocal.Poly1Focal(2.0, 0.0), None),
    ],
)
def test_plain_focal_is_known(objective, gamma):
    assert objective.plain_gamma == gamma


@pytest.mark.parametrize("kind", [Focal, refocal.SigmoidFocal, refocal.AsymmetricSingleLabel])
def test_smoothing_is_taken_out(kind):
    objective = kind(label_smoothing=0.2)
    plain = objective.without_smoothing()
    assert plain == dataclasses.replace(objective, label_smoothing=0.0)
    assert plain.without_smoothing() is plain


class Mean(squared()):
    """Breaks the contract in every method: the classes, or the rows, are gone."""

    def loss(self, logits, labels, *, axis=-1):
        return super().loss(logits, labels, axis=axis).mean()

    def log_posterior(self, logits, *, axis=-1):
        return super().log_posterior(logits, axis=axis)[..., 0]

    def logits(self, posterior, *, axis=-1):
        return posterior[..., 0]


def trained(objective, logits, labels):
    x, y = torch.tensor(logits), torch.tensor(labels)
    trial = batched.Trial(torch.arange(len(x)), x.mean(0), x.std(0), seed=0)
    return batched.train(x, y, [trial], [objective], 3, "linear", Recipe(epochs=1))


@pytest.mark.parametrize(
    "use, text",
    [
        (
            lambda own, z, y: trained(own, z, y),
            "loss of Mean must return one number for each row, shape (64,)",
        ),
        (lambda own, z, y: measure(z, y, own, [10]), "log_posterior of Mean must return the shape of logits"),
        (
            lambda own, z, y: Posterior(own)(torch.tensor(z)),
            "posterior of Mean must return the shape of logits",
        ),
        (
            lambda own, z, y: refocal.score_threshold(own, 0.5),
            "logits of Mean must return the shape of the posterior (1, 2), got shape (1,)",
        ),
        (
            lambda own, z, y: refocal.score_posterior(own, 0.5),
            "log_posterior of Mean must return the shape of logits (1, 2), got shape (1,)",
        ),
    ],
    ids=["training", "measures", "network", "threshold", "score"],
)
def test_the_contract_is_checked_wherever_an_objective_is_used(use, text):
    with pytest.raises(TypeError, match=f"^{re.escape(text)}"):
        use(Mean(), *made())


def test_a_subclass_of_focal_is_fitted_with_its_own_loss():
    class Brier(Focal):
        def loss(self, logits, labels, *, axis=-1):
            return squared()().loss(logits, labels, axis=axis)

    expected = TemperatureScaling(squared()()).fit(*made()).temperature_
    assert TemperatureScaling(Brier(2.0)).fit(*made()).temperature_ == pytest.approx(expected, rel=1e-6)
    assert TemperatureScaling(Focal(2.0)).fit(*made()).temperature_ != pytest.approx(expected, rel=1e-3)


def test_the_names_of_our_objectives_are_taken():
    text = r"^an objective must not be named Focal, as refocal\.objectives\.focal has one of that name, got "
    with pytest.raises(TypeError, match=text + re.escape(f"{__name__}.Focal") + "$"):
        type("Focal", (Objective,), {"__module__": __name__, "__qualname__": "Focal"})
    assert type(refocal.objective_from_dict(Focal(2.0).to_dict())) is Focal
    assert squared() is not squared()  # one's own class may be defined again, as in a notebook
