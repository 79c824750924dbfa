"""The paper's image study: ResNets on CIFAR-10, CIFAR-100 and SVHN, focal loss, label smoothing and psi."""

from refocal.experiments.images.study import Experiment, experiments_of, report, run, summary_text

__all__ = ["Experiment", "experiments_of", "report", "run", "summary_text"]
