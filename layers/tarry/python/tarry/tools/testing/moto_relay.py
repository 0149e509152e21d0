"""Messages that moto's SNS, S3 and EventBridge send to queues, relayed to the SQS model.

moto sends all of them through its own SQS, whose queues no function consumes. Here that SQS is a front of the model.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partialmethod
from hashlib import sha256
from itertools import count
from time import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from urllib.parse import quote_plus

from tarry.tools.simulator.patterns import PatternError, compile_pattern, fields_of, matches, parse
from tarry.tools.simulator.sqs import SqsError
from tarry.tools.story.events import moment

Call = Callable[[str, Mapping[str, Any]], dict[str, Any]]
"""Answers a request to SQS: operation and parameters. Raises `SqsError`."""

VARIABLE = re.compile(r"<([\w.-]+)>")
STEP = re.compile(r"\.([\w-]+)|\[(\d+)\]|\['([^']+)'\]")


def as_delivered(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event of moto as EventBridge delivers it: its time as text, and without moto's own fields."""
    found = {name: value for name, value in event.items() if name not in {"ingestion-time", "replay-name"}}
    if isinstance(time := found.get("time"), int | float):
        found["time"] = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


def is_match(pattern: str | None, event: Mapping[str, Any]) -> bool:
    """Return whether an event matches the pattern of a rule; a rule that has only a schedule matches none."""
    if not pattern:
        return False
    try:
        compiled = compile_pattern(parse(pattern))
    except (PatternError, ValueError):
        return False
    fields = fields_of(parse(json.dumps(event)))
    return any(matches(branch, fields) for branch in compiled.branches)


def input_of(target: Mapping[str, Any], event: Mapping[str, Any]) -> str:
    """Return what a target gets: the event, or what ``Input``, ``InputPath`` or ``InputTransformer`` make of it."""
    if (text := target.get("Input")) is not None:
        return str(text)
    if (path := target.get("InputPath")) is not None:
        return json.dumps(_at(path, event))
    transformer = target.get("InputTransformer")
    if not transformer:
        return json.dumps(event)
    values = {name: _at(path, event) for name, path in (transformer.get("InputPathsMap") or {}).items()}
    values |= {"aws.events.event": event, "aws.events.event.json": event}
    template = str(transformer.get("InputTemplate", ""))

    def filled(found: re.Match[str]) -> str:
        if found[1] not in values:
            return found[0]
        text = json.dumps(values[found[1]])
        is_quoted = len(re.findall(r'(?<!\\)"', template[: found.start()])) % 2 == 1
        if not is_quoted:
            return text
        return text[1:-1] if text.startswith('"') else json.dumps(text)[1:-1]

    return VARIABLE.sub(filled, template)


def _at(path: str, event: Mapping[str, Any]) -> Any:
    """Return the value at a JSON path such as ``$.detail.items[0].id``; null if there is none."""
    found: Any = event
    for name, index, quoted in STEP.findall(path.removeprefix("$")):
        try:
            found = found[int(index)] if index else found[name or quoted]
        except (LookupError, TypeError):
            return None
    return found


VERSION = "2.5"
"""The version of the structure. Since 2.4 it is the same for all types of events."""
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
        "eventTime": moment(change.time),
        "eventName": change.name,
        "userIdentity": {"principalId": "AWS:local"},
        "requestParameters": {"sourceIPAddress": SOURCE_IP},
        "responseElements": {"x-amz-request-id": change.request_id, "x-amz-id-2": HOST_ID},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": configuration_id,
            "bucket": {"name": change.bucket, "ownerIdentity": {"principalId": "LOCAL"}, "arn": change.bucket_arn},
            "object": {"key": quote_plus(change.key, safe="/"), **change.object_fields("eTag", "versionId")},
        },
    }
    return {"Records": [record]}


