"""Objectives that people write themselves, as the documents show it: what comes out, and what is said."""

from __future__ import annotations

import dataclasses
import math
import re
import sys

import jax
import mpmath
import numpy as np
import pytest
import scipy.special
import torch
from array_api_compat import array_namespace

import refocal
from refocal import Asymmetric, Focal, Objective, SigmoidFocal, choose_calibration


@pytest.fixture(autouse=True)
def forgotten():
    """Forget the classes that a test defines, as a new process would."""
    before = dict(Objective.kinds)
    yield
    Objective.kinds.clear()
    Objective.kinds.update(before)


def positives_only():
    """Return a class for -(1 - p)^2 log p of positives and -log(1 - p) of negatives, on a sigmoid."""

    class PositivesOnly(Objective):
        scores = "sigmoid"

        def loss(self, logits, labels, *, axis=-1):
            xp = array_namespace(logits)
            zero = xp.zeros_like(logits)
            hit, miss = xp.logaddexp(zero, -logits), xp.logaddexp(zero, logits)  # -log p, -log(1 - p)
            return xp.where(labels == 1, xp.where(hit > 0, xp.exp(-2 * miss) * hit, zero), miss)

        def log_posterior(self, logits, *, axis=-1):
            xp = array_namespace(logits)
            zero, z = xp.zeros_like(logits), xp.clip(logits, -700.0, 30.0)
            hit, miss = xp.logaddexp(zero, -logits), xp.logaddexp(zero, logits)
            rho = xp.exp(z) * xp.logaddexp(zero, -z)  # which is 1 for large logits
            odds = 3 * miss - hit - xp.log1p(2 * rho)
            return -xp.logaddexp(zero, -odds)

    return PositivesOnly


def exact_posterior(z):
    """Return the P(y = 1) at which the logit z is stationary, by derivatives in 40 digits."""
    with mpmath.workdps(40):

        def p(t):
            return 1 / (1 + mpmath.exp(-t))

        up = -mpmath.diff(lambda t: (1 - p(t)) ** 2 * -mpmath.log(p(t)), z)
        down = mpmath.diff(lambda t: -mpmath.log(1 - p(t)), z)
        return float(down / (up + down))


def rare(n=200, seed=0):
    """Return posteriors with many near 1e-4, and labels."""
    rng = np.random.default_rng(seed)
    eta = scipy.special.expit(rng.normal(-4.0, 3.0, size=n))
    return eta, (rng.random(n) < eta).astype(int)


def test_psi_of_an_own_sigmoid_objective_is_its_posterior():
    spec = positives_only()()
    eta, labels = rare()
    logits = Asymmetric(2.0, 0.0, clip=0.0).logits(eta)
    choice = choose_calibration(logits, labels, spec, n_resamples=20)
    assert choice.task == "binary"
    psi = choice.method("psi")
    assert psi.floor == 0
    np.testing.assert_array_equal(choice.apply(logits, method="psi"), spec.posterior(logits))
    low = np.array([Asymmetric(2.0, 0.0, clip=0.0).logits(np.array([1e-4]))[0]])
    assert choice.apply(low, method="psi")[0] == pytest.approx(1e-4, rel=1e-9)  # it was 7e-4
    assert choice.apply(low, method="psi")[0] == pytest.approx(exact_posterior(low[0]), rel=1e-9)
    again = refocal.Selection.from_dict(choice.to_dict())
    np.testing.assert_array_equal(again.apply(low, method="psi"), choice.apply(low, method="psi"))


