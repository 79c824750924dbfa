import math

import pytest
import torch
from torch import nn

from refocal.experiments.images.resnet import MODELS, BasicBlock, ResNet, build_model
from refocal.experiments.images.study import FIRST_WEIGHTS, SHORTCUTS
from refocal.torch import FocalLoss

KNOWN = {"resnet20": 269_722, "resnet44": 658_586, "resnet110": 1_727_962}
"""Parameters of the CIFAR-10 networks with parameter-free shortcuts, as published with trained weights."""


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_parameter_counts(name):
    # By hand: a convolution, n blocks of two in each stage, two numbers a channel to normalise, a linear one.
    n = (MODELS[name] - 2) // 6
    convolutions = 27 * 16 + 9 * (
        2 * n * 16 * 16 + (16 + (2 * n - 1) * 32) * 32 + (32 + (2 * n - 1) * 64) * 64
    )
    norms = 2 * (16 + 2 * n * (16 + 32 + 64))
    by_hand = convolutions + norms + 64 * 10 + 10
    assert count(build_model(name, 10)) == by_hand == KNOWN.get(name, by_hand)


@pytest.mark.parametrize("name", MODELS)
def test_depth_is_the_number_of_layers_with_weights(name):
    layers = [m for m in build_model(name, 10).modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert len(layers) == MODELS[name]


def test_stages_halve_the_image():
    model = ResNet(8, 7)
    sizes = []
    for block in model.blocks:
        block.register_forward_hook(lambda block, given, out: sizes.append(tuple(out.shape)))
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert sizes == [(2, 16, 32, 32), (2, 32, 16, 16), (2, 64, 8, 8)]


def test_shortcut_takes_every_other_pixel_and_adds_zero_channels():
    block = BasicBlock(16, 32, 2)
    nn.init.zeros_(block.norm2.weight)  # what is left is the shortcut
    x = torch.rand(2, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    out = block(x)
    assert torch.equal(out[:, :16], x[:, :, ::2, ::2])
    assert not out[:, 16:].any()


def test_shortcut_with_a_convolution_is_a_normalised_mix_of_every_other_pixel():
    block = BasicBlock(16, 32, 2, "convolution")
    nn.init.zeros_(block.norm2.weight)
    x = torch.rand(2, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    mixed = torch.einsum("oc,nchw->nohw", block.conv3.weight[:, :, 0, 0], x[:, :, ::2, ::2])
    mean, var = mixed.mean((0, 2, 3), keepdim=True), mixed.var((0, 2, 3), correction=0, keepdim=True)
    torch.testing.assert_close(block(x), ((mixed - mean) / (var + 1e-5).sqrt()).relu())
    assert count(build_model("resnet20", 10, shortcuts="convolution")) == KNOWN["resnet20"] + (
        16 * 32 + 32 * 64 + 2 * (32 + 64)
    )


@pytest.mark.parametrize("shortcuts", SHORTCUTS)
def test_gradient_of_the_network(shortcuts):
    # The network adds and rectifies in place: autograd must not have kept a value that was overwritten.
    torch.manual_seed(0)
    model = ResNet(8, 3, shortcuts).double()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: model(x).square().sum(), x, atol=1e-5, fast_mode=True)


def test_gradients_stay_channels_last():
    # One gradient in the other layout makes every operation after it in the block slow.
    block = BasicBlock(16, 32, 2).to(memory_format=torch.channels_last)
    x = torch.randn(4, 16, 32, 32).contiguous(memory_format=torch.channels_last).requires_grad_()
    y = block(x)
    seen = []
    x.register_hook(lambda gradient: seen.append(gradient.stride()))
    y.square().sum().backward()
    assert seen == [x.stride()]


def test_weights_are_channels_last():
    weight = build_model("resnet8", 10).blocks[0].conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


@pytest.mark.parametrize("gamma, smoothing", [(0.0, 0.0), (2.0, 0.0), (2.0, 0.1)])
def test_one_batch_overfits_to_zero_error(gamma, smoothing):
    torch.manual_seed(0)
    model = build_model("resnet8", 10)
    x, y = torch.randn(32, 3, 16, 16), torch.randint(0, 10, (32,))
    criterion = FocalLoss(gamma, label_smoothing=smoothing)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    first = (model(x).argmax(1) != y).float().mean()
    for _ in range(40):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    assert first > 0.5
    assert (model(x).argmax(1) != y).sum() == 0
    assert (model.eval()(x).argmax(1) != y).sum() == 0  # also with the running statistics


@pytest.mark.parametrize("depth", [2, 9, 18, 0, -4])
def test_bad_depth(depth):
    with pytest.raises(ValueError, match=rf"^depth must be 6 n \+ 2 with n >= 1, got {depth}$"):
        ResNet(depth, 10)


def test_bad_names():
    with pytest.raises(
        ValueError, match=r"^model must be one of resnet8, resnet20, resnet44, resnet110, got 'vgg'$"
    ):
        build_model("vgg", 10)
    with pytest.raises(ValueError, match=r"^n_classes must be at least 2, got 1$"):
        ResNet(8, 1)
    with pytest.raises(ValueError, match=r"^shortcuts must be one of plain, convolution, got 'none'$"):
        ResNet(8, 10, "none")
    with pytest.raises(ValueError, match=r"^first_weights must be one of inputs, outputs, got 'zeros'$"):
        ResNet(8, 10, first_weights="zeros")


@pytest.mark.parametrize("shortcuts", SHORTCUTS)
def test_first_weights(shortcuts):
    """The deviation of each layer, by its inputs or its outputs; PyTorch draws a linear layer evenly."""
    torch.manual_seed(0)
    for first_weights in FIRST_WEIGHTS:
        model = ResNet(20, 10, shortcuts, first_weights)
        for conv in (module for module in model.modules() if isinstance(module, nn.Conv2d)):
            channels = conv.in_channels if first_weights == "inputs" else conv.out_channels
            expected = math.sqrt(2 / (channels * conv.kernel_size[0] ** 2))
            assert conv.weight.std().item() == pytest.approx(
                expected, rel=4 / math.sqrt(2 * conv.weight.numel())
            )
        linear = model.linear.weight
        if first_weights == "inputs":
            assert linear.std().item() == pytest.approx(math.sqrt(2 / 64), rel=0.1)
        else:
            assert linear.std().item() == pytest.approx(1 / 8 / math.sqrt(3), rel=0.1)
            assert linear.abs().max() <= 1 / 8
