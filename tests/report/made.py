"""Labelled rows of known posteriors, and reports of them that are made once for a module."""

import functools

import numpy as np

from refocal import Focal, SigmoidFocal
from refocal.report import Report

NAMES = ("<script>alert(1)</script>", "cat & dog", '"quoted"', "plain", "Ünïcode ✓")


def rows(n=600, k=5, *, sharp=1.25, seed=0, gamma=2.0):
    """Return logits of a focal minimiser, somewhat too sharp, and labels drawn from the truth."""
    rng = np.random.default_rng(seed)
    posterior = rng.dirichlet([0.5] * k, size=n)
    labels = (rng.random((n, 1)) > posterior.cumsum(axis=1)).sum(axis=1)
    return sharp * Focal(gamma).logits(posterior), np.minimum(labels, k - 1)


def entries(n=600, n_labels=3, seed=0):
    """Return logits of independent labels, shape (n, L), of a minimiser of the sigmoid focal loss."""
    rng = np.random.default_rng(seed)
    posterior = rng.beta(0.6, 1.5, size=(n, n_labels))
    logits = SigmoidFocal(2.0, alpha=0.25).logits(posterior)
    return logits, (rng.random(posterior.shape) < posterior).astype(np.int64)


@functools.cache
def report():
    """Return a report of five classes, one of them with a hostile name."""
    return Report(*rows(), objective=Focal(2.0), from_logits=True, classes=NAMES, name="a <b>model</b>")


@functools.cache
def calibrated():
    """Return a report for which psi is recommended."""
    return Report(*rows(4000, 3, sharp=1.0), objective=Focal(2.0), from_logits=True, source="my rows.csv")
