"""What is fetched from OpenML becomes the arrays of a data set, whole or not at all."""

import sys
import urllib.error

import numpy as np
import pytest
from openml_stand_in import MIXED, SPARSE, register, serve
from sklearn.datasets import _openml

from refocal.experiments.data.datasets import load


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, and no data folder from outside."""
    monkeypatch.delenv("REFOCAL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "refocal"


def test_categorical_columns_become_one_hot(monkeypatch, cache):
    register(monkeypatch, n_classes=3, openml=77)
    opened = serve(monkeypatch, 77, MIXED, ignore=["id"])
    data = load("stand-in")
    expected = [  # size; colour red, green, missing (blue and never do not occur); level -1, 0, 1
        [0.5, 0, 1, 0, 0, 0, 1],
        [1.5, 1, 0, 0, 1, 0, 0],
        [2.5, 0, 0, 1, 0, 1, 0],
        [3.5, 0, 1, 0, 0, 1, 0],
    ]
    np.testing.assert_array_equal(data.X, np.array(expected, np.float32))
    assert data.X.dtype == np.float32
    np.testing.assert_array_equal(data.y, [1, 0, 2, 1])  # 9, 10, 100: the order of numbers
    with np.load(cache / "stand-in.npz") as archive:
        columns = ["size", "colour=red", "colour=green", "colour=?", "level=-1", "level=0", "level=1"]
        assert archive["feature_names"].tolist() == columns
    assert len(opened) == len(set(opened)) == 4  # each page once
    load("stand-in")
    assert len(opened) == 4  # the second time from the cache
    assert sorted(path.name for path in cache.iterdir()) == ["stand-in.npz", "stand-in.npz.sha256"]


def test_levels_that_are_numbers_may_stay_numbers(monkeypatch):
    register(monkeypatch, n_classes=3, openml=77, codes=True)
    serve(monkeypatch, 77, MIXED, ignore=["id", "colour"])
    np.testing.assert_array_equal(load("stand-in").X, [[0.5, 1], [1.5, -1], [2.5, 0], [3.5, 0]])


def test_sparse_data_become_dense(monkeypatch):
    register(monkeypatch, n_classes=2, openml=77)
    serve(monkeypatch, 77, SPARSE, form="Sparse_ARFF")
    data = load("stand-in")
    np.testing.assert_array_equal(data.X, [[1.5, 0], [0, 2], [0, 0]])
    np.testing.assert_array_equal(data.y, [1, 0, 1])


def serve_images(monkeypatch, pixels, labels):
    columns = "\n".join(f"@ATTRIBUTE p{i} REAL" for i in range(12))
    rows = "\n".join(",".join(map(str, [*row, label])) for row, label in zip(pixels, labels, strict=True))
    serve(monkeypatch, 77, f"@RELATION r\n{columns}\n@ATTRIBUTE class {{0,1}}\n@DATA\n{rows}\n")


@pytest.mark.parametrize("shape", [(3, 2, 2), (2, 2, 3)])
def test_images_become_uint8_with_channels_last_and_a_test_set(shape, monkeypatch):
    pixels = np.arange(196, 256).reshape(5, 12)  # 255 is the largest
    register(monkeypatch, n_classes=2, openml=77, shape=shape, n_rows=5, n_test=2, balanced=True)
    serve_images(monkeypatch, pixels, [0, 1, 0, 1, 0])
    data = load("stand-in")
    assert data.X.dtype == np.uint8
    assert (data.X.shape, data.X_test.shape) == ((3, 2, 2, 3), (2, 2, 2, 3))
    green = pixels[0, 4:8] if shape[0] == 3 else pixels[0, 1::3]
    np.testing.assert_array_equal(data.X[0, :, :, 1].ravel(), green)
    np.testing.assert_array_equal(data.y_test, [1, 0])


@pytest.mark.parametrize(
    "pixels, got",
    [
        (np.arange(60) / 60, r"0\.0166667"),
        (np.arange(60) % 2, "none above 1"),
        (np.arange(60) - 1, "-1"),
        (np.arange(60) + 197, "256"),
        ([*range(59), np.nan], "nan"),
        ([*range(59), 1e300], r"1e\+300"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_pixels_that_uint8_cannot_hold_are_refused(pixels, got, monkeypatch, cache):
    register(monkeypatch, n_classes=2, openml=77, shape=(2, 2, 3), n_test=2)
    rows = [["?" if value != value else value for value in row] for row in np.reshape(pixels, (5, 12))]
    serve_images(monkeypatch, rows, [0, 1, 0, 1, 0])
    rule = "OpenML's stand-in must have pixels that are whole numbers within 0..255, some above 1"
    with pytest.raises(ValueError, match=f"^{rule}, got {got}$"):
        load("stand-in")
    assert not cache.exists()


def test_images_of_another_number_or_order_are_refused(monkeypatch, cache):
    fields = {"n_classes": 2, "openml": 77, "shape": (2, 2, 3), "n_test": 2}
    serve_images(monkeypatch, np.arange(60).reshape(5, 12), [0, 1, 0, 1, 1])
    register(monkeypatch, **fields, n_rows=6)
    with pytest.raises(ValueError, match=r"^OpenML's stand-in must have 6 rows, got 5: another version\?$"):
        load("stand-in")
    register(monkeypatch, **fields, n_rows=5, balanced=True)
    message = (
        "^OpenML's stand-in must have 1 images of each class in its last 2 rows, the test set, got 0 to 2: "
        "its rows are not in the order that is read here$"
    )
    with pytest.raises(ValueError, match=message):
        load("stand-in")
    assert not cache.exists()
    register(monkeypatch, **fields, n_rows=5)
    assert load("stand-in").y_test.tolist() == [1, 1]


def test_numeric_nan_from_openml_is_refused_and_not_kept(monkeypatch, cache):
    register(monkeypatch, n_classes=3, openml=77)
    serve(monkeypatch, 77, MIXED.replace("2.5", "?"))
    with pytest.raises(ValueError, match="X must be finite, got NaN or infinity in row 2"):
        load("stand-in")
    assert not cache.exists()


def test_another_version_is_refused(monkeypatch):
    register(monkeypatch, n_classes=7, openml=77)
    serve(monkeypatch, 77, MIXED)
    with pytest.raises(ValueError, match="OpenML's stand-in must have 7 classes, got 3: another version"):
        load("stand-in")


def test_no_network(monkeypatch):
    def urlopen(request, *args, **options):
        raise urllib.error.HTTPError(request.full_url, 404, "gone", {}, None)

    monkeypatch.setattr(_openml, "urlopen", urlopen)
    monkeypatch.setattr(_openml.time, "sleep", lambda seconds: None)
    with (
        pytest.warns(UserWarning, match="network error"),
        pytest.raises(
            OSError, match=r"cannot fetch vehicle from OpenML \(number 54\): .*; without a network, put"
        ),
    ):
        load("vehicle")


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"^fetching data needs scikit-learn: pip install scikit-learn$"):
        load("vehicle")


def test_a_set_without_a_number_says_where_to_get_it():
    with pytest.raises(
        ValueError, match=r"w8a cannot be fetched .* LIBSVM data sets, w8a and w8a.t. Put w8a.npz"
    ):
        load("w8a")
