"""Losses for PyTorch as their users write them, each beside what PyTorch or a published formula gives."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from refocal import (
    Asymmetric,
    AsymmetricSingleLabel,
    Focal,
    GeneralizedCrossEntropy,
    Objective,
    OneVsRest,
    Poly1Focal,
    SigmoidFocal,
)
from refocal.torch import (
    AsymmetricLoss,
    AsymmetricSingleLabelLoss,
    FocalLoss,
    GCELoss,
    ObjectiveLoss,
    OneVsRestLoss,
    Poly1FocalLoss,
    Posterior,
    SigmoidFocalLoss,
    cpu,
    focal_gradient,
    focal_loss,
    sigmoid_focal_loss,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own modules


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def raises(kind, text):
    return pytest.raises(kind, match=f"^{re.escape(text)}$")


@pytest.fixture(params=["with kernels", "without"])
def forms(request, monkeypatch):
    if request.param == "without":
        monkeypatch.setattr(cpu, "_kernels", {})


# The class axis


TOKENS = torch.randn(2, 7, 5, generator=seeded())  # (N, T, C), as a transformer has them
LABELS = torch.randint(5, (2, 7), generator=seeded(1))
SOFT = torch.rand(2, 7, 5, generator=seeded(2)).softmax(-1)


def test_a_transformers_logits_are_refused_with_the_way_out(forms):
    help = "; the classes seem to be along dim 2: say dim=-1, or pass logits.movedim(-1, 1)"
    weight, gammas = torch.ones(5), [1.0, 2.0, 3.0, 4.0, 5.0]
    with raises(ValueError, f"target must have the shape (2, 5) (class indices), got (2, 7){help}"):
        FocalLoss()(TOKENS, LABELS)
    with raises(ValueError, f"weight must have one number for each of the 7 classes, got shape (5,){help}"):
        FocalLoss(weight=weight)(TOKENS, SOFT)
    with raises(ValueError, f"gamma must have one number for each of the 7 classes, got 5{help}"):
        focal_loss(TOKENS, SOFT, gammas)
    with raises(ValueError, f"alpha must have one number for each of the 7 classes, got 5{help}"):
        sigmoid_focal_loss(TOKENS, SOFT, 2.0, [0.1, 0.2, 0.3, 0.4, 0.5])
    with raises(ValueError, "gamma must have one number for each of the 7 classes, got 5"):
        FocalLoss(gammas).posterior(TOKENS)
    with raises(ValueError, "dim must be within the 3 axes of logits, got 3"):
        FocalLoss().posterior(TOKENS, dim=3)
    with raises(TypeError, "dim must be an integer or None, got 1.5"):
        Posterior(Focal(2.0), dim=1.5)
    with raises(ValueError, f"target must have the shape (2, 5) (class indices), got (2, 7){help}"):
        GCELoss()(TOKENS, LABELS)


@pytest.mark.parametrize("dim", [-1, 2])
def test_a_transformers_logits_with_their_axis(dim, forms):
    """Both ways out of the message are the same, in value, gradient and posterior."""
    weight = torch.tensor([1.0, 0.5, 2.0, 3.0, 0.1])
    for options in ({}, {"weight": weight, "label_smoothing": 0.1}, {"reduction": "none"}):
        for target, moved in ((LABELS, LABELS), (SOFT, SOFT.transpose(1, 2))):
            criterion, plain = FocalLoss(2.0, dim=dim, **options), FocalLoss(2.0, **options)
            a, b = (TOKENS.clone().requires_grad_() for _ in range(2))
            loss, expected = criterion(a, target), plain(b.movedim(-1, 1), moved)
            if target is SOFT and options.get("reduction") == "none":
                assert loss.shape == (2, 7)
            torch.testing.assert_close(loss, expected)
            ours, theirs = torch.autograd.grad(loss.sum(), a)[0], torch.autograd.grad(expected.sum(), b)[0]
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    posterior = FocalLoss(2.0).posterior(TOKENS.movedim(-1, 1)).movedim(1, -1)
    for found in (
        FocalLoss(2.0, dim=dim).posterior(TOKENS),
        FocalLoss(2.0).posterior(TOKENS, dim=dim),
        FocalLoss(2.0).log_posterior(TOKENS, dim=dim).exp(),
        Posterior(Focal(2.0), dim=dim)(TOKENS),
        torch.from_numpy(Focal(2.0).posterior(TOKENS.numpy())),  # arrays have axis=-1
    ):
        torch.testing.assert_close(found, posterior, rtol=1e-5, atol=1e-7)
    gradient = focal_gradient(TOKENS, LABELS, dim=dim)
    torch.testing.assert_close(gradient, focal_gradient(TOKENS.movedim(-1, 1), LABELS).movedim(1, -1))


@pytest.mark.parametrize("shape, dim", [((6, 4), 0), ((3, 4, 5), 0), ((4,), 0), ((4,), -1), ((2, 4, 3), 1)])
def test_every_axis_is_cross_entropys_at_gamma_zero(shape, dim, forms):
    z = torch.randn(shape, generator=seeded(3))
    y = torch.randint(z.shape[dim], z.movedim(dim, 0).shape[1:], generator=seeded(4))
    there = F.cross_entropy(z if z.ndim == 1 else z.movedim(dim, 1), y)
    torch.testing.assert_close(focal_loss(z, y, 0.0, dim=dim), there)


def test_the_axis_in_a_repr_a_trace_and_an_export(tmp_path):
    assert repr(Posterior(Focal(), dim=-1)) == (
        "Posterior(Focal(gamma=2.0, weight=None, label_smoothing=0.0), dim=-1)"
    )
    assert repr(FocalLoss(dim=-1)) == "FocalLoss(gamma=2.0, dim=-1)"
    model = Posterior(Focal(2.0), dim=-1)
    other = torch.randn(3, 4, 5, generator=seeded(5))
    torch.testing.assert_close(torch.jit.trace(model, TOKENS)(other), model(other))
    torch.testing.assert_close(torch.export.export(model, (TOKENS,)).module()(2 * TOKENS), model(2 * TOKENS))
    torch.testing.assert_close(model(other).sum(-1), torch.ones(3, 4))


# Sigmoid losses: targets that do not count, and the weight of positives


Z = torch.tensor([[0.5, -1.0, 2.0], [0.0, 3.0, -2.0]])
Y = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
MARKS = {
    "integers and -1": (torch.int64, -1),
    "floats and -100": (torch.float32, -100),
    "bytes and 255": (torch.uint8, 255),
    "half precision and -1": (torch.float16, -1),
}


@pytest.mark.parametrize("name", MARKS)
def test_unlabelled_entries_do_not_count(name, forms):
    """NaN behind an ignored entry reaches neither the loss nor a gradient, as in cross entropy."""
    dtype, mark = MARKS[name]
    hidden = torch.tensor([[False, True, False], [False, False, True]])
    y = torch.where(hidden, mark, Y).to(dtype)
    broken = torch.where(hidden, torch.nan, Z)
    for reduction, smoothing in itertools.product(("mean", "sum", "none"), (0.0, 0.1)):
        z = broken.clone().requires_grad_()
        criterion = SigmoidFocalLoss(2.0, 0.25, reduction, smoothing, ignore_index=mark)
        loss = criterion(z, y)
        kept = Z[~hidden].clone().requires_grad_()
        expected = sigmoid_focal_loss(kept, Y[~hidden], 2.0, 0.25, reduction, smoothing)
        torch.testing.assert_close(loss[~hidden] if reduction == "none" else loss, expected)
        if reduction == "none":
            assert (loss[hidden] == 0).all()
        (gradient,) = torch.autograd.grad(loss.sum(), z, create_graph=True)
        (there,) = torch.autograd.grad(expected.sum(), kept, create_graph=True)
        assert (gradient[hidden] == 0).all()
        torch.testing.assert_close(gradient[~hidden], there)
        (second,) = torch.autograd.grad(gradient.square().sum(), z)
        (second_there,) = torch.autograd.grad(there.square().sum(), kept)
        assert (second[hidden] == 0).all()
        torch.testing.assert_close(second[~hidden], second_there)
        (plain,) = torch.autograd.grad(criterion(z, y).sum(), z)
        torch.testing.assert_close(plain, gradient)


def test_nothing_but_unlabelled_entries(forms):
    """The mean of nothing is NaN and moves nothing, as `F.cross_entropy` has it."""
    for z in (Z.clone(), Z.double()):
        z = z.requires_grad_()
        loss = sigmoid_focal_loss(z, torch.full_like(z, -1), ignore_index=-1)
        assert loss.isnan()
        assert (torch.autograd.grad(loss, z)[0] == 0).all()
        assert sigmoid_focal_loss(z, torch.full_like(z, -1), reduction="sum", ignore_index=-1) == 0


@pytest.mark.parametrize("layout", [lambda x: x, lambda x: x.T, lambda x: x.repeat(1, 2)[:, ::2]])
def test_targets_that_are_none_are_refused(layout, forms):
    help = "; say ignore_index=-1 for entries that do not count"
    for z in (layout(Z), layout(Z).double(), layout(Z).half(), layout(Z).repeat(3000, 5)):
        y = (z > 0).float()
        y[1, 0] = -1
        with raises(ValueError, f"target must be in 0..1, got -1{help}"):
            SigmoidFocalLoss()(z, y)
        y[1, 0] = 1.5
        with raises(ValueError, "target must be in 0..1, got 1.5"):
            sigmoid_focal_loss(z, y, label_smoothing=0.4)
        y[1, 0] = 255
        with raises(ValueError, "target must be in 0..1 or ignore_index=-100, got 255"):
            sigmoid_focal_loss(z, y, ignore_index=-100, reduction="none")
        y[1, 0] = torch.nan
        with raises(ValueError, "target must be in 0..1, got nan"):
            sigmoid_focal_loss(z, y)
        y[1, 0] = 1 + 1e-3  # rounding
        assert sigmoid_focal_loss(z, y).isfinite()
    for bad in (0, 1, 1 << 30):
        with raises(ValueError, f"ignore_index must be no target, 0 or 1, and fit into float32, got {bad}"):
            SigmoidFocalLoss(ignore_index=bad)
    with raises(TypeError, "ignore_index must be an integer, got -1.0"):
        sigmoid_focal_loss(Z, Y, ignore_index=-1.0)


PER_CLASS = torch.tensor([0.5, 3.0, 10.0])


@pytest.mark.parametrize("pos_weight", [3.0, [0.5, 3.0, 10.0], PER_CLASS, torch.tensor([3.0])], ids=str)
def test_pos_weight_is_that_of_bce(pos_weight, forms):
    """With gamma 0 and no alpha the loss is nn.BCEWithLogitsLoss, in value and gradient."""
    for reduction, y in itertools.product(("mean", "sum", "none"), (Y, 0.8 * Y + 0.1)):
        a, b = Z.clone().requires_grad_(), Z.clone().requires_grad_()
        there = nn.BCEWithLogitsLoss(pos_weight=torch.as_tensor(pos_weight), reduction=reduction)(b, y)
        options = {"gamma": 0.0, "alpha": None, "reduction": reduction, "pos_weight": pos_weight}
        for here in (sigmoid_focal_loss(a, y, **options), SigmoidFocalLoss(**options)(a, y)):
            torch.testing.assert_close(here, there)
            torch.testing.assert_close(
                torch.autograd.grad(here.sum(), a)[0],
                torch.autograd.grad(there.sum(), b, retain_graph=True)[0],
            )


def test_pos_weight_of_pixels(forms):
    z = torch.randn(2, 3, 4, 5, generator=seeded(6))
    y = (torch.rand(2, 3, 4, 5, generator=seeded(7)) < 0.3).float()
    there = F.binary_cross_entropy_with_logits(z, y, pos_weight=PER_CLASS.view(3, 1, 1))
    torch.testing.assert_close(sigmoid_focal_loss(z, y, 0.0, None, pos_weight=PER_CLASS), there)
    last = sigmoid_focal_loss(z.movedim(1, -1), y.movedim(1, -1), 0.0, None, pos_weight=PER_CLASS, dim=-1)
    torch.testing.assert_close(last, there)


@pytest.mark.parametrize("alpha", [None, 0.25, [0.1, 0.5, 0.9]], ids=str)
@pytest.mark.parametrize("pos_weight", [4.0, [0.5, 3.0, 10.0]], ids=str)
def test_pos_weight_is_undone_by_the_posterior(alpha, pos_weight):
    criterion = SigmoidFocalLoss(2.0, alpha, "sum", pos_weight=pos_weight, label_smoothing=0.05)
    eta = torch.tensor([0.1, 0.4, 0.9], dtype=torch.float64)
    z = minimise(lambda z: criterion(z[None], eta[None]), 3)
    torch.testing.assert_close(criterion.posterior(z[None])[0], eta, atol=1e-6, rtol=0)
    torch.testing.assert_close(criterion.objective.posterior(z), eta, atol=1e-6, rtol=0)
    torch.testing.assert_close(criterion.log_posterior(z[None])[0], eta.log(), atol=1e-5, rtol=0)


def test_pos_weight_that_is_none():
    z, y = Z, Y
    for bad, text in (
        (0.0, "pos_weight must be finite and > 0, got 0.0"),
        (torch.tensor([1.0, -2.0, 1.0]), "pos_weight must be finite and > 0, got -2.0"),
        ([1.0, 2.0], "pos_weight must have one number for each of the 3 classes, got 2"),
        (torch.ones(3, 1, 1), "pos_weight must be a number or one for each class, got shape (3, 1, 1)"),
        (torch.ones(3, device="meta"), "pos_weight must be on the device cpu of logits, got meta"),
        (torch.ones(3, requires_grad=True), "pos_weight must not require a gradient, got a tensor that does"),
    ):
        with raises(ValueError, text):
            sigmoid_focal_loss(z, y, pos_weight=bad)
    with raises(ValueError, "pos_weight must be finite and > 0, got -1.0"):
        SigmoidFocalLoss(pos_weight=-1.0)
    with raises(ValueError, "pos_weight must have one number for each of the 3 classes of alpha, got 2"):
        SigmoidFocalLoss(alpha=[0.1, 0.2, 0.3], pos_weight=[1.0, 2.0]).objective  # noqa: B018
    assert repr(SigmoidFocalLoss(ignore_index=-1, pos_weight=PER_CLASS, dim=1)) == (
        "SigmoidFocalLoss(gamma=2.0, alpha=0.25, reduction='mean', ignore_index=-1, "
        "pos_weight=(0.5, 3.0, 10.0), dim=1)"
    )
    assert SigmoidFocalLoss(pos_weight=3.0).objective == SigmoidFocal(2.0, 0.5)


# Every objective as a loss: published formulas in float64, from softmax and sigmoid themselves


def asl(p, y, gamma_pos=0.0, gamma_neg=4.0, clip=0.05):
    m = (p - clip).clamp(min=0)
    return -y * (1 - p) ** gamma_pos * p.log() - (1 - y) * m**gamma_neg * (1 - m).log()


def asl_single(q, hit, gamma_pos, gamma_neg, eps):
    """As timm computes it: the weights, then smoothed labels."""
    k = q.shape[-1]
    weight = torch.where(hit == 1, (1 - q) ** gamma_pos, q**gamma_neg)
    return -((hit * (1 - eps) + eps / k) * q.log() * weight).sum(-1)


ROWS = {  # module, the formula of softmax scores and one-hot labels
    "Poly-1": (
        Poly1FocalLoss(2.0, 1.0),
        lambda q, v: (v * (-((1 - q) ** 2) * q.log() + (1 - q) ** 3)).sum(-1),
        Poly1Focal(2.0, 1.0),
    ),
    "Poly-1 cross entropy": (
        Poly1FocalLoss(gamma=0.0, epsilon=2.0),
        lambda q, v: (v * (-q.log() + 2 * (1 - q))).sum(-1),
        Poly1Focal(0.0, 2.0),
    ),
    "GCE": (GCELoss(k=0.7), lambda q, v: (v * (1 - q**0.7) / 0.7).sum(-1), GeneralizedCrossEntropy(0.7)),
    "ASL on a softmax": (
        AsymmetricSingleLabelLoss(1.0, 4.0, 0.1),
        lambda q, v: asl_single(q, v, 1.0, 4.0, 0.1),
        AsymmetricSingleLabel(1.0, 4.0, 0.1),
    ),
    "focal": (
        ObjectiveLoss(Focal(2.0)),
        lambda q, v: (v * -((1 - q) ** 2) * q.log()).sum(-1),
        Focal(2.0),
    ),
}
SCORES = {  # module, the formula of sigmoid scores and one-hot labels
    "one against the rest": (
        OneVsRestLoss(SigmoidFocal(2.0, 0.25)),
        lambda p, v: (-v / 4 * (1 - p) ** 2 * p.log() - (1 - v) * 0.75 * p**2 * (1 - p).log()).sum(-1),
        OneVsRest(SigmoidFocal(2.0, 0.25)),
    ),
    "one against the rest, ASL": (
        OneVsRestLoss(Asymmetric(1.0, 2.0, 0.05)),
        lambda p, v: asl(p, v, 1.0, 2.0).sum(-1),
        OneVsRest(Asymmetric(1.0, 2.0, 0.05)),
    ),
    "ASL": (AsymmetricLoss(1.0, 4.0, 0.05), lambda p, y: asl(p, y, 1.0), Asymmetric(1.0, 4.0, 0.05)),
    "ASL without a margin": (
        AsymmetricLoss(gamma_neg=2.0, clip=0.0),
        lambda p, y: asl(p, y, 0.0, 2.0, 0.0),
        Asymmetric(0.0, 2.0, 0.0),
    ),
}
ALL = {**ROWS, **SCORES}
MODULES = {name: found[0] for name, found in ALL.items()}


def is_entries(criterion):
    return isinstance(criterion, AsymmetricLoss)


def problem(criterion, n=8, c=4, scale=2.0, seed=0):
    """Return logits, targets as users have them, and one-hot."""
    z = torch.randn(n, c, generator=seeded(seed), dtype=torch.float64) * scale
    if is_entries(criterion):
        y = (torch.rand(n, c, generator=seeded(seed + 1)) < 0.4).double()
        return z, y, y
    y = torch.randint(c, (n,), generator=seeded(seed + 1))
    return z, y, F.one_hot(y, c).double()


def with_reduction(criterion, reduction):
    other = copy.deepcopy(criterion)
    other.reduction = reduction
    return other


@pytest.mark.parametrize("name", ALL)
def test_published_formulas(name):
    criterion, formula, spec = ALL[name]
    assert criterion.objective == spec
    z, y, hot = problem(criterion)
    exact = z.clone().requires_grad_()
    losses = formula(exact.softmax(1) if name in ROWS else exact.sigmoid(), hot)
    (slope,) = torch.autograd.grad(losses.mean(), exact)
    for dtype, bar in ((torch.float64, 1e-10), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        x = z.to(dtype).requires_grad_()
        torch.testing.assert_close(
            with_reduction(criterion, "none")(z, y), losses.detach(), rtol=1e-10, atol=1e-12
        )
        torch.testing.assert_close(with_reduction(criterion, "sum")(z, y), losses.sum().detach())
        loss = criterion(x, y)
        assert loss.dtype == dtype
        torch.testing.assert_close(loss.double(), losses.mean().detach(), rtol=bar, atol=bar)
        (gradient,) = torch.autograd.grad(loss, x)
        torch.testing.assert_close(gradient.double(), slope, rtol=bar, atol=bar)
    with torch.autocast("cpu", torch.bfloat16):
        assert criterion(z.bfloat16(), y).dtype == torch.float32
    if not is_entries(criterion):  # a distribution is the mean over its labels
        soft = torch.rand(8, 4, generator=seeded(9), dtype=torch.float64).softmax(1)
        each = [with_reduction(criterion, "none")(z, torch.full((8,), k)) for k in range(4)]
        mixed = with_reduction(criterion, "none")(z, soft)
        torch.testing.assert_close(mixed, (soft * torch.stack(each, 1)).sum(1))


def minimise(risk, n):
    z = torch.zeros(n, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [z], max_iter=500, tolerance_grad=1e-13, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        loss = risk(z)
        loss.backward()
        return loss

    for _ in range(3):
        optimiser.step(closure)
    return z.detach()


@pytest.mark.parametrize("name", ALL)
def test_the_posterior_gives_the_truth_back(name):
    criterion = with_reduction(MODULES[name], "sum")
    eta = torch.tensor([0.6, 0.25, 0.15], dtype=torch.float64)
    if is_entries(criterion):
        z = minimise(lambda z: criterion(z, eta), 3)
    else:
        z = minimise(lambda z: sum(eta[k] * criterion(z[None], torch.tensor([k])) for k in range(3)), 3)
    torch.testing.assert_close(criterion.posterior(z[None])[0], eta, atol=1e-6, rtol=0)
    torch.testing.assert_close(criterion.log_posterior(z[:, None], dim=0)[:, 0], eta.log(), atol=1e-5, rtol=0)
    torch.testing.assert_close(Posterior(criterion.objective)(z), eta, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ALL)
def test_edges(name):
    """Nothing, everything ignored, masked classes, huge logits, and logits of every layout."""
    criterion = copy.deepcopy(MODULES[name])
    criterion.ignore_index = -1
    z, y, _ = problem(criterion)
    empty = z[:0].clone().requires_grad_()
    total = with_reduction(criterion, "sum")(empty, y[:0])
    assert total == 0
    assert torch.autograd.grad(total, empty)[0].shape == (0, 4)
    assert criterion(empty, y[:0]).isnan()
    nothing = z.clone().requires_grad_()
    loss = criterion(nothing, torch.full_like(y, -1))
    assert loss.isnan()
    assert (torch.autograd.grad(loss, nothing)[0] == 0).all()
    for dtype in (torch.float32, torch.float64):
        for changed in (z * 1e4, torch.where(torch.arange(4) == 3, -torch.inf, z), z * 0):
            x = changed.to(dtype).requires_grad_()
            losses = with_reduction(criterion, "none")(x, y)
            assert not losses.isnan().any()
            (first,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
            assert first.isfinite().all()
            assert torch.autograd.grad(first.square().sum(), x)[0].isfinite().all()
    hidden = y.clone()
    hidden[::3] = -1
    gone = hidden == -1 if is_entries(criterion) else (hidden == -1)[:, None].expand(8, 4)
    x = torch.where(gone, torch.nan, z).requires_grad_()
    loss = criterion(x, hidden)
    rows = torch.arange(8) % 3 != 0
    torch.testing.assert_close(loss, criterion(z[rows], y[rows]))
    assert (torch.autograd.grad(loss, x)[0][~rows] == 0).all()
    dense = z.reshape(2, 4, 4).movedim(1, 2)  # (N, C, d)
    target = y.reshape(2, 4, -1).movedim(1, 2) if is_entries(criterion) else y.reshape(2, 4)
    torch.testing.assert_close(criterion(dense, target), criterion(z, y))
    last = copy.deepcopy(criterion)
    last.dim = -1
    tokens = y.reshape(2, 4, -1) if is_entries(criterion) else y.reshape(2, 4)
    torch.testing.assert_close(last(z.reshape(2, 4, 4), tokens), criterion(z, y))
    torch.testing.assert_close(last.posterior(z.reshape(2, 4, 4)).reshape(8, 4), criterion.posterior(z))


def test_a_masked_target_is_infinitely_bad():
    z = torch.tensor([[0.0, -torch.inf, 1.0]], requires_grad=True)
    for criterion in (Poly1FocalLoss(), AsymmetricSingleLabelLoss(gamma_pos=1.0)):
        loss = criterion(z, torch.tensor([1]))
        assert loss == torch.inf == F.cross_entropy(z, torch.tensor([1]))
        (push,) = torch.autograd.grad(loss, z)
        assert push.isfinite().all()
        assert (push[0, [0, 2]] > 0).all()
        assert criterion(torch.full((1, 3), -torch.inf), torch.tensor([1])).isnan()
    torch.testing.assert_close(GCELoss(k=0.5)(z, torch.tensor([1])), torch.tensor(2.0))
    assert AsymmetricLoss()(torch.tensor([-torch.inf]), torch.tensor([1.0])) == torch.inf
    assert AsymmetricLoss()(torch.tensor([torch.inf, -torch.inf]), torch.tensor([1.0, 0.0])) == 0


@pytest.mark.parametrize("name", ALL)
def test_copies_and_state(name):
    criterion = MODULES[name]
    z, y, _ = problem(criterion)
    buffer = io.BytesIO()
    torch.save(criterion, buffer)
    buffer.seek(0)
    other = copy.deepcopy(criterion)
    other.load_state_dict(criterion.state_dict())
    for copied in (other, pickle.loads(pickle.dumps(criterion)), torch.load(buffer, weights_only=False)):
        assert repr(copied) == repr(criterion)
        assert copied.objective == criterion.objective
        assert torch.equal(copied(z, y), criterion(z, y))
    with pytest.raises(RuntimeError, match="cannot be scripted by TorchScript"):
        torch.jit.script(criterion)


def test_words():
    assert repr(GCELoss(0.5, ignore_index=255)) == "GCELoss(k=0.5, ignore_index=255)"
    assert repr(AsymmetricLoss(1.0, reduction="sum")) == (
        "AsymmetricLoss(gamma_pos=1.0, gamma_neg=4.0, clip=0.05, detach_weights=False, reduction='sum')"
    )
    assert repr(ObjectiveLoss(GeneralizedCrossEntropy(0.5), dim=-1)) == (
        "ObjectiveLoss(GeneralizedCrossEntropy(k=0.5), dim=-1)"
    )
    with raises(IndexError, "Target 7 is out of bounds."):
        Poly1FocalLoss()(Z, torch.tensor([0, 7]))
    with raises(
        ValueError, "target must be in 0..1, got -1; say ignore_index=-1 for entries that do not count"
    ):
        AsymmetricLoss()(Z, Y - 1)
    with raises(ValueError, "reduction must be one of mean, sum, none, got 'avg'"):
        GCELoss(reduction="avg")
    with raises(TypeError, "objective must be an objective such as Focal(2.0), got 'focal'"):
        ObjectiveLoss("focal")
    with raises(ValueError, "k must be in (0, 1): at 1 the loss has no posterior, got 1.0"):
        GCELoss(k=1.0)


def test_an_objective_of_ones_own():
    class Squared(Objective):
        def loss(self, logits, labels, *, axis=-1):
            p = logits.softmax(axis)
            return (p**2).sum(axis) - 2 * p.gather(axis, labels.unsqueeze(axis)).squeeze(axis)

        def log_posterior(self, logits, *, axis=-1):
            return logits.log_softmax(axis)

    z, y = torch.randn(6, 3, generator=seeded()), torch.tensor([0, 1, 2, -100, 1, 0])
    criterion = ObjectiveLoss(Squared())
    kept = y >= 0
    brier = (z.softmax(1)[kept] - F.one_hot(y[kept], 3)).square().sum(1).mean() - 1
    torch.testing.assert_close(criterion(z, y), brier)
    torch.testing.assert_close(criterion.posterior(z), z.softmax(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_compiled_in_one_graph_and_vmapped(name):
    criterion = MODULES[name]
    torch._dynamo.reset()
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    for n in (6, 9):
        z, y, _ = problem(criterion, n)
        for dtype in (torch.float32, torch.float64):
            a, b = (z.to(dtype).requires_grad_() for _ in range(2))
            ours, theirs = compiled(a, y), criterion(b, y)
            torch.testing.assert_close(ours, theirs)
            torch.testing.assert_close(
                torch.autograd.grad(ours, a)[0], torch.autograd.grad(theirs, b)[0], rtol=1e-4, atol=1e-6
            )
    stacked = torch.func.vmap(criterion)(torch.stack([z, 2 * z]), torch.stack([y, y]))
    torch.testing.assert_close(stacked[1], criterion(2 * z, y))
    leaf = z.clone().requires_grad_()
    torch.testing.assert_close(
        torch.func.grad(criterion)(z, y), torch.autograd.grad(criterion(leaf, y), leaf)[0]
    )


# As cross entropy has it


def test_weights_of_another_device():
    with pytest.raises(RuntimeError):
        F.cross_entropy(Z, torch.tensor([0, 1]), torch.ones(3, device="meta"))
    with raises(ValueError, "weight must be on the device cpu of logits, got meta"):
        focal_loss(Z, torch.tensor([0, 1]), weight=torch.ones(3, device="meta"))


def test_the_mean_over_no_weight_with_smoothing(forms):
    weight = torch.tensor([0.0, 1.0, 1.0])
    for z in (Z, Z.double()):
        options = {"weight": weight.to(z.dtype), "label_smoothing": 0.1}
        z = z.clone().requires_grad_()
        assert F.cross_entropy(z, torch.tensor([0, 0]), **options).isnan()
        assert focal_loss(z, torch.tensor([0, 0]), **options).isnan()
        torch.func.grad(lambda z, o=options: focal_loss(z, torch.tensor([0, 0]), **o))(z.detach())
        assert torch.func.vmap(lambda y, z=z, o=options: focal_loss(z, y, **o))(
            torch.zeros(1, 2, dtype=torch.long)
        ).isnan()
