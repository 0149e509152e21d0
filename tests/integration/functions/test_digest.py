"""The digest function: one object per batch, and the scans that it leaves out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.stub import Stubber

from tests.integration.functions.batches import deliver
from tests.records import record

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from mypy_boto3_s3 import S3Client

    from tests.wire import Wire


@pytest.fixture
def s3() -> S3Client:
    client = boto3.client("s3")
    client.create_bucket(Bucket="digests")
    return client


@pytest.fixture
def app(load: Callable[[str], ModuleType], s3: S3Client, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("DIGEST_BUCKET", "digests")
    return load("digest")


def scan(message_id: str, parcel: str, hour: int = 8, carrier: str = "dhl", receives: int = 1) -> dict[str, Any]:
    at = f"2026-07-25T{hour:02}:00:00Z"
    body = {"parcel": parcel, "carrier": carrier, "status": "in_transit", "at": at}
    return record(body, message_id, "scans", receives=receives)


def digests(s3: S3Client) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of each object in the bucket, by key."""
    keys = [found["Key"] for found in s3.list_objects_v2(Bucket="digests").get("Contents", [])]
    bodies = {key: s3.get_object(Bucket="digests", Key=key)["Body"].read() for key in keys}
    return {key: [json.loads(line) for line in body.splitlines()] for key, body in bodies.items()}


def messages(lines: list[dict[str, Any]]) -> list[str]:
    return [line["message"] for line in lines]


def test_a_batch_becomes_one_object_in_the_order_of_the_scans_also_if_it_is_redelivered_in_another(
    app: ModuleType, s3: S3Client, wire: Wire
) -> None:
    batch = [scan("m1", "p-1", hour=9), scan("m2", "p-2", hour=8, carrier="gls")]
    assert deliver(app, *batch) == []
    assert deliver(app, *reversed(batch)) == []

    [lines] = digests(s3).values()
    assert lines == [
        {"message": "m2", "parcel": "p-2", "carrier": 3, "status": "in_transit", "at": "2026-07-25T08:00:00Z"},
        {"message": "m1", "parcel": "p-1", "carrier": 1, "status": "in_transit", "at": "2026-07-25T09:00:00Z"},
    ]
    assert wire.requests == []


def test_the_second_scan_of_a_parcel_is_retried_for_another_digest(app: ModuleType, s3: S3Client, wire: Wire) -> None:
    later, earlier = scan("m1", "p-1", hour=9), scan("m2", "p-1", hour=8)

    assert deliver(app, later, earlier, scan("m3", "p-2")) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 2}
    assert deliver(app, scan("m1", "p-1", hour=9, receives=2)) == []
    assert sorted(map(messages, digests(s3).values())) == [["m1"], ["m2", "m3"]]


def test_a_scan_of_an_unknown_carrier_is_dead_lettered_and_the_others_are_written(
    app: ModuleType, s3: S3Client, wire: Wire
) -> None:
    assert deliver(app, scan("m0", "p-0", carrier="albatross")) == []
    assert digests(s3) == {}  # without a valid scan, none is written
    wire.requests.clear()
    assert deliver(app, scan("m1", "p-1", carrier="albatross"), scan("m2", "p-2")) == []

    [lines] = digests(s3).values()
    assert messages(lines) == ["m2"]
    [envelope] = wire.envelopes()
    assert (envelope["id"], envelope["failure"]["reason"]) == ("m1", "fatal")
    assert envelope["failure"]["message"] == "parcel p-1: unknown carrier 'albatross'"


def test_an_invalid_scan_is_dead_lettered_with_the_validation_errors(app: ModuleType, s3: S3Client, wire: Wire) -> None:
    invalid = record({"parcel": "p-1", "carrier": "dhl", "status": "lost", "at": "2026-07-25T08:00"}, "m1", "scans")

    assert deliver(app, invalid, scan("m2", "p-2")) == []
    [envelope] = wire.envelopes()
    assert envelope["failure"]["reason"] == "undecodable"
    assert "status: Input should be" in envelope["failure"]["message"]
    assert "at: Input should have timezone info" in envelope["failure"]["message"]


def test_a_busy_s3_delays_the_digest_and_keeps_the_other_verdicts(app: ModuleType, wire: Wire) -> None:
    twice = scan("m3", "p-1", hour=9)
    with Stubber(app.s3) as stub:
        stub.add_client_error("put_object", "SlowDown", http_status_code=503)
        batch = [scan("m1", "p-1"), scan("m2", "p-2"), twice, scan("m4", "p-4", carrier="albatross")]

        assert deliver(app, *batch) == ["m1", "m2", "m3"]
    assert wire.visibilities() == {"handle-m1": 300, "handle-m2": 300, "handle-m3": 2}
    assert [envelope["id"] for envelope in wire.envelopes()] == ["m4"]


def test_other_errors_of_s3_are_retried_by_the_policy_and_the_last_one_is_in_the_dead_letter(
    app: ModuleType, wire: Wire
) -> None:
    with Stubber(app.s3) as stub:
        stub.add_client_error("put_object", "AccessDenied", "Not you.", http_status_code=403)
        assert deliver(app, scan("m1", "p-1")) == ["m1"]
        stub.add_client_error("put_object", "SlowDown", "Please reduce your request rate.", http_status_code=503)
        assert deliver(app, scan("m2", "p-2", receives=5)) == []
    assert 15 <= wire.visibilities()["handle-m1"] <= 30
    [envelope] = wire.envelopes()
    assert (envelope["failure"]["reason"], envelope["failure"]["attempts"]) == ("exhausted", 5)
    assert "Please reduce your request rate." in envelope["failure"]["message"]
