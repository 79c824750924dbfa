"""The losses of classification libraries: Keras, timm, optax, fastai, catalyst."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from refocal._checks import check_fraction
from refocal.adapters._common import REDUCED, Numbers, class_weights, fraction, positive, refuse
from refocal.objectives import Asymmetric, AsymmetricSingleLabel, Focal, OneVsRest, SigmoidFocal


def from_keras_binary(
    apply_class_balancing: bool = False,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
    reduction: str | None = "sum_over_batch_size",
    name: str | None = "binary_focal_crossentropy",
    dtype: Any = None,
) -> SigmoidFocal:
    """Return the objective of Keras's ``BinaryFocalCrossentropy``.

    It is torchvision's formula for every entry, with alpha only where the classes are balanced.

    Args:
        apply_class_balancing: Whether alpha was used.
        alpha: In (0, 1).
        gamma: A number >= 0.
        from_logits: For a model that ends in a sigmoid (False) use ``posterior_from_probs``.
        label_smoothing: Only 0: there the smoothed label is also in the focal factor, which is no longer
            the expected loss of the two labels. `refocal.posterior_of` takes such a loss.
        axis: Without effect on the posterior.
        reduction: Without effect on the posterior.
        name: Without effect on the posterior.
        dtype: Without effect on the posterior.

    Example:
        >>> from_keras_binary(apply_class_balancing=True, from_logits=True)
        SigmoidFocal(gamma=2.0, alpha=0.25, label_smoothing=0.0)
    """
    if check_fraction("label_smoothing", label_smoothing):
        reason = "Keras puts the smoothed label into the focal factor too; use posterior_of with that loss"
        refuse("label_smoothing", "0", label_smoothing, reason)
    return SigmoidFocal(gamma=gamma, alpha=fraction("alpha", alpha) if apply_class_balancing else None)


def from_keras_categorical(
    alpha: Numbers = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
    reduction: str | None = "sum_over_batch_size",
    name: str | None = "categorical_focal_crossentropy",
    dtype: Any = None,
) -> Focal:
    """Return the objective of Keras's ``CategoricalFocalCrossentropy``.

    It is sum_i alpha_i v_i (1 - q_i)^gamma (-log q_i) on a softmax, v the smoothed label; one alpha for all
    classes changes nothing.

    Args:
        alpha: A number > 0, or one for each class.
        gamma: A number >= 0.
        from_logits: For a model that ends in a softmax (False) use ``posterior_from_probs``.
        label_smoothing: In [0, 1).
        axis: Without effect here; give the class axis to ``posterior``.
        reduction: Without effect on the posterior.
        name: Without effect on the posterior.
        dtype: Without effect on the posterior.

    Example:
        >>> from_keras_categorical(alpha=[0.25, 0.5, 0.25])
        Focal(gamma=2.0, weight=(0.25, 0.5, 0.25), label_smoothing=0.0)
    """
    return Focal(gamma, class_weights("alpha", alpha, None), label_smoothing)


def from_timm_multilabel(
    gamma_neg: float = 4,
    gamma_pos: float = 1,
    clip: float | None = 0.05,
    eps: float = 1e-8,
    disable_torch_grad_focal_loss: bool = False,
) -> Asymmetric:
    """Return the objective of timm's ``AsymmetricLossMultiLabel``.

    It is (1 - p)^gamma_pos (-log p) for y = 1 and m^gamma_neg (-log(1 - m)) with m = max(p - clip, 0) for
    y = 0.

    Args:
        gamma_neg: A number >= 0.
        gamma_pos: A number >= 0.
        clip: In [0, 1), or None for 0.
        eps: Without effect on the posterior.
        disable_torch_grad_focal_loss: Whether the powers were constants for the gradient.

    Example:
        >>> from_timm_multilabel()
        Asymmetric(gamma_pos=1.0, gamma_neg=4.0, clip=0.05, detach_weights=False)
    """
    return Asymmetric(gamma_pos, gamma_neg, 0.0 if clip is None else clip, disable_torch_grad_focal_loss)


def from_timm_single_label(
    gamma_pos: float = 1, gamma_neg: float = 4, eps: float = 0.1, reduction: str = "mean"
) -> AsymmetricSingleLabel:
    """Return the objective of timm's ``AsymmetricLossSingleLabel``.

    It is (1 - eps + eps/K) (1 - q_y)^gamma_pos (-log q_y) plus eps/K times the sum over the other classes
    of q_i^gamma_neg (-log q_i), on a softmax.

    Args:
        gamma_pos: A number >= 0.
        gamma_neg: A number >= 0.
        eps: In [0, 1), the label smoothing.
        reduction: Without effect on the posterior.

    Example:
        >>> from_timm_single_label()
        AsymmetricSingleLabel(gamma_pos=1.0, gamma_neg=4.0, label_smoothing=0.1)
    """
    return AsymmetricSingleLabel(gamma_pos, gamma_neg, check_fraction("eps", eps))


def from_optax(*, alpha: Numbers | None = None, gamma: Numbers = 2.0) -> SigmoidFocal:
    """Return the objective of ``optax.losses.sigmoid_focal_loss``: torchvision's formula.

    Args:
        alpha: In (0, 1), a number or one for each class, or None.
        gamma: A number >= 0, or one for each class.

    Example:
        >>> from_optax(alpha=0.25, gamma=2.0)
        SigmoidFocal(gamma=2.0, alpha=0.25, label_smoothing=0.0)
    """
    return SigmoidFocal(gamma=gamma, alpha=alpha)


def from_fastai(
    gamma: float = 2.0,
    weight: Iterable[float] | None = None,
    reduction: str = "mean",
    *,
    axis: int = -1,
    flatten: bool = True,
    floatify: bool = False,
    is_2d: bool = True,
) -> Focal:
    """Return the objective of fastai's ``FocalLoss`` and ``FocalLossFlat``.

    It is (1 - q_y)^gamma (-log q_y) on a softmax.

    Args:
        gamma: A number >= 0.
        weight: Only None or ones: fastai takes p_t from the weighted cross entropy, so that a weight w
            makes the focal factor (1 - q^w)^gamma. `refocal.posterior_of` takes such a loss.
        reduction: Without effect on the posterior.
        axis: Without effect here; give the class axis to ``posterior``.
        flatten: Without effect on the posterior.
        floatify: Without effect on the posterior.
        is_2d: Without effect on the posterior.

    Example:
        >>> from_fastai(gamma=3.0, axis=1)
        Focal(gamma=3.0, weight=None, label_smoothing=0.0)
    """
    if weight is not None:
        weights = positive("weight", weight)
        if set((weights,) if isinstance(weights, float) else weights) != {1.0}:
            reason = "fastai puts the weight into the focal factor too; use posterior_of with that loss"
            refuse("weight", "None or ones", weights, reason)
    return Focal(gamma=gamma)


def from_catalyst(
    ignore: int | None = None,
    reduced: bool = False,
    gamma: float = 2.0,
    alpha: float | None = 0.25,
    threshold: float = 0.5,
    reduction: str = "mean",
) -> SigmoidFocal:
    """Return the objective of catalyst's ``FocalLossBinary``: torchvision's formula.

    Args:
        ignore: Without effect on the posterior of the other rows.
        reduced: Only False: otherwise the loss changes its form at the threshold.
        gamma: A number >= 0.
        alpha: In (0, 1), or None.
        threshold: Of the reduced loss.
        reduction: Without effect on the posterior.

    Example:
        >>> from_catalyst()
        SigmoidFocal(gamma=2.0, alpha=0.25, label_smoothing=0.0)
    """
    if reduced:
        refuse("reduced", "False", reduced, REDUCED)
    return SigmoidFocal(gamma=gamma, alpha=None if alpha is None else fraction("alpha", alpha))


def from_catalyst_multiclass(
    ignore: int | None = None,
    reduced: bool = False,
    gamma: float = 2.0,
    alpha: float | None = 0.25,
    threshold: float = 0.5,
    reduction: str = "mean",
) -> OneVsRest:
    """Return the objective of catalyst's ``FocalLossMultiClass``: one sigmoid for each class, no softmax.

    Args:
        ignore: Without effect on the posterior of the other rows.
        reduced: Only False: otherwise the loss changes its form at the threshold.
        gamma: A number >= 0.
        alpha: In (0, 1), or None.
        threshold: Of the reduced loss.
        reduction: Without effect on the posterior.

    Example:
        >>> from_catalyst_multiclass(gamma=1.0)
        OneVsRest(binary=SigmoidFocal(gamma=1.0, alpha=0.25, label_smoothing=0.0))
    """
    return OneVsRest(from_catalyst(ignore, reduced, gamma, alpha, threshold, reduction))
