import dataclasses
import shutil
import tracemalloc

import numpy as np
import pytest
import torch
from image_stand_in import config_of, save_tiny

from refocal.experiments.data.datasets import Dataset
from refocal.experiments.files import sha256_of
from refocal.experiments.images.data import (
    PAD,
    augment,
    draw_of_trial,
    draw_part,
    fetched_file,
    prepare,
    read_images,
    ready_files,
)
from refocal.experiments.sweeps import run_key, sweep


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


def test_mean_and_deviation_are_those_of_float64_without_its_memory():
    rng = np.random.default_rng(2)
    x = rng.integers(0, [256, 100, 4], (400, 32, 32, 3), dtype=np.uint8)
    x[..., 2] //= 3  # 0 or 1, as almost black images: their deviation is taken as 1
    given = dataset(400, X=x, X_test=x[:8])
    tracemalloc.start()
    data = prepare(given, 0.1, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    pixels = data.train[:, PAD:-PAD, PAD:-PAD].reshape(-1, 3).numpy().astype(np.float64)
    np.testing.assert_array_equal(data.mean.numpy(), pixels.mean(0).astype(np.float32))
    np.testing.assert_array_equal(data.std.numpy(), np.maximum(pixels.std(0), 1).astype(np.float32))
    assert pixels.std(0)[2] < 1
    assert peak < 8 / 3 * x.nbytes


@pytest.mark.parametrize("name, flip", [("svhn", False), ("SVHN", False), ("Svhn-s", False), ("mine", True)])
def test_digits_are_not_mirrored_whatever_the_capitals_of_their_file(name, flip):
    assert prepare(dataset(name=name), 0.1, seed=0).flip is flip


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

    def images():
        return read_images("cifar10-s", fetched_file("cifar10-s", tmp_path))

    drawn = images()
    assert drawn.name == "cifar10-s"
    assert np.bincount(drawn.y).tolist() == [5] * 4
    assert {image.tobytes() for image in drawn.X} <= {image.tobytes() for image in x}
    assert np.array_equal(drawn.X_test, x[:9])
    assert np.array_equal(drawn.X, images().X)
    np.savez(tmp_path / "cifar10-s.npz", X_train=x[:40], y_train=y[:40], X_test=x[:9], y_test=y[:9])
    assert np.array_equal(images().X, x[:40])


def test_each_trial_draws_its_own_part_of_each_class():
    whole = dataset(200)
    drawn = [draw_of_trial(whole, 0.3, seed) for seed in (0, 0, 1)]
    assert all(np.bincount(part.y).tolist() == [15] * 4 for part in drawn)
    first, again, other = ({image.tobytes() for image in part.X} for part in drawn)
    assert first == again
    assert len(first & other) < 45
    assert first | other <= {image.tobytes() for image in whole.X}
    assert all(part.X_test is whole.X_test for part in drawn)
    assert draw_of_trial(whole, None, 0) is whole


# What finished runs were made from


def finish(config, out, data):
    """Put a run into a folder as if it had been trained."""
    file = fetched_file(config["dataset"], data)
    images = draw_of_trial(read_images(config["dataset"], file), config.get("train_part"), config["seed"])
    result = {"data_sha256": sha256_of(file), "n_train": len(images.y), "n_validation": 0}
    sweep([config], lambda config: result, out, progress=False)


def test_a_drawn_tenth_and_a_file_of_its_own_are_not_mixed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    drawn, own, copied, out = (tmp_path / name for name in ("drawn", "own", "copied", "out"))
    for folder in (drawn, own, copied):
        folder.mkdir()
    x, y = dataset(400).X, dataset(400).y
    np.savez(drawn / "cifar10.npz", X_train=x, y_train=y, X_test=x[:9], y_test=y[:9])
    np.savez(own / "cifar10-s.npz", X_train=x[:40], y_train=y[:40], X_test=x[:9], y_test=y[:9])
    shutil.copy(drawn / "cifar10.npz", copied / "cifar10-s.npz")  # the same bytes, but nothing is drawn
    first, second = config_of("cifar10-s"), config_of("cifar10-s", gamma=0)
    finish(first, out, drawn)
    assert ready_files([second], out, drawn) == {"cifar10-s": drawn / "cifar10.npz"}
    run = rf"run {run_key(first)} in \S+out was made from"
    with pytest.raises(ValueError, match=rf"own/cifar10-s\.npz is not the file that {run}: its SHA-256 is "):
        ready_files([second], out, own)
    with pytest.raises(
        ValueError, match=rf"gives 400 training images of cifar10-s, but {run} 40; use another"
    ):
        ready_files([second], out, copied)


def test_runs_on_all_images_and_on_a_part_are_from_one_file(tmp_path):
    save_tiny(tmp_path / "tiny.npz")
    finish(config_of("tiny"), tmp_path / "out", tmp_path)
    finish(config_of("tiny", train_part=0.5), tmp_path / "out", tmp_path)
    wanted = [config_of("tiny", train_part=0.5, seed=1), config_of("tiny", seed=1)]
    assert ready_files(wanted, tmp_path / "out", tmp_path) == {"tiny": tmp_path / "tiny.npz"}
    few = config_of("tiny", train_part=0.1, validation=0.9)
    with pytest.raises(ValueError, match=r"has too few images for a validation part of 0\.9: 4$"):
        ready_files([few], tmp_path / "out", tmp_path)


def test_runs_of_other_experiments_and_data_sets_do_not_matter(tmp_path):
    save_tiny(tmp_path / "tiny.npz")
    save_tiny(tmp_path / "second.npz")
    others = [{"experiment": "tabular", "dataset": "tiny"}, config_of("second")]
    sweep(others, lambda config: {"data_sha256": "0" * 64}, tmp_path / "out", progress=False)
    files = ready_files([config_of("tiny")], tmp_path / "out", tmp_path)
    assert files == {"tiny": tmp_path / "tiny.npz"}


# What is refused


def changed(array, position, value):
    array = array.copy()
    array[position] = value
    return array


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"X_test": None},
            "^mine must have the arrays X_train, y_train, X_test, y_test; got X and y, which are read as one "
            "table without a test set$",
        ),
        (
            {"X": np.zeros((40, 10, 9), np.uint8)},
            r"^mine: X_train must be uint8 images .* got uint8 \(40, 10, 9\)$",
        ),
        ({"X": np.zeros((40, 3, 10, 9), np.uint8)}, r"^mine: X_train must .* got uint8 \(40, 3, 10, 9\)$"),
        ({"X": np.zeros((40, 4, 4, 3), np.uint8)}, r"at least 8 x 8 pixels, got uint8 \(40, 4, 4, 3\)$"),
        ({"X_test": np.zeros((8, 10, 9, 3))}, r"^mine: X_test must .* got float64 \(8, 10, 9, 3\)$"),
        (
            {"X_test": np.zeros((8, 9, 10, 3), np.uint8)},
            r"^mine: X_train and X_test must have one size, got \(10, 9, 3\) and \(9, 10, 3\)$",
        ),
        ({"y": changed(dataset().y, 7, 4)}, r"^mine: y_train must be within 0\.\.3, got 4$"),
        ({"y_test": changed(dataset().y_test, 7, -1)}, r"^mine: y_test must be within 0\.\.3, got -1$"),
        (
            {"y": dataset().y[:-1]},
            r"^mine: y_train must be one label for each image of X_train, got \(39,\) for \(40, 10, 9, 3\)$",
        ),
    ],
)
def test_bad_images(changes, message):
    with pytest.raises(ValueError, match=message):
        prepare(dataset(**changes), 0.1, seed=0)


