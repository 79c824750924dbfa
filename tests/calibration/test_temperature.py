"""Temperature scaling: against scipy's searches, and on made data."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import torch
from hypothesis import given
from hypothesis import strategies as st

import refocal
from refocal import Focal, FocalTemperatureScaling, TemperatureScaling
from refocal._rows import logit_rows
from refocal.calibration import _search
from refocal.calibration._search import focal_at, nll_at, psi_nll_at

TEMPERATURES = [0.01, 0.05, 0.5, 3.0, 10.0, 50.0, 200.0]


def draw(rng, posterior):
    labels = (rng.random((len(posterior), 1)) > posterior.cumsum(axis=1)).sum(axis=1)
    return np.minimum(labels, posterior.shape[1] - 1)


def made(n, k, *, temperature=1.0, spread=2.0, dtype="float64", seed=0):
    """Return logits whose probabilities are true after division by the temperature, and labels."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * spread
    return (z * temperature).astype(dtype), draw(rng, scipy.special.softmax(z, axis=1))


def mean_loss(logits, labels, gamma=0.0):
    """Return the mean focal loss as a function of log T, written without refocal."""
    z = np.asarray(logits, dtype=np.float64)

    def loss(log_t):
        l = scipy.special.log_softmax(z / math.exp(log_t), axis=1)[np.arange(len(z)), labels]
        return float(np.mean((-np.expm1(l)) ** gamma * -l))

    return loss


def by_scipy(loss, near):
    bounds = (math.log(near) - 2, math.log(near) + 2)
    found = scipy.optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-9})
    return math.exp(found.x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_recovers_the_temperature_of_made_data(temperature, dtype):
    logits, labels = made(20_000, 10, temperature=temperature, dtype=dtype)
    scaling = TemperatureScaling().fit(logits, labels)
    assert scaling.temperature_ == pytest.approx(temperature, rel=0.01)
    assert scaling.converged_
    assert scaling.n_iter_ <= 5
    assert scaling.temperature_ == pytest.approx(by_scipy(mean_loss(logits, labels), temperature), rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("shape, temperature", [((3000, 10), 0.05), ((5000, 40), 20.0)])
def test_focal_objective_agrees_with_scipy(shape, temperature, gamma, dtype):
    logits, labels = made(*shape, temperature=temperature, dtype=dtype, seed=1)
    scaling = TemperatureScaling("focal", gamma=gamma).fit(logits, labels)
    assert scaling.converged_
    wanted = by_scipy(mean_loss(logits, labels, gamma), scaling.temperature_)
    assert scaling.temperature_ == pytest.approx(wanted, rel=1e-6)


def test_a_thousand_classes():
    logits, labels = made(2000, 1000, temperature=3.0, dtype="float32")
    scaling = TemperatureScaling().fit(logits, labels)
    assert scaling.temperature_ == pytest.approx(by_scipy(mean_loss(logits, labels), 3.0), rel=1e-6)


@pytest.mark.parametrize("k", [5, 50])
def test_masked_classes_are_as_if_not_there(k):
    logits, labels = made(3000, k, temperature=2.0)
    rng = np.random.default_rng(0)
    mask = rng.random(logits.shape) < 0.4
    mask[np.arange(len(labels)), labels] = False
    masked = np.where(mask, -np.inf, logits)
    for scaling, gamma in ((TemperatureScaling(), 0.0), (TemperatureScaling("focal", gamma=2.0), 2.0)):
        wanted = by_scipy(mean_loss(masked, labels, gamma), 2.0)
        assert scaling.fit(masked, labels).temperature_ == pytest.approx(wanted, rel=1e-6)
        probs = scaling.predict_proba(masked)
        assert (probs[mask] == 0).all()
        np.testing.assert_allclose(probs, scipy.special.softmax(masked / scaling.temperature_, axis=1))
    assert FocalTemperatureScaling(2.0).fit(masked, labels).converged_


def test_label_smoothing_of_masked_classes_is_refused():
    logits, labels = made(300, 3)
    logits[0, (labels[0] + 1) % 3] = -np.inf
    text = "^the loss is infinite at every T: label smoothing gives weight to a class with logit -inf$"
    with pytest.raises(ValueError, match=text):
        TemperatureScaling(Focal(2.0, label_smoothing=0.1)).fit(logits, labels)
    assert TemperatureScaling(Focal(2.0)).fit(logits, labels).converged_


def test_masked_classes_do_not_count_in_the_spread():
    rows = logit_rows(
        np.array([[0.0, -4.0, -np.inf, -2.0], [1.0, 0.0, -np.inf, -np.inf]]), np.array([0, 0]), -1
    )
    np.testing.assert_allclose(_search._spread(rows), [2.0, 0.5])


@pytest.mark.parametrize("k", [0.3, 0.7])
def test_a_bounded_loss_without_a_minimum_is_refused(k):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1000, 5)) * 3
    labels = np.where(rng.random(1000) < 0.97, logits.argmax(axis=1), rng.integers(5, size=1000))
    objective = refocal.GeneralizedCrossEntropy(k)

    def loss(log_t):
        return objective.loss(logits / math.exp(log_t), labels).mean()

    assert loss(-12) <= min(loss(x) for x in np.linspace(-6, 5, 45))  # so it is
    text = "the loss must have a minimum at some T: for these rows it falls all the way to T = 0, and is flat"
    with pytest.raises(ValueError, match=f"^{text}"):
        TemperatureScaling(objective).fit(logits, labels)


