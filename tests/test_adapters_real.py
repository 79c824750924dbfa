"""The adapters beside the libraries themselves: a library's own loss is minimised, and the truth comes back.

A case gives the same arguments to the library and to the adapter. Libraries that are not installed are
skipped; ``pip install 'refocal[peers]'`` brings those that do without torchvision.
"""

from __future__ import annotations

import importlib
import inspect
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest
import scipy.optimize
import torch
from risk import minimise

from refocal import Focal
from refocal import adapters as ad


def library(where):
    """Return ``module:name``, or skip the test where the module is not installed."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    module, _, name = where.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an import of theirs is not what is tested
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError as error:
            pytest.skip(f"{module.partition('.')[0]} is not installed ({error})")


@pytest.fixture
def in_float64(monkeypatch):
    """Run code that casts to float32, whose minima are flat in half of the digits, in float64."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


# How the losses are called: function or class, for logits z of one row and the label y.


def entries(loss, settings, z, y):
    """A function of one binary problem."""
    return loss(z[None], torch.full_like(z[None], y), **settings).sum()


def entries_class(loss, settings, z, y):
    return loss(**settings)(z[None], torch.full_like(z[None], y)).sum()


def index_class(loss, settings, z, y):
    return loss(**settings)(z[None], torch.tensor([y])).sum()


def index_function(loss, settings, z, y):
    return loss(z[None], torch.tensor([y]), **settings).sum()


