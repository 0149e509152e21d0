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
from typing import Any

from tarry.failed.usage import UsageError

MOST_ANSWER_BYTES = 50_000_000


@dataclass(frozen=True)
class Instance:
    """A running `tarry local`. ``url`` is the endpoint of its SQS, ``template`` the absolute path of its template."""

    url: str
    template: Path
    process_id: int
    began_at: float


def directory(environment: Mapping[str, str] = os.environ, home: Path | None = None) -> Path:
    """Return the directory of the files: in the runtime directory of the user, else in the state directory."""
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        if (given := environment.get(name)) and Path(given).is_dir():
            return Path(given) / "tarry"
    return (home or Path.home()) / ".local" / "state" / "tarry"


def file_of(template: Path, what: str, suffix: str = "") -> Path:
    """Return the path of what is kept of the runs of a template: its stories, or the directory of its console."""
    name = hashlib.sha256(str(template.resolve()).encode()).hexdigest()[:16]
    return directory() / f"{what}-{name}{suffix}"


def write_whole(path: Path, text: str) -> None:
    """Write a file that a reader sees whole or not at all, in a folder of the user alone. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    written = path.with_suffix(f".{os.getpid()}.new")
    try:
        written.write_text(text, encoding="utf-8")
        written.chmod(0o600)
        written.replace(path)
    except OSError:
        written.unlink(missing_ok=True)
        raise


@contextmanager
def announced(url: str, template: Path) -> Iterator[None]:
    """Let other commands find this process within the context. Where no file can be written, they do not."""
    path = directory() / f"local-{os.getpid()}.json"
    fields = {"url": url, "template": str(template.resolve()), "process_id": os.getpid(), "began_at": time.time()}
    with suppress(OSError):
        for each, found in _instances().items():
            if not _is_running(found.process_id):  # it was killed
                each.unlink(missing_ok=True)
        write_whole(path, json.dumps(fields))
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def instance_of(template: Path) -> Instance | None:
    """Return the running instance of a template, the last that started; None if there is none."""
    wanted = template.resolve()
    found = [each for each in _instances().values() if each.template == wanted and _is_running(each.process_id)]
    return max(found, key=lambda each: each.began_at, default=None)


def instance_here() -> Instance | None:
    """Return the running instance of the template in the current directory; None if there is none, or no template."""
    from tarry.tools.template.finding import find_template  # the package of templates takes long to import

    try:
        return instance_of(find_template())
    except UsageError:
        return None


def asked(url: str, seconds: float) -> Any:
    """Return the JSON that the `tarry local` at a URL answers. Raises `OSError` and `ValueError`."""
    from urllib.request import ProxyHandler, build_opener

    opener = build_opener(ProxyHandler({}))  # a company proxy cannot reach this machine
    with opener.open(url, timeout=seconds) as answer:
        return json.loads(answer.read(MOST_ANSWER_BYTES))


def _instances() -> dict[Path, Instance]:
    """Return what the files say, by their paths."""
    found = {}
    for path in directory().glob("local-*.json"):
        with suppress(OSError, ValueError, LookupError, TypeError):
            fields = json.loads(path.read_bytes())
            template, began_at = Path(fields["template"]), float(fields["began_at"])
            found[path] = Instance(str(fields["url"]), template, int(fields["process_id"]), began_at)
    return found


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