def check_of(bucket: str, time: float, request_id: str) -> dict[str, Any]:
    """Return the test message that S3 sends when the notifications of a bucket are set."""
    return {
        "Service": "Amazon S3",
        "Event": "s3:TestEvent",
        "Time": moment(time),
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


S3_SUBJECT = "Amazon S3 Notification"
"""The subject of what S3 sends to a topic."""

_is_tagging = ContextVar("_is_tagging", default=False)
"""Whether moto answers PutObjectTagging. moto also reports tags when it stores an object; S3 does not."""


@contextmanager
def relayed(call: Call, on_refusal: Callable[[str], None], now: Callable[[], float] | None = None) -> Iterator[None]:
    """Relay the messages that moto sends to queues to the SQS that ``call`` calls, within the context.

    It is called in the threads of moto. ``on_refusal`` is called with a text for each message that SQS refuses: on AWS,
    too, its sender is not told. ``now`` is the time for moto, in epoch seconds; None for the time of day.
    """
    from moto.events.models import Rule
    from moto.s3.responses import S3Response
    from moto.sns.models import Subscription
    from moto.sqs.models import SQSBackend

    clock = now or time
    relay = Relay(call, on_refusal, Rule.send_to_targets, clock)

    running = [clock]

    def utcnow() -> datetime:
        # A module of moto that is first loaded within the context keeps this function.
        return datetime.fromtimestamp((running or [time])[0](), UTC).replace(tzinfo=None)

    with (
        patch("moto.core.utils.utcnow", utcnow),
        patch.object(SQSBackend, "get_queue", lambda _, name: relay.queue(name)),
        patch.object(SQSBackend, "send_message", lambda _, *args, **more: relay.send(*args, **more)),
        patch.object(Rule, "send_to_targets", partialmethod(_send_event, relay)),
        patch.object(Subscription, "get_post_data", partialmethod(notification, count(int(clock() * 1e6)))),
        patch("moto.s3.notifications.send_event", relay.send_change),
        patch.object(S3Response, "put_object_tagging", partialmethod(_tagging, S3Response.put_object_tagging)),
        patch("moto.s3.notifications._get_test_event", lambda bucket: check_of(bucket, clock(), _request_id())),
    ):
        try:
            yield
        finally:
            running.clear()


def _send_event(rule: Any, relay: "Relay", event: Any, **more: Any) -> None:
    relay.send_event(rule, event, **more)


def _tagging(response: Any, answer: Callable[[Any], Any]) -> Any:
    token = _is_tagging.set(True)
    try:
        return answer(response)
    finally:
        _is_tagging.reset(token)


@dataclass
class Relay:
    """The methods that replace those of moto. ``to_targets`` is moto's own delivery to the targets of a rule."""

    call: Call
    on_refusal: Callable[[str], None]
    to_targets: Callable[..., None]
    clock: Callable[[], float] = time

    def __post_init__(self) -> None:
        self._sequence = count(int(self.clock() * 1e6))

    def queue(self, name: str) -> Any:
        """Return a queue, with what moto reads of it. Raises moto's error if there is none."""
        from moto.sqs.exceptions import QueueDoesNotExist

        try:
            url = self.call("GetQueueUrl", {"QueueName": name})["QueueUrl"]
        except SqsError as error:
            raise QueueDoesNotExist from error
        found = self.call("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["All"]})["Attributes"]
        return SimpleNamespace(url=url, fifo_queue=name.endswith(".fifo"), attributes=found)

    def send(self, queue_name: str, message_body: str, *args: Any, **more: Any) -> None:
        """Send a message, with the parameters of moto's ``send_message``."""
        from moto.sqs.exceptions import QueueDoesNotExist

        try:
            self.call("SendMessage", send_request(self.queue(queue_name), message_body, *args, **more))
        except (QueueDoesNotExist, SqsError) as error:
            self.on_refusal(f"{queue_name} did not get a message of another service: {error}")

    def send_event(self, rule: Any, event: Any, **more: Any) -> None:
        """Send an event to the targets of a rule if it matches; targets of other kinds than moto's get nothing."""
        delivered = as_delivered(event)
        if rule.state == "DISABLED" or not is_match(rule.event_pattern.dump(), delivered):
            return
        for target in rule.targets:
            _, _, service, _, _, resource = target["Arn"].split(":", 5)
            if service == "sqs":
                group = target.get("SqsParameters", {}).get("MessageGroupId")
                self.send(resource, input_of(target, delivered), group_id=group)
            elif service == "events":
                alone = copy(rule)
                alone.targets = [target]
                self.to_targets(alone, event, **more)

    def send_change(self, account_id: str, event_name: str, bucket: Any, key: Any) -> None:
        """Send a change of an object where the notifications of its bucket say. On AWS, too, nothing is raised."""
        from moto.events.models import events_backends
        from moto.sns.models import sns_backends

        configuration = bucket.notification_configuration
        if configuration is None or (event_name == "s3:ObjectTagging:Put" and not _is_tagging.get()):
            return
        change = self._change(account_id, event_name, bucket, key)
        for each in configuration.queue:
            if each.matches(event_name, key.name):
                self.send(each.arn.rpartition(":")[2], json.dumps(notification_of(change, each.id)))
        for each in configuration.topic:
            if each.matches(event_name, key.name):
                text = json.dumps(notification_of(change, each.id))
                try:
                    sns_backends[account_id][each.arn.split(":")[3]].publish(text, each.arn, subject=S3_SUBJECT)
                except Exception as error:  # noqa: BLE001 moto raises errors of many types
                    self.on_refusal(f"{each.arn} did not get a message of {bucket.name}: {error}")
        if configuration.event_bridge is not None:
            default = events_backends[account_id][bucket.region_name].event_buses["default"]
            for rule in default.rules.values():
                self.send_event(rule, event_of(change, _uuid()), transform_input=False)

    def _change(self, account_id: str, event_name: str, bucket: Any, key: Any) -> ObjectChange:
        return ObjectChange(
            name=str(getattr(event_name, "value", event_name)).removeprefix("s3:"),
            account=account_id,
            region=bucket.region_name,
            bucket=bucket.name,
            bucket_arn=bucket.arn,
            key=key.name,
            size=key.size,
            etag=key.etag.strip('"'),
            version_id=key.version_id if bucket.is_versioned else None,
            time=self.clock(),
            sequence=next(self._sequence),
            request_id=_request_id(),
        )


def _uuid() -> str:
    """Return an id of moto, whose random numbers are the same in each run in virtual time."""
    from moto.moto_api._internal import mock_random

    return str(mock_random.uuid4())


def _request_id() -> str:
    return _uuid().replace("-", "")[:16].upper()


def notification(
    subscription: Any,
    sequence: Iterator[int],
    message: str,
    message_id: str,
    subject: str | None,
    message_attributes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what SNS sends to a queue, without a valid signature: moto's is another one in each run."""
    from moto.core import utils

    host = f"https://sns.{subscription.topic.sns_backend.region_name}.amazonaws.com"
    found = {
        "Type": "Notification",
        "MessageId": message_id,
        "TopicArn": subscription.topic.arn,
        "Message": message,
        "Timestamp": utils.iso_8601_datetime_with_milliseconds(),
        "SignatureVersion": "1",
        "Signature": b64encode(b"not signed").decode(),
        "SigningCertURL": f"{host}/SimpleNotificationService-local.pem",
        "UnsubscribeURL": f"{host}/?Action=Unsubscribe&SubscriptionArn={subscription.arn}",
    }
    if subject:
        found["Subject"] = subject
    if message_attributes:
        found["MessageAttributes"] = message_attributes
    if subscription.topic.fifo_topic:
        found["SequenceNumber"] = f"{next(sequence):020}"
    return found


def send_request(  # noqa: PLR0913, PLR0917 the parameters of moto
    queue: Any,
    body: str,
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    delay_seconds: int | None = None,
    deduplication_id: str | None = None,
    group_id: str | None = None,
    system_attributes: Mapping[str, Any] | None = None,
    *,
    message_attributes: Mapping[str, Mapping[str, Any]] | None = None,
    validate_group_id: bool = True,
) -> dict[str, Any]:
    """Return the parameters of SendMessage for a call of moto's ``send_message``."""
    request: dict[str, Any] = {"QueueUrl": queue.url, "MessageBody": body}
    if found := message_attributes or attributes:
        request["MessageAttributes"] = {name: _attribute(value) for name, value in found.items()}
    if group_id is not None:
        request["MessageGroupId"] = group_id
    if queue.fifo_queue and deduplication_id is None and queue.attributes.get("ContentBasedDeduplication") != "true":
        deduplication_id = sha256(body.encode()).hexdigest()
    if queue.fifo_queue and deduplication_id is not None:
        request["MessageDeduplicationId"] = deduplication_id
    return request


def _attribute(value: Mapping[str, Any]) -> dict[str, Any]:
    binary = value.get("BinaryValue")
    return {**value, "BinaryValue": b64decode(binary)} if isinstance(binary, str) else dict(value)
