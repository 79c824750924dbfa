"""The adapters: each library's loss in a few lines, its minimiser by an optimiser, and the truth back.

The formulas here are written from what the libraries' sources compute, for logits z of one row, and hold also
where the libraries are not installed; test_adapters_real.py has the libraries themselves.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.optimize
import torch
from risk import minimise
from torch.nn.functional import logsigmoid

from refocal import Asymmetric, Focal, OneVsRest, SigmoidFocal
from refocal import adapters as ad


def sigmoid_focal(z, y, alpha, gamma):
    """-alpha_t (1 - p_t)^gamma log p_t, where alpha < 0 or None means no alpha."""
    log_pt = logsigmoid(z if y else -z)
    weight = 1 if alpha is None or alpha < 0 else (alpha if y else 1 - alpha)
    return -weight * (1 - log_pt.exp()) ** gamma * log_pt


def asl(z, y, gamma_pos, gamma_neg, clip):
    p = torch.sigmoid(z)
    right = p if y else torch.clamp(1 - p + clip, max=1)
    return -((1 - right) ** (gamma_pos if y else gamma_neg)) * torch.log(right)


def keras_binary(z, y, alpha, gamma):
    p = torch.sigmoid(z)
    bce = -(y * torch.log(p) + (1 - y) * torch.log(1 - p))
    return (y * alpha + (1 - y) * (1 - alpha)) * (1 - (y * p + (1 - y) * (1 - p))) ** gamma * bce


def catboost(z, y, alpha, gamma):
    """CatBoost has only the derivative; this is a function with that derivative."""
    p = torch.sigmoid(z).detach()
    right, sign, weight = (p, 1, alpha) if y else (1 - p, -1, 1 - alpha)
    slope = weight * sign * (1 - right) ** gamma * (gamma * right * torch.log(right) + right - 1)
    return slope * z


BINARY = {
    "torchvision": (ad.from_torchvision(0.25, 2.0), lambda z, y: sigmoid_focal(z, y, 0.25, 2.0)),
    "torchvision, no alpha": (ad.from_torchvision(-1, 1.5), lambda z, y: sigmoid_focal(z, y, -1, 1.5)),
    "fvcore": (ad.from_fvcore(), lambda z, y: sigmoid_focal(z, y, -1, 2.0)),
    "detectron2": (ad.from_detectron2(), lambda z, y: sigmoid_focal(z, y, 0.25, 2.0)),
    "mmdetection": (ad.from_mmdetection(gamma=3.0), lambda z, y: sigmoid_focal(z, y, 0.25, 3.0)),
    "smp binary": (ad.from_smp("binary", alpha=0.6), lambda z, y: sigmoid_focal(z, y, 0.6, 2.0)),
    "smp multilabel": (ad.from_smp("multilabel"), lambda z, y: sigmoid_focal(z, y, None, 2.0)),
    "kornia binary": (ad.from_kornia_binary(), lambda z, y: sigmoid_focal(z, y, 0.25, 2.0)),
    "kornia binary, pos_weight": (
        ad.from_kornia_binary(0.25, 2.0, "mean", 3.0),
        lambda z, y: sigmoid_focal(z, y, 0.25, 2.0) * (3.0 if y else 1.0),
    ),
    "kornia binary, pos_weight, no alpha": (
        ad.from_kornia_binary(None, 2.0, pos_weight=3.0),
        lambda z, y: sigmoid_focal(z, y, None, 2.0) * (3.0 if y else 1.0),
    ),
    "MONAI": (ad.from_monai(gamma=2.0, alpha=0.75), lambda z, y: sigmoid_focal(z, y, 0.75, 2.0)),
    "MONAI, an alpha for each class": (
        ad.from_monai(alpha=[0.3]),
        lambda z, y: sigmoid_focal(z, y, None, 2.0) * (0.3 if y else 1.0),
    ),
    "transformers": (ad.from_transformers(num_boxes=7), lambda z, y: sigmoid_focal(z, y, 0.25, 2.0) / 7),
    "ultralytics": (ad.from_ultralytics(), lambda z, y: sigmoid_focal(z, y, 0.25, 1.5)),
    "ultralytics, no alpha": (ad.from_ultralytics(2.0, 0), lambda z, y: sigmoid_focal(z, y, None, 2.0)),
    "YOLOv5": (ad.from_yolov5(), lambda z, y: sigmoid_focal(z, y, 0.25, 1.5)),
    "YOLOv5, pos_weight": (
        ad.from_yolov5(torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0])), 2.0, 0.4),
        lambda z, y: sigmoid_focal(z, y, 0.4, 2.0) * (3.0 if y else 1.0),
    ),
    "optax": (ad.from_optax(alpha=0.4, gamma=0.5), lambda z, y: sigmoid_focal(z, y, 0.4, 0.5)),
    "catalyst": (ad.from_catalyst(gamma=1.0), lambda z, y: sigmoid_focal(z, y, 0.25, 1.0)),
    "bokbokbok": (
        ad.from_bokbokbok(alpha=4.0),
        lambda z, y: sigmoid_focal(z, y, None, 2.0) * (4.0 if y else 1.0),
    ),
    "Keras binary": (ad.from_keras_binary(), lambda z, y: keras_binary(z, y, 0.5, 2.0)),
    "Keras binary, balanced": (ad.from_keras_binary(True), lambda z, y: keras_binary(z, y, 0.25, 2.0)),
    "timm multilabel": (ad.from_timm_multilabel(), lambda z, y: asl(z, y, 1.0, 4.0, 0.05)),
    "timm multilabel, no clip": (
        ad.from_timm_multilabel(2.0, 1.0, clip=None),
        lambda z, y: asl(z, y, 1.0, 2.0, 0.0),
    ),
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("eta", [0.02, 0.3, 0.5, 0.9])
def test_binary_losses(name, eta):
    spec, loss = BINARY[name]
    z = minimise(lambda z: torch.sum(eta * loss(z, 1) + (1 - eta) * loss(z, 0)), 1)
    np.testing.assert_allclose(spec.posterior(z), eta, atol=1e-6)
    np.testing.assert_allclose(spec.posterior_from_probs(1 / (1 + np.exp(-z))), eta, atol=1e-6)


@pytest.mark.parametrize("eta", [0.02, 0.3, 0.9])
def test_losses_given_by_their_gradient(eta):
    """CatBoost's derivatives, and ASL with weights that are constants for the gradient."""

    def detached(z, y):
        p = torch.sigmoid(z)
        right = p if y else torch.clamp(1 - p + 0.05, max=1)
        return -((1 - right.detach()) ** (1.0 if y else 4.0)) * torch.log(right)

    def catboost_focal(z, y):
        return catboost(z, y, 0.3, 2.0)

    specs = {
        catboost_focal: ad.from_catboost(focal_alpha=0.3, focal_gamma=2.0),
        detached: ad.from_timm_multilabel(disable_torch_grad_focal_loss=True),
    }
    for loss, spec in specs.items():

        def field(z, loss=loss):
            z = torch.tensor(z, dtype=torch.float64, requires_grad=True)
            return torch.autograd.grad(eta * loss(z, 1) + (1 - eta) * loss(z, 0), z)[0].item()

        z = scipy.optimize.brentq(field, -8, 8, xtol=1e-13)
        np.testing.assert_allclose(spec.posterior(np.array([z])), eta, atol=1e-9)


