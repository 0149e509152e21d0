"""Messages that wait for the attributes of their queue before tarry can decide on them.

Another thread looks up the queue while handlers run. This module keeps the messages and starts the look-ups;
`tarry.execution.verdicts` decides on each message when its queue is known.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tarry.sqs.topology import FAILURE_KEPT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry.delivery import Delivery
    from tarry.policy.decision import Decision
    from tarry.policy.failure import Failure
    from tarry.settlement.settlement import Settlement

PATIENCE_SECONDS = 1.0
"""How long the first failure of a batch waits for the look-up of its queue; a longer look-up continues."""
PATIENCE_SHARE = 0.05
"""The share of the time left that the first failure waits at most."""


class Awaiting(NamedTuple):
    """A message that waits for the attributes of its queue."""

    decided: Decision | Failure
    early: bool
    """Whether it may be settled while the batch still runs."""

    @property
    def delivery(self) -> Delivery:
        return self.decided.delivery


class AwaitingFacts:
    """The messages of one batch that wait for a look-up, in the order in which they came."""

    def __init__(self, *, may_wait: bool) -> None:
        self._may_wait = may_wait
        """Whether `is_known` may wait for a look-up: not if that delays other handlers."""
        self.messages: deque[Awaiting] = deque()
        self._ended_at: dict[str, float] = {}
        """When the look-up of each queue has ended; infinity if it has not. A queue without a look-up is missing."""
        self.wake: Callable[[], None] = nothing
        """Called, in any thread, when a look-up has ended."""

    @property
    def has_fifo(self) -> bool:
        """Whether a FIFO message, and with it its group, waits."""
        return any(waiting.delivery.source.is_fifo for waiting in self.messages)

    def sort(self, place: Callable[[str], int]) -> None:
        """Put the messages in the order of the batch; ``place`` returns the position of a delivery id."""
        self.messages = deque(sorted(self.messages, key=lambda waiting: place(waiting.delivery.delivery_id)))

    def is_known(self, delivery: Delivery, settlement: Settlement) -> bool:
        """Return whether the queue of a message was looked up, with or without success.

        Otherwise, start the look-up and wait for it briefly. A look-up is started again when its failure has left the
        cache, because the message would be decided with a request in this thread.
        """
        if settlement.knows(delivery):
            return True
        queue, invocation = delivery.source.text, delivery.invocation
        ended_at = self._ended_at.get(queue)
        if ended_at is not None and invocation.elapsed() < ended_at + FAILURE_KEPT_SECONDS / 2:
            return ended_at != math.inf
        self._ended_at[queue] = math.inf
        ended = invocation.world.threads.event()

        def then() -> None:
            self._ended_at[queue] = invocation.elapsed()
            ended.set()
            self.wake()

        settlement.prepare(delivery, then)
        if self._may_wait:
            ended.wait(min(PATIENCE_SECONDS, max(0.0, invocation.time_left() * PATIENCE_SHARE)))
        return self._ended_at[queue] != math.inf


def nothing(*_: object) -> None:
    """Do nothing: the default of a callback."""
