"""What every doctest may use without importing it, and what no test leaves behind."""

import importlib.util
import sys

import numpy as np
import pytest

from refocal import Objective

# Triton is for Linux alone, and the other parts of the package are tested without it too.
WITH_TRITON = ["src/refocal/torch/cuda/[!_]*.py", "src/refocal/kernels/cuda/[!_]*.py"]
collect_ignore_glob = [] if importlib.util.find_spec("triton") else WITH_TRITON


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    doctest_namespace["np"] = np


@pytest.fixture(autouse=True)
def _no_new_objectives(monkeypatch):
    monkeypatch.setattr(Objective, "kinds", dict(Objective.kinds))


@pytest.fixture(autouse=True)
def _no_open_figures():
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
