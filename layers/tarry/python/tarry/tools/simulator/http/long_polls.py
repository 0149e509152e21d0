"""Long polls over HTTP: receives that wait for a message, first come, first served.

Each waiting request receives for itself when it can answer, so that no message is received for a client that has
disconnected. A change of the queue wakes the first waiter only; a waiter that leaves wakes the next.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tarry.failed.queue_names import queue_name
from tarry.tools.simulator.sqs import SqsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tarry.tools.simulator.asyncio_scheduler import AsyncioScheduler
    from tarry.tools.simulator.scheduler import Timer
    from tarry.tools.simulator.sqs import Sqs

Parameters = dict[str, Any]
Answer = dict[str, Any]


class LongPolls:
    """Answers ReceiveMessage requests, including long polls."""

    def __init__(self, sqs: Sqs, scheduler: AsyncioScheduler) -> None:
        self._sqs = sqs
        self._scheduler = scheduler
        self._waiters: dict[str, PollWaiters] = {}
        self._closed = False

    async def receive(self, parameters: Parameters, is_gone: Callable[[], bool]) -> Answer:
        """Answer a ReceiveMessage as soon as there is a message or its wait time is over.

        Args:
            parameters: The parameters of the request.
            is_gone: Returns whether the client has disconnected.

        Raises:
            SqsError: SQS would refuse the request.
        """
        answer = self._sqs.call("ReceiveMessage", parameters)
        seconds = self._sqs.wait_seconds(parameters)
        if answer or not seconds or self._closed:
            return answer
        ends_at = asyncio.get_running_loop().time() + seconds
        with self._waiters_of(queue_name(parameters["QueueUrl"])).waiter() as waiter:
            is_woken = True
            while is_woken and not answer:
                is_woken = await waiter.wait_until(ends_at)
                if is_gone() or self._closed:
                    break
                answer = self._sqs.answer("ReceiveMessage", parameters)
        return answer

    def close(self) -> None:
        """End all waits."""
        self._closed = True
        for waiters in self._waiters.values():
            waiters.wake_all()

    def _waiters_of(self, queue: str) -> PollWaiters:
        waiters = self._waiters.get(queue)
        if waiters is None:
            waiters = self._waiters[queue] = PollWaiters(self._sqs, self._scheduler, queue)
        return waiters


class PollWaiter:
    """A long poll that waits for a message."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()

    async def wait_until(self, ends_at: float) -> bool:
        """Wait until there may be a message; return False if the loop's time reaches ``ends_at`` first."""
        try:
            async with asyncio.timeout_at(ends_at):
                await self.woken.wait()
        except TimeoutError:
            return False
        self.woken.clear()
        return True


class PollWaiters:
    """The long polls that wait at one queue, in the order of their arrival."""

    def __init__(self, sqs: Sqs, scheduler: AsyncioScheduler, queue: str) -> None:
        self._sqs = sqs
        self._scheduler = scheduler
        self._queue = queue
        self._waiting: dict[PollWaiter, None] = {}
        self._next_visible: Timer | None = None
        sqs.subscribe(queue, self.wake)

    @contextmanager
    def waiter(self) -> Iterator[PollWaiter]:
        """Add a waiter at the end. When it leaves, wake the next, since there may be messages left."""
        waiter = PollWaiter()
        self._waiting[waiter] = None
        self._watch()
        try:
            yield waiter
        finally:
            del self._waiting[waiter]
            self.wake()

    def wake(self) -> None:
        """Wake the first waiter that is not awake yet, since there may be a message."""
        for waiter in self._waiting:
            if not waiter.woken.is_set():
                waiter.woken.set()
                break
        self._watch()

    def wake_all(self) -> None:
        for waiter in self._waiting:
            waiter.woken.set()

    def _watch(self) -> None:
        """Set the timer for when the next message becomes visible, if there is a waiter."""
        when = self._next_visible_at() if self._waiting else None
        if self._next_visible is not None:
            if self._next_visible.when == when and self._next_visible.action is not None:
                return
            self._next_visible.cancel()
            self._next_visible = None
        if when is not None:
            self._next_visible = self._scheduler.at(when, self.wake)

    def _next_visible_at(self) -> float | None:
        try:
            return self._sqs.next_visible_at(self._queue)
        except SqsError:  # the queue was deleted
            return None
