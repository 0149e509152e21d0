"""One heap of timed events, which drives everything: under a virtual clock time jumps from event to event; under the
wall clock (`tarry.simulator.wall`) it waits for them.

All model code runs on the timeline's own thread, so it needs no locks.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from heapq import heapify, heappop, heappush
from typing import Literal

Action = Callable[[], None]

START = 1_800_000_000.0
"""When virtual time begins: 2027-01-15 08:00:00 UTC."""
WORTH_SWEEPING = 1_000
"""Cancelled timers in the heap, below which they are left where they are."""

Stop = Literal["idle", "until", "limit"]


class Timer:
    """Something that will happen, unless it is cancelled first."""

    __slots__ = ("_timeline", "action", "when")

    def __init__(self, when: float, action: Action, timeline: "Timeline") -> None:
        self.when = when
        self.action: Action | None = action
        self._timeline = timeline

    def cancel(self) -> None:
        """It does not happen. A second time, or too late: nothing."""
        if self.action is not None:
            self.action = None
            self._timeline._cancelled_one()


class Timeline:
    """What is yet to happen, in virtual time."""

    def __init__(self, now: float = START) -> None:
        self._now = now
        self.running = False
        self.thread: int | None = None
        """Which thread runs it, if one does."""
        self.around: Callable[[], AbstractContextManager[object]] = nullcontext
        """Makes what is entered while it runs."""
        self._heap: list[tuple[float, int, Timer]] = []
        self._added = 0
        self._cancelled = 0
        self._limit = now
        self._until: Callable[[], bool] | None = None
        self._failure: BaseException | None = None

    @property
    def now(self) -> float:
        """Seconds since the epoch, UTC. It never runs backwards."""
        return self._now

    def at(self, when: float, action: Action) -> Timer:
        """Let something happen at a time; what has passed is now. Equal times: in the order they were added."""
        when = max(when, self.now)
        timer = Timer(when, action, self)
        self._added += 1
        heappush(self._heap, (when, self._added, timer))
        return timer

    def after(self, seconds: float, action: Action) -> Timer:
        """Let something happen in so many seconds."""
        return self.at(self.now + seconds, action)

    def next_at(self) -> float:
        """When the next thing happens; infinite if nothing is left to."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else math.inf

    def run(self, until: float | Callable[[], bool] | None = None, limit: float = math.inf) -> Stop:
        """Let everything happen, one after the other, and say why it stopped.

        Args:
            until: A time: what happens by then, and it is that time then. A condition: until it holds, asked before
                each event. None: until nothing is left to happen.
            limit: Nothing is let happen that is later than this.

        Returns:
            ``"idle"`` if nothing was left to happen, ``"until"`` if that was reached, ``"limit"`` if that was.

        Raises whatever one of the events raises.
        """
        condition, stop_at = (until, math.inf) if callable(until) else (None, math.inf if until is None else until)
        self._until, self._limit = condition, min(limit, stop_at)
        with self._held():
            while True:
                if condition is not None and condition():
                    return "until"
                when = self.next_at()
                if when > self._limit:
                    break
                if when == math.inf:
                    return "idle"
                self._step()
        if stop_at <= limit:
            self._now = max(self.now, stop_at)
            return "until"
        if self._heap:
            self._now = max(self.now, limit)
            return "limit"
        return "idle"

    def skip_to(self, when: float) -> bool:
        """Move time on within an event, if nothing else is to happen before then; whether it did."""
        if not self.running or when > self._limit or self.next_at() <= when:
            return False
        if self._until is not None and self._until():
            return False
        self._now = max(self.now, when)
        return True

    def fail(self, error: BaseException) -> None:
        """Let the run end with an error as soon as this event is over: the first one counts."""
        self._failure = self._failure or error

    def _step(self) -> None:
        when, _, timer = heappop(self._heap)
        action, timer.action = timer.action, None
        self._now = max(self.now, when)
        if action is not None:
            action()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    @contextmanager
    def _held(self) -> Iterator[None]:
        if self.running:
            raise RuntimeError("the timeline is running: what happens on it cannot run it again")
        self.running, self.thread = True, threading.get_ident()
        try:
            with self.around():
                yield
        finally:
            self.running, self.thread = False, None

    def _cancelled_one(self) -> None:
        self._cancelled += 1
        if self._cancelled > WORTH_SWEEPING and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapify(self._heap)
            self._cancelled = 0
