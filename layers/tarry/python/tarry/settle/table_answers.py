"""Waiting for the answers of a table, a bounded time: its client may repeat a request for minutes."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tarry.support.causes import name_of
from tarry.support.workers import WorkerPool
from tarry.world import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tarry.message.invocation import Invocation

PATIENCE_SECONDS = 5.0
"""How long to wait for an answer."""
PATIENCE_SHARE = 0.25
"""The share of the time left to wait at most."""
MAX_REQUESTS = 10
"""The most requests at once: as many connections as a boto3 client has by default."""


class RequestWorkers(WorkerPool):
    """The workers that make requests to tables. One whose request does not end is not used again until it does."""


class TableSilent(Exception):
    """The table did not answer in time. The request may have been carried out."""


class TableNotAsked(TableSilent):
    """The request was not made, because no time was left for it."""


class TableFailed(Exception):
    """The request raised an error that is not an `Exception`, such as a `SystemExit`."""


class TableAnswer:
    """The result or the error of a request."""

    __slots__ = ("_error", "_result")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._result: Any = None
        self._error: Exception | None = None
        try:
            self._result = work()
        except Exception as error:  # noqa: BLE001 raised by `result`, in the thread that waits
            self._error = error
        except Interrupted:  # no thread could be started: the time of a handler is up in this one
            raise
        except BaseException as error:  # noqa: BLE001 a `SystemExit` of the layer must not end the batch
            self._error = TableFailed(f"the persistence layer raised {name_of(type(error))}")

    @classmethod
    def missing(cls, seconds: float) -> TableAnswer:
        """Return the answer that did not come."""
        return cls._failed(TableSilent(f"no answer within {seconds:.1f} seconds"))

    @classmethod
    def not_asked(cls) -> TableAnswer:
        """Return the answer to a request that was not made."""
        return cls._failed(TableNotAsked("no time left to ask"))

    @classmethod
    def _failed(cls, error: Exception) -> TableAnswer:
        def work() -> None:
            raise error

        return cls(work)

    def result(self) -> Any:
        """Return what the request returned; raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def result_or(self, default: Any) -> Any:
        """Return what the request returned; ``default`` if it raised an error."""
        return default if self._error is not None else self._result


def patience(invocation: Invocation) -> float:
    """Return for how many seconds to wait for the next answer."""
    return min(PATIENCE_SECONDS, max(0.0, invocation.time_left() * PATIENCE_SHARE))


def always() -> bool:
    """Let all requests begin."""
    return True


def answers_of(
    works: Sequence[Callable[[], Any]],
    invocation: Invocation,
    patience: Callable[[Invocation], float] = patience,
    may_begin: Callable[[], bool] = always,
) -> list[TableAnswer]:
    """Make requests, several at once, in other threads; return their answers. Blocks.

    When no answer comes for the time of ``patience``, those that have not come are missing. No more requests begin
    then, nor when ``may_begin``, which is called before each in its thread, returns False.
    """
    workers = invocation.world.keep(RequestWorkers)
    answered = workers.threads.event()
    todo = deque(range(len(works)))
    came: dict[int, TableAnswer] = {}

    def make() -> None:
        with suppress(IndexError):  # another thread may take the last one
            while todo:
                asks = may_begin()
                index = todo.popleft()
                came[index] = TableAnswer(works[index]) if asks else TableAnswer.not_asked()
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
            missing = TableAnswer.missing(seconds)
            with suppress(IndexError):  # as above
                while todo:
                    came[todo.popleft()] = TableAnswer.not_asked()
            return [came.get(index, missing) for index in range(len(works))]


async def answer_to_task(work: Callable[[], Any], invocation: Invocation) -> TableAnswer:
    """Make a request in another thread while the event loop goes on; return its answer."""
    import asyncio

    loop = asyncio.get_running_loop()
    done: asyncio.Future[TableAnswer] = loop.create_future()

    def end(answer: TableAnswer) -> None:
        if not done.done():
            done.set_result(answer)

    def make() -> None:
        answer = TableAnswer(work)
        try:
            loop.call_soon_threadsafe(end, answer)
        except RuntimeError:
            return  # the loop is closed: it has stopped waiting

    seconds = patience(invocation)
    timer = loop.call_later(seconds, lambda: end(TableAnswer.missing(seconds)))
    try:
        invocation.world.keep(RequestWorkers).start(make)
    except RuntimeError:  # the process may have no more threads
        make()
    try:
        return await done
    finally:
        timer.cancel()
