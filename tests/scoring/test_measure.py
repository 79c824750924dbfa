"""Metrics and samples of a stream: the numbers of the whole, whatever the parts."""

import numpy as np
import pytest
from score_files import made

import refocal
from refocal.scoring import Measures, Reservoir


def probs_and_labels(n=2000, dtype=float):
    logits, labels = made(n, dtype=float)
    return refocal.Focal(0.0).posterior(logits).astype(dtype), labels


def expected(probs, labels):
    return {
        "nll": refocal.nll(probs, labels),
        "brier": refocal.brier(probs, labels),
        "error_rate": refocal.error_rate(probs, labels),
        "ece": refocal.ece(probs, labels),
        "mce": refocal.mce(probs, labels),
        "classwise_ece": refocal.classwise_ece(probs, labels),
    }


@pytest.mark.parametrize("dtype, digits", [("float16", 1e-6), ("float32", 1e-7), ("float64", 1e-12)])
def test_blocks_give_the_numbers_of_the_whole(dtype, digits):
    probs, labels = probs_and_labels(dtype=dtype)
    measures = Measures(n_classes=3)
    for part in np.array_split(np.arange(2000), 7):
        measures.update(np.ascontiguousarray(probs[part].T), labels[part])
    found = measures.values()
    for name, value in expected(probs, labels).items():
        assert found[name] == pytest.approx(value, rel=digits), name


def test_parts_add_up_and_survive_json():
    probs, labels = probs_and_labels()
    whole = Measures(n_classes=3).update(probs.T, labels)
    parts = [Measures(n_classes=3).update(probs[i::2].T, labels[i::2]) for i in range(2)]
    both = Measures.from_dict(parts[0].to_dict()).merge(parts[1])
    assert both.n == 2000
    for name, value in whole.values().items():
        assert both.values()[name] == pytest.approx(value, rel=1e-12)


def test_a_label_of_probability_0():
    measures = Measures(n_classes=2).update(np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([0, 1]))
    assert measures.values()["nll"] == np.inf
    assert "classwise_ece" not in Measures().update(np.array([[1.0], [0.0]]), np.array([0])).values()
    assert Measures.from_dict(measures.to_dict()).values()["nll"] == np.inf


def entries(n=3000, n_labels=4):
    """Return probabilities (labels, rows), and labels drawn from somewhat other ones."""
    rng = np.random.default_rng(0)
    probs = rng.random((n_labels, n))
    return probs, (rng.random((n_labels, n)) < probs**1.3).astype(np.int64)


def test_independent_labels():
    """Entry by entry against scikit-learn, and the bins by hand."""
    from sklearn.metrics import brier_score_loss, log_loss

    probs, labels = entries()
    measures = Measures("multilabel", n_labels=4)
    for part in np.array_split(np.arange(3000), 7):
        measures.update(probs[:, part], labels[:, part])
    found = measures.values()
    assert measures.n == 3000
    assert found["nll"] == pytest.approx(log_loss(labels.ravel(), probs.ravel()), rel=1e-9)
    assert found["brier"] == pytest.approx(2 * brier_score_loss(labels.ravel(), probs.ravel()), rel=1e-9)
    assert found["error_rate"] == pytest.approx(((probs > 0.5) != labels).mean())

    def ece(p, y):
        bins = np.ceil(p * 10)
        return sum(abs((y - p)[bins == b].sum()) for b in range(11)) / p.size

    assert found["ece"] == pytest.approx(ece(probs.ravel(), labels.ravel()), rel=1e-9)
    assert found["classwise_ece"] == pytest.approx(
        np.mean([ece(*x) for x in zip(probs, labels, strict=True)])
    )
    again = Measures.from_dict(measures.to_dict())
    assert again.merge(measures).values() == pytest.approx(found, rel=1e-12)


def test_one_column_is_class_1_of_two():
    probs, labels = entries(n_labels=1)
    found = Measures("binary").update(probs, labels[0]).values()
    p = np.stack([1 - probs[0], probs[0]], axis=1)
    assert found["nll"] == pytest.approx(refocal.nll(p, labels[0]), rel=1e-9)
    assert found["brier"] == pytest.approx(refocal.brier(p, labels[0]), rel=1e-9)
    assert found["error_rate"] == pytest.approx(refocal.error_rate(p, labels[0]), rel=1e-9)
    assert found["ece"] == pytest.approx(refocal.ece(probs[0], labels[0], target="positive"), rel=1e-9)


def test_measures_of_other_tasks_do_not_add_up():
    with pytest.raises(
        ValueError, match=r"^measures to merge must be of the same task, got binary and multi"
    ):
        Measures("binary").merge(Measures())


def test_keys_are_checked():
    with pytest.raises(ValueError, match=r"^measures must have the keys \['brier_sum', .*\], got \['n'\]$"):
        Measures.from_dict({"n": 1})


@pytest.mark.parametrize("parts", [1, 3, 50])
def test_a_sample_does_not_depend_on_the_blocks(parts):
    scores = np.arange(5000.0)
    whole = Reservoir(100, seed=3).add(scores[None], np.arange(5000))
    kept = Reservoir(100, seed=3)
    for part in np.array_split(np.arange(5000), parts):
        kept.add(scores[part][None], part)
    assert (kept.scores == whole.scores).all()
    assert (kept.labels == kept.scores[0]).all()  # rows stay together
    assert (kept.n_rows, kept.scores.shape) == (5000, (1, 100))
    assert len(set(kept.labels)) == 100


def test_each_row_is_as_likely():
    """Of 40 rows 10 are kept: each in a quarter of 4000 draws, within four standard deviations."""
    counts = np.zeros(40)
    for seed in range(4000):
        kept = Reservoir(10, seed)
        for part in (slice(0, 7), slice(7, 25), slice(25, 40)):
            kept.add(np.zeros((1, 40))[:, part], np.arange(40)[part])
        counts[kept.labels] += 1
    assert np.abs(counts - 1000).max() < 4 * np.sqrt(4000 * 0.25 * 0.75)


def test_fewer_rows_than_wanted_stay_in_order():
    kept = Reservoir(100).add(np.arange(6.0).reshape(2, 3), np.arange(3))
    assert kept.labels.tolist() == [0, 1, 2]
    assert kept.scores.tolist() == [[0, 1, 2], [3, 4, 5]]
