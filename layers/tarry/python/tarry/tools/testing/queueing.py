"""The queues of a sandbox: making them, sending to them, redriving their dead letters."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tarry.failed.queue_names import queue_name
from tarry.sqs.outgoing import pack
from tarry.tools.simulator.sqs import SqsError
from tarry.tools.testing.messages import QueuedMessage
from tarry.tools.testing.misuse import listed
from tarry.tools.testing.parts import MESSAGES, AllParts, Parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.sqs.outgoing import Entry
    from tarry.tools.simulator.sqs import Sqs
    from tarry.world import World


class Queues:
    """The queues of one sandbox, by name, or by logical id in a template."""

    def __init__(self, sqs: Sqs) -> None:
        self._sqs = sqs
        self._names: dict[str, str] = {}
        self._sends = 0
        self.parts: Parts = AllParts()
        """The messages, which may be left out to shrink a case."""

    def add_names(self, by_logical_id: Mapping[str, str]) -> None:
        """Know queues of a template by their logical ids too."""
        self._names.update(by_logical_id)

    def named(self, queue: str) -> str:
        """Return the name of a queue. Raises `ValueError` for an unknown one."""
        name = self._names.get(queue, queue)
        if not self._sqs.has_queue(name):
            raise ValueError(f"the sandbox has no queue {queue!r}; it has {listed(self._sqs.queues())}")
        return name

    def make(self, name: str, attributes: Mapping[str, int], dead_letter: str | None, max_receive_count: int) -> str:
        """Make a queue with an existing dead-letter queue; return its URL. Raises `ValueError` if SQS refuses it."""
        texts = {attribute: str(value) for attribute, value in attributes.items()}
        if name.endswith(".fifo"):
            texts["FifoQueue"] = "true"
        if dead_letter is not None:
            policy = {"deadLetterTargetArn": self._sqs.arn(dead_letter), "maxReceiveCount": max_receive_count}
            texts["RedrivePolicy"] = json.dumps(policy)
        try:
            return str(self._sqs.call("CreateQueue", {"QueueName": name, "Attributes": texts})["QueueUrl"])
        except SqsError as error:
            raise ValueError(f"SQS refuses the queue {name!r}: {error.message}") from error

    def send(self, queue: str, entry: Entry, world: World) -> str:
        """Send a message: see `Sandbox.send`."""
        name = self.named(queue)
        outgoing = pack(entry, world, fifo=name.endswith(".fifo"))
        self._sends += 1
        if not self.parts.keep(MESSAGES, self._sends):
            return outgoing.stable_id or world.new_id()
        try:
            # `pack` has checked what `call` would check.
            answer = self._sqs.answer("SendMessage", {"QueueUrl": self._sqs.url(name), **outgoing.parameters})
        except SqsError as error:
            raise ValueError(f"SQS refuses the message to {name!r}: {error.message}") from error
        return outgoing.stable_id or str(answer["MessageId"])

    def redrive(self, dead_letters: str, to: str | None) -> None:
        """Move the messages of a dead-letter queue back: see `Sandbox.redrive`."""
        name = self.named(dead_letters)
        sources = self._sqs.call("ListDeadLetterSourceQueues", {"QueueUrl": self._sqs.url(name)})["queueUrls"]
        if to is None and len(sources) != 1:
            found = ", ".join(queue_name(url) for url in sources) or "none"
            raise ValueError(f"say where to (to=...): the source queues of {name!r} are {found}")
        target = queue_name(sources[0]) if to is None else self.named(to)
        arns = {"SourceArn": self._sqs.arn(name), "DestinationArn": self._sqs.arn(target)}
        self._sqs.call("StartMessageMoveTask", arns)

    def messages(self, queue: str, now: float) -> list[QueuedMessage]:
        """Return the messages in a queue: see `Sandbox.messages`."""
        name = self.named(queue)
        return [QueuedMessage(stored, name, now) for stored in self._sqs.peek(name)]
