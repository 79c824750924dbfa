"""What the paper does not say of its trainings, and what it does to the error.

    python results/images/networks.py --data DATA --model resnet8 --gamma 2 --trial 0 --shortcuts convolution
    python results/images/networks.py --data DATA --gamma 0 --first-weights outputs --last drop --epochs 8
    python results/images/networks.py --features

Shortcuts: He et al. (2016) have none with parameters for CIFAR-10 (option A, as the study), many
implementations a 1 x 1 convolution with normalisation where a block halves the image (option B).

First weights: the study draws those of every layer with the deviation sqrt(2 / inputs). Many implementations
draw convolutions with sqrt(2 / outputs) and leave the linear layer to PyTorch, whose weights are smaller.

Last batch: 5,000 images are 39 batches of 128 and one of 8, and that last one is a step as any other. With
--last drop there is no such step (PyTorch's ``drop_last``).

Last epoch: the study measures the error after the last epoch. With --watch it is measured in between as well,
for the difference to the best epoch, which would have been chosen by the test set.

Momentum: "SGD with momentum of 0.9" may be Nesterov's as well, which many calibration studies use.

One training on CIFAR-10-s, all else as the runs in mixed precision with all images. Its error and losses are
kept in networks.json beside this file; with --epochs it is cut off there, at the learning rate of the start.
An entry without an error was stopped by hand.
--features trains nothing: it prints how long the features are that the linear layer gets at the start.

The entries of commits 3ad0db4 and 6a0f8ca are from earlier forms of this script, with blocks and weights
of its own: the same networks, but drawn in another order, so the same command gives other numbers now.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refocal.experiments.images import Experiment, training
from refocal.experiments.images.data import ImageData
from refocal.experiments.images.resnet import ResNet, build_model
from refocal.experiments.images.study import FIRST_WEIGHTS, MODELS, SHORTCUTS

Batch = tuple[Tensor, Tensor, int]
all_batches = training._batches


def first_features(name: str, shortcuts: str) -> float:
    """Return the mean squared length of what the linear layer gets at the start, for 128 images of noise.

    Nearly all of it is the same for every image. With even guesses of K classes the curvature of the cross
    entropy along it is a K-th of that number, and gradient descent with momentum m and learning rate r is
    stable up to a curvature of 2 (1 + m) / r: 38 for the training of the paper. Plain ResNet-44 has 34.5:
    near, not above; the first guesses are not even, and the other layers have curvature too.
    """
    torch.manual_seed(0)
    model = build_model(name, 10, shortcuts=shortcuts)
    found: list[float] = []
    model.linear.register_forward_pre_hook(lambda _, got: found.append(float((got[0] ** 2).sum(1).mean())))
    with torch.inference_mode():
        model(torch.randn(128, 3, 32, 32))
    return found[0]


def full_batches(data: ImageData, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
    """Give the batches of an epoch of the study, without those that are not full."""
    return (batch for batch in all_batches(data, batch_size, generator) if batch[2] == batch_size)


def watch() -> dict[int, float]:
    """Have the test error measured after every fourth epoch from 60 on and after each of the last ten.

    Returns:
        What will hold the errors by their epochs.
    """
    errors: dict[int, float] = {}
    train, save, seen = training.train, training.Progress.save, []

    def watched_train(model: ResNet, data: ImageData, *args: Any, **options: Any) -> dict[str, Any]:
        seen[:] = model, data
        return train(model, data, *args, **options)

    def watched_save(progress: training.Progress, path: Path | None) -> None:
        model, data = seen
        epoch = len(progress.losses)
        if epoch >= 190 or (epoch >= 60 and epoch % 4 == 0):
            wrong = training._logits(model, data, data.test).argmax(1) != data.test_labels.numpy()
            errors[epoch] = round(100 * float(wrong.mean()), 2)
            model.train()
        save(progress, path)

    training.train, training.Progress.save = watched_train, watched_save
    return errors


def main() -> None:
    """Train, print the error, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", help="a folder of .npz files")
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--gamma", type=float, default=2.0)
    parser.add_argument("--trial", type=int, default=0)
    parser.add_argument("--shortcuts", choices=SHORTCUTS, default="plain")
    parser.add_argument("--first-weights", choices=FIRST_WEIGHTS, default="inputs")
    parser.add_argument("--last", choices=["keep", "drop"], default="keep")
    parser.add_argument("--momentum", choices=["plain", "nesterov"], default="plain")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--epochs", type=int, help="stop after this many of the 200")
    parser.add_argument("--features", action="store_true", help="train nothing, see above")
    args = parser.parse_args()

    if args.features:
        for name, shortcuts in product(MODELS, SHORTCUTS):
            print(f"{name:10s} {shortcuts:12s} {first_features(name, shortcuts):5.0f}")
        return
    if args.last == "drop":
        training._batches = full_batches
    if args.momentum == "nesterov":
        torch.optim.SGD = partial(torch.optim.SGD, nesterov=True)  # type: ignore[misc, assignment]
    test_errors = watch() if args.watch else {}
    experiment = Experiment(
        "cifar10-s",
        args.model,
        gamma=args.gamma,
        seed=args.trial,
        validation=0.0,
        precision="bfloat16",
        shortcuts=args.shortcuts,
        first_weights=args.first_weights,
        **({} if args.epochs is None else {"epochs": args.epochs}),
    )
    result, _ = training.run_experiment(experiment, data=args.data, device="cpu", compile=True)
    path = Path(__file__).with_name("networks.json")
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    error = round(100 * result["error"], 2)
    which = {
        name: getattr(args, name)
        for name in ("model", "shortcuts", "first_weights", "last", "momentum", "gamma", "trial")
    }
    losses = [round(loss, 4) for loss in result["train_loss"]]
    made = {"epochs": experiment.epochs, "error": error, "train_loss": losses}
    if test_errors:
        made["test_errors"] = test_errors
    found.append(which | made | {"machines": result["machines"]})
    print(f"{', '.join(map(str, which.values()))}: error {error:.2f} after {experiment.epochs} epochs")
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
