"""The paper's numerical illustration: networks on data whose class posterior is known.

Three classes on a line. Three-layer perceptrons are trained with cross entropy (CE) and the focal loss
(FL-1, FL-5). Their scores are compared with the posterior as they are, after temperature scaling, and after
psi. The paper does not say which distribution it took; here it is a mixture of three normal densities.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal import CalibrationStats, Focal, TemperatureScaling, error_rate, kl_divergence
from refocal.experiments.files import csv_bytes, figure_files, json_bytes, write_outputs
from refocal.experiments.mixture import PRIORS, Integers, mixture_joint, mixture_posterior, sample_mixture
from refocal.experiments.sweeps import machine, versions
from refocal.extras import needs
from refocal.plots import CLASS_COLORS, NORMAL, SMALL, Floats, axes_or_new, label_axes, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import nn

GAMMAS = (0.0, 1.0, 5.0)
METHODS = {"raw": "raw", "ts_nll": "TS_NLL", "psi": "psi"}
GRID = np.linspace(-6.0, 6.0, 481)
N_BINS = 10

ESTIMATE: dict[str, Any] = {"linestyle": "-", "linewidth": 3.6, "alpha": 0.5}
TRUTH: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1.4, "zorder": 3}
"""A wide light line below a thin dashed one: both can be seen where they are the same."""


@dataclass(frozen=True)
class Settings:
    """What a run depends on, beside the versions of the libraries.

    Attributes:
        n_train: Rows to train on, the same for all losses.
        n_validation: Rows to fit the temperature on.
        n_test: Rows for ERR, KLD and ECE.
        hidden: Width of the two hidden layers.
        epochs: Passes over the training rows.
        batch_size: Rows in a step.
        learning_rate: Of Adam at the start; it falls to 0 along half a cosine.
        seed: Of the samples, the initial weights and the order of the rows.
    """

    n_train: int = 50_000
    n_validation: int = 10_000
    n_test: int = 200_000
    hidden: int = 64
    epochs: int = 30
    batch_size: int = 1000
    learning_rate: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the seed.

        Raises:
            ValueError: If it is negative.
        """
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")

    @classmethod
    def quick(cls, seed: int = 0) -> Settings:
        """Return settings for a look: a quarter of the time, and a few times the error of estimation."""
        return cls(n_train=20_000, n_test=100_000, epochs=20, seed=seed)


@dataclass(frozen=True, eq=False)
class Estimate:
    """Estimated class probabilities of one network and method, and how good they are.

    Attributes:
        gamma: Of the loss; 0 is cross entropy.
        method: "raw" (softmax scores), "ts_nll" (temperature scaling by NLL) or "psi".
        probs: On the grid, shape (n, 3).
        error: Share of the test rows whose largest class is not the label.
        kld: KL(posterior || estimate), in nats, averaged over the test rows.
        ece: Expected calibration error on the test rows, 10 bins.
        temperature: What the logits were divided by; None if they were not.
    """

    gamma: float
    method: str
    probs: Floats
    error: float
    kld: float
    ece: float
    temperature: float | None = None

    @property
    def loss(self) -> str:
        """The paper's name of the loss: CE, FL-1, FL-5."""
        return f"FL-{self.gamma:g}" if self.gamma else "CE"


@dataclass(frozen=True, eq=False)
class SyntheticResult:
    """All numbers of the study.

    Attributes:
        settings: How they were made.
        x: The grid of the figure, shape (n,).
        joint: p(x, y) on it, shape (n, 3).
        posterior: p(y | x) on it, shape (n, 3).
        estimates: CE raw, then raw, TS_NLL and psi of FL-1 and FL-5.
        bayes_error: Of the true posterior on the same test rows: no classifier is better but by luck.
        seconds: What sampling, training and measuring took on the clock.
        cpu_seconds: What it took on the processor: the same on a machine that does nothing else.
    """

    settings: Settings
    x: Floats
    joint: Floats
    posterior: Floats
    estimates: tuple[Estimate, ...]
    bayes_error: float
    seconds: float
    cpu_seconds: float

    def of(self, gamma: float, method: str) -> Estimate:
        """Return the estimate of one loss and method."""
        return next(e for e in self.estimates if (e.gamma, e.method) == (gamma, method))

    def table(self) -> str:
        """Return the numbers of the estimates as lines of plain text."""
        lines = [f"{'loss':<6}{'scores':<8}{'ERR':>8}{'KLD':>9}{'ECE':>8}{'T':>8}"]
        for e in self.estimates:
            t = "" if e.temperature is None else f"{e.temperature:.3f}"
            lines.append(f"{e.loss:<6}{METHODS[e.method]:<8}{e.error:>8.4f}{e.kld:>9.5f}{e.ece:>8.4f}{t:>8}")
        return "\n".join(line.rstrip() for line in lines)


