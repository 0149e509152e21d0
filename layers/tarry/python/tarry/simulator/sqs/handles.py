"""Receipt handles: which receive of which message a request means."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import NamedTuple

from tarry.simulator.sqs.errors import SqsError


class Receipt(NamedTuple):
    """What a receipt handle stands for."""

    queue: int
    """The queue's number; one made anew under the same name has another."""
    position: int
    receive_count: int
    delivery_id: str
    """Which message it was, for the record: it may be gone."""


def handle_of(receipt: Receipt) -> str:
    return b64encode("receipt:{}:{}:{}:{}".format(*receipt).encode()).decode()


def read_handle(handle: str, queue: int) -> Receipt:
    """The receipt of a handle that this queue has given out. Raises `SqsError` for any other text."""
    try:
        word, number, position, count, delivery_id = b64decode(handle, validate=True).decode().split(":")
        receipt = Receipt(int(number), int(position), int(count), delivery_id)
    except (NotBase64, ValueError):
        raise _no_handle(handle) from None
    if word != "receipt" or receipt.queue != queue:
        raise _no_handle(handle)
    return receipt


def _no_handle(handle: str) -> SqsError:
    return SqsError("ReceiptHandleIsInvalid", f'The input receipt handle "{handle}" is not a valid receipt handle.')
