"""What SQS allows in a request, checked before it is sent.

https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")

MAX_ENTRIES = 10
"""Entries in a batch request."""

MAX_REQUEST_BYTES = 1_048_576
"""A message, and the messages of one batch request together: 1 MiB, bodies and attributes counted together."""

MAX_ATTRIBUTES = 10
"""User attributes of a message."""


def tens(entries: Sequence[T]) -> Iterator[Sequence[T]]:
    """``entries`` cut into as few requests as hold them."""
    for start in range(0, len(entries), MAX_ENTRIES):
        yield entries[start : start + MAX_ENTRIES]


def requests_of(entries: Iterable[tuple[T, int]]) -> Iterator[list[T]]:
    """Entries, each with its size in bytes, cut at ten entries and at 1 MiB, in their order."""
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
    """The bytes that SQS counts: the body, and names, types and values of the user attributes."""
    return utf8_length(body) + sum(
        utf8_length(name) + utf8_length(attribute["DataType"]) + _value_length(attribute)
        for name, attribute in attributes.items()
    )


def _value_length(attribute: Mapping[str, Any]) -> int:
    return len(attribute["BinaryValue"]) if "BinaryValue" in attribute else utf8_length(attribute["StringValue"])


def utf8_length(text: str) -> int:
    """Bytes of ``text`` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
