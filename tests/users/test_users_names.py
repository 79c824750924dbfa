"""Frames whose names contradict each other: they are refused, and nothing is sorted in silence."""

import numpy as np
import pandas
import polars
import pyarrow
import pytest

import refocal

RNG = np.random.default_rng(0)
NAMES = ["cat", "dog", "eel"]
P = pandas.DataFrame(RNG.dirichlet([1.0, 1.0, 1.0], size=60), columns=NAMES)
NAME = pandas.Series(RNG.choice(NAMES, size=60))
S = pandas.DataFrame(RNG.random((60, 3)), columns=NAMES)
L = pandas.DataFrame((RNG.random((60, 3)) < S.to_numpy()).astype(int), columns=NAMES)
OTHER = ["eel", "dog", "cat"]

KINDS = {"pandas": lambda x: x, "polars": polars.from_pandas, "pyarrow": pyarrow.Table.from_pandas}


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_labels_in_another_order(kind):
    table = KINDS[kind]
    both = r"\['cat', 'dog', 'eel'\], got \['eel', 'dog', 'cat'\]"
    with pytest.raises(
        ValueError, match=f"labels must have the columns of the scores in the same order, {both}"
    ):
        refocal.ece(table(S), table(L[OTHER]), task="multilabel")
    same = refocal.ece(table(S[OTHER]), table(L[OTHER]), task="multilabel")
    assert same == pytest.approx(refocal.ece(S.to_numpy(), L.to_numpy(), task="multilabel"))
    renamed = L.rename(columns=str.upper)
    assert refocal.ece(table(S), table(renamed), task="multilabel") == pytest.approx(same)


@pytest.mark.parametrize("kind", KINDS)
def test_classes_in_another_order_than_the_columns(kind):
    scores = KINDS[kind](P[OTHER])
    text = (
        r"classes must be in the order of the columns of the scores, \['eel', 'dog', 'cat'\], "
        r"got \['cat', 'dog', 'eel'\]"
    )
    for classes in (NAMES, tuple(NAMES), np.array(NAMES), iter(NAMES)):
        with pytest.raises(ValueError, match=text):
            refocal.nll(scores, NAME, classes=classes)
    wanted = refocal.nll(P.to_numpy(), NAME, classes=NAMES)
    assert refocal.nll(scores, NAME, classes=OTHER) == pytest.approx(wanted)
    assert refocal.nll(KINDS[kind](P), NAME, classes=iter(NAMES)) == wanted


def test_numbers_of_columns_that_nobody_named_are_no_names():
    bare = pandas.DataFrame(P.to_numpy())
    labels = NAME.map({"cat": 2, "dog": 0, "eel": 1})
    assert refocal.nll(bare, labels, classes=[2, 0, 1]) == refocal.nll(P, NAME, classes=NAMES)


@pytest.mark.parametrize("index", [None, [f"id{i}" for i in range(60)]])
def test_rows_in_another_order(index):
    scores, labels = (x if index is None else x.set_axis(index, axis=0) for x in (S, L))
    text = "labels must have the index of the scores in the same order"
    shuffled = labels.sample(frac=1, random_state=0)
    with pytest.raises(ValueError, match=text):
        refocal.ece(scores, shuffled, task="multilabel")
    with pytest.raises(ValueError, match=text):
        refocal.brier(scores["cat"], shuffled["cat"])
    with pytest.raises(ValueError, match=text):
        refocal.choose_calibration(np.log(scores), shuffled, task="multilabel")
    with pytest.raises(ValueError, match=text):
        refocal.TemperatureScaling().fit(np.log(scores), shuffled["cat"])
    wanted = refocal.brier(scores["cat"].to_numpy(), labels["cat"].to_numpy())
    assert refocal.brier(scores.loc[shuffled.index, "cat"], shuffled["cat"]) == pytest.approx(wanted)
    assert (
        refocal.brier(scores["cat"], labels["cat"].set_axis(range(100, 160))) == wanted
    )  # other rows' names
    refocal.brier(scores["cat"], shuffled["cat"].to_numpy())  # by position, as said
