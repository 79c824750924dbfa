"""Every public name is there, documented with an example, and fully annotated."""

import inspect
import tomllib
from importlib import metadata, resources
from pathlib import Path
from types import ModuleType

import pytest

import refocal

PROMISED = {
    "Confidence",
    "Focal",
    "Interval",
    "Method",
    "Objective",
    "Recovered",
    "Selection",
    "SigmoidFocal",
    "__version__",
    "conditional_risk",
    "confidence_region",
    "eta_confidence",
    "focal_loss",
    "focal_minimizer",
    "h",
    "log_psi",
    "objective_from_dict",
    "phi",
    "psi",
    "tau_oc",
    "tau_uc",
}
OBJECTS = [name for name in refocal.__all__ if name != "__version__"]


def unannotated(function):
    """Return the parameters of function that have no annotation, and "return" if that has none."""
    signature = inspect.signature(function)
    missing = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.annotation is parameter.empty and name not in ("self", "cls")
    ]
    return missing + ["return"] * (signature.return_annotation is signature.empty)


def functions_of(thing):
    """Return a function itself, and of a class the public methods and properties that it defines."""
    if not inspect.isclass(thing):
        return [thing]
    members = [value for name, value in vars(thing).items() if not name.startswith("_") or name == "__init__"]
    members = [value.fget if isinstance(value, property) else value for value in members]
    members = [getattr(value, "__func__", value) for value in members]  # classmethod, staticmethod
    return [value for value in members if inspect.isfunction(value)]


def test_all_names_each_public_object_once():
    public = {
        name for name, value in vars(refocal).items() if name[0] != "_" and not isinstance(value, ModuleType)
    }
    assert len(set(refocal.__all__)) == len(refocal.__all__)
    assert set(refocal.__all__) == public - {"annotations"} | {"__version__"}


def test_promised_names_are_there():
    assert PROMISED <= set(refocal.__all__)


@pytest.mark.parametrize("name", OBJECTS)
def test_docstring_has_an_example(name):
    doc = inspect.getdoc(vars(refocal)[name]) or ""
    assert "Example:\n" in doc
    assert ">>>" in doc


@pytest.mark.parametrize("name", OBJECTS)
def test_signature_is_annotated(name):
    functions = functions_of(getattr(refocal, name))
    missing = {function.__qualname__: unannotated(function) for function in functions}
    assert not any(missing.values()), missing


def test_a_missing_annotation_would_be_seen():
    class Half:
        def method(self, a: int, b): ...

        @property
        def value(self): ...

    assert [unannotated(function) for function in functions_of(Half)] == [["b", "return"], ["return"]]


def test_package_is_typed():
    assert resources.files("refocal").joinpath("py.typed").is_file()


def test_version_is_the_one_in_pyproject():
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert refocal.__version__ == pyproject["project"]["version"] == metadata.version("refocal")
