"""What happens to the values that people hand over: right, or an error that says what they look like."""

from __future__ import annotations

import re
import warnings

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import refocal
from refocal import (
    Asymmetric,
    Focal,
    GeneralizedCrossEntropy,
    Objective,
    OneVsRest,
    Poly1Focal,
    SigmoidFocal,
    SuspiciousInputWarning,
)

Z = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]])
P = np.exp(Z) / np.exp(Z).sum(axis=1, keepdims=True)
SIGMOIDS = 1 / (1 + np.exp(-Z))

RULE = "must be probabilities, in [0, 1] and with sum 1 in each row (within 0.001), got "
LOGITS = "; these look like logits: use posterior(logits) or log_psi(logits)"
WEIGHTED = Focal(2.0, [1.0, 2.0, 3.0])

REFUSED = [
    (lambda: refocal.psi(Z, 2.0), f"probs {RULE}2 in row 0{LOGITS}"),
    (lambda: refocal.psi(Z.tolist(), 2.0), f"probs {RULE}2 in row 0{LOGITS}"),
    (lambda: refocal.psi(torch.tensor(Z), 2.0), f"probs {RULE}2 in row 0{LOGITS}"),
    (lambda: refocal.psi(torch.tensor(Z, requires_grad=True), 2.0), f"probs {RULE}2 in row 0{LOGITS}"),
    (lambda: refocal.psi(jnp.asarray(Z), 2.0), f"probs {RULE}2 in row 0{LOGITS}"),
    (lambda: refocal.psi(np.log(P), 2.0), f"probs {RULE}-0.241311 in row 0{LOGITS}"),
    (
        lambda: refocal.psi(100 * P, 2.0),
        f"probs {RULE}78.5597 in row 0; these look like percentages: divide by 100",
    ),
    (
        lambda: refocal.psi(SIGMOIDS, 2.0),
        f"probs {RULE}sum 1.7722 in row 0; these look like independent sigmoid scores: use SigmoidFocal",
    ),
    (
        lambda: refocal.psi(np.array([0.52, 0.3, 0.2]), 2.0),
        f"probs {RULE}sum 1.02; these look like rounded probabilities: divide each row by its sum",
    ),
    (
        lambda: refocal.psi(np.array([[1.0, -1e-9, 1e-9]]), 2.0),
        f"probs {RULE}-1e-09 in row 0; these look like probabilities with rounding errors: "
        "clip them to [0, 1]",
    ),
    (
        lambda: refocal.psi(P.T, 2.0),
        f"probs {RULE}sum 0.83272 in row 0; these sum to 1 along axis 0: use axis=0",
    ),
    (lambda: refocal.psi(np.array([[np.inf, 0.0]]), 2.0), f"probs {RULE}inf in row 0{LOGITS}"),
    (
        lambda: refocal.psi(np.stack([P, Z]), 2.0),
        f"probs {RULE}2 at (1, 0){LOGITS}",
    ),
    (lambda: refocal.focal_minimizer(Z, 2.0), f"posterior {RULE}2 in row 0{LOGITS}"),
    (lambda: refocal.conditional_risk(Z, P, 2.0), f"probs {RULE}2 in row 0{LOGITS}"),
    (lambda: refocal.conditional_risk(P, Z, 2.0), f"posterior {RULE}2 in row 0{LOGITS}"),
    (lambda: refocal.eta_confidence(Z, 2.0), f"probs {RULE}2 in row 0{LOGITS}"),
    (lambda: refocal.confidence_region(Z, 2.0), f"probs {RULE}2 in row 0{LOGITS}"),
    (lambda: Focal(2.0).posterior_from_probs(Z), f"probs {RULE}2 in row 0{LOGITS}"),
    (lambda: WEIGHTED.posterior_from_probs(Z), f"probs {RULE}2 in row 0{LOGITS}"),
    (lambda: WEIGHTED.logits(Z), f"posterior {RULE}2 in row 0{LOGITS}"),
    (lambda: Poly1Focal().posterior_from_probs(Z), f"probs {RULE}2 in row 0{LOGITS}"),
    (lambda: OneVsRest().logits(Z), f"posterior {RULE}2 in row 0{LOGITS}"),
    (
        lambda: SigmoidFocal().posterior_from_probs(Z),
        "probs must be in [0, 1], got 2 at (0, 0); these look like logits: use posterior(logits)",
    ),
    (
        lambda: SigmoidFocal().posterior_from_probs(100 * SIGMOIDS),
        "probs must be in [0, 1], got 88.0797 at (0, 0); these look like percentages: divide by 100",
    ),
    (
        lambda: OneVsRest().posterior_from_probs(Z),
        "probs must be in [0, 1], got 2 at (0, 0); these look like logits: use posterior(logits)",
    ),
    (
        lambda: refocal.phi(np.array([-0.5]), 2.0),
        "v must be in [0, 1], got -0.5 in row 0; these look like logits: use posterior(logits)",
    ),
    (
        lambda: refocal.score_threshold(SigmoidFocal(alpha=[0.1, 0.5, 0.9]), np.array([0.3, 0.5])),
        "posterior must have the 3 classes of the objective along its last axis, or length 1 there, "
        "got shape (2,)",
    ),
]


