"""Work that goes on beside something else, and ends with it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
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
