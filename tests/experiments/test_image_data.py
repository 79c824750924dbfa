import dataclasses

import numpy as np
import pytest
import torch

from refocal.experiments.datasets import Dataset
from refocal.experiments.image_data import PAD, augment, load_images, prepare


def dataset(n=40, name="mine", **changes):
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 256, (n, 10, 9, 3), dtype=np.uint8), np.arange(n) % 4
    return dataclasses.replace(Dataset(name, x, y, 4, x[:8].copy(), y[:8].copy()), **changes)


def test_the_validation_part_is_stratified_and_not_trained_on():
    given = dataset(80)
    data = prepare(given, 0.1, seed=3)
    assert np.bincount(data.validation_labels).tolist() == [2] * 4
    assert np.bincount(data.train_labels).tolist() == [18] * 4
    inner = data.train[:, PAD:-PAD, PAD:-PAD]
    seen, held_out = ({image.numpy().tobytes() for image in part} for part in (inner, data.validation))
    assert not seen & held_out
    assert seen | held_out == {image.tobytes() for image in given.X}
    assert data.train.sum() == inner.sum()  # the border is black
    other = prepare(given, 0.1, seed=4)
    assert not torch.equal(data.validation, other.validation)
    assert torch.equal(data.validation, prepare(given, 0.1, seed=3).validation)


def test_images_are_normalised_by_the_training_part():
    data = prepare(dataset(), 0.2, seed=0)
    inner = data.train[:, PAD:-PAD, PAD:-PAD]
    normalised = data.normalise(inner)
    assert normalised.shape == (32, 3, 10, 9)
    assert normalised.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(normalised.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normalised.std((0, 2, 3), correction=0), torch.ones(3))
    expected = (data.test[5, 2, 1, 0].double() - inner[..., 0].double().mean()) / inner[..., 0].double().std(
        correction=0
    )
    assert float(data.normalise(data.test)[5, 0, 2, 1]) == pytest.approx(float(expected), rel=1e-5)


def test_augmentation_is_that_of_single_images():
    data = prepare(dataset(), 0.2, seed=0)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, len(data.train), (64,), generator=generator)
    shift = torch.randint(0, 2 * PAD + 1, (64, 2), generator=generator)
    shift[0], shift[1] = torch.tensor([0, 2 * PAD]), torch.tensor([2 * PAD, 0])
    mirror = torch.rand(64, generator=generator) < 0.5
    got = augment(data, rows, shift, mirror)
    for image, row, (top, left), mirrored in zip(got, rows, shift.tolist(), mirror.tolist(), strict=True):
        cut = data.train[row].numpy()[top : top + 10, left : left + 9]
        cut = cut[:, ::-1] if mirrored else cut
        expected = (cut.astype(float) - data.mean.numpy()) / data.std.numpy()
        np.testing.assert_allclose(image.numpy(), expected.transpose(2, 0, 1), atol=1e-5)


def test_a_tenth_of_cifar10_is_drawn_where_there_is_no_file_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (200, 8, 8, 3), dtype=np.uint8), rng.permutation(np.arange(200) % 4)
    np.savez(tmp_path / "cifar10.npz", X_train=x, y_train=y, X_test=x[:9], y_test=y[:9])
    drawn = load_images("cifar10-s", tmp_path)
    assert drawn.name == "cifar10-s"
    assert np.bincount(drawn.y).tolist() == [5] * 4
    assert {image.tobytes() for image in drawn.X} <= {image.tobytes() for image in x}
    assert np.array_equal(drawn.X_test, x[:9])
    assert np.array_equal(drawn.X, load_images("cifar10-s", tmp_path).X)
    np.savez(tmp_path / "cifar10-s.npz", X_train=x[:40], y_train=y[:40], X_test=x[:9], y_test=y[:9])
    assert np.array_equal(load_images("cifar10-s", tmp_path).X, x[:40])


def changed(array, position, value):
    array = array.copy()
    array[position] = value
    return array


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"X_test": None}, "mine has no test set; X_test and y_test are needed"),
        (
            {"X": np.zeros((40, 10, 9), np.uint8)},
            r"X of mine must be uint8 images .* got uint8 \(40, 10, 9\)",
        ),
        ({"X": np.zeros((40, 3, 10, 9), np.uint8)}, r"X of mine must .* got uint8 \(40, 3, 10, 9\)"),
        ({"X": np.zeros((40, 4, 4, 3), np.uint8)}, r"at least 8 x 8 pixels, got uint8 \(40, 4, 4, 3\)"),
        ({"X_test": np.zeros((8, 10, 9, 3))}, r"X_test of mine must .* got float64 \(8, 10, 9, 3\)"),
        ({"X_test": np.zeros((8, 9, 10, 3), np.uint8)}, r"one size, got \(10, 9, 3\) and \(9, 10, 3\)"),
        ({"y": changed(dataset().y, 7, 4)}, r"^labels of mine must be within 0\.\.3, got 4$"),
        ({"y_test": changed(dataset().y_test, 7, -1)}, r"^labels of mine must be within 0\.\.3, got -1$"),
        ({"y": dataset().y[:-1]}, "one label an image in X"),
    ],
)
def test_bad_images(changes, message):
    with pytest.raises(ValueError, match=message):
        prepare(dataset(**changes), 0.1, seed=0)


def test_too_few_images_for_a_validation_part():
    with pytest.raises(ValueError, match=r"too few images for a validation part of 0\.1: 8$"):
        prepare(dataset(8), 0.1, seed=0)
