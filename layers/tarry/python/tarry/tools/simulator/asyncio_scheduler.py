"""A scheduler in real time, which runs its actions on an asyncio event loop."""

import asyncio
import math
import time

from tarry.tools.simulator.scheduler import Action, Scheduler, Timer

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