@pytest.mark.parametrize("call, text", REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_is_refused(call, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        call()


def test_check_false_goes_without():
    assert np.isnan(refocal.psi(Z, 2.0, check=False)).any()
    np.testing.assert_allclose(refocal.psi(3 * P, 2.0, check=False), refocal.psi(P, 2.0), rtol=1e-12)
    for f in (Focal(2.0).posterior_from_probs, WEIGHTED.logits, SigmoidFocal().posterior_from_probs):
        f(2 * P, check=False)
    with pytest.raises(TypeError, match=r"^check must be True or False, got 'no'$"):
        refocal.psi(P, 2.0, check="no")


def test_nan_rows_pass_and_their_neighbours_are_looked_at():
    p = np.vstack([P, [[np.nan, 0.5, 0.5]]])
    assert np.isnan(refocal.psi(p, 2.0)).all(axis=1).tolist() == [False, False, True]
    p[1] = Z[1]
    with pytest.raises(ValueError, match="got 3 in row 1; these look like logits"):
        refocal.psi(torch.tensor(p), 2.0)


def test_half_precision_may_be_further_off():
    for dtype in (torch.float16, torch.bfloat16):
        p = torch.randn(64, 100, generator=torch.Generator().manual_seed(0)).softmax(-1).to(dtype)
        assert refocal.psi(p, 2.0).dtype == dtype
        assert refocal.psi(jnp.asarray(p.float().numpy(), dtype=str(dtype)[6:]), 2.0).shape == (64, 100)
    with pytest.raises(ValueError, match=r"\(within 0\.01\), got sum 1\.0"):
        refocal.psi(np.array([[0.52, 0.5]], dtype=np.float16), 2.0)


def test_nothing_is_looked_at_under_tracing():
    with torch.device("meta"):
        assert refocal.psi(torch.ones(2, 3), 2.0).shape == (2, 3)
    z = torch.tensor(Z)
    assert torch.func.vmap(lambda p: refocal.psi(p, 2.0))(z).shape == z.shape
    graph = torch.compile(lambda p: refocal.psi(p, 2.0), backend="eager", fullgraph=True)
    assert graph(z).shape == z.shape
    assert torch.fx.experimental.proxy_tensor.make_fx(lambda p: refocal.psi(p, 2.0))(z)(z).shape == z.shape
    assert jax.jit(lambda p: refocal.psi(p, 2.0))(jnp.asarray(Z)).shape == Z.shape
    assert jax.grad(lambda p: refocal.psi(p, 2.0).sum())(jnp.asarray(Z)).shape == Z.shape


@pytest.mark.parametrize(
    "call",
    [
        lambda p: refocal.log_psi(p, 2.0),
        lambda p: refocal.log_psi(p.T, 2.0, axis=0),
        lambda p: refocal.log_psi(p[:1], 2.0),
        lambda p: refocal.log_psi(torch.tensor(p), 2.0),
        lambda p: refocal.log_psi(jnp.asarray(p), 2.0),
        lambda p: Focal(2.0).posterior(p),
        lambda p: WEIGHTED.posterior(p),
        lambda p: Poly1Focal().log_posterior(p),
    ],
)
def test_probabilities_as_logits_warn(call):
    text = (
        r"^logits look like probabilities, as every row is in \[0, 1\] with sum 1: give the scores before "
        r"the softmax, or use psi or posterior_from_probs$"
    )
    with pytest.warns(SuspiciousInputWarning, match=text) as caught:
        call(P)
    assert caught[0].filename == __file__


def test_no_false_alarm():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for z in (Z, np.zeros((4, 3)), np.eye(3), np.array([0.5, 0.5]), np.vstack([P, Z]), np.empty((0, 3))):
            refocal.log_psi(z, 2.0)
        refocal.log_psi(P, 2.0, check=False)
        SigmoidFocal().posterior(P)
        Focal(2.0).loss(P, np.array([0, 1]))
        refocal.torch.FocalLoss()(torch.tensor(P), torch.tensor([0, 1]))


@pytest.mark.parametrize("gamma", [1e3, 1e6, 1e9])
def test_a_class_that_never_occurs_has_no_score(gamma):
    eta = np.array([[0.7, 0.3, 0.0], [0.0, 1.0, 0.0]])
    for f in (lambda x: x, torch.tensor, lambda x: torch.tensor(x, requires_grad=True), jnp.asarray):
        q = refocal.focal_minimizer(f(eta), gamma)
        q = np.asarray(q.detach() if isinstance(q, torch.Tensor) else q)
        assert q[0, 2] == 0
        assert q[1].tolist() == [0, 1, 0]
        two = refocal.focal_minimizer(eta[0, :2], gamma)
        np.testing.assert_allclose(q[0, :2], two, rtol=1e-9)


def test_thresholds_for_one_vs_rest_and_for_each_class():
    spec = SigmoidFocal(gamma=[0.0, 2.0, 5.0], alpha=[0.1, 0.5, 0.9])
    each = refocal.score_threshold(spec, 0.3)
    assert each.shape == (3,)
    np.testing.assert_array_equal(refocal.score_threshold(OneVsRest(spec), 0.3), each)
    np.testing.assert_array_equal(refocal.score_threshold(spec, np.array([[0.3], [0.5]]))[0], each)
    np.testing.assert_array_equal(refocal.score_threshold(spec, torch.tensor(0.3, dtype=torch.float64)), each)
    one = refocal.score_threshold(OneVsRest(), 0.5)
    assert type(one) is float
    assert one == pytest.approx(0.3988, abs=5e-5)
    # A row of the minimiser sums to 1, so that a class at its threshold has that very probability.
    logits = OneVsRest().logits(np.array([0.5, 0.3, 0.2]))
    assert 1 / (1 + np.exp(-logits[0])) == pytest.approx(one)
    assert refocal.score_posterior(OneVsRest(spec), each) == pytest.approx(0.3)

    class Rows(Objective):
        scores = "one-vs-rest"

        def loss(self, logits, labels, *, axis=-1): ...

        def log_posterior(self, logits, *, axis=-1): ...

    with pytest.raises(ValueError, match="a score alone has no probability"):
        refocal.score_threshold(Rows(), 0.5)


def exact_posterior(p, gamma, alpha):
    """The odds (1 - alpha) h(p) / (alpha h(1 - p)), at many digits."""
    with mp.workdps(60):
        p, gamma, alpha = (mp.mpf(float(x)) for x in (p, gamma, alpha))
        if p in (0, 1):
            return float(p)

        def phi(v):
            return (1 - v) ** gamma - gamma * (1 - v) ** (gamma - 1) * v * mp.log(v)

        odds = (1 - alpha) / alpha * (p / phi(p)) / ((1 - p) / phi(1 - p))
        return float(odds / (1 + odds))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 20.0])
