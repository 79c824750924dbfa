"""The bins of `CalibrationStats` against brute force and against the libraries whose rules they follow."""

import itertools
import json
import math
import re
import warnings

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import torch
from hypothesis import given
from sklearn.calibration import calibration_curve

from refocal import CalibrationStats
from refocal.metrics.binning import make_bins

CONVENTIONS = ["refocal", "torchmetrics", "netcal", "sklearn", "guo"]


def made(seed, n=500, k=4, grid=None):
    """Return probabilities and labels; with `grid` they are multiples of 1 / grid, so many are on edges."""
    rng = np.random.default_rng(seed)
    if grid is None:
        probs = rng.dirichlet(np.full(k, 0.5), size=n)
    else:
        probs = rng.multinomial(grid, rng.dirichlet(np.full(k, 0.5), size=n)) / grid
    return probs, rng.integers(k, size=n)


def brute_force(probs, labels, n_bins):
    """Return ECE, MCE and classwise ECE by the paper's definition, row by row and bin by bin."""
    rows = [[float(q) for q in row] for row in probs]
    tops = [(max(row), int(row.index(max(row)) == y)) for row, y in zip(rows, labels, strict=True)]
    tables = [tops]
    for k in range(len(rows[0])):
        tables.append([(row[k], int(y == k)) for row, y in zip(rows, labels, strict=True)])
    errors, largest = [], 0.0
    for table in tables:
        error = 0.0
        for j in range(n_bins):
            low, high = j / n_bins, (j + 1) / n_bins
            inside = [
                (c, a)
                for c, a in table
                if low < c <= high or (j == 0 and c == 0) or (j == n_bins - 1 and c > 1)
            ]
            if inside:
                gap = abs(math.fsum(a for _, a in inside) - math.fsum(c for c, _ in inside))
                error += gap / len(table)
                if table is tops:
                    largest = max(largest, gap / len(inside))
        errors.append(error)
    return errors[0], largest, math.fsum(errors[1:]) / (len(errors) - 1)


@st.composite
def predictions(draw):
    k = draw(st.integers(2, 5))
    n = draw(st.integers(1, 12))
    grid = draw(st.sampled_from([4, 10, 20, 97]))
    cuts = draw(
        st.lists(st.lists(st.integers(0, grid), min_size=k - 1, max_size=k - 1), min_size=n, max_size=n)
    )
    probs = np.array([np.diff([0, *sorted(row), grid]) for row in cuts]) / grid
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    labels = draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))
    return probs.astype(dtype), np.array(labels)


@given(predictions(), st.integers(1, 25))
def test_errors_are_those_of_the_definition(data, n_bins):
    probs, labels = data
    stats = CalibrationStats(n_bins, probs.shape[1]).update(probs, labels)
    ece, mce, classwise = brute_force(probs, labels, n_bins)
    assert stats.ece() == pytest.approx(ece, abs=1e-13)
    assert stats.mce() == pytest.approx(mce, abs=1e-13)
    assert stats.classwise_ece() == pytest.approx(classwise, abs=1e-13)


