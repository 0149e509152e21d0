"""A letter, as a value: what is read of it, what is sent of it."""

import json
from typing import Any

import pytest

from tarry.failed import CannotEdit, as_event, as_json, edit
from tarry.failed.dead_letters import fresh_envelope, without_lineage
from tarry.failed.retrying import envelope_text
from tests.unit.failed.letters import NOW, dead, letter, record_of
from tests.wire import arn

HISTORY = [{"attempt": 5, "at": "2026-11-21T08:21:40.112Z", "error": "app.CardDeclined: no"}]


def test_a_letter_says_why_it_died() -> None:  # SPEC F2, M2
    one = dead("{}", history=HISTORY)
    assert (one.id, one.delivery_id, one.queue, one.origin) == ("stable", "delivery-1", "orders-dlq", arn("orders"))
    assert one.failure is not None
    assert (one.failure.reason, one.failure.attempts) == ("exhausted", 5)
    assert list(one.history) == HISTORY


def test_a_letter_without_a_record_has_sqss_id_and_the_origin_that_sqs_tells() -> None:  # SPEC K3, M2
    one = letter("{}", DeadLetterQueueSourceArn=arn("ledger"))
    assert (one.id, one.origin, one.failure, one.history) == ("delivery-1", arn("ledger"), None, ())


@pytest.mark.parametrize("record", ["no JSON", {"v": 2}, {**record_of("another body")}])
def test_a_record_that_cannot_be_read_is_none(record: Any) -> None:
    assert letter("{}", record).failure is None


def test_what_is_sent_back_begins_anew_with_all_that_is_known_of_it() -> None:  # SPEC F2, M3
    """What SQS moved by itself may be a copy that was sent again: with its attempts, counters and hops it would die."""
    one = dead("{}", carried=4, hops=15, steps={"slow": 3}, due=NOW + 3600, history=HISTORY, extra={"team": "pay"})
    record = fresh_envelope(one)
    assert record == {**record_of("{}"), "history": HISTORY, "extra": {"team": "pay"}}


def test_a_record_of_tarrys_own_goes_back_as_it_is() -> None:  # SPEC F2
    record = record_of("{}", history=HISTORY)
    assert fresh_envelope(letter("{}", record)) == record


def test_a_letter_without_a_record_gets_one_that_keeps_its_id() -> None:  # SPEC K3
    record = fresh_envelope(letter("{}", DeadLetterQueueSourceArn=arn("orders")))
    assert (record["id"], record["origin"]) == ("delivery-1", arn("orders"))
    assert "failure" not in record


def test_beside_ten_attributes_there_is_no_room_for_a_record() -> None:  # PLATFORM 18
    full = {f"a{index}": {"DataType": "String", "StringValue": "x"} for index in range(10)}
    assert envelope_text(letter("{}", attributes=full), 1_000_000) is None


def test_a_record_is_cut_to_the_room_there_is() -> None:  # SPEC E6
    one = dead("{}", traceback="x" * 5_000)
    text = envelope_text(one, 1_000)
    assert text is not None
    assert len(text) < 1_000
    assert json.loads(text)["id"] == "stable"


def test_the_hops_that_lambda_counts_are_left_behind() -> None:  # SPEC E8, PLATFORM 15b
    header = "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1;Lineage=25:a87bd80c:15"
    assert without_lineage(header) == "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1"
    assert without_lineage("Lineage=25:a87bd80c:15") is None
    assert without_lineage(None) is None


# editing


def test_an_edited_letter_keeps_its_id_and_says_when() -> None:  # SPEC M3
    one = edit(dead('{"id": 1}'), '{"id": 2}', NOW)
    record = fresh_envelope(one)
    assert (one.id, one.body, record["edited"]) == ("stable", '{"id": 2}', "2027-01-15T08:00:00.000Z")
    read_again = letter('{"id": 2}', record)  # the sum is that of the new body
    assert (read_again.id, read_again.edited) == ("stable", "2027-01-15T08:00:00.000Z")


def test_the_same_body_is_no_edit() -> None:
    one = dead('{"id": 1}')
    assert edit(one, '{"id": 1}', NOW) is one


def test_json_stays_json() -> None:  # SPEC M3
    with pytest.raises(CannotEdit, match="was JSON, and is none now"):
        edit(dead('{"id": 1}'), "{id: 1}", NOW)
    assert edit(dead("plain"), "still plain", NOW).body == "still plain"


@pytest.mark.parametrize("body", ["", "a\x00b", "\ud800"])
def test_a_body_that_sqs_would_refuse_is_none(body: str) -> None:  # PLATFORM 19
    with pytest.raises(CannotEdit, match="cannot have that body"):
        edit(dead("plain"), body, NOW)


def test_an_undecodable_letter_is_not_once_it_is_edited() -> None:  # SPEC M4
    one = dead("{broken", reason="undecodable")
    assert one.is_undecodable
    assert not edit(one, "{}", NOW).is_undecodable


# as others read it


def test_as_json_it_has_exactly_these_fields() -> None:  # SPEC M2
    told = as_json(dead("{}", {"tenant": {"DataType": "String", "StringValue": "acme"}}, history=HISTORY))
    assert list(told) == [
        "delivery_id", "id", "queue", "origin", "sent_at", "body", "attributes", "failure", "history",
    ]  # fmt: skip
    assert told["attributes"] == {"tenant": "acme"}
    assert told["failure"]["type"] == "app.CardDeclined"
    assert told["history"] == HISTORY
    assert as_json(letter("{}"))["failure"] is None


def test_as_an_event_it_is_what_its_function_would_get() -> None:  # SPEC M2
    blob = {"blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"}}
    [record] = as_event([dead("{}", blob, carried=3)])["Records"]
    assert (record["eventSourceARN"], record["body"], record["receiptHandle"]) == (arn("orders"), "{}", "")
    assert record["attributes"]["ApproximateReceiveCount"] == "1"
    assert record["messageAttributes"]["blob"]["binaryValue"] == "AP8="
    assert "carried" not in json.loads(record["messageAttributes"]["Tarry"]["stringValue"])
