"""Two workers of a local Ray cluster: the model of one process, and a worker that is killed."""

import json
import os
import signal
import time

import numpy as np
import pytest
from known_posteriors import binary, classifier

import refocal

pytest.importorskip("pyarrow")
pytest.importorskip("ray.train")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of Ray and what it imports
]


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    here = os.path.dirname(__file__)
    runtime = {
        "env_vars": {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{here}:{os.environ.get('PYTHONPATH', '')}"}
    }
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, runtime_env=runtime)
    yield ray
    ray.shutdown()


def await_two_checkpoints(folder):
    """Wait until Ray has noted both checkpoints: it reads the reports of workers now and then."""
    path = os.path.join(folder, "ray", "test", "checkpoint_manager_snapshot.json")
    for _ in range(1200):
        try:
            with open(path) as file:
                if len(json.load(file)["checkpoint_results"]) == 2:
                    return
        except (OSError, ValueError):  # not there yet, or half written: Ray does not replace it in one step
            pass
        time.sleep(0.1)


def killed_once(loop, marker):
    """Return a loop whose second worker kills itself once, after round 8 of 12."""

    def killed(config):
        import ray.train
        from test_boosting_ray import await_two_checkpoints

        from refocal.boosting.objective import FocalObjective

        called, rank = [0], ray.train.get_context().get_world_rank()
        gradients = FocalObjective.gradients

        def counted(self, *arguments):
            called[0] += len(arguments[0]) > 1  # the first call, of one row, is for the factor
            if called[0] == 8 and rank == 1 and not os.path.exists(marker):
                await_two_checkpoints(os.path.dirname(marker))
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return gradients(self, *arguments)

        FocalObjective.gradients = counted
        try:
            loop(config)
        finally:
            FocalObjective.gradients = gradients
            with open(f"{marker}-{rank}-{os.getpid()}", "w") as file:
                file.write(str(called[0]))

    return killed


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_a_killed_worker_resumes_and_the_model_is_that_of_one_process(ray, name, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip(name)
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    from refocal.boosting.ray import class_prior, lightgbm_loop, loop_config, xgboost_loop

    if name == "xgboost":
        from ray.train.xgboost import XGBoostTrainer as Trainer
    else:
        from ray.train.lightgbm import LightGBMTrainer as Trainer

    X, y, _ = binary(4000, 0, intercept=-2.5)
    X = X.clip(-2, 2).round(1)  # so few values that the bins of shards are those of all rows
    order = np.argsort(
        y, kind="stable"
    )  # the first shard has no positives: only the global prior can be right
    frame = pandas.DataFrame(X, columns=[f"f{i}" for i in range(20)]).assign(label=y).iloc[order]
    dataset = ray.data.from_pandas([frame.iloc[:2000], frame.iloc[2000:]])
    prior = class_prior(dataset, "label")
    assert prior[1] == pytest.approx(y.mean())
    params = {"learning_rate": 0.3, "max_depth": 4}
    if name == "lightgbm":
        # Processes of LightGBM do not count the rows of a leaf together but infer them from the curvature,
        # so that min_data_in_leaf allows other splits than in one process, with its own log loss too. Leaves
        # that are limited by the sum of the curvature alone are the same.
        params |= {"min_data_in_leaf": 1, "min_sum_hessian_in_leaf": 3.0}
    marker = str(tmp_path / "killed")
    trainer = Trainer(
        killed_once(xgboost_loop if name == "xgboost" else lightgbm_loop, marker),
        train_loop_config=loop_config(
            refocal.Focal(2.0),
            prior,
            label="label",
            num_boost_round=12,
            checkpoint_every=3,
            params=params | {"n_jobs": 1},
        ),
        datasets={"train": dataset},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="test", storage_path=str(tmp_path / "ray"), failure_config=FailureConfig(max_failures=1)
        ),
    )
    result = trainer.fit()
    assert os.path.exists(marker)
    calls = [int((tmp_path / f).read_text()) for f in os.listdir(tmp_path) if f.startswith("killed-")]
    assert calls.count(6) >= 2  # both new workers went on from the checkpoint at round 6: 12 - 6 rounds

    with result.checkpoint.as_directory() as folder:
        if name == "xgboost":
            import xgboost

            model = xgboost.Booster(model_file=os.path.join(folder, "model.ubj"))
            margins = model.predict(
                xgboost.DMatrix(frame.drop(columns="label")[[f"f{i}" for i in range(20)]])
            )
            assert model.num_boosted_rounds() == 12
        else:
            import lightgbm

            model = lightgbm.Booster(model_file=os.path.join(folder, "model.txt"))
            margins = model.predict(X[order], raw_score=True)
            assert model.current_iteration() == 12
    one = classifier(name, n_estimators=12, keep_base_rate=False, **params).fit(X, y)
    # The same trees; their sums are of single precision in XGBoost, and of double precision in LightGBM.
    np.testing.assert_allclose(
        margins, one.decision_function(X[order]), atol=1e-5 if name == "xgboost" else 1e-12
    )
