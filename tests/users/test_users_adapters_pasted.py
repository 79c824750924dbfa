"""Calls as their users paste them, from a training script or a configuration file.

What comes out is compared with the loss as its paper or documentation states it: at a minimum the expected
slope eta L1'(p) + (1 - eta) L0'(p) is 0, so that a score p means eta = L0' / (L0' - L1').
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import refocal
from refocal import adapters
from refocal.detection import DetectionCalibration

SCORES = np.array([0.1, 0.3, 0.5, 0.7])


def meaning(of_one, of_zero, p=SCORES, step=1e-6):
    """Return what sigmoid scores mean under a loss with these two terms."""
    slope_one = (of_one(p + step) - of_one(p - step)) / (2 * step)
    slope_zero = (of_zero(p + step) - of_zero(p - step)) / (2 * step)
    return slope_zero / (slope_zero - slope_one)


def focal(gamma, weight_one=1.0, weight_zero=1.0):
    """The two terms of a focal loss on a sigmoid."""
    return (
        lambda p: -weight_one * (1 - p) ** gamma * np.log(p),
        lambda p: -weight_zero * p**gamma * np.log(1 - p),
    )


# Name: (the pasted call, the loss's two terms).
PASTED = {
    "torchvision, as in its RetinaNet head": (
        lambda: adapters.from_torchvision(alpha=0.25, gamma=2, reduction="sum"),
        focal(2, 0.25, 0.75),
    ),
    "fvcore": (
        lambda: adapters.from_fvcore(alpha=0.25, gamma=2, reduction="sum"),
        focal(2, 0.25, 0.75),
    ),
    "detectron2, from its configuration": (
        lambda: adapters.from_detectron2(focal_loss_alpha=0.3, focal_loss_gamma=3.0),
        focal(3, 0.3, 0.7),
    ),
    "mmdetection, a configuration": (
        lambda: adapters.from_mmdetection(
            **dict(type="FocalLoss", use_sigmoid=True, gamma=2.0, alpha=0.25, loss_weight=1.0)
        ),
        focal(2, 0.25, 0.75),
    ),
    "mmdetection, by position": (
        lambda: adapters.from_mmdetection(True, 1.5, 0.4, "mean", 2.0, False),
        focal(1.5, 0.4, 0.6),
    ),
    "transformers, Deformable DETR": (
        lambda: adapters.from_transformers(num_boxes=17, alpha=0.25, gamma=2),
        focal(2, 0.25, 0.75),
    ),
    "ultralytics": (lambda: adapters.from_ultralytics(gamma=1.5, alpha=0.25), focal(1.5, 0.25, 0.75)),
    "YOLOv5, as in its ComputeLoss": (
        lambda: adapters.from_yolov5(
            torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0], device="cpu")), 1.5
        ),
        focal(1.5, 0.25, 0.75),
    ),
    "kornia, its documentation's arguments": (
        lambda: adapters.from_kornia_binary(**{"alpha": 0.25, "gamma": 2.0, "reduction": "mean"}),
        focal(2, 0.25, 0.75),
    ),
    "kornia, with a tensor": (
        lambda: adapters.from_kornia_binary(None, 2.0, "mean", torch.tensor([4.0])),
        focal(2, 4.0, 1.0),
    ),
    "MONAI, by position": (lambda: adapters.from_monai(True, False, 2.0, 0.75), focal(2, 0.75, 0.25)),
    "MONAI, an alpha for each channel": (
        lambda: adapters.from_monai(include_background=True, gamma=2.0, alpha=[0.25, 0.25, 0.25, 0.25]),
        focal(2, 0.25, 1.0),
    ),
    "segmentation_models_pytorch": (
        lambda: adapters.from_smp("multilabel", alpha=0.25, gamma=2.0, ignore_index=255, reduction="mean"),
        focal(2, 0.25, 0.75),
    ),
    "Keras, as in compile": (
        lambda: adapters.from_keras_binary(
            apply_class_balancing=True, alpha=0.25, gamma=2.0, from_logits=True
        ),
        focal(2, 0.25, 0.75),
    ),
    "Keras, nothing said": (lambda: adapters.from_keras_binary(), focal(2)),
    "timm, the order of its signature": (
        lambda: adapters.from_timm_multilabel(2, 1, 0, 1e-8, False),
        (focal(1)[0], focal(2)[1]),
    ),
    "optax": (lambda: adapters.from_optax(alpha=0.25, gamma=2.0), focal(2, 0.25, 0.75)),
    "catalyst": (lambda: adapters.from_catalyst(ignore=-1, gamma=1.0, alpha=0.25), focal(1, 0.25, 0.75)),
    "CatBoost, its string": (
        lambda: adapters.from_catboost("Focal:focal_alpha=0.25;focal_gamma=2.0"),
        focal(2, 0.25, 0.75),
    ),
    "bokbokbok": (lambda: adapters.from_bokbokbok(alpha=3.0, gamma=2.0), focal(2, 3.0, 1.0)),
}


@pytest.mark.parametrize("name", PASTED)
def test_pasted_calls(name):
    call, terms = PASTED[name]
    np.testing.assert_allclose(call().posterior_from_probs(SCORES), meaning(*terms), atol=1e-7)


def test_the_headline_numbers():
    """A score of 0.3 means 0.236, 0.5 means 0.75, and one half is reached at 0.4."""
    spec = adapters.from_torchvision(alpha=0.25, gamma=2)
    np.testing.assert_allclose(spec.posterior_from_probs(SCORES[:3]), [0.008, 0.236, 0.75], atol=5e-4)
    assert round(refocal.score_threshold(spec, 0.5), 2) == 0.4


def test_softmax_calls():
    """kornia, MONAI, Keras and fastai on three classes: with even scores the posterior is 1 / weight."""
    even = np.zeros(3)
    pasted = {
        adapters.from_kornia(alpha=0.25, gamma=2.0, reduction="mean", n_classes=3): [1 / 0.75, 4, 4],
        adapters.from_kornia(0.5, 2.0, weight=torch.tensor([1.0, 2.0, 4.0])): [4, 2, 1],
        adapters.from_monai(to_onehot_y=True, use_softmax=True, alpha=[0.25, 0.5, 0.25]): [2, 1, 2],
        adapters.from_monai(to_onehot_y=True, use_softmax=True, weight=torch.tensor([1.0, 2.0, 4.0])): [
            4,
            2,
            1,
        ],
        adapters.from_keras_categorical(alpha=[0.2, 0.4, 0.4], from_logits=True): [2, 1, 1],
        adapters.from_fastai(gamma=2.0, axis=1): [1, 1, 1],
    }
    for spec, posterior in pasted.items():
        np.testing.assert_allclose(spec.posterior(even), np.array(posterior) / sum(posterior))


REFUSED = {
    "mmdetection's varifocal loss": lambda: adapters.from_mmdetection(
        **dict(
            type="VarifocalLoss", use_sigmoid=True, alpha=0.75, gamma=2.0, iou_weighted=True, loss_weight=1.0
        )
    ),
    "mmdetection's quality focal loss": lambda: adapters.from_mmdetection(
        **dict(type="QualityFocalLoss", use_sigmoid=True, beta=2.0, loss_weight=1.0)
    ),
    "ultralytics' varifocal loss": lambda: adapters.from_ultralytics_varifocal(gamma=2.0, alpha=0.75),
    "YOLOv5's quality focal loss": lambda: adapters.from_yolov5_quality(torch.nn.BCEWithLogitsLoss(), 1.5),
    "smp, reduced": lambda: adapters.from_smp("binary", reduced_threshold=0.5, reduction="sum"),
    "smp, normalised": lambda: adapters.from_smp("binary", normalized=True),
    "smp, softmax scores": lambda: adapters.from_smp("multiclass", from_logits=False),
    "Keras, smoothed": lambda: adapters.from_keras_binary(label_smoothing=0.1),
    "fastai, weighted": lambda: adapters.from_fastai(weight=torch.tensor([1.0, 2.0])),
    "catalyst, reduced": lambda: adapters.from_catalyst(reduced=True),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(name):
    with pytest.raises(ValueError, match=r"^\w+ must be .+, got .+: .{30,}"):
        REFUSED[name]()


def test_a_detectors_images():
    """What a detector hands out for each image, tensors of different lengths, one of them empty."""
    images = [
        {  # the second box is a duplicate, the third has the wrong class
            "boxes": torch.tensor([[10.0, 10, 50, 50], [12.0, 10, 50, 50], [60.0, 60, 90, 90]]),
            "scores": torch.tensor([0.75, 0.5, 0.25]),
            "labels": torch.tensor([1, 1, 2]),
        },
        {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0, dtype=torch.int64)},
    ]
    objects = [
        {"boxes": torch.tensor([[10.0, 10, 50, 50], [60.0, 60, 90, 90]]), "labels": torch.tensor([1, 3])},
        {"boxes": torch.tensor([[0.0, 0, 5, 5]]), "labels": torch.tensor([1])},
    ]
    stats = DetectionCalibration(n_bins=10)
    for found, real in zip(images, objects, strict=True):
        stats.update(
            found["boxes"],
            found["scores"],
            real["boxes"],
            labels=found["labels"],
            truth_labels=real["labels"],
        )
    assert (stats.n, stats.hits.sum()) == (3, 1)
    np.testing.assert_allclose(stats.d_ece(), (0.25 + 0.5 + 0.25) / 3)
