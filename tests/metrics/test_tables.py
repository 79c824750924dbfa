"""What analysts have: frames, columns, lists, labels with names; and results that go back into tables."""

import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from refocal import CalibrationStats, Interval, ece, nll

NAMES = ["cat", "dog", "owl"]
RNG = np.random.default_rng(0)
PROBS, LABELS = RNG.dirichlet(np.ones(3), size=40), RNG.integers(3, size=40)
WORDS = [NAMES[i] for i in LABELS]
FRAME = pd.DataFrame(PROBS, columns=NAMES)
BOTH = [0, 1] * 20

SCORES = {
    "pandas": FRAME,
    "pandas, other names": FRAME.rename(columns=str.upper),
    "pandas, shuffled index": FRAME.set_index(np.arange(40)[::-1]),
    "pandas, nullable": FRAME.astype("Float64"),
    "pandas, arrow": FRAME.astype("double[pyarrow]"),
    "polars": pl.DataFrame(PROBS, schema=NAMES),
    "pyarrow": pa.table({name: PROBS[:, i] for i, name in enumerate(NAMES)}),
    "lists": PROBS.tolist(),
    "rows of tuples": [tuple(row) for row in PROBS.tolist()],
}


@pytest.mark.parametrize("kind", SCORES)
def test_scores(kind):
    assert ece(SCORES[kind], LABELS) == ece(PROBS, LABELS)
    assert nll(SCORES[kind], LABELS) == nll(PROBS, LABELS)


def test_columns_of_scores():
    expected = ece(PROBS[:, 0], LABELS == 0, task="binary")
    for column in (
        FRAME["cat"],
        FRAME["cat"].astype("Float64"),
        pl.Series(PROBS[:, 0]),
        PROBS[:, 0].tolist(),
    ):
        assert ece(column, LABELS == 0, task="binary") == expected
    assert FRAME.astype(np.float32)["cat"].to_numpy().dtype == np.float32
    half = FRAME.astype(np.float32)
    assert ece(half, LABELS) == ece(PROBS.astype(np.float32), LABELS)  # no other dtype on the way


INTEGERS = {
    "pandas": pd.Series(LABELS),
    "pandas, index": pd.Series(LABELS, index=np.arange(40)[::-1]),
    "pandas, nullable": pd.Series(LABELS, dtype="Int64"),
    "pandas, small": pd.Series(LABELS, dtype="uint8"),
    "pandas, arrow": pd.Series(LABELS, dtype="int64[pyarrow]"),
    "pandas, categorical": pd.Series(LABELS, dtype="category"),
    "polars": pl.Series(LABELS),
    "polars, small": pl.Series(LABELS, dtype=pl.UInt8),
    "pyarrow": pa.array(LABELS),
    "pyarrow, chunks": pa.chunked_array([pa.array(LABELS[:7]), pa.array(LABELS[7:])]),
    "list": LABELS.tolist(),
    "objects": LABELS.astype(object),
}


@pytest.mark.parametrize("kind", INTEGERS)
def test_integer_labels(kind):
    assert ece(PROBS, INTEGERS[kind]) == ece(PROBS, LABELS)


WITH_NAMES = {
    "list": WORDS,
    "numpy": np.array(WORDS),
    "pandas": pd.Series(WORDS),
    "pandas, object": pd.Series(WORDS, dtype=object),
    "pandas, string": pd.Series(WORDS, dtype="string"),
    "pandas, categorical": pd.Series(pd.Categorical(WORDS, categories=NAMES[::-1])),
    "categorical": pd.Categorical(WORDS),
    "polars": pl.Series(WORDS),
    "polars, categorical": pl.Series(WORDS, dtype=pl.Categorical),
    "polars, enum": pl.Series(WORDS, dtype=pl.Enum(NAMES[::-1])),
    "pyarrow": pa.array(WORDS),
}


