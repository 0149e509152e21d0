"""Driving the one implementation, sync or async: only here do the two differ."""

from __future__ import annotations

import sys
import threading
from functools import partial
from types import AsyncGeneratorType, CodeType, GeneratorType
from typing import TYPE_CHECKING, Any

from tarry import world

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine

# inspect's flags, without inspect
_CO_VARARGS, _CO_COROUTINE, _CO_ITERABLE_COROUTINE = 0x4, 0x80, 0x100
CLEAN_UP_SECONDS = 1.0

_local = threading.local()


def is_async(function: object) -> bool:
    """Whether calling ``function`` makes a coroutine: an ``async def``, also below ``partial`` or as ``__call__``."""
    while isinstance(function, partial):
        function = function.func
    for candidate in (function, getattr(type(function), "__call__", None)):  # noqa: B004 its code, not whether it is there
        code = getattr(candidate, "__code__", None)
        if isinstance(code, CodeType) and code.co_flags & (_CO_COROUTINE | _CO_ITERABLE_COROUTINE):
            return True
    return False


class HandlerNeverRan(TypeError):
    """The handler returned a generator, whose body nobody has run."""


def event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this thread, kept between invocations."""
    threads = world.current().threads
    loop: asyncio.AbstractEventLoop | None = getattr(_local, "loop", None)
    if loop is not None and _local.threads is not threads:
        loop.close()  # of another world, whose time is not this one's
    if loop is None or loop.is_closed():
        loop = _local.loop = threads.new_event_loop()
        _local.threads = threads
    return loop


def run_sync(steps: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine that never waits, without an event loop."""
    try:
        steps.send(None)
    except StopIteration:
        return
    raise RuntimeError("a sync run has waited for something")


def run_async(steps: Coroutine[Any, Any, None], before_cancelling: Callable[[], None]) -> None:
    """Runs a coroutine on the event loop.

    What ends the loop (a `SystemExit` in a task of the handler's) is raised, and what the handler left is cancelled.
    """

    def run() -> None:
        import asyncio

        loop = event_loop()
        earlier = asyncio.all_tasks(loop)
        task = loop.create_task(steps)
        while not task.done():
            try:
                loop.run_until_complete(task)
            except BaseException as error:
                if not task.done() and any(_ended_with(other, error) for other in earlier):
                    continue  # left behind by an earlier invocation: none of this batch's business
                before_cancelling()
                _cancel(loop, task)
                raise

    _where_no_loop_runs(run)


def _ended_with(task: asyncio.Task[Any], error: BaseException) -> bool:
    return task.done() and not task.cancelled() and task.exception() is error


def run_awaitable(awaitable: Awaitable[Any]) -> None:
    """Waits, in a sync run, for what a sync handler returned unawaited."""

    async def wait() -> None:
        await awaitable

    _where_no_loop_runs(lambda: event_loop().run_until_complete(wait()))


def _where_no_loop_runs(run: Callable[[], None]) -> None:
    """Calls ``run`` here, or in a thread where the caller is itself in an event loop, as in an async test."""
    import asyncio

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


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    import asyncio
    from contextlib import suppress

    task.cancel()
    with suppress(BaseException):  # it is being ended: what it says on the way counts no more
        loop.run_until_complete(asyncio.wait([task], timeout=CLEAN_UP_SECONDS))
    if not task.done():
        _local.loop = None  # it will not be cancelled: it must never wake up in another invocation


async def absorb_cancellation(is_ending: Callable[[], bool]) -> None:
    """Takes back what a handler did to its own task, which is that of the messages behind it too."""
    import asyncio

    task = asyncio.current_task()
    while task is not None and task.cancelling() and not is_ending():
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if is_ending():
                raise
        task.uncancel()


def is_awaitable(result: object) -> bool:
    if isinstance(result, GeneratorType):
        return bool(result.gi_code.co_flags & _CO_ITERABLE_COROUTINE)  # made by types.coroutine
    return hasattr(type(result), "__await__")


def refuse_generator(result: object) -> None:
    """A handler with a ``yield`` in it runs no line when it is called: that must not be taken for success."""
    if isinstance(result, (GeneratorType, AsyncGeneratorType)):
        raise HandlerNeverRan("the handler has a yield in it, so calling it ran nothing: take the yield out")


def cannot_take_one(function: object) -> str | None:
    """Why a call with one argument, the message or the batch, cannot work, as far as can be told; None if it can."""
    if isinstance(function, type):
        return "it is a class: decorate a function, or an instance with __call__"
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return None
    bound = 1 if getattr(function, "__self__", None) is not None else 0
    positional = code.co_argcount - bound
    needed = positional - len(getattr(function, "__defaults__", None) or ())
    keyword_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    unset = [name for name in keyword_only if name not in (getattr(function, "__kwdefaults__", None) or {})]
    if needed > 1 or unset or (positional < 1 and not code.co_flags & _CO_VARARGS):
        names = ", ".join(code.co_varnames[bound : code.co_argcount + code.co_kwonlyargcount])
        return f"it takes ({names}), and is called with one argument, the message or the batch"
    return None


def is_cancelled_error(error: BaseException) -> bool:
    """Whether it is asyncio's ``CancelledError``, without importing asyncio."""
    exceptions = sys.modules.get("asyncio.exceptions")
    return exceptions is not None and isinstance(error, exceptions.CancelledError)