def test_psi_of_an_own_softmax_objective_is_its_posterior():
    @dataclasses.dataclass(frozen=True)
    class Team(Objective):
        gamma: float = 2.0

        def loss(self, logits, labels, *, axis=-1):
            return Focal(self.gamma).loss(logits, labels, axis=axis)

        def log_posterior(self, logits, *, axis=-1):
            return Focal(self.gamma).log_posterior(logits, axis=axis)

    rng = np.random.default_rng(1)
    eta = rng.dirichlet([0.3] * 5, size=200)
    labels = (rng.random((200, 1)) > eta.cumsum(axis=1)).sum(axis=1)
    logits = Focal(2.0).logits(eta)
    choice = choose_calibration(logits, labels, Team(), n_resamples=20)
    assert [m.floor for m in choice.methods] == [0] * len(choice.methods)
    np.testing.assert_array_equal(choice.apply(logits, method="psi"), Team().posterior(logits))
    assert choice.winner == "psi"


def test_zeros_of_an_own_objective_are_still_mixed():
    """Its posterior is 0 below a score of 0.05, where no given row lies: the order has to stay there too."""
    clipped = Asymmetric(1.0, 4.0, clip=0.05)

    class Cut(Objective):
        scores = "sigmoid"

        def loss(self, logits, labels, *, axis=-1):
            return clipped.loss(logits, labels, axis=axis)

        def log_posterior(self, logits, *, axis=-1):
            return clipped.log_posterior(logits, axis=axis)

    rng = np.random.default_rng(0)
    eta = rng.uniform(0.05, 0.9, size=300)
    labels = (rng.random(300) < eta).astype(int)
    choice = choose_calibration(clipped.logits(eta), labels, Cut(), n_resamples=20)
    assert choice.method("psi").floor == 1 / 302
    grid = np.linspace(-9, 9, 200)
    wanted = clipped.posterior(grid) * 301 / 302 + scipy.special.expit(grid) / 302
    np.testing.assert_allclose(choice.apply(grid, method="psi"), wanted, rtol=1e-12)
    assert (np.diff(choice.apply(grid, method="psi")) > 0).all()


def test_a_formula_that_underflows_gives_no_outcome_a_probability_of_0():
    class Plainly(Objective):
        """The square of the odds, by exponentials: 0 below -372 and 1 from 19 on."""

        scores = "sigmoid"

        def loss(self, logits, labels, *, axis=-1):
            raise ValueError("it has none")

        def log_posterior(self, logits, *, axis=-1):
            with np.errstate(divide="ignore"):
                return np.log(1 / (1 + np.exp(-2 * np.clip(logits, -354, None)))) + np.where(
                    logits < -372, -np.inf, 0
                )

    eta, labels = rare(400, seed=2)
    logits = scipy.special.logit(eta) / 2
    logits[:2], labels[:2] = (25.0, -400.0), (0, 1)  # wrong and certain
    choice = choose_calibration(logits, labels, Plainly(), n_resamples=20)
    psi = choice.method("psi")
    assert psi.floor == 0
    assert math.isfinite(psi.nll.value)
    at = np.array([-400.0, -380.0, -300.0, -200.0, -1.0, 0.0, 5.0])
    probs = choice.apply(at, method="psi")
    assert (probs > 0).all()
    assert (np.diff(probs) >= 0).all()
    np.testing.assert_array_equal(probs[3:], Plainly().posterior(at[3:]))
    assert choice.apply(np.array([-math.inf]), method="psi")[0] == 0  # as the raw score


def test_a_posterior_that_refuses_some_logits():
    """It is left out where a given row is refused, and taken where only other logits would be."""

    class Narrow(Objective):
        scores = "sigmoid"

        def loss(self, logits, labels, *, axis=-1):
            return SigmoidFocal(1.0, None).loss(logits, labels, axis=axis)

        def log_posterior(self, logits, *, axis=-1):
            if abs(logits).max() > 9:
                raise ValueError("logits must be within 9")
            return SigmoidFocal(1.0, None).log_posterior(logits, axis=axis)

    eta, labels = rare(300, seed=4)
    logits = SigmoidFocal(1.0, None).logits(eta)
    choice = choose_calibration(logits, labels, Narrow(), n_resamples=20)
    np.testing.assert_array_equal(choice.apply(logits, method="psi"), Narrow().posterior(logits))
    choice = choose_calibration(np.append(logits, 10.0), np.append(labels, 1), Narrow(), n_resamples=20)
    assert dict(choice.skipped)["psi"] == "logits must be within 9"