def compute_synthetic(settings: Settings | None = None) -> SyntheticResult:
    """Train the networks and measure their scores.

    Args:
        settings: By default those of `Settings`.

    Raises:
        ImportError: If PyTorch is missing; it says how to install it.
    """
    settings = settings or Settings()
    start, cpu_start = time.perf_counter(), time.process_time()
    rng = np.random.default_rng(settings.seed)
    train, validation, test = (
        sample_mixture(n, rng) for n in (settings.n_train, settings.n_validation, settings.n_test)
    )
    truth = mixture_posterior(test[0])
    estimates: list[Estimate] = []
    for gamma in GAMMAS:
        net = _train(*train, gamma, settings)
        logits = {name: _logits(net, x) for name, x in (("grid", GRID), ("test", test[0]))}
        scaling = TemperatureScaling("nll").fit(_logits(net, validation[0]), validation[1]) if gamma else None
        for method in METHODS if gamma else ("raw",):
            t = scaling.temperature_ if scaling and method == "ts_nll" else None
            link = Focal(gamma if method == "psi" else 0.0)
            log_probs = {name: link.log_posterior(z / (t or 1.0)) for name, z in logits.items()}
            grid, probs = (np.exp(log_probs[name]) for name in ("grid", "test"))
            stats = CalibrationStats(N_BINS).update(probs, test[1])
            kld = kl_divergence(truth, log_probs["test"], from_logits=True)
            estimates.append(Estimate(gamma, method, grid, error_rate(probs, test[1]), kld, stats.ece(), t))
    return SyntheticResult(
        settings=settings,
        x=GRID,
        joint=mixture_joint(GRID),
        posterior=mixture_posterior(GRID),
        estimates=tuple(estimates),
        bayes_error=error_rate(truth, test[1]),
        seconds=time.perf_counter() - start,
        cpu_seconds=time.process_time() - cpu_start,
    )


def run_synthetic(out: str | os.PathLike[str], quick: bool = False, seed: int = 0) -> list[Path]:
    """Compute the study and write its figure of nine panels and its numbers.

    Returns:
        The files: synthetic.png and .pdf (the figure), synthetic.csv (what it shows, point by point),
        synthetic.json (error, KLD and ECE, settings, versions, machine, seconds).
    """
    figure = new_figure(13, 10)  # first of all, since it needs the optional matplotlib
    write_outputs(out, {})  # a folder that cannot be made must not cost a training
    result = compute_synthetic(Settings.quick(seed) if quick else Settings(seed=seed))
    draw_synthetic(figure.subplots(3, 3).tolist(), result)
    return write_outputs(
        out,
        {
            **figure_files("synthetic", figure),
            "synthetic.csv": csv_bytes(*_points(result)),
            "synthetic.json": json_bytes(_summary(result)),
        },
    )


def draw_synthetic(axes: Sequence[Sequence[Axes]], result: SyntheticResult) -> None:
    """Draw the nine panels of the paper's figure on three rows of three axes."""
    x = result.x
    (a, *raws), (b, *scaled), (c, *psis) = axes
    a.plot(x, result.joint.sum(axis=1), color="0.3", linestyle=":", linewidth=2, label="$p(x)$")
    for k, color in enumerate(CLASS_COLORS):
        a.plot(x, result.joint[:, k], color=color, linewidth=2, label=f"$p(x, y = {k + 1})$")
    a.set(xlim=(x[0], x[-1]), ylim=(0, None))
    a.legend(loc="upper right", fontsize=SMALL, frameon=False)
    label_axes(a, "$x$", "density", "the mixture")
    plot_posteriors(x, result.posterior, ax=b, title=r"the truth, $\eta_y(x) = p(y \mid x)$")
    names = {"raw": "", "ts_nll": r", TS$_\mathrm{NLL}$", "psi": r", $\Psi^\gamma$"}
    panels = {(0.0, "raw"): c}
    for method, row in zip(METHODS, (raws, scaled, psis), strict=True):
        panels |= {(gamma, method): ax for gamma, ax in zip(GAMMAS[1:], row, strict=True)}
    for key, ax in panels.items():
        e = result.of(*key)
        numbers = f"ERR {e.error:.3f}   KLD {e.kld:.4f}   ECE {e.ece:.3f}"
        plot_posteriors(x, result.posterior, e.probs, ax=ax, title=f"{e.loss}{names[e.method]}\n{numbers}")
    for letter, ax in zip("abcdefghi", (a, b, c, *raws, *scaled, *psis), strict=True):
        name = f"({letter})" + "\n" * ax.get_title().count("\n")  # in line with the first line of the title
        ax.set_title(name, loc="left", fontsize=NORMAL, fontweight="bold")


