"""Collects scans of parcels into digests: one object of JSON lines for each batch, which a warehouse loads.

The warehouse merges each object into its table of parcels, and refuses one that names a parcel twice: of two scans of
a parcel in a batch, the later waits for another digest. A scan of a carrier that nobody has told us of fails alone;
the others go.

A batch that comes twice does no harm: key and content are made of its messages alone, so that its object is written
over with itself. A message that comes again in other company is in two objects; its line has the message's id, and
merged twice it changes nothing.
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
CARRIERS = {"dhl": 1, "dpd": 2, "gls": 3}  # as the warehouse numbers them
BUSY = {"InternalError", "ServiceUnavailable", "SlowDown"}

# Made at import, while Lambda initialises with a full CPU: in the first batch it would cost most of a second.
# Two tries, not botocore's ten: waiting is the queue's part, and costs nothing there.
s3 = boto3.client("s3", config=Config(retries={"total_max_attempts": 2}))


class Scan(BaseModel):
    """Where a parcel was on its way, and when. A body that does not fit is dead-lettered, and in no batch."""

    parcel: str
    carrier: str
    status: Literal["picked_up", "in_transit", "delivered", "returned"]
    at: AwareDatetime


class UnknownCarrier(Exception):
    """Trying again would not help; the dead letter can be redriven once the carrier has a number."""


@batch_consumer(fatal=UnknownCarrier)
def handler(batch: Batch[Scan]) -> None:
    digest: dict[str, Message[Scan]] = {}  # by parcel
    for message in sorted(batch, key=lambda message: (message.payload.at, message.id)):
        scan = message.payload
        if scan.carrier not in CARRIERS:
            message.fail(UnknownCarrier(f"parcel {scan.parcel}: nobody has told us of {scan.carrier!r}"))
        elif scan.parcel in digest:
            message.retry(delay=2)
        else:
            digest[scan.parcel] = message  # of which nothing is said: done with if we return, failed if we raise
    if not digest:
        return
    try:
        write(list(digest.values()))
    except ClientError as error:
        if error.response["Error"]["Code"] not in BUSY:
            raise
        batch.retry_all(delay=300)  # those of which nothing was said; a digest is in no hurry


def write(messages: Sequence[Message[Scan]]) -> None:
    """Writes a digest: the same messages make the same object, under the same key."""
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
