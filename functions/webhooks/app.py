"""Send webhooks: POST the payload of each message to its URL, with a signature that the receiver can verify.

The response of the receiver decides. 2xx: the message is done. 429, 5xx, or no response: it is tried again, up to eight
times within about a day, and not before the time that a 429 or 503 asks for (Retry-After). Any other response: it is
dead-lettered at once, and the failure record has the response. While a host is down, its webhooks are deferred, which
costs no attempt.

URLs come from customers, who may name addresses of our own network. Only public addresses are connected to.
"""

import json
import os
import time
from datetime import UTC, datetime, timedelta

import httpx
from pydantic import BaseModel, JsonValue

from addresses import redirect_of, url_of
from answers import Answer, ReceiverBusy, ReceiverFailed, error_of
from circuits import Circuits
from connections import client_of, excerpt_of
from signature import headers_of
from signing_key import NoSigningKey, SigningKey
from tarry import Defer, Message, Reject, Retry, Schedule, consumer

BACKOFF = Schedule([10, 300, 1_800, 7_200, 18_000, 36_000], jitter="equal")  # seconds, minutes, hours
MAX_REDIRECTS = 3
NO_KEY_DELAY = 900
LONGEST_HOLD = timedelta(days=1)
"""A webhook that is older is sent although its host is down, so that it is dead-lettered in the end."""

# Created at import, which runs with a full CPU on Lambda; in the first invocation it would take most of a second.
client = client_of(allow_private=os.environ.get("ALLOW_PRIVATE_ADDRESSES") == "true")
circuits = Circuits()
signing_key = SigningKey(os.environ.get("SIGNING_SECRET", ""))


class Webhook(BaseModel):
    """A payload to send. An invalid body is dead-lettered before the handler is called."""

    url: str
    payload: JsonValue


@consumer(
    name="webhooks",
    max_attempts=8,
    backoff=BACKOFF,
    concurrency=10,
    timeout=12,  # for one webhook with its redirects; the timeout of the function is 30
)
async def handler(message: Message[Webhook]) -> None:
    try:
        key = signing_key.read()
    except NoSigningKey as error:
        raise Defer(NO_KEY_DELAY) from error  # costs no attempt
    url = url_of(message.payload.url)
    body = encoded(message.payload.payload)
    # The id is the same at each attempt, so that the receiver knows a webhook that it has already processed.
    headers = headers_of(key, message.id, int(time.time()), body)
    is_old = message.sent_at is not None and datetime.now(UTC) - message.sent_at > LONGEST_HOLD
    try:
        with circuits.guarding(url.netloc.decode(), must_try=is_old):
            answer = await post(url, body, headers | {"content-type": "application/json"})
            if failure := error_of(answer, datetime.now(UTC)):
                raise failure
    except ReceiverBusy as busy:
        raise Retry(max(busy.wait, BACKOFF.delay(message.attempt))) from busy


def encoded(payload: JsonValue) -> bytes:
    try:
        return json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:  # NaN or Infinity, which Python reads and JSON does not have
        raise Reject(f"the payload is not JSON: {error}") from None


async def post(url: httpx.URL, body: bytes, headers: dict[str, str]) -> Answer:
    """POST a body, and follow redirects that repeat the POST (307, 308)."""
    for _ in range(1 + MAX_REDIRECTS):
        try:
            async with client.stream("POST", url, content=body, headers=headers) as response:
                if response.status_code not in (307, 308) or "location" not in response.headers:
                    retry_after = response.headers.get("retry-after")
                    return Answer(url.host, response.status_code, retry_after, await excerpt_of(response))
        except httpx.TransportError as error:
            raise ReceiverFailed(f"{url.host} did not answer: {str(error) or type(error).__name__}") from error
        url = redirect_of(url, response.headers["location"])
    raise Reject(f"more than {MAX_REDIRECTS} redirects, the last one to {url.host}")
