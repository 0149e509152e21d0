"""Dead letters as values: reading, editing, and the other formats."""

import json
from typing import Any

import pytest

from tarry.failed import CannotEdit, as_event, as_json, edit
from tarry.failed.dead_letters import fresh_envelope, without_lineage
from tarry.failed.sending import envelope_text
from tests.unit.failed.dead_letters import NOW, dead_letter, envelope_of, recorded_dead_letter
from tests.wire import arn

HISTORY = [{"attempt": 5, "at": "2026-11-21T08:21:40.112Z", "error": "app.CardDeclined: no"}]


def test_a_dead_letter_has_the_reason_of_its_failure() -> None:  # SPEC F2, M2
    one = recorded_dead_letter("{}", history=HISTORY)
    assert (one.id, one.delivery_id, one.queue, one.origin) == ("stable", "delivery-1", "orders-dlq", arn("orders"))
    assert one.failure is not None
    assert (one.failure.reason, one.failure.attempts) == ("exhausted", 5)
    assert list(one.history) == HISTORY


def test_without_an_envelope_a_dead_letter_has_the_message_id_and_origin_of_sqs() -> None:  # SPEC K3, M2
    one = dead_letter("{}", DeadLetterQueueSourceArn=arn("ledger"))
    assert (one.id, one.origin, one.failure, one.history) == ("delivery-1", arn("ledger"), None, ())


@pytest.mark.parametrize("record", ["no JSON", {"v": 2}, {**envelope_of("another body")}])
def test_an_envelope_that_cannot_be_read_is_treated_as_absent(record: Any) -> None:
    assert dead_letter("{}", record).failure is None


def test_a_message_sent_back_keeps_its_history_but_no_counters() -> None:  # SPEC E3, F2, M3
    """The redrive policy may have moved a copy; with its attempts and counters it would be dead-lettered at once."""
    kept = {"history": HISTORY, "extra": {"team": "pay"}}
    one = recorded_dead_letter("{}", carried=4, hops=15, steps={"slow": 3}, due=NOW + 3600, **kept)
    assert fresh_envelope(one) == json.loads(envelope_text(one, 10_000) or "") == {**envelope_of("{}"), **kept}


def test_without_an_envelope_a_dead_letter_gets_one_that_keeps_its_id() -> None:  # SPEC K3
    record = fresh_envelope(dead_letter("{}", DeadLetterQueueSourceArn=arn("orders")))
    assert (record["id"], record["origin"], "failure" in record) == ("delivery-1", arn("orders"), False)


def test_an_envelope_is_trimmed_to_the_room_available_and_left_out_beside_ten_attributes() -> (
    None
):  # SPEC E6, PLATFORM 18
    text = envelope_text(recorded_dead_letter("{}", traceback="x" * 5_000), 1_000)
    assert text is not None
    assert (len(text) < 1_000, json.loads(text)["id"]) == (True, "stable")
    full = {f"a{index}": {"DataType": "String", "StringValue": "x"} for index in range(10)}
    assert envelope_text(dead_letter("{}", attributes=full), 1_000_000) is None


def test_the_trace_header_loses_the_hops_that_lambda_counts() -> None:  # SPEC E8, PLATFORM 15b
    header = "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1;Lineage=25:a87bd80c:15"
    assert without_lineage(header) == "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1"
    assert without_lineage("Lineage=25:a87bd80c:15") is None
    assert without_lineage(None) is None


def test_an_edited_dead_letter_keeps_its_id_and_has_the_time_of_the_edit() -> None:  # SPEC M3, M4
    one = recorded_dead_letter("{broken", reason="undecodable")
    edited = edit(one, "{}", NOW)
    record = fresh_envelope(edited)
    assert (edited.id, edited.body, record["edited"]) == ("stable", "{}", "2027-01-15T08:00:00.000Z")
    assert (one.is_undecodable, edited.is_undecodable, edit(one, one.body, NOW) is one) == (True, False, True)
    reread = dead_letter("{}", record)  # the sum is that of the new body
    assert (reread.id, reread.edited) == ("stable", "2027-01-15T08:00:00.000Z")


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('{"id": 1}', "{id: 1}", "the body was JSON, the edited body is not"),  # SPEC M3
        *(("plain", body, "SQS would refuse the new body") for body in ("", "a\x00b", "\ud800")),  # PLATFORM 19
    ],
)
def test_a_body_is_not_edited_into_another_format_or_one_that_sqs_refuses(before: str, after: str, why: str) -> None:
    with pytest.raises(CannotEdit, match=why):
        edit(recorded_dead_letter(before), after, NOW)
    assert edit(recorded_dead_letter("plain"), "still plain", NOW).body == "still plain"


# other formats


def test_the_json_object_has_exactly_these_fields() -> None:  # SPEC M2
    fields = as_json(
        recorded_dead_letter("{}", {"tenant": {"DataType": "String", "StringValue": "acme"}}, history=HISTORY)
    )
    assert list(fields) == [
        "delivery_id", "id", "queue", "origin", "sent_at", "body", "attributes", "failure", "history",
    ]  # fmt: skip
    assert fields["attributes"] == {"tenant": "acme"}
    assert fields["failure"]["type"] == "app.CardDeclined"
    assert fields["history"] == HISTORY
    assert as_json(dead_letter("{}"))["failure"] is None


def test_the_event_is_the_one_that_the_function_would_get() -> None:  # SPEC M2
    blob = {"blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"}}
    [record] = as_event([recorded_dead_letter("{}", blob, carried=3)])["Records"]
    assert (record["eventSourceARN"], record["body"], record["receiptHandle"]) == (arn("orders"), "{}", "")
    assert record["attributes"]["ApproximateReceiveCount"] == "1"
    assert record["messageAttributes"]["blob"]["binaryValue"] == "AP8="
    assert "carried" not in json.loads(record["messageAttributes"]["Tarry"]["stringValue"])