def softmax_focal(z, y, gamma, weight=(1.0, 1.0, 1.0)):
    log_q = torch.log_softmax(z, -1)[y]
    return -weight[y] * (1 - log_q.exp()) ** gamma * log_q


def keras_categorical(z, y, alpha, gamma, smoothing):
    q = torch.softmax(z, -1)
    v = torch.nn.functional.one_hot(torch.tensor(y), 3) * (1 - smoothing) + smoothing / 3
    return torch.sum(torch.tensor(alpha) * (1 - q) ** gamma * -v * torch.log(q))


def asl_single(z, y, gamma_pos, gamma_neg, eps):
    log_q = torch.log_softmax(z, -1)
    hit = torch.nn.functional.one_hot(torch.tensor(y), 3)
    right = torch.where(hit == 1, log_q.exp(), 1 - log_q.exp())
    weight = (1 - right) ** torch.where(hit == 1, gamma_pos, gamma_neg)
    return -torch.sum((hit * (1 - eps) + eps / 3) * weight * log_q)


def one_vs_rest(z, y, alpha, gamma):
    return sum(sigmoid_focal(z[i], i == y, alpha, gamma) for i in range(3))


MULTICLASS = {
    "smp multiclass": (
        ad.from_smp("multiclass", alpha=0.25),
        lambda z, y: one_vs_rest(z, y, 0.25, 2.0),
    ),
    "kornia": (ad.from_kornia(None), lambda z, y: softmax_focal(z, y, 2.0)),
    "kornia, alpha": (
        ad.from_kornia(0.25, 1.0, "mean", n_classes=3),
        lambda z, y: softmax_focal(z, y, 1.0, (0.75, 0.25, 0.25)),
    ),
    "kornia, alpha and weight": (
        ad.from_kornia(alpha=0.25, weight=[1.0, 2.0, 4.0]),
        lambda z, y: softmax_focal(z, y, 2.0, (0.75, 0.5, 1.0)),
    ),
    "MONAI softmax": (
        ad.from_monai(use_softmax=True, weight=[1.0, 2.0, 3.0]),
        lambda z, y: softmax_focal(z, y, 2.0, (1.0, 2.0, 3.0)),
    ),
    "MONAI softmax, alpha": (
        ad.from_monai(use_softmax=True, alpha=0.9, n_classes=3),
        lambda z, y: softmax_focal(z, y, 2.0, (0.1, 0.9, 0.9)),
    ),
    "MONAI sigmoid of class indices": (
        ad.from_monai(to_onehot_y=True, alpha=0.75),
        lambda z, y: one_vs_rest(z, y, 0.75, 2.0),
    ),
    "MONAI softmax, an alpha for each class": (
        ad.from_monai(use_softmax=True, alpha=[0.25, 0.5, 0.75], weight=[1.0, 2.0, 3.0]),
        lambda z, y: softmax_focal(z, y, 2.0, (0.25, 1.0, 2.25)),
    ),
    "catalyst multiclass": (
        ad.from_catalyst_multiclass(),
        lambda z, y: one_vs_rest(z, y, 0.25, 2.0),
    ),
    "fastai": (ad.from_fastai(), lambda z, y: softmax_focal(z, y, 2.0)),
    "Keras categorical": (
        ad.from_keras_categorical(),
        lambda z, y: keras_categorical(z, y, 0.25, 2.0, 0.0),
    ),
    "Keras categorical, all options": (
        ad.from_keras_categorical([0.2, 0.5, 0.3], 1.0, label_smoothing=0.1),
        lambda z, y: keras_categorical(z, y, [0.2, 0.5, 0.3], 1.0, 0.1),
    ),
    "timm single label": (
        ad.from_timm_single_label(),
        lambda z, y: asl_single(z, y, 1.0, 4.0, 0.1),
    ),
    "timm single label, no smoothing": (
        ad.from_timm_single_label(gamma_pos=2.0, eps=0.0),
        lambda z, y: asl_single(z, y, 2.0, 4.0, 0.0),
    ),
}


