"""What one invocation asks of queues, with a word in the log where it is not told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.sqs.permissions import TARGET_LIMIT, warn_of_missing_permission
from tarry.sqs.queue_facts import ASSUMED_VISIBILITY_TIMEOUT_SECONDS, QueueFacts
from tarry.sqs.refusals import error_code, is_denied
from tarry.sqs.topology import Topology
from tarry.telemetry.logs import WARNING, Log

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry.sqs.client import Requests
    from tarry.support.arn import QueueArn


class Lookups:
    """One invocation's way to the `Topology`."""

    def __init__(self, requests: Requests, log: Log) -> None:
        self.requests = requests
        self.log = log
        self._world = requests.invocation.world
        self._topology = self._world.keep(Topology)
        self._told: set[str] = set()

    def url(self, queue: QueueArn) -> str:
        """See `Topology.url`."""
        return self._topology.url(queue)

    def source(self, queue: QueueArn) -> QueueFacts:
        """What is known of the queue messages come from."""
        facts = self._topology.source(queue, self.requests)
        if facts.error is not None:
            consequence = "Its dead-letter queue and maxReceiveCount are unknown for now."
            self._tell(facts.error, "get_queue_attributes", queue, consequence)
        return facts

    def prepare(self, queue: QueueArn, then: Callable[[], None]) -> None:
        """See `Topology.prepare`."""
        self._topology.prepare(queue, self.requests, then)

    def knows(self, queue: QueueArn) -> bool:
        """Whether the queue was looked up already, so that what is known of it costs no request."""
        return self._topology.knows(queue)

    def visibility_timeout(self, queue: QueueArn) -> int:
        """The queue's, in seconds; SQS's default where it is not told."""
        return self.source(queue).visibility_timeout or ASSUMED_VISIBILITY_TIMEOUT_SECONDS

    def maximum_message_size(self, queue: QueueArn) -> tuple[int, bool]:
        """In bytes, and whether that is known."""
        limit, error = self._topology.maximum_message_size(queue, self.requests)
        if error is not None and not self.knows(queue):  # of a source that is told already
            self._tell(error, TARGET_LIMIT, queue, "Its size limit is unknown; 1 MiB is assumed.")
        return limit, error is None

    def warn(self, error: Exception, operation: str, queue: QueueArn) -> None:
        """A request was refused: if for want of a permission, that is said once a cold start."""
        warn_of_missing_permission(error, operation, queue, self.log, self._world)

    def _tell(self, error: Exception, operation: str, queue: QueueArn, consequence: str) -> None:
        self.warn(error, operation, queue)
        if not is_denied(error_code(error)) and f"{operation} {queue}" not in self._told:
            self._told.add(f"{operation} {queue}")
            text = f"The attributes of {queue.name or 'a queue without a name'} cannot be read ({error}). {consequence}"
            self.log.problem("look_up_failed", text, level=WARNING)