@pytest.mark.parametrize("k", [3, 40])  # both ways to find the largest class
def test_many_rows_are_as_the_definition(k):
    probs, labels = made(1, n=60_000 // k, k=k)
    ece, mce, classwise = brute_force(probs, labels, 15)
    stats = CalibrationStats(15, k).update(probs, labels)
    assert (stats.ece(), stats.mce(), stats.classwise_ece()) == pytest.approx(
        (ece, mce, classwise), abs=1e-12
    )


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("n_bins", [1, 2, 3, 7, 10, 15, 49, 100, 1000, 99_999])
def test_index_is_that_of_a_search(convention, n_bins):
    bins = make_bins(n_bins, convention)
    edges = bins.edges[:: max(1, len(bins.edges) // 3000)]
    near = [edges, np.nextafter(edges, 0), np.nextafter(edges, 2), edges.astype(np.float32).astype(float)]
    near += [np.nextafter(edges.astype(np.float32), np.float32(x)).astype(float) for x in (0, 2)]
    values = np.concatenate([*near, np.random.default_rng(0).random(1000)])
    side = "right" if convention in ("torchmetrics", "netcal") else "left"
    np.testing.assert_array_equal(bins.index(values), np.searchsorted(bins.edges[1:-1], values, side=side))


def test_ends_and_edges():
    bins = make_bins(10)
    np.testing.assert_array_equal(bins.edges, [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1])
    values = np.array([0, 0.1, np.nextafter(0.1, 1), 0.3, np.float32(0.3), 0.7, np.float32(0.7), 1, 1.0005])
    np.testing.assert_array_equal(bins.index(values), [0, 0, 1, 2, 3, 6, 6, 9, 9])


@pytest.mark.parametrize("dtype, place", [(np.float64, 2), (np.float32, 3)])
def test_a_confidence_counts_by_the_number_it_holds(dtype, place):
    p = np.array([0.3], dtype=dtype)
    stats = CalibrationStats(target="positive").update(p, np.array([1]))
    assert stats.counts.tolist() == [int(j == place) for j in range(10)]
    again = CalibrationStats(target="positive").update(p.astype(np.float64), np.array([1]))
    assert again.to_dict() == stats.to_dict()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_confidence_zero_and_one(dtype):
    stats = CalibrationStats(target="positive").update(np.array([0, 0, 1], dtype), np.array([0, 1, 1]))
    assert stats.counts.tolist() == [2, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert stats.ece() == pytest.approx(1 / 3)
    assert stats.mce() == 0.5
    top = CalibrationStats(n_classes=2).update(np.array([[1, 0]], dtype), np.array([0]))
    assert (top.ece(), top.mce(), top.classwise_ece()) == (0, 0, 0)


def test_float32_edges_are_pytorchs():
    for n_bins in (*range(1, 200), 1000, 12_345):
        expected = torch.linspace(0, 1, n_bins + 1).numpy()
        np.testing.assert_array_equal(make_bins(n_bins, "guo").edges, expected)
        np.testing.assert_array_equal(make_bins(n_bins, "torchmetrics").edges, np.append(expected, 1))


DATA = [
    (seed, grid, dtype) for seed, grid in enumerate([None, 10, 20, 30]) for dtype in ("float32", "float64")
]


@pytest.mark.parametrize("seed, grid, dtype", DATA)
@pytest.mark.parametrize("n_bins", [10, 15])
def test_torchmetrics(seed, grid, dtype, n_bins):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it imports
        from torchmetrics.functional.classification import (
            binary_calibration_error,
            multiclass_calibration_error,
        )
    probs, labels = made(seed, grid=grid)
    probs = probs.astype(dtype)
    stats = CalibrationStats(n_bins, convention="torchmetrics").update(probs, labels)
    t, y = torch.from_numpy(probs), torch.from_numpy(labels)
    for norm, value in (("l1", stats.ece()), ("max", stats.mce())):
        expected = multiclass_calibration_error(t, y, 4, n_bins, norm)
        assert value == pytest.approx(expected.item(), abs=2e-6)  # its sums are float32
    positive = CalibrationStats(n_bins, convention="torchmetrics", target="positive")
    positive.update(probs[:, 0], labels == 0)
    expected = binary_calibration_error(t[:, 0].float().contiguous(), (y == 0).long(), n_bins)
    assert positive.ece() == pytest.approx(expected.item(), abs=2e-6)


# In float32 netcal counts rows by float64 edges but averages them by float32 ones.
@pytest.mark.parametrize(
    "seed, grid, dtype", [d for d in DATA if d[1:] == (None, "float32") or d[2] == "float64"]
)
@pytest.mark.parametrize("n_bins", [10, 15])
def test_netcal(seed, grid, dtype, n_bins):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it imports
        from netcal.metrics import ECE, MCE

        probs, labels = made(seed, grid=grid)
        probs = probs.astype(dtype)
        stats = CalibrationStats(n_bins, convention="netcal").update(probs, labels)
        assert stats.ece() == pytest.approx(ECE(n_bins).measure(probs, labels), abs=1e-7)
        assert stats.mce() == pytest.approx(MCE(n_bins).measure(probs, labels), abs=1e-7)
        positive = CalibrationStats(n_bins, convention="netcal", target="positive")
        positive.update(probs[:, 0], labels == 0)
        expected = ECE(n_bins).measure(probs[:, 0], (labels == 0).astype(int))
        assert positive.ece() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_netcal_clips_one_column_by_the_eps_of_its_dtype(dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from netcal.metrics import ECE

        p, y = np.array([0, 1, 1, 0, 1], dtype=dtype), np.array([0, 1, 1, 0, 1])
        expected = ECE(10).measure(p, y)
    found = CalibrationStats(convention="netcal", target="positive").update(p, y).ece()
    assert found == pytest.approx(np.finfo(dtype).eps, rel=1e-3)
    assert found == pytest.approx(expected, rel=1e-3)


def test_netcal_does_not_let_a_confidence_be_one():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from netcal.metrics import ECE

        probs, labels = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]], np.array([0, 1, 2, 1])
        expected = ECE(10).measure(probs, labels)
    assert CalibrationStats(10, convention="netcal").update(probs, labels).ece() == pytest.approx(
        expected, abs=1e-12
    )
    assert abs(CalibrationStats(10).update(probs, labels).ece() - expected) > 1e-8


@pytest.mark.parametrize("seed, grid, dtype", DATA)
@pytest.mark.parametrize("n_bins", [10, 15])
def test_sklearn(seed, grid, dtype, n_bins):
    probs, labels = made(seed, grid=grid)
    p, y = probs[:, 0].astype(dtype), labels == 0
    stats = CalibrationStats(n_bins, convention="sklearn", target="positive").update(p, y)
    accuracy, confidence = calibration_curve(y, p, n_bins=n_bins)
    full = stats.counts > 0
    np.testing.assert_allclose(stats.accuracy[full], accuracy, rtol=1e-12)
    np.testing.assert_allclose(stats.confidence[full], confidence, rtol=1e-12)


def guo(probs, labels, n_bins):
    """What the loss of Guo et al. computes: masks between float32 boundaries, for each bin in turn."""
    confidence, predicted = probs.max(dim=1)
    right = predicted == labels
    boundaries = torch.linspace(0, 1, n_bins + 1).tolist()
    error = 0.0
    for low, high in itertools.pairwise(boundaries):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            gap = confidence[inside].double().mean() - right[inside].double().mean()
            error += abs(gap.item()) * inside.double().mean().item()
    return error


@pytest.mark.parametrize("seed, grid, dtype", DATA)
@pytest.mark.parametrize("n_bins", [10, 15])
def test_guo(seed, grid, dtype, n_bins):
    probs, labels = made(seed, grid=grid)
    probs = probs.astype(dtype)
    expected = guo(torch.from_numpy(probs), torch.from_numpy(labels), n_bins)
    assert CalibrationStats(n_bins, convention="guo").update(probs, labels).ece() == pytest.approx(
        expected, abs=1e-12
    )


def test_conventions_differ_where_confidences_are_on_edges():
    probs, labels = made(3, grid=10)
    found = {c: CalibrationStats(10, convention=c).update(probs, labels).counts.tolist() for c in CONVENTIONS}
    assert len({tuple(counts) for counts in found.values()}) >= 4


@given(predictions(), st.data())
def test_merged_parts_are_the_whole_in_any_order(data, random):
    probs, labels = data
    k = probs.shape[1]
    whole = CalibrationStats(7, k).update(probs, labels)
    part = np.array(random.draw(st.lists(st.integers(0, 3), min_size=len(labels), max_size=len(labels))))
    parts = [CalibrationStats(7, k) for _ in range(4)]
    for i in set(part.tolist()):
        parts[i].update(probs[part == i], labels[part == i])
    a, b, c, d = random.draw(st.permutations(parts))
    for merged in (
        a.merge(b).merge(c).merge(d),
        a.merge(b.merge(c.merge(d))),
        (a.merge(b)).merge(c.merge(d)),
    ):
        for name in ("counts", "hits", "class_counts", "class_hits"):
            np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))
        np.testing.assert_allclose(merged.confidence, whole.confidence, rtol=1e-14)
        np.testing.assert_allclose(merged.class_confidence, whole.class_confidence, rtol=1e-14)
        assert merged.n == whole.n == len(labels)
        assert merged.ece() == pytest.approx(whole.ece(), abs=1e-14)


def test_every_array_library_gives_the_same(backend):
    probs, labels = made(4, grid=20)
    stats = CalibrationStats(10, 4).update(backend.array(probs), backend.integers(labels))
    same = CalibrationStats(10, 4).update(probs.astype(backend.dtype), labels)
    assert stats.to_dict() == same.to_dict()


@pytest.mark.parametrize(
    "make", [lambda x: torch.from_numpy(x).bfloat16(), lambda x: torch.from_numpy(x).half()]
)
def test_half_precision_of_pytorch(make):
    probs, labels = made(5)
    half = make(probs)
    exact = half.double().numpy()
    stats = CalibrationStats(10).update(half, torch.from_numpy(labels))
    assert stats.ece() == pytest.approx(brute_force(exact, labels, 10)[0], abs=1e-12)


def test_half_precision_of_numpy_and_jax():
    probs, labels = made(5)
    expected = brute_force(probs.astype(np.float16), labels, 10)[0]
    for half in (probs.astype(np.float16), jax.numpy.asarray(probs, dtype=jax.numpy.float16)):
        assert CalibrationStats(10).update(half, labels).ece() == pytest.approx(expected, abs=1e-12)
    brain = jax.numpy.asarray(probs, dtype=jax.numpy.bfloat16)
    expected = brute_force(np.asarray(brain).astype(np.float64), labels, 10)[0]
    assert CalibrationStats(10).update(brain, labels).ece() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("p", [0.5, 0.502, 0.505])
def test_of_equal_classes_of_a_row_that_rounding_made_large_the_first_is_predicted(p):
    half = np.full((2, 2), p, dtype=np.float16)  # sums to 1.01, as rows of half precision may
    assert CalibrationStats().update(half, np.array([0, 1])).hits.sum() == 1


@pytest.mark.parametrize("k", [3, 40])
def test_of_equal_classes_the_first_is_predicted(k):
    probs = np.zeros((4, k))
    probs[:2, [1, 2]] = 0.5
    probs[2:] = 1 / k
    stats = CalibrationStats().update(probs, np.array([1, 2, 0, 1]))
    assert (stats.hits.sum(), stats.n) == (2, 4)


def test_binary_top_is_the_two_column_form():
    p, y = np.array([0.1, 0.5, 0.5, 0.8, 1.0]), np.array([0, 0, 1, 0, 1])
    top = CalibrationStats(10, 2, target="top").update(p, y)
    two = CalibrationStats(10, 2).update(np.stack([1 - p, p], axis=1), y)
    assert top.merge(two).counts.tolist() == (2 * two.counts).tolist()
    assert top.hits.sum() == 3  # 0.5 predicts class 0
    assert top.ece() == two.ece()
    assert top.classwise_ece() == two.classwise_ece()


def test_one_row_empty_bins_and_a_class_never_seen():
    stats = CalibrationStats(4, 3).update(np.array([[0.7, 0.3, 0.0]]), np.array([1]))
    assert stats.ece() == pytest.approx(0.7)
    assert stats.mce() == pytest.approx(0.7)
    assert stats.classwise_ece() == pytest.approx(1.4 / 3)
    np.testing.assert_array_equal(stats.confidence, [np.nan, np.nan, 0.7, np.nan])
    np.testing.assert_array_equal(stats.accuracy, [np.nan, np.nan, 0, np.nan])
    assert stats.class_counts.tolist() == [[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]]
    assert stats.class_hits.tolist() == [[0] * 4, [0, 1, 0, 0], [0] * 4]
    assert stats.class_accuracy[1, 1] == 1
    assert stats.class_confidence[1, 1] == 0.3


def test_arrays_are_read_only_and_stay_as_they_were():
    probs, labels = made(6)
    stats = CalibrationStats(10, 4).update(probs, labels)
    before, copy = stats.counts, stats.counts.copy()
    for name in ("edges", "counts", "hits", "confidence", "accuracy", "class_counts", "class_confidence"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(stats, name)[...] = 0
    stats.update(probs, labels)
    np.testing.assert_array_equal(before, copy)
    assert stats.n == 2 * copy.sum() == 1000
    assert stats.counts.dtype == stats.hits.dtype == np.int64
    assert (
        repr(stats) == "CalibrationStats(n_bins=10, n_classes=4, convention='refocal', target=None, n=1000)"
    )


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_json_keeps_every_bit(convention):
    probs, labels = made(7)
    stats = CalibrationStats(12, 4, convention).update(probs, labels)
    again = CalibrationStats.from_dict(json.loads(json.dumps(stats.to_dict())))
    assert again.to_dict() == stats.to_dict()
    assert again.update(probs, labels).classwise_ece() == stats.update(probs, labels).classwise_ece()


@pytest.mark.parametrize(
    "change, text",
    [
        ({"extra": 1}, "exactly the keys"),
        ({"n_bins": 0}, "n_bins must be within"),
        ({"counts": [1, 2]}, "must have the shape (1, 2)"),
        ({"counts": [[1.5, 2]]}, "counts and hits must be integers"),
        ({"hits": [[5, 0]]}, "0 <= hits <= counts"),
        ({"sums": [[-1.0, 0.5]]}, "sums >= 0"),
        ({"sums": [[float("nan"), 0.5]]}, "sums >= 0"),
        ({"sums": [[0.0, float("inf")]]}, "sums must be those of probabilities"),
        ({"sums": [[0.0, 1.02]]}, "sums must be those of probabilities"),
        ({"sums": [[0.1, 0.5]]}, "sums must be those of probabilities"),
    ],
)
def test_from_dict_refuses(change, text):
    good = CalibrationStats(2).update(np.array([[0.4, 0.6]]), np.array([1])).to_dict()
    with pytest.raises(ValueError, match=re.escape(text)):
        CalibrationStats.from_dict(good | change)


def test_from_dict_refuses_classes_that_do_not_add_up():
    good = CalibrationStats(1, 2).update(np.array([[0.4, 0.6], [0.5, 0.5]]), np.array([1, 0])).to_dict()
    with pytest.raises(ValueError, match="counts of every class must add up to the number of rows"):
        CalibrationStats.from_dict(good | {"counts": [[2], [2], [3]]})
    with pytest.raises(ValueError, match="hits of the classes must add up to the number of rows"):
        CalibrationStats.from_dict(good | {"hits": [[2], [1], [0]]})
    with pytest.raises(TypeError, match="stats must be a dictionary, got list"):
        CalibrationStats.from_dict([good])


def test_equality_is_that_of_settings_and_numbers():
    probs, labels = made(9)
    stats = CalibrationStats(5, 4).update(probs, labels)
    assert stats == CalibrationStats.from_dict(stats.to_dict())
    assert stats != CalibrationStats(5, 4)
    assert stats != CalibrationStats(5).update(probs, labels)
    assert stats != stats.to_dict()


def test_merged_targets_do_not_depend_on_the_order():
    top, none = CalibrationStats(target="top"), CalibrationStats()
    assert top.merge(none).target == none.merge(top).target == "top"
    assert none.merge(none).target is None
    none.merge(top).update(np.array([0.2]), np.array([0]))


@pytest.mark.parametrize(
    "other, name",
    [
        (CalibrationStats(11), "n_bins, got 10 and 11"),
        (CalibrationStats(n_classes=3), "n_classes, got None and 3"),
        (CalibrationStats(convention="guo"), "convention, got 'refocal' and 'guo'"),
        (CalibrationStats(target="positive"), "target, got None and 'positive'"),
    ],
)
def test_merge_refuses_other_settings(other, name):
    with pytest.raises(ValueError, match=f"stats to merge must have the same {name}"):
        CalibrationStats().merge(other)
    with pytest.raises(TypeError, match="other must be CalibrationStats, got dict"):
        CalibrationStats().merge({})


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"n_bins": 0}, ValueError, "n_bins must be within 1..100000, got 0"),
        ({"n_bins": 100_001}, ValueError, "n_bins must be within 1..100000, got 100001"),
        ({"n_bins": 2.0}, TypeError, "n_bins must be an integer, got 2.0"),
        ({"n_bins": True}, TypeError, "n_bins must be an integer, got True"),
        ({"n_classes": 1}, ValueError, "n_classes must be at least 2, got 1"),
        ({"n_classes": "3"}, TypeError, "n_classes must be an integer, got '3'"),
        ({"target": "both"}, ValueError, "target must be one of ('top', 'positive'), got 'both'"),
        (
            {"convention": "mine"},
            ValueError,
            "convention must be one of ('refocal', 'torchmetrics', 'netcal', 'sklearn', 'guo'), got 'mine'",
        ),
    ],
)
def test_settings_are_checked(arguments, error, text):
    with pytest.raises(error) as raised:
        CalibrationStats(**arguments)
    assert str(raised.value) == text


def test_without_rows_or_classes_there_is_no_error_to_return():
    for name in ("ece", "mce"):
        with pytest.raises(ValueError, match="stats must have at least 1 row, got none"):
            getattr(CalibrationStats(), name)()
    with pytest.raises(ValueError, match=r"classwise_ece needs CalibrationStats\(n_classes=K\)"):
        CalibrationStats().update(*made(0)).classwise_ece()
    with pytest.raises(ValueError, match="class_counts needs"):
        _ = CalibrationStats().class_counts


def test_a_bad_batch_adds_nothing():
    probs, labels = made(8, n=40_000)
    stats = CalibrationStats(10, 4).update(probs, labels)
    before = stats.to_dict()
    probs[-1, 0] += 0.5
    with pytest.raises(ValueError, match="row 39999"):
        stats.update(probs, labels)
    with pytest.raises(ValueError, match="probs must have the 4 classes of n_classes, got 3"):
        stats.update(*made(0, k=3))
    assert stats.to_dict() == before
