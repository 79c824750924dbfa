"""What a choice says and stores: words, dictionaries, pages, frames, and probabilities of any library."""

import dataclasses
import json
import math
import re

import jax
import numpy as np
import pytest
import scipy.special
import torch

import refocal
import refocal.calibration._search
from refocal import Focal, Selection, choose_calibration
from refocal.calibration import selection
from refocal.calibration.method import METHODS

FOCAL = Focal(2.0)
SMOOTHED = Focal(2.0, label_smoothing=0.1)


def made(n, k=4, seed=0):
    """Return a posterior, and labels drawn from it."""
    rng = np.random.default_rng(seed)
    posterior = np.maximum(rng.dirichlet([0.4] * k, size=n), 1e-9)
    posterior /= posterior.sum(axis=1, keepdims=True)
    return posterior, np.minimum((rng.random((n, 1)) > posterior.cumsum(axis=1)).sum(axis=1), k - 1)


def choose(logits, labels, objective=FOCAL, **options):
    return choose_calibration(logits, labels, objective, **{"n_resamples": 200, **options})


@pytest.fixture(scope="module")
def sharp():
    """The selection for logits that are twice too sharp, and some of the logits."""
    posterior, labels = made(10_000)
    logits = 2 * FOCAL.logits(posterior)
    return choose(logits, labels), logits[:50]


@pytest.mark.parametrize("library", [np.asarray, np.float32, torch.tensor, jax.numpy.asarray])
def test_apply_is_the_method(library, sharp):
    found, logits = sharp
    z = library(logits)
    # JAX compiles psi for seconds, and that psi is the same there is tested elsewhere.
    method = "ts_fl" if library is jax.numpy.asarray else None
    probs = found.apply(z, method=method)
    assert type(probs) is type(z)
    assert probs.dtype == z.dtype
    scaled = logits / found.method("ts_fl").temperature
    wanted = scipy.special.softmax(scaled, axis=1) if method else FOCAL.posterior(scaled)
    np.testing.assert_allclose(np.asarray(probs), wanted, atol=1e-6)


