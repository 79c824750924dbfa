"""What `import refocal` loads, and that imports inside the package point one way."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import refocal
from refocal.extras import needs

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "src" / "refocal"

# The rooms in order, as the map has them: a room may import those before it.
MAP = (HERE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
ORDER = re.findall(r"^\| `(\w+)` \|", MAP.split("<!-- import order: ")[1], flags=re.MULTILINE)
BASE = ORDER[: ORDER.index("torch")]  # what `import refocal` may load


def third_party(code):
    command = [sys.executable, "-P", str(HERE / "third_party.py"), code]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()


def test_import_loads_numpy_and_array_api_compat_only():
    assert third_party("import refocal") == ["array_api_compat", "numpy"]


def test_other_parts_are_loaded_when_they_are_asked_for():
    code = "import refocal; refocal.adapters, refocal.plots; assert 'torch' not in dir(refocal)"
    assert third_party(code) == ["array_api_compat", "numpy"]
    assert "torch" in third_party("import refocal; refocal.torch.FocalLoss")


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match=r"^module 'refocal' has no attribute 'calibrate'$"):
        refocal.calibrate  # noqa: B018


@pytest.mark.parametrize(
    "missing, code, text",
    [
        ("torch", "import refocal; refocal.torch", "refocal.torch needs torch"),
        ("sklearn", "import refocal.sklearn", "refocal.sklearn needs scikit-learn"),
        (
            "lightgbm",
            "from refocal.boosting import FocalLGBMClassifier",
            "FocalLGBMClassifier needs lightgbm",
        ),
        ("xgboost", "from refocal.boosting import FocalXGBClassifier", "FocalXGBClassifier needs xgboost"),
    ],
)
def test_a_missing_package_is_asked_for(missing, code, text):
    code = f"import sys; sys.modules[{missing!r}] = None; {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == f"ImportError: {text}: pip install {text.split()[-1]}"


@pytest.mark.parametrize(
    "missing, argv, text",
    [
        ("torch", ["tabular", "--dataset", "vehicle"], "the tabular study needs torch"),
        ("torch", ["images"], "the image study needs torch"),
        ("scipy", ["tabular", "--report"], "a report needs scipy"),
        ("scipy", ["images", "--report"], "a report needs scipy"),
        ("scipy", ["images"], "the image study needs scipy"),
    ],
)
def test_a_study_asks_for_a_missing_package(missing, argv, text, tmp_path):
    argv = ["reproduce", *argv, "--out", str(tmp_path)]
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from refocal.cli import main; sys.exit(main({argv}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"refocal: {text}: pip install {missing}\n"


def test_what_a_package_misses_itself_is_its_own_affair():
    with (
        pytest.raises(ModuleNotFoundError, match=r"^No module named 'no_such_module'$"),
        needs("it", "torch"),
    ):
        import no_such_module  # noqa: F401


def test_the_map_has_a_line_for_each_room():
    assert {unit_of(path) for path in FILES} - {""} <= set(ORDER)
    assert len(set(ORDER)) == len(ORDER) > 15


def test_an_extra_import_would_be_seen():
    assert third_party("import refocal, mpmath") == ["array_api_compat", "mpmath", "numpy"]


def unit_of(path):
    """Return the module or subpackage of refocal that a file belongs to; "" is refocal itself."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imported_units(source, package="refocal"):
    """Return the units of refocal that source imports anywhere, functions included."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join(base + ([node.module] if node.module else []))
            if module == "refocal":  # from refocal import focal: a module, or a name of refocal itself
                names += [f"refocal.{a.name}" if a.name in ORDER else "refocal" for a in node.names]
            else:
                names.append(module)
    return {f"{name}.".split(".")[1] for name in names if name.split(".")[0] == "refocal"}


def wrong_imports(source, unit, package="refocal"):
    """Return the units that `unit` must not import but does."""
    if unit == "":
        allowed = set(BASE)
    else:
        allowed = {unit, *ORDER[: ORDER.index(unit)]}
        if unit not in BASE:
            allowed.add("")  # a base module that imports refocal itself would be a circle
    return sorted(imported_units(source, package) - allowed)


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    unit = unit_of(path)
    assert unit in ["", *ORDER], f"{unit} has no line in docs/architecture.md yet"
    package = ".".join(["refocal", *path.relative_to(PACKAGE).parts[:-1]])
    assert wrong_imports(path.read_text(encoding="utf-8"), unit, package) == []


@pytest.mark.parametrize(
    "source, unit, wrong",
    [
        ("from refocal.objectives import Focal", "focal", ["objectives"]),
        ("import refocal.objectives", "focal", ["objectives"]),
        ("import numpy, refocal.torch.modules as m", "metrics", ["torch"]),
        ("from refocal import plots", "metrics", ["plots"]),
        ("from refocal import psi", "metrics", [""]),
        ("import refocal", "metrics", [""]),
        ("from .confidence import tau_oc", "focal", ["confidence"]),
        ("from . import confidence", "focal", ["confidence"]),
        ("def f():\n    from refocal.cli import main", "plots", ["cli"]),
        ("from refocal.torch import FocalLoss", "", ["torch"]),
        ("from refocal.focal import psi\nfrom refocal._checks import check_gamma", "confidence", []),
        ("from refocal import psi, plots", "cli", []),
        ("import numpy\nfrom refocalize import cli", "focal", []),
    ],
)
def test_wrong_imports_are_found(source, unit, wrong):
    assert wrong_imports(source, unit) == wrong


def test_relative_imports_in_a_subpackage():
    assert wrong_imports("from .eager import f", "torch", "refocal.torch") == []
    assert wrong_imports("from ..sklearn import f", "torch", "refocal.torch") == ["sklearn"]
    assert wrong_imports("from .. import sklearn", "torch", "refocal.torch") == ["sklearn"]


@pytest.mark.parametrize("path", sorted((PACKAGE / "experiments").rglob("*.py")), ids=lambda path: path.name)
def test_experiments_use_public_names_of_the_library(path):
    modules = (
        node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
    )
    outside = [name for name in modules if name.startswith("refocal.") and ".experiments." not in name]
    private = [name for name in outside if any(part.startswith("_") for part in name.split("."))]
    assert private == []