def test_a_subclass_with_another_posterior_is_asked_for_it():
    class Half(SigmoidFocal):
        """Twice the odds of SigmoidFocal, which makes it no mirror image of itself."""

        def log_posterior(self, logits, *, axis=-1):
            p = np.exp(super().log_posterior(logits, axis=axis))
            return np.log(2 * p / (1 + p))

    eta, labels = rare(400, seed=3)
    logits = SigmoidFocal(2.0, 0.25).logits(eta)
    spec = Half(2.0, 0.25)
    psi = choose_calibration(logits, labels, spec, n_resamples=20).method("psi")
    p = spec.posterior(logits)
    assert psi.nll.value == pytest.approx(-np.log(np.where(labels, p, 1 - p)).mean(), rel=1e-9)


def overflowing(kind):
    """Return an objective whose formulas are right, and overflow."""

    class Naive(Objective):
        scores = kind

        def loss(self, logits, labels, *, axis=-1):
            return (SigmoidFocal(0.0, None) if kind == "sigmoid" else Focal(0.0)).loss(
                logits, labels, axis=axis
            )

        def log_posterior(self, logits, *, axis=-1):
            xp = array_namespace(logits)
            e = xp.exp(logits)
            if kind == "softmax":
                return xp.log(e / xp.sum(e, axis=axis, keepdims=True))
            p = 1 / (1 + xp.exp(-logits))
            return xp.log(p) + 0 * xp.log(1 - p)  # as a formula by -log(1 - p) does it

    return Naive()


