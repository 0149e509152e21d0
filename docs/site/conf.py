"""The site of docs/: Sphinx reads the pages as they are, and adds what only a site has.

- The navigation is that of docs/README.md: a list there is a part of the sidebar.
- A link that leaves docs/ goes to the repository, whose address pyproject.toml has.
- docs/reference/api.md lists the public modules; here it has their docstrings as well.
"""

import re
import tomllib
from os.path import normpath
from pathlib import Path, PurePosixPath

from sphinx.application import Sphinx

import tarry

ROOT = Path(__file__).parents[2]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
LIST = re.compile(
    r"^(?:#+ (?P<heading>.+)|(?P<words>[\w ,]+)[.:])\n\n(?P<items>(?:- \[.*\n(?:  .*\n)*)+)", re.MULTILINE
)
MODULES = re.compile(r"^- `(tarry[.\w]*)`.*$", re.MULTILINE)

project, release, version = "tarry", tarry.__version__, tarry.__version__
root_doc = "README"
exclude_patterns = ["generator", "site"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
mermaid_version = "11.12.0"
default_role = "py:obj"
suppress_warnings = ["misc.highlighting_failure"]  # the highlighter of Terraform knows no heredocs
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"tarry {release}"
html_copy_source = False
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/version.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}


def setup(app: Sphinx) -> None:
    app.connect("source-read", _for_the_site)
    app.connect("autodoc-process-docstring", _mark_examples, priority=400)  # before napoleon


def _for_the_site(_: Sphinx, page: str, source: list[str]) -> None:
    text = LINK.sub(lambda link: _target(page, link[0]), source[0])
    if page.endswith("README"):
        text += "".join(_navigation(each) for each in LIST.finditer(text))
    if page == "reference/api":
        text += "".join(f"```{{eval-rst}}\n.. automodule:: {name}\n```\n" for name in MODULES.findall(text))
    source[0] = text


def _target(page: str, link: str) -> str:
    """Return a link of a page as it is on the site."""
    path = normpath(PurePosixPath("docs", page).parent / link)
    if path.startswith("docs/"):
        return link
    return f"{REPOSITORY}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"


def _navigation(part: re.Match[str]) -> str:
    """Return a part of the sidebar: the pages of a list, under the heading or the words before it."""
    caption = part["heading"] or part["words"]
    pages = re.findall(r"\]\((?!\w+:)([^)#]+)\.md\)", part["items"])
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])


def _mark_examples(app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]) -> None:
    """Mark the indented blocks of a docstring as code."""
    before = ["", *lines]
    for index in reversed(range(len(lines))):
        starts = lines[index].startswith("    ") and not before[index]
        if starts and index > 1 and not lines[index - 2].startswith(" "):
            lines[index:index] = [".. code-block:: python", ""]
