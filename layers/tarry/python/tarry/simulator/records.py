"""Received messages, as the event source mapping hands them to a function: see `tarry.sqs.received`."""

from typing import Any

from tarry.sqs.received import event_attribute, event_record

__all__ = ["event_attribute", "event_record", "message_ids"]


def message_ids(event: Any) -> list[str]:
    """SQS's ids of the messages in an event; none if it is not an SQS event."""
    records = event.get("Records") if isinstance(event, dict) else None
    if not isinstance(records, list):
        return []
    return [record["messageId"] for record in records if isinstance(record, dict) and "messageId" in record]
