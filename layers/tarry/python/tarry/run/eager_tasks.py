"""Tasks that take their first step when they are made, on Python 3.11; since 3.12, asyncio has such tasks itself.

A task is made with `Steps` in place of a coroutine, and waits for its turn of the event loop. Before that, the
coroutine takes its first step, with this task as the current one. If the coroutine ends with this step, as a handler
that does not wait, the same task serves the next coroutine. So all of these together take one turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextvars import Context


class Steps(Coroutine[Any, Any, None]):
    """The steps of a coroutine whose first step was taken before, in a context of its own; none without a coroutine."""

    _coroutine: Coroutine[Any, Any, None] | None = None
    _context: Context
    _is_begun = False  # whether the first step was taken, and the task does not wait yet
    _awaited: Any = None  # the object that the first step awaits: a future, or None for a turn of the loop
    _is_blocking = False  # whether it is a future, awaited by the protocol of asyncio

    def begin(self, coroutine: Coroutine[Any, Any, None], context: Context) -> bool:
        """Take the first step; return whether the coroutine, which must not raise, has ended with it."""
        try:
            awaited = context.run(coroutine.send, None)
        except StopIteration:
            return True
        self._coroutine, self._context, self._is_begun, self._awaited = coroutine, context, True, awaited
        if getattr(awaited, "_asyncio_future_blocking", False):
            self._is_blocking, awaited._asyncio_future_blocking = True, False  # other tasks may await it until then
        return False

    def send(self, value: Any) -> Any:
        if self._coroutine is None:
            raise StopIteration
        return self._wait() if self._is_begun else self._context.run(self._coroutine.send, value)

    def throw(self, error: Any, *_: Any) -> Any:
        if self._coroutine is None:
            raise error
        if self._is_blocking and self._awaited.cancel():  # the task was cancelled before it waited
            return self._wait()
        self._is_begun, self._awaited, self._is_blocking = False, None, False
        return self._context.run(self._coroutine.throw, error)

    def _wait(self) -> Any:
        """Return the awaited object of the first step, so that the task waits for it."""
        self._is_begun, awaited, self._awaited = False, self._awaited, None
        if self._is_blocking:
            self._is_blocking, awaited._asyncio_future_blocking = False, True
        return awaited

    def close(self) -> None:
        if self._coroutine is not None:
            self._coroutine.close()

    def __await__(self) -> Any:
        raise NotImplementedError  # only a task takes these steps


class EagerTasks:
    """The tasks of one event loop."""

    _task: asyncio.Task[None] | None = None
    _steps: Steps

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Take the first step of a coroutine that raises nothing; return its task, also if it has ended."""
        loop, current, task = self._loop, asyncio.current_task(self._loop), self._task
        if task is None or task.done() or task.cancelling():  # else a cancellation would hit the next coroutine
            self._steps = Steps()
            task = self._task = asyncio.Task(self._steps, loop=loop)
        if current is not None:
            asyncio.tasks._leave_task(loop, current)
        asyncio.tasks._enter_task(loop, task)
        try:
            has_ended = self._steps.begin(coroutine, copy_context())
        finally:
            asyncio.tasks._leave_task(loop, task)
            if current is not None:
                asyncio.tasks._enter_task(loop, current)
        if not has_ended:
            self._task = None
        return task
