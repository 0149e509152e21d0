"""The tests, modules and packages that the docs name exist. For links and code, see tests/acceptance/test_docs.py."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def tests() -> set[str]:
    """Return the names of all tests."""
    texts = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for text in texts for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", text, re.MULTILINE)}


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_test_that_a_page_names_exists(page: Path, tests: set[str]) -> None:
    named = set(re.findall(r"`(?:\S+::)?(test_\w+)`", page.read_text()))
    assert named - tests == set()


def test_each_row_of_the_table_of_crashes_names_its_tests() -> None:
    text = (ROOT / "docs" / "guides" / "crashes.md").read_text()
    rows = [int(number) for number in re.findall(r"^\| \*\*(\d+)\. ", text, re.MULTILINE)]
    proofs = re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |^$)", text, re.MULTILINE | re.DOTALL)
    assert rows == [int(number) for number, _ in proofs] == list(range(1, len(rows) + 1))
    assert all("`test_" in named for _, named in proofs)


def test_the_page_on_the_architecture_names_every_package_and_no_file_that_does_not_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "layers" / "tarry" / "python" / "tarry"
    files = {path.name for path in package.rglob("*.py")} | {
        str(path.relative_to(package)) for path in package.rglob("*.py")
    }
    assert set(re.findall(r"`(?!tests/)([\w/]+\.py)`", text)) - files == set()
    subpackages = {path.parent.name for path in package.glob("*/__init__.py")}
    assert {name for name in subpackages if f"{name}/" not in text} == set()
