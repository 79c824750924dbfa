"""`CalibrationStats` of several processes, and of ten million rows."""

import json
import subprocess
import sys

import numpy as np
import pytest

from refocal import CalibrationStats

WORKER = """
import json, sys
import numpy as np, torch.distributed as dist
from refocal import CalibrationStats
rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size)
rng = np.random.default_rng(rank)
n = 100 + rank
stats = CalibrationStats(10, 3, target=("top", None)[rank])
stats.update(rng.dirichlet(np.ones(3), size=n), rng.integers(3, size=n))
both = stats.all_reduce()
refused = []
for name, values in (("n_bins", (10, 11)), ("n_classes", (None, 3)), ("convention", ("netcal", "sklearn")),
                     ("target", ("positive", "top")), ("target", ("positive", None)),
                     ("task", ("multiclass", None))):
    try:
        CalibrationStats(**{name: values[rank]}).all_reduce()
    except ValueError as error:
        refused.append(str(error))
labels = CalibrationStats(10, task="multilabel", n_labels=3)
labels.update(rng.random((n, 3)), rng.integers(2, size=(n, 3)))
print(json.dumps([stats.to_dict(), both.to_dict(), refused, labels.to_dict(), labels.all_reduce().to_dict()]))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_all_reduce_of_two_processes(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), "2", str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    results = [json.loads(process.communicate(timeout=120)[0].splitlines()[-1]) for process in processes]
    own = [CalibrationStats.from_dict(result[0]) for result in results]
    assert own[0].counts.tolist() != own[1].counts.tolist()
    expected = own[0].merge(own[1]).to_dict()
    assert expected == results[0][1] == results[1][1]
    assert expected["target"] == "top"
    for rank, own_settings in enumerate(
        (
            ("10", "None", "'netcal'", "'positive'", "'positive'", "'multiclass'"),
            ("11", "3", "'sklearn'", "'top'", "None", "None"),
        )
    ):
        names = ("n_bins", "n_classes", "convention", "target", "target", "task")
        assert results[rank][2] == [
            f"stats to reduce must have the same {name} in every process, got {mine} in this one and "
            "another elsewhere"
            for name, mine in zip(names, own_settings, strict=True)
        ]
    assert CalibrationStats.from_dict(expected).n == 201
    one, other = (CalibrationStats.from_dict(result[3]) for result in results)
    assert one.merge(other).to_dict() == results[0][4] == results[1][4]


def test_all_reduce_alone_and_without_a_group(tmp_path):
    from torch import distributed

    rng = np.random.default_rng(0)
    stats = CalibrationStats(10, 4).update(rng.dirichlet(np.ones(4), size=50), rng.integers(4, size=50))
    with pytest.raises(RuntimeError, match=r"all_reduce needs torch\.distributed\.init_process_group"):
        stats.all_reduce()
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert stats.all_reduce().to_dict() == stats.to_dict()
        assert stats.all_reduce(distributed.new_group([0])).to_dict() == stats.to_dict()
    finally:
        distributed.destroy_process_group()


TEN_MILLION = """
import numpy as np
from refocal import CalibrationStats
def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) / 1024
def batch(rng):
    probs = rng.standard_exponential((1_000_000, 3), dtype=np.float32)
    probs /= probs.sum(axis=1, keepdims=True)
    u = rng.random(1_000_000, dtype=np.float32)
    labels = (u > probs[:, 0]).astype(np.int64) + (u > probs[:, 0] + probs[:, 1])
    return probs, np.minimum(labels, 2)
rng = np.random.default_rng(0)
stats, grown = CalibrationStats(10, 3), 0.0
CalibrationStats(10, 3).update(*batch(rng))  # Numba, where it is installed, is loaded by now
rng = np.random.default_rng(0)
edges = np.arange(11) / 10
edges[0] = -1
truth = np.zeros(10, np.longdouble)
for _ in range(10):
    probs, labels = batch(rng)
    confidence = probs.max(axis=1).astype(np.float64)
    gap = (probs.argmax(axis=1) == labels) - confidence
    for j in range(10):
        truth[j] += gap[(confidence > edges[j]) & (confidence <= edges[j + 1])].sum(dtype=np.longdouble)
    del confidence, gap
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
    before = status("VmRSS")
    stats.update(probs, labels)
    grown = max(grown, status("VmHWM") - before)
print(stats.n, stats.ece(), float(np.abs(truth).sum() / 10_000_000), stats.classwise_ece(), grown)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_ten_million_calibrated_rows():
    done = subprocess.run([sys.executable, "-c", TEN_MILLION], check=True, stdout=subprocess.PIPE, text=True)
    n, ece, truth, classwise, grown = map(float, done.stdout.split())
    assert n == 10_000_000
    assert abs(ece - truth) < 1e-9
    assert 0 < ece < 5e-4  # what is left is the labels' noise
    assert classwise < 5e-4
    assert grown < 50
