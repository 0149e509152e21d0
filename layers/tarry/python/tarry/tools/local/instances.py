"""The instances of `tarry local` that run on this machine, which other commands find by their template.

Each writes a small file into the runtime or state directory of the user, and removes it when it ends.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tarry.failed.usage import UsageError


@dataclass(frozen=True)
class Instance:
    """A running `tarry local`. ``url`` is the endpoint of its SQS, ``template`` the absolute path of its template."""

    url: str
    template: Path
    process_id: int
    began_at: float


def directory(environment: Mapping[str, str], home: Path) -> Path:
    """Return the directory of the files: in the runtime directory of the user, else in the state directory."""
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        if (given := environment.get(name)) and Path(given).is_dir():
            return Path(given) / "tarry"
    return home / ".local" / "state" / "tarry"


def file_of(template: Path, what: str, suffix: str = "") -> Path:
    """Return the path of what is kept of the runs of a template: its stories, or the directory of its console."""
    name = hashlib.sha256(str(template.resolve()).encode()).hexdigest()[:16]
    return _directory() / f"{what}-{name}{suffix}"


@contextmanager
def announced(url: str, template: Path) -> Iterator[None]:
    """Let other commands find this process within the context. Where no file can be written, they do not."""
    folder = _directory()
    path = _path(folder, os.getpid())
    fields = {"url": url, "template": str(template.resolve()), "process_id": os.getpid(), "began_at": time.time()}
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _tidy(folder)
        written = path.with_suffix(".new")
        written.write_text(json.dumps(fields), encoding="utf-8")
        written.replace(path)  # a reader never sees half of it
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def instance_of(template: Path) -> Instance | None:
    """Return the running instance of a template, the last that started; None if there is none."""
    wanted = template.resolve()
    found = [each for each in _instances(_directory()) if each.template == wanted and _is_running(each.process_id)]
    return max(found, key=lambda each: each.began_at, default=None)


def instance_here() -> Instance | None:
    """Return the running instance of the template in the current directory; None if there is none, or no template."""
    from tarry.tools.template.finding import find_template  # the package of templates takes long to import

    try:
        return instance_of(find_template())
    except UsageError:
        return None


def _directory() -> Path:
    return directory(os.environ, Path.home())


def _instances(folder: Path) -> list[Instance]:
    return [found for path in folder.glob("local-*.json") if (found := _read(path)) is not None]


def _tidy(folder: Path) -> None:
    """Remove the files of processes that were killed."""
    for each in _instances(folder):
        if not _is_running(each.process_id):
            _path(folder, each.process_id).unlink(missing_ok=True)


def _path(folder: Path, process_id: int) -> Path:
    return folder / f"local-{process_id}.json"


def _read(path: Path) -> Instance | None:
    try:
        fields = json.loads(path.read_bytes())
        template, began_at = Path(fields["template"]), float(fields["began_at"])
        return Instance(str(fields["url"]), template, int(fields["process_id"]), began_at)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _is_running(process_id: int) -> bool:
    """Whether a process runs; on Windows, where signal 0 would end it, no process is taken for a running one."""
    if sys.platform == "win32":
        return False
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it belongs to another user
    return True
