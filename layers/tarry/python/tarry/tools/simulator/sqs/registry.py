"""The queues of an account: creating, finding, configuring, deleting."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tarry.tools.simulator.sqs.errors import SqsError, invalid, no_such_queue
from tarry.tools.simulator.sqs.fifo import FifoQueue
from tarry.tools.simulator.sqs.queue import SimulatedQueue
from tarry.tools.simulator.sqs.settings import QueueSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tarry.tools.simulator.sqs.queue import QueueContext


NAME_REUSE_SECONDS = 60
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")


class Registry:
    """The queues of an account and region, by name."""

    def __init__(self, account: str, region: str) -> None:
        self.endpoint = f"https://sqs.{region}.amazonaws.com"
        self._account = account
        self._arn_prefix = f"arn:aws:sqs:{region}:{account}:"
        self._queues: dict[str, SimulatedQueue] = {}
        self._deleted_at: dict[str, float] = {}
        self._created = 0

    def __iter__(self) -> Iterator[SimulatedQueue]:
        return iter(self._queues.values())

    def has(self, name: str) -> bool:
        return name in self._queues

    def url(self, name: str) -> str:
        return f"{self.endpoint}/{self._account}/{name}"

    def named(self, name: str) -> SimulatedQueue:
        """Return the queue with a name. Raises `SqsError` if there is none."""
        queue = self._queues.get(name)
        if queue is None:
            raise no_such_queue()
        return queue

    def owned_by(self, owner: str | None, name: str) -> SimulatedQueue:
        """Return the queue with a name, of this account if no owner is given. Raises `SqsError` if there is none."""
        if owner not in (None, self._account):
            raise no_such_queue("The specified queue does not exist or you do not have access to it.")
        return self.named(name)

    def at(self, url: str) -> SimulatedQueue:
        """Return the queue with a URL; the host does not matter. Raises `SqsError` if there is none."""
        path, _, name = url.rpartition("/")
        if path and not path.endswith("/" + self._account):
            raise no_such_queue()
        return self.named(name)

    def with_arn(self, arn: str) -> SimulatedQueue | None:
        return self._queues.get(arn.removeprefix(self._arn_prefix)) if arn.startswith(self._arn_prefix) else None

    def sources_of(self, dead_letter: str) -> list[SimulatedQueue]:
        """Return the queues whose dead-letter queue has the ARN ``dead_letter``."""
        return [queue for queue in self if (policy := queue.settings.redrive) and policy.target == dead_letter]

    def create(self, name: str, attributes: Mapping[str, str], context: QueueContext) -> SimulatedQueue:
        """Create a queue, or return the existing one if it has the same attributes.

        Raises `SqsError` if SQS would refuse the name or an attribute, or the attributes of the existing queue differ.
        """
        if not _NAME.fullmatch(name):
            text = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
            raise SqsError("InvalidParameterValue", text)
        fifo = name.endswith(".fifo")
        if fifo != (attributes.get("FifoQueue", "").lower() == "true"):
            text = "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must "
            raise SqsError("InvalidParameterValue", f"{text}end with .fifo suffix and be 1 to 80 in length.")
        settings = QueueSettings(attributes, fifo=fifo)
        known = self._queues.get(name)
        if known is not None:
            if different := known.settings.difference(attributes):
                text = "A queue already exists with the same name and a different value for attribute"
                raise SqsError("QueueAlreadyExists", f"{text} {different}")
            return known
        self._check_name_is_free(name, context.now())
        self._check_dead_letter_queue(self._arn_prefix + name, settings)
        self._created += 1
        queue_type = FifoQueue if fifo else SimulatedQueue
        self._queues[name] = queue = queue_type(name, self._arn_prefix + name, self._created, settings, context)
        return queue

    def _check_name_is_free(self, name: str, now: float) -> None:
        if now - self._deleted_at.get(name, -NAME_REUSE_SECONDS) < NAME_REUSE_SECONDS:
            text = (
                f"You must wait {NAME_REUSE_SECONDS} seconds after deleting a queue before you can create another "
                "with the same name."
            )
            raise SqsError("AWS.SimpleQueueService.QueueDeletedRecently", text)

    def change(self, queue: SimulatedQueue, attributes: Mapping[str, str], now: float) -> None:
        """Set attributes of a queue. Raises `SqsError` if SQS would refuse them."""
        queue.catch_up()  # up to now the old settings applied
        settings = queue.settings.changed(attributes)
        self._check_dead_letter_queue(queue.arn, settings)
        queue.settings = settings
        queue.modified_at = now

    def _check_dead_letter_queue(self, source: str, settings: QueueSettings) -> None:
        policy = settings.redrive
        if policy is None:
            return
        target = self.with_arn(policy.target)
        if target is None:
            reason = "Dead letter target does not exist."
        elif target.settings.fifo != settings.fifo:
            reason = "Dead-letter queue must be same type of queue as the source."
        elif not target.settings.redrive_allow.allows(source):
            reason = "The dead-letter queue's RedriveAllowPolicy does not permit this source queue."
        else:
            return
        raise invalid(policy.text, "RedrivePolicy", reason)

    def delete(self, queue: SimulatedQueue, now: float) -> None:
        """Delete a queue and its messages."""
        queue.empty()
        del self._queues[queue.name]
        self._deleted_at[queue.name] = now

    def attributes_of(self, queue: SimulatedQueue) -> dict[str, Any]:
        """Return all attributes of a queue, as GetQueueAttributes does."""
        depth = queue.depth()
        return {
            **queue.settings.texts,
            "QueueArn": queue.arn,
            "ApproximateNumberOfMessages": str(depth.ready),
            "ApproximateNumberOfMessagesNotVisible": str(depth.in_flight),
            "ApproximateNumberOfMessagesDelayed": str(depth.delayed),
            "CreatedTimestamp": str(int(queue.created_at)),
            "LastModifiedTimestamp": str(int(queue.modified_at)),
        }