def test_half_precision_is_rounded_once(sharp):
    found, _ = sharp
    wide = dataclasses.replace(found.method("ts_fl"), columns=100)
    probs = wide.probs(torch.zeros(1, 100, dtype=torch.bfloat16))
    assert probs.dtype == torch.bfloat16
    assert abs(probs.double().sum().item() - 1) < 0.01  # what metrics ask of half precision
    assert found.method("ts_fl").log_probs(torch.zeros(1, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_any_library_in(sharp):
    posterior, labels = made(100)
    logits = FOCAL.logits(posterior)
    wanted = choose(logits, labels).to_dict()
    assert choose(torch.tensor(logits, requires_grad=True), torch.tensor(labels)).to_dict() == wanted
    found, logits = sharp
    np.testing.assert_allclose(found.apply(logits, method="raw"), scipy.special.softmax(logits, axis=1))


def test_dictionary_and_text():
    posterior, labels = made(800)
    found = choose(SMOOTHED.logits(posterior), labels, SMOOTHED)
    fields = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    again = Selection.from_dict(fields)
    assert again == found
    old = fields | {"methods": [{**fields["methods"][0], "name": "psi_after_ts_fl"}]}
    with pytest.raises(ValueError, match=r"^name must be one of raw, psi, .*, got 'psi_after_ts_fl'$"):
        Selection.from_dict(old)
    assert str(again) == str(found)
    logits = SMOOTHED.logits(posterior[:5])
    np.testing.assert_array_equal(again.apply(logits), found.apply(logits))
    lines = str(found).splitlines()
    head = ["method", "T", "NLL", "Brier", "ECE, debiased interval"]
    assert re.split("  +", lines[0]) == [*head, "classwise ECE, debiased interval", "error rate"]
    assert [line.split("  ")[0].removesuffix(" *") for line in lines[1:10]] == [m.name for m in found.methods]
    for m in found.methods:  # the names of the table are those of `apply`
        np.testing.assert_array_equal(found.apply(logits, method=m.name), m.probs(logits))
    assert sum(" *" in line for line in lines[1:10]) == 1
    above = "the plain value before it is biased upward, and may lie above."
    assert lines[-3] == "800 rows, held out in 5 parts; 95 % intervals."
    assert lines[-2] == f"The interval of a calibration error is for the true error; {above}"
    assert lines[-1] == found.sentence
    assert fields["sentence"] == found.sentence


def test_words_of_methods_with_label_smoothing():
    """psi and psi_unsmoothed are told apart, and each description stands for itself."""
    posterior, labels = made(300)
    smoothed = choose(SMOOTHED.logits(posterior), labels, SMOOTHED)
    assert smoothed.describe("psi") == "Psi with label smoothing left in, as in the paper"
    assert smoothed.describe("psi_unsmoothed") == "the objective's posterior, label smoothing taken out"
    plain = choose(FOCAL.logits(posterior), labels)
    assert plain.describe("psi") == "the objective's posterior"
    assert not any("the same" in words for words in METHODS.values())
    winner = dataclasses.replace(smoothed, winner="psi_unsmoothed")
    assert "psi_unsmoothed (the objective's posterior, label smoothing taken out)" in winner.sentence


def test_the_table_has_every_number_that_was_fitted():
    rng = np.random.default_rng(0)
    z = rng.normal(size=2000)
    labels = (rng.random(2000) < scipy.special.expit(2 * z - 1)).astype(int)
    found = choose(z, labels, None)
    platt, free = found.method("platt"), found.method("focal_ts_free")
    assert (platt.temperature, platt.bias) == pytest.approx((0.5, -1), rel=0.15)
    assert platt.extras == f"bias {platt.bias:.4g}"
    assert free.extras == f"gamma {free.link.gamma:.4g}"
    assert f"{platt.temperature:.4g}, bias {platt.bias:.4g}  " in str(found)
    assert f"{free.temperature:.4g}, gamma {free.link.gamma:.4g}  " in str(found)
    frame = found.to_frame()
    assert frame.loc["focal_ts_free", "gamma"] == free.link.gamma
    assert frame.loc["platt", "bias"] == platt.bias


def test_representations_are_short(sharp):
    found, _ = sharp
    assert repr(found) == "Selection(winner='psi_ts_fl', clear=True, n_rows=10000, methods=7)"
    nll = found.method("raw").nll
    assert (
        repr(found.method("raw"))
        == f"Method('raw', T=1, NLL {nll.value:.4f} [{nll.low:.4f}, {nll.high:.4f}])"
    )


def test_an_interval_holds_its_point_or_says_that_it_is_debiased(sharp):
    found, _ = sharp
    intervals = [getattr(m, name) for m in found.methods for name in selection.METRICS]
    assert all(i.debiased or i.low <= i.value <= i.high for i in intervals)
    outside = [i for i in intervals if not i.low <= i.value <= i.high]
    assert outside  # or the test shows nothing
    assert str(outside[0]).endswith("], debiased")


def test_a_fit_that_does_not_converge_is_said_and_not_warned_of(monkeypatch):
    monkeypatch.setattr(refocal.calibration._search, "MAX_STEPS", 2)
    posterior, labels = made(300)
    found = choose(3 * np.log(posterior), labels)
    assert not found.method("focal_ts_free").converged
    assert found.method("raw").converged
    assert "focal_ts_free: the search for its numbers did not converge." in str(found).splitlines()
    assert Selection.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_an_infinite_number_is_none_in_json():
    posterior, labels = made(100)
    found = choose(np.log(posterior), labels)
    infinite = refocal.Interval(math.inf, math.inf, math.inf, 0.9, "analytic")
    found = dataclasses.replace(found, methods=(dataclasses.replace(found.methods[0], nll=infinite),))
    fields = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert Selection.from_dict(fields).method("raw").nll.value == math.inf


def test_old_dictionaries_load():
    posterior, labels = made(100)
    found = choose(np.log(posterior), labels)
    fields = json.loads(json.dumps(found.to_dict()))
    for name in ("task", "labels", "assumed"):
        del fields[name]
    for method in fields["methods"]:
        for name in ("bias", "floor", "scores", "converged", "shared"):
            del method[name]
    assert Selection.from_dict(fields) == found


def test_notebooks_and_frames():
    posterior, labels = made(100)
    found = choose(np.log(posterior), labels, None)
    page = found._repr_html_()
    assert page.count("<tr>") == len(found.methods) + 1
    assert f"<td>{found.winner} *</td>" in page
    assert "No objective was given: Focal(gamma=2.0, weight=None, label_smoothing=0.0) is assumed." in page
    bad = dataclasses.replace(found, skipped=(("ts_fl", "<script>alert(1)</script>"),))
    assert "<script>" not in bad._repr_html_()
    frame = found.to_frame()
    assert list(frame.index) == [m.name for m in found.methods]
    assert frame.loc["ts_nll", "nll_high"] == found.method("ts_nll").nll.high
    assert frame.index[frame["winner"]].tolist() == [found.winner]


def test_an_infinite_gap_of_psi_is_none_in_json():
    posterior, labels = made(50)
    found = choose(np.log(posterior), labels)
    infinite = dataclasses.replace(
        found, psi_gap=refocal.Interval(math.inf, math.inf, math.inf, 0.9, "bootstrap")
    )
    fields = json.loads(json.dumps(infinite.to_dict(), allow_nan=False))
    assert fields["psi_gap"]["low"] is None
    assert Selection.from_dict(fields) == infinite


def test_unknown_method():
    posterior, labels = made(30)
    found = choose(np.log(posterior), labels)
    with pytest.raises(ValueError, match=r"name must be one of \['raw', 'psi', .*\], got 'isotonic'"):
        found.apply(np.log(posterior), method="isotonic")