def channel_class(loss, settings, z, y):
    """MONAI's label of a pixel is a channel."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it ignores a scalar alpha
        return loss(**settings)(z[None, :, None], torch.full((1, 1, 1), y)).sum()


def one_hot_class(loss, settings, z, y):
    target = torch.nn.functional.one_hot(torch.tensor([y]), len(z)).to(z)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return loss(**settings)(z[None, :, None], target[:, :, None]).sum()


def keras_binary(loss, settings, z, y):
    # Its __call__ would cast to float32 before it reduces.
    return loss(**settings).call(torch.full_like(z[None], y), z[None]).sum()


def keras_categorical(loss, settings, z, y):
    target = torch.nn.functional.one_hot(torch.tensor([y]), len(z)).to(z)
    return loss(**settings).call(target, z[None]).sum()


@dataclass(frozen=True)
class Case:
    """A loss with its arguments; `ours` are those that only the adapter has."""

    where: str
    adapter: Callable[..., Any]
    call: Callable[..., Any]
    settings: dict[str, Any]
    ours: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        inside = ", ".join(f"{k}={v}" for k, v in self.settings.items())
        return f"{self.where.partition(':')[2]}({inside}) of {self.where.partition('.')[0]}"

    def objective(self):
        return self.adapter(**self.settings, **self.ours)


def case(where, adapter, call, _ours=None, **settings):
    return Case(where, adapter, call, settings, _ours or {})


VISION, FVCORE = "torchvision.ops:sigmoid_focal_loss", "fvcore.nn:sigmoid_focal_loss"
KORNIA, KORNIA_BINARY = "kornia.losses:FocalLoss", "kornia.losses:BinaryFocalLossWithLogits"
MONAI, SMP = "monai.losses:FocalLoss", "segmentation_models_pytorch.losses:FocalLoss"
KERAS_BINARY = "keras.losses:BinaryFocalCrossentropy"
KERAS = "keras.losses:CategoricalFocalCrossentropy"
TIMM, TIMM_SINGLE = "timm.loss:AsymmetricLossMultiLabel", "timm.loss:AsymmetricLossSingleLabel"
DETR = "transformers.loss.loss_for_object_detection:sigmoid_focal_loss"
DINO = "transformers.loss.loss_grounding_dino:sigmoid_focal_loss"
ULTRALYTICS = "ultralytics.utils.loss:FocalLoss"
CATALYST = "catalyst.contrib.losses.focal:FocalLossBinary"
CATALYST_MULTI = "catalyst.contrib.losses.focal:FocalLossMultiClass"
FASTAI, FASTAI_FLAT = "fastai.losses:FocalLoss", "fastai.losses:FocalLossFlat"

BINARY = [
    case(VISION, ad.from_torchvision, entries, alpha=0.25, gamma=2, reduction="mean"),
    case(VISION, ad.from_torchvision, entries, alpha=-1, gamma=1.5),
    case(FVCORE, ad.from_fvcore, entries),
    case(FVCORE, ad.from_fvcore, entries, alpha=0.4, gamma=3.0, reduction="sum"),
    case(KORNIA_BINARY, ad.from_kornia_binary, entries_class, alpha=None, gamma=1.0),
    case(KORNIA_BINARY, ad.from_kornia_binary, entries_class, alpha=0.25, pos_weight=torch.tensor([3.0])),
    case(
        KORNIA_BINARY,
        ad.from_kornia_binary,
        entries_class,
        alpha=None,
        pos_weight=torch.tensor([0.2]),
        weight=torch.tensor([7.0]),
    ),
    case(MONAI, ad.from_monai, entries_class),
    case(MONAI, ad.from_monai, entries_class, gamma=3.0, alpha=0.75, weight=2.0),
    case(MONAI, ad.from_monai, entries_class, alpha=[0.25]),
    case(MONAI, ad.from_monai, entries_class, alpha=[4.0]),
    case(MONAI, ad.from_monai, entries_class, alpha=torch.tensor(0.25)),
    case(SMP, ad.from_smp, entries_class, mode="binary", alpha=0.6, ignore_index=255),
    case(SMP, ad.from_smp, entries_class, mode="multilabel", gamma=1.0, class_weights=[3.0]),
    case(KERAS_BINARY, ad.from_keras_binary, keras_binary, from_logits=True),
    case(
        KERAS_BINARY,
        ad.from_keras_binary,
        keras_binary,
        apply_class_balancing=True,
        alpha=0.25,
        gamma=1.0,
        from_logits=True,
    ),
    case(TIMM, ad.from_timm_multilabel, entries_class),
    case(TIMM, ad.from_timm_multilabel, entries_class, gamma_neg=2, gamma_pos=0.5, clip=None),
    case(DETR, ad.from_transformers, entries, num_boxes=3, alpha=0.25, gamma=2),
    case(DETR, ad.from_transformers, entries, num_boxes=1, alpha=-1, gamma=1),
    case(DINO, ad.from_transformers, entries, num_boxes=5, alpha=0.6),
    case(ULTRALYTICS, ad.from_ultralytics, entries_class),
    case(ULTRALYTICS, ad.from_ultralytics, entries_class, gamma=2.0, alpha=0.0),
    case(CATALYST, ad.from_catalyst, entries_class),
    case(CATALYST, ad.from_catalyst, entries_class, ignore=-1, gamma=1.0, alpha=None, threshold=0.3),
]

SOFTMAX = [
    case(KORNIA, ad.from_kornia, index_class, alpha=None),
    case(KORNIA, ad.from_kornia, index_class, {"n_classes": 3}, alpha=0.25, gamma=1.0, reduction="mean"),
    case(KORNIA, ad.from_kornia, index_class, alpha=0.25, weight=torch.tensor([1.0, 2.0, 4.0]).double()),
    case(MONAI, ad.from_monai, channel_class, to_onehot_y=True, use_softmax=True, weight=[1.0, 2.0, 3.0]),
    case(
        MONAI, ad.from_monai, channel_class, {"n_classes": 3}, to_onehot_y=True, use_softmax=True, alpha=0.9
    ),
    case(
        MONAI,
        ad.from_monai,
        channel_class,
        to_onehot_y=True,
        use_softmax=True,
        alpha=[0.25, 0.5, 0.75],
        weight=(3.0, 2.0, 1.0),
    ),
    case(MONAI, ad.from_monai, channel_class, to_onehot_y=True, alpha=0.75),
    case(MONAI, ad.from_monai, channel_class, to_onehot_y=True, alpha=[0.25, 0.5, 0.75], weight=[3, 2, 1]),
    case(MONAI, ad.from_monai, one_hot_class, alpha=[0.25, 0.5, 0.75]),
    case(SMP, ad.from_smp, index_class, mode="multiclass", alpha=0.25),
    case(SMP, ad.from_smp, index_class, mode="multiclass", gamma=1.0, class_weights=[1.0, 2.0, 3.0]),
    case(KERAS, ad.from_keras_categorical, keras_categorical, from_logits=True),
    case(
        KERAS,
        ad.from_keras_categorical,
        keras_categorical,
        alpha=[0.2, 0.5, 0.3],
        gamma=1.0,
        from_logits=True,
        label_smoothing=0.1,
    ),
    case(TIMM_SINGLE, ad.from_timm_single_label, index_class),
    case(TIMM_SINGLE, ad.from_timm_single_label, index_class, gamma_pos=2, eps=0.0, reduction="none"),
    case(CATALYST_MULTI, ad.from_catalyst_multiclass, index_class, gamma=1.5),
    case(FASTAI, ad.from_fastai, index_class, gamma=3.0, reduction="sum"),
    case(FASTAI_FLAT, ad.from_fastai, index_class, gamma=1.0, axis=-1),
]


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("case", BINARY, ids=str)
def test_binary_losses(case):
    loss, spec = library(case.where), case.objective()
    for eta in np.random.default_rng(1).uniform(0.03, 0.97, 3):
        z = minimise(
            lambda z, eta=eta: (
                eta * case.call(loss, case.settings, z, 1.0)
                + (1 - eta) * case.call(loss, case.settings, z, 0.0)
            ),
            1,
        )
        np.testing.assert_allclose(spec.posterior(z), eta, atol=1e-6)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("case", SOFTMAX, ids=str)
def test_multiclass_losses(case):
    loss, spec = library(case.where), case.objective()
    for eta in np.random.default_rng(2).dirichlet([2.0, 2.0, 2.0], 3):
        z = minimise(
            lambda z, eta=eta: sum(p * case.call(loss, case.settings, z, y) for y, p in enumerate(eta)), 3
        )
        np.testing.assert_allclose(spec.posterior(z), eta, atol=2e-6)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("alpha", [0.9, [0.25, 0.75], torch.tensor(0.9)], ids=str)
def test_monai_softmax_without_the_background(alpha):
    """The scores of the other channels say which class it is, given that it is none of channel 0."""
    eta = np.array([0.4, 0.45, 0.15])
    settings = {"to_onehot_y": True, "use_softmax": True, "include_background": False, "alpha": alpha}
    spec, loss = ad.from_monai(**settings, n_classes=2), library(MONAI)
    z = minimise(lambda z: sum(p * channel_class(loss, settings, z, y) for y, p in enumerate(eta)), 3)
    np.testing.assert_allclose(spec.posterior(z[1:]), eta[1:] / 0.6, atol=1e-6)


@pytest.mark.usefixtures("in_float64")
def test_monai_sigmoid_without_the_background():
    eta = np.array([0.4, 0.45, 0.15])
    settings = {"to_onehot_y": True, "include_background": False, "alpha": [0.25, 0.75]}
    spec, loss = ad.from_monai(**settings), library(MONAI)
    z = minimise(lambda z: sum(p * channel_class(loss, settings, z, y) for y, p in enumerate(eta)), 3)
    np.testing.assert_allclose(spec.posterior(z[1:]), eta[1:], atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"alpha": 0.25}, {"alpha": 0.9, "gamma": 0.5}], ids=str)
def test_optax(settings):
    loss, spec = library("optax.losses:sigmoid_focal_loss"), ad.from_optax(**settings)
    eta = np.random.default_rng(3).uniform(0.03, 0.97, 4)

    @jax.jit
    @jax.value_and_grad
    def risk(z):
        return (eta * loss(z, 1.0 + 0 * z, **settings) + (1 - eta) * loss(z, 0 * z, **settings)).sum()

    def value_and_gradient(z):
        value, gradient = risk(jax.numpy.asarray(z))
        return float(value), np.asarray(gradient)

    z = np.zeros(4)
    for _ in range(3):
        z = scipy.optimize.minimize(value_and_gradient, z, jac=True, method="BFGS", options={"gtol": 1e-11}).x
    np.testing.assert_allclose(spec.posterior(z), eta, atol=1e-6)


def stationary(field):
    return scipy.optimize.brentq(field, -12, 12, xtol=1e-13)


@pytest.mark.parametrize("settings", [{}, {"alpha": 3.0, "gamma": 1.0}, {"alpha": 0.2}], ids=str)
def test_bokbokbok(settings):
    """It hands out gradients: at a minimum their expectation is 0."""
    loss = library("bokbokbok.loss_functions.classification:WeightedFocalLoss")(**settings)
    spec = ad.from_bokbokbok(**settings)

    class Labels:
        def __init__(self, y):
            self.y = np.array([float(y)])

        def get_label(self):
            return self.y

    for eta in (0.1, 0.4, 0.9):
        z = stationary(
            lambda z, eta=eta: (
                eta * loss(np.array([z]), Labels(1))[0][0] + (1 - eta) * loss(np.array([z]), Labels(0))[0][0]
            )
        )
        np.testing.assert_allclose(spec.posterior(np.array([z])), eta, atol=1e-9)


@pytest.mark.parametrize("disabled", [False, True])
def test_timm_with_constant_powers(disabled):
    """Where the powers have no gradient, training stops where the remaining gradient is 0."""
    settings = {"disable_torch_grad_focal_loss": disabled}
    loss, spec = library(TIMM)(**settings), ad.from_timm_multilabel(**settings)
    for eta in (0.1, 0.4, 0.9):

        def field(z, eta=eta):
            z = torch.tensor([z], dtype=torch.float64, requires_grad=True)
            risk = eta * loss(z, torch.ones_like(z)) + (1 - eta) * loss(z, torch.zeros_like(z))
            return torch.autograd.grad(risk, z)[0].item()

        np.testing.assert_allclose(spec.posterior(np.array([stationary(field)])), eta, atol=1e-8)


@pytest.mark.parametrize(
    "loss", ["Focal:focal_alpha=0.3;focal_gamma=2.0", "Focal:focal_gamma=1;focal_alpha=0.8"]
)
def test_catboost(loss):
    """Eight groups, each with both labels weighted by its posterior, boosted until nothing moves."""
    classifier = library("catboost:CatBoostClassifier")
    eta = np.random.default_rng(4).uniform(0.1, 0.9, 8)
    model = classifier(
        loss_function=loss,
        iterations=400,
        learning_rate=0.5,
        depth=3,
        l2_leaf_reg=0,
        random_strength=0,
        bootstrap_type="No",
        leaf_estimation_method="Gradient",
        leaf_estimation_iterations=5,
        boosting_type="Plain",
        thread_count=1,
        allow_writing_files=False,
        verbose=False,
    )
    group, y = np.repeat(np.arange(8.0), 2)[:, None], np.tile([1, 0], 8)
    model.fit(group, y, sample_weight=np.stack([eta, 1 - eta], axis=1).ravel())
    raw = model.predict(np.arange(8.0)[:, None], prediction_type="RawFormulaVal")
    np.testing.assert_allclose(ad.from_catboost(loss).posterior(raw), eta, atol=1e-6)


@pytest.mark.usefixtures("in_float64")
def test_why_weights_of_fastai_are_refused():
    """A weight w gives the focal factor (1 - q^w)^gamma: the weighted focal loss reads it wrongly."""
    eta, weight = np.array([0.5, 0.3, 0.2]), torch.tensor([1.0, 3.0, 3.0]).double()
    loss = library(FASTAI)(gamma=2.0, weight=weight)
    z = minimise(lambda z: sum(p * loss(z[None], torch.tensor([y])) for y, p in enumerate(eta)), 3)
    assert np.abs(Focal(gamma=2.0, weight=weight).posterior(z) - eta).max() > 0.05


@pytest.mark.usefixtures("in_float64")
def test_why_varifocal_is_refused():
    """Boxes whose qualities have the same mean, 0.4, end at different scores."""
    loss = library("ultralytics.utils.loss:VarifocalLoss")()

    def best(qualities):
        def risk(z):
            terms = [
                p * loss(z[None], torch.full_like(z[None], q), torch.full_like(z[None], q > 0))
                for q, p in qualities.items()
            ]
            return sum(terms)

        return 1 / (1 + np.exp(-minimise(risk, 1)[0]))

    same, mixed = best({0.4: 1.0}), best({0.8: 0.5, 0.0: 0.5})
    np.testing.assert_allclose(same, 0.4, atol=1e-6)
    assert mixed > 0.5


SIGNATURES = [
    (ad.from_torchvision, VISION),
    (ad.from_fvcore, FVCORE),
    (ad.from_transformers, DETR),
    (ad.from_transformers, DINO),
    (ad.from_ultralytics, ULTRALYTICS),
    (ad.from_ultralytics_varifocal, "ultralytics.utils.loss:VarifocalLoss"),
    (ad.from_kornia, KORNIA),
    (ad.from_kornia, "kornia.losses:focal_loss"),
    (ad.from_kornia_binary, KORNIA_BINARY),
    (ad.from_kornia_binary, "kornia.losses:binary_focal_loss_with_logits"),
    (ad.from_monai, MONAI),
    (ad.from_smp, SMP),
    (ad.from_keras_binary, KERAS_BINARY),
    (ad.from_keras_categorical, KERAS),
    (ad.from_timm_multilabel, TIMM),
    (ad.from_timm_single_label, TIMM_SINGLE),
    (ad.from_optax, "optax.losses:sigmoid_focal_loss"),
    (ad.from_fastai, FASTAI),
    (ad.from_catalyst, CATALYST),
    (ad.from_catalyst_multiclass, CATALYST_MULTI),
    (ad.from_bokbokbok, "bokbokbok.loss_functions.classification:WeightedFocalLoss"),
]
OF_A_BATCH = {"inputs", "input", "logits", "pred", "targets", "target", "labels", "num_boxes"}


@pytest.mark.parametrize("adapter, where", SIGNATURES, ids=lambda x: getattr(x, "__name__", x))
def test_signatures_are_the_libraries_own(adapter, where):
    """Names, order and defaults; what the adapter alone has can only be given by name."""
    theirs = inspect.signature(library(where)).parameters
    theirs = {name: p for name, p in theirs.items() if name not in OF_A_BATCH}
    ours = inspect.signature(adapter).parameters
    shared = [name for name in ours if name in theirs]
    assert shared == list(theirs)
    alone = [p for name, p in ours.items() if name not in theirs]
    assert all(p.kind is p.KEYWORD_ONLY for p in alone)
    for name, parameter in theirs.items():
        if parameter.default is not parameter.empty:
            default = getattr(parameter.default, "value", parameter.default)  # MONAI's is an enumeration
            assert ours[name].default == default, name
        assert ours[name].kind is parameter.kind, name
