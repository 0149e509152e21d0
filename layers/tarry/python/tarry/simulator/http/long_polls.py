"""Long polls: receives that wait for a message, in the order in which they came.

Who waits receives for itself, at the moment at which it can answer, so that no message is received for a client that
has gone. A change wakes the first in line alone; whoever leaves the line wakes the next.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tarry.simulator.sqs import SqsError
from tarry.tooling.queues import queue_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tarry.simulator.sqs import Sqs
    from tarry.simulator.timeline import Timer
    from tarry.simulator.wall import LoopTimeline

Parameters = dict[str, Any]
Answer = dict[str, Any]


class LongPolls:
    """Answers each ReceiveMessage, those that wait too."""

    def __init__(self, sqs: Sqs, timeline: LoopTimeline) -> None:
        self._sqs = sqs
        self._timeline = timeline
        self._lines: dict[str, PollLine] = {}
        self._closed = False

    async def receive(self, parameters: Parameters, is_gone: Callable[[], bool]) -> Answer:
        """The answer, as soon as there is a message or the time to wait is over. Raises `SqsError`.

        ``is_gone``: whether nobody listens for the answer any more.
        """
        answer = self._sqs.call("ReceiveMessage", parameters)
        seconds = self._sqs.wait_seconds(parameters)
        if answer or not seconds or self._closed:
            return answer
        ends_at = asyncio.get_running_loop().time() + seconds
        with self._line(queue_name(parameters["QueueUrl"])).place() as place:
            is_woken = True
            while is_woken and not answer:
                is_woken = await place.turn(ends_at)
                if is_gone() or self._closed:
                    break
                answer = self._sqs.answer("ReceiveMessage", parameters)
        return answer

    def close(self) -> None:
        """Nobody waits any longer."""
        self._closed = True
        for line in self._lines.values():
            line.wake_all()

    def _line(self, queue: str) -> PollLine:
        line = self._lines.get(queue)
        if line is None:
            line = self._lines[queue] = PollLine(self._sqs, self._timeline, queue)
        return line


class PollPlace:
    """One in the line."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()

    async def turn(self, ends_at: float) -> bool:
        """Wait until there may be a message; False when the loop's time is ``ends_at``."""
        try:
            async with asyncio.timeout_at(ends_at):
                await self.woken.wait()
        except TimeoutError:
            return False
        self.woken.clear()
        return True


class PollLine:
    """Those who wait at one queue."""

    def __init__(self, sqs: Sqs, timeline: LoopTimeline, queue: str) -> None:
        self._sqs = sqs
        self._timeline = timeline
        self._queue = queue
        self._places: dict[PollPlace, None] = {}
        self._shown: Timer | None = None
        sqs.subscribe(queue, self.wake)

    @contextmanager
    def place(self) -> Iterator[PollPlace]:
        """A place at its end. Whoever leaves wakes the next: there may be more than was taken, or nothing was."""
        place = PollPlace()
        self._places[place] = None
        self._watch()
        try:
            yield place
        finally:
            del self._places[place]
            self.wake()

    def wake(self) -> None:
        """There may be something: the first who does not know it yet looks."""
        for place in self._places:
            if not place.woken.is_set():
                place.woken.set()
                break
        self._watch()

    def wake_all(self) -> None:
        for place in self._places:
            place.woken.set()

    def _watch(self) -> None:
        """Be woken when the next message is shown, if anybody waits for it."""
        when = self._next_visible_at() if self._places else None
        if self._shown is not None:
            if self._shown.when == when and self._shown.action is not None:
                return
            self._shown.cancel()
            self._shown = None
        if when is not None:
            self._shown = self._timeline.at(when, self.wake)

    def _next_visible_at(self) -> float | None:
        try:
            return self._sqs.next_visible_at(self._queue)
        except SqsError:  # the queue was deleted
            return None
