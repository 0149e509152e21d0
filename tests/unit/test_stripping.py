"""Source files after the build of the layer: no docstrings, no comments, the same lines."""

import ast
from pathlib import Path

import tarry
from tarry.tools.common.strip import stripped

PACKAGE = Path(tarry.__file__).parent

SOURCE = '''\
"""A module."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import (  # for hints
        PathLike,
    )
else:
    PathLike = object

LIMIT = 10  # messages
"""The limit."""
TEXT = "# no comment"
NOTE = """
no docstring: # é
"""; é = "é"  # é


class Failure(Exception):
    """No body but this.

    Really.
    """


class Step:
    """A step."""

    size: int
    """Its size."""

    def run(self) -> int:
        """Run."""
        return self.size  # type: ignore[no-any-return]
'''
STRIPPED = '''\

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


else:
    PathLike = object

LIMIT = 10

TEXT = "# no comment"
NOTE = """
no docstring: # é
"""; é = "é"


class Failure(Exception):
    pass





class Step:


    size: int


    def run(self) -> int:

        return self.size
'''


def test_docstrings_comments_and_imports_for_type_checkers_are_removed_and_lines_keep_their_numbers() -> None:
    assert stripped(SOURCE) == STRIPPED
    assert stripped(STRIPPED) == STRIPPED


def test_every_module_keeps_its_statements_on_their_lines() -> None:
    for path in sorted((PACKAGE / "execution").rglob("*.py")):
        source = path.read_text()
        assert statements(source) == statements(stripped(source)), path


def statements(source: str) -> list[str]:
    """Return the kind and the line of each statement, but for texts and the blocks that only type checkers read."""
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                child.body = []
            if isinstance(child, ast.stmt) and not isinstance(child, ast.Expr | ast.Pass):
                found.append(f"{child.lineno} {type(child).__name__}")
            visit(child)

    visit(ast.parse(source))
    return found
