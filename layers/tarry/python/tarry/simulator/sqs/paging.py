"""Lists in pages, as SQS gives them to those who ask for so many at a time."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import TYPE_CHECKING, Any

from tarry.simulator.sqs.errors import SqsError

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = 1000


def page(urls: list[str], request: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """The page that the request asks for, and the token for the next; SQS makes one only if MaxResults was given."""
    start = _read(request["NextToken"]) if request.get("NextToken") else 0
    most = request.get("MaxResults")
    end = start + (MOST if most is None else most)
    is_more = most is not None and end < len(urls)
    return urls[start:end], ({"NextToken": b64encode(b"%d" % end).decode()} if is_more else {})


def _read(token: str) -> int:
    try:
        return int(b64decode(token, validate=True))
    except (NotBase64, ValueError):
        raise SqsError("InvalidParameterValue", "Invalid or expired next token.") from None
