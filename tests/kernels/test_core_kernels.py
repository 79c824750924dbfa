"""The compiled core against array operations in float64 and against mpmath, in every layout of memory."""

from __future__ import annotations

import subprocess
import sys

import mpmath
import numpy as np
import pytest

import refocal
from refocal import _compiled, focal, minimizer
from refocal._arrays import map_rows
from refocal._rows import Rows
from refocal.calibration import _search

pytest.importorskip("numba")

TOLERANCE = {np.dtype(np.float32): 2e-6, np.dtype(np.float64): 1e-14}
GAMMAS = [0.0, 0.5, 1.0, 2.0, 7.3, 16.0]
SHAPES = [((5, 3), 1), ((5, 3), 0), ((2, 7, 3, 4), 1), ((300, 20), 1), ((3, 5000), 1), ((500, 2), 1)]


@pytest.fixture(autouse=True)
def every_size(monkeypatch):
    """Machine code for few entries too."""
    monkeypatch.setattr(_compiled, "ENOUGH", 0)


def layouts(x):
    """Yield the same values in other orders of memory."""
    yield x
    yield np.asfortranarray(x)
    yield np.repeat(x, 2, axis=-1)[..., ::2]
    yield x[::-1][::-1]
    yield np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0)


def awkward_logits(shape, dtype, seed=0):
    """Return logits with a class far ahead, masked classes, infinities and a NaN."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=shape) * rng.choice([1.0, 20.0, 400.0], size=shape)
    z.flat[0], z.flat[-1] = -np.inf, 1e4
    if z.size > 40:
        z.flat[7], z.flat[23] = np.inf, np.nan
    return z.astype(dtype)


def assert_close(found, expected, tolerance):
    found = np.asarray(found)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
    some = np.isfinite(expected)
    error = np.abs(found[some] - expected[some]) / np.maximum(1, np.abs(expected[some]))
    assert error.max(initial=0) <= tolerance


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_log_psi_is_that_of_array_operations(shape, axis, dtype):
    z = awkward_logits(shape, dtype)
    for gamma in GAMMAS:
        expected = map_rows(focal._log_psi, z.astype(np.float64), gamma, axis=axis)
        for x in layouts(z):
            assert_close(refocal.log_psi(x, gamma, axis=axis), expected, TOLERANCE[z.dtype])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_psi_and_its_inverse_are_those_of_array_operations(shape, axis, dtype):
    rng = np.random.default_rng(1)
    for concentration in (0.05, 1.0, 30.0):
        p = rng.gamma(concentration, size=shape) + 1e-300
        p = (p / p.sum(axis=axis, keepdims=True)).astype(dtype)
        for gamma in GAMMAS:
            psi = map_rows(focal.psi_body, p.astype(np.float64), gamma, axis=axis)
            inverse = map_rows(minimizer._minimizer, p.astype(np.float64), gamma, axis=axis)
            for x in list(layouts(p))[:3]:
                assert_close(refocal.psi(x, gamma, axis=axis), psi, TOLERANCE[p.dtype])
                assert_close(refocal.focal_minimizer(x, gamma, axis=axis), inverse, TOLERANCE[p.dtype])


def test_machine_code_ran_in_these_tests(monkeypatch):
    """Not the array operations beside it."""
    called = []
    for name in ("psi", "minimizer", "bins", "moments", "odds", "fits"):
        module = __import__(f"refocal.kernels.{name}", fromlist=["_"])
        for kind in ("floats", "doubles"):
            kernel = getattr(module, f"{name}_of_{kind}")
            monkeypatch.setattr(
                module, f"{name}_of_{kind}", lambda *a, k=kernel, n=name: called.append(n) or k(*a)
            )
    probs = np.full((2, 2), 0.5)
    refocal.log_psi(probs * 3, 2.0)
    refocal.psi(probs, 2.0)
    refocal.focal_minimizer(probs, 2.0)
    refocal.ece(probs, np.array([0, 1]))
    _compiled.moments(np.array([[0.0, 1.0]]), 1.0)
    refocal.SigmoidFocal().posterior(np.zeros(3))
    _compiled.psi_nll(np.array([[0.0, 1.0]]), np.array([0]), 1.0, 2.0)
    assert called == ["psi", "psi", "minimizer", "bins", "moments", "odds", "fits"]


@pytest.mark.parametrize("gamma", [0.5, 2.0, 5.0])
def test_log_psi_in_double_precision_is_that_of_mpmath(gamma):
    rng = np.random.default_rng(2)
    z = rng.normal(size=(20, 4)) * 5
    with mpmath.workdps(40):
        for row, found in zip(z, refocal.log_psi(z, gamma), strict=True):
            e = [mpmath.exp(mpmath.mpf(float(v))) for v in row]
            q = [v / sum(e) for v in e]
            h = [v / ((1 - v) ** gamma - gamma * (1 - v) ** (gamma - 1) * v * mpmath.log(v)) for v in q]
            exact = [mpmath.log(v / sum(h)) for v in h]
            assert all(
                abs(a - b) <= 1e-14 * max(1, abs(b)) for a, b in zip(found.tolist(), exact, strict=True)
            )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("alpha", [0.25, 0.999, None])
def test_posterior_of_sigmoid_scores(dtype, alpha):
    rng = np.random.default_rng(3)
    special = [0.0, 1e4, -1e4, np.inf, -np.inf, np.nan, 1e-20]
    z = np.concatenate([rng.normal(size=300) * 3, rng.normal(size=100) * 60, special]).astype(dtype)
    for gamma in GAMMAS:
        spec = refocal.SigmoidFocal(gamma, alpha)
        expected = map_rows(spec._log_posterior, z.astype(np.float64), *spec._parameters(z, 0), axis=0)
        assert_close(spec.log_posterior(z), expected, TOLERANCE[z.dtype])
        assert_close(spec.posterior(z), np.exp(expected), TOLERANCE[z.dtype])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_posterior_with_weights_and_gammas_of_the_classes(dtype):
    rng = np.random.default_rng(4)
    z = awkward_logits((200, 6), dtype)
    gamma, weight = tuple(rng.uniform(0, 4, 6)), tuple(rng.uniform(0.1, 9, 6))
    for spec in (refocal.Focal(gamma, weight), refocal.Focal(2.0, weight), refocal.Focal(gamma)):
        wide = z.astype(np.float64)
        expected = map_rows(spec._log_posterior, wide, *spec._parameters(wide, 1), axis=1)
        assert_close(spec.log_posterior(z), expected, TOLERANCE[z.dtype])
        assert_close(spec.posterior(z), np.exp(expected), TOLERANCE[z.dtype])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(5000, 2), (2000, 10), (300, 100), (20, 6000)])
def test_bins_are_exactly_those_of_numpy(monkeypatch, dtype, shape):
    rng = np.random.default_rng(5)
    n, k = shape
    probs = rng.dirichlet(np.full(k, 0.3), size=n).astype(dtype)
    if k == 10:  # on edges, and ties
        probs[:1000] = rng.dirichlet(np.full(k, 0.3), size=1000).round(1)
        probs[5:50] = 0.1
        probs /= probs.sum(axis=1, keepdims=True)
    labels = rng.integers(k, size=n)
    for convention in ("refocal", "sklearn", "guo"):
        for n_bins in (1, 10, 15):
            found = []
            for enough in (0, 1 << 60):
                monkeypatch.setattr(_compiled, "ENOUGH", enough)
                stats = refocal.CalibrationStats(n_bins, n_classes=k, convention=convention)
                found.append(stats.update(probs, labels)._binned)
            for name in ("counts", "hits"):
                np.testing.assert_array_equal(getattr(found[0], name), getattr(found[1], name))
            np.testing.assert_allclose(found[0].sums, found[1].sums, rtol=1e-12)


def test_rows_that_are_no_distributions_are_refused():
    probs = np.full((5, 2), 0.5)
    for wrong, text in (
        (0.7, "sum to 1 within 0.001, got 1.2 in row 3"),
        (-0.5, "got -0.5 in row 3"),
        (np.nan, "nan"),
    ):
        probs[3, 0] = wrong
        with pytest.raises(ValueError, match=text):
            refocal.ece(probs, np.zeros(5, int))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("function", [refocal.psi, refocal.focal_minimizer])
def test_what_is_no_probability_is_refused_as_without_machine_code(monkeypatch, function, library, dtype):
    eps = np.finfo(dtype).eps
    rows = {
        "nothing": [0.5, 0.3, 0.2],
        "at the edge": [0.5 + 1e-3 - 4 * eps, 0.3, 0.2],
        "beyond the edge": [0.5 + 1e-3 + 4 * eps, 0.3, 0.2],
        "below the edge": [0.5 - 1e-3 - 4 * eps, 0.3, 0.2],
        "half way": [0.5 - 0.6e-3, 0.3, 0.2],
        "negative": [0.8, 0.3, -0.1],
        "a little negative": [0.5, 0.5, -1e-7],
        "above 1": [1.2, 0.0, 0.0],
        "zeros": [0.0, 0.0, 0.0],
        "infinite": [np.inf, 0.0, 0.0],
        "NaN": [np.nan, 0.5, 0.5],
        "NaN and above 1": [np.nan, 7.0, 0.5],
        "logits": [3.0, -1.0, 0.5],
    }
    for name, row in rows.items():
        probs = np.full((40, 3), [0.6, 0.3, 0.1], dtype)
        probs[23] = row
        given = pytest.importorskip("torch").from_numpy(probs) if library == "torch" else probs
        found = []
        for enough in (0, 1 << 60):
            monkeypatch.setattr(_compiled, "ENOUGH", enough)
            try:
                found.append(np.asarray(function(given, 2.0)))
            except ValueError as error:
                found.append(str(error))
        if isinstance(found[1], str):
            assert found[0] == found[1], name
        else:
            np.testing.assert_allclose(found[0], found[1], rtol=200 * TOLERANCE[probs.dtype], err_msg=name)
            monkeypatch.setattr(_compiled, "ENOUGH", 0)
            np.testing.assert_array_equal(np.asarray(function(given, 2.0, check=False)), found[0])
        assert isinstance(found[0], str) == (
            name not in ("nothing", "at the edge", "half way", "NaN", "NaN and above 1")
        )
    monkeypatch.setattr(_compiled, "ENOUGH", 0)
    with pytest.raises(TypeError, match=r"^check must be True or False, got 'no'$"):
        function(probs, 2.0, check="no")


def test_values_are_looked_at_again_only_where_a_row_is_doubtful(monkeypatch):
    looks = []
    monkeypatch.setattr(focal, "check_probs", lambda *a: looks.append(a))
    probs = np.full((40, 3), 1 / 3)
    refocal.psi(probs, 2.0)
    assert not looks
    probs[7, 1] = 0.4
    refocal.psi(probs, 2.0)
    assert len(looks) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_a_temperature_fit(dtype):
    rng = np.random.default_rng(6)
    z = (rng.normal(size=(50, 7)) * 9).astype(dtype)
    z[3, 2] = -np.inf
    t = 0.7 * (z.astype(np.float64) - z.max(axis=1, keepdims=True))
    t[3, 2] = -1e3
    expected = [(t**i * np.exp(t)).sum(axis=1) for i in range(3)]
    np.testing.assert_allclose(
        _compiled.moments(z, 0.7), expected, rtol=20 * TOLERANCE[z.dtype] / 2, atol=1e-30
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(300, 20), (500, 2), (4, 5000)])
def test_sums_of_a_focal_temperature_fit_are_those_of_array_operations(monkeypatch, shape, dtype):
    rng = np.random.default_rng(8)
    z = (rng.normal(size=shape) * 5).astype(dtype)
    labels = rng.integers(shape[1], size=shape[0])
    z[0, 1], z[1, 1:], z[2, 0] = -np.inf, -np.inf, 900  # masked, all but one masked, far ahead
    labels[:3] = 0
    for x in layouts(z):
        rows = Rows("logits", x, "logits", 1e-3, labels)
        for point in ((0.0, 0.0), (-1.0, 2.0), (0.7, 0.5), (-0.5, 16.0)):
            found = []
            for enough in (0, 1 << 60):
                monkeypatch.setattr(_compiled, "ENOUGH", enough)
                parts = _search.psi_nll_at(rows, np.array(point))
                found.append(np.concatenate([np.ravel(part) for part in parts]))
            np.testing.assert_allclose(*found, rtol=1e-10, atol=1e-12 * np.abs(found[1]).max())


def test_the_slopes_of_that_fit_are_those_of_its_value():
    rng = np.random.default_rng(9)
    z, labels = rng.normal(size=(200, 6)) * 3, rng.integers(6, size=200)
    rows = Rows("logits", z, "logits", 1e-3, labels[::-1][::-1])
    point, h = np.array([-0.2, 1.7]), 1e-5
    value, slope, _ = _search.psi_nll_at(rows, point)
    assert value == pytest.approx(
        -refocal.log_psi(np.exp(-0.2) * z, 1.7)[np.arange(200), labels].mean(), 1e-13
    )
    for i in range(2):
        step = h * np.eye(2)[i]
        above, below = (_search.psi_nll_at(rows, point + s)[0] for s in (step, -step))
        assert slope[i] == pytest.approx((above - below) / (2 * h), rel=1e-8)


def test_tensors_in_threads_and_what_is_left_to_array_operations():
    torch = pytest.importorskip("torch")
    z = torch.from_numpy(awkward_logits((5000, 30), np.float32))
    expected = map_rows(focal._log_psi, z.numpy().astype(np.float64), 2.0, axis=1)
    assert_close(refocal.log_psi(z, 2.0), expected, 2e-6)
    assert refocal.log_psi(z.half(), 2.0).dtype == torch.float16
    assert refocal.log_psi(z.clone().requires_grad_(), 2.0).requires_grad
    assert _compiled.psi(z, 17.0, 1, plain=lambda rows: rows) is None
    assert _compiled.psi(z.numpy().astype(">f4"), 2.0, 1, plain=lambda rows: rows) is None


@pytest.mark.parametrize("switch", ["off", "cpu"])
def test_the_switch(switch):
    code = """
