"""A segmentation network whose pixels have true probabilities, with pixels that carry no label.

Generated images of cells: background, cells and their nuclei, seen through noise. As in real annotations the
rims are marked "unknown" (label 255), and `ignore_index=255` leaves them out of the loss, of the metrics and
of the choice of a calibration alike. A small U-shaped network is trained with the softmax focal loss (gamma
2); then the probabilities are used for what they are for: how large the nuclei are together, with pixels
counted by their probability rather than by the likeliest class.

Run: python examples/segmentation.py [--small] [--out FOLDER]
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import refocal
from refocal.plots import figure_bytes, new_figure, plot_reliability
from refocal.torch import FocalLoss

CLASSES = ("background", "cell", "nucleus")
UNKNOWN = 255
SIZE = 48


def draw_images(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images (n, 1, H, W) and labels (n, H, W), rims of cells and nuclei unknown."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIZE, :SIZE] + 0.5
    labels = np.zeros((n, SIZE, SIZE), dtype=np.int64)
    images = np.empty((n, SIZE, SIZE))
    for i in range(n):
        brightness = np.zeros((SIZE, SIZE))
        rim = np.zeros((SIZE, SIZE), dtype=bool)
        for _ in range(rng.integers(2, 6)):
            r, (cx, cy) = rng.uniform(6, 11), rng.uniform(4, SIZE - 4, size=2)
            stretch, angle = rng.uniform(0.7, 1.4), rng.uniform(0, np.pi)
            u = (x - cx) * np.cos(angle) + (y - cy) * np.sin(angle)
            v = (y - cy) * np.cos(angle) - (x - cx) * np.sin(angle)
            distance = np.hypot(u / stretch, v * stretch) / r
            nucleus = rng.uniform(0.3, 0.5)
            inside, core = distance < 1, distance < nucleus
            edge = np.minimum(abs(distance - 1), abs(distance - nucleus)) < 0.6 / r
            rim = np.where(inside, edge, rim | edge)
            labels[i] = np.where(core, 2, np.where(inside, 1, labels[i]))
            brightness = np.where(inside, rng.uniform(0.25, 0.6) + rng.uniform(0.1, 0.5) * core, brightness)
        images[i] = brightness + rng.normal(0, 0.35, size=(SIZE, SIZE))
        labels[i][rim] = UNKNOWN
    return torch.tensor(images[:, None], dtype=torch.float32), torch.tensor(labels)


class Net(nn.Module):
    """Down twice, up twice, with a shortcut on each level: logits (N, classes, H, W)."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()

        def block(inner: int, outer: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU())

        self.fine = block(1, width)
        self.middle = block(width, 2 * width)
        self.coarse = nn.Sequential(block(2 * width, 4 * width), block(4 * width, 2 * width))
        self.up_middle = block(4 * width, width)
        self.up_fine = block(2 * width, width)
        self.end = nn.Conv2d(width, len(CLASSES), 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        fine = self.fine(images)
        middle = self.middle(F.max_pool2d(fine, 2))
        coarse = self.coarse(F.max_pool2d(middle, 2))
        x = self.up_middle(torch.cat([F.interpolate(coarse, scale_factor=2.0), middle], dim=1))
        return self.end(self.up_fine(torch.cat([F.interpolate(x, scale_factor=2.0), fine], dim=1)))


def train(images: Tensor, labels: Tensor, n_epochs: int) -> tuple[nn.Module, FocalLoss]:
    """Train with the focal loss; pixels of unknown class count neither in its sum nor in its mean."""
    net, criterion = Net(), FocalLoss(gamma=2.0, ignore_index=UNKNOWN)
    batch, n_steps = 16, n_epochs * (len(images) // 16)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=n_steps)
    for _ in range(n_epochs):
        order = torch.randperm(len(images))[: len(images) // batch * batch]
        for rows in order.reshape(-1, batch):
            optimizer.zero_grad()
            criterion(net(images[rows]), labels[rows]).backward()
            optimizer.step()
            schedule.step()
    return net.eval(), criterion


def main(small: bool = False, out: str | Path = "out/examples") -> None:
    """Train, measure and draw."""
    torch.manual_seed(0)
    n_train, n_epochs, n_held_out = (64, 6, 24) if small else (480, 16, 160)
    net, criterion = train(*draw_images(n_train, seed=0), n_epochs)
    images, labels = draw_images(n_held_out, seed=1)
    with torch.no_grad():
        logits = net(images)
    half = n_held_out // 2
    # A few pixels of each held-out image say enough for two numbers, and are less alike than neighbours.
    choice = refocal.choose_calibration(
        logits[:half, :, ::4, ::4], labels[:half, ::4, ::4], criterion.objective, axis=1, ignore_index=UNKNOWN
    )
    logits, labels, images = logits[half:], labels[half:], images[half:]
    known = labels != UNKNOWN
    print(f"held-out pixels: {labels.numel()}, of unknown class: {int((~known).sum())}")
    print(f"scores      ECE     classwise  NLL     nucleus pixels (true: {int((labels == 2).sum())})")
    stats = {}
    marked = {"axis": 1, "ignore_index": UNKNOWN}
    for name in dict.fromkeys(["raw", "psi", choice.winner]):
        probs = choice.apply(logits, method=name, axis=1)
        stats[name] = refocal.CalibrationStats().update(probs, labels, **marked)
        ece, nll = refocal.ece(probs, labels, **marked), refocal.nll(probs, labels, **marked)
        classwise = refocal.classwise_ece(probs, labels, **marked)
        area = float(probs[:, 2][known].sum())
        print(f"{name:10}  {ece:.4f}  {classwise:.4f}     {nll:.4f}  {area:.0f}")
    counted = int((logits.argmax(dim=1) == 2)[known].sum())
    print(f"likeliest class                        {counted}")
    print(f"chosen on the other images: {choice.winner}")

    figure = new_figure(12, 3.4)
    axes = figure.subplots(1, 4)
    shown = int((labels == 2).sum(dim=(1, 2)).argmax())
    pictures = [
        (images[shown, 0], "gray", "image", (None, None)),
        (labels[shown].float().where(known[shown], torch.nan), "viridis", "labels (white: unknown)", (0, 2)),
        (choice.apply(logits, axis=1)[shown, 2], "magma", f"P(nucleus), {choice.winner}", (0, 1)),
    ]
    for ax, (picture, colors, title, (low, high)) in zip(axes, pictures, strict=False):
        drawn = ax.imshow(picture.numpy(), cmap=colors, vmin=low, vmax=high)
        ax.set(xticks=[], yticks=[], title=title)
    figure.colorbar(drawn, ax=axes[2], shrink=0.8)
    plot_reliability(stats, ax=axes[3], title="held-out pixels", histogram=False, level=None)
    Path(out).mkdir(parents=True, exist_ok=True)
    (Path(out) / "segmentation.png").write_bytes(figure_bytes(figure, dpi=110))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a few seconds, for a test: numbers mean little")
    parser.add_argument("--out", default="out/examples", help="folder for the figure")
    arguments = parser.parse_args()
    main(arguments.small, arguments.out)