@pytest.mark.parametrize("kind", WITH_NAMES)
@pytest.mark.parametrize("classes", [NAMES, tuple(NAMES), np.array(NAMES), pd.Index(NAMES)])
def test_labels_with_names(kind, classes):
    assert ece(FRAME, WITH_NAMES[kind], classes=classes) == ece(PROBS, LABELS)


def test_the_order_of_classes_is_that_of_the_columns():
    reverse = NAMES[::-1]
    assert ece(FRAME[reverse], WORDS, classes=reverse) == ece(PROBS[:, ::-1], 2 - LABELS)
    assert nll(PROBS, WORDS, classes=reverse) == nll(PROBS, 2 - LABELS)


def test_labels_of_any_type():
    mixed = [10, "ten", None.__class__]
    assert ece(PROBS, [mixed[i] for i in LABELS], classes=mixed) == ece(PROBS, LABELS)
    days = pd.date_range("2024-01-01", periods=3)
    assert ece(PROBS, pd.Series(days[LABELS]), classes=list(days)) == ece(PROBS, LABELS)
    assert ece(PROBS, LABELS * 10, classes=[0, 10, 20]) == ece(PROBS, LABELS)
    assert ece(PROBS[:, 1], pd.Series(LABELS == 1, dtype="boolean"), task="binary") == ece(
        PROBS[:, 1], (LABELS == 1).astype(int), task="binary"
    )
    yes = np.where(LABELS == 1, "yes", "no")
    assert ece(PROBS[:, 1], yes, task="binary", classes=["no", "yes"]) == ece(
        PROBS[:, 1], LABELS == 1, task="binary"
    )
    grid = np.array(WORDS).reshape(5, 8)
    assert ece(PROBS.reshape(5, 8, 3), grid, classes=NAMES) == ece(PROBS, LABELS)


def test_independent_labels_in_frames():
    yes = np.eye(3, dtype=int)[LABELS]
    expected = ece(PROBS, yes, task="multilabel")
    for frame in (
        pd.DataFrame(yes),
        pd.DataFrame(yes == 1),
        pd.DataFrame(yes).astype("Int64"),
        pd.DataFrame(yes).astype({0: bool}),
        pl.DataFrame(yes),
    ):
        assert ece(FRAME, frame, task="multilabel") == expected


def test_ignored_labels_need_no_class():
    words = [*WORDS, "void"]
    probs = [*PROBS.tolist(), [np.nan] * 3]
    assert ece(probs, words, classes=NAMES, ignore_index="void") == ece(PROBS, LABELS)
    frame = pd.DataFrame(probs).astype("Float64").mask(lambda x: x.isna())
    assert ece(frame, [*LABELS, -1], ignore_index=-1) == ece(PROBS, LABELS)


MISSING = "labels must all be there, got a missing one in row 39"


