"""Images on the training device: uint8 in memory, augmented batch by batch."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from refocal.experiments.data import SPLIT, Dataset, fetch, find, load
from refocal.experiments.files import sha256_of
from refocal.experiments.images.study import KIND
from refocal.experiments.sweeps import read_runs, run_key

PAD = 4
"""Pixels of black border from which a training image is cut at random."""

SMALLEST = 8
"""Pixels: the network halves an image twice."""


@dataclass(frozen=True)
class ImageData:
    """The images of one run on the training device, as uint8 (n, height, width, 3).

    Attributes:
        train: Training images with a black border of `PAD` pixels.
        train_labels: int64, as the other labels.
        validation: Images for the temperature; the training does not see them.
        validation_labels: Theirs.
        test: Test images.
        test_labels: Theirs.
        mean: (3,) Of the training images' values 0..255, without the border.
        std: (3,) Standard deviation of the same.
        n_classes: How many classes.
        flip: Whether an image may be mirrored; not where it shows a digit.
    """

    train: Tensor
    train_labels: Tensor
    validation: Tensor
    validation_labels: Tensor
    test: Tensor
    test_labels: Tensor
    mean: Tensor
    std: Tensor
    n_classes: int
    flip: bool

    def normalise(self, images: Tensor) -> Tensor:
        """Return uint8 (n, height, width, 3) as float (n, 3, height, width), channels last in memory."""
        return images.to(torch.float32).sub_(self.mean).div_(self.std).permute(0, 3, 1, 2)


def fetched_file(name: str, data: str | os.PathLike[str] | None = None) -> Path:
    """Return the file of `image_file`; what is not here is fetched from OpenML into the cache."""
    path = image_file(name, data)
    return fetch("cifar10" if name == "cifar10-s" else name).absolute() if path is None else path


def image_file(name: str, data: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the file of an image data set as an absolute path; None if it would have to be fetched.

    Where there is no file of "cifar10-s", it is that of "cifar10".
    """
    path = find(name, data)
    if path is None and name == "cifar10-s":
        path = find("cifar10", data)
    return None if path is None else path.absolute()


def read_images(name: str, path: Path) -> Dataset:
    """Return an image data set from the file that `image_file` names.

    From the file of "cifar10", "cifar10-s" is drawn with a fixed seed: a tenth of the training images of each
    class, and the whole test set.
    """
    dataset = load(path)
    if name != "cifar10-s" or path.stem != "cifar10":
        return dataset
    return replace(draw_of_trial(dataset, 0.1, seed=0), name=name)


def draw_of_trial(dataset: Dataset, train_part: float | None, seed: int) -> Dataset:
    """Return a part of the training images of each class, and the whole test set; None is no change."""
    if train_part is None:
        return dataset
    kept = _stratified(dataset.y, train_part, seed)
    return replace(dataset, X=dataset.X[kept], y=dataset.y[kept])


