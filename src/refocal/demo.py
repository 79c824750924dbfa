"""The paper in one short run and one picture: its functions, and its numerical illustration."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from refocal.experiments.files import write_outputs
from refocal.experiments.synthetic import Settings, SyntheticResult, compute_synthetic, draw_synthetic
from refocal.plots import figure_bytes, max_eta_curves, new_figure, phi_curves, plot_max_eta, plot_phi

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAMMAS = (0.5, 1.0, 3.0, 5.0)
HIGHLIGHT = 3.0
"""Of the curves in the first row, and the gamma whose regions are shaded, as in the paper."""

FILE_NAME = "refocal-demo.png"


@dataclass(frozen=True, eq=False)
class DemoResult:
    """The numbers of the trained networks, and the file of the figure."""

    study: SyntheticResult
    figure: Path

    def summary(self) -> str:
        """Return in a few lines what the numbers show."""
        of, gamma = self.study.of, max(e.gamma for e in self.study.estimates)
        raw, scaled, psi = (of(gamma, method) for method in ("raw", "ts_nll", "psi"))
        return (
            f"Focal loss with gamma = {gamma:g}: the scores decide as well as those of cross entropy,\n"
            f"  but they are no probabilities: KLD {raw.kld:.4f}, ECE {raw.ece:.3f}.\n"
            f"Temperature scaling, fitted on labelled data, leaves a KLD of {scaled.kld:.4f}.\n"
            f"psi, a formula with nothing to fit, leaves {psi.kld:.4f}; cross entropy has "
            f"{of(0.0, 'raw').kld:.4f}.\n"
            f"The predicted class stays, and so does ERR."
        )


def run_demo(directory: str | os.PathLike[str]) -> DemoResult:
    """Train the networks of the illustration quickly and write the figure, ``refocal-demo.png``.

    Args:
        directory: An existing folder. A figure from before is replaced, in one step.

    Returns:
        The numbers, with the path of the figure.

    Raises:
        ImportError: If matplotlib or PyTorch is missing; it says how to install it.
        NotADirectoryError: If there is no such folder.
        OSError: If the figure cannot be written.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise NotADirectoryError(f"output folder must be an existing folder, got {str(directory)!r}")
    figure = new_figure(13, 13.5)  # before the training, since it needs the optional matplotlib
    study = compute_synthetic(Settings.quick())
    draw_demo(figure, study)
    (path,) = write_outputs(folder, {FILE_NAME: figure_bytes(figure, dpi=150)})
    return DemoResult(study, path)


def draw_demo(figure: Figure, study: SyntheticResult) -> None:
    """Draw phi and max eta against max q, and below them the nine panels of the illustration."""
    theory, *panels = figure.subplots(4, 3).tolist()
    plot_phi(phi_curves(GAMMAS, HIGHLIGHT), ax=theory[0])
    plot_max_eta(max_eta_curves(2, GAMMAS), ax=theory[1])
    plot_max_eta(max_eta_curves(1000, GAMMAS), ax=theory[2])
    draw_synthetic(panels, study)
