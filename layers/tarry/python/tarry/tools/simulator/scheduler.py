"""The scheduler of a simulation, a heap of timed actions; and the one of `tarry local`, on an event loop.

In virtual time, the clock jumps from action to action. In real time (`tarry.tools.simulator.scheduler`), the
scheduler waits for each action. The model code runs on the scheduler's thread only, so it needs no locks.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

Action = Callable[[], None]

START = 1_800_000_000.0
"""The start of virtual time: 2027-01-15 08:00:00 UTC."""
MIN_CANCELLED_TO_SWEEP = 1_000
"""The number of cancelled timers in the heap up to which they are not removed."""

StopReason = Literal["idle", "until", "limit"]


@dataclass(eq=False, slots=True)
class Timer:
    """A scheduled action."""

    when: float
    action: Action | None
    _scheduler: "Scheduler"

    def cancel(self) -> None:
        """Cancel the action; do nothing if it has run or was cancelled before."""
        if self.action is not None:
            self.action = None
            self._scheduler._count_cancelled()


class Scheduler:
    """The scheduled actions of a simulation, in virtual time."""

    def __init__(self, now: float = START) -> None:
        self.now = now
        """The time in seconds since the epoch, UTC. It never goes back, and only the scheduler sets it."""
        self.running = False
        self.thread: int | None = None
        """The id of the thread in `run`; None while the scheduler does not run."""
        self.around: Callable[[], AbstractContextManager[object]] = nullcontext
        """Makes the context manager that is entered during `run`."""
        self._heap: list[tuple[float, int, Timer]] = []
        self._added = 0
        self._cancelled = 0
        self._limit = now
        self._until: Callable[[], bool] | None = None
        self._failure: BaseException | None = None

    def at(self, when: float, action: Action) -> Timer:
        """Schedule an action; a time that has passed means now. Actions of the same time run first in, first out."""
        if when < (now := self.now):
            when = now
        timer = Timer(when, action, self)
        self._added += 1
        heappush(self._heap, (when, self._added, timer))
        return timer

    def after(self, seconds: float, action: Action) -> Timer:
        """Schedule an action in ``seconds``."""
        return self.at(self.now + seconds, action)

    def next_at(self) -> float:
        """Return the time of the next action; infinity if none is left."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else math.inf

    def run(self, until: float | Callable[[], bool] | None = None, limit: float = math.inf) -> StopReason:
        """Run the scheduled actions one after the other; return why the run stopped.

        ``until`` is the time at which to stop, or a condition that is checked before each action; after ``limit`` no
        action runs. The reason is ``"until"`` or ``"limit"`` if that was reached, ``"idle"`` if no action was left.
        Raises what an action raises, or calls `fail` with.
        """
        condition, stop_at = (until, math.inf) if callable(until) else (None, math.inf if until is None else until)
        self._until, self._limit = condition, min(limit, stop_at)
        if self.running:
            raise RuntimeError("the scheduler is running already: an action cannot call run")
        self.running, self.thread = True, threading.get_ident()
        try:
            with self.around():
                while True:
                    if condition is not None and condition():
                        return "until"
                    when = self.next_at()
                    if when > self._limit:
                        break
                    if when == math.inf:
                        return "idle"
                    self._step()
        finally:
            self.running, self.thread = False, None
        if stop_at <= limit:
            self.now = max(self.now, stop_at)
            return "until"
        if self._heap:
            self.now = max(self.now, limit)
            return "limit"
        return "idle"

    def skip_to(self, when: float) -> bool:
        """Advance the time within an action, unless another action is due before then; return whether it did."""
        if not self.running or when > self._limit or self.next_at() <= when:
            return False
        if self._until is not None and self._until():
            return False
        self.now = max(self.now, when)
        return True

    def fail(self, error: BaseException) -> None:
        """Make `run` raise an error as soon as the current action ends. The first error wins."""
        self._failure = self._failure or error

    def _step(self) -> None:
        when, _, timer = heappop(self._heap)
        action, timer.action = timer.action, None
        self.now = max(self.now, when)
        if action is not None:
            action()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _count_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > MIN_CANCELLED_TO_SWEEP and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapify(self._heap)
            self._cancelled = 0


MAX_WAIT_SECONDS = 5.0
"""The longest wait before the time of day is checked: a loop's own clock stops while the machine sleeps."""


class AsyncioScheduler(Scheduler):
    """A scheduler in real time. Create and use it on the thread of the running event loop only.

    ``now`` is the time of day. If the clock is set forward, ``now`` follows; if it is set back, ``now`` keeps advancing
    at normal speed. An exception of an action goes to the loop's exception handler, and the next action still runs.
    """

    _now: float

    def __init__(self) -> None:
        super().__init__(time.time())
        self._loop = asyncio.get_running_loop()
        self._ahead = self._now - self._loop.time()
        self._armed: asyncio.TimerHandle | None = None
        self._armed_for = math.inf
        self._closed = False

    @property
    def now(self) -> float:
        time_of_day, ticks = time.time(), self._loop.time()
        self._ahead = max(self._ahead, time_of_day - ticks)
        self._now = max(self._now, ticks + self._ahead)
        return self._now

    @now.setter
    def now(self, now: float) -> None:
        self._now = now

    def at(self, when: float, action: Action) -> Timer:
        timer = super().at(when, action)
        if timer.when < self._armed_for:
            self._arm()
        return timer

    def close(self) -> None:
        """Cancel all actions."""
        self._closed = True
        self._disarm()

    def _arm(self) -> None:
        """Schedule a call of the loop for the next action."""
        self._disarm()
        when = self.next_at()
        if self._closed or when == math.inf:
            return
        self._armed_for = when
        wait = min(max(when - self.now, 0), MAX_WAIT_SECONDS)
        self._armed = self._loop.call_at(self._loop.time() + wait, self._run_due)

    def _disarm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
        self._armed, self._armed_for = None, math.inf

    def _run_due(self) -> None:
        """Run the actions that are due. Actions added meanwhile wait for the loop's next iteration."""
        now = self.now
        try:
            while not self._closed and self.next_at() <= now:
                self._step()
        finally:
            self._arm()