@pytest.mark.parametrize("alpha", [1e-7, 0.25, 1 - 1e-7])
def test_scores_at_extreme_alpha(gamma, alpha):
    spec = SigmoidFocal(gamma, alpha)
    for dtype, rtol in ((np.float32, 2e-5), (np.float64, 1e-12)):
        p = np.array([0, 1e-30, 1e-10, 1e-7, 0.01, 0.5, 0.99, 1 - 2.0**-23, 1 - 2.0**-24, 1], dtype)
        expected = [exact_posterior(x, gamma, alpha) for x in p]
        for y in (refocal.score_posterior(spec, p), refocal.score_posterior(spec, torch.tensor(p)).numpy()):
            np.testing.assert_allclose(y, expected, rtol=rtol, atol=1e-37)
            assert ((y >= 0) & (y <= 1)).all()
        t = refocal.score_threshold(spec, p)
        assert ((t >= 0) & (t <= 1)).all()
        if dtype is np.float64:
            inside = (t > 0) & (t < 0.99)
            found = [exact_posterior(x, gamma, alpha) for x in t[inside]]
            np.testing.assert_allclose(found, p[inside], rtol=1e-9)


def test_generalized_cross_entropy_near_its_limit():
    spec = GeneralizedCrossEntropy(0.999)
    for dtype, atol in ((np.float32, 2e-6), (np.float64, 1e-13)):
        p = np.array([0, 1e-30, 1e-7, 0.01, 0.5, 0.99, 1 - 2.0**-23, 1], dtype)
        with mp.workdps(40):
            power = 1 - mp.mpf(0.999)
            pairs = [(mp.mpf(float(x)) ** power, (1 - mp.mpf(float(x))) ** power) for x in p]
            expected = [float(a / (a + b)) for a, b in pairs]
        y, t = refocal.score_posterior(spec, p), refocal.score_threshold(spec, p)
        np.testing.assert_allclose(y, expected, atol=atol)
        assert ((t >= 0) & (t <= 1)).all()


