"""Detections: the matching beside a brute-force one, D-ECE beside netcal's."""

from __future__ import annotations

import itertools
import json
import re
import warnings

import jax
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from refocal import SigmoidFocal
from refocal.detection import DetectionCalibration, match_detections

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from netcal.metrics import ECE, MCE


def some_boxes(rng, n, size=(640, 480)):
    corners = np.sort(rng.uniform(0, 1, (n, 2, 2)), axis=1) * np.array(size)
    return corners.reshape(n, 4)


def an_image(rng, n_truths=6, n=15, size=(640, 480)):
    """Return boxes, scores, labels, truths, truth_labels; the detections lie around the objects."""
    truths = some_boxes(rng, n_truths, size)
    near = truths[rng.integers(0, n_truths, n)] if n_truths else some_boxes(rng, n, size)
    boxes = near + rng.normal(0, 12, (n, 4))
    boxes = np.concatenate([boxes.reshape(n, 2, 2).min(axis=1), boxes.reshape(n, 2, 2).max(axis=1)], axis=1)
    boxes = np.clip(boxes, 0, np.tile(size, 2))
    scores = rng.uniform(0, 1, n).round(1)  # with ties
    return boxes, scores, rng.integers(0, 2, n), truths, rng.integers(0, 2, n_truths)