@pytest.mark.parametrize("name", MULTICLASS)
def test_multiclass_losses(name):
    spec, loss = MULTICLASS[name]
    for eta in ([0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.05, 0.9, 0.05]):
        z = minimise(lambda z, eta=eta: sum(eta[y] * loss(z, y) for y in range(3)), 3)
        np.testing.assert_allclose(spec.posterior(z), eta, atol=1e-6)


def test_monai_without_the_background():
    """Background rows have no loss: the scores say which class it is, given that it is none of them."""
    eta = np.array([0.4, 0.45, 0.15])
    spec = ad.from_monai(use_softmax=True, alpha=0.9, include_background=False)
    assert spec == Focal(gamma=2.0)

    def risk(z):
        log_q = torch.log_softmax(z, -1)
        return -torch.sum(torch.tensor(eta[1:]) * (1 - log_q.exp()) ** 2 * log_q)

    np.testing.assert_allclose(spec.posterior(minimise(risk, 2)), eta[1:] / 0.6, atol=1e-6)
    assert ad.from_monai(to_onehot_y=True, include_background=False) == SigmoidFocal(gamma=2.0, alpha=None)


def test_the_batch_normalised_loss_has_no_posterior():
    """Why from_smp refuses it: a row's minimiser moves with the other rows of its batch."""

    def best_score(other):
        def risk(z):
            rows = torch.cat([z, torch.tensor([other])])
            terms = []
            for weight, y in ((0.3, 1), (0.7, 0)):
                log_pt = logsigmoid(rows if y else -rows)
                focus = (1 - log_pt.exp()) ** 2
                terms.append(weight * torch.sum(-focus * log_pt) / torch.sum(focus))
            return terms[0] + terms[1]

        return minimise(risk, 1)

    assert abs(best_score(-1.0) - best_score(2.0)) > 0.1