@pytest.mark.parametrize(
    "kind, text",
    [
        (
            "sigmoid",
            "log_posterior of Naive must be a number at a logit of 50, too, got NaN or inf at logits [50.0,",
        ),
        (
            "softmax",
            "log_posterior of Naive must be a number at a logit of 1000, too, got NaN or inf at logits [1000",
        ),
    ],
)
def test_formulas_that_overflow_do_not_pass(kind, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        refocal.check_inverse(overflowing(kind))


@pytest.mark.parametrize(
    "formula, at",
    [
        (lambda log_q, hit: -(hit * log_q).sum(-1), "-inf"),  # 0 times -inf
        (lambda log_q, hit: -(hit * log_q.exp()).sum(-1).log(), "-1000"),  # the logarithm of an underflow
    ],
)
def test_losses_that_overflow_do_not_pass(formula, at):
    class Loss(Objective):
        def loss(self, logits, labels, *, axis=-1):
            return formula(logits.log_softmax(-1), torch.nn.functional.one_hot(labels, logits.shape[-1]))

        def log_posterior(self, logits, *, axis=-1):
            return Focal(0.0).log_posterior(logits, axis=axis)

    with pytest.raises(ValueError, match=f"^loss of Loss must be a number at a logit of {at}, too"):
        refocal.check_inverse(Loss())


def test_the_number_of_classes_is_that_of_the_parameters():
    from refocal.torch import FocalLoss

    spec = FocalLoss(gamma=2.0, weight=torch.tensor([1.0, 2.0, 3.0, 4.0])).objective
    assert refocal.check_inverse(spec) < 1e-9
    assert refocal.check_inverse(SigmoidFocal(2.0, alpha=[0.1, 0.2])) < 1e-9
    with pytest.raises(ValueError, match="one number for each of the 3 classes, got 4"):
        refocal.check_inverse(spec, n_classes=3)
    assert refocal.check_inverse(positives_only()()) < 1e-9


def test_without_pytorch_the_line_that_helps(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="check_inverse needs torch: pip install torch"):
        refocal.check_inverse(Focal(2.0))


def test_a_loss_on_a_sigmoid_that_does_not_say_so():
    class Team2(positives_only()):
        scores = "softmax"

    hint = "if the loss is one on a sigmoid, set scores = 'sigmoid' in the class Team2$"
    scores, labels = np.array([0.2, 0.9, 0.4] * 20), np.array([0, 1, 0] * 20)
    z = scipy.special.logit(scores)
    for call, start in (
        (
            lambda: refocal.check_inverse(Team2()),
            r"loss of Team2 must return one loss for each row of logits",
        ),
        (
            lambda: choose_calibration(z, labels, Team2()),
            r"logits must have rows and classes, got shape \(60,\)",
        ),
        (
            lambda: choose_calibration(z, labels, Team2(), task="binary"),
            "task must fit the objective, got 'binary'",
        ),
        (lambda: Team2().posterior_from_probs(scores), "probs must .* sum"),
    ):
        with pytest.raises(ValueError, match=f"^{start}.*{hint}"):
            call()


def test_a_loss_of_entries_is_named_by_its_shape():
    class Team2(Objective):
        def loss(self, logits, labels, *, axis=-1):
            return torch.nn.functional.softplus(logits)

        def log_posterior(self, logits, *, axis=-1):
            return -torch.nn.functional.softplus(-logits)

    with pytest.raises(
        ValueError, match=r"shape \(16,\), got shape \(16, 3\); if the loss is one on a sigmoid"
    ):
        refocal.check_inverse(Team2())


def test_a_stored_objective_in_a_process_without_its_class():
    stored = positives_only()().to_dict()
    assert refocal.objective_from_dict(stored).scores == "sigmoid"
    del Objective.kinds["PositivesOnly"]
    with pytest.raises(
        ValueError,
        match=r"got 'PositivesOnly'; if it is a class of your own, import the module that defines it first$",
    ):
        refocal.objective_from_dict(stored)


def test_the_posterior_of_a_loss_on_one_logit():
    eta = np.array([1e-4, 0.03, 0.5, 0.9])
    z = torch.tensor(Asymmetric(2.0, 0.0, clip=0.0).logits(eta))

    def loss_of(xp):
        def loss(z, y):
            log_p, log_not_p = -xp.logaddexp(0 * z, -z), -xp.logaddexp(0 * z, z)
            return xp.where(y == 1, -((1 - xp.exp(log_p)) ** 2) * log_p, -log_not_p)

        return loss

    with pytest.raises(ValueError, match="logits with one axis are one row of 4 classes") as caught:
        refocal.posterior_of(loss_of(torch), z)
    told = str(caught.value).partition(" write ")[2].replace("posterior_of", "refocal.posterior_of")
    found = eval(told, {"refocal": refocal, "torch": torch, "loss_fn": loss_of(torch), "z": z})
    np.testing.assert_allclose(found, eta, rtol=1e-6)
    with pytest.raises(ValueError, match=r"jnp.stack\(\[jnp.zeros_like\(z\), z\], -1\)\)\[:, 1\]"):
        refocal.posterior_of(loss_of(jax.numpy), jax.numpy.asarray(z))
    row = torch.tensor([2.0, 1.0, 0.0])  # one row of classes is as good as ever
    cross_entropy = torch.nn.CrossEntropyLoss(reduction="none")
    torch.testing.assert_close(refocal.posterior_of(cross_entropy, row), row.softmax(0))


def test_the_check_tries_scores_of_exactly_0_and_1():
    class Careless(positives_only()):
        def loss(self, logits, labels, *, axis=-1):
            xp = array_namespace(logits)
            y, zero = xp.astype(labels, logits.dtype), xp.zeros_like(logits)
            hit, miss = xp.logaddexp(zero, -logits), xp.logaddexp(zero, logits)
            return y * xp.exp(-2 * miss) * hit + (1 - y) * miss  # 0 times inf

    with pytest.raises(ValueError, match="loss of Careless must be a number at a logit of -inf, too"):
        refocal.check_inverse(Careless())
