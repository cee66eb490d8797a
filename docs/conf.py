"""How Sphinx builds the site. `make docs` calls docs/build.py, which calls Sphinx with this."""

from pathlib import Path
from typing import NewType

import numpy.typing
from sphinx.application import Sphinx

# Before the package imports it: the site shows this name instead of the ten types that it stands for.
numpy.typing.ArrayLike = NewType("ArrayLike", object)

import vlmrm_gym  # noqa: E402

project = "vlmrm_gym"
author = "the vlmrm_gym maintainers"
version = release = vlmrm_gym.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_static"]
default_role = "code"  # single backticks in docstrings

myst_enable_extensions = ["colon_fence"]  # no formulas: MathJax would come from elsewhere
myst_heading_anchors = 3  # links to headings, as on GitHub

autodoc_member_order = "bysource"
autodoc_typehints = "description"  # not in signatures, which would be ten lines long
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = False  # Sphinx fails on signatures that are derived from fields
python_maximum_signature_line_length = 80

# Other packages' names cannot be resolved offline, and modules two levels down are internal.
nitpick_ignore_regex = [("py:.*", r"(?!vlmrm_gym\.).*"), ("py:.*", r"vlmrm_gym(\.\w+){3,}")]

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"vlmrm_gym {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
html_use_index = False
html_domain_indices = False
html_show_copyright = False

PROJECT_PAGES = {
    "README.md": "index.md",
    "benchmarks/RESULTS.md": "project/results.md",
}
"""Files outside of this folder, and the pages of the site that include them or stand for them."""


def link_project_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Links to files outside, which are right on GitHub, lead to the site's own pages."""
    up = "../" * docname.count("/")
    for file, page in PROJECT_PAGES.items():
        source[0] = source[0].replace(f"]({up}../{file}", f"]({up}{page}")


def keep_colons(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Napoleon takes what stands before a colon in an attribute's first line for its type."""
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]  # an empty comment


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", link_project_pages)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)  # before Napoleon