def test_the_reduced_loss_leaves_scores_out():
    """Why from_smp refuses it: below the threshold it is cross entropy, above it focal."""

    def best_score(eta):
        def loss(p):
            return torch.where(p < 0.5, 1.0, (2 * (1 - p)) ** 2) * -torch.log(p)

        z = torch.linspace(-4, 4, 80001, dtype=torch.float64)
        risk = eta * loss(torch.sigmoid(z)) + (1 - eta) * loss(torch.sigmoid(-z))
        return z[torch.argmin(risk)].item()

    assert best_score(0.499) < -0.4
    assert best_score(0.501) > 0.4


def test_adapters_return_what_they_say():
    assert isinstance(ad.from_smp("multiclass"), OneVsRest)
    assert ad.from_timm_multilabel(clip=None).clip == 0
    assert ad.from_timm_multilabel(disable_torch_grad_focal_loss=True) == Asymmetric(1.0, 4.0, 0.05, True)
    assert ad.from_fastai(weight=[1.0, 1.0, 1.0]) == Focal(gamma=2.0)
    assert ad.from_ultralytics(alpha=[0.25, 0.5]).alpha == (0.25, 0.5)
    assert ad.from_keras_categorical(0.25) == Focal(gamma=2.0)
    assert ad.from_monai(True, True, alpha=[1.0, 3.0]) == OneVsRest(SigmoidFocal(2.0, (0.5, 0.75)))
    assert ad.from_mmdetection(type="mmdet.FocalCustomLoss", num_classes=80).alpha == 0.25
    two = ad.from_kornia_binary(0.5, 2.0, pos_weight=[1.0, 3.0])
    assert two == SigmoidFocal(gamma=2.0, alpha=(0.5, 0.75))


