"""The draws of the study of labels, on made-up logits: which rows, of which trial, and what is counted."""

import numpy as np
import pytest

from refocal import Focal, ece
from refocal.experiments.tabular import Experiment, labels, training
from refocal.experiments.tabular.training import Trained

N = 60


def test_draws_go_round_the_trials_and_are_counted_against_psi(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    posterior = rng.dirichlet(np.ones(3), size=(2, N))
    y = tuple((p.cumsum(1) < rng.random((N, 1))).sum(1) for p in posterior)
    logits = tuple(1.5 * Focal(2.0).logits(p)[None] for p in posterior)  # too sharp: psi is not the best
    np.savez(tmp_path / "mine.npz", X=np.eye(6), y=np.arange(6) % 3)
    monkeypatch.setattr(training, "train_experiment", lambda *_: Trained(9, 4, logits, y))

    def fitted(method, objective, z, labels, others):
        """The temperature is always that of twice the scores; focal_ts has no fit in the last draw."""
        seen.append((method, z, labels, others))
        if method == "focal_ts" and len([m for m, *_ in seen if m == "focal_ts"]) > 4:
            raise ValueError("no fit")
        return Focal(0.0).log_posterior(2 * others)

    seen = []
    monkeypatch.setattr(labels, "_fitted", fitted)
    experiment = Experiment("mine", objectives=(Focal(2.0),), trials=(0, 1), seed=5, data=str(tmp_path))
    config = {"labels": [10, 30, 31], "draws": 3, "model": experiment.config()}
    result = labels.run_labels(config, str(tmp_path))

    assert result["labels"] == [10, 30]  # half of the rows, and no more
    assert result["unfitted"] == {"ts_nll": [0, 0], "focal_ts": [1, 1], "chosen": [0, 0]}
    eces = {name: np.empty((2, 3)) for name in ("psi", "ts_nll", "focal_ts")}
    for draw in range(3):
        order, z, of = np.random.default_rng([5, draw]).permutation(N), logits[draw % 2][0], y[draw % 2]
        for i, n in enumerate((10, 30)):
            fit, rest = order[:n], order[n:]
            _, fit_z, fit_y, rest_z = seen[6 * draw + 3 * i]
            for got, expected in ((fit_z, z[fit]), (fit_y, of[fit]), (rest_z, z[rest])):
                np.testing.assert_array_equal(got, expected)
            psi = Focal(2.0).posterior(z[rest])
            eces["psi"][i, draw] = 100 * ece(psi, of[rest], 15)
            eces["ts_nll"][i, draw] = 100 * ece(Focal(0.0).posterior(2 * z[rest]), of[rest], 15)
            eces["focal_ts"][i, draw] = eces["psi" if draw == 2 else "ts_nll"][i, draw]
    for name, values in eces.items():
        found = result["measures"]["ece"][name]
        assert found["mean"] == pytest.approx(values.mean(axis=1))
        assert found["below_psi"] == (values < eces["psi"]).mean(axis=1).tolist()
    assert 0 < sum(result["measures"]["ece"]["ts_nll"]["below_psi"]) < 2  # the two directions differ
