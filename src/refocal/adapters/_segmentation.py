"""The losses of segmentation libraries, on a softmax or on one sigmoid for each class."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

from refocal.adapters._common import (
    REDUCED,
    Numbers,
    background_focal,
    fraction,
    positive,
    refuse,
    weighted_sigmoid,
)
from refocal.adapters._common import (
    class_weights as checked_weights,
)
from refocal.objectives import Focal, OneVsRest, SigmoidFocal


def from_smp(
    mode: str,
    alpha: float | None = None,
    gamma: float = 2.0,
    ignore_index: int | None = None,
    from_logits: bool = True,
    eps: float = 1e-7,
    reduction: str | None = "mean",
    normalized: bool = False,
    reduced_threshold: float | None = None,
    class_weights: Iterable[float] | None = None,
) -> SigmoidFocal | OneVsRest:
    """Return the objective of segmentation_models_pytorch's ``FocalLoss``.

    It is torchvision's formula for every entry, also in the mode "multiclass", which is one sigmoid for
    each class against the rest and no softmax.

    Args:
        mode: "binary", "multilabel" or "multiclass".
        alpha: In (0, 1), or None.
        gamma: A number >= 0.
        ignore_index: Without effect on the posterior of the other pixels.
        from_logits: For a model that ends in a sigmoid (False) use ``posterior_from_probs``. In the mode
            "multiclass" only True: the loss then takes sigmoids of the logarithms of a softmax.
        eps: Without effect on the posterior.
        reduction: Without effect on the posterior.
        normalized: Only False: otherwise the loss is divided by the batch's sum of focal factors.
        reduced_threshold: Only None: otherwise the loss changes its form at this score.
        class_weights: Without effect on the posterior: both terms of a class have the same weight.

    Example:
        >>> from_smp("multiclass", gamma=2.0, ignore_index=255)
        OneVsRest(binary=SigmoidFocal(gamma=2.0, alpha=None, label_smoothing=0.0))
    """
    if mode not in ("binary", "multilabel", "multiclass"):
        raise ValueError(f"mode must be 'binary', 'multilabel' or 'multiclass', got {mode!r}")
    if normalized:
        refuse(
            "normalized",
            "False",
            normalized,
            "a loss that is divided by a sum over the batch depends on the other rows, and a score alone "
            "determines no probability",
        )
    if reduced_threshold is not None:
        refuse("reduced_threshold", "None", reduced_threshold, REDUCED)
    if not from_logits and mode == "multiclass":
        refuse(
            "from_logits",
            "True in the mode 'multiclass'",
            from_logits,
            "the loss then takes sigmoids of the logarithms of a softmax; use posterior_of with that loss",
        )
    if class_weights is not None and mode == "binary":
        raise ValueError(f"class_weights must be None in the mode 'binary', got {class_weights!r}")
    checked_weights("class_weights", class_weights, None)
    binary = SigmoidFocal(gamma=gamma, alpha=None if alpha is None else fraction("alpha", alpha))
    return OneVsRest(binary) if mode == "multiclass" else binary


def from_kornia(
    alpha: float | None,
    gamma: float = 2.0,
    reduction: str = "none",
    weight: Iterable[float] | None = None,
    ignore_index: int | None = -100,
    *,
    n_classes: int | None = None,
) -> Focal:
    """Return the objective of kornia's ``FocalLoss`` and ``focal_loss``.

    It is w_y (1 - q_y)^gamma (-log q_y) on a softmax, with w = 1 - alpha for class 0 and alpha for all
    others, times the class weights. (Old versions multiplied all classes by alpha: give None for them.)

    Args:
        alpha: In (0, 1), or None.
        gamma: A number >= 0.
        reduction: Without effect on the posterior.
        weight: A number > 0 for each class, or None.
        ignore_index: Without effect on the posterior of the other pixels.
        n_classes: The number of classes; needed where there is an alpha and no weight.

    Example:
        >>> from_kornia(alpha=0.25, gamma=2.0, reduction="mean", n_classes=3)
        Focal(gamma=2.0, weight=(0.75, 0.25, 0.25), label_smoothing=0.0)
    """
    return background_focal(gamma, alpha, weight, n_classes)


def from_kornia_binary(
    alpha: float | None = 0.25,
    gamma: float = 2.0,
    reduction: str = "none",
    pos_weight: Numbers | None = None,
    weight: Iterable[float] | None = None,
    ignore_index: int | None = -100,
) -> SigmoidFocal:
    """Return the objective of kornia's ``BinaryFocalLossWithLogits``: torchvision's formula.

    A weight w of the positive term makes alpha w against 1 - alpha, which is another alpha.

    Args:
        alpha: In (0, 1), or None.
        gamma: A number >= 0.
        reduction: Without effect on the posterior.
        pos_weight: A number > 0, or one for each class, or None.
        weight: Without effect on the posterior: both terms of a class have the same weight.
        ignore_index: Without effect on the posterior of the other pixels.

    Example:
        >>> from_kornia_binary(alpha=0.25, gamma=2.0, pos_weight=3.0)
        SigmoidFocal(gamma=2.0, alpha=0.5, label_smoothing=0.0)
    """
    checked_weights("weight", weight, None)
    a = None if alpha is None else fraction("alpha", alpha)
    return weighted_sigmoid(gamma, a, "pos_weight", pos_weight)


def from_monai(
    include_background: bool = True,
    to_onehot_y: bool = False,
    gamma: float = 2.0,
    alpha: Numbers | None = None,
    weight: Numbers | None = None,
    reduction: str = "mean",
    use_softmax: bool = False,
    ignore_index: int | None = None,
    *,
    n_classes: int | None = None,
) -> Focal | SigmoidFocal | OneVsRest:
    """Return the objective of MONAI's ``FocalLoss``.

    With a sigmoid it is torchvision's formula for every entry, and weights of the classes change nothing.
    With ``to_onehot_y`` the classes exclude each other: one sigmoid for each class, read as a distribution.
    An alpha for each class weighs the positives alone, against 1 for the negatives.

    With a softmax it is w_y (1 - q_y)^gamma (-log q_y), with w = 1 - alpha for class 0 and alpha for all
    others, or with w_y = alpha_y for an alpha for each class, times the class weights.

    Without the background, give the objective the logits without channel 0, and alpha and weight of the
    other classes. A softmax then says which class it is, given that it is not the background, and an
    alpha that is one number is ignored, as MONAI does.

    Args:
        include_background: Whether channel 0 was part of the loss.
        to_onehot_y: Whether the labels were class indices.
        gamma: A number >= 0.
        alpha: In (0, 1), or a number > 0 for each class, or None.
        weight: A number > 0, or one for each class, or None.
        reduction: Without effect on the posterior.
        use_softmax: A softmax, or a sigmoid.
        ignore_index: Without effect on the posterior of the other pixels.
        n_classes: The number of classes in the loss; needed for a softmax with one number as alpha.

    Example:
        >>> from_monai(use_softmax=True, alpha=0.75, n_classes=3)
        Focal(gamma=2.0, weight=(0.25, 0.75, 0.75), label_smoothing=0.0)
        >>> from_monai(alpha=[0.25, 1.0])
        SigmoidFocal(gamma=2.0, alpha=(0.2, 0.5), label_smoothing=0.0)
    """
    single = isinstance(alpha, numbers.Real) or getattr(alpha, "ndim", 1) == 0
    for_each: Any = None if alpha is None or single else positive("alpha", alpha)
    if not use_softmax:
        checked_weights("weight", weight, n_classes)
        if for_each is not None:
            binary = weighted_sigmoid(gamma, None, "alpha", for_each)
        else:
            binary = SigmoidFocal(gamma=gamma, alpha=None if alpha is None else fraction("alpha", alpha))
        return OneVsRest(binary) if to_onehot_y and include_background else binary
    if for_each is None:
        # MONAI ignores a number of Python's here, and no other.
        ignored = not include_background and isinstance(alpha, (int, float))
        return background_focal(gamma, None if ignored else alpha, weight, n_classes)
    own = Focal(weight=for_each).weight
    weights = checked_weights("weight", weight, len(own)) or (1.0,) * len(own)
    return Focal(gamma=gamma, weight=tuple(a * w for a, w in zip(own, weights, strict=True)))
