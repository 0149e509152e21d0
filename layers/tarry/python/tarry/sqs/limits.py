"""The limits of an SQS request, checked before it is sent.

https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")

MAX_ENTRIES = 10  # entries in a batch request

MAX_REQUEST_BYTES = 1_048_576
"""A message, and the messages of one batch request together: 1 MiB, bodies and attributes counted together."""

MAX_ATTRIBUTES = 10  # user attributes of a message

MAX_NAME_LENGTH = 256
MAX_ID_LENGTH = 128


def tens(entries: Sequence[T]) -> Iterator[Sequence[T]]:
    """Cut entries into batches of ten."""
    for start in range(0, len(entries), MAX_ENTRIES):
        yield entries[start : start + MAX_ENTRIES]


def requests_of(entries: Iterable[tuple[T, int]]) -> Iterator[list[T]]:
    """Cut entries, each with its size in bytes, into requests of at most ten entries and 1 MiB, in order."""
    request: list[T] = []
    total = 0
    for entry, size in entries:
        if request and (len(request) == MAX_ENTRIES or total + size > MAX_REQUEST_BYTES):
            yield request
            request, total = [], 0
        request.append(entry)
        total += size
    if request:
        yield request


def message_size(body: str, attributes: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the size in bytes as SQS counts it: the body, and the names, types and values of the attributes."""
    if not attributes:
        return utf8_length(body)
    return utf8_length(body) + sum(
        utf8_length(name) + utf8_length(attribute["DataType"]) + _value_length(attribute)
        for name, attribute in attributes.items()
    )


def _value_length(attribute: Mapping[str, Any]) -> int:
    return len(attribute["BinaryValue"]) if "BinaryValue" in attribute else utf8_length(attribute["StringValue"])


def utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


# SQS accepts only the characters of XML 1.0 in a body or a text value.
_REFUSED_CHARACTER = "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
# SQS accepts alphabetic characters beyond ASCII too, although its documentation does not say so.
_NAME_PART = r"(?:[^\W\d]|[0-9-])+"
_NAME = rf"{_NAME_PART}(\.{_NAME_PART})*"
_ID = "[!-~]+"  # letters, digits and punctuation of ASCII


def check_body(body: str) -> None:
    """Raise `ValueError` for a body that is empty, or has a character that SQS refuses."""
    if not body:
        raise ValueError("the body is empty: SQS takes 1 character or more")
    _check_characters("the body", body)


def check_size(size_bytes: int) -> None:
    """Raise `ValueError` for a message of more than 1 MiB."""
    if size_bytes > MAX_REQUEST_BYTES:
        raise ValueError(
            f"the message is {size_bytes} bytes, body and attributes counted together: SQS takes at most "
            f"{MAX_REQUEST_BYTES} (1 MiB)"
        )


def check_attribute_name(name: object) -> None:
    """Raise `TypeError` or `ValueError` for an attribute name that SQS would refuse."""
    if not isinstance(name, str):
        raise TypeError(f"the name of an attribute is a str, got {name!r:.100}")
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        raise ValueError(
            f"the name of an attribute has 1 to {MAX_NAME_LENGTH} characters, {name!r:.50} has {len(name)}"
        )
    if not re.fullmatch(_NAME, name):
        raise ValueError(
            f"the name of an attribute is made of letters, digits 0-9, _, - and single dots within it, got {name!r}"
        )
    if is_reserved(name):
        raise ValueError(f"names of attributes that begin with AWS. or Amazon. are AWS's own, got {name!r}")


def is_reserved(name: str) -> bool:
    """Return whether an attribute name is reserved by AWS; SQS refuses it in a send."""
    return name.lower().startswith(("aws.", "amazon."))


def check_attribute_value(name: str, value: str | bytes | bytearray) -> None:
    """Raise `ValueError` for an attribute value that SQS would refuse."""
    if not value:
        raise ValueError(f"attribute {name!r} is empty: SQS takes values of 1 byte or more")
    if isinstance(value, str):
        _check_characters(f"attribute {name!r}", value)


def check_id(what: str, value: object) -> None:
    """Raise `TypeError` or `ValueError` for a group or deduplication id that SQS would refuse."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, got {value!r:.100}")
    if not 1 <= len(value) <= MAX_ID_LENGTH:
        raise ValueError(f"{what} has 1 to {MAX_ID_LENGTH} characters, got {len(value)}")
    if not re.fullmatch(_ID, value):
        raise ValueError(f"{what} is made of ASCII letters, digits and punctuation (U+0021 to U+007E), got {value!r}")


def _check_characters(where: str, text: str) -> None:
    if found := re.search(_REFUSED_CHARACTER, text):
        raise ValueError(
            f"{where} holds U+{ord(found[0]):04X} at index {found.start()}: SQS takes U+0009, U+000A, U+000D and "
            "U+0020 to U+10FFFF, except U+D800 to U+DFFF, U+FFFE and U+FFFF"
        )