@pytest.mark.parametrize("gammas", [(0.0, 4.0), (1.0, 4.0), (2.0, 0.5), (0.0, 0.0)])
@pytest.mark.parametrize("dtype, rtol", [(np.float32, 2e-5), (np.float64, 1e-12)])
def test_the_asymmetric_loss_at_its_clip(gammas, dtype, rtol):
    clip = dtype(0.05)
    above = [np.nextafter(clip, dtype(1)), dtype(0.0500001), dtype(0.051), dtype(0.999)]
    below = [clip, np.nextafter(clip, dtype(0)), dtype(0)]
    spec = Asymmetric(*gammas, clip=float(clip))
    expected = []
    with mp.workdps(60):
        gp, gn = (mp.mpf(g) for g in gammas)
        for x in above:
            p, u = mp.mpf(float(x)), mp.mpf(float(x)) - mp.mpf(float(clip))
            of_zero = mp.diff(lambda v: v**gn * -mp.log(1 - v), u)
            of_one = mp.diff(lambda v: (1 - v) ** gp * -mp.log(v), p)
            expected.append(float(of_zero / (of_zero - of_one)))
    for f in (np.asarray, torch.tensor):
        assert np.asarray(refocal.score_posterior(spec, f(np.array(below)))).tolist() == [0, 0, 0]
        np.testing.assert_allclose(refocal.score_posterior(spec, f(np.array(above))), expected, rtol=rtol)


