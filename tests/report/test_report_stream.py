"""A stream of batches: the report of the whole, whatever the batches, in memory that stays bounded."""

import json
import subprocess
import sys

import numpy as np
import pytest
from made import entries, rows
from scipy import stats as scipy_stats

from refocal import Focal, SigmoidFocal
from refocal.report import Report
from refocal.report.gather import Gathered, Sample


def batches(z, y, sizes):
    start = 0
    for size in sizes:
        yield z[start : start + size], y[start : start + size]
        start += size


def close(a, b):
    """Whether two JSON values are the same up to rounding of numbers."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b, strict=True))
    return a == pytest.approx(b, rel=1e-9, abs=1e-12) if isinstance(a, float) else a == b


@pytest.mark.parametrize("sizes", [(600,), (1, 0, 299, 300), (7,) * 85 + (5,)])
def test_batches_do_not_matter(sizes):
    z, y = rows(600, 3)
    options = {"objective": Focal(2.0), "from_logits": True, "sample": 200, "name": "x"}
    whole = json.loads(Report(z, y, **options).json())
    streamed = json.loads(Report.from_stream(batches(z, y, sizes), **options).json())
    assert (whole["n_rows"], whole["n_sample"]) == (600, 200)
    assert close(streamed, whole)


def test_batches_of_labels_do_not_matter():
    z, y = entries(300)
    options = {"objective": SigmoidFocal(2.0, alpha=0.25), "from_logits": True, "sample": 100}
    whole = json.loads(Report(z, y, **options).json())
    assert close(json.loads(Report.from_stream(batches(z, y, (100, 200)), **options).json()), whole)


def test_a_large_enough_sample_is_all_rows():
    z, y = rows(300, 3)
    sample = Sample(300, seed=0)
    for part in batches(z, y, (100, 150, 50)):
        sample.add(*part)
    found, labels = sample.rows()
    np.testing.assert_array_equal(found, z)
    np.testing.assert_array_equal(labels, y)


def test_the_memory_of_a_batch_may_be_used_again():
    z, y = rows(300, 3)
    buffer = np.empty((100, 3)), np.empty(100, np.int64)

    def reused():
        for start in range(0, 300, 100):
            buffer[0][:], buffer[1][:] = z[start : start + 100], y[start : start + 100]
            yield buffer

    streamed = Report.from_stream(reused(), objective=Focal(2.0), from_logits=True)
    assert close(
        json.loads(streamed.json()), json.loads(Report(z, y, objective=Focal(2.0), from_logits=True).json())
    )


def test_every_row_is_as_likely_in_the_sample():
    n, size, trials = 60, 20, 3000
    counts = np.zeros(n)
    for seed in range(trials):
        sample = Sample(size, seed)
        for part in np.array_split(np.arange(n), 7):
            sample.add(part, part)
        kept = sample.rows()[1]
        assert len(set(kept)) == size
        counts[kept] += 1
    # Of draws without replacement the variance is smaller by (n - size) / (n - 1) than the test takes it.
    statistic = ((counts - trials * size / n) ** 2).sum() / (trials * size / n * (1 - size / n) * n / (n - 1))
    assert 0.001 < scipy_stats.chi2.sf(statistic, n - 1) < 0.999


def test_no_rows_and_other_columns():
    z, y = rows(20, 3)
    with pytest.raises(ValueError, match=r"^scores must have at least 1 row, got none$"):
        Report.from_stream(iter([]), objective=Focal(2.0))
    with pytest.raises(ValueError, match=r"^scores must have the 3 columns of the first batch, got 2$"):
        Report.from_stream([(z, y), (z[:, :2], y % 2)], from_logits=True)


def test_wrong_names_are_told_after_the_first_batch():
    z, y = rows(20, 3)

    def endless():
        while True:
            yield z, y

    with pytest.raises(ValueError, match=r"^classes must have one name for each of the 3 classes, got 2$"):
        Report.from_stream(endless(), from_logits=True, classes=["a", "b"])


def test_what_is_kept_does_not_grow_with_the_rows():
    rng = np.random.default_rng(0)
    gathered = Gathered("multiclass", from_logits=True, n_bins=10, sample=100, seed=0)
    held = []
    for _ in range(50):
        gathered.add(rng.normal(size=(1000, 4)), rng.integers(4, size=1000))
        held.append(sum(scores.nbytes for _, scores, _ in gathered.sample._parts))
    assert gathered.n_rows == 50_000
    # A batch is held until the sample is full, and never more than one beyond it.
    assert max(held) <= 2 * 100 * 4 * 8 + 1000 * 4 * 8
    assert held[-1] <= 2 * 100 * 4 * 8


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows():
    code = """
import resource, sys
import numpy as np
from refocal import Focal
from refocal.report import Report
def batches(n):
    rng = np.random.default_rng(0)
    for _ in range(n):
        yield rng.normal(size=(50_000, 10)).astype(np.float32), rng.integers(10, size=50_000)
Report.from_stream(batches(int(sys.argv[1])), objective=Focal(2.0), from_logits=True, sample=5000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    peaks = []
    for n in (4, 40):
        done = subprocess.run(
            [sys.executable, "-c", code, str(n)], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout))
    assert peaks[1] < 1.1 * peaks[0] + 10_000