import numpy as np, refocal, sys
z = np.random.default_rng(0).normal(size=(30000, 10))
refocal.log_psi(z, 2.0), refocal.log_psi(z[:2], 2.0)
print("refocal.kernels.psi" in sys.modules, "numba" in sys.modules)
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**__import__("os").environ, "REFOCAL_KERNELS": switch},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == [str(switch == "cpu")] * 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_odd_posteriors_have_the_same_scores(monkeypatch, dtype):
    tiny = float(np.finfo(dtype).tiny)
    rows = [
        [1.0, 0.0, 0.0],
        [1.0, tiny**0.5, tiny / 100],
        [0.5, 0.5, 0.0],
        [0.0, 0.0, 1.0],
        [np.nan, 0.5, 0.5],
    ]
    posterior = np.array([*rows, [1.2, -0.2, 0.0]], dtype)
    for gamma in (0.5, 2.0, 7.0):
        found = []
        for enough in (0, 1 << 60):
            monkeypatch.setattr(_compiled, "ENOUGH", enough)
            found.append(refocal.focal_minimizer(posterior, gamma, check=False))
        np.testing.assert_allclose(*found, rtol=200 * TOLERANCE[posterior.dtype])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_far_from_one(dtype):
    z = np.linspace(-9, 9, 60, dtype=dtype).reshape(10, 6)
    plain, expected = refocal.Focal(2.0), refocal.log_psi(z.astype(np.float64), 2.0)
    for weight in (1e-37, 1e38):  # the same for all classes: nothing changes
        spec = refocal.Focal(2.0, [weight] * 6)
        np.testing.assert_allclose(spec.posterior(z), plain.posterior(z), rtol=20 * TOLERANCE[z.dtype])
        assert_close(spec.log_posterior(z), expected, TOLERANCE[z.dtype])
    spec = refocal.Focal(2.0, [1e-30, 1, 1, 1, 1, 1e30])
    found, log_found = spec.posterior(z).astype(np.float64), spec.log_posterior(z)
    wide = map_rows(
        spec._log_posterior, z.astype(np.float64), *spec._parameters(z.astype(np.float64), 1), axis=1
    )
    assert_close(log_found, wide, 20 * TOLERANCE[z.dtype])
    np.testing.assert_allclose(found, np.exp(wide), rtol=1e-3, atol=float(np.finfo(dtype).tiny))
