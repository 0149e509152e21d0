"""Driving the one implementation, sync or async: only here do the two differ."""

from __future__ import annotations

import _thread
import sys
from functools import partial
from types import AsyncGeneratorType, CodeType, GeneratorType
from typing import TYPE_CHECKING, Any

from tarry import world

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Iterable

# inspect's flags, without inspect
_CO_VARARGS, _CO_COROUTINE, _CO_ITERABLE_COROUTINE = 0x4, 0x80, 0x100
CLEAN_UP_SECONDS = 1.0
"""For handlers whose event loop was ended below them, to end."""

_local = _thread._local()
_dropped: list[object] = []
"""Kept: a coroutine that ignores its cancellation may ignore its collection too, and never let go of the collector."""


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


def drop_event_loop(tasks: Iterable[object]) -> None:
    """These tasks of this thread's loop do not end: they must never wake up in another invocation."""
    _dropped.extend(tasks)
    _local.loop = None


def run_sync(steps: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine that never waits, without an event loop."""
    try:
        steps.send(None)
    except StopIteration:
        return
    raise RuntimeError("a sync run has waited for something")


def run_async(steps: Coroutine[Any, Any, None], on_exit: Callable[[BaseException], None]) -> None:
    """Runs a coroutine on the event loop, to its end.

    ``on_exit`` is told what ends the loop meanwhile: a `SystemExit` in a task of the handler's.
    """

    def run() -> None:
        import asyncio

        loop = event_loop()
        earlier = asyncio.all_tasks(loop)
        task = asyncio.Task(steps, loop=loop)  # by no factory that a handler has set on the loop
        while not task.done():
            try:
                loop.run_until_complete(task)
            except BaseException as error:
                if task.done():
                    raise
                if not any(_ended_with(other, error) for other in earlier):
                    on_exit(error)  # else it is of an earlier invocation: none of this batch's business

    _where_no_loop_runs(run)


def _ended_with(task: asyncio.Task[Any], error: BaseException) -> bool:
    return task.done() and not task.cancelled() and task.exception() is error


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


async def completed(result: Any) -> Any:
    """The result of a handler once all of it has run: an awaitable may answer with another one."""
    while is_awaitable(result):
        result = await result
    return result


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
    return exceptions is not None and issubclass(type(error), exceptions.CancelledError)
