"""An outgoing message: from the caller's arguments to the parameters of SendMessage, checked against SQS's limits."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from tarry.errors import DelayNotSupported
from tarry.record.attribute import ATTRIBUTE, VERSION, body_sum, dump, timestamp
from tarry.sqs.refusals import (
    MAX_ATTRIBUTES,
    MAX_REQUEST_BYTES,
    check_attribute_name,
    check_attribute_value,
    check_body,
    check_id,
    check_size,
    message_size,
    utf8_length,
)
from tarry.support.values import MAX_DELAY_SECONDS, MAX_VISIBILITY_SECONDS, PAGES, Delay, Value, whole_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from json import JSONEncoder

    from tarry.world import World


class Entry(Value):
    """One message of a `Queue.send_batch` with its own delay, attributes or ids. Made by `Queue.entry`."""

    body: Any
    delay: Delay | None = None
    attributes: Mapping[str, Any] | None = None
    group_id: str | None = None
    deduplication_id: str | None = None


class PackedMessage(Value):
    """An entry as parameters of SendMessage, with its size in bytes."""

    entry: Entry  # the entry as the caller made it, with the deduplication id that it got
    parameters: dict[str, Any]  # the parameters of SendMessage, without the queue
    size: int
    stable_id: str | None  # the id in its `Tarry` attribute; None if it has none, and SQS's message id counts

    @property
    def body(self) -> str:
        body: str = self.parameters["MessageBody"]
        return body


def check_delay(delay: Delay | None, *, fifo: bool) -> int | None:
    """Return a delay in whole seconds. Raises `ValueError`, or `DelayNotSupported` if SQS cannot keep it."""
    if delay is None:
        return None
    seconds = whole_seconds(delay)
    if fifo:
        raise DelayNotSupported(
            f"a message to a FIFO queue cannot have a delay of its own, got {seconds} seconds: set DelaySeconds of the "
            "queue (0 to 900), which delays all its messages"
        )
    if seconds > MAX_VISIBILITY_SECONDS:
        raise DelayNotSupported(
            f"delay must be between 0 and {MAX_VISIBILITY_SECONDS} seconds (12 hours), got {seconds}: SQS keeps "
            f"no message invisible for longer; {PAGES}/guides/long-delays.md has a recipe with EventBridge Scheduler"
        )
    return seconds


def pack(entry: Entry, world: World, *, fifo: bool, trace: Mapping[str, str] | None = None) -> PackedMessage:
    """Make the parameters of an entry, with the trace context ``trace`` if there is room.

    Raises `TypeError` for a body or value of a type that cannot be sent, `ValueError` for one beyond SQS's limits,
    `DelayNotSupported`.
    """
    seconds = check_delay(entry.delay, fifo=fifo)
    body = body_text(entry.body)
    attributes = sendable(entry.attributes or {})
    parameters: dict[str, Any] = {"MessageBody": body}
    if seconds is not None:
        parameters["DelaySeconds"] = min(seconds, MAX_DELAY_SECONDS)
    stable_id = None
    if seconds is not None and seconds > MAX_DELAY_SECONDS:
        stable_id = world.new_id()
        attributes = _with_tarry_attribute(attributes, body, stable_id, world.clock.time(), seconds)
    check_size(size := message_size(body, attributes))
    if trace:
        size += add_trace(trace, parameters, attributes, MAX_REQUEST_BYTES - size)
    if attributes:
        parameters["MessageAttributes"] = attributes
    entry = _identified(entry, world, fifo=fifo)
    if entry.group_id is not None:
        parameters["MessageGroupId"] = entry.group_id
    if entry.deduplication_id is not None:
        parameters["MessageDeduplicationId"] = entry.deduplication_id
    return PackedMessage(entry, parameters, size, stable_id)


def _identified(entry: Entry, world: World, *, fifo: bool) -> Entry:
    """Check the ids of an entry. On FIFO, add a missing deduplication id: one for all tries of the send."""
    if entry.group_id is not None:
        check_id("group_id", entry.group_id)
    if entry.deduplication_id is not None:
        check_id("deduplication_id", entry.deduplication_id)
    if not fifo:
        if entry.deduplication_id is not None:
            raise ValueError("deduplication_id is for FIFO queues only, whose names end in .fifo: remove it")
        return entry
    if entry.group_id is None:
        raise ValueError("a message to a FIFO queue needs a group_id of 1 to 128 characters")
    if entry.deduplication_id is not None:
        return entry
    return Entry(entry.body, entry.delay, entry.attributes, entry.group_id, world.new_id())


def _with_tarry_attribute(
    attributes: dict[str, dict[str, Any]], body: str, stable_id: str, now: float, seconds: int
) -> dict[str, dict[str, Any]]:
    """Add the `Tarry` attribute, from which the consumer learns when the message is due."""
    why = f"a delay above {MAX_DELAY_SECONDS} seconds needs the attribute {ATTRIBUTE!r}"
    if ATTRIBUTE in attributes:
        raise ValueError(f"{why}: rename your own attribute of that name")
    if len(attributes) >= MAX_ATTRIBUTES:
        raise ValueError(f"{why}: send at most {MAX_ATTRIBUTES - 1} others, got {len(attributes)}")
    record = {"v": VERSION, "sum": body_sum(body), "id": stable_id, "sent": timestamp(now), "due": now + seconds}
    return {**attributes, ATTRIBUTE: {"DataType": "String", "StringValue": dump(record)}}


# the trace context

TRACEPARENT = "traceparent"
XRAY_HEADER = "X-Amzn-Trace-Id"
"""The name that X-Ray's propagators use. SQS has a system attribute for it, which needs no room."""
SYSTEM_ATTRIBUTES = "MessageSystemAttributes"
_XRAY = r"Root=1-[0-9a-f]{8}-[0-9a-f]{24}(;\w+=[\w:-]*)*"