QUALITY = (
    "its targets are qualities of boxes between 0 and 1 that do not enter the loss linearly, so that the "
    "best score depends on more than their mean and belongs to no probability"
)
REDUCED = (
    "the reduced loss has a break at its threshold, and the scores around it are the minimiser of no "
    "probability"
)
BAD = [
    (lambda: ad.from_torchvision(alpha=1.0), "alpha must be in (0, 1), or negative for no weights, got 1.0"),
    (lambda: ad.from_fvcore(0), "alpha must be in (0, 1), or negative for no weights, got 0"),
    (
        lambda: ad.from_detectron2(focal_loss_alpha=2.0),
        "focal_loss_alpha must be in (0, 1), or negative for no weights, got 2.0",
    ),
    (lambda: ad.from_torchvision(gamma=-2), "gamma must be finite and >= 0, got -2"),
    (
        lambda: ad.from_mmdetection(type="QualityFocalLoss", use_sigmoid=True, beta=2.0, loss_weight=1.0),
        f"type must be 'FocalLoss', got 'QualityFocalLoss': {QUALITY}",
    ),
    (
        lambda: ad.from_mmdetection(type="mmdet.VarifocalLoss", alpha=0.75, gamma=2.0, iou_weighted=True),
        f"type must be 'FocalLoss', got 'mmdet.VarifocalLoss': {QUALITY}",
    ),
    (
        lambda: ad.from_mmdetection(type="DistributionFocalLoss", loss_weight=0.25),
        "type must be 'FocalLoss', got 'DistributionFocalLoss': it is a loss of box edges, not of classes",
    ),
    (
        lambda: ad.from_mmdetection(type="CrossEntropyLoss"),
        "type must be 'FocalLoss', got 'CrossEntropyLoss': unknown here",
    ),
    (
        lambda: ad.from_mmdetection(use_sigmoid=False),
        "use_sigmoid must be True, got False: mmdetection has no softmax focal loss",
    ),
    (lambda: ad.from_mmdetection(alpha=-1), "alpha must be in (0, 1), got -1"),
    (
        lambda: ad.from_ultralytics(alpha=1.0),
        "alpha must be in (0, 1), or not above 0 for no weights, got 1.0",
    ),
    (
        lambda: ad.from_ultralytics(alpha=[0.5, 0.0]),
        "alpha must be in (0, 1), or not above 0 for no weights, got 0.0",
    ),
    (
        lambda: ad.from_ultralytics_varifocal(2.0, 0.75),
        f"loss must be ultralytics' FocalLoss, got 'VarifocalLoss': {QUALITY}",
    ),
    (lambda: ad.from_yolov5_quality(), f"loss must be YOLOv5's FocalLoss, got 'QFocalLoss': {QUALITY}"),
    (lambda: ad.from_smp("soft"), "mode must be 'binary', 'multilabel' or 'multiclass', got 'soft'"),
    (
        lambda: ad.from_smp("binary", normalized=True),
        "normalized must be False, got True: a loss that is divided by a sum over the batch depends on "
        "the other rows, and a score alone determines no probability",
    ),
    (
        lambda: ad.from_smp("binary", reduced_threshold=0.5),
        f"reduced_threshold must be None, got 0.5: {REDUCED}",
    ),
    (
        lambda: ad.from_smp("multiclass", from_logits=False),
        "from_logits must be True in the mode 'multiclass', got False: the loss then takes sigmoids of the "
        "logarithms of a softmax; use posterior_of with that loss",
    ),
    (
        lambda: ad.from_smp("binary", class_weights=[1.0, 2.0]),
        "class_weights must be None in the mode 'binary', got [1.0, 2.0]",
    ),
    (
        lambda: ad.from_smp("multilabel", class_weights=[1.0, 0.0]),
        "class_weights must be finite and > 0, got 0.0",
    ),
    (lambda: ad.from_kornia(3, 2.0), "alpha must be in (0, 1), got 3"),
    (lambda: ad.from_kornia(0.5, n_classes=1), "n_classes must be an integer >= 2, got 1"),
    (lambda: ad.from_kornia(0.5), "n_classes must be given where a softmax has an alpha, got None"),
    (
        lambda: ad.from_kornia(None, weight=[1.0, 2.0], n_classes=3),
        "weight must have one number for each of the 3 classes, got 2",
    ),
    (lambda: ad.from_kornia_binary(pos_weight=0.0), "pos_weight must be finite and > 0, got 0.0"),
    (
        lambda: ad.from_monai(use_softmax=True, alpha=0.5),
        "n_classes must be given where a softmax has an alpha, got None",
    ),
    (lambda: ad.from_monai(alpha=1.0), "alpha must be in (0, 1), got 1.0"),
    (lambda: ad.from_monai(alpha=[0.5, 0.0]), "alpha must be finite and > 0, got 0.0"),
    (
        lambda: ad.from_monai(use_softmax=True, alpha=[0.5, 0.5], weight=[1.0, 2.0, 3.0]),
        "weight must have one number for each of the 2 classes, got 3",
    ),
    (
        lambda: ad.from_keras_binary(label_smoothing=0.1),
        "label_smoothing must be 0, got 0.1: Keras puts the smoothed label into the focal factor too; "
        "use posterior_of with that loss",
    ),
    (lambda: ad.from_keras_categorical(alpha=[1.0, 0.0]), "alpha must be finite and > 0, got 0.0"),
    (lambda: ad.from_timm_single_label(eps=1.0), "eps must be in [0, 1), got 1.0"),
    (
        lambda: ad.from_fastai(weight=[1.0, 2.0]),
        "weight must be None or ones, got (1.0, 2.0): fastai puts the weight into the focal factor too; "
        "use posterior_of with that loss",
    ),
    (lambda: ad.from_catalyst(reduced=True), f"reduced must be False, got True: {REDUCED}"),
    (lambda: ad.from_catalyst_multiclass(alpha=0.0), "alpha must be in (0, 1), got 0.0"),
    (
        lambda: ad.from_catboost("Logloss"),
        "loss_function must be CatBoost's 'Focal', got 'Logloss': it is not a focal loss",
    ),
    (lambda: ad.from_catboost(), "focal_alpha must be given, as CatBoost has no default for it"),
    (
        lambda: ad.from_catboost("Focal:focal_alpha=0.5"),
        "focal_gamma must be given, as CatBoost has no default for it",
    ),
    (
        lambda: ad.from_catboost("Focal:focal_alpha=0.5;focal_gamma=two"),
        "focal_gamma must be a number, got 'two'",
    ),
    (
        lambda: ad.from_catboost("Focal:focal_alpha=0.5;beta=2", focal_gamma=1.0),
        "loss_function must be 'Focal:focal_alpha=...;focal_gamma=...', each number given once, got "
        "'Focal:focal_alpha=0.5;beta=2' with focal_alpha=None, focal_gamma=1.0",
    ),
    (
        lambda: ad.from_catboost("Focal:focal_alpha=0.5;focal_gamma=2", focal_gamma=1.0),
        "loss_function must be 'Focal:focal_alpha=...;focal_gamma=...', each number given once, got "
        "'Focal:focal_alpha=0.5;focal_gamma=2' with focal_alpha=None, focal_gamma=1.0",
    ),
    (lambda: ad.from_catboost(focal_alpha=0.0, focal_gamma=2.0), "focal_alpha must be in (0, 1), got 0.0"),
    (lambda: ad.from_bokbokbok(alpha=0.0), "alpha must be finite and > 0, got 0.0"),
]


