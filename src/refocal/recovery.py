"""The posterior of any loss from its gradients alone."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import array_api_compat as aac
import numpy as np

from refocal._arrays import Array, namespace, working_dtype
from refocal._checks import check_count, check_number, check_scores
from refocal.extras import needs
from refocal.objectives import Objective, check_objective, log_posterior_of, losses_of
from refocal.objectives.base import is_ours, n_classes_of, scores_hint

LossFn = Callable[[Array, Array], Array]
Floats = np.ndarray[Any, np.dtype[np.float64]]

BLOCK = 1 << 20
"""Entries of the gradient matrices worked on at a time: 8 MB in float64, and some ten times so in all."""

FAR_LOGITS = (-1000.0, -50.0, 50.0, 1000.0)
"""Where formulas overflow that nobody wrote with care: beyond 709 in float64, beyond 36 where 1 - p is 0."""

OPEN, NOT_STATIONARY, FLAT = 1, 2, 3
REASONS = {
    OPEN: "more than one posterior fits (the gradients of the classes have a rank below K - 1)",
    NOT_STATIONARY: "no posterior makes the logits stationary (residual {residual:.2g}, rtol {limit:.2g})",
    FLAT: "the expected loss is flat or not smallest there, so it says nothing about the posterior",
}


class Recovered(NamedTuple):
    """A posterior and how well it explains the logits.

    Example:
        >>> import torch
        >>> loss = torch.nn.CrossEntropyLoss(reduction="none")
        >>> found = posterior_of(loss, torch.tensor([[2.0, 1.0, 0.0]]), return_residual=True)
        >>> bool(found.residual[0] < 1e-6)
        True
    """

    posterior: Array
    residual: Array
    """For each row, the sum of \\|eta^T G\\| over that of the sizes of its terms; 0 is exact, 1 nothing."""


def posterior_of(
    loss_fn: LossFn, logits: Array, *, rtol: float | None = None, return_residual: bool = False
) -> Array:
    r"""Return the class posterior that belongs to the logits of a model trained with any loss.

    .. math:: \eta^\top G = 0, \quad G_{yi} = \partial \ell(z, y) / \partial z_i

    The logits of a risk minimiser are stationary, so for a loss that is linear in the label's
    distribution eta is the left null vector of G. It is solved for without the column of the surest
    class, where 1 - q would cancel: softmax losses keep some 14 digits at any logits for which their
    own gradients are exact. Gradients are taken in float64 where the loss, and JAX, allow it.

    Args:
        loss_fn: ``loss_fn(logits, labels)`` with logits (n, K) and integer labels (n,), for any n,
            returns the loss of every row, shape (n,), such as a PyTorch loss with
            ``reduction="none"``. Label smoothing inside the loss is taken out again.
        logits: PyTorch or JAX floats, K >= 2 of them along the last axis; a loss on one logit is one on the
            difference of two, see Example.
        rtol: The residual above which no posterior fits; by default 1e-6, in float32 1.2e-3. Negative
            entries become 0, which leaves a residual, for instance where scores are surer than label
            smoothing allows; ``math.inf`` takes the clipped posterior then.
        return_residual: Whether to return `Recovered`, the posterior and the residual of each row.

    Returns:
        Probabilities of the same shape, dtype and library, without gradient; a row whose gradients
        have a NaN is NaN.

    Raises:
        ValueError: Where the posterior is not identified: G has a rank below K - 1, no posterior makes
            the logits stationary, or the expected loss is flat along one class's logit (mean absolute
            error and hinge losses, whose logits say nothing). A loss that loses its own gradients on sure
            rows, by a clamp or as the Brier score does, ends here too.

    Example:
        >>> import torch
        >>> def focal(logits, labels):
        ...     nll = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        ...     return (1 - torch.exp(-nll)) ** 2 * nll
        >>> posterior_of(focal, torch.tensor([[2.0, 1.0, 0.0]])).numpy().round(3)
        array([[0.884, 0.088, 0.029]], dtype=float32)

        A loss on one logit of each row:

        >>> def one_logit(z, labels):
        ...     return torch.nn.functional.binary_cross_entropy_with_logits(z, labels.to(z), reduction="none")
        >>> z = torch.tensor([0.0, 1.0])
        >>> pairs = torch.stack([torch.zeros_like(z), z], dim=-1)
        >>> posterior_of(lambda z, y: one_logit(z[:, 1] - z[:, 0], y), pairs)[:, 1].numpy().round(3)
        array([0.5  , 0.731], dtype=float32)
    """
    if not (aac.is_torch_array(logits) or aac.is_jax_array(logits)):
        raise TypeError(
            "logits must be a PyTorch or JAX array, by which loss_fn can be differentiated, "
            f"got {type(logits).__name__}"
        )
    logits, _ = check_scores("logits", logits, -1)
    if rtol is not None and rtol != math.inf:
        rtol = check_number("rtol", rtol, low=0, rule=">= 0")
    xp, k = namespace(logits), logits.shape[-1]
    rows = xp.reshape(logits, (math.prod(logits.shape[:-1]), k))
    if logits.ndim == 1:
        _check_one_row(loss_fn, rows)
    dtype = _widest_dtype(loss_fn, rows) if rows.shape[0] else working_dtype(rows)
    eps = float(xp.finfo(dtype).eps)
    exact = max(1e-6, 1e4 * eps)
    limit = exact if rtol is None else rtol
    eta, residual = np.empty((rows.shape[0], k)), np.empty(rows.shape[0])
    fault = np.zeros(rows.shape[0], dtype=int)
    size = max(1, BLOCK // k**2)
    for i in range(0, rows.shape[0], size):
        here = slice(i, i + size)
        z = xp.astype(rows[here, :], dtype, copy=False)
        g, losses = _gradients(loss_fn, z)
        with np.errstate(all="ignore"):  # NaN goes through
            eta[here], residual[here], is_open, second = _null_vectors(g, eps)
            is_flat = _is_flat(loss_fn, z, g, losses, eta[here], second, eps)
        # Curvature means something at a stationary point only: clipped posteriors pass.
        fault[here] = np.where(is_flat & (residual[here] <= exact), FLAT, 0)
        fault[here][residual[here] > limit] = NOT_STATIONARY
        fault[here][is_open] = OPEN
    for code, reason in REASONS.items():
        bad = np.flatnonzero(fault == code)
        if bad.size:
            raise ValueError(
                f"logits must determine the posterior; in {bad.size} of {fault.size} rows, the first of "
                f"them row {bad[0]}, {reason.format(residual=residual[bad[0]], limit=limit)}"
            )
    like = {"dtype": logits.dtype, "device": aac.device(logits)}
    posterior = xp.reshape(xp.asarray(eta, **like), tuple(logits.shape))
    if not return_residual:
        return posterior
    return Recovered(posterior, xp.reshape(xp.asarray(residual, **like), tuple(logits.shape[:-1])))


def _check_one_row(loss_fn: LossFn, row: Array) -> None:
    """Raise with what to write for a loss on one logit, where a loss cannot take one row of classes."""
    try:
        _gradients(loss_fn, namespace(row).astype(row, _widest_dtype(loss_fn, row)))
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        xp = "torch" if aac.is_torch_array(row) else "jnp"
        raise ValueError(
            f"logits with one axis are one row of {row.shape[1]} classes, which loss_fn cannot take "
            f"({error}); for a loss on one logit z of each row write posterior_of(lambda z, y: "
            f"loss_fn(z[:, 1] - z[:, 0], y), {xp}.stack([{xp}.zeros_like(z), z], -1))[:, 1]"
        ) from error


def check_inverse(objective: Objective, *, n_classes: int | None = None, atol: float = 1e-4) -> float:
    r"""Return how well an objective of your own undoes its own loss, or raise where it does not.

    .. math:: \max |\mathrm{posterior}(z) - \mathrm{posterior\_of}(\mathrm{loss}, z)|

    over the rows of sixteen that are stationary for some posterior (with label smoothing sure rows are
    not). Then it tries rows with a logit of -1000, -50, 50 or 1000 among zeros, and of -inf, by which a
    class is masked, on a sigmoid of inf too: there ``log_posterior`` must be a number or -inf, and ``loss``
    finite (for -inf and inf, not NaN). Call it once in a test; it needs PyTorch (``pip install torch``), by
    which ``loss`` is differentiated.

    Args:
        objective: An objective on a softmax or a sigmoid.
        n_classes: The number of classes to try; None for that of the objective's own parameters, if they
            differ between classes, and else for 3.
        atol: The largest difference between the two posteriors that passes.

    Returns:
        The largest difference: about 1e-10 for an exact inverse.

    Raises:
        ImportError: Without PyTorch.
        ValueError: If the difference is larger, if the loss has no posterior or not the shape of its
            ``scores``, or if there is no number at one of the other logits.

    Example:
        >>> from refocal import Focal
        >>> check_inverse(Focal(gamma=2.0)) < 1e-9
        True
    """
    with needs("check_inverse", "torch"):
        import torch

    if check_objective(objective).scores == "one-vs-rest":
        raise ValueError(
            "objective must be a loss on a sigmoid or a softmax, since of a row of sigmoids the gradients "
            f"determine no distribution, got {objective!r}"
        )
    k = check_count("n_classes", n_classes_of(objective) or 3 if n_classes is None else n_classes, 2)
    atol = check_number("atol", atol, low=0, rule=">= 0")
    z = torch.as_tensor(np.random.default_rng(0).normal(size=(16, k)) * np.linspace(0, 2, 16)[:, None])
    _check_shape(objective, z, torch.arange(16) % k)
    posterior = torch.exp(log_posterior_of(objective, z))
    if objective.scores == "softmax":
        truth = _if_stationary(objective.loss, z)
    else:  # each class is the problem of two classes whose logits differ by its own

        def loss_of(c: int) -> LossFn:
            own = torch.arange(k) == c

            def loss_fn(pair: Array, labels: Array) -> Array:
                logits = torch.where(own, (pair[:, 1] - pair[:, 0])[:, None], 0.0)
                return objective.loss(logits, torch.where(own, labels[:, None], 0))[:, c]

            return loss_fn

        pairs = torch.stack([torch.zeros_like(z), z], dim=-1)
        truth = torch.stack([_if_stationary(loss_of(c), pairs[:, c])[:, 1] for c in range(k)], dim=1)
    known = truth == truth
    if not known.any():
        raise ValueError(f"loss of {type(objective).__name__} must have a posterior at some of the logits")
    off = torch.where(known, (posterior - truth).abs(), 0).nan_to_num(nan=torch.inf)
    worst = float(off.max())
    if worst > atol:
        row, column = divmod(int(off.argmax()), k)
        raise ValueError(
            f"log_posterior of {type(objective).__name__} must undo its loss: at logits "
            f"{z[row].numpy().round(3).tolist()} class {column} has the probability "
            f"{float(truth[row, column]):.4g} by the gradients of the loss, "
            f"got {float(posterior[row, column]):.4g}"
        )
    _check_far(objective, k)
    return worst


def _check_shape(objective: Objective, z: Array, labels: Array) -> None:
    """Raise where a loss of somebody else takes no rows, with what to do if it is one on a sigmoid."""
    if objective.scores == "sigmoid" or is_ours(type(objective)):
        return
    rule = f"loss of {type(objective).__name__} must return one loss for each row of logits (n, K)"
    try:
        found = f"shape {tuple(objective.loss(z, labels).shape)}"
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{rule} with labels (n,), got {error}; {scores_hint(objective)}") from error
    if found != f"shape {tuple(labels.shape)}":
        raise ValueError(f"{rule}, shape {tuple(labels.shape)}, got {found}; {scores_hint(objective)}")


def _check_far(objective: Objective, k: int) -> None:
    """Raise where loss or posterior are no numbers at large logits, or at that of a masked class."""
    torch = sys.modules["torch"]
    on_sigmoid, own = objective.scores == "sigmoid", torch.arange(k)
    for far in (*FAR_LOGITS, -math.inf, *((math.inf,) if on_sigmoid else ())):
        z = torch.full((1, k), far, dtype=torch.float64)
        labels = [torch.zeros(1, k, dtype=torch.int64), torch.ones(1, k, dtype=torch.int64)]
        if not on_sigmoid:  # each class in turn, as the label and beside it
            z = torch.where(own == own[:, None], z, 0.0)
            labels = [own, (own + 1) % k]
        y = log_posterior_of(objective, z)
        wrong = {"log_posterior": torch.isnan(y) | (y == math.inf)}
        losses = [losses_of(objective, z, label) for label in labels]
        most = math.inf if math.isinf(far) else torch.finfo(torch.float64).max  # what cannot be costs all
        wrong["loss"] = torch.stack([~(loss <= most) for loss in losses]).any(dim=0).reshape(len(z), -1)
        for method, where in wrong.items():
            if where.any():
                row = z[int(where.any(dim=1).int().argmax())].tolist()
                raise ValueError(
                    f"{method} of {type(objective).__name__} must be a number at a logit of {far:g}, too, "
                    f"got NaN or inf at logits {row if k < 10 else f'{row[:10]}...'}"
                )


def _if_stationary(loss_fn: LossFn, z: Array) -> Array:
    """Return the posterior of each row, NaN where none makes the logits stationary."""
    found = posterior_of(loss_fn, z, rtol=math.inf, return_residual=True)
    return namespace(z).where((found.residual <= 1e-6)[:, None], found.posterior, math.nan)


def _widest_dtype(loss_fn: LossFn, rows: Array) -> Any:
    """Return float64 if the library and the loss take it, otherwise what they do take."""
    xp = namespace(rows)
    wide = aac.is_torch_array(rows) or sys.modules["jax"].config.jax_enable_x64
    for dtype in [xp.float64] * wide + [working_dtype(rows)]:
        try:
            _gradients(loss_fn, xp.astype(rows[:1, :], dtype))
            return dtype
        except (RuntimeError, TypeError):  # a device without float64, weights that are float32
            continue
    return rows.dtype


def _gradients(loss_fn: LossFn, z: Array) -> tuple[Floats, Floats]:
    """Return G[row, y, i], the derivative by logit i of the loss of label y, and that loss."""
    xp = namespace(z)
    n, k = z.shape

    def losses(x: Array) -> tuple[Array, Array]:
        loss = loss_fn(x, xp.asarray(np.tile(np.arange(k), n), device=aac.device(z)))
        shape = tuple(getattr(loss, "shape", ()))
        if shape != (n * k,):
            hint = "" if shape else ' (in PyTorch: reduction="none")'
            raise ValueError(
                f"loss_fn must return one loss for each row, shape ({n * k},), got shape {shape}{hint}"
            )
        return loss.sum(), loss

    if aac.is_jax_array(z):
        g, loss = sys.modules["jax"].grad(losses, has_aux=True)(xp.repeat(z, k, axis=0))
    else:
        torch = sys.modules["torch"]
        with torch.inference_mode(False):  # which turns no_grad off as well
            x = z.detach().repeat_interleave(k, dim=0).requires_grad_()
            total, loss = losses(x)
            if not total.requires_grad:
                raise ValueError("loss_fn must be differentiable, but its result has no gradient")
            g, loss = torch.autograd.grad(total, x)[0].cpu(), loss.detach().cpu()
    return np.asarray(g, dtype=np.float64).reshape(n, k, k), np.asarray(loss, dtype=np.float64).reshape(n, k)


def _null_vectors(g: Floats, eps: float) -> tuple[Floats, Floats, Any, Any]:
    """Return the left null vectors with sum 1, residuals, where there are more, and a class below the top."""
    n, k, _ = g.shape
    size = np.abs(g).max(axis=2)
    b = g / np.where(size == 0, 1, size)[:, :, None]  # of G's rows only the direction matters
    pull = np.abs(b).sum(axis=1) - np.abs(b.diagonal(axis1=1, axis2=2))
    # Of classes that pull alike (always so with two) the surest has the smallest gradients.
    top = np.where(pull < 0.9 * pull.max(axis=1, keepdims=True), np.inf, size).argmin(axis=1)[:, None]
    others = np.arange(k - 1) + (np.arange(k - 1) >= top)
    row = np.arange(n)[:, None]
    # x_y = eta_y size_y, against 1 at the top: K - 1 unknowns and the equations of the other columns.
    a = b[row[:, :, None], others[:, None, :], others[:, :, None]]
    scale = np.abs(a).max(axis=2)
    scale[scale == 0] = 1
    a /= scale[:, :, None]
    is_open = np.linalg.slogdet(a)[0] == 0
    a[is_open] = np.eye(k - 1)
    inverse = np.linalg.inv(a)
    is_open |= np.linalg.norm(a, 1, axis=(1, 2)) * np.linalg.norm(inverse, 1, axis=(1, 2)) > 1e-4 * k / eps
    x = np.ones((n, k))
    x[row, others] = np.maximum((inverse @ (-b[row, top, others] / scale)[:, :, None])[:, :, 0], 0)
    # Where shifts of the logits change nothing, the rows sum to 0 and so give the entry that cancels.
    own, rest = b[row, top, top], b[row, top, others].sum(axis=1, keepdims=True)
    invariant = (np.abs(b.sum(axis=2)[row, others]) <= 10 * k * eps).all(axis=1, keepdims=True)
    b[row, top, top] = np.where(invariant, -rest, own)
    terms = np.einsum("ny,nyi->n", x, np.abs(b))
    residual = np.abs(np.einsum("ny,nyi->ni", x, b)).sum(axis=1) / np.where(terms == 0, 1, terms)
    eta = x * (size[row, top] / size)
    eta[row, top] = 1
    second = others[row, x[row, others].argmax(axis=1)[:, None]]
    return eta / eta.sum(axis=1, keepdims=True), residual, is_open, second


def _is_flat(
    loss_fn: LossFn, z: Array, g: Floats, losses: Floats, eta: Floats, i: Any, eps: float
) -> np.ndarray[Any, Any]:
    """Return where the gradient of the expected loss by logit i does not grow with that logit."""
    xp, step = namespace(z), eps ** (1 / 3)
    moved = z + xp.asarray(step * (np.arange(z.shape[1]) == i), dtype=z.dtype, device=aac.device(z))
    column, new_column = (
        np.take_along_axis(x, i[:, :, None], axis=2)[:, :, 0] for x in (g, _gradients(loss_fn, moved)[0])
    )
    terms = (eta * np.abs(column)).sum(axis=1)
    flat: np.ndarray[Any, Any] = (eta * (new_column - column)).sum(axis=1) <= step**2 * terms
    sure = terms < float(xp.finfo(z.dtype).smallest_normal) / eps
    if sure.any() and bool(xp.any(z != 0)):
        # The gradient of a sure label underflows. Of a flat loss, too, but that shows at equal logits; and
        # where a loss is cut off it is that of a label with a larger loss than the others.
        zero = xp.zeros_like(z[:1, :])
        g_zero, losses_zero = _gradients(loss_fn, zero)
        eta_zero, _, _, second = _null_vectors(g_zero, eps)
        flat[sure] = _is_flat(loss_fn, zero, g_zero, losses_zero, eta_zero, second, eps)[0]
        flat |= sure & (eta.argmax(axis=1) != losses.argmin(axis=1))
    return flat
