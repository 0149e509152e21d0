"""Receipt handles: encoding and decoding of which receive of which message they stand for."""

from __future__ import annotations

from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from typing import NamedTuple

from tarry.tools.simulator.sqs.errors import SqsError


class Receipt(NamedTuple):
    """The contents of a receipt handle."""

    queue: int
    """The queue's number; a queue created later under the same name has another one."""
    position: int
    receive_count: int
    delivery_id: str
    """The message's id, for the history: the message may be deleted by now."""


def handle_of(queue: int, position: int, receive_count: int, delivery_id: str) -> str:
    """Return the receipt handle with the contents of a `Receipt`."""
    return b2a_base64(f"receipt:{queue}:{position}:{receive_count}:{delivery_id}".encode(), newline=False).decode()


def read_handle(handle: str, queue: int) -> Receipt:
    """Decode a receipt handle of this queue.

    Raises:
        SqsError: The text is not a receipt handle, or it is one of another queue.
    """
    try:
        prefix, number, position, count, delivery_id = a2b_base64(handle, strict_mode=True).decode().split(":")
        receipt = Receipt(int(number), int(position), int(count), delivery_id)
    except (NotBase64, ValueError):
        raise _invalid_handle(handle) from None
    if prefix != "receipt" or receipt.queue != queue:
        raise _invalid_handle(handle)
    return receipt


def _invalid_handle(handle: str) -> SqsError:
    return SqsError("ReceiptHandleIsInvalid", f'The input receipt handle "{handle}" is not a valid receipt handle.')
