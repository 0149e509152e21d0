"""Waiting for the answers of a table, a bounded time: its client may repeat a request for minutes."""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tarry.support.guards import name_of
from tarry.support.hooks import WorkerPool
from tarry.world import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tarry.message.invocation import Invocation

PATIENCE_SECONDS = 5.0  # how long to wait for an answer
PATIENCE_SHARE = 0.25  # the share of the time left to wait at most
ALWAYS_REFUSED = frozenset({"ResourceNotFoundException", "ValidationException"})
"""The errors of a table that is missing, or has another key."""
MAX_ERROR_CHARACTERS = 500
MAX_REQUESTS = 10  # the most requests at once: as many connections as a boto3 client has by default


class RequestWorkers(WorkerPool):
    """The workers that make requests to tables. One whose request does not end is not used again until it does."""


class TableSilent(Exception):
    """The table did not answer in time. The request may have been carried out."""


class TableNotAsked(TableSilent):
    """The request was not made, because no time was left for it."""

    def __init__(self) -> None:
        super().__init__("no time left to ask")


class TableFailed(Exception):
    """The request raised an error that is not an `Exception`, such as a `SystemExit`."""


def answer_of(work: Callable[[], Any]) -> Any:
    """Make a request; return its result, or the error that it raised."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 the answer, for the thread that waits
        return error
    except Interrupted:  # no thread could be started: the time of a handler is up in this one
        raise
    except BaseException as error:  # noqa: BLE001 a `SystemExit` of the layer must not end the batch
        return TableFailed(f"the persistence layer raised {name_of(type(error))}")


def patience(invocation: Invocation) -> float:
    return min(PATIENCE_SECONDS, max(0.0, invocation.time_left() * PATIENCE_SHARE))


def answers_of(
    works: Sequence[Callable[[], Any]],
    invocation: Invocation,
    patience: Callable[[Invocation], float] = patience,
    may_begin: Callable[[], bool] | None = None,
    longest: float = math.inf,
) -> list[Any]:
    """Make requests, several at once, in other threads; return their results or errors. Blocks.

    A single request is made in this thread if it takes at most ``longest`` seconds, and ``patience`` allows for them.
    """
    if len(works) == 1 and longest <= patience(invocation):
        return [answer_of(works[0]) if may_begin is None or may_begin() else TableNotAsked()]
    # When no answer comes for the time of ``patience``, the others are missing. No more requests begin then, nor when
    # ``may_begin``, called before each in its thread, returns False.
    workers = invocation.world.keep(RequestWorkers)
    answered = workers.threads.event()
    todo = deque(range(len(works)))
    came: dict[int, Any] = {}

    def make() -> None:
        with suppress(IndexError):  # another thread may take the last one
            while todo:
                asks = may_begin is None or may_begin()
                index = todo.popleft()
                came[index] = answer_of(works[index]) if asks else TableNotAsked()
                answered.set()

    for _ in range(min(MAX_REQUESTS, len(works))):
        try:
            workers.start(make)
        except RuntimeError:  # the process may have no more threads
            make()
    while True:
        answered.clear()
        before, seconds = len(came), patience(invocation)
        if before == len(works):
            return [came[index] for index in range(before)]
        if not answered.wait(seconds) and len(came) == before:
            missing = TableSilent(f"no answer within {seconds:.1f} seconds")
            with suppress(IndexError):  # as above
                while todo:
                    came[todo.popleft()] = TableNotAsked()
            return [came.get(index, missing) for index in range(len(works))]


async def answer_to_task(work: Callable[[], Any], invocation: Invocation) -> Any:
    """Make a request in another thread while the event loop goes on; return its result or error."""
    import asyncio

    loop = asyncio.get_running_loop()
    done: asyncio.Future[object] = loop.create_future()

    def end(answer: object) -> None:
        if not done.done():
            done.set_result(answer)

    def make() -> None:
        answer = answer_of(work)
        try:
            loop.call_soon_threadsafe(end, answer)
        except RuntimeError:
            return  # the loop is closed: it has stopped waiting

    seconds = patience(invocation)
    timer = loop.call_later(seconds, lambda: end(TableSilent(f"no answer within {seconds:.1f} seconds")))
    try:
        invocation.world.keep(RequestWorkers).start(make)
    except RuntimeError:  # the process may have no more threads
        make()
    try:
        return await done
    finally:
        timer.cancel()
