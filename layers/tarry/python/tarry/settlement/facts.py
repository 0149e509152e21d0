"""The input of planning: facts of queues, the time, and the means to decide. Planning looks up nothing itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from tarry.policy.decision import Diagnose
    from tarry.sqs.queue_facts import QueueFacts
    from tarry.support.arn import QueueArn


class SizeLimit(NamedTuple):
    """The MaximumMessageSize of a queue."""

    bytes: int
    is_known: bool
    """Whether the limit was read from SQS; else it is the maximum of SQS."""


class FactsNeeded(Exception):
    """Planning needs the size limit of a queue that was not looked up yet."""

    def __init__(self, queue: QueueArn) -> None:
        super().__init__(queue.text)
        self.queue = queue


class Situation(NamedTuple):
    """The moment at which a message's settlement is planned."""

    now: float
    """The time in epoch seconds."""
    time_left: Callable[[], float]
    """Returns the seconds until Lambda kills the process."""
    source: QueueFacts
    """The facts of the source queue."""
    limits: Mapping[QueueArn, SizeLimit]
    """The size limits of the queues that were looked up."""
    rng: Random
    diagnose: Diagnose

    def limit_of(self, queue: QueueArn) -> SizeLimit:
        """Return the size limit of a queue. Raises `FactsNeeded` if it was not looked up."""
        if (limit := self.limits.get(queue)) is None:
            raise FactsNeeded(queue)
        return limit
