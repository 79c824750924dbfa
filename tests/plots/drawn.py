"""Stats to draw, and what was drawn."""

import numpy as np

from refocal import CalibrationStats


def make_stats(seed=0, n=500, bias=0.1, n_bins=10, **options):
    """Return stats of two-class rows whose accuracy is not their confidence, some bins empty."""
    rng = np.random.default_rng(seed)
    top = rng.uniform(0.55, 0.95, n)
    labels = (rng.random(n) > top + bias * rng.random(n)).astype(int)
    return CalibrationStats(n_bins, **options).update(np.stack([top, 1 - top], axis=1), labels)


def bars(container):
    """Return the left ends, widths, lower ends and heights of bars, one row each."""
    return np.array([(b.get_x(), b.get_width(), b.get_y(), b.get_height()) for b in container])


def legend_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]