def add_trace(
    trace: Mapping[str, str], parameters: dict[str, Any], attributes: dict[str, dict[str, Any]], room: int
) -> int:
    """Add X-Ray's header to ``parameters``, the rest to ``attributes`` within ``room`` bytes; return its size."""
    if TRACEPARENT in attributes or SYSTEM_ATTRIBUTES in parameters:
        return 0
    if re.fullmatch(_XRAY, header := trace.get(XRAY_HEADER, "")):
        parameters[SYSTEM_ATTRIBUTES] = {"AWSTraceHeader": {"DataType": "String", "StringValue": header}}
    added = 0
    for name, value in sorted(trace.items(), key=lambda item: item[0] != TRACEPARENT):
        if name == XRAY_HEADER or name in attributes or not _is_sendable(name, value):
            continue
        size = utf8_length(name) + utf8_length("String") + utf8_length(value)
        if len(attributes) >= MAX_ATTRIBUTES or added + size > room:
            break  # without a traceparent, the others mean nothing
        attributes[name] = {"DataType": "String", "StringValue": value}
        added += size
    return added


def _is_sendable(name: str, value: str) -> bool:
    try:
        check_attribute_name(name)
        check_attribute_value(name, value)
    except (TypeError, ValueError):
        return False
    return True


# bodies


def body_text(body: Any) -> str:
    """Return a str as it is; a dict, list, dataclass or pydantic model as JSON."""
    if isinstance(body, str):
        check_body(body)
        return body
    if _is_pydantic(body):
        text: str = body.model_dump_json(by_alias=True)  # the same model can read it
        check_body(text)
        return text
    if isinstance(body, (dict, list)) or _is_dataclass(body):
        return _encoder().encode(body)
    raise TypeError(f"a body is a str, dict, list, dataclass or pydantic model, got {type(body).__name__}")


@cache
def _encoder() -> JSONEncoder:
    import json

    # ASCII has no printable character that SQS refuses.
    return json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain)


def _is_pydantic(value: Any) -> bool:
    return hasattr(type(value), "model_dump_json")


def _is_dataclass(value: Any) -> bool:
    return hasattr(type(value), "__dataclass_fields__")


def _plain(value: Any) -> Any:
    """Return a value that JSON has no type for in the form that pydantic gives it."""
    from datetime import date, datetime, time
    from decimal import Decimal
    from enum import Enum
    from uuid import UUID

    if _is_pydantic(value):
        return value.model_dump(mode="json", by_alias=True)
    if _is_dataclass(value):
        from dataclasses import fields

        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"the body contains a {type(value).__name__}, which JSON cannot represent: {value!r:.100}")


# attributes


def sendable(attributes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return attributes as SendMessage takes them: str as String, int, float and Decimal as Number, bytes as Binary."""
    if not hasattr(attributes, "items"):
        raise TypeError(f"attributes are a dict of names and values, got {type(attributes).__name__}")
    if len(attributes) > MAX_ATTRIBUTES:
        raise ValueError(f"a message has at most {MAX_ATTRIBUTES} attributes, got {len(attributes)}")
    return {name: _attribute(name, value) for name, value in attributes.items()}


def _attribute(name: str, value: Any) -> dict[str, Any]:
    check_attribute_name(name)
    if isinstance(value, (bytes, bytearray)):
        check_attribute_value(name, value)
        return {"DataType": "Binary", "BinaryValue": bytes(value)}
    if isinstance(value, str):
        check_attribute_value(name, value)
        return {"DataType": "String", "StringValue": value}
    return {"DataType": "Number", "StringValue": _number(name, value)}


def _number(name: str, value: Any) -> str:
    from decimal import Decimal
    from math import isfinite

    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        kinds = "a str, int, float, Decimal or bytes"
        raise TypeError(f"attribute {name!r} must be {kinds}, got {type(value).__name__}: {value!r:.100}")
    if not isinstance(value, int) and not isfinite(value):
        raise ValueError(f"attribute {name!r} must be a finite number, got {value!r}")
    return str(value)
