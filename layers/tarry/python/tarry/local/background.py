"""Background tasks of a local cloud, and the detection of changed code."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
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


async def watch(directories: Mapping[str, Path], changed: Callable[[str, list[str]], None]) -> None:
    """Poll the directories until cancelled; call ``changed`` with the key of a directory and its changed files.

    Polling, unlike notifications, works on every system and on network and container mounts; functions have few files.
    """
    before = {key: stamps_of(directory) for key, directory in directories.items()}
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SCAN_SECONDS)
        for key, directory in directories.items():
            now = await loop.run_in_executor(None, stamps_of, directory)
            if now != before[key]:
                names = sorted(
                    name for name in now.keys() | before[key].keys() if now.get(name) != before[key].get(name)
                )
                before[key] = now
                changed(key, names)


def stamps_of(directory: Path) -> Stamps:
    """Return the stamps of all files in a directory by relative path, without hidden and compiled files."""
    return dict(_stamps(directory, ""))


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
