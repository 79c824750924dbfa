"""What the site adds to Sphinx: formulas, figures, files of the repository as pages, tables from the code.

Formulas become MathML when the site is built: a page shows them without a script and without a network.
"""

import argparse
import inspect
import os
import pydoc
import re
from pathlib import Path
from typing import ClassVar

import figures
from docutils import nodes
from docutils.parsers.rst import directives
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from refocal import adapters, cli

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

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
"""Pages that are a file of the repository, where there is one: what docs has is for readers of the files."""

COPIES = {page: file for page, file in COPIES.items() if (ROOT / file).is_file()}
PAGE_OF = {ROOT / file: HERE / f"{page}.md" for page, file in COPIES.items()}
PAGE_OF |= {
    file.parent: page for file, page in PAGE_OF.items() if file.name == "README.md"
}  # links to folders
PAGE_OF[ROOT / "results"] = HERE / "results" / "index.md"

REQUIRED = {"from_kornia": {"alpha": None}, "from_smp": {"mode": "binary"}}
REQUIRED["from_catboost"] = {"focal_alpha": 0.25, "focal_gamma": 2.0}
"""What a library asks for and has no default for."""

logger = logging.getLogger(__name__)


def mathml(latex: str, display: str) -> str:
    """Return a formula as MathML."""
    try:
        formula = convert(latex, display=display)
    except Exception as error:
        logger.warning("latex2mathml cannot read %r: %r", latex, error)
        return ""
    return re.sub(r"(<mi>(?:log|max|min|exp)</mi>)(?=<m[in]>|<ms)", r'\1<mspace width="0.17em"/>', formula)


def visit_math(translator, node: nodes.math) -> None:
    """Write a formula that stands in a line."""
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_math_block(translator, node: nodes.math_block) -> None:
    """Write a formula of its own, which scrolls where it is wider than the page."""
    formula = mathml(node.astext(), "block")
    translator.body.append(f'<div class="formula" tabindex="0">{formula}</div>\n')
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
        app.env.note_dependency(file, docname=docname)
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


class Drawn(SphinxDirective):
    """A figure of figures.py in the colours of the reader: its name, its text for the blind, a caption."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return the light and the dark image, of which the theme shows one."""
        (name,) = self.arguments
        found = nodes.container(classes=["drawn"])
        for mode in ("light", "dark"):
            address = f"/_static/figures/{name}-{mode}.svg"
            found += nodes.image(uri=address, alt=self.options["alt"], classes=[f"only-{mode}"])
        if self.content:
            found += self.parse_content_to_nodes()
        return [found]


class Help(SphinxDirective):
    """The help text of every command, from the parser itself."""

    def run(self) -> list[nodes.Node]:
        """Return one section for each command, its own commands below it."""
        return [self.section(command) for command in commands_of(cli.parser())]

    def section(self, parser: argparse.ArgumentParser) -> nodes.section:
        """Return the section of one command."""
        found = nodes.section(ids=[nodes.make_id(parser.prog)])
        found += nodes.title(text=parser.prog)
        found += nodes.literal_block(text=parser.format_help(), language="text")
        for below in commands_of(parser):
            found += self.section(below)
        return found


def commands_of(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Return the parsers of the commands that a parser knows."""
    actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return [command for action in actions for command in action.choices.values()]


class Losses(SphinxDirective):
    """A table from libraries and their arguments to objectives, made by calling every adapter."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        rows = [
            "| adapter | the library's loss | arguments and defaults | objective of the defaults |",
            "|---|---|---|---|",
        ]
        for name in adapters.__all__:
            adapter = getattr(adapters, name)
            first = (inspect.getdoc(adapter) or "").splitlines()[0].replace("``", "`")
            what = first.removeprefix("Return the objective of ").removeprefix("Refuse ").rstrip(".")
            given = REQUIRED.get(name, {})
            parameters = inspect.signature(adapter).parameters.values()
            shown = [
                str(p.replace(annotation=p.empty, default=given.get(p.name, p.default))) for p in parameters
            ]
            try:
                objective = f"`{adapter(**given)!r}`"
            except ValueError as error:
                objective = f"none: {str(error).partition(': ')[2]}"
            link = f"{{py:func}}`~refocal.adapters.{name}`"
            rows.append(f"| {link} | {what} | `{', '.join(shown)}` | {objective} |")
        return self.parse_text_to_nodes("\n".join(rows))


def open_to_keyboards(app: Sphinx, error: Exception | None) -> None:
    """Let readers without a mouse scroll wide code and tables, and give the headings of the menu a level."""
    changes = {
        "<pre>": '<pre tabindex="0">',
        '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
        '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    }
    for page in Path(app.outdir).rglob("*.html") if error is None else ():
        text = old = page.read_text(encoding="utf-8")
        for theirs, ours in changes.items():
            text = text.replace(theirs, ours)
        if text != old:
            page.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Add all of it."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.add_directive("drawn", Drawn)
    app.add_directive("help", Help)
    app.add_directive("losses", Losses)
    app.connect("source-read", read_source)
    app.connect("missing-reference", resolve_name)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("build-finished", open_to_keyboards)
    app.connect("builder-inited", lambda app: figures.write(HERE / "_static" / "figures"))
