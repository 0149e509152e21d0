"""The decisions on a batch handler's messages, while other threads of the handler may give verdicts."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tarry.message.outcomes import ACK
from tarry.run.batch_verdicts import BatchVerdicts
from tarry.support.guards import generation


class GivenInAThread:
    """The decisions on a batch whose handler ends while tarry decides on a verdict in another thread."""

    def __init__(self, left: float, decides: list[bool]) -> None:
        self.waits: list[Any] = []
        """The seconds of each wait for the end of that decision."""
        self._decides = decides
        event = SimpleNamespace(wait=self._wait, set=lambda: None)
        threads = SimpleNamespace(event=lambda: event)
        invocation: Any = SimpleNamespace(
            began_in=generation(), time_left=lambda: left, world=SimpleNamespace(threads=threads)
        )
        verdicts: Any = SimpleNamespace(on_message=self._decide)
        handling: Any = SimpleNamespace(log=None, fails_without_verdict=False)
        self.made = BatchVerdicts(verdicts, handling, invocation)
        self.given = 0

    def give(self) -> None:
        delivery: Any = SimpleNamespace(verdict=ACK, source=SimpleNamespace(is_fifo=False))
        self.made.on_verdict(delivery)

    def _decide(self, *_: object) -> None:
        self.given += 1
        self.made._wait_for_verdict()

    def _wait(self, seconds: float | None) -> bool:
        self.waits.append(seconds)
        is_over = self._decides.pop(0)
        if is_over and not self._decides:
            self.made._is_free.release()
        return is_over


@pytest.mark.parametrize(
    ("left", "decides", "waits"),
    [
        (10, [True], [9.5]),  # half a second is kept
        (10, [True, True], [9.5, 9.5]),  # yet another thread was faster
        (10, [False], [9.5]),
        (1.25, [False], [0.75]),
        (0.5, [], []),
        (0.25, [], []),
        (math.inf, [False], [None]),
    ],
)
def test_the_end_of_a_batch_handler_waits_for_a_verdict_that_is_decided_on_in_another_thread_while_there_is_time(
    left: float, decides: list[bool], waits: list[float | None]
) -> None:  # SPEC A6, I2
    given = GivenInAThread(left, decides)
    given.give()
    assert (given.given, given.waits) == (1, waits)


def test_after_the_end_of_a_batch_handler_no_verdict_is_decided_on_early() -> None:  # SPEC A6
    given = GivenInAThread(10, [])
    given.made._wait_for_verdict()
    given.give()
    given.made._wait_for_verdict()
    assert (given.given, given.waits) == (0, [])
