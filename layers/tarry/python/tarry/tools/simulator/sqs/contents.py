"""Checks of a message's body, attributes and sizes, as SQS makes them.

The limits are those of `tarry.sqs.limits`, which the runtime checks before it sends. The error texts are those of SQS.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tarry.sqs.limits import MAX_ATTRIBUTES, check_attribute_name, check_body, message_size
from tarry.sqs.limits import check_id as check_characters_of_id
from tarry.support.delays import MAX_DELAY_SECONDS
from tarry.tools.simulator.sqs.errors import SqsError, invalid, missing

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHARACTERS = (
    "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | "
    "#x10000 to #x10FFFF"
)
_DATA_TYPE = re.compile(r"(String|Number|Binary)(\.[^.].{0,250})?", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")

Attributes = dict[str, dict[str, Any]]


def check_contents(entry: Mapping[str, Any], maximum_bytes: int) -> None:
    """Check the body, the attributes and the size of a message to be sent.

    Raises:
        SqsError: SQS would refuse the message.
    """
    body: str = entry["MessageBody"]
    attributes: Attributes = entry.get("MessageAttributes") or {}
    if not body:
        raise missing("MessageBody")
    if attributes:
        _check_attributes(attributes)
    if message_size(body, attributes) > maximum_bytes:
        text = f"One or more parameters are invalid. Reason: Message must be shorter than {maximum_bytes} bytes."
        raise SqsError("InvalidParameterValue", text)
    try:
        check_body(body)
    except ValueError:
        raise SqsError("InvalidMessageContents", _CHARACTERS) from None
    for parameter in ("MessageGroupId", "MessageDeduplicationId"):
        if parameter in entry:
            check_id(parameter, entry[parameter])
    delay = entry.get("DelaySeconds")
    if delay is not None and not 0 <= delay <= MAX_DELAY_SECONDS:
        raise invalid(delay, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {MAX_DELAY_SECONDS}.")


def trace_header(entry: Mapping[str, Any]) -> str | None:
    """Return a message's X-Ray header, the only system attribute that a sender may set."""
    system: Attributes = entry.get("MessageSystemAttributes") or {}
    for name, attribute in system.items():
        if name != "AWSTraceHeader":
            raise SqsError("InvalidParameterValue", f"Message system attribute name '{name}' is invalid.")
        _refuse_lists(attribute)
        if not attribute.get("StringValue"):
            text = f"Message (system) attribute '{name}' must contain a non-empty value of type 'String'."
            raise SqsError("InvalidParameterValue", text)
    return str(system["AWSTraceHeader"]["StringValue"]) if system else None


def check_id(parameter: str, value: str | None) -> None:
    """Check an id that is optional. Raises `SqsError`."""
    if value is None:
        return
    try:
        check_characters_of_id(parameter, value)
    except ValueError:
        text = f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length."
        raise invalid(value, parameter, text) from None


def _check_attributes(attributes: Attributes) -> None:
    if len(attributes) > MAX_ATTRIBUTES:
        text = f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{MAX_ATTRIBUTES}]."
        raise SqsError("InvalidParameterValue", text)
    for name, attribute in attributes.items():
        _check_name(name)
        _check_value(name, attribute)


def _check_name(name: str) -> None:
    try:
        check_attribute_name(name)
    except ValueError:
        text = (
            f"The message attribute name '{name}' is invalid. Attribute name can contain A-Z, a-z, 0-9, underscore "
            "(_), hyphen (-), and period (.) characters."
        )
        raise SqsError("InvalidParameterValue", text) from None


def _check_value(name: str, attribute: Mapping[str, Any]) -> None:
    _refuse_lists(attribute)
    data_type: str = attribute["DataType"]
    kind = _DATA_TYPE.fullmatch(data_type)
    if kind is None:
        text = f"The type of message (user) attribute '{name}' is invalid. You must use only the following supported "
        raise SqsError("InvalidParameterValue", f"{text}type prefixes: Binary, Number, String.")
    field = "BinaryValue" if kind[1] == "Binary" else "StringValue"
    value = attribute.get(field)
    if not value:
        text = f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind[1]}'."
        raise SqsError("InvalidParameterValue", text)
    if kind[1] == "Number" and not _NUMBER.fullmatch(value):
        text = f"Can't cast the value of message (user) attribute '{name}' to a number."
        raise SqsError("InvalidParameterValue", text)
    if field == "StringValue":
        try:
            check_body(value)
        except ValueError:
            raise SqsError("InvalidParameterValue", _CHARACTERS) from None


def _refuse_lists(attribute: Mapping[str, Any]) -> None:
    if attribute.get("StringListValues") or attribute.get("BinaryListValues"):
        text = "Message attribute list values in SendMessage operation are not supported."
        raise SqsError("AWS.SimpleQueueService.UnsupportedOperation", text)
