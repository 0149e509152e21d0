"""The queues of an account: made, found, changed, deleted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tarry.simulator.sqs.errors import SqsError, invalid, no_such_queue
from tarry.simulator.sqs.fifo import FifoQueue
from tarry.simulator.sqs.settings import QueueSettings
from tarry.simulator.sqs.standard import StandardQueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tarry.simulator.sqs.queue import SimulatedQueue
    from tarry.simulator.sqs.surroundings import Surroundings

NAME_AGAIN_SECONDS = 60
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")


class Registry:
    """Queues by name."""

    def __init__(self, account: str, region: str) -> None:
        self.endpoint = f"https://sqs.{region}.amazonaws.com"
        self._account = account
        self._arn_prefix = f"arn:aws:sqs:{region}:{account}:"
        self._queues: dict[str, SimulatedQueue] = {}
        self._deleted_at: dict[str, float] = {}
        self._made = 0

    def __iter__(self) -> Iterator[SimulatedQueue]:
        return iter(self._queues.values())

    def url(self, name: str) -> str:
        return f"{self.endpoint}/{self._account}/{name}"

    def named(self, name: str) -> SimulatedQueue:
        """Raises `SqsError` if there is none."""
        queue = self._queues.get(name)
        if queue is None:
            raise no_such_queue()
        return queue

    def at(self, url: str) -> SimulatedQueue:
        """The queue of a URL, whatever its host. Raises `SqsError` if there is none."""
        path, _, name = url.rpartition("/")
        if path and not path.endswith("/" + self._account):
            raise no_such_queue()
        return self.named(name)

    def with_arn(self, arn: str) -> SimulatedQueue | None:
        return self._queues.get(arn.removeprefix(self._arn_prefix)) if arn.startswith(self._arn_prefix) else None

    def sources_of(self, dead_letter: str) -> list[SimulatedQueue]:
        """The queues whose dead-letter queue this is."""
        return [queue for queue in self if (policy := queue.settings.redrive) and policy.target == dead_letter]

    def create(self, name: str, attributes: Mapping[str, str], around: Surroundings) -> SimulatedQueue:
        """The queue of this name; one that is there already, with the same attributes, is that queue.

        Raises `SqsError`.
        """
        if not _NAME.fullmatch(name):
            text = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
            raise SqsError("InvalidParameterValue", text)
        fifo = name.endswith(".fifo")
        if fifo != (attributes.get("FifoQueue") == "true"):
            text = "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must "
            raise SqsError("InvalidParameterValue", f"{text}end with .fifo suffix and be 1 to 80 in length.")
        settings = QueueSettings(attributes, fifo=fifo)
        known = self._queues.get(name)
        if known is not None:
            if different := known.settings.difference(attributes):
                text = "A queue already exists with the same name and a different value for attribute"
                raise SqsError("QueueAlreadyExists", f"{text} {different}")
            return known
        self._check_name_is_free(name, around.now())
        self._check_dead_letter_queue(self._arn_prefix + name, settings)
        self._made += 1
        make = FifoQueue if fifo else StandardQueue
        self._queues[name] = queue = make(name, self._arn_prefix + name, self._made, settings, around)
        return queue

    def _check_name_is_free(self, name: str, now: float) -> None:
        if now - self._deleted_at.get(name, -NAME_AGAIN_SECONDS) < NAME_AGAIN_SECONDS:
            text = (
                f"You must wait {NAME_AGAIN_SECONDS} seconds after deleting a queue before you can create another "
                "with the same name."
            )
            raise SqsError("AWS.SimpleQueueService.QueueDeletedRecently", text)

    def change(self, queue: SimulatedQueue, attributes: Mapping[str, str], now: float) -> None:
        """Sets attributes. Raises `SqsError`."""
        queue.settle()  # what was so far was under the settings that were
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
        """Deletes a queue with all that is in it."""
        queue.empty()
        del self._queues[queue.name]
        self._deleted_at[queue.name] = now

    def told(self, queue: SimulatedQueue) -> dict[str, Any]:
        """All attributes of a queue, as GetQueueAttributes tells them."""
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
