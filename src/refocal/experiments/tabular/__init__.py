"""The paper's tabular study: linear and one-hidden-layer models on 30 data sets, focal loss and psi."""

from refocal.experiments.tabular.study import Experiment, Recipe, experiments_of, report, run

__all__ = ["Experiment", "Recipe", "experiments_of", "report", "run"]
