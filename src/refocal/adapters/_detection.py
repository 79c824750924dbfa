"""The losses of detectors: one sigmoid for each class of each anchor, point or query."""

from __future__ import annotations

import numbers
from typing import Any, NoReturn

from refocal._checks import check_entries, check_number
from refocal.adapters._common import (
    BOX_EDGES,
    HEAT_MAP,
    QUALITY,
    Numbers,
    fraction,
    refuse,
    signed_alpha,
    weighted_sigmoid,
)
from refocal.objectives import SigmoidFocal


def from_torchvision(alpha: float = 0.25, gamma: float = 2, reduction: str = "none") -> SigmoidFocal:
    """Return the objective of ``torchvision.ops.sigmoid_focal_loss``.

    It is alpha_t (1 - p_t)^gamma (-log p_t) for every entry; a negative alpha means no alpha.

    Args:
        alpha: The weight of y = 1 against 1 - alpha for y = 0, or negative for no weights.
        gamma: A number >= 0.
        reduction: Without effect on the posterior.

    Example:
        >>> from_torchvision(alpha=0.25, gamma=2, reduction="mean")
        SigmoidFocal(gamma=2.0, alpha=0.25, label_smoothing=0.0)
    """
    return SigmoidFocal(gamma=gamma, alpha=signed_alpha("alpha", alpha))


def from_fvcore(alpha: float = -1, gamma: float = 2, reduction: str = "none") -> SigmoidFocal:
    """Return the objective of ``fvcore.nn.sigmoid_focal_loss``: torchvision's, by default without alpha.

    Args:
        alpha: The weight of y = 1 against 1 - alpha for y = 0, or negative for no weights.
        gamma: A number >= 0.
        reduction: Without effect on the posterior.

    Example:
        >>> from_fvcore(gamma=2)
        SigmoidFocal(gamma=2.0, alpha=None, label_smoothing=0.0)
    """
    return SigmoidFocal(gamma=gamma, alpha=signed_alpha("alpha", alpha))


def from_detectron2(focal_loss_alpha: float = 0.25, focal_loss_gamma: float = 2.0) -> SigmoidFocal:
    """Return the objective of detectron2's RetinaNet and FCOS heads, which call fvcore's loss.

    The final score of FCOS also has its centerness in it: give the classification logits.

    Args:
        focal_loss_alpha: The FOCAL_LOSS_ALPHA of the configuration; negative for no weights.
        focal_loss_gamma: The FOCAL_LOSS_GAMMA of the configuration.

    Example:
        >>> from_detectron2()
        SigmoidFocal(gamma=2.0, alpha=0.25, label_smoothing=0.0)
    """
    return SigmoidFocal(gamma=focal_loss_gamma, alpha=signed_alpha("focal_loss_alpha", focal_loss_alpha))


MMDETECTION = {
    "FocalLoss": "",
    "FocalCustomLoss": "",
    "QualityFocalLoss": QUALITY,
    "DistributionFocalLoss": BOX_EDGES,
    "GaussianFocalLoss": HEAT_MAP,
    "VarifocalLoss": QUALITY,
}


def from_mmdetection(
    use_sigmoid: bool = True,
    gamma: float = 2.0,
    alpha: float = 0.25,
    reduction: str = "mean",
    loss_weight: float = 1.0,
    activated: bool = False,
    *,
    type: str = "FocalLoss",
    **others: Any,
) -> SigmoidFocal:
    """Return the objective of mmdetection's ``FocalLoss``: torchvision's formula, always with alpha.

    A configuration can be given as it is: ``from_mmdetection(**model["bbox_head"]["loss_cls"])``.

    Args:
        use_sigmoid: Only True: mmdetection has no softmax focal loss.
        gamma: A number >= 0.
        alpha: In (0, 1).
        reduction: Without effect on the posterior.
        loss_weight: Without effect on the posterior.
        activated: Whether the loss took sigmoid scores; then use ``posterior_from_probs``.
        type: The class name in the configuration. The losses for qualities of boxes and for heat maps
            (QualityFocalLoss, VarifocalLoss, GaussianFocalLoss) are refused, whatever their arguments.
        others: The arguments of those losses; for FocalCustomLoss, ``num_classes``.

    Example:
        >>> loss_cls = dict(type="FocalLoss", use_sigmoid=True, gamma=2.0, alpha=0.25, loss_weight=1.0)
        >>> from_mmdetection(**loss_cls)
        SigmoidFocal(gamma=2.0, alpha=0.25, label_smoothing=0.0)
    """
    kind = type.rpartition(".")[2]  # a registry may be named before it: "mmdet.FocalLoss"
    reason = MMDETECTION.get(kind, "unknown here")
    if reason:
        refuse("type", "'FocalLoss'", type, reason)
    allowed = {"num_classes"} if kind == "FocalCustomLoss" else set()
    if unknown := sorted(set(others) - allowed):
        raise TypeError(f"from_mmdetection() got arguments that {kind} does not have: {', '.join(unknown)}")
    if not use_sigmoid:
        refuse("use_sigmoid", "True", use_sigmoid, "mmdetection has no softmax focal loss")
    return SigmoidFocal(gamma=gamma, alpha=fraction("alpha", alpha))