def plot_posteriors(
    x: Floats, truth: Floats, estimate: Floats | None = None, *, ax: Axes | None = None, title: str = ""
) -> Axes:
    """Draw an estimate of the class posterior of 1-D data, solid, and the truth, dashed; return the axes.

    Args:
        x: Points, shape (n,).
        truth: The class posterior at x, shape (n, K); from the fourth class on, colours come again.
        estimate: Scores or probabilities of truth's shape, or None to draw the truth alone.
        ax: Where to draw; None for a new figure.
        title: Of the axes.
    """
    ax = axes_or_new(ax)
    for k, color in zip(range(truth.shape[1]), cycle(CLASS_COLORS), strict=False):
        label = f"$y = {k + 1}$" if estimate is None else None
        ax.plot(x, truth[:, k], color=color, **TRUTH, label=label)
        if estimate is not None:
            ax.plot(x, estimate[:, k], color=color, **ESTIMATE)
    if estimate is not None:
        ax.plot([], [], color="0.3", **ESTIMATE, label="estimate")
        ax.plot([], [], color="0.3", **TRUTH, label="truth")
    ax.legend(loc="center left", fontsize=SMALL, frameon=False)
    ax.set(xlim=(x[0], x[-1]), ylim=(-0.02, 1.02))
    y = r"$\eta_y(x)$" if estimate is None else r"$\eta_y(x)$ and its estimate"
    label_axes(ax, "$x$", y, title)
    return ax


def _train(x: Floats, y: Integers, gamma: float, settings: Settings) -> nn.Module:
    """Return a network trained with the focal loss; initial weights and order are those of the seed."""
    with needs("the synthetic study", "torch"):
        import torch
        from torch import nn

    from refocal.experiments.sweeps.devices import torch_threads
    from refocal.torch import FocalLoss

    rows, labels = torch.tensor(x, dtype=torch.float32)[:, None], torch.tensor(y)
    width, batches = settings.hidden, settings.n_train // settings.batch_size
    criterion = FocalLoss(gamma)
    # On two threads such small steps take longer, and numbers could depend on it.
    with torch.random.fork_rng(devices=[]), torch_threads(1):
        torch.manual_seed(settings.seed)
        net = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, len(PRIORS))
        )
        optimizer = torch.optim.Adam(net.parameters(), settings.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs * batches)
        for _ in range(settings.epochs):
            order = torch.randperm(len(rows))[: batches * settings.batch_size]
            for batch in order.view(batches, -1):
                optimizer.zero_grad()
                criterion(net(rows[batch]), labels[batch]).backward()
                optimizer.step()
                schedule.step()
    return net


def _logits(net: nn.Module, x: Floats) -> Floats:
    """Return the network's logits in float64, shape (n, 3)."""
    import torch

    from refocal.experiments.sweeps.devices import torch_threads

    with torch.inference_mode(), torch_threads(1):
        logits: Floats = net(torch.tensor(x, dtype=torch.float32)[:, None]).double().numpy()
    return logits


def _points(result: SyntheticResult) -> tuple[list[str], list[list[float]]]:
    """Return the header and the rows of the CSV: densities, posterior and estimates on the grid."""
    blocks = {"joint": result.joint, "posterior": result.posterior}
    blocks |= {f"{e.loss} {METHODS[e.method]}": e.probs for e in result.estimates}
    header = ["x", *(f"{name} {k + 1}" for name in blocks for k in range(len(PRIORS)))]
    return header, np.hstack([result.x[:, None], *blocks.values()]).tolist()


def _summary(result: SyntheticResult) -> dict[str, Any]:
    fields = ("loss", "gamma", "method", "error", "kld", "ece", "temperature")
    return {
        "estimates": [{name: getattr(e, name) for name in fields} for e in result.estimates],
        "bayes_error": result.bayes_error,
        "settings": dataclasses.asdict(result.settings),
        "versions": dict(versions()),
        "machine": dict(machine()),
        "seconds": round(result.seconds, 1),
        "cpu_seconds": round(result.cpu_seconds, 1),
    }
