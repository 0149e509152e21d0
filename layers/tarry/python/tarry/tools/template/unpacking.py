"""Code that is not in a directory: inline code and zip files, written to a directory that is removed at exit."""

import atexit
import hashlib
import os
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path

from tarry.tools.template.model import TemplateError


def inline_code(text: str, runtime: str) -> Path:
    """Return a directory with the code in the file that Lambda gives it: index.py, or index.js for Node."""
    directory = _directory() / _digest(text)
    directory.mkdir(exist_ok=True)
    (directory / ("index.js" if runtime.startswith("nodejs") else "index.py")).write_text(text, encoding="utf-8")
    return directory


def unpacked(path: Path) -> Path:
    """Return a directory with the content of a zip file.

    Raises:
        TemplateError: it is not a zip file, or cannot be read.
    """
    try:
        state = path.stat()
        directory = _directory() / _digest(f"{path.resolve()} {state.st_mtime_ns} {state.st_size}")
        if not directory.exists():
            with zipfile.ZipFile(path) as archive:
                archive.extractall(directory)
    except (OSError, zipfile.BadZipFile) as error:
        raise TemplateError(f"{path} cannot be unpacked: {error}") from error
    return directory


def is_unpacked(path: Path) -> bool:
    """Whether a path is in the directory of inline code and zip files, which exists until exit."""
    return path.is_relative_to(_directory())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _directory() -> Path:
    directory, owner = Path(tempfile.mkdtemp(prefix="tarry-code-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a fork
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory
