"""Events of other services: the notifications of S3 as AWS documents them, and the rules of EventBridge."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tarry.tools.testing.moto_relay import (
    ObjectChange,
    as_delivered,
    check_of,
    event_of,
    input_of,
    is_match,
    notification_of,
)

CHANGE = ObjectChange(
    name="ObjectCreated:Put",
    account="123456789012",
    region="eu-west-1",
    bucket="files",
    bucket_arn="arn:aws:s3:::files",
    key="in/red flower+ü(1).jpg",
    size=14,
    etag="518184f1449ab62320473984c5738d6a",
    version_id=None,
    time=1_800_000_000.125,
    sequence=0x6A6EF6F74389E232,
    request_id="C3D13FE58DE4C810",
)


RECORD: dict[str, Any] = {
    "eventVersion": "2.5", "eventSource": "aws:s3", "awsRegion": "eu-west-1", "eventName": "ObjectCreated:Put",
    "eventTime": "2027-01-15T08:00:00.125Z", "userIdentity": {"principalId": "AWS:local"},
    "requestParameters": {"sourceIPAddress": "127.0.0.1"},
    "responseElements": {"x-amz-request-id": "C3D13FE58DE4C810", "x-amz-id-2": "tarry/local="},
    "s3": {
        "s3SchemaVersion": "1.0", "configurationId": "Uploads",
        "bucket": {"name": "files", "ownerIdentity": {"principalId": "LOCAL"}, "arn": "arn:aws:s3:::files"},
        "object": {
            "key": "in/red+flower%2B%C3%BC%281%29.jpg", "size": 14, "eTag": "518184f1449ab62320473984c5738d6a",
            "sequencer": "006A6EF6F74389E232",
        },
    },
}  # fmt: skip


def test_the_record_of_a_created_object_has_the_documented_fields() -> None:
    assert notification_of(CHANGE, "Uploads") == {"Records": [RECORD]}
    assert check_of("files", CHANGE.time, "C3D1") == {
        "Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2027-01-15T08:00:00.125Z", "Bucket": "files",
        "RequestId": "C3D1", "HostId": "tarry/local=",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ObjectRemoved:Delete", {"key", "versionId", "sequencer"}),
        ("ObjectRemoved:DeleteMarkerCreated", {"key", "eTag", "versionId", "sequencer"}),
        ("ObjectTagging:Put", {"key", "eTag", "versionId"}),
        ("ObjectCreated:Copy", {"key", "size", "eTag", "versionId", "sequencer"}),
    ],
)
def test_size_etag_and_sequencer_are_there_where_s3_has_them(name: str, expected: set[str]) -> None:
    [record] = notification_of(replace(CHANGE, name=name, version_id="v1"), "id")["Records"]
    assert record["s3"]["object"].keys() == expected


def test_the_event_for_eventbridge_has_the_documented_fields_and_the_key_as_it_is() -> None:
    assert event_of(replace(CHANGE, version_id="v1"), "17793124") == {
        "version": "0", "id": "17793124", "detail-type": "Object Created", "source": "aws.s3",
        "account": "123456789012", "time": 1_800_000_000.125, "region": "eu-west-1",
        "resources": ["arn:aws:s3:::files"],
        "detail": {
            "version": "0", "bucket": {"name": "files"}, "request-id": "C3D13FE58DE4C810", "requester": "123456789012",
            "source-ip-address": "127.0.0.1", "reason": "PutObject",
            "object": {
                "key": "in/red flower+ü(1).jpg", "size": 14, "etag": "518184f1449ab62320473984c5738d6a",
                "version-id": "v1", "sequencer": "006A6EF6F74389E232",
            },
        },
    }  # fmt: skip
    removed = event_of(replace(CHANGE, name="ObjectRemoved:Delete"), "1")
    assert (removed["detail-type"], removed["detail"]["reason"]) == ("Object Deleted", "DeleteObject")
    assert removed["detail"]["deletion-type"] == "Permanently Deleted"
    assert event_of(replace(CHANGE, name="ObjectTagging:Delete"), "1")["detail-type"] == "Object Tags Deleted"


# rules of EventBridge


EVENT: dict[str, Any] = {
    "source": "shop",
    "time": 1_800_000_000,
    "detail": {"id": 'o-"1"', "total": 12, "items": [{"sku": "a"}]},
    "ingestion-time": 1,
}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ('{"source": ["shop"]}', True),
        ('{"detail": {"total": [{"numeric": [">", 12]}]}}', False),
        ('{"detail": {"items": {"sku": [{"prefix": "a"}]}}}', True),
        (None, False),
        ("{", False),
    ],
)
def test_an_event_matches_the_pattern_of_a_rule(pattern: str | None, expected: bool) -> None:
    assert is_match(pattern, EVENT) is expected


def test_a_target_gets_the_event_or_what_its_input_makes_of_it() -> None:
    event = as_delivered(EVENT)
    assert (event["time"], "ingestion-time" in event) == ("2027-01-15T08:00:00Z", False)
    assert json.loads(input_of({}, event)) == event
    assert input_of({"Input": '{"a": 1}'}, event) == '{"a": 1}'
    assert input_of({"InputPath": "$.detail.items[0].sku"}, event) == '"a"'
    assert input_of({"InputPath": "$.detail.none"}, event) == "null"
    transformer = {
        "InputPathsMap": {"id": "$.detail.id", "items": "$.detail.items"},
        "InputTemplate": '{"id": <id>, "text": "order <id> of <unknown>", "items": <items>}',
    }
    found = json.loads(input_of({"InputTransformer": transformer}, event))
    assert found == {"id": 'o-"1"', "text": 'order o-"1" of <unknown>', "items": [{"sku": "a"}]}
