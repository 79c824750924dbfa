"""What every doctest may use without importing it, and what no test leaves behind."""

import sys

import numpy as np
import pytest

from refocal import Objective


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
