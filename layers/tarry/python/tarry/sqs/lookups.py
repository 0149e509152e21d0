"""The queue look-ups of one invocation; those that fail are logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.message.notices import WARNING
from tarry.message.queue_facts import ASSUMED_VISIBILITY_TIMEOUT_SECONDS, QueueFacts
from tarry.sqs.permissions import TARGET_LIMIT, warn_of_missing_permission
from tarry.sqs.refusals import error_code, is_denied
from tarry.sqs.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry.observe.logs import Log
    from tarry.sqs.client import Requests
    from tarry.support.values import QueueArn


class Lookups:
    """One invocation's access to the `Topology`."""

    def __init__(self, requests: Requests, log: Log) -> None:
        self.requests = requests
        self.log = log
        self._world = requests.invocation.world
        self._topology = self._world.keep(Topology)
        self._since = requests.invocation.started_at
        self._logged: set[str] = set()
        self._compared: set[str] = set()

    def url(self, queue: QueueArn) -> str:
        """See `Topology.url`."""
        return self._topology.url(queue)

    def source(self, queue: QueueArn) -> QueueFacts:
        """Return the facts of a source queue."""
        return self._checked(self._topology.source(queue, self.requests), queue)

    def known(self, queue: QueueArn) -> QueueFacts | None:
        """Return the facts of a source queue if that takes no request."""
        facts = self._topology.known(queue, self._since)
        return None if facts is None else self._checked(facts, queue)

    def _checked(self, facts: QueueFacts, queue: QueueArn) -> QueueFacts:
        """Log what is wrong with the facts of a queue, once; return them."""
        if facts.error is not None:
            consequence = "Its dead-letter queue and maxReceiveCount are unknown for now."
            self._warn_of_look_up(facts.error, "get_queue_attributes", queue, consequence)
        elif queue.text not in self._compared:
            self._compared.add(queue.text)
            self._warn_of_max_receive_count(facts.max_receive_count, queue)
        return facts

    def prepare(
        self,
        queue: QueueArn,
        then: Callable[[], None],
        target_of: Callable[[QueueFacts], QueueArn | None] | None = None,
    ) -> None:
        """See `Topology.prepare`."""
        self._topology.prepare(queue, self.requests, then, target_of)

    def knows(self, queue: QueueArn) -> bool:
        """Return whether the facts of a source queue are known, so that `source` makes no request."""
        return self._topology.known(queue, self._since) is not None

    def knows_size(self, queue: QueueArn) -> bool:
        """Return whether the size limit of a queue is known, so that `maximum_message_size` makes no request."""
        return self._topology.knows_size(queue, self._since)

    def visibility_timeout(self, queue: QueueArn) -> int:
        """Return a queue's visibility timeout in seconds; SQS's default if it is unknown."""
        return self.source(queue).visibility_timeout or ASSUMED_VISIBILITY_TIMEOUT_SECONDS

    def maximum_message_size(self, queue: QueueArn) -> tuple[int, bool]:
        """Return a queue's size limit in bytes, and whether it is known (1 MiB is assumed otherwise)."""
        limit, error = self._topology.maximum_message_size(queue, self.requests)
        if error is not None and not self.knows(queue):  # for a source queue, `source` has logged it
            self._warn_of_look_up(error, TARGET_LIMIT, queue, "Its size limit is unknown; 1 MiB is assumed.")
        return limit, error is None

    def warn(self, error: Exception, operation: str, queue: QueueArn) -> None:
        """Log a missing permission, once per cold start, if an error is caused by one."""
        warn_of_missing_permission(error, operation, queue, self.log, self._world)

    def _warn_of_max_receive_count(self, receives: int | None, queue: QueueArn) -> None:
        """Log once per cold start that the queue allows fewer deliveries than the consumer has attempts."""
        attempts = self.requests.invocation.max_attempts_of(queue.name)
        if receives is None or attempts is None or receives >= attempts:
            return
        enough = f"BatchSize * {attempts} + 5" if queue.is_fifo else f"{2 * attempts + 5} (2 * max_attempts + 5)"
        text = (
            f"maxReceiveCount of {queue.name} is {receives}, below max_attempts {attempts}. tarry dead-letters a "
            f"message that fails at its delivery {receives}, since SQS would then move it without a failure record. "
            f"Set maxReceiveCount to {enough}; see docs/guides/retries.md."
        )
        self.log.once(self._world, "max_receive_count_low", text)

    def _warn_of_look_up(self, error: Exception, operation: str, queue: QueueArn, consequence: str) -> None:
        self.warn(error, operation, queue)
        if not is_denied(error_code(error)) and f"{operation} {queue}" not in self._logged:
            self._logged.add(f"{operation} {queue}")
            text = f"The attributes of {queue.name or 'a queue without a name'} cannot be read ({error}). {consequence}"
            self.log.problem("look_up_failed", text, level=WARNING)