@pytest.mark.parametrize("temperature", [0.01, 0.001])
def test_a_temperature_far_from_the_spread_is_found(temperature):
    """Two classes are close to each other and a third is far below: the spread says nothing of T."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=2000) * 2
    labels = (rng.random(2000) > scipy.special.expit(z)).astype(int)
    logits = np.stack([z * temperature, np.zeros(2000), np.full(2000, -1000.0)], axis=1)
    for scaling in (TemperatureScaling(), FocalTemperatureScaling(0.0)):
        assert scaling.fit(logits, labels).converged_
        wanted = by_scipy(mean_loss(logits, labels), temperature)
        assert scaling.temperature_ == pytest.approx(wanted, rel=1e-6)
        assert scaling.temperature_ == pytest.approx(temperature, rel=0.1)


def test_labels_may_be_booleans_as_in_metrics():
    logits, labels = made(300, 2)
    by_integers = TemperatureScaling().fit(logits, labels)
    assert TemperatureScaling().fit(logits, labels == 1).to_dict() == by_integers.to_dict()


def test_one_wrong_row_that_the_start_does_not_see():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(10_000, 5))
    labels = logits.argmax(axis=1)
    labels[1] = (labels[1] + 1) % 5  # the start takes every third row, from the first one
    for scaling, gamma in ((TemperatureScaling(), 0.0), (TemperatureScaling("focal", gamma=2.0), 2.0)):
        scaling.fit(logits, labels)
        wanted = by_scipy(mean_loss(logits, labels, gamma), scaling.temperature_)
        assert scaling.temperature_ == pytest.approx(wanted, rel=1e-6)
    assert FocalTemperatureScaling(2.0).fit(logits, labels).converged_


@given(
    st.integers(2, 40),
    st.integers(2, 6),
    st.floats(-5, 5),
    st.sampled_from([0.0, 0.7, 2.0]),
    st.integers(0, 99),
)
def test_no_near_temperature_is_better(n, k, log_scale, gamma, seed):
    rng = np.random.default_rng(seed)
    logits = rng.standard_t(2, size=(n, k)) * 10**log_scale
    labels = np.where(rng.random(n) < 0.7, logits.argmax(axis=1), rng.integers(k, size=n))
    if (labels == logits.argmax(axis=1)).all():
        return  # T goes to 0
    try:
        scaling = TemperatureScaling("focal", gamma=gamma).fit(logits, labels)
    except ValueError:  # then the smallest T must be worse than the largest
        loss = mean_loss(logits, labels, gamma)
        assert loss(math.log(np.ptp(logits)) + 12) < loss(math.log(np.ptp(logits)) - 1)
        return
    assert scaling.converged_
    loss, at = mean_loss(logits, labels, gamma), math.log(scaling.temperature_)
    assert loss(at) <= min(loss(at - 1e-3), loss(at + 1e-3)) + 1e-15
    assert loss(at) <= min(loss(at + far) for far in np.linspace(-5, 5, 21)) + 1e-12  # nor one far away


@pytest.mark.parametrize("u", [-3.0, 0.0, 2.0])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 7.0])
def test_derivatives_are_those_of_differences(u, gamma):
    rows = logit_rows(*made(60, 4), -1)
    h = 1e-5
    for loss in (lambda x: nll_at(rows, x), lambda x: focal_at(rows, x, gamma)):
        _, slope, curvature = loss(u)
        assert slope == pytest.approx((loss(u + h)[0] - loss(u - h)[0]) / (2 * h), rel=1e-6, abs=1e-9)
        assert curvature == pytest.approx((loss(u + h)[1] - loss(u - h)[1]) / (2 * h), rel=1e-5, abs=1e-8)
    value, slope, _ = psi_nll_at(rows, np.array([u, gamma]))
    wanted = -refocal.log_psi(rows.z * math.exp(u), gamma)[np.arange(60), rows.labels].mean()
    assert value == pytest.approx(wanted, rel=1e-12)
    for i in (0, 1) if gamma else (0,):
        above, below = (psi_nll_at(rows, np.array([u, gamma]) + s * h * np.eye(2)[i])[0] for s in (1, -1))
        assert slope[i] == pytest.approx((above - below) / (2 * h), rel=1e-6, abs=1e-9)


def focal_made(n, k, gamma, temperature, seed=0):
    rng = np.random.default_rng(seed)
    posterior = scipy.special.softmax(rng.normal(size=(n, k)) * 2, axis=1)
    return Focal(gamma).logits(posterior) * temperature, draw(rng, posterior), posterior


def test_focal_scaling_recovers_temperature_and_gamma():
    logits, labels, posterior = focal_made(20_000, 5, 2.0, 3.0)
    free = FocalTemperatureScaling().fit(logits, labels)
    assert free.converged_
    assert free.temperature_ == pytest.approx(3.0, rel=0.1)
    assert free.gamma_ == pytest.approx(2.0, abs=0.4)
    assert refocal.kl_divergence(posterior, free.predict_proba(logits)) < 5e-4
    given_gamma = FocalTemperatureScaling(2.0).fit(logits, labels)
    assert given_gamma.gamma_ == 2.0
    assert given_gamma.temperature_ == pytest.approx(3.0, rel=0.02)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("gamma", [0.3, 2.0, 5.0])
def test_focal_scaling_agrees_with_scipy(gamma, dtype):
    logits, labels, _ = focal_made(4000, 4, gamma, 0.3, seed=1)
    logits = logits.astype(dtype)
    each = np.arange(len(labels))

    def loss(x):
        with np.errstate(all="ignore"):
            z = logits.astype(np.float64) * math.exp(x[0])
            return float(-refocal.log_psi(z, abs(x[1]))[each, labels].mean())

    free = FocalTemperatureScaling().fit(logits, labels)
    options = {"xatol": 1e-8, "fatol": 1e-15, "maxiter": 2000}
    found = scipy.optimize.minimize(loss, [1.0, gamma], method="Nelder-Mead", options=options)
    assert -math.log(free.temperature_) == pytest.approx(found.x[0], abs=1e-4)
    assert free.gamma_ == pytest.approx(abs(found.x[1]), abs=1e-4)
    assert loss([-math.log(free.temperature_), free.gamma_]) <= found.fun + 1e-11
    given_gamma = FocalTemperatureScaling(gamma).fit(logits, labels)
    wanted = by_scipy(lambda log_t: loss([-log_t, gamma]), 0.3)
    assert given_gamma.temperature_ == pytest.approx(wanted, rel=1e-6)


def test_free_gamma_stays_within_its_bounds():
    logits, labels = made(3000, 4, seed=3)
    flat = FocalTemperatureScaling().fit(np.sign(logits) * np.sqrt(np.abs(logits)), labels)
    assert 0 < flat.gamma_ <= 16
    sharp = FocalTemperatureScaling().fit(np.sign(logits) * logits**2, labels)
    assert sharp.gamma_ == 0.0
    assert sharp.temperature_ == pytest.approx(
        TemperatureScaling().fit(np.sign(logits) * logits**2, labels).temperature_, rel=1e-6
    )


@pytest.mark.parametrize("seed, gamma", [(5, 0.0), (45, 16.0)])
def test_of_two_minima_the_lower_one_is_found(seed, gamma):
    rng = np.random.default_rng(seed)
    logits = rng.standard_t(2, size=(60, 3)) * 2
    labels = np.where(rng.random(60) < 0.8, logits.argmax(axis=1), rng.integers(3, size=60))

    def loss(scaling):
        return refocal.nll(scaling.predict_log_proba(logits), labels, from_logits=True)

    curve = [loss(FocalTemperatureScaling(g).fit(logits, labels)) for g in np.linspace(0, 16, 33)]
    assert max(curve) not in (curve[0], curve[-1])  # it falls to both ends
    free = FocalTemperatureScaling().fit(logits, labels)
    assert free.gamma_ == gamma
    assert loss(free) <= min(curve) + 1e-9


def test_ece_objective_is_the_best_of_its_grid():
    logits, labels = made(1000, 4, temperature=2.5, spread=1.5, seed=4)
    near = TemperatureScaling().fit(logits, labels).temperature_

    def error(temperature):  # written without refocal: bins (lo, hi]
        probs = scipy.special.softmax(logits / temperature, axis=1)
        confidence, right = probs.max(axis=1), probs.argmax(axis=1) == labels
        bins = np.clip(np.ceil(confidence * 10) - 1, 0, 9).astype(int)
        return np.abs(np.bincount(bins, right - confidence, 10)).sum() / len(labels)

    scaling = TemperatureScaling("ece").fit(logits, labels)
    found = error(scaling.temperature_)
    assert found == pytest.approx(refocal.ece(scaling.predict_proba(logits), labels), abs=1e-9)
    grid = np.exp(math.log(near) + np.arange(-80, 81) * 0.025)
    assert found <= min(error(t) for t in grid) + 1e-9
    best = grid[np.argsort([error(t) for t in grid])[:5]]  # fine grids around more than the best one
    fine = [[error(math.exp(math.log(t) + i * 0.001)) for i in range(-25, 26)] for t in best]
    assert found == pytest.approx(np.min(fine), abs=1e-6)
    assert np.min(fine[0]) > np.min(fine) + 1e-5  # which pays here
    assert scaling.n_iter_ > len(grid) + 100
    assert TemperatureScaling("ece", n_bins=3).fit(logits, labels).temperature_ != scaling.temperature_


@pytest.mark.parametrize(
    "objective",
    [
        Focal(2.0, weight=(1.0, 2.0, 0.5)),
        Focal(1.5, label_smoothing=0.1),
        Focal((0.5, 1.0, 2.0)),
        refocal.GeneralizedCrossEntropy(0.5),
    ],
    ids=repr,
)
def test_any_objective_by_its_own_loss(objective):
    logits, labels = made(3000, 3, temperature=2.0)
    scaling = TemperatureScaling(objective).fit(logits, labels)
    assert scaling.converged_
    wanted = by_scipy(
        lambda log_t: objective.loss(logits / math.exp(log_t), labels).mean(), scaling.temperature_
    )
    assert scaling.temperature_ == pytest.approx(wanted, rel=1e-5)


def test_plain_focal_objective_is_the_focal_loss():
    logits, labels = made(500, 3)
    by_name = TemperatureScaling("focal", gamma=2.0).fit(logits, labels)
    assert TemperatureScaling(Focal(2.0)).fit(logits, labels).temperature_ == by_name.temperature_


def test_every_library(backend):
    logits, labels = made(300, 4, temperature=2.0)
    z, y = backend.array(logits), backend.integers(labels)
    scaling = TemperatureScaling().fit(z, y)
    tolerance = 1e-6 if backend.dtype == "float32" else 1e-9
    wanted = TemperatureScaling().fit(logits, labels).temperature_
    assert scaling.temperature_ == pytest.approx(wanted, rel=tolerance)
    if (backend.name, backend.dtype) == ("jax", "float32"):
        return  # each operation is compiled, which takes seconds
    scaled = backend.check(scaling.transform(z), z)
    np.testing.assert_allclose(scaled, logits / wanted, rtol=1e-5)
    probs = backend.check(scaling.predict_proba(z), z)
    np.testing.assert_allclose(probs, scipy.special.softmax(logits / wanted, axis=1), atol=1e-6)
    if backend.name == "jax":
        return  # log_psi has tests of its own
    focal = FocalTemperatureScaling(2.0).fit(z, y)
    probs = backend.check(focal.predict_proba(z), z)
    np.testing.assert_allclose(
        probs, refocal.psi(scipy.special.softmax(logits / focal.temperature_, axis=1), 2.0), atol=1e-6
    )


def test_half_precision_and_gradients_of_torch():
    logits, labels = made(500, 4)
    half = torch.tensor(logits).to(torch.bfloat16)
    scaling = TemperatureScaling().fit(half, torch.tensor(labels))
    assert scaling.temperature_ == TemperatureScaling().fit(half.float().numpy(), labels).temperature_
    assert scaling.predict_proba(half).dtype == torch.bfloat16
    wide = TemperatureScaling().fit(*made(500, 100))
    flat = wide.predict_proba(torch.zeros(1, 100, dtype=torch.bfloat16))
    assert abs(flat.double().sum().item() - 1) < 0.01  # what metrics ask of half precision
    assert scaling.predict_log_proba(half).dtype == torch.bfloat16
    leaf = torch.tensor(logits, requires_grad=True)
    assert TemperatureScaling().fit(leaf, torch.tensor(labels)).converged_
    scaling.predict_log_proba(leaf)[:, 0].sum().backward()
    assert torch.isfinite(leaf.grad).all()


def test_class_axis():
    logits, labels = made(60, 3)
    images = np.moveaxis(logits.reshape(3, 4, 5, 3), -1, 1)
    scaling = TemperatureScaling().fit(images, labels.reshape(3, 4, 5), axis=1)
    assert scaling.temperature_ == pytest.approx(
        TemperatureScaling().fit(logits, labels).temperature_, rel=1e-9
    )
    np.testing.assert_allclose(scaling.predict_proba(images, axis=1).sum(axis=1), 1)
