"""The array libraries that the core's tests run on: those that are installed, NumPy at least."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import hypothesis
import numpy as np
import pytest

MODULES = {"numpy": "numpy", "torch": "torch", "jax": "jax.numpy", "strict": "array_api_strict"}


def _is_installed(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.origin is not None  # the folder tests/torch is no library


if _is_installed("jax"):
    import_module("jax").config.update("jax_enable_x64", True)
hypothesis.settings.register_profile("refocal", derandomize=True, deadline=None, print_blob=False)
hypothesis.settings.load_profile("refocal")


@dataclass(frozen=True)
class Backend:
    """One array library at one precision."""

    name: str
    dtype: str

    def array(self, values: Any, dtype: Any = None) -> Any:
        """Make an array of this library, floating point of this precision unless a dtype is given."""
        values = np.asarray(values, dtype=self.dtype if dtype is None else dtype)
        library = import_module(MODULES[self.name])
        return library.from_numpy(np.array(values)) if self.name == "torch" else library.asarray(values)

    def integers(self, values: Any) -> Any:
        """Make an int64 array of this library."""
        return self.array(values, np.int64)

    def check(self, result: Any, like: Any) -> np.ndarray:
        """Return a result as NumPy, after a look at its library and dtype."""
        assert type(result) is type(like) or np.isscalar(result) or isinstance(result, np.ndarray)
        assert result.dtype == like.dtype
        return np.asarray(result)

    @property
    def tolerance(self) -> float:
        """What the issue of exactness allows for log psi, relative to max(1, |log psi|)."""
        return 2e-6 if self.dtype == "float32" else 1e-14


BACKENDS = [
    Backend("numpy", "float32"),
    Backend("numpy", "float64"),
    Backend("torch", "float32"),
    Backend("torch", "float64"),
    Backend("jax", "float32"),
    Backend("jax", "float64"),
    Backend("strict", "float64"),
]
INSTALLED = [backend for backend in BACKENDS if _is_installed(MODULES[backend.name].partition(".")[0])]


@pytest.fixture(params=INSTALLED, ids=lambda b: f"{b.name}-{b.dtype}")
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every array library and precision in turn."""
    return request.param


@pytest.fixture(params=["xgboost", "lightgbm"])
def engine(request):
    """Both boosting engines in turn."""
    pytest.importorskip(request.param)
    return request.param