@pytest.mark.parametrize("call, text", BAD, ids=range(len(BAD)))
def test_bad_input(call, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        call()


@pytest.mark.parametrize(
    "call, text",
    [
        (
            lambda: ad.from_mmdetection(beta=2.0),
            "from_mmdetection() got arguments that FocalLoss does not have: beta",
        ),
        (lambda: ad.from_yolov5("bce"), "loss_fcn must be a BCEWithLogitsLoss or None, got 'bce'"),
        (lambda: ad.from_bokbokbok("1"), "alpha must be a number or one number for each class, got '1'"),
        (lambda: ad.from_torchvision(alpha=None), "alpha must be a number, got None"),
    ],
    ids=range(4),
)
def test_wrong_kinds(call, text):
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        call()


def test_heat_map_losses_have_no_posterior():
    """Why GaussianFocalLoss is refused: the height of the negatives moves the score."""

    def best(height):
        def risk(z):
            p = torch.sigmoid(z)
            of_centre, of_other = -((1 - p) ** 2) * torch.log(p), -(p**2) * torch.log(1 - p)
            return torch.sum(0.3 * of_centre + 0.7 * (1 - height) ** 4 * of_other)

        return minimise(risk, 1)[0]

    assert abs(best(0.0) - best(0.5)) > 0.3


def test_quality_losses_have_no_posterior():
    """Why QualityFocalLoss is refused: qualities of the same mean end at different scores."""

    def best(qualities):
        def loss(z, q):
            p = torch.sigmoid(z)
            return torch.abs(q - p) ** 2 * -(q * torch.log(p) + (1 - q) * torch.log(1 - p))

        return minimise(lambda z: sum(w * loss(z, q).sum() for q, w in qualities.items()), 1, start=0.1)[0]

    assert abs(best({0.8: 0.25, 0.0: 0.75}) - best({0.2: 1.0})) > 0.3
