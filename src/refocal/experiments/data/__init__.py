"""Data sets by name or by file: the registry of the paper's, OpenML, and the checks of what is read."""

from refocal.experiments.data.datasets import (
    Check,
    Dataset,
    check,
    fetch,
    find,
    is_partial,
    load,
    names,
    source,
)
from refocal.experiments.data.openml import SPLIT
from refocal.experiments.data.registry import REGISTRY, Source

__all__ = [
    "REGISTRY",
    "SPLIT",
    "Check",
    "Dataset",
    "Source",
    "check",
    "fetch",
    "find",
    "is_partial",
    "load",
    "names",
    "source",
]
