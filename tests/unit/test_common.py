"""Helpers that the tools share: source files after the build of the layer, and the command that installs an extra."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tarry
from tarry.tools.common.installation import install_command
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

"""The limit."""
NOTE = """
no docstring: # é
"""; é = "# é"  # é


class Failure(Exception):
    """A failure."""

    size: int
    """Its size."""

    def run(self) -> int:
        """Run."""
        return self.size  # type: ignore[no-any-return]

class Step:
    """No body but this.

    Really.
    """
'''
STRIPPED = '''\

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


else:
    PathLike = object


NOTE = """
no docstring: # é
"""; é = "# é"


class Failure(Exception):


    size: int


    def run(self) -> int:

        return self.size

class Step:
    pass



'''


def test_docstrings_comments_and_imports_for_type_checkers_are_removed_and_lines_keep_their_numbers() -> None:
    assert stripped(SOURCE) == STRIPPED
    assert stripped(STRIPPED) == STRIPPED
    for path in sorted((PACKAGE / "run").glob("*.py")):
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


WHEEL = "tarry-0.1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("origin", "installed"),
    [
        ('{"url": "file:///src/my%20tarry", "dir_info": {}}', '"/src/my tarry[local,aws]"'),
        ('{"url": "file:///src/tarry", "dir_info": {"editable": true}}', '-e "/src/tarry[local,aws]"'),
        (f'{{"url": "file:///d/{WHEEL}", "archive_info": {{}}}}', f'"/d/{WHEEL}[local,aws]"'),
        (
            '{"url": "https://example.com/tarry.git", "vcs_info": {"vcs": "git", "commit_id": "0"}}',
            '"tarry[local,aws] @ git+https://example.com/tarry.git"',
        ),
        (
            '{"url": "https://example.com/d/tarry.whl", "archive_info": {}}',
            '"tarry[local,aws] @ https://example.com/d/tarry.whl"',
        ),
        (None, '"tarry[local,aws]"'),  # from an index
    ],
)
def test_the_command_that_installs_an_extra_names_where_pip_has_tarry_from(
    origin: str | None, installed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "tarry-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tarry\nVersion: 0.1.0\n")
    if origin is not None:
        (info / "direct_url.json").write_text(origin)
    monkeypatch.syspath_prepend(tmp_path)
    assert install_command("local,aws") == f"pip install {installed}"


@pytest.mark.parametrize(
    ("home", "named"), [(PACKAGE.parents[1], PACKAGE.parents[1]), (None, "PATH-TO-TARRY")], ids=["copy", "no copy"]
)
def test_a_package_that_pip_did_not_install_names_its_directory_and_never_an_index(
    home: Path | None, named: Path | str, tmp_path: Path
) -> None:
    if home is None:
        shutil.copytree(PACKAGE, tmp_path / "tarry", ignore=shutil.ignore_patterns("__pycache__"))
    code = "from tarry.tools.common.installation import install_command; print(install_command('cli'))"
    command = [sys.executable, "-S", "-c", code]
    environment = {"PYTHONPATH": str(home / "python" if home else tmp_path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == f'pip install "{named}[cli]"\n'
