"""The timeline under the wall clock: asyncio waits, and everything happens on its loop."""

import asyncio
import math
import time

from tarry.simulator.timeline import Action, Timeline, Timer

LOOK_AT_THE_CLOCK_SECONDS = 5.0
"""How long it waits at most: the loop's clock stands still while a machine sleeps, and time has passed all the same."""


class LoopTimeline(Timeline):
    """What is yet to happen, in real time, on the running loop. Made there, and used from there alone.

    ``now`` is the time of day at each look; it follows a clock that jumps ahead, and goes on calmly under one that is
    set back. What an event raises goes to the loop's exception handler, and the next one happens all the same.
    """

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

    def at(self, when: float, action: Action) -> Timer:
        timer = super().at(when, action)
        if timer.when < self._armed_for:
            self._arm()
        return timer

    def close(self) -> None:
        """Nothing happens any more."""
        self._closed = True
        self._disarm()

    def _arm(self) -> None:
        """Have the loop call when the next thing happens. One call is enough for all of them."""
        self._disarm()
        when = self.next_at()
        if self._closed or when == math.inf:
            return
        self._armed_for = when
        wait = min(max(when - self.now, 0), LOOK_AT_THE_CLOCK_SECONDS)
        self._armed = self._loop.call_at(self._loop.time() + wait, self._happen)

    def _disarm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
        self._armed, self._armed_for = None, math.inf

    def _happen(self) -> None:
        """What is due. What that adds for now happens at the loop's next turn, so that others get theirs."""
        now = self.now
        try:
            while not self._closed and self.next_at() <= now:
                self._step()
        finally:
            self._arm()
