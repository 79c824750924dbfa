"""A detector whose scores are probabilities: from focal training to boxes, precision and thresholds.

A small RetinaNet in plain PyTorch (two pyramid levels, anchors, a class head and a box head) is trained on
generated images of circles, squares and triangles with the loss that detectors usually have: sigmoid focal
loss with alpha 0.25 and gamma 2. Then three questions, each with its own answer:

1. What is the probability that an anchor is an object? `SigmoidFocalLoss.posterior`, without any labels.
2. How often is a detection right that non-maximum suppression left? That is no property of one anchor any
   more: D-ECE measures it on held-out images, and `choose_calibration` fits what is missing.
3. Which raw score to cut at? `score_threshold` and `Selection.threshold`.

Run: python examples/detector.py [--small] [--out FOLDER]
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import refocal
from refocal.detection import DetectionCalibration, match_detections
from refocal.plots import figure_bytes, new_figure, plot_reliability
from refocal.torch import SigmoidFocalLoss

CLASSES = ("circle", "square", "triangle")
SIZE = 64
IGNORED = -1  # the target of anchors that are neither positive nor negative
LEVELS = {4: 12.0, 8: 22.0}  # stride of a pyramid level: side of its anchors, both in pixels


@dataclass
class Scenes:
    """Generated images, with the boxes (x1, y1, x2, y2) and the classes of the objects in each."""

    images: Tensor
    boxes: list[Tensor]
    classes: list[Tensor]

    def __len__(self) -> int:
        return len(self.boxes)


def draw_scenes(n: int, seed: int) -> Scenes:
    """Return noisy images of up to four shapes, some of them so pale that nobody can be sure of them."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIZE, :SIZE] + 0.5
    images = rng.normal(0.0, 0.3, size=(n, SIZE, SIZE))
    boxes, classes = [], []
    for image in images:
        found: list[tuple[list[float], int]] = []
        for _ in range(rng.integers(0, 5)):
            r = rng.uniform(5, 13)
            cx, cy = rng.uniform(r, SIZE - r, size=2)
            box = [cx - r, cy - r, cx + r, cy + r]
            if any(iou(torch.tensor([box]), torch.tensor([other])).item() > 0.1 for other, _ in found):
                continue
            kind = int(rng.integers(len(CLASSES)))
            u, v = (x - cx) / r, (y - cy) / r
            inside = [
                u**2 + v**2 < 1,
                np.maximum(abs(u), abs(v)) < 0.9,
                (v < 0.9) & (abs(u) < (v + 1) / 1.9),
            ][kind]
            image += rng.uniform(0.12, 0.7) * inside
            found.append((box, kind))
        boxes.append(torch.tensor([box for box, _ in found]).reshape(-1, 4))
        classes.append(torch.tensor([kind for _, kind in found], dtype=torch.long))
    return Scenes(torch.tensor(images[:, None], dtype=torch.float32), boxes, classes)


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Return the overlap of each box of a with each of b, shape (len(a), len(b))."""
    low, high = torch.maximum(a[:, None, :2], b[:, :2]), torch.minimum(a[:, None, 2:], b[:, 2:])
    both = (high - low).clamp(min=0).prod(-1)
    area_a, area_b = ((boxes[:, 2:] - boxes[:, :2]).prod(-1) for boxes in (a, b))
    return both / (area_a[:, None] + area_b - both)


def make_anchors() -> Tensor:
    """Return the anchors of all levels as boxes, in the order of the network's outputs."""
    boxes = []
    for stride, side in LEVELS.items():
        centre = (torch.arange(SIZE // stride) + 0.5) * stride
        cy, cx = (grid.reshape(-1) for grid in torch.meshgrid(centre, centre, indexing="ij"))
        boxes.append(torch.stack([cx - side / 2, cy - side / 2, cx + side / 2, cy + side / 2], dim=1))
    return torch.cat(boxes)


class Detector(nn.Module):
    """Two pyramid levels with shared heads: for each anchor a logit for each class and four box offsets."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()

        def block(inner: int, outer: int, stride: int) -> nn.Sequential:
            convolution = nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False)
            return nn.Sequential(convolution, nn.BatchNorm2d(outer), nn.ReLU())

        self.stem = nn.Sequential(block(1, 12, 2), block(12, width, 2), block(width, width, 1))
        self.deeper = nn.Sequential(block(width, 2 * width, 2), block(2 * width, 2 * width, 1))
        self.lateral = nn.Conv2d(2 * width, width, 1)
        self.classes = nn.Sequential(block(width, width, 1), nn.Conv2d(width, len(CLASSES), 3, padding=1))
        self.boxes = nn.Sequential(block(width, width, 1), nn.Conv2d(width, 4, 3, padding=1))
        # As in RetinaNet: start with a low score everywhere, or the many negatives swamp the first steps.
        nn.init.constant_(self.classes[-1].bias, -4.6)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return class logits (N, anchors, classes) and box offsets (N, anchors, 4)."""
        fine = self.stem(images)
        coarse = self.lateral(self.deeper(fine))
        fine = fine + F.interpolate(coarse, scale_factor=2.0)
        heads = [[head(level) for level in (fine, coarse)] for head in (self.classes, self.boxes)]
        logits, offsets = (torch.cat([x.flatten(2).mT for x in levels], dim=1) for levels in heads)
        return logits, offsets


def assign(anchors: Tensor, boxes: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return class targets (anchors, classes), the positive anchors and the box of each of those.

    An anchor is positive from an IoU of 0.5 with an object on, negative below 0.4, and left out between.
    The best anchor of an object is positive in any case, or small objects would have none.
    """
    target = torch.zeros(len(anchors), len(CLASSES))
    if not len(boxes):
        return target, torch.zeros(0, dtype=torch.long), boxes
    overlap = iou(anchors, boxes)
    best, of_anchor = overlap.max(dim=1)
    best_anchor = overlap.argmax(dim=0)
    best[best_anchor], of_anchor[best_anchor] = 1.0, torch.arange(len(boxes))
    target[(best >= 0.4) & (best < 0.5)] = IGNORED
    positive = torch.nonzero(best >= 0.5)[:, 0]
    target[positive, classes[of_anchor[positive]]] = 1.0
    return target, positive, boxes[of_anchor[positive]]


def to_offsets(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Return boxes relative to their anchors: shift of the centre and logarithm of the size."""
    size, anchor_size = (b[:, 2:] - b[:, :2] for b in (boxes, anchors))
    shift = (boxes[:, :2] + boxes[:, 2:] - anchors[:, :2] - anchors[:, 2:]) / 2
    return torch.cat([shift / anchor_size, (size / anchor_size).log()], dim=1)


def from_offsets(anchors: Tensor, offsets: Tensor) -> Tensor:
    """Return the boxes that `to_offsets` described, clipped to the image."""
    anchor_size = anchors[:, 2:] - anchors[:, :2]
    centre = (anchors[:, :2] + anchors[:, 2:]) / 2 + offsets[:, :2] * anchor_size
    size = offsets[:, 2:].clamp(max=2).exp() * anchor_size
    return torch.cat([centre - size / 2, centre + size / 2], dim=1).clamp(0, SIZE)


def train(scenes: Scenes, n_epochs: int) -> tuple[Detector, SigmoidFocalLoss]:
    """Train a detector, and return it with its loss, which knows the way back to probabilities."""
    anchors, net = make_anchors(), Detector()
    criterion = SigmoidFocalLoss(gamma=2.0, alpha=0.25, reduction="sum", ignore_index=IGNORED)
    pairs = zip(scenes.boxes, scenes.classes, strict=True)
    assigned = [assign(anchors, boxes, classes) for boxes, classes in pairs]
    batch, n_steps = 16, n_epochs * (len(scenes) // 16)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=n_steps)
    for _ in range(n_epochs):
        order = torch.randperm(len(scenes))[: len(scenes) // batch * batch]
        for rows in order.reshape(-1, batch):
            logits, offsets = net(scenes.images[rows])
            targets, positives, boxes = zip(*(assigned[i] for i in rows), strict=True)
            wanted = torch.cat([to_offsets(anchors[p], b) for p, b in zip(positives, boxes, strict=True)])
            given = torch.cat([offset[p] for offset, p in zip(offsets, positives, strict=True)])
            n_positive = max(len(given), 1)
            loss = criterion(logits, torch.stack(targets)) / n_positive
            loss = loss + F.smooth_l1_loss(given, wanted, reduction="sum", beta=0.1) / n_positive
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return net.eval(), criterion


@dataclass
class Detections:
    """What is left of one image after non-maximum suppression, with the logits of the survivors."""

    boxes: Tensor
    logits: Tensor
    classes: Tensor


def suppress(anchors: Tensor, logits: Tensor, offsets: Tensor, floor: float = 0.2) -> Detections:
    """Return detections with a raw score above a floor that no better one of their class overlaps."""
    anchor, kind = torch.nonzero(logits.sigmoid() > floor, as_tuple=True)
    score = logits[anchor, kind]
    order = score.argsort(descending=True)
    anchor, kind, score = anchor[order], kind[order], score[order]
    boxes = from_offsets(anchors[anchor], offsets[anchor])
    clash = (iou(boxes, boxes) > 0.4) & (kind[:, None] == kind)
    kept = torch.ones(len(boxes), dtype=torch.bool)
    for i in range(len(boxes)):
        if kept[i]:
            kept[i + 1 :] &= ~clash[i, i + 1 :]
    return Detections(boxes[kept], score[kept], kind[kept])


def main(small: bool = False, out: str | Path = "out/examples") -> None:
    """Train, measure and draw."""
    torch.manual_seed(0)
    n_train, n_epochs, n_held_out = (160, 5, 100) if small else (7200, 2, 1000)
    net, criterion = train(draw_scenes(n_train, seed=0), n_epochs)
    spec, anchors, held_out = criterion.objective, make_anchors(), draw_scenes(n_held_out, seed=1)
    with torch.no_grad():
        logits, offsets = net(held_out.images)

    # 1. Anchors: the posterior needs no labels.
    pairs = zip(held_out.boxes, held_out.classes, strict=True)
    target = torch.stack([assign(anchors, boxes, classes)[0] for boxes, classes in pairs])
    counted = target != IGNORED
    is_object = target[counted].long()
    anchor_stats = {}
    print(f"anchors: {len(is_object)}, positives: {int(is_object.sum())}")
    for name, probs in {"raw": logits.sigmoid(), "psi": criterion.posterior(logits)}.items():
        anchor_stats[name] = refocal.CalibrationStats(task="binary").update(probs[counted], is_object)
        expected = float(probs[counted].sum())
        print(f"  {name}: {expected:.0f} positives expected, ECE {anchor_stats[name].ece():.4f}")

    # 2. Detections: precision is measured, and what psi cannot know is fitted on half of the images.
    found = [suppress(anchors, z, o) for z, o in zip(logits, offsets, strict=True)]
    right = [
        match_detections(d.boxes, d.logits.sigmoid(), boxes, labels=d.classes, truth_labels=classes)
        for d, boxes, classes in zip(found, held_out.boxes, held_out.classes, strict=True)
    ]
    half = len(found) // 2
    fit_logits, fit_right = torch.cat([d.logits for d in found[:half]]), np.concatenate(right[:half])
    test_logits, test_right = torch.cat([d.logits for d in found[half:]]), np.concatenate(right[half:])
    choice = refocal.choose_calibration(fit_logits, fit_right.astype(int), spec)
    n_objects = sum(map(len, held_out.boxes[half:]))
    print(f"detections: {len(test_right)}, objects: {n_objects}, images: {len(found) - half}")
    detection_stats = {}
    for name in dict.fromkeys(["raw", "psi", choice.winner]):
        probs = choice.apply(test_logits, method=name)
        d_ece = DetectionCalibration().add(probs, test_right).d_ece()
        detection_stats[name] = refocal.CalibrationStats(task="binary").update(probs, test_right.astype(int))
        print(f"  {name}: D-ECE {d_ece:.3f}")
    print(f"  chosen on the other images: {choice.winner}")

    # 3. Thresholds: the raw scores where an anchor, and where a detection, is right as often as wrong.
    cuts = {
        "0.5, the habit": 0.5,
        "anchor, probability 0.5": float(refocal.score_threshold(spec, 0.5)),
        "detection, precision 0.5": float(choice.threshold(0.5)),
    }
    scores = test_logits.sigmoid().numpy()
    print("raw score cut                    precision  recall  precision at the cut")
    for name, cut in cuts.items():
        kept, near = test_right[scores >= cut], test_right[abs(scores - cut) < 0.05]
        precision, at_cut = (f"{x.mean():.2f}" if len(x) else "-" for x in (kept, near))
        print(f"  {name:24} {cut:.3f}   {precision:8}  {kept.sum() / n_objects:.2f}    {at_cut}")

    figure = new_figure(11.5, 4.2)
    left, middle, right_axes = figure.subplots(1, 3)
    plot_reliability(anchor_stats, ax=left, title="anchors: is it an object?", histogram=False)
    plot_reliability(detection_stats, ax=middle, title="detections: is it right?", histogram=False)
    shown = int(np.argmax([len(boxes) for boxes in held_out.boxes[half:]])) + half
    right_axes.imshow(held_out.images[shown, 0].numpy(), cmap="gray")
    probs = choice.apply(found[shown].logits)
    for box, kind, p in zip(found[shown].boxes, found[shown].classes, probs, strict=True):
        if p >= 0.3:
            (x1, y1), (x2, y2) = box[:2].tolist(), box[2:].tolist()
            right_axes.plot([x1, x2, x2, x1, x1], [y1, y1, y2, y2, y1], color="#E69F00")
            text = f"{CLASSES[int(kind)]} {float(p):.2f}"
            right_axes.text(x1, y1 - 1, text, color="white", fontsize=8, backgroundcolor="#00000090")
    right_axes.set(xlim=(0, SIZE), ylim=(SIZE, 0), xticks=[], yticks=[], title="calibrated detections")
    Path(out).mkdir(parents=True, exist_ok=True)
    (Path(out) / "detector.png").write_bytes(figure_bytes(figure, dpi=110))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a few seconds, for a test: numbers mean little")
    parser.add_argument("--out", default="out/examples", help="folder for the figure")
    arguments = parser.parse_args()
    main(arguments.small, arguments.out)
