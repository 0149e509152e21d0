"""The notifications of S3 about a changed object, as AWS documents them ("Event message structure")."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote_plus

VERSION = "2.5"
"""The version of the structure. Since 2.4 it is the same for all types of events."""
PRINCIPAL = "AWS:local"
OWNER = "LOCAL"
HOST_ID = "tarry/local="
SOURCE_IP = "127.0.0.1"

REASONS = {
    "Put": "PutObject",
    "Post": "POST Object",
    "Copy": "CopyObject",
    "CompleteMultipartUpload": "CompleteMultipartUpload",
}
"""The reasons of EventBridge for a created object, by the last part of the name of the event."""

DETAIL_TYPES = {
    "ObjectCreated": "Object Created",
    "ObjectRemoved": "Object Deleted",
    "ObjectAcl": "Object ACL Updated",
    "ObjectTagging:Put": "Object Tags Added",
    "ObjectTagging:Delete": "Object Tags Deleted",
    "ObjectRestore:Post": "Object Restore Initiated",
    "ObjectRestore:Completed": "Object Restore Completed",
}
"""The detail types of EventBridge, by the name of an event or its first part."""


@dataclass(frozen=True)
class ObjectChange:
    """A change of an object. ``name`` is that of the event, such as ``ObjectCreated:Put``."""

    name: str
    account: str
    region: str
    bucket: str
    bucket_arn: str
    key: str
    size: int
    etag: str
    version_id: str | None
    """None if the bucket has no versions."""
    time: float
    """In epoch seconds."""
    sequence: int
    """A number that is higher for a later change."""
    request_id: str

    @property
    def kind(self) -> str:
        """The first part of the name."""
        return self.name.partition(":")[0]

    def object_fields(self, etag: str, version_id: str) -> dict[str, Any]:
        """Return the fields of the object but its key; the names of two differ between S3 and EventBridge.

        A deleted object has no size and no ETag. Only created and deleted objects have a sequencer.
        """
        found: dict[str, Any] = {}
        if self.kind == "ObjectCreated":
            found["size"] = self.size
        if self.name != "ObjectRemoved:Delete":
            found[etag] = self.etag
        if self.version_id is not None:
            found[version_id] = self.version_id
        if self.kind in {"ObjectCreated", "ObjectRemoved"}:
            found["sequencer"] = f"{self.sequence:018X}"
        return found


def notification_of(change: ObjectChange, configuration_id: str) -> dict[str, Any]:
    """Return what S3 sends to a queue or topic; ``configuration_id`` is the id of the notification of the bucket."""
    record = {
        "eventVersion": VERSION,
        "eventSource": "aws:s3",
        "awsRegion": change.region,
        "eventTime": _as_text(change.time),
        "eventName": change.name,
        "userIdentity": {"principalId": PRINCIPAL},
        "requestParameters": {"sourceIPAddress": SOURCE_IP},
        "responseElements": {"x-amz-request-id": change.request_id, "x-amz-id-2": HOST_ID},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": configuration_id,
            "bucket": {"name": change.bucket, "ownerIdentity": {"principalId": OWNER}, "arn": change.bucket_arn},
            "object": {"key": quote_plus(change.key, safe="/"), **change.object_fields("eTag", "versionId")},
        },
    }
    return {"Records": [record]}


def check_of(bucket: str, time: float, request_id: str) -> dict[str, Any]:
    """Return the test message that S3 sends when the notifications of a bucket are set."""
    return {
        "Service": "Amazon S3",
        "Event": "s3:TestEvent",
        "Time": _as_text(time),
        "Bucket": bucket,
        "RequestId": request_id,
        "HostId": HOST_ID,
    }


def event_of(change: ObjectChange, event_id: str) -> dict[str, Any]:
    """Return the event that S3 sends to EventBridge. Its key is not encoded."""
    detail = {
        "version": "0",
        "bucket": {"name": change.bucket},
        "object": {"key": change.key, **change.object_fields("etag", "version-id")},
        "request-id": change.request_id,
        "requester": change.account,
        "source-ip-address": SOURCE_IP,
    }
    last = change.name.partition(":")[2]
    match change.kind:
        case "ObjectCreated":
            detail["reason"] = REASONS.get(last, last)
        case "ObjectRemoved":
            detail["reason"] = "DeleteObject"
            detail["deletion-type"] = "Permanently Deleted" if last == "Delete" else "Delete Marker Created"
    return {
        "version": "0",
        "id": event_id,
        "detail-type": DETAIL_TYPES.get(change.name) or DETAIL_TYPES.get(change.kind, change.name),
        "source": "aws.s3",
        "account": change.account,
        "time": change.time,
        "region": change.region,
        "resources": [change.bucket_arn],
        "detail": detail,
    }


def _as_text(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
