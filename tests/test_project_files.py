"""What surrounds the code agrees with it: versions, citation, hooks, the workflow, issue forms."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import refocal

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = dict(
    re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
)
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
FORMS = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_changelog_has_the_version_below_what_is_unreleased():
    heads = re.findall(
        r"^## \[(.+?)\](?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert heads[0] == ("Unreleased", "")
    assert heads[1] == (refocal.__version__, str(CITATION["date-released"]))


def test_the_citation_names_the_version_and_the_paper():
    # The keys that version 1.2.0 of the format asks for; `cffconvert --validate` checks the rest.
    assert {"authors", "cff-version", "message", "title"} <= set(CITATION)
    assert CITATION["version"] == PROJECT["version"] == refocal.__version__
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["authors"] == PROJECT["authors"]
    (paper,) = CITATION["references"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert paper["title"] in readme
    assert paper["url"] in readme
    for author in paper["authors"]:
        assert author["family-names"] in readme


def test_hooks_have_the_versions_of_the_constraints():
    remote, local = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert remote["repo"].endswith("/ruff-pre-commit")
    assert remote["rev"] == f"v{PINS['ruff']}"
    (mypy,) = local["hooks"]  # that of .venv, so of the constraints
    assert mypy["entry"] == ".venv/bin/mypy --strict src"
    assert "mypy" in PINS


def test_the_workflow_runs_every_python_that_is_named_and_files_that_are_there():
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    everything, base = WORKFLOW["jobs"]["everything"], WORKFLOW["jobs"]["base"]
    assert everything["strategy"]["matrix"]["python"] == named
    assert everything["steps"][-1] == {"run": ".ci/run"}
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert set(base["strategy"]["matrix"]["python"]) <= set(named)
    command = base["steps"][-1]["run"].split()
    paths = [word for word in command if "/" in word]
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_have_what_github_asks_for(path):
    form = read(path)
    assert {"name", "description", "body"} <= set(form)
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    for field in form["body"]:
        assert field["type"] in ("textarea", "input", "dropdown")
        assert field["attributes"]["label"]
        assert field["type"] != "dropdown" or field["attributes"]["options"]
