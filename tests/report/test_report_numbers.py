"""Every number of a report is that of the library's own function on the same rows."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from made import NAMES, calibrated, entries, report, rows
from scipy import special
from scipy import stats as scipy_stats

import refocal
from refocal import Focal, SigmoidFocal
from refocal.report import Report, words


def plain(x):
    return json.loads(json.dumps(x))


def test_metrics_are_those_of_the_library():
    z, y = rows()
    for name, value in report().to_dict()["metrics"].items():
        assert value == pytest.approx(getattr(refocal, name)(z, y, from_logits=True), rel=1e-12)


def test_metrics_of_entries_are_those_of_flat_binary_scores():
    z, y = entries()
    numbers = Report(z, y, objective=SigmoidFocal(2.0, alpha=0.25), from_logits=True).numbers
    flat = (z.reshape(-1), y.reshape(-1))
    for name in ("nll", "brier", "error_rate"):
        assert numbers.metrics[name] == pytest.approx(
            getattr(refocal, name)(*flat, from_logits=True), rel=1e-12
        )
    for name in ("ece", "mce"):
        expected = getattr(refocal, name)(*flat, from_logits=True, target="positive")
        assert numbers.metrics[name] == pytest.approx(expected, rel=1e-12)
    each = [refocal.ece(z[:, j], y[:, j], from_logits=True, target="positive") for j in range(3)]
    assert numbers.metrics["classwise_ece"] == pytest.approx(np.mean(each), rel=1e-12)
    assert [c.ece for c in numbers.classes] == pytest.approx(each, rel=1e-12)


def test_selection_is_the_selectors():
    z, y = rows()
    found = refocal.choose_calibration(z, y, Focal(2.0))
    assert report().to_dict()["selection"] == plain(found.to_dict())
    assert report().numbers.sentence == found.sentence


def test_diagram_before_has_the_bins_of_all_rows_with_wilsons_intervals():
    z, y = rows()
    stats = refocal.CalibrationStats().update(special.softmax(z, axis=1), y)
    found = report().numbers.before
    assert found.counts == tuple(stats.counts)
    assert found.ece == pytest.approx(stats.ece(), rel=1e-12)
    for j, count in enumerate(stats.counts):
        if count == 0:
            assert np.isnan(found.accuracy[j])
            assert np.isnan(found.low[j])
            continue
        assert found.confidence[j] == pytest.approx(stats.confidence[j])
        assert found.accuracy[j] == pytest.approx(stats.hits[j] / count)
        interval = scipy_stats.binomtest(int(stats.hits[j]), int(count)).proportion_ci(0.95, "wilson")
        assert (found.low[j], found.high[j]) == pytest.approx((interval.low, interval.high), abs=1e-12)


def test_diagram_after_is_the_held_out_one_of_the_winner():
    numbers = calibrated().numbers
    assert numbers.after_name == numbers.selection.winner == "psi"
    stats = numbers.selection.method("psi").stats
    assert (numbers.after.counts, numbers.after.ece) == (tuple(stats.counts), stats.ece())


def test_where_raw_wins_psi_is_shown_to_compare():
    made = Report(*rows(4000, 3, sharp=1.0, gamma=0.0), objective=Focal(2.0), from_logits=True)
    assert (made.numbers.selection.winner, made.numbers.after_name) == ("raw", "psi")
    assert "Not recommended: shown to compare" in made.html()


def test_classes_are_counted_and_measured_one_by_one():
    z, y = rows()
    q, p = special.softmax(z, axis=1), report().numbers.selection.apply(z)
    top = q.argmax(axis=1)
    for k, row in enumerate(report().numbers.classes):
        assert (row.name, row.rows, row.predicted) == (NAMES[k], (y == k).sum(), (top == k).sum())
        assert row.recall == pytest.approx((top[y == k] == k).mean())
        assert row.share == pytest.approx((y == k).mean())
        assert (row.mean, row.mean_after) == pytest.approx((q[:, k].mean(), p[:, k].mean()))
        expected = [
            refocal.ece(s[:, k], (y == k).astype(int), target="positive") for s in (q, p.astype(float))
        ]
        assert (row.ece, row.ece_after) == pytest.approx(expected)


def test_eta_confidence_counts_rows_by_theorem_8():
    z, y = rows(500, 30, sharp=0.8)  # flat scores of many classes: both kinds
    eta = Report(z, y, objective=Focal(2.0), from_logits=True).numbers.eta
    q = special.softmax(z, axis=1)
    codes = refocal.eta_confidence(q, 2.0)
    assert (eta.under, eta.equal, eta.over) == tuple((codes == c).mean() for c in (-1, 0, 1))
    assert min(eta.under, eta.over) > 0.05
    assert (eta.tau_oc, eta.tau_uc) == (refocal.tau_oc(2.0), refocal.tau_uc(2.0))
    for counts, code in ((eta.counts_under, -1), (eta.counts_equal, 0), (eta.counts_over, 1)):
        assert sum(counts) == (codes == code).sum()
    middle = np.array(eta.edges[:-1]) + 0.0125
    assert not np.array(eta.counts_over)[middle > eta.tau_uc + 0.025].any()
    assert not np.array(eta.counts_under)[middle < eta.tau_oc - 0.025].any()


def test_eta_confidence_of_weights_compares_score_and_posterior():
    z, y = rows(300, 3)
    spec = Focal(2.0, weight=(1.0, 2.0, 5.0))
    eta = Report(z, y, objective=spec, from_logits=True).numbers.eta
    gap = special.softmax(z, axis=1).max(axis=1) - spec.posterior(z).max(axis=1)
    assert (eta.gamma, eta.tau_oc) == (None, None)
    assert (eta.under, eta.over) == ((gap < 0).mean(), (gap > 0).mean())


def test_eta_confidence_of_gamma_0_is_equal():
    z, y = rows(100)
    eta = Report(z, y, objective=Focal(0.0), from_logits=True).numbers.eta
    assert (eta.under, eta.equal, eta.over, eta.tau_uc) == (0, 1, 0, None)


def of_method(found, method):
    """Return the curves of a method and the scores that mean what is wanted, one for each curve."""
    pairs = zip(found.curves, found.scores, strict=True)
    return [(curve, scores) for curve, scores in pairs if curve.method == method]


def assert_points(points, score, probability):
    """Assert that points are some of these pairs."""
    order = np.argsort(score)
    score, probability = score[order], probability[order]
    given = np.array(points)
    assert len(given) == 300
    at = np.searchsorted(score, given[:, 0] - 1e-12)
    np.testing.assert_allclose(given, np.stack([score, probability], axis=1)[at], atol=1e-9)


def test_thresholds_of_two_classes_are_exact():
    z, y = rows(200, 2)
    found = Report(z, y, objective=Focal(2.0), from_logits=True).numbers.thresholds
    assert found.exact
    ((curve, scores),) = of_method(found, "psi")
    assert scores == pytest.approx(refocal.score_threshold(Focal(2.0), np.array(found.wanted)))
    assert scores[found.wanted.index(0.5)] == pytest.approx(0.5)
    for s, p in zip(curve.score, curve.probability, strict=True):
        assert p == pytest.approx(refocal.psi(np.array([1 - s, s]), 2.0)[1], abs=1e-12)


def test_the_sigmoid_threshold_that_means_one_half():
    z, y = entries(200, 1)
    found = Report(z[:, 0], y[:, 0], objective=SigmoidFocal(2.0, alpha=0.25), from_logits=True)
    ((_, scores),) = of_method(found.numbers.thresholds, "psi")
    assert scores[2] == pytest.approx(0.3988, abs=1e-4)  # as the design says: 0.40 means 0.50


@pytest.mark.parametrize("shape", ["binary", "two classes", "labels"])
def test_thresholds_are_those_of_the_recommended_method_with_psi_beside_it(shape):
    z, y = entries(1200, 2)
    z, objective = z / 2 + 1, SigmoidFocal(2.0, alpha=0.25)  # which a slope and a bias mend
    if shape == "binary":
        z, y = z[:, 0], y[:, 0]
    elif shape == "two classes":
        z, y, objective = np.stack([-z[:, 0], z[:, 0]], axis=1), y[:, 0], Focal(2.0)
    made = Report(z, y, objective=objective, from_logits=True)
    found, selection = made.numbers.thresholds, made.numbers.selection
    assert found.method == selection.winner
    assert list(dict.fromkeys(curve.method for curve in found.curves)) == [selection.winner, "psi"]
    assert selection.winner != "psi"
    for method in (selection.winner, "psi"):
        ((curve, scores),) = of_method(found, method)
        wanted = [selection.threshold(p, method=method) for p in found.wanted]
        assert scores == pytest.approx(wanted, rel=1e-6)
        at = found.wanted.index(0.75)
        assert np.interp(scores[at], curve.score, curve.probability) == pytest.approx(0.75, abs=0.01)
    page = made.html()
    assert f"score by {selection.winner}</th>" in page
    assert "score by psi</th>" in page
    assert f"By {selection.winner}, the recommended method, and beside it by psi." in page


def test_thresholds_of_each_label_have_no_one_curve():
    z, y = entries(1200, 2)
    z = z * [0.4, 2.5]
    made = Report(z, y, objective=SigmoidFocal(2.0, alpha=0.25), from_logits=True)
    found = made.numbers.thresholds
    assert found.method == made.numbers.selection.winner == "focal_ts_per_label"
    assert [curve.method for curve in found.curves] == ["psi"]
    assert_points(found.points, special.expit(z).ravel(), made.numbers.selection.apply(z).ravel())
    assert "focal_ts_per_label has numbers for each of the labels, so there is no one curve" in made.html()


def test_thresholds_of_more_classes_have_the_rows_near_two_curves():
    found = report().numbers.thresholds
    (rival, _), (alike, _) = of_method(found, "psi")
    assert [rival.name, alike.name] == ["one rival", "all others alike"]
    for s, p in list(zip(rival.score, rival.probability, strict=True))[::10]:
        assert p == pytest.approx(refocal.psi(np.array([s, 1 - s, 0, 0, 0]), 2.0)[0], abs=1e-12)
    for s, p in list(zip(alike.score, alike.probability, strict=True))[::10]:
        assert p == pytest.approx(refocal.psi(np.array([s, *[(1 - s) / 4] * 4]), 2.0)[0], abs=1e-12)
    for wanted, *scores in zip(found.wanted, *(s for _, s in of_method(found, "psi")), strict=True):
        for score, rest in zip(scores, (1, 4), strict=True):
            if np.isfinite(score):
                q = [score, *[(1 - score) / rest] * rest, *[0] * (4 - rest)]
                assert refocal.psi(np.array(q), 2.0)[0] == pytest.approx(wanted, abs=1e-9)
    assert np.isnan(found.scores[0][0])  # 0.1 is not the largest of two
    _, (_, scores) = of_method(found, report().numbers.selection.winner)
    q = np.array([scores[2], *[(1 - scores[2]) / 4] * 4])
    assert report().numbers.selection.apply(np.log(q)[None])[0, 0] == pytest.approx(0.5, abs=1e-9)
    z, _ = rows()
    q, p = special.softmax(z, axis=1), report().numbers.selection.apply(z)
    top = np.arange(len(q)), q.argmax(axis=1)
    assert_points(found.points, q[top], p[top])


def test_thresholds_of_weights_have_no_one_curve():
    found = Report(*rows(200, 3), objective=Focal(2.0, weight=(1.0, 2.0, 3.0)), from_logits=True).numbers
    assert of_method(found.thresholds, "psi") == []
    assert len(found.thresholds.points) == 200


def test_grid_is_ece_and_nll_of_psi_at_each_gamma_and_temperature():
    z, y = rows()
    grid = report().numbers.grid
    assert (grid.n_rows, 2.0 in grid.gammas, 1.0 in grid.temperatures) == (600, True, True)
    for i in range(0, len(grid.gammas), 3):
        for j in range(0, len(grid.temperatures), 4):
            log_psi = refocal.log_psi(z / grid.temperatures[j], grid.gammas[i])
            assert grid.ece[i][j] == pytest.approx(refocal.ece(np.exp(log_psi), y), rel=1e-9)
            assert grid.nll[i][j] == pytest.approx(refocal.nll(log_psi, y, from_logits=True), rel=1e-9)
            stats = refocal.CalibrationStats().update(np.exp(log_psi), y)
            assert (grid.counts[i][j], grid.hits[i][j]) == (tuple(stats.counts), tuple(stats.hits))


def test_grid_has_the_fitted_temperature_and_the_presets_point_to_methods():
    z, y = rows(4000, 3)
    numbers = Report(z, y, objective=Focal(2.0), from_logits=True).numbers
    winner, presets = numbers.selection.method(numbers.selection.winner), dict(numbers.grid.presets)
    assert winner.name == "psi_ts_fl"
    i, j = presets[winner.name]
    assert (numbers.grid.gammas[i], numbers.grid.temperatures[j]) == (2.0, winner.temperature)
    assert numbers.grid.ece[i][j] == pytest.approx(refocal.ece(winner.probs(z), y))
    i, j = presets["raw"]
    assert numbers.grid.ece[i][j] == pytest.approx(numbers.metrics["ece"])


def test_grid_of_sigmoids_has_the_objectives_alpha():
    z, y = entries()
    grid = Report(z, y, objective=SigmoidFocal(2.0, alpha=0.25), from_logits=True).numbers.grid
    i, j = grid.gammas.index(3.0), 2
    p = SigmoidFocal(3.0, alpha=0.25).posterior(z / grid.temperatures[j]).reshape(-1)
    assert grid.ece[i][j] == pytest.approx(refocal.ece(p, y.reshape(-1), target="positive"))
    assert grid.nll[i][j] == pytest.approx(refocal.nll(p, y.reshape(-1)), rel=1e-9)
    assert "raw" not in dict(grid.presets)  # with alpha, gamma 0 is not the sigmoid


def test_an_objective_without_gamma_has_a_temperature_alone():
    z, y = rows(200, 3)
    spec = refocal.GeneralizedCrossEntropy(0.5)
    grid = Report(z, y, objective=spec, from_logits=True).numbers.grid
    assert (grid.gammas, len(grid.ece)) == ((), 1)
    j = grid.temperatures.index(1.0)
    assert grid.ece[0][j] == pytest.approx(refocal.ece(spec.posterior(z), y))


@pytest.mark.parametrize("case", ["psi", "psi_ts_fl", "raw", "probabilities", "probabilities with T"])
def test_python_code_gives_what_the_choice_gives(case):
    sharp = {"psi": 1.0, "probabilities": 1.0, "raw": 1.0}.get(case, 1.25)
    z, y = rows(4000, 3, sharp=sharp, gamma=0.0 if case == "raw" else 2.0)
    from_logits = not case.startswith("probabilities")
    scores = z if from_logits else special.softmax(z, axis=1)
    numbers = Report(scores, y, objective=Focal(2.0), from_logits=from_logits).numbers
    assert numbers.selection.winner == {"probabilities": "psi", "probabilities with T": "psi_ts_fl"}.get(
        case, case
    )
    names = {"logits": z, "scores": scores}
    exec(numbers.python, names)
    np.testing.assert_allclose(names["probs"], numbers.selection.apply(np.log(special.softmax(z, axis=1))))
    kind = "--logits" if from_logits else "--probs"
    assert numbers.command == f"refocal apply IN OUT {kind} --calibration choice.json"


@pytest.mark.parametrize(
    "source, options, files",
    [
        ("my rows.csv", (), "'my rows.csv' 'my rows-probs.csv'"),
        ("s3://bucket/a.csv.gz", (), "s3://bucket/a.csv.gz a-probs.csv.gz"),
        ("day=*/*.parquet", (), "'day=*/*.parquet' probs.parquet"),
        ("scores/", (), "scores/ scores-probs"),
        ("-", (), "- probs.csv"),
        ("rows", ("--from", "tsv"), "rows rows-probs.tsv --from tsv"),
    ],
)
def test_command_names_the_files(source, options, files):
    wanted = f"refocal apply {files} --logits --calibration choice.json"
    assert words.command_of(True, source, options) == wanted


def test_command_is_that_of_the_source():
    wanted = words.command_of(True, "my rows.csv")
    assert calibrated().numbers.command == wanted


def test_probabilities_give_the_same_report_as_their_logits():
    z, y = rows(500, 3)
    by_logits = Report(z, y, objective=Focal(2.0), from_logits=True).numbers
    by_probs = Report(special.softmax(z, axis=1), y, objective=Focal(2.0)).numbers
    assert by_probs.selection.winner == by_logits.selection.winner
    assert by_probs.grid.ece == pytest.approx(np.array(by_logits.grid.ece), abs=1e-9)
    assert by_probs.metrics == pytest.approx(by_logits.metrics)


def test_torch_tensors_and_half_precision():
    z, y = rows(300, 3)
    half = Report(torch.tensor(z, dtype=torch.bfloat16), torch.tensor(y), from_logits=True).numbers
    whole = Report(z, y, from_logits=True).numbers
    assert half.n_rows == whole.n_rows
    assert half.metrics["ece"] == pytest.approx(whole.metrics["ece"], abs=0.01)


def test_few_rows_say_so():
    numbers = Report(*rows(40, 3), objective=Focal(2.0), from_logits=True).numbers
    assert numbers.tone in ("unclear", "act")
    assert not numbers.selection.clear
    assert numbers.warnings[0].startswith("40 rows only: the intervals are wide")


@pytest.mark.parametrize("n", [1, 2])
def test_one_or_two_rows_make_a_page(n):
    z, y = rows(40, 3)
    found = Report(z[:n], y[:n], objective=Focal(2.0), from_logits=True)
    assert found.html().startswith("<!doctype html>")
    if n == 1:
        assert found.numbers.refusal == "logits must have at least 2 rows, got 1"
        assert found.numbers.sentence.startswith("The methods could not be compared: logits must have")


def test_a_missing_class_and_one_never_predicted():
    z, y = rows(2000, 4)
    kept = y != 3
    z = z[kept]
    z[:, 2] -= 50
    numbers = Report(z, y[kept], objective=Focal(2.0), from_logits=True).numbers
    assert "Classes that no row has: 3. Nothing can be said about them." in numbers.warnings
    assert "Classes that are never predicted, though rows have them: 2." in numbers.warnings
    assert numbers.classes[3].recall is None


def test_probabilities_given_as_logits_are_noticed():
    z, y = rows(1500, 3)
    with pytest.warns(refocal.SuspiciousInputWarning, match="look like probabilities"):
        numbers = Report(special.softmax(z, axis=1), y, objective=Focal(2.0), from_logits=True).numbers
    assert numbers.warnings[0].startswith("The scores were said to be logits, but look like probabilities")
    assert not any("look like" in w for w in calibrated().numbers.warnings)


def test_an_assumed_objective_is_said():
    numbers = Report(*rows(1500, 3), from_logits=True).numbers
    assert numbers.warnings == (
        "No objective was said, so the focal loss with gamma 2 is assumed. Say what the model was trained "
        "with, since psi depends on it.",
    )
    assert numbers.objective == Focal(2.0)


def test_a_label_of_probability_0_leaves_the_page_without_advice():
    p, y = np.array([[1.0, 0.0], [0.3, 0.7]] * 20), np.array([1, 1] * 20)
    found = Report(p, y, objective=Focal(2.0))
    assert found.numbers.tone == "none"
    assert "A label has probability 0, so the NLL of the scores is infinite." in found.numbers.warnings
    assert json.loads(found.json())["metrics"]["nll"] is None
    assert "∞" in found.html()


def test_many_classes_are_counted_not_listed_in_warnings():
    z, y = rows(300, 40)
    numbers = Report(z, np.zeros_like(y), objective=Focal(2.0), from_logits=True).numbers
    (warning,) = (w for w in numbers.warnings if w.startswith("Classes that no row has"))
    assert warning == "Classes that no row has: 1, 2, 3, 4, 5 and 34 more. Nothing can be said about them."


def test_json_is_all_numbers_and_strict():
    data = json.loads(report().json())
    assert set(data) == {field.name for field in dataclasses.fields(report().numbers)}
    assert data["objective"] == Focal(2.0).to_dict()
    choice = refocal.Selection.from_dict(data["selection"])
    z, _ = rows()
    np.testing.assert_array_equal(choice.apply(z), report().numbers.selection.apply(z))


@pytest.mark.parametrize(
    "change, kind, text",
    [
        ({"classes": ["a", "b"]}, ValueError, r"classes must have one name for each of the 3 classes, got 2"),
        ({"classes": "abc"}, TypeError, r"classes must be a sequence of names, got 'abc'"),
        (
            {"objective": "focal"},
            TypeError,
            r"objective must be an objective such as Focal\(2.0\), got 'focal'",
        ),
        (
            {"task": "many"},
            ValueError,
            r"task must be one of \('binary', 'multiclass', 'multilabel'\), got 'many'",
        ),
        (
            {"task": "multilabel"},
            ValueError,
            r"objective must be a loss on a sigmoid for task 'multilabel', got Focal\(.*\)",
        ),
        (
            {"objective": refocal.OneVsRest()},
            ValueError,
            r"objective must be a loss on a softmax or a sigmoid, got OneVsRest\(.*\)",
        ),
        ({"sample": 1}, ValueError, r"sample must be at least 2, got 1"),
        ({"seed": -1}, ValueError, r"seed must be at least 0, got -1"),
        ({"level": 95}, ValueError, r"level must be within \(0, 1\), got 95"),
        ({"n_bins": 0}, ValueError, r"n_bins must be within 1..100000, got 0"),
        (
            {"from_logits": False},
            ValueError,
            r"probs must be within 0..1, got -.* \(logits need from_logits=True\)",
        ),
    ],
)
def test_wrong_arguments(change, kind, text):
    z, y = rows(20, 3)
    with pytest.raises(kind, match=f"^{text}$"):
        Report(z, y, **{"objective": Focal(2.0), "from_logits": True} | change)


def test_wrong_rows():
    z, y = rows(20, 3)
    bad = z.copy()
    bad[7, 1] = np.nan
    with pytest.raises(ValueError, match=r"^logits must be finite or -inf, .* got nan in row 7$"):
        Report(bad, y, from_logits=True)
    with pytest.raises(ValueError, match=r"^labels must be within 0..2, got 5$"):
        Report(z, y + 3 * (y == 2), from_logits=True)
    with pytest.raises(
        ValueError, match=r"^task or objective must be said for scores of shape \(n,\), got neither$"
    ):
        Report(z[:, 0], y, from_logits=True)
    with pytest.raises(ValueError, match=r"^labels must have the shape \(20, 3\) of scores, got \(20,\)$"):
        Report(z, y, task="multilabel", from_logits=True)
    with pytest.raises(ValueError, match=r"^scores must have shape \(n,\) for task 'binary', got \(20, 3\)$"):
        Report(z, y, task="binary", from_logits=True)
    with pytest.raises(ValueError, match=r"^scores must have at least 1 row, got none$"):
        Report(z[:0], y[:0], from_logits=True)
    with pytest.raises(TypeError, match=r"^labels must hold integers, got dtype float64"):
        Report(z, y.astype(float), from_logits=True)
