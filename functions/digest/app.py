"""Collect scans of parcels into digests: one object of JSON lines per batch, which a data warehouse loads.

The warehouse merges each object into its table of parcels, and refuses an object with two scans of the same parcel.
If a batch has two scans of a parcel, the later one is retried for another digest. A scan of an unknown carrier fails
alone.

A redelivered batch overwrites its own object, because key and content depend only on the messages. A message that is
redelivered in another batch is in two objects; its line has the message id, so merging it twice changes nothing.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from typing import Literal

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from pydantic import AwareDatetime, BaseModel

from tarry import Batch, Message, batch_consumer

BUCKET = os.environ["DIGEST_BUCKET"]
CARRIERS = {"dhl": 1, "dpd": 2, "gls": 3}  # the ids of the warehouse
BUSY = {"InternalError", "ServiceUnavailable", "SlowDown"}

# Created at import, which runs with a full CPU on Lambda; in the first invocation it would take most of a second.
# Two attempts instead of the default of botocore: retries from the queue wait without cost.
s3 = boto3.client("s3", config=Config(retries={"total_max_attempts": 2}))


class Scan(BaseModel):
    """The status of a parcel at a time. A message with an invalid body is dead-lettered and not in the batch."""

    parcel: str
    carrier: str
    status: Literal["picked_up", "in_transit", "delivered", "returned"]
    at: AwareDatetime


class UnknownCarrier(Exception):
    """The carrier has no id in the warehouse. A retry would not help until one is added."""


@batch_consumer(name="digest", fatal=UnknownCarrier)
def handler(batch: Batch[Scan]) -> None:
    digest: dict[str, Message[Scan]] = {}  # by parcel
    for message in sorted(batch, key=lambda message: (message.payload.at, message.id)):
        scan = message.payload
        if scan.carrier not in CARRIERS:
            message.fail(UnknownCarrier(f"parcel {scan.parcel}: unknown carrier {scan.carrier!r}"))
        elif scan.parcel in digest:
            message.retry(delay=2)
        else:
            digest[scan.parcel] = message  # without a verdict: acknowledged if the handler returns, failed if it raises
    if not digest:
        return
    try:
        write(list(digest.values()))
    except ClientError as error:
        if error.response["Error"]["Code"] not in BUSY:
            raise
        batch.retry_all(delay=300)  # all messages without a verdict; a digest is not urgent


def write(messages: Sequence[Message[Scan]]) -> None:
    """Write a digest. The same messages make the same object under the same key."""
    ids = "\n".join(message.id for message in messages)
    s3.put_object(
        Bucket=BUCKET,
        Key=f"scans/{hashlib.sha256(ids.encode()).hexdigest()}.jsonl",
        Body="".join(line(message) for message in messages).encode(),
        ContentType="application/jsonl",
    )


def line(message: Message[Scan]) -> str:
    scan = message.payload.model_dump(mode="json") | {"carrier": CARRIERS[message.payload.carrier]}
    return json.dumps({"message": message.id, **scan}) + "\n"
