"""Work beside a running cloud: tasks that end with it, and the watch for changed code."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let it go on for as long as the context lasts, which is over when it fails: it then raises what that raised."""
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


LOOK_SECONDS = 0.5
IGNORED = frozenset({"__pycache__", "node_modules"})

Stamps = dict[str, tuple[int, int]]
"""When each file was changed, and its size: a second change within a clock's tick still shows."""


async def watch(directories: Mapping[str, Path], changed: Callable[[str, list[str]], None]) -> None:
    """Look again and again, until cancelled. ``changed`` gets the key of a directory, and the files that have changed.

    Looking, unlike being told, works on every system, and over network and container mounts; a function has few files.
    """
    before = {key: stamps_of(directory) for key, directory in directories.items()}
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        for key, directory in directories.items():
            now = await loop.run_in_executor(None, stamps_of, directory)
            if now != before[key]:
                names = sorted(
                    name for name in now.keys() | before[key].keys() if now.get(name) != before[key].get(name)
                )
                before[key] = now
                changed(key, names)


def stamps_of(directory: Path) -> Stamps:
    """The files below, but for what Python compiles and what is hidden, by their paths from there."""
    return dict(_stamps(directory, ""))


def _stamps(directory: Path, prefix: str) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        entries = list(os.scandir(directory))
    except OSError:  # it was just removed, or is being written anew
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
