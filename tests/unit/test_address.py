"""The name and the address of the project: no text installs tarry from an index, or names another address."""

import re
from pathlib import Path

import pytest

from docs.generator.__main__ import address, with_address
from tarry.support.values import PAGES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "layers/tarry/python/tarry"
TEXTS = [
    *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.toml"), ROOT / "Makefile",
    ROOT / "packages.mk", *(ROOT / ".github").rglob("*.yml"), *(ROOT / "functions").rglob("*.txt"),
    *(each for each in (PACKAGE / "tools/scaffold/project").rglob("*") if each.is_file()), *PACKAGE.rglob("*.py"),
]  # fmt: skip
"""The pages, the workflows, the project of `tarry init`, and the code, which has the texts of errors and of --help."""

FROM_INDEX = re.compile(
    r"""
    (?<![\w./\\-])tarry\[[\w,{}-]+\](?!\ @\ )  # extras of the name alone
    | \b(?:pip|pipx|uv|uvx|poetry|pdm)\ (?:\S+\ )*?(?:install|add|run|tool)\ (?:[^\s#]+\ )*?['"]?tarry(?=[\s'"`=<>~!]|$)
    | \buvx\ (?:--from\ )?['"]?tarry(?=[\s'"`=<>~!]|$)
    | ^tarry\s*(?:[=<>~!]=.*)?$  # a line of requirements
    """,
    re.VERBOSE | re.MULTILINE,
)
OWN_EXTRAS = re.compile(r'^ *(?:[\w-]+ = \[)?"tarry\[[\w,-]+\]"(?:, ".*"\]|,|\])', re.MULTILINE)
"""Extras that consist of others, in the pyproject.toml of tarry: pip takes them from where it takes tarry."""


def lines_from_an_index(text: str) -> list[str]:
    text = OWN_EXTRAS.sub("", text)
    return [match[0].strip() for match in FROM_INDEX.finditer(text)]


@pytest.mark.parametrize(
    "line",
    [
        'pip install "tarry[local]"', "pip install tarry", "python3 -m pip install -U tarry", "uv add tarry==0.1",
        "pipx install 'tarry'", "uvx tarry check", "tarry>=0.1", "tarry", "Install `tarry[lint]`, and",
        'f"pip install tarry[{extras}]"', "  - run: uv tool install tarry", "poetry add tarry",
    ],
)  # fmt: skip
def test_a_line_that_installs_a_package_called_tarry_from_an_index_is_found(line: str) -> None:
    assert lines_from_an_index(f"text\n{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        'pip install "../tarry[local]"', "-e ./layers/tarry[local,testing]", 'pip install "tarry[a] @ git+https://x.y"',
        "tarry local --watch", "pip install -r requirements-dev.txt", "layers/tarry", '    "tarry[aws,cli]",',
        'lint = ["tarry[local]", "cfn-lint>=1.20"] # rules', "tarry init orders && cd orders",
    ],
)  # fmt: skip
def test_a_path_and_an_address_are_no_line_from_an_index(line: str) -> None:
    assert not lines_from_an_index(f"text\n{line}\n")


def test_no_text_installs_tarry_from_an_index() -> None:
    """Until tarry is published, the name is free there: name a path or an address. `install_command` is for errors."""
    files = [path for path in TEXTS if path.name != "installation.py"]  # which names an index if tarry came from one
    assert len(files) > 300
    found = {str(path.relative_to(ROOT)): lines_from_an_index(path.read_text("utf-8")) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_address_of_the_project_stands_in_pyproject_toml_and_pages_have_it_from_there() -> None:
    """A page gets it in `git clone` by `make docs`, and texts of the package from one line of its code."""
    assert f"{address()}/blob/main/docs" == PAGES
    assert with_address("git clone https://old.example/x tarry\n") == f"git clone {address()} tarry\n"
    addresses = re.compile(r"(?:https?://|git@)[\w.:/-]*?/tarry(?:\.git)?(?![\w-])|OWNER/tarry")
    ours = re.compile(rf"^(?:git clone |PAGES = \"){address()}(?=[ /])", re.MULTILINE)
    texts = {path.relative_to(ROOT): ours.sub("", path.read_text("utf-8")) for path in TEXTS}
    assert {f"{path}: {match[0]}" for path, text in texts.items() for match in addresses.finditer(text)} == set()