@pytest.mark.parametrize(
    "probs, labels, options, error, text",
    [
        (PROBS, pd.Series([*LABELS[:-1], None], dtype="Int64"), {}, ValueError, MISSING),
        (PROBS, pd.Series([*LABELS[:-1], None]), {}, ValueError, MISSING),
        (PROBS, pd.Series([*WORDS[:-1], None]), {"classes": NAMES}, ValueError, MISSING),
        (PROBS, pl.Series([*LABELS[:-1].tolist(), None]), {}, ValueError, MISSING),
        (PROBS, pa.array([*WORDS[:-1], None]), {"classes": NAMES}, ValueError, MISSING),
        (PROBS, [*WORDS[:-1], None], {"classes": NAMES}, ValueError, MISSING),
        (PROBS, [*WORDS[:-1], pd.NA], {"classes": NAMES}, ValueError, MISSING),
        (PROBS, [*WORDS[:-1], float("nan")], {"classes": NAMES}, ValueError, MISSING),
        (PROBS, [*LABELS[:-1].tolist(), None], {}, ValueError, MISSING),
        (
            PROBS[:, :2],
            pl.DataFrame({"a": [0] * 40, "b": [*BOTH[:-1], None]}),
            {"task": "multilabel"},
            ValueError,
            MISSING,
        ),
        (
            FRAME.astype("Float64").mask(FRAME == FRAME.loc[7]),
            LABELS,
            {},
            ValueError,
            "probs must be within 0..1, got nan in row 7 (logits need from_logits=True)",
        ),
        (
            pl.DataFrame([[0.5] * 40, [0.5] * 7 + [None] + [0.5] * 32]),
            BOTH,
            {},
            ValueError,
            "probs must be within 0..1, got nan in row 7 (logits need from_logits=True)",
        ),
        (PROBS, WORDS, {}, TypeError, "labels must hold integers, got dtype <U3 (others need classes=)"),
        (
            PROBS,
            pd.Series(WORDS),
            {},
            TypeError,
            "labels must hold integers, got dtype object (others need classes=)",
        ),
        (
            PROBS,
            WORDS,
            {"classes": NAMES[:2]},
            ValueError,
            "classes must name the 3 classes of the scores in order, got ['cat', 'dog']",
        ),
        (
            PROBS,
            WORDS,
            {"classes": ["cat", "dog", "cat"]},
            ValueError,
            "classes must be all different, got ['cat', 'dog', 'cat']",
        ),
        (
            PROBS,
            [*WORDS[:-1], "emu"],
            {"classes": NAMES},
            ValueError,
            "labels must be among classes, got 'emu'",
        ),
        (PROBS, WORDS, {"classes": "abc"}, TypeError, "classes must be a sequence of labels, got 'abc'"),
        (PROBS, WORDS, {"classes": [[], 1, 2]}, TypeError, "classes must be hashable, got [[], 1, 2]"),
        ([[0.5, 0.5], [1.0]], [0, 1], {}, ValueError, "probs must have rows of the same length"),
        (
            FRAME.assign(cat="x"),
            LABELS,
            {},
            TypeError,
            "probs must hold floating point numbers, got dtype object",
        ),
    ],
)
def test_refusals(probs, labels, options, error, text):
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        ece(probs, labels, **options)


def test_stats_as_a_frame():
    stats = CalibrationStats(4).update(PROBS, LABELS)
    frame = stats.to_frame()
    assert list(frame.columns) == ["low", "high", "count", "hits", "confidence", "accuracy"]
    np.testing.assert_array_equal(frame["count"], stats.counts)
    np.testing.assert_array_equal(frame["confidence"], stats.confidence)
    gap = (frame["count"] * (frame["confidence"] - frame["accuracy"]).abs()).sum() / stats.n
    assert gap == pytest.approx(stats.ece())
    frame = CalibrationStats(4, 3).update(PROBS, LABELS).to_frame()
    assert frame.groupby("class")["count"].sum().to_dict() == {-1: 40, 0: 40, 1: 40, 2: 40}


def test_an_interval_as_a_frame_and_in_short():
    interval = Interval(0.123456, 0.1, 0.2, 0.9, "analytic", debiased=True)
    assert repr(interval) == "Interval(0.1235 [0.1000, 0.2000], debiased, level=0.9, analytic)"
    assert interval.to_frame().to_dict("records") == [
        {"value": 0.123456, "low": 0.1, "high": 0.2, "level": 0.9, "method": "analytic", "debiased": True}
    ]


def test_html():
    interval = Interval(0.1, 0.05, 0.15, 0.9, "<b>")
    root = ElementTree.fromstring(interval._repr_html_())
    assert [cell.text for cell in root.iter("td")] == ["0.1000", "0.0500", "0.1500", "0.9000", "<b>", "False"]
    stats = CalibrationStats(2).update(PROBS, LABELS)
    assert stats._repr_html_().count("<tr>") == 3
    assert f"<caption>ECE {stats.ece():.4f}, MCE {stats.mce():.4f}, n 40</caption>" in stats._repr_html_()
    assert "<caption>no rows</caption>" in CalibrationStats(2)._repr_html_()


def test_a_frame_without_pandas_says_what_to_install():
    code = "import sys; sys.modules['pandas'] = None; import refocal; refocal.CalibrationStats(2).to_frame()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "ImportError: to_frame needs pandas: pip install pandas"
