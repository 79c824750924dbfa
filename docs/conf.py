"""The documentation site: ``make docs`` builds it into out/docs.

Formulas become MathML here, so that a page shows them without a script and without a network.
"""

import argparse
import os
import pydoc
import re
import sys
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

import figures  # noqa: E402

import refocal  # noqa: E402
from refocal import cli  # noqa: E402

os.environ["COLUMNS"] = "100"  # the width of the help texts

project = "refocal"
author = "The refocal authors"
version = release = refocal.__version__
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
nitpicky = True

myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

default_role = "py:obj"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = "refocal"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"
html_theme_options = {"navigation_with_keys": False}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

COPIES = {
    "reference/changelog": "CHANGELOG.md",
    "extend/contributing": "CONTRIBUTING.md",
    "results/index": "results/README.md",
    "results/theory": "results/theory/README.md",
    "results/synthetic": "results/synthetic/README.md",
    "results/tabular": "results/tabular/README.md",
    "results/tabular-tables": "results/tabular/tables.md",
    "results/images": "results/images/README.md",
    "results/selection": "results/selection/README.md",
    "results/boosting": "results/boosting/README.md",
    "results/boosting-comparison": "results/boosting/comparison.md",
    "results/boosting-curvatures": "results/boosting/curvatures.md",
    "results/benchmarks": "benchmarks/README.md",
}
"""Pages that are a file of the repository: what stands in docs under their name is for readers of the files."""

COPIES = {page: file for page, file in COPIES.items() if (ROOT / file).is_file()}
PAGE_OF = {ROOT / file: HERE / f"{page}.md" for page, file in COPIES.items()}
PAGE_OF |= {ROOT / page: HERE / f"{page}.md" for page in ("results/images", "results/selection", "results/boosting")}
PAGE_OF[ROOT / "results"] = HERE / "results/index.md"

logger = logging.getLogger(__name__)


def mathml(latex: str, display: str) -> str:
    """Return a formula as MathML."""
    try:
        return convert(latex, display=display)
    except Exception as error:
        logger.warning("latex2mathml cannot read %r: %r", latex, error)
        return ""


def visit_math(translator, node: nodes.math) -> None:
    """Write a formula that stands in a line."""
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_math_block(translator, node: nodes.math_block) -> None:
    """Write a formula of its own, which scrolls where it is wider than the page."""
    translator.body.append(f'<div class="formula" tabindex="0">{mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def resolve_name(app: Sphinx, env, node, content):
    """Link a name in backticks to its entry in the reference; show it as code where it has none.

    A name that begins with ``refocal.`` and is no name of refocal stays an error.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].removesuffix("()")
    full = target if target.startswith("refocal.") else f"refocal.{target}"
    owner, _, name = full.rpartition(".")
    bases = [f"refocal.{base.__name__}.{name}" for base in getattr(pydoc.locate(owner), "__mro__", ())]
    for place in (full, *bases):  # a method may be that of a base class
        if entry := env.domains["py"].objects.get(place):
            return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, target)
    return None if target.startswith("refocal.") and pydoc.locate(target) is None else content


def skip_member(app: Sphinx, what: str, name: str, obj, skip: bool, options) -> bool | None:
    """Leave out the methods that scikit-learn adds to every estimator."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def read_source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Show files of the repository as pages, and lead links between pages and files to the right one.

    A page that is a copy keeps its own title where the file has none, and its own list of pages below it.
    """
    page = file = HERE / f"{docname}.md"
    text = source[0]
    if docname in COPIES:
        file, own = ROOT / COPIES[docname], source[0]
        text = file.read_text(encoding="utf-8")
        title = "" if text.startswith("# ") else own.partition("\n")[0]
        tree = re.search(r"^```{toctree}.*?^```", own, flags=re.MULTILINE | re.DOTALL)
        text = f"{title}\n\n{text}\n{tree[0] if tree else ''}\n"

    def lead(match: re.Match[str]) -> str:
        path, hash_, anchor = match[2].partition("#")
        target = (file.parent / path).resolve()
        if "://" in path or not path or not target.exists():
            return match[0]
        shown = PAGE_OF.get(target, target)
        outside = shown.suffix == ".md" and not shown.is_relative_to(HERE)  # no page, but a file to look at
        return f"{match[1]}({'path:' * outside}{os.path.relpath(shown, page.parent)}{hash_}{anchor})"

    source[0] = re.sub(r"(!?\[[^\]]*\])\(([^)\s]+)\)", lead, text)


class Help(SphinxDirective):
    """The help text of every command, from the parser itself."""

    def run(self) -> list[nodes.Node]:
        """Return one section for each command and each of its own commands."""
        return [section for _, parser in commands_of(cli.parser()) for section in self.section(parser)]

    def section(self, parser: argparse.ArgumentParser) -> list[nodes.Node]:
        """Return the section of one command, its own commands below it."""
        found = nodes.section(ids=[nodes.make_id(parser.prog)])
        found += nodes.title(text=parser.prog)
        found += nodes.literal_block(text=parser.format_help(), language="text")
        for _, below in commands_of(parser):
            found += self.section(below)
        return [found]


def commands_of(parser: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser]]:
    """Return the commands that a parser knows, by name."""
    actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return [pair for action in actions for pair in action.choices.items()]


def setup(app: Sphinx) -> None:
    """Add the formulas, the names, the commands and the figures."""
    app.add_directive("help", Help)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.connect("source-read", read_source)
    app.connect("missing-reference", resolve_name)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("builder-inited", lambda app: figures.write(HERE / "_static" / "figures"))
