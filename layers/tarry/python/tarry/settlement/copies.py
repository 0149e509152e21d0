"""The copy of a message that is sent on, as a value; its attributes; the line that shows a record that was cut."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tarry.delay import MAX_DELAY_SECONDS, MOMENT_SECONDS
from tarry.envelope.fitting import fit, smallest
from tarry.sqs.limits import is_reserved, message_size
from tarry.support.value import Value
from tarry.telemetry.logs import MAX_RECORD_BYTES, WARNING
from tarry.telemetry.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.delivery import Delivery
    from tarry.support.arn import QueueArn

Attributes = dict[str, dict[str, Any]]
Record = Mapping[str, Any]


class CannotCopy(Exception):
    """No copy of the message can be sent: its record has no room, or SQS does not take the delay or the contents."""


class Copy(Value):
    """A message to be sent on.

    ``body`` is the message's, unless a failure step asks for another. ``variants`` are its attributes: the first is
    sent. If SQS finds it too large, the others are tried in turn.
    """

    delivery: Delivery
    body: str
    target: QueueArn
    variants: Sequence[Attributes]
    delay: int | None
    """``DelaySeconds``; None leaves it to the queue, which is all that FIFO allows."""
    until: float | None
    """The epoch seconds at which the delay ends, so that a copy that is sent later waits for less."""
    record: Record | None
    """Its record, for the log if SQS finds the first variant too large; None if the log has it."""
    transfer: str
    """On FIFO, what SQS is to swallow a second time: this message's move to this queue, by default."""

    def __init__(
        self,
        delivery: Delivery,
        target: QueueArn,
        variants: Sequence[Attributes],
        delay: int | None,
        record: Record | None = None,
        transfer: str = "",
        *,
        body: str | None = None,
        until: float | None = None,
    ) -> None:
        self._freeze(
            delivery=delivery,
            body=delivery.body if body is None else body,
            target=target,
            variants=variants,
            delay=delay,
            until=until,
            record=record,
            transfer=transfer or f"{delivery.delivery_id} {target}",
        )

    def with_record(self, variants: Sequence[Attributes], record: Record | None) -> Copy:
        """Return the same copy with its record among its attributes."""
        return self._changed(variants=variants, record=record)

    def delay_seconds(self, now: float) -> int | None:
        """Return ``DelaySeconds`` for a send ``now`` (epoch seconds)."""
        if self.delay is None or self.until is None:
            return self.delay
        left = math.ceil(self.until - now - MOMENT_SECONDS)
        return min(MAX_DELAY_SECONDS, max(0, left))

    @property
    def size(self) -> int:
        return message_size(self.body, self.variants[0])


def record_cut(record: Record) -> Notice:
    """Return the line that shows a record of which only a part travels."""
    return shown_in_log(
        "record_cut", "The failure record was cut to fit beside the message. The field record has all of it.", record
    )


def shown_in_log(event: str, text: str, record: Record) -> Notice:
    """Return a line with a record that does not fit beside its message."""
    fitted = fit(record, MAX_RECORD_BYTES)
    shown = smallest(record) if fitted is None else json.loads(fitted)
    return Notice(event, text, level=WARNING, more={"record": shown})


def sendable_attributes(delivery: Delivery) -> Attributes:
    """A message's user attributes as a send takes them: types with their labels, binary values decoded.

    Attributes with AWS's own names are left out: SQS refuses a send that has one (`is_reserved`).
    """
    attributes = delivery.user_attributes.items()
    return {name: _sendable(attribute) for name, attribute in attributes if not is_reserved(name)}


def _sendable(attribute: dict[str, Any]) -> dict[str, Any]:
    data_type = str(attribute.get("dataType") or "String")
    if data_type.startswith("Binary"):
        from base64 import b64decode

        return {"DataType": data_type, "BinaryValue": b64decode(attribute.get("binaryValue") or "")}
    return {"DataType": data_type, "StringValue": str(attribute.get("stringValue") or "")}
