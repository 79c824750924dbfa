"""Make fashion-mnist.npz of the four official files, whose split the published tables were made with.

    python results/tabular/fashion_mnist.py FOLDER OUT

FOLDER has the files of github.com/zalandoresearch/fashion-mnist (data/fashion); in Debian, the package
dataset-fashion-mnist puts them into /usr/share/datasets/fashion-mnist. `refocal data fetch fashion-mnist`
takes the same rows in the same order from OpenML.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np


def read(path: Path) -> np.ndarray[Any, Any]:
    """Return the array of an IDX file of bytes: two zeros, type, number of axes, lengths, values."""
    content = gzip.decompress(path.read_bytes())
    if content[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an IDX file of bytes")
    axes = content[3]
    shape = np.frombuffer(content, ">u4", axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def main(folder: str, out: str) -> None:
    """Write the file."""
    arrays = {
        f"{letter}_{part}": read(Path(folder) / f"{name}-{kind}-ubyte.gz")
        for part, name in (("train", "train"), ("test", "t10k"))
        for letter, kind in (("X", "images-idx3"), ("y", "labels-idx1"))
    }
    shapes = {name: array.shape for name, array in arrays.items()}
    if shapes["X_train"] != (60000, 28, 28) or shapes["X_test"] != (10000, 28, 28):
        raise ValueError(f"60,000 and 10,000 images were expected, got {shapes}")
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
