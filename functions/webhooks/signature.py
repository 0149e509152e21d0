"""Signatures of the Standard Webhooks specification, which receivers can verify with a library of their language."""

import base64
import binascii
import hmac

PREFIX = "whsec_"
SHORTEST_KEY = 24


def key_of(secret: str) -> bytes:
    """Return the key in a secret: base64, with or without the prefix ``whsec_``.

    Raises:
        ValueError: It is not base64, or shorter than 24 bytes.
    """
    try:
        key = base64.b64decode(secret.strip().removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("it is not base64; `openssl rand -base64 32` makes a good one") from None
    if len(key) < SHORTEST_KEY:
        raise ValueError(
            f"it is a key of {len(key)} bytes, and must have {SHORTEST_KEY} or more; "
            "`openssl rand -base64 32` makes a good one"
        )
    return key


def headers_of(key: bytes, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers that sign a body.

    Args:
        key: The secret key.
        message_id: The id by which the receiver knows a repeated request.
        timestamp: The epoch seconds of this request.
        body: The body exactly as it is sent.
    """
    signed = f"{message_id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }
