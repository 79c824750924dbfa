"""The paper's tabular study: linear and one-hidden-layer models on 30 data sets, focal loss and psi.

`search` and `labels` are studies of their own with the same models: which protocol the published tables fit,
and psi against what is fitted on labelled rows.
"""

from refocal.experiments.tabular.study import (
    Experiment,
    Recipe,
    experiments_of,
    report,
    run,
    summary_text,
)

__all__ = ["Experiment", "Recipe", "experiments_of", "report", "run", "summary_text"]