def iou(a, b):
    """By plain arithmetic on two boxes."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    both = width * height if width > 0 and height > 0 else 0.0
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both
    return both / union if union > 0 else 0.0


def slow_match(boxes, scores, truths, threshold, labels=None, truth_labels=None):
    """Again and again, the best detection that had no turn yet takes the best object that is free."""
    waiting, free = list(range(len(boxes))), set(range(len(truths)))
    right = [False] * len(boxes)
    while waiting:
        i = min(waiting, key=lambda i: (-scores[i], i))
        waiting.remove(i)
        fitting = [
            j
            for j in free
            if iou(boxes[i], truths[j]) >= threshold and (labels is None or labels[i] == truth_labels[j])
        ]
        if fitting:
            free.remove(min(fitting, key=lambda j: (-iou(boxes[i], truths[j]), j)))
            right[i] = True
    return right


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.75])
@pytest.mark.parametrize("classes", [False, True])
def test_matching_beside_brute_force(threshold, classes):
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(60):
        boxes, scores, labels, truths, truth_labels = an_image(rng, rng.integers(0, 8), rng.integers(0, 20))
        named = {"labels": labels, "truth_labels": truth_labels} if classes else {}
        right = match_detections(boxes, scores, truths, iou_threshold=threshold, **named)
        assert right.tolist() == slow_match(boxes, scores, truths, threshold, **named)
        found += right.sum()
    assert found > 50


def test_the_matching_is_greedy_and_finds_each_object_once():
    objects = [[0.0, 0.0, 10.0, 10.0]]
    doubled = [[0.0, 0.0, 10.0, 9.0], [0.0, 0.0, 10.0, 10.0]]
    assert match_detections(doubled, [0.8, 0.7], objects).tolist() == [True, False]
    assert match_detections(doubled, [0.7, 0.8], objects).tolist() == [False, True]
    assert match_detections(doubled, [0.7, 0.7], objects).tolist() == [True, False]


def test_the_best_free_object_is_taken():
    objects = [[0.0, 0.0, 10.0, 10.0], [0.0, 2.0, 10.0, 12.0]]
    twice = [[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 10.0]]
    assert match_detections(twice, [0.9, 0.8], objects).tolist() == [True, True]


def test_both_ends_of_the_iou_threshold():
    half = ([[0.0, 0.0, 10.0, 5.0]], [0.9], [[0.0, 0.0, 10.0, 10.0]])
    assert match_detections(*half, iou_threshold=0.5).tolist() == [True]
    assert match_detections(*half, iou_threshold=np.nextafter(0.5, 1)).tolist() == [False]
    same = ([[0.1, 0.2, 7.3, 5.9]], [0.9], [[0.1, 0.2, 7.3, 5.9]])
    assert match_detections(*same, iou_threshold=1.0).tolist() == [True]


def test_boxes_without_area_match_nothing():
    point = [[5.0, 5.0, 5.0, 5.0]]
    assert match_detections(point, [0.9], point).tolist() == [False]
    assert match_detections(point, [0.9], [[0.0, 0.0, 10.0, 10.0]]).tolist() == [False]


def test_classes_may_be_strings():
    box = [[0.0, 0.0, 10.0, 10.0]]
    for name, right in (("cat", True), ("dog", False)):
        found = match_detections(box, [0.9], box, labels=["cat"], truth_labels=[name])
        assert found.tolist() == [right]


FEATURES = [(), ("cx", "cy"), ("cx", "cy", "w", "h"), ("h",)]


def columns(boxes, features, size=(640, 480)):
    x1, y1, x2, y2 = boxes.T
    known = {
        "cx": (x1 + x2) / 2 / size[0],
        "cy": (y1 + y2) / 2 / size[1],
        "w": (x2 - x1) / size[0],
        "h": (y2 - y1) / size[1],
    }
    return [known[name] for name in features]


@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize("min_count", [1, 3])
def test_d_ece_is_that_of_netcal(features, min_count):
    rng = np.random.default_rng(1)
    n_bins = [10, 5, 4, 3, 2][: 1 + len(features)]
    stats = DetectionCalibration(n_bins, features, min_count=min_count)
    x, y = [], []
    for _ in range(60):
        boxes, scores, labels, truths, truth_labels = an_image(rng)
        stats.update(boxes, scores, truths, labels=labels, truth_labels=truth_labels, image_size=(640, 480))
        y += slow_match(boxes, scores, truths, 0.5, labels, truth_labels)
        x.append(np.stack([scores, *columns(boxes, features)], axis=1))
    x, y = np.concatenate(x), np.array(y, dtype=int)
    assert stats.n == len(y) == 900
    assert 0 < stats.hits.sum() == y.sum()
    theirs = {"bins": n_bins, "detection": True, "sample_threshold": min_count}
    np.testing.assert_allclose(stats.d_ece(), ECE(**theirs).measure(x, y), rtol=1e-12)
    np.testing.assert_allclose(stats.d_mce(), MCE(**theirs).measure(x, y), rtol=1e-12)


def test_edges_of_bins_are_those_of_netcal():
    """Scores and features on every edge, 0 and 1 too."""
    grid = np.array(list(itertools.product(np.linspace(0, 1, 11), np.linspace(0, 1, 5))))
    right = (np.arange(len(grid)) % 3 == 0).astype(int)
    stats = DetectionCalibration((10, 4), ("cx",)).add(grid[:, 0], right, grid[:, 1:])
    np.testing.assert_allclose(
        stats.d_ece(), ECE(bins=[10, 4], detection=True).measure(grid, right), rtol=1e-12
    )
    assert stats.counts[0].tolist() == [1, 1, 1, 2]
    assert stats.counts[9].tolist() == [2, 2, 2, 4]  # 0.9 and 1.0
    assert [len(e) for e in stats.edges] == [11, 5]


def test_precision_and_confidence_of_cells():
    stats = DetectionCalibration(n_bins=2).add([0.25, 0.5, 1.0, 0.75], [True, False, True, True])
    np.testing.assert_allclose(stats.precision, [1.0, 2 / 3])
    np.testing.assert_allclose(stats.confidence, [0.25, 0.75])
    np.testing.assert_allclose(stats.d_ece(), (0.75 + 0.25) / 4)
    assert np.isnan(DetectionCalibration(n_bins=2).precision).all()


def test_parts_merge_to_the_whole():
    rng = np.random.default_rng(2)
    settings = {"n_bins": 5, "features": ("cx", "w"), "match_classes": False}
    whole, left, right = (DetectionCalibration(**settings) for _ in range(3))
    for i in range(20):
        boxes, scores, _, truths, _ = an_image(rng)
        whole.update(boxes, scores, truths, image_size=(640, 480))
        (left if i % 3 else right).update(boxes, scores, truths, image_size=(640, 480))
    both, turned = left.merge(right), right.merge(left)
    for merged in (both, turned):
        assert (merged.counts == whole.counts).all()
        assert (merged.hits == whole.hits).all()
        np.testing.assert_allclose(merged.d_ece(), whole.d_ece(), rtol=1e-12)
    again = DetectionCalibration.from_dict(json.loads(json.dumps(whole.to_dict())))
    assert again == whole
    assert again != both.merge(left)
    assert repr(again) == (
        "DetectionCalibration(n_bins=(5, 5, 5), features=('cx', 'w'), iou_threshold=0.5, "
        "match_classes=False, min_count=1, n=300)"
    )


def test_images_without_detections_or_objects():
    stats = DetectionCalibration(match_classes=False)
    none, box = np.zeros((0, 4)), [[0.0, 0.0, 10.0, 10.0]]
    stats.update(none, np.zeros(0), none)
    stats.update([], np.zeros(0), box)  # a missed object is in no cell
    assert stats.n == 0
    stats.update(box, [0.75], [])
    assert (stats.n, stats.hits.sum()) == (1, 0)
    np.testing.assert_allclose(stats.d_ece(), 0.75)
    with_classes = DetectionCalibration()
    with_classes.update([], [], [], labels=[], truth_labels=[])
    with_classes.update([], [], box, labels=[], truth_labels=["cat"])
    with_classes.update(box, [0.5], [], labels=[3], truth_labels=[])
    assert with_classes.n == 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensors_of_other_libraries(dtype):
    boxes = np.array([[0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0]])
    expected = DetectionCalibration(match_classes=False).update(boxes, np.array([0.75, 0.5]), boxes[:1])
    of_torch = getattr(torch, dtype)
    for make, kind in ((torch.tensor, of_torch), (jax.numpy.asarray, getattr(jax.numpy, dtype))):
        stats = DetectionCalibration(match_classes=False)
        stats.update(make(boxes, dtype=kind), make([0.75, 0.5], dtype=kind), make(boxes[:1], dtype=kind))
        assert stats == expected
    leaf = torch.tensor([0.75, 0.5], requires_grad=True)
    assert match_detections(boxes, leaf, boxes[:1]).tolist() == [True, False]


@st.composite
def images(draw):
    """Boxes, scores and truths in any float dtype and layout, zero rows too."""
    n, m = draw(st.integers(0, 6)), draw(st.integers(0, 4))
    dtype = draw(st.sampled_from(["float16", "float32", "float64"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def laid_out(x):
        kind = draw(st.sampled_from(["plain", "strided", "transposed", "reversed", "torch"]))
        if kind == "strided":
            return np.repeat(x, 2, axis=0)[::2]
        if kind == "transposed":
            return np.asfortranarray(x)
        if kind == "reversed":
            return np.flip(np.flip(x, axis=0).copy(), axis=0)
        return torch.from_numpy(x) if kind == "torch" else x

    boxes, truths = (rng.integers(0, 9, (k, 2, 2)) for k in (n, m))
    boxes, truths = (np.sort(x, axis=1).reshape(-1, 4).astype(dtype) for x in (boxes, truths))
    scores = (rng.integers(0, 9, n) / 8).astype(dtype)
    return boxes, scores, truths, laid_out


@given(images())
def test_any_dtype_and_layout(image):
    boxes, scores, truths, laid_out = image
    right = match_detections(laid_out(boxes), laid_out(scores), laid_out(truths), iou_threshold=0.25)
    assert right.tolist() == slow_match(boxes.astype(float), scores, truths.astype(float), 0.25)
    stats = DetectionCalibration(4, ("cx", "h"), 0.25, match_classes=False)
    stats.update(laid_out(boxes), laid_out(scores), laid_out(truths), image_size=(8, 8))
    assert stats.n == len(scores)
    assert stats.hits.sum() == right.sum()
    np.testing.assert_allclose(
        (np.nan_to_num(stats.confidence) * stats.counts).sum(), scores.sum(), atol=1e-3
    )
    if len(scores):
        assert 0 <= stats.d_ece() <= stats.d_mce() <= 1


@given(images(), st.sampled_from([np.nan, np.inf, -np.inf]), st.sampled_from(["boxes", "scores", "truths"]))
def test_no_odd_value_goes_through(image, odd, where):
    boxes, scores, truths, _ = image
    arrays = {"boxes": boxes, "scores": scores, "truths": truths}
    assume(arrays[where].size)
    arrays[where].flat[-1] = odd
    with pytest.raises(ValueError, match=f"^{where} must be "):
        match_detections(**arrays)


def test_nothing_is_added_where_something_is_wrong():
    stats = DetectionCalibration(features=("cx",), match_classes=False)
    box = [[0.0, 0.0, 10.0, 10.0]]
    stats.update(box, [0.5], box, image_size=(20, 20))
    before = stats.to_dict()
    for wrong in (
        {"boxes": [[0.0, 0.0, np.nan, 1.0]], "image_size": (20, 20)},
        {"scores": [1.5], "image_size": (20, 20)},
        {"image_size": None},
        {"image_size": (5, 5)},
    ):
        with pytest.raises(ValueError, match="must"):
            stats.update(**{"boxes": box, "scores": [0.5], "truths": box} | wrong)
    assert stats.to_dict() == before


BOX = [[0.0, 0.0, 10.0, 10.0]]
BAD = [
    (
        lambda: match_detections([[10.0, 0.0, 5.0, 4.0]], [0.5], BOX),
        "boxes must be x1, y1, x2, y2 with x1 <= x2 and y1 <= y2, got [10.0, 0.0, 5.0, 4.0] in row 0",
    ),
    (
        lambda: match_detections(BOX, [0.5], [*BOX, [0.0, 9.0, 5.0, 4.0]]),
        "truths must be x1, y1, x2, y2 with x1 <= x2 and y1 <= y2, got [0.0, 9.0, 5.0, 4.0] in row 1",
    ),
    (lambda: match_detections([[0.0, 0.0, np.nan, 4.0]], [0.5], BOX), "boxes must be finite, got nan"),
    (lambda: match_detections(BOX, [0.5], [[0.0, 0.0, np.inf, 4.0]]), "truths must be finite, got inf"),
    (
        lambda: match_detections([0.0, 0.0, 1.0, 1.0], [0.5], BOX),
        "boxes must have the shape (n, 4), got (4,)",
    ),
    (lambda: match_detections(BOX, [0.5, 0.6], BOX), "scores must have the shape (1,), got (2,)"),
    (lambda: match_detections(BOX, [np.nan], BOX), "scores must be within 0..1, got nan"),
    (lambda: match_detections(BOX, [1.5], BOX), "scores must be within 0..1, got 1.5"),
    (lambda: match_detections(BOX, [0.5], BOX, iou_threshold=0), "iou_threshold must be in (0, 1], got 0"),
    (
        lambda: match_detections(BOX, [0.5], BOX, labels=[1]),
        "labels and truth_labels must be given both or neither, got one of them",
    ),
    (
        lambda: match_detections(BOX, [0.5], BOX, labels=[1, 2], truth_labels=[1]),
        "labels must have the shape (1,), got (2,)",
    ),
    (lambda: DetectionCalibration(n_bins=0), "n_bins must be within 1..100000, got 0"),
    (
        lambda: DetectionCalibration(n_bins=(10, 5)),
        "n_bins must be a number or one for each of the 1 dimensions, got 2",
    ),
    (
        lambda: DetectionCalibration(n_bins=100, features=("cx", "cy", "w", "h")),
        "n_bins must make at most 10000000 cells, got (100, 100, 100, 100, 100)",
    ),
    (
        lambda: DetectionCalibration(features=("cx", "area")),
        "features must be a sequence of ('cx', 'cy', 'w', 'h'), each at most once, got ('cx', 'area')",
    ),
    (
        lambda: DetectionCalibration(features="w"),
        "features must be a sequence of ('cx', 'cy', 'w', 'h'), each at most once, got 'w'",
    ),
    (lambda: DetectionCalibration(iou_threshold=1.5), "iou_threshold must be in (0, 1], got 1.5"),
    (lambda: DetectionCalibration(min_count=0), "min_count must be at least 1, got 0"),
    (
        lambda: DetectionCalibration().update(BOX, [0.5], BOX),
        "labels must be given where classes are matched (match_classes=True), got None",
    ),
    (
        lambda: DetectionCalibration(features=("w",), match_classes=False).update(BOX, [0.5], BOX),
        "image_size must be given for w, got None",
    ),
    (
        lambda: DetectionCalibration(features=("w",), match_classes=False).update(
            BOX, [0.5], BOX, image_size=(0, 5)
        ),
        "image_size must be a width and a height > 0, got (0, 5)",
    ),
    (
        lambda: DetectionCalibration(features=("cx",), match_classes=False).update(
            [[30.0, 0.0, 40.0, 5.0]], [0.5], BOX, image_size=(20, 40)
        ),
        "boxes must lie in the image of width 20 and height 40 (clip them first), "
        "got [30.0, 0.0, 40.0, 5.0] in row 0",
    ),
    (
        lambda: DetectionCalibration(features=("cx",)).add([0.5], [True]),
        "features must be given for cx, got None",
    ),
    (
        lambda: DetectionCalibration(features=("cx",)).add([0.5], [True], [[0.5, 0.5]]),
        "features must have the shape (1, 1), got (1, 2)",
    ),
    (
        lambda: DetectionCalibration(features=("cx",)).add([0.5], [True], [[np.nan]]),
        "features must be within 0..1, got nan",
    ),
    (
        lambda: DetectionCalibration().add([0.5], [True], [[0.5]]),
        "features must be None, as this object has none, got some",
    ),
    (lambda: DetectionCalibration().add([[0.5]], [True]), "scores must have the shape (n,), got (1, 1)"),
    (lambda: DetectionCalibration().add([0.5], [2]), "right must be 0 or 1, got 2"),
    (
        lambda: DetectionCalibration().add([0.5], [True, False]),
        "right must have the shape (1,) of scores, got (2,)",
    ),
    (
        lambda: DetectionCalibration().d_ece(),
        "stats must have at least 1 detection, got none: call update first",
    ),
    (
        lambda: DetectionCalibration().merge(DetectionCalibration(iou_threshold=0.75)),
        "stats to merge must have the same iou_threshold, got 0.5 and 0.75",
    ),
    (
        lambda: DetectionCalibration.from_dict({"n_bins": [2]}),
        "stats must have exactly the keys ['counts', 'features', 'hits', 'iou_threshold', 'match_classes', "
        "'min_count', 'n_bins', 'sums'], got ['n_bins']",
    ),
    (
        lambda: DetectionCalibration.from_dict(DetectionCalibration(2).to_dict() | {"hits": [1, 0]}),
        "counts, hits and sums must fulfil 0 <= hits <= counts and 0 <= sums <= counts",
    ),
    (
        lambda: DetectionCalibration.from_dict(DetectionCalibration(2).to_dict() | {"counts": [0.5, 0]}),
        "counts, hits and sums must be 2 numbers, the first two integers",
    ),
]


@pytest.mark.parametrize("call, text", BAD, ids=range(len(BAD)))
def test_bad_input(call, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        call()


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: match_detections(BOX, [1], BOX), "scores must hold floating point numbers, got dtype int64"),
        (lambda: match_detections([["a"] * 4], [0.5], BOX), "boxes must hold real numbers, got dtype <U1"),
        (
            lambda: match_detections(BOX, [0.5], BOX, labels=[0.5], truth_labels=[1]),
            "labels must hold integers or strings, got dtype float64",
        ),
        (
            lambda: match_detections(BOX, [0.5], BOX, labels=["cat"], truth_labels=[1]),
            "labels and truth_labels must be of one kind, got dtypes <U3 and int64",
        ),
        (lambda: DetectionCalibration(match_classes=1), "match_classes must be True or False, got 1"),
        (
            lambda: DetectionCalibration().add([0.5], [0.5]),
            "right must hold booleans or integers, got dtype float64",
        ),
        (lambda: DetectionCalibration().merge(3), "other must be DetectionCalibration, got int"),
    ],
    ids=range(7),
)
def test_wrong_kinds(call, text):
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        call()


def test_psi_is_the_posterior_of_an_anchor_and_not_the_precision_of_a_detection():
    """Five anchors on each place see one object or none; suppression keeps the one with the largest score.

    For all anchors the posterior of the score is right. The survivors are right less often than their
    posterior says, because each was picked for a score that came out large.
    """
    rng = np.random.default_rng(5)
    spec, places = SigmoidFocal(gamma=2.0, alpha=0.25), 20_000
    is_object = rng.uniform(size=places) < 0.3
    evidence = 2 * is_object[:, None] + rng.normal(
        0, 2, (places, 5)
    )  # log-likelihood ratio: evidence/2 - 1/2
    posterior = 1 / (1 + np.exp(-(np.log(0.3 / 0.7) + evidence / 2 - 0.5)))
    scores = 1 / (1 + np.exp(-spec.logits(posterior)))
    anchors, survivors = DetectionCalibration(), DetectionCalibration()
    raw = DetectionCalibration().add(scores.ravel(), np.repeat(is_object, 5))
    anchors.add(spec.posterior_from_probs(scores).ravel(), np.repeat(is_object, 5))
    survivors.add(spec.posterior_from_probs(scores.max(axis=1)), is_object)
    assert anchors.d_ece() < 0.01
    assert raw.d_ece() > 0.05
    assert survivors.d_ece() > 0.1
    assert np.nansum(survivors.confidence * survivors.counts) > 1.2 * survivors.hits.sum()
