"""Pictures of calibration and of the paper's functions, drawn from frozen numbers."""

from refocal.plots.boxes import FEWEST as FEWEST, plot_boxes as plot_boxes
from refocal.plots.reliability import (
    accuracy_interval as accuracy_interval,
    plot_raw_psi as plot_raw_psi,
    plot_reliability as plot_reliability,
)
from refocal.plots.style import (
    HATCHES as HATCHES,
    LINE_STYLES as LINE_STYLES,
    MARKERS as MARKERS,
    METHOD_COLORS as METHOD_COLORS,
    NORMAL as NORMAL,
    SMALL as SMALL,
    Floats as Floats,
    axes_or_new as axes_or_new,
    figure_bytes as figure_bytes,
    label_axes as label_axes,
    new_figure as new_figure,
    share_legend as share_legend,
)
from refocal.plots.theory import (
    CLASS_COLORS as CLASS_COLORS,
    GAMMA_COLORS as GAMMA_COLORS,
    ClassCounts as ClassCounts,
    MaxEtaCurves as MaxEtaCurves,
    PhiCurves as PhiCurves,
    SimplexMap as SimplexMap,
    TauCurves as TauCurves,
    class_counts as class_counts,
    max_eta_curves as max_eta_curves,
    phi_curves as phi_curves,
    plot_class_counts as plot_class_counts,
    plot_max_eta as plot_max_eta,
    plot_phi as plot_phi,
    plot_simplex as plot_simplex,
    plot_taus as plot_taus,
    simplex_map as simplex_map,
    tau_curves as tau_curves,
)
