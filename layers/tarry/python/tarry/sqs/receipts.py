"""The check of SQS's answer to a send: does it confirm the message as it was sent, or may SQS have it all the same?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.sqs.refusals import may_be_applied

if TYPE_CHECKING:
    from collections.abc import Mapping


MAYBE_SENT = "SQS may have the message all the same: sent again to a standard queue, it may arrive twice"


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


def note_if_open(error: Exception) -> None:
    """Add a note to the error of a send if SQS may have the message all the same."""
    if may_be_applied(error) and MAYBE_SENT not in getattr(error, "__notes__", ()):
        error.add_note(MAYBE_SENT)
