"""A function's clock on a slow CPU: each look at it takes time, as the code between two looks does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.simulator.functions import current_call

if TYPE_CHECKING:
    from tarry.world import Clock


class SlowClock:
    """`tarry.world.Clock`, of which a look costs `slow_down`'s seconds in the invocations it names."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self.sleep = clock.sleep
        self.asleep = clock.asleep

    def slow_down(self, request_id: str, seconds: float) -> None:
        """Let each look of this invocation at its clock take so many seconds."""
        self._seconds[request_id] = seconds

    def time(self) -> float:
        self._work()
        return self._clock.time()

    def monotonic(self) -> float:
        self._work()
        return self._clock.monotonic()

    def _work(self) -> None:
        if self._seconds and (call := current_call()) is not None and call.request_id in self._seconds:
            self._clock.sleep(self._seconds[call.request_id])
