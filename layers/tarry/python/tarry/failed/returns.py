"""Whether retried messages come back to the dead-letter queue while others are retried.

SQS delivers those that come back after the others, so most would be seen too late. But they make the queue longer than
it should be: then all of it is received, and those that came back are counted by their ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry import world
from tarry.failed.pacing import TooManyReturned
from tarry.failed.queue_names import counts_of
from tarry.failed.queues import ALL, part_of
from tarry.sqs.client import MAX_PARALLEL

if TYPE_CHECKING:
    from tarry.failed.dead_letters import DeadLetterMessage
    from tarry.failed.inspection import Inspection
    from tarry.failed.pacing import Limits

CHECK_SECONDS = 10
"""The time between two requests for the length of the queue, which SQS itself updates only now and then."""


class ReturnWatch:
    """The check of ``max_return`` during a retry."""

    def __init__(self, inspection: Inspection, limits: Limits) -> None:
        self._inspection = inspection
        self._limits = limits
        self._clock = world.current().clock
        self._checked_at = self._clock.monotonic()
        self._expected = 0 if limits.max_return is None else self._length()
        """The length of the queue without what was retried, and with what is known to have arrived."""

    def check(self, retried: int) -> None:
        """Check whether too many have come back, from time to time. Raises `TooManyReturned`."""
        limits, inspection = self._limits, self._inspection
        if limits.max_return is None:
            return
        if self._clock.monotonic() - self._checked_at >= CHECK_SECONDS and limits.allows(
            inspection.handled.returned, retried
        ):
            self._checked_at = self._clock.monotonic()
            arrived = self._length() - (self._expected - retried)
            if not limits.allows(inspection.handled.returned + arrived, retried):
                self._count()
                self._expected += arrived
        if not limits.allows(inspection.handled.returned, retried):
            raise TooManyReturned(inspection.handled.returned, retried, inspection.queue.name)

    def _length(self) -> int:
        lookups, queue = self._inspection.lookups, self._inspection.queue
        answer = lookups.requests.call("get_queue_attributes", QueueUrl=lookups.url(queue.arn), AttributeNames=ALL)
        return sum(counts_of(part_of(answer, "Attributes", "GetQueueAttributes")))

    def _count(self) -> None:
        """Receive all that is left, count those that came back, and release all."""
        inspection = self._inspection

        def those_back(dead_letters: list[DeadLetterMessage]) -> list[None]:
            for each in dead_letters:
                if inspection.handled.is_returned(each):
                    inspection.handled.count_repeated(each)
            return []

        for _ in inspection.in_threads(those_back, MAX_PARALLEL):
            pass
        inspection.begin_again()
