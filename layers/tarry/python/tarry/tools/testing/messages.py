"""Messages in queues, as a test sees them."""

import json
from typing import Any

from tarry.failed.dead_letters import event_attribute
from tarry.message.message import attribute_value
from tarry.record.attribute import ATTRIBUTE, Envelope, FailureRecord, UnreadableRecord, is_ours, read_envelope
from tarry.tools.simulator.sqs import StoredMessage


class QueuedMessage:
    """A message in a queue, in its current state. Reading it costs no receive."""

    def __init__(self, stored: StoredMessage, queue: str, now: float) -> None:
        self.delivery_id = stored.delivery_id
        """The id that SQS gave it."""
        self.queue = queue
        """The queue's name."""
        self.body = stored.body
        self.group_id = stored.group
        self.receive_count = stored.receive_count
        self.invisible_seconds = max(0.0, stored.visible_at - now)
        """The seconds until it can be received: the rest of its delay or visibility timeout; 0 if it is visible."""
        attributes = {name: event_attribute(value) for name, value in stored.attributes.items()}
        self._envelope = envelope_of(attributes, stored.body, now)
        self.attributes: dict[str, Any] = {
            name: attribute_value(value)
            for name, value in attributes.items()
            if not (name == ATTRIBUTE and is_ours(value))
        }
        """The user's attributes, as in `Message.attributes`."""

    @property
    def id(self) -> str:
        """The stable id, which `Sandbox.send` returned."""
        return self._envelope.id if self._envelope is not None else self.delivery_id

    @property
    def failure(self) -> FailureRecord | None:
        """Why it was dead-lettered, or failed last; None without a failure record of tarry."""
        return self._envelope.failure if self._envelope is not None else None

    def json(self) -> Any:
        """Return the body, decoded."""
        return json.loads(self.body)

    def __repr__(self) -> str:
        why = "" if self.failure is None else f", {self.failure.reason}: {self.failure.message}"
        return f"<QueuedMessage {self.id!r} in {self.queue}: {self.body:.60}{why}>"


def envelope_of(attributes: dict[str, Any], body: str, now: float) -> Envelope | None:
    """Return the envelope among attributes as an event has them; None if there is none that tarry can read."""
    try:
        return read_envelope(attributes[ATTRIBUTE], body, now)
    except (KeyError, UnreadableRecord):
        return None
