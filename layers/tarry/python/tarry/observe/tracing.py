"""Code around each run of a handler, shared by the backends `run_spans` and `xray`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.message.notices import WARNING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tarry.observe.logs import Log
    from tarry.world import World

    Begin = Callable[[Any], Any]
    """Called with the message or batch before its run; returns the run."""
    End = Callable[[Any, Any, Any, BaseException | None], None]
    """Called with the message or batch, the run, the result (`RAISED` if none), and the exception."""

RAISED = object()
"""The result of a handler that raised."""


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


def log_tracing_failure(log: Log, world: World, error: BaseException) -> None:
    """Log, once per cold start, that a tracing library has raised. Nothing that it raises may reach a message."""
    if world.first_time("tracing_failed"):
        text = "Tracing raised an exception, so spans are missing. Messages are processed and sent as without tracing."
        log.problem("tracing_failed", text, error=error, level=WARNING)
