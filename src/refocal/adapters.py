"""The objective of a loss that another library computed, from that library's own arguments.

Every function names a library and takes the arguments of its loss under their names and defaults, as far
as they change the minimiser; `reduction` and the like do not. It returns the objective whose ``posterior``
undoes that loss, or raises a ValueError with the reason where a score does not determine the probability.
The tiny constants with which some libraries keep their logarithms finite are left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from refocal._checks import check_entries, check_fraction, check_number
from refocal.objectives import Asymmetric, AsymmetricSingleLabel, Focal, OneVsRest, SigmoidFocal

Numbers = float | Iterable[float]


def from_torchvision(alpha: float = 0.25, gamma: float = 2.0) -> SigmoidFocal:
    """Return the objective of ``torchvision.ops.sigmoid_focal_loss``.

    It is alpha_t (1 - p_t)^gamma (-log p_t) for every entry; a negative alpha means no alpha.

    Args:
        alpha: The weight of y = 1 against 1 - alpha for y = 0, or negative for no weights.
        gamma: A number >= 0.

    Example:
        >>> from_torchvision(alpha=0.25, gamma=2.0)
        SigmoidFocal(gamma=2.0, alpha=0.25, label_smoothing=0.0)
    """
    alpha = check_number("alpha", alpha, rule="in (0, 1), or negative for no weights")
    return SigmoidFocal(gamma=gamma, alpha=None if alpha < 0 else alpha)


def from_fvcore(alpha: float = -1.0, gamma: float = 2.0) -> SigmoidFocal:
    """Return the objective of ``fvcore.nn.sigmoid_focal_loss``: torchvision's, by default without alpha.

    Args:
        alpha: The weight of y = 1 against 1 - alpha for y = 0, or negative for no weights.
        gamma: A number >= 0.

    Example:
        >>> from_fvcore(gamma=2.0)
        SigmoidFocal(gamma=2.0, alpha=None, label_smoothing=0.0)
    """
    return from_torchvision(alpha, gamma)


def from_detectron2(focal_loss_alpha: float = 0.25, focal_loss_gamma: float = 2.0) -> SigmoidFocal:
    """Return the objective of detectron2's RetinaNet and FCOS heads, which call fvcore's loss.

    Args:
        focal_loss_alpha: The FOCAL_LOSS_ALPHA of the configuration.
        focal_loss_gamma: The FOCAL_LOSS_GAMMA of the configuration.

    Example:
        >>> from_detectron2()
        SigmoidFocal(gamma=2.0, alpha=0.25, label_smoothing=0.0)
    """
    return from_torchvision(focal_loss_alpha, focal_loss_gamma)


def from_mmdetection(
    loss: str = "FocalLoss", use_sigmoid: bool = True, gamma: float = 2.0, alpha: float = 0.25
) -> SigmoidFocal:
    """Return the objective of mmdetection's ``FocalLoss``: torchvision's formula, always with alpha.

    Args:
        loss: The class name, the ``type`` of the configuration.
        use_sigmoid: As there, only True.
        gamma: A number >= 0.
        alpha: In (0, 1).

    Example:
        >>> from_mmdetection(gamma=2.0, alpha=0.25)
        SigmoidFocal(gamma=2.0, alpha=0.25, label_smoothing=0.0)
    """
    continuous = (
        "its targets are continuous and enter the loss not linearly, so no score belongs to a probability"
    )
    reasons = {
        "QualityFocalLoss": continuous,
        "DistributionFocalLoss": "it is a loss of box edges, not of classes",
        "GaussianFocalLoss": continuous,
        "VarifocalLoss": continuous,
    }
    if loss != "FocalLoss":
        raise ValueError(f"loss must be 'FocalLoss', got {loss!r}: {reasons.get(loss, 'unknown here')}")
    if not use_sigmoid:
        raise ValueError("use_sigmoid must be True, got False: mmdetection has no softmax focal loss")
    return SigmoidFocal(gamma=gamma, alpha=alpha)


def from_smp(
    mode: str,
    alpha: float | None = None,
    gamma: float = 2.0,
    normalized: bool = False,
    reduced_threshold: float | None = None,
) -> SigmoidFocal | OneVsRest:
    """Return the objective of segmentation_models_pytorch's ``FocalLoss``.

    It is torchvision's formula for every entry, also in the mode "multiclass", which is one sigmoid a
    class against the rest and no softmax.

    Args:
        mode: "binary", "multilabel" or "multiclass".
        alpha: In (0, 1), or None.
        gamma: A number >= 0.
        normalized: Only False: otherwise the loss is divided by the batch's sum of focal factors.
        reduced_threshold: Only None: otherwise the loss changes its form at this score.

    Example:
        >>> from_smp("multiclass", gamma=2.0)
        OneVsRest(binary=SigmoidFocal(gamma=2.0, alpha=None, label_smoothing=0.0))
    """
    if mode not in ("binary", "multilabel", "multiclass"):
        raise ValueError(f"mode must be 'binary', 'multilabel' or 'multiclass', got {mode!r}")
    if normalized:
        raise ValueError(
            "normalized must be False, got True: a loss that is divided by a sum over the batch depends on "
            "the other rows, and a score alone determines no probability"
        )
    if reduced_threshold is not None:
        raise ValueError(
            f"reduced_threshold must be None, got {reduced_threshold!r}: the reduced loss has a break at its "
            "threshold, and the scores around it are the minimiser of no probability"
        )
    binary = SigmoidFocal(gamma=gamma, alpha=alpha)
    return OneVsRest(binary) if mode == "multiclass" else binary


def from_kornia(
    n_classes: int, alpha: float | None = None, gamma: float = 2.0, weight: Iterable[float] | None = None
) -> Focal:
    """Return the objective of kornia's ``FocalLoss``.

    It is w_y (1 - q_y)^gamma (-log q_y) on a softmax, with w = 1 - alpha for class 0 and alpha for all
    others, times the class weights. (Old versions multiplied all classes by alpha: give None for them.)
    Its one-hot labels carry 1e-6 for every class, left out here.

    Args:
        n_classes: The number of classes.
        alpha: In (0, 1), or None.
        gamma: A number >= 0.
        weight: A number > 0 a class, or None.

    Example:
        >>> from_kornia(n_classes=3, alpha=0.25, gamma=2.0)
        Focal(gamma=2.0, weight=(0.75, 0.25, 0.25), label_smoothing=0.0)
    """
    return Focal(gamma=gamma, weight=_with_background(n_classes, alpha, weight))


def from_kornia_binary(
    alpha: float | None = 0.25, gamma: float = 2.0, pos_weight: Numbers | None = None
) -> SigmoidFocal:
    """Return the objective of kornia's ``BinaryFocalLossWithLogits``: torchvision's formula.

    A weight w of the positive term makes alpha w against 1 - alpha, which is another alpha.

    Args:
        alpha: In (0, 1), or None.
        gamma: A number >= 0.
        pos_weight: A number > 0, or one a class, or None.

    Example:
        >>> from_kornia_binary(alpha=0.25, gamma=2.0, pos_weight=3.0)
        SigmoidFocal(gamma=2.0, alpha=0.5, label_smoothing=0.0)
    """
    spec = SigmoidFocal(gamma=gamma, alpha=alpha)
    if pos_weight is None:
        return spec
    w = check_entries("pos_weight", pos_weight, "finite and > 0", lambda v: v > 0)
    a = 0.5 if alpha is None else check_number("alpha", alpha, rule="in (0, 1), or None")
    mixed = [a * v / (a * v + 1 - a) for v in ((w,) if isinstance(w, float) else w)]
    return SigmoidFocal(gamma=gamma, alpha=mixed[0] if isinstance(w, float) else mixed)


def from_monai(
    use_softmax: bool = False,
    gamma: float = 2.0,
    alpha: float | None = None,
    weight: Iterable[float] | None = None,
    include_background: bool = True,
    to_onehot_y: bool = False,
    n_classes: int | None = None,
) -> Focal | SigmoidFocal | OneVsRest:
    """Return the objective of MONAI's ``FocalLoss``.

    With a sigmoid it is torchvision's formula for every entry, and weights of the classes change nothing.
    With ``to_onehot_y`` the classes exclude each other: one sigmoid a class, read as a distribution.

    With a softmax it is w_y (1 - q_y)^gamma (-log q_y), with w = 1 - alpha for class 0 and alpha for all
    others, times the class weights.

    Without the background, give the objective the logits without channel 0. A softmax then says which
    class it is, given that it is not the background, and alpha is ignored, as MONAI does.

    Args:
        use_softmax: A softmax, or a sigmoid.
        gamma: A number >= 0.
        alpha: In (0, 1), or None.
        weight: A number > 0 a class, or None.
        include_background: Whether channel 0 was part of the loss.
        to_onehot_y: Whether the labels were class indices.
        n_classes: The number of channels; needed for a softmax with alpha.

    Example:
        >>> from_monai(use_softmax=True, alpha=0.75, n_classes=3)
        Focal(gamma=2.0, weight=(0.25, 0.75, 0.75), label_smoothing=0.0)
    """
    if not use_softmax:
        binary = SigmoidFocal(gamma=gamma, alpha=alpha)
        return OneVsRest(binary) if to_onehot_y and include_background else binary
    if alpha is None or not include_background:
        return Focal(gamma=gamma, weight=weight)
    if n_classes is None:
        raise ValueError("n_classes must be given where a softmax has an alpha, got None")
    return Focal(gamma=gamma, weight=_with_background(n_classes, alpha, weight))


def from_keras_binary(
    apply_class_balancing: bool = False,
    alpha: float = 0.25,
    gamma: float = 2.0,
    label_smoothing: float = 0.0,
) -> SigmoidFocal:
    """Return the objective of Keras's ``BinaryFocalCrossentropy``.

    It is torchvision's formula for every entry, with alpha only where the classes are balanced. For a model
    that ends in a sigmoid (``from_logits=False``) use ``posterior_from_probs``.

    Args:
        apply_class_balancing: Whether alpha was used.
        alpha: In (0, 1).
        gamma: A number >= 0.
        label_smoothing: Only 0: there the smoothed label is also in the focal factor, which is no longer
            the expected loss of the two labels. `refocal.posterior_of` takes such a loss.

    Example:
        >>> from_keras_binary(apply_class_balancing=True)
        SigmoidFocal(gamma=2.0, alpha=0.25, label_smoothing=0.0)
    """
    if check_fraction("label_smoothing", label_smoothing):
        raise ValueError(
            f"label_smoothing must be 0, got {label_smoothing!r}: Keras puts the smoothed label into the "
            "focal factor too; use posterior_of with that loss"
        )
    return SigmoidFocal(gamma=gamma, alpha=alpha if apply_class_balancing else None)


def from_keras_categorical(alpha: Numbers = 0.25, gamma: float = 2.0, label_smoothing: float = 0.0) -> Focal:
    """Return the objective of Keras's ``CategoricalFocalCrossentropy``.

    It is sum_i alpha_i v_i (1 - q_i)^gamma (-log q_i) on a softmax, v the smoothed label; one alpha for all
    classes changes nothing. For a model that ends in a softmax use ``posterior_from_probs``.

    Args:
        alpha: A number > 0, or one a class.
        gamma: A number >= 0.
        label_smoothing: In [0, 1).

    Example:
        >>> from_keras_categorical(alpha=[0.25, 0.5, 0.25])
        Focal(gamma=2.0, weight=(0.25, 0.5, 0.25), label_smoothing=0.0)
    """
    weight = check_entries("alpha", alpha, "finite and > 0", lambda v: v > 0)
    return Focal(gamma, None if isinstance(weight, float) else weight, label_smoothing)


def from_timm_multilabel(
    gamma_neg: float = 4.0,
    gamma_pos: float = 1.0,
    clip: float | None = 0.05,
    disable_torch_grad_focal_loss: bool = False,
    smoothing: float = 0.0,
    pos_weight: Numbers | None = None,
) -> Asymmetric:
    """Return the objective of timm's ``AsymmetricLossMultiLabel``, which is ASL's own code.

    It is (1 - p)^gamma_pos (-log p) for y = 1 and m^gamma_neg (-log(1 - m)) with m = max(p - clip, 0) for
    y = 0. Weights of the classes change nothing.

    Args:
        gamma_neg: A number >= 0.
        gamma_pos: A number >= 0.
        clip: In [0, 1), or None for 0.
        disable_torch_grad_focal_loss: Whether the powers were constants for the gradient.
        smoothing: Only 0: there the smoothed label is also in the powers.
        pos_weight: Only None.

    Example:
        >>> from_timm_multilabel()
        Asymmetric(gamma_pos=1.0, gamma_neg=4.0, clip=0.05, detach_weights=False)
    """
    if check_fraction("smoothing", smoothing):
        raise ValueError(
            f"smoothing must be 0, got {smoothing!r}: timm puts the smoothed label into the powers too; "
            "use posterior_of with that loss"
        )
    if pos_weight is not None:
        raise ValueError(
            f"pos_weight must be None, got {pos_weight!r}: Asymmetric has no weights; use posterior_of"
        )
    return Asymmetric(gamma_pos, gamma_neg, 0.0 if clip is None else clip, disable_torch_grad_focal_loss)


def from_timm_single_label(
    gamma_pos: float = 1.0, gamma_neg: float = 4.0, eps: float = 0.1
) -> AsymmetricSingleLabel:
    """Return the objective of timm's ``AsymmetricLossSingleLabel``, which is ASL's own code.

    It is (1 - eps + eps/K) (1 - q_y)^gamma_pos (-log q_y) plus eps/K times the sum over the other classes
    of q_i^gamma_neg (-log q_i), on a softmax.

    Args:
        gamma_pos: A number >= 0.
        gamma_neg: A number >= 0.
        eps: In [0, 1).

    Example:
        >>> from_timm_single_label()
        AsymmetricSingleLabel(gamma_pos=1.0, gamma_neg=4.0, label_smoothing=0.1)
    """
    return AsymmetricSingleLabel(gamma_pos, gamma_neg, check_fraction("eps", eps))


def from_catboost(focal_alpha: float, focal_gamma: float) -> SigmoidFocal:
    """Return the objective of CatBoost's loss ``Focal:focal_alpha=...;focal_gamma=...``.

    It is torchvision's formula. Give it the raw values (``prediction_type="RawFormulaVal"``).

    Args:
        focal_alpha: In (0, 1).
        focal_gamma: A number > 0.

    Example:
        >>> from_catboost(focal_alpha=0.25, focal_gamma=2.0)
        SigmoidFocal(gamma=2.0, alpha=0.25, label_smoothing=0.0)
    """
    return SigmoidFocal(gamma=focal_gamma, alpha=focal_alpha)


def _with_background(
    n_classes: int, alpha: float | None, weight: Iterable[float] | None
) -> tuple[float, ...] | None:
    """Return the class weights, 1 - alpha for class 0 and alpha for all others, times those given."""
    if isinstance(n_classes, bool) or not isinstance(n_classes, int) or n_classes < 2:
        raise ValueError(f"n_classes must be an integer >= 2, got {n_classes!r}")
    weights = None if weight is None else Focal(weight=weight).weight
    if weights is not None and len(weights) != n_classes:
        raise ValueError(
            f"weight must have one number for each of the {n_classes} classes, got {len(weights)}"
        )
    if alpha is None:
        return weights
    a = SigmoidFocal(alpha=check_number("alpha", alpha, rule="in (0, 1), or None")).alpha
    weights = weights or (1.0,) * n_classes
    return tuple(w * (a if i else 1 - a) for i, w in enumerate(weights))
