"""Code around each run of a handler, shared by OpenTelemetry and X-Ray, and the guard of what these raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.message.notices import WARNING
from tarry.support.guards import is_a
from tarry.world import Interrupted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tarry.observe.logs import Log
    from tarry.world import World

    Begin = Callable[[Any], Any]  # called with the message or batch before its run; returns the run
    End = Callable[[Any, Any, Any, BaseException | None], None]
    """Called with the message or batch, the run, the result (`RAISED` if none), and the exception."""

RAISED = object()  # the result of a handler that raised


def around(handler: Callable[[Any], Any], begin: Begin, end: End) -> Callable[[Any], Any]:
    """Return a handler that calls ``begin`` before each run and ``end`` after it. Neither may raise."""

    def run_between(subject: Any) -> Any:
        run = begin(subject)
        try:
            result = handler(subject)
        except BaseException as error:
            end(subject, run, RAISED, error)
            raise
        if hasattr(type(result), "__await__"):
            return awaited(subject, run, result)
        end(subject, run, result, None)
        return result

    async def awaited(subject: Any, run: Any, result: Awaitable[Any]) -> Any:
        try:
            final = await result
        except BaseException as error:
            end(subject, run, RAISED, error)
            raise
        end(subject, run, final, None)
        return final

    return run_between


class TracingGuard:
    """A context in which a tracing library may raise anything: it is logged, once per cold start, and suppressed.

    Samplers, processors, propagators and exporters are the user's. ``is_end``: whether an interruption ends here too,
    since the run or the send has its result.
    """

    def __init__(self, log: Log, world: World, *, is_end: bool = False) -> None:
        self._log, self._world, self._is_end = log, world, is_end

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if error is None or (not self._is_end and is_a(error, Interrupted)):
            return False
        if self._world.first_time("tracing_failed"):
            text = (
                "Tracing raised an exception, so spans are missing. Messages are processed and sent as without tracing."
            )
            self._log.problem("tracing_failed", text, error=error, level=WARNING)
        return True
