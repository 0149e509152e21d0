"""Copies of messages as values, their attributes, and the log lines for records that do not fit."""

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
    """No copy can be sent: the `Tarry` attribute has no room, or SQS does not accept the delay or the contents."""


class Copy(Value):
    """A copy of a message, to be sent to another queue or to its own.

    ``body`` is the message's, unless a failure step asked for another. ``variants`` are alternative attributes: the
    first is sent; if SQS refuses it as too large, the next one is tried.
    """

    delivery: Delivery
    body: str
    target: QueueArn
    variants: Sequence[Attributes]
    delay: int | None
    """``DelaySeconds``; None is the queue's own delay, the only one on FIFO."""
    until: float | None
    """When the delay ends, in epoch seconds, so that a copy that is sent later has a shorter ``DelaySeconds``."""
    record: Record | None
    """The uncut `Tarry` attribute, for the log if SQS refuses the first variant as too large; None if it is logged."""
    room: int
    """How many more bytes the target surely accepts."""
    transfer: str
    """The source of the deduplication id on FIFO: by default, this delivery and this target."""

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
            room=0,
            transfer=transfer or f"{delivery.delivery_id} {target}",
        )

    def with_record(self, variants: Sequence[Attributes], record: Record | None, room: int) -> Copy:
        """Return the copy with the `Tarry` attribute added."""
        return self._changed(variants=variants, record=record, room=room)

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
    """Return the log line that shows a record of which only a part is sent."""
    return shown_in_log(
        "record_cut", "The failure record was cut to fit beside the message. The field record has all of it.", record
    )


def shown_in_log(event: str, text: str, record: Record) -> Notice:
    """Return a log line with a record that does not fit beside its message."""
    fitted = fit(record, MAX_RECORD_BYTES)
    shown = smallest(record) if fitted is None else json.loads(fitted)
    return Notice(event, text, level=WARNING, more={"record": shown})


def sendable_attributes(delivery: Delivery) -> Attributes:
    """Return a message's user attributes in the form that a send takes, with binary values decoded.

    Attributes with reserved names are left out: SQS refuses them in a send (`is_reserved`).
    """
    attributes = delivery.user_attributes.items()
    return {name: as_sent(attribute) for name, attribute in attributes if not is_reserved(name)}


def as_sent(attribute: dict[str, Any]) -> dict[str, Any]:
    data_type = str(attribute.get("dataType") or "String")
    if data_type.startswith("Binary"):
        from base64 import b64decode

        return {"DataType": data_type, "BinaryValue": b64decode(attribute.get("binaryValue") or "")}
    return {"DataType": data_type, "StringValue": str(attribute.get("stringValue") or "")}
