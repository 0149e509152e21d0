"""The event loop of the process, kept between invocations."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from tarry import world

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

CLEAN_UP_SECONDS = 1.0
"""The time for handlers to end after a `SystemExit` has ended their event loop."""

_local = threading.local()
_dropped: list[object] = []
"""Tasks that ignore their cancellation, kept alive: such a task may also block the garbage collector."""


def event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this thread, which is kept between invocations."""
    threads = world.current().threads
    loop: asyncio.AbstractEventLoop | None = getattr(_local, "loop", None)
    if loop is not None and _local.threads is not threads:
        loop.close()  # it belongs to another world, with another clock
    if loop is None or loop.is_closed():
        loop = _local.loop = threads.new_event_loop()
        _local.threads = threads
    return loop


def drop_event_loop(tasks: Iterable[object]) -> None:
    """Drop this thread's loop with the tasks that do not end, which must never run in another invocation."""
    _dropped.extend(tasks)
    _local.loop = None


def run_in_event_loop(steps: Coroutine[Any, Any, None], on_exit: Callable[[BaseException], None]) -> None:
    """Run a coroutine on the event loop until it has ended.

    ``on_exit`` is called with an error that ends the loop earlier: a `SystemExit` in a task that the handler made.
    """

    def run() -> None:
        loop = event_loop()
        earlier = asyncio.all_tasks(loop)
        task = asyncio.Task(steps, loop=loop)  # ignores a task factory that a handler has set
        while not task.done():
            try:
                loop.run_until_complete(task)
            except BaseException as error:
                if task.done():
                    raise
                if not any(_ended_with(other, error) for other in earlier):
                    on_exit(error)  # otherwise the error is that of a task from an earlier invocation

    _outside_loop(run)


def _ended_with(task: asyncio.Task[Any], error: BaseException) -> bool:
    return task.done() and not task.cancelled() and task.exception() is error


def _outside_loop(run: Callable[[], None]) -> None:
    """Call ``run`` here, or in another thread if the caller is in an event loop, as in an async test."""
    if asyncio._get_running_loop() is None:
        return run()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 raised below, in the caller
            errors.append(error)
        finally:
            event_loop().close()

    world.current().threads.start(work).join()
    for error in errors:
        raise error
