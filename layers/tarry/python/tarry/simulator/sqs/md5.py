"""The digests by which a sender can tell that SQS has understood a message as it was meant.

https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-message-metadata.html
"""

from __future__ import annotations

from hashlib import md5
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_STRING, _BINARY = b"\x01", b"\x02"


def of_body(body: str) -> str:
    return md5(_bytes(body), usedforsecurity=False).hexdigest()


def of_attributes(attributes: Mapping[str, Mapping[str, Any]]) -> str:
    """Name, type, and value of each attribute in the order of their names, with their lengths in bytes."""
    digest = md5(usedforsecurity=False)
    for name in sorted(attributes):
        attribute = attributes[name]
        digest.update(_with_length(_bytes(name)))
        digest.update(_with_length(_bytes(attribute["DataType"])))
        if "BinaryValue" in attribute:
            digest.update(_BINARY + _with_length(bytes(attribute["BinaryValue"])))
        else:
            digest.update(_STRING + _with_length(_bytes(attribute["StringValue"])))
    return digest.hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _with_length(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value
