"""Calls of a kind that was seen before: the same answers, and the same refusals, as the first one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from refocal.torch import focal_loss, repeated

pytest.importorskip("numba")


@pytest.fixture(autouse=True)
def nothing_known():
    repeated._known.clear()


def problems(n, c, how_many, labels=torch.int64):
    generator = torch.Generator().manual_seed(0)
    for _ in range(how_many):
        z = torch.randn(n, c, generator=generator) * 3
        yield z, torch.randint(c, (n,), generator=generator).to(labels)


@pytest.mark.parametrize("labels", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_later_calls_equal_cross_entropy_too(labels, reduction, smoothing):
    for z, y in problems(9, 5, 3, labels):
        x = z.requires_grad_()
        for target in (y, F.one_hot(y.long(), 5).float()):
            got = focal_loss(x, target, 0.0, reduction=reduction, label_smoothing=smoothing)
            true_target = y.long() if target is y else target
            true = F.cross_entropy(x, true_target, reduction=reduction, label_smoothing=smoothing)
            torch.testing.assert_close(got, true)
            both = (torch.autograd.grad(loss.sum(), x)[0] for loss in (got, true))
            torch.testing.assert_close(*both, rtol=1e-5, atol=1e-7)
    remembered = [known for known in repeated._known.values() if known is not None]
    assert len(remembered) == (2 if labels is torch.int64 else 1)


def test_what_is_refused_at_first_is_refused_later():
    (z, y), (later, _) = problems(9, 5, 2)
    focal_loss(z, y, 1.0)
    with pytest.raises(TypeError, match="gamma must be a number, got True"):
        focal_loss(z, y, True)
    y[3] = 5
    with pytest.raises(IndexError, match=r"Target 5 is out of bounds\."):
        focal_loss(later, y, 1.0)
    y[3] = -100
    assert focal_loss(later, y, 1.0, reduction="none")[3] == 0
    with pytest.raises(ValueError, match=r"target must have the shape \(9,\)"):
        focal_loss(z, y[:8], 1.0)


def test_changes_before_the_backward_pass_are_errors():
    for z, y in problems(9, 5, 2):
        loss = focal_loss(z.requires_grad_(), y)
        y[0] = 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_gradient_that_is_not_finite_leaves_ignored_rows_alone():
    for z, y in problems(4, 3, 2):
        y[1] = -100
        x = z.requires_grad_()
        (gradient,) = torch.autograd.grad(focal_loss(x, y), x, torch.tensor(torch.inf))
        assert bool((gradient[1] == 0).all())
        assert not bool(gradient[0].isfinite().any())
        (gradient,) = torch.autograd.grad(focal_loss(x, torch.full_like(y, -100)), x)
        assert bool((gradient == 0).all())


def test_views_at_other_addresses_and_with_other_strides():
    (z, y), *_ = problems(40, 5, 1)
    first = focal_loss(z[:20], y[:20], reduction="none")
    for x, labels in (
        (z[20:], y[20:]),
        (z[::2], y[::2]),
        (z.T.contiguous().T[:20], y[:20]),
        (z[:20], y.flip(0)[20:].flip(0)),
    ):
        alone = [focal_loss(x[i : i + 1].double(), labels[i : i + 1]) for i in range(20)]
        torch.testing.assert_close(
            focal_loss(x, labels, reduction="none").double(), torch.stack(alone), rtol=1e-5, atol=1e-9
        )
    assert torch.equal(first, focal_loss(z[:20], y[:20], reduction="none"))


def test_a_gradient_ahead_can_be_asked_for_twice_and_differentiated_again():
    (z, y), *_ = problems(6, 4, 1)
    x, exact = z.requires_grad_(), z.detach().double().requires_grad_()
    loss = focal_loss(x, y)
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()
    hessians = []
    for t in (x, exact):
        (gradient,) = torch.autograd.grad(focal_loss(t, y), t, create_graph=True)
        hessians.append(torch.autograd.grad(gradient.square().sum(), t)[0].double())
    torch.testing.assert_close(*hessians, rtol=1e-4, atol=1e-7)


def test_only_some_kinds_are_remembered():
    for n in range(1, 2 * repeated.MOST):
        focal_loss(torch.zeros(n, 2), torch.zeros(n, dtype=torch.int64))
        assert len(repeated._known) <= repeated.MOST
