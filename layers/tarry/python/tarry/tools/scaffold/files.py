"""The files of the project, and writing them without overwriting any."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from contextlib import ExitStack
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tarry.failed.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

DEFAULT = "orders"
MOST_CHARACTERS = 80 - len("-dlq")
"""The longest name that SQS takes, less the suffix of the dead-letter queue."""
YAML_WORDS = frozenset({"false", "no", "null", "off", "on", "true", "yes"})
WRITTEN = ("my-queue", "my_queue", "MyQueue", "My queue")
"""The names that the templates have, in the order of `ProjectNames`."""


class ProjectNames(NamedTuple):
    """The name of a project in all its forms."""

    queue: str
    """``my-queue``: the queue, and the event file."""
    module: str
    """``my_queue``: the directory of the function."""
    prefix: str
    """``MyQueue``: the beginning of the logical ids."""
    title: str
    """``My queue``: the title of the README."""

    def put_into(self, text: str) -> str:
        """Return the text of a template with these names."""
        return re.sub("|".join(WRITTEN), lambda found: self[WRITTEN.index(found[0])], text)


def names_of(directory: str) -> ProjectNames:
    """Return the names for the name of a directory: both ``MyShop`` and ``my_shop`` give the queue ``my-shop``.

    The names can be those of a queue, a Python package and a resource. Digits at the beginning are left out. A word
    that Python or YAML reserves gets the suffix ``-queue``. A name without a to z gives ``orders``.
    """
    ascii_name = unicodedata.normalize("NFKD", directory).encode("ascii", "ignore").decode()
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", ascii_name).lower()
    queue = re.sub(r"[^a-z0-9]+", "-", separated).lstrip("-0123456789")[:MOST_CHARACTERS].rstrip("-") or DEFAULT
    if iskeyword(queue) or queue in YAML_WORDS:
        queue += "-queue"
    words = queue.split("-")
    return ProjectNames(queue, "_".join(words), "".join(map(str.capitalize, words)), " ".join(words).capitalize())


TEMPLATES = Path(__file__).parent / "project"
"""The files of a project. Without the suffix ``-tpl``, tools would take some for files of this repository."""
PACKAGE = Path(__file__).parents[2]
LAYER = Path("layers", "tarry")
WRITTEN_PYTHON = "3.13"
"""The Python version that the templates name."""
MINORS = range(11, 15)
"""The minor versions of Python 3 that tarry and Lambda support."""


def project_files(names: ProjectNames, minor: int) -> dict[Path, bytes]:
    """Return the content of each file of a project for a minor version of Python 3, by its path there."""
    version = f"3.{min(max(minor, MINORS[0]), MINORS[-1])}"
    own = {}
    for path in _files_below(TEMPLATES):
        text = (TEMPLATES / path).read_text(encoding="utf-8").replace(WRITTEN_PYTHON, version)
        own[Path(names.put_into(str(path).removesuffix("-tpl")))] = names.put_into(text).encode()
    package = {LAYER / "python" / "tarry" / path: (PACKAGE / path).read_bytes() for path in _files_below(PACKAGE)}
    return own | package


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the relative paths of the files in a folder, without compiled ones."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.parent.name != "__pycache__":
            yield path.relative_to(folder)


def this_python() -> int:
    """Return the minor version of this Python."""
    return sys.version_info.minor


def in_the_way(folder: Path, files: Iterable[Path]) -> list[str]:
    """Return what exists already in the folder where a project would have a file, or the layer."""
    found: dict[str, None] = {}
    for path in files:
        one = LAYER if path.is_relative_to(LAYER) else path
        blocked = next((each for each in reversed(one.parents) if each.name and _is_file(folder / each)), None)
        if blocked is not None or os.path.lexists(folder / one):
            found[str(blocked or one)] = None
    return list(found)


def _is_file(path: Path) -> bool:
    return os.path.lexists(path) and not path.is_dir()


def write_project(folder: Path, files: Mapping[Path, bytes]) -> None:
    """Write all files, or none: if one cannot be written, those before it are removed.

    Raises:
        UsageError: The folder is a file or cannot be written to, or a file exists already.
    """
    if blocked := next(filter(_is_file, (*reversed(folder.parents), folder)), None):
        raise UsageError(f"{blocked} is not a directory; name another one: tarry init DIR")
    folder = folder.resolve()
    if existing := in_the_way(folder, files):
        raise UsageError(
            f"{folder} already has {_listed(existing)}, and tarry init overwrites nothing; "
            "name a new directory: tarry init DIR"
        )
    try:
        with ExitStack() as undo:
            for path, content in files.items():
                _make_directory((folder / path).parent, undo)
                with (folder / path).open("xb") as file:
                    undo.callback((folder / path).unlink)
                    file.write(content)
            undo.pop_all()
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder} cannot be written ({error.strerror}), so no project was made; "
            "name a directory that you can write to: tarry init DIR"
        ) from None


def _make_directory(folder: Path, undo: ExitStack) -> None:
    if not folder.is_dir():
        _make_directory(folder.parent, undo)
        folder.mkdir()
        undo.callback(folder.rmdir)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