def draw_part(dataset: Dataset, train_size: int | None, test_size: int | None) -> Dataset:
    """Return a part of the pool of training and test images, the classes in proportion; None is no change.

    The draw has a fixed seed: the test images are the same for every ``train_size``, and the training images
    of a smaller one are among those of a larger one.

    Raises:
        ValueError: If the pool has too few images.
    """
    if train_size is None or test_size is None:
        return dataset
    if dataset.X_test is None or dataset.y_test is None:
        raise ValueError(f"{dataset.path or dataset.name} must have the arrays {', '.join(SPLIT)}")
    X = np.concatenate([dataset.X, dataset.X_test])
    y = np.concatenate([dataset.y, dataset.y_test])
    if train_size + test_size > len(y):
        raise ValueError(
            f"train_size and test_size must be at most {len(y)} together, the images of "
            f"{dataset.path or dataset.name}, got {train_size} and {test_size}"
        )
    rng, place = np.random.default_rng(0), np.empty(len(y))
    for k in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == k))
        place[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
    order = np.argsort(place, kind="stable")  # every beginning of it has the classes in proportion
    test, train = order[:test_size], order[test_size : test_size + train_size]
    return replace(dataset, X=X[train], y=y[train], X_test=X[test], y_test=y[test])


def ready_files(
    configs: Iterable[Mapping[str, Any]],
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
) -> dict[str, Path]:
    """Return the file of each data set that a sweep still needs: fetched, read and checked.

    Finished runs need no data. Where the data are here, every finished run of a wanted data set has to be
    made from them, even one that is not wanted now: a table has all runs of the folder.

    Raises:
        ValueError: If data cannot be trained on, or are not those of the finished runs.
        OSError: If a file is missing or cannot be fetched.
    """
    todo = {run_key(config): config for config in configs}
    wanted = {config["dataset"] for config in todo.values()}
    finished = []
    with contextlib.suppress(FileNotFoundError):  # the first sweep into this folder
        finished = [run for run in read_runs(out) if run.config.get("experiment") == KIND]
    for run in finished:
        todo.pop(run.key, None)
    files: dict[str, Path] = {}
    sizes: dict[tuple[Any, ...], int] = {}
    parts = ((*_part_of(c), c["validation"], c.get("test_size")) for c in todo.values())
    for name, train_size, train_part, validation, test_size in dict.fromkeys(parts):
        files[name] = fetched_file(name, data)
        images = draw_part(read_images(name, files[name]), train_size, test_size)
        images = draw_of_trial(images, train_part, seed=0)
        check_images(images, validation)
        sizes[name, train_size, train_part] = len(images.y)
    sums = functools.cache(sha256_of)
    for run in finished:
        name, before = run.config["dataset"], run.result.get("data_sha256")
        if name not in wanted:
            continue
        path = files.get(name)
        with contextlib.suppress(OSError, ValueError):
            path = path or image_file(name, data)
        # Earlier versions did not keep the checksum.
        if path is not None and before is not None and before != (now := sums(path)):
            raise ValueError(
                f"{path} is not the file that run {run.key} in {out} was made from: its SHA-256 is "
                f"{now[:12]}..., not {before[:12]}...; use another --out for these data"
            )
        # The checksum does not tell a copy of cifar10.npz that is named cifar10-s.npz from what is drawn.
        before = run.result["n_train"] + run.result["n_validation"]
        now_here = sizes.get(_part_of(run.config), before)
        if now_here != before:
            raise ValueError(
                f"{path} gives {now_here} training images of {name}, but run {run.key} in {out} was made "
                f"from {before}; use another --out for these data"
            )
    return files


def _part_of(config: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return what the number of training images follows from."""
    return config["dataset"], config.get("train_size"), config.get("train_part")


def check_images(dataset: Dataset, validation: float) -> None:
    """Raise what `prepare` would raise with any seed.

    Raises:
        ValueError: If the images are of another shape or type, a label is outside the classes, there is no
            test set, or a part would be empty.
    """
    origin = dataset.path or dataset.name
    if dataset.X_test is None or dataset.y_test is None:
        raise ValueError(
            f"{origin} must have the arrays {', '.join(SPLIT)}; got X and y, which are read as one table "
            "without a test set"
        )
    for X_name, y_name, images, labels in (
        (*SPLIT[:2], dataset.X, dataset.y),
        (*SPLIT[2:], dataset.X_test, dataset.y_test),
    ):
        shape = tuple(images.shape)
        if images.dtype != np.uint8 or len(shape) != 4 or shape[3] != 3 or min(shape[1:3]) < SMALLEST:
            raise ValueError(
                f"{origin}: {X_name} must be uint8 images (n, height, width, 3) of at least {SMALLEST} x "
                f"{SMALLEST} pixels, got {images.dtype} {shape}"
            )
        if labels.shape != shape[:1]:
            raise ValueError(
                f"{origin}: {y_name} must be one label for each image of {X_name}, got {labels.shape} for "
                f"{shape}"
            )
        outside = labels[(labels < 0) | (labels >= dataset.n_classes)]
        if outside.size:
            raise ValueError(
                f"{origin}: {y_name} must be within 0..{dataset.n_classes - 1}, got {outside[0]}"
            )
    if dataset.X.shape[1:] != dataset.X_test.shape[1:]:
        raise ValueError(
            f"{origin}: X_train and X_test must have one size, got {dataset.X.shape[1:]} and "
            f"{dataset.X_test.shape[1:]}"
        )
    held_out = _stratified(dataset.y, validation, seed=0)
    if held_out.all() or (validation > 0 and not held_out.any()):
        raise ValueError(
            f"{origin} has too few images for a validation part of {validation}: {len(held_out)}"
        )


def prepare(dataset: Dataset, validation: float, seed: int, device: str = "cpu") -> ImageData:
    """Check images, hold out the validation part and put everything on the device.

    The validation part is drawn class by class with the trial's seed: round(validation n_k) of the n_k
    images of a class. It raises as `check_images`.
    """
    check_images(dataset, validation)
    assert dataset.X_test is not None
    assert dataset.y_test is not None
    held_out = _stratified(dataset.y, validation, seed)
    train = np.ascontiguousarray(dataset.X[~held_out])
    # Sums over the 256 values are exact, and pixels as float64 would need eight times the images' memory.
    # NumPy's bincount would make int64 of them, PyTorch's takes uint8.
    channels = torch.from_numpy(train).view(-1, 3).unbind(1)
    counts = np.stack([torch.bincount(channel, minlength=256).numpy() for channel in channels])
    values, n = np.arange(256), train.size // 3
    mean = counts @ values / n
    std = np.sqrt(np.maximum(counts @ values**2 / n - mean**2, 1.0))

    def put(values: Any, dtype: torch.dtype | None = None) -> Tensor:
        return torch.as_tensor(np.asarray(values), dtype=dtype).to(device)

    return ImageData(
        F.pad(put(train), (0, 0, PAD, PAD, PAD, PAD)),
        put(dataset.y[~held_out], torch.int64),
        put(dataset.X[held_out]),
        put(dataset.y[held_out], torch.int64),
        put(dataset.X_test),
        put(dataset.y_test, torch.int64),
        put(mean, torch.float32),
        put(std, torch.float32),
        dataset.n_classes,
        not dataset.name.lower().startswith("svhn"),
    )


def _stratified(labels: np.ndarray[Any, Any], part: float, seed: int) -> np.ndarray[Any, Any]:
    """Return a mask with about ``part`` of each class."""
    rng = np.random.default_rng(seed)
    chosen = np.zeros(len(labels), dtype=bool)
    for k in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == k))
        chosen[rows[: round(part * len(rows))]] = True
    return chosen


def augment(data: ImageData, rows: Tensor, shift: Tensor, mirror: Tensor) -> Tensor:
    """Cut each image out of its border at its own place, mirror some, and normalise: one gather for a batch.

    Args:
        data: Whose training images.
        rows: (n,) Which of them.
        shift: (n, 2) First row and column of the cut, 0..2 PAD.
        mirror: (n,) bool: Which are mirrored left to right.
    """
    _, padded_height, padded_width, _ = data.train.shape
    height, width = padded_height - 2 * PAD, padded_width - 2 * PAD
    i = torch.arange(height, device=rows.device)
    j = torch.arange(width, device=rows.device).expand(len(rows), width)
    j = torch.where(mirror[:, None], width - 1 - j, j) + shift[:, 1:]
    lines = (rows * padded_height + shift[:, 0])[:, None] + i
    pixels = (lines * padded_width)[:, :, None] + j[:, None, :]
    cut = data.train.view(-1, 3).index_select(0, pixels.view(-1))
    return data.normalise(cut.view(len(rows), height, width, 3))