BAD_NUMBERS = [
    (lambda: Focal(gamma="2"), "gamma must be a number or one number for each class, got '2'"),
    (lambda: Focal(gamma=True), "gamma must be a number, got True"),
    (lambda: Focal(gamma=2j), "gamma must be a number or one number for each class, got 2j"),
    (lambda: Focal(weight="abc"), "weight must be a number or one number for each class, got 'abc'"),
    (lambda: SigmoidFocal(alpha="0.25"), "alpha must be a number or one number for each class, got '0.25'"),
    (lambda: refocal.tau_oc("2"), "gamma must be a number, got '2'"),
    (lambda: refocal.tau_uc(None), "gamma must be a number, got None"),
]


@pytest.mark.parametrize("call, text", BAD_NUMBERS, ids=[text for _, text in BAD_NUMBERS])
def test_what_is_no_number(call, text):
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        call()


def test_an_objective_of_ones_own_that_does_not_undo_its_loss():
    class Wrong(Objective):
        def loss(self, logits, labels, *, axis=-1):
            return Focal(2.0).loss(logits, labels, axis=axis)

        def log_posterior(self, logits, *, axis=-1):
            return Focal(0.0).log_posterior(logits, axis=axis)

    text = r"^log_posterior of Wrong must undo its loss: at logits \[.*\] class \d has the probability 0\.\d+"
    with pytest.raises(ValueError, match=text):
        refocal.check_inverse(Wrong())
    for right in (Focal(2.0, [1, 2, 3], 0.1), SigmoidFocal([0, 1, 2], [0.1, 0.5, 0.9]), Asymmetric(1.0, 4.0)):
        assert refocal.check_inverse(right) < 1e-9


def layouts(p):
    """The same probabilities in other strides, and copies of one row that share memory."""
    yield p
    yield np.asfortranarray(p)
    yield np.repeat(p, 2, axis=0)[::2]
    yield np.concatenate([p, p], axis=1)[:, : p.shape[1]]
    yield np.broadcast_to(p[:1], p.shape) if len(p) else p
    yield p[:0]


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 5),
    k=st.integers(2, 6),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    gamma=st.sampled_from([0.0, 0.5, 2.0, 30.0]),
    with_nan=st.booleans(),
)
def test_any_layout_and_dtype(seed, n, k, dtype, gamma, with_nan):
    """Each row has the result that it has alone, in float64 and contiguous; NaN stays in its own row."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(k, 0.5), size=n).astype(dtype)
    if with_nan:
        p[0, 0] = np.nan
    tolerance = {np.float16: 2e-3, np.float32: 2e-4, np.float64: 1e-9}[dtype]
    with np.errstate(over="ignore"):
        for x in layouts(p):
            for f in (refocal.psi, refocal.focal_minimizer):
                y, from_tensor = f(x, gamma), f(torch.from_numpy(np.array(x)), gamma).numpy()
                assert (y.shape, y.dtype) == (x.shape, x.dtype)
                alone = np.array([f(row.astype(np.float64), gamma, check=False) for row in x]).reshape(
                    x.shape
                )
                np.testing.assert_allclose(y, alone, atol=tolerance)
                np.testing.assert_allclose(from_tensor, alone, atol=tolerance)


@settings(max_examples=40)
@given(
    bad=st.sampled_from([-0.5, 1.5, np.inf, -np.inf, 1e30]),
    n=st.integers(1, 4),
    k=st.integers(2, 5),
    data=st.data(),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_one_bad_value_is_found_wherever_it_is(bad, n, k, data, dtype):
    p = np.full((n, k), 1 / k, dtype)
    row = data.draw(st.integers(0, n - 1))
    p[row, data.draw(st.integers(0, k - 1))] = bad
    for x in (p, np.asfortranarray(p), torch.from_numpy(p)):
        for f in (refocal.psi, refocal.focal_minimizer, refocal.eta_confidence):
            with pytest.raises(ValueError, match=rf"got (inf|-inf|-?\d.*) in row {row};"):
                f(x, 2.0)
