"""The check of SQS's answer to a send: does it confirm the message as it was sent?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Unconfirmed(Exception):
    """SQS's answer does not confirm that it has the message as it was sent."""


def doubt(body: str, receipt: Mapping[str, Any]) -> Unconfirmed | None:
    """Return why a message may not be in its queue; None if the receipt has its id and the body's MD5."""
    import hashlib

    if not receipt.get("MessageId"):
        return Unconfirmed("SQS answered without a message id")
    md5 = hashlib.md5(body.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
    if receipt.get("MD5OfMessageBody") != md5:
        return Unconfirmed(f"SQS answered with the MD5 of another body: {receipt.get('MD5OfMessageBody')}")
    return None