def test_without_a_validation_part_every_image_is_trained_on():
    data = prepare(dataset(80), 0.0, seed=3)
    assert data.validation.shape == (0, 10, 9, 3)
    assert len(data.train) == 80


def test_too_few_images_for_a_validation_part():
    with pytest.raises(ValueError, match=r"too few images for a validation part of 0\.1: 8$"):
        prepare(dataset(8), 0.1, seed=0)


def test_an_error_names_the_file_and_its_arrays(tmp_path):
    given = dataset()
    mixed, planes = tmp_path / "mixed.npz", tmp_path / "planes.npz"
    np.savez(mixed, X=given.X, y=given.y, X_test=given.X_test, y_test=given.y_test)
    with pytest.raises(
        ValueError, match="must have the arrays X_train, y_train, X_test, y_test; got"
    ) as raised:
        prepare(read_images("mixed", mixed), 0.1, seed=0)
    assert str(raised.value).startswith(f"{mixed} must ")
    first = {"X_train": np.moveaxis(given.X, 3, 1), "X_test": np.moveaxis(given.X_test, 3, 1)}
    np.savez(planes, **first, y_train=given.y, y_test=given.y_test)
    with pytest.raises(ValueError, match="X_train must be uint8 images") as raised:
        prepare(read_images("planes", planes), 0.1, seed=0)
    assert str(raised.value).startswith(f"{planes}: X_train must ")


def pool_of(n_train, n_test, classes=4):
    """A data set whose images can be told apart: each has its number in its first bytes."""

    def images(first, n):
        x = np.zeros((n, 8, 8, 3), dtype=np.uint8)
        x[:, 0, 0, 0], x[:, 0, 0, 1] = (first + np.arange(n)) // 256, (first + np.arange(n)) % 256
        return x, (first + np.arange(n)) % classes

    (x, y), (x_test, y_test) = images(0, n_train), images(n_train, n_test)
    return Dataset("mine", x, y, classes, X_test=x_test, y_test=y_test)


def numbers(images):
    return set((images[:, 0, 0, 0].astype(int) * 256 + images[:, 0, 0, 1]).tolist())


def test_parts_of_a_pool_are_nested_in_proportion_and_have_one_test_set():
    pool = pool_of(100, 300)
    small, large = (draw_part(pool, size, 80) for size in (40, 320))
    assert numbers(small.X_test) == numbers(large.X_test)
    assert numbers(small.X) < numbers(large.X)
    assert not numbers(large.X) & numbers(large.X_test)
    assert numbers(large.X) | numbers(large.X_test) == set(range(400))
    for labels, each in ((small.y, 10), (small.y_test, 20), (large.y, 80)):
        assert np.bincount(labels).tolist() == [each] * 4
    for number, label in zip(small.X[:, 0, 0, 1], small.y, strict=True):
        assert number % 4 == label  # labels stay with their images
    assert draw_part(pool, None, None) is pool
    again = draw_part(pool, 40, 80)
    assert (again.X == small.X).all()


def test_a_pool_that_is_too_small():
    text = r"^train_size and test_size must be at most 400 together, the images of mine, got 321 and 80$"
    with pytest.raises(ValueError, match=text):
        draw_part(pool_of(100, 300), 321, 80)