def from_transformers(alpha: float = 0.25, gamma: float = 2, *, num_boxes: Any = None) -> SigmoidFocal:
    """Return the objective of ``sigmoid_focal_loss`` in transformers: Deformable DETR, Grounding DINO, ...

    It is torchvision's formula; the division by the number of boxes changes no minimiser. RT-DETR and
    D-FINE train with a varifocal loss instead, which has no posterior (`from_ultralytics_varifocal`).

    Args:
        alpha: The ``focal_alpha`` of the configuration; negative for no weights.
        gamma: A number >= 0.
        num_boxes: Without effect on the posterior; as the scores and targets, it belongs to a batch.

    Example:
        >>> from_transformers(alpha=0.25, gamma=2, num_boxes=12)
        SigmoidFocal(gamma=2.0, alpha=0.25, label_smoothing=0.0)
    """
    return SigmoidFocal(gamma=gamma, alpha=signed_alpha("alpha", alpha))


def from_ultralytics(gamma: float = 1.5, alpha: Numbers = 0.25) -> SigmoidFocal:
    """Return the objective of ultralytics' ``FocalLoss``: torchvision's formula for targets 0 and 1.

    (YOLOv8 and later train with cross entropy unless this loss is put in by hand.)

    Args:
        gamma: A number >= 0.
        alpha: In (0, 1), a number or one for each class; a number <= 0 for no weights.

    Example:
        >>> from_ultralytics()
        SigmoidFocal(gamma=1.5, alpha=0.25, label_smoothing=0.0)
    """
    rule = "in (0, 1), or not above 0 for no weights"
    if isinstance(alpha, numbers.Real) and check_number("alpha", alpha, rule=rule) <= 0:
        return SigmoidFocal(gamma=gamma, alpha=None)
    return SigmoidFocal(gamma=gamma, alpha=check_entries("alpha", alpha, rule, lambda v: 0 < v < 1))


def from_ultralytics_varifocal(gamma: float = 2.0, alpha: float = 0.75) -> NoReturn:
    """Refuse ultralytics' ``VarifocalLoss``, and that of RT-DETR.

    It is q (-q log p - (1 - q) log(1 - p)) for a box of quality q > 0 and alpha p^gamma (-log(1 - p)) for
    q = 0. The best score depends on E[q], E[q^2] and P(q = 0), and belongs to no single probability.
    With qualities 0 and 1 alone it is linear in the label, and `refocal.posterior_of` takes it.

    Args:
        gamma: Whatever it is.
        alpha: Whatever it is.

    Raises:
        ValueError: Always.

    Example:
        >>> from_ultralytics_varifocal(gamma=2.0, alpha=0.75)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: loss must be ultralytics' FocalLoss, got 'VarifocalLoss': its targets are ...
    """
    refuse("loss", "ultralytics' FocalLoss", "VarifocalLoss", QUALITY)


def from_yolov5(loss_fcn: Any = None, gamma: float = 1.5, alpha: float = 0.25) -> SigmoidFocal:
    """Return the objective of YOLOv5's ``FocalLoss`` (``fl_gamma`` > 0) for its class scores.

    It is torchvision's formula, with the ``pos_weight`` of the wrapped loss. It holds for the class scores
    alone: the objectness has a box's overlap as its target, and no posterior. Nor does it hold for models
    trained with ``label_smoothing``, which YOLOv5 puts into the focal factor too.

    Args:
        loss_fcn: The wrapped ``torch.nn.BCEWithLogitsLoss``, or None for one without weights.
        gamma: A number >= 0.
        alpha: In (0, 1).

    Example:
        >>> import torch
        >>> from_yolov5(torch.nn.BCEWithLogitsLoss(), 1.5, 0.25)
        SigmoidFocal(gamma=1.5, alpha=0.25, label_smoothing=0.0)
    """
    return weighted_sigmoid(gamma, fraction("alpha", alpha), "pos_weight", _pos_weight(loss_fcn))


def from_yolov5_quality(loss_fcn: Any = None, gamma: float = 1.5, alpha: float = 0.25) -> NoReturn:
    """Refuse YOLOv5's ``QFocalLoss``.

    It is ``(alpha q + (1 - alpha)(1 - q)) |q - p|^gamma (-q log p - (1 - q) log(1 - p))`` for a quality q,
    which is not linear in q: boxes whose qualities have one mean have different best scores. With
    qualities 0 and 1 alone it is YOLOv5's ``FocalLoss``: `from_yolov5`.

    Args:
        loss_fcn: Whatever it is.
        gamma: Whatever it is.
        alpha: Whatever it is.

    Raises:
        ValueError: Always.

    Example:
        >>> from_yolov5_quality()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: loss must be YOLOv5's FocalLoss, got 'QFocalLoss': its targets are qualities of ...
    """
    refuse("loss", "YOLOv5's FocalLoss", "QFocalLoss", QUALITY)


def _pos_weight(loss_fcn: Any) -> Any:
    if loss_fcn is None:
        return None
    if type(loss_fcn).__name__ != "BCEWithLogitsLoss":
        raise TypeError(f"loss_fcn must be a BCEWithLogitsLoss or None, got {loss_fcn!r}")
    return loss_fcn.pos_weight
