"""Background tasks of a local cloud, and the detection of changed code."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine within the context; if it fails, the context is cancelled and raises its exception."""
    task, owner = asyncio.create_task(work), asyncio.current_task()

    def ended(task: asyncio.Task[None]) -> None:
        if owner is not None and not task.cancelled() and task.exception() is not None:
            owner.cancel()

    task.add_done_callback(ended)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


SCAN_SECONDS = 0.5
IGNORED = frozenset({"__pycache__", "node_modules"})

Stamps = dict[str, tuple[int, int]]
"""The modification time and size of each file; the size shows a second change within one clock tick."""


class Watcher:
    """A watcher of files and directories, which polls them.

    Polling, unlike notifications, works on every system and on network and container mounts; functions have few files.
    """

    def __init__(self) -> None:
        self._known: dict[Path, Stamps] = {}

    def add(self, paths: Iterable[Path]) -> None:
        """Watch more paths, from their current state on."""
        for path in paths:
            if path not in self._known:
                self._known[path] = stamps_of(path)

    async def run(self, changed: Callable[[dict[Path, list[str]]], Awaitable[None]]) -> None:
        """Poll until cancelled; call ``changed`` with the changed files of each path, and wait for it."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SCAN_SECONDS)
            if found := await loop.run_in_executor(None, self._changes):
                await changed(found)

    def _changes(self) -> dict[Path, list[str]]:
        found = {}
        for path, before in list(self._known.items()):
            now = stamps_of(path)
            if now and now != before:  # without a file it is being replaced, as by a build
                found[path] = sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
                self._known[path] = now
        return found


def stamps_of(path: Path) -> Stamps:
    """Return the stamps of a file, or of all files in a directory by relative path, without hidden and compiled ones.

    A path that does not exist has none.
    """
    try:
        stat = path.stat()
    except OSError:
        return {}
    return dict(_stamps(path, "")) if path.is_dir() else {path.name: (stat.st_mtime_ns, stat.st_size)}


def _stamps(directory: Path, prefix: str) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        entries = list(os.scandir(directory))
    except OSError:  # just removed, or being rewritten
        return
    for entry in entries:
        if entry.name in IGNORED or entry.name.startswith(".") or entry.name.endswith((".pyc", "~")):
            continue
        try:
            if entry.is_dir():
                yield from _stamps(Path(entry.path), f"{prefix}{entry.name}/")
            else:
                stat = entry.stat()
                yield prefix + entry.name, (stat.st_mtime_ns, stat.st_size)
        except OSError:
            continue
