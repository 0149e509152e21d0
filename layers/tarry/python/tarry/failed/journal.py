"""A file of JSON lines that survives crashes: each append is on disk when it returns, or leaves the file as it was."""

from __future__ import annotations

import json
import os
import stat
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tarry.errors import TarryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

OWNER_ONLY = 0o600
FOLDER_OF_OWNER = 0o700


class CannotWrite(TarryError):
    """A file cannot be written. The text names the file, the reason, and the remedy."""


class Journal:
    """A file of JSON lines, opened for appending; only its owner can read it if this creates it.

    Args:
        path: The file. Its directory is created.
        what: What the file is, for errors: ``archive``.
        remedy: What to do if it cannot be written.
        is_ours: Keep other processes from writing to it until it is closed. Otherwise only during an append.

    Raises:
        CannotWrite: it cannot be opened, is not a regular file, or another process has it.
    """

    def __init__(self, path: Path, what: str, remedy: str, *, is_ours: bool) -> None:
        self.path = path
        self._what = what
        self._remedy = remedy
        self._is_ours = is_ours
        with self._named_errors():
            path.parent.mkdir(FOLDER_OF_OWNER, parents=True, exist_ok=True)
            self.is_new = not path.exists()
            # Without O_NONBLOCK, a named pipe would block here until it has a reader.
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
            self._file = os.open(path, flags, OWNER_ONLY)
        try:
            with self._named_errors():
                if not stat.S_ISREG(os.fstat(self._file).st_mode):
                    raise OSError("it is not a regular file")
                if is_ours and not _lock(self._file, waits=False):
                    raise OSError("another tarry process is writing to it")
                if self.is_new:
                    _sync_folder(path.parent)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Write objects, one per line, to the disk. Raises `CannotWrite`."""
        data = "".join(f"{json.dumps(each, separators=(',', ':'))}\n" for each in objects).encode("ascii")
        with self._named_errors(), ExitStack() as unlocking:
            if not self._is_ours:
                _lock(self._file, waits=True)
                unlocking.callback(_unlock, self._file)
            self._write(data)

    def _write(self, data: bytes) -> None:
        end = os.fstat(self._file).st_size
        os.lseek(self._file, max(0, end - 1), os.SEEK_SET)  # of the read: writes go to the end
        if end and os.read(self._file, 1) != b"\n":
            data = b"\n" + data  # a process was killed in the middle of a line
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, end)
            raise

    def close(self) -> None:
        """Close the file; delete it if this created it and wrote nothing."""
        with suppress(OSError):
            if self.is_new and os.fstat(self._file).st_size == 0:
                self.path.unlink()
        os.close(self._file)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error)
            raise CannotWrite(f"the {self._what} {self.path} cannot be written: {why}; {self._remedy}") from error


def state_folder() -> Path:
    """Return the directory for what tarry keeps of its runs: ``$XDG_STATE_HOME/tarry``, or ``~/.local/state/tarry``."""
    given = os.environ.get("XDG_STATE_HOME", "")
    home = Path(given) if Path(given).is_absolute() else Path("~/.local/state").expanduser()
    return home / "tarry"


def _lock(file: int, *, waits: bool) -> bool:
    """Lock the file; return whether it is locked. Windows has no such locks, and there is no check."""
    try:
        import fcntl
    except ModuleNotFoundError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _unlock(file: int) -> None:
    with suppress(ModuleNotFoundError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)


def _sync_folder(folder: Path) -> None:
    """Write the entry of a new file to the disk."""
    with suppress(PermissionError):  # Windows opens no directories
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
