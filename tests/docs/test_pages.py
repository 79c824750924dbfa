"""The documents tell the truth: their code runs and prints what they say, and their links lead somewhere."""

import importlib
import re

import pages
import pytest
from pages import DOCS, PAGES, ROOT, Block, name_of

COPY = re.compile(r"^The site shows \[", flags=re.MULTILINE)  # a page that is another file of the repository
WRITTEN = [page for page in PAGES if not COPY.search(page.read_text(encoding="utf-8"))]
WITH_CODE = [page for page in WRITTEN if pages.blocks(page.read_text(encoding="utf-8"))]


def pages_to_run():
    """Return the pages with code; those that need the extra ``docs`` are run by ``make docs`` too."""
    return [
        pytest.param(page, id=name_of(page), marks=[pytest.mark.docs] if pages.needs(page) else [])
        for page in WITH_CODE
    ]


@pytest.mark.parametrize("page", pages_to_run())
def test_code_runs_and_prints_what_is_said(page, tmp_path, monkeypatch):
    for module in pages.needs(page):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install -e '.[docs]'")
    monkeypatch.chdir(tmp_path)
    pages.run(page)


def test_values_are_compared():
    assert sum(len(pages.blocks(page.read_text(encoding="utf-8"))) for page in WITH_CODE) > 40
    names = {}
    assert (
        pages.run_block(Block("(1 / 3, 2)  # 0.33, 2: thirds\n'a'  # 'a'\n1 + 1\n", "", 1, None), "x", names)
        == 2
    )
    for wrong in ("1 / 3  # 0.34", "'a'  # 'b'", "(1, 2)  # 1, 2, 3", "2.5e-3  # 2.4e-3"):
        with pytest.raises(AssertionError):
            pages.run_block(Block(wrong + "\n", "", 1, None), "x", names)


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_every_page_has_an_example(page):
    assert re.search(r"^```(python|sh|\{eval-rst\})$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_block_is_overlooked(page):
    assert not re.search(r"^[ \t>]+```python", page.read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files(page):
    text = pages.FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text):
        # figures are drawn when the site is built
        assert "://" in link or "_static/figures/" in link or (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_anchors_are_headings(page):
    text = page.read_text(encoding="utf-8")
    for path, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", text):
        target = (page.parent / path) if path else page
        heads = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
        slugs = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
        assert anchor in slugs, f"{path}#{anchor}"


def test_the_reference_has_every_public_name():
    rooms = ("", ".torch", ".sklearn", ".boosting", ".adapters", ".detection")
    entries = set()
    for page in (DOCS / "reference").glob("*.md"):
        module = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            if found := re.match(r"\.\. (?:current)?module:: (\S+)", line):
                module = found[1]
            if found := re.match(r"\.\. auto(?:class|function|exception):: (\S+)", line):
                entries.add(f"{module}.{found[1]}")
    for room in rooms:
        module = importlib.import_module(f"refocal{room}")
        missing = {f"refocal{room}.{name}" for name in module.__all__ if name != "__version__"} - entries
        assert not missing
    for entry in entries:
        module, _, name = entry.rpartition(".")
        assert hasattr(importlib.import_module(module), name), entry


def test_copies_name_a_file_that_is_there():
    for page in PAGES:
        if found := re.search(
            r"^The site shows \[(\S+)\]", page.read_text(encoding="utf-8"), flags=re.MULTILINE
        ):
            assert (ROOT / found[1]).exists(), found[1]
