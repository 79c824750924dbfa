"""Boosting with the focal loss on more than one machine, by Ray Train.

The two loops are for ``ray.train.xgboost.XGBoostTrainer`` and ``ray.train.lightgbm.LightGBMTrainer``. Each
worker trains on its shard of the dataset, the engines add up their histograms, and every worker starts at the
minimiser of the prior of all shards. A worker that dies takes its group down; Ray starts a new one, which
goes on from the last checkpoint. A checkpoint is the engine's own model file, start included.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from refocal import objective_from_dict
from refocal.boosting.objective import FocalObjective, focal_objective
from refocal.sklearn._gradients import Floats

MODEL = "model.ubj", "model.txt"
"""The file in a checkpoint: of XGBoost, of LightGBM."""


def class_prior(dataset: Any, label: str) -> Floats:
    """Return the share of each class 0..K-1 in a Ray dataset.

    Args:
        dataset: A ``ray.data.Dataset``.
        label: The name of the column with the labels 0..K-1.
    """
    mass = np.zeros(0)
    for batch in dataset.select_columns([label]).iter_batches(batch_format="numpy"):
        found = np.bincount(batch[label])  # refuses what is negative or no integer
        mass = np.pad(mass, (0, max(0, len(found) - len(mass))))
        mass[: len(found)] += found
    if len(mass) < 2 or not mass.all():
        raise ValueError(f"{label} must have all labels 0..K-1, got the counts {mass.astype(int).tolist()}")
    prior: Floats = mass / mass.sum()
    return prior


def loop_config(
    objective: Any,
    prior: Any,
    *,
    label: str,
    num_boost_round: int = 100,
    checkpoint_every: int = 10,
    params: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the ``train_loop_config`` of a trainer whose loop is one of this module.

    Args:
        objective: What to train with, as for `focal_objective`.
        prior: The share of each class in all shards, see `class_prior`.
        label: The name of the column with the labels 0..K-1; all others are features.
        num_boost_round: Rounds.
        checkpoint_every: Rounds between two checkpoints.
        params: Options of the engine.

    Example:
        >>> import refocal
        >>> config = loop_config(refocal.Focal(2.0), [0.9, 0.1], label="y", params={"max_depth": 3})
        >>> config["objective"]["gamma"], config["prior"]
        (2.0, [0.9, 0.1])
    """
    return {
        "objective": objective.to_dict(),
        "prior": [float(share) for share in np.atleast_1d(prior)],
        "label": label,
        "num_boost_round": num_boost_round,
        "checkpoint_every": checkpoint_every,
        "params": dict(params or {}),
    }


def xgboost_loop(config: dict[str, Any]) -> None:
    """Train on one worker of an ``XGBoostTrainer``; config is that of `loop_config`."""
    import ray.train
    import xgboost
    from ray.train.xgboost import RayTrainReportCallback

    from refocal.boosting._xgboost import start_params

    X, y = _shard(config)
    objective = _objective(config, damping=2.0)
    params = {**config["params"], **start_params(objective)}
    before, done = None, 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        before = RayTrainReportCallback.get_model(checkpoint, filename=MODEL[0])
        done = before.num_boosted_rounds()
    every = config["checkpoint_every"]
    xgboost.train(
        params,
        xgboost.QuantileDMatrix(X, y),
        config["num_boost_round"] - done,
        obj=objective,
        xgb_model=before,
        callbacks=[RayTrainReportCallback(filename=MODEL[0], frequency=every)],
    )


def lightgbm_loop(config: dict[str, Any]) -> None:
    """Train on one worker of a ``LightGBMTrainer``; config is that of `loop_config`."""
    import lightgbm
    import ray.train
    from ray.train.lightgbm import get_network_params

    from refocal.boosting._lightgbm import add_start, start_scores

    X, y = _shard(config)
    objective = _objective(config)
    params = {"verbosity": -1, "tree_learner": "data", "pre_partition": True, **config["params"]}
    params |= {"objective": objective, "metric": "None", **get_network_params()}
    if len(objective.start) > 1:
        params["num_class"] = len(objective.start)
    before, done = None, 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            before = lightgbm.Booster(model_file=Path(folder) / MODEL[1])
        done = before.current_iteration()
    rounds, every = config["num_boost_round"], config["checkpoint_every"]

    def report(env: Any) -> None:
        at = env.iteration + 1
        if at % every and at != env.end_iteration:
            return
        with tempfile.TemporaryDirectory() as folder:
            saved = None
            if ray.train.get_context().get_world_rank() == 0:
                booster = lightgbm.Booster(model_str=env.model.model_to_string())
                if before is None:  # else its trees, which come first, have the start
                    add_start(booster, objective.start)
                booster.save_model(Path(folder) / MODEL[1])
                saved = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"rounds": at}, checkpoint=saved)

    scores = None if before is not None else start_scores(objective.start, len(y))
    data = lightgbm.Dataset(X, y, init_score=scores, free_raw_data=False)
    lightgbm.train(params, data, rounds - done, init_model=before, callbacks=[report])


def _shard(config: dict[str, Any]) -> tuple[Any, Any]:
    import ray.train

    frame = ray.train.get_dataset_shard("train").materialize().to_pandas()
    return frame.drop(columns=config["label"]), frame[config["label"]]


def _objective(config: dict[str, Any], damping: float | None = None) -> FocalObjective:
    prior = config["prior"][0] if len(config["prior"]) == 1 else config["prior"]
    spec: Any = objective_from_dict(config["objective"])
    return focal_objective(spec, prior, damping=damping)
