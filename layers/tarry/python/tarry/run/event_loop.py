"""The event loop of the process, kept between invocations, and the requests that must not block it."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from tarry import world
from tarry.run.jobs import nothing_done
from tarry.sqs.client import result_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from tarry.message.delivery import Delivery
    from tarry.run.jobs import Jobs
    from tarry.run.run import Run
    from tarry.run.verdicts import Rerun, Verdicts

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


class Background:
    """The background requests of one run. The coordinator handles their answers whenever it waits for its jobs."""

    def __init__(self, run: Run, jobs: Jobs, settled: Callable[[Delivery, Rerun | None], None] | None = None) -> None:
        self._run = run
        self._jobs = jobs
        self._settled = settled
        self._answers: deque[tuple[Callable[[object], None], object]] = deque()
        self._open = 0
        jobs.between = self._advance

    @property
    def under_way(self) -> int:
        """The number of requests to wait for: those whose answer has not come, or was not handled yet."""
        return 0 if self._jobs.is_over else self._open

    def connect(self, verdicts: Verdicts) -> None:
        """Have ``verdicts`` make its requests here if the handler is async."""
        verdicts.awaiting.wake = self._jobs.wake
        if self._run.claims is not None and (settled := self._settled) is not None:
            verdicts.outcomes.ending = lambda claim, outcome, then: self._make(partial(claim.end, outcome), then)
            verdicts.outcomes.claim_ended = lambda delivery: settled(delivery, None)
        if self._run.handling.is_async:
            verdicts.outcomes.in_background = self._make
            if self._settled is not None:
                verdicts.outcomes.settled = self._settled

    def close(self) -> None:
        """Give up the requests that are still open: their messages are only reported as failed.

        This also breaks the reference cycles with the run's other objects, which would keep its batch in memory.
        """
        if self._open:
            self._run.verdicts.outcomes.settlement.report_only(self._open)
        self._jobs.between, self._settled = nothing_done, None

    def _make(self, work: Callable[[], object], then: Callable[[object], None]) -> None:
        """Implement `tarry.run.outcomes.InBackground`."""

        def make() -> None:
            answer = result_of(work)
            if isinstance(answer, Exception):
                text = "tarry itself failed to settle a message, which is reported as failed."
                self._run.handling.log.problem("runtime_failed", text, error=answer)
            self._answers.append((then, answer))
            self._jobs.wake()

        self._open += 1
        try:
            self._run.invocation.world.threads.start(make)
        except RuntimeError:  # the process may have no more threads
            make()

    def _advance(self) -> bool:
        """Continue with messages that waited for a request; return whether there were any."""
        has_progress = False
        while self._answers:
            then, answer = self._answers.popleft()
            self._open -= 1
            has_progress = True
            then(answer)
        if (verdicts := self._run.made_verdicts) is not None and verdicts.advance():
            has_progress = True
        return has_progress
