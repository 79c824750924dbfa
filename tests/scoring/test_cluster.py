"""Ray Data on a cluster of this machine gives the rows of the local engine, in their order."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from score_files import made, write

from refocal.cli import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Ray's own, about itself
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
ray = pytest.importorskip("ray")
OPTIONS = ["--scores", "logit_*", "--logits", "--gamma", "2"]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def both(tmp_path, path, name):
    outs = [tmp_path / f"{engine}-{name}" for engine in ("local", "ray")]
    for engine, out in zip(("local", "ray"), outs, strict=True):
        assert main(["apply", str(path), str(out), *OPTIONS, "--engine", engine]) == 0
    return outs


def folder(root, n_files=5, n=400):
    logits, labels = made(n * n_files)
    for i in range(n_files):
        path = root / f"day={n_files - i}" / "part.parquet"
        path.parent.mkdir(parents=True)
        write(path, logits[i * n : (i + 1) * n], labels[i * n : (i + 1) * n])
    return root


def test_one_file(tmp_path):
    path = write(tmp_path / "in.parquet", *made(1000))
    local, by_ray = (pq.read_table(out) for out in both(tmp_path, path, "out.parquet"))
    assert local.equals(by_ray)
    assert local.num_rows == 1000


def test_a_folder_into_a_file(tmp_path):
    path = folder(tmp_path / "in")
    local, by_ray = both(tmp_path, path, "out.csv")
    assert local.read_bytes() == by_ray.read_bytes()


def test_a_folder_into_a_folder(tmp_path):
    path = folder(tmp_path / "in")
    local, by_ray = both(tmp_path, path, "out")
    names = [p.relative_to(local) for p in sorted(local.rglob("*.parquet"))]
    assert names == [p.relative_to(by_ray) for p in sorted(by_ray.rglob("*.parquet"))]
    for name in names:
        assert (local / name).read_bytes() == (by_ray / name).read_bytes()
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("name", ["out.parquet", "out"])
def test_an_error_is_the_same_line(name, tmp_path, capsys):
    path = folder(tmp_path / "in")
    logits, labels = made(400)
    logits[7, 0] = np.nan
    write(path / "day=3" / "part.parquet", logits, labels)
    lines = []
    for engine in ("local", "ray"):
        assert main(["apply", str(path), str(tmp_path / name), *OPTIONS, "--engine", engine]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        lines.append(err)
    assert lines[0] == lines[1]
    assert lines[0].endswith(f"got nan in row {7 if name == 'out' else 807}\n")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_other_formats_are_refused(tmp_path, capsys):
    path = write(tmp_path / "in.csv", *made(10))
    assert main(["apply", str(path), str(tmp_path / "out.csv"), *OPTIONS, "--engine", "ray"]) == 2
    assert capsys.readouterr().err == (
        f"refocal: --engine ray reads files of Parquet, got '{path}': use --engine local\n"
    )
