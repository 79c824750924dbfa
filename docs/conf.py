"""Settings of the documentation site, which ``make docs`` builds into out/docs; extension.py has the rest."""

import os
import sys
from pathlib import Path

import refocal

sys.path.insert(0, str(Path(__file__).parent))  # extension and figures
os.environ["COLUMNS"] = "100"  # the width of the help texts of the command line

project = "refocal"
author = "The refocal authors"
version = release = refocal.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "extension",
]
nitpicky = True

myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

default_role = "py:obj"
autodoc_typehints = "none"  # the docstrings say in words what is taken
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
html_show_copyright = False
html_math_renderer = "mathml"
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
